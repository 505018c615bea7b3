//! What kernels behind mounts remember: services of one host and of another, mounts that look, are told
//! and stand still, messages that are lost, doubled and overtaken, restarts. After every step all that
//! a kernel may remember at this moment is compared with what the services have. A failure prints its
//! seed.

mod kit;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kit::{Random, Sent, Watched, World, config};
use metadata::{Config, Input};
use wire::attributes::mode;
use wire::codec::Field as _;
use wire::hash::entry_key;
use wire::request::set;
use wire::watch::{Notice, Watch};
use wire::{Credentials, Inode, Layout, Reader, Reply, Request, ShardIndex};

/// How long a kernel may remember.
const VALID: i64 = 400_000_000;
/// Mounts of the first host, which has two services; the second has one.
const MOUNTS: u8 = 2;
const NEAR: usize = 2;

/// What a kernel was told: a name's inode, or mode, links and size of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    Name(Option<Inode>),
    Attributes(u32, u32, u64),
}

/// An answer on its way to a kernel.
struct Telling {
    mount: u8,
    watch: Watch,
    seen: Seen,
    until: i64,
    is_spoiled: bool,
}

#[derive(Default)]
struct Mount {
    remembers: BTreeMap<Watch, (Seen, i64)>,
    /// By service: the ticket of its request for notices, and what it has carried out.
    listens: BTreeMap<usize, (Option<u64>, u64)>,
    stands_still: bool,
    /// Requests of its own that are under way, and what they may change: its kernel holds these.
    own: BTreeMap<u64, Vec<Watch>>,
}

struct Game {
    world: World,
    watched: Rc<RefCell<Watched>>,
    mounts: BTreeMap<u8, Mount>,
    tellings: Vec<Telling>,
    /// What a watch is about.
    names: BTreeMap<Watch, (Inode, Vec<u8>)>,
    /// Requests under way, and at which service.
    open: BTreeMap<u64, (usize, Sent)>,
    directories: Vec<Inode>,
    files: Vec<Inode>,
    word: u64,
    random: Random,
    compared: u64,
    told: u64,
}

fn seat(daemon: u16) -> Config {
    let host = if usize::from(daemon) < NEAR { 0 } else { daemon };
    Config { host, ..config(daemon, NEAR as u16 + 1, 0, 1) }
}

impl Game {
    fn new(seed: u64) -> Game {
        let mut world = World::of((0..=NEAR as u16).map(seat).collect());
        world.settle();
        let watched = Rc::new(RefCell::new(Watched::default()));
        for seat in world.seats.iter_mut().take(NEAR) {
            seat.opens.3 = Rc::clone(&watched);
        }
        Game {
            world,
            watched,
            mounts: (1..=MOUNTS).map(|number| (number, Mount::default())).collect(),
            tellings: vec![],
            names: BTreeMap::new(),
            open: BTreeMap::new(),
            directories: vec![Inode::ROOT],
            files: vec![],
            word: 0,
            random: Random(seed),
            compared: 0,
            told: 0,
        }
    }

    /// What a service has now. `None`: it is another host's, or about to change: a look there asks.
    fn look(&self, watch: Watch) -> Option<Seen> {
        match watch {
            Watch::Attributes(inode) => {
                let at = self.world.owner(inode.shard());
                let service = &self.world.seats[at].service;
                let is_open = at < NEAR && service.takes_posts(0) && service.is_quiet(inode);
                let seen = service.attributes_of(inode).filter(|_| is_open)?;
                Some(Seen::Attributes(seen.mode, seen.links, seen.size))
            }
            Watch::Name(_) => {
                let (parent, name) = self.names.get(&watch)?;
                let (at, found) = self.entry(*parent, name)?;
                let is_open = at < NEAR && self.world.seats[at].service.takes_posts(0);
                is_open.then_some(Seen::Name(found))
            }
        }
    }

    fn entry(&self, parent: Inode, name: &[u8]) -> Option<(usize, Option<Inode>)> {
        let owner = &self.world.seats[self.world.owner(parent.shard())].service;
        owner.attributes_of(parent)?;
        let at = self.world.owner(self.world.shard_of_name(parent, name));
        Some((at, self.world.seats[at].service.entry_of(parent, name)))
    }

