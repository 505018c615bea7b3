//! Admission: a write that needs space which is not there waits for it (O10; the paper's Cs-w is 0: all
//! space is given out, and then writes are blocked).
//!
//! Space of memory is taken first, then that of the SSD: nobody waits for memory while the SSD has room,
//! as what would sink for him goes the same way to the same device. Who finds neither waits here, first
//! come, first served: as long as one waits, nobody who came later takes a new piece. So a large piece
//! is not starved by small ones. Requests that need no new piece, and readers, pass by.
//!
//!   run --no room, or others wait--> waiting            Effect::Wait
//!   waiting --its turn, and there is room--> answered
//!   waiting --its turn, a device must preallocate--> parked (`target`), and perhaps back to its place;
//!             whatever the device said to others before, it is asked once for each
//!   waiting --its turn, some of its bytes must come first--> waiting for those (`fill`), and perhaps
//!             back to its place; those behind it go on meanwhile
//!   waiting --nothing leaves, and nobody else has anything to give back--> ENOSPC, EDQUOT
//!                                                       Effect::AskForRoom, Input::RoomAsked
//!   waiting --the same, but a device failed--> EIO
//!   waiting --patience is over--> the same; but while something is saved that is dropped then, Busy
//!   waiting --its file is removed--> ESTALE
//!   waiting --Input::Withdraw--> Busy
//!
//! What leaves: pieces whose pins were not looked at yet, moves, clean pieces that can be dropped,
//! early pieces that are taken back, and bytes that come from below, as those pieces are clean then.
//! What was found pinned, and what may sink into gaps of the SSD, is waited for a moment only, from
//! when nothing else was leaving: a stopped process may hold a pin for ever. Files that are gone for
//! their users but not here yet are asked for by the caller; only a question that was put after
//! somebody last had hope decides about him.
//!
//! Invariants:
//!  1. `queue` is in the order in which its requests first waited.
//!  2. At the end of a step the first of it was tried with the space that there is now, unless a device
//!     preallocates for one who was before it.

use crate::effect::Effect;
use crate::fill::Job;
use crate::target::{Stop, Target};
use crate::work::Work;
use std::collections::VecDeque;
use wire::errno::Result;
use wire::{Errno, Inode};

/// How long somebody waits for what is pinned, or might sink: a client pins a piece for one copy. And how
/// long a question for room is not put again for who waits for pieces to be filled.
pub(crate) const GRACE_MILLIS: u32 = 200;

/// A request's time here; it keeps it while it is parked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Who came first has less.
    number: u64,
    /// Known from the caller's next look at the clock on.
    since: Option<u32>,
    /// Since when nothing leaves. As `since`.
    hopeless_since: Option<u32>,
    /// The question for room that decides about it.
    round: u64,
}

#[derive(Clone, Debug)]
struct Waiter {
    job: Job,
    turn: Turn,
    /// When it was tried last something was leaving.
    has_hope: bool,
    /// What it is refused with.
    errno: Errno,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Admission {
    queue: VecDeque<Waiter>,
    next_number: u64,
    now: u32,
    /// When it was heard last that something was saved, after which there is room.
    went_on: Option<u32>,
    /// Questions for room that were put, and the last to which the answer was that there is none.
    round: u64,
    round_judged: u64,
    /// The lap of `saving` that has to be over before that counts: what was saved by then may be dropped.
    lap_judged: u64,
    is_asking: bool,
    /// When it was asked last for a piece of zeros over what is below, which has no turn here.
    asked_to_punch: Option<u32>,
    /// The devices were asked to preallocate for all up to this number, or have no more.
    number_asked: u64,
    /// The last that was asked of the SSD failed, and not for want of room.
    has_failed: bool,
}

impl Admission {
    /// True if nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// What the SSD said to what was asked of it.
    pub(crate) fn note(&mut self, outcome: Result<()>) {
        self.has_failed = !matches!(outcome, Ok(()) | Err(Errno::ENOSPC | Errno::EDQUOT));
    }

    fn insert(&mut self, waiter: Waiter) {
        let place = self.queue.partition_point(|one| one.turn.number < waiter.turn.number);
        self.queue.insert(place, waiter);
    }

    fn refusal(&self, errno: Errno) -> Stop {
        Stop::Refused(if self.has_failed && errno == Errno::ENOSPC { Errno::EIO } else { errno })
    }

