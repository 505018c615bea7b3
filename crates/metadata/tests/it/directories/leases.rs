//! Leases and copies: services and holders with messages that are lost, duplicated and reordered,
//! pauses, network partitions and restarts on both sides. After every step everything that clients
//! of any holder may trust, and all valid copies of directories, are compared with the services. A
//! failure prints its seed.

use std::collections::BTreeMap;

use crate::sim::simulation::LEASES;
use crate::sim::{Answer, Random, Sent, World, config, steady};
use metadata::{AnsweredWalk, Holder, Input, LeaseTable};
use placement::Map;
use placement::map::worker_of_shard;
use wire::attributes::mode;
use wire::hash::entry_key;
use wire::lease::{MARGIN_NANOS, RENEW_NANOS, TERM_NANOS, service};
use wire::request::{set, walk};
use wire::{Attributes, Credentials, DaemonIndex, Inode, Layout, Reader, Reply, Request};

/// The lease table that clients of a host read.
#[derive(Default)]
struct LeasedRows {
    until: BTreeMap<usize, i64>,
    rows: BTreeMap<Inode, Attributes>,
    entries: BTreeMap<u128, Inode>,
    used: bool,
}

impl LeaseTable for LeasedRows {
    fn extend(&mut self, service: usize, until: i64) {
        self.until.insert(service, until);
    }
    fn close(&mut self, service: usize) {
        self.until.remove(&service);
    }
    fn open(&mut self, service: usize, until: i64) {
        self.until.insert(service, until);
    }
    fn put(&mut self, key: u128, directory: &Attributes) {
        self.rows.insert(directory.inode, *directory);
        if key != 0 {
            self.entries.insert(key, directory.inode);
        }
    }
    fn remove(&mut self, key: u128, directory: Inode) {
        self.rows.remove(&directory);
        self.entries.remove(&key);
    }
    fn was_used(&mut self, _: usize) -> bool {
        self.used
    }
}

/// A daemon, as far as it holds leases.
struct Host {
    daemon: DaemonIndex,
    holder: Holder,
    table: LeasedRows,
    /// The daemon runs; otherwise its clients continue without it.
    is_awake: bool,
}

/// A walk on its way to its service, or its answer on its way back.
struct Walking {
    host: usize,
    /// Start number of the host's daemon: an answer to an earlier one is lost.
    start: u64,
    sent: Sent,
    sent_nanos: i64,
    reply: Option<Vec<u8>>,
}

struct Game {
    world: World,
    workers: usize,
    hosts: Vec<Host>,
    starts: Vec<u64>,
    walks: Vec<Walking>,
    /// Pending changes, and when they were sent.
    changes: Vec<(u64, i64)>,
    made: Vec<u64>,
    directories: Vec<Inode>,
    names: BTreeMap<u128, (Inode, Vec<u8>)>,
    random: Random,
    trusted: u64,
    copied: u64,
    longest: i64,
}

/// The attributes that copies cover, and leases besides the location.
fn covered(of: &Attributes) -> (u32, u32, u32, Layout) {
    (of.mode, of.uid, of.gid, of.layout)
}

impl Game {
    fn new(seed: u64, daemons: u16, workers: usize) -> Game {
        let seats = (0..daemons).flat_map(|daemon| {
            (0..workers).map(move |worker| config(daemon, daemons, worker, workers))
        });
        let mut world = World::of(seats.collect());
        world.settle();
        let mut game = Game {
            world,
            workers,
            hosts: vec![],
            starts: vec![0; usize::from(daemons)],
            walks: vec![],
            changes: vec![],
            made: vec![],
            directories: vec![Inode::ROOT],
            names: BTreeMap::new(),
            random: Random(seed),
            trusted: 0,
            copied: 0,
            longest: 0,
        };
        game.hosts = (0..daemons).map(|daemon| game.host(daemon)).collect();
        game
    }

    fn host(&self, daemon: u16) -> Host {
        let map = Map::initial(self.starts.len() as u16).expect("a count within limits");
        let daemon = DaemonIndex(daemon);
        let holder = Holder::new(daemon, map, self.workers);
        let table = LeasedRows { used: true, ..LeasedRows::default() };
        Host { daemon, holder, table, is_awake: true }
    }

    fn service_of(&self, inode: Inode) -> usize {
        let shard = inode.shard();
        let owner = self.world.seats[self.world.owner(shard)].config.daemon;
        service(owner, worker_of_shard(shard, self.workers))
    }

