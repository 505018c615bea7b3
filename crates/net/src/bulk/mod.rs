//! Bulk: bytes of files between daemons, copied directly from source to destination memory.
//!
//! A *transfer* is a store or a fetch of one range of a file, with memory at both ends. The daemon
//! that starts it supplies its own memory (a bounce buffer of a session). The other daemon supplies
//! its memory when the transfer arrives there (a *visit*), possibly later and from any thread. So a
//! sender never chooses an address in a peer's memory.
//!
//! | module | |
//! |---|---|
//! | `header` | header in front of the bytes on a stream; a pure codec |
//! | `dial` | opens a stream: address, connection, handshake |
//! | `outgoing` | a stream that this daemon dialled: its own transfers |
//! | `incoming` | a stream that a peer dialled: the peer's transfers (visits) |
//! | `queue` | commands from other threads to a thread that waits for sockets |
//! | `lane` | a thread with streams to and from all peers, and its interface for other threads |
//!
//! Invariants:
//!  1. Each transfer that was started ends exactly once: `BulkHandler::ended`.
//!  2. Transfers of the same MiB of a file are carried out in the order in which they were
//!     started: they share a stream. When a peer dials a stream again, the previous one is closed
//!     first, so data in flight there never arrives after the retransmission.
//!  3. A visit touches memory only while the stream on which it arrived is open.
//!  4. Of a protected stream, only verified bytes are written to memory (`channel`).

use crate::channel::TAMPERED;
use crate::incomplete;
use crate::security::records::Tampered;
use shm::Segment;
use std::io::{self, ErrorKind};
use std::time::Instant;
use wire::{DaemonIndex, Errno};

pub mod header;

pub mod dial;

mod outgoing;

mod incoming;

pub mod queue;

pub mod lane;

pub use header::Range;
pub use lane::{Lane, Tcp};
pub use outgoing::retain_retryable;

/// One end of a transfer: shared memory that stays mapped at the same address while the value
/// lives.
pub trait Memory: Send {
    /// The mapping, and the offset in it of the first byte of the transfer. The whole length of the
    /// transfer must be inside the mapping.
    fn region(&self) -> (&Segment, usize);

    /// At the visited daemon: log2 of the length of the extent, if it was fetched from the backing store
    /// for a reader and nobody had come to it; 0: it was not.
    fn fetched_log2(&self) -> u8 {
        0
    }

    /// At the daemon that asked: what the other's `fetched_log2` is.
    fn note_fetched(&self, log2: u8) {
        let _ = log2;
    }
}

/// Direction of a transfer, as seen by the daemon that started it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// To the peer.
    Store,
    /// From the peer.
    Fetch,
}

/// A transfer to start.
#[derive(Debug)]
pub struct Transfer<M, T> {
    /// The other daemon.
    pub peer: DaemonIndex,
    /// Direction.
    pub kind: Kind,
    /// Range of the file.
    pub range: Range,
    /// Memory of this daemon.
    pub memory: M,
    /// Deadline until which the transfer is resent, in its order, when its stream is lost. `None`:
    /// it ends then.
    pub until: Option<Instant>,
    /// Passed back to `BulkHandler::ended`.
    pub token: T,
}

/// How a transfer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Number of bytes moved: all of them, or 0 for a fetch whose whole range is a hole.
    Moved(u32),
    /// Refused permanently.
    Refused(Errno),
    /// May be retried after this many microseconds.
    Busy(u32),
    /// Of a fetch: the bytes are at another daemon, which this location names.
    Elsewhere(u64),
    /// The peer cannot be reached, or was lost during the transfer: the bytes may or may not have
    /// arrived.
    Lost,
}

/// Reply of the visited daemon to a transfer.
#[derive(Debug)]
pub enum Answer<M> {
    /// Memory for the transfer.
    Memory(M),
    /// A hole: all zeros. For a fetch only.
    Hole,
    /// Refused permanently.
    Refused(Errno),
    /// To be retried after this many microseconds.
    Busy(u32),
    /// The bytes are at another daemon, which this location names. For a fetch only.
    Elsewhere(u64),
}

