//! Truncations and removals of files, as the metadata service asks for them: at the primary of each unit
//! they become requests for the objects that there are, under an identity of this daemon.
//!
//!   waiting --given to the node--> under way --Answer::Done--> done
//!                                            --any other answer--> the ask fails
//!
//! An ask that fails is repeated by the service, until all primaries have done their part. A repetition
//! finds the objects that are left, and its requests have new identities: writes behind a truncation
//! wait until it is done, so there is none between two attempts.
//!
//! Invariants
//! 1. Each unit has few requests under way, in the order of their numbers, as of a client.
//! 2. Each ask ends once.

use super::object::StripeBytes;
use replicas::kept::Kept;
use replicas::node::{Answer, Request};
use replicas::operation::{ByteRange, Kind, Object, RequestId, Requested};
use replicas::placement::UnitIndex;
use std::collections::{BTreeMap, VecDeque};
use wire::{DaemonIndex, Inode, client_id};

/// Requests of a unit under way at a time. A primary takes 16 of a client.
const UNDER_WAY_MAX: usize = 8;
/// Objects of an ask in one unit at most: with more the service asks again for the rest.
const OBJECTS_MAX: usize = 1024;
/// Tickets of these requests have this bit, those of clients do not.
const TICKETS: u64 = 1 << 63;
/// The last client ids of a start of a daemon, of 2^38, are for these requests: one for each unit.
const CLIENT_IDS: u64 = 1 << 13;

/// Files that are to be cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClearAsk {
    pub(crate) inodes: Vec<Inode>,
    /// Bytes behind it go.
    pub(crate) size: u64,
    /// The units that are asked for it.
    pub(crate) units: Vec<UnitIndex>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ClearRequest {
    ask: u64,
    object: Object,
    range: ByteRange,
    kind: Kind,
}

#[derive(Default)]
struct UnitClears {
    given: u64,
    waiting: VecDeque<ClearRequest>,
    /// By sequence number.
    under_way: BTreeMap<u64, ClearRequest>,
}

struct RunningAsk {
    left: usize,
    is_failed: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct RunningClears {
    /// Of this start of the daemon.
    first_client: u64,
    units: BTreeMap<UnitIndex, UnitClears>,
    asks: BTreeMap<u64, RunningAsk>,
    tickets: BTreeMap<u64, (UnitIndex, u64)>,
    tickets_given: u64,
}

/// The end of an ask, by its ticket; false: it is to be repeated.
pub(super) type ClearEnd = (u64, bool);

impl RunningClears {
    /// Those of a start of a daemon.
    pub(super) fn new(own: DaemonIndex, start: u64) -> RunningClears {
        let first_client = RunningClears::ids_before(own, start);
        RunningClears { first_client, ..RunningClears::default() }
    }

    /// Behind the client ids that are not for these requests.
    pub(super) const fn ids_before(own: DaemonIndex, start: u64) -> u64 {
        client_id::first(own, start) + client_id::PER_START - CLIENT_IDS
    }

    /// An ask begins. `of`: what is kept of each of its units, in the order of the ask; `None` where this
    /// daemon is not the primary.
    pub(super) fn begin<'a>(
        &mut self,
        ticket: u64,
        ask: &ClearAsk,
        of: impl Iterator<Item = Option<&'a Kept>>,
    ) -> Option<ClearEnd> {
        let mut running = RunningAsk { left: 0, is_failed: false };
        for (&unit, kept) in ask.units.iter().zip(of) {
            let Some(kept) = kept else {
                running.is_failed = true;
                continue;
            };
            let requests = requests_of(ask, kept).map(|(object, range, kind)| ClearRequest {
                ask: ticket,
                object,
                range,
                kind,
            });
            let before = running.left;
            let waiting = &mut self.units.entry(unit).or_default().waiting;
            for request in requests.take(OBJECTS_MAX) {
                waiting.push_back(request);
                running.left += 1;
            }
            running.is_failed |= running.left - before == OBJECTS_MAX;
        }
        if running.left == 0 {
            return Some((ticket, !running.is_failed));
        }
        self.asks.insert(ticket, running);
        None
    }

