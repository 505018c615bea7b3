//! A queue of threads that wait for something of which there are few: slots and bounce buffers of a
//! session, which the children that a process forks share.
//!
//! A thread that finds nothing free takes a ticket and sleeps. Freeing a thing admits the next
//! ticket and wakes its thread alone. While threads wait, a thread that comes later queues behind them, so
//! each gets its turn, and a thousand of them leave the processors to the daemon.
//!
//! Layout: the queue u64 (low half: tickets admitted so far; high half: tickets issued), at 64 words u32
//! (futexes) on which threads sleep, ticket by ticket modulo their number.
//!
//! Invariants:
//!  1. A thing is freed before the queue is read; a ticket is issued before its thread looks for a free
//!     thing once more. So one of the two sees the other, and no wake-up is lost.
//!  2. The tickets only order the threads. Who owns a thing is decided where it is taken, so a wrong
//!     number, of a killed thread or a hostile process, costs time and nothing else.
//!  3. No death stops the queue: a thread whose sleep timed out, while things are free, admits others.

use crate::segment::Segment;
use crate::sync::{AtomicU32, AtomicU64};
use crate::wait::{self, Backoff, Next, Woken};
use core::sync::atomic::Ordering::SeqCst;
use wire::errno::{Errno, Result};

const WAKE_WORDS: usize = 64;
const WAKE: usize = 64;
/// Length in a segment.
pub(crate) const TICKET_QUEUE_BYTES: usize = WAKE + 4 * WAKE_WORDS;

/// Tickets so near to their turn look for things of dead threads, and for the death of the daemon.
const NEAR: u32 = 16;
/// Length of a sleep near to the turn, and of one farther away.
const NEAR_MICROS: u64 = 20_000;
const FAR_MICROS: u64 = 500_000;
/// Length of the first sleep of an admitted thread that found nothing, and of one that saw free things
/// which no thread took.
const SHORT_MICROS: u64 = 1_000;
/// One time-out in this many is thorough.
const THOROUGH_PERIOD: u32 = 8;
/// Tickets that one time-out admits at most.
const ADMITTED_MAX: u32 = 64;
/// An admitted thread that finds nothing this many times takes another ticket.
const ADMITTED_TRIES_MAX: u32 = 8;
/// Attempts to change the queue, which other threads change meanwhile.
const CHANGE_ATTEMPTS: u32 = 64;

/// Things of which there are few.
pub(crate) trait Scarce {
    type Item;

    /// One that is free. A look after the caller's ticket was issued sees all that was freed before.
    fn try_take(&self) -> Result<Option<Self::Item>>;

    /// True if one is free.
    fn has_free(&self) -> bool;

    /// One whose owner is dead. `is_thorough`: also an owner that its parent has not waited for yet.
    fn take_left(&self, is_thorough: bool) -> Result<Option<Self::Item>>;

    /// False if the daemon is gone.
    fn is_there(&self) -> bool {
        true
    }
}

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct TicketQueue<'a> {
    segment: &'a Segment,
    at: usize,
}

/// The halves of the queue's word.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tickets {
    admitted: u32,
    issued: u32,
}

impl Tickets {
    const fn of(word: u64) -> Tickets {
        Tickets { admitted: word as u32, issued: (word >> 32) as u32 }
    }

    fn word(self) -> u64 {
        u64::from(self.admitted) | u64::from(self.issued) << 32
    }
}

impl<'a> TicketQueue<'a> {
    /// The queue at this offset, a multiple of 64.
    pub(crate) const fn new(segment: &'a Segment, at: usize) -> TicketQueue<'a> {
        TicketQueue { segment, at }
    }

    fn queue(&self) -> Result<&'a AtomicU64> {
        self.segment.word64(self.at)
    }

