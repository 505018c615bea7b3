//! Inputs and effects of a step. Plain values; nothing here decides anything.
//!
//! The effects of a step are performed in their order. A step writes at most one log record, and it
//! is the first effect: nothing that the record covers becomes visible before it is stored.

use crate::backing::lost_files::LackingUnits;
use placement::ServiceName;
use wire::errno::Result;
use wire::quota::{Account, Owner};
use wire::watch::Watch;
use wire::{Attributes, DaemonIndex, Header, Inode, Layout, LocalOp, Request, ShardIndex};

/// The time of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Nanoseconds since 1970: for times of files and for retry timers.
    pub unix_nanos: i64,
    /// Nanoseconds of a monotonic clock: for lease terms.
    pub steady_nanos: i64,
}

impl Now {
    /// A time for which both clocks agree: the wall clock is never set.
    #[must_use]
    pub const fn of(nanos: i64) -> Now {
        Now { unix_nanos: nanos, steady_nanos: nanos }
    }
}

/// Input of a step.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A request below 0x40 for a shard of this service. Answered by one `Effect::Reply` with the
    /// same ticket, now or later.
    Request {
        /// Names the request in the reply.
        ticket: u64,
        /// Its header.
        header: &'a Header,
        /// The request.
        request: Request<'a>,
    },
    /// A message that another service sent by `Effect::Peer` to a shard of this one.
    Peer {
        /// The bytes of the effect.
        message: &'a [u8],
    },
    /// Operations that clients of this host completed in shared memory, ordered so that a file is
    /// created before it is closed. Not answered.
    LocalOps {
        /// The operations, in the order of the log.
        ops: &'a [LoggedOp<'a>],
    },
    /// Some units of file data have lost all their copies, the last ones in this version of the table of
    /// units (`files::births`).
    UnitsLost {
        /// The version.
        loss: u64,
    },
    /// Clients that log local operations run out of inode numbers in a shard of this service.
    GrantNumbers {
        /// The shard.
        shard: ShardIndex,
    },
    /// `Effect::Remove`s were performed on every target that they concern. Reads no name, and may
    /// arrive while clients log local operations.
    Removed {
        /// The tokens of the effects.
        tokens: &'a [u64],
    },
    /// An `Effect::Data` was performed on every target that it concerns.
    DataDone {
        /// The token of the effect.
        token: u64,
        /// Result on the targets.
        result: Result<()>,
    },
    /// Clients `first .. first + count` will never send anything again. Their requests that wait
    /// and have not begun are dropped.
    ClientGone {
        /// First client id.
        first: u64,
        /// Number of client ids.
        count: u64,
    },
    /// The sender of this request died. A request that waits and has not begun is dropped.
    Withdrawn {
        /// Client id of the request.
        client_id: u64,
        /// Its sequence number.
        sequence: u64,
    },
    /// A host will never send anything again: its open files and locks are released.
    HostGone {
        /// Its index.
        host: u16,
    },
    /// These targets are gone with all that they had, and others come in their place.
    TargetsLost {
        /// The first one.
        first: u16,
        /// The one behind the last.
        end: u16,
    },
    /// Nothing is open at the host of the first owner that this service, which goes on elsewhere, does
    /// not know: that host is gone, or has reported what its programs have open (`Service::take_over`).
    OpensKnown,
    /// The service is about to leave this host for good. All that the memory of this host alone knows of
    /// some files that are open here goes to the log, as if another host had said it: which they are,
    /// whether programs here may write to them, and kernels cache their pages. Nothing else follows, but
    /// `Stay`.
    Leave {
        /// Files that are open, of this service, or none.
        files: &'a [Inode],
        /// An open sequence of this host, drawn before the files were listed.
        open_sequence: u64,
    },
    /// It stays after all: this host's open files are again in its memory.
    Stay,
    /// Notices of another service were queued for mounts of this host, and are lost: those that are
    /// behind drop all pages.
    DoubtNotices,
    /// The target beside this service requests more bytes for an account whose space is limited.
    /// Answered by an `Effect::Allow`, now or later.
    DrawSpace {
        /// The account.
        account: Account,
        /// Number of bytes.
        more: u64,
    },
    /// A target is out of space: removed files in their grace period are released at once. See
    /// `Service::is_freeing`.
    GiveBack,
    /// Answer to `Effect::ReadBackingDir`: one with an errno, or several of which one is the last.
    BackingDirRead {
        /// As in the effect.
        directory: Inode,
        /// Entries, in any order, no name twice.
        outcome: Result<BackingDirPart<'a>>,
    },
    /// The answer to `Effect::Probe`.
    Probed {
        /// As in the effect.
        key: u128,
        /// The entry in the backing store, if the name exists there.
        outcome: Result<Option<BackingEntry<'a>>>,
    },
    /// Time passed. Due at `Service::deadline`, harmless at any time.
    Tick,
}

