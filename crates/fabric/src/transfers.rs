//! The transfers in flight and their parts; no call of the library.
//!
//! A transfer is posted in parts of limited length. It ends when none of its parts is in flight any
//! more, also after an error: only then may its memory be reused. All tables are allocated once,
//! and a transfer that does not fit is refused.

use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// From the peer's memory to local memory.
    Read,
    /// From local memory to the peer's.
    Write,
}

/// A transfer to be made; checked by the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) kind: Kind,
    pub(crate) region: u32,
    /// Offset in the region.
    pub(crate) within: u64,
    pub(crate) length: u64,
    pub(crate) peer: u32,
    /// Address at the peer, in the peer's provider's terms.
    pub(crate) place: u64,
    pub(crate) key: u64,
}

/// The end of a transfer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The token that the caller gave.
    pub token: u64,
    /// Success, or an error after which any part of the bytes may have been moved.
    pub outcome: Result<()>,
}

struct Transfer {
    order: Order,
    token: u64,
    posted: u64,
    parts: u32,
    /// Time when it was begun, or its last part was posted.
    since: Instant,
    outcome: Result<()>,
}

pub(crate) struct Transfers {
    part_bytes_max: u64,
    slots: Vec<Option<Transfer>>,
    free: Vec<u32>,
    /// Transfers not fully posted; the first is posted next.
    waiting: VecDeque<u32>,
    ended: VecDeque<u32>,
    /// The transfer of each part in flight.
    parts: Vec<Option<u32>>,
    free_parts: Vec<u32>,
}

impl Transfers {
    pub(crate) fn new(count_max: u32, parts_max: u32, part_bytes_max: u64) -> Transfers {
        let count = count_max as usize;
        Transfers {
            part_bytes_max: part_bytes_max.max(1),
            slots: core::iter::repeat_with(|| None).take(count).collect(),
            free: (0..count_max).rev().collect(),
            waiting: VecDeque::with_capacity(count),
            ended: VecDeque::with_capacity(count),
            parts: vec![None; parts_max as usize],
            free_parts: (0..parts_max).rev().collect(),
        }
    }

