//! An instance whose logs are damaged: what is lost, and the changes that make the rest consistent.
//!
//! A log that lacks records gives a state that lacks changes: names whose file is gone, files whose name
//! is gone, counts that are wrong. One service cannot see that, since a name and its file may be in two.
//! So the states of all services, as outlines, are compared here while none of them runs; the result is
//! a list of findings and, for each service, one log record that it takes up behind its own.
//!
//! Not here: the damaged records themselves (`store`), and which bytes of files are damaged, which
//! targets know.
//!
//! Invariants:
//!  1. After the changes each name leads to an inode, each inode that is in use has as many names as
//!     links, each directory is below the root, and each count of entries is right.
//!  2. Inodes of a committed transaction are left alone: the services finish it. Others are aborted,
//!     as after the death of their coordinator.
//!  3. Targets free the data of lost files, but of none that is open or that an operation names which
//!     is in no log yet.
//!  4. No inode that exists loses contents or attributes other than its number of links and, for a
//!     directory, its parent.

mod outline;
mod plan;
mod tree;

use crate::core::config::Group;
use crate::core::state::State;
use core::ops::Range;
use placement::Map;
use std::collections::{BTreeMap, BTreeSet};
use wire::codec::Malformed;
use wire::{DaemonIndex, Inode, ShardIndex};

/// Name of the directory in the root for files whose name is lost.
pub const LOST_AND_FOUND: &[u8] = b"lost+found";

/// The instance.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its map.
    pub map: Map,
    /// Workers of each daemon.
    pub workers: usize,
    /// It has a backing store.
    pub backing: bool,
    /// Spread of directories whose own is lost.
    pub spread: u8,
    /// Placement of files in directories whose own is lost.
    pub placement: u8,
    /// log2 of the stripe size of files in such directories.
    pub stripe_log2: u8,
    /// Flags of such directories.
    pub flags: u8,
    /// Owner of such directories.
    pub uid: u32,
    /// Group of such directories.
    pub gid: u32,
    /// Number of this salvage: larger than that of each earlier one.
    pub round: u64,
    /// Time of the changes, in nanoseconds since 1970.
    pub now: i64,
}

/// Something that is lost, or changed because of a loss.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loss {
    /// A file is lost; its name is removed.
    File,
    /// A file is lost with all of its names, and targets hold data of it, which they free.
    Data,
    /// The attributes of a directory are lost; it is made again, for the owner of the instance alone.
    DirectoryAttributes,
    /// The name of a file or directory is lost; it gets one in `LOST_AND_FOUND`.
    Name,
    /// One of several names of a directory is removed.
    SecondName,
    /// The number of a file's names was wrong, and is corrected.
    Links,
    /// A file has data beyond its end: its size, or a truncation, may be lost.
    BeyondEnd,
    /// A file has less data than its size: the rest reads as zeros, or a removal is lost.
    Holes,
    /// Bytes of a file do not match their checksums: reading them is an error.
    Bytes,
}

/// See `Loss`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The kind.
    pub loss: Loss,
    /// Path from the root, after the changes.
    pub path: Vec<u8>,
    /// The inode.
    pub inode: Inode,
    /// Its size, if that is known; with `Loss::Data` the end of the data.
    pub size: Option<u64>,
    /// With `Loss::Bytes`: the bytes, in order.
    pub ranges: Vec<Range<u64>>,
}

/// Data that the targets hold of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Bytes of pages that were written.
    pub bytes: u64,
    /// End of the last of these pages.
    pub end: u64,
}

impl Held {
    /// Adds what another target holds.
    pub fn join(&mut self, other: Held) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.end = self.end.max(other.end);
    }
}

/// The changes for one service: a log record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repair {
    /// Its daemon.
    pub daemon: DaemonIndex,
    /// Its worker.
    pub worker: usize,
    /// The log record.
    pub record: Vec<u8>,
}

/// The result.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// The losses, in the order of `Loss`.
    pub findings: Vec<Finding>,
    /// The changes. Services without a change have none.
    pub repairs: Vec<Repair>,
}

/// A service, as its log has it.
struct Known {
    state: State,
    is_damaged: bool,
}

/// All services.
pub struct Rescue {
    instance: Instance,
    services: BTreeMap<Group, Known>,
    held: BTreeMap<Inode, Held>,
    /// Inodes that are in use, whether or not a service knows them.
    used: BTreeSet<Inode>,
    /// Bytes that do not match their checksums.
    damaged: BTreeMap<Inode, Vec<Range<u64>>>,
}

impl Rescue {
    /// An instance of whose services nothing is known.
    #[must_use]
    pub fn new(instance: Instance) -> Rescue {
        let groups = instance.map.services(instance.workers).map(Group::of);
        let unknown = || Known { state: State::default(), is_damaged: false };
        let services = groups.map(|group| (group, unknown())).collect();
        Rescue {
            instance,
            services,
            held: BTreeMap::new(),
            used: BTreeSet::new(),
            damaged: BTreeMap::new(),
        }
    }

    /// Adds the outline of a service (`Service::outline`). `is_damaged`: its log lacks records.
    ///
    /// # Errors
    /// `Malformed` if it is no outline.
    pub fn add_service(
        &mut self,
        daemon: DaemonIndex,
        worker: usize,
        outline: &[u8],
        is_damaged: bool,
    ) -> Result<(), Malformed> {
        let known = self.services.get_mut(&Group::new(daemon, worker)).ok_or(Malformed)?;
        known.is_damaged = is_damaged;
        outline::read(&mut known.state, outline)
    }

    /// Adds what a target holds of a file.
    pub fn add_held(&mut self, inode: Inode, held: Held) {
        self.held.entry(inode).or_default().join(held);
    }

    /// Adds an inode that an operation names which is in no log yet, or that a program has open.
    pub fn add_used(&mut self, inode: Inode) {
        self.used.insert(inode);
    }

    /// Adds bytes of a file that do not match their checksums.
    pub fn add_damaged(&mut self, inode: Inode, bytes: Range<u64>) {
        self.damaged.entry(inode).or_default().push(bytes);
    }

    /// The service of a shard.
    fn group_of(&self, shard: ShardIndex) -> Group {
        let Instance { map, workers, .. } = &self.instance;
        Group::of(map.service(shard, *workers))
    }

    /// Compares all states.
    #[must_use]
    pub fn plan(&self) -> Plan {
        plan::plan(self)
    }
}
