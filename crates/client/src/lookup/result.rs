//! Vocabulary of lookups: how a name is looked up, what a walk returns, and entries of directories.

use core::sync::atomic::{Ordering::SeqCst, fence};
use placement::locate::entry_shard;
use wire::attributes::spread;
use wire::errno::{Errno, Result};
use wire::hash::{NameHash, entry_key};
use wire::{Attributes, Inode, Reply, ShardIndex};

use crate::transport::Transport;
use crate::transport::service::op_key;

/// How the last component is looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookupMode {
    /// Until it is known whether it exists.
    Resolve,
    /// As `Resolve`, and the walk also tells whether no change of the file was in flight before its
    /// attributes were read, so that they include all completed changes (`Walk::is_settled`).
    ResolveSettled,
    /// Only in the index: the request that follows finds out by itself.
    IndexOnly,
}

/// Kind of the last component of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Last {
    /// A name.
    Name,
    /// `.`, or the starting directory itself.
    Dot,
    /// `..`.
    DotDot,
}

/// Result of looking a name up. The attributes are in the buffer that was passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookupResult {
    /// It exists.
    Found,
    /// It does not.
    Absent,
    /// Unknown: only with `LookupMode::IndexOnly`.
    Unknown,
}

/// Result of a walk for the last name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WalkTarget<'b> {
    /// It exists.
    Found(&'b Attributes),
    /// It does not.
    Absent,
    /// Nothing: only with `LookupMode::IndexOnly`.
    Unknown,
}

impl<'b> WalkTarget<'b> {
    /// The result of looking the last name up, with the file if it was found.
    pub(crate) const fn of(seen: LookupResult, found: &'b Attributes) -> WalkTarget<'b> {
        match seen {
            LookupResult::Found => WalkTarget::Found(found),
            LookupResult::Absent => WalkTarget::Absent,
            LookupResult::Unknown => WalkTarget::Unknown,
        }
    }
}

/// A directory entry, as its shard, the index and the operation log identify it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// The shard that holds it.
    pub(crate) shard: ShardIndex,
    /// Its key in the index.
    pub(crate) key: u128,
}

impl Entry {
    pub(crate) const NONE: Entry = Entry { shard: ShardIndex(0), key: 0 };

    /// The entry `name` of `parent`.
    pub(crate) fn of(parent: &Attributes, name: &[u8]) -> Entry {
        let shard = shard_of_entry(parent, name);
        Entry { shard, key: entry_key(parent.inode, name) }
    }

    /// True if a local operation on the name is pending.
    pub(crate) fn has_local_op(&self, transport: &Transport) -> bool {
        fence(SeqCst);
        let key = op_key(self.key);
        transport
            .service_of(self.shard)
            .is_some_and(|service| service.by.op_log.is_pending(service.worker, key))
    }
}

/// Result of a walk.
pub(crate) struct Walk<'b> {
    /// The directory that holds the last name; with `Dot` and `DotDot` the directory that is meant.
    pub(crate) parent: &'b Attributes,
    /// Kind of the last component.
    pub(crate) last: Last,
    /// The last name; empty for `Dot` and `DotDot`.
    pub(crate) name: &'b [u8],
    /// The entry of the last name; `Entry::NONE` for `Dot` and `DotDot`.
    pub(crate) entry: Entry,
    /// The file that the last name refers to.
    pub(crate) found: WalkTarget<'b>,
    /// The path ended with a slash.
    pub(crate) slash: bool,
    /// True for a file that no process of this host had open when its attributes were read, and for
    /// a directory without pending local operations. Set only where it costs no message, and only
    /// with `LookupMode::ResolveSettled`.
    pub(crate) is_settled: bool,
}

impl<'b> Walk<'b> {
    /// The file; `ENOENT` if there is none, `ENOTDIR` if a slash follows a name that is no
    /// directory.
    pub(crate) fn existing(&self) -> Result<&'b Attributes> {
        match self.found {
            WalkTarget::Found(attributes) if self.slash && !attributes.is_directory() => {
                Err(Errno::ENOTDIR)
            }
            WalkTarget::Found(attributes) => Ok(attributes),
            WalkTarget::Absent | WalkTarget::Unknown => Err(Errno::ENOENT),
        }
    }
}

/// The file in a reply: its attributes, or only its inode.
pub(crate) fn entry_of_reply(reply: &Reply<'_>) -> Option<core::result::Result<Attributes, Inode>> {
    match *reply {
        Reply::Attributes { attributes } | Reply::Created { attributes } => Some(Ok(attributes)),
        Reply::Entry { inode, .. } => Some(Err(inode)),
        _ => None,
    }
}

/// The shard of the entry `name` of `parent`.
#[inline]
pub(crate) fn shard_of_entry(parent: &Attributes, name: &[u8]) -> ShardIndex {
    if spread::wide_below(parent.layout.spread) != 0 {
        entry_shard(parent, NameHash::of(parent.inode, name))
    } else {
        entry_shard(parent, NameHash(0))
    }
}
