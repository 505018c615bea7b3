//! A queue of threads that wait for something of which there are few: slots and bounce buffers of a
//! session, which the children that a process forks share.
//!
//! A thread that finds nothing free takes a ticket and sleeps. Freeing a thing admits the next ticket,
//! for which the thing is meant, and wakes its thread. A thread that comes while tickets wait takes one
//! too. So each gets its turn, and a thousand of them leave the processors to the daemon.
//!
//!   issue --free, or its turn--> admit --takes a thing--> serve
//!                                      --finds none-----> serve, and another ticket
//!
//! Layout: the queue u64 (three counts of 21 bits: tickets served, admitted and issued so far); at 64
//! words u32 (futexes) on which threads sleep, ticket by ticket modulo their number. The tickets of one
//! word have 32 marks in turn, so that of up to 2,048 threads that wait one alone wakes up.
//!
//! Invariants:
//!  1. A thing is freed before the queue is read; a ticket is issued before its thread looks for free
//!     things once more. So one of the two sees the other, and no wake-up is lost.
//!  2. The tickets only order the threads. The place where a thing is taken decides which thread owns
//!     it, so a wrong count, of a killed thread or a hostile process, costs time and nothing else.
//!  3. No death stops the queue: a thread whose sleep timed out twice, while things stay free, takes
//!     those that were admitted for dead, and admits others.

use crate::segment::Segment;
use crate::sync::{AtomicU32, AtomicU64};
use crate::wait::{self, Backoff, Next, Woken};
use core::num::NonZeroU32;
use core::sync::atomic::Ordering::SeqCst;
use wire::errno::{Errno, Result};

const WAKE_WORDS: usize = 64;
const WAKE: usize = 64;
/// Length in a segment.
pub(crate) const TICKET_QUEUE_BYTES: usize = WAKE + 4 * WAKE_WORDS;

/// Bits of a count.
const COUNT_BITS: u32 = 21;
const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;

/// Tickets so near to their turn look for things of dead threads, and for the death of the daemon.
const NEAR: u32 = 16;
/// Length of a sleep near to the turn, of one farther away, and of one that may end a standstill.
const NEAR_MICROS: u64 = 20_000;
const FAR_MICROS: u64 = 500_000;
const STALLED_MICROS: u64 = 1_000;
/// One time-out in this many is thorough.
const THOROUGH_PERIOD: u32 = 8;
/// Attempts to change the queue, which other threads change meanwhile.
const CHANGE_ATTEMPTS: u32 = 64;

/// Things of which there are few.
pub(crate) trait Scarce {
    type Item;

    /// One that is free.
    fn try_take(&self) -> Result<Option<Self::Item>>;

    /// Number of those that are free. A count after the caller's ticket was issued has all that were
    /// freed before.
    fn free_count(&self) -> u32;

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

/// The counts of the queue's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tickets {
    served: u32,
    admitted: u32,
    issued: u32,
}

impl Tickets {
    const fn of(word: u64) -> Tickets {
        Tickets {
            served: word as u32 & COUNT_MASK,
            admitted: (word >> COUNT_BITS) as u32 & COUNT_MASK,
            issued: (word >> (2 * COUNT_BITS)) as u32 & COUNT_MASK,
        }
    }

    fn word(self) -> u64 {
        let admitted = u64::from(self.admitted) << COUNT_BITS;
        u64::from(self.served) | admitted | u64::from(self.issued) << (2 * COUNT_BITS)
    }

    /// Threads that were admitted and have not taken a thing yet.
    const fn unserved(self) -> u32 {
        self.admitted.wrapping_sub(self.served) & COUNT_MASK
    }

