//! Names and attributes in kernel caches: services and mounts of several hosts; mounts look names
//! up, are notified and hang; requests and messages are late, lost, duplicated and reordered;
//! services restart. After every step everything that a kernel may remember is compared with the
//! services. A failure prints its seed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::sim::simulation;
use crate::sim::{Random, Sent, Watched, World, config};
use metadata::{Config, Input};
use wire::attributes::mode;
use wire::codec::Field as _;
use wire::hash::entry_key;
use wire::reply::lookup_flag;
use wire::request::set;
use wire::watch::{Notice, VALID_NANOS, Watch};
use wire::{Attributes, Credentials, Inode, Layout, Reader, Reply, Request, ShardIndex};

/// Validity of names and attributes that services of the kernel's own host decide.
const VALID: i64 = 400_000_000;
/// The host of each service.
const HOSTS: [u16; 4] = [0, 0, 2, 3];
/// Host and number of each mount.
const MOUNTS: [Name; 4] = [(0, 1), (0, 2), (2, 1), (3, 1)];

/// A mount.
type Name = (u16, u8);

/// Content of a kernel's cache: the inode of a name, or mode, links and size of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Remembered {
    Name(Option<Inode>),
    Attributes(u32, u32, u64),
}

/// A lookup at a service of another host, on its way there or answered.
struct RemoteLookup {
    mount: Name,
    watch: Watch,
    since: i64,
    /// Once the request has arrived: its ticket, and the service.
    at: Option<(u64, usize)>,
    is_spoiled: bool,
}

/// An answer on its way to a kernel.
struct KernelReply {
    mount: Name,
    watch: Watch,
    seen: Remembered,
    until: i64,
    is_spoiled: bool,
}

#[derive(Default)]
struct Mount {
    remembers: BTreeMap<Watch, (Remembered, i64)>,
    /// By service: the ticket of its request for notices, and the last one that it has carried out.
    listens: BTreeMap<usize, (Option<u64>, u64)>,
    stands_still: bool,
    /// Its own pending requests, and what they may change: its kernel holds locks on these.
    own: BTreeMap<u64, Vec<Watch>>,
}

struct Game {
    world: World,
    /// By host.
    watched: BTreeMap<u16, Rc<RefCell<Watched>>>,
    mounts: BTreeMap<Name, Mount>,
    lookups: Vec<RemoteLookup>,
    replies: Vec<KernelReply>,
    /// The object of each watch.
    names: BTreeMap<Watch, (Inode, Vec<u8>)>,
    /// Pending requests, with the service of each.
    open: BTreeMap<u64, (usize, Sent)>,
    directories: Vec<Inode>,
    files: Vec<Inode>,
    word: u64,
    random: Random,
    compared: u64,
    /// Comparisons of objects that services of other hosts decide.
    compared_remote: u64,
    reported: u64,
}

fn seat(daemon: usize) -> Config {
    Config { host: HOSTS[daemon], ..config(daemon as u16, HOSTS.len() as u16, 0, 1) }
}

impl Game {
    fn new(seed: u64) -> Game {
        let mut world = World::of((0..HOSTS.len()).map(seat).collect());
        world.settle();
        let mut watched = BTreeMap::new();
        for (seat, host) in world.seats.iter_mut().zip(HOSTS) {
            let own: &Rc<RefCell<Watched>> = watched.entry(host).or_default();
            own.borrow_mut().mounts =
                MOUNTS.iter().filter(|name| name.0 == host).map(|name| name.1).collect();
            seat.host_view.watched = Rc::clone(own);
        }
        Game {
            world,
            watched,
            mounts: MOUNTS.iter().map(|name| (*name, Mount::default())).collect(),
            lookups: vec![],
            replies: vec![],
            names: BTreeMap::new(),
            open: BTreeMap::new(),
            directories: vec![Inode::ROOT],
            files: vec![],
            word: 0,
            random: Random(seed),
            compared: 0,
            compared_remote: 0,
            reported: 0,
        }
    }

