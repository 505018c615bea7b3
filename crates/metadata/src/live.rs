//! What a service knows beyond its tables and forgets at a restart: parked jobs, questions to
//! others, keys held by transactions, cached directories, inodes that wait for targets.
//!
//! A job is a request, or a message of another service, that can not go on yet. It waits for one
//! thing (`Wait`), is woken when that happens, and is then run again from the start, with the facts
//! that it gathered. So every operation is written as if it had all it needs, and may stop anywhere
//! before its first change.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wire::{Attributes, Errno, Header, Inode, Layout, Reader, Request, ShardIndex};

use crate::bank::Bank;
use crate::below::{Import, Place};
use crate::deadlock::{Circles, Edge};
use crate::effect::Opens;
use crate::far_mounts::FarMounts;
use crate::follow::Follow;
use crate::follow_names::Listings;
use crate::kept::Kept;
use crate::keys::Keys;
use crate::leases::Leases;
use crate::locks::Lock;
use crate::mounts::Mounts;
use crate::pages::Pages;
use crate::quota::Purses;
use crate::saves::Saves;
use crate::sizes::Sizes;
use crate::state::TransactionId;
use crate::table::Xattrs;

/// Why an operation does not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It fails.
    Refused(Errno),
    /// It is another service's.
    Stale,
    /// It goes on when something happened.
    Wait(Wait),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Refused(errno)
    }
}

/// Result of what may have to wait.
pub(crate) type Step<T> = Result<T, Stop>;

/// What a job waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// The answer to a question.
    Answer(u64),
    /// A key that a transaction holds.
    Unlock,
    /// The targets, for an effect of this job's own.
    OwnData(u64),
    /// The targets, for somebody else's effect on the inode.
    Data(Inode),
    /// The votes on a transaction.
    Votes(u64),
    /// Other hosts, which may believe something of this directory.
    Recall(Inode),
    /// Mounts, whose kernels remember something that changes.
    Mounts,
    /// Other hosts, which may have written what they did not tell yet.
    Glimpse(u64),
    /// The coordinator of quotas, for more of something.
    Share(u64),
    /// All services, to know of limits.
    Limits,
    /// All services, for what is used.
    Usage(u64),
    /// The entries of this directory that lie below.
    Below(Inode),
    /// A name that is looked for below, by its key.
    Look(u128),
    /// Something that is not saved below.
    News,
    /// That this inode is saved below, as whoever waits for the number wants it.
    Saved(Inode, u64),
    /// Somebody who waits for that.
    Wanted,
    /// A time; facts are gathered anew.
    Time(i64),
}

impl Wait {
    /// True for what is answered by a number after a while, and asked again.
    pub(crate) const fn is_for_saving(self) -> bool {
        matches!(self, Wait::Saved(..) | Wait::Wanted)
    }
}

/// Something that another service said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fact {
    /// The attributes of an inode; `None`: it does not exist.
    Attributes(Inode, Option<Attributes>),
    /// An entry: NONE if it does not exist.
    Entry(Inode, Vec<u8>, Inode, u32),
    /// The services that may have entries of a directory, besides its own.
    Parts(Inode, Vec<u32>),
    /// The access control lists of an inode.
    Acls(Inode, Xattrs),
    /// What other hosts had written to a file is told.
    Glimpsed(Inode),
    /// An account may not have more of a resource in use.
    Denied(u64, u8),
    /// Encoded rows of a report on usage.
    Usage(Vec<u8>),
    /// Where a directory lies below; `None`: nowhere.
    Place(Inode, Option<Place>),
    /// The entries of a directory below can not be had.
    NotImported(Inode, Errno),
}

/// A request on its way through the service.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) ticket: u64,
    pub(crate) header: &'a Header,
    pub(crate) facts: &'a [Fact],
    /// What came of this job's own effect on targets.
    pub(crate) data: Option<Result<(), Errno>>,
    /// Of this host's row of the file at this moment: for an `Append` how often it was cut, else, if the
    /// request is about its size, what is untold.
    pub(crate) row: Option<u64>,
    /// What this host knows besides.
    pub(crate) hands: &'a dyn Opens,
}

/// What is parked.
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
    /// When it is given up with `Busy`.
    pub(crate) until: i64,
}

