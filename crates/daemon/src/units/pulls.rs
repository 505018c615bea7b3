//! Pulls of bytes into copies here: each asks the daemon that has the bytes, again until it answers, and
//! ends when the bytes are at the target.
//!
//!   waiting --its link has a place--> asked --bytes--> storing --stored--> ended
//!   waiting --cancelled--> ended
//!   asked --no bytes, cancelled, no answer--> ended
//!
//! The bytes of a client are at the daemon that gave it its session. After the death of that the client
//! goes on at another daemon of its host, with the identity of its request, and copies at which that
//! arrives ask there; the others get the bytes of one of these.
//!
//! A daemon is asked for a limited number of bytes at a time: all packets to another daemon share one
//! queue of `net`, and those of the membership must find a place there.
//!
//! Invariants
//! 1. A pull that has ended changes no bytes any more: what arrives later finds no pull.
//! 2. A pull that stores ends with the target's answer, even if it is cancelled.

use super::shell::PullJob;
use replicas::node::Pulled;
use replicas::operation::{RequestId, Source};
use replicas::packet::{ASK_BYTES_MAX, Ask, Given, PullId};
use std::collections::{BTreeMap, VecDeque};
use wire::{DaemonIndex, client_id};

/// An ask without an answer is sent again after this time.
const REPEAT_NANOS: i64 = 100_000_000;
/// How often. A copy that takes longer than 600 ms is dropped, so a source that does not answer has to be
/// known before: then another one can be tried.
const ASKS_MAX: u32 = 4;

/// Bytes that a daemon is asked for at a time: a quarter of what `net` queues for another daemon.
const ASKED_BYTES_MAX: u64 = 8 << 20;

/// A pull that has not ended.
struct RunningPull {
    job: PullJob,
    from: DaemonIndex,
    /// 0: it waits.
    asks: u32,
    asked_at: i64,
    is_storing: bool,
}

impl RunningPull {
    const fn is_asked(&self) -> bool {
        self.asks > 0 && !self.is_storing
    }
}

/// Pulls from one daemon.
#[derive(Default)]
struct PullLink {
    /// Those that wait, and some that have ended.
    waiting: VecDeque<u64>,
    asked_bytes: u64,
}

/// See the module.
#[derive(Default)]
pub(super) struct RunningPulls {
    running: BTreeMap<u64, RunningPull>,
    links: BTreeMap<DaemonIndex, PullLink>,
}

/// The next step of a pull.
#[derive(PartialEq, Debug)]
pub(super) enum PullStep {
    /// The daemon is asked.
    Ask(DaemonIndex, Ask),
    /// The bytes go to the target: `RunningPulls::stored` with its answer.
    Store(PullJob, Vec<u8>),
    /// It has ended.
    End(u64, Pulled),
}

/// The daemon that has the bytes of a source: for a client its agent, which is the one whose session it
/// has, unless its request came from another one (`agent_of`).
pub(super) fn holder_of(
    source: Source,
    agent_of: impl Fn(RequestId) -> Option<DaemonIndex>,
) -> DaemonIndex {
    match source {
        Source::Client(id) => agent_of(id).unwrap_or_else(|| client_id::issuer(id.client)),
        Source::Copy(daemon) => daemon,
    }
}

const fn id_of(job: &PullJob) -> PullId {
    PullId { ticket: job.ticket, of: job.of, stamp: job.operation.stamp }
}

const fn ask_of(job: &PullJob) -> Ask {
    let PullJob { operation, source, .. } = *job;
    Ask { id: id_of(job), source, object: operation.object, range: operation.range }
}

