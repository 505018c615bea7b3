//! Requests that wait for space (`data::admission::queue`). Before one is refused, space that is
//! about to be freed is reclaimed; requests that need not or must not wait are withdrawn; waits are
//! measured.
//!
//! To a client, the space of a removed file is free. But the removal may still be in the operation
//! log, in a batch (`removals`), or delayed by its metadata service. So all services are asked to
//! free what they have (`Request::GiveBack`), and answer whether more is to come for this target.
//! With a backing store they also write back dirty data, which makes it evictable; while that
//! progresses no request is refused.
//!
//! Writes of other hosts never wait for space, because that would stall everything queued behind
//! them on the same stream, and truncates of the file wait until they have arrived. Such a write is
//! told to retry, and its client first requests the extents (`client::remote`), which does wait.

use crate::shared::Shared;
use crate::shared::metrics::Metrics;
use crate::shared::reply::ReplyTo;
use crate::target::micros_until;
use crate::target::pending::PendingRequests;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::codec::Reader;
use wire::request::coming;
use wire::{Reply, Request, ShardIndex};

/// How long an unresponsive service may take.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Pause between rounds while space is being freed.
const PAUSE: Duration = Duration::from_millis(1);
/// Pause between rounds while space is freed only by writeback.
const WRITEBACK_PAUSE: Duration = Duration::from_millis(20);
/// Interval between checks of waiting requests.
const CHECK_PAUSE: Duration = Duration::from_millis(50);

/// State of the rounds in which services are asked for space.
#[derive(Default)]
pub(crate) struct SpaceWait {
    /// The current round.
    round: u64,
    /// When it begins, if it has not begun.
    begins_at: Option<Instant>,
    ended_at: Option<Instant>,
    /// Services that have not answered in this round, each by one of its shards, and their
    /// deadline.
    unanswered: BTreeSet<ShardIndex>,
    answers_until: Option<Instant>,
    is_freeing: bool,
    /// Sum of the services' writeback progress; 0: none writes back. In this round and in the
    /// previous one.
    writeback: [u64; 2],
    /// When to check waiting requests.
    check_at: Option<Instant>,
    /// Tickets of requests that must not wait.
    must_not_wait: Vec<u64>,
}

/// Result of a round.
pub(crate) struct SpaceReport {
    pub(crate) round: u64,
    /// Services are freeing space.
    pub(crate) comes: bool,
    /// Writeback has progressed since the round before.
    pub(crate) progresses: bool,
}

impl SpaceWait {
    /// The target has no space for a request.
    pub(crate) fn begin_wait(&mut self, requests: &mut PendingRequests, ticket: u64) {
        let Some(pending) = requests.with_ticket(ticket) else { return };
        match (&pending.to, &pending.again) {
            (ReplyTo::Visit(_), _) | (ReplyTo::Peer(..), Some((_, Request::Write { .. }))) => {
                self.must_not_wait.push(ticket);
            }
            _ => drop(pending.waits_since.get_or_insert_with(Instant::now)),
        }
    }

    /// A request that must not wait, to be withdrawn.
    pub(crate) fn take_unwaitable(&mut self) -> Option<u64> {
        self.must_not_wait.pop()
    }

    /// The target asks whether services can free space.
    pub(crate) fn request_space(&mut self, shared: &Shared, round: u64) {
        self.round = round;
        let is_slow = self.writeback[1] != 0 && !self.is_freeing;
        let pause = if is_slow { WRITEBACK_PAUSE } else { PAUSE };
        match self.ended_at.map(|at| at + pause).filter(|&at| at > Instant::now()) {
            Some(at) => self.begins_at = Some(at),
            None => self.begin_round(shared),
        }
    }

    fn begin_round(&mut self, shared: &Shared) {
        (self.unanswered, self.is_freeing, self.begins_at) = (shared.net.services(), false, None);
        self.writeback[0] = 0;
        self.answers_until = Some(Instant::now() + ANSWER_TIME);
        let request = Request::GiveBack { target: shared.net.router.me.0 };
        for &shard in &self.unanswered {
            let to = ReplyTo::SpaceReport { round: self.round, shard };
            shared.route_own_request(&shared.net.own_header(shard), &request, to);
        }
    }

    /// A service has freed what it could. One that cannot be reached frees nothing, but may have
    /// data to write back (`has_backing`). Returns the result of the round if it has ended.
    pub(crate) fn note_freed(
        &mut self,
        has_backing: bool,
        (round, shard): (u64, ShardIndex),
        answer: &[u8],
    ) -> Option<SpaceReport> {
        if round != self.round || !self.unanswered.remove(&shard) {
            return None;
        }
        match Reply::decode(&mut Reader::new(answer)) {
            Ok(Reply::Number { value }) => {
                self.is_freeing |= coming::is_freeing(value);
                if coming::is_writing_back(value) {
                    self.writeback[0] = self.writeback[0].saturating_add(value);
                }
            }
            _ => self.is_freeing |= has_backing,
        }
        self.unanswered.is_empty().then(|| self.end_round())
    }

    fn end_round(&mut self) -> SpaceReport {
        let SpaceWait { round, is_freeing, writeback: [writeback, before], .. } = *self;
        (self.ended_at, self.answers_until) = (Some(Instant::now()), None);
        self.writeback[1] = writeback;
        let comes = is_freeing || writeback != 0;
        SpaceReport { round, comes, progresses: writeback != 0 && writeback != before }
    }

    /// Records the duration of a wait, and returns it in microseconds.
    pub(crate) fn note_duration(metrics: &Metrics, since: Instant) -> u64 {
        let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        metrics.daemon.write_waits.fetch_add(1, Relaxed);
        metrics.daemon.write_wait_us.fetch_add(micros, Relaxed);
        metrics.daemon.write_wait_us_max.fetch_max(micros, Relaxed);
        micros
    }

    /// Begins and ends rounds that are due. Returns the result of a round that has ended.
    pub(crate) fn tick_rounds(&mut self, shared: &Shared, now: Instant) -> Option<SpaceReport> {
        if self.begins_at.is_some_and(|at| at <= now) {
            self.begin_round(shared);
        }
        if self.answers_until.is_some_and(|until| until <= now) {
            // Answers of unresponsive services are lost or late. A service that restarts soon
            // reports whether it has data to write back.
            self.is_freeing |= shared.backing.is_some();
            self.unanswered.clear();
            return Some(self.end_round());
        }
        None
    }

    /// True if waiting requests must be checked now. `waits`: there are any.
    pub(crate) fn is_check_due(&mut self, waits: bool, now: Instant) -> bool {
        if !waits {
            self.check_at = None;
            return false;
        }
        let is_due = self.check_at.is_none_or(|at| at <= now);
        if is_due {
            self.check_at = Some(now + CHECK_PAUSE);
        }
        is_due
    }

    /// Microseconds until the next deadline.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let all = [self.begins_at, self.answers_until, self.check_at];
        all.into_iter().flatten().min().map(micros_until)
    }
}
