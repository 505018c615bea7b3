//! Posts as a client makes them: what the index of a host knows, and what a client does with it.

use super::{NOTHING, World};
use metadata::{IndexOp, Input, Posted};
use std::collections::{BTreeMap, BTreeSet};
use wire::attributes::mode;
use wire::hash::entry_key;
use wire::{Attributes, Inode, Post};

/// What an index knows that forgets nothing by itself.
#[derive(Default)]
pub(crate) struct Known {
    /// `None`: to be asked for; no inode: absent.
    entries: BTreeMap<u128, Option<Inode>>,
    inodes: BTreeMap<Inode, Attributes>,
    whole: BTreeSet<Inode>,
}

impl Known {
    pub(crate) fn take(&mut self, op: &IndexOp) {
        match *op {
            IndexOp::PutEntry { key, inode, .. } => drop(self.entries.insert(key, Some(inode))),
            IndexOp::PutAbsent { directory, key } if self.whole.contains(&directory) => {
                self.entries.remove(&key);
            }
            IndexOp::PutAbsent { key, .. } => drop(self.entries.insert(key, Some(Inode::NONE))),
            IndexOp::ForgetEntry { key } => drop(self.entries.insert(key, None)),
            IndexOp::PutWhole { directory } => drop(self.whole.insert(directory)),
            IndexOp::ForgetWhole { directory } => drop(self.whole.remove(&directory)),
            IndexOp::PutInode(attributes) => {
                self.inodes.insert(attributes.inode, attributes);
            }
            IndexOp::ForgetInode(inode) => {
                self.inodes.remove(&inode);
            }
        }
    }

    fn is_absent(&self, parent: Inode, name: &[u8]) -> bool {
        match self.entries.get(&entry_key(parent, name)) {
            Some(found) => *found == Some(Inode::NONE),
            None => self.whole.contains(&parent),
        }
    }
}

impl World {
    /// Who has the entry, and whether he takes posts now.
    fn poster(&mut self, parent: &Attributes, name: &[u8]) -> Option<usize> {
        let hash = wire::hash::NameHash::of(parent.inode, name);
        let at = self.owner(placement::locate::entry_shard(parent, hash));
        self.seats[at].service.takes_posts(0).then_some(at)
    }

    fn parent_of_posts(&self, parent: Inode) -> Option<Attributes> {
        let at = self.owner(parent.shard());
        self.seats[at].known.inodes.get(&parent).copied()
    }

    /// Creates a file by a post, if a client could.
    pub(crate) fn post_file(&mut self, parent: Inode, name: &[u8]) -> Option<Attributes> {
        let directory = self.parent_of_posts(parent)?;
        let at = self.poster(&directory, name)?;
        if !self.seats[at].known.is_absent(parent, name) {
            return None;
        }
        let hash = wire::hash::NameHash::of(parent, name);
        let shard = placement::locate::entry_shard(&directory, hash);
        let next = self.seats[at].numbers.get_mut(&shard.0)?;
        if next.0 >= next.1 {
            return None;
        }
        let inode = Inode::new(shard, next.0);
        next.0 += 1;
        let mode = mode::REGULAR | 0o644;
        let attributes = Attributes { inode, mode, links: 1, ..NOTHING };
        let spread = directory.layout.spread;
        self.post(at, Post::Create { parent, spread, attributes, name }, 0);
        Some(attributes)
    }

    /// Removes a file by a post, if a client could.
    pub(crate) fn post_unlink(&mut self, parent: Inode, name: &[u8]) -> bool {
        let Some(directory) = self.parent_of_posts(parent) else { return false };
        let Some(at) = self.poster(&directory, name) else { return false };
        let seat = &self.seats[at];
        let found = seat.known.entries.get(&entry_key(parent, name)).copied().flatten();
        let Some(inode) = found.filter(|inode| !inode.is_none() && seat.config.owns(inode.shard()))
        else {
            return false;
        };
        let is_plain =
            seat.known.inodes.get(&inode).is_some_and(|file| file.is_regular() && file.links == 1);
        if is_plain && !seat.opens.0.contains(&inode) {
            let spread = directory.layout.spread;
            self.post(at, Post::Unlink { parent, spread, inode, at: 0, name }, 0);
            return true;
        }
        false
    }

    /// Takes a post in, and sometimes once more, as after a crash between the log and the slot.
    pub(crate) fn post(&mut self, at: usize, post: Post<'_>, written: u64) {
        self.now += 1000;
        let posts = [Posted { post, written }];
        self.posted += 1;
        self.step(at, Input::Posted { posts: &posts });
        let before = super::dump(&self.seats[at].service);
        if !matches!(post, Post::Close { .. }) {
            self.step(at, Input::Posted { posts: &posts });
            assert_eq!(super::dump(&self.seats[at].service), before, "applied twice: {post:?}");
        }
    }
}