/// A local operation and what the host segment says of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedOp<'a> {
    /// The operation.
    pub op: LocalOp<'a>,
    /// Of a `Close`: the unreported size, that is, the end of what was written; 0: nothing.
    pub written: u64,
}

/// A batch of entries of a directory in the backing store.
#[derive(Clone, Copy, Debug)]
pub struct BackingDirPart<'a> {
    /// The entries of this batch.
    pub entries: &'a [BackingEntry<'a>],
    /// True for the last batch.
    pub is_last: bool,
}

/// An entry of a directory in the backing store: its name, and the result of `stat` there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackingEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count; meaningful for directories only.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last access, nanoseconds since 1970.
    pub accessed: i64,
    /// Time of the last change of the contents.
    pub modified: i64,
    /// Time of the last change of anything.
    pub changed: i64,
    /// Time of birth.
    pub born: i64,
    /// Of a device node: its number as the kernel encodes it.
    pub device: u32,
    /// Inode number in the backing store.
    pub number: u64,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    /// Extended attributes and access lists of a file or directory, by name.
    pub extended: &'a [(Vec<u8>, Vec<u8>)],
}

/// Effect of a step; the host performs the effects in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Answers a request: an encoded `wire::Reply`. Give the buffer back by `Service::recycle`.
    Reply {
        /// The ticket of the request.
        ticket: u64,
        /// The encoded reply.
        bytes: Vec<u8>,
    },
    /// Appends a record to the log; it must survive a kill of the daemon before the effects that
    /// follow are performed. Give the buffer back by `Service::recycle`.
    Log(Vec<u8>),
    /// Changes the index in shared memory.
    Index(IndexOp),
    /// The size that this host reported (`HostView::unreported`) is in the log and the index, so
    /// what was written before `end` is no longer unreported.
    SizeReported {
        /// The file.
        inode: Inode,
        /// The unreported size that was reported.
        end: u64,
    },
    /// A file has the new size `size`: log and index have it, and targets are about to truncate it.
    /// When they have, the service calls `HostMarks::end_truncate`.
    BeginTruncate {
        /// The file.
        inode: Inode,
        /// Its new size in bytes.
        size: u64,
    },
    /// As `BeginTruncate`, for an inline file: no target is involved.
    TruncateInline {
        /// The file.
        inode: Inode,
        /// Its size.
        size: u64,
    },
    /// Another host has less use of a file than `HostMarks::add_remote_use` recorded.
    UncountUse {
        /// The file.
        inode: Inode,
        /// Bits of `wire::reply::opened`.
        less: u8,
    },
    /// Clients may use inode numbers `first .. end` of a shard for local operations.
    GrantNumbers {
        /// The shard.
        shard: ShardIndex,
        /// First inode number.
        first: u64,
        /// One past the last.
        end: u64,
        /// The rest of an earlier grant is not used any more.
        is_anew: bool,
    },
    /// Sends a message to the service of a shard, never to this one. It may be lost, duplicated and
    /// reordered; the service resends it until it is answered.
    Peer {
        /// Destination.
        to: ShardIndex,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Sends a message to a daemon of another host, for its lease `Holder`. As `Peer`.
    Holder {
        /// Destination.
        to: DaemonIndex,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Sends a message to the first daemon of another host, about the size of a file that is open
    /// there (`HostMessage`). As `Peer`, but delivered in order.
    Host {
        /// Destination.
        to: DaemonIndex,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Sends a message to another service, wherever it is. As `Peer`; it arrives as `Input::Peer`.
    Service {
        /// Destination.
        to: ServiceName,
        /// The message.
        bytes: Vec<u8>,
    },
    /// The target beside this service counts its usage by account from now on.
    Count,
    /// Allowance of the target beside this service for an account; `None`: not limited. Bytes in
    /// use are never taken away.
    Allow {
        /// The account.
        account: u64,
        /// Bytes that may be in use.
        allowance: Option<u64>,
        /// True if this is less than the target requested.
        denied: bool,
    },
    /// The host tells services what its processes move (`HostMessage::transfers`) from now on, or no
    /// longer.
    ReportTransfers {
        /// True if there are pools of targets.
        is_requested: bool,
    },
    /// A pool has these targets now, each with its `max_perf`; none: it is gone.
    PoolTargets {
        /// Number of the pool.
        id: u8,
        /// Its targets.
        targets: Vec<(DaemonIndex, u64)>,
    },
    /// A target of a pool was found slow, or is not any more.
    TargetHealth {
        /// Number of the pool.
        id: u8,
        /// Name of the pool.
        pool: Vec<u8>,
        /// The target.
        target: u32,
        /// True if it is slow: new files of the pool avoid it.
        is_slow: bool,
        /// Mean of its bytes per second while it was active.
        rate: u64,
        /// Mean of the peaks of all targets of the pool, in bytes per second.
        peers: u64,
    },
    /// A target of a pool is slow, about once a second: what is read of it moves away.
    LeaveTarget {
        /// The target.
        target: u32,
        /// Targets of the pool that are not slow.
        others: Vec<u32>,
    },
    /// Performs an operation on the targets of a file; answered by `Input::DataDone`.
    Data {
        /// Identifies it in the answer.
        token: u64,
        /// The file.
        inode: Inode,
        /// Its layout: stripe size and placement.
        layout: Layout,
        /// The operation.
        op: DataOp,
    },
    /// Reads the entries of a directory in the backing store; answered by `Input::BackingDirRead`.
    ReadBackingDir {
        /// The directory.
        directory: Inode,
        /// Its path there, without a leading slash, and its inode number there (0 for the top). A
        /// directory with another number is a different one (EIO).
        place: (Vec<u8>, u64),
    },
    /// Looks a name up in the backing store; answered by `Input::Probed`. A lost answer does no
    /// harm.
    Probe {
        /// Identifies it in the answer.
        key: u128,
        /// The directory, as in `ReadBackingDir`. An answer that the name does not exist is about
        /// exactly this directory.
        place: (Vec<u8>, u64),
        /// The name.
        name: Vec<u8>,
    },
    /// Frees the space of removed files on every target that may hold data of them. The host
    /// repeats it until the targets have done it; answered by `Input::Removed`. No request waits
    /// for it.
    Remove {
        /// Identifies it in the answer.
        token: u64,
        /// The files and their layouts.
        files: Vec<(Inode, Layout)>,
    },
}

/// A change of the index in shared memory. The index is a cache: forgetting is always correct.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexOp {
    /// The name with this key leads to this inode, with these type bits.
    PutEntry {
        /// Key of the name (`wire::hash::entry_key`).
        key: u128,
        /// The inode.
        inode: Inode,
        /// Type bits of its mode.
        mode: u32,
    },
    /// There is no such name.
    PutAbsent {
        /// The directory.
        directory: Inode,
        /// Key of the name.
        key: u128,
    },
    /// Nothing is known about the name.
    ForgetEntry {
        /// Key of the name.
        key: u128,
    },
    /// From now on the index has all entries of this directory that belong to this service; at the
    /// moment there are none.
    MarkComplete {
        /// The directory.
        directory: Inode,
    },
    /// A directory is gone.
    UnmarkComplete {
        /// The directory.
        directory: Inode,
    },
    /// The attributes of an inode.
    PutInode(Attributes),
    /// Nothing is known about the inode; a process that has it open asks the shard.
    ForgetInode(Inode),
}

/// Operation on the targets of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataOp {
    /// Frees all data beyond `size`, on every target that may hold data of the file.
    Truncate {
        /// The remaining size in bytes.
        size: u64,
    },
    /// The owner or the pinning changed; on every target that may hold data of the file.
    Own {
        /// Owner of the file.
        owner: Owner,
        /// Time of the change (ctime).
        changed: i64,
        /// Whether its extents stay in memory.
        is_pinned: bool,
    },
    /// Writes the former inline contents at offset 0. At most one stripe, so one target.
    WriteAll {
        /// The contents.
        bytes: Vec<u8>,
    },
}

