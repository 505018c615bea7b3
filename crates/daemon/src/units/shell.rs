//! Between this daemon's `replicas::node::Node` and the rest of the daemon: inputs go in one after the
//! other, and what the node asks for is done in its order before the next one.
//!
//! Invariants
//! 1. A step of what is kept is in the log before any action behind it is done.
//! 2. An input that an action leads to at once is the next one, after all actions of this one.
//! 3. After an error of the log nothing more is done: the daemon is one that has died.

use super::clears::{ClearAsk, ClearEnd, RunningClears};
use super::kept_log::{KeptLog, KeptUnits};
use super::object::{StripeBytes, objects_at};
use super::pulls::{PullStep, RunningPulls, holder_of};
use super::stores::StoreAnswer;
use super::{Event, LossAnswer, MemberView, PushAnswer, PushAttempt, UnitBytes};
use replicas::change::{Change, Reign};
use replicas::dirty::Notice;
use replicas::node::{Action, Answer, Counters, Node, Pulled, Settings};
use replicas::operation::{ByteRange, Kind, Object, Operation, RequestId, Source};
use replicas::packet::{ASK_BYTES_MAX, Ask, Given, Packet};
use replicas::placement::UnitIndex;
use replicas::table::Table;
use shm::extents::SUM_PAGE_BYTES;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use store::medium::{Files, RealFiles};
use wire::limits::STRIPE_LOG2_MIN;
use wire::{DaemonIndex, Errno, Inode};

/// Objects whose bytes are counted in a tick, which takes 0.2 ms; and the rest of their last unit.
const COUNTED_OBJECTS: usize = 4096;

/// Bytes that have a checksum together: objects begin where a page of their file does.
const PAGE_BYTES: u64 = SUM_PAGE_BYTES as u64;
const _: () = assert!((1u64 << STRIPE_LOG2_MIN).is_multiple_of(PAGE_BYTES));
const _: () = assert!(PAGE_BYTES <= ASK_BYTES_MAX);

const fn page_range(number: u64) -> ByteRange {
    ByteRange { start: number * PAGE_BYTES, end: (number + 1) * PAGE_BYTES }
}

/// A pull that the node asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PullJob {
    pub(super) ticket: u64,
    pub(super) of: Reign,
    pub(super) operation: Operation,
    pub(super) source: Source,
}

/// Bytes of a copy here; or a range of which some fail their checksum.
pub(super) type CopyBytes = Result<Vec<u8>, ByteRange>;

/// The one for which bytes of a copy are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadBy {
    /// A client.
    Client,
    /// Another copy, which lacks them.
    Copy,
}

/// The part of the daemon that does the actions. A function that says "at once" has done it when it
/// returns.
pub(super) trait Performer {
    /// Sends bytes of a packet to another daemon. They may be lost.
    fn send(&mut self, to: DaemonIndex, packet: &[u8]);
    /// Proposes a change of the table. It may be lost.
    fn propose(&mut self, change: &Change);
    /// The bytes of a unit here; `None`: there is no copy of it any more.
    fn counted(&mut self, unit: UnitIndex, bytes: Option<UnitBytes>);
    /// Nothing is sent for a moment. The node has counted so much so far.
    fn end_round(&mut self, counters: &Counters);
    /// Gives the bytes of a pull to the target: `Event::Stored` when it has them, or does not take them.
    fn store(&mut self, job: &PullJob, bytes: Vec<u8>);
    /// The target answered. `Some`: it has the bytes, or will not have them; else there is another
    /// answer.
    fn stored(&mut self, ticket: u64, stored: StoreAnswer, now: i64) -> Option<bool>;
    /// Time passed.
    fn tick(&mut self, now: i64);
    /// Reads bytes of this copy, at once: zeros where there is nothing.
    fn read(&mut self, by: ReadBy, of: (UnitIndex, Object), range: ByteRange) -> CopyBytes;
    /// The daemon from which a client's write came here last; `None`: it does not wait here.
    fn agent_of(&self, id: RequestId) -> Option<DaemonIndex>;
    /// Bytes of a request that a client sent to this daemon, at once. `None`: the request is answered.
    fn client_bytes(&mut self, id: RequestId, range: ByteRange) -> Option<Vec<u8>>;
    /// Changes bytes of this copy, at once: `Punch`, `Remove` or `Begin`.
    ///
    /// # Errors
    /// Some of these bytes are what they were.
    fn change(&mut self, unit: UnitIndex, operation: &Operation) -> Result<(), Errno>;
    /// Removes an object of this copy, at once.
    ///
    /// # Errors
    /// As for `change`.
    fn erase(&mut self, unit: UnitIndex, object: Object) -> Result<(), Errno>;
    /// A service has told how old the file of a request is.
    fn loss_known(&mut self, ticket: u64, answer: LossAnswer);
    /// An attempt of a client's write that has returned is answered.
    fn push_answered(&mut self, asked: PushAttempt, answer: PushAnswer);
    /// Answers a client.
    fn answer(&mut self, ticket: u64, answer: Answer);
    /// Answers a client's read.
    fn reply(&mut self, ticket: u64, bytes: Vec<u8>);
    /// Answers the service of files that were to be cleared.
    fn clear_ended(&mut self, end: ClearEnd);
    /// Ends a read of bytes that fail their checksum. `is_repaired`: they come from another copy, and the
    /// client asks again; else reading them is an error.
    fn end_corrupt(&mut self, ticket: u64, is_repaired: bool);
    /// Stores with the owner of a file's name, at once, what the notice says.
    fn notify(&mut self, notice: &Notice);
    /// Stores a notice of another daemon, as the owner of the file's name, if this daemon is it. Whether
    /// it is stored.
    fn store_notice(&mut self, notice: &Notice) -> bool;
}

