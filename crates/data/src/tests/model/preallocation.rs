//! Preallocated extents of the model's target, as the daemon examines them.

use super::ModelWorld;
use crate::effect::Input;
use std::collections::BTreeSet;
use wire::Inode;
use wire::reply::Extent;

impl ModelWorld {
    /// Reports which preallocated extents were written, and, if they are to be reclaimed, which
    /// were not.
    pub(super) fn look_at_preallocated(&mut self, take_back: bool) {
        let is_preallocated =
            |inode, extent: &Extent| self.target.preallocated(inode, extent.start).is_some();
        let preallocation =
            self.target.extents().filter(|&(inode, ref extent)| is_preallocated(inode, extent));
        let is_hole = |extent: &Extent| self.valid.get(&extent.slot).is_none_or(BTreeSet::is_empty);
        let (holes, written): (Vec<_>, Vec<_>) = preallocation.partition(|one| is_hole(&one.1));
        let named = |all: Vec<(Inode, Extent)>| {
            all.into_iter().map(|(inode, extent)| (inode, extent.start)).collect::<Vec<_>>()
        };
        let (holes, written) = (named(holes), named(written));
        assert!(self.step(Input::Written { extents: &written }, &[]).is_none());
        if take_back {
            assert!(self.step(Input::Reclaimed { extents: &holes }, &[]).is_none());
            assert_eq!(self.target.preallocated_bytes(), 0);
        }
    }
}
