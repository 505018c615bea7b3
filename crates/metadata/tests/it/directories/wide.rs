//! Wide directories among many services: which services are asked at a listing or removal, and that
//! a removed directory has no entries left, with concurrent creates, lookups, local operations and
//! removals, messages that are lost, duplicated and reordered, and services that crash.

use crate::sim::{Answer, Random, World, config};
use metadata::{Config, Input};
use wire::attributes::{mode, spread};
use wire::{Attributes, Credentials, Errno, Inode, Layout, Request, ShardIndex};

const ROOT: Inode = Inode::ROOT;
/// Random runs, and directories in each.
const SEEDS: u64 = 60;
const DIRECTORIES: usize = 10;
/// Names in each directory.
const NAMES: usize = 6;

fn removal(world: &mut World, directory: &Attributes, name: &[u8]) -> usize {
    world.settle();
    let before = world.messages.len();
    // Without a query of the root's attributes, for which the services with entries are asked.
    let shard = world.shard_of_name(ROOT, name);
    let request = Request::RemoveDirectory { parent: ROOT, name };
    assert!(!matches!(world.call(Credentials::ROOT, shard, &request), Answer::Refused(_)));
    world.settle();
    let count = world.messages.len() - before;
    assert_eq!(world.stat(directory.inode), Err(Errno::ESTALE));
    count
}

#[test]
fn a_service_without_entries_takes_no_part_in_a_removal() {
    let mut world = World::daemons(64);
    let directory = world.root().wide(ROOT, b"d").expect("made");
    for name in [b"a", b"b", b"c"] {
        world.root().file(directory.inode, name).expect("made");
    }
    assert_eq!(world.root().rmdir(ROOT, b"d").map(drop), Err(Errno::ENOTEMPTY));
    for name in [b"a", b"b", b"c"] {
        world.root().unlink(directory.inode, name).expect("removed");
    }
    // A transaction takes four messages per participant: three at most, or one for a home
    // directory.
    let count = removal(&mut world, &directory, b"d");
    assert!((4..=12).contains(&count), "{count} messages");
}

#[test]
fn the_owner_of_a_moved_directory_lists_the_services_with_entries() {
    let mut world = World::of(
        (0..64u16)
            .map(|daemon| Config { spread: spread::WIDE, ..config(daemon, 64, 0, 1) })
            .collect(),
    );
    let directory = world.root().wide(ROOT, b"d").expect("made");
    let home = world.owner(directory.inode.shard());
    let new = (b'a'..=b'z').map(|n| [b'n', n]).find(|name| {
        let shard = world.shard_of(ROOT, name);
        world.owner(shard) != home
    });
    let new = new.expect("a name elsewhere");
    world.root().rename((ROOT, b"d"), (ROOT, &new), 0).expect("moved");
    world.root().file(directory.inode, b"a").expect("made");
    assert_eq!(world.root().rmdir(ROOT, &new).map(drop), Err(Errno::ENOTEMPTY));
    world.root().unlink(directory.inode, b"a").expect("removed");
    let count = removal(&mut world, &directory, &new);
    // Besides the transaction: queries of attributes and of services with entries, and a new tally
    // of the root.
    assert!((4..=16).contains(&count), "{count} messages");
}

#[test]
fn a_listing_asks_each_service_once_and_each_shard_with_entries() {
    let mut world = World::daemons(4);
    let directory = world.root().wide(ROOT, b"d").expect("made");
    let names: Vec<Vec<u8>> = (0..9).map(|n| vec![b'a' + n]).collect();
    for name in &names {
        world.root().file(directory.inode, name).expect("made");
    }
    let before = world.ticket;
    let mut listed = world.root().list(directory.inode);
    listed.sort();
    assert_eq!(listed, names);
    // One request is for the attributes.
    let count = world.ticket - before - 1;
    assert!((9..=4 + 9).contains(&count), "{count} requests");
    for name in names {
        world.root().unlink(directory.inode, &name).expect("removed");
    }
    assert!(world.root().list(directory.inode).is_empty());
}

