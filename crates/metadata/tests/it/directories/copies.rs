//! Copies of files by directory: a file has those of its directory from its creation on, in its number.

use crate::sim::{NOTHING, World, config};
use metadata::{Input, SingleFiles};
use wire::attributes::mode;
use wire::errno::Errno;
use wire::id::LOCAL_OP_SEQUENCE_FIRST;
use wire::request::set;
use wire::{Attributes, Credentials, Inode, Layout, LocalOp, Request, ShardIndex};

/// An instance with so many copies of each file, and a directory in it.
fn world_with(copies: u8) -> (World, Inode) {
    let mut single = config(0, 1, 0, 1);
    single.copies = copies;
    let mut world = World::of(vec![single]);
    let directory = world.root().directory(Inode::ROOT, b"d").expect("a directory").inode;
    (world, directory)
}

fn set_copies(copies: u8, inode: Inode) -> Request<'static> {
    let (mask, mode, uid, gid, accessed, modified) = (set::COPIES, 0, 0, 0, 0, 0);
    let size = Layout { copies, ..Layout::default() }.word();
    Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified }
}

fn set_copies_of(world: &mut World, inode: Inode, copies: u8) -> Result<Attributes, Errno> {
    world.root().inode(inode, &set_copies(copies, inode))
}

#[test]
fn a_file_has_the_copies_that_its_directory_says_when_it_is_made() {
    let (mut world, directory) = world_with(2);
    let before = world.root().file(directory, b"before").expect("made").inode;
    set_copies_of(&mut world, directory, 1).expect("set");
    let single = world.root().file(directory, b"single").expect("made").inode;
    let within = world.root().directory(directory, b"within").expect("made");
    assert_eq!((within.inode.copies(), within.layout.copies), (0, 1), "a directory has no bytes");
    let deeper = world.root().file(within.inode, b"f").expect("made").inode;
    let fifo = world.root().make(directory, b"fifo", mode::FIFO | 0o600).expect("made").inode;
    let nameless = Request::CreateNameless {
        parent: directory,
        mode: mode::REGULAR | 0o600,
        layout: NOTHING.layout,
    };
    let shard = directory.shard();
    let nameless = world.call(Credentials::ROOT, shard, &nameless).attributes().inode;
    assert_eq!(set_copies_of(&mut world, directory, 2).expect("set").layout.copies, 0);
    let after = world.root().file(directory, b"after").expect("made").inode;
    let copies = |inode: Inode| (inode.copies(), inode.is_single());
    assert_eq!(copies(nameless), (1, true));
    for _ in 0..2 {
        for inode in [single, deeper] {
            let found = world.stat(inode).expect("there");
            assert_eq!((copies(inode), found.layout.copies), ((1, true), 0));
        }
        for inode in [before, fifo, after] {
            assert_eq!(copies(inode), (0, false));
        }
        world.crash(0);
        assert_eq!(world.stat(within.inode).expect("there").layout.copies, 1);
        assert_eq!(world.stat(directory).expect("there").layout.copies, 0);
    }
    world.root().rename((within.inode, b"f"), (directory, b"f"), 0).expect("renamed");
    assert_eq!(world.root().look(directory, b"f").expect("there").inode, deeper);
    // Numbers of both kinds are given once.
    let sequences = [before, single, deeper, nameless, fifo, after].map(Inode::sequence);
    let of_directory = [sequences[0], sequences[1], sequences[4], sequences[5]];
    assert!(of_directory.is_sorted_by(|a, b| a < b), "{sequences:?}");
}

#[test]
fn a_directory_gives_two_copies_where_the_instance_keeps_three() {
    let (mut world, directory) = world_with(3);
    world.seats[0].host_view.single_files = Some(SingleFiles::Refused);
    let before = world.root().file(directory, b"before").expect("made").inode;
    let after = set_copies_of(&mut world, directory, 2).expect("no file of one copy is asked for");
    assert_eq!(after.layout.copies, 2);
    let two = world.root().file(directory, b"two").expect("made").inode;
    let within = world.root().directory(directory, b"within").expect("made").inode;
    let deeper = world.root().file(within, b"f").expect("made").inode;
    assert_eq!(set_copies_of(&mut world, within, 3).expect("set").layout.copies, 0);
    let three = world.root().file(within, b"g").expect("made").inode;
    for _ in 0..2 {
        for (inode, copies) in [(before, 3), (two, 2), (deeper, 2), (three, 3)] {
            let found = world.stat(inode).expect("there").inode;
            assert_eq!((found.copies_in(3), found.is_single()), (copies, false));
        }
        world.crash(0);
    }
}

#[test]
fn numbers_of_copies_that_the_instance_does_not_keep_are_refused() {
    for (kept, offered) in
        [(1, [true, false, false]), (2, [true, true, false]), (3, [true, true, true])]
    {
        let (mut world, directory) = world_with(kept);
        for (copies, is_offered) in (1..=3).zip(offered) {
            let expected = if is_offered { Ok(()) } else { Err(Errno::EOPNOTSUPP) };
            let found = set_copies_of(&mut world, directory, copies);
            assert_eq!(found.map(drop), expected, "{copies} of {kept}");
        }
        let file = world.root().file(directory, b"f").expect("made").inode;
        assert_eq!(set_copies_of(&mut world, file, 1), Err(Errno::ENOTDIR));
        let refused = world.user(7, 7).inode(directory, &set_copies(1, directory));
        assert_eq!(refused, Err(Errno::EPERM));
    }
}

#[test]
fn a_directory_waits_until_it_is_decided_that_no_daemon_leaves() {
    let (mut world, directory) = world_with(2);
    let allow = |world: &mut World, answer| world.seats[0].host_view.single_files = answer;
    allow(&mut world, Some(SingleFiles::Refused));
    assert_eq!(set_copies_of(&mut world, directory, 1), Err(Errno::EOPNOTSUPP));
    assert_eq!(set_copies_of(&mut world, directory, 2).map(drop), Ok(()), "as all others");
    allow(&mut world, Some(SingleFiles::Asked));
    let ticket = world.send(Credentials::ROOT, directory.shard(), &set_copies(1, directory));
    assert!(world.answer(ticket).is_none(), "it waits");
    allow(&mut world, None);
    world.settle();
    let answer = world.answer(ticket).expect("an answer").attributes();
    assert_eq!(answer.layout.copies, 1);
}

#[test]
fn a_local_operation_gives_a_file_one_copy_or_those_of_the_instance() {
    let (mut world, directory) = world_with(2);
    set_copies_of(&mut world, directory, 1).expect("set");
    let shard = ShardIndex(world.stat(directory).expect("there").layout.place);
    world.step(0, Input::GrantNumbers { shard });
    world.root().file(directory, b"first").expect("made");
    for (number, copies, name) in [(3, 1, b"one"), (4, 2, b"two"), (5, 3, b"odd")] {
        let inode = Inode::new(shard, LOCAL_OP_SEQUENCE_FIRST + number).with_copies(copies);
        let mode = mode::REGULAR | 0o644;
        let layout = Layout { copies: 3, ..NOTHING.layout };
        let attributes = Attributes { inode, mode, links: 1, layout, ..NOTHING };
        world.op(0, LocalOp::Create { parent: directory, spread: 0, attributes, name }, 0);
        let found = world.root().look(directory, name);
        match copies {
            3 => assert_eq!(found, Err(Errno::ENOENT), "no client asks for that"),
            _ => assert_eq!(found.map(|it| (it.inode, it.layout.copies)), Ok((inode, 0))),
        }
    }
}
