//! The simulated world of the tests: services with a queue of messages, logs that survive a crash,
//! targets that answer, and clients that send requests. All random choices come from a seed.
#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod backing;
pub(crate) mod faults;
mod holdings;
mod host;
mod local_ops;
pub(crate) mod shared;
pub(crate) mod simulation;
pub(crate) mod writer;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use self::host::{HostState, Row, Watched};
use metadata::{Config, DataOp, Effect, IndexOp, Input, Now, Service, SnapshotCursor};
use placement::locate::Part;
use placement::{Map, ServiceName};
use wire::attributes::{ATTRIBUTES_BYTES, mode, spread};
use wire::hash::NameHash;
use wire::{
    Attributes, Credentials, DaemonIndex, Errno, Header, Inode, Layout, Reader, Reply, Request,
    ShardIndex,
};

/// A generator whose numbers depend on the seed alone (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        wire::hash::mix(self.0, 0)
    }
    pub(crate) fn uniform(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.uniform(100) < percent
    }
}

/// Answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Done,
    Refused(Errno),
    Busy,
    Stale,
    Attributes(Attributes),
    Entry(Inode, u32),
    Created(Attributes),
    LookupForMount(u8, Attributes),
    Opened(Attributes, u64, u8),
    Number(u64),
    Bytes(Vec<u8>),
    Contents(u64, Vec<u8>),
    Moved(Attributes),
    Placed(u64, u64),
    Range(u64, u64),
    Entries(bool, Vec<(u64, Inode, u32, Vec<u8>)>, u16),
    Held(u8, u32, u64, u64),
    Walked(bool, Vec<Attributes>),
}

impl Answer {
    pub(crate) fn of(bytes: &[u8]) -> Answer {
        match Reply::decode(&mut Reader::new(bytes)).expect("a reply") {
            Reply::Done {} => Answer::Done,
            Reply::Refused { errno } => Answer::Refused(errno),
            Reply::Busy { .. } => Answer::Busy,
            Reply::Stale { .. } => Answer::Stale,
            Reply::Attributes { attributes } => Answer::Attributes(attributes),
            Reply::Entry { inode, mode } => Answer::Entry(inode, mode),
            Reply::Created { attributes } => Answer::Created(attributes),
            Reply::LookupForMount { may, attributes } => Answer::LookupForMount(may, attributes),
            Reply::Opened { attributes, writers, others } => {
                Answer::Opened(attributes, writers, others)
            }
            Reply::Number { value } => Answer::Number(value),
            Reply::Bytes { bytes } => Answer::Bytes(bytes.to_vec()),
            Reply::Contents { size, bytes } => Answer::Contents(size, bytes.to_vec()),
            Reply::Moved { attributes } => Answer::Moved(attributes),
            Reply::Placed { offset, size } => Answer::Placed(offset, size),
            Reply::Range { offset, truncate_epoch } => Answer::Range(offset, truncate_epoch),
            Reply::Entries { more, next, entries } => {
                let mut reader = Reader::new(entries);
                let mut all = vec![];
                while !reader.rest().is_empty() {
                    use wire::codec::Field;
                    let entry = wire::reply::DirectoryEntry::take(&mut reader).expect("an entry");
                    all.push((entry.hash, entry.inode, entry.mode, entry.name.to_vec()));
                }
                Answer::Entries(more != 0, all, next)
            }
            Reply::Held { kind, pid, start, end } => Answer::Held(kind, pid, start, end),
            Reply::Walked { absent, chain, .. } => {
                let chain = chain.chunks(ATTRIBUTES_BYTES);
                let chain = chain.map(|bytes| Attributes::decode(&mut Reader::new(bytes)));
                Answer::Walked(absent != 0, chain.collect::<Result<_, _>>().expect("attributes"))
            }
            other => panic!("no reply of a metadata shard: {other:?}"),
        }
    }
    pub(crate) fn attributes(&self) -> Attributes {
        match self {
            Answer::Attributes(a) | Answer::Created(a) | Answer::Moved(a) => *a,
            Answer::Opened(a, ..) => *a,
            other => panic!("no attributes: {other:?}"),
        }
    }
}