    fn wake_word(&self, ticket: u32) -> Result<&'a AtomicU32> {
        self.segment.word32(self.at + WAKE + 4 * (ticket as usize % WAKE_WORDS))
    }

    /// True if no thread waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue().is_ok_and(|queue| {
            let tickets = Tickets::of(queue.load(SeqCst));
            tickets.admitted == tickets.issued
        })
    }

    /// Something is free: the next thread may take it. The caller has freed it by a sequentially
    /// consistent store.
    #[inline]
    pub(crate) fn admit_next(&self) {
        if !self.is_empty() {
            self.admit();
        }
    }

    #[cold]
    fn admit(&self) {
        let admitted = self.change(|tickets| {
            let is_next = tickets.admitted != tickets.issued;
            is_next.then(|| Tickets { admitted: tickets.admitted.wrapping_add(1), ..tickets })
        });
        let Some(before) = admitted else { return };
        if let Ok(word) = self.wake_word(before.admitted) {
            word.fetch_add(1, SeqCst);
            wait::wake(word, u32::MAX >> 1);
        }
    }

    /// Changes the tickets, if `next` says to what. Returns those before.
    fn change(&self, next: impl Fn(Tickets) -> Option<Tickets>) -> Option<Tickets> {
        let queue = self.queue().ok()?;
        let mut word = queue.load(SeqCst);
        for _ in 0..CHANGE_ATTEMPTS {
            let before = Tickets::of(word);
            match queue.compare_exchange(word, next(before)?.word(), SeqCst, SeqCst) {
                Ok(_) => return Some(before),
                Err(now) => word = now,
            }
        }
        None
    }

    /// A ticket.
    fn issue(&self) -> Result<u32> {
        let issued = self
            .change(|tickets| Some(Tickets { issued: tickets.issued.wrapping_add(1), ..tickets }));
        issued.map(|before| before.issued).ok_or(Errno::EIO)
    }

    /// The caller does not wait with this ticket any more. One in the middle stays, and is admitted
    /// in its turn.
    fn leave(&self, ticket: u32) {
        self.change(|tickets| {
            if tickets.admitted == ticket && tickets.issued != ticket {
                Some(Tickets { admitted: ticket.wrapping_add(1), ..tickets })
            } else if tickets.issued == ticket.wrapping_add(1)
                && is_before(tickets.admitted, ticket)
            {
                Some(Tickets { issued: ticket, ..tickets })
            } else {
                None
            }
        });
    }

    /// Takes a thing: at once if no thread waits and one is free, else in the caller's turn.
    /// With `timeout_micros` of 0 it does not wait for its turn.
    ///
    /// # Errors
    /// `ETIMEDOUT` if no thread got its turn for `timeout_micros`; `EIO` if the daemon is gone.
    pub(crate) fn take<S: Scarce>(&self, things: &S, timeout_micros: u64) -> Result<S::Item> {
        let mut backoff = Backoff::new();
        while self.is_empty() {
            if let Some(item) = things.try_take()? {
                return Ok(item);
            }
            if backoff.pause() == Next::Sleep {
                break;
            }
        }
        if timeout_micros == 0 {
            return things.take_left(true)?.ok_or(Errno::ETIMEDOUT);
        }
        self.wait(things, timeout_micros)
    }

    #[cold]
    fn wait<S: Scarce>(&self, things: &S, timeout_micros: u64) -> Result<S::Item> {
        let mut waiter = Waiter::new(self.issue()?, timeout_micros);
        loop {
            let wake_word = self.wake_word(waiter.ticket)?;
            let wakes = wake_word.load(SeqCst);
            let admitted = Tickets::of(self.queue()?.load(SeqCst)).admitted;
            let is_turn = !is_before(admitted, waiter.ticket);
            if is_turn && let Some(item) = things.try_take()? {
                self.pass_on(waiter.ticket, things);
                return Ok(item);
            }
            if waiter.is_late(admitted) {
                self.pass_on(waiter.ticket, things);
                return Err(Errno::ETIMEDOUT);
            }
            let micros = waiter.sleep_micros(admitted);
            if wait::sleep(wake_word, wakes, micros) != Woken::TimedOut {
                continue;
            }
            if let Some(ended) = self.look_around(things, &mut waiter, admitted).transpose() {
                self.pass_on(waiter.ticket, things);
                return ended;
            }
        }
    }

    /// After a sleep that timed out. Returns a thing of a dead thread.
    fn look_around<S: Scarce>(
        &self,
        things: &S,
        waiter: &mut Waiter,
        admitted: u32,
    ) -> Result<Option<S::Item>> {
        waiter.time_outs = waiter.time_outs.wrapping_add(1);
        let is_thorough = waiter.time_outs.is_multiple_of(THOROUGH_PERIOD);
        let ahead = waiter.ahead(admitted);
        if ahead < NEAR || is_thorough {
            if !things.is_there() {
                return Err(Errno::EIO);
            }
            if let Some(item) = things.take_left(is_thorough)? {
                return Ok(Some(item));
            }
        }
        if waiter.is_admitted(admitted) {
            waiter.tries += 1;
            if waiter.tries > ADMITTED_TRIES_MAX {
                *waiter = Waiter { ticket: self.issue()?, tries: 0, ..*waiter };
            }
        } else if things.has_free() {
            // Threads whose turn it is were killed, or have no processor.
            (0..waiter.admits).for_each(|_| self.admit());
            waiter.admits = (waiter.admits * 2).min(ADMITTED_MAX);
            return Ok(None);
        }
        waiter.admits = 1;
        Ok(None)
    }

    /// The caller's wait is over. If it was not admitted for what it took, that is still free for the
    /// next thread.
    fn pass_on<S: Scarce>(&self, ticket: u32, things: &S) {
        self.leave(ticket);
        if !self.is_empty() && things.has_free() {
            self.admit();
        }
    }
}

