//! Local operations: their effects, that each is applied once, and that an operation that no
//! correct client logs has no effect.

use crate::sim::{NOTHING, World, dump};
use metadata::{Effect, IndexOp, Input, LoggedOp, Now};
use wire::attributes::mode;
use wire::errno::Errno;
use wire::id::LOCAL_OP_SEQUENCE_FIRST;
use wire::{Attributes, Inode, LocalOp, ShardIndex};

/// A world whose clients may log operations in the directory that is returned.
fn ready() -> (World, Inode) {
    let mut world = World::single();
    let directory = world.root().directory(Inode::ROOT, b"d").expect("a directory").inode;
    world.root().file(directory, b"first").expect("a file");
    let shard = world.stat(directory).expect("it is there").layout.place;
    world.step(0, Input::GrantNumbers { shard: ShardIndex(shard) });
    (world, directory)
}

#[test]
fn the_index_is_complete_from_the_first_entry_on() {
    let mut world = World::single();
    let directory = world.root().directory(Inode::ROOT, b"d").expect("a directory").inode;
    let whole = IndexOp::MarkComplete { directory };
    assert!(!world.seats[0].index.contains(&whole));
    world.root().file(directory, b"a").expect("a file");
    assert!(world.seats[0].index.contains(&whole));
    world.seats[0].index.clear();
    world.root().file(directory, b"b").expect("a file");
    assert!(!world.seats[0].index.contains(&whole), "it has an entry that may be forgotten");
    world.root().unlink(directory, b"a").expect("it is there");
    world.root().unlink(directory, b"b").expect("it is there");
    world.root().rmdir(Inode::ROOT, b"d").expect("it is empty");
    assert!(world.seats[0].index.contains(&IndexOp::UnmarkComplete { directory }));
}

#[test]
fn a_locally_created_file_is_like_any_other_and_survives_a_crash() {
    let (mut world, directory) = ready();
    let made = world.create_by_local_op(directory, b"x").expect("all is known");
    assert!(made.inode.sequence() >= LOCAL_OP_SEQUENCE_FIRST);
    assert_eq!(world.create_by_local_op(directory, b"x"), None, "it exists");
    world.crash(0);
    assert_eq!(world.root().look(directory, b"x").map(|x| x.inode), Ok(made.inode));
    assert_eq!(world.stat(directory).map(|d| d.size), Ok(2));
    assert_eq!(world.root().file(directory, b"x"), Err(Errno::EEXIST));
    let inode = made.inode;
    world.op(0, LocalOp::Close { inode, vnode: 0 }, 0);
    assert_eq!(world.stat(inode).map(|x| x.size), Ok(0), "nothing was written");
    world.root().unlink(directory, b"x").expect("it is there");
    assert_eq!(world.stat(inode), Err(Errno::ESTALE));
}

#[test]
fn numbers_are_granted_once() {
    let (mut world, directory) = ready();
    let shard = ShardIndex(world.stat(directory).expect("there").layout.place);
    let first = world.seats[0].numbers[&shard.0];
    assert_eq!(first.0, LOCAL_OP_SEQUENCE_FIRST);
    world.crash(0);
    world.step(0, Input::GrantNumbers { shard });
    let (next, end) = world.seats[0].numbers[&shard.0];
    assert_eq!((next, end), (first.1, first.1 + (first.1 - first.0)), "behind what was granted");
    assert_eq!(world.seats[0].service.numbers_end(shard), end);
}

#[test]
fn a_close_reports_the_size() {
    let (mut world, directory) = ready();
    let file = world.root().file(directory, b"f").expect("a file").inode;
    world.root().truncate(file, 1 << 20).expect("it moves out");
    world.op(0, LocalOp::Close { inode: file, vnode: 0 }, 5 << 20);
    assert_eq!(world.stat(file).map(|f| f.size), Ok(5 << 20));
    world.op(0, LocalOp::Close { inode: file, vnode: 0 }, 1);
    assert_eq!(world.stat(file).map(|f| f.size), Ok(5 << 20), "it does not shrink");
}

