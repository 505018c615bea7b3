//! The service: its door, and how jobs run, wait and run again. What the requests do is in the
//! modules by subject; all are `impl Service`.
//!
//! States of a request: running -> answered | parked; parked -> running when its `Wait` is over, or
//! answered with `Busy` when its time is over. A request that waits for a file lock is in
//! `live.waiters` instead.
//!
//! Invariants
//! 1. The tables change only by `put`, which logs the change and applies it by the code of replay.
//! 2. An operation stops (`Stop`) only before its first change.
//! 3. The log record of a step is its first effect.

use wire::attributes::want;
use wire::codec::{Malformed, Reader};
use wire::hash::entry_key;
use wire::reply::{CUTS_OF_FIRST, CUTS_OF_HOST};
use wire::request::set;
use wire::{Attributes, Errno, Header, Inode, Reply, Request, ShardIndex};

use crate::config::Config;
use crate::effect::{Effect, IndexOp, Input, Now, Opens};
use crate::io::Io;
use crate::keys::Key;
use crate::live::{Ask, Job, Kind, Live, NEVER, Step, Stop, Wait};
use crate::record::{self, Record};
use crate::state::{Outcome, State};

/// How long a request waits for other services before it is answered with `Busy`: longer than a
/// restart of a daemon takes, shorter than a user's patience.
const WAIT_NANOS: i64 = 5_000_000_000;
/// What a client is told to wait after `Busy`.
const RETRY_MICROS: u32 = 1000;
/// First pause before a transaction that met another is tried again, doubled each time up to
/// `PAUSE_DOUBLINGS_MAX` times: from a message's flight to about 3 ms.
const PAUSE_NANOS: i64 = 50_000;
const PAUSE_DOUBLINGS_MAX: u32 = 6;

/// Kinds of `Record::PutOutcome`.
pub(crate) mod outcome {
    pub(crate) const DONE: u8 = 1;
    /// `first` is the inode.
    pub(crate) const CREATED: u8 = 2;
    /// `first` is the inode.
    pub(crate) const ATTRIBUTES: u8 = 3;
    /// `first` is the offset, `second` the size.
    pub(crate) const PLACED: u8 = 4;
    /// `first` is the offset, `second` how often the file was cut.
    pub(crate) const RANGE: u8 = 5;
}

/// Origin of requests that nobody repeats.
pub(crate) const ORIGIN_NONE: u64 = u64::MAX;

/// All shards of one worker thread of one daemon.
pub struct Service {
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) live: Live,
    pub(crate) io: Io,
}

impl Service {
    /// An empty service. The owner of shard 0 makes the root in its first step, unless `replay`
    /// brings it.
    #[must_use]
    pub fn new(config: Config) -> Service {
        let shards = (0..wire::limits::SHARD_COUNT).map(ShardIndex);
        let address = shards.into_iter().find(|&shard| config.owns(shard)).unwrap_or_default();
        Service { config, state: State::default(), live: Live::new(address), io: Io::default() }
    }

    /// Applies a record of the log: all of them, in order, before the first step.
    ///
    /// # Errors
    /// `Malformed` if the bytes are no record of this version.
    pub fn replay(&mut self, record: &[u8]) -> Result<(), Malformed> {
        for change in record::changes(record)? {
            self.state.apply(&change?)?;
        }
        Ok(())
    }

