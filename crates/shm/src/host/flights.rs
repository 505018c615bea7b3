//! How many transfers of a file's bytes to other hosts are under way, for files that may be cut while
//! they are: in bits 8..31 of the marks of its row. Only the first daemon of the host counts; its other
//! daemons look.

use super::{HostSegment, Vnode};
use core::sync::atomic::Ordering::SeqCst;
use wire::Inode;

const ONE: u64 = 1 << 8;
/// More than there can be requests under way on a host.
const FLIGHTS: u64 = 0xff_ffff * ONE;

impl Vnode {
    fn has_flights(&self) -> bool {
        self.marks.load(SeqCst) & FLIGHTS != 0
    }
}

impl HostSegment {
    /// One more is under way.
    pub fn begin_flight(&self, inode: Inode) {
        self.rows_of(inode).for_each(|vnode| {
            vnode.marks.fetch_add(ONE, SeqCst);
        });
    }

    /// One is over. The row may be another one by now.
    pub fn end_flight(&self, inode: Inode) {
        let one_less = |marks: u64| (marks & FLIGHTS != 0).then(|| marks - ONE);
        self.rows_of(inode).for_each(|vnode| {
            let _ = vnode.marks.fetch_update(SeqCst, SeqCst, one_less);
        });
    }

    /// True if any is under way.
    #[must_use]
    pub fn has_flights(&self, inode: Inode) -> bool {
        self.rows_of(inode).any(Vnode::has_flights)
    }

    /// None is, as the daemon that counted was started anew.
    pub fn forget_flights(&self) {
        self.vnode_list(&mut |_, vnode| {
            vnode.marks.fetch_and(!FLIGHTS, SeqCst);
        });
    }
}