    fn mount(&mut self) -> Name {
        MOUNTS[self.random.uniform(MOUNTS.len())]
    }

    /// The service that decides about an object, if its directory exists.
    fn decider(&self, watch: Watch) -> Option<usize> {
        match watch {
            Watch::Attributes(inode) => Some(self.world.owner(inode.shard())),
            Watch::Name(_) => {
                let (parent, name) = self.names.get(&watch)?;
                self.entry(*parent, name).map(|entry| entry.0)
            }
        }
    }

    /// The current value at a service. `None`: it is about to change.
    fn look(&self, watch: Watch, at: usize) -> Option<Remembered> {
        let service = &self.world.seats[at].service;
        if !service.takes_local_ops(0) {
            return None;
        }
        match watch {
            Watch::Attributes(inode) => {
                let is_quiet = service.is_quiet(inode);
                let seen = service.attributes_of(inode).filter(|_| is_quiet)?;
                if seen.links == 0 {
                    // The index does not have it.
                    return None;
                }
                Some(Remembered::Attributes(seen.mode, seen.links, seen.size))
            }
            Watch::Name(_) => {
                let (parent, name) = self.names.get(&watch)?;
                self.entry(*parent, name).map(|(_, found)| Remembered::Name(found))
            }
        }
    }

    fn entry(&self, parent: Inode, name: &[u8]) -> Option<(usize, Option<Inode>)> {
        let owner = &self.world.seats[self.world.owner(parent.shard())].service;
        owner.attributes_of(parent)?;
        let at = self.world.owner(self.world.shard_of_name(parent, name));
        Some((at, self.world.seats[at].service.entry_of(parent, name)))
    }

    /// Every remembered value is current, except those that the mount's own requests change.
    fn check(&mut self) {
        let decided = |watch| self.decider(watch).map(|at| HOSTS[at]);
        let (mut all, mut remote) = (0, 0);
        for (number, mount) in &self.mounts {
            let own: BTreeSet<Watch> = mount.own.values().flatten().copied().collect();
            for (&watch, &(seen, until)) in &mount.remembers {
                if until <= self.world.now || own.contains(&watch) {
                    continue;
                }
                remote += u64::from(decided(watch) != Some(number.0));
                let real = match watch {
                    Watch::Attributes(inode) => {
                        let at = self.world.owner(inode.shard());
                        let real = self.world.seats[at].service.attributes_of(inode);
                        // The links of a directory come from tallies, late.
                        let links = |links, is_directory| if is_directory { 0 } else { links };
                        let real = real.map(|a| (a.mode, links(a.links, a.is_directory()), a.size));
                        let Remembered::Attributes(mode, count, size) = seen else {
                            panic!("{seen:?}")
                        };
                        let is_directory = mode & mode::TYPE == mode::DIRECTORY;
                        let size =
                            if is_directory { real.map_or(size, |real| real.2) } else { size };
                        assert_eq!(
                            real,
                            Some((mode, links(count, is_directory), size)),
                            "{number:?}"
                        );
                        continue;
                    }
                    Watch::Name(_) => {
                        let (parent, name) = &self.names[&watch];
                        self.entry(*parent, name).and_then(|(_, found)| found)
                    }
                };
                assert_eq!(
                    Remembered::Name(real),
                    seen,
                    "mount {number:?} at {:?}",
                    self.names[&watch]
                );
            }
            all += mount.remembers.len() as u64;
        }
        self.compared += all;
        self.compared_remote += remote;
    }

    /// Each mount changes its own names only: a kernel that removes a name which has just become
    /// another file's is not notified about that file.
    fn name(&mut self, by: Option<Name>) -> Vec<u8> {
        match by {
            Some((host, number)) => {
                let letter = [b'x', b'y'][self.random.uniform(2)];
                vec![letter, b'0' + host as u8, b'0' + number]
            }
            None => vec![b'a' + self.random.uniform(5) as u8],
        }
    }

