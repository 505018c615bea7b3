//! What others change in the backing directory: noticed after a term, never over what is unsaved here;
//! answers that come late, or never; with crashes and several services.

mod kit;

use kit::below::{Found, Lying, MODIFIED};
use kit::{Answer, Random, World, config};
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use wire::attributes::{flag, mode, spread};
use wire::below::{Lies, Stamp, Version};
use wire::errno::Errno;
use wire::request::set;
use wire::{Attributes, Credentials, Inode, Request};

const TERM: i64 = 1_000_000_000;

/// A world of so many daemons over a directory `d` with files in it.
fn world(daemons: u16) -> World {
    let configs = (0..daemons).map(|daemon| {
        let mut config = config(daemon, daemons, 0, 1);
        (config.backing, config.spread, config.look_nanos) = (true, spread::WIDE, TERM);
        config
    });
    let mut world = World::of(configs.collect());
    world.backing.part = 2;
    world.backing.directory(b"d");
    for (name, size) in [("x", 10), ("y", 20), ("z", 30)] {
        world.backing.file(format!("d/{name}").as_bytes(), size);
    }
    world
}

fn directory(world: &mut World) -> Inode {
    let d = world.root().look(Inode::ROOT, b"d").expect("it lies below").inode;
    assert_eq!(world.root().list(d).len(), 3, "brought in");
    d
}

/// Another file by this name.
fn replace(world: &mut World, path: &str, size: u64) {
    world.backing.tree.remove(path.as_bytes());
    world.backing.file(path.as_bytes(), size);
}

fn looked(world: &mut World, parent: Inode, name: &[u8]) -> Result<(Inode, u64), Errno> {
    world.root().look(parent, name).map(|found| (found.inode, found.size))
}

#[test]
fn what_others_replace_remove_and_make_is_seen_after_the_term() {
    for daemons in [1, 2, 4] {
        let mut world = world(daemons);
        let d = directory(&mut world);
        let (x, size) = looked(&mut world, d, b"x").expect("there");
        assert_eq!((size, looked(&mut world, d, b"new")), (10, Err(Errno::ENOENT)));
        replace(&mut world, "d/x", 11);
        world.backing.tree.remove(&b"d/y"[..]);
        world.backing.file(b"d/new", 5);
        world.now += TERM;
        let (other, size) = looked(&mut world, d, b"x").expect("there");
        assert_eq!((size, other == x), (11, false), "another inode");
        assert_eq!(world.stat(x), Err(Errno::ESTALE), "nobody has it open");
        assert_eq!(looked(&mut world, d, b"y"), Err(Errno::ENOENT));
        let (new, size) = looked(&mut world, d, b"new").expect("there");
        assert_eq!((size, new.is_from_below()), (5, true));
        let mut names = world.root().list(d);
        names.sort();
        assert_eq!(names, [&b"new"[..], b"x", b"z"]);
        world.settle();
        assert_eq!(world.stat(d).expect("there").size, 3, "names are counted");
        assert_eq!(world.below_of(other).expect("below").2, b"d/x");
        for at in 0..world.seats.len() {
            world.crash(at);
        }
        assert_eq!(looked(&mut world, d, b"x"), Ok((other, 11)), "after a crash, too");
        assert_eq!(looked(&mut world, d, b"y"), Err(Errno::ENOENT));
        assert_eq!(looked(&mut world, d, b"new"), Ok((new, 5)));
        // What is gone may come back, as something else.
        world.backing.directory(b"d/y");
        world.backing.file(b"d/y/in", 3);
        world.now += TERM;
        let y = world.root().look(d, b"y").expect("there");
        assert_eq!(y.mode & mode::TYPE, mode::DIRECTORY);
        assert_eq!(looked(&mut world, y.inode, b"in").map(|found| found.1), Ok(3));
    }
}

