//! The state that survives a restart, and the effect of each log change on it. Every mutation of a
//! running service is such a change, applied by the same code, so replay cannot differ.
//!
//! State that does not survive (parked requests, held keys, cached directories) is in
//! `context` and in the subjects.

use std::collections::{BTreeMap, BTreeSet};

use wire::codec::Field;
use wire::{Attributes, Inode, Layout, Malformed, Reader};

use crate::backing::sync_state::SyncEntry;
use crate::core::coding::Put;
use crate::core::record::Record;
use crate::core::table::{Entries, Inodes, Node, RemoteTally, Xattrs};
use crate::files::births::Births;
use crate::files::openings::{self, Opening};
use crate::locks::record_locks::{self, Lock};
use crate::pools::definition::PoolDefinition;
use crate::quota::usage::{Limited, Quota, ShareKey, Usage};

/// Counts of the entries that this service holds of a directory, wherever the directory's inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) spread: u8,
    pub(crate) version: u64,
    pub(crate) entries: u64,
    pub(crate) directories: u64,
    pub(crate) modified: i64,
}

impl Tally {
    /// The record that puts it.
    pub(crate) fn record(&self, directory: Inode) -> Record<'static> {
        Record::PutTally {
            directory,
            spread: self.spread,
            version: self.version,
            entries: self.entries,
            directories: self.directories,
            modified: self.modified.cast_unsigned(),
        }
    }
}

/// Counters of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ShardCounters {
    pub(crate) inode_next: u64,
    pub(crate) place_next: u16,
}

/// Kinds of reply in `Record::PutReply`.
pub(crate) mod reply_kind {
    pub(crate) const DONE: u8 = 1;
    /// `first` is the inode.
    pub(crate) const CREATED: u8 = 2;
    /// `first` is the inode.
    pub(crate) const ATTRIBUTES: u8 = 3;
    /// `first` is the offset, `second` the size.
    pub(crate) const PLACED: u8 = 4;
    /// `first` is the offset, `second` the truncate epoch.
    pub(crate) const RANGE: u8 = 5;
}

/// Client id of requests that are never repeated, so they have no reply cache entry.
pub(crate) const CLIENT_ID_NONE: u64 = u64::MAX;

/// Reply cache entry: the last change of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CachedReply {
    pub(crate) sequence: u64,
    pub(crate) kind: u8,
    pub(crate) first: u64,
    pub(crate) second: u64,
}

/// An operation that targets have yet to perform.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    pub(crate) inode: Inode,
    pub(crate) layout: Layout,
    /// `Pending::TRUNCATE`, `WRITE_ALL` or `OWN`; 2 was a removal.
    pub(crate) kind: u8,
    /// New size of a truncation, in bytes.
    pub(crate) size: u64,
}

impl Pending {
    pub(crate) const TRUNCATE: u8 = 1;
    pub(crate) const WRITE_ALL: u8 = 3;
    /// The file has another owner.
    pub(crate) const OWN: u8 = 5;
}

/// A transaction: group of its coordinator, and its number there.
pub(crate) type TransactionId = (u32, u64);

/// A transaction of another service that this one voted for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Prepared {
    pub(crate) from: u16,
    pub(crate) actions: Vec<u8>,
}

/// Bytes that an imported directory takes.
pub(crate) const IMPORTED_BYTES: u64 = 16;
/// Bytes that an entry takes besides its name, and an inode besides its contents: tree nodes two
/// thirds full and one allocation each.
pub(crate) const ENTRY_BYTES: u64 = 112;
const INODE_BYTES: u64 = 256;

