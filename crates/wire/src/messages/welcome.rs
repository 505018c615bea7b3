//! The first messages between a client and the daemon of its host, over the daemon's Unix socket.
//!
//! Client: `HELLO_BYTES` of magic and version. Daemon: one message of `Welcome` with the
//! descriptors of its shared memory in the order of `Welcome::DESCRIPTORS`, followed by one index
//! for each worker; or, when it refuses, `REFUSAL` and an errno. The socket then stays open and
//! silent: each side learns from its end that the other is gone.

use crate::codec::{Malformed, Reader, Writer};
use crate::limits::{PROTOCOL_VERSION, WORKER_COUNT_MAX};

/// First bytes of a client.
pub const MAGIC: [u8; 8] = *b"FOREBAY\0";
/// First bytes of a process that only asks for the daemon's state: the answer is one line of JSON.
pub const STATUS_MAGIC: [u8; 8] = *b"FOREBAYS";
/// First bytes of a process that lends memory or reclaims it; the answer is as to `STATUS_MAGIC`.
pub const LEND_MAGIC: [u8; 8] = *b"FOREBAYM";
/// First bytes of a process that asks what jobs did, as the counters of the host's processes say. The
/// answer is one line of JSON. In the last four bytes of the hello: 0 for all jobs in short, or the
/// `job_word` of one.
pub const ACTIVITY_MAGIC: [u8; 8] = *b"FOREBAYA";
/// First bytes of a process that changes or shows the rules of shares and limits. In the last four bytes
/// of the hello: how many bytes of text follow it. The answer is one line of JSON.
pub const RULES_MAGIC: [u8; 8] = *b"FOREBAYQ";
/// First bytes of a process that says that a host is gone for good, before another one takes its
/// place. In the last four bytes of the hello: the host, as its first daemon, in the lower half, and
/// in the upper one which of its losses this is. The answer is as to `STATUS_MAGIC`, and names the
/// services that know it.
pub const GONE_MAGIC: [u8; 8] = *b"FOREBAYG";
/// First bytes of a process that asks which files lost bytes with all their copies. The answer is one
/// line of JSON.
pub const LOST_MAGIC: [u8; 8] = *b"FOREBAYL";
/// First bytes of a process that adds a daemon to the instance. In the last four bytes of the hello: its
/// index, the next one, in the lower half, and its failure domain in the upper one. The answer is as to
/// `STATUS_MAGIC`; voters show in it when the daemon is added. Asked again it has no effect.
pub const ADD_MAGIC: [u8; 8] = *b"FOREBAYP";
/// First bytes of a process that has a daemon leave the instance. In the last four bytes of the hello:
/// its index. The answer is as to `STATUS_MAGIC`; voters show in it when the daemon leaves. Where it may
/// not, and asked again, it has no effect.
pub const LEAVE_MAGIC: [u8; 8] = *b"FOREBAYD";
/// First bytes of a process that says whether the load of metadata services is balanced. In the last four
/// bytes of the hello: `BALANCE_OFF`, `BALANCE_ON` or `BALANCE_NOW`. The answer is as to `STATUS_MAGIC`;
/// the leader shows in it when that is so. Asked again it has no effect.
pub const BALANCE_MAGIC: [u8; 8] = *b"FOREBAYB";
/// See `BALANCE_MAGIC`: no service moves for the load.
pub const BALANCE_OFF: u32 = 0;
/// Services move whenever that is a gain.
pub const BALANCE_ON: u32 = 1;
/// One look at the loads is asked for.
pub const BALANCE_NOW: u32 = 2;
/// In the last four bytes of the hello with `LEND_MAGIC`: as much as the node leaves idle. Any other
/// number is how many `LEND_STEP_BYTES` the daemon may hold.
pub const LEND_IDLE: u32 = u32::MAX;
/// See `LEND_IDLE`: a huge page.
pub const LEND_STEP_BYTES: u64 = 2 << 20;
/// Length of a client's hello: magic, version, and four bytes, zero except with
/// `LEND_MAGIC`, `ACTIVITY_MAGIC`, `RULES_MAGIC`, `GONE_MAGIC`, `ADD_MAGIC`, `LEAVE_MAGIC` and
/// `BALANCE_MAGIC`.
pub const HELLO_BYTES: usize = 16;
/// Maximum length of an answer.
pub const WELCOME_BYTES_MAX: usize = 4096;
/// First byte of a welcome.
pub const ACCEPTED: u8 = 1;
/// First byte of a refusal; the errno follows in two bytes.
pub const REFUSAL: u8 = 2;

