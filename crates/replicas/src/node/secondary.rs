//! A copy that is not the primary: it does what the primary orders, and may be read while that
//! allows it.

use super::lane::NUMBERS_MAX;
use super::messages::{End, Inventory, Message, Order};
use super::windows::bytes_of;
use super::{Action, Answer, Context, Pulled, READ_LEASE_NANOS, Read};
use crate::change::CopyId;
use crate::kept::{Kept, KeptStep, UNDER_WAY_MAX};
use crate::operation::{Kind, Object, Operation, Source, Stamp};
use std::collections::BTreeMap;

/// Orders that are not settled at most. A new primary's first ones are what was under way, and then
/// it keeps to the numbers of a lane.
const TAKEN_MAX: usize = UNDER_WAY_MAX + 2 * NUMBERS_MAX as usize;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The primary's window has no place for the pull, or another one of these bytes runs.
    Delayed(Operation, Source),
    Pulling,
    Failed,
    Done,
}

struct Taken {
    stamp: Stamp,
    state: State,
}

/// See the module.
pub(super) struct Secondary {
    pub lane: CopyId,
    pub is_in_sync: bool,
    /// The primary is to be told that the lane begins; pulls from before may still run.
    is_opening: bool,
    is_open: bool,
    /// Number of the next order.
    next: u64,
    /// Orders that are not settled, by number.
    taken: BTreeMap<u64, Taken>,
    /// The last inventory's number, and its answer.
    compared: (u64, Vec<Object>),
    readable_until: i64,
    asked_at: i64,
}

impl Secondary {
    pub(super) fn new(lane: CopyId, (is_in_sync, has_all): (bool, bool), now: i64) -> Secondary {
        Secondary {
            lane,
            is_in_sync,
            // The primary need not ask where it knows of the lane already. A copy that may yet
            // become the primary stays as it is until then.
            is_opening: is_in_sync || !has_all,
            is_open: false,
            next: 1,
            taken: BTreeMap::new(),
            compared: (0, Vec::new()),
            readable_until: now,
            asked_at: now - READ_LEASE_NANOS,
        }
    }

    /// A message of the primary.
    pub(super) fn receive(&mut self, message: Message, kept: &mut Kept, cx: &mut Context<'_>) {
        match message {
            Message::Open { lane } if lane == self.lane && self.next == 1 => {
                self.is_opening = true;
                self.open(kept, cx);
            }
            Message::Order { lane, number, settled, order }
                if lane == self.lane && self.is_open =>
            {
                self.order(number, order, kept, cx);
                self.settled(settled, kept, cx);
            }
            Message::Lease { lane, sent, length, settled } if lane == self.lane => {
                self.settled(settled, kept, cx);
                let length = length.clamp(0, READ_LEASE_NANOS);
                if sent <= cx.now && self.is_open {
                    self.readable_until = self.readable_until.max(sent + length);
                }
            }
            _ => {}
        }
    }

    /// Answers `Open` when no earlier pull changes bytes any more.
    pub(super) fn open(&mut self, kept: &mut Kept, cx: &mut Context<'_>) {
        if !self.is_opening {
            return;
        }
        let unit = self.lane.of.unit;
        let running: Vec<u64> = cx.pulls.of(unit).map(|(ticket, _)| ticket).collect();
        if !running.is_empty() {
            cx.out.extend(running.into_iter().map(|ticket| Action::Cancel { ticket }));
            return;
        }
        self.is_opening = false;
        self.is_open = true;
        if !self.is_in_sync && !kept.under_way.is_empty() {
            cx.keep(kept, KeptStep::Forget);
        }
        let under_way = kept.under_way.clone();
        let message = Message::Opened { lane: self.lane, under_way };
        cx.tell_primary(self.lane.of.unit, message);
    }

    fn settled(&mut self, settled: u64, kept: &mut Kept, cx: &mut Context<'_>) {
        if settled >= self.next {
            // It would be about orders that were not given.
            return;
        }
        while let Some(taken) = self.taken.first_entry().filter(|taken| *taken.key() <= settled) {
            cx.settle(kept, taken.remove().stamp);
        }
    }

