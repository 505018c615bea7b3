//! File locks over several services: those of processes, of open files and of `flock`, taken by threads
//! of
//! processes on several hosts, with waits that are interrupted, processes that are killed, words that are
//! lost, doubled and overtaken, and services that are killed at any effect of any step and come back
//! later. After every step: no two hold what conflicts, nobody holds what he did not ask for, nobody lost
//! what he holds, nobody was passed by who came later, who is refused for a circle was in one, and no
//! circle
//! stays. In the end nobody waits. A failure prints its seed.

mod cases;
mod checks;
#[path = "../kit/mod.rs"]
mod kit;

use std::collections::{BTreeMap, BTreeSet};

use kit::faults::Faults;
use kit::simulation::LOCKS;
use kit::{Answer, Random, Sent, World};
use metadata::{Input, LockSeen};
use wire::errno::Errno;
use wire::request::lock::{FLOCK, READ, UNLOCK, WAIT, WRITE};
use wire::{Credentials, Inode, Request, ShardIndex};

const FILES: usize = 4;
const PROCESSES: u64 = 6;
/// Threads of a process lock bytes apart from each other's, in each file.
const THREADS: u64 = 2;
const REGION: u64 = 8;
/// How long a circle may stay: many times what lies between two tellings, as some are lost or late.
const CIRCLE_NANOS: i64 = 12_000_000_000;
/// How long who came later waits behind who came before.
const ORDER_NANOS: i64 = 1_000_000_000;

type ThreadId = (u64, u64);
type Identity = (u64, u64);

/// Whose locks: the process's, its open file's by ranges, or the same by `flock`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Space {
    Process,
    OpenFile,
    Flock,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    file: usize,
    space: Space,
    kind: u8,
    waits: bool,
    range: (u64, u64),
}

/// What a thread is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It asked for something.
    Asked,
    /// It was interrupted, and withdraws what it waits for.
    Withdraws,
    /// It asks whether it had it already.
    Checks,
    /// It closed the file.
    Closes,
}

struct Going {
    stage: Stage,
    wanted: Wanted,
    /// On its way, or to be sent again.
    sent: Sent,
    identity: Identity,
    ticket: Option<u64>,
    /// The process closed the file meanwhile: it may have it or not.
    is_doubtful: bool,
    /// What it had to write with, and asks to have to read with alone.
    lowered: Vec<(usize, Space, u64)>,
}

#[derive(Default)]
struct Process {
    generation: u64,
    slots: BTreeMap<u64, u64>,
    threads: BTreeMap<u64, Going>,
    /// What it believes that it has: of each byte the kind.
    has: BTreeMap<(usize, Space, u64), u8>,
}

/// What was seen of a request that waits.
struct Seen {
    first: i64,
    /// Since when nothing that is held is in its way.
    free: Option<i64>,
    /// Places of those who waited for longer when it came.
    before: BTreeSet<Identity>,
    in_circle: Option<i64>,
    was_in_circle: bool,
}

struct Game {
    world: World,
    random: Random,
    files: Vec<Inode>,
    processes: BTreeMap<u64, Process>,
    /// Requests that nobody waits for any more, still on their way.
    strays: Vec<Sent>,
    /// Of dead processes: what their host says.
    releases: Vec<(usize, u64)>,
    seen: BTreeMap<Identity, Seen>,
    faults: Faults,
    sequence: u64,
    /// What services had after the last step.
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

    /// Origins of a thread: of what it asks for, and of what it sends beside. It asks by another while
    /// something that it gave up is on its way.
    fn origin(&self, (process, thread): ThreadId, beside: u64) -> u64 {
        let Process { generation, slots, .. } = &self.processes[&process];
        let slot = slots.get(&thread).copied().unwrap_or(0);
        generation << 24 | process << 20 | thread << 19 | beside << 18 | slot
    }

    fn prepare(&mut self, id: ThreadId, beside: u64, file: usize, request: &Request<'_>) -> Sent {
        self.sequence += 1;
        let shard = self.files[file].shard();
        let mut sent = self.world.prepare(Credentials::ROOT, shard, request);
        sent.header.origin = self.origin(id, beside);
        sent.header.sequence = self.sequence;
        sent.header.host = self.host(id.0);
        sent
    }

