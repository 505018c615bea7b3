//! Changes by others in the backing store: noticed after a term, never at the cost of dirty names
//! here; answers that are late, or never come; with crashes and several services.

use crate::sim::backing::{BackingFile, Found, MODIFIED};
use crate::sim::{Answer, Random, World, config};
use metadata::IndexOp;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use wire::attributes::{flag, mode, spread};
use wire::backing::{BackingLocation, Stamp, Version};
use wire::errno::Errno;
use wire::request::set;
use wire::{Attributes, Credentials, Inode, Request};

const TERM: i64 = 1_000_000_000;

/// A world of `daemons` daemons over a directory `d` with files in it.
fn world(daemons: u16) -> World {
    let configs = (0..daemons).map(|daemon| {
        let mut config = config(daemon, daemons, 0, 1);
        (config.backing, config.spread, config.revalidate_nanos) = (true, spread::WIDE, TERM);
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
    let d = world.root().look(Inode::ROOT, b"d").expect("it is in the backing store").inode;
    assert_eq!(world.root().list(d).len(), 3, "imported");
    d
}

/// Replaces the file by this name with another.
fn replace(world: &mut World, path: &str, size: u64) {
    world.backing.tree.remove(path.as_bytes());
    world.backing.file(path.as_bytes(), size);
}

fn probe_count(world: &mut World, parent: Inode, name: &[u8]) -> Result<(Inode, u64), Errno> {
    world.root().look(parent, name).map(|found| (found.inode, found.size))
}

#[test]
fn files_replaced_removed_and_created_by_others_are_seen_after_the_term() {
    for daemons in [1, 2, 4] {
        let mut world = world(daemons);
        let d = directory(&mut world);
        let (x, size) = probe_count(&mut world, d, b"x").expect("there");
        assert_eq!((size, probe_count(&mut world, d, b"new")), (10, Err(Errno::ENOENT)));
        replace(&mut world, "d/x", 11);
        world.backing.tree.remove(&b"d/y"[..]);
        world.backing.file(b"d/new", 5);
        world.now += TERM;
        let (other, size) = probe_count(&mut world, d, b"x").expect("there");
        assert_eq!((size, other == x), (11, false), "another inode");
        assert_eq!(world.stat(x), Err(Errno::ESTALE), "it is not open");
        assert_eq!(probe_count(&mut world, d, b"y"), Err(Errno::ENOENT));
        let (new, size) = probe_count(&mut world, d, b"new").expect("there");
        assert_eq!((size, new.is_backed()), (5, true));
        let mut names = world.root().list(d);
        names.sort();
        assert_eq!(names, [&b"new"[..], b"x", b"z"]);
        world.settle();
        assert_eq!(world.stat(d).expect("there").size, 3, "names are counted");
        assert_eq!(world.backing_file_of(other).expect("in the backing store").2, b"d/x");
        for at in 0..world.seats.len() {
            world.crash(at);
        }
        assert_eq!(probe_count(&mut world, d, b"x"), Ok((other, 11)), "after a crash, too");
        assert_eq!(probe_count(&mut world, d, b"y"), Err(Errno::ENOENT));
        assert_eq!(probe_count(&mut world, d, b"new"), Ok((new, 5)));
        // A removed name may return with another type.
        world.backing.directory(b"d/y");
        world.backing.file(b"d/y/in", 3);
        world.now += TERM;
        let y = world.root().look(d, b"y").expect("there");
        assert_eq!(y.mode & mode::TYPE, mode::DIRECTORY);
        assert_eq!(probe_count(&mut world, y.inode, b"in").map(|found| found.1), Ok(3));
    }
}

/// A name that the index does not know is absent in a complete directory, for good and without a
/// request, so a directory in which others may add names must never become complete: not the root,
/// nor one that was empty in the backing store, or was emptied there or here.
#[test]
fn a_directory_that_others_may_add_names_to_is_never_complete() {
    for (daemons, path) in
        [1, 2].into_iter().flat_map(|daemons| ["", "e", "d"].map(|p| (daemons, p)))
    {
        let mut world = world(daemons);
        world.backing.directory(b"e");
        if path.is_empty() {
            world.backing.tree.clear();
        }
        let directory = match path {
            "" => Inode::ROOT,
            path => world.root().look(Inode::ROOT, path.as_bytes()).expect("there").inode,
        };
        let join = |name: &str| [path, name].join("/").trim_start_matches('/').to_string();
        for name in ["x", "y"].into_iter().filter(|_| path == "d") {
            world.backing.tree.remove(join(name).as_bytes());
            assert_eq!(probe_count(&mut world, directory, name.as_bytes()), Err(Errno::ENOENT));
        }
        if path == "d" {
            world.root().unlink(directory, b"z").expect("there");
        }
        assert_eq!(probe_count(&mut world, directory, b"theirs"), Err(Errno::ENOENT));
        world.root().file(directory, b"ours").expect("made");
        world.root().unlink(directory, b"ours").expect("there");
        world.root().file(directory, b"again").expect("made");
        world.backing.file(join("theirs").as_bytes(), 5);
        world.now += TERM;
        let found = probe_count(&mut world, directory, b"theirs");
        assert_eq!(found.map(|found| found.1), Ok(5), "in {path:?}");
        let is_complete = |op: &IndexOp| *op == IndexOp::MarkComplete { directory };
        let marks = world.seats.iter().flat_map(|seat| &seat.index).filter(|op| is_complete(op));
        assert_eq!(marks.count(), 0, "in {path:?}");
    }
}

#[test]
fn no_name_is_probed_within_the_term() {
    let mut world = world(1);
    let d = directory(&mut world);
    let lookup = Request::Lookup { parent: d, name: b"x" };
    world.now += TERM;
    let before = world.backing.probe_count;
    let ask = |world: &mut World| world.send(Credentials::ROOT, d.shard(), &lookup);
    let tickets = [ask(&mut world), ask(&mut world)];
    assert_eq!(world.backing.probes.len(), 1, "one probe for all requests meanwhile");
    assert!(tickets.iter().all(|ticket| world.answer(*ticket).is_none()));
    assert!(world.answer_probe(None));
    assert!(tickets.iter().all(|ticket| world.answer(*ticket).is_some()));
    let third = ask(&mut world);
    assert!(world.answer(third).is_some() && world.backing.probe_count == before + 1);
    world.now += TERM;
    ask(&mut world);
    assert_eq!(world.backing.probes.len(), 1, "the term is over");
}

#[test]
fn dirty_files_stay_whatever_others_do() {
    let mut world = world(2);
    let d = directory(&mut world);
    let [x, y] = [b"x", b"y"].map(|name| probe_count(&mut world, d, name).expect("there").0);
    world.root().truncate(x, 4).expect("truncated");
    world.root().unlink(d, b"y").expect("removed");
    world.root().file(d, b"made").expect("made");
    replace(&mut world, "d/x", 77);
    replace(&mut world, "d/y", 78);
    replace(&mut world, "d/made", 79);
    world.now += 3 * TERM;
    assert_eq!(probe_count(&mut world, d, b"x"), Ok((x, 4)));
    assert_eq!(probe_count(&mut world, d, b"y"), Err(Errno::ENOENT));
    assert_eq!(probe_count(&mut world, d, b"made").map(|found| found.1), Ok(0));
    let _ = y;
}

#[test]
fn a_probe_answer_after_a_change_here_is_dropped() {
    let mut world = world(1);
    let d = directory(&mut world);
    let (x, _) = probe_count(&mut world, d, b"x").expect("there");
    world.now += TERM;
    world.data_is_prompt = false;
    let lookup = Request::Lookup { parent: d, name: b"x" };
    let ticket = world.send(Credentials::ROOT, d.shard(), &lookup);
    assert_eq!(world.backing.probes.len(), 1);
    let change = Attributes { mode: 0o600, ..Attributes::default() };
    world.root().set(x, set::MODE, change).expect("changed");
    world.backing.tree.remove(&b"d/x"[..]);
    assert!(world.answer_probe(None));
    let Some(Answer::Attributes(found)) = world.answer(ticket) else { panic!("it stays") };
    assert_eq!(found.inode, x);
}

#[test]
fn an_unanswered_probe_delays_no_request() {
    let mut world = world(1);
    let d = directory(&mut world);
    let (x, _) = probe_count(&mut world, d, b"x").expect("there");
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
    assert!(world.answer(second).is_some(), "no other request waits");
    assert_eq!(world.backing.probes.len(), 1, "nor probes");
    assert!(world.answer_probe(None));
    world.now += TERM;
    world.step(0, metadata::Input::Tick);
    let third = world.send(Credentials::ROOT, d.shard(), &of(b"x"));
    assert_ne!(inode_in(world.answer(third)), x, "it came late and counts");
}

#[test]
fn the_names_of_a_missing_directory_stay() {
    let mut world = world(2);
    let d = directory(&mut world);
    let (x, _) = probe_count(&mut world, d, b"x").expect("there");
    world.backing.rename(b"d", b"moved");
    world.backing.directory(b"d");
    world.now += TERM;
    assert_eq!(probe_count(&mut world, d, b"x"), Ok((x, 10)), "the new one is another directory");
    world.backing.tree.remove(&b"d"[..]);
    world.now += TERM;
    assert_eq!(probe_count(&mut world, d, b"x"), Ok((x, 10)));
}

fn listed(world: &mut World, directory: Inode) -> Vec<String> {
    let mut names = world.root().list(directory);
    names.sort();
    names.into_iter().map(|name| String::from_utf8(name).expect("letters")).collect()
}

/// Sets the modification time, as a change of names does.
fn touch(world: &mut World) {
    world.backing.times.insert(b"d".to_vec(), world.now);
}

#[test]
fn a_directory_is_not_probed_within_the_term() {
    let mut world = world(1);
    let d = directory(&mut world);
    let list = Request::ReadDirectory { directory: d, after: 0, last: u64::MAX, bytes: 4096 };
    world.now += TERM;
    let (probe_count, read) = (world.backing.probe_count, world.backing.count);
    let ask = |world: &mut World| world.send(Credentials::ROOT, d.shard(), &list);
    let tickets = [ask(&mut world), ask(&mut world)];
    assert_eq!(world.backing.probes.len(), 1, "one read for all requests meanwhile");
    assert!(tickets.iter().all(|ticket| world.answer(*ticket).is_none()));
    assert!(world.answer_probe(None));
    assert!(tickets.iter().all(|ticket| world.answer(*ticket).is_some()));
    let third = ask(&mut world);
    assert!(world.answer(third).is_some() && world.backing.probe_count == probe_count + 1);
    assert_eq!(world.backing.count, read, "nothing changed there since it was read");
    world.now += TERM;
    ask(&mut world);
    assert_eq!(world.backing.probes.len(), 1, "the term is over");
}

#[test]
fn names_created_and_removed_by_others_are_listed_after_the_term() {
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
        // In the same tick of the backing store's clock.
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
fn a_listing_leaves_dirty_names() {
    let mut world = world(2);
    let d = directory(&mut world);
    let x = probe_count(&mut world, d, b"x").expect("there").0;
    world.root().truncate(x, 4).expect("truncated");
    world.root().unlink(d, b"y").expect("removed");
    world.root().file(d, b"made").expect("made");
    world.backing.tree.remove(&b"d/x"[..]);
    touch(&mut world);
    world.now += TERM;
    assert_eq!(listed(&mut world, d), ["made", "x", "z"]);
}

#[test]
fn a_name_missed_within_the_term_is_listed() {
    let mut world = world(1);
    let d = directory(&mut world);
    world.now += TERM;
    assert_eq!(probe_count(&mut world, d, b"new"), Err(Errno::ENOENT));
    world.backing.file(b"d/new", 5);
    touch(&mut world);
    assert_eq!(listed(&mut world, d), ["new", "x", "y", "z"]);
    assert_eq!(probe_count(&mut world, d, b"new").map(|found| found.1), Ok(5));
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

/// The term is over, there is a new name in the backing store, and answers are given by hand;
/// returns the listing request.
fn with_news() -> (World, Inode, Request<'static>) {
    let mut world = world(1);
    let d = directory(&mut world);
    world.backing.file(b"d/new", 5);
    touch(&mut world);
    world.now += TERM;
    world.data_is_prompt = false;
    let list = Request::ReadDirectory { directory: d, after: 0, last: u64::MAX, bytes: 4096 };
    (world, d, list)
}

fn count_listed(world: &World, ticket: u64) -> usize {
    match world.answer(ticket) {
        Some(Answer::Entries(false, entries, _)) => entries.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_that_does_not_answer_delays_no_listing() {
    let (mut world, d, list) = with_news();
    let names = |world: &mut World, is_answered: bool| {
        let ticket = world.send(Credentials::ROOT, d.shard(), &list);
        assert_eq!(world.answer(ticket), None);
        if is_answered {
            assert!(world.answer_probe(None));
        }
        world.now += 2 * TERM;
        world.step(0, metadata::Input::Tick);
        count_listed(world, ticket)
    };
    assert_eq!(names(&mut world, false), 3, "its time is not answered");
    assert!(world.answer_probe(None));
    assert!(world.answer_backing(1), "in parts");
    assert!(!world.answer_backing(1));
}

#[test]
fn names_read_too_late_appear_in_the_next_listing() {
    let (mut world, d, list) = with_news();
    let ask = |world: &mut World| world.send(Credentials::ROOT, d.shard(), &list);
    let first = ask(&mut world);
    assert!(world.answer_probe(None));
    world.now += 2 * TERM;
    world.step(0, metadata::Input::Tick);
    assert_eq!(count_listed(&world, first), 3, "its names are being read");
    assert!(world.answer_backing(usize::MAX));
    world.now += 3 * TERM;
    let second = ask(&mut world);
    assert_eq!(count_listed(&world, second), 3, "no request waits any more");
    assert!(world.answer_probe(None), "but it is probed");
    let third = ask(&mut world);
    assert_eq!(count_listed(&world, third), 4);
}

/// State of a name in the instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Here {
    AsBacking,
    /// Changed here and dirty.
    Changed(Inode),
    /// Created here. `true`: no backing file was known by the name.
    Made(Inode, bool),
    Removed,
}

struct Changes {
    world: World,
    d: Inode,
    names: Vec<Vec<u8>>,
    here: BTreeMap<Vec<u8>, Here>,
    /// All sizes that a name ever had in the backing store.
    sizes: BTreeMap<Vec<u8>, BTreeSet<u64>>,
    /// Results of the pending probes.
    seen: Vec<Option<Found>>,
    next: u64,
}

impl Changes {
    fn new() -> Changes {
        let mut world = world(1);
        let d = directory(&mut world);
        world.data_is_prompt = false;
        let names: Vec<Vec<u8>> = ["x", "y", "z", "v", "w"].map(|it| it.into()).to_vec();
        let here = names.iter().map(|name| (name.clone(), Here::AsBacking)).collect();
        let mut sizes: BTreeMap<Vec<u8>, BTreeSet<u64>> = BTreeMap::new();
        for (name, size) in [("x", 10), ("y", 20), ("z", 30)] {
            sizes.entry(name.into()).or_default().insert(size);
        }
        Changes { world, d, names, here, sizes, seen: vec![], next: 100 }
    }

    /// Pending probes read the backing store now, and are answered later.
    fn see(&mut self) {
        for at in self.seen.len()..self.world.backing.probes.len() {
            let (_, _, place, name) = self.world.backing.probes[at].clone();
            self.seen.push(Some(self.world.found_in_backing(&place, &name)));
        }
    }

    fn answer_one(&mut self) -> bool {
        self.see();
        if self.seen.is_empty() {
            return false;
        }
        let seen = self.seen.remove(0);
        self.world.answer_probe(seen)
    }

    fn ask(&mut self, request: &Request<'_>) -> Answer {
        let ticket = self.world.send(Credentials::ROOT, self.d.shard(), request);
        self.see();
        for _ in 0..100 {
            if let Some(answer) = self.world.answer(ticket) {
                return answer;
            }
            if !self.answer_one() && !self.world.answer_backing(usize::MAX) {
                self.world.now += TERM / 10;
                self.world.step(0, metadata::Input::Tick);
            }
        }
        panic!("no answer to {request:?}");
    }

    fn list(&mut self) -> BTreeSet<Vec<u8>> {
        let directory = self.d;
        match self.ask(&Request::ReadDirectory { directory, after: 0, last: u64::MAX, bytes: 4096 })
        {
            Answer::Entries(false, entries, _) => entries.into_iter().map(|it| it.3).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// A listing has what was created or removed here, and names that the backing store had at some
    /// time.
    fn list_some(&mut self) {
        let names = self.list();
        for (name, here) in &self.here {
            match here {
                Here::AsBacking => {
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
            Here::AsBacking => {
                let sizes = self.sizes.get(name);
                let is_one = |it: Attributes| sizes.is_some_and(|all| all.contains(&it.size));
                assert!(found.is_none_or(is_one), "a size that it never had: {found:?}");
            }
            Here::Changed(known) | Here::Made(known, _) => assert_eq!(inode, Some(known)),
            Here::Removed => assert_eq!(inode, None, "it came back"),
        }
        found
    }

    fn change_backing(&mut self, random: &mut Random, name: &[u8]) {
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
        let is_nothing = self.here[name] == Here::AsBacking;
        self.here.insert(name.to_vec(), Here::Made(made.inode, is_nothing));
    }

    fn remove(&mut self, name: &[u8]) {
        if self.ask(&Request::Unlink { parent: self.d, name }) != Answer::Done {
            return;
        }
        let after = match self.here[name] {
            Here::Made(_, true) => Here::AsBacking,
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
            assert_eq!(errno, Errno::ESTALE, "it was removed meanwhile");
        } else if self.here[name] == Here::AsBacking {
            self.here.insert(name.to_vec(), Here::Changed(inode));
        }
    }

    /// Writes a name back, where the backing store had and has nothing.
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
        let location = BackingLocation { parent: self.d, name, version, counts: 0, stamp };
        assert_eq!(self.ask(&Request::Writing { inode, location }), Answer::Done);
        let file = BackingFile { mode: mode::REGULAR | 0o600, size: 0, number };
        self.world.backing.tree.insert(path, file);
        self.world.backing.times.insert(b"d".to_vec(), self.world.now);
        let saved = Request::NameWritten { parent: self.d, name, from: Inode::NONE, to: inode };
        assert_eq!(self.ask(&saved), Answer::Done);
        assert_eq!(self.look(name).map(|found| found.inode), Some(inode));
        assert_eq!(self.ask(&Request::Wrote { inode, location }), Answer::Done);
        // An answer of a probe that still found nothing may be on its way.
        assert_eq!(self.look(name).map(|found| found.inode), Some(inode));
        self.sizes.entry(name.to_vec()).or_default().insert(0);
        self.here.insert(name.to_vec(), Here::AsBacking);
    }

    fn do_something(&mut self, random: &mut Random) {
        let name = self.names[random.uniform(self.names.len())].clone();
        match random.uniform(16) {
            14.. => self.save(&name),
            0..3 => self.change_backing(random, &name),
            3 => self.make(&name),
            4 => self.remove(&name),
            5 => self.chmod(&name),
            6 => {
                // The answer is not awaited.
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

    /// After the term, without further changes, each name matches the backing store, or what was
    /// done to it here.
    fn end(&mut self) {
        while self.answer_one() || self.world.answer_backing(usize::MAX) {}
        self.world.now += 6 * TERM;
        self.world.step(0, metadata::Input::Tick);
        let names = self.list();
        for name in self.names.iter().filter(|name| self.here[*name] == Here::AsBacking) {
            let location = self.world.backing.tree.contains_key(&[b"d/", &name[..]].concat());
            assert_eq!(names.contains(name), location, "{}", String::from_utf8_lossy(name));
        }
        for name in self.names.clone() {
            let found = self.look(&name);
            if self.here[&name] == Here::AsBacking {
                let location = self.world.backing.tree.get(&[b"d/", &name[..]].concat());
                let (size, expected) = (found.map(|it| it.size), location.map(|it| it.size));
                assert_eq!(size, expected, "{}", String::from_utf8_lossy(&name));
            }
        }
    }
}

#[test]
fn random_backing_changes_are_seen_and_no_instance_change_is_lost() {
    let first = crate::sim::simulation::seed(1);
    for seed in first..first + crate::sim::simulation::rounds(400) {
        println!("TEST_SEED={seed}");
        let mut random = Random(seed);
        let mut all = Changes::new();
        for _ in 0..120 {
            all.do_something(&mut random);
        }
        all.end();
    }
}
