//! Shared ground of all subjects: settings, tables, output, clock, timer, and the jobs. It knows no
//! subject; how the tables change is in `change`.
//!
//! A subject keeps the state that it alone needs in a struct of its own, and gets the context as an
//! argument. All of that but the tables is forgotten at a restart.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use wire::id::{BACKED_FIRST, LOCAL_OP_SEQUENCE_FIRST};
use wire::{Attributes, Errno, Header, Inode, Reply, ShardIndex};

use crate::core::config::{Config, Group};
use crate::core::effect::Effect;
use crate::core::job::{Call, Job, NEVER, Step, Stop, Wait};
use crate::core::keys::{Key, Keys};
use crate::core::output::Output;
use crate::core::peer_messages::Message;
use crate::core::record::Record;
use crate::core::state::{CLIENT_ID_NONE, CachedReply, State, reply_kind};
use crate::core::valid_names::ValidNames;

/// Pause that `Busy` requests of a client.
const RETRY_MICROS: u32 = 1000;
/// First pause before a transaction that met another is retried, doubled each time up to
/// `PAUSE_DOUBLINGS_MAX` times: from the latency of a message to about 3 ms.
const PAUSE_NANOS: i64 = 50_000;
const PAUSE_DOUBLINGS_MAX: u32 = 6;
/// Longest wait of a long poll, by the writeback daemon or by a client that waits for writeback,
/// before it is repeated.
const LONG_POLL_NANOS: i64 = 2_000_000_000;
/// Numbers are logged as used in blocks, so that most take no record.
const SEQUENCE_BLOCK: u64 = 1024;

/// Shared ground of all subjects; see the module.
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) io: Output,
    /// Time of the step by the wall clock, in nanoseconds.
    pub(crate) now: i64,
    /// Time of the step by the monotonic clock, in nanoseconds.
    pub(crate) steady: i64,
    /// When a tick is due.
    pub(crate) timer: i64,
    /// A shard of this service, as the address for other services.
    pub(crate) address: ShardIndex,
    /// By shard, the next inode number.
    pub(crate) inode_next: BTreeMap<u16, u64>,
    pub(crate) sequence_next: u64,
    pub(crate) jobs: BTreeMap<u64, Job>,
    pub(crate) woken: BTreeSet<u64>,
    /// Keys that transactions hold.
    pub(crate) keys: Keys,
    /// Inodes whose contents wait for targets.
    pub(crate) busy: BTreeMap<Inode, u64>,
    /// The last loss that was known when targets were asked to empty a file, where the file is older; by
    /// the token of the operation.
    pub(crate) emptying: BTreeMap<u64, u64>,
    /// Inline files truncated in the running step: the open inodes in shared memory do not show it
    /// yet.
    pub(crate) truncate_now: Vec<Inode>,
    /// Inodes that lost their last name, or were closed, in the running step.
    pub(crate) unlinked: Vec<Inode>,
    /// Names of the backing store that the index may show.
    pub(crate) valid_names: ValidNames,
    /// Changes whenever a name or inode becomes dirty.
    pub(crate) dirty_generation: u64,
    /// A job waits for the next change of it.
    pub(crate) is_dirty_awaited: bool,
    /// Messages of this service to itself.
    pub(crate) own_messages: VecDeque<Vec<u8>>,
    /// Where another daemon goes on with the service: files that the first owner's host may have open.
    pub(crate) unknown_opens: Option<UnknownOpens>,
}

/// Files with numbers from before a takeover may be open at the host of the first owner, whose memory
/// alone knows, and may be written there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnknownOpens {
    pub(crate) host: u16,
    /// Files from before have numbers below this.
    pub(crate) end: u64,
}

impl Context {
    /// A context over `state`, before the first step.
    pub(crate) fn new(config: Config, address: ShardIndex, state: State) -> Context {
        Context {
            config,
            state,
            io: Output::default(),
            now: 0,
            steady: 0,
            timer: NEVER,
            address,
            inode_next: BTreeMap::new(),
            sequence_next: 0,
            jobs: BTreeMap::new(),
            woken: BTreeSet::new(),
            keys: Keys::default(),
            busy: BTreeMap::new(),
            emptying: BTreeMap::new(),
            truncate_now: Vec::new(),
            unlinked: Vec::new(),
            valid_names: ValidNames::default(),
            dirty_generation: 0,
            is_dirty_awaited: false,
            own_messages: VecDeque::new(),
            unknown_opens: None,
        }
    }

