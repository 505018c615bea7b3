//! Early pieces of the model's target, as the daemon looks at them.

use super::World;
use crate::effect::Input;
use std::collections::BTreeSet;
use wire::Inode;
use wire::reply::Piece;

impl World {
    /// Tells which early pieces were written to, and which were not if those are taken back.
    pub(super) fn look_at_early(&mut self, take_back: bool) {
        let is_early = |inode, piece: &Piece| self.target.early(inode, piece.start).is_some();
        let early = self.target.pieces().filter(|&(inode, ref piece)| is_early(inode, piece));
        let is_hole = |piece: &Piece| self.defined.get(&piece.slot).is_none_or(BTreeSet::is_empty);
        let (holes, written): (Vec<_>, Vec<_>) = early.partition(|one| is_hole(&one.1));
        let named = |all: Vec<(Inode, Piece)>| {
            all.into_iter().map(|(inode, piece)| (inode, piece.start)).collect::<Vec<_>>()
        };
        let (holes, written) = (named(holes), named(written));
        assert!(self.step(Input::Wanted { pieces: &written }, &[]).is_none());
        if take_back {
            assert!(self.step(Input::Unwanted { pieces: &holes }, &[]).is_none());
            assert_eq!(self.target.early_bytes(), 0);
        }
    }
}
