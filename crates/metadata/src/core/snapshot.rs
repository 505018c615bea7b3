//! The state as log records, in slices, while the service runs.
//!
//! A slice is one log record of absolute changes for a range of keys of one table. Replaying the
//! slices together with the records of the steps between them, in the order of their writing, gives
//! the final state: a change made before its slice is in the slice, a change made after it is in a
//! later record, and changes of things that do not exist yet are ignored.

use core::ops::Bound;
use std::collections::BTreeMap;

use wire::Inode;
use wire::hash::NameHash;

use crate::core::record::{Record, VERSION};
use crate::core::state::{State, encode_files, encode_tallies, encode_xattrs};
use crate::core::table::{Entries, Entry};
use crate::files::openings;
use crate::locks::record_locks;

/// Position of a running snapshot in the tables; starts with `default()`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SnapshotCursor {
    table: u8,
    /// The next key, in three numbers.
    key: (u64, u64, u8),
}

impl State {
    /// Appends about `budget_bytes` of the state as one log record to `out` (nothing if nothing is
    /// left); returns false after the last slice. To rewrite the log: start a new one, append the
    /// slices as they are taken and the records of steps as they are made; after the last slice the
    /// new log replaces the old one.
    pub(crate) fn take_slice(
        &self,
        cursor: &mut SnapshotCursor,
        budget_bytes: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let start = out.len();
        out.push(VERSION);
        let end = start.saturating_add(budget_bytes.max(1));
        while cursor.table < TABLES && out.len() < end {
            let next = slice(self, cursor.table, cursor.key, end, out);
            *cursor = match next {
                Some(key) => SnapshotCursor { table: cursor.table, key },
                None => SnapshotCursor { table: cursor.table + 1, key: (0, 0, 0) },
            };
        }
        if out.len() == start + 1 {
            out.truncate(start);
        }
        cursor.table < TABLES
    }
}

/// Number of tables.
const TABLES: u8 = 26;

/// The next key in a table; `None`: the table is complete.
type Next = Option<(u64, u64, u8)>;

fn slice(state: &State, table: u8, from: (u64, u64, u8), end: usize, out: &mut Vec<u8>) -> Next {
    match table {
        0 => slice_inodes(state, Inode(from.0), end, out),
        1 => slice_names(&state.entries, from, end, out, |parent, entry| {
            let (name, inode, mode) = (&*entry.name, entry.inode, entry.mode);
            Record::PutEntry { parent, name, inode, mode }
        }),
        2 => each(&state.tallies, Inode(from.0), end, out, |&directory, tally| {
            tally.record(directory)
        })
        .map(|inode| (inode.0, 0, 0)),
        3 => slice_bytes(&state.hosts, Inode(from.0), end, out, |&inode, hosts, out| {
            let mut bytes = Vec::new();
            openings::encode(hosts, &mut bytes);
            Record::PutHosts { inode, hosts: &bytes }.encode(out);
        })
        .map(|inode| (inode.0, 0, 0)),
        4 => slice_bytes(&state.locks, Inode(from.0), end, out, |&inode, held, out| {
            let mut bytes = Vec::new();
            record_locks::encode(held, &mut bytes);
            Record::PutLocks { inode, locks: &bytes }.encode(out);
        })
        .map(|inode| (inode.0, 0, 0)),
        5 => each(&state.reply_cache, from.0, end, out, |&client_id, outcome| Record::PutReply {
            client_id,
            sequence: outcome.sequence,
            kind: outcome.kind,
            first: outcome.first,
            second: outcome.second,
        })
        .map(|client_id| (client_id, 0, 0)),
        6 => each(&state.pending, from.0, end, out, |&token, pending| Record::PutPending {
            token,
            inode: pending.inode,
            layout: pending.layout,
            kind: pending.kind,
            size: pending.size,
        })
        .map(|token| (token, 0, 0)),
        _ => slice_small(state, table, from, end, out),
    }
}

fn slice_small(
    state: &State,
    table: u8,
    from: (u64, u64, u8),
    end: usize,
    out: &mut Vec<u8>,
) -> Next {
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    match table {
        7 => each(&state.shards, from.0 as u16, end, out, |&shard, counters| Record::PutShard {
            shard,
            inode_next: counters.inode_next,
            place_next: counters.place_next,
        })
        .map(|shard| (u64::from(shard), 0, 0)),
        8 => each(&state.prepared, (number(from.0), from.1), end, out, |&id, prepared| {
            let (group, sequence) = id;
            let actions = &prepared.actions;
            Record::PutPrepared { group, sequence, from: prepared.from, actions }
        })
        .map(|(group, sequence)| (u64::from(group), sequence, 0)),
        9 => each(&state.decisions, from.0, end, out, |&sequence, left| Record::PutDecision {
            sequence,
            left,
        })
        .map(|sequence| (sequence, 0, 0)),
        10 => each(&state.floors, number(from.0), end, out, |&group, &floor| Record::PutFloor {
            group,
            floor,
        })
        .map(|group| (u64::from(group), 0, 0)),
        11 => {
            let mut finished = state.finished.range((number(from.0), from.1)..);
            for &(group, sequence) in finished.by_ref() {
                if out.len() >= end {
                    return Some((u64::from(group), sequence, 0));
                }
                Record::PutFinished { group, sequence }.encode(out);
            }
            None
        }
        12 => {
            put_words(state, out);
            None
        }
        13 => each(&state.grants, from.0 as u16, end, out, |&shard, &end| Record::PutGrant {
            shard,
            end,
        })
        .map(|shard| (u64::from(shard), 0, 0)),
        14 => slice_bytes(&state.removals, from.0, end, out, |&token, files, out| {
            let mut bytes = Vec::new();
            encode_files(files, &mut bytes);
            Record::PutRemoval { token, files: &bytes }.encode(out);
        })
        .map(|token| (token, 0, 0)),
        15 => each(&state.limited, from.0, end, out, |&account, limited| limited.record(account))
            .map(|account| (account, 0, 0)),
        16 => each(&state.quotas, from.0, end, out, |&account, quota| quota.record(account))
            .map(|account| (account, 0, 0)),
        17 => each(&state.shares, (from.0, from.2, number(from.1)), end, out, |&key, &amount| {
            let (account, resource, group) = key;
            Record::PutShare { account, resource, group, amount }
        })
        .map(|(account, resource, group)| (account, u64::from(group), resource)),
        _ => slice_backing(state, table, from, end, out),
    }
}