/// The monotonic clock of a host: each has its own zero.
pub(crate) fn steady(now: i64, daemon: DaemonIndex) -> i64 {
    now - i64::from(daemon.0) * 77_777_777_777
}

fn initial(count: u16) -> Map {
    Map::initial(count).expect("a count within limits")
}

/// Settings of daemon `daemon` of `count`, worker `worker` of `workers`.
pub(crate) fn config(daemon: u16, count: u16, worker: usize, workers: usize) -> Config {
    let map = initial(count);
    let (daemon, host, root_mode) = (DaemonIndex(daemon), daemon, 0o777);
    Config { first: daemon, daemon, host, worker, workers, map, root_mode, ..Config::single() }
}

/// One service and its surroundings.
pub(crate) struct Seat {
    pub(crate) config: Config,
    /// The host of its first owner.
    pub(crate) home: u16,
    pub(crate) service: Service,
    pub(crate) log: Vec<Vec<u8>>,
    pub(crate) host_view: HostState,
    pub(crate) data: Vec<(u64, Inode, DataOp)>,
    /// Removals that its targets have not answered.
    pub(crate) removals: Vec<(u64, Vec<Inode>)>,
    pub(crate) index: Vec<IndexOp>,
    /// Its index.
    pub(crate) known: local_ops::Known,
    /// By shard, the inode numbers that local operations may use: next and end.
    pub(crate) numbers: BTreeMap<u16, (u64, u64)>,
}

/// A header and request of a client.
pub(crate) struct Sent {
    pub(crate) header: Header,
    pub(crate) bytes: Vec<u8>,
}

/// Effects of a step that a service has performed when it is killed: a number of effects, and its
/// replies or not (a daemon sends them after all others).
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) effects: usize,
    pub(crate) replies: bool,
}

/// The world.
pub(crate) struct World {
    pub(crate) seats: Vec<Seat>,
    /// Services that were killed and not restarted: nothing reaches them.
    pub(crate) dead: BTreeSet<usize>,
    /// Services that are at other daemons than their first owners.
    pub(crate) away: BTreeSet<usize>,
    /// The next step is the last of its service.
    pub(crate) cut: Option<Cut>,
    /// Number of steps of all services.
    pub(crate) steps: u64,
    pub(crate) now: i64,
    pub(crate) queue: Vec<(usize, Vec<u8>)>,
    /// All messages that services ever sent.
    pub(crate) messages: Vec<Vec<u8>>,
    /// Messages to lease holders: receiver, sender, bytes.
    pub(crate) holder_messages: Vec<(DaemonIndex, DaemonIndex, Vec<u8>)>,
    /// Messages to the first daemon of a host, about sizes of files.
    pub(crate) host_messages: Vec<(DaemonIndex, Vec<u8>)>,
    pub(crate) replies: BTreeMap<u64, Vec<u8>>,
    pub(crate) ticket: u64,
    pub(crate) sequence: u64,
    /// Number of local operations.
    pub(crate) local_op_count: u64,
    /// Targets answer at once.
    pub(crate) data_is_prompt: bool,
    pub(crate) data_log: Vec<(Inode, DataOp)>,
    /// Every file that targets were ever asked to remove, in order.
    pub(crate) removal_log: Vec<Inode>,
    /// The layouts in these requests.
    pub(crate) removal_layouts: Vec<Layout>,
    /// Findings about targets of pools.
    pub(crate) target_health: Vec<(u32, bool)>,
    /// Slow targets that were told so, with those that are not.
    pub(crate) targets_left: Vec<(u32, Vec<u32>)>,
    /// The backing store.
    pub(crate) backing: backing::Backing,
}

