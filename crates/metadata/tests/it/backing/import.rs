//! Importing directories: completely at the first access, merged with what is created here, located
//! for daemons as it is in the backing store; with crashes between the batches and several
//! services.

use crate::sim::backing::MODIFIED;
use crate::sim::{Answer, World, config};
use metadata::{IndexOp, Input};
use wire::attributes::{flag, mode, placement, spread};
use wire::errno::Errno;
use wire::{Credentials, Inode, Request};

/// A world of `daemons` daemons whose root shows a backing directory.
fn world(daemons: u16) -> World {
    let configs = (0..daemons).map(|daemon| {
        let mut config = config(daemon, daemons, 0, 1);
        (config.backing, config.spread) = (true, spread::WIDE);
        config.placement = placement::LOCAL;
        config
    });
    let mut world = World::of(configs.collect());
    world.backing.part = 2;
    world
}

/// A chain of directories and files in each.
fn tree(world: &mut World) {
    let backing = &mut world.backing;
    for path in ["a", "a/b", "a/b/c", "d", "empty"] {
        backing.directory(path.as_bytes());
    }
    for (path, size) in [("x", 10), ("a/y", 5000), ("a/b/z", 0), ("a/b/c/deep", 1 << 40)] {
        backing.file(path.as_bytes(), size);
    }
    for name in 0..9 {
        backing.file(format!("d/{name}").as_bytes(), name);
    }
    backing.put(b"link", mode::SYMLINK | 0o777, 2);
    backing.put(b"pipe", mode::FIFO | 0o600, 0);
}

fn walk(world: &mut World, path: &str) -> wire::Attributes {
    let mut here = Inode::ROOT;
    let mut found = crate::sim::NOTHING;
    for name in path.split('/') {
        found = world.root().look(here, name.as_bytes()).expect("it is in the backing store");
        here = found.inode;
    }
    found
}

#[test]
fn backing_files_are_found_listed_and_look_alike() {
    for daemons in [1, 2, 4] {
        let mut world = world(daemons);
        tree(&mut world);
        assert_eq!(world.stat(Inode::ROOT).expect("there").layout.spread, spread::HOME);
        let x = walk(&mut world, "x");
        assert_eq!((x.mode, x.size, x.links), (mode::REGULAR | 0o644, 10, 1));
        assert_eq!((x.uid, x.gid), (11, 12));
        assert_eq!((x.accessed, x.modified), (MODIFIED - 1, MODIFIED));
        assert_eq!((x.changed, x.born), (MODIFIED + 1, MODIFIED - 2));
        assert!(x.inode.is_backed() && x.layout.flags == 0);
        assert_eq!(x.layout.placement, placement::HASH, "local to no host");
        assert_eq!(world.backing.count, 1, "nothing but the root was read");
        let deep = walk(&mut world, "a/b/c/deep");
        assert_eq!((deep.size, world.backing.count), (1 << 40, 4));
        let mut names = world.root().list(Inode::ROOT);
        names.sort();
        let expected: Vec<&[u8]> = vec![b"a", b"d", b"empty", b"link", b"pipe", b"x"];
        assert_eq!(names, expected);
        for (path, entries, links) in [("d", 9, 2), ("empty", 0, 2), ("a", 2, 3)] {
            let directory = walk(&mut world, path).inode;
            assert_eq!(world.root().list(directory).len(), entries);
            world.settle();
            let stat = world.stat(directory).expect("there");
            assert_eq!((stat.links, stat.size), (links, entries as u64), "{path}");
            assert_eq!(stat.modified, MODIFIED, "{path} of {daemons}");
        }
        let link = walk(&mut world, "link").inode;
        let read = world.call(Credentials::ROOT, link.shard(), &Request::ReadLink { inode: link });
        assert_eq!(read, Answer::Bytes(b"to".to_vec()));
        assert_eq!(world.backing.count, 6, "each once");
    }
}