    /// All that is remembered now is as it is now, but what the mount's own requests change.
    fn check(&mut self) {
        for (number, mount) in &self.mounts {
            let own: BTreeSet<Watch> = mount.own.values().flatten().copied().collect();
            for (&watch, &(seen, until)) in &mount.remembers {
                if until <= self.world.now || own.contains(&watch) {
                    continue;
                }
                let real = match watch {
                    Watch::Attributes(inode) => {
                        let at = self.world.owner(inode.shard());
                        let real = self.world.seats[at].service.attributes_of(inode);
                        // A directory's links come from tallies, late.
                        let links = |links, is_directory| if is_directory { 0 } else { links };
                        let real = real.map(|a| (a.mode, links(a.links, a.is_directory()), a.size));
                        let Seen::Attributes(mode, count, size) = seen else { panic!("{seen:?}") };
                        let is_directory = mode & mode::TYPE == mode::DIRECTORY;
                        let size =
                            if is_directory { real.map_or(size, |real| real.2) } else { size };
                        assert_eq!(
                            real,
                            Some((mode, links(count, is_directory), size)),
                            "{number}"
                        );
                        continue;
                    }
                    Watch::Name(_) => {
                        let (parent, name) = &self.names[&watch];
                        self.entry(*parent, name).and_then(|(_, found)| found)
                    }
                };
                assert_eq!(Seen::Name(real), seen, "mount {number} at {:?}", self.names[&watch]);
            }
            self.compared += mount.remembers.len() as u64;
        }
    }

    /// Names that a mount changes are changed by that mount alone: a kernel that removes a name which has
    /// just become another file's is not told of that file.
    fn name(&mut self, by: u8) -> Vec<u8> {
        let own = [b'x', b'y'].map(|letter| vec![letter, b'0' + by]);
        match by {
            1..=MOUNTS => own[self.random.below(2)].clone(),
            _ => vec![b'a' + self.random.below(5) as u8],
        }
    }

    fn directory(&mut self) -> Inode {
        self.directories[self.random.below(self.directories.len().min(4))]
    }

    fn named(&mut self, parent: Inode, name: &[u8]) -> Watch {
        let watch = Watch::of_key(entry_key(parent, name));
        self.names.insert(watch, (parent, name.to_vec()));
        watch
    }

    /// A mount looks something up for its kernel.
    fn look_up(&mut self) {
        let mount = 1 + self.random.below(usize::from(MOUNTS)) as u8;
        if self.mounts[&mount].stands_still {
            return;
        }
        let watch = match self.random.below(3) {
            0 if !self.files.is_empty() => {
                let recent = self.files.len() - 1 - self.random.below(self.files.len().min(12));
                Watch::Attributes(self.files[recent])
            }
            1 => Watch::Attributes(self.directory()),
            _ => {
                let by = self.random.below(usize::from(MOUNTS) + 1) as u8;
                let (parent, name) = (self.directory(), self.name(by));
                self.named(parent, &name)
            }
        };
        let until = self.world.now + VALID;
        self.word += 1;
        self.watched.borrow_mut().words.insert((mount, watch), (self.word, until));
        let is_held = self.mounts[&mount].own.values().flatten().any(|own| *own == watch);
        let seen = self.look(watch).filter(|_| !is_held);
        if let Some(seen) = seen {
            self.tellings.push(Telling { mount, watch, seen, until, is_spoiled: false });
        }
    }

    /// An answer arrives at its kernel.
    fn tell(&mut self) {
        if self.tellings.is_empty() {
            return;
        }
        let place = self.random.below(self.tellings.len());
        if self.mounts[&self.tellings[place].mount].stands_still {
            return;
        }
        let telling = self.tellings.swap_remove(place);
        let mount = self.mounts.get_mut(&telling.mount).expect("a mount");
        let is_held = mount.own.values().flatten().any(|own| *own == telling.watch);
        if !telling.is_spoiled && !is_held && telling.until > self.world.now {
            mount.remembers.insert(telling.watch, (telling.seen, telling.until));
        }
    }

