//! Random operations, one at a time, over one or several services, home and wide directories, with
//! crashes in between, against a small tree in memory that implements the rules of POSIX. Answers
//! must be equal, and in the end so must names, link counts and sizes. A failure prints its seed.

use std::collections::BTreeMap;

use crate::sim::writer::{ASIDE, Writer};
use crate::sim::{Random, World, config};
use metadata::Input;
use wire::Inode;
use wire::attributes::{mode, spread};
use wire::errno::Errno;
use wire::request::rename;

type Id = usize;

/// A file, or a directory if `entries`.
#[derive(Clone, Debug, Default)]
struct Thing {
    entries: Option<BTreeMap<Vec<u8>, Id>>,
    parent: Id,
    links: u32,
}

/// The reference tree.
struct Oracle {
    things: Vec<Thing>,
    inodes: Vec<Inode>,
}

type Answer = Result<Option<Id>, Errno>;

impl Oracle {
    fn new() -> Oracle {
        let root = Thing { entries: Some(BTreeMap::new()), parent: 0, links: 2 };
        Oracle { things: vec![root], inodes: vec![Inode::ROOT] }
    }

    fn entries(&mut self, id: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        self.things[id].entries.as_mut().expect("a directory")
    }

    fn get(&self, directory: Id, name: &[u8]) -> Option<Id> {
        self.things[directory].entries.as_ref()?.get(name).copied()
    }

    fn is_directory(&self, id: Id) -> bool {
        self.things[id].entries.is_some()
    }

    fn is_empty(&self, id: Id) -> bool {
        self.things[id].entries.as_ref().is_some_and(BTreeMap::is_empty)
    }

    fn make(
        &mut self,
        directory: Id,
        name: &[u8],
        entries: Option<BTreeMap<Vec<u8>, Id>>,
    ) -> Answer {
        if self.get(directory, name).is_some() {
            return Err(Errno::EEXIST);
        }
        let links = if entries.is_some() { 2 } else { 1 };
        let id = self.things.len();
        self.things.push(Thing { entries, parent: directory, links });
        self.put(directory, name, id);
        Ok(Some(id))
    }

    fn put(&mut self, directory: Id, name: &[u8], id: Id) {
        self.entries(directory).insert(name.to_vec(), id);
        if self.is_directory(id) {
            self.things[directory].links += 1;
            self.things[id].parent = directory;
        }
    }

    fn take(&mut self, directory: Id, name: &[u8]) -> Id {
        let id = self.entries(directory).remove(name).expect("an entry");
        if self.is_directory(id) {
            self.things[directory].links -= 1;
        }
        id
    }

    fn remove(&mut self, directory: Id, name: &[u8], wants_directory: bool) -> Answer {
        let id = self.get(directory, name).ok_or(Errno::ENOENT)?;
        match (self.is_directory(id), wants_directory) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            (true, true) if !self.is_empty(id) => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.take(directory, name);
        self.drop(id);
        Ok(None)
    }

    fn drop(&mut self, id: Id) {
        self.things[id].links = if self.is_directory(id) { 0 } else { self.things[id].links - 1 };
    }

    fn link(&mut self, id: Id, directory: Id, name: &[u8]) -> Answer {
        if self.get(directory, name).is_some() {
            return Err(Errno::EEXIST);
        }
        if self.things[id].links == 0 {
            return Err(Errno::ENOENT);
        }
        if self.is_directory(id) {
            return Err(Errno::EPERM);
        }
        self.things[id].links += 1;
        self.put(directory, name, id);
        Ok(None)
    }

    fn is_descendant(&self, mut id: Id, top: Id) -> bool {
        loop {
            if id == top {
                return true;
            }
            if id == 0 {
                return false;
            }
            id = self.things[id].parent;
        }
    }