    /// Valid copies equal the current attributes.
    fn check_copies(&mut self) {
        for (place, seat) in self.world.seats.iter().enumerate() {
            let now = steady(self.world.now, seat.config.daemon);
            for &directory in &self.directories {
                let Some(copy) = seat.service.copy_of(directory, now) else { continue };
                let Some(real) = self.attributes(directory) else {
                    // Services that may have entries took part in its removal.
                    let hash = wire::hash::NameHash::of(directory, b"");
                    let entries = self.world.owner(placement::locate::entry_shard(&copy, hash));
                    let is_wide = copy.layout.spread == wire::attributes::spread::WIDE;
                    assert!(is_wide || entries != place, "{directory:?} was removed");
                    continue;
                };
                assert_eq!(
                    covered(&copy),
                    covered(&real),
                    "{directory:?} on {:?}",
                    seat.config.daemon
                );
                self.copied += 1;
            }
        }
    }

    /// Trusted leases equal the current state.
    fn check(&mut self) {
        self.check_copies();
        for host in &self.hosts {
            let now = steady(self.world.now, host.daemon);
            for (&inode, row) in &host.table.rows {
                let until = host.table.until.get(&self.service_of(inode));
                if until.is_none_or(|&until| until <= now) {
                    continue;
                }
                let owner = &self.world.seats[self.world.owner(inode.shard())].service;
                let real = owner.attributes_of(inode).expect("a trusted directory exists");
                assert_eq!(covered(row), covered(&real), "{inode:?} on {:?}", host.daemon);
                assert_eq!(row.parent, real.parent, "{inode:?} on {:?}", host.daemon);
                self.trusted += 1;
            }
            for (&key, &inode) in &host.table.entries {
                let until = host.table.until.get(&self.service_of(inode));
                if until.is_none_or(|&until| until <= now) || !host.table.rows.contains_key(&inode)
                {
                    continue;
                }
                let (parent, name) = &self.names[&key];
                let owner = &self.world.seats[self.world.owner(inode.shard())].service;
                assert_eq!(owner.entry_of(*parent, name), Some(inode), "{:?}", host.daemon);
            }
        }
    }

    fn name(&mut self) -> Vec<u8> {
        vec![b'a' + self.random.uniform(4) as u8]
    }

    fn directory(&mut self) -> Inode {
        let recent = self.directories.len().min(8);
        let place = match self.random.chance(40) {
            true => 0,
            false => self.directories.len() - 1 - self.random.uniform(recent),
        };
        self.directories[place]
    }

    fn attributes(&self, inode: Inode) -> Option<Attributes> {
        self.world.seats[self.world.owner(inode.shard())].service.attributes_of(inode)
    }

    /// Sends a change from the host of the service that decides it.
    fn change(&mut self) {
        let (directory, other, name, new) =
            (self.directory(), self.directory(), self.name(), self.name());
        let Some(parent) = self.attributes(directory) else { return };
        let hash = wire::hash::NameHash::of(directory, &name);
        let shard = placement::locate::entry_shard(&parent, hash);
        self.names.insert(entry_key(directory, &name), (directory, name.clone()));
        self.names.insert(entry_key(other, &new), (other, new.clone()));
        let caller = Credentials::ROOT;
        let mode = mode::DIRECTORY | 0o700 | self.random.uniform(64) as u32;
        let (mask, inode, uid) = (set::MODE, directory, 0);
        let ticket = match self.random.uniform(10) {
            0..=3 => {
                let (device, flags, target) = (0, 1, &b""[..]);
                let layout = Layout { spread: 9, placement: 9, ..Layout::default() };
                let name = &name;
                let request = Request::Create {
                    parent: directory,
                    name,
                    mode,
                    device,
                    flags,
                    layout,
                    target,
                };
                let ticket = self.world.send(caller, shard, &request);
                self.made.push(ticket);
                ticket
            }
            4 => {
                let request = Request::RemoveDirectory { parent: directory, name: &name };
                self.world.send(caller, shard, &request)
            }
            5 | 6 => {
                let (gid, size, accessed, modified) = (0, 0, 0, 0);
                let request = Request::SetAttributes {
                    inode,
                    mask,
                    mode,
                    uid,
                    gid,
                    size,
                    accessed,
                    modified,
                };
                self.world.send(caller, inode.shard(), &request)
            }
            _ => {
                let flags = if self.random.chance(20) { 2 } else { 0 };
                let (parent, new_parent, new_name) = (directory, other, &new);
                let request = Request::Rename { parent, name: &name, new_parent, new_name, flags };
                self.world.send(caller, shard, &request)
            }
        };
        self.changes.push((ticket, self.world.now));
    }

