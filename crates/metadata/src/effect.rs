//! What goes into a step and what comes out of it. Plain values; nothing here decides anything.
//!
//! The effects of a step are performed in their order. A step writes at most one log record, and
//! it is the first effect: nothing that the record covers becomes visible before it is stored.

use wire::errno::Result;
use wire::quota::{Account, Owner};
use wire::watch::Watch;
use wire::{Attributes, DaemonIndex, Header, Inode, Layout, Post, Request, ShardIndex};

/// The time of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Nanoseconds since 1970: what files show, and when to try again.
    pub unix_nanos: i64,
    /// Of a clock that nobody sets: terms of leases.
    pub steady_nanos: i64,
}

impl Now {
    /// Where the clock that files show is never set.
    #[must_use]
    pub const fn of(nanos: i64) -> Now {
        Now { unix_nanos: nanos, steady_nanos: nanos }
    }
}

/// What happens to a service.
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
    /// Operations that clients of this host completed, in an order in which a file is made before it
    /// is closed. Not answered.
    Posted {
        /// The operations.
        posts: &'a [Posted<'a>],
    },
    /// Clients that post run out of inode numbers in a shard of this service.
    GrantNumbers {
        /// The shard.
        shard: ShardIndex,
    },
    /// `Effect::Remove`s were performed on every target that they concern. Looks at no name, and may
    /// come while clients post.
    Removed {
        /// The tokens of the effects.
        tokens: &'a [u64],
    },
    /// An `Effect::Data` was performed on every target that it concerns.
    DataDone {
        /// The token of the effect.
        token: u64,
        /// What came of it.
        result: Result<()>,
    },
    /// Origins `first .. first + count` will never send anything again. What they wait for and has not
    /// begun is not done any more.
    OriginGone {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// Who sent this request is dead. If it waits and has not begun, it is not done any more.
    Withdrawn {
        /// The request's origin.
        origin: u64,
        /// Its number.
        sequence: u64,
    },
    /// A host will never send anything again: its open files and locks are gone.
    HostGone {
        /// Its index.
        host: u16,
    },
    /// The target beside this service wants to have so many bytes more in use for an account of which
    /// space is limited. Answered by an `Effect::Allow`, now or later.
    DrawSpace {
        /// The account.
        account: Account,
        /// How many.
        wanted: u64,
    },
    /// A target has no room: what is kept of files that are gone goes now. See `Service::is_freeing`.
    GiveBack,
    /// An answer to `Effect::Below`: there is one with an errno, or several of which one is the last.
    Below {
        /// As in the effect.
        directory: Inode,
        /// Entries, in any order and no two with one name.
        outcome: Result<Part<'a>>,
    },
    /// The answer to `Effect::Look`.
    Looked {
        /// As in the effect.
        key: u128,
        /// What lies there by that name, if anything does.
        outcome: Result<Option<Seen<'a>>>,
    },
    /// Time passed. Wanted at `Service::deadline`, harmless at any time.
    Tick,
}

/// A post and what the host segment says of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Posted<'a> {
    /// The post.
    pub post: Post<'a>,
    /// Of a `Close`: end of what was written and not told; 0: nothing.
    pub written: u64,
}

/// Entries of a directory of the backing directory.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Some.
    pub entries: &'a [Seen<'a>],
    /// There are no more.
    pub is_last: bool,
}

/// An entry of a directory of the backing directory: its name, and what `stat` says there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a directory: number of names.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access.
    pub accessed: i64,
    /// Last change of contents.
    pub modified: i64,
    /// Last change of anything.
    pub changed: i64,
    /// Birth.
    pub born: i64,
    /// Of a device node: its number as the kernel encodes it.
    pub device: u32,
    /// Inode number.
    pub number: u64,
    /// Of a symbolic link: where it leads.
    pub target: &'a [u8],
    /// Of a file or directory: extended attributes and access lists, by their names.
    pub extended: &'a [(Vec<u8>, Vec<u8>)],
}