    fn directory(&mut self) -> Inode {
        self.directories[self.random.uniform(self.directories.len().min(4))]
    }

    fn named(&mut self, parent: Inode, name: &[u8]) -> Watch {
        let watch = Watch::of_key(entry_key(parent, name));
        self.names.insert(watch, (parent, name.to_vec()));
        watch
    }

    /// A mount looks an object up for its kernel.
    fn look_up(&mut self) {
        let mount = self.mount();
        if self.mounts[&mount].stands_still {
            return;
        }
        let watch = match self.random.uniform(3) {
            0 if !self.files.is_empty() => {
                let recent = self.files.len() - 1 - self.random.uniform(self.files.len().min(12));
                Watch::Attributes(self.files[recent])
            }
            1 => Watch::Attributes(self.directory()),
            _ => {
                let by = MOUNTS.get(self.random.uniform(MOUNTS.len() + 1)).copied();
                let (parent, name) = (self.directory(), self.name(by));
                self.named(parent, &name)
            }
        };
        let is_held = self.is_held(mount, watch);
        let Some(at) = self.decider(watch) else { return };
        if HOSTS[at] != mount.0 {
            let since = self.world.now;
            self.lookups.push(RemoteLookup { mount, watch, since, at: None, is_spoiled: is_held });
            return;
        }
        let until = self.world.now + VALID;
        self.word += 1;
        let mut watched = self.watched[&mount.0].borrow_mut();
        watched.holder_messages.insert((mount.1, watch), (self.word, until));
        drop(watched);
        if let Some(seen) = self.look(watch, at).filter(|_| !is_held) {
            self.replies.push(KernelReply { mount, watch, seen, until, is_spoiled: false });
        }
    }

    fn is_held(&self, mount: Name, watch: Watch) -> bool {
        self.mounts[&mount].own.values().flatten().any(|own| *own == watch)
    }

    /// Carries a request to another host, or its answer back.
    fn carry_lookup(&mut self) {
        if self.lookups.is_empty() {
            return;
        }
        let place = self.random.uniform(self.lookups.len());
        let RemoteLookup { mount, watch, since, at, is_spoiled } = self.lookups[place];
        if self.mounts[&mount].stands_still {
            return;
        }
        let Some((ticket, _)) = at else { return self.arrive(place) };
        let Some(bytes) = self.world.replies.get(&ticket).cloned() else { return };
        self.lookups.swap_remove(place);
        let Ok(Reply::LookupForMount { may, attributes }) = Reply::decode(&mut Reader::new(&bytes))
        else {
            return;
        };
        let until = since + VALID_NANOS;
        let mut reported = vec![];
        if let Watch::Name(_) = watch
            && may & lookup_flag::NAME_STAYS != 0
        {
            let inode = (!attributes.inode.is_none()).then_some(attributes.inode);
            reported.push((watch, Remembered::Name(inode)));
        }
        if may & lookup_flag::ATTRIBUTES_STAY != 0 {
            let Attributes { inode, mode, links, size, .. } = attributes;
            reported.push((Watch::Attributes(inode), Remembered::Attributes(mode, links, size)));
        }
        for (watch, seen) in reported {
            let is_spoiled = is_spoiled || self.is_held(mount, watch);
            self.replies.push(KernelReply { mount, watch, seen, until, is_spoiled });
        }
    }

