//! Backing locations of the target's files. The owning shard is asked once for each file; fetches
//! wait for the answer.

use super::{Fetch, FetchKind, FetchOutcome, FileLocations};
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::reply::ReplyTo;
use data::FillJob;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::{Inode, Layout, Reply, Request};

/// Maximum number of files whose locations are cached.
const KNOWN_MAX: usize = 1 << 16;
/// Pause before an unanswered query is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Pause before the location of a missing file is queried again.
const MISSING_RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long a missing file is looked for: it may just have been moved or rewritten, and the report
/// to its shard may still be on its way.
const MISSING_RETRY_TIME: Duration = Duration::from_secs(2);

/// A fetch that waits for the location of its file.
struct WaitingFetch {
    ticket: u64,
    kind: FetchKind,
    job: FillJob,
    until: Option<Instant>,
}

impl WaitingFetch {
    fn fetch(self, inode: Inode, known: &Arc<FileLocations>) -> Fetch {
        let (WaitingFetch { ticket, kind, job, until }, known) = (self, Arc::clone(known));
        Fetch { ticket, inode, kind, job, locations: known, until }
    }
}

/// A query to a shard.
struct LocationQuery {
    sent: Instant,
    /// When the query is given up.
    until: Instant,
    /// The target waits for `Input::BackingLocated`.
    for_target: bool,
    /// The location was invalidated after the query was sent, so the answer must be discarded.
    is_outdated: bool,
    waiting: Vec<WaitingFetch>,
}

/// A query that has ended.
pub(crate) struct EndedQuery {
    /// Fetches that waited for it and have failed.
    pub(crate) failed: Vec<(u64, FetchOutcome)>,
    /// The target waits for this.
    pub(crate) located: Option<Result<(u64, Layout)>>,
}

/// Cached locations and pending queries.
#[derive(Default)]
pub(crate) struct BackingLocations {
    known: BTreeMap<Inode, Arc<FileLocations>>,
    queries: BTreeMap<Inode, LocationQuery>,
    /// Fetches of missing files, with the time of the next query.
    missing: VecDeque<(Instant, Inode, WaitingFetch)>,
}

impl BackingLocations {
    /// The backing file has a new version. Extents of this file may be evicted, and must not be
    /// fetched again from the earlier version, which may still be open.
    pub(crate) fn invalidate(&mut self, inode: Inode) {
        self.known.remove(&inode);
        if let Some(query) = self.queries.get_mut(&inode) {
            query.is_outdated = true;
        }
    }

    /// The target asks how much of a file is backed.
    pub(crate) fn locate_for_target(&mut self, shared: &Shared, inode: Inode) {
        self.query(shared, inode).for_target = true;
    }

    /// The target requests bytes of a file, for a job.
    pub(crate) fn fetch_bytes(
        &mut self,
        shared: &Shared,
        (ticket, inode, job): (u64, Inode, FillJob),
        kind: FetchKind,
    ) {
        self.fetch_again(shared, inode, WaitingFetch { ticket, kind, job, until: None });
    }

    fn fetch_again(&mut self, shared: &Shared, inode: Inode, waiting: WaitingFetch) {
        match self.known.get(&inode) {
            Some(known) => submit_fetch(shared, waiting.fetch(inode, known)),
            None => self.query(shared, inode).waiting.push(waiting),
        }
    }

    fn query(&mut self, shared: &Shared, inode: Inode) -> &mut LocationQuery {
        self.queries.entry(inode).or_insert_with(|| {
            send_query(shared, inode);
            let sent = Instant::now();
            let until = sent + shared.timing.timeout;
            LocationQuery {
                sent,
                until,
                for_target: false,
                is_outdated: false,
                waiting: Vec::new(),
            }
        })
    }

    /// A shard answered. An answer that cannot be used is ignored, and the query repeated later.
    pub(crate) fn note_answer(
        &mut self,
        shared: &Shared,
        inode: Inode,
        answer: &[u8],
    ) -> Option<EndedQuery> {
        let outcome = match Reply::decode(&mut Reader::new(answer)) {
            Ok(Reply::Bytes { bytes }) => FileLocations::from_answer(bytes),
            Ok(Reply::Refused { errno }) => Err(errno),
            _ => return None,
        };
        self.end_query(shared, inode, outcome)
    }

    /// Gives up the query of a file.
    pub(crate) fn give_up(&mut self, shared: &Shared, inode: Inode) -> Option<EndedQuery> {
        self.end_query(shared, inode, Err(Errno::EIO))
    }