    /// The requests that the node gets now. `epoch`: that of a unit.
    pub(super) fn next(&mut self, epoch: impl Fn(UnitIndex) -> u64) -> Vec<(UnitIndex, Request)> {
        let mut next = Vec::new();
        for (&unit, clears) in &mut self.units {
            while clears.under_way.len() < UNDER_WAY_MAX
                && let Some(request) = clears.waiting.pop_front()
            {
                clears.given += 1;
                self.tickets_given += 1;
                let (sequence, ticket) = (clears.given, TICKETS | self.tickets_given);
                clears.under_way.insert(sequence, request);
                self.tickets.insert(ticket, (unit, sequence));
                let oldest = clears.under_way.keys().next().copied().unwrap_or(sequence);
                let client = self.first_client + u64::from(unit.0) % CLIENT_IDS;
                let id = RequestId { client, sequence };
                let requested = Requested { id, oldest, is_behind: false };
                let ClearRequest { object, range, kind, .. } = request;
                // Bytes that are lost need not be there: no file is too old for it.
                let (epoch, born) = (epoch(unit), u64::MAX);
                let request = Request { ticket, epoch, object, range, kind, requested, born };
                next.push((unit, request));
            }
        }
        next
    }

    /// Whether an answer is for a request from here.
    pub(super) const fn is_own(ticket: u64) -> bool {
        ticket & TICKETS != 0
    }

    /// The node answered. Returns the end of an ask, if this was the last of its requests.
    pub(super) fn answered(&mut self, ticket: u64, answer: Answer) -> Option<ClearEnd> {
        let (unit, sequence) = self.tickets.remove(&ticket)?;
        let clears = self.units.get_mut(&unit)?;
        let request = clears.under_way.remove(&sequence)?;
        let running = self.asks.get_mut(&request.ask)?;
        running.left -= 1;
        running.is_failed |= !matches!(answer, Answer::Done(_));
        if running.left > 0 {
            return None;
        }
        let is_done = !running.is_failed;
        self.asks.remove(&request.ask);
        Some((request.ask, is_done))
    }
}

/// The changes of a copy's objects that an ask needs.
fn requests_of<'a>(
    ask: &'a ClearAsk,
    kept: &'a Kept,
) -> impl Iterator<Item = (Object, ByteRange, Kind)> + 'a {
    let objects = ask.inodes.iter().flat_map(move |&inode| kept.objects_of(inode));
    objects.filter_map(move |(object, entry)| {
        let StripeBytes { offset, length, .. } = StripeBytes::of(object, ByteRange::ALL)?;
        if ask.size <= offset {
            return Some((object, ByteRange::ALL, Kind::Remove));
        }
        // A hole behind the last byte would make the object longer.
        let range = ByteRange { start: ask.size - offset, end: entry.length.min(length) };
        (range.length() > 0).then_some((object, range, Kind::Punch))
    })
}

#[cfg(test)]
mod tests {
    use super::super::object::object_of;
    use super::*;
    use replicas::kept::KeptStep;
    use replicas::operation::{Operation, Stamp};

    const UNIT: UnitIndex = UnitIndex(7);
    const FILE: Inode = Inode(40);

    /// A copy with objects of 64 KiB, of which each has so many bytes.
    fn kept(objects: &[(Inode, u64, u64)]) -> Kept {
        let mut kept = Kept::default();
        for (number, &(inode, stripe, length)) in objects.iter().enumerate() {
            let stamp = Stamp { epoch: 1, number: number as u64 + 1 };
            let (object, kind) = (object_of(inode, 16, stripe), Kind::Write);
            let range = ByteRange { start: 0, end: length };
            let operation = Operation { stamp, object, range, kind, requested: None };
            kept.apply(&KeptStep::Begin(operation));
            kept.apply(&KeptStep::Done(stamp));
            kept.apply(&KeptStep::Settle(stamp));
        }
        kept
    }

    fn ask(inodes: &[Inode], size: u64) -> ClearAsk {
        ClearAsk { inodes: inodes.to_vec(), size, units: vec![UNIT] }
    }

    fn begin(
        clears: &mut RunningClears,
        ticket: u64,
        ask: &ClearAsk,
        kept: &Kept,
    ) -> Option<ClearEnd> {
        clears.begin(ticket, ask, std::iter::once(Some(kept)))
    }

    const DONE: Answer = Answer::Done(Stamp { epoch: 1, number: 1 });