impl RunningPulls {
    /// Begins a pull from a daemon: `next_asks` has its first step, unless it ends at once.
    pub(super) fn begin(&mut self, job: PullJob, from: DaemonIndex) -> Option<PullStep> {
        let length = job.operation.range.length();
        if length == 0 || length > ASK_BYTES_MAX {
            // Requests and slices are shorter; an order of a peer may be anything.
            let pulled = if length == 0 { Pulled::Done } else { Pulled::Failed };
            return Some(PullStep::End(job.ticket, pulled));
        }
        let running = RunningPull { job, from, asks: 0, asked_at: 0, is_storing: false };
        self.running.insert(job.ticket, running);
        self.links.entry(from).or_default().waiting.push_back(job.ticket);
        None
    }

    /// The pulls that have a place now ask.
    pub(super) fn next_asks(&mut self, now: i64) -> Vec<PullStep> {
        let mut steps = Vec::new();
        for (&from, link) in &mut self.links {
            while let Some(ticket) = link.waiting.front() {
                let Some(running) = self.running.get_mut(ticket) else {
                    link.waiting.pop_front();
                    continue;
                };
                let bytes = link.asked_bytes + running.job.operation.range.length();
                if link.asked_bytes > 0 && bytes > ASKED_BYTES_MAX {
                    break;
                }
                link.waiting.pop_front();
                (running.asks, running.asked_at, link.asked_bytes) = (1, now, bytes);
                steps.push(PullStep::Ask(from, ask_of(&running.job)));
            }
        }
        self.links.retain(|_, link| link.asked_bytes > 0 || !link.waiting.is_empty());
        steps
    }

    /// A pull that asked asks no more.
    fn leave_link(&mut self, ticket: u64) {
        let Some(running) = self.running.get(&ticket).filter(|it| it.is_asked()) else { return };
        if let Some(link) = self.links.get_mut(&running.from) {
            let length = running.job.operation.range.length();
            link.asked_bytes = link.asked_bytes.saturating_sub(length);
        }
    }

    /// A pull is not needed.
    pub(super) fn cancel(&mut self, ticket: u64) -> Option<PullStep> {
        self.running.get(&ticket).filter(|it| !it.is_storing)?;
        Some(self.end(ticket, Pulled::Failed))
    }

    /// A daemon answered an ask.
    pub(super) fn given(
        &mut self,
        from: DaemonIndex,
        id: PullId,
        given: Given,
    ) -> Option<PullStep> {
        let running = self.running.get(&id.ticket)?;
        if running.from != from || !running.is_asked() || id_of(&running.job) != id {
            return None;
        }
        let job = running.job;
        match given {
            Given::Bytes(bytes) if bytes.len() as u64 == job.operation.range.length() => {
                self.leave_link(id.ticket);
                self.running.get_mut(&id.ticket)?.is_storing = true;
                Some(PullStep::Store(job, bytes))
            }
            Given::Bytes(_) | Given::Failed => Some(self.end(id.ticket, Pulled::Failed)),
            Given::Corrupt => Some(self.end(id.ticket, Pulled::Corrupt)),
        }
    }

    /// The pull whose bytes the target is given.
    pub(super) fn storing(&self, ticket: u64) -> Option<PullJob> {
        self.running.get(&ticket).filter(|it| it.is_storing).map(|it| it.job)
    }

    /// The target has the bytes of a pull, or has not taken them.
    pub(super) fn stored(&mut self, ticket: u64, is_stored: bool) -> Option<PullStep> {
        self.running.get(&ticket).filter(|it| it.is_storing)?;
        Some(self.end(ticket, if is_stored { Pulled::Done } else { Pulled::Torn }))
    }

    fn end(&mut self, ticket: u64, pulled: Pulled) -> PullStep {
        self.leave_link(ticket);
        self.running.remove(&ticket);
        PullStep::End(ticket, pulled)
    }