    /// The door. Takes one input and appends the effects to `out`.
    pub fn step(
        &mut self,
        now: Now,
        input: Input<'_>,
        opens: &mut dyn Opens,
        out: &mut Vec<Effect>,
    ) {
        (self.live.now, self.live.steady) = (now.unix_nanos, now.steady_nanos);
        self.live.cut_now.clear();
        self.io.begin(out);
        if !self.live.is_started {
            self.start();
        }
        match input {
            Input::Request { ticket, header, request } => {
                self.take(ticket, header, &request, opens);
            }
            Input::Peer { message } => self.take_message(message, opens),
            Input::Posted { posts } => {
                posts.iter().for_each(|posted| self.take_post(posted));
                // Nothing else: whoever waits may look at names, and the gate for posts is open.
                self.settle_unlinked(opens);
                return self.end(out);
            }
            Input::GrantNumbers { shard } => {
                self.grant_numbers(shard);
                return self.end(out);
            }
            Input::Removed { tokens } => {
                self.removed(tokens);
                return self.end(out);
            }
            Input::DataDone { token, result } => self.data_done(token, result, opens),
            Input::OriginGone { first, count } => self.origin_gone(first, count),
            Input::Withdrawn { origin, sequence } => self.withdrawn(origin, sequence),
            Input::HostGone { host } => self.host_gone(host),
            Input::DrawSpace { account, wanted } => self.draw_space(account.0, wanted, opens),
            Input::GiveBack => {
                self.give_kept();
                self.hurry_saves(opens);
            }
            Input::Below { directory, outcome } => self.take_below(directory, outcome),
            Input::Looked { key, outcome } => self.take_look(key, outcome),
            Input::Tick => {}
        }
        self.settle(opens);
        if now.unix_nanos >= self.live.timer {
            self.tick(opens);
            self.settle(opens);
        }
        self.end(out);
    }

    fn end(&mut self, out: &mut Vec<Effect>) {
        self.put_removals();
        self.io.end(out);
    }

    /// When a `Tick` is wanted, in nanoseconds since 1970 as given to `step`; `None`: not before an
    /// input.
    #[must_use]
    pub fn deadline(&self) -> Option<i64> {
        if !self.live.is_started {
            return Some(i64::MIN);
        }
        (self.live.timer != NEVER).then_some(self.live.timer)
    }