/// What is to be done after a step, in this order.
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
    /// What this host wrote to a file before `end` is told (`Opens::untold`); the log and the index
    /// have it.
    Told {
        /// The file.
        inode: Inode,
        /// What was untold.
        end: u64,
    },
    /// A file is `size` long now: log and index have it, and targets are about to cut it. When they
    /// have, `Opens::end_cut` says so.
    BeginCut {
        /// The file.
        inode: Inode,
        /// Its size.
        size: u64,
    },
    /// As `BeginCut`, of an inline file: that is all.
    CutInline {
        /// The file.
        inode: Inode,
        /// Its size.
        size: u64,
    },
    /// Another host does less with a file than `Opens::count_others_use` noted.
    UncountUse {
        /// The file.
        inode: Inode,
        /// Bits of `wire::reply::opened`.
        less: u8,
    },
    /// Clients may use inode numbers `first .. end` of a shard in their posts.
    GrantNumbers {
        /// The shard.
        shard: ShardIndex,
        /// The first.
        first: u64,
        /// Behind the last.
        end: u64,
    },
    /// Sends a message to the service of a shard, never this one's. May be lost, doubled and
    /// overtaken by others: it is sent again until it is answered.
    Peer {
        /// Where to.
        to: ShardIndex,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Sends a word to a daemon of another host, for its `Holder`. As `Peer`.
    Holder {
        /// Where to.
        to: DaemonIndex,
        /// The word.
        bytes: Vec<u8>,
    },
    /// Sends a word to the first daemon of another host, about the size of a file that is open there
    /// (`HostWord`). As `Peer`, but in order.
    Host {
        /// Where to.
        to: DaemonIndex,
        /// The word.
        bytes: Vec<u8>,
    },
    /// Sends a word to the service of a worker of another daemon, or of another worker of this one. As
    /// `Peer`; it comes by `Input::Peer`.
    Service {
        /// Where to.
        to: DaemonIndex,
        /// Its worker.
        worker: u8,
        /// The word.
        bytes: Vec<u8>,
    },
    /// The target beside this service is to count what it holds by accounts, from now on.
    Count,
    /// What the target beside this service may have in use for an account from now on; `None`: it is
    /// not limited. What it has in use already is not touched.
    Allow {
        /// The account.
        account: u64,
        /// Bytes.
        allowance: Option<u64>,
        /// Not so much as was asked for.
        denied: bool,
    },
    /// Asks the targets of a file for something; answered by `Input::DataDone`.
    Data {
        /// Names it in the answer.
        token: u64,
        /// The file.
        inode: Inode,
        /// Its layout: chunk size and placement.
        layout: Layout,
        /// What is asked.
        op: DataOp,
    },
    /// Asks for the entries of a directory that lies in the backing directory; answered by
    /// `Input::Below`.
    Below {
        /// The directory.
        directory: Inode,
        /// Its path there, without a slash before it, and, if it is not the top, its inode number: what
        /// has another is not this directory (EIO).
        place: (Vec<u8>, u64),
    },
    /// Asks what lies by a name in the backing directory; answered by `Input::Looked`, of which it does
    /// no harm if it never comes.
    Look {
        /// Names it in the answer.
        key: u128,
        /// The directory, as in `Below`. What says that there is no such name looked into that one.
        place: (Vec<u8>, u64),
        /// The name.
        name: Vec<u8>,
    },
    /// Has the space of files that are gone given back, by every target that may hold something of
    /// them; asked until they have done it, and answered by `Input::Removed`. Nobody waits for it.
    Remove {
        /// Names it in the answer.
        token: u64,
        /// The files and their layouts.
        files: Vec<(Inode, Layout)>,
    },
}

/// A change of the index. The index is a cache: forgetting is always right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexOp {
    /// The name `key` (`wire::hash::entry_key`) is this inode, with these type bits.
    PutEntry {
        /// Key of the name.
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
    /// All entries of a directory that are this service's are in the index from now on: there are
    /// none yet.
    PutWhole {
        /// The directory.
        directory: Inode,
    },
    /// A directory is gone.
    ForgetWhole {
        /// The directory.
        directory: Inode,
    },
    /// The attributes of an inode.
    PutInode(Attributes),
    /// Nothing is known about the inode; who has it open asks the shard.
    ForgetInode(Inode),
}

