//! Concurrent renames, links, removals and creations over several services: files over files,
//! directories over empty ones and into each other, in home and wide directories, and in directories that
//! are spread meanwhile, of which senders know an older layout. Messages are
//! lost, duplicated and reordered, answers are lost, senders are killed, and services are killed at
//! any effect of any step and return later. After each round there must be an order of the
//! operations, each taking effect at one moment between request and answer, that explains every
//! answer and the final tree (`history`): for a killed sender, until all services know of its end, or
//! never; nothing is left over, and no operation has waited too
//! long. A failure prints its seed.

mod history;
use std::collections::{BTreeMap, BTreeSet};

use crate::sim::faults::Faults;
use crate::sim::simulation::RENAMES;
use crate::sim::writer::Row;
use crate::sim::{Answer, Random, Sent, World, config};
use history::{Op, Outcome, Place, Thing, Tree, Tried, explain};
use metadata::{Config, Input};
use wire::attributes::{mode, spread};
use wire::errno::Errno;
use wire::hash::NameHash;
use wire::request::rename;
use wire::{Attributes, Credentials, Inode, Layout, Request, ShardIndex};

const NAMES: u8 = 5;
/// Pending operations at a time.
const GOING: usize = 6;
/// Directories in use at a time.
const DIRECTORIES: usize = 7;
/// Operations of a round.
const OPERATIONS: usize = 24;
/// Longest wait for an answer, in virtual time: twice the timeout of a request and a restart.
const WAIT_NANOS: i64 = 12_000_000_000;

/// A pending operation.
struct Going {
    op: Op,
    sent_at: u64,
    sent: Sent,
    at: usize,
    since: i64,
    /// `None`: it is to be repeated.
    ticket: Option<u64>,
}

struct Game {
    world: World,
    random: Random,
    tree: Tree,
    /// Initial attributes of all directories ever created.
    directories: BTreeMap<Inode, Attributes>,
    files: BTreeSet<Inode>,
    /// Directories that most operations of this round are about, with their location at its
    /// beginning.
    focus: Vec<(Place, Inode)>,
    going: BTreeMap<u64, Going>,
    history: Vec<Tried>,
    client_id: u64,
    moment: u64,
    faults: Faults,
    counts: BTreeMap<&'static str, u64>,
    longest: i64,
    /// Names in the backing store, if there is one.
    in_backing: BTreeMap<Place, Inode>,
}

/// Outcome of an operation.
fn outcome_of(op: Op, answer: &Answer) -> Outcome {
    match answer {
        Answer::Done => Outcome::Done,
        Answer::Refused(errno) => Outcome::Refused(*errno),
        Answer::Created(made) => Outcome::Made(made.inode),
        Answer::Entry(inode, _) => Outcome::Found(*inode),
        Answer::Attributes(found) => match op {
            Op::Look(_) => Outcome::Found(found.inode),
            _ if found.is_directory() => Outcome::Parent(found.parent),
            _ => Outcome::Links(found.links),
        },
        other => panic!("{op:?}: {other:?}"),
    }
}

fn letter(name: u8) -> [u8; 1] {
    [b'a' + name]
}

