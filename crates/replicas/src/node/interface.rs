//! Inputs of a node that are more than a message, what it asks its daemon to do, and its settings.

use super::messages::Message;
use super::windows::Window;
use crate::change::{Change, Reign};
use crate::dirty::Notice;
use crate::kept::KeptStep;
use crate::operation::{ByteRange, Kind, Object, Operation, Requested, Source, Stamp};
use crate::placement::UnitIndex;
use wire::DaemonIndex;

/// A client's change of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Names it in `Action::Answer`.
    pub ticket: u64,
    /// Epoch of the unit that the client knows: a message from before is refused.
    pub epoch: u64,
    /// The object.
    pub object: Object,
    /// The bytes.
    pub range: ByteRange,
    /// `Write`, `Punch` or `Remove`.
    pub kind: Kind,
    /// Its identity.
    pub requested: Requested,
    /// Version of the table when the file was made: its bytes here are lost if that was before
    /// `Unit::lost_at`.
    pub born: u64,
}

/// A client's read of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// Names it in `Action::Serve` and `Action::Answer`.
    pub ticket: u64,
    /// The client.
    pub client: u64,
    /// The object.
    pub object: Object,
    /// The bytes.
    pub range: ByteRange,
    /// As in `Request`.
    pub born: u64,
}

/// An answer to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// All copies in sync have it. The client forgets its bytes.
    Done(Stamp),
    /// The primary has it. The client goes on, and keeps its bytes until `Done`.
    Stored,
    /// Another daemon is the primary, or the message is late: look at the table.
    Stale,
    /// Ask again.
    Busy,
    /// This copy may not be read now.
    AskPrimary,
    /// All copies of these bytes are gone. A file that is clean in the backing store is read from
    /// there.
    Lost,
    /// Bytes of the request were lost on their way, and a copy may have some of them.
    Failed,
}

/// How a pull ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pulled {
    /// All bytes are here.
    Done,
    /// The source does not answer, or has the bytes no more. None is here.
    Failed,
    /// Some of the bytes may be here.
    Torn,
    /// The source's bytes fail their checksum.
    Corrupt,
}

/// An action of the daemon; they are done in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Stores a step of the state that survives the process, before what follows is done
    /// (`crate::kept`).
    Keep {
        /// The unit.
        unit: UnitIndex,
        /// The step.
        step: KeptStep,
    },
    /// Sends a message to a daemon. It may be lost.
    Send {
        /// The daemon.
        to: DaemonIndex,
        /// For its `Node::receive`.
        message: Message,
    },
    /// Pulls the bytes of an operation into the copy here: `Node::pulled`.
    Pull {
        /// Names it.
        ticket: u64,
        /// The unit, and the epoch in which it is pulled: a source that is a copy gives nothing
        /// unless `Node::may_give` says so.
        of: Reign,
        /// The operation.
        operation: Operation,
        /// Where the bytes are.
        source: Source,
    },
    /// A pull is not needed: it ends as soon as it can, with `Node::pulled` as always.
    Cancel {
        /// The pull.
        ticket: u64,
    },
    /// Changes the copy here, at once: `Punch`, `Remove`, `Begin` (which removes, too) or `Spoil`,
    /// after which reading the bytes is an error without another question.
    Change {
        /// The unit.
        unit: UnitIndex,
        /// The operation.
        operation: Operation,
    },
    /// Removes an object of the copy here.
    Erase {
        /// The unit.
        unit: UnitIndex,
        /// The object.
        object: Object,
    },
    /// Removes what this daemon keeps of a unit. The bytes of its objects follow, by `Erase`; those of a
    /// pull that runs, when it has ended.
    Discard(UnitIndex),
    /// Answers a client.
    Answer {
        /// As in its request.
        ticket: u64,
        /// The answer.
        answer: Answer,
    },
    /// Reads the bytes of a client's read now. If they fail their checksum: `Node::corrupt`.
    Serve {
        /// As in its request.
        ticket: u64,
    },
    /// Proposes a change of the table.
    Propose(Change),
    /// Tells the owner of the file's name: `Node::noticed` when it has stored that. It may be lost.
    Notify(Notice),
}

/// Settings of a daemon.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The daemon.
    pub own: DaemonIndex,
    /// Bytes that are sent at once when a copy is filled. Writes to these bytes wait meanwhile.
    pub slice_bytes: u64,
    /// Bytes per second that this daemon's units may fill copies with; 0: unlimited.
    pub fill_bytes_per_second: u64,
    /// Bytes of a unit that may be acknowledged as stored, and not be on all copies.
    pub behind_bytes_max: u64,
    /// Requests and reads of one client that this daemon has under way.
    pub client: Window,
    /// Operations that this daemon has under way at one other daemon, and pulls here for one.
    pub peer: Window,
}

/// Counts of what happened, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes that copies were filled with.
    pub bytes_filled: u64,
    /// Ranges whose bytes failed their checksum here, and that came from another copy.
    pub repairs: u64,
    /// Reads that this daemon served as a copy that is not the primary.
    pub reads_here: u64,
}
