//! Freeing the space of removed files: which requests the targets get, and when.
//!
//! Files are gathered for a moment, and each target gets many of them in one message. A target has
//! one message in flight, which is repeated with growing pauses until it succeeds; a target that is
//! down delays only its own part. A kill loses nothing: unfinished removals are in the metadata
//! service's log, and freeing twice is harmless.
//!
//! In an instance with copies of files, those of each number of copies go in messages of their own: those
//! with one copy wait for a target that is down, where others are freed at the copies, and these wait for
//! daemons that have some.
//!
//!   gathered --time is up, or enough files--> queued per target --sent, answered--> done

use crate::shard::jobs::targets_of;
use crate::shared::Shared;
use crate::shared::network::encode_request;
use crate::shared::reply::{PartAnswer, RemovalPlace, ReplyTo};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::limits::REMOVE_COUNT_MAX;
use wire::{DaemonIndex, Inode, Layout, Request};

/// How long files are gathered: a message and its answer wake threads on both sides and cost some
/// 100 us of CPU time, so under constant removals that is a twentieth.
const GATHER_TIME: Duration = Duration::from_millis(2);
/// First pause before a request is repeated; it grows up to `PAUSE_MAX`.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// See `PAUSE_MIN`.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Inode numbers as in `Request::Remove`.
pub(crate) type Inodes = Arc<[u8]>;

/// Files of one number of copies that are being gathered.
#[derive(Default)]
struct GatheredFiles {
    /// Those of which any target may hold a part.
    anywhere: Vec<u8>,
    /// By target, those of which only some may.
    at_some: BTreeMap<u16, Vec<u8>>,
}

impl GatheredFiles {
    fn add(&mut self, (inode, layout): (Inode, Layout), (first, count): (u16, u16)) {
        let (targets, number) = (targets_of(&layout, inode, first), inode.0.to_le_bytes());
        if targets.is_all(count) {
            return self.anywhere.extend_from_slice(&number);
        }
        for target in targets {
            self.at_some.entry(target.0).or_default().extend_from_slice(&number);
        }
    }

    /// The files of each of `count` targets, and of those of which this daemon does not know yet.
    fn by_target(mut self, count: u16) -> Vec<(DaemonIndex, Inodes)> {
        let shared: Inodes = self.anywhere.as_slice().into();
        let end = self.at_some.keys().next_back().map_or(0, |&last| last.saturating_add(1));
        let of_target = |target: u16| {
            let files: Inodes = match self.at_some.remove(&target) {
                Some(own) if target < count => [own.as_slice(), &self.anywhere].concat().into(),
                Some(own) => own.as_slice().into(),
                None if target < count => Arc::clone(&shared),
                None => return None,
            };
            (!files.is_empty()).then_some((DaemonIndex(target), files))
        };
        (0..count.max(end)).filter_map(of_target).collect()
    }
}

/// Pending removals of one place.
struct TargetQueue {
    /// Batch number and files. The first one is in flight, or must be repeated.
    waiting: VecDeque<(u64, Inodes)>,
    is_in_flight: bool,
    again_at: Option<Instant>,
    pause: Duration,
}

/// A batch of gathered files.
struct Batch {
    tokens: Vec<u64>,
    targets_open: usize,
}

/// All removals of one worker.
#[derive(Default)]
pub(crate) struct Removals {
    /// The batch being gathered: the service's tokens, and the files by `RemovalPlace::copies`.
    tokens: Vec<u64>,
    gathered: BTreeMap<u8, GatheredFiles>,
    count: usize,
    gathering_since: Option<Instant>,
    batches: BTreeMap<u64, Batch>,
    batches_made: u64,
    /// Places with pending removals.
    targets: BTreeMap<RemovalPlace, TargetQueue>,
}

impl Removals {
    /// Adds removed files of an instance that began with `first` targets and has `count`. True if the
    /// batch is full and requests must be sent now.
    pub(crate) fn gather(
        &mut self,
        now: Instant,
        (first, count): (u16, u16),
        token: u64,
        files: &[(Inode, Layout)],
    ) -> bool {
        let is_full = self.count + files.len() > REMOVE_COUNT_MAX;
        if is_full {
            self.end_batch(count);
        }
        self.tokens.push(token);
        for file in files {
            let copies = file.0.copies();
            self.gathered.entry(copies).or_default().add(*file, (first, count));
        }
        self.count += files.len();
        self.gathering_since.get_or_insert(now);
        is_full
    }

