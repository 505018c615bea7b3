//! Which losses of units of file data a file is younger than: by its number, and by what emptied it.

use crate::sim::simulation::{rounds, seed};
use crate::sim::{Answer, NOTHING, Random, World, dump};
use metadata::Input;
use std::collections::BTreeMap;
use wire::attributes::mode;
use wire::errno::Errno;
use wire::id::LOCAL_OP_SEQUENCE_FIRST;
use wire::request::set;
use wire::{Attributes, Credentials, DaemonIndex, Inode, LocalOp, Request, ShardIndex};

const ROOT: Inode = Inode::ROOT;
const CALLER: Credentials = Credentials::ROOT;

/// The last loss that a file is younger than, as its service says.
fn known(world: &mut World, inode: Inode) -> u64 {
    match world.call(CALLER, inode.shard(), &Request::KnownLoss { inode }) {
        Answer::Number(loss) => loss,
        other => panic!("{other:?}"),
    }
}

fn lose(world: &mut World, at: usize, loss: u64) {
    world.step(at, Input::UnitsLost { loss });
}

fn file(world: &mut World, name: &[u8]) -> Inode {
    world.root().file(ROOT, name).expect("made").inode
}

/// A file that is on targets and has so many bytes.
fn long_file(world: &mut World, name: &[u8], size: u64) -> Inode {
    let inode = file(world, name);
    world.call(CALLER, inode.shard(), &Request::MoveOut { inode });
    world.call(CALLER, inode.shard(), &Request::Extend { inode, size });
    inode
}

fn resize(inode: Inode, size: u64) -> Request<'static> {
    let (mode, uid, gid, accessed, modified) = (0, 0, 0, 0, 0);
    Request::SetAttributes { inode, mask: set::SIZE, mode, uid, gid, size, accessed, modified }
}

#[test]
fn files_that_are_made_after_a_loss_are_younger_than_it() {
    let mut world = World::single();
    let old = file(&mut world, b"old");
    assert_eq!(known(&mut world, old), 0);
    lose(&mut world, 0, 7);
    let one = file(&mut world, b"one");
    // A loss that is known is no news, and an earlier one neither.
    let before = dump(&world.seats[0].service);
    lose(&mut world, 0, 7);
    lose(&mut world, 0, 5);
    assert_eq!(dump(&world.seats[0].service), before);
    let two = file(&mut world, b"two");
    lose(&mut world, 0, 9);
    lose(&mut world, 0, 12);
    let three = file(&mut world, b"three");
    let assert_all = |world: &mut World| {
        let found = [old, one, two, three].map(|inode| known(world, inode));
        assert_eq!(found, [0, 7, 7, 12]);
    };
    assert_all(&mut world);
    world.crash(0);
    assert_all(&mut world);
    let four = file(&mut world, b"four");
    assert_eq!(known(&mut world, four), 12);
    // The log is rewritten.
    world.seats[0].log = vec![dump(&world.seats[0].service)];
    world.crash(0);
    assert_all(&mut world);
    // Its names say nothing of its age.
    world.root().link(old, ROOT, b"new").expect("linked");
    world.root().rename((ROOT, b"one"), (ROOT, b"old"), 0).expect("renamed");
    assert_all(&mut world);
}

#[test]
fn a_service_that_hears_late_makes_files_that_count_as_older() {
    let mut world = World::daemons(2);
    let wide = world.root().wide(ROOT, b"wide").expect("made").inode;
    let names: Vec<Vec<u8>> = (0..16).map(|number| format!("f{number}").into_bytes()).collect();
    lose(&mut world, 0, 6);
    let mut expected = Vec::new();
    for name in &names {
        let inode = world.root().file(wide, name).expect("made").inode;
        expected.push((inode, if world.owner(inode.shard()) == 0 { 6 } else { 0 }));
    }
    assert!(expected.iter().any(|it| it.1 == 0) && expected.iter().any(|it| it.1 == 6));
    lose(&mut world, 1, 6);
    for (inode, loss) in expected {
        assert_eq!(known(&mut world, inode), loss);
    }
    let late = world.root().file(wide, b"late").expect("made").inode;
    assert_eq!(known(&mut world, late), 6);
}

#[test]
fn clients_get_other_numbers_after_a_loss() {
    let mut world = World::single();
    let directory = world.root().directory(ROOT, b"d").expect("made").inode;
    world.root().file(directory, b"first").expect("made");
    let shard = ShardIndex(world.stat(directory).expect("there").layout.place);
    world.step(0, Input::GrantNumbers { shard });
    let one = world.create_by_local_op(directory, b"one").expect("all is known").inode;
    let late = world.seats[0].numbers[&shard.0].0;
    lose(&mut world, 0, 4);
    let two = world.create_by_local_op(directory, b"two").expect("all is known").inode;
    // A client that took its number before.
    let inode = Inode::new(shard, late);
    let attributes = Attributes { inode, mode: mode::REGULAR | 0o600, links: 1, ..NOTHING };
    let (parent, spread, name) = (directory, 0, &b"late"[..]);
    world.op(0, LocalOp::Create { parent, spread, attributes, name }, 0);
    assert_eq!(world.stat(inode).map(|it| it.inode), Ok(inode));
    let three = file(&mut world, b"three");
    let found = [one, two, inode, three].map(|inode| known(&mut world, inode));
    assert_eq!(found, [0, 4, 0, 4]);
    assert!(two.sequence() > LOCAL_OP_SEQUENCE_FIRST && three.sequence() < two.sequence());
    // The daemon was killed before its clients had the new numbers.
    world.seats[0].numbers.insert(shard.0, (late + 1, late + 9));
    world.crash(0);
    let next = |world: &World| Inode::new(shard, world.seats[0].numbers[&shard.0].0);
    let four = next(&world);
    assert_eq!(known(&mut world, four), 4);
    world.step(0, Input::GrantNumbers { shard });
    let five = next(&world);
    assert_eq!(known(&mut world, five), 4);
}