/// Handle of a peer's transfer that waits for `Fabric::answer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visit {
    pub(crate) lane: usize,
    pub(crate) stream: u64,
}

impl Visit {
    /// Handle of a visit through another `Fabric` than `Tcp`, which uses its own numbering.
    #[must_use]
    pub const fn elsewhere(number: u64) -> Visit {
        Visit { lane: usize::MAX, stream: number }
    }

    /// The number given to `elsewhere`, if it is such a handle.
    #[must_use]
    pub const fn number_elsewhere(&self) -> Option<u64> {
        if self.lane == usize::MAX { Some(self.stream) } else { None }
    }
}

/// Callbacks of the daemon for transfers. Called on the threads that move the bytes; must not block.
pub trait BulkHandler: Send + Sync {
    /// Value that a transfer carries for the thread that started it.
    type Token: Send;
    /// Memory of transfers.
    type Memory: Memory;
    /// Value by which another thread decides about a visit.
    type Decision: Send;
    /// A peer's transfer has arrived. `None`: `Fabric::answer` will decide later.
    fn visit(
        &self,
        from: DaemonIndex,
        kind: Kind,
        range: &Range,
        visit: Visit,
    ) -> Option<Answer<Self::Memory>>;
    /// Decides about a visit, now that `Fabric::answer` has delivered `decision`.
    fn decided(&self, kind: Kind, range: &Range, decision: Self::Decision) -> Answer<Self::Memory>;
    /// All bytes of a visit's store are in `memory`. The result is sent to the peer.
    ///
    /// # Errors
    /// The reason why the store is refused after all.
    fn stored(&self, range: &Range, memory: Self::Memory) -> Result<(), Errno>;
    /// A transfer that this daemon started has ended.
    fn ended(&self, token: Self::Token, memory: Self::Memory, outcome: Outcome);
}

/// Moves the bytes: TCP (`Tcp`), or a network with remote memory access.
pub trait Fabric<E: BulkHandler>: Send + Sync {
    /// Starts a transfer. It ends by `BulkHandler::ended`.
    fn start(&self, transfer: Transfer<E::Memory, E::Token>);
    /// Delivers a decision about a visit to `BulkHandler::decided`, unless the peer is gone.
    fn answer(&self, visit: Visit, decision: E::Decision);
}

/// Why a stream stops, temporarily or permanently.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The socket would block.
    Blocked,
    /// Protocol violation or lost connection; the stream is unusable.
    Broken(&'static str),
    /// Error of the operating system.
    Failed(Errno),
    /// A record did not verify.
    Tampered,
    /// A record did not arrive whole.
    Incomplete,
}

impl Stop {
    /// Why a stream stops after an error of its socket.
    pub(crate) fn of(error: &io::Error) -> Stop {
        match error.kind() {
            ErrorKind::WouldBlock => Stop::Blocked,
            ErrorKind::InvalidData => Stop::Tampered,
            _ => Stop::Broken("lost"),
        }
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        match errno {
            Errno::EAGAIN | Errno::EINTR => Stop::Blocked,
            TAMPERED => Stop::Tampered,
            errno => Stop::Failed(errno),
        }
    }
}

impl From<wire::Malformed> for Stop {
    fn from(_: wire::Malformed) -> Stop {
        Stop::Broken("malformed header")
    }
}

impl core::fmt::Display for Stop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Stop::Blocked => f.write_str("blocked"),
            Stop::Broken(why) => f.write_str(why),
            Stop::Failed(errno) => write!(f, "{errno}"),
            Stop::Tampered => write!(f, "{Tampered}"),
            Stop::Incomplete => f.write_str(incomplete::WHY),
        }
    }
}