    /// A client of a host walks, from the root or another directory, perhaps from an entry.
    fn walk(&mut self) {
        let host = self.random.uniform(self.hosts.len());
        if !self.hosts[host].is_awake {
            return;
        }
        let directory = self.directory();
        let (first, second) = (self.name(), self.name());
        let from = if self.random.chance(50) { walk::DIRECTORY } else { walk::ENTRY };
        let mut shard = directory.shard();
        if from == walk::ENTRY {
            let Some(parent) = self.attributes(directory) else { return };
            let hash = wire::hash::NameHash::of(directory, &first);
            shard = placement::locate::entry_shard(&parent, hash);
        }
        let names = [&first[..], b"/", &second].concat();
        self.names.insert(entry_key(directory, &first), (directory, first));
        let request = Request::Walk { directory, from, names: &names };
        let mut sent = self.world.prepare(Credentials::ROOT, shard, &request);
        sent.header.host = self.hosts[host].daemon.0;
        sent.header.client_id = u64::MAX;
        let sent_nanos = steady(self.world.now, self.hosts[host].daemon);
        let start = self.starts[host];
        self.walks.push(Walking { host, start, sent, sent_nanos, reply: None });
    }

    /// A walk advances by one step.
    fn carry_walk(&mut self) {
        if self.walks.is_empty() {
            return;
        }
        let place = self.random.uniform(self.walks.len());
        if self.walks[place].reply.is_none() {
            let ticket = self.world.send_again(&self.walks[place].sent);
            self.walks[place].reply = self.world.replies.get(&ticket).cloned();
            if self.walks[place].reply.is_none() {
                self.walks.swap_remove(place);
            }
            return;
        }
        let host = self.walks[place].host;
        if self.walks[place].start != self.starts[host] || self.random.chance(5) {
            self.walks.swap_remove(place);
        } else if self.hosts[host].is_awake {
            let walking = self.walks.swap_remove(place);
            self.answer(walking);
        }
    }

    fn answer(&mut self, walking: Walking) {
        let request = Request::decode(&mut Reader::new(&walking.sent.bytes)).expect("a request");
        let bytes = walking.reply.expect("an answer");
        let reply = Reply::decode(&mut Reader::new(&bytes)).expect("a reply");
        if let (Reply::Walked { chain, .. }, Request::Walk { directory, from, names }) =
            (reply, request)
        {
            self.note_names(directory, from, names, chain);
        }
        let host = &mut self.hosts[walking.host];
        let now = steady(self.world.now, host.daemon);
        let (shard, sent_nanos) = (wire::ShardIndex(walking.sent.header.shard), walking.sent_nanos);
        let walked = AnsweredWalk { shard, sent_nanos, request, reply };
        host.holder.walked(now, &walked, &mut host.table);
    }

    fn note_names(&mut self, directory: Inode, from: u8, names: &[u8], chain: &[u8]) {
        let mut parent = directory;
        let mut chain: Vec<Attributes> = chain
            .chunks(wire::attributes::ATTRIBUTES_BYTES)
            .map(|bytes| Attributes::decode(&mut Reader::new(bytes)).expect("attributes"))
            .collect();
        if from == walk::DIRECTORY && !chain.is_empty() {
            chain.remove(0);
        }
        for (name, found) in names.split(|&byte| byte == b'/').zip(&chain) {
            self.names.insert(entry_key(parent, name), (parent, name.to_vec()));
            parent = found.inode;
        }
    }

