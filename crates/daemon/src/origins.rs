//! Which of the origins that this daemon gave to sessions are gone: nobody sends anything by them any
//! more, nor repeats what he sent. Services of all daemons remember for each origin what came of its last
//! request; what they remember for longer than they were told of a session's end they ask about now and
//! then (`Asking`). So a word that is lost, or a daemon that was away or is killed, leaves nothing for
//! ever.
//!
//! A daemon that started again knows no sessions of before. Programs that lived through its death may
//! repeat what they had sent it, for as long as a request may take; one that stood still all that
//! time may when it goes on. So origins of before are gone when that time is over and no process is
//! left that used the instance at the start.

use crate::shared::{Shared, message};
use net::Haste;
use shm::host::{HostSegment, ProcessIndex};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};
use wire::origin::{self, PER_SESSION as SESSION, PER_START as START};

/// Between two questions of a service, while it remembers anything; and of how many sessions it asks at a
/// time. Of sessions that are over one that is named stands for all of its neighbours.
const PAUSE: Duration = Duration::from_secs(5);
const ASKED_MAX: usize = 2048;

/// So many origins from the first on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl Range {
    pub(crate) const fn contains(&self, origin: u64) -> bool {
        origin.wrapping_sub(self.first) < self.count
    }
}

/// The sessions of this start, and who may remember one of before.
pub(crate) struct Origins {
    given: Mutex<Given>,
}

struct Given {
    /// The first origin of this start.
    first: u64,
    /// Behind the last one that was given.
    end: u64,
    /// First origins of sessions that are open.
    open: BTreeSet<u64>,
    /// Processes that used the instance when this daemon started: row and generation.
    before: Vec<(ProcessIndex, u32)>,
}

impl Origins {
    /// `first` is the first origin of this start.
    pub(crate) fn new(first: u64, host: &HostSegment) -> Origins {
        let mut before = Vec::new();
        host.process_list(&mut |tenant| before.push((tenant.process, tenant.generation)));
        let given = Given { first, end: first, open: BTreeSet::new(), before };
        Origins { given: Mutex::new(given) }
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session begins, and has not been told of its origins.
    pub(crate) fn opened(&self, first: u64) {
        let mut given = self.given();
        given.open.insert(first);
        given.end = given.end.max(first + SESSION);
    }

    /// It is over.
    pub(crate) fn closed(&self, first: u64) {
        self.given().open.remove(&first);
    }

    /// The origins around one of this daemon that are gone as it is; `None` if it is not.
    pub(crate) fn gone_around(&self, shared: &Shared, origin: u64) -> Option<Range> {
        let is_late = shared.begun.elapsed() > 2 * shared.timeout;
        self.given().gone_around(&shared.host, origin, is_late)
    }
}

impl Given {
    /// `is_late`: nobody waits any more who waited when this daemon started, unless he stands still.
    fn gone_around(&mut self, host: &HostSegment, origin: u64, is_late: bool) -> Option<Range> {
        if origin / START != self.first / START {
            self.before.retain(|&(process, generation)| host.process_is_used(process, generation));
            let is_gone = is_late && self.before.is_empty();
            return is_gone.then_some(Range { first: origin / START * START, count: START });
        }
        let below = self.open.range(..=origin).next_back().map_or(self.first, |one| one + SESSION);
        let above = self.open.range(origin + 1..).next().map_or(self.end, |one| *one);
        let range = Range { first: below, count: above.saturating_sub(below) };
        range.contains(origin).then_some(range)
    }
}

impl Shared {
    /// Tells the daemon `from` which of the origins that it asks about are gone.
    pub(crate) fn tell_gone(&self, from: DaemonIndex, bytes: &[u8]) -> Result<(), Malformed> {
        let (mut reader, mut told) = (Reader::new(bytes), None);
        while !reader.rest().is_empty() {
            let origin = reader.u64()?;
            if origin::giver(origin) != self.router.me {
                return Err(Malformed);
            }
            if told.is_some_and(|told: Range| told.contains(origin)) {
                continue;
            }
            let Some(range) = self.origins.gone_around(self, origin) else { continue };
            let mut answer = vec![message::ORIGIN_GONE];
            answer.extend_from_slice(&range.first.to_le_bytes());
            answer.extend_from_slice(&range.count.to_le_bytes());
            // If it is lost, it is asked again.
            let _ = self.net.message(from, &answer, Haste::WithOthers);
            told = Some(range);
        }
        Ok(())
    }
}

/// What a service asks about the origins of which it remembers something, in turns.
#[derive(Default)]
pub(crate) struct Asking {
    at: Option<Instant>,
    /// Origins below were asked about in this turn.
    from: u64,
}

impl Asking {
    /// When it asks next, if it remembers anything.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.at
    }

