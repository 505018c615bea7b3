//! Sync state of names and inodes: where inodes are in the backing store, and which names and
//! inodes are dirty. The tables, and the effect of each log change on them. Requests and reports
//! are in `dirty`.
//!
//! Invariants
//! 1. A name is in `dirty_names` exactly if the backing store has another inode by it than its
//!    entry. The step that changes an entry changes the dirty name in the same record
//!    (`core::change`).
//! 2. An inode is in `dirty_inodes` exactly if it has a backing location, or is about to, and the
//!    backing store does not have it as it is here, or if it has a partial file: that follows from
//!    the records of both, so it is derived whenever one of them is put.

use wire::backing::{BackingLocation, Stamp, Version};
use wire::codec::Field;
use wire::{Inode, Malformed, Reader, Writer};

use crate::core::record::Record;
use crate::core::state::{ENTRY_BYTES, IMPORTED_BYTES, State};

/// A backing location, and the version there: see `wire::backing::BackingLocation`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    /// The directory, an inode of this instance.
    pub(crate) parent: Inode,
    pub(crate) name: Box<[u8]>,
    pub(crate) version: Version,
    /// Number of leading bytes there that belong to the file: the rest was truncated here since.
    pub(crate) counts: u64,
    pub(crate) stamp: Stamp,
}

impl Location {
    pub(crate) fn of(location: &BackingLocation<'_>) -> Location {
        let BackingLocation { parent, name, version, counts, stamp } = *location;
        Location { parent, name: name.into(), version, counts, stamp }
    }

    pub(crate) fn as_location(&self) -> BackingLocation<'_> {
        let Location { parent, ref name, version, counts, stamp } = *self;
        BackingLocation { parent, name, version, counts, stamp }
    }

    /// True if `location` is the same location with the same version.
    pub(crate) fn is_as(&self, location: &BackingLocation<'_>) -> bool {
        self.parent == location.parent
            && *self.name == *location.name
            && self.version == location.version
    }
}

/// Backing location of a directory: its parent, its name in it, and its inode number there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct DirLocation {
    pub(crate) parent: Inode,
    pub(crate) name: Vec<u8>,
    pub(crate) number: u64,
}

/// Sync entry of an inode: its state *in the backing store*, which changes of its names in the
/// instance do not affect.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SyncEntry {
    pub(crate) now: Option<Location>,
    /// The location that it is about to have.
    pub(crate) next: Option<Box<Location>>,
    /// Its partial file: bytes of an open file that were written back, and may be evicted here.
    pub(crate) partial: Option<Box<Location>>,
}

/// Bytes that a `SyncEntry` takes besides its names: a tree node two thirds full.
const LOCATION_BYTES: u64 = 192;

impl SyncEntry {
    fn bytes(&self) -> u64 {
        let name = |location: &Location| location.name.len() as u64;
        let more =
            self.next.iter().chain(&self.partial).map(|location| LOCATION_BYTES + name(location));
        LOCATION_BYTES + self.now.as_ref().map_or(0, name) + more.sum::<u64>()
    }

    /// Passes the record that puts it to `put`.
    pub(crate) fn record<T>(&self, inode: Inode, put: impl FnOnce(&Record<'_>) -> T) -> T {
        let [mut now, mut next, mut partial] = [[0; BackingLocation::BYTES_MAX]; 3];
        let now = encoded(self.now.as_ref(), &mut now);
        let next = encoded(self.next.as_deref(), &mut next);
        let partial = encoded(self.partial.as_deref(), &mut partial);
        put(&Record::PutSyncEntry { inode, now, next, partial })
    }
}

fn encoded<'b>(location: Option<&Location>, to: &'b mut [u8]) -> &'b [u8] {
    let mut writer = Writer::new(to);
    if let Some(location) = location {
        location.as_location().put(&mut writer);
    }
    // A parsed name always fits.
    let length = writer.finish().unwrap_or(0);
    to.get(..length).unwrap_or_default()
}

