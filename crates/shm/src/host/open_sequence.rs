//! The open sequence: the order of opens and last closes on this host, for shards of other hosts.
//! Their messages overtake each other, and a late last close must not end an open that began after
//! it.
//!
//! Numbers are drawn from one counter. A process that opens a file counts itself in, then draws a
//! number and sends it to the shard. A process that counted a file out draws a number, notes it,
//! then checks whether the file is open: if so, the last process to close it tells the shard. So
//! either the closer sees the opener, or the opener's number is larger than the closer's, and the
//! shard keeps the largest: it accepts no close that is older than an open. The last close draws
//! its number after every process that ever opened the file, so it counts.
//!
//! Layout: the counter u64, in the header's page; behind the processes `GROUP_COUNT` numbers u64,
//! each the last one that was noted for a file of its group.

use super::{HostSegment, header, processes};
use crate::sync::{AtomicU64, fence};
use core::sync::atomic::Ordering::SeqCst;
use wire::Inode;
use wire::hash::neighbourly;

/// Enough that two files created and closed at the same time are seldom in one group.
const GROUP_COUNT: usize = 1024;
const GROUPS: usize = processes::END;
pub(super) const END: usize = GROUPS + GROUP_COUNT * 8;

const _: () = assert!(GROUPS.is_multiple_of(8));

impl HostSegment {
    /// A number larger than all that were drawn on this host.
    #[must_use]
    pub fn next_open_sequence(&self) -> u64 {
        let counter = self.segment.word64(header::OPEN_SEQUENCE);
        counter.map_or(0, |counter| counter.fetch_add(1, SeqCst) + 1)
    }

    /// For a process that counted a file out, or found it not open: the number to send to its
    /// shard, or `None` if a process on this host has it open, which will tell the shard.
    #[must_use]
    pub fn next_close_sequence(&self, inode: Inode) -> Option<u64> {
        let open_sequence = self.next_open_sequence();
        if let Some(last) = self.last_close_of(inode) {
            last.fetch_max(open_sequence, SeqCst);
        }
        fence(SeqCst);
        // A count of zero: the process that closed it last is about to do this, or was killed
        // before.
        let is_open = self.entries_of(inode).any(|vnode| vnode.opens() != 0);
        (!is_open).then_some(open_sequence)
    }

    /// For the creator of a file, which is registered by the create, once it counted itself in:
    /// true if the shard may have been told, since the creator drew `open_sequence`, that the file
    /// is closed here.
    #[must_use]
    pub fn was_closed_since(&self, inode: Inode, open_sequence: u64) -> bool {
        fence(SeqCst);
        self.last_close_of(inode).is_none_or(|last| last.load(SeqCst) > open_sequence)
    }

    fn last_close_of(&self, inode: Inode) -> Option<&AtomicU64> {
        let group = neighbourly(inode, 11) as usize % GROUP_COUNT;
        self.segment.word64(GROUPS + group * 8).ok()
    }
}
