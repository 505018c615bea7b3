//! Which of the client ids issued by this daemon are gone: no process sends or repeats a request with
//! them. The services of all daemons keep a reply cache entry for the last request of each client id,
//! and periodically query about entries that have outlived the notice of a session's end
//! (`ClientIdQueries`). So a lost message, or a daemon that was down, leaves no entry forever.
//!
//! A restarted daemon knows no earlier sessions. Programs that survived its restart may repeat their
//! requests for as long as a request may take; a process that was stopped during that time may repeat
//! one when it continues. So earlier client ids are gone when that time has passed and no process is
//! left that used the instance at the start.

use crate::shared::network::{Network, message};
use net::Urgency;
use shm::host::{HostSegment, ProcessIndex};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::DaemonIndex;
use wire::client_id::{self, PER_SESSION as SESSION, PER_START as START};
use wire::codec::{Malformed, Reader};

/// Interval between queries of a service, while its reply cache has entries; and maximum number of
/// sessions per query. An ended session in a query stands for all its ended neighbours.
const PAUSE: Duration = Duration::from_secs(5);
const QUERIED_MAX: usize = 2048;

/// A range of client ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClientIdRange {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl ClientIdRange {
    pub(crate) const fn contains(&self, client_id: u64) -> bool {
        client_id.wrapping_sub(self.first) < self.count
    }
}

/// Sessions of this start, and processes that may use earlier ones.
pub(crate) struct ClientIds {
    issued: Mutex<IssuedClientIds>,
    /// From then on every request that was pending at the start has timed out.
    earlier_end: Instant,
}

struct IssuedClientIds {
    /// First client id of this start.
    first: u64,
    /// One past the last issued client id.
    end: u64,
    /// First client ids of open sessions.
    open: BTreeSet<u64>,
    /// Processes that used the instance when this daemon started: index and generation.
    before: Vec<(ProcessIndex, u32)>,
}

impl ClientIds {
    /// `first` is the first client id of this start. `earlier_end`: when every request that was
    /// pending at the start has timed out.
    pub(crate) fn new(first: u64, host: &HostSegment, earlier_end: Instant) -> ClientIds {
        let mut before = Vec::new();
        host.process_list(&mut |tenant| before.push((tenant.process, tenant.generation)));
        let issued = IssuedClientIds { first, end: first, open: BTreeSet::new(), before };
        ClientIds { issued: Mutex::new(issued), earlier_end }
    }

    fn issued(&self) -> MutexGuard<'_, IssuedClientIds> {
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session opens. Call before the client learns its ids.
    pub(crate) fn opened(&self, first: u64) {
        let mut issued = self.issued();
        issued.open.insert(first);
        issued.end = issued.end.max(first + SESSION);
    }

    /// A session has ended.
    pub(crate) fn closed(&self, first: u64) {
        self.issued().open.remove(&first);
    }

    /// The range of ended client ids around an id of this daemon; `None` if it is not gone.
    fn gone_with(&self, host: &HostSegment, client_id: u64) -> Option<ClientIdRange> {
        let is_late = Instant::now() > self.earlier_end;
        self.issued().gone_around(host, client_id, is_late)
    }

    /// Answers a query of daemon `from` with the client ids that are gone.
    pub(crate) fn report_gone(
        &self,
        net: &Network,
        host: &HostSegment,
        from: DaemonIndex,
        bytes: &[u8],
    ) -> Result<(), Malformed> {
        let (mut reader, mut reported) = (Reader::new(bytes), None);
        while !reader.rest().is_empty() {
            let client_id = reader.u64()?;
            if client_id::issuer(client_id) != net.router.me {
                return Err(Malformed);
            }
            if reported.is_some_and(|reported: ClientIdRange| reported.contains(client_id)) {
                continue;
            }
            let Some(range) = self.gone_with(host, client_id) else { continue };
            let mut answer = vec![message::CLIENT_GONE];
            answer.extend_from_slice(&range.first.to_le_bytes());
            answer.extend_from_slice(&range.count.to_le_bytes());
            // If it is lost, the query is repeated.
            net.send(from, &answer, Urgency::Batched);
            reported = Some(range);
        }
        Ok(())
    }
}

impl IssuedClientIds {
    /// `is_late`: every request that was pending when this daemon started has timed out, except
    /// those of stopped processes.
    fn gone_around(
        &mut self,
        host: &HostSegment,
        client_id: u64,
        is_late: bool,
    ) -> Option<ClientIdRange> {
        if client_id / START != self.first / START {
            self.before.retain(|&(process, generation)| host.process_is_used(process, generation));
            let is_gone = is_late && self.before.is_empty();
            return is_gone
                .then_some(ClientIdRange { first: client_id / START * START, count: START });
        }
        let backing =
            self.open.range(..=client_id).next_back().map_or(self.first, |one| one + SESSION);
        let next = self.open.range(client_id + 1..).next().map_or(self.end, |one| *one);
        let range = ClientIdRange { first: backing, count: next.saturating_sub(backing) };
        range.contains(client_id).then_some(range)
    }
}

/// Queries of a service about the client ids in its reply cache, in turns.
#[derive(Default)]
pub(crate) struct ClientIdQueries {
    at: Option<Instant>,
    /// Client ids below have been queried in this turn.
    from: u64,
}

