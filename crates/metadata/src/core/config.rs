//! Settings of a service. They never change while it runs, except for the number of daemons. All
//! services of an instance have the same values, except for the worker and the limits.

use ::placement::{Map, ServiceName, locate};
use wire::attributes::placement;
use wire::limits::{DAEMON_COUNT_MAX, INLINE_BYTES_MAX, STRIPE_LOG2_MAX, STRIPE_LOG2_MIN};
use wire::{DaemonIndex, Layout, ShardIndex};

/// `Config::widen_entries` of instances by default. One worker makes so many files in less than a tenth
/// of a second, and spreading them takes about a tenth of that; a directory with fewer is listed by one
/// request for 200 of them, a wide one by one for each of up to 1024 shards.
const WIDEN_ENTRIES: u64 = 4096;

/// `Config::widen_nanos` of instances: many times the latency of a message, and what a program that uses
/// the directory may notice.
pub const WIDEN_NANOS: i64 = 10_000_000;

/// Settings of a service.
#[derive(Clone, Debug)]
pub struct Config {
    /// The daemon that owned this service first: with the worker its name.
    pub first: DaemonIndex,
    /// The daemon of this service.
    pub daemon: DaemonIndex,
    /// Index of this daemon's host, as in `Header::host` of local requests.
    pub host: u16,
    /// Number of daemons on that host.
    pub host_daemons: u16,
    /// The worker thread of this service.
    pub worker: usize,
    /// Worker threads of each daemon; the same in the whole instance and for its life.
    pub workers: usize,
    /// The instance map.
    pub map: Map,
    /// log2 of the stripe size for files that request none.
    pub stripe_log2: u8,
    /// Largest contents, in bytes, that stay in the inode record; 0: none. At most
    /// `INLINE_BYTES_MAX`.
    pub inline_bytes: usize,
    /// Spread of the root, `spread::HOME`, `WIDE` or `AUTO`, inherited by directories that request
    /// none.
    pub spread: u8,
    /// Entries of a directory from which on it is spread, if its spread is `AUTO`.
    pub widen_entries: u64,
    /// Longest time for which a step of that holds names of the directory without a decision, in
    /// nanoseconds.
    pub widen_nanos: i64,
    /// Placement of the root, `placement::HASH` or `placement::LOCAL`.
    pub placement: u8,
    /// Memory for entries and inodes, in bytes, estimated; beyond it a create fails with ENOSPC.
    pub metadata_bytes_max: u64,
    /// Bits of `flag` of the root, inherited by all that is created under it: `POSIX`, and with a
    /// backing store `WRITEBACK`.
    pub root_flags: u8,
    /// True if the root shows a backing directory or a bucket.
    pub backing: bool,
    /// True if the backing store accepts partial files, that is, bytes of a file that is still
    /// being written.
    pub partials: bool,
    /// Copies that bytes of files have whose number says nothing (`Inode::copies`): the most that any
    /// file has.
    pub copies: u8,
    /// Nanoseconds after which a cached backing name is revalidated; `i64::MAX`: never.
    pub revalidate_nanos: i64,
    /// How long to wait for a host that does not answer, in nanoseconds.
    pub silence_nanos: i64,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// Permission bits of the root directory.
    pub root_mode: u32,
}

impl Config {
    /// Settings of the only service of an instance of one daemon; tests start from them.
    ///
    /// # Panics
    /// Never: one daemon is a valid number.
    #[must_use]
    pub fn single() -> Config {
        Config {
            first: DaemonIndex(0),
            daemon: DaemonIndex(0),
            host: 0,
            host_daemons: 1,
            worker: 0,
            workers: 1,
            map: Map::initial(1).expect("one daemon is within the limits"),
            stripe_log2: 22,
            inline_bytes: INLINE_BYTES_MAX,
            spread: wire::attributes::spread::HOME,
            widen_entries: WIDEN_ENTRIES,
            widen_nanos: WIDEN_NANOS,
            placement: placement::HASH,
            metadata_bytes_max: u64::MAX,
            root_flags: 0,
            backing: false,
            partials: false,
            copies: 1,
            revalidate_nanos: i64::MAX,
            silence_nanos: 30_000_000_000,
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o755,
        }
    }

    /// True if bytes of files have more than one copy, but for files of which there is one.
    pub(crate) const fn has_copies(&self) -> bool {
        self.copies > 1
    }

    /// `Layout::copies` of a directory whose files have so many copies; `None`: the instance keeps no
    /// such number.
    pub(crate) const fn layout_copies(&self, requested: u8) -> Option<u8> {
        match requested {
            requested if requested == self.copies => Some(0),
            requested if 0 < requested && requested < self.copies => Some(requested),
            _ => None,
        }
    }

    /// True if `shard` belongs to this service.
    #[must_use]
    pub fn owns(&self, shard: ShardIndex) -> bool {
        self.group(shard) == self.own_group()
    }

    /// The service that has `shard`.
    #[must_use]
    pub(crate) fn group(&self, shard: ShardIndex) -> Group {
        Group::of(self.map.service(shard, self.workers))
    }

    /// This service.
    #[must_use]
    pub(crate) const fn own_group(&self) -> Group {
        Group::new(self.first, self.worker)
    }

    /// The layout of a regular file that a program made, which perhaps has bytes already: where the
    /// program says, also where that is a target of which this daemon does not know yet.
    pub(crate) const fn taken(&self, layout: Layout) -> Layout {
        locate::admitted(layout, self.map.first_count(), DAEMON_COUNT_MAX)
    }

    /// The layout of a regular file that this service makes: over all targets that there are now, or on
    /// the one that was requested.
    pub(crate) fn placed(&self, requested: Layout) -> Layout {
        match requested.placement {
            placement::LOCAL => {
                locate::admitted(requested, self.map.first_count(), self.map.daemon_count())
            }
            _ => Layout { place: self.map.place_of_new(), ..requested },
        }
    }

    /// The stripe size (log2) of a new file, within the limits whatever was requested.
    pub(crate) fn stripe_log2_of(&self, requested: u8, parent: u8) -> u8 {
        let limits = STRIPE_LOG2_MIN..=STRIPE_LOG2_MAX;
        let found =
            [requested, parent, self.stripe_log2].into_iter().find(|log2| limits.contains(log2));
        found.unwrap_or(STRIPE_LOG2_MAX)
    }
}

/// Name of a service for other services (`placement::ServiceName`), as logs have it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Group(pub(crate) u32);

impl Group {
    pub(crate) const fn new(first: DaemonIndex, worker: usize) -> Group {
        Group::of(ServiceName { first, worker: worker as u8 })
    }

    pub(crate) const fn of(name: ServiceName) -> Group {
        Group(((name.first.0 as u32) << 8) | name.worker as u32)
    }

    pub(crate) const fn name(self) -> ServiceName {
        ServiceName { first: DaemonIndex((self.0 >> 8) as u16), worker: self.0 as u8 }
    }
}
