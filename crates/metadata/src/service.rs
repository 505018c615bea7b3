//! The service: its interface, the route of each request to its subject, the order of the timers, and
//! how jobs run, wait and run again. It only passes on: what a request does is in the subjects, each
//! of which owns its volatile state and knows the subjects below it (`lib`).
//!
//! States of a request: running -> answered | parked; parked -> running when its `Wait` is over, or
//! answered with `Busy` when its time is over. A request that waits for a file lock is in
//! `locks::requests` instead.
//!
//! Invariants
//! 1. An operation stops (`Stop`) only before its first change.
//! 2. The log record of a step is its first effect.

use std::ops::Range;

use placement::map::FIRST_EPOCH;
use wire::attributes::mode;
use wire::codec::{Malformed, Reader};
use wire::hash::NameHash;
use wire::id::{BACKED_FIRST, LOCAL_OP_SEQUENCE_FIRST};
use wire::limits::SHARD_COUNT;
use wire::reply::{TRUNCATE_EPOCH_OF_FIRST_DAEMON, TRUNCATE_EPOCH_OF_HOST};
use wire::request::set;
use wire::{Attributes, Errno, Header, Inode, Reply, Request, ShardIndex};

use crate::backing::Backing;
use crate::backing::dirty::{answer_dirty, is_clean_as_is};
use crate::backing::give_up::give_up_copies;
use crate::backing::import::locate_in_backing;
use crate::backing::lost_changes::note_lost_changes;
use crate::backing::lost_files::{answer_copy_state, list_lost};
use crate::core::config::Config;
use crate::core::context::{Context, UnknownOpens};
use crate::core::effect::{Effect, HostMarks, HostView, Input, Now};
use crate::core::job::{Call, Job, Kind, NEVER, Step, Stop, UNANSWERED, Wait};
use crate::core::keys::Key;
use crate::core::peer_messages::Message;
use crate::core::record::{self, Record};
use crate::core::state::{CLIENT_ID_NONE, CachedReply, State, reply_kind};
use crate::files::Files;
use crate::files::attributes::answer_owners;
use crate::files::contents::read_inline;
use crate::files::open_files::reap;
use crate::files::openings::Opening;
use crate::files::removal::note_freed;
use crate::files::xattr::list_xattr;
use crate::kernel_cache::notices::tick_waiting_jobs;
use crate::locks::deadlock::Cycles;
use crate::messages::NOBODY;
use crate::namespace::create::{create_named, create_nameless, look_up, walk_names};
use crate::namespace::local_ops::{grant_numbers, note_loss, take_local_op};
use crate::namespace::names::find_names;
use crate::namespace::readdir::{read_directory, read_link};
use crate::namespace::transaction::Transactions;
use crate::pools::registry::{Registry, list_pools};
use crate::quota::coordinator::Coordinator;

/// How long a request waits for other services before it is answered with `Busy`: longer than the
/// restart of a daemon, shorter than a user's tolerance.
const WAIT_NANOS: i64 = 5_000_000_000;

/// All shards of one worker thread of one daemon.
pub struct Service {
    /// The context, and the subjects of inodes.
    pub(crate) files: Files,
    /// The backing store.
    pub(crate) backing: Backing,
    /// Changes that concern several services.
    pub(crate) transactions: Transactions,
    /// Cycles of requests for locks.
    pub(crate) deadlocks: Cycles,
    /// Limits of accounts, if this service has them.
    pub(crate) coordinator: Coordinator,
    /// Changes of pools, if this service makes them.
    pub(crate) registry: Registry,
    pub(crate) is_started: bool,
    /// Daemons were added, and their services may not know limits and pools.
    has_grown: bool,
    /// Numbers were skipped that the log does not know.
    pub(crate) has_skipped: bool,
    job_next: u64,
}

/// Numbers that `Service::skip_numbers` leaves out each time: an instance gives out fewer.
const ROUND_LOG2: u32 = 32;
/// Numbers of one kind have 46 bits.
const ROUND_MAX: u64 = (1 << (46 - ROUND_LOG2)) - 1;
/// The last epoch in which a service can go on from a copy: in a later one numbers of lost records could
/// be given out again.
pub const EPOCH_MAX: u64 = ROUND_MAX;

/// Numbers below this are not given out after salvage number `round`.
pub(crate) fn numbers_skipped(round: u64) -> u64 {
    round.clamp(1, ROUND_MAX) << ROUND_LOG2
}