impl Game {
    fn new(seed: u64, configs: Vec<Config>) -> Game {
        let mut world = World::of(configs);
        world.settle();
        assert!(world.root().list(Inode::ROOT).is_empty(), "imported: nothing");
        let root = world.stat(Inode::ROOT).expect("there is a root");
        Game {
            world,
            random: Random(seed),
            tree: Tree::new(),
            directories: BTreeMap::from([(Inode::ROOT, root)]),
            files: BTreeSet::new(),
            focus: vec![],
            going: BTreeMap::new(),
            history: vec![],
            client_id: 100,
            moment: 0,
            faults: Faults::new(4, 120, &[0, 3_000_000, 80_000_000, 700_000_000]).moving(),
            counts: BTreeMap::new(),
            longest: 0,
            in_backing: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A name in a directory that exists, existed, or is created in this round.
    fn place(&mut self) -> Place {
        let name = self.random.uniform(NAMES.into()) as u8;
        if !self.focus.is_empty() && self.random.chance(50) {
            return (self.focus[self.random.uniform(self.focus.len())].1, name);
        }
        let alive = self.directories.keys().filter(|inode| self.tree.is_directory(**inode));
        let mut recent: Vec<Inode> = alive.copied().collect();
        let made = self.history.iter().filter_map(|tried| tried.outcome);
        recent.extend(made.filter_map(|outcome| match outcome {
            Outcome::Made(made) if self.directories.contains_key(&made) => Some(made),
            _ => None,
        }));
        let few = recent.len().min(DIRECTORIES);
        (recent[self.random.uniform(few)], name)
    }

    /// Removes one of the few directories, or moves it into another.
    fn op_of_focus(&mut self) -> Op {
        let (at, directory) = self.focus[self.random.uniform(self.focus.len())];
        let into = self.focus[self.random.uniform(self.focus.len())].1;
        let name = self.random.uniform(NAMES.into()) as u8;
        let known: Vec<Place> = self.tree.entries.keys().copied().collect();
        let some = known[self.random.uniform(known.len())];
        match self.random.uniform(12) {
            0..=1 => Op::RemoveDirectory(at),
            2 => Op::Create((directory, name)),
            3 => Op::Unlink((directory, name)),
            4..=5 => Op::Look(at),
            6..=8 => Op::Rename(some, (directory, name), 0),
            _ => Op::Rename(at, (into, name), 0),
        }
    }

    fn op(&mut self) -> Op {
        if !self.focus.is_empty() && self.random.chance(35) {
            return self.op_of_focus();
        }
        let (one, two) = (self.place(), self.place());
        // Mostly existing names.
        let there: Vec<Place> = self.tree.entries.keys().copied().collect();
        let known = match there.len() {
            0 => one,
            _ if self.random.chance(30) => one,
            count => there[self.random.uniform(count)],
        };
        let files: Vec<Inode> = self.files.iter().rev().take(8).copied().collect();
        match self.random.uniform(20) {
            0..=1 => Op::Create(one),
            2..=4 => Op::MakeDirectory(one),
            5 => Op::Unlink(known),
            6..=7 => Op::RemoveDirectory(known),
            8..=9 if !files.is_empty() => Op::Link(files[self.random.uniform(files.len())], two),
            10..=11 => Op::Look(known),
            12 if !files.is_empty() => Op::Stat(files[self.random.uniform(files.len())]),
            13 => Op::Stat(known.0),
            n => {
                let flags = [0, 0, 0, rename::NO_REPLACE, rename::EXCHANGE][n % 5];
                let to = if self.random.chance(40) { two } else { (two.0, known.1) };
                Op::Rename(known, to, flags)
            }
        }
    }

    fn shard(&self, (directory, name): Place) -> ShardIndex {
        let hash = NameHash::of(directory, &letter(name));
        placement::locate::entry_shard(&self.directories[&directory], hash)
    }

    fn spread_of_new(&mut self) -> u8 {
        let config = &self.world.seats[0].config;
        let is_auto = config.spread == spread::AUTO && !config.backing;
        match self.random.uniform(3) {
            0 => spread::WIDE,
            _ if is_auto => spread::AUTO,
            _ => spread::HOME,
        }
    }

    /// An idle client begins an operation.
    fn begin(&mut self) {
        let op = self.op();
        let spread = self.spread_of_new();
        let (mut bytes, other);
        bytes = [0; 1];
        let mut in_place = |(parent, name): Place| {
            bytes = letter(name);
            (parent, self.shard((parent, name)))
        };
        let (device, flags, target) = (0, 1, &b""[..]);
        let layout = match op {
            Op::MakeDirectory(_) => Layout { spread, ..Layout::default() },
            _ => Layout::default(),
        };
        let (request, shard) = match op {
            Op::Create(place) | Op::MakeDirectory(place) => {
                let (parent, shard) = in_place(place);
                let kind = if let Op::Create(_) = op { mode::REGULAR } else { mode::DIRECTORY };
                let (name, mode) = (&bytes[..], kind | 0o755);
                (Request::Create { parent, name, mode, device, flags, layout, target }, shard)
            }
            Op::Unlink(place) => {
                let (parent, shard) = in_place(place);
                (Request::Unlink { parent, name: &bytes }, shard)
            }
            Op::RemoveDirectory(place) => {
                let (parent, shard) = in_place(place);
                (Request::RemoveDirectory { parent, name: &bytes }, shard)
            }
            Op::Look(place) => {
                let (parent, shard) = in_place(place);
                (Request::Lookup { parent, name: &bytes }, shard)
            }
            Op::Link(inode, place) => {
                let (parent, shard) = in_place(place);
                (Request::Link { inode, parent, name: &bytes }, shard)
            }
            Op::Rename(old, new, flags) => {
                let (parent, shard) = in_place(old);
                other = letter(new.1);
                let (new_parent, new_name) = (new.0, &other[..]);
                (Request::Rename { parent, name: &bytes, new_parent, new_name, flags }, shard)
            }
            Op::Stat(inode) => (Request::GetAttributes { inode }, inode.shard()),
        };
        self.client_id += 1;
        let mut sent = self.world.prepare(Credentials::ROOT, shard, &request);
        sent.header.client_id = self.client_id;
        let (at, since) = (self.world.owner(shard), self.world.now);
        self.moment += 1;
        let going = Going { op, sent_at: self.moment, sent, at, since, ticket: None };
        self.going.insert(self.client_id, going);
    }

    /// Sends requests that were not sent, or whose answer was lost.
    fn send(&mut self) {
        let due = self
            .going
            .iter()
            .filter(|(_, going)| going.ticket.is_none() && !self.world.dead.contains(&going.at));
        let due: Vec<u64> = due.map(|(&client_id, _)| client_id).collect();
        if due.is_empty() {
            return;
        }
        let client_id = due[self.random.uniform(due.len())];
        self.faults.maybe_cut(&mut self.world, &mut self.random);
        let Some(going) = self.going.get_mut(&client_id) else { return };
        going.ticket = Some(self.world.send_again(&going.sent));
        self.take_answers();
    }

    fn take_answers(&mut self) {
        // A killed service returns after a while; waiting requests are repeated then.
        let killed = self.faults.note_killed(&self.world, &mut self.random);
        *self.counts.entry("killed").or_default() += killed;
        let answered: Vec<(u64, Answer)> = self
            .going
            .iter()
            .filter_map(|(&client_id, going)| Some((client_id, self.world.answer(going.ticket?)?)))
            .collect();
        for (client_id, answer) in answered {
            let going = self.going.get_mut(&client_id).expect("it is under way");
            if answer == Answer::Busy || self.random.chance(4) {
                going.ticket = None;
                continue;
            }
            let is_elsewhere = answer == Answer::Refused(Errno::EREMCHG);
            if is_elsewhere && self.look_elsewhere(client_id) {
                continue;
            }
            let gone = Answer::Refused(Errno::ENOENT);
            let answer = if is_elsewhere { gone } else { answer };
            let going = self.going.remove(&client_id).expect("it is under way");
            let outcome = outcome_of(going.op, &answer);
            self.longest = self.longest.max(self.world.now - going.since);
            if let Answer::Created(made) = &answer {
                match made.is_directory() {
                    true => drop(self.directories.insert(made.inode, *made)),
                    false => drop(self.files.insert(made.inode)),
                }
            }
            self.note(going, outcome);
        }
        let waiting = self.going.values().filter(|going| going.ticket.is_some());
        for going in waiting {
            if self.world.dead.contains(&going.at) {
                continue;
            }
            let waited = self.world.now - going.since;
            assert!(waited < WAIT_NANOS, "{:?} waits since {waited} ns", going.op);
        }
        let dead = &self.world.dead;
        let lost = self.going.values_mut().filter(|going| dead.contains(&going.at));
        lost.for_each(|going| going.ticket = None);
    }

    /// The name of an operation is not where the layout said that its sender knew: it is sent again by
    /// the layout that the directory has now. False: the directory is gone.
    fn look_elsewhere(&mut self, client_id: u64) -> bool {
        self.count("elsewhere");
        let going = self.going.get_mut(&client_id).expect("it is under way");
        let place = match going.op {
            Op::Create(at) | Op::MakeDirectory(at) | Op::Unlink(at) | Op::RemoveDirectory(at) => at,
            Op::Look(at) | Op::Link(_, at) | Op::Rename(at, ..) => at,
            Op::Stat(_) => panic!("it has no name"),
        };
        going.ticket = None;
        let owner = self.world.owner(place.0.shard());
        if self.world.dead.contains(&owner) {
            return true;
        }
        let Some(now) = self.world.seats[owner].service.attributes_of(place.0) else {
            return false;
        };
        self.directories.insert(place.0, now);
        let shard = self.shard(place);
        let at = self.world.owner(shard);
        let config = &self.world.seats[at].config;
        let going = self.going.get_mut(&client_id).expect("it is under way");
        let header = &mut going.sent.header;
        (header.shard, header.daemon, header.host) = (shard.0, config.daemon.0, config.host);
        going.at = at;
        true
    }

    fn note(&mut self, going: Going, outcome: Outcome) {
        self.moment += 1;
        let (op, sent_at) = (going.op, going.sent_at);
        self.count(match (op, outcome) {
            (Op::Rename(..), Outcome::Done) => "renamed",
            (Op::Rename(..), Outcome::Refused(Errno::EINVAL)) => "no cycle",
            (Op::Link(..), Outcome::Done) => "linked",
            (Op::RemoveDirectory(..), Outcome::Done) => "removed",
            (_, Outcome::Refused(_)) => "refused",
            _ => "others",
        });
        let (ended_at, outcome) = (self.moment, Some(outcome));
        self.history.push(Tried { op, sent_at, ended_at, outcome });
    }

    /// A sender is killed, unless it creates an inode: its number would be unknown.
    fn kill_sender(&mut self) {
        let all: Vec<u64> = self.going.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let client_id = all[self.random.uniform(all.len())];
        let going = &self.going[&client_id];
        if matches!(going.op, Op::Create(_) | Op::MakeDirectory(_)) {
            return;
        }
        let (op, sent_at) = (going.op, going.sent_at);
        self.going.remove(&client_id);
        self.count("sender killed");
        for at in 0..self.world.seats.len() {
            self.world.step(at, Input::ClientGone { first: client_id, count: 1 });
        }
        self.moment += 1;
        self.history.push(Tried { op, sent_at, ended_at: self.moment, outcome: None });
    }

    fn pass(&mut self, nanos: i64) {
        self.faults.pass(&mut self.world, &mut self.random, nanos);
    }

    fn turn(&mut self, left: &mut usize) {
        match self.random.uniform(100) {
            0..=11 if *left > 0 && self.going.len() < GOING => {
                *left -= 1;
                self.begin();
            }
            0..=24 => self.send(),
            25..=79 => self.faults.deliver(&mut self.world, &mut self.random),
            80 if self.random.chance(10) => self.kill_sender(),
            81..=82 => self.pass(20_000_000),
            _ => {
                let nanos = self.random.uniform(1_000_000) as i64;
                self.pass(nanos);
            }
        }
        self.world.cut = None;
        self.take_answers();
    }

    fn round(&mut self) {
        let mut left = OPERATIONS;
        let is_directory = |(_, inode): &(&Place, &Inode)| self.tree.is_directory(**inode);
        let there: Vec<(Place, Inode)> = self
            .tree
            .entries
            .iter()
            .filter(is_directory)
            .map(|(&at, &inode)| (at, inode))
            .collect();
        self.focus = match there.len() {
            0 => vec![],
            count => (0..3).map(|_| there[self.random.uniform(count)]).collect(),
        };
        while left > 0 || !self.going.is_empty() {
            self.turn(&mut left);
        }
        self.faults.end(&mut self.world);
        let end = self.look();
        let history = core::mem::take(&mut self.history);
        if let Err(why) = explain(&self.tree, &history, &end) {
            panic!("no order explains it:\n{why}");
        }
        self.tree = end;
        self.check_spread();
        if self.world.seats.iter().all(|seat| seat.config.backing) {
            self.compare_dirty();
        }
    }

    /// Directories that have had enough names are wide when nothing is under way.
    fn check_spread(&mut self) {
        let least = self.world.seats[0].config.widen_entries as usize;
        for &inode in self.tree.things.keys() {
            let owner = &self.world.seats[self.world.owner(inode.shard())];
            let Some(found) = owner.service.attributes_of(inode) else { continue };
            if found.is_directory() && found.layout.spread & spread::AUTO != 0 {
                let count = self.tree.entries.range((inode, 0)..=(inode, u8::MAX)).count();
                let (now, steps) = (found.layout.spread, spread::steps(found.layout.spread));
                assert!(steps == 0 || spread::is_wide(now), "{inode:?} stays after {steps} steps");
                assert!(steps != 0 || count < least, "{inode:?} has {count} names at home");
                *self.counts.entry("spread").or_default() += u64::from(steps != 0);
            }
        }
    }

    /// Dirty names are those that differ from the backing store; some of them are written back.
    fn compare_dirty(&mut self) {
        let here = &self.tree.entries;
        let places: BTreeSet<&Place> = here.keys().chain(self.in_backing.keys()).collect();
        let of = |tree: &BTreeMap<Place, Inode>, place| tree.get(place).copied();
        let pairs =
            places.iter().map(|&place| (*place, of(here, place), of(&self.in_backing, place)));
        let right: BTreeMap<Place, (Inode, Inode)> = pairs
            .filter(|(_, entry, location)| entry != location)
            .map(|(place, entry, location)| {
                (place, (entry.unwrap_or_default(), location.unwrap_or_default()))
            })
            .collect();
        let rows = self.world.dirty_names();
        let place = |row: &Row| (row.parent, row.name[0] - letter(0)[0]);
        let found = rows.iter().map(|row| (place(row), (row.entry, row.backed_inode)));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), right);
        assert_eq!(rows.len(), right.len(), "each by one service");
        for row in rows {
            if self.random.chance(50) {
                let (parent, name, to) = (row.parent, &row.name[..], row.entry);
                let request = Request::NameWritten { parent, name, from: row.backed_inode, to };
                let shard = self.world.address(row.at);
                self.world.tell_shard(shard, &request).expect("reported");
                match to.is_none() {
                    true => drop(self.in_backing.remove(&place(&row))),
                    false => drop(self.in_backing.insert(place(&row), to)),
                }
                self.count("saved");
            }
        }
    }

