//! The settings of a service. They are the same for its life; all but the worker and the limits are
//! the same for all services of an instance.

use placement::Map;
use placement::map::worker_of_shard;
use wire::limits::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN, INLINE_BYTES_MAX};
use wire::{DaemonIndex, ShardIndex};

/// Settings of a service.
#[derive(Clone, Debug)]
pub struct Config {
    /// The daemon of this service.
    pub daemon: DaemonIndex,
    /// Index of its host, as it stands in `Header::host` of local requests.
    pub host: u16,
    /// Daemons of that host.
    pub host_daemons: u16,
    /// The worker thread of this service: it owns the daemon's shards of this worker.
    pub worker: usize,
    /// Worker threads of each daemon; alike in the instance and for its life.
    pub workers: usize,
    /// The instance map.
    pub map: Map,
    /// log2 of the chunk size for files that ask for none.
    pub chunk_log2: u8,
    /// Largest contents that stay in the inode record; 0: none do. At most `INLINE_BYTES_MAX`.
    pub inline_bytes: usize,
    /// `spread::HOME` or `spread::WIDE`: of the root, and so of what does not ask otherwise.
    pub spread: u8,
    /// `placement::HASH` or `placement::LOCAL`: of the root.
    pub placement: u8,
    /// Bytes of memory for entries and inodes, estimated; beyond it, creating gives ENOSPC.
    pub metadata_bytes_max: u64,
    /// Bits of `flag` of the root, and so of what is made below: `POSIX`, and with a backing directory
    /// `WRITE_BACK`.
    pub root_flags: u8,
    /// True if the root shows what lies in a backing directory or a bucket.
    pub backing: bool,
    /// True if bytes of files that are written to can be saved there before these are complete.
    pub drafts: bool,
    /// Names in directories from below are looked for there again after so many nanoseconds;
    /// `i64::MAX`: never.
    pub look_nanos: i64,
    /// How long a host that does not answer is waited for, in nanoseconds.
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
    pub fn alone() -> Config {
        Config {
            daemon: DaemonIndex(0),
            host: 0,
            host_daemons: 1,
            worker: 0,
            workers: 1,
            map: Map::initial(1).expect("one daemon is within the limits"),
            chunk_log2: 22,
            inline_bytes: INLINE_BYTES_MAX,
            spread: wire::attributes::spread::HOME,
            placement: wire::attributes::placement::HASH,
            metadata_bytes_max: u64::MAX,
            root_flags: 0,
            backing: false,
            drafts: false,
            look_nanos: i64::MAX,
            silence_nanos: 30_000_000_000,
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o755,
        }
    }

    /// True if `shard` belongs to this service.
    #[must_use]
    pub fn owns(&self, shard: ShardIndex) -> bool {
        self.group(shard) == self.own_group()
    }

    /// The service that owns `shard`.
    #[must_use]
    pub(crate) fn group(&self, shard: ShardIndex) -> Group {
        Group::new(self.map.owner(shard), worker_of_shard(shard, self.workers))
    }

    /// This service.
    #[must_use]
    pub(crate) const fn own_group(&self) -> Group {
        Group::new(self.daemon, self.worker)
    }

    /// A chunk size within the limits, whatever was asked.
    pub(crate) fn chunk_log2_of(&self, wanted: u8, parent: u8) -> u8 {
        let limits = CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX;
        let found =
            [wanted, parent, self.chunk_log2].into_iter().find(|log2| limits.contains(log2));
        found.unwrap_or(CHUNK_LOG2_MAX)
    }
}

/// A service as others name it: its daemon and worker. Unique in the instance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Group(pub(crate) u32);

impl Group {
    pub(crate) const fn new(daemon: DaemonIndex, worker: usize) -> Group {
        Group(((daemon.0 as u32) << 8) | worker as u32 & 0xff)
    }
}
