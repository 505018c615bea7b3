//! What is not saved in the backing directory: what the writer is told and may tell, once, twice, late
//! and of what is gone; that nothing is forgotten by a snapshot that is taken while names change.

mod kit;

use kit::writer::{Killed, Writer};
use kit::{Answer, NOTHING, Random, World, config};
use metadata::{Input, Service, SnapshotCursor};
use wire::attributes::{mode, write_back};
use wire::below::{Lies, News, Stamp, Version, Wanted};
use wire::codec::Field;
use wire::errno::Errno;
use wire::request::rename::EXCHANGE;
use wire::request::set;
use wire::{Attributes, Credentials, Inode, Layout, Reader, Request, ShardIndex};

fn world(daemons: u16) -> World {
    let configs = (0..daemons).map(|daemon| {
        let mut config = config(daemon, daemons, 0, 1);
        config.backing = true;
        config
    });
    let mut world = World::of(configs.collect());
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

fn lies(of: &Attributes, name: &'static [u8], number: u64) -> Lies<'static> {
    let version = Version { number, modified: of.modified, size: of.size };
    Lies { parent: Inode::ROOT, name, version, counts: of.size, stamp: Stamp::of(of) }
}

fn tell(world: &mut World, inode: Inode, request: &Request<'_>) -> Result<(), Errno> {
    world.tell_shard(inode.shard(), request)
}

/// What is told of a name that has no row makes one; what lay there before must be right.
#[test]
fn what_lies_by_a_name_is_noted_whatever_the_entry_is() {
    let mut world = world(2);
    let made = world.root().file(Inode::ROOT, b"made").expect("made").inode;
    let shard = world.shard_of(Inode::ROOT, b"made");
    let saved = |world: &mut World, from, to| {
        let (parent, name) = (Inode::ROOT, &b"made"[..]);
        world.tell_shard(shard, &Request::Saved { parent, name, from, to })
    };
    let rows = |world: &mut World| -> Vec<(Inode, Inode)> {
        world.unsaved_names().iter().map(|row| (row.entry, row.lies)).collect()
    };
    assert_eq!(rows(&mut world), [(made, Inode::NONE)]);
    assert_eq!(saved(&mut world, Inode(77), made), Err(Errno::EAGAIN), "another lies there");
    assert_eq!(saved(&mut world, Inode::NONE, made), Ok(()));
    assert_eq!(saved(&mut world, Inode::NONE, made), Ok(()), "once more");
    assert_eq!(rows(&mut world), []);
    // Removed while it was written: nothing differs until that is told.
    world.root().unlink(Inode::ROOT, b"made").expect("removed");
    assert_eq!(rows(&mut world), [(Inode::NONE, made)]);
    assert_eq!(saved(&mut world, made, Inode::NONE), Ok(()));
    assert_eq!(rows(&mut world), []);
    assert_eq!(saved(&mut world, Inode::NONE, made), Ok(()));
    (0..2).for_each(|at| world.crash(at));
    assert_eq!(rows(&mut world), [(Inode::NONE, made)], "it is to be removed below");
    let again = world.root().file(Inode::ROOT, b"made").expect("made").inode;
    assert_eq!(rows(&mut world), [(again, made)]);
    world.root().rename((Inode::ROOT, b"made"), (Inode::ROOT, b"other"), 0).expect("renamed");
    world.root().rename((Inode::ROOT, b"other"), (Inode::ROOT, b"made"), 0).expect("renamed");
    assert_eq!(rows(&mut world), [(again, made)], "the other name is as it was");
}

/// As long as a file has a draft bytes are looked for there, as many as count; a cut that came meanwhile
/// is noticed also where it leaves all that counts.
#[test]
fn a_draft_is_where_a_file_lies_until_it_lands_and_knows_of_cuts() {
    let mut world = world(1);
    let root = Credentials::ROOT;
    let made = world.root().file(Inode::ROOT, b"made").expect("made");
    let made = world.root().truncate(made.inode, 1_000_000).expect("longer");
    let inode = made.inode;
    let told = |world: &mut World| match world.call(root, inode.shard(), &Request::Below { inode })
    {
        Answer::Bytes(bytes) => {
            let told = wire::below::Below::decode(&mut Reader::new(&bytes));
            let told = told.expect("a place");
            Some((told.path.to_vec(), told.number, told.size))
        }
        _ => None,
    };
    let version = Version::of_draft(7);
    let draft = Lies { version, counts: 0, stamp: Stamp::default(), ..lies(&made, b"draft", 7) };
    let drafted = |is_new, lies| Request::Drafted { inode, is_new, lies };
    assert_eq!(tell(&mut world, inode, &drafted(0, draft)), Err(Errno::EAGAIN), "there is none");
    let long = Lies { counts: 10, ..draft };
    assert_eq!(tell(&mut world, inode, &drafted(1, long)), Err(Errno::EAGAIN), "nothing counts");
    assert_eq!(tell(&mut world, inode, &drafted(1, draft)), Ok(()));
    assert_eq!(tell(&mut world, inode, &drafted(1, draft)), Err(Errno::EAGAIN), "there is one");
    assert_eq!(world.unsaved_inodes().len(), 1);
    assert_eq!(tell(&mut world, inode, &drafted(0, Lies { counts: 500_000, ..draft })), Ok(()));
    world.crash(0);
    assert_eq!(told(&mut world), Some((b"draft".to_vec(), 7, 500_000)));
    // What was copied before a cut does not count, and what lies behind it does not any more.
    let more = Lies { counts: 800_000, ..draft };
    world.root().truncate(inode, 600_000).expect("cut");
    assert_eq!(tell(&mut world, inode, &drafted(0, more)), Err(Errno::EAGAIN), "it was cut");
    let made = world.root().truncate(inode, 300_000).expect("cut");
    assert_eq!(told(&mut world), Some((b"draft".to_vec(), 7, 300_000)));
    let landed = lies(&made, b"made", 7);
    let other = Lies { version: Version { number: 8, ..landed.version }, ..landed };
    for (lies, is_draft) in [(other, true), (landed, false)] {
        tell(&mut world, inode, &Request::Saving { inode, lies }).expect("told");
        tell(&mut world, inode, &Request::Wrote { inode, lies }).expect("told");
        let path = if is_draft { &b"draft"[..] } else { b"made" };
        assert_eq!(told(&mut world).map(|told| told.0), Some(path.to_vec()), "a draft lands");
        assert_eq!(!world.unsaved_inodes().is_empty(), is_draft);
    }
    assert_eq!(tell(&mut world, inode, &Request::Undrafted { inode }), Ok(()));
    assert_eq!(world.unsaved_inodes().len(), 0);
}

#[test]
fn an_inode_is_changed_until_its_version_is_told() {
    let mut world = world(2);
    let changed = |world: &mut World| -> Vec<Inode> {
        world.unsaved_inodes().iter().map(|k| k.inode).collect()
    };
    let made = world.root().file(Inode::ROOT, b"made").expect("made");
    let inode = made.inode;
    let first = lies(&made, b"made", 5);
    let (saving, wrote) =
        (Request::Saving { inode, lies: first }, Request::Wrote { inode, lies: first });
    assert_eq!(tell(&mut world, inode, &wrote), Err(Errno::EAGAIN), "it was not about to");
    assert_eq!(tell(&mut world, inode, &saving), Ok(()));
    assert_eq!(changed(&mut world), [inode], "somebody must look whether it was written");
    assert_eq!(tell(&mut world, inode, &Request::NotWritten { inode }), Ok(()));
    assert_eq!(tell(&mut world, inode, &Request::NotWritten { inode }), Ok(()));
    assert_eq!(changed(&mut world), []);
    assert_eq!(world.standing(inode).expect("there").now.map(|now| now.name), None);
    for _ in 0..2 {
        assert_eq!(tell(&mut world, inode, &saving), Ok(()));
    }
    for _ in 0..2 {
        assert_eq!(tell(&mut world, inode, &wrote), Ok(()));
    }
    assert_eq!(changed(&mut world), []);
    // Attributes, then contents.
    let changed_mode = world.root().chmod(inode, 0o600).expect("changed");
    assert_eq!(changed(&mut world), [inode]);
    let attributes_told = Lies { stamp: Stamp::of(&changed_mode), ..first };
    assert_eq!(tell(&mut world, inode, &Request::Wrote { inode, lies: attributes_told }), Ok(()));
    assert_eq!(changed(&mut world), []);
    let longer = world.root().truncate(inode, 100).expect("longer");
    assert_eq!(changed(&mut world), [inode]);
    let second = lies(&longer, b"made", 6);
    let longest = world.root().truncate(inode, 200).expect("longer");
    let saving = Request::Saving { inode, lies: second };
    assert_eq!(tell(&mut world, inode, &saving), Err(Errno::EAGAIN), "a copy of what it was");
    let third = lies(&longest, b"made", 7);
    assert_eq!(tell(&mut world, inode, &Request::Saving { inode, lies: third }), Ok(()));
    let of_another = Request::Wrote { inode, lies: second };
    assert_eq!(tell(&mut world, inode, &of_another), Err(Errno::EAGAIN));
    world.root().truncate(inode, 300).expect("longer");
    assert_eq!(tell(&mut world, inode, &Request::Wrote { inode, lies: third }), Ok(()));
    assert_eq!(changed(&mut world), [inode], "it was changed since");
    // It is gone here, then there.
    world.root().unlink(Inode::ROOT, b"made").expect("removed");
    assert_eq!(changed(&mut world), [inode]);
    assert!(world.standing(inode).expect("it lies below").attributes.is_none());
    for _ in 0..2 {
        assert_eq!(tell(&mut world, inode, &Request::Gone { inode }), Ok(()));
    }
    assert_eq!(changed(&mut world), []);
    assert_eq!(world.standing(inode).map(|known| known.inode), Err(Errno::ESTALE));
    let saving = Request::Saving { inode, lies: third };
    assert_eq!(tell(&mut world, inode, &saving), Err(Errno::ESTALE));
    assert_eq!(tell(&mut world, inode, &Request::Wrote { inode, lies: third }), Err(Errno::ESTALE));
}

/// A deleted file that is still open is read from below; a place for it is found, and told, first.
#[test]
fn a_deleted_file_lies_below_until_it_is_closed() {
    let mut world = world(2);
    let (e, x) = (find(&mut world, "d/e").inode, find(&mut world, "d/e/x").inode);
    let at = world.owner(x.shard());
    world.seats[at].opens.0.insert(x);
    world.root().unlink(e, b"x").expect("removed");
    let known = world.standing(x).expect("open");
    assert_eq!(known.attributes.map(|attributes| attributes.links), Some(0));
    let Err(Killed) = Writer::new(&mut world, 1).round() else { panic!("it has time") };
    // About to be set aside: it lies here or there.
    let of = |world: &mut World| world.places_of(x).expect("open").into_iter();
    let paths: Vec<Vec<u8>> = of(&mut world).map(|place| place.path).collect();
    let aside = format!("d/e/.aside-{}", x.0).into_bytes();
    assert_eq!(paths, [b"d/e/x".to_vec(), aside.clone()]);
    (0..2).for_each(|at| world.crash_to_snapshot(at, &mut Random(3)));
    world.seats[at].opens.0.insert(x);
    world.save_all();
    let paths: Vec<Vec<u8>> = of(&mut world).map(|place| place.path).collect();
    assert_eq!(paths, [aside]);
    assert_eq!(world.backing.paths(1002).len(), 1);
    world.seats[at].opens.0.clear();
    world.root().inode(x, &Request::Reap { inode: x }).expect("closed");
    world.save_all();
    assert!(world.backing.paths(1002).is_empty(), "nothing is left over");
}

/// Where a directory lies follows what the writer renames, for what is in it and for who looks into it.
#[test]
fn a_way_below_follows_the_writer() {
    for daemons in [1, 3] {
        let mut world = world(daemons);
        let (d, e) = (find(&mut world, "d").inode, find(&mut world, "d/e").inode);
        assert_eq!(world.backing.count, 2, "nobody has looked into the inner one");
        world.root().rename((d, b"e"), (Inode::ROOT, b"moved"), 0).expect("renamed");
        world.root().rename((Inode::ROOT, b"d"), (e, b"inner"), 0).expect("renamed");
        world.save_all();
        let tree: Vec<&[u8]> = world.backing.tree.keys().map(|path| &path[..]).collect();
        assert_eq!(tree, [&b"moved"[..], b"moved/inner", b"moved/x"]);
        let x = find(&mut world, "moved/x").inode;
        assert_eq!(world.places_of(x).expect("there")[0].path, b"moved/x");
    }
}

/// A directory that is not where it was said to be is asked for again for two seconds, and what is
/// another is not taken for it.
#[test]
fn a_directory_that_moves_is_looked_for() {
    for daemons in [1, 3] {
        for is_told in [true, false] {
            let mut world = world(daemons);
            let d = find(&mut world, "d");
            let now = world.standing(d.inode).expect("there").now.expect("below");
            let to = Lies {
                parent: Inode::ROOT,
                name: b"q",
                version: now.version,
                counts: 0,
                stamp: now.stamp,
            };
            let inode = d.inode;
            tell(&mut world, inode, &Request::Saving { inode, lies: to }).expect("told");
            world.backing.rename(b"d", b"q");
            // Another one has its name.
            world.backing.directory(b"d");
            world.backing.file(b"d/wrong", 1);
            world.data_is_prompt = false;
            let shard = world.shard_of_name(inode, b"e");
            let began = world.now;
            let request = Request::Lookup { parent: inode, name: b"e" };
            let ticket = world.send(Credentials::ROOT, shard, &request);
            for turn in 0..1000 {
                world.settle_for(100);
                while world.answer_below(usize::MAX) {}
                if turn == 3 && is_told {
                    world.data_is_prompt = true;
                    tell(&mut world, inode, &Request::Wrote { inode, lies: to }).expect("told");
                }
                if world.answer(ticket).is_some() {
                    break;
                }
                world.now += 10_000_000;
                (0..usize::from(daemons)).for_each(|at| world.step(at, Input::Tick));
            }
            let answer = world.answer(ticket).expect("bounded");
            let waited = world.now - began;
            match is_told {
                true => assert!(waited < 500_000_000, "{waited} {answer:?}"),
                false => {
                    assert_eq!(answer, Answer::Refused(Errno::EIO));
                    assert!((2_000_000_000..3_000_000_000).contains(&waited), "{waited}");
                }
            }
            if is_told {
                assert_eq!(find(&mut world, "d/e/x").size, 5000);
                assert_eq!(world.root().look(inode, b"wrong").map(drop), Err(Errno::ENOENT));
            }
        }
    }
}

/// What was cut off is nobody's, whichever of two versions is read.
#[test]
fn a_cut_counts_for_both_versions() {
    let mut world = world(1);
    let x = find(&mut world, "d/e/x");
    let inode = x.inode;
    let next = Lies { parent: find(&mut world, "d/e").inode, ..lies(&x, b"x", 99) };
    tell(&mut world, inode, &Request::Saving { inode, lies: next }).expect("told");
    world.root().truncate(inode, 700).expect("cut");
    let counts = |world: &mut World| -> Vec<u64> {
        world.places_of(inode).expect("there").iter().map(|place| place.size).collect()
    };
    assert_eq!(counts(&mut world), [700, 700]);
    world.root().truncate(inode, 9000).expect("longer");
    tell(&mut world, inode, &Request::Wrote { inode, lies: next }).expect("told");
    world.crash(0);
    assert_eq!(counts(&mut world), [700]);
    // Moved as it is: what counts is no more.
    let moved = Lies { name: b"y", ..next };
    tell(&mut world, inode, &Request::Saving { inode, lies: moved }).expect("told");
    tell(&mut world, inode, &Request::Wrote { inode, lies: moved }).expect("told");
    assert_eq!(counts(&mut world), [700]);
    assert_eq!(world.unsaved_inodes().len(), 1, "what is below is of before the cut");
}

#[test]
fn who_waits_for_news_is_told() {
    let mut world = world(1);
    let root = Credentials::ROOT;
    let await_news =
        |world: &mut World, seen| world.send(root, ShardIndex(0), &Request::AwaitUnsaved { seen });
    let told = |world: &World, ticket| match world.answer(ticket) {
        Some(Answer::Bytes(bytes)) => Some(News::take(&mut Reader::new(&bytes)).expect("news")),
        None => None,
        other => panic!("{other:?}"),
    };
    find(&mut world, "d");
    let ticket = await_news(&mut world, 0);
    let first = told(&world, ticket).expect("at once");
    assert_eq!((first.names, first.inodes), (0, 0), "all of it lies below");
    let ticket = await_news(&mut world, first.number);
    assert_eq!(told(&world, ticket), None);
    let (began, deadline) = (world.now, world.seats[0].service.deadline().expect("waiting"));
    assert!(deadline - began <= 2_000_000_000);
    world.now = deadline;
    world.step(0, Input::Tick);
    assert_eq!(told(&world, ticket), Some(first), "nothing happened");
    // By a request, by a post, and by a change of what lies below.
    let ticket = await_news(&mut world, first.number);
    world.root().file(Inode::ROOT, b"made").expect("made");
    let second = told(&world, ticket).expect("told");
    assert!(second.number != first.number && second.names == 1);
    let shard = Inode::ROOT.shard();
    world.step(0, Input::GrantNumbers { shard });
    assert_eq!(world.root().look(Inode::ROOT, b"posted").map(drop), Err(Errno::ENOENT));
    let ticket = await_news(&mut world, second.number);
    let began = world.now;
    world.post_file(Inode::ROOT, b"posted").expect("its name is known to be free");
    world.settle();
    assert!(world.now - began < 1_000_000_000, "it was told at once");
    let posted = told(&world, ticket).expect("told");
    assert_eq!(posted.names, 2);
    let d = find(&mut world, "d").inode;
    let ticket = await_news(&mut world, posted.number);
    world.root().chmod(d, 0o700).expect("changed");
    let third = told(&world, ticket).expect("told");
    assert_eq!((third.names, third.inodes), (2, 1));
    world.crash(0);
    let ticket = await_news(&mut world, third.number);
    let fourth = told(&world, ticket).expect("another number");
    assert_eq!((fourth.names, fourth.inodes), (2, 1));
}

#[test]
fn long_lists_come_in_parts() {
    let mut world = world(2);
    let d = find(&mut world, "d").inode;
    let long = |number: u32| format!("{}{number:04}", "n".repeat(200)).into_bytes();
    for number in 0..150 {
        world.root().file(d, &long(number)).expect("made");
        let made = world.root().directory(Inode::ROOT, &long(number)).expect("made");
        let inode = made.inode;
        let lies = lies(&made, b"some", u64::from(number));
        tell(&mut world, inode, &Request::Saving { inode, lies }).expect("told");
    }
    let rows = world.unsaved_names();
    assert_eq!(rows.len(), 300);
    let names: std::collections::BTreeSet<_> =
        rows.iter().map(|row| (row.parent, row.name.clone())).collect();
    assert_eq!(names.len(), 300, "each once");
    let d_and_root = 1 + usize::from(world.standing(Inode::ROOT).expect("there").now.is_some());
    assert_eq!(world.unsaved_inodes().len(), 150 + d_and_root);
}

#[test]
fn without_a_backing_directory_there_is_nothing_to_tell() {
    let mut world = World::alone();
    let (inode, parent) = (Inode::ROOT, Inode::ROOT);
    world.root().file(parent, b"a").expect("made");
    for request in [
        Request::Standing { inode },
        Request::UnsavedNames { parent: Inode::NONE, name: b"" },
        Request::UnsavedInodes { after: Inode::NONE },
        Request::AwaitUnsaved { seen: 0 },
        Request::AwaitWanted { seen: 0, moved: 0 },
        Request::Wanted {},
        Request::Settled { inode, number: 1, errno: Errno::EIO },
        Request::Saving { inode, lies: lies(&NOTHING, b"a", 1) },
        Request::Wrote { inode, lies: lies(&NOTHING, b"a", 1) },
        Request::NotWritten { inode },
        Request::Gone { inode },
        Request::Saved { parent, name: b"a", from: inode, to: inode },
    ] {
        let answer = world.call(Credentials::ROOT, ShardIndex(0), &request);
        assert_eq!(answer, Answer::Refused(Errno::EOPNOTSUPP), "{request:?}");
    }
}

/// A snapshot is taken in slices while names and files change, and a writer saves: what is read back is
/// what is there at the end.
#[test]
fn a_snapshot_forgets_nothing_that_changes_meanwhile() {
    for seed in 0..60 {
        println!("seed={seed}");
        let (mut random, mut world) = (Random(seed), world(1));
        for number in 0..20 {
            world.backing.file(format!("d/f{number}").as_bytes(), number);
        }
        let d = find(&mut world, "d").inode;
        let (mut log, mut cursor) = (vec![], SnapshotCursor::default());
        loop {
            let mut slice = vec![];
            let budget = 1 + random.below(600);
            let service = &world.seats[0].service;
            let goes_on = service.snapshot_slice(&mut cursor, budget, &mut slice);
            log.extend((!slice.is_empty()).then_some(slice));
            if !goes_on {
                break;
            }
            let before = world.seats[0].log.len();
            for _ in 0..random.below(3) {
                change(&mut world, &mut random, d);
            }
            log.extend_from_slice(&world.seats[0].log[before..]);
        }
        let mut again = Service::new(world.seats[0].config.clone());
        log.iter().for_each(|record| again.replay(record).expect("our own"));
        assert_eq!(kit::dump(&again), kit::dump(&world.seats[0].service));
        world.seats[0].log = log;
        let changed = |world: &mut World| -> Vec<Inode> {
            world.unsaved_inodes().iter().map(|known| known.inode).collect()
        };
        let before = changed(&mut world);
        world.crash(0);
        assert_eq!(changed(&mut world), before, "what is derived is derived again");
        world.save_all();
        world.check_unsaved(&[d, Inode::ROOT]);
    }
}

fn change(world: &mut World, random: &mut Random, d: Inode) {
    let name = |random: &mut Random| format!("f{}", random.below(24)).into_bytes();
    let (one, other) = (name(random), name(random));
    let to = [d, Inode::ROOT][random.below(2)];
    // Some of these are refused.
    match random.below(7) {
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
        _ => {
            let fuse = random.below(30);
            let _ = Writer::new(world, fuse).round();
        }
    }
}

/// When a directory is saved is its own to say, and what it hands down to directories, to those that are
/// brought in later as well; files have none of it.
#[test]
fn when_it_is_saved_is_handed_down_to_directories() {
    let configs = (0..2).map(|daemon| {
        let mut config = config(daemon, 2, 0, 1);
        config.backing = true;
        config.root_flags = Layout::default().flags_with_write_back(write_back::COOLING);
        config
    });
    let mut world = World::of(configs.collect());
    world.backing.directory(b"d");
    world.backing.directory(b"d/e");
    world.backing.file(b"d/x", 5000);
    let of = |world: &mut World, path| find(world, path).layout.write_back();
    assert_eq!(of(&mut world, "d"), write_back::COOLING);
    let d = find(&mut world, "d").inode;
    let set = |world: &mut World, inode, value| {
        let flags = Layout::default().flags_with_write_back(value);
        let size = Layout { flags, ..Layout::default() }.word();
        world.root().set(inode, set::WRITE_BACK, Attributes { size, ..NOTHING })
    };
    set(&mut world, d, write_back::NEVER).expect("set");
    assert_eq!(of(&mut world, "d"), write_back::NEVER);
    assert_eq!(of(&mut world, "d/e"), write_back::NEVER, "brought in after that");
    assert_eq!(of(&mut world, "d/x"), 0);
    world.root().directory(d, b"made").expect("made");
    world.root().file(d, b"file").expect("made");
    let made = find(&mut world, "d/made").inode;
    (0..2).for_each(|at| world.crash(at));
    assert_eq!((of(&mut world, "d/made"), of(&mut world, "d/file")), (write_back::NEVER, 0));
    set(&mut world, d, write_back::END).expect("set");
    assert_eq!(of(&mut world, "d"), write_back::END);
    assert_eq!(of(&mut world, "d/made"), write_back::NEVER, "it keeps what it has");
    world.root().rename((d, b"made"), (Inode::ROOT, b"made"), 0).expect("renamed");
    assert_eq!(world.stat(made).expect("there").layout.write_back(), write_back::NEVER);
    let x = find(&mut world, "d/x").inode;
    assert_eq!(set(&mut world, x, write_back::END).map(drop), Err(Errno::ENOTDIR));
    let other = world.user(4, 4).set(d, set::WRITE_BACK, NOTHING);
    assert_eq!(other.map(drop), Err(Errno::EPERM));
    let mut alone = World::alone();
    let made = alone.root().directory(Inode::ROOT, b"d").expect("made");
    assert_eq!(made.layout.write_back(), 0);
    assert_eq!(set(&mut alone, made.inode, 1).map(drop), Err(Errno::EOPNOTSUPP));
}

/// Who waits until an inode is saved: his ticket.
fn await_saved(world: &mut World, inode: Inode) -> u64 {
    world.send(Credentials::ROOT, inode.shard(), &Request::AwaitSaved { inode })
}

fn wanted(world: &mut World, shard: ShardIndex) -> Vec<Wanted> {
    match world.call(Credentials::ROOT, shard, &Request::Wanted {}) {
        Answer::Bytes(bytes) => wire::below::listed::<Wanted>(&bytes).collect(),
        other => panic!("{other:?}"),
    }
}

fn settle(world: &mut World, inode: Inode, number: u64, errno: Errno) {
    let request = Request::Settled { inode, number, errno };
    assert_eq!(world.call(Credentials::ROOT, inode.shard(), &request), Answer::Done);
}

/// A target may drop what is saved as it is, and nothing else; who finds no room has the rest saved.
#[test]
fn what_is_saved_as_it_is_is_told_and_what_is_not_is_hurried_for() {
    let mut world = world(1);
    let root = Credentials::ROOT;
    let made = world.root().file(Inode::ROOT, b"made").expect("made");
    let made = world.root().truncate(made.inode, 100).expect("longer");
    let inode = made.inode;
    let is_saved = |world: &mut World| {
        let asked = world.call(root, inode.shard(), &Request::IsSaved { inode });
        asked == Answer::Number(1)
    };
    let hurried = |world: &mut World| {
        world.step(0, Input::GiveBack);
        let wants = wanted(world, inode.shard());
        let is_there = wants.iter().any(|one| one.inode == Inode::NONE);
        assert!(is_there || !world.seats[0].service.saves_for_room().0);
        world.seats[0].service.saves_for_room().0
    };
    assert!(!is_saved(&mut world) && hurried(&mut world), "it lies nowhere");
    let lies = lies(&made, b"made", 5);
    tell(&mut world, inode, &Request::Saving { inode, lies }).expect("told");
    assert!(!is_saved(&mut world), "it is on its way");
    tell(&mut world, inode, &Request::Wrote { inode, lies }).expect("told");
    let (parent, name, from) = (Inode::ROOT, &b"made"[..], Inode::NONE);
    let shard = world.shard_of(Inode::ROOT, b"made");
    world.tell_shard(shard, &Request::Saved { parent, name, from, to: inode }).expect("told");
    assert!(is_saved(&mut world) && !hurried(&mut world), "all is saved");
    world.crash(0);
    assert!(is_saved(&mut world));
    let row = kit::Row { untold: 100, cuts: 0 };
    world.seats[0].opens.2.insert(inode, row);
    assert!(!is_saved(&mut world), "somebody may write to it");
    world.seats[0].opens.2.clear();
    world.root().truncate(inode, 200).expect("longer");
    assert!(!is_saved(&mut world) && hurried(&mut world), "it is another");
    world.seats[0].opens.2.insert(inode, row);
    assert!(!hurried(&mut world), "it can not be saved as long as it is open");
    let gone = Inode(9);
    let asked = world.call(root, gone.shard(), &Request::IsSaved { inode: gone });
    assert_eq!(asked, Answer::Number(0));
}

/// What somebody waits for is told to the writer with a number, and by that number to who waits.
#[test]
fn who_waits_for_what_he_wrote_is_told_what_comes_of_it() {
    let mut world = world(2);
    let root = Credentials::ROOT;
    let inode = world.root().file(Inode::ROOT, b"made").expect("made").inode;
    let shard = inode.shard();
    // The writer waits for those who wait, and is told at once.
    let writer = world.send(root, shard, &Request::AwaitWanted { seen: 0, moved: 0 });
    assert_eq!(world.answer(writer), None);
    let first = await_saved(&mut world, inode);
    assert!(matches!(world.answer(writer), Some(Answer::Number(number)) if number > 0));
    assert_eq!(world.answer(first), None);
    let known = wanted(&mut world, shard);
    assert_eq!(known.iter().map(|one| one.inode).collect::<Vec<_>>(), [inode]);
    // Who comes later is not told by what was known before.
    let second = await_saved(&mut world, inode);
    settle(&mut world, inode, known[0].number, Errno(0));
    assert_eq!(world.answer(first), Some(Answer::Done));
    assert_eq!(world.answer(second), None, "nothing lies below");
    let number = wanted(&mut world, shard)[0].number;
    settle(&mut world, inode, number, Errno::ENOSPC);
    assert_eq!(world.answer(second), Some(Answer::Refused(Errno::ENOSPC)));
    assert_eq!(wanted(&mut world, shard), []);
    for (said, told) in [(Errno::EROFS, Errno::EIO), (Errno::EDQUOT, Errno::EDQUOT)] {
        let third = await_saved(&mut world, inode);
        let number = wanted(&mut world, shard)[0].number;
        settle(&mut world, inode, number, said);
        assert_eq!(world.answer(third), Some(Answer::Refused(told)));
    }
    let ticket = world.send(root, Inode(9).shard(), &Request::AwaitSaved { inode: Inode(9) });
    assert_eq!(world.answer(ticket), Some(Answer::Refused(Errno::ESTALE)));
    let mut alone = World::alone();
    let made = alone.root().file(Inode::ROOT, b"f").expect("made").inode;
    let asked = Request::AwaitSaved { inode: made };
    assert_eq!(alone.call(root, made.shard(), &asked), Answer::Done, "nothing lies below");
}

/// After a while who waits is to ask again, and hears whether the writer did anything meanwhile.
#[test]
fn who_waits_for_long_asks_again_and_is_forgotten_if_he_does_not() {
    let mut world = world(2);
    let root = Credentials::ROOT;
    let inode = world.root().file(Inode::ROOT, b"made").expect("made").inode;
    let mut told = Vec::new();
    for moved in [1, 1, 2] {
        let ticket = await_saved(&mut world, inode);
        let tell = Request::AwaitWanted { seen: 0, moved };
        assert!(matches!(world.call(root, inode.shard(), &tell), Answer::Number(_)));
        let began = world.now;
        while world.answer(ticket).is_none() {
            world.now += 100_000_000;
            (0..2).for_each(|at| world.step(at, Input::Tick));
        }
        assert!(world.now - began <= 2_200_000_000);
        told.push(world.answer(ticket));
    }
    assert!(told[0] == told[1] && told[1] != told[2], "{told:?}");
    assert_eq!(wanted(&mut world, inode.shard()).len(), 1);
    world.now += 5_000_000_000;
    assert_eq!(wanted(&mut world, inode.shard()), []);
}

#[test]
fn who_waits_for_what_is_saved_is_told_at_once() {
    let mut world = world(2);
    let made = world.root().file(Inode::ROOT, b"made").expect("made");
    let inode = made.inode;
    let lies = lies(&made, b"made", 5);
    tell(&mut world, inode, &Request::Saving { inode, lies }).expect("told");
    let home = world.shard_of(Inode::ROOT, b"made");
    let saved = Request::Saved { parent: Inode::ROOT, name: b"made", from: Inode::NONE, to: inode };
    assert_eq!(world.tell_shard(home, &saved), Ok(()));
    let late = await_saved(&mut world, inode);
    assert_eq!(world.answer(late), None, "it is about to");
    tell(&mut world, inode, &Request::Wrote { inode, lies }).expect("told");
    settle(&mut world, inode, 0, Errno(0));
    assert_eq!(world.answer(late), Some(Answer::Done), "looked at anew");
    let ticket = await_saved(&mut world, inode);
    assert_eq!(world.answer(ticket), Some(Answer::Done));
    world.root().truncate(inode, 100).expect("longer");
    let ticket = await_saved(&mut world, inode);
    assert_eq!(world.answer(ticket), None);
    (0..2).for_each(|at| world.crash(at));
    assert_eq!(wanted(&mut world, inode.shard()), [], "who waits asks again");
    world.root().rename((Inode::ROOT, b"made"), (Inode::ROOT, b"other"), 0).expect("renamed");
    let ticket = await_saved(&mut world, inode);
    assert_eq!(world.answer(ticket), None, "by another name");
}