/// The state of a service as the records of its log give it, with which a follower goes on (ONFS 4.3).
#[derive(Default)]
pub struct LoggedState(pub(crate) State);

impl LoggedState {
    /// Applies a record of the log: all of them, in order.
    ///
    /// # Errors
    /// `Malformed` if the bytes are no record of this version: the state is of no use then.
    pub fn replay(&mut self, record: &[u8]) -> Result<(), Malformed> {
        for change in record::changes(record)? {
            self.0.apply(&change?)?;
        }
        Ok(())
    }
}

impl Service {
    /// An empty service. The owner of shard 0 creates the root in its first step, unless `replay`
    /// restores it.
    #[must_use]
    pub fn new(config: Config) -> Service {
        Service::with(config, LoggedState::default())
    }

    /// A service whose log was replayed.
    #[must_use]
    pub fn with(config: Config, LoggedState(state): LoggedState) -> Service {
        let shards = (0..SHARD_COUNT).map(ShardIndex);
        let address = shards.into_iter().find(|&shard| config.owns(shard)).unwrap_or_default();
        let has_grown = config.map.epoch() != FIRST_EPOCH;
        let cx = Context::new(config, address, state);
        Service {
            files: Files::new(cx),
            backing: Backing::default(),
            transactions: Transactions::default(),
            deadlocks: Cycles::default(),
            coordinator: Coordinator::default(),
            registry: Registry::default(),
            is_started: false,
            has_grown,
            has_skipped: false,
            job_next: 1,
        }
    }

    /// Applies a record of the log: all of them, in order, before the first step.
    ///
    /// # Errors
    /// `Malformed` if the bytes are no record of this version.
    pub fn replay(&mut self, record: &[u8]) -> Result<(), Malformed> {
        for change in record::changes(record)? {
            self.files.cx.state.apply(&change?)?;
        }
        Ok(())
    }

    /// After a replay without some records: no number that a lost record gave out is given out again, or
    /// a new file would have what is left of a lost one. `round`: of such replays, each has its own.
    pub fn skip_numbers(&mut self, round: u64) {
        let skipped = numbers_skipped(round);
        let cx = &mut self.files.cx;
        for shard in (0..SHARD_COUNT).filter(|shard| cx.config.owns(ShardIndex(*shard))) {
            let counters = cx.state.shards.entry(shard).or_default();
            counters.inode_next = counters.inode_next.max(skipped);
            let from = |next: &mut u64, first: u64| *next = (*next).max(first + skipped);
            from(
                cx.state.grants.entry(shard).or_insert(LOCAL_OP_SEQUENCE_FIRST),
                LOCAL_OP_SEQUENCE_FIRST,
            );
            if cx.config.backing {
                from(cx.state.backed_inode_next.entry(shard).or_insert(BACKED_FIRST), BACKED_FIRST);
            }
        }
        cx.state.sequence_next = cx.state.sequence_next.max(skipped);
    }

    /// After the replay of a copy, before the first step: another daemon than the first owner goes on
    /// with the service, in this `epoch` of its owners. No number is given out again that a lost record
    /// gave out. Programs of the first owner's `host` may have files open of which only the memory of
    /// that host knows: files from before stay, also without a name, and may be written there, until
    /// `Input::OpensKnown`. No `host`: it has reported that, and is one like others since
    /// (`Input::Leave`).
    pub fn take_over(&mut self, epoch: u64, host: Option<u16>) {
        self.come_back(epoch);
        let end = numbers_skipped(epoch);
        self.files.cx.unknown_opens = host.map(|host| UnknownOpens { host, end });
        self.files.caches.remote.follow_another_owner();
        self.files.caches.pages.count_writers_in(epoch);
    }

    /// The same where the first owner goes on, in this `epoch`, after another daemon: its host's memory
    /// has what programs of it have open, and takes up what happened meanwhile (`meet_host`).
    pub fn come_back(&mut self, epoch: u64) {
        self.skip_numbers(epoch);
        self.has_skipped = true;
    }

    /// The instance has so many daemons now: new files are on the targets of those that were added, too.
    pub fn grow(&mut self, daemon_count: u16) {
        let map = &mut self.files.cx.config.map;
        if map.daemon_count() < daemon_count
            && let Some(grown) = map.grown_to(daemon_count)
        {
            *map = grown;
            self.has_grown = true;
        }
    }

