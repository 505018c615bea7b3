//! Files with copies that give them up for those in the backing store, by request or where space is
//! short: the name leads to another inode, of those that were found there, and nothing else changes. A
//! file that somebody uses, or that is not there as it is, stays.

use crate::sim::{Answer, World, config};
use metadata::Input;
use wire::attributes::flag;
use wire::backing::{BackingFile, BackingLocation, Stamp, Version};
use wire::hash::entry_key;
use wire::request::set;
use wire::watch::Watch;
use wire::{Attributes, Credentials, Errno, Inode, Reader, Request};

const ROOT: Inode = Inode::ROOT;
const CALLER: Credentials = Credentials::ROOT;
const MIB: u64 = 1 << 20;

fn call(world: &mut World, inode: Inode, request: &Request<'_>) -> Answer {
    world.call(CALLER, inode.shard(), request)
}

fn world() -> World {
    let mut single = config(0, 1, 0, 1);
    (single.backing, single.copies) = (true, 2);
    World::of(vec![single])
}

/// A file with bytes on targets.
fn made(world: &mut World, name: &[u8], size: u64) -> Attributes {
    let inode = world.root().file(ROOT, name).expect("made").inode;
    call(world, inode, &Request::MoveOut { inode });
    call(world, inode, &Request::Extend { inode, size });
    world.stat(inode).expect("there")
}

fn give_up(world: &mut World, inode: Inode) -> Answer {
    call(world, inode, &Request::GiveUpCopies { inode })
}

/// The writeback daemon writes the file back as it is.
fn save(world: &mut World, of: &Attributes, name: &[u8]) {
    let version = Version { number: of.inode.0, modified: of.modified - 1, size: of.size };
    let (inode, parent) = (of.inode, ROOT);
    let location = BackingLocation { parent, name, version, counts: of.size, stamp: Stamp::of(of) };
    for request in [
        Request::Writing { inode, location },
        Request::NameWritten { parent, name, from: Inode::NONE, to: inode },
        Request::Wrote { inode, location },
    ] {
        world.tell_shard(inode.shard(), &request).expect("taken");
    }
}

fn saved(world: &mut World, name: &[u8], size: u64) -> Attributes {
    let made = made(world, name, size);
    save(world, &made, name);
    made
}

fn named(world: &mut World, name: &[u8]) -> Inode {
    world.root().look(ROOT, name).expect("there").inode
}

/// Where the bytes of a file are in the backing store: path, version, and how many count.
fn below(world: &mut World, inode: Inode) -> (Vec<u8>, [u64; 3], i64) {
    let answer = call(world, inode, &Request::LocateBacking { inode });
    let Answer::Bytes(bytes) = answer else { panic!("{answer:?}") };
    let file = BackingFile::decode(&mut Reader::new(&bytes)).expect("a place");
    (file.path.to_vec(), [file.number, file.seen, file.size], file.modified)
}

#[test]
fn a_saved_file_is_one_that_was_found() {
    let mut world = world();
    let made = made(&mut world, b"made", 10);
    assert_eq!(give_up(&mut world, made.inode), Answer::Number(0), "it is not saved");
    save(&mut world, &made, b"made");
    let inode = made.inode;
    let others = Credentials::of(1000, 1000);
    let refused = world.call(others, inode.shard(), &Request::GiveUpCopies { inode });
    assert_eq!(refused, Answer::Refused(Errno::EPERM));
    let place = below(&mut world, inode);
    assert_eq!(give_up(&mut world, inode), Answer::Number(10));
    assert_eq!(world.removal_log, [inode], "its copies are removed");
    for _ in 0..2 {
        let found = world.root().look(ROOT, b"made").expect("there");
        assert!(found.inode.is_backed());
        let layout = found.layout;
        assert_eq!(found, Attributes { inode: found.inode, layout, ..made });
        assert_eq!(layout.flags & flag::SHORT, 0);
        let inode = found.inode;
        assert_eq!(below(&mut world, inode), place);
        assert_eq!(call(&mut world, inode, &Request::IsClean { inode }), Answer::Number(1));
        assert!(world.dirty_names().is_empty() && world.dirty_inodes().is_empty());
        assert_eq!(world.stat(made.inode), Err(Errno::ESTALE));
        assert_eq!(give_up(&mut world, inode), Answer::Number(0), "it is one already");
        world.crash(0);
    }
    assert_eq!(give_up(&mut world, made.inode), Answer::Refused(Errno::ESTALE));
    // The next one has another number, and changes are written back.
    let next = saved(&mut world, b"next", 20);
    assert_eq!(give_up(&mut world, next.inode), Answer::Number(20));
    let (first, second) = (named(&mut world, b"made"), named(&mut world, b"next"));
    assert_ne!(first, second);
    world.root().truncate(second, 5).expect("shorter");
    assert_eq!(world.dirty_inodes().iter().map(|it| it.inode).collect::<Vec<_>>(), [second]);
    assert_eq!(below(&mut world, second).1[2], 5);
}

