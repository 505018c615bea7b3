//! Most copies of bytes: within one extent in memory, all pages valid, nothing to wait for. Each is one
//! run of instructions without a loop, so that it needs few registers and no room on the stack.
//!
//! Where anything else holds it does nothing and says so; `Target` then does the work, or says why it
//! cannot. The protocol is that of `io`.

use crate::extents::io::{STREAMED_BYTES_MIN, is_in_valid_group};
use crate::extents::{Arena, ExtentStates, ExtentTable, SessionHazards};
use wire::Inode;
use wire::reply::Extent;

/// The parts of a target that a copy in memory needs, as mapped into this process.
#[derive(Clone, Copy)]
pub struct MemoryTarget<'a> {
    /// The memory tier.
    pub arena: &'a Arena,
    /// Headers.
    pub table: &'a ExtentTable,
    /// States.
    pub states: &'a ExtentStates,
}

impl MemoryTarget<'_> {
    /// Reads `to.len()` bytes from offset `within` of `extent`, an extent of `inode`. False: nothing
    /// was read.
    #[inline(always)]
    #[must_use]
    pub fn read_at_once(
        self,
        hazards: SessionHazards<'_>,
        (inode, extent): (Inode, Extent),
        within: u64,
        to: &mut [u8],
    ) -> bool {
        let Some(_guard) = hazards.try_protect(extent.slot) else { return false };
        self.is_at_hand::<false>((inode, extent), within, to.len())
            && self.arena.copy_out(extent.location.wrapping_add(within), to).is_ok()
    }

    /// Writes `from` at offset `within` of `extent`, an extent of `inode`. False: write again.
    #[inline(always)]
    #[must_use]
    pub fn write_at_once(
        self,
        hazards: SessionHazards<'_>,
        (inode, extent): (Inode, Extent),
        within: u64,
        from: &[u8],
    ) -> bool {
        // Longer ones may bypass the cache.
        if from.len() >= STREAMED_BYTES_MIN {
            return false;
        }
        let Some(_guard) = hazards.try_protect(extent.slot) else { return false };
        self.is_at_hand::<true>((inode, extent), within, from.len())
            && self.arena.copy_in(extent.location.wrapping_add(within), from).is_ok()
    }

    /// True if these bytes are in memory and valid, in an extent that is still the file's.
    #[inline(always)]
    fn is_at_hand<const WRITES: bool>(
        self,
        (inode, extent): (Inode, Extent),
        within: u64,
        length: usize,
    ) -> bool {
        extent.tier == Extent::MEMORY
            && self.table.is(inode, &extent)
            && is_in_valid_group(&extent, within, length, |number| {
                self.states.page_bits_in_use::<WRITES>(&extent, number)
            })
    }
}