/// Whether files may have one copy in an instance that keeps more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SingleFiles {
    /// They may.
    Allowed,
    /// That is being decided.
    Asked,
    /// Daemons leave the instance, or have left it.
    Refused,
}

/// Whether a target takes new files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetPresence {
    /// Its daemon takes part.
    Here,
    /// Its daemon is down, or not connected.
    Away,
    /// Its daemon leaves the instance, or has left it for good.
    Gone,
}

/// The service's view of its host within a step: live requests, unreported sizes, kernel caches,
/// space in use.
pub trait HostView {
    /// False if the sender of the request of this ticket has been killed. A request that waited for
    /// its turn is not begun then, because an observer of the namespace considers its sender long
    /// gone.
    fn is_awaited(&self, ticket: u64) -> bool {
        let _ = ticket;
        true
    }

    /// Unreported size of a file on this host: the end of what was written and not reported to the
    /// shard. Read in the step that reports it, because the value in a client's request is older
    /// and may have been truncated since. `None`: the client's value is the best known.
    fn unreported(&self, inode: Inode) -> Option<u64> {
        let _ = inode;
        None
    }

    /// Truncate epoch of a file in the host segment. `None`: not known here.
    fn truncate_epoch(&self, inode: Inode) -> Option<u64> {
        let _ = inode;
        None
    }

