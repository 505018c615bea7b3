//! Changes of the tables: each is logged, applied by the code of replay, and shown in the index.
//! With a backing store it also marks names and inodes dirty.
//!
//! Invariants
//! 1. The tables change only by `put`, which logs the change and applies it by the code of replay.

use wire::hash::entry_key;
use wire::{Attributes, Inode};

use crate::core::context::Context;
use crate::core::effect::IndexOp;
use crate::core::job::Wait;
use crate::core::keys::Key;
use crate::core::record::Record;

impl Context {
    /// A change of the tables in an instance with a backing store: names and inodes that become
    /// dirty are recorded with it.
    fn put_and_mark_dirty(&mut self, record: &Record<'_>) {
        match *record {
            Record::PutEntry { parent, name, inode, .. } => self.note_name(parent, name, inode),
            Record::DeleteEntry { parent, name } => self.note_name(parent, name, Inode::NONE),
            _ => {}
        }
        self.put_clean(record);
        let inode = match *record {
            Record::PutInode { attributes, .. }
            | Record::PutAttributes { attributes }
            | Record::PutContents { attributes, .. } => attributes.inode,
            Record::DeleteInode { inode } => inode,
            Record::PutTally { directory, .. } | Record::PutRemoteTally { directory, .. } => {
                directory
            }
            _ => return,
        };
        if self.state.dirty_inodes.contains(&inode) {
            self.note_dirty();
        }
    }

    /// An entry is about to change: marks its name dirty, or clean if the backing store has the new
    /// inode.
    fn note_name(&mut self, parent: Inode, name: &[u8], entry: Inode) {
        let before = self.state.entries.get(parent, name).map_or(Inode::NONE, |found| found.0);
        if before == entry {
            return;
        }
        let location = self.state.dirty_names.get(parent, name).map(|found| found.0);
        if location == Some(entry) {
            self.put_clean(&Record::DeleteDirty { parent, name });
            return;
        }
        if location.is_none() {
            self.put_clean(&Record::PutDirty { parent, name, backed_inode: before });
        }
        self.note_dirty();
    }

    fn note_dirty(&mut self) {
        self.dirty_generation = self.dirty_generation.wrapping_add(1);
        if self.is_dirty_awaited {
            self.is_dirty_awaited = false;
            self.wake(|wait| *wait == Wait::Dirty);
            // A step of local operations runs no job.
            self.wake_at(self.now);
        }
    }

    /// Changes the tables: logs the change, applies it, and updates the index.
    pub(crate) fn put(&mut self, record: &Record<'_>) {
        match self.config.backing {
            true => self.put_and_mark_dirty(record),
            false => self.put_clean(record),
        }
    }

    /// As `put`, for a change that comes from the backing store, so nothing becomes dirty.
    pub(crate) fn put_clean(&mut self, record: &Record<'_>) {
        self.io.log(record);
        let applied = self.state.apply(record);
        debug_assert!(applied.is_ok(), "a service makes no malformed records");
        match *record {
            Record::PutEntry { parent, name, inode, mode } => {
                let key = entry_key(parent, name);
                self.io.index(IndexOp::PutEntry { key, inode, mode });
                self.note_valid_until(parent, key, Some((inode, mode)));
            }
            Record::DeleteEntry { parent, name } => {
                let key = entry_key(parent, name);
                self.io.index(IndexOp::PutAbsent { directory: parent, key });
                self.note_valid_until(parent, key, None);
            }
            Record::PutInode { attributes, .. }
            | Record::PutAttributes { attributes }
            | Record::PutContents { attributes, .. } => self.put_index(&attributes),
            Record::DeleteInode { inode } => self.io.index(IndexOp::ForgetInode(inode)),
            Record::PutTally { directory, .. } | Record::PutRemoteTally { directory, .. } => {
                if let Some(node) = self.state.inodes.get(directory) {
                    let attributes = node.attributes;
                    self.put_index(&attributes);
                }
            }
            _ => {}
        }
    }

    /// Updates an inode in the index; one without a name, or about to change, is removed from it.
    pub(crate) fn put_index(&mut self, attributes: &Attributes) {
        let inode = attributes.inode;
        let is_held = !self.keys.is_empty() && self.keys.is_changing(&Key::Inode(inode));
        let is_changing = is_held || self.busy.contains_key(&inode);
        let is_old = self.is_written_elsewhere(attributes);
        let is_hidden = attributes.links == 0 || is_changing || is_old;
        self.io.index(match is_hidden {
            true => IndexOp::ForgetInode(inode),
            false => IndexOp::PutInode(*attributes),
        });
    }
}
