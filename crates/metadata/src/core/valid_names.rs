//! Names of the backing store that are valid here for a term (`Config::revalidate_nanos`): until it
//! is over, clients find them in the index without asking; then the index forgets them.
//! `backing::revalidate` decides whether a name is probed.

use std::collections::{BTreeMap, VecDeque};

use wire::Inode;
use wire::attributes::mode;
use wire::hash::entry_key;

use crate::core::context::Context;
use crate::core::effect::IndexOp;
use crate::core::job::NEVER;

/// Most valid names; beyond it the oldest becomes unknown.
const VALID_NAMES_MAX: usize = 1 << 16;

/// Valid names, by `wire::hash::entry_key`.
#[derive(Default)]
pub(crate) struct ValidNames {
    valid: BTreeMap<u128, i64>,
    /// Ends of validity in order of time.
    ends: VecDeque<(i64, u128)>,
}

impl ValidNames {
    fn is_until_later(&self, key: u128, steady: i64) -> bool {
        self.valid.get(&key).is_some_and(|&until| until > steady)
    }
}

impl Context {
    /// True if names of this directory may change in the backing store.
    pub(crate) fn is_revalidated(&self, directory: Inode) -> bool {
        let may = directory.is_backed() || directory == Inode::ROOT;
        may && self.config.backing && self.config.revalidate_nanos != NEVER
    }

    /// The index is about to get an entry, or its absence: valid for a term, if the name may change
    /// in the backing store.
    pub(crate) fn note_valid_until(
        &mut self,
        directory: Inode,
        key: u128,
        entry: Option<(Inode, u32)>,
    ) {
        let is_retried = |(inode, kind): (Inode, u32)| {
            kind & mode::TYPE != mode::DIRECTORY && self.state.has_backing_location(inode)
        };
        if !self.is_revalidated(directory) || !entry.is_none_or(is_retried) {
            return;
        }
        let until = self.steady.saturating_add(self.config.revalidate_nanos);
        self.put_valid_until(key, until);
    }

    /// A file created here has been written back; from now on it may change in the backing store.
    pub(crate) fn note_written(&mut self, inode: Inode) {
        let Some(now) =
            self.state.sync_entries.get(&inode).and_then(|sync_entry| sync_entry.now.clone())
        else {
            return;
        };
        let entry = self.state.entries.get(now.parent, &now.name);
        if entry.is_some_and(|found| found.0 == inode) {
            self.note_valid_until(now.parent, entry_key(now.parent, &now.name), entry);
        }
    }

    /// Makes a name valid, unless it is.
    pub(crate) fn put_valid_until(&mut self, key: u128, until: i64) {
        let names = &mut self.valid_names;
        if names.is_until_later(key, self.steady) {
            return;
        }
        names.valid.insert(key, until);
        // In order except after slow probes, whose names merely stay in the index for longer.
        names.ends.push_back((until, key));
        if names.ends.len() > VALID_NAMES_MAX {
            self.expire_first();
        }
        let left = until.saturating_sub(self.steady).max(0);
        self.wake_at(self.now.saturating_add(left));
    }

    fn expire_first(&mut self) {
        let names = &mut self.valid_names;
        if let Some((until, key)) = names.ends.pop_front()
            && names.valid.get(&key) == Some(&until)
        {
            names.valid.remove(&key);
            self.io.index(IndexOp::ForgetEntry { key });
        }
    }

    /// True if a name is valid.
    pub(crate) fn is_valid_name(&self, key: u128) -> bool {
        self.valid_names.is_until_later(key, self.steady)
    }

    /// Ends the validity of a name, whenever it was probed.
    pub(crate) fn end_validity(&mut self, key: u128) {
        if self.valid_names.valid.remove(&key).is_some() {
            self.io.index(IndexOp::ForgetEntry { key });
        }
    }

    /// Timer: expires names.
    pub(crate) fn expire_names(&mut self) {
        while self.valid_names.ends.front().is_some_and(|&(until, _)| until <= self.steady) {
            self.expire_first();
        }
        if let Some(&(until, _)) = self.valid_names.ends.front() {
            self.wake_at(self.now.saturating_add(until - self.steady));
        }
    }
}