    fn arrive(&mut self, place: usize) {
        let RemoteLookup { mount, watch, .. } = self.lookups[place];
        let (inode, name, shard) = match watch {
            Watch::Attributes(inode) => (inode, vec![], inode.shard()),
            Watch::Name(_) => {
                let (parent, name) = self.names[&watch].clone();
                if self.entry(parent, &name).is_none() {
                    self.lookups.swap_remove(place);
                    return;
                }
                let shard = self.world.shard_of_name(parent, &name);
                (parent, name, shard)
            }
        };
        let request = Request::LookupForMount { inode, name: &name };
        let mut sent = self.world.prepare(Credentials::ROOT, shard, &request);
        (sent.header.host, sent.header.mount) = mount;
        sent.header.client_id = u64::MAX;
        let ticket = self.world.send_again(&sent);
        self.lookups[place].at = Some((ticket, self.world.owner(shard)));
    }

    /// An answer arrives at its kernel.
    fn deliver_reply(&mut self) {
        if self.replies.is_empty() {
            return;
        }
        let place = self.random.uniform(self.replies.len());
        if self.mounts[&self.replies[place].mount].stands_still {
            return;
        }
        let reply = self.replies.swap_remove(place);
        let mount = self.mounts.get_mut(&reply.mount).expect("a mount");
        let is_held = mount.own.values().flatten().any(|own| *own == reply.watch);
        if !reply.is_spoiled && !is_held && reply.until > self.world.now {
            mount.remembers.insert(reply.watch, (reply.seen, reply.until));
        }
    }