/// An input that an action led to.
enum FollowUp {
    /// Of a read, if there is a ticket.
    Corrupt {
        ticket: Option<u64>,
        unit: UnitIndex,
        object: Object,
        ranges: Vec<ByteRange>,
    },
    Noticed(Notice),
    Pulled(u64, Pulled),
    /// More requests of services have a place.
    Clear,
}

/// See the module.
pub(super) struct Shell<P: Performer, F: Files = RealFiles> {
    node: Node,
    log: KeptLog<F>,
    performer: P,
    own: DaemonIndex,
    pulls: RunningPulls,
    clears: RunningClears,
    /// Reads that have no answer yet.
    reads: BTreeMap<u64, (UnitIndex, Object, ByteRange)>,
    /// The unit whose bytes were counted last.
    counted: Option<UnitIndex>,
    /// Number of the start with which the daemon takes part.
    incarnation: u64,
    actions: Vec<Action>,
    follow_ups: VecDeque<FollowUp>,
    packet: Vec<u8>,
}

impl<P: Performer, F: Files> Shell<P, F> {
    /// The node of a start, with what an earlier one kept. It has no part in any unit before the first
    /// view.
    pub(super) fn new(
        settings: Settings,
        table: Table,
        (log, kept): (KeptLog<F>, KeptUnits),
        (performer, clears): (P, RunningClears),
        now: i64,
    ) -> Shell<P, F> {
        // Starts have numbers from 1.
        let own = settings.own;
        let node = Node::new(settings, 0, table, kept, now);
        let (actions, follow_ups, packet) = (Vec::new(), VecDeque::new(), Vec::new());
        let (pulls, reads, incarnation) = (RunningPulls::default(), BTreeMap::new(), 0);
        Shell {
            node,
            log,
            performer,
            own,
            pulls,
            clears,
            reads,
            counted: None,
            incarnation,
            actions,
            follow_ups,
            packet,
        }
    }

    /// Time passed: `replicas::node::TICK_NANOS` at most.
    ///
    /// # Errors
    /// The log's: see invariant 3.
    pub(super) fn tick(&mut self, now: i64) -> store::Result<()> {
        self.performer.tick(now);
        let performer = &self.performer;
        let agent_of = |id| performer.agent_of(id);
        let steps = self.pulls.tick(now, |source| holder_of(source, agent_of));
        steps.into_iter().for_each(|step| self.take_pull_step(step));
        if !self.node.is_idle() {
            self.node.tick(now, &mut self.actions);
        }
        self.count_bytes();
        self.perform(now)
    }

