//! What goes into a target and what comes out. Nothing here acts.

use wire::quota::Account;
use wire::reply::Piece;
use wire::{Errno, Inode, Request};

/// How soon a step of a device is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Haste {
    /// Much is ready: there is time.
    None,
    /// Less than half of what should be ready is: writers are coming close.
    Soon,
    /// A request waits for it.
    Now,
}

/// One input of `Target::step`.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A request to this target. `ticket` names it until its `Effect::Reply`.
    Request {
        /// The caller's name for it.
        ticket: u64,
        /// One of those with numbers from 0x40 on; the others are answered ENOSYS.
        request: &'a Request<'a>,
    },
    /// The answer to `Effect::Preallocate`.
    Preallocated {
        /// What the device said.
        outcome: wire::errno::Result<()>,
    },
    /// The answer to `Effect::CheckPins`.
    Pins {
        /// As in the effect.
        round: u64,
        /// Slots that some session pinned when it was looked at.
        pinned: &'a [u32],
    },
    /// These files may come to be soon: make their first pieces, as far as there is ample room.
    MakeEarly {
        /// Their numbers.
        inodes: &'a [Inode],
    },
    /// Bytes were written into these early pieces, or may be any moment: they stay.
    Wanted {
        /// The file and the beginning of each.
        pieces: &'a [(Inode, u64)],
    },
    /// Nothing was written into these early pieces, and nobody writes to them any more: they are hidden
    /// since before the last look at the pins.
    Unwanted {
        /// The file and the beginning of each.
        pieces: &'a [(Inode, u64)],
    },
    /// Time passed; wanted every few milliseconds while `Target::leaving_count` is not 0.
    Tick,
}

/// How much of a new piece has a defined content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defined {
    /// All granules: the space was never used and reads as zeros.
    All,
    /// None: every granule reads as zeros until it is written.
    Nothing,
    /// None, and the piece is early: this is to be noted beside it, for who comes after a kill.
    Early,
}

/// Where bytes of an answer come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// From `within` of a piece on.
    Piece {
        /// The piece.
        piece: Piece,
        /// Offset in it.
        within: u64,
    },
    /// Zeros.
    Hole,
}

/// What the caller must do, in the order in which effects come.
///
/// Those with a ticket come before its `Reply`. If one of them fails, the rest of the ticket is
/// left out and `Refused` with its errno is sent instead of the reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Set the slot's granules, then show the piece in the piece table.
    Publish {
        /// The file.
        inode: Inode,
        /// The piece.
        piece: Piece,
        /// Which of its granules are defined.
        defined: Defined,
    },
    /// A piece is early no longer: to be noted beside it; if it was hidden, it is shown again.
    Keep {
        /// The file.
        inode: Inode,
        /// The piece.
        piece: Piece,
    },
    /// Hide a slot of the piece table.
    Unpublish {
        /// Its number.
        slot: u32,
    },
    /// Look at the pins of all sessions once, after what was hidden before; then `Input::Pins`.
    CheckPins {
        /// To be given back.
        round: u64,
    },
    /// Make the device hold a range; then `Input::Preallocated`. At most one at a time.
    Preallocate {
        /// `Piece::MEMORY` or `Piece::SSD`.
        tier: u8,
        /// Its beginning on the device.
        place: u64,
        /// Its length in bytes.
        length: u64,
        /// How soon it is needed.
        haste: Haste,
    },
    /// Make a part of a piece read as zeros.
    Zero {
        /// The request.
        ticket: u64,
        /// The piece.
        piece: Piece,
        /// Offset in it.
        within: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Append bytes to the answer. The parts of one answer come in order, all in one step.
    Read {
        /// The request.
        ticket: u64,
        /// Where from.
        from: Source,
        /// How many.
        length: u32,
    },
    /// Copy a part of the request's bytes into a piece.
    Write {
        /// The request.
        ticket: u64,
        /// The piece.
        piece: Piece,
        /// Offset in it.
        within: u64,
        /// Offset in the request's bytes.
        from: u32,
        /// How many.
        length: u32,
    },
    /// Force the SSD file to its device.
    Flush {
        /// The request.
        ticket: u64,
    },
    /// Answer the request. Its ticket is free again.
    Reply {
        /// The request.
        ticket: u64,
        /// The answer.
        answer: Answer,
    },
}

/// An answer, before it is encoded as a `wire::Reply`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Done.
    Done,
    /// Refused for good.
    Refused(Errno),
    /// Refused for now.
    Busy {
        /// When to try again.
        retry_micros: u32,
    },
    /// An account may not use so many bytes more: it may be allowed more, or the request is refused.
    Beyond {
        /// The account.
        account: Account,
        /// How many.
        wanted: u64,
    },
    /// What the `Read` effects of the ticket appended.
    Bytes {
        /// How many in all.
        length: u32,
    },
    /// Pieces, in order of their start.
    Pieces(Vec<Piece>),
    /// A number.
    Number(u64),
    /// Bytes of the two devices. The number of files is not known here.
    Space {
        /// Of the arena.
        memory_total: u64,
        /// Of the arena, in no piece.
        memory_free: u64,
        /// Of the SSD file.
        ssd_total: u64,
        /// Of the SSD file, in no piece.
        ssd_free: u64,
    },
}