    #[test]
    fn a_truncation_removes_what_is_behind_and_clears_the_rest() {
        let objects = [(FILE, 0, 65536), (FILE, 1, 100), (FILE, 2, 65536), (Inode(41), 1, 5)];
        let kept = kept(&objects);
        let of = |size| requests_of(&ask(&[FILE], size), &kept).collect::<Vec<_>>();
        let object = |stripe| object_of(FILE, 16, stripe);
        let gone = |stripe| (object(stripe), ByteRange::ALL, Kind::Remove);
        let hole = |stripe, start, end| (object(stripe), ByteRange { start, end }, Kind::Punch);
        assert_eq!(of(0), [gone(0), gone(1), gone(2)]);
        assert_eq!(of(1), [hole(0, 1, 65536), gone(1), gone(2)]);
        assert_eq!(of(65536), [gone(1), gone(2)]);
        assert_eq!(of(65536 + 50), [hole(1, 50, 100), gone(2)]);
        // There is nothing behind it in the second object.
        assert_eq!(of(65536 + 100), [gone(2)]);
        assert_eq!(of(3 * 65536), []);
        let both = ask(&[FILE, Inode(41)], 65536);
        assert_eq!(requests_of(&both, &kept).count(), 3);
    }

    #[test]
    fn requests_have_the_identity_of_one_client_and_few_are_under_way() {
        let objects: Vec<_> = (0..20).map(|stripe| (FILE, stripe, 9)).collect();
        let (kept, own, start) = (kept(&objects), DaemonIndex(3), 5);
        let mut clears = RunningClears::new(own, start);
        assert_eq!(begin(&mut clears, 1, &ask(&[FILE], 0), &kept), None);
        let mut under_way = clears.next(|_| 4);
        assert_eq!(under_way.len(), UNDER_WAY_MAX);
        assert!(clears.next(|_| 4).is_empty());
        let (mut answered, mut sequences) = (0, Vec::new());
        loop {
            let (unit, request) = under_way.remove(0);
            let RequestId { client, sequence } = request.requested.id;
            assert_eq!((unit, request.epoch, client_id::issuer(client)), (UNIT, 4, own));
            assert!(client >= client_id::first(own, start), "of this start");
            assert!(client < client_id::first(own, start + 1));
            assert!(request.requested.oldest <= sequence);
            assert!(RunningClears::is_own(request.ticket));
            sequences.push(sequence);
            answered += 1;
            let end = clears.answered(request.ticket, DONE);
            assert_eq!(clears.answered(request.ticket, DONE), None, "a second answer");
            assert_eq!(end, (answered == 20).then_some((1, true)), "{answered}");
            if end.is_some() {
                break;
            }
            under_way.extend(clears.next(|_| 4));
        }
        assert_eq!(sequences, (1..=20).collect::<Vec<u64>>());
        assert!(clears.asks.is_empty() && clears.tickets.is_empty());
    }

    #[test]
    fn an_ask_that_cannot_be_done_as_a_whole_is_to_be_repeated() {
        let mut clears = RunningClears::new(DaemonIndex(0), 1);
        let (two, ask) = (kept(&[(FILE, 0, 9), (FILE, 1, 9)]), ask(&[FILE], 0));
        for answer in [Answer::Busy, Answer::Stale, Answer::Failed] {
            assert_eq!(begin(&mut clears, 1, &ask, &two), None);
            let requests = clears.next(|_| 1);
            assert_eq!(clears.answered(requests[0].1.ticket, answer), None);
            assert_eq!(clears.answered(requests[1].1.ticket, DONE), Some((1, false)));
        }
        // Nothing is here.
        assert_eq!(begin(&mut clears, 1, &ask, &Kept::default()), Some((1, true)));
        // This daemon is not the primary of it.
        assert_eq!(clears.begin(1, &ask, std::iter::once(None)), Some((1, false)));
        // More than fits at once: the rest comes with the repetition.
        let objects: Vec<_> = (0..OBJECTS_MAX as u64 + 1).map(|stripe| (FILE, stripe, 9)).collect();
        assert_eq!(begin(&mut clears, 1, &ask, &kept(&objects)), None);
        let mut end = None;
        while end.is_none() {
            for (_, request) in clears.next(|_| 1) {
                end = clears.answered(request.ticket, DONE);
            }
        }
        assert_eq!(end, Some((1, false)));
    }
}
