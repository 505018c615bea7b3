//! The first words between a client and the daemon of its host, over the daemon's Unix socket.
//!
//! Client: `HELLO_BYTES` of magic and version. Daemon: one message of `Welcome` with the
//! descriptors of its shared memory in the order of `Welcome::DESCRIPTORS`, followed by one index
//! for each worker; or, when it refuses, `REFUSAL` and an errno. The socket then stays open and
//! silent: its end is how each side learns that the other is gone.

use crate::codec::{Malformed, Reader, Writer};
use crate::limits::{PROTOCOL_VERSION, WORKER_COUNT_MAX};

/// First bytes of a client.
pub const MAGIC: [u8; 8] = *b"FOREBAY\0";
/// First bytes of who only asks for the daemon's state: the answer is one line of JSON.
pub const STATUS_MAGIC: [u8; 8] = *b"FOREBAYS";
/// First bytes of who lends memory or takes it back; the answer is as to `STATUS_MAGIC`.
pub const LEND_MAGIC: [u8; 8] = *b"FOREBAYM";
/// In the last four bytes of that hello: as much as the node leaves idle. Any other number is how many
/// `LEND_STEP_BYTES` the daemon may hold.
pub const LEND_IDLE: u32 = u32::MAX;
/// See `LEND_IDLE`: a huge page.
pub const LEND_STEP_BYTES: u64 = 2 << 20;
/// Length of a client's hello: magic, version, and four bytes of zero but with `LEND_MAGIC`.
pub const HELLO_BYTES: usize = 16;
/// Most bytes of an answer.
pub const WELCOME_BYTES_MAX: usize = 4096;
/// First byte of a welcome.
pub const ACCEPTED: u8 = 1;
/// First byte of a refusal; the errno follows in two bytes.
pub const REFUSAL: u8 = 2;

/// What a client learns at its attachment.
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
    /// The session's place in the doorbells.
    pub session: u16,
    /// Number of the client's process as the daemon sees it.
    pub pid: u32,
    /// Origin of the session's requests: slot numbers are added to it.
    pub origin: u64,
    /// Bytes of the arena's mapping.
    pub arena_bytes: u64,
    /// Slots of the piece table.
    pub piece_count: u32,
    /// Layout that new files have unless their directory says otherwise.
    pub chunk_log2: u8,
    /// Largest contents kept in an inode record.
    pub inline_bytes: u32,
    /// Bound on every wait of a client, in microseconds.
    pub timeout_micros: u64,
    /// 1: writes to other hosts return before they have arrived.
    pub write_behind: u8,
    /// 1: bytes of other hosts are fetched before a reader asks for them.
    pub read_ahead: u8,
    /// The daemon's clock for leases when it sent this (`crate::lease`).
    pub steady_nanos: u64,
}

impl Welcome {
    /// Number of descriptors before the indexes: session, doorbells, host segment, arena, piece
    /// table, piece states, SSD file, posts, finder, leases, pins, stretches of pieces.
    pub const DESCRIPTORS: usize = 12;
    /// Most descriptors of one welcome.
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
        to.u64(self.origin);
        to.u64(self.arena_bytes);
        to.u32(self.piece_count);
        to.u8(self.chunk_log2);
        to.u32(self.inline_bytes);
        to.u64(self.timeout_micros);
        to.u8(self.write_behind);
        to.u8(self.read_ahead);
        to.u64(self.steady_nanos);
    }

    /// Reads what follows `ACCEPTED`.
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
            origin: from.u64()?,
            arena_bytes: from.u64()?,
            piece_count: from.u32()?,
            chunk_log2: from.u8()?,
            inline_bytes: from.u32()?,
            timeout_micros: from.u64()?,
            write_behind: from.u8()?,
            read_ahead: from.u8()?,
            steady_nanos: from.u64()?,
        };
        let workers = usize::from(welcome.workers);
        if workers == 0 || workers > WORKER_COUNT_MAX { Err(Malformed) } else { Ok(welcome) }
    }
}