#[test]
fn no_local_operation_before_the_owner_has_recorded_the_service() {
    let mut world = World::daemons(8);
    let directory = world.root().wide(ROOT, b"d").expect("made");
    let home = world.owner(directory.inode.shard());
    let parent = directory.inode;
    let elsewhere: Vec<[u8; 1]> = (b'a'..=b'z')
        .map(|letter| [letter])
        .filter(|name| {
            let shard = world.shard_of_name(parent, name);
            shard.0 % 8 == 3 && world.owner(shard) != home
        })
        .collect();
    let [first, second, ..] = &*elsewhere else { panic!("too few names: {elsewhere:?}") };
    for name in [first, second] {
        let shard = world.shard_of_name(parent, name);
        let at = world.owner(shard);
        world.step(at, Input::GrantNumbers { shard });
        assert_eq!(world.root().look(parent, name).map(drop), Err(Errno::ENOENT));
        assert_eq!(world.create_by_local_op(parent, name), None, "the owner would not ask here");
    }
    // From the first message on it would.
    world.root().file(parent, first).expect("made");
    assert!(world.create_by_local_op(parent, second).is_some());
    let request = Request::RemoveDirectory { parent: ROOT, name: b"d" };
    let shard = world.shard_of_name(ROOT, b"d");
    world.root().unlink(parent, first).expect("removed");
    let answer = world.call(Credentials::ROOT, shard, &request);
    assert_eq!(answer, Answer::Refused(Errno::ENOTEMPTY));
}

#[test]
fn every_participant_gets_the_commit_after_a_crash_of_the_coordinator() {
    let mut world = World::daemons(8);
    let directory = world.root().wide(ROOT, b"d").expect("made");
    for number in 0..20 {
        let name = [b'a' + number];
        world.root().file(directory.inode, &name).expect("made");
        world.root().unlink(directory.inode, &name).expect("removed");
    }
    world.settle();
    let home = world.owner(directory.inode.shard());
    let request = Request::RemoveDirectory { parent: ROOT, name: b"d" };
    let ticket = world.send(Credentials::ROOT, ShardIndex(0), &request);
    // All votes arrive, and the first commit; the others are lost with the coordinator.
    while world.answer(ticket).is_none() {
        let (to, bytes) = world.queue.remove(0);
        world.step(to, Input::Peer { message: &bytes });
    }
    assert_eq!(world.answer(ticket), Some(Answer::Done));
    world.queue.truncate(1);
    world.settle_for(1);
    world.crash(home);
    world.settle();
    assert_eq!(world.stat(directory.inode), Err(Errno::ESTALE));
    for seat in &world.seats {
        assert_eq!(seat.service.deadline(), None, "something is still under way");
    }
}

/// Concurrent operations on wide directories.
struct Storm {
    world: World,
    random: Random,
    directories: Vec<Attributes>,
    removals: Vec<(u64, usize)>,
    which: usize,
}

impl Storm {
    fn name(&mut self) -> Vec<u8> {
        vec![b'a' + self.random.uniform(NAMES) as u8]
    }

    /// Begins an operation, mostly on one directory for a while.
    fn begin(&mut self) {
        if self.random.chance(5) {
            self.which = self.random.uniform(self.directories.len());
        }
        let which = self.which;
        let (directory, name) = (self.directories[which], self.name());
        let hash = wire::hash::NameHash::of(directory.inode, &name);
        let shard = placement::locate::entry_shard(&directory, hash);
        let (parent, name) = (directory.inode, &*name);
        let root = Credentials::ROOT;
        match self.random.uniform(12) {
            0..=2 => {
                let (device, flags, target) = (0, 0, &b""[..]);
                let (mode, layout) = (mode::REGULAR | 0o644, Layout::default());
                let request = Request::Create { parent, name, mode, device, flags, layout, target };
                self.world.send(root, shard, &request);
            }
            3 => {
                let at = self.world.owner(shard);
                self.world.step(at, Input::GrantNumbers { shard });
                self.world.create_by_local_op(parent, name);
            }
            4..=5 => drop(self.world.send(root, shard, &Request::Lookup { parent, name })),
            6..=9 => drop(self.world.send(root, shard, &Request::Unlink { parent, name })),
            _ => {
                let name = [b'A' + which as u8];
                let shard = self.world.shard_of_name(ROOT, &name);
                let request = Request::RemoveDirectory { parent: ROOT, name: &name };
                self.removals.push((self.world.send(root, shard, &request), which));
            }
        }
    }

