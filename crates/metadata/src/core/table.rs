//! The two large tables: entries and inodes. Ordered, so that a snapshot can be taken in slices.
//!
//! Invariants
//! 1. Names of one directory with the same hash have the collision numbers 0, 1, .. without gap.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use wire::hash::NameHash;
use wire::{Attributes, Inode};

use crate::core::record::Record;

/// An entry: the inode that a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Box<[u8]>,
    pub(crate) inode: Inode,
    /// Type bits.
    pub(crate) mode: u32,
}

/// Key of an entry: directory, hash, collision number. A copy, so that names are not read to
/// compare.
pub(crate) type EntryKey = (Inode, NameHash, u8);

/// All entries of a service.
#[derive(Default)]
pub(crate) struct Entries {
    map: BTreeMap<EntryKey, Entry>,
}

/// Limit of names of one directory with one 63-bit hash; more do not occur.
const COLLISIONS_MAX: u8 = u8::MAX;

impl Entries {
    fn find(&self, parent: Inode, hash: NameHash, name: &[u8]) -> Option<(EntryKey, &Entry)> {
        for number in 0..COLLISIONS_MAX {
            let key = (parent, hash, number);
            let entry = self.map.get(&key)?;
            if *entry.name == *name {
                return Some((key, entry));
            }
        }
        None
    }

    /// The inode and type of a name.
    pub(crate) fn get(&self, parent: Inode, name: &[u8]) -> Option<(Inode, u32)> {
        let (_, entry) = self.find(parent, NameHash::of(parent, name), name)?;
        Some((entry.inode, entry.mode))
    }

    /// Sets a name; true if it is new.
    pub(crate) fn put(&mut self, parent: Inode, name: &[u8], inode: Inode, mode: u32) -> bool {
        let hash = NameHash::of(parent, name);
        for number in 0..COLLISIONS_MAX {
            match self.map.entry((parent, hash, number)) {
                Slot::Vacant(slot) => {
                    slot.insert(Entry { name: name.into(), inode, mode });
                    return true;
                }
                Slot::Occupied(mut slot) if *slot.get().name == *name => {
                    slot.get_mut().inode = inode;
                    slot.get_mut().mode = mode;
                    return false;
                }
                Slot::Occupied(_) => {}
            }
        }
        false
    }

    /// Removes a name; false if it is not there.
    pub(crate) fn remove(&mut self, parent: Inode, name: &[u8]) -> bool {
        let hash = NameHash::of(parent, name);
        let first = (parent, hash, 0);
        match self.map.entry(first) {
            Slot::Vacant(_) => return false,
            Slot::Occupied(slot) if *slot.get().name == *name => {
                slot.remove();
            }
            Slot::Occupied(_) => {
                let Some((key, _)) = self.find(parent, hash, name) else { return false };
                self.map.remove(&key);
                self.close_gap(key);
                return true;
            }
        }
        self.close_gap(first);
        true
    }

    /// Removes the names of a directory with hashes in `first ..= last`, and returns them.
    pub(crate) fn remove_range(&mut self, parent: Inode, first: u64, last: u64) -> Vec<Box<[u8]>> {
        let (from, to) = (NameHash(first), NameHash(last.max(first)));
        let range = (parent, from, 0)..=(parent, to, u8::MAX);
        let keys: Vec<EntryKey> = self.map.range(range).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.map.remove(key)).map(|entry| entry.name).collect()
    }

    /// Moves the last of the names with the same hash into the gap that `key` left.
    fn close_gap(&mut self, key: EntryKey) {
        let (parent, hash, gap) = key;
        let last = self.map.range((parent, hash, gap)..=(parent, hash, u8::MAX)).next_back();
        if let Some((&last, _)) = last
            && let Some(entry) = self.map.remove(&last)
        {
            self.map.insert(key, entry);
        }
    }

    /// Entries of a directory with hashes in `from ..= to`, in order.
    pub(crate) fn range(
        &self,
        parent: Inode,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = (NameHash, &Entry)> {
        let from = (parent, NameHash(from), 0);
        let to = (parent, NameHash(to.max(from.1.0)), u8::MAX);
        self.map.range(from..=to).map(|((_, hash, _), entry)| (*hash, entry))
    }

    /// Entries after a name, whether it exists or not, in a fixed order; `Inode::NONE`: all. Names
    /// with the same hash may appear twice.
    pub(crate) fn behind(
        &self,
        parent: Inode,
        name: &[u8],
    ) -> impl Iterator<Item = (Inode, &Entry)> {
        let from = match parent.is_none() {
            true => (parent, NameHash(0), 0),
            false => {
                let hash = NameHash::of(parent, name);
                let found = self.find(parent, hash, name);
                found.map_or((parent, hash, 0), |((_, _, number), _)| {
                    (parent, hash, number.saturating_add(1))
                })
            }
        };
        self.map.range(from..).map(|((parent, ..), entry)| (*parent, entry))
    }

    /// True if a directory has an entry here.
    pub(crate) fn has_any(&self, parent: Inode) -> bool {
        self.range(parent, 0, u64::MAX).next().is_some()
    }

    /// Entries at and after `from`, in order.
    pub(crate) fn iter_from(&self, from: EntryKey) -> impl Iterator<Item = (&EntryKey, &Entry)> {
        self.map.range(from..)
    }
}

