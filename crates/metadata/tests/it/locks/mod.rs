//! File locks over several services: those of processes, of open files and of `flock`, taken by
//! threads of processes on several hosts, with interrupted waits, killed processes, lost,
//! duplicated and reordered messages, and services that are killed at any effect of any step and
//! return later. After every step: no two owners hold conflicting locks, no owner holds a lock that
//! it did not request, no lock is lost, no request overtakes an earlier one, each refused wait was
//! in a deadlock, and no deadlock stays. In the end no request waits. A failure prints its seed.

mod cases;
mod checks;
use std::collections::{BTreeMap, BTreeSet};

use crate::sim::faults::Faults;
use crate::sim::simulation::LOCKS;
use crate::sim::{Answer, Random, Sent, World};
use metadata::{Input, LockSeen};
use wire::errno::Errno;
use wire::request::lock::{FLOCK, READ, UNLOCK, WAIT, WRITE};
use wire::{Credentials, Inode, Request, ShardIndex};

const FILES: usize = 4;
const PROCESSES: u64 = 6;
/// Threads of a process lock disjoint bytes of each file.
const THREADS: u64 = 2;
const REGION: u64 = 8;
/// How long a deadlock may stay: many times the interval of reports, as some are lost or late.
const CYCLE_NANOS: i64 = 12_000_000_000;
/// How long a later request queues behind an earlier one.
const ORDER_NANOS: i64 = 1_000_000_000;

type ThreadId = (u64, u64);
type Identity = (u64, u64);

/// Owner of locks: the process, its open file by ranges, or its open file by `flock`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Space {
    Process,
    OpenFile,
    Flock,
}

#[derive(Clone, Copy, Debug)]
struct LockSpec {
    file: usize,
    space: Space,
    kind: u8,
    waits: bool,
    range: (u64, u64),
}

/// State of a thread's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It requested something.
    Requested,
    /// It was interrupted, and cancels its request.
    Withdraws,
    /// It checks whether it had been granted already.
    Checks,
    /// It closed the file.
    Closes,
}

struct Going {
    stage: Stage,
    spec: LockSpec,
    /// On its way, or to be repeated.
    sent: Sent,
    identity: Identity,
    ticket: Option<u64>,
    /// The process closed the file meanwhile: it may have the lock or not.
    is_doubtful: bool,
    /// Write locks that it asks to convert to read locks.
    lowered: Vec<(usize, Space, u64)>,
}

#[derive(Default)]
struct Process {
    generation: u64,
    slots: BTreeMap<u64, u64>,
    threads: BTreeMap<u64, Going>,
    /// Locks that it believes to hold: the kind of each byte.
    has: BTreeMap<(usize, Space, u64), u8>,
}

/// Observations of a waiting request.
struct WaitState {
    first: i64,
    /// Since when no held lock blocks it.
    free: Option<i64>,
    /// Requests that were waiting when it arrived.
    before: BTreeSet<Identity>,
    in_cycle: Option<i64>,
    was_in_cycle: bool,
}

struct Game {
    world: World,
    random: Random,
    files: Vec<Inode>,
    processes: BTreeMap<u64, Process>,
    /// Requests that are no longer awaited, still on their way.
    strays: Vec<Sent>,
    /// Reports of hosts about dead processes.
    releases: Vec<(usize, u64)>,
    seen: BTreeMap<Identity, WaitState>,
    faults: Faults,
    sequence: u64,
    /// Locks of the services after the last step.
    last: Vec<Option<Vec<LockSeen>>>,
    counts: BTreeMap<&'static str, u64>,
    longest: i64,
    ends: bool,
}

fn bytes(range: (u64, u64)) -> impl Iterator<Item = u64> {
    range.0..=range.1.min(THREADS * REGION)
}