    /// True if this host has mounts.
    fn has_mounts(&self) -> bool {
        false
    }

    /// True if this host has a mount with this number.
    fn has_mount(&self, mount: u8) -> bool {
        let _ = mount;
        false
    }

    /// True if a process on this host has a file open for writing, so that it may change without a
    /// message.
    fn has_writer(&self, inode: Inode) -> bool {
        let _ = inode;
        false
    }

    /// True if a process on this host has a file open.
    fn is_open(&self, inode: Inode) -> bool {
        let _ = inode;
        false
    }

    /// Calls `each` with the mounts of this host whose kernels may remember something, and a stamp
    /// that changes each time the mount registers again. They registered before this step began.
    /// `wire::watch::OTHERS` stands for what `watch_for_others` recorded.
    fn watchers(&self, watch: Watch, each: &mut dyn FnMut(u8, u64)) {
        let _ = (watch, each);
    }

    /// Calls `each` with the mounts of this host whose kernels may cache pages of a file.
    fn page_cache_mounts(&self, inode: Inode, each: &mut dyn FnMut(u8)) {
        let _ = (inode, each);
    }

    /// Calls `each` with the files of which the kernel of a mount of this host may cache pages.
    fn page_cache_files(&self, mount: u8, each: &mut dyn FnMut(Inode)) {
        let _ = (mount, each);
    }

    /// Calls `each` with the mounts of this host that are behind (`HostMarks::set_behind`) with the
    /// notices of a service.
    fn behind_mounts(&self, service: usize, each: &mut dyn FnMut(u8)) {
        let _ = (service, each);
    }

    /// True if kernels behind mounts of this host may have cached pages of a file since it was
    /// opened here.
    fn had_pages(&self, inode: Inode) -> bool {
        let _ = inode;
        false
    }

    /// How often a writer of a file began. Programs of this host count themselves in the same
    /// counter.
    fn writers_ever(&self, inode: Inode) -> u64 {
        let _ = inode;
        0
    }

    /// The epoch of its owners in which the memory of this host agreed with the log of a service last;
    /// 0: never.
    fn agreed_epoch(&self, service: usize) -> u64 {
        let _ = service;
        0
    }

    /// Calls `each` with the files that are open on this host.
    fn open_files(&self, each: &mut dyn FnMut(Inode)) {
        let _ = each;
    }

    /// Whether files may have one copy, in an instance that keeps more. Asks for it where that is not
    /// decided yet.
    fn allow_single_files(&self) -> SingleFiles {
        SingleFiles::Allowed
    }

    /// Whether a target takes new files now.
    fn target_presence(&self, target: u32) -> TargetPresence {
        let _ = target;
        TargetPresence::Here
    }

