//! Bulk: bytes of files between daemons, from the memory where they lie straight into the memory
//! where they belong.
//!
//! A *transfer* is a store or a fetch of one range of a file, with memory at both ends. The daemon
//! that starts it names its own end (a buffer of a session's stage); the other is asked for its end
//! when the transfer comes to it (a *visit*), and may answer later, from any thread. So a sender
//! never says where in a peer's memory something goes.
//!
//! | module | |
//! |---|---|
//! | `header` | what stands before the bytes on a stream; a pure codec |
//! | `dial` | a stream from nothing: address, connection, handshake |
//! | `ours` | a stream that we dialled: transfers that we started |
//! | `theirs` | a stream that a peer dialled: its visits |
//! | `queue` | how other threads reach one that waits for sockets |
//! | `lane` | a thread with streams to and from all peers, and its door for other threads |
//!
//! Invariants:
//!  1. Each transfer that was started ends exactly once: `Ends::ended`.
//!  2. Transfers of the same MiB of a file take place in the order in which they were started: they
//!     share a stream. A stream that a peer dials anew closes the one before it, so what was on its
//!     way there never arrives after what is sent again.
//!  3. A visit touches memory only while the stream it came on is open.

use shm::Segment;
use std::time::Instant;
use wire::{DaemonIndex, Errno};

pub mod header;

pub mod dial;

mod ours;

mod theirs;

pub mod queue;

pub mod lane;

pub use header::Range;
pub use lane::{Lane, Tcp};
pub use ours::keep;

/// One end of a transfer: shared memory that stays where it is as long as the value lives.
pub trait Memory: Send {
    /// The mapping, and where in it the first byte of the transfer lies. All of the transfer's
    /// length must lie in it.
    fn region(&self) -> (&Segment, usize);
}

/// Which way the bytes go, as the daemon sees it that started the transfer.
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
    /// The other end.
    pub peer: DaemonIndex,
    /// Which way.
    pub kind: Kind,
    /// Which bytes of which file.
    pub range: Range,
    /// Our end.
    pub memory: M,
    /// Until then it is sent again, in its order, when its stream is lost. `None`: it ends then.
    pub until: Option<Instant>,
    /// What `Ends::ended` needs to know.
    pub token: T,
}

/// How a transfer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// So many bytes were moved: all; of a fetch also none, if all of the range is a hole.
    Moved(u32),
    /// For good.
    Refused(Errno),
    /// To be tried again after so many microseconds.
    Busy(u32),
    /// The peer can not be reached, or was lost on the way: the bytes may or may not be there.
    Lost,
}

/// What the visited daemon says to a transfer.
#[derive(Debug)]
pub enum Answer<M> {
    /// Its end.
    Memory(M),
    /// There is nothing: all zeros. Of a fetch only.
    Hole,
    /// No, for good.
    Refused(Errno),
    /// Not now, but after so many microseconds.
    Busy(u32),
}

/// A transfer of a peer that waits for `Fabric::answer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Visit {
    pub(crate) lane: usize,
    pub(crate) stream: u64,
}

impl Visit {
    /// One that came by another `Fabric` than `Tcp`, which counts its own.
    #[must_use]
    pub const fn elsewhere(number: u64) -> Visit {
        Visit { lane: usize::MAX, stream: number }
    }

    /// The number of `elsewhere`, if it is one.
    #[must_use]
    pub const fn number_elsewhere(&self) -> Option<u64> {
        if self.lane == usize::MAX { Some(self.stream) } else { None }
    }
}

/// What the daemon does at both ends. Called on the threads that move the bytes; must not block.
pub trait Ends: Send + Sync {
    /// What a thread that started a transfer wants to have back at its end.
    type Token: Send;
    /// Memory of transfers.
    type Memory: Memory;
    /// What another thread has to say about a visit.
    type Word: Send;
    /// A peer's transfer. `None`: `Fabric::answer` will say what to do.
    fn visit(
        &self,
        from: DaemonIndex,
        kind: Kind,
        range: &Range,
        visit: Visit,
    ) -> Option<Answer<Self::Memory>>;
    /// What to do about a visit, now that `Fabric::answer` brought `word`.
    fn told(&self, kind: Kind, range: &Range, word: Self::Word) -> Answer<Self::Memory>;
    /// All bytes of a visit's store are in `memory`. What is answered to the peer.
    ///
    /// # Errors
    /// Why the store is refused after all.
    fn stored(&self, range: &Range, memory: Self::Memory) -> Result<(), Errno>;
    /// The end of a transfer that this daemon started.
    fn ended(&self, token: Self::Token, memory: Self::Memory, outcome: Outcome);
}

/// What moves the bytes: TCP (`Tcp`), or a network that reads and writes the memory of others.
pub trait Fabric<E: Ends>: Send + Sync {
    /// Starts a transfer. It ends by `Ends::ended`.
    fn start(&self, transfer: Transfer<E::Memory, E::Token>);
    /// Says something about a visit; it comes to `Ends::told`, unless the peer is gone.
    fn answer(&self, visit: Visit, word: E::Word);
}

/// Why a stream stops for now, or for ever.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The socket has nothing more, or takes nothing more.
    Blocked,
    /// The stream is of no use any more.
    Broken(&'static str),
    /// The operating system says so.
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        match errno {
            Errno::EAGAIN | Errno::EINTR => Stop::Blocked,
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
        }
    }
}
