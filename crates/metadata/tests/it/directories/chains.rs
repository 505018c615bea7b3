//! A refusal that follows from separate answers of several services must have been right at one
//! moment.

use crate::sim::{Answer, World};
use metadata::Input;
use wire::{Credentials, Inode, Request};

const ROOT: Inode = Inode::ROOT;

/// Renames before any time passes: nothing is resent.
fn rename_at_once(world: &mut World, old: (Inode, &[u8]), new: (Inode, &[u8])) {
    let ((parent, name), (new_parent, new_name)) = (old, new);
    let request = Request::Rename { parent, name, new_parent, new_name, flags: 0 };
    let shard = world.shard_of(parent, name);
    let ticket = world.send(Credentials::ROOT, shard, &request);
    world.settle_for(usize::MAX);
    while !world.queue.is_empty() {
        world.settle_for(usize::MAX);
    }
    assert_eq!(world.answer(ticket), Some(Answer::Done));
}

/// Directories: `y` in the root with entries on one service, `x` in it, and `m` in `p`, whose
/// entries are on a third.
#[test]
fn a_rename_into_itself_is_refused_only_if_it_was_so_at_one_moment() {
    let mut world = World::daemons(3);
    let mut made = vec![];
    for n in 0..6 {
        let directory = world.root().directory(ROOT, &[b'a' + n]).expect("made");
        world.settle();
        let shard = world.shard_of(directory.inode, b"x");
        let entries = world.owner(shard);
        made.push((vec![b'a' + n], directory.inode, entries));
    }
    let others = |one: &&(Vec<u8>, Inode, usize)| one.2 != 0;
    let (y_name, y, y_entries) = made.iter().find(others).expect("one elsewhere").clone();
    let third = made.iter().filter(others).find(|one| one.2 != y_entries);
    let p = third.expect("one on a third").1;
    let x = world.root().directory(y, b"x").expect("made").inode;
    let m = world.root().directory(p, b"m").expect("made").inode;
    world.settle();
    // `m` is moved into `x`: its service learns that `x` is in `y`, and asks where `y` is.
    let request =
        Request::Rename { parent: p, name: b"m", new_parent: x, new_name: b"m", flags: 0 };
    let shard = world.shard_of(p, b"m");
    let ticket = world.send(Credentials::ROOT, shard, &request);
    let is_about_y =
        |bytes: &[u8]| bytes[0] == 1 && bytes.windows(8).any(|word| word == y.0.to_le_bytes());
    while !world.queue.iter().any(|(_, bytes)| is_about_y(bytes)) {
        let (to, bytes) = world.queue.remove(0);
        world.step(to, Input::Peer { message: &bytes });
    }
    let held = core::mem::take(&mut world.queue);
    // Meanwhile `x` leaves `y`, and then `y` goes into `m`.
    rename_at_once(&mut world, (y, b"x"), (ROOT, b"x"));
    rename_at_once(&mut world, (ROOT, &y_name), (m, b"y"));
    world.queue.extend(held);
    world.settle();
    assert_eq!(world.answer(ticket), Some(Answer::Done), "x was never in m");
    // Now the chain exists: `x` contains `m`, and `m` contains `y`.
    let nested = world.root().rename((ROOT, b"x"), (y, b"x"), 0);
    assert_eq!(nested.map(drop), Err(wire::Errno::EINVAL));
}