/// The tables.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) entries: Entries,
    pub(crate) inodes: Inodes,
    pub(crate) hosts: BTreeMap<Inode, Vec<Opening>>,
    pub(crate) locks: BTreeMap<Inode, Vec<Lock>>,
    pub(crate) tallies: BTreeMap<Inode, Tally>,
    pub(crate) shards: BTreeMap<u16, ShardCounters>,
    /// By shard, the end of the inode numbers that local operations may use.
    pub(crate) grants: BTreeMap<u16, u64>,
    pub(crate) sequence_next: u64,
    /// Kernels behind mounts may have been let remember something.
    pub(crate) has_mounts: bool,
    pub(crate) reply_cache: BTreeMap<u64, CachedReply>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    /// Removed files whose targets have not all freed their space.
    pub(crate) removals: BTreeMap<u64, Vec<(Inode, Layout)>>,
    pub(crate) prepared: BTreeMap<TransactionId, Prepared>,
    pub(crate) decisions: BTreeMap<u64, Vec<u8>>,
    pub(crate) finished: BTreeSet<TransactionId>,
    pub(crate) floors: BTreeMap<u32, u64>,
    /// Backing locations of inodes. An entry outlives the inode here until it is gone from the
    /// backing store.
    pub(crate) sync_entries: BTreeMap<Inode, SyncEntry>,
    /// Imported directories; they outlive the inode, too.
    pub(crate) imported: BTreeSet<Inode>,
    /// Dirty names, each with the inode that the backing store has by this name.
    pub(crate) dirty_names: Entries,
    pub(crate) dirty_count: u64,
    /// Inodes that are backed but differ from the backing store: derived, not stored.
    pub(crate) dirty_inodes: BTreeSet<Inode>,
    /// By shard, the next number for an imported inode.
    pub(crate) backed_inode_next: BTreeMap<u16, u64>,
    /// Inodes without a name: derived, not stored.
    pub(crate) orphans: BTreeSet<Inode>,
    /// Usage by account: derived, not stored.
    pub(crate) usage: Usage,
    /// Accounts with limited resources.
    pub(crate) limited: BTreeMap<u64, Limited>,
    /// Coordinator only: all limits.
    pub(crate) quotas: BTreeMap<u64, Quota>,
    /// Coordinator only: shares of each service, by account, resource and group.
    pub(crate) shares: BTreeMap<ShareKey, u64>,
    /// Pools of targets by number, removed ones included.
    pub(crate) pools: BTreeMap<u8, PoolDefinition>,
    /// Which losses of file data files are younger than.
    pub(crate) births: Births,
    /// Files that may have lost changes.
    pub(crate) lost_changes: BTreeSet<Inode>,
    /// Estimated memory of entries and inodes, in bytes.
    pub(crate) bytes: u64,
}

impl State {
    /// Applies one change.
    pub(crate) fn apply(&mut self, record: &Record<'_>) -> Result<(), Malformed> {
        match *record {
            Record::PutEntry { parent, name, inode, mode } => {
                if self.entries.put(parent, name, inode, mode) {
                    self.bytes += ENTRY_BYTES + name.len() as u64;
                }
            }
            Record::DeleteEntry { parent, name } => {
                if self.entries.remove(parent, name) {
                    let bytes = ENTRY_BYTES + name.len() as u64;
                    self.bytes = self.bytes.saturating_sub(bytes);
                }
            }
            Record::DeleteEntries { directory, first, last } => {
                for name in self.entries.remove_range(directory, first, last) {
                    let bytes = ENTRY_BYTES + name.len() as u64;
                    self.bytes = self.bytes.saturating_sub(bytes);
                }
            }
            Record::PutTally { directory, spread, version, entries, directories, modified } => {
                let modified = modified.cast_signed();
                let tally = Tally { spread, version, entries, directories, modified };
                self.tallies.insert(directory, tally);
                self.refresh(directory, modified);
            }
            Record::DeleteTally { directory } => {
                self.tallies.remove(&directory);
            }
            Record::PutRemoteTally {
                directory,
                group,
                version,
                entries,
                directories,
                modified,
            } => {
                let modified = modified.cast_signed();
                let tally = RemoteTally { group, version, entries, directories, modified };
                self.put_remote_tally(directory, tally);
            }
            Record::PutReply { client_id, sequence, kind, first, second } => {
                self.reply_cache.insert(client_id, CachedReply { sequence, kind, first, second });
            }
            Record::PutInode { .. }
            | Record::DeleteInode { .. }
            | Record::PutAttributes { .. }
            | Record::PutContents { .. }
            | Record::PutHosts { .. }
            | Record::PutLocks { .. } => return self.apply_to_inode(record),
            _ => return self.apply_to_transactions(record),
        }
        Ok(())
    }

