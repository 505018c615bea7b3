//! In which order openings and last closes happened on this host, for shards of other hosts: their
//! messages overtake each other, and a last close that comes late must not end an opening that began
//! after it.
//!
//! Numbers are drawn from one counter. Who opens a file counts himself in, then draws one and tells the
//! shard. Who counted a file out draws one, notes it, then looks whether the file is open: if so, whoever
//! closes it last tells the shard. So either he sees the opener, or the opener's number is larger than
//! his, and the shard keeps the largest: it takes no close that is older than an opening. And the last of
//! all draws after everybody who ever opened it, so his close counts.
//!
//! Layout: the counter u64, in the header's page; behind the processes `GROUP_COUNT` numbers u64, each
//! the last one that was noted for a file of its group.

use super::{HostSegment, processes};
use crate::sync::{AtomicU64, fence};
use core::sync::atomic::Ordering::SeqCst;
use wire::Inode;
use wire::hash::neighbourly;

/// In a cache line of its own.
const COUNTER_AT: usize = 64;
/// So many that two files that are made and closed at the same time are seldom in one.
const GROUP_COUNT: usize = 1024;
const GROUPS: usize = processes::END;
pub(super) const END: usize = GROUPS + GROUP_COUNT * 8;

const _: () = assert!(GROUPS.is_multiple_of(8) && COUNTER_AT + 8 <= super::LANE_HINTS);

impl HostSegment {
    /// A number that nobody on this host drew before, larger than all that were drawn.
    #[must_use]
    pub fn draw_turn(&self) -> u64 {
        let counter = self.segment.word64(COUNTER_AT);
        counter.map_or(0, |counter| counter.fetch_add(1, SeqCst) + 1)
    }

    /// For who counted a file out, or found it open nowhere: the number to tell its shard, or `None` if
    /// somebody on this host has it open, who will tell.
    #[must_use]
    pub fn draw_turn_of_close(&self, inode: Inode) -> Option<u64> {
        let turn = self.draw_turn();
        if let Some(last) = self.last_close_of(inode) {
            last.fetch_max(turn, SeqCst);
        }
        fence(SeqCst);
        // A count of zero: who closed it last is on his way to this, or was killed before.
        let is_open = self.rows_of(inode).any(|vnode| vnode.opens() != 0);
        (!is_open).then_some(turn)
    }

    /// For who made a file and is registered by that, once he counted himself in: true if since `turn`,
    /// which he drew before, somebody may have told the shard that it is open here no longer.
    #[must_use]
    pub fn was_closed_since(&self, inode: Inode, turn: u64) -> bool {
        fence(SeqCst);
        self.last_close_of(inode).is_none_or(|last| last.load(SeqCst) > turn)
    }

    fn last_close_of(&self, inode: Inode) -> Option<&AtomicU64> {
        let group = neighbourly(inode, 11) as usize % GROUP_COUNT;
        self.segment.word64(GROUPS + group * 8).ok()
    }
}