    /// Takes one input and appends the effects to `out`. The only entry point of a running service.
    pub fn step(
        &mut self,
        now: Now,
        input: Input<'_>,
        host_view: &mut dyn HostMarks,
        out: &mut Vec<Effect>,
    ) {
        self.begin(now, out);
        match input {
            Input::Request { ticket, header, request } => {
                self.take(ticket, header, &request, host_view);
            }
            Input::Peer { message } => self.take_message(message, host_view),
            Input::LocalOps { ops } => {
                ops.iter().for_each(|logged_op| take_local_op(&mut self.files, logged_op));
                // Nothing else, in particular no parked job: it could read names while clients
                // still log operations.
                self.files.settle_unlinked(host_view);
                return self.end(out);
            }
            Input::GrantNumbers { shard } => {
                grant_numbers(&mut self.files.cx, shard);
                return self.end(out);
            }
            Input::UnitsLost { loss } => {
                note_loss(&mut self.files.cx, loss);
                return self.end(out);
            }
            Input::Removed { tokens } => {
                note_freed(&mut self.files.cx, tokens);
                return self.end(out);
            }
            Input::DataDone { token, result } => self.files.data_done(token, result, host_view),
            Input::ClientGone { first, count } => self.client_gone(first, count),
            Input::Withdrawn { client_id, sequence } => self.withdrawn(client_id, sequence),
            Input::HostGone { host } => self.host_gone(host),
            Input::TargetsLost { first, end } => self.targets_lost(first..end, host_view),
            Input::OpensKnown => self.files.cx.end_unknown_opens(),
            Input::Leave { files, open_sequence } => {
                self.report_openings(files, open_sequence, host_view);
            }
            Input::Stay => self.stay(),
            Input::DoubtNotices => self.files.caches.doubt_notices(&mut self.files.cx),
            Input::DrawSpace { account, more } => {
                self.files.grants.draw_space(&mut self.files.cx, account.0, more, host_view)
            }
            Input::GiveBack => {
                self.files.caches.grace.release_grace_files(&mut self.files.cx);
                self.backing.waits.hurry_writeback(&mut self.files.cx, host_view);
                self.give_up_for_space(host_view);
            }
            Input::BackingDirRead { directory, outcome } => {
                self.backing.take_backing_dir(&mut self.files, directory, outcome)
            }
            Input::Probed { key, outcome } => {
                self.backing.take_probe(&mut self.files.cx, key, outcome)
            }
            Input::Tick => {}
        }
        self.settle(host_view);
        if now.unix_nanos >= self.files.cx.timer {
            self.tick(host_view);
            self.settle(host_view);
        }
        self.end(out);
    }

    /// A target is out of space: files that are saved give up their copies.
    fn give_up_for_space(&mut self, host_view: &dyn HostMarks) {
        let call = Call::of_message(&NOBODY, &[], host_view);
        for inode in self.backing.give_ups.next(&self.files, &call) {
            let header = Header { shard: inode.shard().0, ..NOBODY };
            self.take(UNANSWERED, &header, &Request::GiveUpCopies { inode }, host_view);
        }
    }

    fn begin(&mut self, now: Now, out: &mut Vec<Effect>) {
        (self.files.cx.now, self.files.cx.steady) = (now.unix_nanos, now.steady_nanos);
        self.files.cx.truncate_now.clear();
        self.files.cx.io.begin(out);
        if !self.is_started {
            self.start();
        }
        if std::mem::take(&mut self.has_grown) {
            self.coordinator.tell_all(&mut self.files.cx);
            self.registry.tell_all(&mut self.files.cx);
        }
    }

    fn end(&mut self, out: &mut Vec<Effect>) {
        self.files.removals.put_removals(&mut self.files.cx);
        self.files.cx.io.end(out);
    }

    /// When a `Tick` is due, in nanoseconds since 1970 as given to `step`; `None`: not before
    /// another input.
    #[must_use]
    pub fn deadline(&self) -> Option<i64> {
        if !self.is_started {
            return Some(i64::MIN);
        }
        (self.files.cx.timer != NEVER).then_some(self.files.cx.timer)
    }

