//! Owners of the model's files, and which files are pinned.

use super::{ALLOWED, ModelWorld, STRIPE_LOG2};
use crate::effect::Answer;
use wire::quota::{Account, Owner};
use wire::request::PINNED_STRIPE;
use wire::{Inode, Request};

/// As clients say it: file 4 is pinned.
pub(super) fn stripe_of(file: u64) -> u8 {
    if file == 4 { STRIPE_LOG2 | PINNED_STRIPE } else { STRIPE_LOG2 }
}

impl ModelWorld {
    pub(super) fn count(&mut self) {
        self.target.count();
        self.target.allow([(Account::user(1), ALLOWED)].into());
        for (&inode, &(uid, changed)) in &self.owners {
            self.target.set_owner(inode, Owner { uid, project: 7 }, changed);
        }
    }

    /// Changes a file's owner; an older report follows.
    pub(super) fn set_owner(&mut self, file: u64, uid: u32, pinned: bool) {
        let inode = Inode(file);
        let old = self.owners.insert(inode, (uid, self.time + 1));
        self.time += 1;
        let old = old.map(|(uid, changed)| (uid, changed, !pinned));
        for (uid, changed, is) in [Some((uid, self.time, pinned)), old].into_iter().flatten() {
            let pinned = u8::from(is);
            let changed = changed.cast_unsigned();
            let own = Request::Own { inode, uid, project: 7, changed, pinned };
            assert_eq!(self.call(&own).answer, Answer::Done);
        }
        // After a kill only files with extents are known to be pinned.
        if !self.asks_again {
            assert_eq!(self.target.is_pinned(inode), pinned);
        }
    }
}
