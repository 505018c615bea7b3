//! Whose the files of the model are, and which stay in memory.

use super::{ALLOWED, CHUNK_LOG2, World};
use crate::effect::Answer;
use wire::quota::{Account, Owner};
use wire::request::RESIDENT_CHUNK;
use wire::{Inode, Request};

/// As clients say it: file 4 stays in memory.
pub(super) fn chunk_of(file: u64) -> u8 {
    if file == 4 { CHUNK_LOG2 | RESIDENT_CHUNK } else { CHUNK_LOG2 }
}

impl World {
    pub(super) fn count(&mut self) {
        self.target.count();
        self.target.allow([(Account::user(1), ALLOWED)].into());
        for (&inode, &(uid, changed)) in &self.owners {
            self.target.own(inode, Owner { uid, project: 7 }, changed);
        }
    }

    /// A file is somebody's from now on; an older word comes behind.
    pub(super) fn own(&mut self, file: u64, uid: u32, resident: bool) {
        let inode = Inode(file);
        let old = self.owners.insert(inode, (uid, self.time + 1));
        self.time += 1;
        let old = old.map(|(uid, changed)| (uid, changed, !resident));
        for (uid, changed, is) in [Some((uid, self.time, resident)), old].into_iter().flatten() {
            let resident = u8::from(is);
            let changed = changed.cast_unsigned();
            let own = Request::Own { inode, uid, project: 7, changed, resident };
            assert_eq!(self.call(&own).answer, Answer::Done);
        }
        // A daemon that was killed knows it of files with pieces alone.
        if !self.asks_again {
            assert_eq!(self.target.is_resident(inode), resident);
        }
    }
}