    /// Takes out those who are meant.
    fn take(&mut self, is_it: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        if !self.queue.iter().any(&is_it) {
            return Vec::new();
        }
        let (taken, rest) = std::mem::take(&mut self.queue).into_iter().partition(is_it);
        self.queue = rest;
        Vec::from_iter::<VecDeque<Waiter>>(taken)
    }
}

impl Target {
    /// Requests that wait for room.
    #[must_use]
    pub fn writers_waiting(&self) -> usize {
        self.admission.queue.len()
    }

    /// True while somebody waits for room, to write or to have bytes from below: `keep_writers` is to be
    /// called now and then, and who waits no longer is to be withdrawn.
    #[must_use]
    pub fn waits_for_room(&self) -> bool {
        !self.admission.is_empty() || self.fills.is_starving()
    }

    /// A request that makes pieces found no room, or others wait.
    pub(crate) fn wait(&mut self, mut job: Job, stop: Stop, out: &mut Vec<Effect>) {
        let Admission { next_number, number_asked, round, .. } = &mut self.admission;
        let turn = job.turn.take().unwrap_or_else(|| {
            *next_number += 1;
            if job.has_asked {
                *number_asked = *next_number;
            }
            out.push(Effect::Wait { ticket: job.ticket });
            Turn { number: *next_number, since: None, hopeless_since: None, round: *round + 1 }
        });
        let (has_hope, errno) = match stop {
            Stop::Full(errno) => (false, errno),
            Stop::Dropping => (self.clean.has_hope(), Errno::ENOSPC),
            _ => (true, Errno::ENOSPC),
        };
        let turn = match has_hope {
            true => Turn { round: *round + 1, hopeless_since: None, ..turn },
            false => turn,
        };
        self.admission.insert(Waiter { job, turn, has_hope, errno });
    }

    /// Tries those who wait, each as those before it have their pieces or were refused.
    pub(crate) fn admit_writers(&mut self, out: &mut Vec<Effect>) {
        while !self.is_waiting()
            && let Some(Waiter { mut job, turn, .. }) = self.admission.queue.pop_front()
        {
            if turn.number > self.admission.number_asked {
                self.admission.number_asked = self.admission.next_number;
                self.memory.ask_again();
                self.ssd.ask_again();
            }
            let behind = std::mem::take(&mut self.admission.queue);
            job.turn = Some(turn);
            self.admit(job, out);
            // If it did not get what it needs it is here again, alone.
            let again = std::mem::replace(&mut self.admission.queue, behind).pop_front();
            let Some(first) = again else { continue };
            self.admission.queue.push_front(first);
            if !self.is_hopeless() {
                break;
            }
            self.refuse_first(out);
        }
        self.ask_for_room(out);
    }

    fn refuse_first(&mut self, out: &mut Vec<Effect>) {
        if let Some(first) = self.admission.queue.pop_front() {
            let stop = self.admission.refusal(first.errno);
            self.refuse(&first.job, stop, out);
        }
    }

    /// Nothing is on its way that could make room for the first of those who wait.
    fn is_hopeless(&mut self) -> bool {
        let Admission { queue, now, round_judged, lap_judged, .. } = &self.admission;
        let Some(turn) = queue.front().map(|first| first.turn) else { return false };
        let waited = turn.hopeless_since.map_or(0, |since| now.wrapping_sub(since));
        let is_judged = turn.round <= *round_judged && self.is_lap_over(*lap_judged);
        let may_leave = self.leaving_count() > 0 || self.is_sinking() || !self.clean.is_empty();
        is_judged && (waited >= GRACE_MILLIS || !may_leave)
    }

    /// Asks what others have to give back, once nothing here leaves any more.
    fn ask_for_room(&mut self, out: &mut Vec<Effect>) {
        // A piece of zeros over what is below needs room as what is written does.
        let punches = self.is_over_backing() && self.fills.is_starving_to_punch();
        let Admission { queue, now, round, round_judged, is_asking, asked_to_punch, .. } =
            &mut self.admission;
        let needs = |first: &Waiter| !first.has_hope && first.turn.round > *round_judged;
        let is_rested = asked_to_punch.is_none_or(|at| now.wrapping_sub(at) >= GRACE_MILLIS);
        let starves = punches && is_rested;
        if (queue.front().is_some_and(needs) || starves) && !*is_asking {
            *is_asking = true;
            if starves {
                *asked_to_punch = Some(*now);
            }
            *round += 1;
            out.push(Effect::AskForRoom { round: *round });
        }
    }