/// True if ticket `admitted` is issued before `ticket`: then the turn of `ticket` is not next.
fn is_before(admitted: u32, ticket: u32) -> bool {
    ticket.wrapping_sub(admitted).cast_signed() > 0
}

/// A wait.
struct Waiter {
    ticket: u32,
    timeout_micros: u64,
    /// Tickets admitted when the time began, and when it ends.
    seen: Option<u32>,
    deadline: u64,
    time_outs: u32,
    /// Times that it found nothing though it was admitted.
    tries: u32,
    /// Tickets to admit when it sees free things next.
    admits: u32,
}

impl Waiter {
    const fn new(ticket: u32, timeout_micros: u64) -> Waiter {
        let (seen, deadline, time_outs, tries) = (None, 0, 0, 0);
        Waiter { ticket, timeout_micros, seen, deadline, time_outs, tries, admits: 1 }
    }

    /// Tickets before this one.
    fn ahead(&self, admitted: u32) -> u32 {
        if is_before(admitted, self.ticket) { self.ticket.wrapping_sub(admitted) } else { 0 }
    }

    fn is_admitted(&self, admitted: u32) -> bool {
        is_before(self.ticket, admitted)
    }

    /// True if nobody was admitted for the time that it waits.
    fn is_late(&mut self, admitted: u32) -> bool {
        let now = wait::now_micros();
        if self.seen != Some(admitted) {
            (self.seen, self.deadline) = (Some(admitted), now.saturating_add(self.timeout_micros));
        }
        now >= self.deadline
    }

    /// Length of the next sleep. After `is_late`.
    fn sleep_micros(&self, admitted: u32) -> u64 {
        let micros = if self.is_admitted(admitted) {
            SHORT_MICROS << self.tries.min(4)
        } else if self.admits > 1 {
            SHORT_MICROS
        } else if self.ahead(admitted) < NEAR {
            NEAR_MICROS
        } else {
            FAR_MICROS
        };
        micros.min(self.timeout_micros).max(1)
    }
}