#[test]
fn a_file_that_differs_from_the_backing_store_keeps_its_copies() {
    let mut world = world();
    let inode = saved(&mut world, b"made", 10).inode;
    world.root().link(inode, ROOT, b"second").expect("linked");
    assert_eq!(give_up(&mut world, inode), Answer::Number(0), "it has two names");
    world.root().unlink(ROOT, b"second").expect("there");
    assert_eq!(give_up(&mut world, inode), Answer::Number(0), "it was changed");
    assert_eq!(named(&mut world, b"made"), inode);
    let moved = saved(&mut world, b"moved", 10).inode;
    world.root().rename((ROOT, b"moved"), (ROOT, b"elsewhere"), 0).expect("renamed");
    assert_eq!(give_up(&mut world, moved), Answer::Number(0), "it is there by another name");
    let empty = saved(&mut world, b"empty", 0).inode;
    assert_eq!(give_up(&mut world, empty), Answer::Number(0), "it has nothing to give up");
    let pinned = saved(&mut world, b"pinned", 10);
    let of = Attributes { size: 1, ..crate::sim::NOTHING };
    world.root().set(pinned.inode, set::PINNED, of).expect("pinned");
    let pinned = world.stat(pinned.inode).expect("there");
    save(&mut world, &pinned, b"pinned");
    assert_eq!(give_up(&mut world, pinned.inode), Answer::Number(0), "it is pinned");
    // Without copies files stay what they are.
    let mut single = config(0, 1, 0, 1);
    single.backing = true;
    let mut world = World::of(vec![single]);
    let inode = saved(&mut world, b"made", 10).inode;
    assert_eq!(give_up(&mut world, inode), Answer::Number(0));
    world.step(0, Input::GiveBack);
    assert_eq!(named(&mut world, b"made"), inode);
    assert!(!world.seats[0].service.is_freeing());
}

#[test]
fn a_file_that_somebody_has_open_keeps_its_copies() {
    let mut world = world();
    let inode = saved(&mut world, b"made", 10).inode;
    world.seats[0].host_view.open.insert(inode);
    assert_eq!(give_up(&mut world, inode), Answer::Number(0), "here");
    world.seats[0].host_view.open.clear();
    let mut opening =
        world.prepare(CALLER, inode.shard(), &Request::Open { inode, open_sequence: 1, uses: 0 });
    opening.header.host = 3;
    let ticket = world.send_again(&opening);
    assert!(matches!(world.answer(ticket), Some(Answer::Opened(..))));
    assert_eq!(give_up(&mut world, inode), Answer::Number(0), "on another host");
    world.step(0, Input::HostGone { host: 3 });
    assert_eq!(give_up(&mut world, inode), Answer::Number(10));
}

/// Nobody knows which files programs have open on the host of an owner that died, until that host is
/// heard of.
#[test]
fn a_file_that_may_be_open_where_its_service_was_keeps_its_copies() {
    let mut world = world();
    let inode = saved(&mut world, b"made", 10).inode;
    world.crash(0);
    let seat = &mut world.seats[0];
    let mut service = metadata::Service::new(seat.config.clone());
    seat.log.iter().for_each(|record| service.replay(record).expect("our own"));
    service.take_over(2, Some(7));
    seat.service = service;
    world.step(0, Input::Tick);
    assert_eq!(give_up(&mut world, inode), Answer::Number(0));
    world.step(0, Input::OpensKnown);
    assert_eq!(give_up(&mut world, inode), Answer::Number(10));
}