    fn request(&self, process: u64, wanted: &Wanted, waits: bool) -> Request<'static> {
        let owner = self.owner(process, wanted.space);
        let party = if wanted.space == Space::OpenFile { 0 } else { owner };
        let flags = if wanted.space == Space::Flock { FLOCK } else { 0 };
        Request::Lock {
            inode: self.files[wanted.file],
            owner,
            party,
            pid: process as u32,
            kind: wanted.kind,
            flags: flags | if waits { WAIT } else { 0 },
            start: wanted.range.0,
            end: wanted.range.1,
        }
    }

    /// What a thread may want next.
    fn wanted(&mut self, (process, thread): ThreadId) -> Wanted {
        let file = self.random.below(FILES);
        let last = THREADS - 1;
        // Of `flock` a process knows one lock of a file: that of its first thread.
        let space = match self.random.below(8) {
            0 => Space::OpenFile,
            1 if thread == 0 => Space::Flock,
            _ => Space::Process,
        };
        let first = thread * REGION + self.random.below(REGION as usize) as u64;
        let end = (first + self.random.below(6) as u64).min((thread + 1) * REGION - 1);
        let end = if thread == last && self.random.chance(20) { u64::MAX } else { end };
        let (all, waits) = ((0, u64::MAX), self.random.chance(70));
        let range = if space == Space::Flock { all } else { (first, end) };
        let kind = match self.random.below(10) {
            0..=2 => READ,
            3..=6 => WRITE,
            _ => UNLOCK,
        };
        let has_any =
            self.processes[&process].has.keys().any(|&(_, _, byte)| byte / REGION == thread);
        if self.ends || (kind == UNLOCK && has_any) {
            return self.wanted_back((process, thread));
        }
        let kind = if has_any { kind } else { kind.max(READ) };
        Wanted { file, space, kind, waits: waits && kind != UNLOCK, range }
    }

    /// Gives something back that it has, or nothing.
    fn wanted_back(&mut self, (process, thread): ThreadId) -> Wanted {
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
                let (file, space, _) = own[self.random.below(count)];
                (file, space)
            }
        };
        let end = if thread == THREADS - 1 { u64::MAX } else { (thread + 1) * REGION - 1 };
        let range = if space == Space::Flock { (0, u64::MAX) } else { (thread * REGION, end) };
        Wanted { file, space, kind: UNLOCK, waits: false, range }
    }

    fn begin(&mut self) {
        let Some(id) = self.some_thread(|going| going.is_none()) else { return };
        let wanted = self.wanted(id);
        let is_closing = self.processes[&id.0]
            .threads
            .values()
            .any(|going| going.stage == Stage::Closes && going.wanted.file == wanted.file);
        if is_closing {
            return;
        }
        if !self.ends && self.random.chance(4) && self.may_close(id.0, wanted.file) {
            return self.close(id, wanted);
        }
        self.ask(id, wanted, Stage::Asked, wanted.waits);
    }

    /// One of the threads of which it is so, by what they are at.
    fn some_thread(&mut self, is_it: impl Fn(Option<&Going>) -> bool) -> Option<ThreadId> {
        let all =
            (0..PROCESSES).flat_map(|number| (0..THREADS).map(move |thread| (number, thread)));
        let such = all.filter(|(number, thread)| is_it(self.processes[number].threads.get(thread)));
        let such: Vec<ThreadId> = such.collect();
        (!such.is_empty()).then(|| such[self.random.below(such.len())])
    }

    fn ask(&mut self, id: ThreadId, wanted: Wanted, stage: Stage, waits: bool) {
        let request = self.request(id.0, &wanted, waits);
        let sent = self.prepare(id, 0, wanted.file, &request);
        let identity = (sent.header.origin, sent.header.sequence);
        let process = self.processes.get_mut(&id.0).expect("a process");
        if wanted.kind == UNLOCK {
            for byte in bytes(wanted.range) {
                process.has.remove(&(wanted.file, wanted.space, byte));
            }
        }
        if wanted.space == Space::Flock && waits {
            // Who waits for another kind gives back what he has.
            process.has.retain(|&(file, space, _), _| (file, space) != (wanted.file, wanted.space));
        }
        let mut lowered = vec![];
        for byte in bytes(wanted.range).filter(|_| wanted.kind == READ) {
            let at = (wanted.file, wanted.space, byte);
            if let Some(has) = process.has.get_mut(&at).filter(|has| **has == WRITE) {
                *has = READ;
                lowered.push(at);
            }
        }
        let (ticket, is_doubtful) = (None, false);
        let going = Going { stage, wanted, sent, identity, ticket, is_doubtful, lowered };
        process.threads.insert(id.1, going);
    }

    /// A file may be closed while others of the process wait for locks of it, but are not about to
    /// change what they have: what came of that nobody would know.
    fn may_close(&self, process: u64, file: usize) -> bool {
        self.processes[&process].threads.values().all(|going| {
            let waits = going.stage == Stage::Asked && going.wanted.waits;
            going.wanted.file != file || (waits && going.ticket.is_some())
        })
    }

    fn close(&mut self, id: ThreadId, wanted: Wanted) {
        let wanted = Wanted { space: Space::Process, ..wanted };
        let owner = self.owner(id.0, Space::Process);
        let request = Request::Release { inode: self.files[wanted.file], owner };
        let sent = self.prepare(id, 0, wanted.file, &request);
        let process = self.processes.get_mut(&id.0).expect("a process");
        process.has.retain(|&(file, space, _), _| file != wanted.file || space != Space::Process);
        let of_file = |going: &&mut Going| {
            going.wanted.file == wanted.file && going.wanted.space == Space::Process
        };
        process.threads.values_mut().filter(of_file).for_each(|going| going.is_doubtful = true);
        let (stage, identity) = (Stage::Closes, (sent.header.origin, sent.header.sequence));
        let (ticket, is_doubtful, lowered) = (None, false, vec![]);
        let going = Going { stage, wanted, sent, identity, ticket, is_doubtful, lowered };
        process.threads.insert(id.1, going);
        self.count("closed");
    }

    /// A thread that waits is interrupted, perhaps before its request came anywhere.
    fn interrupt(&mut self) {
        let waits = |going: Option<&Going>| {
            going.is_some_and(|going| going.stage == Stage::Asked && going.wanted.waits)
        };
        let Some(id) = self.some_thread(waits) else { return };
        let going = &self.processes[&id.0].threads[&id.1];
        let (wanted, (origin, sequence)) = (going.wanted, going.identity);
        let inode = self.files[wanted.file];
        let request = Request::CancelLock { inode, origin, sequence };
        let sent = self.prepare(id, 1, wanted.file, &request);
        let process = self.processes.get_mut(&id.0).expect("a process");
        let before = process.threads.remove(&id.1).expect("it waits");
        let identity = (sent.header.origin, sent.header.sequence);
        let (is_doubtful, lowered) = (before.is_doubtful, before.lowered);
        let (stage, ticket) = (Stage::Withdraws, None);
        let going = Going { stage, wanted, sent, identity, ticket, is_doubtful, lowered };
        process.threads.insert(id.1, going);
        if before.ticket.is_none() {
            self.strays.push(before.sent);
            *process.slots.entry(id.1).or_default() += 1;
        }
        self.count("interrupted");
    }

    /// A process is killed. Its host says so, and again what it held until that has arrived.
    fn kill_process(&mut self) {
        let number = self.random.next() % PROCESSES;
        let owners = [Space::Process, Space::OpenFile].map(|space| self.owner(number, space));
        let first = self.origin((number, 0), 0);
        let process = self.processes.get_mut(&number).expect("a process");
        let generation = process.generation + 1;
        *process = Process { generation, ..Process::default() };
        let first = first & !((1 << 20) - 1);
        self.strays.retain(|sent| sent.header.origin & !((1 << 20) - 1) != first);
        for at in 0..self.world.seats.len() {
            if self.random.chance(70) {
                self.world.step(at, Input::OriginGone { first, count: 1 << 20 });
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
        let place = self.random.below(self.releases.len());
        let (file, owner) = self.releases[place];
        let inode = self.files[file];
        if self.world.dead.contains(&self.world.owner(inode.shard())) {
            return;
        }
        self.releases.swap_remove(place);
        let request = Request::Release { inode, owner };
        let mut sent = self.world.prepare(Credentials::ROOT, inode.shard(), &request);
        sent.header.origin = u64::MAX;
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
            let place = self.random.below(self.strays.len());
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
            // Who waited there waits anew, in whatever order.
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
                // Or the answer is lost, with the daemon that was to pass it on: it asks anew.
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
        let Wanted { file, space, kind, range, .. } = going.wanted;
        match (going.stage, answer) {
            (Stage::Asked | Stage::Checks, Answer::Done) if kind != UNLOCK => {
                if going.is_doubtful {
                    let back = Wanted { kind: UNLOCK, waits: false, ..going.wanted };
                    return self.ask(id, back, Stage::Asked, false);
                }
                if going.wanted.waits && going.stage == Stage::Asked {
                    self.check_newcomer(id.0, &going);
                }
                self.count(if going.wanted.waits { "granted" } else { "taken" });
                let process = self.processes.get_mut(&id.0).expect("a process");
                for byte in bytes(range) {
                    process.has.insert((file, space, byte), kind);
                }
                self.assert_alone(id.0, file, space);
            }
            (Stage::Asked, Answer::Refused(Errno::EDEADLK)) => {
                let was = self.seen.get(&going.identity).is_some_and(|seen| seen.was_in_circle);
                assert!(was || self.would_close_circle(id.0, &going.wanted), "{id:?}: no circle");
                self.count(if was { "far deadlocks" } else { "deadlocks" });
            }
            (Stage::Withdraws, Answer::Done) => {
                let is_doubtful = going.is_doubtful;
                self.ask(id, going.wanted, Stage::Checks, false);
                let process = self.processes.get_mut(&id.0).expect("a process");
                let checks = process.threads.get_mut(&id.1).expect("it asks");
                checks.is_doubtful = is_doubtful;
                checks.lowered.extend(&going.lowered);
                return;
            }
            (Stage::Asked, Answer::Refused(Errno::EAGAIN)) if !going.wanted.waits => {}
            (Stage::Checks, Answer::Refused(Errno::EAGAIN)) => self.count("gave up"),
            (Stage::Asked, Answer::Done) | (Stage::Closes, Answer::Done) => {}
            other => panic!("{id:?} {:?}: {other:?}", going.wanted),
        }
        let process = self.processes.get_mut(&id.0).expect("a process");
        if let Answer::Refused(_) = answer
            && !going.is_doubtful
        {
            process.has.extend(going.lowered.iter().map(|at| (*at, WRITE)));
        }
        // `flock` gives the old lock back before it waits for another kind, and may have none then.
        if space == Space::Flock && *answer != Answer::Done {
            let process = self.processes.get_mut(&id.0).expect("a process");
            process.has.retain(|&(other, of, _), _| (other, of) != (file, space));
            let back = Wanted { kind: UNLOCK, waits: false, ..going.wanted };
            self.ask(id, back, Stage::Asked, false);
        }
    }

    fn pass(&mut self, nanos: i64) {
        self.faults.pass(&mut self.world, &mut self.random, nanos);
    }

    fn turn(&mut self) {
        let (before, steps) = (core::mem::take(&mut self.last), self.world.steps);
        match self.random.below(1000) {
            0..=249 => self.begin(),
            250..=549 => self.send(),
            550..=749 => self.faults.deliver(&mut self.world, &mut self.random),
            750..=754 => self.interrupt(),
            760 if !self.ends => self.kill_process(),
            763..=799 => self.release(),
            800..=809 => self.pass(60_000_000),
            _ => {
                let nanos = self.random.below(12_000_000) as i64;
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
        self.check_circles(&truth);
        self.last = before;
        self.take_answers();
        self.check_beliefs(&truth);
        self.last = truth;
        if self.seen.len() > 4000 {
            let now = self.world.now;
            self.seen.retain(|_, seen| now - seen.first < 100_000_000_000);
        }
    }

    fn play(&mut self, turns: u32) {
        for _ in 0..turns {
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
    println!("{counts:?}, longest circle {} ms", longest / 1_000_000);
    for what in
        ["granted", "deadlocks", "far deadlocks", "gave up", "closed", "killed", "processes killed"]
    {
        let count = counts.get(what).copied().unwrap_or(0);
        assert!(count >= 5 * seeds, "hardly anything is {what}: {count}");
    }
}