    /// One message of any kind arrives, is lost, or is duplicated.
    fn deliver(&mut self) {
        let (peers, holder_messages) = (self.world.queue.len(), self.world.holder_messages.len());
        if peers + holder_messages == 0 {
            return self.carry_walk();
        }
        let place = self.random.uniform(peers + holder_messages);
        let (is_lost, is_doubled) = (self.random.chance(4), self.random.chance(4));
        if place < peers {
            let (to, bytes) = match is_doubled {
                true => self.world.queue[place].clone(),
                false => self.world.queue.swap_remove(place),
            };
            if !is_lost {
                self.world.step(to, Input::Peer { message: &bytes });
            }
            return;
        }
        let place = place - peers;
        let (to, from, bytes) = match is_doubled {
            true => self.world.holder_messages[place].clone(),
            false => self.world.holder_messages.swap_remove(place),
        };
        let map = self.world.seats[0].config.map.clone();
        let host = &mut self.hosts[usize::from(to.0)];
        if is_lost || !host.is_awake {
            return;
        }
        let (now, mut out) = (steady(self.world.now, to), vec![]);
        let is_from_owner = |shard| map.owner(shard) == from;
        host.holder.take(now, is_from_owner, &bytes, &mut host.table, &mut out);
        self.op(out);
    }

    fn op(&mut self, out: Vec<(wire::ShardIndex, Vec<u8>)>) {
        for (shard, bytes) in out {
            let to = self.world.owner(shard);
            self.world.queue.push((to, bytes));
        }
    }

    /// Time passes; timers run.
    fn pass(&mut self, nanos: i64) {
        self.world.now += nanos;
        self.world.do_what_is_due();
        for place in 0..self.hosts.len() {
            let host = &mut self.hosts[place];
            let (now, mut out) = (steady(self.world.now, host.daemon), vec![]);
            let is_due = host.holder.deadline().is_some_and(|when| when <= now);
            if host.is_awake && is_due {
                host.holder.tick(now, &mut host.table, &mut out);
            }
            self.op(out);
        }
        for ticket in core::mem::take(&mut self.made) {
            match self.world.answer(ticket) {
                Some(Answer::Created(made)) => self.directories.push(made.inode),
                None => self.made.push(ticket),
                _ => {}
            }
        }
        let (world, now) = (&self.world, self.world.now);
        let longest = &mut self.longest;
        self.changes.retain(|&(ticket, sent)| {
            *longest = (*longest).max(now - sent);
            world.answer(ticket).is_none()
        });
    }

    fn restart_holder(&mut self) {
        let place = self.random.uniform(self.hosts.len());
        self.starts[place] += 1;
        self.hosts[place] = self.host(place as u16);
    }

    fn turn(&mut self) {
        match self.random.uniform(1000) {
            0..=599 => self.deliver(),
            600..=749 => self.carry_walk(),
            750..=849 => self.walk(),
            850..=889 if self.changes.len() < 6 => self.change(),
            890..=899 => {
                let place = self.random.uniform(self.hosts.len());
                self.hosts[place].is_awake ^= true;
                self.hosts[place].table.used = self.random.chance(70);
            }
            900..=902 => {
                let at = self.random.uniform(self.world.seats.len());
                self.world.crash(at);
                // A real client repeats its request; here it gives up.
                self.changes.clear();
            }
            903..=905 => self.restart_holder(),
            906..=912 => self.pass(RENEW_NANOS),
            913 => self.pass(TERM_NANOS + 2 * MARGIN_NANOS),
            _ => {
                let nanos = self.random.uniform(2_000_000) as i64;
                self.pass(nanos);
            }
        }
        self.check();
    }
}

fn play(seed: u64, daemons: u16, workers: usize) -> Game {
    let mut game = Game::new(seed, daemons, workers);
    for _ in 0..6000 {
        game.turn();
    }
    // No request waits forever.
    for _ in 0..2000 {
        if game.changes.is_empty() {
            break;
        }
        game.pass(5_000_000);
        while !game.world.queue.is_empty() || !game.world.holder_messages.is_empty() {
            game.deliver();
        }
        game.check();
    }
    assert_eq!(game.changes, [], "an answer is missing");
    game
}

/// With one service in each daemon, and in one of four runs with two.
#[test]
fn leases_and_copies_are_coherent() {
    let (mut trusted, mut copied, mut made) = (0, 0, 0);
    let seeds = LEASES.run(|seed| {
        let (daemons, workers) = if seed % 4 == 3 { (2, 2) } else { (3, 1) };
        let game = play(seed, daemons, workers);
        trusted += game.trusted;
        copied += game.copied;
        made += game.directories.len() as u64;
        game.world.steps
    });
    println!("{trusted} trusted, {copied} copied, {made} directories");
    let hardly = trusted < 1500 * seeds || copied < 1500 * seeds || made < 8 * seeds;
    assert!(!hardly, "too little was compared: {trusted}, {copied}, {made}");
}