#[test]
fn no_request_sees_a_partly_imported_directory() {
    let mut world = world(1);
    tree(&mut world);
    world.data_is_prompt = false;
    let root = Credentials::ROOT;
    let shard = world.shard_of(Inode::ROOT, b"q");
    let parent = Inode::ROOT;
    let layout = wire::Layout { flags: flag::INLINE, ..wire::Layout::default() };
    let mode = mode::REGULAR | 0o600;
    let create =
        |name| Request::Create { parent, name, mode, device: 0, flags: 1, layout, target: b"" };
    let list = Request::ReadDirectory { directory: parent, after: 0, last: u64::MAX, bytes: 4000 };
    let requests = [
        Request::Lookup { parent, name: b"q" },
        Request::Lookup { parent, name: b"x" },
        create(b"new"),
        create(b"pipe"),
        Request::Unlink { parent, name: b"link" },
        list,
    ];
    let tickets = requests.map(|request| world.send(root, shard, &request));
    assert_eq!(world.backing.count, 1, "all wait for one read");
    let reported = |world: &World| tickets.iter().filter(|t| world.answer(**t).is_some()).count();
    assert!(world.answer_backing(2), "asked");
    assert_eq!(reported(&world), 0);
    let is_word =
        |op: &IndexOp| matches!(op, IndexOp::PutAbsent { .. } | IndexOp::MarkComplete { .. });
    assert!(!world.seats[0].index.iter().any(is_word), "a client could create a backed name");
    // The earlier batches came; the last ones as after another read.
    world.backing.reads.push((0, parent, vec![], 0));
    assert!(world.answer_backing(usize::MAX));
    assert_eq!(reported(&world), tickets.len());
    assert_eq!(world.answer(tickets[0]), Some(Answer::Refused(Errno::ENOENT)));
    assert_eq!(world.answer(tickets[3]), Some(Answer::Refused(Errno::EEXIST)));
    assert_eq!(world.answer(tickets[4]), Some(Answer::Done));
    world.data_is_prompt = true;
    let mut names = world.root().list(parent);
    names.sort();
    let expected: Vec<&[u8]> = vec![b"a", b"d", b"empty", b"new", b"pipe", b"x"];
    assert_eq!(names, expected);
}

#[test]
fn removed_files_stay_removed_whenever_the_daemon_is_killed() {
    for parts in 0..7 {
        let mut world = world(2);
        tree(&mut world);
        let directory = walk(&mut world, "d").inode;
        let shard = world.shard_of(directory, b"0");
        let at = world.owner(shard);
        world.data_is_prompt = false;
        let unlink = Request::Unlink { parent: directory, name: b"0" };
        let sent = world.prepare(Credentials::ROOT, shard, &unlink);
        let ticket = world.send_again(&sent);
        while world.backing.reads.is_empty() {
            world.settle_for(1);
        }
        world.answer_backing(parts);
        let is_done = world.answer(ticket) == Some(Answer::Done);
        assert_eq!(is_done, parts >= 5, "only once all are here");
        world.crash(at);
        world.data_is_prompt = true;
        if !is_done {
            let ticket = world.send_again(&sent);
            world.settle();
            assert_eq!(world.answer(ticket), Some(Answer::Done));
        }
        world.crash(at);
        assert_eq!(world.root().look(directory, b"0"), Err(Errno::ENOENT));
        assert_eq!(world.root().list(directory).len(), 8);
        world.settle();
        assert_eq!(world.stat(directory).expect("there").size, 8, "each is counted once");
        let numbers: std::collections::BTreeSet<Inode> = (1..9)
            .map(|n| world.root().look(directory, format!("{n}").as_bytes()).expect("there").inode)
            .collect();
        assert_eq!(numbers.len(), 8, "no number is used twice");
    }
}