    /// Counts the bytes of the next units, as many as `COUNTED_OBJECTS` objects are in.
    fn count_bytes(&mut self) {
        let kept = self.node.kept();
        let mut looked_at = 0;
        for _ in 0..kept.len() {
            let behind = self.counted.map_or(Bound::Unbounded, Bound::Excluded);
            let next = kept.range((behind, Bound::Unbounded)).next();
            let Some((&unit, of_unit)) = next.or_else(|| kept.first_key_value()) else { return };
            let (mut bytes, lacking) = (UnitBytes::default(), self.node.lacking(unit));
            for (object, entry) in of_unit.objects() {
                let range = ByteRange { start: 0, end: entry.length };
                let length = StripeBytes::of(object, range).map_or(0, |it| it.length);
                bytes.here += length;
                bytes.unfilled += length * lacking(object) as u64;
                looked_at += 1;
            }
            drop(lacking);
            self.performer.counted(unit, Some(bytes));
            self.counted = Some(unit);
            if looked_at >= COUNTED_OBJECTS {
                return;
            }
        }
    }

    /// Something happened.
    ///
    /// # Errors
    /// As for `tick`.
    pub(super) fn input(&mut self, event: Event, now: i64) -> store::Result<()> {
        let out = &mut self.actions;
        match event {
            Event::Packet(from, Packet::Message(message)) => {
                self.node.receive(from, message, now, out);
            }
            Event::Packet(from, Packet::Notice(notice)) => {
                let unit = self.node.table().unit(notice.unit);
                let is_primary = unit.is_some_and(|unit| unit.primary == Some(from));
                if is_primary && self.performer.store_notice(&notice) {
                    self.send(from, &Packet::Noticed(notice));
                }
                return Ok(());
            }
            Event::Packet(_, Packet::Noticed(notice)) => self.node.noticed(&notice, now, out),
            Event::Packet(from, Packet::Ask(ask)) => {
                if let Some(given) = self.give(&ask) {
                    self.send(from, &Packet::Given(ask.id, given));
                }
            }
            Event::Packet(from, Packet::Given(id, given)) => {
                let step = self.pulls.given(from, id, given);
                step.into_iter().for_each(|step| self.take_pull_step(step));
            }
            Event::MemberView(view) => self.take_view(&view, now),
            Event::Advice(to) => self.node.advise(to, now, out),
            Event::Request(unit, request) => self.node.request(unit, request, now, out),
            Event::Read(unit, read) => {
                self.reads.insert(read.ticket, (unit, read.object, read.range));
                self.node.read(unit, read, now, out);
            }
            Event::Clear(ticket, ask) => self.begin_clear(ticket, &ask),
            Event::LossKnown(ticket, answer) => self.performer.loss_known(ticket, answer),
            Event::PushAnswered(asked, answer) => self.performer.push_answered(asked, answer),
            Event::Damaged(inode, offset) => self.find_damaged(inode, offset),
            Event::Stored(ticket, stored) => {
                let Some(is_stored) = self.performer.stored(ticket, stored, now) else {
                    return Ok(());
                };
                if let Some(job) = self.pulls.storing(ticket).filter(|_| is_stored) {
                    let Operation { object, range, .. } = job.operation;
                    self.log.mend(job.of.unit, object, range)?;
                }
                let step = self.pulls.stored(ticket, is_stored);
                step.into_iter().for_each(|step| self.take_pull_step(step));
            }
        }
        self.perform(now)
    }

    fn begin_clear(&mut self, ticket: u64, ask: &ClearAsk) {
        let (node, own) = (&self.node, Some(self.own));
        let is_primary = |unit| node.table().unit(unit).is_some_and(|it| it.primary == own);
        let of = ask.units.iter().map(|unit| node.kept().get(unit).filter(|_| is_primary(*unit)));
        if let Some(end) = self.clears.begin(ticket, ask, of) {
            self.performer.clear_ended(end);
        }
        self.follow_ups.push_back(FollowUp::Clear);
    }

    /// The bytes that a daemon asks for. `None`: it asks again, or another one.
    fn give(&mut self, ask: &Ask) -> Option<Given> {
        let Ask { id, source, object, range } = *ask;
        match source {
            Source::Copy(daemon) if daemon != self.own => None,
            Source::Client(client) => {
                Some(self.performer.client_bytes(client, range).map_or(Given::Failed, Given::Bytes))
            }
            Source::Copy(_) if !self.node.may_give(id.of) => None,
            Source::Copy(_) if self.log.is_spoiled(id.of.unit, object, range) => {
                Some(Given::Corrupt)
            }
            Source::Copy(_) => match self.performer.read(ReadBy::Copy, (id.of.unit, object), range)
            {
                Ok(bytes) => Some(Given::Bytes(bytes)),
                Err(range) => {
                    let (ticket, unit) = (None, id.of.unit);
                    let ranges = self.damaged_pages(unit, object, range);
                    self.follow_ups.push_back(FollowUp::Corrupt { ticket, unit, object, ranges });
                    Some(Given::Corrupt)
                }
            },
        }
    }

