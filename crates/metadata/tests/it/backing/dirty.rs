//! Dirty names and inodes: what the writeback daemon reads and reports, once, twice, late and about
//! removed files; and that a snapshot taken while names change forgets nothing.

use crate::sim::writer::{Killed, Writer};
use crate::sim::{Answer, NOTHING, Random, World, config};
use metadata::{Config, Input, Service, SnapshotCursor};
use wire::attributes::{mode, writeback};
use wire::backing::{BackingLocation, CleanRequest, DirtyStatus, Stamp, Version};
use wire::codec::Field;
use wire::errno::Errno;
use wire::request::rename::EXCHANGE;
use wire::request::set;
use wire::{Attributes, Credentials, Inode, Layout, Reader, Request, ShardIndex};

fn world(daemons: u16) -> World {
    world_of((0..daemons).map(|daemon| config(daemon, daemons, 0, 1)))
}

fn world_of(configs: impl Iterator<Item = Config>) -> World {
    let mut world = World::of(configs.map(|it| Config { backing: true, ..it }).collect());
    world.backing.part = 3;
    world.backing.directory(b"d");
    world.backing.directory(b"d/e");
    world.backing.file(b"d/e/x", 5000);
    world
}

fn find(world: &mut World, path: &str) -> Attributes {
    let names = path.split('/');
    names.fold(Attributes { inode: Inode::ROOT, ..NOTHING }, |here, name| {
        world.root().look(here.inode, name.as_bytes()).expect("it is there")
    })
}