#[test]
fn within_the_term_nobody_looks() {
    let mut world = world(1);
    let d = directory(&mut world);
    let lookup = Request::Lookup { parent: d, name: b"x" };
    world.now += TERM;
    let before = world.backing.looked;
    let ask = |world: &mut World| world.send(Credentials::ROOT, d.shard(), &lookup);
    let tickets = [ask(&mut world), ask(&mut world)];
    assert_eq!(world.backing.looks.len(), 1, "one look for all who come meanwhile");
    assert!(tickets.iter().all(|ticket| world.answer(*ticket).is_none()));
    assert!(world.answer_look(None));
    assert!(tickets.iter().all(|ticket| world.answer(*ticket).is_some()));
    let third = ask(&mut world);
    assert!(world.answer(third).is_some() && world.backing.looked == before + 1);
    world.now += TERM;
    ask(&mut world);
    assert_eq!(world.backing.looks.len(), 1, "the term is over");
}

#[test]
fn what_is_unsaved_here_stays_whatever_others_do() {
    let mut world = world(2);
    let d = directory(&mut world);
    let [x, y] = [b"x", b"y"].map(|name| looked(&mut world, d, name).expect("there").0);
    world.root().truncate(x, 4).expect("cut");
    world.root().unlink(d, b"y").expect("removed");
    world.root().file(d, b"made").expect("made");
    replace(&mut world, "d/x", 77);
    replace(&mut world, "d/y", 78);
    replace(&mut world, "d/made", 79);
    world.now += 3 * TERM;
    assert_eq!(looked(&mut world, d, b"x"), Ok((x, 4)));
    assert_eq!(looked(&mut world, d, b"y"), Err(Errno::ENOENT));
    assert_eq!(looked(&mut world, d, b"made").map(|found| found.1), Ok(0));
    let _ = y;
}

#[test]
fn an_answer_that_comes_after_a_change_here_is_dropped() {
    let mut world = world(1);
    let d = directory(&mut world);
    let (x, _) = looked(&mut world, d, b"x").expect("there");
    world.now += TERM;
    world.data_is_prompt = false;
    let lookup = Request::Lookup { parent: d, name: b"x" };
    let ticket = world.send(Credentials::ROOT, d.shard(), &lookup);
    assert_eq!(world.backing.looks.len(), 1);
    let change = Attributes { mode: 0o600, ..Attributes::default() };
    world.root().set(x, set::MODE, change).expect("changed");
    world.backing.tree.remove(&b"d/x"[..]);
    assert!(world.answer_look(None));
    let Some(Answer::Attributes(found)) = world.answer(ticket) else { panic!("it stays") };
    assert_eq!(found.inode, x);
}

#[test]
fn a_look_without_an_answer_keeps_nobody() {
    let mut world = world(1);
    let d = directory(&mut world);
    let (x, _) = looked(&mut world, d, b"x").expect("there");
    replace(&mut world, "d/x", 11);
    world.now += TERM;
    world.data_is_prompt = false;
    let of = |name: &'static [u8]| Request::Lookup { parent: d, name };
    let first = world.send(Credentials::ROOT, d.shard(), &of(b"x"));
    assert_eq!(world.answer(first), None);
    world.now += TERM;
    world.step(0, metadata::Input::Tick);
    let inode_in = |answer: Option<Answer>| match answer {
        Some(Answer::Attributes(found)) => found.inode,
        other => panic!("{other:?}"),
    };
    assert_eq!(inode_in(world.answer(first)), x, "what is here");
    let second = world.send(Credentials::ROOT, d.shard(), &of(b"y"));
    assert!(world.answer(second).is_some(), "nobody else waits");
    assert_eq!(world.backing.looks.len(), 1, "nor looks");
    assert!(world.answer_look(None));
    world.now += TERM;
    world.step(0, metadata::Input::Tick);
    let third = world.send(Credentials::ROOT, d.shard(), &of(b"x"));
    assert_ne!(inode_in(world.answer(third)), x, "it came late and counts");
}

#[test]
fn where_a_directory_is_not_found_its_names_stay() {
    let mut world = world(2);
    let d = directory(&mut world);
    let (x, _) = looked(&mut world, d, b"x").expect("there");
    world.backing.rename(b"d", b"moved");
    world.backing.directory(b"d");
    world.now += TERM;
    assert_eq!(looked(&mut world, d, b"x"), Ok((x, 10)), "the new one is another directory");
    world.backing.tree.remove(&b"d"[..]);
    world.now += TERM;
    assert_eq!(looked(&mut world, d, b"x"), Ok((x, 10)));
}