/// A kernel behind a mount forgets the name before it leads to another inode; a program may open the file
/// meanwhile.
#[test]
fn a_file_goes_when_no_kernel_remembers_it() {
    for is_opened in [false, true] {
        let mut world = world();
        let inode = saved(&mut world, b"made", 10).inode;
        let watch = (1, Watch::of_key(entry_key(ROOT, b"made")));
        let watched = std::rc::Rc::clone(&world.seats[0].host_view.watched);
        watched.borrow_mut().mounts.insert(1);
        watched.borrow_mut().holder_messages.insert(watch, (1, i64::MAX));
        let ticket = world.send(CALLER, inode.shard(), &Request::GiveUpCopies { inode });
        assert_eq!(world.answer(ticket), None, "the mount is told");
        assert_eq!(world.seats[0].service.entry_of(ROOT, b"made"), Some(inode));
        if is_opened {
            world.seats[0].host_view.open.insert(inode);
        }
        watched.borrow_mut().holder_messages.clear();
        world.settle();
        let given_up = if is_opened { 0 } else { 10 };
        assert_eq!(world.answer(ticket), Some(Answer::Number(given_up)));
        assert_eq!(named(&mut world, b"made").is_backed(), !is_opened);
    }
}

/// Where space is short the files go that were not used for the longest time, as many as are needed for
/// some space; the next ones when theirs is free, or does not come.
#[test]
fn saved_files_give_up_their_copies_where_space_is_short() {
    let mut world = world();
    let names: [&[u8]; 5] = [b"first", b"second", b"third", b"open", b"unsaved"];
    let of = names.map(|name| {
        world.now += 1_000_000_000;
        match name {
            b"unsaved" => made(&mut world, name, 40 * MIB),
            _ => saved(&mut world, name, 40 * MIB),
        }
        .inode
    });
    world.seats[0].host_view.open.insert(of[3]);
    let still = |world: &World| -> Vec<bool> {
        let entries = names.iter().map(|name| world.seats[0].service.entry_of(ROOT, name));
        entries.zip(of).map(|(now, before)| now == Some(before)).collect()
    };
    let give_back = |world: &mut World| {
        world.now += 1_000_000;
        world.step(0, Input::GiveBack);
        world.seats[0].service.is_freeing()
    };
    assert!(give_back(&mut world));
    assert_eq!(still(&world), [false, false, true, true, true]);
    assert!(give_back(&mut world), "its space is not free yet");
    assert_eq!(still(&world), [false, false, true, true, true]);
    world.answer_removals(0);
    assert!(give_back(&mut world));
    assert_eq!(still(&world), [false, false, false, true, true]);
    world.answer_removals(0);
    assert!(!give_back(&mut world), "the others stay");
    world.seats[0].host_view.open.clear();
    assert!(give_back(&mut world), "it is open no more");
    assert_eq!(still(&world), [false, false, false, false, true]);
    let unsaved = world.stat(of[4]).expect("there");
    save(&mut world, &unsaved, b"unsaved");
    // A target that is down does not answer.
    world.seats[0].removals.clear();
    world.now += 1_000_000_000;
    assert!(give_back(&mut world));
    assert_eq!(still(&world), [false; 5]);
    assert!(names.iter().all(|name| named(&mut world, name).is_backed()));
}

/// All files are looked at, however many there are, before space counts as not to be had.
#[test]
fn each_file_has_its_turn() {
    let mut world = world();
    for number in 0..5000 {
        let name = format!("f{number}").into_bytes();
        let inode = saved(&mut world, &name, 1).inode;
        if number != 4990 {
            world.seats[0].host_view.open.insert(inode);
        }
    }
    let mut rounds = 0;
    while !named(&mut world, b"f4990").is_backed() {
        world.step(0, Input::GiveBack);
        rounds += 1;
        assert!(world.seats[0].service.is_freeing() && rounds < 5, "{rounds}");
    }
    while world.seats[0].service.is_freeing() {
        world.answer_removals(0);
        world.step(0, Input::GiveBack);
        rounds += 1;
        assert!(rounds < 20, "it ends");
    }
}