impl World {
    pub(crate) fn of(configs: Vec<Config>) -> World {
        let seats = configs.into_iter().map(|config| Seat {
            service: Service::new(config.clone()),
            home: config.host,
            config,
            log: vec![],
            host_view: HostState::default(),
            data: vec![],
            removals: vec![],
            index: vec![],
            known: local_ops::Known::default(),
            numbers: BTreeMap::new(),
        });
        let mut world = World {
            seats: seats.collect(),
            dead: BTreeSet::new(),
            away: BTreeSet::new(),
            cut: None,
            steps: 0,
            now: 1_000_000_000_000,
            queue: vec![],
            messages: vec![],
            holder_messages: vec![],
            host_messages: vec![],
            replies: BTreeMap::new(),
            ticket: 0,
            sequence: 0,
            local_op_count: 0,
            data_is_prompt: true,
            data_log: vec![],
            removal_log: vec![],
            removal_layouts: vec![],
            target_health: vec![],
            targets_left: vec![],
            backing: backing::Backing::default(),
        };
        for seat in 0..world.seats.len() {
            world.step(seat, Input::Tick);
        }
        world
    }
    pub(crate) fn single() -> World {
        World::of(vec![config(0, 1, 0, 1)])
    }
    /// `count` daemons with one worker each.
    pub(crate) fn daemons(count: u16) -> World {
        World::of((0..count).map(|daemon| config(daemon, count, 0, 1)).collect())
    }

    pub(crate) fn owner(&self, shard: ShardIndex) -> usize {
        self.seats.iter().position(|seat| seat.config.owns(shard)).expect("an owner")
    }

    /// The same with daemons that come later (`grow`), whose services have no shards.
    pub(crate) fn growing(first: u16, now: u16) -> World {
        let of = |daemon| Config { map: initial(first), ..config(daemon, now, 0, 1) };
        World::of((0..now).map(of).collect())
    }

    /// The instance has so many daemons now.
    pub(crate) fn grow(&mut self, count: u16) {
        for seat in &mut self.seats {
            seat.service.grow(count);
            seat.config.map = seat.config.map.grown_to(count).expect("no fewer than before");
        }
        (0..self.seats.len()).for_each(|at| self.step(at, Input::Tick));
    }

    /// One step of one service; its effects are performed or queued.
    pub(crate) fn step(&mut self, at: usize, input: Input<'_>) {
        if self.dead.contains(&at) {
            return;
        }
        self.steps += 1;
        let mut out = vec![];
        let seat = &mut self.seats[at];
        let now = Now { unix_nanos: self.now, steady_nanos: steady(self.now, seat.config.daemon) };
        seat.service.step(now, input, &mut seat.host_view, &mut out);
        let logs = out.iter().skip(1).filter(|effect| matches!(effect, Effect::Log(_))).count();
        assert_eq!(logs, 0, "the record of a step is its first effect");
        if let Some(cut) = self.cut.take() {
            out.truncate(cut.effects);
            out.retain(|effect| cut.replies || !matches!(effect, Effect::Reply { .. }));
            self.dead.insert(at);
        }
        out.into_iter().for_each(|effect| self.perform(at, effect));
    }