fn listed(world: &mut World, directory: Inode) -> Vec<String> {
    let mut names = world.root().list(directory);
    names.sort();
    names.into_iter().map(|name| String::from_utf8(name).expect("letters")).collect()
}

/// As who changes names of a directory does.
fn touch(world: &mut World) {
    world.backing.times.insert(b"d".to_vec(), world.now);
}

#[test]
fn within_the_term_a_directory_is_not_asked_for() {
    let mut world = world(1);
    let d = directory(&mut world);
    let list = Request::ReadDirectory { directory: d, after: 0, bytes: 4096 };
    world.now += TERM;
    let (looked, read) = (world.backing.looked, world.backing.count);
    let ask = |world: &mut World| world.send(Credentials::ROOT, d.shard(), &list);
    let tickets = [ask(&mut world), ask(&mut world)];
    assert_eq!(world.backing.looks.len(), 1, "one question for all who come meanwhile");
    assert!(tickets.iter().all(|ticket| world.answer(*ticket).is_none()));
    assert!(world.answer_look(None));
    assert!(tickets.iter().all(|ticket| world.answer(*ticket).is_some()));
    let third = ask(&mut world);
    assert!(world.answer(third).is_some() && world.backing.looked == looked + 1);
    assert_eq!(world.backing.count, read, "nothing changed there since it was read");
    world.now += TERM;
    ask(&mut world);
    assert_eq!(world.backing.looks.len(), 1, "the term is over");
}

#[test]
fn what_others_make_and_remove_is_listed_after_the_term() {
    for daemons in [1, 2, 4] {
        let mut world = world(daemons);
        let d = directory(&mut world);
        world.now += TERM;
        let reads = world.backing.count;
        assert_eq!(listed(&mut world, d), ["x", "y", "z"]);
        assert_eq!(world.backing.count, reads, "nothing changed there since it was read");
        world.backing.file(b"d/new", 5);
        world.backing.directory(b"d/newer");
        world.backing.tree.remove(&b"d/y"[..]);
        touch(&mut world);
        world.now += TERM;
        assert_eq!(listed(&mut world, d), ["new", "newer", "x", "z"]);
        // In the same tick of that clock.
        world.backing.file(b"d/newest", 5);
        world.now += TERM;
        assert_eq!(listed(&mut world, d), ["new", "newer", "newest", "x", "z"]);
        world.now += 4 * TERM;
        listed(&mut world, d);
        let reads = world.backing.count;
        world.now += TERM;
        assert_eq!(listed(&mut world, d).len(), 5);
        assert_eq!(world.backing.count, reads, "all of that tick is known");
        world.settle();
        assert_eq!(world.stat(d).expect("there").size, 5, "names are counted");
        for at in 0..world.seats.len() {
            world.crash(at);
        }
        world.backing.tree.remove(&b"d/newer"[..]);
        world.backing.tree.remove(&b"d/new"[..]);
        touch(&mut world);
        let left = ["newer", "newest", "x", "z"];
        assert_eq!(listed(&mut world, d), left, "after a crash; directories stay");
    }
}

#[test]
fn a_listing_leaves_what_is_unsaved_here() {
    let mut world = world(2);
    let d = directory(&mut world);
    let x = looked(&mut world, d, b"x").expect("there").0;
    world.root().truncate(x, 4).expect("cut");
    world.root().unlink(d, b"y").expect("removed");
    world.root().file(d, b"made").expect("made");
    world.backing.tree.remove(&b"d/x"[..]);
    touch(&mut world);
    world.now += TERM;
    assert_eq!(listed(&mut world, d), ["made", "x", "z"]);
}