    fn ended(&self, number: u64, end: End, cx: &mut Context<'_>) {
        let message = Message::Ended { lane: self.lane, number, end };
        cx.tell_primary(self.lane.of.unit, message);
    }

    fn order(&mut self, number: u64, order: Order, kept: &mut Kept, cx: &mut Context<'_>) {
        if number > self.next {
            // One before it was lost: both come again.
            return;
        }
        let is_full = self.taken.len() >= TAKEN_MAX || kept.under_way.len() >= UNDER_WAY_MAX;
        if number == self.next && is_full {
            // A primary keeps to its numbers, so this is not one's.
            return;
        }
        let is_new = number == self.next;
        self.next += u64::from(is_new);
        match order {
            Order::Operation { operation, source, replaces } => {
                self.operate(number, &operation, source, is_new, kept, cx);
                if let Some(before) = replaces {
                    self.replace(before);
                    give_up(before, &operation, kept, cx);
                }
            }
            Order::Inventory(inventory) => {
                if is_new {
                    self.compared = (number, compare(&inventory, self.lane, kept, cx));
                }
                // A late repetition says nothing about what was sent since.
                if self.compared.0 == number {
                    self.ended(number, End::Differs(self.compared.1.clone()), cx);
                }
            }
            Order::UnderWay(stamps) => {
                if is_new && kept.has_other_than(&stamps) {
                    cx.keep(kept, KeptStep::UnderWay(stamps));
                }
                self.ended(number, End::Done, cx);
            }
            Order::Replies(replies) => {
                if is_new {
                    cx.keep(kept, KeptStep::Replies(replies));
                }
                self.ended(number, End::Done, cx);
            }
            Order::Clean(marks) => {
                marks.into_iter().for_each(|(object, clean)| mark_clean(object, clean, kept, cx));
                self.ended(number, End::Done, cx);
            }
        }
    }

    fn operate(
        &mut self,
        number: u64,
        operation: &Operation,
        source: Source,
        is_new: bool,
        kept: &mut Kept,
        cx: &mut Context<'_>,
    ) {
        let is_done = kept.begun(operation.stamp).is_some_and(|begun| begun.is_done);
        match self.taken.get(&number).map(|taken| taken.state) {
            None if !is_new => return self.ended(number, End::Done, cx),
            Some(State::Done) => return self.ended(number, End::Done, cx),
            Some(State::Pulling) => return,
            Some(State::Failed | State::Delayed(..)) | None => {}
        }
        let stamp = operation.stamp;
        if is_done {
            self.taken.insert(number, Taken { stamp, state: State::Done });
            return self.ended(number, End::Done, cx);
        }
        cx.keep(kept, KeptStep::Begin(*operation));
        if operation.has_bytes() {
            let state = State::Delayed(*operation, source);
            self.taken.insert(number, Taken { stamp, state });
        } else {
            self.taken.insert(number, Taken { stamp, state: State::Done });
            if !matches!(operation.kind, Kind::Complete { .. }) {
                cx.out.push(Action::Change { unit: self.lane.of.unit, operation: *operation });
            }
            cx.keep(kept, KeptStep::Done(stamp));
            self.ended(number, End::Done, cx);
        }
    }

    /// A late repetition of an order that was replaced changes nothing.
    fn replace(&mut self, before: Stamp) {
        for taken in self.taken.values_mut().filter(|taken| taken.stamp == before) {
            taken.state = State::Done;
        }
    }

    /// Begins the pulls that have a place, in the order of their numbers.
    pub(super) fn go_on(&mut self, cx: &mut Context<'_>) {
        for taken in self.taken.values_mut() {
            let State::Delayed(operation, source) = taken.state else { continue };
            if cx.pulls.overlaps(self.lane.of.unit, &operation) {
                // A late repetition of the order that this one replaces began a pull.
                continue;
            }
            if !cx.may_pull(self.lane.of.unit, bytes_of(&operation)) {
                return;
            }
            taken.state = State::Pulling;
            cx.pull(self.lane.of, &operation, source);
        }
    }