    fn perform(&mut self, at: usize, effect: Effect) {
        match effect {
            Effect::Reply { ticket, bytes } => {
                let before = self.replies.insert(ticket, bytes);
                assert!(before.is_none(), "ticket {ticket} is answered twice");
            }
            Effect::Log(bytes) => self.seats[at].log.push(bytes),
            Effect::Index(op) => {
                self.seats[at].known.take(&op);
                self.seats[at].index.push(op);
            }
            Effect::SizeReported { inode, end } => {
                let row = self.seats[at].host_view.vnodes.get_mut(&inode).expect("sent before");
                assert_eq!(row.unreported, end, "nothing came in between");
                row.unreported = 0;
            }
            Effect::BeginTruncate { inode, .. } => self.count_truncate(at, inode, 1),
            Effect::TruncateInline { inode, .. } => self.count_truncate(at, inode, 2),
            // At another daemon than the first owner.
            Effect::UncountUse { .. } if self.seats[at].config.host == u16::MAX => {}
            Effect::UncountUse { inode, less } => {
                self.seats[at].host_view.pages.borrow_mut().uncount(inode, less);
            }
            Effect::GrantNumbers { shard, first, end, .. } => {
                let numbers = self.seats[at].numbers.entry(shard.0).or_insert((first, end));
                *numbers = (numbers.0.max(first), end);
            }
            Effect::Peer { to, bytes } => {
                let to = self.owner(to);
                assert_ne!(to, at, "a message to itself");
                self.messages.push(bytes.clone());
                self.queue.push((to, bytes));
            }
            Effect::Holder { to, bytes } => {
                let Config { daemon: from, host, .. } = self.seats[at].config;
                assert_ne!(to.0, host, "a message to itself");
                self.holder_messages.push((to, from, bytes));
            }
            Effect::Host { to, bytes } => {
                assert_ne!(to.0, self.seats[at].config.host, "a message to itself");
                self.host_messages.push((to, bytes));
            }
            Effect::Service { to, bytes } => self.tell(at, to, bytes),
            Effect::Count | Effect::Allow { .. } => self.seats[at].host_view.holdings.take(effect),
            Effect::ReportTransfers { .. } | Effect::PoolTargets { .. } => {}
            Effect::TargetHealth { target, is_slow, .. } => {
                self.target_health.push((target, is_slow));
            }
            Effect::LeaveTarget { target, others } => self.targets_left.push((target, others)),
            Effect::Data { token, inode, op, .. } => {
                self.data_log.push((inode, op.clone()));
                self.seats[at].data.push((token, inode, op));
            }
            Effect::Remove { token, files } => self.remove(at, token, &files),
            Effect::Probe { key, place, name } => self.backing.look((at, key, place, name)),
            Effect::ReadBackingDir { directory, place } => self.backing.ask(at, directory, place),
        }
    }

    fn count_truncate(&mut self, at: usize, inode: Inode, count: usize) {
        (0..count).for_each(|_| self.seats[at].host_view.count_truncate(inode));
    }

    fn remove(&mut self, at: usize, token: u64, files: &[(Inode, Layout)]) {
        self.removal_layouts.extend(files.iter().map(|(_, layout)| *layout));
        let files: Vec<Inode> = files.iter().map(|(inode, _)| *inode).collect();
        self.removal_log.extend(&files);
        self.seats[at].removals.push((token, files));
    }

    fn tell(&mut self, from: usize, to: ServiceName, bytes: Vec<u8>) {
        let to = (to.first, usize::from(to.worker));
        let is_it = |seat: &Seat| (seat.config.first, seat.config.worker) == to;
        let to = self.seats.iter().position(is_it).expect("such a service");
        assert_ne!(to, from, "a message to itself");
        self.queue.push((to, bytes));
    }

    /// Targets of a service answer all pending operations.
    pub(crate) fn answer_data(&mut self, at: usize, result: wire::errno::Result<()>) {
        for (token, ..) in core::mem::take(&mut self.seats[at].data) {
            self.step(at, Input::DataDone { token, result });
        }
        if result.is_ok() {
            self.answer_removals(at);
        }
    }

    /// Targets of a service answer all pending removals.
    pub(crate) fn answer_removals(&mut self, at: usize) {
        let removals = core::mem::take(&mut self.seats[at].removals);
        let tokens: Vec<u64> = removals.into_iter().map(|(token, _)| token).collect();
        if !tokens.is_empty() {
            self.step(at, Input::Removed { tokens: &tokens });
        }
    }