    fn rename(&mut self, old: (Id, &[u8]), new: (Id, &[u8]), flags: u32) -> Answer {
        let moved = self.get(old.0, old.1).ok_or(Errno::ENOENT)?;
        let replaced = self.get(new.0, new.1);
        if flags == rename::NO_REPLACE && replaced.is_some() {
            return Err(Errno::EEXIST);
        }
        if flags == rename::EXCHANGE {
            let replaced = replaced.ok_or(Errno::ENOENT)?;
            if moved == replaced {
                return Ok(None);
            }
            let moves = old.0 != new.0;
            let is_cycle = moves
                && ((self.is_directory(moved) && self.is_descendant(new.0, moved))
                    || (self.is_directory(replaced) && self.is_descendant(old.0, replaced)));
            if is_cycle {
                return Err(Errno::EINVAL);
            }
            self.take(old.0, old.1);
            self.take(new.0, new.1);
            self.put(old.0, old.1, replaced);
            self.put(new.0, new.1, moved);
            return Ok(None);
        }
        if replaced == Some(moved) {
            return Ok(None);
        }
        if let Some(replaced) = replaced {
            match (self.is_directory(moved), self.is_directory(replaced)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        if self.is_directory(moved) && old.0 != new.0 && self.is_descendant(new.0, moved) {
            return Err(Errno::EINVAL);
        }
        if let Some(replaced) = replaced {
            if self.is_directory(replaced) && !self.is_empty(replaced) {
                return Err(Errno::ENOTEMPTY);
            }
            self.take(new.0, new.1);
            self.drop(replaced);
        }
        self.take(old.0, old.1);
        self.put(new.0, new.1, moved);
        Ok(None)
    }
}

/// Creates a file by a local operation where a client could, otherwise by a request.
fn make_file(world: &mut World, parent: Inode, name: &[u8]) -> crate::sim::Outcome {
    if let Some(made) = world.create_by_local_op(parent, name) {
        return Ok(made);
    }
    let made = world.root().file(parent, name);
    if let Ok(made) = &made {
        let at = world.owner(made.inode.shard());
        world.step(at, Input::GrantNumbers { shard: made.inode.shard() });
    }
    made
}

fn remove_file(world: &mut World, parent: Inode, name: &[u8]) -> crate::sim::Outcome {
    if world.log_unlink(parent, name) {
        world.settle();
        return Ok(crate::sim::NOTHING);
    }
    world.root().unlink(parent, name)
}

struct Game {
    world: World,
    oracle: Oracle,
    random: Random,
}

impl Game {
    fn directory(&mut self) -> Id {
        let things = &self.oracle.things;
        let alive: Vec<Id> = (0..things.len())
            .filter(|&id| things[id].entries.is_some() && things[id].links > 0)
            .collect();
        alive[self.random.uniform(alive.len())]
    }

    fn name(&mut self) -> Vec<u8> {
        vec![b'a' + self.random.uniform(6) as u8]
    }

    /// The inode number of a created or imported node; an imported one may be looked up for the
    /// first time.
    fn inode(&mut self, id: Id) -> Inode {
        if self.oracle.inodes[id].is_none() && self.oracle.things[id].links > 0 {
            let parents = self.oracle.things.iter().enumerate();
            let (parent, name) = parents
                .filter_map(|(parent, thing)| {
                    let mut entries = thing.entries.as_ref()?.iter();
                    let (name, _) = entries.find(|(_, other)| **other == id)?;
                    Some((parent, name.clone()))
                })
                .next()
                .expect("it has a name");
            let parent = self.inode(parent);
            let found = self.world.root().look(parent, &name).expect("it is in the backing store");
            self.oracle.inodes[id] = found.inode;
        }
        self.oracle.inodes[id]
    }

    /// Puts a tree into the backing store.
    fn lay(&mut self) {
        let mut paths = vec![(0, vec![])];
        for _ in 0..30 {
            let (directory, mut path) = paths[self.random.uniform(paths.len())].clone();
            let (name, is_directory) = (self.name(), self.random.chance(50));
            let entries = is_directory.then(BTreeMap::new);
            let Ok(Some(id)) = self.oracle.make(directory, &name, entries) else { continue };
            self.oracle.inodes.push(Inode::NONE);
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(name);
            match is_directory {
                true => self.world.backing.directory(&path),
                false => self.world.backing.file(&path, 7),
            }
            if is_directory {
                paths.push((id, path));
            }
        }
    }

    fn turn(&mut self) {
        let (d, name) = (self.directory(), self.name());
        let (e, other) = (self.directory(), self.name());
        let any = self.random.uniform(self.oracle.things.len());
        let (inode, to, linked) = (self.inode(d), self.inode(e), self.inode(any));
        if linked.is_none() {
            // It was removed before the first lookup.
            return;
        }
        let mut root = self.world.root();
        let (real, right) = match self.random.uniform(20) {
            0..=3 => (make_file(&mut self.world, inode, &name), self.oracle.make(d, &name, None)),
            4..=6 => {
                (root.directory(inode, &name), self.oracle.make(d, &name, Some(BTreeMap::new())))
            }
            7 => (root.wide(inode, &name), self.oracle.make(d, &name, Some(BTreeMap::new()))),
            8..=9 => {
                (remove_file(&mut self.world, inode, &name), self.oracle.remove(d, &name, false))
            }
            10..=12 => (root.rmdir(inode, &name), self.oracle.remove(d, &name, true)),
            13..=14 => (root.link(linked, to, &other), self.oracle.link(any, e, &other)),
            n => {
                let flags = [0, 0, 0, rename::NO_REPLACE, rename::EXCHANGE][n - 15];
                (
                    root.rename((inode, &name), (to, &other), flags),
                    self.oracle.rename((d, &name), (e, &other), flags),
                )
            }
        };
        assert_eq!(real.map(drop), right.map(drop), "in {d}/{name:?}, {e}/{other:?}, {any}");
        if let (Ok(made), Ok(Some(_))) = (real, right) {
            self.oracle.inodes.push(made.inode);
        }
        if self.random.chance(2) {
            let at = self.random.uniform(self.world.seats.len());
            self.world.crash(at);
        }
    }

    fn compare(&mut self) {
        self.world.settle();
        for id in 0..self.oracle.things.len() {
            let (thing, inode) = (self.oracle.things[id].clone(), self.inode(id));
            if thing.entries.is_some() && thing.links > 0 {
                // Its number of entries is known once it is imported.
                self.world.root().list(inode);
                self.world.settle();
            }
            if inode.is_none() {
                continue;
            }
            let stat = self.world.stat(inode);
            if thing.links == 0 {
                assert_eq!(stat, Err(Errno::ESTALE));
                continue;
            }
            let stat = stat.expect("it is there");
            assert_eq!(stat.links, thing.links, "links of {id}");
            let Some(entries) = thing.entries else { continue };
            assert_eq!(stat.parent, self.inode(thing.parent), "parent of {id}");
            assert_eq!(stat.size, entries.len() as u64, "size of {id}");
            let mut listed = self.world.root().list(inode);
            listed.sort();
            assert_eq!(listed, entries.keys().cloned().collect::<Vec<_>>());
            for (name, &other) in &entries {
                let found = self.world.root().look(inode, name).expect("an entry");
                assert_eq!(found.inode, self.inode(other));
            }
        }
        let inodes: u64 = self.world.seats.iter().map(|seat| seat.service.inode_count()).sum();
        let alive = self.oracle.things.iter().filter(|thing| thing.links > 0).count();
        assert_eq!(inodes, alive as u64, "no inode is left over");
        for seat in &self.world.seats {
            assert_eq!(seat.service.deadline(), None, "nothing is under way");
        }
    }
}

impl Game {
    /// The writeback daemon makes some steps, and may be killed in between.
    fn writeback(&mut self) {
        let (turn, changed) =
            (self.random.uniform(100), self.random.uniform(self.oracle.things.len()));
        let is_file = !self.oracle.is_directory(changed) && self.oracle.things[changed].links > 0;
        if turn < 20 && is_file {
            let (inode, size) = (self.inode(changed), self.random.next() % 50_000);
            self.world.root().truncate(inode, size).expect("a file");
            self.world.root().chmod(inode, 0o640).expect("a file");
        }
        if turn < 50 {
            let fuse = if turn < 35 { self.random.uniform(40) } else { usize::MAX };
            if Writer::new(&mut self.world, fuse).round().is_ok() {
                let things = self.oracle.things.iter().zip(&self.oracle.inodes);
                let directories: Vec<Inode> = things
                    .filter(|(thing, inode)| {
                        thing.entries.is_some() && thing.links > 0 && !inode.is_none()
                    })
                    .map(|(_, inode)| *inode)
                    .collect();
                self.world.check_dirty(&directories);
            }
        }
        if turn > 95 {
            let at = self.random.uniform(self.world.seats.len());
            self.world.crash_to_snapshot(at, &mut self.random);
        }
    }

    /// The backing tree equals the reference tree.
    fn compare_backing(&mut self) {
        self.world.save_all();
        let mut right = BTreeMap::new();
        let mut paths = vec![(0, vec![])];
        while let Some((directory, path)) = paths.pop() {
            for (name, &id) in self.oracle.things[directory].entries.clone().expect("one").iter() {
                let start = if path.is_empty() { vec![] } else { [&path, &b"/"[..]].concat() };
                let path = [start, name.clone()].concat();
                right.insert(path.clone(), id);
                if self.oracle.is_directory(id) {
                    paths.push((id, path));
                }
            }
        }
        let tree = self.world.backing.tree.clone();
        let is_aside = |path: &[u8]| path.windows(ASIDE.len()).any(|part| part == ASIDE);
        for (path, file) in &tree {
            if is_aside(path) {
                // Another name of it was written back, and this one is its recorded location.
                assert!(self.world.backing.paths(file.number).len() > 1, "{path:?} is left over");
                continue;
            }
            let id = right.remove(path).unwrap_or_else(|| panic!("{path:?} is not there"));
            let is_directory = file.mode & mode::TYPE == mode::DIRECTORY;
            assert_eq!(is_directory, self.oracle.is_directory(id), "{path:?}");
            let inode = self.inode(id);
            let now =
                self.world.sync_state(inode).expect("there").now.expect("in the backing store");
            assert_eq!(now.version.number, file.number, "{path:?}");
            if !is_directory {
                assert_eq!(self.world.stat(inode).expect("there").size, file.size, "{path:?}");
            }
        }
        assert!(right.is_empty(), "not in the backing store: {right:?}");
    }
}

/// As `play_over_backing`, with a writeback daemon.
fn play_written(seed: u64, rounds: usize, mut configs: Vec<metadata::Config>) {
    println!("seed={seed}");
    configs.iter_mut().for_each(|config| config.backing = true);
    let mut game = Game { world: World::of(configs), oracle: Oracle::new(), random: Random(seed) };
    game.world.backing.part = 1 + game.random.uniform(3);
    game.lay();
    for _ in 0..rounds {
        game.turn();
        game.writeback();
    }
    game.compare_backing();
    game.compare();
}

#[test]
fn created_and_changed_files_reach_the_backing_store() {
    for seed in 0..30 {
        play_written(seed, 150, vec![config(0, 1, 0, 1)]);
        play_written(seed, 150, (0..3).map(|daemon| config(daemon, 3, 0, 1)).collect());
        play_written(seed, 100, (0..4).map(|n| config(n / 2, 2, usize::from(n % 2), 2)).collect());
    }
}

/// As `play`, over a backing tree.
fn play_over_backing(seed: u64, rounds: usize, mut configs: Vec<metadata::Config>) {
    println!("seed={seed}");
    configs.iter_mut().for_each(|config| config.backing = true);
    let mut game = Game { world: World::of(configs), oracle: Oracle::new(), random: Random(seed) };
    game.world.backing.part = 1 + game.random.uniform(3);
    game.lay();
    for _ in 0..rounds {
        game.turn();
    }
    game.compare();
}

#[test]
fn random_operations_over_a_backing_store() {
    for seed in 0..30 {
        play_over_backing(seed, 150, vec![config(0, 1, 0, 1)]);
        play_over_backing(seed, 150, (0..3).map(|daemon| config(daemon, 3, 0, 1)).collect());
        play_over_backing(
            seed,
            100,
            (0..4).map(|n| config(n / 2, 2, usize::from(n % 2), 2)).collect(),
        );
    }
}

/// Returns the number of local operations.
fn play(seed: u64, rounds: usize, world: World) -> u64 {
    println!("seed={seed}");
    let mut game = Game { world, oracle: Oracle::new(), random: Random(seed) };
    for _ in 0..rounds {
        game.turn();
    }
    game.compare();
    game.world.local_op_count
}

#[test]
fn one_service() {
    let local_op_count: u64 = (0..20).map(|seed| play(seed, 400, World::single())).sum();
    assert!(local_op_count > 100, "too few local operations: {local_op_count}");
}

#[test]
fn several_services() {
    let local_op_count: u64 = (0..20).map(|seed| play(seed, 300, World::daemons(3))).sum();
    assert!(local_op_count > 100, "too few local operations: {local_op_count}");
}

#[test]
fn several_workers_and_a_wide_root() {
    for seed in 0..8 {
        let seats = (0..4u16).map(|n| {
            let mut config = config(n / 2, 2, usize::from(n % 2), 2);
            config.spread = spread::WIDE;
            config
        });
        play(seed, 200, World::of(seats.collect()));
    }
}
