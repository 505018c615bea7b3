//! Inputs and effects of a target. This module performs nothing.

use wire::quota::Account;
use wire::reply::Extent;
use wire::{DaemonIndex, Errno, Inode, JobWord, Request};

/// How soon a device operation is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Haste {
    /// Much provisioned space is left: there is time.
    None,
    /// Less than half of the desired provisioned space is left: writers will soon need it.
    Soon,
    /// A request waits for it.
    Now,
}

/// A job that waits for bytes of the backing store, or whose bytes move.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct FillJob {
    /// Its user.
    pub user: u32,
    /// Its number among those of the user; 0: that of requests that name no job.
    pub number: u32,
}

/// Why bytes are copied to another tier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CopyClass {
    /// They free memory that is short, or that writers of a job wait for.
    Frees,
    /// They are used.
    Serves,
    /// They will be used, are idle, or leave a slow target: nobody waits for that.
    Ahead,
}

impl FillJob {
    /// True for work of the instance itself that others wait for (`JobWord::URGENT`).
    #[must_use]
    pub fn is_urgent(self) -> bool {
        self == FillJob::from(JobWord::URGENT)
    }
}

impl From<JobWord> for FillJob {
    fn from(word: JobWord) -> FillJob {
        FillJob { user: word.user, number: word.number }
    }
}

/// Input of `Target::step`.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A request to this target. `ticket` names it until its `Effect::Reply`.
    Request {
        /// The caller's identifier for it.
        ticket: u64,
        /// A request with a number from 0x40 on; all others are answered ENOSYS.
        request: &'a Request<'a>,
        /// The job for which it takes memory, or waits for the backing store.
        job: JobWord,
    },
    /// Completion of `Effect::Provision`.
    Provisioned {
        /// The device's result.
        outcome: wire::errno::Result<()>,
    },
    /// Answer to `Effect::CheckHazards`.
    Hazards {
        /// As in the effect.
        round: u64,
        /// Slots that some session's hazard pointers protected at that check.
        protected: &'a [u32],
        /// Those of them that nothing protects but transfers that read them, for other hosts.
        reading: &'a [u32],
    },
    /// A service says that this target is slow. It is so until nobody has said that for a while
    /// (`migration`).
    Slow {
        /// Targets that are not slow, of the pools in which this one is.
        others: &'a [DaemonIndex],
    },
    /// Completion of `Effect::Copy`.
    Copied {
        /// As in the effect.
        ticket: u64,
        /// The device's result.
        outcome: wire::errno::Result<()>,
    },
    /// Completion of `Effect::GiveBack`.
    GivenBack {
        /// As in the effect.
        location: u64,
        /// As in the effect.
        length_log2: u8,
        /// The device's result.
        outcome: wire::errno::Result<()>,
    },
    /// These files may be created soon: preallocate their first extents while there is ample space.
    Preallocate {
        /// Their inode numbers.
        inodes: &'a [Inode],
    },
    /// Bytes were written into these preallocated extents, or may be at any moment: they are kept.
    Written {
        /// File and start offset of each.
        extents: &'a [(Inode, u64)],
    },
    /// Nothing was written into these preallocated extents, and nobody writes to them any more:
    /// they have been hidden since before the last hazard check.
    Reclaimed {
        /// File and start offset of each.
        extents: &'a [(Inode, u64)],
    },
    /// Answer to `Effect::LocateBacking`.
    BackingLocated {
        /// The file.
        inode: Inode,
        /// Number of bytes from the file's start that the backing store has, and the file's layout.
        outcome: wire::errno::Result<(u64, wire::Layout)>,
    },
    /// Completion of `Effect::Fill`.
    Filled {
        /// As in the effect.
        ticket: u64,
        /// Its result.
        outcome: wire::errno::Result<()>,
    },
    /// Answer to `Effect::ReleaseSpilled`, once the spill host has released the extent.
    SpilledReleased {
        /// As in the effect.
        slot: u32,
    },
    /// Answer to `Effect::QueryClean`.
    IsClean {
        /// As in the effect.
        inode: Inode,
        /// As in the effect.
        number: u64,
        /// The backing store has the whole file as it is, and nobody may write to it.
        is_clean: bool,
    },
    /// Answer to all `Effect::FinishCleaning` of one step.
    Cleaned {
        /// The extents whose cleaning mark was still set.
        extents: &'a [(Inode, Extent)],
    },
    /// The sender of a request that `Effect::Wait` named stops waiting: the request is answered by
    /// `Busy`.
    Withdraw {
        /// Ticket of the request.
        ticket: u64,
    },
    /// Answer to `Effect::RequestSpace`.
    SpaceReported {
        /// As in the effect.
        round: u64,
        /// Some space will be freed.
        comes: bool,
        /// Some of it is freed by writeback first, and writeback has made progress since the last
        /// query.
        progresses: bool,
    },
    /// Time passed; expected every few milliseconds while `Target::leaving_count` is not 0.
    Tick,
}