#[test]
fn a_name_that_was_missed_within_the_term_is_listed() {
    let mut world = world(1);
    let d = directory(&mut world);
    world.now += TERM;
    assert_eq!(looked(&mut world, d, b"new"), Err(Errno::ENOENT));
    world.backing.file(b"d/new", 5);
    touch(&mut world);
    assert_eq!(listed(&mut world, d), ["new", "x", "y", "z"]);
    assert_eq!(looked(&mut world, d, b"new").map(|found| found.1), Ok(5));
}

#[test]
fn many_new_names_are_listed() {
    let mut world = world(1);
    let d = directory(&mut world);
    for number in 0..300 {
        world.backing.file(format!("d/{number}").as_bytes(), number);
    }
    touch(&mut world);
    world.now += TERM;
    assert_eq!(listed(&mut world, d).len(), 303);
}

/// The term is over, there is a new name below, and nobody answers by himself; how to list.
fn with_news() -> (World, Inode, Request<'static>) {
    let mut world = world(1);
    let d = directory(&mut world);
    world.backing.file(b"d/new", 5);
    touch(&mut world);
    world.now += TERM;
    world.data_is_prompt = false;
    let list = Request::ReadDirectory { directory: d, after: 0, bytes: 4096 };
    (world, d, list)
}

fn count_listed(world: &World, ticket: u64) -> usize {
    match world.answer(ticket) {
        Some(Answer::Entries(false, entries, _)) => entries.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_that_does_not_answer_keeps_no_listing() {
    let (mut world, d, list) = with_news();
    let names = |world: &mut World, is_told: bool| {
        let ticket = world.send(Credentials::ROOT, d.shard(), &list);
        assert_eq!(world.answer(ticket), None);
        if is_told {
            assert!(world.answer_look(None));
        }
        world.now += 2 * TERM;
        world.step(0, metadata::Input::Tick);
        count_listed(world, ticket)
    };
    assert_eq!(names(&mut world, false), 3, "its time is not told");
    assert!(world.answer_look(None));
    assert!(world.answer_below(1), "in parts");
    assert!(!world.answer_below(1));
}

#[test]
fn what_was_read_too_late_is_for_the_next_listing() {
    let (mut world, d, list) = with_news();
    let ask = |world: &mut World| world.send(Credentials::ROOT, d.shard(), &list);
    let first = ask(&mut world);
    assert!(world.answer_look(None));
    world.now += 2 * TERM;
    world.step(0, metadata::Input::Tick);
    assert_eq!(count_listed(&world, first), 3, "its names are being read");
    assert!(world.answer_below(usize::MAX));
    world.now += 3 * TERM;
    let second = ask(&mut world);
    assert_eq!(count_listed(&world, second), 3, "nobody waits any more");
    assert!(world.answer_look(None), "but it is looked for");
    let third = ask(&mut world);
    assert_eq!(count_listed(&world, third), 4);
}

/// What became of a name here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Here {
    AsBelow,
    /// Changed here and not saved.
    Changed(Inode),
    /// Made here. `true`: nothing was known to lie there.
    Made(Inode, bool),
    Removed,
}

struct Changes {
    world: World,
    d: Inode,
    names: Vec<Vec<u8>>,
    here: BTreeMap<Vec<u8>, Here>,
    /// All sizes that a name ever had below.
    sizes: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// What looks that are under way saw.
    seen: Vec<Option<Found>>,
    next: u64,
}

impl Changes {
    fn new() -> Changes {
        let mut world = world(1);
        let d = directory(&mut world);
        world.data_is_prompt = false;
        let names: Vec<Vec<u8>> = ["x", "y", "z", "v", "w"].map(|it| it.into()).to_vec();
        let here = names.iter().map(|name| (name.clone(), Here::AsBelow)).collect();
        let mut sizes: BTreeMap<Vec<u8>, BTreeSet<u64>> = BTreeMap::new();
        for (name, size) in [("x", 10), ("y", 20), ("z", 30)] {
            sizes.entry(name.into()).or_default().insert(size);
        }
        Changes { world, d, names, here, sizes, seen: vec![], next: 100 }
    }

    /// Those who look now see what lies there now, and tell it later.
    fn see(&mut self) {
        for at in self.seen.len()..self.world.backing.looks.len() {
            let (_, _, place, name) = self.world.backing.looks[at].clone();
            self.seen.push(Some(self.world.found_below(&place, &name)));
        }
    }

    fn answer_one(&mut self) -> bool {
        self.see();
        if self.seen.is_empty() {
            return false;
        }
        let seen = self.seen.remove(0);
        self.world.answer_look(seen)
    }

    fn ask(&mut self, request: &Request<'_>) -> Answer {
        let ticket = self.world.send(Credentials::ROOT, self.d.shard(), request);
        self.see();
        for _ in 0..100 {
            if let Some(answer) = self.world.answer(ticket) {
                return answer;
            }
            if !self.answer_one() && !self.world.answer_below(usize::MAX) {
                self.world.now += TERM / 10;
                self.world.step(0, metadata::Input::Tick);
            }
        }
        panic!("no answer to {request:?}");
    }

    fn list(&mut self) -> BTreeSet<Vec<u8>> {
        let directory = self.d;
        match self.ask(&Request::ReadDirectory { directory, after: 0, bytes: 4096 }) {
            Answer::Entries(false, entries, _) => entries.into_iter().map(|it| it.3).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// A listing is of what was made or removed here, and of names that were there below at some time.
    fn list_some(&mut self) {
        let names = self.list();
        for (name, here) in &self.here {
            match here {
                Here::AsBelow => {
                    let was_there = self.sizes.contains_key(name);
                    assert!(was_there || !names.contains(name), "it never was: {name:?}");
                }
                Here::Changed(_) | Here::Made(..) => assert!(names.contains(name), "{name:?}"),
                Here::Removed => assert!(!names.contains(name), "{name:?} came back"),
            }
        }
    }

    fn look(&mut self, name: &[u8]) -> Option<Attributes> {
        let found = match self.ask(&Request::Lookup { parent: self.d, name }) {
            Answer::Attributes(found) => Some(found),
            Answer::Refused(Errno::ENOENT) => None,
            other => panic!("{other:?}"),
        };
        let inode = found.map(|found| found.inode);
        match self.here[name] {
            Here::AsBelow => {
                let sizes = self.sizes.get(name);
                let is_one = |it: Attributes| sizes.is_some_and(|all| all.contains(&it.size));
                assert!(found.is_none_or(is_one), "a size that it never had: {found:?}");
            }
            Here::Changed(known) | Here::Made(known, _) => assert_eq!(inode, Some(known)),
            Here::Removed => assert_eq!(inode, None, "it came back"),
        }
        found
    }

    fn change_below(&mut self, random: &mut Random, name: &[u8]) {
        let path = [b"d/", name].concat();
        self.world.backing.tree.remove(&path);
        self.world.backing.times.insert(b"d".to_vec(), self.world.now);
        if random.chance(70) {
            self.next += 1;
            self.world.backing.file(&path, self.next);
            self.sizes.entry(name.to_vec()).or_default().insert(self.next);
        }
    }

    fn make(&mut self, name: &[u8]) {
        let layout = wire::Layout { flags: flag::INLINE, ..wire::Layout::default() };
        let mode = mode::REGULAR | 0o600;
        let parent = self.d;
        let made = self.ask(&Request::Create {
            parent,
            name,
            mode,
            device: 0,
            flags: 1,
            layout,
            target: b"",
        });
        let Answer::Created(made) = made else { return };
        let is_nothing = self.here[name] == Here::AsBelow;
        self.here.insert(name.to_vec(), Here::Made(made.inode, is_nothing));
    }

    fn remove(&mut self, name: &[u8]) {
        if self.ask(&Request::Unlink { parent: self.d, name }) != Answer::Done {
            return;
        }
        let after = match self.here[name] {
            Here::Made(_, true) => Here::AsBelow,
            _ => Here::Removed,
        };
        self.here.insert(name.to_vec(), after);
    }

    fn chmod(&mut self, name: &[u8]) {
        let Some(found) = self.look(name) else { return };
        let inode = found.inode;
        let request = Request::SetAttributes {
            inode,
            mask: set::MODE,
            mode: 0o640,
            uid: 0,
            gid: 0,
            size: 0,
            accessed: 0,
            modified: 0,
        };
        if let Answer::Refused(errno) = self.ask(&request) {
            assert_eq!(errno, Errno::ESTALE, "it went meanwhile");
        } else if self.here[name] == Here::AsBelow {
            self.here.insert(name.to_vec(), Here::Changed(inode));
        }
    }

    /// As the writer does, where nothing was known to lie and nothing does.
    fn save(&mut self, name: &[u8]) {
        let path = [b"d/", name].concat();
        let Here::Made(inode, true) = self.here[name] else { return };
        let Some(found) = self.look(name).filter(|_| !self.world.backing.tree.contains_key(&path))
        else {
            return;
        };
        let number = self.world.backing.new_number();
        let version = Version { number, modified: MODIFIED, size: 0 };
        let stamp = Stamp::of(&found);
        let lies = Lies { parent: self.d, name, version, counts: 0, stamp };
        assert_eq!(self.ask(&Request::Saving { inode, lies }), Answer::Done);
        let lying = Lying { mode: mode::REGULAR | 0o600, size: 0, number };
        self.world.backing.tree.insert(path, lying);
        self.world.backing.times.insert(b"d".to_vec(), self.world.now);
        let saved = Request::Saved { parent: self.d, name, from: Inode::NONE, to: inode };
        assert_eq!(self.ask(&saved), Answer::Done);
        assert_eq!(self.look(name).map(|found| found.inode), Some(inode));
        assert_eq!(self.ask(&Request::Wrote { inode, lies }), Answer::Done);
        // A look that saw nothing there yet may be on its way.
        assert_eq!(self.look(name).map(|found| found.inode), Some(inode));
        self.sizes.entry(name.to_vec()).or_default().insert(0);
        self.here.insert(name.to_vec(), Here::AsBelow);
    }

    fn do_something(&mut self, random: &mut Random) {
        let name = self.names[random.below(self.names.len())].clone();
        match random.below(16) {
            14.. => self.save(&name),
            0..3 => self.change_below(random, &name),
            3 => self.make(&name),
            4 => self.remove(&name),
            5 => self.chmod(&name),
            6 => {
                // Nobody waits for this one.
                let lookup = Request::Lookup { parent: self.d, name: &name };
                self.world.send(Credentials::ROOT, self.d.shard(), &lookup);
                self.see();
            }
            7 => drop(self.answer_one()),
            8 => {
                self.world.crash(0);
                self.seen.clear();
            }
            9 => {
                self.world.now += TERM / 2;
                self.world.step(0, metadata::Input::Tick);
            }
            10..12 => self.list_some(),
            _ => drop(self.look(&name)),
        }
    }

    /// After the term, with quiet, each name is what lies below, or what was made of it here.
    fn end(&mut self) {
        while self.answer_one() || self.world.answer_below(usize::MAX) {}
        self.world.now += 6 * TERM;
        self.world.step(0, metadata::Input::Tick);
        let names = self.list();
        for name in self.names.iter().filter(|name| self.here[*name] == Here::AsBelow) {
            let lies = self.world.backing.tree.contains_key(&[b"d/", &name[..]].concat());
            assert_eq!(names.contains(name), lies, "{}", String::from_utf8_lossy(name));
        }
        for name in self.names.clone() {
            let found = self.look(&name);
            if self.here[&name] == Here::AsBelow {
                let lies = self.world.backing.tree.get(&[b"d/", &name[..]].concat());
                let (size, expected) = (found.map(|it| it.size), lies.map(|it| it.size));
                assert_eq!(size, expected, "{}", String::from_utf8_lossy(&name));
            }
        }
    }
}

#[test]
fn random_changes_below_are_seen_and_none_here_is_lost() {
    let first = std::env::var("SEED").map_or(1, |seed| seed.parse().expect("a number"));
    for seed in first..first + 400 {
        println!("SEED={seed}");
        let mut random = Random(seed);
        let mut all = Changes::new();
        for _ in 0..120 {
            all.do_something(&mut random);
        }
        all.end();
    }
}