    /// A mount requests notices, or takes those that came.
    fn listen(&mut self) {
        let number = self.mount();
        let at = self.random.uniform(HOSTS.len());
        if HOSTS[at] != number.0 {
            return;
        }
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
                let replies = self.replies.iter_mut().filter(|one| one.mount == number);
                replies.for_each(|one| one.is_spoiled = true);
                let lookups = self.lookups.iter_mut().filter(|one| one.mount == number);
                lookups.for_each(|one| one.is_spoiled = true);
                while !reader.rest().is_empty() {
                    let notice = Notice::take(&mut reader).expect("a notice");
                    mount.remembers.remove(&notice.watch());
                    done = notice.number;
                    self.reported += 1;
                }
            }
        }
        let shard = (0..1024).map(ShardIndex).find(|&shard| self.world.owner(shard) == at);
        let request = Request::Notices { done };
        let mut sent = self.world.prepare(Credentials::ROOT, shard.expect("a shard"), &request);
        (sent.header.host, sent.header.mount) = number;
        sent.header.client_id = u64::MAX;
        let ticket = self.world.send_again(&sent);
        self.mounts.get_mut(&number).expect("a mount").listens.insert(at, (Some(ticket), done));
    }

    /// A change by a mount, by a program, or on another host.
    fn change(&mut self) {
        let by = MOUNTS.get(self.random.uniform(MOUNTS.len() + 3)).copied();
        if by.is_some_and(|by| !self.mounts[&by].own.is_empty()) {
            // A kernel has one change of a directory at a time.
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
            None => self.files[self.random.uniform(self.files.len())],
        };
        let (device, flags, target, layout) = (0, 1, &b""[..], Layout::default());
        let kind = if self.random.chance(15) { mode::DIRECTORY } else { mode::REGULAR };
        let mode = kind | 0o600 | self.random.uniform(64) as u32;
        let (request, shard) = match self.random.uniform(12) {
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
                let (mask, mode) = (set::MODE, self.random.uniform(512) as u32);
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
        // So a repetition is recognised.
        sent.header.client_id = 1000 + self.world.sequence;
        let program = (HOSTS[self.random.uniform(HOSTS.len())], 0);
        (sent.header.host, sent.header.mount) = by.unwrap_or(program);
        let mut own = vec![self.named(parent, &name), self.named(other, &new)];
        let inodes = [Some(parent), Some(other), found, replaced, Some(file)];
        own.extend(inodes.into_iter().flatten().map(Watch::Attributes));
        if let Some(by) = by {
            self.forget(by, &own);
            let ticket = self.world.ticket + 1;
            self.mounts.get_mut(&by).expect("a mount").own.insert(ticket, own);
        }
        let ticket = self.world.send_again(&sent);
        self.open.insert(ticket, (self.world.owner(shard), sent));
        self.take_answers();
    }

    /// A kernel forgets what its own request changes, and answers about it on their way.
    fn forget(&mut self, by: Name, own: &[Watch]) {
        let mount = self.mounts.get_mut(&by).expect("a mount");
        mount.remembers.retain(|watch, _| !own.contains(watch));
        let spoiled = |one: &&mut KernelReply| one.mount == by && own.contains(&one.watch);
        self.replies.iter_mut().filter(spoiled).for_each(|one| one.is_spoiled = true);
        // An answer about a name has attributes, too.
        self.lookups.iter_mut().filter(|one| one.mount == by).for_each(|one| one.is_spoiled = true);
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
            for number in MOUNTS {
                let mount = self.mounts.get_mut(&number).expect("a mount");
                if let Some(own) = mount.own.remove(&ticket) {
                    // The kernel learns the result from the answer, as if it had remembered
                    // nothing.
                    self.forget(number, &own);
                }
            }
        }
        let now = self.world.now;
        for mount in self.mounts.values_mut() {
            mount.remembers.retain(|_, (_, until)| *until > now);
        }
    }

    fn deliver(&mut self) {
        if let Some((to, bytes)) = self.world.take_message(&mut self.random, 4) {
            self.world.step(to, Input::Peer { message: &bytes });
        }
    }

    fn tell_time(&mut self) {
        self.watched.values().for_each(|watched| watched.borrow_mut().now = self.world.now);
    }

    fn pass(&mut self, nanos: i64) {
        self.world.now += nanos;
        self.tell_time();
        self.world.do_what_is_due();
    }

    fn crash(&mut self) {
        let at = self.random.uniform(self.world.seats.len());
        self.world.crash(at);
        // The requester repeats it.
        self.lookups.retain(|one| one.at.is_none_or(|known| known.1 != at));
        for (_, mount) in self.mounts.iter_mut().filter(|(name, _)| name.0 == HOSTS[at]) {
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
        self.tell_time();
        match self.random.uniform(1000) {
            0..=249 => self.deliver(),
            250..=369 => self.look_up(),
            370..=449 => self.carry_lookup(),
            450..=599 => self.deliver_reply(),
            600..=719 => self.listen(),
            720..=789 if self.open.len() < 6 => self.change(),
            790..=799 => {
                let name = self.mount();
                let stands_still = self.random.chance(20);
                self.mounts.get_mut(&name).expect("a mount").stands_still = stands_still;
            }
            800 | 801 => self.crash(),
            802 => self.pass(VALID),
            803 if self.random.chance(30) => self.pass(VALID_NANOS),
            _ => {
                let nanos = self.random.uniform(2_000_000) as i64;
                self.pass(nanos);
            }
        }
        self.take_answers();
        self.check();
    }
}

/// Returns steps of services, the number of comparisons, those of objects of other hosts, and the
/// number of notices.
fn play(seed: u64, rounds: u32) -> (u64, [u64; 3]) {
    let mut game = Game::new(seed);
    for _ in 0..rounds {
        game.turn();
    }
    // No request waits forever, though some mounts hang for good.
    for (name, mount) in &mut game.mounts {
        mount.stands_still = name.1 == 1 && name.0 != 2;
    }
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
    (game.world.steps, [game.compared, game.compared_remote, game.reported])
}

#[test]
fn kernel_caches_of_names_and_attributes_are_coherent() {
    let mut sums = [0; 3];
    let seeds = simulation::MOUNTS.run(|seed| {
        let (steps, played) = play(seed, 8000);
        sums.iter_mut().zip(played).for_each(|(sum, one)| *sum += one);
        steps
    });
    let [compared, remote, reported] = sums;
    println!("{compared} compared, {remote} of other hosts, {reported} notices");
    assert!(
        compared.min(remote) > 2500 * seeds && reported > 50 * seeds,
        "hardly anything: {sums:?}"
    );
}