    /// Delivers messages and lets time pass until nothing happens any more.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.data_is_prompt {
                for at in 0..self.seats.len() {
                    self.answer_data(at, Ok(()));
                }
                while self.answer_backing(usize::MAX) || self.answer_probe(None) {}
            }
            if !self.queue.is_empty() {
                let (to, bytes) = self.queue.remove(0);
                self.step(to, Input::Peer { message: &bytes });
                continue;
            }
            let deadlines = self.seats.iter().map(|seat| seat.service.deadline());
            let Some((at, when)) = deadlines
                .enumerate()
                .filter_map(|(at, when)| Some((at, when?)))
                .min_by_key(|&(_, when)| when)
            else {
                return;
            };
            if !self.data_is_prompt && when > self.now + 1_000_000_000 {
                return;
            }
            self.now = self.now.max(when);
            self.step(at, Input::Tick);
        }
        panic!("it does not settle: {:?}", self.queue);
    }

    /// Delivers `count` messages, the oldest first.
    pub(crate) fn settle_for(&mut self, count: usize) {
        for _ in 0..count.min(self.queue.len()) {
            let (to, bytes) = self.queue.remove(0);
            self.step(to, Input::Peer { message: &bytes });
        }
    }

    /// Sends a request without waiting; returns its ticket.
    pub(crate) fn send(
        &mut self,
        caller: Credentials,
        shard: ShardIndex,
        request: &Request<'_>,
    ) -> u64 {
        let sent = self.prepare(caller, shard, request);
        self.send_again(&sent)
    }

    pub(crate) fn prepare(
        &mut self,
        caller: Credentials,
        shard: ShardIndex,
        request: &Request<'_>,
    ) -> Sent {
        self.sequence += 1;
        let config = &self.seats[self.owner(shard)].config;
        let header = Header {
            shard: shard.0,
            daemon: config.daemon.0,
            epoch: 1,
            client_id: 7,
            sequence: self.sequence,
            host: config.host,
            mount: 0,
            job: wire::JobWord::NONE,
            caller,
        };
        let mut bytes = vec![0; 16 * 1024];
        let mut writer = wire::Writer::new(&mut bytes);
        request.encode(&mut writer);
        let length = writer.finish().expect("it fits");
        bytes.truncate(length);
        Sent { header, bytes }
    }

    pub(crate) fn send_again(&mut self, sent: &Sent) -> u64 {
        let ticket = self.ticket + 1;
        (self.ticket, self.now) = (ticket, self.now + 1000);
        let at = self.owner(ShardIndex(sent.header.shard));
        if self.away.contains(&at) && self.seats[at].home == sent.header.host {
            // Programs of the first owner's host wait.
            return ticket;
        }
        let request = Request::decode(&mut Reader::new(&sent.bytes)).expect("a request");
        self.step(at, Input::Request { ticket, header: &sent.header, request });
        ticket
    }

    pub(crate) fn answer(&self, ticket: u64) -> Option<Answer> {
        self.replies.get(&ticket).map(|bytes| Answer::of(bytes))
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn call(
        &mut self,
        caller: Credentials,
        shard: ShardIndex,
        request: &Request<'_>,
    ) -> Answer {
        let ticket = self.send(caller, shard, request);
        if !self.replies.contains_key(&ticket) || !self.queue.is_empty() {
            self.settle();
        } else if self.data_is_prompt {
            for at in 0..self.seats.len() {
                self.answer_data(at, Ok(()));
            }
        }
        self.answer(ticket).expect("an answer")
    }

    /// Kills a service and restarts it from its log.
    pub(crate) fn crash(&mut self, at: usize) {
        self.dead.remove(&at);
        let seat = &mut self.seats[at];
        let mut service = Service::new(seat.config.clone());
        for record in &seat.log {
            service.replay(record).expect("a record of our own");
        }
        seat.service = service;
        seat.data.clear();
        seat.removals.clear();
        seat.known = local_ops::Known::default();
        self.backing.reads.retain(|(caller, ..)| *caller != at);
        self.backing.probes.retain(|(caller, ..)| *caller != at);
        self.step(at, Input::Tick);
    }

    pub(crate) fn stat(&mut self, inode: Inode) -> Result<Attributes, Errno> {
        let request = Request::GetAttributes { inode };
        match self.call(Credentials::ROOT, inode.shard(), &request) {
            Answer::Attributes(attributes) => Ok(attributes),
            Answer::Refused(errno) => Err(errno),
            other => panic!("stat: {other:?}"),
        }
    }

    /// As `shard_of`, for a directory whose layout never changes; sends no request.
    pub(crate) fn shard_of_name(&self, parent: Inode, name: &[u8]) -> ShardIndex {
        let seat = &self.seats[self.owner(parent.shard())];
        let parent = seat.service.attributes_of(parent).expect("the parent is there");
        placement::locate::entry_shard(&parent, NameHash::of(parent.inode, name))
    }

    /// The shard of an entry, as a client computes it.
    pub(crate) fn shard_of(&mut self, parent: Inode, name: &[u8]) -> ShardIndex {
        let parent = self.stat(parent).expect("the parent is there");
        placement::locate::entry_shard(&parent, NameHash::of(parent.inode, name))
    }
}

