//! Memory that is lent to the target and given back: how many bytes the arena may hold. The
//! allowance comes from outside (`lending_policy` computes it).
//!
//! When the allowance falls, whatever costs no copy goes first: nothing new is allocated in memory,
//! free blocks beyond the allowance are given back at once, preallocated extents that nobody wrote
//! to are reclaimed, and the rest is demoted (`demote`), idle or not, until the used space fits.
//! Each block freed in this way is given back, too. When the allowance rises, blocks return like
//! any that the device must provision first.
//!
//!   free --finish, beyond the allowance--> leaving   Effect::GiveBack
//!   leaving --GivenBack: yes--> absent (`tier`)
//!   leaving --GivenBack: no--> free, and nothing is tried for a while
//!
//! Invariants:
//!  1. At most `GIVE_BACKS_MAX` blocks are being given back at a time.
//!  2. A block that is being given back has no owner: its hazard pointers were checked before it
//!     was free.

use crate::effect::Effect;
use crate::space::buddy::BLOCK_LOG2_MIN;
use crate::space::pool::Pool;
use wire::errno::Result;

/// Most blocks that are given back at once: freeing 64 MiB takes about as long as the worker's
/// other steps.
pub const GIVE_BACKS_MAX: usize = 64;
/// Memory that was provisioned in huge pages is given back in whole huge pages, because a part of
/// one costs a split.
const HUGE_PAGE_LOG2: u8 = 21;
/// After the device failed to give a block back, it is not asked again for this many steps.
const REFUSAL_PAUSE: u32 = 4096;

/// Allowance and use of the arena, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Memory {
    /// The allowance.
    pub allowed: u64,
    /// Bytes held, those being given back included.
    pub held: u64,
    /// Bytes of these in extents.
    pub used: u64,
}

/// Blocks being given back.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReturningBlocks {
    under_way: usize,
    refusals_left: u32,
}

impl ReturningBlocks {
    /// The allowance changed: the device is asked again.
    pub(crate) const fn ask_again(&mut self) {
        self.refusals_left = 0;
    }

    /// Gives free blocks beyond the allowance back. `moves`: number of moves in flight.
    pub(crate) fn give_memory_back(
        &mut self,
        pool: &mut Pool,
        moves: usize,
        out: &mut Vec<Effect>,
    ) {
        if pool.memory().bytes_used() > pool.memory().allowance() {
            pool.need_preallocated();
        }
        if self.refusals_left > 0 {
            self.refusals_left -= 1;
            return;
        }
        // Moves in flight may complete a larger block.
        let log2_min = if moves > 0 { HUGE_PAGE_LOG2 } else { BLOCK_LOG2_MIN };
        while self.under_way < GIVE_BACKS_MAX
            && let Some((location, length_log2)) = pool.give_memory_back(log2_min)
        {
            self.under_way += 1;
            out.push(Effect::GiveBack { location, length_log2 });
        }
    }

    /// Completion of giving a block back.
    pub(crate) fn note_given_back(
        &mut self,
        pool: &mut Pool,
        block: (u64, u8),
        outcome: Result<()>,
    ) {
        self.under_way -= 1;
        pool.note_given_back(block, outcome);
        if outcome.is_err() {
            self.refusals_left = REFUSAL_PAUSE;
        }
    }
}