    /// Units of file data that lack copies now. `None`: files have one copy.
    fn lacking_units(&self) -> Option<LackingUnits> {
        None
    }

    /// Bytes in use for an account on the target beside this service.
    fn space_used(&self, account: u64) -> u64 {
        let _ = account;
        0
    }

    /// Calls `each` with every account that has bytes in use on the target, and the number of
    /// bytes.
    fn each_space(&self, each: &mut dyn FnMut(u64, u64)) {
        let _ = each;
    }

    /// True once the target has counted everything it holds.
    fn is_counted(&self) -> bool {
        true
    }
}

/// Marks in the memory of the host that a step makes at once, unlike an effect:
/// 1. Each is the first half of "announce, then look": programs of this host do the two in the other
///    order, so that one side sees the other. The step looks after it has announced, and decides by
///    what it finds.
/// 2. Each is there before the record of the step is in the log. A daemon that is killed in between
///    leaves a mark too many, which costs a message or a repetition; a record without its mark
///    would let programs use what is stale, or wait for the end of a truncation that nobody
///    announces.
pub trait HostMarks: HostView {
    /// Marks a file as deleted and says whether a process of this host has it open. It must forget
    /// the inode in the index first and check second, because an open does the two in the other
    /// order. If it returns true, `Request::Reap` follows after the last close.
    fn mark_deleted(&mut self, inode: Inode) -> bool;

    /// As `mark_deleted`, for a file that stays if a process of this host has it open: it is not marked,
    /// and the step shows it in the index again.
    fn hide(&self, inode: Inode) -> bool {
        self.is_open(inode)
    }

    /// Records, visible to programs of this host and preserved over a restart, that kernels of
    /// other hosts may remember something for this many nanoseconds. False: it cannot be recorded.
    fn watch_for_others(&self, watch: Watch, nanos: i64) -> bool {
        let _ = (watch, nanos);
        false
    }

    /// Counts a writer on another host. Returns the counter before.
    fn begin_writing(&self, inode: Inode) -> u64 {
        let _ = inode;
        0
    }

    /// Records, visible to programs of this host and preserved over a restart, that another host
    /// has this use of a file too: bits of `wire::reply::opened`. `Effect::UncountUse` removes it.
    fn add_remote_use(&self, inode: Inode, more: u8) {
        let _ = (inode, more);
    }

    /// Records in the open inode of this host, if there is one, how other hosts use the file.
    fn mark_remote_use(&self, inode: Inode, others: u8) {
        let _ = (inode, others);
    }

    /// Records, visible to the mount and preserved over a restart, whether the service, by its number
    /// among all of the instance, gave up its wait for a mount of this host that has yet to drop pages.
    fn set_behind(&self, mount: u8, service: usize, is_behind: bool) {
        let _ = (mount, service, is_behind);
    }

    /// Records, preserved over a restart, that the memory of this host agrees with the log of a service,
    /// in this epoch of its owners.
    fn note_agreed(&self, service: usize, epoch: u64) {
        let _ = (service, epoch);
    }

    /// Files of a service may have been written by any number of writers that nobody counted here: the
    /// numbers become larger than they were, and than `writers`, and all mounts of this host are behind.
    fn doubt_pages(&self, service: usize, writers: u64) {
        let _ = (service, writers);
    }

    /// Kernels of this host that cache pages of an open file anew say so again, where other hosts write.
    /// Those hosts were recorded before (`add_remote_use`).
    fn forget_entered(&self, inode: Inode) {
        let _ = inode;
    }

    /// Sets the size of a file that may be open on this host as its log has it, except what was written
    /// here and not reported. `is_truncated`: that is from before a truncation.
    fn settle_size(&self, inode: Inode, size: u64, is_truncated: bool) {
        let _ = (inode, size, is_truncated);
    }

    /// This service has no file that is open on this host: its last owner on this host died, and no other
    /// daemon had the change that made it. Writers learn that by fsync and close.
    fn note_lost(&self, inode: Inode) {
        let _ = inode;
    }

    /// The targets have truncated a file. Made before the index has the file again, and before
    /// requests that waited for the targets read the truncate epoch in the same step.
    fn end_truncate(&mut self, inode: Inode) {
        let _ = inode;
    }
}