impl ClientIdQueries {
    /// Time of the next query, if the reply cache has entries.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.at
    }

    /// Sends queries that are due. `next` finds the first client id in the reply cache, from a
    /// given one on. Returns those that are known to be gone without a query.
    pub(crate) fn ask(
        &mut self,
        (ids, host): (&ClientIds, &HostSegment),
        net: &Network,
        next: impl Fn(u64) -> Option<u64>,
    ) -> Vec<ClientIdRange> {
        let mut gone = Vec::new();
        let sessions = self.take_batch(Instant::now(), next);
        for of_one in
            sessions.chunk_by(|one, other| client_id::issuer(*one) == client_id::issuer(*other))
        {
            let issuer =
                of_one.first().map_or(net.router.me, |client_id| client_id::issuer(*client_id));
            if issuer == net.router.me {
                let gone_with = |one: &u64| ids.gone_with(host, *one);
                gone.extend(of_one.iter().filter_map(gone_with));
            } else if issuer.0 >= net.sender.daemon_count() {
                // Made up by a client.
                gone.extend(of_one.iter().map(|&first| ClientIdRange { first, count: SESSION }));
            } else {
                let mut bytes = vec![message::CLIENT_IDS];
                of_one.iter().for_each(|one| bytes.extend_from_slice(&one.to_le_bytes()));
                net.send(issuer, &bytes, Urgency::Batched);
            }
        }
        gone.dedup();
        gone
    }

    /// First client ids of the sessions to query now.
    fn take_batch(&mut self, now: Instant, next: impl Fn(u64) -> Option<u64>) -> Vec<u64> {
        let mut sessions = Vec::new();
        if next(0).is_none() {
            *self = ClientIdQueries::default();
            return sessions;
        }
        if *self.at.get_or_insert(now + PAUSE) > now {
            return sessions;
        }
        self.at = Some(now + PAUSE);
        while let Some(client_id) = next(self.from).filter(|_| sessions.len() < QUERIED_MAX) {
            let first = client_id / SESSION * SESSION;
            sessions.push(first);
            self.from = first.saturating_add(SESSION);
        }
        if sessions.len() < QUERIED_MAX {
            self.from = 0;
        }
        sessions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::Segment;
    use shm::host::HOST_BYTES;

    const FIRST: u64 = client_id::first(DaemonIndex(3), 7);

    fn host() -> HostSegment {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        HostSegment::new(segment).expect("a segment")
    }

    #[test]
    fn client_ids_of_closed_sessions_are_gone() {
        let host = host();
        let client_ids = ClientIds::new(FIRST, &host, Instant::now());
        let gone = |number: u64, slot: u64| {
            let range =
                client_ids.issued().gone_around(&host, FIRST + number * SESSION + slot, false);
            range.map(|range| ((range.first - FIRST) / SESSION, range.count / SESSION))
        };
        assert_eq!(gone(0, 0), None, "none was issued");
        (0..6).for_each(|number| client_ids.opened(FIRST + number * SESSION));
        assert!((0..6).all(|number| gone(number, 0).is_none() && gone(number, 63).is_none()));
        [1, 2, 4, 5].iter().for_each(|number| client_ids.closed(FIRST + number * SESSION));
        assert_eq!((gone(0, 63), gone(1, 0), gone(2, 63)), (None, Some((1, 2)), Some((1, 2))));
        assert_eq!((gone(3, 5), gone(4, 0), gone(5, 9)), (None, Some((4, 2)), Some((4, 2))));
        assert_eq!(gone(6, 0), None, "not issued yet");
        client_ids.opened(FIRST + 6 * SESSION);
        assert_eq!((gone(5, 0), gone(6, 0)), (Some((4, 2)), None));
        client_ids.closed(FIRST);
        assert_eq!(gone(0, 0), Some((0, 3)));
    }

    #[test]
    fn client_ids_of_an_earlier_start_are_gone_with_its_processes() {
        let host = host();
        let process = host.process_register(100, 7).expect("space");
        let generation = host.process_generation(process);
        let client_ids = ClientIds::new(FIRST, &host, Instant::now());
        let before = FIRST - START + 5;
        let gone = |is_late| client_ids.issued().gone_around(&host, before, is_late);
        assert_eq!(gone(true), None, "a process of that start lives");
        host.process_release(process, generation, &mut |_| {}).expect("live");
        let next = host.process_register(101, 8).expect("space");
        assert_eq!(next, process, "the entry is reused");
        assert_eq!(gone(false), None, "it may have been repeated just now");
        assert_eq!(gone(true), Some(ClientIdRange { first: FIRST - START, count: START }));
    }

    #[test]
    fn a_service_queries_each_session_in_turn() {
        let mut known: BTreeSet<u64> = (0..5000).map(|one| one * SESSION + one % SESSION).collect();
        let mut asking = ClientIdQueries::default();
        let begun = Instant::now();
        let mut batch = |known: &BTreeSet<u64>, number: u32| {
            let next = |from: u64| known.range(from..).next().copied();
            asking.take_batch(begun + PAUSE * number, next)
        };
        assert!(batch(&known, 0).is_empty(), "not at once");
        let batches = [1, 2, 3, 4].map(|number| batch(&known, number));
        assert_eq!(batches.each_ref().map(Vec::len), [2048, 2048, 904, 2048]);
        assert!(batches[..3].concat().into_iter().eq((0..5000).map(|one| one * SESSION)));
        assert_eq!(batches[3], batches[0], "from the start again");
        known.clear();
        assert!(batch(&known, 5).is_empty());
        known.insert(u64::MAX - 1);
        assert!(batch(&known, 6).is_empty(), "not at once");
        assert_eq!(batch(&known, 7), [u64::MAX - SESSION + 1]);
    }
}
