//! Recounting of pushed writes, after a thread died between counting one and handing it over.
//!
//! The order of a push is: COUNTING, counted in the open inode, PUSHED; of its end: ENDING, uncounted,
//! FREE. So while nobody may count (`Vnode::begin_recount`), a buffer in PUSHED or MOVING is counted,
//! and each counted one is there, in COUNTING or in ENDING. One of a dead thread is the only one that
//! stays in COUNTING. If no buffer is in ENDING, and none was uncounted from before the first one was
//! looked at until the new count is set, then that is right.

use super::{BounceBuffers, COUNTING, ENDING, FREE, MOVING, OWNER, PUSHED, Pushed, STATE};
use crate::host::{HostSegment, PushEpoch, Vnode};
use crate::wait::{self, Backoff, Next};
use core::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use wire::limits::BOUNCE_BUFFER_COUNT;

/// The buffers of one session, for a recount.
#[derive(Clone, Copy)]
pub struct SessionPushes<'a> {
    /// The buffers.
    pub buffers: BounceBuffers<'a>,
    /// All processes of the session are gone.
    pub is_closed: bool,
}

/// Number of buffers that were handed over for one file.
enum Found {
    Known(u32),
    /// One is about to be counted by a living thread, or to be uncounted.
    Changing,
}

/// Recounts the files of those pushes whose thread died before it had handed them over, and frees
/// their buffers. `sessions` are all of the daemon start `through` whose pushes may be on their way.
/// False if some have to be recounted later.
#[must_use]
pub fn recount_lost_pushes(
    host: &HostSegment,
    through: u64,
    sessions: &[SessionPushes<'_>],
) -> bool {
    let mut is_complete = true;
    for session in sessions {
        for index in 0..BOUNCE_BUFFER_COUNT {
            let Some(lost) = session.lost_push(index) else { continue };
            let row = host.vnode(lost.vnode).ok();
            let row = row.filter(|row| row.inode.load(SeqCst) == lost.inode.0);
            let is_counted = row.is_none_or(|row| recount(row, &lost, through, sessions));
            if is_counted {
                session.buffers.free_lost(index);
            }
            is_complete &= is_counted;
        }
    }
    is_complete
}

fn recount(row: &Vnode, lost: &Pushed, through: u64, sessions: &[SessionPushes<'_>]) -> bool {
    let Some(epoch) = row.begin_recount(through) else {
        // Nothing is counted, or by another daemon: so this one was not.
        return true;
    };
    // Living threads that are about to count, or to uncount, go on meanwhile. A stopped one does not:
    // the caller tries again later.
    let mut backoff = Backoff::new();
    loop {
        let (counted, mut found) = (row.pushed_count(), Found::Known(0));
        sessions.iter().for_each(|session| session.count_pushed((lost, epoch), &mut found));
        if let Found::Known(left) = found
            && row.end_recount(counted, left)
        {
            return true;
        }
        if backoff.pause() == Next::Sleep {
            row.give_up_recount();
            return false;
        }
    }
}

impl SessionPushes<'_> {
    /// The push whose thread died before it had handed it over.
    fn lost_push(&self, index: usize) -> Option<Pushed> {
        self.is_lost(index).then(|| self.buffers.pushed(index).ok()).flatten()
    }

    fn is_lost(&self, index: usize) -> bool {
        let words = (self.buffers.word(index, STATE), self.buffers.word(index, OWNER));
        let (Ok(state), Ok(owner)) = words else { return false };
        let holder = owner.load(Acquire);
        let is_counting = || state.load(SeqCst) == COUNTING;
        // The state is read again once the owner is dead: it may have handed the buffer over.
        is_counting() && (self.is_closed || holder != 0 && wait::is_dead(holder)) && is_counting()
    }

    fn count_pushed(&self, (of, epoch): (&Pushed, PushEpoch), found: &mut Found) {
        for index in 0..BOUNCE_BUFFER_COUNT {
            let Ok(state) = self.buffers.word(index, STATE) else { continue };
            let state = state.load(SeqCst);
            let is_pushed = state == PUSHED || state == MOVING;
            if !is_pushed && state != COUNTING && state != ENDING {
                continue;
            }
            let is_same = |pushed: Pushed| pushed.vnode == of.vnode && pushed.inode == of.inode;
            if !self.buffers.pushed(index).is_ok_and(is_same) || self.is_lost(index) {
                continue;
            }
            // Those that were given up are not counted any more.
            if state != COUNTING && self.buffers.epoch(index) != Ok(epoch) {
                continue;
            }
            *found = match *found {
                Found::Known(count) if is_pushed => Found::Known(count.saturating_add(1)),
                _ => Found::Changing,
            };
        }
    }
}

impl BounceBuffers<'_> {
    /// True if a write was handed over, or was about to be, and is not done.
    #[must_use]
    pub fn has_pushes(&self) -> bool {
        (0..BOUNCE_BUFFER_COUNT).any(|index| {
            let state = self.word(index, STATE).map_or(FREE, |state| state.load(SeqCst));
            [COUNTING, PUSHED, MOVING, ENDING].contains(&state)
        })
    }

    /// It is free for the session's living threads.
    fn free_lost(&self, index: usize) {
        let (Ok(state), Ok(owner)) = (self.word(index, STATE), self.word(index, OWNER)) else {
            return;
        };
        owner.store(0, SeqCst);
        if state.compare_exchange(COUNTING, FREE, AcqRel, Acquire).is_ok() {
            self.wake_waiters();
        }
    }
}