/// Which pages of a new extent are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Validity {
    /// All pages. Space that was never used reads as zeros.
    All,
    /// None: every page reads as zeros until it is written.
    Nothing,
    /// None, and the extent is preallocated: a mark in its entry records that for recovery.
    Preallocated,
    /// All, and the backing store has every byte: a mark in its entry says so until a client
    /// changes one.
    Backing,
    /// As `Backing`, and it was fetched because somebody reads: a mark in its entry says so until the
    /// first reader has come to it.
    Fetched,
    /// The valid pages of this extent, whose bytes were copied.
    As(Extent),
}

/// Source of bytes in an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// An extent, from offset `within` on.
    Extent {
        /// The extent.
        extent: Extent,
        /// Offset in it.
        within: u64,
    },
    /// Zeros.
    Hole,
}

/// Action that the caller must perform. Effects are performed in the order in which they come.
///
/// Effects with a ticket come before its `Reply`. If one of them fails, the rest of the ticket's
/// effects is skipped and `Refused` with its errno is sent instead of the reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Set the valid bits of the extent's slot, then publish the extent in the extent table.
    Publish {
        /// The file.
        inode: Inode,
        /// The extent.
        extent: Extent,
        /// Which of its pages are valid.
        valid: Validity,
    },
    /// An extent is not preallocated any more: clear the mark in its entry; if the extent was
    /// hidden, show it again.
    Keep {
        /// The file.
        inode: Inode,
        /// The extent.
        extent: Extent,
    },
    /// Set or clear the mark in an extent's entry that its file is pinned. An extent that is
    /// published later gets the mark if `Target::is_pinned` says so.
    Mark {
        /// Its slot.
        slot: u32,
        /// Whether the file is pinned.
        is_pinned: bool,
    },
    /// Set the mark in an extent's entry that its space is reserved: all of it counts as used until
    /// a part is freed.
    MarkReserved {
        /// The slot.
        slot: u32,
    },
    /// Hide a slot of the extent table temporarily.
    Hide {
        /// The slot.
        slot: u32,
    },
    /// Hide the slot of a clean extent in order to evict it: the next hazard check reports it as
    /// protected if it is not clean any more.
    HideToEvict {
        /// The slot.
        slot: u32,
    },
    /// Set the cleaning mark of an extent, which any change clears, unless some client has mapped
    /// the extent.
    MarkCleaning {
        /// The slot.
        slot: u32,
    },
    /// Clear the cleaning mark.
    UnmarkCleaning {
        /// The slot.
        slot: u32,
    },
    /// Ask a file's shard whether the backing store has all of the file as it is now and nobody may
    /// write to it; then `Input::IsClean`, unless the query is lost.
    QueryClean {
        /// The file.
        inode: Inode,
        /// Number of the query.
        number: u64,
    },
    /// If the extent's cleaning mark is still set, mark it clean; then `Input::Cleaned`.
    FinishCleaning {
        /// The file.
        inode: Inode,
        /// The extent.
        extent: Extent,
    },
    /// Show a hidden slot.
    Show {
        /// The slot.
        slot: u32,
    },
    /// Copy the valid bytes of an extent that nobody accesses to a new location, concurrently with
    /// other effects; then `Input::Copied`. All of a spilled extent is valid. At most
    /// `moves::MOVES_MAX` copies are in flight.
    Copy {
        /// To be returned in the answer.
        ticket: u64,
        /// Why.
        class: CopyClass,
        /// The job whose bytes they are.
        job: FillJob,
        /// The extent.
        from: Extent,
        /// The extent at its new location.
        to: Extent,
    },
    /// Write the entry of a spilled extent before it is copied, marked as gone, so that recovery
    /// finds it.
    RecordSpillIntent {
        /// The file.
        inode: Inode,
        /// The extent on the spill host.
        extent: Extent,
    },
    /// Make a spill host release an extent, however long that takes; then `Input::SpilledReleased`.
    ReleaseSpilled {
        /// The slot whose entry names it.
        slot: u32,
        /// Its location; see `spill::spill_host`.
        location: u64,
    },
    /// Clear the entry of a slot, whose contents are not needed any more.
    Forget {
        /// The slot.
        slot: u32,
    },
    /// Remove a slot from the extent table.
    Unpublish {
        /// The slot.
        slot: u32,
    },
    /// Check the hazard pointers of all sessions once, after everything that was hidden before;
    /// then `Input::Hazards`.
    CheckHazards {
        /// To be given back.
        round: u64,
    },
    /// Make the device reserve a range; then `Input::Provisioned`. At most one at a time.
    Provision {
        /// `Extent::MEMORY` or `Extent::SSD`.
        tier: u8,
        /// Its offset on the device.
        location: u64,
        /// Its length in bytes.
        length: u64,
        /// How soon it is needed.
        haste: Haste,
    },
    /// Give a block of the arena back to the system, so that it reads as zeros; then
    /// `Input::GivenBack`. At most `allowance::GIVE_BACKS_MAX` are in flight.
    GiveBack {
        /// Its offset in the arena.
        location: u64,
        /// log2 of its length.
        length_log2: u8,
    },
    /// Ask the file's shard how much of the file the backing store has; then
    /// `Input::BackingLocated`. Once for each file.
    LocateBacking {
        /// The file.
        inode: Inode,
    },
    /// Fill an unpublished extent with the file's bytes from the backing store and zeros behind
    /// them, concurrently with other effects; then `Input::Filled`. Several are in flight at once.
    Fill {
        /// To be given back.
        ticket: u64,
        /// The file.
        inode: Inode,
        /// The extent that will be published.
        extent: Extent,
        /// Number of bytes from its start that the backing store has.
        length: u64,
        /// How soon it is needed.
        haste: Haste,
        /// The job that wants it.
        job: FillJob,
    },
    /// Answer a read for which there is no space with bytes from the backing store and zeros behind
    /// them, concurrently with other effects. There is no `Reply`: the ticket is free once it is
    /// answered.
    ReadBacking {
        /// Ticket of the request.
        ticket: u64,
        /// The file.
        inode: Inode,
        /// Offset of the bytes in the file.
        offset: u64,
        /// Number of bytes, all within one extent's range.
        length: u32,
        /// Number of these bytes that the backing store has.
        backing: u32,
        /// The job that reads.
        job: FillJob,
    },
    /// Answer a read for which there is no space with bytes of a spilled extent, concurrently with
    /// other effects. There is no `Reply`: the ticket is free once it is answered.
    ReadSpilled {
        /// Ticket of the request.
        ticket: u64,
        /// The extent.
        extent: Extent,
        /// Offset in it.
        within: u64,
        /// Number of bytes.
        length: u32,
    },
    /// Zero a part of an extent.
    Zero {
        /// Ticket of the request.
        ticket: u64,
        /// The extent.
        extent: Extent,
        /// Offset in it.
        within: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Append bytes to the answer. The parts of one answer come in order, all in one step.
    Read {
        /// Ticket of the request.
        ticket: u64,
        /// Source of the bytes.
        from: Source,
        /// Number of bytes.
        length: u32,
    },
    /// Copy a part of the request's bytes into an extent.
    Write {
        /// Ticket of the request.
        ticket: u64,
        /// The extent.
        extent: Extent,
        /// Offset in it.
        within: u64,
        /// Offset in the request's bytes.
        from: u32,
        /// Number of bytes.
        length: u32,
    },
    /// Add the bytes of the used pages of these extents, below offset `end` of the file, to the
    /// number that answers the request.
    CountPages {
        /// Ticket of the request.
        ticket: u64,
        /// The extents.
        extents: Vec<Extent>,
        /// The offset.
        end: u64,
    },
    /// Flush the SSD file to its device.
    Flush {
        /// Ticket of the request.
        ticket: u64,
    },
    /// The request waits in the queue for space; see `Target::tick_writers`.
    Wait {
        /// Ticket of the request.
        ticket: u64,
    },
    /// Ask all services that may free space of this target to do so; then `Input::SpaceReported`.
    /// At most one query at a time.
    RequestSpace {
        /// To be given back.
        round: u64,
    },
    /// Answer the request. Its ticket is free again.
    Reply {
        /// Ticket of the request.
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
    /// Refused permanently.
    Refused(Errno),
    /// Refused temporarily.
    Busy {
        /// When to retry, in microseconds.
        retry_micros: u32,
    },
    /// The request needs more bytes than an account's limit allows: the limit may be raised, or the
    /// request is refused.
    OverLimit {
        /// The account.
        account: Account,
        /// Number of bytes.
        requested: u64,
    },
    /// The bytes that the `Read` effects of the ticket appended.
    Bytes {
        /// Number of bytes in all.
        length: u32,
    },
    /// Extents in order of their start.
    Extents(Vec<Extent>),
    /// A number.
    Number(u64),
    /// Bytes of the two devices. The number of files is not known here.
    Space {
        /// Of the arena.
        memory_total: u64,
        /// Of the arena, in no extent.
        memory_free: u64,
        /// Of the SSD file.
        ssd_total: u64,
        /// Of the SSD file, in no extent.
        ssd_free: u64,
    },
}
