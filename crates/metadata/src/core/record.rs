//! Records of the log, described by byte. Their effect on the tables is in `state`.
//!
//! A log record (one per step) is the byte `VERSION`, then any number of changes. A change is one
//! byte of number, then its fields in the order of their declaration: numbers little-endian in
//! their natural width, an inode 8 bytes, attributes and layouts as `wire::attributes` says, byte
//! strings with four bytes of length before them. A number never changes its meaning.
//!
//! Invariants
//! 1. Every change is absolute: applying it twice is applying it once.
//! 2. A change of something that does not exist is ignored, so that a snapshot taken in slices may
//!    be mixed with the changes that happened meanwhile (`Service::snapshot_slice`).

use wire::{Attributes, Inode, Layout, Malformed, Reader};

use crate::core::coding::numbered;

/// First byte of every log record.
pub(crate) const VERSION: u8 = 1;

numbered! {
    /// One change of the tables.
    pub(crate) enum Record<'a> {
        /// An entry.
        0x01 PutEntry { parent: Inode, name: &'a [u8], inode: Inode, mode: u32 }
        /// The entry does not exist.
        0x02 DeleteEntry { parent: Inode, name: &'a [u8] }
        /// An inode with all its parts. `nameless`: 1 if it was created without a name and may get
        /// one. `xattrs`: name and value, each with its length, in order. `tallies`: encoded
        /// `state::RemoteTally`s.
        0x03 PutInode {
            attributes: Attributes, nameless: u8, target: &'a [u8], contents: &'a [u8],
            xattrs: &'a [u8], tallies: &'a [u8],
        }
        /// The inode does not exist; its open hosts and locks go with it.
        0x04 DeleteInode { inode: Inode }
        /// Attributes of an inode that exists.
        0x05 PutAttributes { attributes: Attributes }
        /// Attributes and inline contents of an inode that exists.
        0x06 PutContents { attributes: Attributes, contents: &'a [u8] }
        /// Counts of the entries that this service holds of a directory.
        0x09 PutTally {
            directory: Inode, spread: u8, version: u64, entries: u64, directories: u64,
            modified: u64,
        }
        /// This service no longer holds entries of the directory.
        0x0a DeleteTally { directory: Inode }
        /// Counts of the entries that another service holds of a directory whose inode is here.
        0x0b PutRemoteTally {
            directory: Inode, group: u32, version: u64, entries: u64, directories: u64,
            modified: u64,
        }
        /// Counters of a shard: inode numbers below `inode_next` are used; `place_next` is the
        /// place of the next top directory.
        0x0c PutShard { shard: u16, inode_next: u64, place_next: u16 }
        /// Tokens and transaction numbers below `sequence_next` are used.
        0x0d PutCounter { sequence_next: u64 }
        /// Reply cache entry: the last change of a client; a repetition gets the same reply.
        0x0e PutReply { client_id: u64, sequence: u64, kind: u8, first: u64, second: u64 }
        /// Reply cache entries of clients `first .. first + count` are forgotten.
        0x0f ForgetClients { first: u64, count: u64 }
        /// An operation that targets have yet to perform; `kind` and `size` as in `state::Pending`.
        0x10 PutPending { token: u64, inode: Inode, layout: Layout, kind: u8, size: u64 }
        /// The targets have performed it.
        0x11 DeletePending { token: u64 }
        /// A transaction of another service that this one voted for. `from`: a shard of its
        /// coordinator. `actions`: encoded `peer_messages::Action`s.
        0x12 PutPrepared { group: u32, sequence: u64, from: u16, actions: &'a [u8] }
        /// The transaction is finished, committed or aborted.
        0x13 DeletePrepared { group: u32, sequence: u64 }
        /// A transaction of this service is committed. `left`: the participants that have not
        /// acknowledged it, for each its group (4 bytes) and a shard of it (2 bytes).
        0x14 PutDecision { sequence: u64, left: &'a [u8] }
        /// All participants have acknowledged it.
        0x15 DeleteDecision { sequence: u64 }
        /// A transaction that was committed here: a late duplicate of its messages has no effect.
        0x16 PutFinished { group: u32, sequence: u64 }
        /// The group will never again send messages about transactions below `floor`.
        0x17 PutFloor { group: u32, floor: u64 }
        /// Inode numbers of a shard below `end` may have been used by local operations of clients.
        0x18 PutGrant { shard: u16, end: u64 }
        /// Removed files, until `DeletePending`: targets must free all that they hold of them. For
        /// each its inode and its layout.
        0x19 PutRemoval { token: u64, files: &'a [u8] }
        /// Other hosts that have an inode open: encoded `open_files::Opening`s. The number 0x07 was
        /// the same without open sequences.
        0x1a PutHosts { inode: Inode, hosts: &'a [u8] }
        /// Limited resources of an account (bits of `usage::limits`), as the coordinator announced
        /// them under this number.
        0x1b PutLimited { account: u64, number: u64, flags: u8 }
        /// Coordinator only: limits of an account, set under this number. `space_since`,
        /// `inodes_since`: when the soft limit was exceeded, 0: it is not. `known` 1: all services
        /// know it.
        0x1c PutQuota {
            account: u64, number: u64, space_soft: u64, space_hard: u64, inodes_soft: u64,
            inodes_hard: u64, grace: u64, space_since: u64, inodes_since: u64, known: u8,
        }
        /// Coordinator only: share of a resource (`usage::resource`) that the service `group` may
        /// have in use for an account.
        0x1d PutShare { account: u64, resource: u8, group: u32, amount: u64 }
        /// Locks on an inode: encoded `record_locks::Lock`s. The number 0x08 was the same without
        /// parties.
        0x1e PutLocks { inode: Inode, locks: &'a [u8] }
        /// Sync entry of an inode: its backing location, the location it is about to have, and its
        /// partial file: each an encoded `wire::backing::BackingLocation`, or nothing. The number
        /// 0x1f was the same without a partial file.
        0x25 PutSyncEntry { inode: Inode, now: &'a [u8], next: &'a [u8], partial: &'a [u8] }
        /// All entries of a directory in the backing store are imported.
        0x20 PutImported { directory: Inode }
        /// Numbers of a shard for imported inodes are used below `next`.
        0x21 PutBackedNext { shard: u16, next: u64 }
        /// The inode has no backing location.
        0x22 DeleteSyncEntry { inode: Inode }
        /// A dirty name: its entry differs from the backing store, which has `backed_inode` by this
        /// name, or nothing.
        0x23 PutDirty { parent: Inode, name: &'a [u8], backed_inode: Inode }
        /// The name is clean: its entry is in the backing store.
        0x24 DeleteDirty { parent: Inode, name: &'a [u8] }
        /// A pool of targets, set under this number. `targets` as in `wire::pool`; none: it is removed.
        /// `known` 1: all services know it.
        0x30 PutPool { id: u8, number: u64, name: &'a [u8], targets: &'a [u8], known: u8 }
        /// Kernels behind mounts may have been let remember something, if `may` is 1.
        0x31 PutMounts { may: u8 }
        /// New files have numbers from `number` of their kind on, and are made after this loss of units
        /// of file data, as `files::births` says.
        0x32 PutBirth { number: u64, loss: u64 }
        /// The file had nothing on targets after this loss.
        0x33 PutEmptied { inode: Inode, loss: u64 }
        /// Changes of the file, which has one copy, may be lost (`backing::lost_changes`).
        0x34 PutLostChanges { inode: Inode }
        /// The file was emptied since.
        0x35 DeleteLostChanges { inode: Inode }
        /// Entries of the directory with hashes from `first` to `last` are at other services.
        0x36 DeleteEntries { directory: Inode, first: u64, last: u64 }
    }
}

/// The changes of a log record, in order. Stops after the first that is malformed.
pub(crate) fn changes(bytes: &[u8]) -> Result<Changes<'_>, Malformed> {
    let mut reader = Reader::new(bytes);
    if reader.u8()? != VERSION {
        return Err(Malformed);
    }
    Ok(Changes { reader })
}

/// See `changes`.
pub(crate) struct Changes<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for Changes<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.rest().is_empty() {
            return None;
        }
        let change = Record::decode(&mut self.reader);
        if change.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::attributes::ATTRIBUTES_BYTES;

    fn attributes_of(bytes: &[u8; ATTRIBUTES_BYTES]) -> Attributes {
        Attributes::decode(&mut Reader::new(bytes)).expect("the right length")
    }

    fn records<'a>(n: [u64; 4], a: Attributes, s: &'a [u8], t: &'a [u8]) -> Vec<Record<'a>> {
        let [w, x, y, z] = n;
        let (inode, mode, group) = (Inode(x), y as u32, z as u32);
        vec![
            Record::PutEntry { parent: Inode(w), name: s, inode, mode },
            Record::DeleteEntry { parent: Inode(w), name: t },
            Record::PutInode {
                attributes: a,
                nameless: 1,
                target: s,
                contents: t,
                xattrs: s,
                tallies: t,
            },
            Record::DeleteInode { inode },
            Record::PutAttributes { attributes: a },
            Record::PutContents { attributes: a, contents: s },
            Record::PutHosts { inode, hosts: s },
            Record::PutLocks { inode, locks: t },
            Record::PutTally {
                directory: inode,
                spread: 1,
                version: w,
                entries: x,
                directories: y,
                modified: z,
            },
            Record::DeleteTally { directory: inode },
            Record::PutRemoteTally {
                directory: inode,
                group,
                version: w,
                entries: x,
                directories: y,
                modified: z,
            },
            Record::PutShard { shard: w as u16, inode_next: x, place_next: y as u16 },
            Record::PutCounter { sequence_next: w },
            Record::PutReply { client_id: w, sequence: x, kind: y as u8, first: z, second: w },
            Record::ForgetClients { first: w, count: x },
            Record::PutPending { token: w, inode, layout: a.layout, kind: 2, size: z },
            Record::DeletePending { token: w },
            Record::PutPrepared { group, sequence: w, from: x as u16, actions: s },
            Record::DeletePrepared { group, sequence: w },
            Record::PutDecision { sequence: w, left: t },
            Record::DeleteDecision { sequence: w },
            Record::PutFinished { group, sequence: w },
            Record::PutFloor { group, floor: w },
            Record::PutGrant { shard: x as u16, end: y },
            Record::PutRemoval { token: w, files: t },
            Record::PutLimited { account: w, number: x, flags: y as u8 },
            Record::PutQuota {
                account: w,
                number: x,
                space_soft: y,
                space_hard: z,
                inodes_soft: w,
                inodes_hard: x,
                grace: y,
                space_since: z,
                inodes_since: w,
                known: x as u8,
            },
            Record::PutShare { account: w, resource: x as u8, group, amount: z },
            Record::PutPool { id: w as u8, number: x, name: s, targets: t, known: y as u8 },
            Record::PutMounts { may: w as u8 },
            Record::PutBirth { number: w, loss: x },
            Record::PutEmptied { inode, loss: z },
        ]
    }

    fn backing_records<'a>(n: [u64; 4], s: &'a [u8], t: &'a [u8]) -> Vec<Record<'a>> {
        let [w, x, y, z] = n;
        let (inode, parent) = (Inode(x), Inode(w));
        vec![
            Record::PutSyncEntry { inode, now: s, next: t, partial: s },
            Record::PutImported { directory: inode },
            Record::PutBackedNext { shard: w as u16, next: y },
            Record::DeleteSyncEntry { inode },
            Record::PutDirty { parent, name: s, backed_inode: Inode(z) },
            Record::DeleteDirty { parent, name: t },
            Record::PutLostChanges { inode },
            Record::DeleteLostChanges { inode },
            Record::DeleteEntries { directory: inode, first: y, last: z },
        ]
    }

    proptest! {
        /// Every change survives encoding, singly and in sequence.
        #[test]
        fn changes_survive_encoding(
            n: [u64; 4],
            a in prop::array::uniform32(any::<u8>()),
            s: Vec<u8>,
            t: Vec<u8>,
        ) {
            let mut bytes = [0; ATTRIBUTES_BYTES];
            bytes[..32].copy_from_slice(&a);
            bytes[40..72].copy_from_slice(&a);
            let mut all = records(n, attributes_of(&bytes), &s, &t);
            all.extend(backing_records(n, &s, &t));
            let mut log = vec![VERSION];
            all.iter().for_each(|record| record.encode(&mut log));
            let read: Result<Vec<_>, _> = changes(&log).expect("a version").collect();
            prop_assert_eq!(read, Ok(all));
        }

        /// Any bytes are read without a panic, and reading ends.
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            if let Ok(changes) = changes(&bytes) {
                prop_assert!(changes.count() <= bytes.len());
            }
        }
    }
}
