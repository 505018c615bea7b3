//! Keys that transactions hold between vote and decision: entries, inodes, frozen directories.
//!
//! No transaction waits for a key while it holds others, so there is no deadlock: one that finds a
//! key held releases all its keys and retries.

use std::collections::BTreeMap;

use wire::Inode;
use wire::hash::NameHash;

use crate::core::state::TransactionId;

/// Key that a transaction can hold.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Key {
    /// The entry of a name.
    Entry(Inode, Vec<u8>),
    /// An inode.
    Inode(Inode),
    /// The entries of a directory in this service: none may be added.
    Frozen(Inode),
    /// All entries of a directory in this service, also those that do not exist.
    Entries(Inode),
}

/// How a key is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// By several transactions, none of which changes it.
    Shared,
    /// By one transaction, which will change it.
    Exclusive,
}

/// All keys that are held.
#[derive(Default, Debug)]
pub(crate) struct Keys {
    held: BTreeMap<Key, Vec<(TransactionId, Hold)>>,
}

impl Keys {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// True if a transaction is about to change this.
    pub(crate) fn is_changing(&self, key: &Key) -> bool {
        let holders = self.held.get(key);
        holders.is_some_and(|all| all.iter().any(|&(_, hold)| hold == Hold::Exclusive))
    }

    /// May `id` hold the key in this mode?
    pub(crate) fn may(&self, id: TransactionId, key: &Key, requested: Hold) -> bool {
        let Some(holders) = self.held.get(key) else { return true };
        holders.iter().all(|&(other, hold)| {
            other == id || (hold == Hold::Shared && requested == Hold::Shared)
        })
    }

    /// Holds a key for `id`.
    pub(crate) fn hold(&mut self, id: TransactionId, key: Key, requested: Hold) {
        self.held.entry(key).or_default().push((id, requested));
    }

    /// Releases all keys of `id`.
    pub(crate) fn release(&mut self, id: TransactionId) {
        self.held.retain(|_, holders| {
            holders.retain(|&(other, _)| other != id);
            !holders.is_empty()
        });
    }

    /// True if an entry of `directory` is held by another than `id`.
    pub(crate) fn has_entry_of(&self, directory: Inode, id: TransactionId) -> bool {
        let mut entries = self.entries_of(directory);
        entries.any(|(_, holders)| holders.iter().any(|&(other, _)| other != id))
    }

    /// The first entry of `directory` that is held, in the order of listings, at or after `first`.
    pub(crate) fn first_entry_of(&self, directory: Inode, first: u64) -> Option<NameHash> {
        if self.is_changing(&Key::Entries(directory)) {
            return Some(NameHash(first));
        }
        let names = self.entries_of(directory).map(|(name, _)| NameHash::of(directory, name));
        names.filter(|hash| hash.0 >= first).min()
    }

    /// Names in `directory` that are held, and their transactions.
    fn entries_of(
        &self,
        directory: Inode,
    ) -> impl Iterator<Item = (&[u8], &[(TransactionId, Hold)])> {
        let from = Key::Entry(directory, Vec::new());
        self.held.range(from..).map_while(move |(key, holders)| match key {
            Key::Entry(parent, name) if *parent == directory => Some((&name[..], &holders[..])),
            _ => None,
        })
    }
}