    /// All were asked what they have to give back.
    pub(crate) fn room_asked(&mut self, round: u64, (comes, goes_on): (bool, bool)) {
        let lap = self.deciding_lap();
        let admission = &mut self.admission;
        if goes_on {
            admission.went_on = Some(admission.now);
        }
        if round == admission.round {
            admission.is_asking = false;
            match (comes, admission.queue.front_mut()) {
                (false, _) => (admission.round_judged, admission.lap_judged) = (round, lap),
                (true, first) => first.into_iter().for_each(|one| one.turn.hopeless_since = None),
            }
        }
    }

    /// True if something was saved in so many milliseconds, after which there is room.
    pub(crate) fn saving_goes_on(&self, millis: u32) -> bool {
        let Admission { went_on, now, .. } = self.admission;
        went_on.is_some_and(|at| now.wrapping_sub(at) < millis)
    }

    /// True for work that gives room, whoever waits for some; but a file is cut behind what came before.
    pub(crate) fn passes(&self, work: &Work) -> bool {
        let inode = work.range().0;
        let is_behind = || self.parked.iter().any(|one| one.work.range().0 == inode);
        matches!(work, Work::Remove { .. }) || matches!(work, Work::Clear { .. }) && !is_behind()
    }

    /// Takes those out that are meant.
    fn unpark(&mut self, is_it: impl Fn(&Job) -> bool) -> VecDeque<Job> {
        let (taken, rest) = std::mem::take(&mut self.parked).into_iter().partition(is_it);
        self.parked = rest;
        taken
    }

    /// Who sent a request does not wait for room, or not any more.
    pub(crate) fn withdraw(&mut self, ticket: u64, out: &mut Vec<Effect>) {
        let waiting = self.admission.take(|waiter| waiter.job.ticket == ticket);
        let parked = self.unpark(|job| job.ticket == ticket);
        for job in waiting.into_iter().map(|waiter| waiter.job).chain(parked) {
            Target::stop(job.ticket, Stop::Busy, out);
        }
        self.withdraw_fill(ticket, out);
    }

    /// A file is gone: nobody has it open.
    pub(crate) fn refuse_writers_of(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        let is_it = |job: &Job| job.work.makes_pieces() && job.work.range().0 == inode;
        let waiting = self.admission.take(|waiter| is_it(&waiter.job));
        let parked = self.unpark(is_it);
        for job in waiting.into_iter().map(|waiter| waiter.job).chain(parked) {
            Target::stop(job.ticket, Stop::Refused(Errno::ESTALE), out);
        }
    }

    /// Refuses those who wait for longer than `patience_millis`, and looks again at those for whom time
    /// decides. To be called now and then while `writers_waiting` is not 0.
    pub fn keep_writers(&mut self, now_millis: u32, patience_millis: u32, out: &mut Vec<Effect>) {
        self.admission.now = now_millis;
        for waiter in &mut self.admission.queue {
            waiter.turn.since.get_or_insert(now_millis);
            if !waiter.has_hope {
                waiter.turn.hopeless_since.get_or_insert(now_millis);
            }
        }
        let is_late = |waiter: &Waiter| {
            waiter.turn.since.is_some_and(|since| now_millis.wrapping_sub(since) >= patience_millis)
        };
        for waiter in self.admission.take(is_late) {
            let goes_on = self.saving_goes_on(patience_millis);
            let stop = self.admission.refusal(waiter.errno);
            self.refuse(&waiter.job, if goes_on { Stop::GoesOn } else { stop }, out);
        }
        self.finish(out);
    }

    /// Holds the invariants, for tests.
    #[cfg(test)]
    pub(crate) fn check_admission(&self) {
        let turns = self.admission.queue.iter().map(|waiter| waiter.turn.number);
        assert!(turns.is_sorted());
        let makes = |waiter: &Waiter| waiter.job.work.makes_pieces();
        assert!(self.admission.queue.iter().all(makes));
    }
}
