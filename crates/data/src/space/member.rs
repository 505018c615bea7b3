//! Which stripes of a file belong to this target.

use placement::extent::{self, Span};
use wire::{DaemonIndex, Inode, Layout};

/// This target's index and the number of targets with which the instance began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) index: DaemonIndex,
    pub(crate) count: u16,
}

impl Member {
    /// True if the stripe belongs to this target.
    pub(crate) fn has(&self, layout: &Layout, inode: Inode, stripe: u64) -> bool {
        placement::locate::target(layout, inode, stripe, self.count) == self.index
    }

    /// The extents of `from .. end` of a file that this target has, or would have.
    pub(crate) fn spans(
        self,
        inode: Inode,
        layout: Layout,
        (from, end): (u64, u64),
    ) -> impl Iterator<Item = Span> {
        let log2 = layout.stripe_log2;
        let stripes = from >> log2..end.div_ceil(1 << log2);
        let own = stripes.filter(move |&stripe| self.has(&layout, inode, stripe));
        own.flat_map(move |stripe| {
            let (from, end) = (from.max(stripe << log2), end.min((stripe + 1) << log2));
            extent::over(from, end.saturating_sub(from), log2)
        })
    }
}