/// Operations that a faulty client may write into its slot.
#[test]
fn an_invalid_local_operation_has_no_effect() {
    let (mut world, directory) = ready();
    world.root().directory(directory, b"sub").expect("a directory");
    let shard = ShardIndex(world.stat(directory).expect("there").layout.place);
    let made = world.create_by_local_op(directory, b"x").expect("all is known");
    let first = world.root().look(directory, b"first").expect("there").inode;
    let end = world.seats[0].service.numbers_end(shard);
    let file = |sequence| Attributes {
        inode: Inode::new(shard, sequence),
        mode: mode::REGULAR | 0o600,
        links: 1,
        ..NOTHING
    };
    let fresh = file(LOCAL_OP_SEQUENCE_FIRST + 77);
    let create =
        |attributes, name| LocalOp::Create { parent: directory, spread: 0, attributes, name };
    let unlink = |inode, name| LocalOp::Unlink { parent: directory, spread: 0, inode, at: 0, name };
    let sub = world.root().look(directory, b"sub").expect("there").inode;
    for op in [
        create(fresh, b"x"),
        create(fresh, b"first"),
        create(fresh, b""),
        create(fresh, b".."),
        create(fresh, b"a/b"),
        create(fresh, &[b'n'; 256]),
        create(made, b"y"),
        create(file(end), b"y"),
        create(file(5), b"y"),
        create(Attributes { mode: mode::DIRECTORY | 0o700, ..fresh }, b"y"),
        create(Attributes { mode: mode::SYMLINK | 0o777, ..fresh }, b"y"),
        unlink(first, b"x"),
        unlink(made.inode, b"gone"),
        unlink(sub, b"sub"),
        LocalOp::Close { inode: Inode::new(shard, 999), vnode: 3 },
        LocalOp::Close { inode: sub, vnode: 3 },
    ] {
        let before = dump(&world.seats[0].service);
        world.step(0, Input::LocalOps { ops: &[LoggedOp { op, written: 1 << 60 }] });
        assert_eq!(dump(&world.seats[0].service), before, "{op:?}");
    }
}

/// A client's attributes for its new file are put within limits.
#[test]
fn a_locally_created_file_has_one_name_and_no_size() {
    let (mut world, directory) = ready();
    let shard = ShardIndex(world.stat(directory).expect("there").layout.place);
    let attributes = Attributes {
        inode: Inode::new(shard, LOCAL_OP_SEQUENCE_FIRST + 9),
        parent: Inode::ROOT,
        mode: mode::REGULAR | 0o7_777 | 1 << 30,
        links: 7,
        size: 1 << 50,
        device: 5,
        layout: wire::Layout {
            spread: 9,
            pool: 77,
            placement: 9,
            copies: 3,
            stripe_log2: 99,
            flags: 0xff,
            place: 60_000,
        },
        ..NOTHING
    };
    world.op(0, LocalOp::Create { parent: directory, spread: 0, attributes, name: b"odd" }, 0);
    let found = world.root().look(directory, b"odd").expect("it is there");
    assert_eq!((found.links, found.size, found.device, found.parent), (1, 0, 0, Inode::NONE));
    assert_eq!(found.mode, mode::REGULAR | 0o7_777);
    let layout = found.layout;
    assert!(layout.stripe_log2 <= wire::limits::STRIPE_LOG2_MAX && layout.spread == 0);
    assert_eq!(layout.place, 0, "no instance has so many targets");
}

#[test]
fn no_local_operations_while_a_transaction_holds_names() {
    let mut world = World::daemons(2);
    let one = world.root().directory(Inode::ROOT, b"one").expect("a directory");
    let two = world.root().directory(Inode::ROOT, b"two").expect("a directory");
    world.root().file(one.inode, b"f").expect("a file");
    assert!(world.seats.iter().all(|seat| seat.service.takes_local_ops(0)));
    let request = wire::Request::Rename {
        parent: one.inode,
        name: b"f",
        new_parent: two.inode,
        new_name: b"g",
        flags: 0,
    };
    let shard = world.shard_of(one.inode, b"f");
    let ticket = world.send(wire::Credentials::ROOT, shard, &request);
    let mut held = false;
    while let Some((to, bytes)) = (!world.queue.is_empty()).then(|| world.queue.remove(0)) {
        world.step(to, Input::Peer { message: &bytes });
        held |= world.seats.iter().any(|seat| !seat.service.takes_local_ops(0));
    }
    world.settle();
    assert!(held && world.answer(ticket).is_some());
    assert!(world.seats.iter().all(|seat| seat.service.takes_local_ops(0)));
}

#[test]
fn no_local_operations_without_memory_for_them() {
    let world = World::single();
    let service = &world.seats[0].service;
    assert!(service.takes_local_ops(1 << 20) && !service.takes_local_ops(u64::MAX));
}

/// A local operation never waits, and wakes no parked job: that runs in a step of its own.
#[test]
fn a_local_operation_answers_no_request() {
    let (mut world, directory) = ready();
    let made = world.create_by_local_op(directory, b"x").expect("all is known");
    let mut out = vec![];
    let op = LocalOp::Unlink { parent: directory, spread: 0, inode: made.inode, at: 0, name: b"x" };
    let seat = &mut world.seats[0];
    let ops = [LoggedOp { op, written: 0 }];
    seat.service.step(
        Now::of(world.now),
        Input::LocalOps { ops: &ops },
        &mut seat.host_view,
        &mut out,
    );
    assert!(matches!(out.first(), Some(Effect::Log(_))));
    assert!(!out.iter().any(|effect| matches!(effect, Effect::Reply { .. })));
}
