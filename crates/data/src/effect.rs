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
    /// The answer to `Effect::Copy`.
    Copied {
        /// As in the effect.
        ticket: u64,
        /// What the device said.
        outcome: wire::errno::Result<()>,
    },
    /// The answer to `Effect::GiveBack`.
    GivenBack {
        /// As in the effect.
        place: u64,
        /// As in the effect.
        length_log2: u8,
        /// What the device said.
        outcome: wire::errno::Result<()>,
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
    /// The answer to `Effect::Below`.
    Below {
        /// The file.
        inode: Inode,
        /// How many of its first bytes lie below, and where its chunks are.
        outcome: wire::errno::Result<(u64, wire::Layout)>,
    },
    /// The answer to `Effect::Fill`.
    Filled {
        /// As in the effect.
        ticket: u64,
        /// What came of it.
        outcome: wire::errno::Result<()>,
    },
    /// The answer to `Effect::Dismiss`, once the keeper has let go of it.
    Dismissed {
        /// As in the effect.
        slot: u32,
    },
    /// The answer to `Effect::AskSaved`.
    IsSaved {
        /// As in the effect.
        inode: Inode,
        /// As well.
        number: u64,
        /// All of it is saved as it is, and nobody may write to it.
        is_saved: bool,
    },
    /// The answer to `Effect::EndSaving`, for all of a step.
    Saved {
        /// Those that bore the mark.
        pieces: &'a [(Inode, Piece)],
    },
    /// Who sent a request for which `Effect::Wait` came waits no longer: it is answered by `Busy`.
    Withdraw {
        /// Of the request.
        ticket: u64,
    },
    /// The answer to `Effect::AskForRoom`.
    RoomAsked {
        /// As in the effect.
        round: u64,
        /// Something is on its way.
        comes: bool,
        /// Part of that is saved first, and more of it was since this was asked last.
        goes_on: bool,
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
    /// All, and each byte lies below, too: this is to be noted beside it, for who changes one.
    Below,
    /// Those of this piece, whose bytes were copied.
    As(Piece),
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
    /// Note beside a piece that its file is resident, or not; one that is shown later has the mark if
    /// `Target::is_resident` says so.
    Mark {
        /// Its slot.
        slot: u32,
        /// Whether it is.
        is_resident: bool,
    },
    /// Hide a slot of the piece table for a moment.
    Hide {
        /// Its number.
        slot: u32,
    },
    /// Hide the slot of a clean piece, to drop it: in the look at the pins that comes next it counts as
    /// pinned if it is not clean any more.
    HideToDrop {
        /// Its number.
        slot: u32,
    },
    /// Mark the slot of a piece, so that it is seen whether it was changed since, unless somebody mapped
    /// it.
    BeginSaving {
        /// Its number.
        slot: u32,
    },
    /// Take the mark away.
    StopSaving {
        /// Its number.
        slot: u32,
    },
    /// Ask a file's shard whether all of it is saved as it is now, and nobody may write to it; then
    /// `Input::IsSaved`, unless the question is lost.
    AskSaved {
        /// Which.
        inode: Inode,
        /// Of the question.
        number: u64,
    },
    /// If a piece bears the mark it is clean from now on; then `Input::Saved`.
    EndSaving {
        /// Its file.
        inode: Inode,
        /// Which.
        piece: Piece,
    },
    /// Show a slot that was hidden.
    Show {
        /// Its number.
        slot: u32,
    },
    /// Copy what is defined of a piece that nobody uses to another place, while other effects go on; then
    /// `Input::Copied`. One abroad is defined as a whole. At most `sink::MOVES_MAX` are under way.
    Copy {
        /// To be given back.
        ticket: u64,
        /// The piece.
        from: Piece,
        /// Its new place.
        to: Piece,
    },
    /// Write the row of a place abroad to which a copy will lead, as one that is gone.
    Intend {
        /// The file.
        inode: Inode,
        /// The piece there.
        piece: Piece,
    },
    /// Have the keeper of a place abroad let go of it, however long that takes; then `Input::Dismissed`.
    Dismiss {
        /// The slot whose row says so.
        slot: u32,
        /// Its place; see `abroad::keeper`.
        place: u64,
    },
    /// Empty the row of a slot: what it said is of no use any more.
    Forget {
        /// Its number.
        slot: u32,
    },
    /// Take a slot out of the piece table.
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
    /// Give a block of the arena back to the system, so that it reads as zeros; then `Input::GivenBack`.
    /// At
    /// most `lend::GIVE_BACKS_MAX` are under way.
    GiveBack {
        /// Its beginning.
        place: u64,
        /// log2 of its length.
        length_log2: u8,
    },
    /// Ask the file's shard how much of it lies below; then `Input::Below`. Once for each file.
    Below {
        /// The file.
        inode: Inode,
    },
    /// Fill a place that nobody sees yet with the bytes of a file that lie below, and zeros behind them,
    /// while other effects go on; then `Input::Filled`. Some are under way at once.
    Fill {
        /// To be given back.
        ticket: u64,
        /// The file.
        inode: Inode,
        /// The piece that it becomes.
        piece: Piece,
        /// So many bytes from its start on lie below.
        length: u64,
        /// How soon it is needed.
        haste: Haste,
    },
    /// Answer a request for which there is no room with bytes of a file that lie below, and zeros behind
    /// them, while other effects go on. There is no `Reply`: its ticket is free when it is answered.
    ReadBelow {
        /// The request.
        ticket: u64,
        /// The file.
        inode: Inode,
        /// Where the bytes begin.
        offset: u64,
        /// How many, all in one piece's range.
        length: u32,
        /// So many of them lie below.
        below: u32,
    },
    /// Answer a request for which there is no room with bytes of a piece abroad, while other effects go
    /// on. There is no `Reply`: its ticket is free when it is answered.
    ReadAbroad {
        /// The request.
        ticket: u64,
        /// The piece.
        piece: Piece,
        /// Offset in it.
        within: u64,
        /// How many.
        length: u32,
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
    /// The request waits for room, in its turn; see `Target::keep_writers`.
    Wait {
        /// The request.
        ticket: u64,
    },
    /// Ask all who may have something of this target's to give back; then `Input::RoomAsked`. At most one
    /// at a time.
    AskForRoom {
        /// To be given back.
        round: u64,
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