    /// A mount asks for notices, or takes those that came.
    fn listen(&mut self) {
        let number = 1 + self.random.below(usize::from(MOUNTS)) as u8;
        let at = self.random.below(NEAR);
        let mount = self.mounts.get_mut(&number).expect("a mount");
        if mount.stands_still {
            return;
        }
        let (ticket, mut done) = mount.listens.get(&at).copied().unwrap_or_default();
        if let Some(ticket) = ticket {
            let Some(bytes) = self.world.replies.get(&ticket).cloned() else { return };
            if let Reply::Bytes { bytes } =
                Reply::decode(&mut Reader::new(&bytes)).expect("a reply")
            {
                let mut reader = Reader::new(bytes);
                let mut telling = self.tellings.iter_mut();
                telling
                    .by_ref()
                    .filter(|one| one.mount == number)
                    .for_each(|one| one.is_spoiled = true);
                while !reader.rest().is_empty() {
                    let notice = Notice::take(&mut reader).expect("a notice");
                    mount.remembers.remove(&notice.watch());
                    done = notice.number;
                    self.told += 1;
                }
            }
        }
        let shard = (0..1024).map(ShardIndex).find(|&shard| self.world.owner(shard) == at);
        let request = Request::Notices { done };
        let mut sent = self.world.prepare(Credentials::ROOT, shard.expect("a shard"), &request);
        (sent.header.mount, sent.header.origin) = (number, u64::MAX);
        let ticket = self.world.send_again(&sent);
        self.mounts.get_mut(&number).expect("a mount").listens.insert(at, (Some(ticket), done));
    }

    /// Somebody changes something: by a mount, by a program, or on the other host.
    fn change(&mut self) {
        let by = self.random.below(4) as u8;
        if self.mounts.get(&by).is_some_and(|mount| !mount.own.is_empty()) {
            // A kernel has one change of a directory at a time under way.
            return;
        }
        let (parent, other) = (self.directory(), self.directory());
        let (name, new) = (self.name(by), self.name(by));
        let Some((_, found)) = self.entry(parent, &name) else { return };
        let Some((_, replaced)) = self.entry(other, &new) else { return };
        let shard = self.world.shard_of_name(parent, &name);
        let file = match found {
            Some(found) => found,
            None if self.files.is_empty() => Inode::ROOT,
            None => self.files[self.random.below(self.files.len())],
        };
        let (device, flags, target, layout) = (0, 1, &b""[..], Layout::default());
        let kind = if self.random.chance(15) { mode::DIRECTORY } else { mode::REGULAR };
        let mode = kind | 0o600 | self.random.below(64) as u32;
        let (request, shard) = match self.random.below(12) {
            0..=3 => {
                let name = &name;
                (Request::Create { parent, name, mode, device, flags, layout, target }, shard)
            }
            4 | 5 => (Request::Unlink { parent, name: &name }, shard),
            6 => (Request::RemoveDirectory { parent, name: &name }, shard),
            7 | 8 => {
                let flags = if self.random.chance(20) { 2 } else { 0 };
                let (new_parent, new_name) = (other, &new);
                (Request::Rename { parent, name: &name, new_parent, new_name, flags }, shard)
            }
            9 => {
                let shard = self.world.shard_of_name(other, &new);
                (Request::Link { inode: file, parent: other, name: &new }, shard)
            }
            _ => {
                let (mask, mode) = (set::MODE, self.random.below(512) as u32);
                let request = Request::SetAttributes {
                    inode: file,
                    mask,
                    mode,
                    uid: 0,
                    gid: 0,
                    size: 0,
                    accessed: 0,
                    modified: 0,
                };
                (request, file.shard())
            }
        };
        let mut sent = self.world.prepare(Credentials::ROOT, shard, &request);
        // Known if it comes again.
        sent.header.origin = 1000 + self.world.sequence;
        sent.header.host = u16::from(by == 3) * NEAR as u16;
        sent.header.mount = if by == 3 { 0 } else { by };
        let mut own = vec![self.named(parent, &name), self.named(other, &new)];
        let inodes = [Some(parent), Some(other), found, replaced, Some(file)];
        own.extend(inodes.into_iter().flatten().map(Watch::Attributes));
        if let Some(mount) = self.mounts.get_mut(&sent.header.mount) {
            // Its kernel forgets what its own request changes.
            mount.remembers.retain(|watch, _| !own.contains(watch));
            let spoiled = |one: &&mut Telling| one.mount == by && own.contains(&one.watch);
            self.tellings.iter_mut().filter(spoiled).for_each(|one| one.is_spoiled = true);
            mount.own.insert(self.world.ticket + 1, own);
        }
        let ticket = self.world.send_again(&sent);
        self.open.insert(ticket, (self.world.owner(shard), sent));
        self.take_answers();
    }