    /// Whether an order waits for a place.
    pub(super) fn is_delayed(&self) -> bool {
        self.taken.values().any(|taken| matches!(taken.state, State::Delayed(..)))
    }

    /// A pull has ended.
    pub(super) fn pulled(
        &mut self,
        stamp: Stamp,
        pulled: Pulled,
        kept: &mut Kept,
        cx: &mut Context<'_>,
    ) {
        self.open(kept, cx);
        let found = self.taken.iter_mut().find(|(_, it)| it.stamp == stamp);
        let Some((&number, taken)) = found.filter(|(_, it)| it.state == State::Pulling) else {
            return;
        };
        let (state, end) = match pulled {
            Pulled::Done => (State::Done, End::Done),
            Pulled::Failed | Pulled::Torn => (State::Failed, End::Failed),
            Pulled::Corrupt => (State::Failed, End::Corrupt),
        };
        taken.state = state;
        self.ended(number, end, cx);
    }

    /// A client's read.
    pub(super) fn read(&mut self, read: &Read, kept: &Kept, cx: &mut Context<'_>) {
        // The primary shows what is not known to be on all copies.
        let is_hidden =
            kept.under_way.iter().any(|it| it.operation.overlaps(read.object, read.range));
        let is_readable = self.is_in_sync && self.is_open && cx.now < self.readable_until;
        if self.is_in_sync && self.is_open && self.is_due(cx.now) {
            self.asked_at = cx.now;
            let message = Message::AskLease { lane: self.lane, sent: cx.now };
            cx.tell_primary(self.lane.of.unit, message);
        }
        if read.born < kept.lost_at {
            cx.answer(read.ticket, Answer::Lost);
        } else if is_readable && !is_hidden {
            cx.counters.reads_here += 1;
            cx.out.push(Action::Serve { ticket: read.ticket });
        } else {
            cx.answer(read.ticket, Answer::AskPrimary);
        }
    }

    /// Whether the lease is to be renewed.
    const fn is_due(&self, now: i64) -> bool {
        let is_short = self.readable_until - now < READ_LEASE_NANOS / 2;
        is_short && now - self.asked_at >= READ_LEASE_NANOS / 4
    }
}

/// An operation ends torn: another one with the bytes of the primary took its place.
fn give_up(before: Stamp, by: &Operation, kept: &mut Kept, cx: &mut Context<'_>) {
    let Some(begun) = kept.begun(before) else { return };
    let requested = begun.operation.requested;
    cx.keep(kept, KeptStep::Settle(before));
    if let Some(requested) = requested {
        cx.keep(kept, KeptStep::Failed(requested, by.stamp));
    }
}

fn mark_clean(object: Object, clean: Stamp, kept: &mut Kept, cx: &mut Context<'_>) {
    if kept.is_news(object, clean) {
        cx.keep(kept, KeptStep::Clean(object, clean));
    }
}

/// Which objects the copy does not have as the primary has them. Those that the primary does not
/// have are removed.
fn compare(
    inventory: &Inventory,
    lane: CopyId,
    kept: &mut Kept,
    cx: &mut Context<'_>,
) -> Vec<Object> {
    let is_there = |object: Object| inventory.objects.iter().any(|it| it.object == object);
    let own = kept.objects.keys().copied().filter(|&it| inventory.covers(it) && !is_there(it));
    for object in own.collect::<Vec<Object>>() {
        cx.keep(kept, KeptStep::Remove(object));
        cx.out.push(Action::Erase { unit: lane.of.unit, object });
    }
    let mut differs = Vec::new();
    for it in &inventory.objects {
        mark_clean(it.object, it.clean, kept, cx);
        if it.version.is_none() || kept.version(it.object) != it.version {
            differs.push(it.object);
        }
    }
    differs
}