    /// Asks, when it is due. `next` finds the first origin of which something is remembered, from one on.
    /// Returns those that are known to be gone without asking.
    pub(crate) fn ask(&mut self, shared: &Shared, next: impl Fn(u64) -> Option<u64>) -> Vec<Range> {
        let mut gone = Vec::new();
        let sessions = self.take_turn(Instant::now(), next);
        for of_one in sessions.chunk_by(|one, other| origin::giver(*one) == origin::giver(*other)) {
            let giver = of_one.first().map_or(shared.router.me, |origin| origin::giver(*origin));
            if giver == shared.router.me {
                let own = of_one.iter().filter_map(|one| shared.origins.gone_around(shared, *one));
                gone.extend(own);
            } else if giver.0 >= shared.router.map.daemon_count() {
                // A client made it up.
                gone.extend(of_one.iter().map(|&first| Range { first, count: SESSION }));
            } else {
                let mut bytes = vec![message::ORIGINS];
                of_one.iter().for_each(|one| bytes.extend_from_slice(&one.to_le_bytes()));
                let _ = shared.net.message(giver, &bytes, Haste::WithOthers);
            }
        }
        gone.dedup();
        gone
    }

    /// The first origins of the sessions that are to be asked about now.
    fn take_turn(&mut self, now: Instant, next: impl Fn(u64) -> Option<u64>) -> Vec<u64> {
        let mut sessions = Vec::new();
        if next(0).is_none() {
            *self = Asking::default();
            return sessions;
        }
        if *self.at.get_or_insert(now + PAUSE) > now {
            return sessions;
        }
        self.at = Some(now + PAUSE);
        while let Some(origin) = next(self.from).filter(|_| sessions.len() < ASKED_MAX) {
            let first = origin / SESSION * SESSION;
            sessions.push(first);
            self.from = first.saturating_add(SESSION);
        }
        if sessions.len() < ASKED_MAX {
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

    const FIRST: u64 = origin::first(DaemonIndex(3), 7);

    fn host() -> HostSegment {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        HostSegment::new(segment).expect("a segment")
    }

    #[test]
    fn sessions_are_gone_that_were_open_and_are_not() {
        let host = host();
        let origins = Origins::new(FIRST, &host);
        let gone = |number: u64, slot: u64| {
            let range = origins.given().gone_around(&host, FIRST + number * SESSION + slot, false);
            range.map(|range| ((range.first - FIRST) / SESSION, range.count / SESSION))
        };
        assert_eq!(gone(0, 0), None, "none was given");
        (0..6).for_each(|number| origins.opened(FIRST + number * SESSION));
        assert!((0..6).all(|number| gone(number, 0).is_none() && gone(number, 63).is_none()));
        [1, 2, 4, 5].iter().for_each(|number| origins.closed(FIRST + number * SESSION));
        assert_eq!((gone(0, 63), gone(1, 0), gone(2, 63)), (None, Some((1, 2)), Some((1, 2))));
        assert_eq!((gone(3, 5), gone(4, 0), gone(5, 9)), (None, Some((4, 2)), Some((4, 2))));
        assert_eq!(gone(6, 0), None, "not given yet");
        origins.opened(FIRST + 6 * SESSION);
        assert_eq!((gone(5, 0), gone(6, 0)), (Some((4, 2)), None));
        origins.closed(FIRST);
        assert_eq!(gone(0, 0), Some((0, 3)));
    }

    #[test]
    fn those_of_an_earlier_start_are_gone_with_the_processes_of_then() {
        let host = host();
        let process = host.process_register(100, 7).expect("room");
        let generation = host.process_generation(process);
        let origins = Origins::new(FIRST, &host);
        let before = FIRST - START + 5;
        let gone = |is_late| origins.given().gone_around(&host, before, is_late);
        assert_eq!(gone(true), None, "a process of then lives");
        host.process_release(process, generation, &mut |_| {}).expect("live");
        let next = host.process_register(101, 8).expect("room");
        assert_eq!(next, process, "the row is used again");
        assert_eq!(gone(false), None, "it may have been repeated just now");
        assert_eq!(gone(true), Some(Range { first: FIRST - START, count: START }));
    }

    #[test]
    fn a_service_asks_about_each_session_in_its_turn() {
        let mut known: BTreeSet<u64> = (0..5000).map(|one| one * SESSION + one % SESSION).collect();
        let mut asking = Asking::default();
        let begun = Instant::now();
        let mut turn = |known: &BTreeSet<u64>, number: u32| {
            let next = |from: u64| known.range(from..).next().copied();
            asking.take_turn(begun + PAUSE * number, next)
        };
        assert!(turn(&known, 0).is_empty(), "not at once");
        let turns = [1, 2, 3, 4].map(|number| turn(&known, number));
        assert_eq!(turns.each_ref().map(Vec::len), [2048, 2048, 904, 2048]);
        assert!(turns[..3].concat().into_iter().eq((0..5000).map(|one| one * SESSION)));
        assert_eq!(turns[3], turns[0], "from the start again");
        known.clear();
        assert!(turn(&known, 5).is_empty());
        known.insert(u64::MAX - 1);
        assert!(turn(&known, 6).is_empty(), "not at once");
        assert_eq!(turn(&known, 7), [u64::MAX - SESSION + 1]);
    }
}