impl Game {
    fn new(seed: u64, daemons: u16) -> Game {
        let mut world = World::daemons(daemons);
        let files = (0..FILES as u8).map(|n| {
            let directory =
                world.root().directory(Inode::ROOT, &[b'd', b'0' + n]).expect("made").inode;
            world.root().file(directory, b"f").expect("made").inode
        });
        let files: Vec<Inode> = files.collect();
        let owners: BTreeSet<usize> = files.iter().map(|file| world.owner(file.shard())).collect();
        assert!(owners.len() > 1, "all files are one service's");
        world.settle();
        Game {
            world,
            random: Random(seed),
            files,
            processes: (0..PROCESSES).map(|number| (number, Process::default())).collect(),
            strays: vec![],
            releases: vec![],
            seen: BTreeMap::new(),
            faults: Faults::new(8, 250, &[0, 5_000_000, 300_000_000]),
            sequence: 0,
            last: vec![],
            counts: BTreeMap::new(),
            longest: 0,
            ends: false,
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn host(&self, process: u64) -> u16 {
        (process % self.world.seats.len() as u64) as u16
    }

    fn owner(&self, process: u64, space: Space) -> u64 {
        let generation = self.processes[&process].generation;
        let kind = if space == Space::Process { 0 } else { 1 << 47 };
        u64::from(self.host(process)) << 48 | kind | process << 29 | generation
    }

    /// Client ids of a thread: for its requests, and for cancellations beside them. It uses another
    /// one while an abandoned request is on its way.
    fn client_id(&self, (process, thread): ThreadId, beside: u64) -> u64 {
        let Process { generation, slots, .. } = &self.processes[&process];
        let slot = slots.get(&thread).copied().unwrap_or(0);
        generation << 24 | process << 20 | thread << 19 | beside << 18 | slot
    }

    fn prepare(&mut self, id: ThreadId, beside: u64, file: usize, request: &Request<'_>) -> Sent {
        self.sequence += 1;
        let shard = self.files[file].shard();
        let mut sent = self.world.prepare(Credentials::ROOT, shard, request);
        sent.header.client_id = self.client_id(id, beside);
        sent.header.sequence = self.sequence;
        sent.header.host = self.host(id.0);
        sent
    }

    fn request(&self, process: u64, spec: &LockSpec, waits: bool) -> Request<'static> {
        let owner = self.owner(process, spec.space);
        let party = if spec.space == Space::OpenFile { 0 } else { owner };
        let flags = if spec.space == Space::Flock { FLOCK } else { 0 };
        Request::Lock {
            inode: self.files[spec.file],
            owner,
            party,
            pid: process as u32,
            kind: spec.kind,
            flags: flags | if waits { WAIT } else { 0 },
            start: spec.range.0,
            end: spec.range.1,
        }
    }

    /// The next request of a thread.
    fn random_spec(&mut self, (process, thread): ThreadId) -> LockSpec {
        let file = self.random.uniform(FILES);
        let last = THREADS - 1;
        // A process uses one `flock` lock of a file: that of its first thread.
        let space = match self.random.uniform(8) {
            0 => Space::OpenFile,
            1 if thread == 0 => Space::Flock,
            _ => Space::Process,
        };
        let first = thread * REGION + self.random.uniform(REGION as usize) as u64;
        let end = (first + self.random.uniform(6) as u64).min((thread + 1) * REGION - 1);
        let end = if thread == last && self.random.chance(20) { u64::MAX } else { end };
        let (all, waits) = ((0, u64::MAX), self.random.chance(70));
        let range = if space == Space::Flock { all } else { (first, end) };
        let kind = match self.random.uniform(10) {
            0..=2 => READ,
            3..=6 => WRITE,
            _ => UNLOCK,
        };
        let has_any =
            self.processes[&process].has.keys().any(|&(_, _, byte)| byte / REGION == thread);
        if self.ends || (kind == UNLOCK && has_any) {
            return self.some_unlock((process, thread));
        }
        let kind = if has_any { kind } else { kind.max(READ) };
        LockSpec { file, space, kind, waits: waits && kind != UNLOCK, range }
    }

    /// Releases a lock that it has, or nothing.
    fn some_unlock(&mut self, (process, thread): ThreadId) -> LockSpec {
        let has = self.processes[&process].has.keys();
        let own = has.filter(|&&(_, space, byte)| {
            if space == Space::Flock {
                thread == 0
            } else {
                (byte / REGION).min(THREADS - 1) == thread
            }
        });
        let own: Vec<_> = own.copied().collect();
        let (file, space) = match own.len() {
            0 => (0, Space::Process),
            count => {
                let (file, space, _) = own[self.random.uniform(count)];
                (file, space)
            }
        };
        let end = if thread == THREADS - 1 { u64::MAX } else { (thread + 1) * REGION - 1 };
        let range = if space == Space::Flock { (0, u64::MAX) } else { (thread * REGION, end) };
        LockSpec { file, space, kind: UNLOCK, waits: false, range }
    }

    fn begin(&mut self) {
        let Some(id) = self.some_thread(|going| going.is_none()) else { return };
        let spec = self.random_spec(id);
        let is_closing = self.processes[&id.0]
            .threads
            .values()
            .any(|going| going.stage == Stage::Closes && going.spec.file == spec.file);
        if is_closing {
            return;
        }
        if !self.ends && self.random.chance(4) && self.may_close(id.0, spec.file) {
            return self.close(id, spec);
        }
        self.ask(id, spec, Stage::Requested, spec.waits);
    }

    /// One of the threads that `is_it` accepts by their pending request.
    fn some_thread(&mut self, is_it: impl Fn(Option<&Going>) -> bool) -> Option<ThreadId> {
        let all =
            (0..PROCESSES).flat_map(|number| (0..THREADS).map(move |thread| (number, thread)));
        let such = all.filter(|(number, thread)| is_it(self.processes[number].threads.get(thread)));
        let such: Vec<ThreadId> = such.collect();
        (!such.is_empty()).then(|| such[self.random.uniform(such.len())])
    }

    fn ask(&mut self, id: ThreadId, spec: LockSpec, stage: Stage, waits: bool) {
        let request = self.request(id.0, &spec, waits);
        let sent = self.prepare(id, 0, spec.file, &request);
        let identity = (sent.header.client_id, sent.header.sequence);
        let process = self.processes.get_mut(&id.0).expect("a process");
        if spec.kind == UNLOCK {
            for byte in bytes(spec.range) {
                process.has.remove(&(spec.file, spec.space, byte));
            }
        }
        if spec.space == Space::Flock && waits {
            // A request that waits for another kind releases the old lock.
            process.has.retain(|&(file, space, _), _| (file, space) != (spec.file, spec.space));
        }
        let mut lowered = vec![];
        for byte in bytes(spec.range).filter(|_| spec.kind == READ) {
            let at = (spec.file, spec.space, byte);
            if let Some(has) = process.has.get_mut(&at).filter(|has| **has == WRITE) {
                *has = READ;
                lowered.push(at);
            }
        }
        let (ticket, is_doubtful) = (None, false);
        let going = Going { stage, spec, sent, identity, ticket, is_doubtful, lowered };
        process.threads.insert(id.1, going);
    }

    /// A file may be closed while other threads of the process wait for locks of it, but not while
    /// they change held locks: the result would be unknown.
    fn may_close(&self, process: u64, file: usize) -> bool {
        self.processes[&process].threads.values().all(|going| {
            let waits = going.stage == Stage::Requested && going.spec.waits;
            going.spec.file != file || (waits && going.ticket.is_some())
        })
    }

    fn close(&mut self, id: ThreadId, spec: LockSpec) {
        let spec = LockSpec { space: Space::Process, ..spec };
        let owner = self.owner(id.0, Space::Process);
        let request = Request::Release { inode: self.files[spec.file], owner };
        let sent = self.prepare(id, 0, spec.file, &request);
        let process = self.processes.get_mut(&id.0).expect("a process");
        process.has.retain(|&(file, space, _), _| file != spec.file || space != Space::Process);
        let of_file =
            |going: &&mut Going| going.spec.file == spec.file && going.spec.space == Space::Process;
        process.threads.values_mut().filter(of_file).for_each(|going| going.is_doubtful = true);
        let (stage, identity) = (Stage::Closes, (sent.header.client_id, sent.header.sequence));
        let (ticket, is_doubtful, lowered) = (None, false, vec![]);
        let going = Going { stage, spec, sent, identity, ticket, is_doubtful, lowered };
        process.threads.insert(id.1, going);
        self.count("closed");
    }

    /// A waiting thread is interrupted, perhaps before its request arrived anywhere.
    fn interrupt(&mut self) {
        let waits = |going: Option<&Going>| {
            going.is_some_and(|going| going.stage == Stage::Requested && going.spec.waits)
        };
        let Some(id) = self.some_thread(waits) else { return };
        let going = &self.processes[&id.0].threads[&id.1];
        let (spec, (client_id, sequence)) = (going.spec, going.identity);
        let inode = self.files[spec.file];
        let request = Request::CancelLock { inode, client_id, sequence };
        let sent = self.prepare(id, 1, spec.file, &request);
        let process = self.processes.get_mut(&id.0).expect("a process");
        let before = process.threads.remove(&id.1).expect("it waits");
        let identity = (sent.header.client_id, sent.header.sequence);
        let (is_doubtful, lowered) = (before.is_doubtful, before.lowered);
        let (stage, ticket) = (Stage::Withdraws, None);
        let going = Going { stage, spec, sent, identity, ticket, is_doubtful, lowered };
        process.threads.insert(id.1, going);
        if before.ticket.is_none() {
            self.strays.push(before.sent);
            *process.slots.entry(id.1).or_default() += 1;
        }
        self.count("interrupted");
    }

    /// A process is killed. Its host reports that, and repeats the release of its locks until it
    /// arrives.
    fn kill_process(&mut self) {
        let number = self.random.next() % PROCESSES;
        let owners = [Space::Process, Space::OpenFile].map(|space| self.owner(number, space));
        let first = self.client_id((number, 0), 0);
        let process = self.processes.get_mut(&number).expect("a process");
        let generation = process.generation + 1;
        *process = Process { generation, ..Process::default() };
        let first = first & !((1 << 20) - 1);
        self.strays.retain(|sent| sent.header.client_id & !((1 << 20) - 1) != first);
        for at in 0..self.world.seats.len() {
            if self.random.chance(70) {
                self.world.step(at, Input::ClientGone { first, count: 1 << 20 });
            }
        }
        for file in 0..FILES {
            self.releases.extend(owners.map(|owner| (file, owner)));
        }
        self.count("processes killed");
    }

    fn release(&mut self) {
        if self.releases.is_empty() {
            return;
        }
        let place = self.random.uniform(self.releases.len());
        let (file, owner) = self.releases[place];
        let inode = self.files[file];
        if self.world.dead.contains(&self.world.owner(inode.shard())) {
            return;
        }
        self.releases.swap_remove(place);
        let request = Request::Release { inode, owner };
        let mut sent = self.world.prepare(Credentials::ROOT, inode.shard(), &request);
        sent.header.client_id = u64::MAX;
        sent.header.sequence = 0;
        self.faults.maybe_cut(&mut self.world, &mut self.random);
        let (ticket, cut) = (self.world.send_again(&sent), self.world.dead.len());
        if self.world.answer(ticket).is_none() && cut > 0 {
            self.releases.push((file, owner));
        }
    }

    /// A request arrives.
    fn send(&mut self) {
        if !self.strays.is_empty() && self.random.chance(20) {
            let place = self.random.uniform(self.strays.len());
            let sent = self.strays.swap_remove(place);
            if !self.world.dead.contains(&self.world.owner(ShardIndex(sent.header.shard))) {
                self.world.send_again(&sent);
            }
            return;
        }
        let is_unsent = |going: Option<&Going>| going.is_some_and(|going| going.ticket.is_none());
        let Some((number, thread)) = self.some_thread(is_unsent) else { return };
        let world = &mut self.world;
        let process = self.processes.get_mut(&number).expect("a process");
        let Some(going) = process.threads.get_mut(&thread) else { return };
        let at = world.owner(ShardIndex(going.sent.header.shard));
        if going.ticket.is_some() || world.dead.contains(&at) {
            return;
        }
        self.faults.maybe_cut(world, &mut self.random);
        going.ticket = Some(world.send_again(&going.sent));
    }

    fn take_answers(&mut self) {
        let killed = self.faults.note_killed(&self.world, &mut self.random);
        if killed > 0 {
            // Requests that waited there wait anew, in any order.
            self.seen.values_mut().for_each(|seen| {
                seen.before.clear();
                seen.free = None;
            });
            *self.counts.entry("killed").or_default() += killed;
        }
        let all = self.processes.iter().flat_map(|(&number, process)| {
            process.threads.iter().map(move |(&thread, going)| ((number, thread), going))
        });
        let answered: Vec<(ThreadId, Answer)> =
            all.filter_map(|(id, going)| Some((id, self.world.answer(going.ticket?)?))).collect();
        for (id, answer) in answered {
            let process = self.processes.get_mut(&id.0).expect("a process");
            let going = process.threads.get_mut(&id.1).expect("it is under way");
            if answer == Answer::Busy || self.random.chance(2) {
                // Or the answer is lost with the daemon that should forward it: the request is
                // repeated.
                going.ticket = None;
                self.seen.remove(&going.identity);
                for seen in self.seen.values_mut() {
                    seen.before.remove(&going.identity);
                }
                continue;
            }
            let going = process.threads.remove(&id.1).expect("it is under way");
            self.answered(id, going, &answer);
        }
        let dead = self.world.dead.clone();
        for process in self.processes.values_mut() {
            for going in process.threads.values_mut() {
                let shard = ShardIndex(going.sent.header.shard);
                let owner = self.world.seats.iter().position(|seat| seat.config.owns(shard));
                if owner.is_some_and(|owner| dead.contains(&owner)) {
                    going.ticket = None;
                }
            }
        }
    }

    fn answered(&mut self, id: ThreadId, going: Going, answer: &Answer) {
        let LockSpec { file, space, kind, range, .. } = going.spec;
        match (going.stage, answer) {
            (Stage::Requested | Stage::Checks, Answer::Done) if kind != UNLOCK => {
                if going.is_doubtful {
                    let back = LockSpec { kind: UNLOCK, waits: false, ..going.spec };
                    return self.ask(id, back, Stage::Requested, false);
                }
                if going.spec.waits && going.stage == Stage::Requested {
                    self.check_newcomer(id.0, &going);
                }
                self.count(if going.spec.waits { "granted" } else { "taken" });
                let process = self.processes.get_mut(&id.0).expect("a process");
                for byte in bytes(range) {
                    process.has.insert((file, space, byte), kind);
                }
                self.assert_exclusive(id.0, file, space);
            }
            (Stage::Requested, Answer::Refused(Errno::EDEADLK)) => {
                let was = self.seen.get(&going.identity).is_some_and(|seen| seen.was_in_cycle);
                assert!(was || self.would_close_cycle(id.0, &going.spec), "{id:?}: no cycle");
                self.count(if was { "remote deadlocks" } else { "deadlocks" });
            }
            (Stage::Withdraws, Answer::Done) => {
                let is_doubtful = going.is_doubtful;
                self.ask(id, going.spec, Stage::Checks, false);
                let process = self.processes.get_mut(&id.0).expect("a process");
                let checks = process.threads.get_mut(&id.1).expect("it asks");
                checks.is_doubtful = is_doubtful;
                checks.lowered.extend(&going.lowered);
                return;
            }
            (Stage::Requested, Answer::Refused(Errno::EAGAIN)) if !going.spec.waits => {}
            (Stage::Checks, Answer::Refused(Errno::EAGAIN)) => self.count("gave up"),
            (Stage::Requested, Answer::Done) | (Stage::Closes, Answer::Done) => {}
            other => panic!("{id:?} {:?}: {other:?}", going.spec),
        }
        let process = self.processes.get_mut(&id.0).expect("a process");
        if let Answer::Refused(_) = answer
            && !going.is_doubtful
        {
            process.has.extend(going.lowered.iter().map(|at| (*at, WRITE)));
        }
        // `flock` releases the old lock before it waits for another kind, and may have none then.
        if space == Space::Flock && *answer != Answer::Done {
            let process = self.processes.get_mut(&id.0).expect("a process");
            process.has.retain(|&(other, of, _), _| (other, of) != (file, space));
            let back = LockSpec { kind: UNLOCK, waits: false, ..going.spec };
            self.ask(id, back, Stage::Requested, false);
        }
    }

    fn pass(&mut self, nanos: i64) {
        self.faults.pass(&mut self.world, &mut self.random, nanos);
    }

    fn turn(&mut self) {
        let (before, steps) = (core::mem::take(&mut self.last), self.world.steps);
        match self.random.uniform(1000) {
            0..=249 => self.begin(),
            250..=549 => self.send(),
            550..=749 => self.faults.deliver(&mut self.world, &mut self.random),
            750..=754 => self.interrupt(),
            760 if !self.ends => self.kill_process(),
            763..=799 => self.release(),
            800..=809 => self.pass(60_000_000),
            _ => {
                let nanos = self.random.uniform(12_000_000) as i64;
                self.pass(nanos);
            }
        }
        self.world.cut = None;
        if self.world.steps == steps {
            self.last = before;
            return;
        }
        let truth = self.truth();
        self.check_order(&before, &truth);
        self.check_cycles(&truth);
        self.last = before;
        self.take_answers();
        self.check_held(&truth);
        self.last = truth;
        if self.seen.len() > 4000 {
            let now = self.world.now;
            self.seen.retain(|_, seen| now - seen.first < 100_000_000_000);
        }
    }

    fn play(&mut self, rounds: u32) {
        for _ in 0..rounds {
            self.turn();
        }
        self.ends = true;
        let until = self.world.now + 60_000_000_000;
        while !self.is_quiet() {
            assert!(self.world.now < until, "somebody waits for ever");
            self.turn();
        }
        self.faults.end(&mut self.world);
        for seat in &self.world.seats {
            assert_eq!(seat.service.deadline(), None, "nothing is under way");
        }
    }

    fn is_quiet(&self) -> bool {
        let all_idle = self
            .processes
            .values()
            .all(|process| process.threads.is_empty() && process.has.is_empty());
        let nothing_held =
            self.truth().iter().all(|locks| locks.as_ref().is_some_and(Vec::is_empty));
        all_idle && nothing_held && self.releases.is_empty() && self.strays.is_empty()
    }
}

#[test]
fn locks_are_exclusive_fair_and_every_wait_ends() {
    let mut longest = 0;
    let mut counts = BTreeMap::<&str, u64>::new();
    let seeds = LOCKS.run(|seed| {
        let mut game = Game::new(seed, 3 + seed as u16 % 3);
        game.play(50_000);
        longest = longest.max(game.longest);
        game.counts.iter().for_each(|(what, count)| *counts.entry(what).or_default() += count);
        game.world.steps
    });
    println!("{counts:?}, longest cycle {} ms", longest / 1_000_000);
    for what in [
        "granted",
        "deadlocks",
        "remote deadlocks",
        "gave up",
        "closed",
        "killed",
        "processes killed",
    ] {
        let count = counts.get(what).copied().unwrap_or(0);
        assert!(count >= 5 * seeds, "hardly anything is {what}: {count}");
    }
}