#[test]
fn a_directory_is_removed_only_if_it_is_empty_in_the_backing_store() {
    for daemons in [1, 3] {
        let mut world = world(daemons);
        tree(&mut world);
        world.root().directory(Inode::ROOT, b"made").expect("made");
        assert_eq!(world.root().rmdir(Inode::ROOT, b"d"), Err(Errno::ENOTEMPTY));
        let refused = world.root().rename((Inode::ROOT, b"made"), (Inode::ROOT, b"d"), 0);
        assert_eq!(refused, Err(Errno::ENOTEMPTY));
        world.root().rmdir(Inode::ROOT, b"empty").expect("it is");
        world.root().rename((Inode::ROOT, b"made"), (Inode::ROOT, b"empty"), 0).expect("gone");
        let a = walk(&mut world, "a").inode;
        let over = world.root().rename((Inode::ROOT, b"x"), (a, b"y"), 1);
        assert_eq!(over, Err(Errno::EEXIST), "the backing entry exists");
    }
}

#[test]
fn daemons_learn_the_backing_location_whatever_becomes_of_the_name() {
    let mut world = world(3);
    tree(&mut world);
    let deep = walk(&mut world, "a/b/c/deep").inode;
    let where_it_is = Ok((1008, 1 << 40, b"a/b/c/deep".to_vec()));
    assert_eq!(world.backing_file_of(deep), where_it_is);
    let (b, c) = (walk(&mut world, "a/b").inode, walk(&mut world, "a/b/c").inode);
    world.root().rename((c, b"deep"), (Inode::ROOT, b"here"), 0).expect("renamed");
    world.root().rmdir(b, b"c").expect("nothing is left in it");
    (0..3).for_each(|at| world.crash(at));
    assert_eq!(world.backing_file_of(deep), where_it_is);
    world.root().truncate(deep, 70_000).expect("truncated");
    world.root().truncate(deep, 1 << 30).expect("longer");
    (0..3).for_each(|at| world.crash(at));
    assert_eq!(world.backing_file_of(deep), Ok((1008, 70_000, b"a/b/c/deep".to_vec())));
    let made = world.root().file(Inode::ROOT, b"made").expect("made").inode;
    assert_eq!(world.backing_file_of(made), Err(Errno::ESTALE));
    world.root().unlink(Inode::ROOT, b"here").expect("removed");
    assert_eq!(world.backing_file_of(deep), Err(Errno::ESTALE));
}

#[test]
fn an_unreadable_directory_is_refused_and_read_again() {
    for daemons in [1, 3] {
        let mut world = world(daemons);
        tree(&mut world);
        world.backing.refused.insert(b"d".to_vec(), Errno::EACCES);
        let d = walk(&mut world, "d").inode;
        assert_eq!(world.root().look(d, b"1"), Err(Errno::EACCES));
        assert_eq!(world.root().file(d, b"new"), Err(Errno::EACCES));
        assert_eq!(world.root().rmdir(Inode::ROOT, b"d"), Err(Errno::EACCES));
        let over = world.root().rename((Inode::ROOT, b"x"), (d, b"x"), 0);
        assert_eq!(over, Err(Errno::EACCES));
        world.backing.refused.clear();
        assert_eq!(world.root().look(d, b"1").map(|found| found.size), Ok(1));
    }
}

#[test]
fn a_shard_without_its_entries_imports_nothing() {
    let mut world = world(2);
    tree(&mut world);
    let d = walk(&mut world, "d").inode;
    let own = world.shard_of(d, b"1");
    let others = (0..wire::limits::SHARD_COUNT).map(wire::ShardIndex);
    let other = others.into_iter().find(|&shard| world.owner(shard) != world.owner(own));
    let before = world.backing.count;
    let request = Request::Lookup { parent: d, name: b"1" };
    let answer = world.call(Credentials::ROOT, other.expect("of two"), &request);
    assert_eq!(answer, Answer::Stale);
    assert_eq!(world.backing.count, before);
    // A file is no directory, for any caller.
    let x = walk(&mut world, "x").inode;
    let request = Request::Lookup { parent: x, name: b"1" };
    let answer = world.call(Credentials::ROOT, x.shard(), &request);
    assert_eq!(answer, Answer::Refused(Errno::ENOTDIR));
    world.step(0, Input::BackingDirRead { directory: x, outcome: Err(Errno::EIO) });
}