    /// A kernel behind a mount may remember something from now on: a successor waits for that.
    pub(crate) fn note_mounts(&mut self) {
        if !self.state.has_mounts {
            self.put(&Record::PutMounts { may: 1 });
        }
    }

    /// Files without a name are open only where this service knows it.
    pub(crate) fn end_unknown_opens(&mut self) {
        if self.unknown_opens.take().is_some() {
            self.unlinked.extend(self.state.orphans.iter().copied());
        }
    }

    /// The host that may have a file open, and has not said so.
    pub(crate) fn unknown_opener(&self, inode: Inode) -> Option<u16> {
        let UnknownOpens { host, end } = self.unknown_opens?;
        let sequence = inode.sequence();
        // The kinds of numbers have ranges of their own, in each of which the same many are skipped.
        let kinds = [LOCAL_OP_SEQUENCE_FIRST, BACKED_FIRST, 0];
        let first = kinds.into_iter().find(|&first| sequence >= first).unwrap_or(0);
        (sequence - first < end).then_some(host)
    }

    /// Other hosts that have a file open, or may have.
    pub(crate) fn openers_but(&self, inode: Inode, host: u16) -> Vec<u16> {
        let known = self.state.hosts.get(&inode).into_iter().flatten().map(|opening| opening.host);
        self.with_unknown_opener(inode, known.filter(|&other| other != host).collect(), host)
    }

    /// Other hosts that may write to a file.
    pub(crate) fn writers_but(&self, inode: Inode, host: u16) -> Vec<u16> {
        let known = self.state.writers_but(inode, host).collect();
        self.with_unknown_opener(inode, known, host)
    }

    fn with_unknown_opener(&self, inode: Inode, mut all: Vec<u16>, but: u16) -> Vec<u16> {
        let unknown = self.unknown_opener(inode).filter(|other| *other != but);
        all.extend(unknown.filter(|other| !all.contains(other)));
        all
    }

    /// True if other hosts than `by` have a file of the mode `posix` open: each change of its size
    /// is a truncation then, as they may have written more.
    pub(crate) fn is_remote_truncate(&self, attributes: &Attributes, by: u16) -> bool {
        attributes.is_posix() && !self.openers_but(attributes.inode, by).is_empty()
    }

    /// Requests a tick at `when`.
    pub(crate) fn wake_at(&mut self, when: i64) {
        self.timer = self.timer.min(when);
    }

    /// Wakes all jobs whose condition `is_it` accepts.
    pub(crate) fn wake(&mut self, is_it: impl Fn(&Wait) -> bool) {
        let jobs = self.jobs.iter().filter(|(_, job)| is_it(&job.wait)).map(|(&id, _)| id);
        self.woken.extend(jobs);
    }

    /// Duration of a long poll: shorter than the time after which daemons give each other up.
    pub(crate) fn long_poll_nanos(&self) -> i64 {
        LONG_POLL_NANOS.min(self.config.silence_nanos / 2)
    }

    /// The attributes of an inode of this service.
    pub(crate) fn own_attributes(&self, inode: Inode) -> Step<Attributes> {
        let node = self.state.inodes.get(inode).ok_or(Stop::Refused(Errno::ESTALE))?;
        Ok(node.attributes)
    }

    /// The attributes of an inode whose contents do not wait for targets.
    pub(crate) fn quiet_attributes(&self, inode: Inode) -> Step<Attributes> {
        match self.busy.contains_key(&inode) {
            true => Err(Stop::Wait(Wait::Data(inode))),
            false => self.own_attributes(inode),
        }
    }

    /// Fails if the file was truncated in this step: then the open inode is stale until the effect
    /// is performed.
    pub(crate) fn check_vnode(&self, inode: Inode) -> Step<()> {
        if self.truncate_now.contains(&inode) {
            return Err(Stop::Wait(Wait::Time(self.now)));
        }
        Ok(())
    }

    /// True if the index may be stale, because other hosts write to the file.
    pub(crate) fn is_written_elsewhere(&self, attributes: &Attributes) -> bool {
        attributes.is_posix()
            && attributes.is_regular()
            && self.state.writers_but(attributes.inode, self.config.host).next().is_some()
    }

    /// Sends a message to the service of a group, which may be this one.
    pub(crate) fn send_to_service(&mut self, group: u32, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        if group == self.config.own_group().0 {
            return self.own_messages.push_back(bytes);
        }
        self.io.push(Effect::Service { to: Group(group).name(), bytes });
    }

