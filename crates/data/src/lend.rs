//! Memory that is lent to the target, and given back: how much the arena may hold, which follows from
//! outside (`lending` says how much is well).
//!
//! When the allowance falls, what costs no copy goes first: nothing new goes to memory, free blocks
//! beyond the allowance leave at once, early pieces that nobody wrote to are taken back, and the rest
//! sinks (`sink`), idle or not, until what is in use fits. Each block that gets free on this way leaves,
//! too.
//! When it rises, blocks come back as any that the device must preallocate first.
//!
//!   free --finish, beyond the allowance--> leaving   Effect::GiveBack
//!   leaving --GivenBack: yes--> absent (`tier`)
//!   leaving --GivenBack: no--> free, and nothing is tried for a while
//!
//! Invariants:
//!  1. At most `GIVE_BACKS_MAX` blocks leave at a time.
//!  2. A block that leaves is nobody's: its pins were looked at before it was free.

use crate::buddy::BLOCK_LOG2_MIN;
use crate::effect::Effect;
use crate::target::Target;
use wire::errno::Result;

/// Most blocks that leave at once: what frees 64 MiB takes about as long as the worker's other steps.
pub const GIVE_BACKS_MAX: usize = 64;
/// Memory that was made ready in huge pages is given back in whole ones: less of one costs a split.
const HUGE_PAGE_LOG2: u8 = 21;
/// After the device could not give a block back, it is not asked again for so many steps.
const REFUSALS_KEPT: u32 = 4096;

/// What the arena may hold and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Memory {
    /// Bytes that it may.
    pub allowed: u64,
    /// Bytes that it does, those included that leave.
    pub held: u64,
    /// Bytes of these in pieces.
    pub used: u64,
}

/// Blocks on their way.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivingBack {
    under_way: usize,
    refusals_left: u32,
}

impl Target {
    /// The arena may hold so many bytes from now on.
    pub fn lend(&mut self, bytes: u64, out: &mut Vec<Effect>) {
        self.memory.allow(bytes);
        self.giving_back.refusals_left = 0;
        self.finish(out);
    }

    /// What the arena may hold and holds.
    #[must_use]
    pub fn memory_lent(&self) -> Memory {
        let held = self.memory.bytes_held() + self.memory.bytes_leaving();
        Memory { allowed: self.memory.allowance(), held, used: self.memory.bytes_used() }
    }

    /// After a kill it is not known whether the device holds what is free; `give_back` makes sure that
    /// it does not, or says that it can not. Before the first step.
    pub fn forget_free_memory(&mut self, give_back: &mut dyn FnMut(u64, u64) -> bool) {
        self.memory.forget_free(give_back);
    }

    /// Bytes in use beyond what is allowed, but for those that get free by what is under way.
    pub(crate) fn bytes_beyond(&self, leaves: u64) -> u64 {
        let used = self.memory.bytes_used().saturating_sub(leaves);
        used.saturating_sub(self.early_bytes()).saturating_sub(self.memory.allowance())
    }

    /// A part of the memory, of what is allowed of it now.
    pub(crate) fn of_allowance(&self, bytes: u64) -> u64 {
        let (allowed, all) = (self.memory.allowance(), self.memory.length().max(1));
        (u128::from(bytes) * u128::from(allowed) / u128::from(all)) as u64
    }

    /// Has what is free beyond the allowance leave.
    pub(crate) fn give_memory_back(&mut self, out: &mut Vec<Effect>) {
        let is_beyond = self.memory.bytes_used() > self.memory.allowance();
        self.early.is_needed |= is_beyond && !self.early.is_empty();
        if self.giving_back.refusals_left > 0 {
            self.giving_back.refusals_left -= 1;
            return;
        }
        // What moves now may make a large block of small ones.
        let log2_min = if self.moves_count() > 0 { HUGE_PAGE_LOG2 } else { BLOCK_LOG2_MIN };
        while self.giving_back.under_way < GIVE_BACKS_MAX
            && let Some((place, length_log2)) = self.memory.give_back(log2_min)
        {
            self.giving_back.under_way += 1;
            out.push(Effect::GiveBack { place, length_log2 });
        }
    }

    /// The device gave a block back, or could not.
    pub(crate) fn given_back(&mut self, block: (u64, u8), outcome: Result<()>) {
        self.giving_back.under_way -= 1;
        self.memory.given_back(block, outcome);
        if outcome.is_err() {
            self.giving_back.refusals_left = REFUSALS_KEPT;
        }
    }
}