    fn place(self, ticket: u32) -> TicketPlace {
        let ahead = ticket.wrapping_sub(self.admitted) & COUNT_MASK;
        if ahead > COUNT_MASK / 2 { TicketPlace::Admitted } else { TicketPlace::Waiting { ahead } }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TicketPlace {
    Admitted,
    /// So many tickets come first.
    Waiting {
        ahead: u32,
    },
}

const fn after(count: u32) -> u32 {
    count.wrapping_add(1) & COUNT_MASK
}

impl<'a> TicketQueue<'a> {
    /// The queue at this offset, a multiple of 64.
    pub(crate) const fn new(segment: &'a Segment, at: usize) -> TicketQueue<'a> {
        TicketQueue { segment, at }
    }

    fn queue(&self) -> Result<&'a AtomicU64> {
        self.segment.word64(self.at)
    }

    fn tickets(&self) -> Result<Tickets> {
        Ok(Tickets::of(self.queue()?.load(SeqCst)))
    }

    fn wake_word(&self, ticket: u32) -> Result<&'a AtomicU32> {
        self.segment.word32(self.at + WAKE + 4 * (ticket as usize % WAKE_WORDS))
    }

    /// The mark of a ticket among those of its word.
    const fn mark(ticket: u32) -> NonZeroU32 {
        match NonZeroU32::new(1 << (ticket / WAKE_WORDS as u32 % u32::BITS)) {
            Some(mark) => mark,
            None => NonZeroU32::MIN,
        }
    }

    /// True if no thread waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.tickets().is_ok_and(|tickets| tickets.served == tickets.issued)
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
            let is_waiting = tickets.admitted != tickets.issued;
            is_waiting.then(|| Tickets { admitted: after(tickets.admitted), ..tickets })
        });
        let Some(before) = admitted else { return };
        if let Ok(word) = self.wake_word(before.admitted) {
            word.fetch_add(1, SeqCst);
            wait::wake_marked(word, TicketQueue::mark(before.admitted));
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
        let issued =
            self.change(|tickets| Some(Tickets { issued: after(tickets.issued), ..tickets }));
        issued.map(|before| before.issued).ok_or(Errno::EIO)
    }

    /// The caller does not wait with this ticket any more. One in the middle stays, is admitted in its
    /// turn, and counts as that of a dead thread then.
    fn leave(&self, ticket: u32) {
        let _ = self.change(|tickets| match tickets.place(ticket) {
            TicketPlace::Admitted => Some(Tickets {
                // Another may have taken it for dead.
                served: if tickets.unserved() == 0 { return None } else { after(tickets.served) },
                ..tickets
            }),
            TicketPlace::Waiting { ahead: 0 } if tickets.issued != ticket => Some(Tickets {
                served: after(tickets.served),
                admitted: after(tickets.admitted),
                ..tickets
            }),
            TicketPlace::Waiting { .. } if tickets.issued == after(ticket) => {
                Some(Tickets { issued: ticket, ..tickets })
            }
            TicketPlace::Waiting { .. } => None,
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
        let mut waiter = Waiter::new(self.issue()?, timeout_micros);
        let taken = self.wait(things, &mut waiter);
        self.leave(waiter.ticket);
        self.admit_for_free(things);
        taken
    }

    /// A ticket has left, for which something free may have been meant: the next one may take it. Its
    /// thread may have looked before, when the thing counted as that of the ticket that left.
    fn admit_for_free<S: Scarce>(&self, things: &S) {
        if let Ok(tickets) = self.tickets()
            && tickets.admitted != tickets.issued
            && things.free_count() > tickets.unserved()
        {
            self.admit();
        }
    }

    #[cold]
    fn wait<S: Scarce>(&self, things: &S, waiter: &mut Waiter) -> Result<S::Item> {
        loop {
            let wake_word = self.wake_word(waiter.ticket)?;
            let wakes = wake_word.load(SeqCst);
            let tickets = self.tickets()?;
            let place = tickets.place(waiter.ticket);
            let may_take = match place {
                TicketPlace::Admitted => true,
                TicketPlace::Waiting { ahead } => {
                    ahead == 0 && things.free_count() > tickets.unserved()
                }
            };
            if may_take && let Some(item) = things.try_take()? {
                return Ok(item);
            }
            if place == TicketPlace::Admitted {
                // Another thread was faster, before it could see this ticket.
                self.leave(waiter.ticket);
                self.admit_for_free(things);
                waiter.ticket = self.issue()?;
                continue;
            }
            if waiter.is_late(tickets.admitted) {
                return Err(Errno::ETIMEDOUT);
            }
            let micros = waiter.sleep_micros(place);
            let mark = TicketQueue::mark(waiter.ticket);
            if wait::sleep_marked(wake_word, wakes, micros, mark) == Woken::TimedOut
                && let Some(item) = self.look_around(things, waiter, (tickets, place))?
            {
                return Ok(item);
            }
        }
    }

    /// After a sleep that timed out. Returns a thing of a dead thread.
    fn look_around<S: Scarce>(
        &self,
        things: &S,
        waiter: &mut Waiter,
        (tickets, place): (Tickets, TicketPlace),
    ) -> Result<Option<S::Item>> {
        waiter.time_outs = waiter.time_outs.wrapping_add(1);
        let is_thorough = waiter.time_outs.is_multiple_of(THOROUGH_PERIOD);
        if is_thorough || matches!(place, TicketPlace::Waiting { ahead } if ahead < NEAR) {
            if !things.is_there() {
                return Err(Errno::EIO);
            }
            if let Some(item) = things.take_left(is_thorough)? {
                return Ok(Some(item));
            }
        }
        let free = things.free_count();
        if free == 0 {
            waiter.stalled = None;
            return Ok(None);
        }
        if waiter.stalled.replace(tickets.served) == Some(tickets.served) {
            self.change(|tickets| Some(Tickets { served: tickets.admitted, ..tickets }));
            (0..free).for_each(|_| self.admit());
        }
        Ok(None)
    }
}

/// A wait.
struct Waiter {
    ticket: u32,
    timeout_micros: u64,
    /// Tickets admitted when the time began, and when it ends.
    seen: Option<u32>,
    deadline: u64,
    time_outs: u32,
    /// Tickets served at the last time-out, if things were free then.
    stalled: Option<u32>,
}

impl Waiter {
    const fn new(ticket: u32, timeout_micros: u64) -> Waiter {
        let (seen, deadline, time_outs, stalled) = (None, 0, 0, None);
        Waiter { ticket, timeout_micros, seen, deadline, time_outs, stalled }
    }

    /// True if nobody was admitted for the time that it waits.
    fn is_late(&mut self, admitted: u32) -> bool {
        let now = wait::now_micros();
        if self.seen != Some(admitted) {
            (self.seen, self.deadline) = (Some(admitted), now.saturating_add(self.timeout_micros));
        }
        now >= self.deadline
    }

    fn sleep_micros(&self, place: TicketPlace) -> u64 {
        let micros = match place {
            _ if self.stalled.is_some() => STALLED_MICROS,
            TicketPlace::Waiting { ahead } if ahead >= NEAR => FAR_MICROS,
            _ => NEAR_MICROS,
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

        fn free_count(&self) -> u32 {
            self.free.load(SeqCst)
        }

        fn take_left(&self, _is_thorough: bool) -> Result<Option<()>> {
            Ok(None)
        }
    }

    /// Counts from `first` on.
    fn tickets(first: u32, [served, admitted, issued]: [u32; 3]) -> Tickets {
        let count = |more: u32| first.wrapping_add(more) & COUNT_MASK;
        Tickets { served: count(served), admitted: count(admitted), issued: count(issued) }
    }

    #[test]
    fn tickets_are_admitted_in_order_also_where_their_numbers_begin_anew() {
        let segment = segment();
        for first in [0, COUNT_MASK, COUNT_MASK - 1, COUNT_MASK / 2] {
            let queue = TicketQueue::new(&segment, 64);
            queue.queue().expect("mapped").store(tickets(first, [0; 3]).word(), SeqCst);
            queue.admit_next();
            assert_eq!(queue.tickets(), Ok(tickets(first, [0; 3])), "nobody waits");
            let all: Vec<_> = (0..4).map(|_| queue.issue().expect("a ticket")).collect();
            for turn in 0..4 {
                let now = queue.tickets().expect("mapped");
                assert_eq!(now, tickets(first, [0, turn, 4]));
                let is_admitted = |ticket: &&u32| now.place(**ticket) == TicketPlace::Admitted;
                assert_eq!(all.iter().filter(is_admitted).count(), turn as usize);
                queue.admit_next();
            }
            assert!(!queue.is_empty(), "they have taken nothing yet");
            all.iter().for_each(|&ticket| queue.leave(ticket));
            assert!(queue.is_empty());
            queue.leave(all[0]);
            assert_eq!(queue.tickets(), Ok(tickets(first, [4; 3])), "once");
        }
    }

    #[test]
    fn one_that_leaves_gives_its_ticket_back_if_it_is_the_first_or_the_last() {
        let segment = segment();
        let queue = TicketQueue::new(&segment, 64);
        let [first, middle, last] = [(); 3].map(|()| queue.issue().expect("a ticket"));
        queue.leave(middle);
        assert_eq!(queue.tickets(), Ok(tickets(0, [0, 0, 3])), "it is admitted in its turn");
        queue.leave(last);
        assert_eq!(queue.tickets(), Ok(tickets(0, [0, 0, 2])));
        queue.leave(first);
        assert_eq!(queue.tickets(), Ok(tickets(0, [1, 1, 2])));
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
    fn all_threads_are_served_though_waiters_were_killed() {
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

    #[test]
    fn threads_of_one_word_wake_up_by_their_marks() {
        let words = WAKE_WORDS as u32;
        let marks = [0, 1, words - 1, words, words * 31, words * 32];
        let marks = marks.map(|ticket| TicketQueue::mark(ticket).get());
        assert_eq!(marks, [1, 1, 1, 2, 1 << 31, 1]);

        let (word, [own, other]) = (Count::new(7), [0, words].map(TicketQueue::mark));
        std::thread::scope(|scope| {
            let sleep = || wait::sleep_marked(&word, 7, LONG_MICROS, own);
            let sleeper = scope.spawn(sleep);
            loop {
                assert_eq!(wait::wake_marked(&word, other), 0, "its turn has not come");
                if wait::wake_marked(&word, own) == 1 {
                    break;
                }
                std::thread::yield_now();
            }
            assert_eq!(sleeper.join().expect("it ends"), Woken::Changed);
        });
        assert_eq!(wait::sleep_marked(&word, 8, LONG_MICROS, own), Woken::Changed);
        assert_eq!(wait::sleep_marked(&word, 7, 1, own), Woken::TimedOut);
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
    }
}