fn decoded(bytes: &[u8]) -> Result<Option<Location>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut reader = Reader::new(bytes);
    let location = BackingLocation::take(&mut reader)?;
    reader.end()?;
    if location.name.len() > wire::limits::NAME_BYTES_MAX {
        return Err(Malformed);
    }
    Ok(Some(Location::of(&location)))
}

impl State {
    pub(crate) fn apply_to_backing(&mut self, record: &Record<'_>) -> Result<(), Malformed> {
        match *record {
            Record::PutSyncEntry { inode, now, next, partial } => {
                let [next, partial] =
                    [decoded(next)?, decoded(partial)?].map(|it| it.map(Box::new));
                let sync_entry = SyncEntry { now: decoded(now)?, next, partial };
                self.bytes += sync_entry.bytes();
                self.forget_bytes(&inode);
                self.sync_entries.insert(inode, sync_entry);
                self.note_dirty_inode(inode);
            }
            Record::DeleteSyncEntry { inode } => {
                self.forget_bytes(&inode);
                self.sync_entries.remove(&inode);
                self.dirty_inodes.remove(&inode);
            }
            Record::PutImported { directory } => {
                let is_new = self.imported.insert(directory);
                self.bytes += if is_new { IMPORTED_BYTES } else { 0 };
            }
            Record::PutBackedNext { shard, next } => {
                self.backed_inode_next.insert(shard, next);
            }
            Record::PutDirty { parent, name, backed_inode } => {
                let is_new = self.dirty_names.put(parent, name, backed_inode, 0);
                self.dirty_count += u64::from(is_new);
                self.bytes += if is_new { ENTRY_BYTES + name.len() as u64 } else { 0 };
            }
            Record::DeleteDirty { parent, name } => {
                let is_gone = self.dirty_names.remove(parent, name);
                let bytes = if is_gone { ENTRY_BYTES + name.len() as u64 } else { 0 };
                self.dirty_count -= u64::from(is_gone);
                self.bytes = self.bytes.saturating_sub(bytes);
            }
            Record::PutLostChanges { inode } if self.inodes.get(inode).is_some() => {
                self.lost_changes.insert(inode);
            }
            Record::DeleteLostChanges { inode } => {
                self.lost_changes.remove(&inode);
            }
            _ => {}
        }
        Ok(())
    }

    fn forget_bytes(&mut self, inode: &Inode) {
        let bytes = self.sync_entries.get(inode).map_or(0, SyncEntry::bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Updates the set of dirty inodes after a change of an inode, or of its sync entry.
    pub(crate) fn note_dirty_inode(&mut self, inode: Inode) {
        if self.sync_entries.is_empty() {
            return;
        }
        let Some(sync_entry) = self.sync_entries.get(&inode) else { return };
        let node = self.inodes.get(inode);
        let is_as_here = |location: &Location| {
            node.is_some_and(|node| node.attributes.changed == location.stamp.changed)
        };
        let is_settled = sync_entry.next.is_none() && sync_entry.partial.is_none();
        if is_settled && sync_entry.now.as_ref().is_some_and(is_as_here) {
            self.dirty_inodes.remove(&inode);
        } else {
            self.dirty_inodes.insert(inode);
        }
    }

    /// The inode that the backing store has by a name.
    pub(crate) fn backed_inode(&self, parent: Inode, name: &[u8]) -> Inode {
        let dirty_names = self.dirty_names.get(parent, name);
        dirty_names.or_else(|| self.entries.get(parent, name)).map_or(Inode::NONE, |found| found.0)
    }

    /// True if an inode has a backing location, from an import or a report of the writeback daemon.
    pub(crate) fn has_backing_location(&self, inode: Inode) -> bool {
        self.sync_entries.get(&inode).is_some_and(|sync_entry| sync_entry.now.is_some())
    }
}