/// The word that stands for the name of a job, never zero. Two names may share one.
#[must_use]
pub fn job_word(name: &[u8]) -> u32 {
    let hash = name
        .iter()
        .fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.max(1)
}

/// Information for a client at its attachment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Welcome {
    /// This daemon.
    pub daemon: u16,
    /// Number of this host in the instance.
    pub host: u16,
    /// First daemon on this host; they have consecutive numbers.
    pub local_first: u16,
    /// Daemons on this host.
    pub local_count: u16,
    /// Worker threads of this daemon.
    pub workers: u16,
    /// The session's index in the doorbells.
    pub session: u16,
    /// Pid of the client's process as the daemon sees it.
    pub pid: u32,
    /// First client id of the session: slot numbers are added to it.
    pub client_id: u64,
    /// Bytes of the arena's mapping.
    pub arena_bytes: u64,
    /// Slots of the extent table.
    pub extent_count: u32,
    /// log2 of the stripe size of new files, unless their directory sets another.
    pub stripe_log2: u8,
    /// Largest contents kept in an inode record.
    pub inline_bytes: u32,
    /// Bound on every wait of a client, in microseconds.
    pub timeout_micros: u64,
    /// 1: writes to other hosts return before they have arrived.
    pub write_behind: u8,
    /// 1: bytes of other hosts are read ahead.
    pub readahead: u8,
    /// 1: services have followers, and `fsync` asks them (`Request::Replicate`).
    pub has_followers: u8,
    /// Copies that the bytes of a file have, unless its number says that it is one with one copy. With
    /// more than one they go through daemons alone.
    pub copies: u8,
    /// The daemon's clock for leases when it sent this (`crate::lease`).
    pub steady_nanos: u64,
}

impl Welcome {
    /// Number of descriptors before the indexes: session, doorbells, host segment, arena, extent
    /// table, extent states, SSD file, operation log, extent hint table, leases, hazard pointers,
    /// page groups, page sums, activity segment.
    pub const DESCRIPTORS: usize = 14;
    /// Maximum number of descriptors of one welcome.
    pub const DESCRIPTORS_MAX: usize = Welcome::DESCRIPTORS + WORKER_COUNT_MAX;

    /// Writes the encoded form. The instance map follows it.
    pub fn encode(&self, to: &mut Writer<'_>) {
        to.u8(ACCEPTED);
        to.u32(PROTOCOL_VERSION);
        to.u16(self.daemon);
        to.u16(self.host);
        to.u16(self.local_first);
        to.u16(self.local_count);
        to.u16(self.workers);
        to.u16(self.session);
        to.u32(self.pid);
        to.u64(self.client_id);
        to.u64(self.arena_bytes);
        to.u32(self.extent_count);
        to.u8(self.stripe_log2);
        to.u32(self.inline_bytes);
        to.u64(self.timeout_micros);
        to.u8(self.write_behind);
        to.u8(self.readahead);
        to.u8(self.has_followers);
        to.u8(self.copies);
        to.u64(self.steady_nanos);
    }

    /// Reads the bytes after `ACCEPTED`.
    ///
    /// # Errors
    /// `Malformed` if it is too short or of another version.
    pub fn decode(from: &mut Reader<'_>) -> Result<Welcome, Malformed> {
        if from.u32()? != PROTOCOL_VERSION {
            return Err(Malformed);
        }
        let welcome = Welcome {
            daemon: from.u16()?,
            host: from.u16()?,
            local_first: from.u16()?,
            local_count: from.u16()?,
            workers: from.u16()?,
            session: from.u16()?,
            pid: from.u32()?,
            client_id: from.u64()?,
            arena_bytes: from.u64()?,
            extent_count: from.u32()?,
            stripe_log2: from.u8()?,
            inline_bytes: from.u32()?,
            timeout_micros: from.u64()?,
            write_behind: from.u8()?,
            readahead: from.u8()?,
            has_followers: from.u8()?,
            copies: from.u8()?,
            steady_nanos: from.u64()?,
        };
        let workers = usize::from(welcome.workers);
        if workers == 0 || workers > WORKER_COUNT_MAX { Err(Malformed) } else { Ok(welcome) }
    }
}