    fn end_query(
        &mut self,
        shared: &Shared,
        inode: Inode,
        outcome: Result<FileLocations>,
    ) -> Option<EndedQuery> {
        if let Some(query) = self.queries.get_mut(&inode)
            && std::mem::take(&mut query.is_outdated)
        {
            query.sent = Instant::now();
            send_query(shared, inode);
            return None;
        }
        let query = self.queries.remove(&inode)?;
        // Open by a client although it was replaced in the backing store: its bytes are gone.
        let outcome = match outcome {
            // Created in the instance and not written back yet.
            Err(Errno::ESTALE) if !inode.is_backed() => Ok(FileLocations::unbacked()),
            Err(Errno::ESTALE) => Err(Errno::EIO),
            outcome => outcome,
        };
        let outcome = outcome.map(Arc::new);
        if let Ok(known) = &outcome
            && !known.is_unbacked()
        {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(inode, Arc::clone(known));
        }
        let mut failed = Vec::new();
        for waiting in query.waiting {
            match &outcome {
                Ok(known) => submit_fetch(shared, waiting.fetch(inode, known)),
                Err(errno) => failed.push((waiting.ticket, waiting.kind.refused(*errno))),
            }
        }
        let located = query.for_target.then(|| outcome.map(|known| (known.size, known.layout)));
        Some(EndedQuery { failed, located })
    }

    /// A fetch has found its file missing: asks its shard again later.
    pub(crate) fn retry_missing(&mut self, ticket: u64, fetch: Fetch) {
        let Fetch { inode, kind, job, locations: known, until, .. } = fetch;
        // Another fetch may have learned a newer location already.
        if self.known.get(&inode) == Some(&known) {
            self.known.remove(&inode);
        }
        let now = Instant::now();
        let until = until.or(Some(now + MISSING_RETRY_TIME));
        let waiting = WaitingFetch { ticket, kind, job, until };
        self.missing.push_back((now + MISSING_RETRY_PAUSE, inode, waiting));
    }

    /// Backing path of a file, if cached.
    pub(crate) fn known_path(&self, inode: Inode) -> Option<&[u8]> {
        self.known.get(&inode).map(|known| known.first_path())
    }

    /// True if a query for the file is pending.
    pub(crate) fn is_queried(&self, inode: Inode) -> bool {
        self.queries.contains_key(&inode)
    }

    /// Queries the location, so that it is cached later.
    pub(crate) fn query_location(&mut self, shared: &Shared, inode: Inode) {
        self.query(shared, inode);
    }

    /// Forgets the locations of removed files.
    pub(crate) fn forget_locations(&mut self, inodes: &[u8]) {
        for inode in wire::request::removed(inodes) {
            self.known.remove(&inode);
        }
    }

    /// Repeats unanswered queries. Returns the files whose queries have expired; `give_up` ends
    /// them.
    pub(crate) fn tick(&mut self, shared: &Shared, now: Instant) -> Vec<Inode> {
        while let Some((_, inode, waiting)) = self.missing.pop_front_if(|it| it.0 <= now) {
            self.fetch_again(shared, inode, waiting);
        }
        let mut late = Vec::new();
        for (&inode, query) in &mut self.queries {
            if query.until <= now {
                late.push(inode);
            } else if query.sent + RETRY_PAUSE <= now {
                query.sent = now;
                send_query(shared, inode);
            }
        }
        late
    }

    /// Microseconds from `now` until the next deadline.
    pub(crate) fn deadline(&self, now: Instant) -> Option<u64> {
        let missing = self.missing.front().map(|(at, ..)| *at);
        let again = self.queries.values().map(|query| query.sent + RETRY_PAUSE);
        let next = again.chain(missing).min()?;
        u64::try_from(next.saturating_duration_since(now).as_micros()).ok()
    }
}

fn send_query(shared: &Shared, inode: Inode) {
    let to = ReplyTo::LocateBacking { inode };
    shared.ask_shard_of(inode, &Request::LocateBacking { inode }, to);
}

fn submit_fetch(shared: &Shared, fetch: Fetch) {
    match &shared.backing {
        Some(backing) => backing.fetch(fetch),
        None => {
            // A backed inode number without a backing store: a client made it up.
            let (ticket, outcome) = (fetch.ticket, fetch.kind.refused(Errno::EIO));
            shared.inboxes.send_to_target(WorkerMessage::Fetched { ticket, outcome });
        }
    }
}