impl Job {
    /// True for a request of which nothing is done yet, and that is not worth beginning when nobody
    /// waits for it. What a process says of files that it is done with is: nobody waits for that, so
    /// it may well be under way when the process has come to its end.
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
        let may_stop = matches!(
            self.wait,
            Wait::Answer(_)
                | Wait::Unlock
                | Wait::Time(_)
                | Wait::Glimpse(_)
                | Wait::Share(_)
                | Wait::Below(_)
                | Wait::Look(_)
                | Wait::News
                | Wait::Saved(..)
                | Wait::Wanted
        );
        may_stop && !is_parting
    }
}

/// What a question is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// A directory's attributes, to be cached; all who want them share the question.
    Directory(Inode),
    /// An inode's attributes as they are now.
    Attributes(Inode),
    /// An entry as it is now.
    Entry(Inode, Vec<u8>),
    /// Who may have entries of a directory.
    Parts(Inode),
    /// An inode's access control lists as they are now.
    Acls(Inode),
    /// Where a directory lies below.
    Place(Inode),
}

/// A question to another service.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) subject: Subject,
    pub(crate) to: ShardIndex,
    pub(crate) jobs: Vec<u64>,
    pub(crate) sent: i64,
    /// When it was asked first, by the steady clock.
    pub(crate) asked: i64,
}

/// A copy of a directory's attributes, and until when it may be used by the steady clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cached {
    pub(crate) attributes: Attributes,
    pub(crate) until: i64,
}

/// A service that takes part in a transaction of this one.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) group: u32,
    pub(crate) to: ShardIndex,
    pub(crate) actions: Vec<u8>,
    pub(crate) has_voted: bool,
}

/// A transaction of this service before it is decided.
#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    /// 0: not parked yet.
    pub(crate) job: u64,
    pub(crate) own_actions: Vec<u8>,
    pub(crate) parts: Vec<Part>,
    /// Host and mount by which it came.
    pub(crate) by: (u16, u8),
    pub(crate) again: Again,
    /// What the client is told if all say yes; 0: it is done.
    pub(crate) refusal: Errno,
}

/// A transaction of this service that is decided.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    /// Group and address of those who have not said that they did it.
    pub(crate) left: BTreeMap<u32, ShardIndex>,
    pub(crate) again: Again,
}

/// When something is sent again that nobody answers: the pauses grow, for who is asked may be late
/// because he is asked too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Again {
    pub(crate) at: i64,
    pause: i64,
}

impl Again {
    /// It is sent now.
    pub(crate) const fn after(now: i64, pause: i64) -> Again {
        Again { at: now.saturating_add(pause), pause }
    }

    /// True if it is to be sent at `now`, and noted so.
    pub(crate) fn is_due(&mut self, now: i64) -> bool {
        let is_due = self.at <= now;
        if is_due {
            *self = Again::after(now, (2 * self.pause).min(RESEND_NANOS_MAX));
        }
        is_due
    }
}

/// A `Lock` request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) ticket: u64,
    pub(crate) header: Header,
    pub(crate) lock: Lock,
    /// No other wait of this service ever has it.
    pub(crate) number: u64,
    pub(crate) began: i64,
    /// Nothing that is held is in its way, but somebody who waits for longer.
    pub(crate) is_behind: bool,
    /// Parties whose locks are in its way, not all if they are many, each with a number that tells the
    /// times apart when that began.
    pub(crate) blockers: BTreeMap<u64, u64>,
    /// There may be others.
    pub(crate) has_more: bool,
}

impl Waiter {
    /// For whom it waits, for `deadlock`.
    pub(crate) fn edges(&self) -> impl Iterator<Item = Edge> + '_ {
        let (wait, began, party) = (self.number, self.began.cast_unsigned(), self.lock.party);
        self.blockers.iter().map(move |(&blocker, &since)| Edge {
            wait,
            began,
            party,
            blocker,
            since,
        })
    }
}

/// Longest pause before a word about a transaction is sent again: a restart of a daemon is not waited
/// for much longer than it takes.
const RESEND_NANOS_MAX: i64 = 320_000_000;

/// No deadline.
pub(crate) const NEVER: i64 = i64::MAX;