    /// The whole tree, when no operation is pending.
    fn look(&self) -> Tree {
        let seats = &self.world.seats;
        let mut tree = Tree { entries: BTreeMap::new(), things: BTreeMap::new() };
        for seat in seats {
            assert_eq!(seat.service.deadline(), None, "nothing is under way");
            for &directory in self.directories.keys() {
                for name in 0..NAMES {
                    if let Some(found) = seat.service.entry_of(directory, &letter(name)) {
                        let before = tree.entries.insert((directory, name), found);
                        assert_eq!(before, None, "a name at two services");
                    }
                }
            }
            for &inode in self.directories.keys().chain(&self.files) {
                let Some(found) = seat.service.attributes_of(inode) else { continue };
                let is_directory = found.is_directory();
                let links = if is_directory { 0 } else { found.links };
                let parent = is_directory.then_some(found.parent);
                tree.things.insert(inode, Thing { parent, links });
            }
        }
        let count: u64 = seats.iter().map(|seat| seat.service.inode_count()).sum();
        assert_eq!(count, tree.things.len() as u64, "an inode is left over");
        for (&inode, thing) in &tree.things {
            let owner = &seats[self.world.owner(inode.shard())].service;
            let found = owner.attributes_of(inode).expect("it is there");
            if thing.parent.is_some() {
                let children: Vec<Inode> =
                    tree.entries.range((inode, 0)..=(inode, u8::MAX)).map(|(_, &i)| i).collect();
                let directories =
                    children.iter().filter(|inode| tree.is_directory(**inode)).count();
                let counted = (found.size, found.links as usize);
                assert_eq!(counted, (children.len() as u64, 2 + directories), "{inode:?}");
            }
        }
        tree
    }
}