#[test]
fn a_file_without_bytes_on_targets_is_as_young_as_a_new_one() {
    let mut world = World::single();
    let emptied = long_file(&mut world, b"emptied", 10);
    let shorter = long_file(&mut world, b"shorter", 10);
    let inline = file(&mut world, b"inline");
    let contents = Request::WriteInline { inode: inline, offset: 0, bytes: b"abc" };
    world.call(CALLER, inline.shard(), &contents);
    let empty = file(&mut world, b"empty");
    lose(&mut world, 0, 3);
    world.root().truncate(emptied, 0).expect("truncated");
    world.root().truncate(shorter, 5).expect("truncated");
    world.root().truncate(shorter, 1 << 20).expect("grown");
    for inode in [inline, empty] {
        world.call(CALLER, inode.shard(), &Request::MoveOut { inode });
    }
    let all = [emptied, shorter, inline, empty];
    let of_all = |world: &mut World| all.map(|inode| known(world, inode));
    assert_eq!(of_all(&mut world), [3, 0, 3, 3]);
    world.root().truncate(emptied, 1 << 20).expect("grown");
    world.crash(0);
    assert_eq!(of_all(&mut world), [3, 0, 3, 3]);
    world.seats[0].log = vec![dump(&world.seats[0].service)];
    world.crash(0);
    assert_eq!(of_all(&mut world), [3, 0, 3, 3]);
    lose(&mut world, 0, 8);
    assert_eq!(of_all(&mut world), [3, 0, 3, 3]);
    world.root().truncate(emptied, 0).expect("truncated");
    assert_eq!(of_all(&mut world), [8, 0, 3, 3]);
    // Its age goes with it.
    world.root().unlink(ROOT, b"emptied").expect("there");
    world.settle();
    assert_eq!(known(&mut world, emptied), 0);
}

#[test]
fn a_loss_while_targets_empty_a_file_does_not_count() {
    let mut world = World::single();
    let f = long_file(&mut world, b"f", 10);
    lose(&mut world, 0, 3);
    world.data_is_prompt = false;
    let emptying = world.send(CALLER, f.shard(), &resize(f, 0));
    lose(&mut world, 0, 8);
    assert_eq!((world.answer(emptying), known(&mut world, f)), (None, 0));
    world.answer_data(0, Ok(()));
    assert!(matches!(world.answer(emptying), Some(Answer::Attributes(_))));
    assert_eq!(known(&mut world, f), 3, "others may have written before the second loss");
    // Targets that cannot do it have its bytes.
    let failing = world.send(CALLER, f.shard(), &resize(f, 0));
    world.answer_data(0, Err(Errno::EIO));
    assert!(world.answer(failing).is_some());
    assert_eq!(known(&mut world, f), 3);
    // After a crash they are asked again, later than the second loss.
    world.send(CALLER, f.shard(), &resize(f, 0));
    world.crash(0);
    assert_eq!(known(&mut world, f), 3);
    world.answer_data(0, Ok(()));
    assert_eq!(known(&mut world, f), 8);
}

/// Random files, losses and crashes: each file is as old as the losses that its service knew say.
#[test]
fn files_are_as_old_as_losses_say() {
    let seed = seed(0xb1);
    println!("seed={seed}");
    for round in 0..rounds(20) {
        let mut random = Random(seed.wrapping_add(round));
        let mut world = World::single();
        let directory = world.root().directory(ROOT, b"d").expect("made").inode;
        world.root().file(directory, b"first").expect("made");
        let shard = ShardIndex(world.stat(directory).expect("there").layout.place);
        world.step(0, Input::GrantNumbers { shard });
        let (mut loss, mut expected) = (0, BTreeMap::new());
        for step in 0..60 {
            let name = format!("f{step}").into_bytes();
            let some = |random: &mut Random, all: &BTreeMap<Inode, u64>| {
                all.keys().copied().nth(random.uniform(all.len()))
            };
            match random.uniform(8) {
                0 | 1 => drop(expected.insert(file(&mut world, &name), loss)),
                2 | 3 => {
                    if let Some(made) = world.create_by_local_op(directory, &name) {
                        expected.insert(made.inode, loss);
                    }
                }
                4 => {
                    loss += 1 + random.next() % 5;
                    lose(&mut world, 0, loss);
                }
                5 => world.crash(0),
                6 => world.step(0, Input::GrantNumbers { shard }),
                _ => {
                    let Some(inode) = some(&mut random, &expected) else { continue };
                    world.call(CALLER, inode.shard(), &Request::MoveOut { inode });
                    world.root().truncate(inode, 0).expect("truncated");
                    expected.insert(inode, loss);
                }
            }
        }
        for (inode, loss) in expected {
            assert_eq!(known(&mut world, inode), loss, "seed {seed} round {round} {inode:?}");
        }
    }
}

#[test]
fn a_service_that_goes_on_elsewhere_knows_the_age_of_files() {
    let mut world = World::daemons(3);
    let old = file(&mut world, b"old");
    lose(&mut world, 0, 5);
    let young = file(&mut world, b"young");
    let emptied = long_file(&mut world, b"emptied", 10);
    lose(&mut world, 0, 7);
    world.root().truncate(emptied, 0).expect("truncated");
    world.succeed(0, DaemonIndex(2), 2, 0);
    let next = file(&mut world, b"next");
    let found = [old, young, emptied, next].map(|inode| known(&mut world, inode));
    assert_eq!(found, [0, 5, 7, 7]);
}