/// See the module.
pub(crate) struct Live {
    pub(crate) now: i64,
    /// Of the clock that nobody sets.
    pub(crate) steady: i64,
    pub(crate) is_started: bool,
    /// A shard of this service, where others send to.
    pub(crate) address: ShardIndex,
    pub(crate) inode_next: BTreeMap<u16, u64>,
    pub(crate) sequence_next: u64,
    pub(crate) jobs: BTreeMap<u64, Job>,
    pub(crate) job_next: u64,
    pub(crate) woken: BTreeSet<u64>,
    pub(crate) queries: BTreeMap<u64, Query>,
    pub(crate) cached: BTreeMap<Inode, Cached>,
    pub(crate) keys: Keys,
    pub(crate) transactions: BTreeMap<u64, Transaction>,
    /// Prepared here, and when their coordinator is asked.
    pub(crate) inquired: BTreeMap<TransactionId, Again>,
    pub(crate) decided: BTreeMap<u64, Decided>,
    /// Inodes whose contents wait for targets.
    pub(crate) busy: BTreeMap<Inode, u64>,
    /// Inline files that were cut in the running step: their rows do not say so yet.
    pub(crate) cut_now: Vec<Inode>,
    /// Directories of other services whose tally changed, and when it was sent (0: not yet).
    pub(crate) dirty: BTreeMap<Inode, i64>,
    /// Inodes that lost their last name, or were closed, in the running step.
    pub(crate) unlinked: Vec<Inode>,
    /// Files that went in the running step.
    pub(crate) gone: Vec<(Inode, Layout)>,
    pub(crate) waiters: BTreeMap<Inode, Vec<Waiter>>,
    /// The last number of `Waiter::blockers`.
    pub(crate) blocker_last: u64,
    pub(crate) circles: Circles,
    pub(crate) leases: Leases,
    pub(crate) mounts: Mounts,
    pub(crate) far_mounts: FarMounts,
    pub(crate) pages: Pages,
    pub(crate) kept: Kept,
    pub(crate) sizes: Sizes,
    pub(crate) purses: Purses,
    pub(crate) bank: Bank,
    /// Directories whose entries below are being read, by `below`.
    pub(crate) imports: BTreeMap<Inode, Import>,
    /// Directories that were not where they were said to be, and until when they are looked for.
    pub(crate) missing: BTreeMap<Inode, i64>,
    /// Names that are looked for below.
    pub(crate) follow: Follow,
    /// Directories from below that were listed lately.
    pub(crate) listings: Listings,
    /// Another number whenever something became unsaved.
    pub(crate) news: u64,
    /// A job waits for it.
    pub(crate) is_news_awaited: bool,
    pub(crate) saves: Saves,
    /// Words of this service to itself.
    pub(crate) own_messages: VecDeque<Vec<u8>>,
    /// When a tick is wanted.
    pub(crate) timer: i64,
}

impl Live {
    pub(crate) fn new(address: ShardIndex) -> Live {
        Live {
            now: 0,
            steady: 0,
            is_started: false,
            address,
            inode_next: BTreeMap::new(),
            sequence_next: 0,
            jobs: BTreeMap::new(),
            job_next: 1,
            woken: BTreeSet::new(),
            queries: BTreeMap::new(),
            cached: BTreeMap::new(),
            keys: Keys::default(),
            transactions: BTreeMap::new(),
            inquired: BTreeMap::new(),
            decided: BTreeMap::new(),
            busy: BTreeMap::new(),
            cut_now: Vec::new(),
            dirty: BTreeMap::new(),
            unlinked: Vec::new(),
            gone: Vec::new(),
            waiters: BTreeMap::new(),
            blocker_last: 0,
            circles: Circles::default(),
            leases: Leases::default(),
            mounts: Mounts::default(),
            far_mounts: FarMounts::default(),
            pages: Pages::default(),
            kept: Kept::default(),
            sizes: Sizes::default(),
            purses: Purses::default(),
            bank: Bank::default(),
            imports: BTreeMap::new(),
            missing: BTreeMap::new(),
            follow: Follow::default(),
            listings: Listings::default(),
            news: 0,
            is_news_awaited: false,
            saves: Saves::default(),
            own_messages: VecDeque::new(),
            timer: NEVER,
        }
    }

    /// Wants a tick at `when`.
    pub(crate) fn wake_at(&mut self, when: i64) {
        self.timer = self.timer.min(when);
    }

    /// Wakes all jobs that wait for what `is_it` accepts.
    pub(crate) fn wake(&mut self, is_it: impl Fn(&Wait) -> bool) {
        let jobs = self.jobs.iter().filter(|(_, job)| is_it(&job.wait)).map(|(&id, _)| id);
        self.woken.extend(jobs);
    }
}