    fn take_answers(&mut self) {
        let answered: Vec<u64> = self
            .open
            .keys()
            .copied()
            .filter(|ticket| self.world.replies.contains_key(ticket))
            .collect();
        for ticket in answered {
            self.open.remove(&ticket);
            let bytes = self.world.replies[&ticket].clone();
            if let Ok(Reply::Created { attributes }) = Reply::decode(&mut Reader::new(&bytes)) {
                match attributes.is_directory() {
                    true => self.directories.push(attributes.inode),
                    false => self.files.push(attributes.inode),
                }
            }
            let now = self.world.now;
            for (&number, mount) in &mut self.mounts {
                if let Some(own) = mount.own.remove(&ticket) {
                    // What came of it is known to its kernel by the answer, as if it had not looked.
                    mount.remembers.retain(|watch, _| !own.contains(watch));
                    let spoiled =
                        |one: &&mut Telling| one.mount == number && own.contains(&one.watch);
                    self.tellings.iter_mut().filter(spoiled).for_each(|one| one.is_spoiled = true);
                }
                mount.remembers.retain(|_, (_, until)| *until > now);
            }
        }
    }

    fn deliver(&mut self) {
        if self.world.queue.is_empty() {
            return;
        }
        let place = self.random.below(self.world.queue.len());
        let (is_lost, is_doubled) = (self.random.chance(4), self.random.chance(4));
        let (to, bytes) = match is_doubled {
            true => self.world.queue[place].clone(),
            false => self.world.queue.swap_remove(place),
        };
        if !is_lost {
            self.world.step(to, Input::Peer { message: &bytes });
        }
    }

    fn pass(&mut self, nanos: i64) {
        self.world.now += nanos;
        self.watched.borrow_mut().now = self.world.now;
        for at in 0..self.world.seats.len() {
            if self.world.seats[at].service.deadline().is_some_and(|when| when <= self.world.now) {
                self.world.step(at, Input::Tick);
            }
            self.world.answer_data(at, Ok(()));
        }
    }

    fn crash(&mut self) {
        let at = self.random.below(self.world.seats.len());
        self.world.crash(at);
        // Who waits for it asks again.
        for mount in self.mounts.values_mut() {
            mount.listens.insert(at, (None, mount.listens.get(&at).map_or(0, |known| known.1)));
        }
        let theirs = self.open.extract_if(.., |_, (seat, _)| *seat == at);
        let lost: Vec<_> = theirs.map(|(ticket, (_, sent))| (ticket, sent)).collect();
        for (before, sent) in lost {
            let ticket = self.world.ticket + 1;
            for mount in self.mounts.values_mut() {
                if let Some(held) = mount.own.remove(&before) {
                    mount.own.insert(ticket, held);
                }
            }
            assert_eq!(self.world.send_again(&sent), ticket);
            self.open.insert(ticket, (at, sent));
        }
    }

    fn turn(&mut self) {
        self.watched.borrow_mut().now = self.world.now;
        match self.random.below(1000) {
            0..=299 => self.deliver(),
            300..=449 => self.look_up(),
            450..=599 => self.tell(),
            600..=719 => self.listen(),
            720..=789 if self.open.len() < 6 => self.change(),
            790..=799 => {
                let number = 1 + self.random.below(usize::from(MOUNTS)) as u8;
                let stands_still = self.random.chance(20);
                self.mounts.get_mut(&number).expect("a mount").stands_still = stands_still;
            }
            800 | 801 => self.crash(),
            802 => self.pass(VALID),
            _ => {
                let nanos = self.random.below(2_000_000) as i64;
                self.pass(nanos);
            }
        }
        self.take_answers();
        self.check();
    }
}

/// How much was compared, and how often a mount was told.
fn play(seed: u64, turns: u32) -> (u64, u64) {
    println!("seed={seed}");
    let mut game = Game::new(seed);
    for _ in 0..turns {
        game.turn();
    }
    // Nobody waits for ever, though a mount stands still for good.
    game.mounts.get_mut(&1).expect("a mount").stands_still = true;
    game.mounts.get_mut(&2).expect("a mount").stands_still = false;
    for _ in 0..4000 {
        if game.open.is_empty() {
            break;
        }
        game.pass(5_000_000);
        while !game.world.queue.is_empty() {
            game.deliver();
        }
        game.listen();
        game.take_answers();
        game.check();
    }
    assert!(game.open.is_empty(), "an answer is missing");
    println!(
        "files {} dirs {} words {} ticket {}",
        game.files.len(),
        game.directories.len(),
        game.word,
        game.world.ticket
    );
    (game.compared, game.told)
}

#[test]
fn what_kernels_remember_is_so() {
    let all: Vec<_> = (0..40).map(|seed| play(seed, 8000)).collect();
    let (compared, told) = all.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!("{compared} compared, {told} notices");
    assert!(compared > 100_000 && told > 2000, "hardly anything: {compared}, {told}");
}