    /// Adds a transfer.
    pub(crate) fn begin(&mut self, order: Order, token: u64, now: Instant) -> Result<()> {
        let slot = self.free.pop().ok_or(Error::Full)?;
        let transfer = Transfer { order, token, posted: 0, parts: 0, since: now, outcome: Ok(()) };
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(transfer);
        }
        if order.length == 0 { &mut self.ended } else { &mut self.waiting }.push_back(slot);
        Ok(())
    }

    /// The next part to be posted, with its number, if there is one and a part number is free.
    pub(crate) fn next(&self) -> Option<(u32, Order)> {
        let part = *self.free_parts.last()?;
        let slot = *self.waiting.front()?;
        let transfer = self.slots.get(slot as usize)?.as_ref()?;
        let order = transfer.order;
        let length = (order.length - transfer.posted).min(self.part_bytes_max);
        let within = order.within + transfer.posted;
        // The caller checked the end of the whole.
        let place = order.place.wrapping_add(transfer.posted);
        Some((part, Order { within, length, place, ..order }))
    }

    /// The part returned by `next` is in flight.
    pub(crate) fn posted(&mut self, now: Instant) {
        let Some((part, order)) = self.next() else { return };
        let Some(slot) = self.waiting.front().copied() else { return };
        let Some(Some(transfer)) = self.slots.get_mut(slot as usize) else { return };
        transfer.posted += order.length;
        transfer.parts += 1;
        transfer.since = now;
        if transfer.posted == transfer.order.length {
            self.waiting.pop_front();
        }
        self.free_parts.pop();
        if let Some(place) = self.parts.get_mut(part as usize) {
            *place = Some(slot);
        }
    }

    /// The part returned by `next` cannot be posted now: another transfer is next.
    pub(crate) fn postponed(&mut self) {
        self.waiting.rotate_left(usize::from(!self.waiting.is_empty()));
    }

    /// The part returned by `next` cannot be posted: the rest of its transfer is not tried.
    pub(crate) fn refused(&mut self, error: Error) {
        let Some(slot) = self.waiting.pop_front() else { return };
        self.spoil(slot, error);
    }

    /// True if some part is not posted yet.
    pub(crate) fn any_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// True if a part is in flight.
    pub(crate) fn any_under_way(&self) -> bool {
        self.free_parts.len() < self.parts.len()
    }

    /// Lets `time` pass without counting for transfers that wait.
    pub(crate) fn excuse(&mut self, time: Duration) {
        if time.is_zero() {
            return;
        }
        for &slot in &self.waiting {
            if let Some(Some(transfer)) = self.slots.get_mut(slot as usize) {
                transfer.since += time;
            }
        }
    }

    /// Gives up parts not posted of transfers that made no progress since `before`.
    pub(crate) fn expire(&mut self, before: Instant, error: &Error) {
        for _ in 0..self.waiting.len() {
            let Some(slot) = self.waiting.pop_front() else { return };
            let transfer = self.slots.get(slot as usize).and_then(Option::as_ref);
            if transfer.is_some_and(|transfer| transfer.since < before) {
                self.spoil(slot, error.clone());
            } else {
                self.waiting.push_back(slot);
            }
        }
    }

    /// A part in flight ended. False if there was none with this number.
    pub(crate) fn part_ended(&mut self, part: u32, outcome: Result<()>) -> bool {
        let Some(slot) = self.parts.get_mut(part as usize).and_then(Option::take) else {
            return false;
        };
        self.free_parts.push(part);
        let Some(Some(transfer)) = self.slots.get_mut(slot as usize) else { return false };
        transfer.parts -= 1;
        let (all, idle) = (transfer.posted == transfer.order.length, transfer.parts == 0);
        match outcome {
            Err(error) => {
                if !all && transfer.outcome.is_ok() {
                    self.waiting.retain(|&other| other != slot);
                }
                self.spoil(slot, error);
            }
            Ok(()) if idle && (all || transfer.outcome.is_err()) => self.ended.push_back(slot),
            Ok(()) => {}
        }
        true
    }

    /// Keeps the first error of a transfer, which has ended if no part is in flight.
    fn spoil(&mut self, slot: u32, error: Error) {
        let Some(Some(transfer)) = self.slots.get_mut(slot as usize) else { return };
        if transfer.outcome.is_ok() {
            transfer.outcome = Err(error);
        }
        if transfer.parts == 0 {
            self.ended.push_back(slot);
        }
    }

    /// The next transfer that has ended, with its order.
    pub(crate) fn take_ended(&mut self) -> Option<(Order, Completion)> {
        let slot = self.ended.pop_front()?;
        let transfer = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        let Transfer { order, token, outcome, .. } = transfer;
        Some((order, Completion { token, outcome }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn order(length: u64) -> Order {
        Order { kind: Kind::Read, region: 0, within: 100, length, peer: 0, place: 5000, key: 7 }
    }

    fn failure() -> Error {
        Error::Call { call: "fi_read", code: 5, text: "no".to_owned() }
    }

    /// Posts all parts that can be posted: part, address, length of each.
    fn post(all: &mut Transfers) -> Vec<(u32, u64, u64)> {
        let mut posted = Vec::new();
        while let Some((part, order)) = all.next() {
            assert_eq!(order.place - 5000, order.within - 100);
            posted.push((part, order.place, order.length));
            all.posted(Instant::now());
        }
        posted
    }

    #[test]
    fn a_transfer_is_split_and_ends_with_its_last_part() {
        let mut all = Transfers::new(4, 2, 10);
        all.begin(order(25), 1, Instant::now()).expect("space");
        assert_eq!(post(&mut all), [(0, 5000, 10), (1, 5010, 10)]);
        assert!(all.part_ended(0, Ok(())));
        assert_eq!(post(&mut all), [(0, 5020, 5)]);
        assert!(all.part_ended(0, Ok(())));
        assert!(all.take_ended().is_none(), "a part is under way");
        assert!(all.part_ended(1, Ok(())));
        let (_, completion) = all.take_ended().expect("ended");
        assert_eq!(completion, Completion { token: 1, outcome: Ok(()) });
        assert!(!all.part_ended(1, Ok(())), "none is under way");
        assert!(!all.part_ended(9, Ok(())), "there is none");
    }

    #[test]
    fn after_an_error_no_further_parts_are_posted_and_posted_ones_are_awaited() {
        let mut all = Transfers::new(4, 2, 10);
        all.begin(order(100), 1, Instant::now()).expect("space");
        all.begin(order(10), 2, Instant::now()).expect("space");
        assert_eq!(post(&mut all).len(), 2);
        assert!(all.part_ended(0, Err(failure())));
        assert!(all.take_ended().is_none(), "a part may still write");
        assert_eq!(post(&mut all), [(0, 5000, 10)], "that of the second transfer");
        assert!(all.part_ended(1, Ok(())));
        let (_, completion) = all.take_ended().expect("ended");
        assert_eq!(completion, Completion { token: 1, outcome: Err(failure()) });
        assert!(all.part_ended(0, Ok(())));
        let (_, completion) = all.take_ended().expect("ended");
        assert_eq!(completion, Completion { token: 2, outcome: Ok(()) });
        assert!(all.take_ended().is_none());
    }

    #[test]
    fn both_parts_failing_end_a_transfer_once() {
        let mut all = Transfers::new(1, 2, 10);
        all.begin(order(30), 1, Instant::now()).expect("space");
        post(&mut all);
        assert!(all.part_ended(1, Err(failure())));
        assert!(all.part_ended(0, Err(Error::Refused)));
        let (_, completion) = all.take_ended().expect("ended");
        assert_eq!(completion.outcome, Err(failure()), "the first error");
        assert!(all.take_ended().is_none());
        assert!(all.begin(order(1), 2, Instant::now()).is_ok());
    }

    #[test]
    fn a_transfer_that_cannot_be_posted_ends_and_one_that_does_not_fit_is_refused() {
        let mut all = Transfers::new(2, 2, 10);
        all.begin(order(30), 1, Instant::now()).expect("space");
        all.begin(order(0), 2, Instant::now()).expect("space");
        assert_eq!(all.begin(order(1), 3, Instant::now()), Err(Error::Full));
        let (_, completion) = all.take_ended().expect("nothing to move");
        assert_eq!(completion, Completion { token: 2, outcome: Ok(()) });
        assert!(all.next().is_some());
        all.posted(Instant::now());
        all.refused(failure());
        assert!(all.next().is_none(), "the rest is not tried");
        assert!(all.take_ended().is_none(), "a part is under way");
        assert!(all.part_ended(0, Ok(())));
        let (_, completion) = all.take_ended().expect("ended");
        assert_eq!(completion.outcome, Err(failure()));
    }

    #[test]
    fn transfers_that_a_peer_does_not_accept_time_out_but_posted_ones_do_not() {
        let mut all = Transfers::new(3, 1, 10);
        let long_ago = Instant::now();
        let later = long_ago + Duration::from_secs(9);
        all.begin(order(30), 1, long_ago).expect("space");
        all.begin(order(30), 2, long_ago).expect("space");
        all.begin(order(30), 3, later).expect("space");
        all.posted(long_ago);
        assert!(all.any_waiting() && all.any_under_way());
        all.expire(later, &failure());
        let (_, completion) = all.take_ended().expect("nothing of it is under way");
        assert_eq!(completion, Completion { token: 2, outcome: Err(failure()) });
        assert!(all.take_ended().is_none());
        assert!(all.part_ended(0, Ok(())));
        let (_, completion) = all.take_ended().expect("its only part ended");
        assert_eq!(completion, Completion { token: 1, outcome: Err(failure()) });
        assert!(!all.any_under_way());
        assert_eq!(post(&mut all), [(0, 5000, 10)], "of the third");
    }

    #[test]
    fn excused_time_does_not_count() {
        let mut all = Transfers::new(2, 1, 10);
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        all.begin(order(30), 1, start).expect("space");
        all.excuse(second);
        all.expire(start + second, &failure());
        assert!(all.any_waiting() && all.take_ended().is_none());
        all.expire(start + 2 * second, &failure());
        let (_, completion) = all.take_ended().expect("nothing of it is under way");
        assert_eq!(completion, Completion { token: 1, outcome: Err(failure()) });
    }
}
