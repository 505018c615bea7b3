//! A primary's lane to another copy of its unit: the orders that were sent and have not ended.

use super::messages::{End, Message, Order};
use super::scan::Scan;
use super::windows::bytes_of;
use super::{Action, REPEAT_NANOS, Timed};
use crate::change::CopyId;
use crate::kept::Begun;
use crate::operation::{Kind, Object, Source, Stamp};
use std::collections::BTreeMap;
use wire::DaemonIndex;

/// Numbers between the oldest order that is not settled and the next: what a copy has to remember.
pub(super) const NUMBERS_MAX: u64 = 256;
/// Times that a copy may fail to get the bytes of an operation.
pub(super) const ATTEMPTS_MAX: u32 = 8;

pub(super) enum Phase {
    /// `Message::Open` was sent.
    Opening,
    /// The copy is compared, and filled.
    Scanning(Scan),
    /// Every change is ordered to it.
    Level,
}

/// The subject of an order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Ongoing(u64),
    Other,
}

pub(super) struct Sent {
    pub subject: Subject,
    pub order: Order,
    /// The copy has it. It stays until all copies have.
    pub is_done: bool,
    /// Its source had no bytes.
    pub is_failed: bool,
    /// Times that it failed with bytes that the primary has.
    pub attempts: u32,
    /// Times that the source's bytes failed their checksum.
    pub corrupt: u32,
    sent_at: i64,
    /// For how long it has no end, while the primary has its bytes.
    waited: i64,
}

impl Sent {
    /// The copy has no bytes of its source.
    pub(super) fn fail(&mut self, end: &End, own: DaemonIndex) {
        let Order::Operation { operation, source, .. } = &self.order else { return };
        self.is_failed = true;
        self.corrupt += u32::from(*end == End::Corrupt);
        if operation.kind == Kind::Copy || *source == Source::Copy(own) {
            self.attempts += 1;
        } else {
            // The client or another copy had none: this one has answered, and is no slower for that.
            self.waited = 0;
        }
    }
}

pub(super) struct Lane {
    pub id: CopyId,
    /// By the table.
    pub is_in_sync: bool,
    /// Nothing is acknowledged without it.
    pub counts: bool,
    pub phase: Phase,
    pub sent: BTreeMap<u64, Sent>,
    next: u64,
    /// When all orders below are done, the copy has everything.
    level_from: u64,
    /// Operations that the copy had under way when the lane began.
    pub gathered: Vec<Begun>,
    /// Until then the copy may be read.
    pub leased_until: i64,
    opened_at: i64,
    waited: i64,
    pub proposed_at: i64,
    /// Marks of clean objects that the copy was not told.
    pub marks: BTreeMap<Object, Stamp>,
}

impl Lane {
    pub(super) fn new(id: CopyId, is_in_sync: bool, leased_until: i64, now: i64) -> Lane {
        Lane {
            id,
            is_in_sync,
            counts: is_in_sync,
            phase: Phase::Opening,
            sent: BTreeMap::new(),
            next: 1,
            level_from: 1,
            gathered: Vec::new(),
            leased_until,
            opened_at: now - REPEAT_NANOS,
            waited: 0,
            proposed_at: now - REPEAT_NANOS,
            marks: BTreeMap::new(),
        }
    }

    pub(super) const fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening)
    }

    pub(super) const fn is_level(&self) -> bool {
        matches!(self.phase, Phase::Level)
    }

    /// From now on every change is ordered to it, and it counts.
    pub(super) fn level(&mut self) {
        self.phase = Phase::Level;
        self.counts = true;
        self.level_from = self.next;
    }

    /// Whether it has everything that was acknowledged.
    pub(super) fn has_all(&self) -> bool {
        self.is_level() && self.sent.range(..self.level_from).all(|(_, sent)| sent.is_done)
    }

    /// Whether the copy is not in sync and has to get an object yet.
    pub(super) fn lacks(&self, object: Object) -> bool {
        !self.is_in_sync
            && match &self.phase {
                Phase::Opening => true,
                Phase::Scanning(scan) => !scan.has(object),
                Phase::Level => false,
            }
    }

    /// Whether another order may be sent.
    pub(super) fn has_place(&self) -> bool {
        self.next - self.settled() <= NUMBERS_MAX
    }

    /// Bytes of each order that has not ended.
    pub(super) fn under_way(&self) -> impl Iterator<Item = u64> {
        let open = self.sent.values().filter(|sent| !sent.is_done && !sent.is_failed);
        open.map(|sent| match &sent.order {
            Order::Operation { operation, .. } => bytes_of(operation),
            _ => 0,
        })
    }

    pub(super) fn settled(&self) -> u64 {
        self.sent.first_key_value().map_or(self.next, |(&number, _)| number) - 1
    }

    pub(super) fn order(
        &mut self,
        subject: Subject,
        order: Order,
        now: i64,
        out: &mut Vec<Action>,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let (is_done, is_failed) = (false, false);
        let sent = Sent {
            subject,
            order,
            is_done,
            is_failed,
            attempts: 0,
            corrupt: 0,
            sent_at: now,
            waited: 0,
        };
        self.sent.insert(number, sent);
        self.send(number, out);
        number
    }

    fn send(&self, number: u64, out: &mut Vec<Action>) {
        let Some(sent) = self.sent.get(&number) else { return };
        let (lane, settled, order) = (self.id, self.settled(), sent.order.clone());
        let message = Message::Order { lane, number, settled, order };
        out.push(Action::Send { to: lane.daemon, message });
    }

    /// Sends an order again, as it is now.
    pub(super) fn repeat(&mut self, number: u64, order: Order, now: i64, out: &mut Vec<Action>) {
        let Some(sent) = self.sent.get_mut(&number).filter(|sent| !sent.is_done) else { return };
        (sent.order, sent.is_failed, sent.sent_at) = (order, false, now);
        self.send(number, out);
    }

    /// For how long the oldest order has waited.
    pub(super) fn longest_wait(&self) -> i64 {
        let open = self.sent.values().filter(|sent| !sent.is_done && !sent.is_failed);
        open.map(|sent| sent.waited).max().unwrap_or(0)
    }

    /// Whether the copy does not get bytes that the primary has.
    pub(super) fn fails(&self) -> bool {
        self.sent.values().any(|sent| sent.attempts >= ATTEMPTS_MAX)
    }

    /// Time passed: messages without an answer are sent again. For how long the oldest one has
    /// waited; the time of an order that `may_wait` does not count.
    pub(super) fn tick(
        &mut self,
        time: Timed,
        may_wait: impl Fn(&Sent) -> bool,
        out: &mut Vec<Action>,
    ) -> i64 {
        let Timed { now, passed } = time;
        if self.is_opening() {
            self.waited += passed;
            if now - self.opened_at >= REPEAT_NANOS {
                self.opened_at = now;
                let message = Message::Open { lane: self.id };
                out.push(Action::Send { to: self.id.daemon, message });
            }
            return self.waited;
        }
        let (mut late, mut longest) = (Vec::new(), 0);
        for (&number, sent) in self.sent.iter_mut().filter(|(_, it)| !it.is_done && !it.is_failed) {
            sent.waited += if may_wait(sent) { 0 } else { passed };
            longest = sent.waited.max(longest);
            if now - sent.sent_at >= REPEAT_NANOS {
                sent.sent_at = now;
                late.push(number);
            }
        }
        late.into_iter().for_each(|number| self.send(number, out));
        longest
    }
}
