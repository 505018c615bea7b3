//! Local operations as a client makes them: the index of a host, and its use by a client.

use super::{NOTHING, World};
use metadata::{IndexOp, Input, LoggedOp};
use std::collections::{BTreeMap, BTreeSet};
use wire::attributes::mode;
use wire::hash::entry_key;
use wire::{Attributes, Inode, LocalOp};

/// An index that forgets nothing by itself.
#[derive(Default)]
pub(crate) struct Known {
    /// `None`: unknown; no inode: absent.
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
            IndexOp::MarkComplete { directory } => drop(self.whole.insert(directory)),
            IndexOp::UnmarkComplete { directory } => drop(self.whole.remove(&directory)),
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
    /// The service of the entry, if it takes local operations now.
    fn local_op_owner(&mut self, parent: &Attributes, name: &[u8]) -> Option<usize> {
        let hash = wire::hash::NameHash::of(parent.inode, name);
        let at = self.owner(placement::locate::entry_shard(parent, hash));
        self.seats[at].service.takes_local_ops(0).then_some(at)
    }

    fn parent_of_local_ops(&self, parent: Inode) -> Option<Attributes> {
        let at = self.owner(parent.shard());
        self.seats[at].known.inodes.get(&parent).copied()
    }

    /// Creates a file by a local operation, if a client could.
    pub(crate) fn create_by_local_op(&mut self, parent: Inode, name: &[u8]) -> Option<Attributes> {
        let directory = self.parent_of_local_ops(parent)?;
        let at = self.local_op_owner(&directory, name)?;
        if !self.seats[at].known.is_absent(parent, name) {
            return None;
        }
        let hash = wire::hash::NameHash::of(parent, name);
        let shard = placement::locate::entry_shard(&directory, hash);
        let next = self.seats[at].numbers.get_mut(&shard.0)?;
        if next.0 >= next.1 {
            return None;
        }
        let inode = Inode::new(shard, next.0).with_copies(directory.layout.copies);
        next.0 += 1;
        let mode = mode::REGULAR | 0o644;
        let attributes = Attributes { inode, mode, links: 1, ..NOTHING };
        let spread = directory.layout.spread;
        self.op(at, LocalOp::Create { parent, spread, attributes, name }, 0);
        Some(attributes)
    }

    /// Removes a file by a local operation, if a client could.
    pub(crate) fn log_unlink(&mut self, parent: Inode, name: &[u8]) -> bool {
        let Some(directory) = self.parent_of_local_ops(parent) else { return false };
        let Some(at) = self.local_op_owner(&directory, name) else { return false };
        let seat = &self.seats[at];
        let found = seat.known.entries.get(&entry_key(parent, name)).copied().flatten();
        let Some(inode) = found.filter(|inode| !inode.is_none() && seat.config.owns(inode.shard()))
        else {
            return false;
        };
        let is_plain =
            seat.known.inodes.get(&inode).is_some_and(|file| file.is_regular() && file.links == 1);
        if is_plain && !seat.host_view.open.contains(&inode) {
            let spread = directory.layout.spread;
            self.op(at, LocalOp::Unlink { parent, spread, inode, at: 0, name }, 0);
            return true;
        }
        false
    }

    /// Applies a local operation, and sometimes once more, as after a crash between the log and the
    /// slot.
    pub(crate) fn op(&mut self, at: usize, op: LocalOp<'_>, written: u64) {
        self.now += 1000;
        let ops = [LoggedOp { op, written }];
        self.local_op_count += 1;
        self.step(at, Input::LocalOps { ops: &ops });
        let before = super::dump(&self.seats[at].service);
        if !matches!(op, LocalOp::Close { .. }) {
            self.step(at, Input::LocalOps { ops: &ops });
            assert_eq!(super::dump(&self.seats[at].service), before, "applied twice: {op:?}");
        }
    }
}