    fn serve(&mut self, ticket: u64) {
        let Some((unit, object, range)) = self.reads.remove(&ticket) else { return };
        if self.log.is_spoiled(unit, object, range) {
            return self.performer.end_corrupt(ticket, false);
        }
        match self.performer.read(ReadBy::Client, (unit, object), range) {
            Ok(bytes) => self.performer.reply(ticket, bytes),
            Err(range) => {
                let (ticket, ranges) = (Some(ticket), self.damaged_pages(unit, object, range));
                self.follow_ups.push_back(FollowUp::Corrupt { ticket, unit, object, ranges });
            }
        }
    }

    /// The pages of a range that cannot be read. Each of them is asked for alone: of two copies each may
    /// have another page that is damaged, and a part of a damaged page cannot be written.
    fn damaged_pages(
        &mut self,
        unit: UnitIndex,
        object: Object,
        range: ByteRange,
    ) -> Vec<ByteRange> {
        let pages = (range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)).map(page_range);
        let performer = &mut self.performer;
        let found: Vec<_> = pages
            .filter(|page| performer.read(ReadBy::Copy, (unit, object), *page).is_err())
            .collect();
        // The pages are well by now, or the range has none: it is asked for as it is.
        if found.is_empty() { vec![range] } else { found }
    }

    /// A page of a file fails its checksum at the own target: it comes from another copy.
    fn find_damaged(&mut self, inode: Inode, offset: u64) {
        for (unit, object, within) in objects_at(self.node.kept(), inode, offset) {
            let ranges = vec![page_range(within / PAGE_BYTES)];
            let ticket = None;
            self.follow_ups.push_back(FollowUp::Corrupt { ticket, unit, object, ranges });
        }
    }

    fn change(&mut self, unit: UnitIndex, operation: &Operation) -> store::Result<()> {
        let Operation { object, range, .. } = *operation;
        if operation.kind == Kind::Spoil {
            return self.log.spoil(unit, object, range);
        }
        let changed = self.performer.change(unit, operation);
        self.note_changed((unit, object, range), changed)
    }

    /// Bytes were changed, or could not be. Then no other copy has the same: reading them is an
    /// error until they come from there, or are written.
    fn note_changed(
        &mut self,
        (unit, object, range): (UnitIndex, Object, ByteRange),
        changed: Result<(), Errno>,
    ) -> store::Result<()> {
        let Err(errno) = changed else { return self.log.mend(unit, object, range) };
        tracing::warn!(unit = unit.0, inode = object.inode.0, %errno, "a copy cannot be changed");
        let length = StripeBytes::of(object, range).map_or(0, |it| it.length);
        let end = range.start.saturating_add(length);
        for start in (range.start..end).step_by(ASK_BYTES_MAX as usize) {
            let ranges = vec![ByteRange { start, end: end.min(start + ASK_BYTES_MAX) }];
            self.follow_ups.push_back(FollowUp::Corrupt { ticket: None, unit, object, ranges });
        }
        self.log.spoil(unit, object, range)
    }

    /// Events have been taken, and nothing else comes for a moment.
    pub(super) fn end_round(&mut self) {
        self.performer.end_round(&self.node.counters());
    }

    fn take_pull_step(&mut self, step: PullStep) {
        let mut next = Some(step);
        while let Some(step) = next.take() {
            match step {
                PullStep::Ask(to, ask) if to == self.own => {
                    let given = self.give(&ask);
                    next = given.and_then(|given| self.pulls.given(to, ask.id, given));
                }
                PullStep::Ask(to, ask) => self.send(to, &Packet::Ask(ask)),
                PullStep::Store(job, bytes) => self.performer.store(&job, bytes),
                PullStep::End(ticket, pulled) => {
                    self.follow_ups.push_back(FollowUp::Pulled(ticket, pulled));
                }
            }
        }
    }

    fn ask_for_pulls(&mut self, now: i64) {
        // Bytes that are here make a place for the next at once.
        loop {
            let steps = self.pulls.next_asks(now);
            if steps.is_empty() {
                return;
            }
            steps.into_iter().for_each(|step| self.take_pull_step(step));
        }
    }

    fn take_view(&mut self, view: &MemberView, now: i64) {
        let MemberView { table, incarnation, lease_until, granted, settled } = view;
        let out = &mut self.actions;
        if *lease_until <= now {
            self.node.lease(*lease_until, *granted, now, out);
        }
        if table.version > self.node.table().version || *incarnation != self.incarnation {
            self.incarnation = *incarnation;
            self.node.adopt(table.as_ref().clone(), *incarnation, now, out);
        }
        self.node.settled(*settled, now, out);
        if *lease_until > now {
            self.node.lease(*lease_until, *granted, now, out);
        }
    }

    fn perform(&mut self, now: i64) -> store::Result<()> {
        loop {
            let mut actions = std::mem::take(&mut self.actions);
            for action in actions.drain(..) {
                if let Action::Keep { unit, step } = action {
                    self.log.put(unit, &step)?;
                } else {
                    self.log.flush()?;
                    self.act(action)?;
                }
            }
            self.log.flush()?;
            self.actions = actions;
            self.ask_for_pulls(now);
            let Some(follow_up) = self.follow_ups.pop_front() else { break };
            self.follow(follow_up, now);
        }
        self.log.tidy(self.node.kept());
        Ok(())
    }

    fn send(&mut self, to: DaemonIndex, packet: &Packet) {
        use encoding::Encode as _;
        self.packet.clear();
        packet.encode(&mut self.packet);
        self.performer.send(to, &self.packet);
    }

    fn act(&mut self, action: Action) -> store::Result<()> {
        match action {
            Action::Keep { unit, step } => self.log.put(unit, &step)?,
            Action::Send { to, message } => self.send(to, &Packet::Message(message)),
            Action::Pull { ticket, of, operation, source } => {
                let from = holder_of(source, |id| self.performer.agent_of(id));
                let step = self.pulls.begin(PullJob { ticket, of, operation, source }, from);
                step.into_iter().for_each(|step| self.take_pull_step(step));
            }
            Action::Cancel { ticket } => {
                let step = self.pulls.cancel(ticket);
                step.into_iter().for_each(|step| self.take_pull_step(step));
            }
            Action::Change { unit, operation } => self.change(unit, &operation)?,
            Action::Erase { unit, object } => {
                let erased = self.performer.erase(unit, object);
                self.note_changed((unit, object, ByteRange::ALL), erased)?;
            }
            Action::Discard(unit) => {
                self.log.forget_unit(unit)?;
                self.performer.counted(unit, None);
            }
            Action::Answer { ticket, answer } if RunningClears::is_own(ticket) => {
                if let Some(end) = self.clears.answered(ticket, answer) {
                    self.performer.clear_ended(end);
                }
                self.follow_ups.push_back(FollowUp::Clear);
            }
            Action::Answer { ticket, answer } => {
                self.reads.remove(&ticket);
                self.performer.answer(ticket, answer);
            }
            Action::Serve { ticket } => self.serve(ticket),
            Action::Propose(change) => self.performer.propose(&change),
            Action::Notify(notice) => {
                self.performer.notify(&notice);
                self.follow_ups.push_back(FollowUp::Noticed(notice));
            }
        }
        Ok(())
    }

    fn follow(&mut self, follow_up: FollowUp, now: i64) {
        let out = &mut self.actions;
        match follow_up {
            FollowUp::Corrupt { ticket, unit, object, ranges } => {
                let mut is_repaired = true;
                for range in ranges {
                    is_repaired &= self.node.corrupt(unit, object, range, now, out);
                }
                if let Some(ticket) = ticket {
                    self.performer.end_corrupt(ticket, is_repaired);
                }
            }
            FollowUp::Pulled(ticket, pulled) => self.node.pulled(ticket, pulled, now, out),
            FollowUp::Noticed(notice) => self.node.noticed(&notice, now, out),
            FollowUp::Clear => {
                let table = self.node.table();
                let epoch = |unit| table.unit(unit).map_or(0, |unit| unit.epoch);
                for (unit, request) in self.clears.next(epoch) {
                    self.node.request(unit, request, now, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