/// Operations as a client sends them, root unless `as_` is used; ENOENT etc. as errors.
pub(crate) struct Client<'w> {
    pub(crate) world: &'w mut World,
    pub(crate) caller: Credentials,
}

pub(crate) type Outcome = Result<Attributes, Errno>;

impl World {
    pub(crate) fn root(&mut self) -> Client<'_> {
        Client { world: self, caller: Credentials::ROOT }
    }
    pub(crate) fn user(&mut self, uid: u32, gid: u32) -> Client<'_> {
        Client { world: self, caller: Credentials::of(uid, gid) }
    }

    /// A caller that a kernel has checked.
    pub(crate) fn checked(&mut self, uid: u32, gid: u32) -> Client<'_> {
        Client { world: self, caller: Credentials::checked(uid, gid) }
    }
}

pub(crate) const NOTHING: Attributes = Attributes {
    inode: Inode::NONE,
    parent: Inode::NONE,
    mode: 0,
    uid: 0,
    gid: 0,
    links: 0,
    size: 0,
    accessed: 0,
    modified: 0,
    changed: 0,
    born: 0,
    device: 0,
    project: 0,
    layout: Layout {
        spread: 0,
        pool: 0,
        placement: 0,
        copies: 0,
        stripe_log2: 0,
        flags: 0,
        place: 0,
    },
    extras: 0,
};