    /// Answers a request by its reply cache entry.
    pub(crate) fn answer_again(&mut self, ticket: u64, outcome: &CachedReply) {
        let inode = Inode(outcome.first);
        let attributes = self.state.inodes.get(inode).map(|node| node.attributes);
        let reply = match (outcome.kind, attributes) {
            (reply_kind::CREATED, Some(attributes)) => Reply::Created { attributes },
            (reply_kind::ATTRIBUTES, Some(attributes)) => Reply::Attributes { attributes },
            (reply_kind::CREATED | reply_kind::ATTRIBUTES, None) => {
                Reply::Refused { errno: Errno::ESTALE }
            }
            (reply_kind::PLACED, _) => {
                Reply::Placed { offset: outcome.first, size: outcome.second }
            }
            (reply_kind::RANGE, _) => {
                Reply::Range { offset: outcome.first, truncate_epoch: outcome.second }
            }
            _ => Reply::Done {},
        };
        self.io.reply(ticket, &reply);
    }

    /// Answers a request that stopped: refused, of another service, or given up.
    pub(crate) fn answer_stop(&mut self, ticket: u64, stop: Stop) {
        let reply = match stop {
            Stop::Refused(errno) => Reply::Refused { errno },
            Stop::Stale => Reply::Stale { epoch: self.config.map.epoch() },
            Stop::Wait(_) => Reply::Busy { retry_micros: RETRY_MICROS },
        };
        self.io.reply(ticket, &reply);
    }

    /// Records the reply of a change, and answers.
    pub(crate) fn done(&mut self, call: &Call<'_>, kind: u8, first: u64, second: u64) {
        self.complete(call.ticket, call.header, kind, first, second);
    }

    /// As `done`, for a request that was parked.
    pub(crate) fn complete(
        &mut self,
        ticket: u64,
        header: &Header,
        kind: u8,
        first: u64,
        second: u64,
    ) {
        let Header { client_id, sequence, .. } = *header;
        if client_id != CLIENT_ID_NONE {
            self.put(&Record::PutReply { client_id, sequence, kind, first, second });
        }
        self.answer_again(ticket, &CachedReply { sequence, kind, first, second });
    }

    /// Parks a job. The event that it waits for wakes it.
    pub(crate) fn put_job(&mut self, id: u64, mut job: Job) {
        if let Wait::Time(requested) = job.wait {
            // A new attempt: gathered facts are stale, and the other transaction needs time.
            job.facts.clear();
            job.attempts += 1;
            let doublings = job.attempts.min(PAUSE_DOUBLINGS_MAX);
            // A pause that differs by service keeps two of them from colliding forever.
            let skew = i64::from(self.config.own_group().0 % 7) * (PAUSE_NANOS / 8);
            let pause = (PAUSE_NANOS << doublings) + skew;
            let when = requested.saturating_add(pause);
            job.wait = Wait::Time(when);
            self.wake_at(when);
        }
        self.wake_at(job.until);
        self.jobs.insert(id, job);
    }

    /// Lets a job retry from the start, later.
    pub(crate) fn retry_job(&mut self, id: u64) {
        if let Some(mut job) = self.jobs.remove(&id) {
            job.wait = Wait::Time(self.now);
            self.put_job(id, job);
        }
    }

    pub(crate) fn check_key(&self, key: &Key) -> Step<()> {
        if self.keys.is_changing(key) { Err(Stop::Wait(Wait::Unlock)) } else { Ok(()) }
    }

    pub(crate) fn check_entry_key(&self, parent: Inode, name: &[u8]) -> Step<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        self.check_key(&Key::Entries(parent))?;
        self.check_key(&Key::Entry(parent, name.to_vec()))?;
        match self.state.entries.get(parent, name) {
            Some((inode, _)) => self.check_key(&Key::Inode(inode)),
            None => Ok(()),
        }
    }

    /// Time for a change of an object whose last change was at `changed`.
    pub(crate) fn stamp(&self, changed: i64) -> i64 {
        self.now.max(changed.saturating_add(1))
    }

    /// A number that this service never used: for a query, a transaction, an effect.
    pub(crate) fn new_sequence(&mut self) -> u64 {
        if self.sequence_next >= self.state.sequence_next {
            let sequence_next = self.sequence_next + SEQUENCE_BLOCK;
            self.put(&Record::PutCounter { sequence_next });
        }
        let sequence = self.sequence_next;
        self.sequence_next += 1;
        sequence
    }

    /// True if removed files may still be about to free their space.
    pub(crate) fn is_freeing(&self) -> bool {
        // A participant learns of the decision after the client.
        !self.unlinked.is_empty() || !self.state.prepared.is_empty()
    }
}