    /// A pending operation advances, or not.
    fn go_on(&mut self) {
        let world = &mut self.world;
        if world.queue.is_empty() || self.random.chance(3) {
            world.now += 5_000_000;
            for at in 0..world.seats.len() {
                world.step(at, Input::Tick);
                world.answer_data(at, Ok(()));
            }
            return;
        }
        let which = self.random.uniform(world.queue.len());
        let (to, bytes) = match self.random.uniform(20) {
            0 => world.queue[which].clone(),
            1 => return drop(world.queue.remove(which)),
            _ => world.queue.remove(which),
        };
        world.step(to, Input::Peer { message: &bytes });
    }

    fn play(&mut self) -> usize {
        for _ in 0..2000 {
            if self.random.chance(15) {
                self.begin();
            }
            self.go_on();
            if self.random.uniform(400) == 0 {
                let at = self.random.uniform(self.world.seats.len());
                self.world.crash(at);
            }
        }
        self.world.settle();
        let mut gone = 0;
        for (which, directory) in self.directories.clone().iter().enumerate() {
            let answers = self.removals.iter().filter(|removal| removal.1 == which);
            let is_answered = answers
                .filter_map(|removal| self.world.answer(removal.0))
                .any(|answer| answer == Answer::Done);
            let is_gone = self.world.stat(directory.inode) == Err(Errno::ESTALE);
            assert!(!is_answered || is_gone, "{which} was removed, and is there");
            let mut names = (0..NAMES as u8).map(|n| [b'a' + n]);
            let is_left = names.any(|name| {
                let seats = &self.world.seats;
                seats.iter().any(|seat| seat.service.entry_of(directory.inode, &name).is_some())
            });
            assert!(!is_gone || !is_left, "{which} is removed, but a name in it is not");
            gone += usize::from(is_gone);
        }
        gone
    }
}

/// `count` daemons with wide directories, every other of which was moved away from its inode.
fn storm(seed: u64, count: u16, workers: usize) -> Storm {
    println!("seed={seed}");
    let configs = (0..count * workers as u16).map(|n| {
        let daemon = n / workers as u16;
        let config = config(daemon, count, usize::from(n) % workers, workers);
        Config { spread: spread::WIDE, ..config }
    });
    let mut world = World::of(configs.collect());
    let directories = (0..DIRECTORIES as u8).map(|n| {
        let (old, new) = ([b'0' + n], [b'A' + n]);
        if n % 2 == 0 {
            return world.root().wide(ROOT, &new).expect("made");
        }
        let made = world.root().wide(ROOT, &old).expect("made");
        world.root().rename((ROOT, &old), (ROOT, &new), 0).expect("moved");
        made
    });
    let directories = directories.collect();
    world.settle();
    Storm { world, random: Random(seed), directories, removals: vec![], which: 0 }
}

#[test]
fn nothing_is_left_in_a_removed_directory() {
    let mut gone = 0;
    for seed in 0..SEEDS {
        let (count, workers) = [(6, 1), (8, 2), (24, 1)][seed as usize % 3];
        gone += storm(seed, count, workers).play();
    }
    let all = SEEDS as usize * DIRECTORIES;
    println!("{gone} of {all}");
    assert!(gone > all / 10 && gone < all, "too few removals: {gone} of {all}");
}