/// Two daemons; the second walks through the directory `d` of the first.
fn two() -> (Game, Inode) {
    let mut game = Game::new(0, 2, 1);
    let made = game.world.root().directory(Inode::ROOT, b"d").expect("made");
    game.world.settle();
    game.walk_at(made.inode);
    assert!(game.may_trust(made.inode));
    (game, made.inode)
}

impl Game {
    /// The second host walks from a directory, and is answered at once.
    fn walk_at(&mut self, directory: Inode) {
        let request = Request::Walk { directory, from: walk::DIRECTORY, names: b"" };
        let mut sent = self.world.prepare(Credentials::ROOT, directory.shard(), &request);
        (sent.header.host, sent.header.client_id) = (1, u64::MAX);
        let sent_nanos = steady(self.world.now, DaemonIndex(1));
        let ticket = self.world.send_again(&sent);
        let reply = Some(self.world.replies[&ticket].clone());
        self.answer(Walking { host: 1, start: 0, sent, sent_nanos, reply });
    }

    fn may_trust(&self, directory: Inode) -> bool {
        let host = &self.hosts[1];
        let until = host.table.until.get(&self.service_of(directory));
        until.is_some_and(|&until| steady(self.world.now, host.daemon) < until)
            && host.table.rows.contains_key(&directory)
    }

    /// Changes a mode; returns the duration while `meanwhile` runs every 10 ms.
    fn change_mode(&mut self, inode: Inode, meanwhile: impl Fn(&mut Game)) -> i64 {
        let mode = mode::DIRECTORY | 0o700 | self.random.uniform(64) as u32;
        let (mask, uid, gid, size, accessed, modified) = (set::MODE, 0, 0, 0, 0, 0);
        let request =
            Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
        let ticket = self.world.send(Credentials::ROOT, inode.shard(), &request);
        let begun = self.world.now;
        while self.world.answer(ticket).is_none() {
            assert!(self.world.now < begun + 60_000_000_000, "it is waited for without bound");
            meanwhile(self);
            self.pass(10_000_000);
            self.check();
        }
        self.world.now - begun
    }
}

#[test]
fn a_change_waits_for_a_silent_holder_one_term_and_no_longer() {
    let (mut game, inode) = two();
    // The holder keeps walking, and revocations to it are lost.
    let waited = game.change_mode(inode, |game| {
        game.world.holder_messages.clear();
        game.walk_at(inode);
        game.walk_at(Inode::ROOT);
        for (to, bytes) in core::mem::take(&mut game.world.queue) {
            game.world.step(to, Input::Peer { message: &bytes });
        }
    });
    let longest = TERM_NANOS + MARGIN_NANOS + 40_000_000;
    assert!((TERM_NANOS..longest).contains(&waited), "{waited}");
    assert!(!game.may_trust(inode));
    // A holder that answers is not waited for, and gets leases again afterwards.
    game.pass(100_000_000);
    game.walk_at(inode);
    assert!(game.may_trust(inode));
    let waited = game.change_mode(inode, |game| {
        while !game.world.queue.is_empty() || !game.world.holder_messages.is_empty() {
            game.deliver();
        }
    });
    assert!(waited <= 20_000_000, "{waited}");
    assert!(!game.may_trust(inode));
    game.pass(100_000_000);
    game.walk_at(inode);
    assert!(game.may_trust(inode));
}

#[test]
fn a_restarted_service_waits_only_if_leases_may_be_outstanding() {
    let mut game = Game::new(0, 2, 1);
    game.world.crash(0);
    assert_eq!(game.change_mode(Inode::ROOT, |_| ()), 0, "no lease can be outstanding");
    game.walk_at(Inode::ROOT);
    let _ = game.change_mode(Inode::ROOT, |game| game.deliver());
    game.pass(100_000_000);
    game.walk_at(Inode::ROOT);
    assert!(game.may_trust(Inode::ROOT));
    game.world.crash(0);
    let waited = game.change_mode(Inode::ROOT, |_| ());
    assert!((TERM_NANOS..TERM_NANOS + 2 * MARGIN_NANOS).contains(&waited), "{waited}");
    // Earlier grants and revocations do not invalidate new grants.
    game.walk_at(Inode::ROOT);
    assert!(game.may_trust(Inode::ROOT));
}