fn location(of: &Attributes, name: &'static [u8], number: u64) -> BackingLocation<'static> {
    let version = Version { number, modified: of.modified, size: of.size };
    BackingLocation { parent: Inode::ROOT, name, version, counts: of.size, stamp: Stamp::of(of) }
}

fn tell(world: &mut World, inode: Inode, request: &Request<'_>) -> Result<(), Errno> {
    world.tell_shard(inode.shard(), request)
}

/// A report on a name without an entry creates one; the previous inode in the report must be right.
#[test]
fn the_backing_inode_of_a_name_is_recorded_whatever_the_entry_is() {
    let mut world = world(2);
    let made = world.root().file(Inode::ROOT, b"made").expect("made").inode;
    let shard = world.shard_of(Inode::ROOT, b"made");
    let saved = |world: &mut World, from, to| {
        let (parent, name) = (Inode::ROOT, &b"made"[..]);
        world.tell_shard(shard, &Request::NameWritten { parent, name, from, to })
    };
    let rows = |world: &mut World| -> Vec<(Inode, Inode)> {
        world.dirty_names().iter().map(|row| (row.entry, row.backed_inode)).collect()
    };
    assert_eq!(rows(&mut world), [(made, Inode::NONE)]);
    assert_eq!(saved(&mut world, Inode(77), made), Err(Errno::EAGAIN), "another inode is there");
    assert_eq!(saved(&mut world, Inode::NONE, made), Ok(()));
    assert_eq!(saved(&mut world, Inode::NONE, made), Ok(()), "once more");
    assert_eq!(rows(&mut world), []);
    // Removed while it was written back: the name is clean until the report.
    world.root().unlink(Inode::ROOT, b"made").expect("removed");
    assert_eq!(rows(&mut world), [(Inode::NONE, made)]);
    assert_eq!(saved(&mut world, made, Inode::NONE), Ok(()));
    assert_eq!(rows(&mut world), []);
    assert_eq!(saved(&mut world, Inode::NONE, made), Ok(()));
    (0..2).for_each(|at| world.crash(at));
    assert_eq!(
        rows(&mut world),
        [(Inode::NONE, made)],
        "it is to be removed from the backing store"
    );
    let again = world.root().file(Inode::ROOT, b"made").expect("made").inode;
    assert_eq!(rows(&mut world), [(again, made)]);
    world.root().rename((Inode::ROOT, b"made"), (Inode::ROOT, b"other"), 0).expect("renamed");
    world.root().rename((Inode::ROOT, b"other"), (Inode::ROOT, b"made"), 0).expect("renamed");
    assert_eq!(rows(&mut world), [(again, made)], "the other name is as it was");
}

/// As long as a file has a partial file, bytes are read there, up to the size that counts; a
/// truncation meanwhile is noticed even if it leaves all that counts.
#[test]
fn a_partial_file_holds_the_bytes_until_it_is_committed_and_counts_truncations() {
    let mut world = world(1);
    let root = Credentials::ROOT;
    let made = world.root().file(Inode::ROOT, b"made").expect("made");
    let made = world.root().truncate(made.inode, 1_000_000).expect("longer");
    let inode = made.inode;
    let reported = |world: &mut World| match world.call(
        root,
        inode.shard(),
        &Request::LocateBacking { inode },
    ) {
        Answer::Bytes(bytes) => {
            let reported = wire::backing::BackingFile::decode(&mut Reader::new(&bytes));
            let reported = reported.expect("a place");
            Some((reported.path.to_vec(), reported.number, reported.size))
        }
        _ => None,
    };
    let version = Version::of_partial(7);
    let partial = BackingLocation {
        version,
        counts: 0,
        stamp: Stamp::default(),
        ..location(&made, b"draft", 7)
    };
    let note = |world: &mut World, is_new, location| {
        tell(world, inode, &Request::NotePartial { inode, is_new, location })
    };
    assert_eq!(note(&mut world, 0, partial), Err(Errno::EAGAIN), "there is none");
    let long = BackingLocation { counts: 10, ..partial };
    assert_eq!(note(&mut world, 1, long), Err(Errno::EAGAIN), "nothing counts");
    assert_eq!(note(&mut world, 1, partial), Ok(()));
    assert_eq!(note(&mut world, 1, partial), Err(Errno::EAGAIN), "there is one");
    assert_eq!(world.dirty_inodes().len(), 1);
    assert_eq!(note(&mut world, 0, BackingLocation { counts: 500_000, ..partial }), Ok(()));
    world.crash(0);
    assert_eq!(reported(&mut world), Some((b"draft".to_vec(), 7, 500_000)));
    // Bytes copied before a truncation do not count, and neither do those beyond it.
    let more = BackingLocation { counts: 800_000, ..partial };
    world.root().truncate(inode, 600_000).expect("truncated");
    assert_eq!(note(&mut world, 0, more), Err(Errno::EAGAIN), "it was truncated");
    let made = world.root().truncate(inode, 300_000).expect("truncated");
    assert_eq!(reported(&mut world), Some((b"draft".to_vec(), 7, 300_000)));
    let committed = location(&made, b"made", 7);
    let other =
        BackingLocation { version: Version { number: 8, ..committed.version }, ..committed };
    for (location, is_partial) in [(other, true), (committed, false)] {
        tell(&mut world, inode, &Request::Writing { inode, location }).expect("reported");
        tell(&mut world, inode, &Request::Wrote { inode, location }).expect("reported");
        let path = if is_partial { &b"draft"[..] } else { b"made" };
        assert_eq!(
            reported(&mut world).map(|reported| reported.0),
            Some(path.to_vec()),
            "a partial file is committed"
        );
        assert_eq!(!world.dirty_inodes().is_empty(), is_partial);
    }
    assert_eq!(tell(&mut world, inode, &Request::ForgetPartial { inode }), Ok(()));
    assert_eq!(world.dirty_inodes().len(), 0);
}

#[test]
fn an_inode_is_dirty_until_its_version_is_reported() {
    let mut world = world(2);
    let changed = |world: &mut World| -> Vec<Inode> {
        world.dirty_inodes().iter().map(|k| k.inode).collect()
    };
    let made = world.root().file(Inode::ROOT, b"made").expect("made");
    let inode = made.inode;
    let first = location(&made, b"made", 5);
    let (saving, wrote) =
        (Request::Writing { inode, location: first }, Request::Wrote { inode, location: first });
    assert_eq!(tell(&mut world, inode, &wrote), Err(Errno::EAGAIN), "it was not about to");
    assert_eq!(tell(&mut world, inode, &saving), Ok(()));
    assert_eq!(changed(&mut world), [inode], "the next daemon must check whether it was written");
    assert_eq!(tell(&mut world, inode, &Request::NotWritten { inode }), Ok(()));
    assert_eq!(tell(&mut world, inode, &Request::NotWritten { inode }), Ok(()));
    assert_eq!(changed(&mut world), []);
    assert_eq!(world.sync_state(inode).expect("there").now.map(|now| now.name), None);
    for _ in 0..2 {
        assert_eq!(tell(&mut world, inode, &saving), Ok(()));
    }
    for _ in 0..2 {
        assert_eq!(tell(&mut world, inode, &wrote), Ok(()));
    }
    assert_eq!(changed(&mut world), []);
    // First attributes, then contents.
    let changed_mode = world.root().chmod(inode, 0o600).expect("changed");
    assert_eq!(changed(&mut world), [inode]);
    let attributes_reported = BackingLocation { stamp: Stamp::of(&changed_mode), ..first };
    assert_eq!(
        tell(&mut world, inode, &Request::Wrote { inode, location: attributes_reported }),
        Ok(())
    );
    assert_eq!(changed(&mut world), []);
    let longer = world.root().truncate(inode, 100).expect("longer");
    assert_eq!(changed(&mut world), [inode]);
    let second = location(&longer, b"made", 6);
    let longest = world.root().truncate(inode, 200).expect("longer");
    let saving = Request::Writing { inode, location: second };
    assert_eq!(tell(&mut world, inode, &saving), Err(Errno::EAGAIN), "a copy of what it was");
    let third = location(&longest, b"made", 7);
    assert_eq!(tell(&mut world, inode, &Request::Writing { inode, location: third }), Ok(()));
    let of_another = Request::Wrote { inode, location: second };
    assert_eq!(tell(&mut world, inode, &of_another), Err(Errno::EAGAIN));
    world.root().truncate(inode, 300).expect("longer");
    assert_eq!(tell(&mut world, inode, &Request::Wrote { inode, location: third }), Ok(()));
    assert_eq!(changed(&mut world), [inode], "it was changed since");
    // Removed here, then in the backing store.
    world.root().unlink(Inode::ROOT, b"made").expect("removed");
    assert_eq!(changed(&mut world), [inode]);
    assert!(world.sync_state(inode).expect("it is in the backing store").attributes.is_none());
    for _ in 0..2 {
        assert_eq!(tell(&mut world, inode, &Request::Gone { inode }), Ok(()));
    }
    assert_eq!(changed(&mut world), []);
    assert_eq!(world.sync_state(inode).map(|known| known.inode), Err(Errno::ESTALE));
    let saving = Request::Writing { inode, location: third };
    assert_eq!(tell(&mut world, inode, &saving), Err(Errno::ESTALE));
    assert_eq!(
        tell(&mut world, inode, &Request::Wrote { inode, location: third }),
        Err(Errno::ESTALE)
    );
}

/// A deleted file that is still open is read from the backing store; it is set aside there first,
/// and that is reported.
#[test]
fn a_deleted_file_stays_in_the_backing_store_until_it_is_closed() {
    let mut world = world(2);
    let (e, x) = (find(&mut world, "d/e").inode, find(&mut world, "d/e/x").inode);
    let at = world.owner(x.shard());
    world.seats[at].host_view.open.insert(x);
    world.root().unlink(e, b"x").expect("removed");
    let known = world.sync_state(x).expect("open");
    assert_eq!(known.attributes.map(|attributes| attributes.links), Some(0));
    let Err(Killed) = Writer::new(&mut world, 1).round() else { panic!("it has time") };
    // About to be set aside: it is at either location.
    let of = |world: &mut World| world.places_of(x).expect("open").into_iter();
    let paths: Vec<Vec<u8>> = of(&mut world).map(|place| place.path).collect();
    let aside = format!("d/e/.aside-{}", x.0).into_bytes();
    assert_eq!(paths, [b"d/e/x".to_vec(), aside.clone()]);
    (0..2).for_each(|at| world.crash_to_snapshot(at, &mut Random(3)));
    world.seats[at].host_view.open.insert(x);
    world.save_all();
    let paths: Vec<Vec<u8>> = of(&mut world).map(|place| place.path).collect();
    assert_eq!(paths, [aside]);
    assert_eq!(world.backing.paths(1002).len(), 1);
    world.seats[at].host_view.open.clear();
    world.root().inode(x, &Request::Reap { inode: x }).expect("closed");
    world.save_all();
    assert!(world.backing.paths(1002).is_empty(), "nothing is left over");
}

/// The location of a directory follows the renames of the writeback daemon, for its entries and for
/// revalidation in it.
#[test]
fn backing_paths_follow_writeback() {
    for daemons in [1, 3] {
        let mut world = world(daemons);
        let (d, e) = (find(&mut world, "d").inode, find(&mut world, "d/e").inode);
        assert_eq!(world.backing.count, 2, "the inner one is not imported");
        world.root().rename((d, b"e"), (Inode::ROOT, b"moved"), 0).expect("renamed");
        world.root().rename((Inode::ROOT, b"d"), (e, b"inner"), 0).expect("renamed");
        world.save_all();
        let tree: Vec<&[u8]> = world.backing.tree.keys().map(|path| &path[..]).collect();
        assert_eq!(tree, [&b"moved"[..], b"moved/inner", b"moved/x"]);
        let x = find(&mut world, "moved/x").inode;
        assert_eq!(world.places_of(x).expect("there")[0].path, b"moved/x");
    }
}

/// A directory missing at its location is retried for two seconds, and another directory is not
/// mistaken for it.
#[test]
fn a_directory_missing_after_a_move_is_retried() {
    for daemons in [1, 3] {
        for is_reported in [true, false] {
            let mut world = world(daemons);
            let d = find(&mut world, "d");
            let now = world.sync_state(d.inode).expect("there").now.expect("in the backing store");
            let to = BackingLocation {
                parent: Inode::ROOT,
                name: b"q",
                version: now.version,
                counts: 0,
                stamp: now.stamp,
            };
            let inode = d.inode;
            tell(&mut world, inode, &Request::Writing { inode, location: to }).expect("reported");
            world.backing.rename(b"d", b"q");
            // Another directory has its name.
            world.backing.directory(b"d");
            world.backing.file(b"d/wrong", 1);
            world.data_is_prompt = false;
            let shard = world.shard_of_name(inode, b"e");
            let began = world.now;
            let request = Request::Lookup { parent: inode, name: b"e" };
            let ticket = world.send(Credentials::ROOT, shard, &request);
            for turn in 0..1000 {
                world.settle_for(100);
                while world.answer_backing(usize::MAX) {}
                if turn == 3 && is_reported {
                    world.data_is_prompt = true;
                    tell(&mut world, inode, &Request::Wrote { inode, location: to })
                        .expect("reported");
                }
                if world.answer(ticket).is_some() {
                    break;
                }
                world.now += 10_000_000;
                (0..usize::from(daemons)).for_each(|at| world.step(at, Input::Tick));
            }
            let answer = world.answer(ticket).expect("bounded");
            let waited = world.now - began;
            match is_reported {
                true => assert!(waited < 500_000_000, "{waited} {answer:?}"),
                false => {
                    assert_eq!(answer, Answer::Refused(Errno::EIO));
                    assert!((2_000_000_000..3_000_000_000).contains(&waited), "{waited}");
                }
            }
            if is_reported {
                assert_eq!(find(&mut world, "d/e/x").size, 5000);
                assert_eq!(world.root().look(inode, b"wrong").map(drop), Err(Errno::ENOENT));
            }
        }
    }
}

/// Truncated bytes are never read, from either of two versions.
#[test]
fn a_truncation_counts_for_both_versions() {
    let mut world = world(1);
    let x = find(&mut world, "d/e/x");
    let inode = x.inode;
    let next = BackingLocation { parent: find(&mut world, "d/e").inode, ..location(&x, b"x", 99) };
    tell(&mut world, inode, &Request::Writing { inode, location: next }).expect("reported");
    world.root().truncate(inode, 700).expect("truncated");
    let counts = |world: &mut World| -> Vec<u64> {
        world.places_of(inode).expect("there").iter().map(|place| place.size).collect()
    };
    assert_eq!(counts(&mut world), [700, 700]);
    world.root().truncate(inode, 9000).expect("longer");
    tell(&mut world, inode, &Request::Wrote { inode, location: next }).expect("reported");
    world.crash(0);
    assert_eq!(counts(&mut world), [700]);
    // Moved without a new version: the size that counts stays.
    let moved = BackingLocation { name: b"y", ..next };
    tell(&mut world, inode, &Request::Writing { inode, location: moved }).expect("reported");
    tell(&mut world, inode, &Request::Wrote { inode, location: moved }).expect("reported");
    assert_eq!(counts(&mut world), [700]);
    assert_eq!(world.dirty_inodes().len(), 1, "the backing bytes are from before the truncation");
}

#[test]
fn a_poll_for_dirty_names_is_answered_when_one_appears() {
    let mut world = world(1);
    let root = Credentials::ROOT;
    let await_news =
        |world: &mut World, seen| world.send(root, ShardIndex(0), &Request::AwaitDirty { seen });
    let reported = |world: &World, ticket| match world.answer(ticket) {
        Some(Answer::Bytes(bytes)) => {
            Some(DirtyStatus::take(&mut Reader::new(&bytes)).expect("news"))
        }
        None => None,
        other => panic!("{other:?}"),
    };
    find(&mut world, "d");
    let ticket = await_news(&mut world, 0);
    let first = reported(&world, ticket).expect("at once");
    assert_eq!((first.names, first.inodes), (0, 0), "all of it is backed");
    let ticket = await_news(&mut world, first.number);
    assert_eq!(reported(&world, ticket), None);
    let (began, deadline) = (world.now, world.seats[0].service.deadline().expect("waiting"));
    assert!(deadline - began <= 2_000_000_000);
    world.now = deadline;
    world.step(0, Input::Tick);
    assert_eq!(reported(&world, ticket), Some(first), "nothing happened");
    // By a request, by a local operation, and by a change in the backing store.
    let ticket = await_news(&mut world, first.number);
    world.root().file(Inode::ROOT, b"made").expect("made");
    let second = reported(&world, ticket).expect("reported");
    assert!(second.number != first.number && second.names == 1);
    let shard = Inode::ROOT.shard();
    world.step(0, Input::GrantNumbers { shard });
    assert_eq!(world.root().look(Inode::ROOT, b"posted").map(drop), Err(Errno::ENOENT));
    let ticket = await_news(&mut world, second.number);
    let began = world.now;
    world.create_by_local_op(Inode::ROOT, b"posted").expect("its name is known to be free");
    world.settle();
    assert!(world.now - began < 1_000_000_000, "it was answered at once");
    let local_op_count = reported(&world, ticket).expect("reported");
    assert_eq!(local_op_count.names, 2);
    let d = find(&mut world, "d").inode;
    let ticket = await_news(&mut world, local_op_count.number);
    world.root().chmod(d, 0o700).expect("changed");
    let third = reported(&world, ticket).expect("reported");
    assert_eq!((third.names, third.inodes), (2, 1));
    world.crash(0);
    let ticket = await_news(&mut world, third.number);
    let fourth = reported(&world, ticket).expect("another number");
    assert_eq!((fourth.names, fourth.inodes), (2, 1));
}

#[test]
fn long_lists_are_split() {
    let mut world = world(2);
    let d = find(&mut world, "d").inode;
    let long = |number: u32| format!("{}{number:04}", "n".repeat(200)).into_bytes();
    for number in 0..150 {
        world.root().file(d, &long(number)).expect("made");
        let made = world.root().directory(Inode::ROOT, &long(number)).expect("made");
        let inode = made.inode;
        let location = location(&made, b"some", u64::from(number));
        tell(&mut world, inode, &Request::Writing { inode, location }).expect("reported");
    }
    let rows = world.dirty_names();
    assert_eq!(rows.len(), 300);
    let names: std::collections::BTreeSet<_> =
        rows.iter().map(|row| (row.parent, row.name.clone())).collect();
    assert_eq!(names.len(), 300, "each once");
    let d_and_root = 1 + usize::from(world.sync_state(Inode::ROOT).expect("there").now.is_some());
    assert_eq!(world.dirty_inodes().len(), 150 + d_and_root);
}

#[test]
fn without_a_backing_directory_reports_are_refused() {
    let mut world = World::single();
    let (inode, parent) = (Inode::ROOT, Inode::ROOT);
    world.root().file(parent, b"a").expect("made");
    for request in [
        Request::SyncState { inode },
        Request::DirtyNames { parent: Inode::NONE, name: b"" },
        Request::DirtyInodes { after: Inode::NONE },
        Request::AwaitDirty { seen: 0 },
        Request::AwaitCleanRequests { seen: 0, moved: 0 },
        Request::CleanRequests {},
        Request::Settled { inode, number: 1, errno: Errno::EIO },
        Request::Writing { inode, location: location(&NOTHING, b"a", 1) },
        Request::Wrote { inode, location: location(&NOTHING, b"a", 1) },
        Request::NotWritten { inode },
        Request::Gone { inode },
        Request::NameWritten { parent, name: b"a", from: inode, to: inode },
    ] {
        let answer = world.call(Credentials::ROOT, ShardIndex(0), &request);
        assert_eq!(answer, Answer::Refused(Errno::EOPNOTSUPP), "{request:?}");
    }
}

/// A snapshot is taken in slices while names and files change, the writeback daemon works, and files
/// give up their copies: the restored state is the final state.
#[test]
fn a_snapshot_includes_changes_made_meanwhile() {
    let mut given_up = 0;
    for seed in 0..60 {
        println!("seed={seed}");
        let of_one = Config { copies: 2, ..config(0, 1, 0, 1) };
        let (mut random, mut world) = (Random(seed), world_of(std::iter::once(of_one)));
        for number in 0..20 {
            world.backing.file(format!("d/f{number}").as_bytes(), number);
        }
        let d = find(&mut world, "d").inode;
        let (mut log, mut cursor) = (vec![], SnapshotCursor::default());
        loop {
            let mut slice = vec![];
            let budget = 1 + random.uniform(600);
            let service = &world.seats[0].service;
            let goes_on = service.snapshot_slice(&mut cursor, budget, &mut slice);
            log.extend((!slice.is_empty()).then_some(slice));
            if !goes_on {
                break;
            }
            let before = world.seats[0].log.len();
            for _ in 0..random.uniform(3) {
                given_up += change(&mut world, &mut random, d);
            }
            log.extend_from_slice(&world.seats[0].log[before..]);
        }
        let mut again = Service::new(world.seats[0].config.clone());
        log.iter().for_each(|record| again.replay(record).expect("our own"));
        assert_eq!(crate::sim::dump(&again), crate::sim::dump(&world.seats[0].service));
        world.seats[0].log = log;
        let changed = |world: &mut World| -> Vec<Inode> {
            world.dirty_inodes().iter().map(|known| known.inode).collect()
        };
        let before = changed(&mut world);
        world.crash(0);
        assert_eq!(changed(&mut world), before, "what is derived is derived again");
        world.save_all();
        world.check_dirty(&[d, Inode::ROOT]);
    }
    assert!(given_up > 10, "{given_up}");
}

/// A random change. Returns the number of files that gave up their copies.
fn change(world: &mut World, random: &mut Random, d: Inode) -> usize {
    let name = |random: &mut Random| format!("f{}", random.uniform(24)).into_bytes();
    let (one, other) = (name(random), name(random));
    let to = [d, Inode::ROOT][random.uniform(2)];
    // Some of these are refused.
    match random.uniform(8) {
        0 => _ = world.root().unlink(d, &one),
        1 => _ = world.root().file(d, &one),
        2 => _ = world.root().rename((d, &one), (to, &other), 0),
        3 => _ = world.root().rename((d, &one), (d, &other), EXCHANGE),
        4 => {
            if let Ok(found) = world.root().look(d, &one) {
                let _ = world.root().link(found.inode, to, &other);
                assert_eq!(found.mode & mode::TYPE, mode::REGULAR);
            }
        }
        5 => {
            if let Ok(found) = world.root().look(d, &one) {
                let _ = world.root().truncate(found.inode, random.next() % 9000);
            }
        }
        6 => {
            // Longer than what stays in the metadata.
            if let Ok(made) = world.root().file(Inode::ROOT, &one) {
                let _ = world.root().truncate(made.inode, 9000);
            }
            if random.chance(70) {
                world.save_all();
            }
            return give_up(world, d);
        }
        _ => {
            let fuse = random.uniform(30);
            let _ = Writer::new(world, fuse).round();
        }
    }
    0
}

/// Space is short.
fn give_up(world: &mut World, d: Inode) -> usize {
    let inodes = |world: &mut World| -> Vec<Option<Inode>> {
        let names = [d, Inode::ROOT].map(|parent| (parent, world.root().list(parent)));
        let names = names.iter().flat_map(|(parent, names)| names.iter().map(|it| (*parent, it)));
        names.map(|(parent, name)| world.seats[0].service.entry_of(parent, name)).collect()
    };
    let before = inodes(world);
    world.step(0, Input::GiveBack);
    let after = inodes(world);
    let changed = before.iter().zip(&after).filter(|(before, after)| before != after);
    assert!(changed.clone().all(|(_, after)| after.is_some_and(Inode::is_backed)));
    changed.count()
}

/// Each directory has its own writeback mode, inherited by new directories and by later imports;
/// files have none.
#[test]
fn directories_inherit_the_writeback_mode() {
    let configs = (0..2).map(|daemon| {
        let mut config = config(daemon, 2, 0, 1);
        config.backing = true;
        config.root_flags = Layout::default().flags_with_writeback(writeback::IDLE);
        config
    });
    let mut world = World::of(configs.collect());
    world.backing.directory(b"d");
    world.backing.directory(b"d/e");
    world.backing.file(b"d/x", 5000);
    let of = |world: &mut World, path| find(world, path).layout.writeback();
    assert_eq!(of(&mut world, "d"), writeback::IDLE);
    let d = find(&mut world, "d").inode;
    let set = |world: &mut World, inode, value| {
        let flags = Layout::default().flags_with_writeback(value);
        let size = Layout { flags, ..Layout::default() }.word();
        world.root().set(inode, set::WRITEBACK, Attributes { size, ..NOTHING })
    };
    set(&mut world, d, writeback::NEVER).expect("set");
    assert_eq!(of(&mut world, "d"), writeback::NEVER);
    assert_eq!(of(&mut world, "d/e"), writeback::NEVER, "imported after that");
    assert_eq!(of(&mut world, "d/x"), 0);
    world.root().directory(d, b"made").expect("made");
    world.root().file(d, b"file").expect("made");
    let made = find(&mut world, "d/made").inode;
    (0..2).for_each(|at| world.crash(at));
    assert_eq!((of(&mut world, "d/made"), of(&mut world, "d/file")), (writeback::NEVER, 0));
    set(&mut world, d, writeback::END).expect("set");
    assert_eq!(of(&mut world, "d"), writeback::END);
    assert_eq!(of(&mut world, "d/made"), writeback::NEVER, "it keeps what it has");
    world.root().rename((d, b"made"), (Inode::ROOT, b"made"), 0).expect("renamed");
    assert_eq!(world.stat(made).expect("there").layout.writeback(), writeback::NEVER);
    let x = find(&mut world, "d/x").inode;
    assert_eq!(set(&mut world, x, writeback::END).map(drop), Err(Errno::ENOTDIR));
    let other = world.user(4, 4).set(d, set::WRITEBACK, NOTHING);
    assert_eq!(other.map(drop), Err(Errno::EPERM));
    let mut single = World::single();
    let made = single.root().directory(Inode::ROOT, b"d").expect("made");
    assert_eq!(made.layout.writeback(), 0);
    assert_eq!(set(&mut single, made.inode, 1).map(drop), Err(Errno::EOPNOTSUPP));
}

/// Sends a request that waits until an inode is clean; returns its ticket.
fn await_clean(world: &mut World, inode: Inode) -> u64 {
    world.send(Credentials::ROOT, inode.shard(), &Request::AwaitClean { inode })
}

fn expected(world: &mut World, shard: ShardIndex) -> Vec<CleanRequest> {
    match world.call(Credentials::ROOT, shard, &Request::CleanRequests {}) {
        Answer::Bytes(bytes) => wire::backing::listed::<CleanRequest>(&bytes).collect(),
        other => panic!("{other:?}"),
    }
}

fn settle(world: &mut World, inode: Inode, number: u64, errno: Errno) {
    let request = Request::Settled { inode, number, errno };
    assert_eq!(world.call(Credentials::ROOT, inode.shard(), &request), Answer::Done);
}

/// A target may evict clean files only; a request that finds no space hurries the writeback of the
/// rest.
#[test]
fn clean_files_are_reported_and_dirty_ones_are_hurried() {
    let mut world = world(1);
    let root = Credentials::ROOT;
    let made = world.root().file(Inode::ROOT, b"made").expect("made");
    let made = world.root().truncate(made.inode, 100).expect("longer");
    let inode = made.inode;
    let is_clean = |world: &mut World| {
        let answer = world.call(root, inode.shard(), &Request::IsClean { inode });
        answer == Answer::Number(1)
    };
    let hurried = |world: &mut World| {
        world.step(0, Input::GiveBack);
        let wants = expected(world, inode.shard());
        let is_there = wants.iter().any(|one| one.inode == Inode::NONE);
        assert!(is_there || !world.seats[0].service.writes_back_for_space().0);
        world.seats[0].service.writes_back_for_space().0
    };
    assert!(!is_clean(&mut world) && hurried(&mut world), "it has no backing location");
    let location = location(&made, b"made", 5);
    tell(&mut world, inode, &Request::Writing { inode, location }).expect("reported");
    assert!(!is_clean(&mut world), "it is on its way");
    tell(&mut world, inode, &Request::Wrote { inode, location }).expect("reported");
    let (parent, name, from) = (Inode::ROOT, &b"made"[..], Inode::NONE);
    let shard = world.shard_of(Inode::ROOT, b"made");
    world
        .tell_shard(shard, &Request::NameWritten { parent, name, from, to: inode })
        .expect("reported");
    assert!(is_clean(&mut world) && !hurried(&mut world), "all is clean");
    world.crash(0);
    assert!(is_clean(&mut world));
    let row = crate::sim::Row { unreported: 100, truncate_epoch: 0 };
    world.seats[0].host_view.vnodes.insert(inode, row);
    assert!(!is_clean(&mut world), "somebody may write to it");
    world.seats[0].host_view.vnodes.clear();
    world.root().truncate(inode, 200).expect("longer");
    assert!(!is_clean(&mut world) && hurried(&mut world), "it is another");
    world.seats[0].host_view.vnodes.insert(inode, row);
    assert!(!hurried(&mut world), "it cannot be written back while it is open");
    let gone = Inode(9);
    let answer = world.call(root, gone.shard(), &Request::IsClean { inode: gone });
    assert_eq!(answer, Answer::Number(0));
}

/// An awaited inode is listed for the writeback daemon with a number, and its report with that
/// number ends the wait.
#[test]
fn a_request_that_waits_for_writeback_gets_its_result() {
    let mut world = world(2);
    let root = Credentials::ROOT;
    let inode = world.root().file(Inode::ROOT, b"made").expect("made").inode;
    let shard = inode.shard();
    // The long poll of the daemon is answered at once when a request waits.
    let writer = world.send(root, shard, &Request::AwaitCleanRequests { seen: 0, moved: 0 });
    assert_eq!(world.answer(writer), None);
    let first = await_clean(&mut world, inode);
    assert!(matches!(world.answer(writer), Some(Answer::Number(number)) if number > 0));
    assert_eq!(world.answer(first), None);
    let known = expected(&mut world, shard);
    assert_eq!(known.iter().map(|one| one.inode).collect::<Vec<_>>(), [inode]);
    // A later request is not answered by an earlier result.
    let second = await_clean(&mut world, inode);
    settle(&mut world, inode, known[0].number, Errno(0));
    assert_eq!(world.answer(first), Some(Answer::Done));
    assert_eq!(world.answer(second), None, "not in the backing store");
    let number = expected(&mut world, shard)[0].number;
    settle(&mut world, inode, number, Errno::ENOSPC);
    assert_eq!(world.answer(second), Some(Answer::Refused(Errno::ENOSPC)));
    assert_eq!(expected(&mut world, shard), []);
    for (said, reported) in [(Errno::EROFS, Errno::EIO), (Errno::EDQUOT, Errno::EDQUOT)] {
        let third = await_clean(&mut world, inode);
        let number = expected(&mut world, shard)[0].number;
        settle(&mut world, inode, number, said);
        assert_eq!(world.answer(third), Some(Answer::Refused(reported)));
    }
    let ticket = world.send(root, Inode(9).shard(), &Request::AwaitClean { inode: Inode(9) });
    assert_eq!(world.answer(ticket), Some(Answer::Refused(Errno::ESTALE)));
    let mut single = World::single();
    let made = single.root().file(Inode::ROOT, b"f").expect("made").inode;
    let request = Request::AwaitClean { inode: made };
    assert_eq!(single.call(root, made.shard(), &request), Answer::Done, "not in the backing store");
}

/// After a while the client has to repeat its request, and learns whether the daemon made progress.
#[test]
fn a_long_wait_for_writeback_is_repeated_or_forgotten() {
    let mut world = world(2);
    let root = Credentials::ROOT;
    let inode = world.root().file(Inode::ROOT, b"made").expect("made").inode;
    let mut reported = Vec::new();
    for moved in [1, 1, 2] {
        let ticket = await_clean(&mut world, inode);
        let tell = Request::AwaitCleanRequests { seen: 0, moved };
        assert!(matches!(world.call(root, inode.shard(), &tell), Answer::Number(_)));
        let began = world.now;
        while world.answer(ticket).is_none() {
            world.now += 100_000_000;
            (0..2).for_each(|at| world.step(at, Input::Tick));
        }
        assert!(world.now - began <= 2_200_000_000);
        reported.push(world.answer(ticket));
    }
    assert!(reported[0] == reported[1] && reported[1] != reported[2], "{reported:?}");
    assert_eq!(expected(&mut world, inode.shard()).len(), 1);
    world.now += 5_000_000_000;
    assert_eq!(expected(&mut world, inode.shard()), []);
}

#[test]
fn a_wait_for_a_clean_inode_is_answered_at_once() {
    let mut world = world(2);
    let made = world.root().file(Inode::ROOT, b"made").expect("made");
    let inode = made.inode;
    let location = location(&made, b"made", 5);
    tell(&mut world, inode, &Request::Writing { inode, location }).expect("reported");
    let home = world.shard_of(Inode::ROOT, b"made");
    let saved =
        Request::NameWritten { parent: Inode::ROOT, name: b"made", from: Inode::NONE, to: inode };
    assert_eq!(world.tell_shard(home, &saved), Ok(()));
    let late = await_clean(&mut world, inode);
    assert_eq!(world.answer(late), None, "it is about to");
    tell(&mut world, inode, &Request::Wrote { inode, location }).expect("reported");
    settle(&mut world, inode, 0, Errno(0));
    assert_eq!(world.answer(late), Some(Answer::Done), "checked again");
    let ticket = await_clean(&mut world, inode);
    assert_eq!(world.answer(ticket), Some(Answer::Done));
    world.root().truncate(inode, 100).expect("longer");
    let ticket = await_clean(&mut world, inode);
    assert_eq!(world.answer(ticket), None);
    (0..2).for_each(|at| world.crash(at));
    assert_eq!(expected(&mut world, inode.shard()), [], "the request is to be repeated");
    world.root().rename((Inode::ROOT, b"made"), (Inode::ROOT, b"other"), 0).expect("renamed");
    let ticket = await_clean(&mut world, inode);
    assert_eq!(world.answer(ticket), None, "by another name");
}