    fn apply_to_inode(&mut self, record: &Record<'_>) -> Result<(), Malformed> {
        match *record {
            Record::PutInode { attributes, nameless, target, contents, xattrs, tallies } => {
                let xattrs = decode_xattrs(xattrs)?;
                let node = Node {
                    attributes,
                    is_nameless: nameless != 0,
                    target: target.into(),
                    contents: contents.to_vec(),
                    xattrs: if xattrs.is_empty() { None } else { Some(Box::new(xattrs)) },
                    tallies: decode_tallies(tallies)?,
                };
                self.put_node(node);
            }
            Record::DeleteInode { inode } => {
                if let Some(node) = self.inodes.remove(inode) {
                    self.bytes = self.bytes.saturating_sub(bytes_of(&node));
                    self.usage.remove(&node.attributes, node.contents.len());
                    if node.attributes.links == 0 {
                        self.orphans.remove(&inode);
                    }
                    self.note_dirty_inode(inode);
                }
                if !self.hosts.is_empty() {
                    self.hosts.remove(&inode);
                }
                if !self.locks.is_empty() {
                    self.locks.remove(&inode);
                }
                self.births.emptied.remove(&inode);
                self.lost_changes.remove(&inode);
            }
            Record::PutAttributes { attributes } => self.put_attributes(&attributes, None),
            Record::PutContents { attributes, contents } => {
                self.put_attributes(&attributes, Some(contents));
            }
            Record::PutHosts { inode, hosts } => {
                let hosts = openings::decode(hosts)?;
                if hosts.is_empty() {
                    self.hosts.remove(&inode);
                } else {
                    self.hosts.insert(inode, hosts);
                }
            }
            Record::PutLocks { inode, locks } => {
                let held = record_locks::decode(locks)?;
                if held.is_empty() {
                    self.locks.remove(&inode);
                } else {
                    self.locks.insert(inode, held);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn apply_to_transactions(&mut self, record: &Record<'_>) -> Result<(), Malformed> {
        match *record {
            Record::PutShard { shard, inode_next, place_next } => {
                self.shards.insert(shard, ShardCounters { inode_next, place_next });
            }
            Record::PutGrant { shard, end } => {
                self.grants.insert(shard, end);
            }
            Record::PutCounter { sequence_next } => self.sequence_next = sequence_next,
            Record::PutBirth { number, loss } => {
                self.births.by_number.insert(number, loss);
            }
            Record::PutEmptied { inode, loss } => {
                if self.inodes.get(inode).is_some() {
                    self.births.emptied.insert(inode, loss);
                }
            }
            Record::PutMounts { may } => self.has_mounts = may != 0,
            Record::ForgetClients { first, count } => {
                let end = first.saturating_add(count);
                while let Some((&client_id, _)) = self.reply_cache.range(first..end).next() {
                    self.reply_cache.remove(&client_id);
                }
            }
            Record::PutPending { token, inode, layout, kind, size } => {
                self.pending.insert(token, Pending { inode, layout, kind, size });
            }
            Record::DeletePending { token } => {
                self.removals.remove(&token);
                self.pending.remove(&token);
            }
            Record::PutRemoval { token, files } => {
                self.removals.insert(token, decode_files(files)?);
            }
            Record::PutPrepared { group, sequence, from, actions } => {
                let prepared = Prepared { from, actions: actions.to_vec() };
                self.prepared.insert((group, sequence), prepared);
            }
            Record::DeletePrepared { group, sequence } => {
                self.prepared.remove(&(group, sequence));
            }
            Record::PutDecision { sequence, left } => {
                self.decisions.insert(sequence, left.to_vec());
            }
            Record::DeleteDecision { sequence } => {
                self.decisions.remove(&sequence);
            }
            Record::PutFinished { group, sequence } => {
                self.finished.insert((group, sequence));
            }
            Record::PutFloor { group, floor } => {
                self.floors.insert(group, floor);
                while let Some(&id) = self.finished.range((group, 0)..(group, floor)).next() {
                    self.finished.remove(&id);
                }
            }
            Record::PutSyncEntry { .. }
            | Record::DeleteSyncEntry { .. }
            | Record::PutImported { .. }
            | Record::PutDirty { .. }
            | Record::DeleteDirty { .. }
            | Record::PutBackedNext { .. }
            | Record::PutLostChanges { .. }
            | Record::DeleteLostChanges { .. } => return self.apply_to_backing(record),
            Record::PutPool { .. } => self.apply_to_pools(record),
            _ => self.apply_to_quotas(record),
        }
        Ok(())
    }

    fn put_node(&mut self, node: Node) {
        let (inode, links) = (node.attributes.inode, node.attributes.links);
        let mut was = 0;
        if let Some(old) = self.inodes.get(inode) {
            was = bytes_of(old);
            self.usage.remove(&old.attributes, old.contents.len());
        }
        self.bytes = (self.bytes + bytes_of(&node)).saturating_sub(was);
        self.usage.add(&node.attributes, node.contents.len());
        self.inodes.put(node);
        self.note_links(inode, links);
        self.note_dirty_inode(inode);
    }

    fn put_attributes(&mut self, attributes: &Attributes, contents: Option<&[u8]>) {
        let Some(node) = self.inodes.get_mut(attributes.inode) else { return };
        let links_change = (node.attributes.links == 0) != (attributes.links == 0);
        let length = contents.map_or(node.contents.len(), <[u8]>::len);
        if node.attributes.owner() != attributes.owner() || node.contents.len() != length {
            self.usage.remove(&node.attributes, node.contents.len());
            self.usage.add(attributes, length);
        }
        node.attributes = *attributes;
        node.is_nameless &= attributes.links == 0;
        if let Some(contents) = contents {
            self.bytes =
                (self.bytes + contents.len() as u64).saturating_sub(node.contents.len() as u64);
            node.contents.clear();
            node.contents.extend_from_slice(contents);
        }
        if links_change {
            self.note_links(attributes.inode, attributes.links);
        }
        self.note_dirty_inode(attributes.inode);
    }

    fn note_links(&mut self, inode: Inode, links: u32) {
        if links == 0 {
            self.orphans.insert(inode);
        } else if !self.orphans.is_empty() {
            self.orphans.remove(&inode);
        }
    }

    fn put_remote_tally(&mut self, directory: Inode, tally: RemoteTally) {
        let Some(node) = self.inodes.get_mut(directory) else { return };
        match node.tallies.iter_mut().find(|known| known.group == tally.group) {
            Some(known) if known.version >= tally.version => return,
            Some(known) => *known = tally,
            None => node.tallies.push(tally),
        }
        self.refresh(directory, tally.modified);
    }

    /// Brings links, size and times of a directory in line with its tallies, if its inode is here.
    fn refresh(&mut self, directory: Inode, modified: i64) {
        let own = self.tallies.get(&directory).copied().unwrap_or_default();
        let Some(node) = self.inodes.get_mut(directory) else { return };
        let mut directories = own.directories;
        let mut entries = own.entries;
        for tally in &node.tallies {
            directories = directories.saturating_add(tally.directories);
            entries = entries.saturating_add(tally.entries);
        }
        let attributes = &mut node.attributes;
        if attributes.links != 0 {
            attributes.links = u32::try_from(directories.saturating_add(2)).unwrap_or(u32::MAX);
        }
        attributes.size = entries;
        if modified > attributes.changed {
            attributes.modified = modified;
            attributes.changed = modified;
            self.note_dirty_inode(directory);
        }
    }
}

fn bytes_of(node: &Node) -> u64 {
    let xattrs = node.xattrs.as_deref().map_or(0, |xattrs| {
        xattrs.iter().map(|(name, value)| 64 + name.len() + value.len()).sum::<usize>()
    });
    INODE_BYTES + (node.contents.len() + node.target.len() + xattrs) as u64
}

/// Appends extended attributes: name and value, each with its length.
pub(crate) fn encode_xattrs(xattrs: Option<&Xattrs>, to: &mut Vec<u8>) {
    for (name, value) in xattrs.into_iter().flatten() {
        (&**name).append_to(to);
        (&**value).append_to(to);
    }
}

pub(crate) fn decode_xattrs(bytes: &[u8]) -> Result<Xattrs, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut xattrs = Xattrs::new();
    while !reader.rest().is_empty() {
        xattrs.insert(reader.bytes()?.into(), reader.bytes()?.into());
    }
    Ok(xattrs)
}

/// Appends remote tallies: group, version, entries, directories, modified of each.
pub(crate) fn encode_tallies(tallies: &[RemoteTally], to: &mut Vec<u8>) {
    for tally in tallies {
        tally.group.append_to(to);
        tally.version.append_to(to);
        tally.entries.append_to(to);
        tally.directories.append_to(to);
        tally.modified.cast_unsigned().append_to(to);
    }
}

pub(crate) fn decode_tallies(bytes: &[u8]) -> Result<Vec<RemoteTally>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut tallies = Vec::new();
    while !reader.rest().is_empty() {
        tallies.push(RemoteTally {
            group: Field::take(&mut reader)?,
            version: Field::take(&mut reader)?,
            entries: Field::take(&mut reader)?,
            directories: Field::take(&mut reader)?,
            modified: reader.u64()?.cast_signed(),
        });
    }
    Ok(tallies)
}

/// Appends files: inode and layout of each.
pub(crate) fn encode_files(files: &[(Inode, Layout)], to: &mut Vec<u8>) {
    for (inode, layout) in files {
        inode.append_to(to);
        layout.append_to(to);
    }
}

pub(crate) fn decode_files(bytes: &[u8]) -> Result<Vec<(Inode, Layout)>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut files = Vec::new();
    while !reader.rest().is_empty() {
        files.push((Inode(reader.u64()?), Layout::decode(&mut reader)?));
    }
    Ok(files)
}