#[test]
fn used_leases_are_renewed_and_unused_ones_expire() {
    let (mut game, inode) = two();
    for _ in 0..300 {
        game.pass(10_000_000);
        game.deliver();
        assert!(game.may_trust(inode), "it is renewed");
    }
    game.hosts[1].table.used = false;
    for _ in 0..150 {
        game.pass(10_000_000);
        game.deliver();
    }
    assert!(!game.may_trust(inode), "it is not used");
    assert_eq!(game.hosts[1].holder.deadline(), None, "an idle instance is idle");
    assert_eq!(game.world.seats[0].service.deadline(), None, "an idle instance is idle");
}

#[test]
fn a_late_grant_counts_from_its_request_if_the_owner_sent_it() {
    for is_owner in [true, false] {
        let (mut game, inode) = two();
        let (late, moment) = (300_000_000, 1_000_000);
        game.pass(RENEW_NANOS + moment);
        for (to, bytes) in core::mem::take(&mut game.world.queue) {
            game.world.step(to, Input::Peer { message: &bytes });
        }
        game.pass(late);
        let (to, from, bytes) = game.world.holder_messages.pop().expect("it is renewed");
        let map = game.world.seats[0].config.map.clone();
        let (host, now) = (&mut game.hosts[1], steady(game.world.now, to));
        let is_from_owner = |shard| is_owner && map.owner(shard) == from;
        host.holder.take(now, is_from_owner, &bytes, &mut host.table, &mut vec![]);
        game.pass(TERM_NANOS - late - moment);
        assert_eq!(game.may_trust(inode), is_owner);
        game.pass(moment);
        assert!(!game.may_trust(inode), "it is over for its service soon");
    }
}

impl Game {
    /// A directory of the first service whose entries are the second's.
    fn directory_apart(&mut self) -> Inode {
        let owner_of = |game: &Game, shard| game.world.owner(shard);
        for n in 0..8 {
            let made = self.world.root().directory(Inode::ROOT, &[b'd', n + b'0']).expect("made");
            self.world.settle();
            let hash = wire::hash::NameHash::of(made.inode, b"f");
            let entries = placement::locate::entry_shard(&made, hash);
            if owner_of(self, made.inode.shard()) == 0 && owner_of(self, entries) == 1 {
                self.directories.push(made.inode);
                return made.inode;
            }
        }
        panic!("every directory has its entries where it is");
    }

    /// The second service creates an entry, for which it needs a copy.
    fn make_in(&mut self, parent: Inode, name: &[u8]) {
        let directory = self.attributes(parent).expect("it is there");
        let hash = wire::hash::NameHash::of(parent, name);
        let shard = placement::locate::entry_shard(&directory, hash);
        let (mode, device, flags, target) = (mode::DIRECTORY | 0o700, 0, 1, &b""[..]);
        let layout = Layout::default();
        let request = Request::Create { parent, name, mode, device, flags, layout, target };
        self.world.send(Credentials::ROOT, shard, &request);
    }

    fn has_copy(&self, directory: Inode) -> bool {
        let now = steady(self.world.now, DaemonIndex(1));
        self.world.seats[1].service.copy_of(directory, now).is_some()
    }

    fn deliver_first(&mut self) {
        let (to, bytes) = self.world.queue.remove(0);
        self.world.step(to, Input::Peer { message: &bytes });
    }
}

#[test]
fn a_copy_counts_from_its_request_and_a_change_waits_no_longer() {
    let mut game = Game::new(0, 2, 1);
    let inode = game.directory_apart();
    game.make_in(inode, b"f");
    game.deliver_first();
    let answer = game.world.queue.remove(0);
    assert_eq!(answer.0, 1, "it is answered");
    game.pass(TERM_NANOS - 10_000_000);
    assert!(!game.has_copy(inode));
    game.world.step(1, Input::Peer { message: &answer.1 });
    assert!(game.has_copy(inode));
    game.pass(10_000_000);
    assert!(!game.has_copy(inode), "it is over for its service soon");
    // Its revocation is lost.
    game.world.queue.clear();
    game.make_in(inode, b"g");
    game.deliver_first();
    game.deliver_first();
    assert!(game.has_copy(inode));
    let waited = game.change_mode(inode, |game| game.world.queue.clear());
    assert!((TERM_NANOS..TERM_NANOS + MARGIN_NANOS + 40_000_000).contains(&waited), "{waited}");
    assert!(!game.has_copy(inode));
}