    /// Takes the buffer of a performed `Reply` or `Log` back.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.io.recycle(bytes);
    }

    /// Deleted files that are kept because somebody has, or had, them open. After a replay send
    /// `Request::Reap` for each that is open nowhere.
    pub fn orphans(&self) -> impl Iterator<Item = Inode> + '_ {
        self.state.orphans.iter().copied()
    }

    /// The attributes of an inode of this service, as they are now.
    #[must_use]
    pub fn attributes_of(&self, inode: Inode) -> Option<Attributes> {
        self.state.inodes.get(inode).map(|node| node.attributes)
    }

    /// The copy of another service's directory that is used here now, if there is one.
    #[must_use]
    pub fn copy_of(&self, directory: Inode, steady_nanos: i64) -> Option<Attributes> {
        let copy = self.live.cached.get(&directory)?;
        (copy.until > steady_nanos).then_some(copy.attributes)
    }

    /// Where an entry of this service leads now.
    #[must_use]
    pub fn entry_of(&self, parent: Inode, name: &[u8]) -> Option<Inode> {
        self.state.entries.get(parent, name).map(|entry| entry.0)
    }

    /// The first origin from `from` on of which it is remembered what came of its last request.
    #[must_use]
    pub fn next_origin(&self, from: u64) -> Option<u64> {
        self.state.outcomes.range(from..).next().map(|(&origin, _)| origin)
    }

    /// Of how many origins that is remembered.
    #[must_use]
    pub fn outcome_count(&self) -> u64 {
        self.state.outcomes.len() as u64
    }

    /// Number of inodes of this service.
    #[must_use]
    pub fn inode_count(&self) -> u64 {
        self.state.inodes.len()
    }

    /// Changes the tables: logs the change, applies it, and keeps the index in line.
    pub(crate) fn put(&mut self, record: &Record<'_>) {
        match self.config.backing {
            true => self.put_over_backing(record),
            false => self.put_as_seen(record),
        }
    }

    /// As `put`, of what lies below as it is here.
    pub(crate) fn put_as_seen(&mut self, record: &Record<'_>) {
        self.io.log(record);
        let applied = self.state.apply(record);
        debug_assert!(applied.is_ok(), "a service makes no malformed records");
        match *record {
            Record::PutEntry { parent, name, inode, mode } => {
                let key = entry_key(parent, name);
                self.io.index(IndexOp::PutEntry { key, inode, mode });
                self.note_fresh(parent, key, Some((inode, mode)));
            }
            Record::DeleteEntry { parent, name } => {
                let key = entry_key(parent, name);
                self.io.index(IndexOp::PutAbsent { directory: parent, key });
                self.note_fresh(parent, key, None);
            }
            Record::PutInode { attributes, .. }
            | Record::PutAttributes { attributes }
            | Record::PutContents { attributes, .. } => self.put_index(&attributes),
            Record::DeleteInode { inode } => self.io.index(IndexOp::ForgetInode(inode)),
            Record::PutTally { directory, .. } | Record::PutRemoteTally { directory, .. } => {
                if let Some(node) = self.state.inodes.get(directory) {
                    let attributes = node.attributes;
                    self.put_index(&attributes);
                }
            }
            _ => {}
        }
    }

    /// Tells the index about an inode; one without a name, or about to change, is not in it.
    pub(crate) fn put_index(&mut self, attributes: &Attributes) {
        let inode = attributes.inode;
        let is_held = !self.live.keys.is_empty() && self.live.keys.is_changing(&Key::Inode(inode));
        let is_changing = is_held || self.live.busy.contains_key(&inode);
        let is_old = self.is_written_elsewhere(attributes);
        let is_hidden = attributes.links == 0 || is_changing || is_old;
        self.io.index(match is_hidden {
            true => IndexOp::ForgetInode(inode),
            false => IndexOp::PutInode(*attributes),
        });
    }

    /// A request from outside: one that was done before is answered alike, one that is parked
    /// learns its new ticket.
    fn take(&mut self, ticket: u64, header: &Header, request: &Request<'_>, opens: &dyn Opens) {
        if let Some(&outcome) = self.state.outcomes.get(&header.origin)
            && outcome.sequence == header.sequence
            && header.origin != ORIGIN_NONE
        {
            return match (outcome.kind, outcome.second) {
                // Where the daemon of the asker's host stands now says nothing of where it stood then.
                (outcome::RANGE, CUTS_OF_HOST) => {
                    self.answer_again(ticket, &Outcome { second: CUTS_OF_FIRST, ..outcome });
                }
                _ => self.answer_again(ticket, &outcome),
            };
        }
        if self.is_parked(ticket, header) {
            return;
        }
        let row = self.row(header, request, opens);
        let ask = Ask { ticket, header, facts: &[], data: None, row, hands: opens };
        if let Err(stop) = self.run(&ask, request) {
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
                stop => self.answer_stop(ticket, stop),
            }
        }
    }

    fn is_parked(&mut self, ticket: u64, header: &Header) -> bool {
        let is_it = |other: &Header| {
            (other.origin, other.sequence) == (header.origin, header.sequence)
                && header.origin != ORIGIN_NONE
        };
        for job in self.live.jobs.values_mut() {
            if let Kind::Request { ticket: known, header, .. } = &mut job.kind
                && is_it(header)
            {
                *known = ticket;
                return true;
            }
        }
        for waiter in self.live.waiters.values_mut().flatten() {
            if is_it(&waiter.header) {
                waiter.ticket = ticket;
                return true;
            }
        }
        false
    }

    fn answer_again(&mut self, ticket: u64, outcome: &Outcome) {
        let inode = Inode(outcome.first);
        let attributes = self.state.inodes.get(inode).map(|node| node.attributes);
        let reply = match (outcome.kind, attributes) {
            (outcome::CREATED, Some(attributes)) => Reply::Created { attributes },
            (outcome::ATTRIBUTES, Some(attributes)) => Reply::Attributes { attributes },
            (outcome::CREATED | outcome::ATTRIBUTES, None) => {
                Reply::Refused { errno: Errno::ESTALE }
            }
            (outcome::PLACED, _) => Reply::Placed { offset: outcome.first, size: outcome.second },
            (outcome::RANGE, _) => Reply::Range { offset: outcome.first, cuts: outcome.second },
            _ => Reply::Done {},
        };
        self.io.reply(ticket, &reply);
    }

    pub(crate) fn answer_stop(&mut self, ticket: u64, stop: Stop) {
        match stop {
            Stop::Wait(Wait::News) => return self.tell_news(ticket),
            Stop::Wait(wait) if wait.is_for_saving() => return self.tell_wait(ticket, wait),
            _ => {}
        }
        let reply = match stop {
            Stop::Refused(errno) => Reply::Refused { errno },
            Stop::Stale => Reply::Stale { epoch: self.config.map.epoch },
            Stop::Wait(_) => Reply::Busy { retry_micros: RETRY_MICROS },
        };
        self.io.reply(ticket, &reply);
    }

    /// Records what came of a change, and answers.
    pub(crate) fn done(&mut self, ask: &Ask<'_>, kind: u8, first: u64, second: u64) {
        self.finish(ask.ticket, ask.header, kind, first, second);
    }

    pub(crate) fn finish(
        &mut self,
        ticket: u64,
        header: &Header,
        kind: u8,
        first: u64,
        second: u64,
    ) {
        let Header { origin, sequence, .. } = *header;
        if origin != ORIGIN_NONE {
            self.put(&Record::PutOutcome { origin, sequence, kind, first, second });
        }
        self.answer_again(ticket, &Outcome { sequence, kind, first, second });
    }

    /// Parks a job that was not parked before.
    pub(crate) fn park(&mut self, kind: Kind, wait: Wait) {
        let id = self.live.job_next;
        self.live.job_next += 1;
        let is_short = wait == Wait::News || wait.is_for_saving();
        let nanos = if is_short { self.news_nanos() } else { WAIT_NANOS };
        let until = self.live.now.saturating_add(nanos);
        let job = Job { kind, facts: Vec::new(), data: None, wait, attempts: 0, until };
        self.put_job(id, job);
    }

    fn put_job(&mut self, id: u64, mut job: Job) {
        match job.wait {
            Wait::Answer(token) => match self.live.queries.get_mut(&token) {
                Some(query) => query.jobs.push(id),
                None => job.wait = Wait::Time(self.live.now),
            },
            Wait::Votes(sequence) => match self.live.transactions.get_mut(&sequence) {
                Some(transaction) => transaction.job = id,
                None => job.wait = Wait::Time(self.live.now),
            },
            Wait::Glimpse(token) => match self.live.sizes.glimpses.get_mut(&token) {
                Some(glimpse) => glimpse.job = id,
                None => job.wait = Wait::Time(self.live.now),
            },
            _ => {}
        }
        if let Wait::Time(wanted) = job.wait {
            // Asked for a new attempt: what was gathered is old, and the other needs its time.
            job.facts.clear();
            job.attempts += 1;
            let doublings = job.attempts.min(PAUSE_DOUBLINGS_MAX);
            // A pause that differs by service keeps two from meeting for ever.
            let skew = i64::from(self.config.own_group().0 % 7) * (PAUSE_NANOS / 8);
            let pause = (PAUSE_NANOS << doublings) + skew;
            let when = wanted.saturating_add(pause);
            job.wait = Wait::Time(when);
            self.live.wake_at(when);
        }
        self.live.wake_at(job.until);
        self.live.jobs.insert(id, job);
    }

    /// Lets a job try again from the start, later.
    pub(crate) fn retry_job(&mut self, id: u64) {
        if let Some(mut job) = self.live.jobs.remove(&id) {
            job.wait = Wait::Time(self.live.now);
            self.put_job(id, job);
        }
    }

    /// Runs woken jobs, and decides about unlinked inodes, until nothing is left to do.
    fn settle(&mut self, opens: &mut dyn Opens) {
        loop {
            self.settle_unlinked(opens);
            if let Some(bytes) = self.live.own_messages.pop_front() {
                self.take_message(&bytes, opens);
                continue;
            }
            let Some(id) = self.live.woken.pop_first() else { return };
            let Some(job) = self.live.jobs.remove(&id) else { continue };
            if let Kind::Request { ticket, .. } = &job.kind
                && job.may_be_dropped()
                && !opens.is_awaited(*ticket)
            {
                self.answer_stop(*ticket, Stop::Wait(job.wait));
                continue;
            }
            self.run_job(id, job, opens);
        }
    }

    fn run_job(&mut self, id: u64, mut job: Job, opens: &dyn Opens) {
        let stop = match &job.kind {
            Kind::Request { ticket, header, bytes } => {
                let Ok(request) = Request::decode(&mut Reader::new(bytes)) else { return };
                let (ticket, row) = (*ticket, self.row(header, &request, opens));
                let (facts, data) = (&job.facts, job.data);
                let ask = Ask { ticket, header, facts, data, row, hands: opens };
                self.run(&ask, &request)
            }
            Kind::Message { bytes } => self.run_message(bytes, &job.facts, opens),
        };
        match (stop, &job.kind) {
            (Ok(()), _) => {}
            (Err(Stop::Wait(wait)), _) => {
                job.wait = wait;
                self.put_job(id, job);
            }
            (Err(stop), Kind::Request { ticket, .. }) => self.answer_stop(*ticket, stop),
            (Err(_), Kind::Message { .. }) => {}
        }
    }

    /// What time brings: everything unanswered is sent again, jobs whose time is over are given up.
    fn tick(&mut self, hands: &dyn Opens) {
        let now = self.live.now;
        self.live.timer = NEVER;
        for (&id, job) in &self.live.jobs {
            match job.wait {
                Wait::Time(when) if when <= now => {
                    self.live.woken.insert(id);
                }
                Wait::Time(when) => self.live.timer = self.live.timer.min(when),
                _ => {}
            }
            self.live.timer = self.live.timer.min(job.until.max(now.saturating_add(1)));
        }
        self.give_up_late();
        self.send_queries_again();
        self.send_transactions_again();
        self.send_tallies();
        self.keep_leases();
        self.keep_mounts();
        self.keep_far_mounts();
        self.keep_pages();
        self.end_kept();
        self.send_sizes_again();
        self.keep_purses(hands);
        self.keep_bank();
        self.keep_order();
        self.keep_circles();
        self.keep_follow();
        self.keep_listings();
    }

    fn give_up_late(&mut self) {
        let now = self.live.now;
        let is_late =
            |job: &Job| job.until <= now && !matches!(job.wait, Wait::OwnData(_) | Wait::Data(_));
        let late: Vec<u64> =
            self.live.jobs.iter().filter(|(_, job)| is_late(job)).map(|(&id, _)| id).collect();
        for id in late {
            let Some(job) = self.live.jobs.remove(&id) else { continue };
            self.live.woken.remove(&id);
            if let Wait::Votes(sequence) = job.wait {
                self.abort(sequence);
            }
            if let Kind::Request { ticket, .. } = job.kind {
                self.answer_stop(ticket, Stop::Wait(job.wait));
            }
        }
    }

    fn origin_gone(&mut self, first: u64, count: u64) {
        let origins = first..first.saturating_add(count);
        if self.state.outcomes.range(origins.clone()).next().is_some() {
            self.put(&Record::ForgetOrigins { first, count });
        }
        self.refuse_all(|waiter| origins.contains(&waiter.header.origin));
        self.forget_mounts(|header| origins.contains(&header.origin));
        self.drop_jobs(|header| origins.contains(&header.origin));
    }

    fn withdrawn(&mut self, origin: u64, sequence: u64) {
        let is_it = |header: &Header| (header.origin, header.sequence) == (origin, sequence);
        self.refuse_all(|waiter| is_it(&waiter.header));
        self.forget_mounts(is_it);
        self.drop_jobs(is_it);
    }

    /// As where somebody is not awaited (`Opens`). Votes are waited for: until then nobody sees what
    /// they are about.
    fn drop_jobs(&mut self, is_of: impl Fn(&Header) -> bool) {
        let is_theirs = |job: &Job| {
            let Kind::Request { header, .. } = &job.kind else { return false };
            is_of(header) && job.may_be_dropped()
        };
        let jobs = self.live.jobs.iter().filter(|(_, job)| is_theirs(job));
        let dropped: Vec<u64> = jobs.map(|(&id, _)| id).collect();
        for id in dropped {
            let Some(job) = self.live.jobs.remove(&id) else { continue };
            self.live.woken.remove(&id);
            if let Kind::Request { ticket, .. } = job.kind {
                self.answer_stop(ticket, Stop::Wait(job.wait));
            }
        }
    }

    /// What this host's row says now for a request that depends on it, however long ago that was sent.
    fn row(&self, header: &Header, request: &Request<'_>, opens: &dyn Opens) -> Option<u64> {
        if header.host != self.config.host {
            return None;
        }
        match *request {
            Request::Extend { inode, .. } => opens.untold(inode),
            Request::SetAttributes { inode, mask, .. } if mask & set::SIZE != 0 => {
                opens.untold(inode)
            }
            Request::Append { inode, .. } => opens.cuts(inode),
            _ => None,
        }
    }

    /// Runs a request. Whoever returns `Ok` has answered, or queued the answer.
    fn run(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        if !self.config.owns(ShardIndex(ask.header.shard)) {
            return Err(Stop::Stale);
        }
        self.import_for(ask, request)?;
        self.check_keys(ask, request)?;
        self.follow_for(ask, request)?;
        self.unwatched_for(ask, request)?;
        match *request {
            Request::Lookup { parent, name } => self.look_up(ask, parent, name),
            Request::Walk { directory, from, names } => self.walk(ask, directory, from, names),
            Request::Look { inode, name } => self.look_for_mount(ask, inode, name),
            Request::GetAttributes { inode } => self.get_attributes(ask, inode),
            Request::SetAttributes { .. } => self.set_attributes(ask, request),
            Request::Create { .. } => self.create(ask, request),
            Request::CreateNameless { parent, mode, layout } => {
                self.create_nameless(ask, parent, mode, &layout)
            }
            Request::Unlink { parent, name } => self.unlink(ask, parent, name),
            Request::RemoveDirectory { parent, name } => self.remove_directory(ask, parent, name),
            Request::Rename { .. } => self.rename(ask, request),
            Request::Link { inode, parent, name } => self.link(ask, inode, parent, name),
            Request::ReadDirectory { directory, after, bytes } => {
                self.read_directory(ask, directory, after, bytes)
            }
            Request::ReadLink { inode } => self.read_link(ask, inode),
            Request::GetXattr { inode, name } => self.get_xattr(ask, inode, name),
            Request::SetXattr { inode, name, value, flags } => {
                self.set_xattr(ask, inode, name, value, flags)
            }
            Request::ListXattr { inode } => self.list_xattr(ask, inode),
            Request::RemoveXattr { inode, name } => self.remove_xattr(ask, inode, name),
            Request::ReadInline { inode, offset, length } => {
                self.read_inline(ask, inode, offset, length)
            }
            Request::WriteInline { inode, offset, bytes } => {
                self.write_inline(ask, inode, offset, bytes)
            }
            Request::MoveOut { inode } => self.move_out(ask, inode),
            Request::Extend { inode, size } => self.extend(ask, inode, size),
            Request::Append { inode, length } => self.append(ask, inode, length),
            Request::Open { inode, turn, uses } => self.open(ask, inode, turn, uses),
            Request::Close { inode, turn } => self.close(ask, inode, turn),
            Request::Reap { inode } => self.reap(ask, inode),
            Request::Lock { .. } => self.lock(ask, request),
            Request::Release { inode, owner } => self.release(ask, inode, owner),
            Request::CancelLock { inode, origin, sequence } => {
                self.cancel_lock(ask, inode, (origin, sequence))
            }
            Request::Unwatch { inode } => self.unwatch(ask, inode),
            Request::Notices { done } => self.notices(ask, done),
            Request::SetQuota { .. } => self.set_quota(ask, request),
            Request::Quotas { from } => self.quotas(ask, from),
            Request::Owners { inodes } => self.tell_owners(ask, inodes),
            Request::Below { inode } => self.tell_below(ask, inode),
            Request::IsSaved { inode } => {
                let value = u64::from(self.is_saved_as_is(ask, inode));
                self.io.reply(ask.ticket, &Reply::Number { value });
                Ok(())
            }
            Request::AwaitSaved { inode } => self.await_saved(ask, inode),
            _ => self.run_for_writer(ask, request),
        }
    }

    /// What a transaction is about to change is neither read nor changed meanwhile.
    fn check_keys(&self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        if self.live.keys.is_empty() {
            return Ok(());
        }
        match *request {
            Request::Create { parent, name, .. } | Request::Link { parent, name, .. } => {
                self.check_key(&Key::Frozen(parent))?;
                self.check_entry_key(parent, name)
            }
            Request::Look { name: [], inode } => self.check_key(&Key::Inode(inode)),
            Request::Look { inode: parent, name }
            | Request::Lookup { parent, name }
            | Request::Unlink { parent, name }
            | Request::RemoveDirectory { parent, name } => self.check_entry_key(parent, name),
            Request::Rename { parent, name, new_parent, new_name, .. } => {
                self.check_entry_key(parent, name)?;
                self.check_entry_key(new_parent, new_name)
            }
            Request::CreateNameless { parent, .. } => self.check_key(&Key::Frozen(parent)),
            // A walk looks at what it meets; what is taken back waits for nothing.
            Request::Walk { .. } | Request::CancelLock { .. } | Request::Notices { .. } => Ok(()),
            _ => match request.subject() {
                Some(inode) if ask.header.shard == inode.shard().0 => {
                    self.check_key(&Key::Inode(inode))
                }
                _ => Ok(()),
            },
        }
    }

    pub(crate) fn check_key(&self, key: &Key) -> Step<()> {
        if self.live.keys.is_changing(key) { Err(Stop::Wait(Wait::Unlock)) } else { Ok(()) }
    }

    pub(crate) fn check_entry_key(&self, parent: Inode, name: &[u8]) -> Step<()> {
        if self.live.keys.is_empty() {
            return Ok(());
        }
        self.check_key(&Key::Entry(parent, name.to_vec()))?;
        match self.state.entries.get(parent, name) {
            Some((inode, _)) => self.check_key(&Key::Inode(inode)),
            None => Ok(()),
        }
    }

    /// May the sender change the entries of this directory?
    pub(crate) fn may_change(&mut self, ask: &Ask<'_>, directory: &Attributes) -> Step<()> {
        self.permits(ask, directory, want::WRITE | want::EXECUTE)
    }

    /// A time for a change of something that last changed at `changed`.
    pub(crate) fn stamp(&self, changed: i64) -> i64 {
        self.live.now.max(changed.saturating_add(1))
    }

    /// A number that this service never used: of a question, a transaction, an effect.
    pub(crate) fn new_sequence(&mut self) -> u64 {
        if self.live.sequence_next >= self.state.sequence_next {
            let sequence_next = self.live.sequence_next + SEQUENCE_BLOCK;
            self.put(&Record::PutCounter { sequence_next });
        }
        let sequence = self.live.sequence_next;
        self.live.sequence_next += 1;
        sequence
    }
}

/// Numbers are logged as used in blocks, so that not each takes a record.
const SEQUENCE_BLOCK: u64 = 1024;