    /// Time passed. A pull whose bytes another daemon has by now turns to it: `next_asks` has its step.
    pub(super) fn tick(
        &mut self,
        now: i64,
        holder: impl Fn(Source) -> DaemonIndex,
    ) -> Vec<PullStep> {
        let late = |it: &RunningPull| it.is_asked() && now - it.asked_at >= REPEAT_NANOS;
        let (mut steps, mut turned, mut over) = (Vec::new(), Vec::new(), Vec::new());
        for (&ticket, running) in self.running.iter_mut().filter(|(_, it)| late(it)) {
            let from = holder(running.job.source);
            if running.from != from {
                turned.push((ticket, from));
                continue;
            }
            if running.asks == ASKS_MAX {
                over.push(ticket);
                continue;
            }
            (running.asks, running.asked_at) = (running.asks + 1, now);
            steps.push(PullStep::Ask(running.from, ask_of(&running.job)));
        }
        turned.into_iter().for_each(|(ticket, from)| self.turn(ticket, from));
        steps.extend(over.into_iter().map(|ticket| self.end(ticket, Pulled::Failed)));
        steps
    }

    /// Another daemon is asked next.
    fn turn(&mut self, ticket: u64, from: DaemonIndex) {
        self.leave_link(ticket);
        let Some(running) = self.running.get_mut(&ticket) else { return };
        (running.from, running.asks) = (from, 0);
        self.links.entry(from).or_default().waiting.push_back(ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use replicas::change::Reign;
    use replicas::operation::{ByteRange, Kind, Object, Operation, Stamp};
    use replicas::placement::UnitIndex;
    use wire::Inode;

    fn job(ticket: u64, length: u64) -> PullJob {
        let operation = Operation {
            stamp: Stamp { epoch: 1, number: ticket },
            object: Object { inode: Inode(3), stripe: 1 },
            range: ByteRange { start: 8, end: 8 + length },
            kind: Kind::Copy,
            requested: None,
        };
        let of = Reign { unit: UnitIndex(2), epoch: 1 };
        PullJob { ticket, of, operation, source: Source::Copy(DaemonIndex(4)) }
    }

    fn asked(pulls: &mut RunningPulls, ticket: u64) -> PullId {
        let job = job(ticket, 4);
        assert_eq!(begin(pulls, job), None);
        assert_eq!(pulls.next_asks(0), [PullStep::Ask(DaemonIndex(4), ask_of(&job))]);
        id_of(&job)
    }

    const FROM: DaemonIndex = DaemonIndex(4);

    fn holder(source: Source) -> DaemonIndex {
        holder_of(source, |_| None)
    }

    fn begin(pulls: &mut RunningPulls, job: PullJob) -> Option<PullStep> {
        pulls.begin(job, holder(job.source))
    }

    fn assert_over(pulls: &mut RunningPulls) {
        assert_eq!(pulls.next_asks(0), []);
        assert!(pulls.running.is_empty() && pulls.links.is_empty());
    }

    #[test]
    fn a_daemon_is_asked_for_so_many_bytes_at_a_time() {
        let mut pulls = RunningPulls::default();
        let most = ASKED_BYTES_MAX / ASK_BYTES_MAX;
        for ticket in 0..most + 3 {
            assert_eq!(begin(&mut pulls, job(ticket, ASK_BYTES_MAX)), None);
        }
        // That of another daemon has a place.
        let other = PullJob { source: Source::Copy(DaemonIndex(5)), ..job(99, 8) };
        assert_eq!(begin(&mut pulls, other), None);
        assert_eq!(pulls.cancel(most), Some(PullStep::End(most, Pulled::Failed)));
        let asks = pulls.next_asks(7);
        assert_eq!(asks.len() as u64, most + 1);
        assert!(asks.contains(&PullStep::Ask(DaemonIndex(5), ask_of(&other))));
        assert_eq!(pulls.next_asks(7), []);
        // One that waits does not wait for an answer.
        assert!(pulls.tick(7 + REPEAT_NANOS - 1, holder).is_empty());
        assert_eq!(pulls.tick(7 + REPEAT_NANOS, holder).len() as u64, most + 1);
        // Each end gives its place to the next, which is not the one that was cancelled.
        let ask_of_next = |pulls: &mut RunningPulls| match pulls.next_asks(9).as_slice() {
            [PullStep::Ask(FROM, ask)] => ask.id.ticket,
            steps => panic!("{steps:?}"),
        };
        let bytes = Given::Bytes(vec![1; ASK_BYTES_MAX as usize]);
        let id = id_of(&job(0, ASK_BYTES_MAX));
        assert!(matches!(pulls.given(FROM, id, bytes), Some(PullStep::Store(..))));
        assert_eq!(ask_of_next(&mut pulls), most + 1);
        assert_eq!(pulls.stored(0, true), Some(PullStep::End(0, Pulled::Done)));
        assert_eq!(pulls.next_asks(9), [], "its place was given already");
        assert!(pulls.cancel(1).is_some());
        assert_eq!(ask_of_next(&mut pulls), most + 2);
        for ticket in (2..most).chain([most + 1, most + 2, 99]) {
            assert!(pulls.cancel(ticket).is_some(), "{ticket}");
        }
        assert_over(&mut pulls);
    }

    #[test]
    fn bytes_are_stored_once_and_then_it_has_ended() {
        let mut pulls = RunningPulls::default();
        let id = asked(&mut pulls, 7);
        let bytes = || Given::Bytes(vec![1; 4]);
        assert_eq!(pulls.given(DaemonIndex(5), id, bytes()), None, "it was not asked");
        let other = PullId { stamp: Stamp { epoch: 1, number: 9 }, ..id };
        assert_eq!(pulls.given(FROM, other, bytes()), None, "of an earlier process");
        assert_eq!(pulls.stored(7, true), None, "nothing was given");
        let store = PullStep::Store(job(7, 4), vec![1; 4]);
        assert_eq!(pulls.given(FROM, id, bytes()), Some(store));
        assert_eq!(pulls.given(FROM, id, bytes()), None, "a second answer");
        assert_eq!((pulls.cancel(7), pulls.tick(1 << 40, holder)), (None, Vec::new()), "it stores");
        assert_eq!(pulls.stored(7, true), Some(PullStep::End(7, Pulled::Done)));
        assert_eq!((pulls.stored(7, true), pulls.given(FROM, id, bytes())), (None, None));
        assert_over(&mut pulls);
    }

    #[test]
    fn a_pull_without_bytes_ends() {
        let mut pulls = RunningPulls::default();
        for (given, pulled) in [
            (Given::Failed, Pulled::Failed),
            (Given::Corrupt, Pulled::Corrupt),
            (Given::Bytes(vec![1; 3]), Pulled::Failed),
        ] {
            let id = asked(&mut pulls, 7);
            assert_eq!(pulls.given(FROM, id, given), Some(PullStep::End(7, pulled)));
            assert_over(&mut pulls);
        }
        let id = asked(&mut pulls, 8);
        assert_eq!(pulls.cancel(8), Some(PullStep::End(8, Pulled::Failed)));
        assert_eq!((pulls.cancel(8), pulls.given(FROM, id, Given::Failed)), (None, None));
        let id = asked(&mut pulls, 9);
        assert!(pulls.given(FROM, id, Given::Bytes(vec![1; 4])).is_some());
        assert_eq!(pulls.stored(9, false), Some(PullStep::End(9, Pulled::Torn)));
    }

    #[test]
    fn a_daemon_is_asked_again_and_not_for_ever() {
        let mut pulls = RunningPulls::default();
        asked(&mut pulls, 7);
        let mut asks = 1;
        for tick in 1..100 {
            let now = tick * 20_000_000;
            match pulls.tick(now, holder).as_slice() {
                [] => {}
                [PullStep::Ask(FROM, ask)] => {
                    assert_eq!(*ask, ask_of(&job(7, 4)));
                    asks += 1;
                }
                steps => {
                    assert_eq!(steps, [PullStep::End(7, Pulled::Failed)]);
                    assert_eq!((asks, now), (ASKS_MAX, i64::from(ASKS_MAX) * REPEAT_NANOS));
                    return;
                }
            }
        }
        panic!("it never ends");
    }

    #[test]
    fn lengths_that_no_frame_has_are_not_asked_for() {
        let mut pulls = RunningPulls::default();
        let too_long = begin(&mut pulls, job(1, ASK_BYTES_MAX + 1));
        assert_eq!(too_long, Some(PullStep::End(1, Pulled::Failed)));
        assert_eq!(begin(&mut pulls, job(2, 0)), Some(PullStep::End(2, Pulled::Done)));
        assert_over(&mut pulls);
    }

    /// A write of a client of daemon 9.
    const WRITE: RequestId =
        RequestId { client: client_id::first(DaemonIndex(9), 3) + 17, sequence: 4 };

    #[test]
    fn the_bytes_of_a_client_are_where_its_request_came_from_last() {
        let source = Source::Client(WRITE);
        assert_eq!(holder(source), DaemonIndex(9));
        let agent_of = |id| (id == WRITE).then_some(DaemonIndex(10));
        assert_eq!(holder_of(source, agent_of), DaemonIndex(10));
        assert_eq!(holder_of(Source::Copy(FROM), agent_of), FROM);
    }

    #[test]
    fn a_pull_goes_on_at_another_daemon_that_has_its_bytes() {
        let mut pulls = RunningPulls::default();
        let write = |ticket| PullJob { source: Source::Client(WRITE), ..job(ticket, 4) };
        let (first, second) = (DaemonIndex(9), DaemonIndex(10));
        let ask = |ticket, from| PullStep::Ask(from, ask_of(&write(ticket)));
        assert_eq!((begin(&mut pulls, write(7)), begin(&mut pulls, write(8))), (None, None));
        assert_eq!(pulls.next_asks(0), [ask(7, first), ask(8, first)]);
        assert!(pulls.cancel(8).is_some());
        // Not before an answer is late; and then as often as any.
        assert_eq!(pulls.tick(REPEAT_NANOS - 1, |_| second), []);
        assert_eq!(pulls.tick(REPEAT_NANOS, |_| second), []);
        assert_eq!(pulls.next_asks(REPEAT_NANOS), [ask(7, second)]);
        let id = id_of(&write(7));
        assert_eq!(pulls.given(first, id, Given::Failed), None, "it is not asked any more");
        for asks in 2..=i64::from(ASKS_MAX) {
            assert_eq!(pulls.tick(asks * REPEAT_NANOS, |_| second), [ask(7, second)]);
        }
        let store = PullStep::Store(write(7), vec![1; 4]);
        assert_eq!(pulls.given(second, id, Given::Bytes(vec![1; 4])), Some(store));
        assert_eq!(pulls.tick(1 << 40, |_| first), [], "it stores");
        assert_eq!(pulls.stored(7, true), Some(PullStep::End(7, Pulled::Done)));
        assert_over(&mut pulls);
        // One that waits for a place behind others is asked for and turns, too.
        let most = ASKED_BYTES_MAX / ASK_BYTES_MAX;
        let long = |ticket| PullJob { source: Source::Client(WRITE), ..job(ticket, ASK_BYTES_MAX) };
        (0..=most).for_each(|ticket| assert_eq!(begin(&mut pulls, long(ticket)), None));
        assert_eq!(pulls.next_asks(0).len() as u64, most);
        assert_eq!(pulls.tick(REPEAT_NANOS, |_| second), []);
        assert_eq!(pulls.next_asks(REPEAT_NANOS).len() as u64, most + 1);
        assert_eq!(pulls.tick(2 * REPEAT_NANOS, |_| second).len() as u64, most);
        assert_eq!(pulls.next_asks(2 * REPEAT_NANOS), [], "its place is behind the others");
        (0..=most).for_each(|ticket| assert!(pulls.cancel(ticket).is_some()));
        assert_over(&mut pulls);
    }
}