impl Client<'_> {
    fn result(answer: Answer) -> Outcome {
        match answer {
            Answer::Done => Ok(NOTHING),
            Answer::Refused(errno) => Err(errno),
            other => Ok(other.attributes()),
        }
    }
    pub(crate) fn entry(&mut self, parent: Inode, name: &[u8], request: &Request<'_>) -> Outcome {
        let shard = self.world.shard_of(parent, name);
        Client::result(self.world.call(self.caller, shard, request))
    }
    pub(crate) fn inode(&mut self, inode: Inode, request: &Request<'_>) -> Outcome {
        Client::result(self.world.call(self.caller, inode.shard(), request))
    }
    pub(crate) fn make(&mut self, parent: Inode, name: &[u8], mode: u32) -> Outcome {
        self.make_flags(parent, name, mode, wire::request::create::EXCLUSIVE)
    }
    pub(crate) fn make_flags(
        &mut self,
        parent: Inode,
        name: &[u8],
        mode: u32,
        flags: u32,
    ) -> Outcome {
        let mut layout = self.world.stat(parent)?.layout;
        layout.flags = wire::attributes::flag::INLINE;
        let target: &[u8] = if mode & mode::TYPE == mode::SYMLINK { b"target" } else { b"" };
        let device = 0;
        let request = Request::Create { parent, name, mode, device, flags, layout, target };
        self.entry(parent, name, &request)
    }
    pub(crate) fn file(&mut self, parent: Inode, name: &[u8]) -> Outcome {
        self.make(parent, name, mode::REGULAR | 0o644)
    }
    pub(crate) fn directory(&mut self, parent: Inode, name: &[u8]) -> Outcome {
        self.make(parent, name, mode::DIRECTORY | 0o755)
    }
    pub(crate) fn wide(&mut self, parent: Inode, name: &[u8]) -> Outcome {
        let layout = Layout { spread: spread::WIDE, ..Layout::default() };
        let (mode, flags) = (mode::DIRECTORY | 0o755, 1);
        let request = Request::Create { parent, name, mode, device: 0, flags, layout, target: b"" };
        self.entry(parent, name, &request)
    }
    pub(crate) fn look(&mut self, parent: Inode, name: &[u8]) -> Outcome {
        let shard = self.world.shard_of(parent, name);
        match self.world.call(self.caller, shard, &Request::Lookup { parent, name }) {
            Answer::Entry(inode, _) => self.world.stat(inode),
            answer => Client::result(answer),
        }
    }
    pub(crate) fn unlink(&mut self, parent: Inode, name: &[u8]) -> Outcome {
        self.entry(parent, name, &Request::Unlink { parent, name })
    }
    pub(crate) fn rmdir(&mut self, parent: Inode, name: &[u8]) -> Outcome {
        self.entry(parent, name, &Request::RemoveDirectory { parent, name })
    }
    pub(crate) fn link(&mut self, inode: Inode, parent: Inode, name: &[u8]) -> Outcome {
        self.entry(parent, name, &Request::Link { inode, parent, name })
    }
    pub(crate) fn rename(
        &mut self,
        old: (Inode, &[u8]),
        new: (Inode, &[u8]),
        flags: u32,
    ) -> Outcome {
        let (parent, name) = old;
        let (new_parent, new_name) = new;
        let request = Request::Rename { parent, name, new_parent, new_name, flags };
        self.entry(parent, name, &request)
    }
    pub(crate) fn set(&mut self, inode: Inode, mask: u32, change: Attributes) -> Outcome {
        let Attributes { mode, uid, gid, size, accessed, modified, .. } = change;
        let (accessed, modified) = (accessed.cast_unsigned(), modified.cast_unsigned());
        let request =
            Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
        self.inode(inode, &request)
    }
    pub(crate) fn chmod(&mut self, inode: Inode, mode: u32) -> Outcome {
        self.set(inode, wire::request::set::MODE, Attributes { mode, ..NOTHING })
    }
    pub(crate) fn truncate(&mut self, inode: Inode, size: u64) -> Outcome {
        self.set(inode, wire::request::set::SIZE, Attributes { size, ..NOTHING })
    }
    /// All names of a directory, in order of hash.
    pub(crate) fn list(&mut self, directory: Inode) -> Vec<Vec<u8>> {
        let attributes = self.world.stat(directory).expect("the directory is there");
        let mut names = vec![];
        // By service, the next shard with entries.
        let mut nexts: BTreeMap<usize, u16> = BTreeMap::new();
        for part in placement::locate::parts(&attributes, 0) {
            let Part { shard, mut after, last } = part;
            let at = self.world.owner(shard);
            while part.is_at_home() || nexts.get(&at).is_none_or(|next| shard.0 >= *next) {
                let request = Request::ReadDirectory { directory, after, last, bytes: 300 };
                match self.world.call(self.caller, shard, &request) {
                    Answer::Entries(more, entries, next) => {
                        after = entries.last().map_or(after, |entry| entry.0);
                        names.extend(entries.into_iter().map(|entry| entry.3));
                        if !more {
                            nexts.insert(at, next);
                            break;
                        }
                    }
                    other => panic!("list: {other:?}"),
                }
            }
        }
        names
    }
}

/// The whole state of a service as one record.
pub(crate) fn dump(service: &Service) -> Vec<u8> {
    let mut out = vec![];
    let more = service.snapshot_slice(&mut SnapshotCursor::default(), usize::MAX, &mut out);
    assert!(!more, "one slice holds all");
    out
}
