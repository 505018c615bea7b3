//! Jobs: requests, and messages of other services, that cannot proceed yet.
//!
//! A job waits for one condition (`Wait`), is woken when that holds, and is then run again from the
//! start, with the facts that it gathered. So every operation is written as if it had all it needs,
//! and may stop anywhere before its first change.

use wire::{Attributes, Errno, Header, Inode, Reader, Request, ShardIndex};

use crate::backing::sync_state::DirLocation;
use crate::core::effect::HostMarks;
use crate::core::table::Xattrs;

/// Reason why an operation does not proceed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It fails.
    Refused(Errno),
    /// It belongs to another service.
    Stale,
    /// It proceeds when this condition holds.
    Wait(Wait),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Refused(errno)
    }
}

/// Result of an operation that may have to wait.
pub(crate) type Step<T> = Result<T, Stop>;

/// Condition that a job waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// The answer to a query.
    Answer(u64),
    /// The release of a key that a transaction holds.
    Unlock,
    /// The targets, for an operation of this job.
    OwnData(u64),
    /// The targets, for an operation of another job on the inode.
    Data(Inode),
    /// The votes on a transaction.
    Votes(u64),
    /// The revocation of leases and copies of this directory.
    Revoke(Inode),
    /// The invalidation of kernel caches behind mounts.
    Invalidation,
    /// A glimpse: other hosts report sizes.
    Glimpse(u64),
    /// A larger quota grant from the coordinator.
    Grant(u64),
    /// All services to acknowledge limits.
    Limits,
    /// All services to acknowledge a pool.
    Pools,
    /// All services to report usage.
    Usage(u64),
    /// The entries of this directory in the backing store.
    BackingDir(Inode),
    /// The probe of a name in the backing store, by its key.
    Probe(u128),
    /// The next dirty name or inode (the writeback daemon waits).
    Dirty,
    /// The writeback of this inode, requested under this number.
    Clean(Inode, u64),
    /// The next such request (the writeback daemon waits).
    CleanRequest,
    /// A point in time; facts are gathered anew.
    Time(i64),
}

impl Wait {
    /// True for long polls of writeback: answered with a number after a while, and then repeated.
    pub(crate) const fn is_for_writeback(self) -> bool {
        matches!(self, Wait::Clean(..) | Wait::CleanRequest)
    }
}

/// Information from another service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fact {
    /// The attributes of an inode; `None`: it does not exist.
    Attributes(Inode, Option<Attributes>),
    /// An entry: NONE if it does not exist.
    Entry(Inode, Vec<u8>, Inode, u32),
    /// The other services that may have entries of a directory.
    EntryServices(Inode, Vec<u32>),
    /// The tally of a directory by the service of a shard is known, as of when it was spread so far, or
    /// that service is silent.
    Tally(Inode, u8, ShardIndex),
    /// The access control lists of an inode.
    Acls(Inode, Xattrs),
    /// Other hosts have reported the size of a file.
    Glimpsed(Inode),
    /// The coordinator denied an account more of a resource.
    Denied(u64, u8),
    /// Encoded entries of a usage report.
    Usage(Vec<u8>),
    /// Backing location of a directory; `None`: it has none.
    DirLocation(Inode, Option<DirLocation>),
    /// The entries of a directory in the backing store cannot be read.
    NotImported(Inode, Errno),
}

/// Context of a request or message while it runs.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) ticket: u64,
    pub(crate) header: &'a Header,
    pub(crate) facts: &'a [Fact],
    /// Result of this job's own operation on targets.
    pub(crate) data: Option<Result<(), Errno>>,
    /// Current value from the open inode (vnode) in this host's segment: for an `Append` the
    /// truncate epoch, for a request about the size the unreported size.
    pub(crate) vnode_value: Option<u64>,
    /// The rest of the host's state.
    pub(crate) host_view: &'a dyn HostMarks,
}

impl<'a> Call<'a> {
    /// The context of a message from another service.
    pub(crate) fn of_message(
        header: &'a Header,
        facts: &'a [Fact],
        host_view: &'a dyn HostMarks,
    ) -> Call<'a> {
        Call { ticket: 0, header, facts, data: None, vnode_value: None, host_view }
    }
}

/// Origin of a parked job.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Request { ticket: u64, header: Header, bytes: Vec<u8> },
    Message { bytes: Vec<u8> },
}

/// A parked job.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) kind: Kind,
    pub(crate) facts: Vec<Fact>,
    pub(crate) data: Option<Result<(), Errno>>,
    pub(crate) wait: Wait,
    pub(crate) attempts: u32,
    /// When the service answers it with `Busy`.
    pub(crate) until: i64,
}

impl Job {
    /// True for a request that has changed nothing yet and is worthless once its sender is gone.
    /// Messages of a process about files that it closed are excluded: nobody waits for them, so
    /// they may still be under way when the process has ended.
    pub(crate) fn may_be_dropped(&self) -> bool {
        let Kind::Request { bytes, .. } = &self.kind else { return false };
        let is_parting = matches!(
            Request::decode(&mut Reader::new(bytes)),
            Ok(Request::Close { .. }
                | Request::Reap { .. }
                | Request::Release { .. }
                | Request::Extend { .. }
                | Request::CancelLock { .. })
        );
        let has_begun = self.data.is_some()
            || matches!(self.wait, Wait::OwnData(_) | Wait::Limits | Wait::Pools);
        !has_begun && !is_parting
    }
}

/// An unanswered message is resent after this time: many times the latency of a message, well below
/// what a person notices.
pub(crate) const RESEND_NANOS: i64 = 20_000_000;

/// Timer for resending an unanswered message. The pauses grow, because the receiver may be slow due
/// to overload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Resend {
    pub(crate) at: i64,
    pause: i64,
}

impl Resend {
    /// The message is sent at `now`.
    pub(crate) const fn after(now: i64, pause: i64) -> Resend {
        Resend { at: now.saturating_add(pause), pause }
    }

    /// True if it is to be sent at `now`, and noted so.
    pub(crate) fn is_due(&mut self, now: i64) -> bool {
        let is_due = self.at <= now;
        if is_due {
            *self = Resend::after(now, (2 * self.pause).min(RESEND_NANOS_MAX));
        }
        is_due
    }
}

/// Longest pause before a message about a transaction is resent, so that the end of a daemon's
/// restart is noticed soon.
const RESEND_NANOS_MAX: i64 = 320_000_000;

/// Ticket of requests that a service makes of itself: nobody waits for the answer.
pub(crate) const UNANSWERED: u64 = u64::MAX;

/// No deadline.
pub(crate) const NEVER: i64 = i64::MAX;