fn slice_backing(
    state: &State,
    table: u8,
    from: (u64, u64, u8),
    end: usize,
    out: &mut Vec<u8>,
) -> Next {
    match table {
        18 => {
            slice_bytes(&state.sync_entries, Inode(from.0), end, out, |&inode, sync_entry, out| {
                sync_entry.record(inode, |record| record.encode(out));
            })
            .map(|inode| (inode.0, 0, 0))
        }
        19 => {
            for &directory in state.imported.range(Inode(from.0)..) {
                if out.len() >= end {
                    return Some((directory.0, 0, 0));
                }
                Record::PutImported { directory }.encode(out);
            }
            None
        }
        20 => each(&state.backed_inode_next, from.0 as u16, end, out, |&shard, &next| {
            Record::PutBackedNext { shard, next }
        })
        .map(|shard| (u64::from(shard), 0, 0)),
        21 => slice_names(&state.dirty_names, from, end, out, |parent, entry| Record::PutDirty {
            parent,
            name: &entry.name,
            backed_inode: entry.inode,
        }),
        22 => each(&state.pools, from.0 as u8, end, out, |&id, pool| pool.record(id))
            .map(|id| (u64::from(id), 0, 0)),
        _ => slice_births(state, table, from, end, out),
    }
}

fn slice_births(
    state: &State,
    table: u8,
    from: (u64, u64, u8),
    end: usize,
    out: &mut Vec<u8>,
) -> Next {
    let births = &state.births;
    match table {
        23 => each(&births.by_number, from.0, end, out, |&number, &loss| Record::PutBirth {
            number,
            loss,
        })
        .map(|number| (number, 0, 0)),
        24 => each(&births.emptied, Inode(from.0), end, out, |&inode, &loss| Record::PutEmptied {
            inode,
            loss,
        })
        .map(|inode| (inode.0, 0, 0)),
        _ => {
            for &inode in state.lost_changes.range(Inode(from.0)..) {
                if out.len() >= end {
                    return Some((inode.0, 0, 0));
                }
                Record::PutLostChanges { inode }.encode(out);
            }
            None
        }
    }
}

/// Encodes entries of a map from `from` on; returns the first key that did not fit.
fn each<'a, K: Ord + Copy, V>(
    map: &'a BTreeMap<K, V>,
    from: K,
    end: usize,
    out: &mut Vec<u8>,
    record: impl Fn(&'a K, &'a V) -> Record<'a>,
) -> Option<K> {
    for (key, value) in map.range((Bound::Included(from), Bound::Unbounded)) {
        if out.len() >= end {
            return Some(*key);
        }
        record(key, value).encode(out);
    }
    None
}

/// As `each`, for values that must be encoded first.
fn slice_bytes<K: Ord + Copy, V>(
    map: &BTreeMap<K, V>,
    from: K,
    end: usize,
    out: &mut Vec<u8>,
    encode: impl Fn(&K, &V, &mut Vec<u8>),
) -> Option<K> {
    for (key, value) in map.range((Bound::Included(from), Bound::Unbounded)) {
        if out.len() >= end {
            return Some(*key);
        }
        encode(key, value, out);
    }
    None
}

fn slice_inodes(state: &State, from: Inode, end: usize, out: &mut Vec<u8>) -> Next {
    let (mut xattrs, mut tallies) = (Vec::new(), Vec::new());
    for node in state.inodes.iter_from(from) {
        if out.len() >= end {
            return Some((node.attributes.inode.0, 0, 0));
        }
        xattrs.clear();
        tallies.clear();
        encode_xattrs(node.xattrs.as_deref(), &mut xattrs);
        encode_tallies(&node.tallies, &mut tallies);
        Record::PutInode {
            attributes: node.attributes,
            nameless: u8::from(node.is_nameless),
            target: &node.target,
            contents: &node.contents,
            xattrs: &xattrs,
            tallies: &tallies,
        }
        .encode(out);
    }
    None
}

fn slice_names(
    names: &Entries,
    from: (u64, u64, u8),
    end: usize,
    out: &mut Vec<u8>,
    record: impl Fn(Inode, &Entry) -> Record<'_>,
) -> Next {
    let from = (Inode(from.0), NameHash(from.1), from.2);
    for (&(parent, hash, number), entry) in names.iter_from(from) {
        if out.len() >= end {
            return Some((parent.0, hash.0, number));
        }
        record(parent, entry).encode(out);
    }
    None
}

/// The part of the state that is no table.
fn put_words(state: &State, out: &mut Vec<u8>) {
    Record::PutCounter { sequence_next: state.sequence_next }.encode(out);
    if state.has_mounts {
        Record::PutMounts { may: 1 }.encode(out);
    }
}