fn configs(which: u64) -> Vec<Config> {
    let mut configs = configs_without_backing(which);
    configs.iter_mut().for_each(|config| config.backing = which.is_multiple_of(2));
    configs
}

fn configs_without_backing(which: u64) -> Vec<Config> {
    if which % 4 == 3 {
        // Messages take much longer here than between daemons.
        let (widen_entries, widen_nanos) = (2, 300_000_000);
        let auto = |config| Config { spread: spread::AUTO, widen_entries, widen_nanos, ..config };
        return (0..3).map(|daemon| auto(config(daemon, 3, 0, 1))).collect();
    }
    match which % 3 {
        0 => (0..3).map(|daemon| config(daemon, 3, 0, 1)).collect(),
        1 => (0..4).map(|n| config(n / 2, 2, usize::from(n % 2), 2)).collect(),
        _ => (0..5)
            .map(|daemon| Config { spread: spread::WIDE, ..config(daemon, 5, 0, 1) })
            .collect(),
    }
}

#[test]
fn every_operation_is_linearizable() {
    let mut longest = 0;
    let mut counts = BTreeMap::<&str, u64>::new();
    let seeds = RENAMES.run(|seed| {
        let mut game = Game::new(seed, configs(seed));
        for _ in 0..60 {
            game.round();
        }
        longest = longest.max(game.longest);
        game.counts.iter().for_each(|(what, count)| *counts.entry(what).or_default() += count);
        game.world.steps
    });
    println!("{counts:?}, longest wait {} ms", longest / 1_000_000);
    for (what, least) in [
        ("renamed", 20),
        ("no cycle", 1),
        ("linked", 10),
        ("killed", 10),
        ("saved", 9),
        ("spread", 1),
    ] {
        let count = counts.get(what).copied().unwrap_or(0);
        assert!(count >= least * seeds, "hardly anything is {what}: {count}");
    }
}