/// What the targets of a file are asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DataOp {
    /// Gives back all beyond `size`; at every target that may hold something of the file.
    Truncate {
        /// The size that is left.
        size: u64,
    },
    /// It has another owner, or is pinned, or is not; at every target that may hold something of the
    /// file.
    Own {
        /// Whose it is.
        owner: Owner,
        /// Since when: its time of change.
        changed: i64,
        /// Whether its pieces stay in memory.
        is_pinned: bool,
    },
    /// Writes at offset 0: the former inline contents. At most one piece, so one target.
    WriteAll {
        /// The contents.
        bytes: Vec<u8>,
    },
}

/// What the service asks its host within a step: who has a deleted file open, who still waits,
/// what was written.
pub trait Opens {
    /// Marks a file as deleted and says whether a process of this host has it open. It must first
    /// forget the inode in the index and only then look, because who opens a file does the two in
    /// the other order. If true, somebody sends `Request::Reap` after the last close.
    fn mark_deleted(&mut self, inode: Inode) -> bool;

    /// False if whoever sent the request of this ticket was killed since. What waited for its turn is
    /// not begun then: he is long gone for whoever looks at the names now.
    fn is_awaited(&self, ticket: u64) -> bool {
        let _ = ticket;
        true
    }

    /// End of what this host wrote to a file and the shard was not told, asked in the step that
    /// tells it: what a client said was read before, and may be cut off since. `None`: nobody here
    /// knows better than the client.
    fn untold(&self, inode: Inode) -> Option<u64> {
        let _ = inode;
        None
    }

    /// How often this host's row of a file says that it was cut. `None`: nobody here knows.
    fn cuts(&self, inode: Inode) -> Option<u64> {
        let _ = inode;
        None
    }

    /// True if this host has mounts.
    fn has_mounts(&self) -> bool {
        false
    }

    /// True if there is a mount of this number on this host.
    fn has_mount(&self, mount: u8) -> bool {
        let _ = mount;
        false
    }

    /// Notes, where programs of this host see it and a restart leaves it, that kernels of other
    /// hosts may remember something for so many nanoseconds. False: it can not be noted.
    fn watch_for_others(&self, watch: Watch, nanos: i64) -> bool {
        let _ = (watch, nanos);
        false
    }

    /// True if somebody on this host has a file open to write, so that it may change without a message.
    fn has_writer(&self, inode: Inode) -> bool {
        let _ = inode;
        false
    }

    /// Calls `each` with the mounts of this host whose kernels may remember something, and a number
    /// that is another each time they say so. They said it before this step began. With
    /// `wire::watch::OTHERS` for what `watch_for_others` noted.
    fn watchers(&self, watch: Watch, each: &mut dyn FnMut(u8, u64)) {
        let _ = (watch, each);
    }

    /// Calls `each` with the mounts of this host whose kernels may have pages of a file.
    fn page_keepers(&self, inode: Inode, each: &mut dyn FnMut(u8)) {
        let _ = (inode, each);
    }

    /// True if kernels behind mounts of this host may have had pages of a file since it is open here.
    fn had_pages(&self, inode: Inode) -> bool {
        let _ = inode;
        false
    }

    /// How often somebody began to write to a file, where programs of this host count themselves, too.
    fn writers_ever(&self, inode: Inode) -> u64 {
        let _ = inode;
        0
    }

    /// Another host begins to write to a file: counts it there. How often that was before.
    fn begin_writing(&self, inode: Inode) -> u64 {
        let _ = inode;
        0
    }

    /// Notes, where programs of this host see it and a restart leaves it, that another host does this
    /// with a file, too: bits of `wire::reply::opened`. `Effect::UncountUse` takes it away.
    fn count_others_use(&self, inode: Inode, more: u8) {
        let _ = (inode, more);
    }

    /// Notes in this host's row of a file, if it is open here, what other hosts do with it.
    fn mark_others_use(&self, inode: Inode, others: u8) {
        let _ = (inode, others);
    }

    /// Bytes that the target beside the service has in use for an account.
    fn space_used(&self, account: u64) -> u64 {
        let _ = account;
        0
    }

    /// Calls `each` with every account that the target has bytes in use for, and how many.
    fn each_space(&self, each: &mut dyn FnMut(u64, u64)) {
        let _ = each;
    }

    /// True once the target has counted all that it holds.
    fn is_counted(&self) -> bool {
        true
    }

    /// The targets have cut a file; nobody was answered since, and the index does not have it yet.
    fn end_cut(&mut self, inode: Inode) {
        let _ = inode;
    }
}