/// Counts of the entries that another service holds of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RemoteTally {
    pub(crate) group: u32,
    pub(crate) version: u64,
    pub(crate) entries: u64,
    pub(crate) directories: u64,
    pub(crate) modified: i64,
}

impl RemoteTally {
    /// The record that puts it.
    pub(crate) fn record(&self, directory: Inode) -> Record<'static> {
        Record::PutRemoteTally {
            directory,
            group: self.group,
            version: self.version,
            entries: self.entries,
            directories: self.directories,
            modified: self.modified.cast_unsigned(),
        }
    }
}

/// Extended attributes of an inode.
pub(crate) type Xattrs = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// An inode with all that belongs to it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Node {
    pub(crate) attributes: Attributes,
    /// Created without a name and never linked: it may get a name although `links` is 0.
    pub(crate) is_nameless: bool,
    /// Target of a symbolic link.
    pub(crate) target: Box<[u8]>,
    /// Contents of an inline file.
    pub(crate) contents: Vec<u8>,
    pub(crate) xattrs: Option<Box<Xattrs>>,
    /// Tallies of a directory.
    pub(crate) tallies: Vec<RemoteTally>,
}

/// All inodes of a service.
#[derive(Default)]
pub(crate) struct Inodes {
    map: BTreeMap<Inode, Box<Node>>,
}

impl Inodes {
    pub(crate) fn get(&self, inode: Inode) -> Option<&Node> {
        self.map.get(&inode).map(AsRef::as_ref)
    }

    pub(crate) fn get_mut(&mut self, inode: Inode) -> Option<&mut Node> {
        self.map.get_mut(&inode).map(AsMut::as_mut)
    }

    /// Sets an inode; true if it is new.
    pub(crate) fn put(&mut self, node: Node) -> bool {
        self.map.insert(node.attributes.inode, Box::new(node)).is_none()
    }

    pub(crate) fn remove(&mut self, inode: Inode) -> Option<Box<Node>> {
        self.map.remove(&inode)
    }

    pub(crate) fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Inodes at and after `from`, in order.
    pub(crate) fn iter_from(&self, from: Inode) -> impl Iterator<Item = &Node> {
        self.map.range(from..).map(|(_, node)| node.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names with equal hashes cannot be constructed, so the test closes the gap by hand.
    #[test]
    fn names_with_equal_hashes_stay_reachable() {
        let mut entries = Entries::default();
        let (parent, hash) = (Inode(1), NameHash::of(Inode(1), b"a"));
        for (number, name) in [b"a", b"b", b"c"].into_iter().enumerate() {
            let entry = Entry { name: (*name).into(), inode: Inode(number as u64), mode: 0 };
            entries.map.insert((parent, hash, number as u8), entry);
        }
        assert!(entries.remove(parent, b"a"));
        let names: Vec<_> =
            entries.range(parent, 0, u64::MAX).map(|(_, e)| e.name.clone()).collect();
        assert_eq!(names, [Box::from(*b"c"), Box::from(*b"b")]);
        assert!(entries.find(parent, hash, b"b").is_some());
        assert!(entries.find(parent, hash, b"a").is_none());
        assert!(!entries.remove(parent, b"x"));
    }
}