    /// Takes the buffer of a performed `Reply` or `Log` back.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.files.cx.io.recycle(bytes);
    }

    /// Takes a request from outside. A repetition of a completed one is answered from the reply
    /// cache; a repetition of a parked one only updates its ticket.
    fn take(
        &mut self,
        ticket: u64,
        header: &Header,
        request: &Request<'_>,
        host_view: &dyn HostMarks,
    ) {
        if self.answer_known(ticket, header, request) {
            return;
        }
        if self.is_parked(ticket, header) {
            return;
        }
        let vnode_value = self.vnode_value(header, request, host_view);
        let call = Call { ticket, header, facts: &[], data: None, vnode_value, host_view };
        if let Err(stop) = self.run(&call, request) {
            match stop {
                Stop::Wait(wait) => {
                    let mut bytes = vec![0; wire::limits::SLOT_BYTES];
                    let mut writer = wire::Writer::new(&mut bytes);
                    request.encode(&mut writer);
                    let length = writer.len();
                    bytes.truncate(length);
                    bytes.shrink_to_fit();
                    let kind = Kind::Request { ticket, header: *header, bytes };
                    self.park(kind, wait);
                }
                stop => self.files.cx.answer_stop(ticket, stop),
            }
        }
    }

    /// Answers a repetition of a completed request. False: it is none, or it opens a file that it made
    /// and that was removed since, and makes it anew.
    fn answer_known(&mut self, ticket: u64, header: &Header, request: &Request<'_>) -> bool {
        let cx = &mut self.files.cx;
        let known = cx.state.reply_cache.get(&header.client_id).copied();
        let is_it = |one: &CachedReply| {
            one.sequence == header.sequence && header.client_id != CLIENT_ID_NONE
        };
        let Some(outcome) = known.filter(is_it) else { return false };
        let inode = Inode(outcome.first);
        match (outcome.kind, outcome.second) {
            (reply_kind::CREATED, _) if cx.state.inodes.get(inode).is_none() => {
                let Request::Create { mode, .. } = *request else { return false };
                if mode & mode::TYPE == mode::REGULAR {
                    return false;
                }
                let (uid, gid) = (header.caller.uid, header.caller.gid);
                let mode = mode & (mode::TYPE | mode::PERMISSIONS);
                let attributes = Attributes { inode, mode, uid, gid, ..Attributes::default() };
                cx.io.reply(ticket, &Reply::Created { attributes });
            }
            // The current epoch of the requester's host says nothing of its epoch at the first
            // attempt.
            (reply_kind::RANGE, TRUNCATE_EPOCH_OF_HOST) => {
                let second = TRUNCATE_EPOCH_OF_FIRST_DAEMON;
                cx.answer_again(ticket, &CachedReply { second, ..outcome });
            }
            _ => cx.answer_again(ticket, &outcome),
        }
        true
    }

    /// Takes a message. One that cannot be answered yet is parked like a request.
    fn take_message(&mut self, bytes: &[u8], host_view: &dyn HostMarks) {
        if let Err(Stop::Wait(wait)) = self.run_message(bytes, &[], host_view) {
            self.park(Kind::Message { bytes: bytes.to_vec() }, wait);
        }
    }

    fn is_parked(&mut self, ticket: u64, header: &Header) -> bool {
        let is_it = |other: &Header| {
            (other.client_id, other.sequence) == (header.client_id, header.sequence)
                && header.client_id != CLIENT_ID_NONE
        };
        for job in self.files.cx.jobs.values_mut() {
            if let Kind::Request { ticket: known, header, .. } = &mut job.kind
                && is_it(header)
            {
                *known = ticket;
                return true;
            }
        }
        self.files.locks.update_ticket(ticket, is_it)
    }

    /// Parks a job that was not parked before.
    fn park(&mut self, kind: Kind, wait: Wait) {
        let id = self.job_next;
        self.job_next += 1;
        let is_short = wait == Wait::Dirty || wait.is_for_writeback();
        let nanos = if is_short { self.files.cx.long_poll_nanos() } else { WAIT_NANOS };
        let until = self.files.cx.now.saturating_add(nanos);
        let job = Job { kind, facts: Vec::new(), data: None, wait, attempts: 0, until };
        self.put_job(id, job);
    }

    /// Parks a job, and notes it where the event that it waits for is known.
    fn put_job(&mut self, id: u64, mut job: Job) {
        if let (Kind::Message { .. }, Wait::Votes(_)) = (&job.kind, job.wait) {
            // A directory that is spread: nothing else that a service does of itself has votes.
            job.until = self.files.cx.now.saturating_add(self.files.cx.config.widen_nanos);
        }
        let is_noted = match job.wait {
            Wait::Answer(token) => self.files.directories.note_job(token, id),
            Wait::Votes(sequence) => self.transactions.note_job(sequence, id),
            Wait::Glimpse(token) => self.files.sizes.note_job(token, id),
            _ => true,
        };
        if !is_noted {
            job.wait = Wait::Time(self.files.cx.now);
        }
        self.files.cx.put_job(id, job);
    }

    /// Answers a request whose wait is given up.
    fn answer_late(&mut self, ticket: u64, wait: Wait) {
        let cx = &mut self.files.cx;
        match wait {
            Wait::Dirty => answer_dirty(cx, ticket),
            wait if wait.is_for_writeback() => self.backing.waits.answer_wait(cx, ticket, wait),
            wait => cx.answer_stop(ticket, Stop::Wait(wait)),
        }
    }

    /// Runs woken jobs, and handles unlinked inodes, until nothing is left to do.
    fn settle(&mut self, host_view: &mut dyn HostMarks) {
        loop {
            self.files.settle_unlinked(host_view);
            if let Some(bytes) = self.files.cx.own_messages.pop_front() {
                self.take_message(&bytes, host_view);
                continue;
            }
            let Some(id) = self.files.cx.woken.pop_first() else { return };
            let Some(job) = self.files.cx.jobs.get(&id) else { continue };
            if let Kind::Request { ticket, .. } = &job.kind
                && job.may_be_dropped()
                && !host_view.is_awaited(*ticket)
            {
                self.drop_job(id);
                continue;
            }
            let Some(job) = self.files.cx.jobs.remove(&id) else { continue };
            self.run_job(id, job, host_view);
        }
    }

    fn run_job(&mut self, id: u64, mut job: Job, host_view: &dyn HostMarks) {
        let stop = match &job.kind {
            Kind::Request { ticket, header, bytes } => {
                let Ok(request) = Request::decode(&mut Reader::new(bytes)) else { return };
                let (ticket, vnode_value) =
                    (*ticket, self.vnode_value(header, &request, host_view));
                let (facts, data) = (&job.facts, job.data);
                let call = Call { ticket, header, facts, data, vnode_value, host_view };
                self.run(&call, &request)
            }
            Kind::Message { bytes } => self.run_message(bytes, &job.facts, host_view),
        };
        match (stop, &job.kind) {
            (Ok(()), _) => {}
            (Err(Stop::Wait(wait)), _) => {
                job.wait = wait;
                self.put_job(id, job);
            }
            (Err(stop), Kind::Request { ticket, .. }) => self.files.cx.answer_stop(*ticket, stop),
            (Err(_), Kind::Message { .. }) => {}
        }
    }

    /// Timer: resends all unanswered messages and gives up expired jobs.
    fn tick(&mut self, host_view: &dyn HostMarks) {
        let cx = &mut self.files.cx;
        let now = cx.now;
        cx.timer = NEVER;
        for (&id, job) in &cx.jobs {
            match job.wait {
                Wait::Time(when) if when <= now => {
                    cx.woken.insert(id);
                }
                Wait::Time(when) => cx.timer = cx.timer.min(when),
                _ => {}
            }
            cx.timer = cx.timer.min(job.until.max(now.saturating_add(1)));
        }
        self.give_up_late();
        self.spread_directories(host_view);
        let Service { files, backing, transactions, deadlocks, coordinator, registry, .. } = self;
        files.directories.send_queries_again(&mut files.cx);
        transactions.send_transactions_again(&mut files.cx);
        files.directories.send_tallies(&mut files.cx);
        files.leases.tick_leases(&mut files.cx);
        tick_waiting_jobs(&mut files.cx);
        files.caches.remote.tick_remote_mounts(&mut files.cx);
        files.caches.tick_page_caches(&mut files.cx, host_view);
        files.caches.grace.tick_grace_files(&mut files.cx);
        files.sizes.send_sizes_again(&mut files.cx);
        files.grants.tick_grants(&mut files.cx, host_view);
        coordinator.tick_coordinator(&mut files.cx);
        registry.tick_pools(&mut files.cx);
        files.locks.tick_lock_order(&mut files.cx);
        deadlocks.tick_deadlocks(&mut files.cx, &mut files.locks);
        backing.tick_revalidation(&mut files.cx);
        backing.tick_listings(&mut files.cx);
    }

    /// Begins the next steps of directories that are to be spread.
    fn spread_directories(&mut self, host_view: &dyn HostMarks) {
        let Files { cx, directories, .. } = &mut self.files;
        for directory in directories.widening.take_due(cx) {
            let mut message = Vec::new();
            Message::SpreadFurther { directory }.encode(&mut message);
            let is_it =
                |job: &Job| matches!(&job.kind, Kind::Message { bytes } if *bytes == message);
            if !self.files.cx.jobs.values().any(is_it) {
                self.take_message(&message, host_view);
            }
        }
    }

    fn give_up_late(&mut self) {
        let now = self.files.cx.now;
        let is_late =
            |job: &Job| job.until <= now && !matches!(job.wait, Wait::OwnData(_) | Wait::Data(_));
        let late: Vec<u64> =
            self.files.cx.jobs.iter().filter(|(_, job)| is_late(job)).map(|(&id, _)| id).collect();
        late.into_iter().for_each(|id| self.drop_job(id));
    }

    fn client_gone(&mut self, first: u64, count: u64) {
        let client_ids = first..first.saturating_add(count);
        if self.files.cx.state.reply_cache.range(client_ids.clone()).next().is_some() {
            self.files.cx.put(&Record::ForgetClients { first, count });
        }
        self.files
            .locks
            .refuse_all(&mut self.files.cx, |waiter| client_ids.contains(&waiter.header.client_id));
        self.files.caches.local.forget_mounts(|header| client_ids.contains(&header.client_id));
        self.drop_jobs(|header| client_ids.contains(&header.client_id));
    }

    /// Targets are gone with all that they had, and others come in their place.
    fn targets_lost(&mut self, targets: Range<u16>, host_view: &dyn HostView) {
        note_lost_changes(&mut self.files.cx, &targets, host_view);
    }

    /// A host is gone, with its open files, its locks and its waiting requests.
    fn host_gone(&mut self, host: u16) {
        let all = &self.files.cx.state.hosts;
        let is_its = |hosts: &[Opening]| hosts.iter().any(|known| known.host == host);
        let opened: Vec<Inode> =
            all.iter().filter(|(_, hosts)| is_its(hosts)).map(|(&inode, _)| inode).collect();
        for inode in opened {
            self.files.forget_host(inode, host, u64::MAX);
        }
        self.files.locks.refuse_all(&mut self.files.cx, |waiter| waiter.lock.host == host);
        self.files.caches.remote.host_gone(host);
        self.files.caches.pages.host_gone(host);
        let held = &self.files.cx.state.locks;
        let locked: Vec<Inode> = held
            .iter()
            .filter(|(_, all)| all.iter().any(|lock| lock.host == host))
            .map(|(&inode, _)| inode)
            .collect();
        for inode in locked {
            self.files.locks.retain_locks(&mut self.files.cx, inode, |lock| lock.host != host);
        }
    }

    fn withdrawn(&mut self, client_id: u64, sequence: u64) {
        let is_it = |header: &Header| (header.client_id, header.sequence) == (client_id, sequence);
        self.files.locks.refuse_all(&mut self.files.cx, |waiter| is_it(&waiter.header));
        self.files.caches.local.forget_mounts(is_it);
        self.drop_jobs(is_it);
    }

    /// Drops jobs whose sender is gone (see `HostView::is_awaited`), so that nothing that is requested
    /// later sees the names as they were and then the change. A transaction in its vote is aborted:
    /// its other services may not hold their names yet.
    fn drop_jobs(&mut self, is_of: impl Fn(&Header) -> bool) {
        let is_theirs = |job: &Job| {
            let Kind::Request { header, .. } = &job.kind else { return false };
            is_of(header) && job.may_be_dropped()
        };
        let jobs = self.files.cx.jobs.iter().filter(|(_, job)| is_theirs(job));
        let dropped: Vec<u64> = jobs.map(|(&id, _)| id).collect();
        dropped.into_iter().for_each(|id| self.drop_job(id));
    }

    /// Drops a job that has changed nothing, and answers its request.
    fn drop_job(&mut self, id: u64) {
        let Some(job) = self.files.cx.jobs.remove(&id) else { return };
        self.files.cx.woken.remove(&id);
        if let Wait::Votes(sequence) = job.wait {
            self.transactions.abort(&mut self.files.cx, sequence);
        }
        if let Kind::Request { ticket, .. } = job.kind {
            self.answer_late(ticket, job.wait);
        }
    }

    /// Current value of the open inode for a request that depends on it, however long ago it was
    /// sent.
    fn vnode_value(
        &self,
        header: &Header,
        request: &Request<'_>,
        host_view: &dyn HostView,
    ) -> Option<u64> {
        if header.host != self.files.cx.config.host {
            return None;
        }
        match *request {
            Request::Extend { inode, .. } => host_view.unreported(inode),
            Request::SetAttributes { inode, mask, .. } if mask & set::SIZE != 0 => {
                host_view.unreported(inode)
            }
            Request::Append { inode, .. } => host_view.truncate_epoch(inode),
            _ => None,
        }
    }

    /// Runs a request; those about names here. A handler that returns `Ok` has answered, or queued the
    /// answer.
    fn run(&mut self, call: &Call<'_>, request: &Request<'_>) -> Step<()> {
        if !self.files.cx.config.owns(ShardIndex(call.header.shard)) {
            return Err(Stop::Stale);
        }
        self.backing.import_for(&mut self.files, call, request)?;
        self.check_keys(call, request)?;
        self.check_place(request)?;
        self.backing.revalidate_for(&mut self.files, call, request)?;
        self.files.caches.await_invalidated_for(&mut self.files.cx, call, request)?;
        let Service { files, backing, transactions, .. } = self;
        match *request {
            Request::Lookup { parent, name } => look_up(files, call, parent, name),
            Request::Walk { directory, from, names } => {
                walk_names(files, call, directory, from, names)
            }
            Request::LookupForMount { inode, name } => files.lookup_for_mount(call, inode, name),
            Request::Create { .. } => create_named(files, call, request),
            Request::CreateNameless { parent, mode, layout } => {
                create_nameless(files, call, parent, mode, &layout)
            }
            Request::Unlink { parent, name } => transactions.unlink(files, call, parent, name),
            Request::RemoveDirectory { parent, name } => {
                transactions.remove_directory(files, backing, call, parent, name)
            }
            Request::Rename { .. } => transactions.rename(files, backing, call, request),
            Request::Link { inode, parent, name } => {
                transactions.link(files, call, inode, parent, name)
            }
            Request::ReadDirectory { directory, after, last, bytes } => {
                read_directory(&mut files.cx, call, directory, (after, last), bytes)
            }
            Request::ReadLink { inode } => read_link(&mut files.cx, call, inode),
            _ => self.run_on_inode(call, request),
        }
    }

    /// Runs a request about an inode: its attributes, contents, open files, locks.
    fn run_on_inode(&mut self, call: &Call<'_>, request: &Request<'_>) -> Step<()> {
        let files = &mut self.files;
        match *request {
            Request::GetAttributes { inode } => files.get_attributes(call, inode),
            Request::SetAttributes { .. } => files.set_attributes(call, request),
            Request::GetXattr { inode, name } => files.get_xattr(call, inode, name),
            Request::SetXattr { inode, name, value, flags } => {
                files.set_xattr(call, inode, name, value, flags)
            }
            Request::ListXattr { inode } => list_xattr(&mut files.cx, call, inode),
            Request::RemoveXattr { inode, name } => files.remove_xattr(call, inode, name),
            Request::ReadInline { inode, offset, length } => {
                read_inline(&mut files.cx, call, inode, offset, length)
            }
            Request::WriteInline { inode, offset, bytes } => {
                files.write_inline(call, inode, offset, bytes)
            }
            Request::MoveOut { inode } => files.move_out(call, inode),
            Request::Extend { inode, size } => files.extend(call, inode, size),
            Request::Append { inode, length } => files.append(call, inode, length),
            Request::Open { inode, open_sequence, uses } => {
                files.open(call, inode, open_sequence, uses)
            }
            Request::Close { inode, open_sequence } => files.close(call, inode, open_sequence),
            Request::Reap { inode } => reap(&mut files.cx, call, inode),
            Request::Lock { .. } => files.locks.lock(&mut files.cx, call, request),
            Request::Release { inode, owner } => {
                files.locks.release(&mut files.cx, call, inode, owner)
            }
            Request::CancelLock { inode, client_id, sequence } => {
                files.locks.cancel_lock(&mut files.cx, call, inode, (client_id, sequence))
            }
            Request::Unwatch { inode } => files.caches.unwatch(&mut files.cx, call, inode),
            Request::Owners { inodes } => answer_owners(&mut files.cx, call, inodes),
            Request::Names { parent, hash, collision, inodes } => {
                find_names(&mut files.cx, call, (parent, NameHash(hash), collision), inodes)
            }
            _ => self.run_for_instance(call, request),
        }
    }

    /// Runs a request of a mount, about quotas or pools, or about the backing store.
    fn run_for_instance(&mut self, call: &Call<'_>, request: &Request<'_>) -> Step<()> {
        let Service { files, backing, coordinator, registry, .. } = self;
        match *request {
            Request::Notices { done } => files.caches.notices(&mut files.cx, call, done),
            Request::SetQuota { .. } => coordinator.set_quota(&mut files.cx, call, request),
            Request::Quotas { from } => coordinator.quotas(&mut files.cx, call, from),
            Request::SetPool { name, targets } => {
                registry.set_pool(&mut files.cx, call, name, targets)
            }
            Request::Pools { after } => list_pools(&mut files.cx, call, after),
            Request::LocateBacking { inode } => locate_in_backing(files, call, inode),
            Request::IsClean { inode } => {
                let value = u64::from(is_clean_as_is(&files.cx, call, inode));
                files.cx.io.reply(call.ticket, &Reply::Number { value });
                Ok(())
            }
            Request::AwaitClean { inode } => backing.waits.await_clean(&mut files.cx, call, inode),
            Request::GiveUpCopies { inode } => give_up_copies(files, call, inode),
            Request::KnownLoss { inode } => {
                let value = files.cx.state.births.loss_before(inode);
                files.cx.io.reply(call.ticket, &Reply::Number { value });
                Ok(())
            }
            Request::LostFiles { from, per_target, units } => {
                list_lost(&mut files.cx, call, from, (per_target, units))
            }
            Request::CopyState { inode } => answer_copy_state(&mut files.cx, call, inode),
            _ => backing.waits.run_writeback_request(&mut files.cx, call, request),
        }
    }

    /// Refuses a request for a name that is at another service by now.
    fn check_place(&self, request: &Request<'_>) -> Step<()> {
        let entry = match *request {
            Request::LookupForMount { inode, name } if !name.is_empty() => Some((inode, name)),
            _ => request.sent_to_entry(),
        };
        match entry {
            Some((parent, name)) if self.files.cx.is_elsewhere(parent, name) => {
                Err(Stop::Refused(Errno::EREMCHG))
            }
            _ => Ok(()),
        }
    }

    /// Stops a request that would read or change a key that a transaction is about to change.
    fn check_keys(&self, call: &Call<'_>, request: &Request<'_>) -> Step<()> {
        let cx = &self.files.cx;
        if cx.keys.is_empty() {
            return Ok(());
        }
        match *request {
            Request::Create { parent, name, .. } | Request::Link { parent, name, .. } => {
                cx.check_key(&Key::Frozen(parent))?;
                cx.check_entry_key(parent, name)
            }
            Request::LookupForMount { name: [], inode } => cx.check_key(&Key::Inode(inode)),
            Request::LookupForMount { inode: parent, name }
            | Request::Lookup { parent, name }
            | Request::Unlink { parent, name }
            | Request::RemoveDirectory { parent, name } => cx.check_entry_key(parent, name),
            Request::Rename { parent, name, new_parent, new_name, .. } => {
                cx.check_entry_key(parent, name)?;
                cx.check_entry_key(new_parent, new_name)
            }
            Request::CreateNameless { parent, .. } => cx.check_key(&Key::Frozen(parent)),
            // A walk checks each directory that it meets; the others wait for nothing.
            Request::Walk { .. }
            | Request::CancelLock { .. }
            | Request::KnownLoss { .. }
            | Request::Notices { .. } => Ok(()),
            _ => match request.subject() {
                Some(inode) if call.header.shard == inode.shard().0 => {
                    cx.check_key(&Key::Inode(inode))
                }
                _ => Ok(()),
            },
        }
    }
}