#[cfg(test)]
#[cfg(not(feature = "interleavings"))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32 as Count;
    use std::vec::Vec;

    const LONG_MICROS: u64 = 60_000_000;

    fn segment() -> Segment {
        Segment::nameless(c"test", 4096).expect("anonymous memory").0
    }

    /// A number of equal things.
    struct Things<'a> {
        free: &'a Count,
        queue: TicketQueue<'a>,
    }

    impl Things<'_> {
        fn give_back(&self) {
            self.free.fetch_add(1, SeqCst);
            self.queue.admit_next();
        }
    }

    impl Scarce for Things<'_> {
        type Item = ();

        fn try_take(&self) -> Result<Option<()>> {
            Ok(self
                .free
                .fetch_update(SeqCst, SeqCst, |free| free.checked_sub(1))
                .is_ok()
                .then_some(()))
        }

        fn has_free(&self) -> bool {
            self.free.load(SeqCst) > 0
        }

        fn take_left(&self, _is_thorough: bool) -> Result<Option<()>> {
            Ok(None)
        }
    }

    fn tickets(queue: TicketQueue<'_>) -> (u32, u32) {
        let tickets = Tickets::of(queue.queue().expect("mapped").load(SeqCst));
        (tickets.admitted, tickets.issued)
    }

    #[test]
    fn tickets_are_admitted_in_order_also_where_their_numbers_begin_anew() {
        let segment = segment();
        for first in [0, u32::MAX, u32::MAX - 1, i32::MAX as u32] {
            let queue = TicketQueue::new(&segment, 64);
            queue
                .queue()
                .expect("mapped")
                .store(Tickets { admitted: first, issued: first }.word(), SeqCst);
            queue.admit_next();
            assert_eq!(tickets(queue), (first, first), "nobody waits");
            let all: Vec<_> = (0..4).map(|_| queue.issue().expect("a ticket")).collect();
            assert!(!queue.is_empty());
            let turns =
                |admitted: u32| all.iter().filter(|&&ticket| is_before(ticket, admitted)).count();
            for turn in 0..4 {
                assert_eq!(turns(tickets(queue).0), turn);
                queue.admit_next();
            }
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn one_that_leaves_gives_its_ticket_back_if_it_is_the_first_or_the_last() {
        let segment = segment();
        let queue = TicketQueue::new(&segment, 64);
        let [first, middle, last] = [(); 3].map(|()| queue.issue().expect("a ticket"));
        queue.leave(middle);
        assert_eq!(tickets(queue), (first, last + 1), "it is admitted in its turn");
        queue.leave(last);
        assert_eq!(tickets(queue), (first, last));
        queue.leave(first);
        assert_eq!(tickets(queue), (middle, last));
        queue.leave(first);
        assert_eq!(tickets(queue), (middle, last), "once");
        queue.leave(middle);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_thread_that_comes_later_takes_nothing_while_others_wait() {
        let (segment, free) = (segment(), Count::new(1));
        let queue = TicketQueue::new(&segment, 64);
        let things = Things { free: &free, queue };
        let ticket = queue.issue().expect("a ticket");
        assert_eq!(queue.take(&things, 0), Err(Errno::ETIMEDOUT));
        queue.leave(ticket);
        assert_eq!(queue.take(&things, 0), Ok(()));
        assert_eq!(queue.take(&things, 1000), Err(Errno::ETIMEDOUT));
        assert!(queue.is_empty(), "it left");
    }

    /// Of 40 threads each gets one of two things ten times, though 100 waiters before them, and
    /// others between, were killed.
    #[test]
    fn all_threads_get_their_turns_though_waiters_were_killed() {
        let (segment, free) = (segment(), Count::new(0));
        let queue = TicketQueue::new(&segment, 64);
        let things = Things { free: &free, queue };
        (0..100).for_each(|_| assert!(queue.issue().is_ok()));
        std::thread::scope(|scope| {
            for number in 0..40 {
                let things = &things;
                scope.spawn(move || {
                    for round in 0..10 {
                        things.queue.take(things, LONG_MICROS).expect("a turn");
                        if (number + round) % 7 == 0 {
                            let _killed = things.queue.issue();
                        }
                        things.give_back();
                    }
                });
            }
            (0..2).for_each(|_| things.give_back());
        });
        assert_eq!(free.load(SeqCst), 2);
    }

    /// The wait goes on while others get their turns, and ends when nobody does.
    #[test]
    fn the_time_counts_from_the_last_turn() {
        let mut waiter = Waiter::new(7, LONG_MICROS);
        assert!(!waiter.is_late(0));
        waiter.deadline = 0;
        assert!(!waiter.is_late(1), "one was admitted");
        waiter.deadline = 0;
        assert!(waiter.is_late(1));
        assert!(waiter.sleep_micros(1) > 0 && Waiter::new(7, 5).sleep_micros(0) <= 5);
    }
}
