//! Number of in-flight transfers of a file's bytes to other hosts, for files that may be truncated
//! meanwhile: bits 8..31 of the marks of its open inode. Only the first daemon of the host counts;
//! its other daemons read.

use super::{HostSegment, Vnode};
use core::sync::atomic::Ordering::SeqCst;
use wire::Inode;

const ONE: u64 = 1 << 8;
/// More than there can be requests in flight on a host.
const IN_FLIGHT: u64 = 0xff_ffff * ONE;

impl Vnode {
    fn has_transfers(&self) -> bool {
        self.marks.load(SeqCst) & IN_FLIGHT != 0
    }
}

impl HostSegment {
    /// Counts one more transfer.
    pub fn begin_transfer(&self, inode: Inode) {
        self.entries_of(inode).for_each(|vnode| {
            vnode.marks.fetch_add(ONE, SeqCst);
        });
    }

    /// Counts one transfer less. The entry may be another file's by now.
    pub fn end_transfer(&self, inode: Inode) {
        let one_less = |marks: u64| (marks & IN_FLIGHT != 0).then(|| marks - ONE);
        self.entries_of(inode).for_each(|vnode| {
            let _ = vnode.marks.fetch_update(SeqCst, SeqCst, one_less);
        });
    }

    /// True if any is in flight.
    #[must_use]
    pub fn has_transfers(&self, inode: Inode) -> bool {
        self.entries_of(inode).any(Vnode::has_transfers)
    }

    /// Sets the count to zero, after a restart of the daemon that counted.
    pub fn reset_transfers(&self) {
        self.vnode_list(&mut |_, vnode| {
            vnode.marks.fetch_and(!IN_FLIGHT, SeqCst);
        });
    }
}