    /// Ends gathering: queues the batch for every target.
    fn end_batch(&mut self, count: u16) {
        let tokens = std::mem::take(&mut self.tokens);
        let gathered = std::mem::take(&mut self.gathered);
        (self.count, self.gathering_since) = (0, None);
        let (id, mut targets_open) = (self.batches_made, 0);
        for (copies, files) in gathered {
            for (target, files) in files.by_target(count) {
                targets_open += 1;
                let place = RemovalPlace { target, copies };
                let queue = self.targets.entry(place).or_insert_with(TargetQueue::new);
                queue.waiting.push_back((id, files));
            }
        }
        self.batches_made += 1;
        self.batches.insert(id, Batch { tokens, targets_open });
    }

    /// Ends gathering now, if the batch is not empty.
    pub(crate) fn end_gathering(&mut self, count: u16) {
        if self.gathering_since.is_some() {
            self.end_batch(count);
        }
    }

    /// True if a target has pending removals.
    pub(crate) fn is_in_flight(&self, target: DaemonIndex) -> bool {
        self.targets.keys().any(|place| place.target == target)
    }

    /// Time of the next request, unless an answer arrives before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let again = self.targets.values().filter_map(|target_queue| target_queue.again_at);
        again.chain(self.gathering_since.map(|gathering_since| gathering_since + GATHER_TIME)).min()
    }

    /// Sends the requests of a worker that are due.
    pub(crate) fn send_due(&mut self, shared: &Shared, worker: usize) {
        let count = shared.net.router.daemon_count();
        self.due(Instant::now(), count, |place, inodes| {
            let (to, request) = (ReplyTo::Removals { worker, place }, Request::Remove { inodes });
            let target = place.target;
            if let Some(units) = shared.units.as_ref().filter(|_| place.copies != 1) {
                return units.change_file(shared, target, &request, to);
            }
            let bytes = encode_request(&shared.net.target_header(target), &request);
            shared.hand_to_target(target, bytes, to);
        });
    }

    /// Calls `ask` with each request to be sent now and its place. `count`: targets of the
    /// instance.
    fn due(&mut self, now: Instant, count: u16, mut ask: impl FnMut(RemovalPlace, &Inodes)) {
        if self.gathering_since.is_some_and(|gathering_since| gathering_since + GATHER_TIME <= now)
        {
            self.end_batch(count);
        }
        for (&place, target_queue) in &mut self.targets {
            if target_queue.is_in_flight || target_queue.again_at.is_some_and(|at| at > now) {
                continue;
            }
            if let Some((_, files)) = target_queue.waiting.front() {
                (target_queue.is_in_flight, target_queue.again_at) = (true, None);
                ask(place, files);
            }
        }
    }

    /// Records the answer for a place. Returns the tokens of a batch that all targets have completed.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        place: RemovalPlace,
        answer: PartAnswer,
    ) -> Option<Vec<u64>> {
        let target_queue = self.targets.get_mut(&place)?;
        target_queue.is_in_flight = false;
        let pause_requested = match answer {
            PartAnswer::Ended(Ok(())) => None,
            PartAnswer::Again(micros) => Some(Duration::from_micros(micros).min(PAUSE_MAX)),
            PartAnswer::Ended(Err(errno)) => {
                tracing::warn!(target = place.target.0, %errno, "target cannot remove files");
                Some(PAUSE_MAX)
            }
        };
        if let Some(pause_requested) = pause_requested {
            target_queue.again_at = Some(now + target_queue.pause.max(pause_requested));
            target_queue.pause = (target_queue.pause * 2).min(PAUSE_MAX);
            return None;
        }
        target_queue.pause = PAUSE_MIN;
        let (id, _) = target_queue.waiting.pop_front()?;
        if target_queue.waiting.is_empty() {
            self.targets.remove(&place);
        }
        let batch = self.batches.get_mut(&id)?;
        batch.targets_open = batch.targets_open.saturating_sub(1);
        if batch.targets_open > 0 {
            return None;
        }
        self.batches.remove(&id).map(|batch| batch.tokens)
    }
}

impl TargetQueue {
    const fn new() -> TargetQueue {
        TargetQueue {
            waiting: VecDeque::new(),
            is_in_flight: false,
            again_at: None,
            pause: PAUSE_MIN,
        }
    }
}

#[cfg(test)]
mod tests;
