//! Files with bytes in units that are lost (`Request::LostFiles`): those by arithmetic, older than the
//! loss, and not as they are in the backing store; in parts, from all services.

use std::collections::{BTreeMap, BTreeSet};

use crate::sim::{Answer, World, config};
use metadata::{Input, LackingUnits};
use placement::locate::target;
use wire::attributes::flag;
use wire::backing::{BackingLocation, Stamp, Version, listed};
use wire::codec::{Field, Reader, Writer};
use wire::hash::unit_in_target;
use wire::losses::{LOST_RANGES_MAX, LostFile, LostUnits, state};
use wire::request::set;
use wire::{Attributes, Credentials, Errno, Inode, Layout, Request, ShardIndex};

const ROOT: Inode = Inode::ROOT;
const CALLER: Credentials = Credentials::ROOT;
const PER_TARGET: u16 = 4;
const STRIPE: u64 = 1 << 22;

/// Services of daemons, each with one, in an instance that keeps so many copies.
fn world_with(daemons: u16, copies: u8) -> World {
    let mut all: Vec<_> = (0..daemons).map(|it| config(it, daemons, 0, 1)).collect();
    all.iter_mut().for_each(|it| it.copies = copies);
    World::of(all)
}

/// Files in a directory get so many copies from now on.
fn set_copies(world: &mut World, inode: Inode, copies: u8) {
    let (mask, mode, uid, gid, accessed, modified) = (set::COPIES, 0, 0, 0, 0, 0);
    let size = Layout { copies, ..Layout::default() }.word();
    let change = Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
    world.root().inode(inode, &change).expect("set");
}

/// Units for two copies.
const fn row(target: u16, units: u64, since: u64) -> LostUnits {
    LostUnits { copies: 2, target, units, since }
}

fn encoded(rows: &[LostUnits]) -> Vec<u8> {
    let mut bytes = vec![0; rows.len() * LostUnits::BYTES];
    let mut writer = Writer::new(&mut bytes);
    rows.iter().for_each(|row| row.put(&mut writer));
    bytes
}

/// The files that all services list, and the number of requests.
fn listed_by_all(world: &mut World, rows: &[LostUnits]) -> (BTreeMap<Inode, LostFile>, usize) {
    let mut services = BTreeMap::new();
    for shard in (0..wire::limits::SHARD_COUNT).map(ShardIndex) {
        services.entry(world.owner(shard)).or_insert(shard);
    }
    let units = encoded(rows);
    let (mut all, mut requests) = (BTreeMap::new(), 0);
    for shard in services.into_values() {
        let mut from = Inode::NONE;
        loop {
            let request = Request::LostFiles { from, per_target: PER_TARGET, units: &units };
            let answer = world.call(CALLER, shard, &request);
            let Answer::Bytes(bytes) = answer else { panic!("{answer:?}") };
            let mut reader = Reader::new(&bytes);
            let next = Inode::take(&mut reader).expect("an inode");
            for file in listed::<LostFile>(reader.rest()) {
                assert_eq!(all.insert(file.inode, file), None, "listed twice");
            }
            requests += 1;
            if next.is_none() {
                break;
            }
            assert!(next > from, "it goes on");
            from = next;
        }
    }
    (all, requests)
}

/// A file of so many bytes on targets.
fn long_file(world: &mut World, name: &[u8], size: u64) -> Attributes {
    let inode = world.root().file(ROOT, name).expect("made").inode;
    world.call(CALLER, inode.shard(), &Request::MoveOut { inode });
    world.call(CALLER, inode.shard(), &Request::Extend { inode, size });
    world.stat(inode).expect("there")
}

fn ranges_in(of: &Attributes, daemons: u16, lost: &LostUnits) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for stripe in 0..of.size.div_ceil(STRIPE) {
        let is_there = target(&of.layout, of.inode, stripe, daemons).0 == lost.target;
        let unit = unit_in_target(of.inode, stripe, PER_TARGET);
        if !is_there || lost.units >> unit & 1 == 0 {
            continue;
        }
        let (start, length) = (stripe * STRIPE, (of.size - stripe * STRIPE).min(STRIPE));
        match ranges.last_mut() {
            Some((before, long)) if *before + *long == start => *long += length,
            _ => ranges.push((start, length)),
        }
    }
    ranges
}

#[test]
fn files_with_bytes_in_lost_units_are_listed_with_these_bytes() {
    let mut world = world_with(3, 2);
    let sizes = [1, STRIPE, 5 * STRIPE + 7, 40 * STRIPE, 1000 * STRIPE];
    let files: Vec<Attributes> = (0..40)
        .map(|at| long_file(&mut world, format!("f{at}").as_bytes(), sizes[at % sizes.len()]))
        .collect();
    let empty = long_file(&mut world, b"empty", 0);
    let inline = world.root().file(ROOT, b"inline").expect("made").inode;
    let contents = Request::WriteInline { inode: inline, offset: 0, bytes: b"abc" };
    world.call(CALLER, inline.shard(), &contents);
    assert!(world.stat(inline).expect("there").layout.flags & flag::INLINE != 0);
    let lost = row(1, 0b101, LostUnits::OF_ALL_FILES);
    let (all, _) = listed_by_all(&mut world, &[lost]);
    let mut found = 0;
    for file in &files {
        let mut expected = ranges_in(file, 3, &lost);
        let has_more = expected.len() > LOST_RANGES_MAX;
        expected.truncate(LOST_RANGES_MAX);
        let listed = all.get(&file.inode);
        assert_eq!(listed.map_or(&[][..], LostFile::ranges), expected);
        assert!(listed.is_none_or(|it| (it.size, it.has_more) == (file.size, has_more)));
        found += usize::from(!expected.is_empty());
    }
    assert!(found > 0 && found < files.len() && all.len() == found);
    assert!(!all.contains_key(&empty.inode) && !all.contains_key(&inline));
    // All units of all targets.
    let every = [0, 1, 2].map(|target| row(target, 0b1111, LostUnits::OF_ALL_FILES));
    let (all, _) = listed_by_all(&mut world, &every);
    assert_eq!(all.len(), files.len());
    assert!(all.values().all(|it| it.ranges() == [(0, it.size)] && !it.has_more));
    world.root().unlink(ROOT, b"f0").expect("there");
    let (all, _) = listed_by_all(&mut world, &every);
    assert_eq!(all.len(), files.len() - 1);
}

#[test]
fn files_that_are_younger_than_the_loss_are_not_listed() {
    let mut world = world_with(1, 2);
    let old = long_file(&mut world, b"old", 10).inode;
    let emptied = long_file(&mut world, b"emptied", 10).inode;
    world.step(0, Input::UnitsLost { loss: 5 });
    let between = long_file(&mut world, b"between", 10).inode;
    world.step(0, Input::UnitsLost { loss: 9 });
    let young = long_file(&mut world, b"young", 10).inode;
    world.root().truncate(emptied, 0).expect("truncated");
    world.call(CALLER, emptied.shard(), &Request::Extend { inode: emptied, size: 3 });
    let of = |world: &mut World, since| {
        let (all, _) = listed_by_all(world, &[row(0, 0b1111, since)]);
        all.into_keys().collect::<BTreeSet<Inode>>()
    };
    assert_eq!(of(&mut world, 5), BTreeSet::from([old]));
    assert_eq!(of(&mut world, 9), BTreeSet::from([old, between]));
    let all = BTreeSet::from([old, emptied, between, young]);
    assert_eq!(of(&mut world, LostUnits::OF_ALL_FILES), all);
    world.crash(0);
    assert_eq!(of(&mut world, 9), BTreeSet::from([old, between]));
}

/// A service over a backing store with files `imported`, which is looked at, and `clean`, of 5,000 bytes.
fn over_a_store() -> (World, Inode) {
    let mut single = config(0, 1, 0, 1);
    (single.backing, single.copies) = (true, 2);
    let mut world = World::of(vec![single]);
    world.backing.file(b"imported", 5000);
    world.backing.file(b"clean", 5000);
    let imported = world.root().look(ROOT, b"imported").expect("it is in the backing store").inode;
    (world, imported)
}

fn set_size(world: &mut World, inode: Inode, size: u64) {
    let (mask, mode, uid, gid, accessed, modified) = (set::SIZE, 0, 0, 0, 0, 0);
    let cut = Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
    world.call(CALLER, inode.shard(), &cut);
}

#[test]
fn files_that_the_backing_store_has_are_not_listed() {
    let (mut world, imported) = over_a_store();
    let made = long_file(&mut world, b"made", 10);
    let units = row(0, 0b1111, LostUnits::OF_ALL_FILES);
    let down = row(0, 0, LostUnits::OF_TARGET);
    let of =
        |world: &mut World, row| listed_by_all(world, &[row]).0.into_keys().collect::<Vec<_>>();
    assert_eq!(of(&mut world, units), [made.inode]);
    assert_eq!(of(&mut world, down), []);
    // Changed here, where it has one copy, at its target.
    set_size(&mut world, imported, 4000);
    assert_eq!(of(&mut world, units), [made.inode], "in no unit");
    assert_eq!(of(&mut world, down), [imported]);
    assert_eq!(of(&mut world, LostUnits { target: 1, ..down }), []);
    // Written back.
    let version = Version { number: 77, modified: made.modified, size: made.size };
    let (parent, name, stamp) = (ROOT, &b"made"[..], Stamp::of(&made));
    let location = BackingLocation { parent, name, version, counts: made.size, stamp };
    let tell = |world: &mut World, request: &Request<'_>| {
        world.tell_shard(made.inode.shard(), request).expect("taken");
    };
    tell(&mut world, &Request::Writing { inode: made.inode, location });
    assert_eq!(of(&mut world, units), [made.inode]);
    tell(&mut world, &Request::Wrote { inode: made.inode, location });
    assert_eq!(of(&mut world, units), []);
}

#[test]
fn files_that_may_have_lost_changes_are_listed_until_they_are_emptied() {
    let (mut world, imported) = over_a_store();
    world.root().look(ROOT, b"clean").expect("it is in the backing store");
    let of = |world: &mut World| listed_by_all(world, &[LostUnits::CHANGES]).0;
    let locate = |world: &mut World| {
        world.call(CALLER, imported.shard(), &Request::LocateBacking { inode: imported })
    };
    world.step(0, Input::TargetsLost { first: 0, end: 1 });
    assert!(of(&mut world).is_empty(), "nothing was changed");
    set_size(&mut world, imported, 4000);
    world.step(0, Input::TargetsLost { first: 1, end: 9 });
    assert!(of(&mut world).is_empty(), "nothing was there");
    assert!(matches!(locate(&mut world), Answer::Bytes(_)));
    world.step(0, Input::TargetsLost { first: 0, end: 1 });
    for _ in 0..2 {
        let found = of(&mut world);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [imported]);
        assert_eq!(found[&imported].ranges(), [(0, 4000)]);
        assert_eq!(locate(&mut world), Answer::Refused(Errno::EIO), "never what was there before");
        world.crash(0);
    }
    set_size(&mut world, imported, 3000);
    assert_eq!(of(&mut world).len(), 1, "the rest of it is missing still");
    set_size(&mut world, imported, 0);
    assert!(of(&mut world).is_empty());
    world.crash(0);
    assert!(of(&mut world).is_empty());
}

/// "Changes that a file of one copy lost with a node are an error" (docs/semantics/durability.md), also
/// where there is no backing store.
#[test]
fn files_with_one_copy_that_were_on_a_lost_target_are_listed_until_they_are_emptied() {
    let mut world = world_with(3, 2);
    let kept = long_file(&mut world, b"kept", 40 * STRIPE);
    set_copies(&mut world, ROOT, 1);
    let sizes = [0, 1, STRIPE, 40 * STRIPE];
    let files = sizes.map(|size| long_file(&mut world, format!("f{size}").as_bytes(), size));
    let inline = world.root().file(ROOT, b"inline").expect("made").inode;
    let contents = Request::WriteInline { inode: inline, offset: 0, bytes: b"abc" };
    world.call(CALLER, inline.shard(), &contents);
    let has_bytes = |of: &Attributes, at: u16| {
        (0..of.size.div_ceil(STRIPE)).any(|stripe| target(&of.layout, of.inode, stripe, 3).0 == at)
    };
    let of = |at: u16| files.iter().filter(|it| has_bytes(it, at)).map(|it| it.inode).collect();
    let (expected, down): (BTreeSet<Inode>, _) = (of(1), LostUnits::OF_TARGET);
    assert!(!expected.is_empty() && !expected.contains(&kept.inode));
    let listed = |world: &mut World, target, since| {
        let (all, _) = listed_by_all(world, &[row(target, 0, since)]);
        all.into_keys().collect::<BTreeSet<_>>()
    };
    assert_eq!(listed(&mut world, 1, down), expected);
    let gone = LostUnits::OF_CHANGES;
    assert_eq!(listed(&mut world, 0, gone), BTreeSet::new());
    for seat in 0..3 {
        world.step(seat, Input::TargetsLost { first: 1, end: 2 });
    }
    assert_eq!(listed(&mut world, 0, gone), expected);
    let of_all = files.iter().map(|it| it.inode).chain([kept.inode, inline]);
    for inode in of_all.collect::<Vec<_>>() {
        let is_lost = expected.contains(&inode);
        let errno = if is_lost { Errno::EIO } else { Errno::ESTALE };
        let found = world.call(CALLER, inode.shard(), &Request::LocateBacking { inode });
        assert_eq!(found, Answer::Refused(errno), "{is_lost}");
    }
    for inode in expected {
        world.root().truncate(inode, 0).expect("emptied");
    }
    assert_eq!(listed(&mut world, 0, gone), BTreeSet::new());
}

#[test]
fn a_request_looks_at_a_bounded_number_of_files() {
    let mut world = world_with(1, 2);
    for number in 0..5000 {
        world.root().file(ROOT, format!("f{number}").as_bytes()).expect("made");
    }
    let rows = [row(0, 1, LostUnits::OF_ALL_FILES)];
    assert_eq!(listed_by_all(&mut world, &rows), (BTreeMap::new(), 2));
    // More files than an answer holds, and files of very many stripes.
    for number in 0..300 {
        let size = if number % 100 == 0 { 1 << 50 } else { 64 * STRIPE };
        long_file(&mut world, format!("long{number}").as_bytes(), size);
    }
    let (all, requests) = listed_by_all(&mut world, &rows);
    assert!(all.len() > 250 && requests > 6, "{} {requests}", all.len());
}

/// As `Request::CopyState` says it, where all daemons know this of units.
fn state_of(world: &mut World, file: &Attributes, lacking: &LackingUnits) -> u64 {
    for seat in &mut world.seats {
        seat.host_view.lacking = Some(lacking.clone());
    }
    let inode = file.inode;
    match world.call(CALLER, inode.shard(), &Request::CopyState { inode }) {
        Answer::Number(value) => value,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn files_of_each_number_of_copies_have_bytes_in_units_of_their_own() {
    let mut world = world_with(3, 3);
    let three = long_file(&mut world, b"three", 40 * STRIPE);
    set_copies(&mut world, ROOT, 2);
    let two = long_file(&mut world, b"two", 40 * STRIPE);
    set_copies(&mut world, ROOT, 1);
    let one = long_file(&mut world, b"one", 40 * STRIPE);
    set_copies(&mut world, ROOT, 3);
    let also = long_file(&mut world, b"also", 40 * STRIPE);
    let rows = |copies| {
        let since = LostUnits::OF_ALL_FILES;
        [0, 1, 2].map(|target| LostUnits { copies, target, units: 0b1111, since })
    };
    let of = [(2, vec![two.inode]), (3, vec![three.inode, also.inode]), (1, vec![])];
    for (copies, expected) in of {
        let (all, _) = listed_by_all(&mut world, &rows(copies));
        assert_eq!(all.into_keys().collect::<BTreeSet<_>>(), expected.into_iter().collect());
    }
    let down = rows(2).to_vec();
    let lacking = LackingUnits { per_target: PER_TARGET, down, ..LackingUnits::default() };
    let files = [(&two, state::DOWN), (&three, state::IN_SYNC), (&one, state::IN_SYNC)];
    for (file, expected) in files {
        assert_eq!(state_of(&mut world, file, &lacking), expected, "{:?}", file.inode);
    }
}

#[test]
fn the_state_of_a_file_is_that_of_its_worst_bytes() {
    let mut world = world_with(3, 2);
    let (long, empty) =
        (long_file(&mut world, b"long", 40 * STRIPE), long_file(&mut world, b"e", 0));
    let all = |target| row(target, 0b1111, LostUnits::OF_ALL_FILES);
    let mut lacking = LackingUnits { per_target: PER_TARGET, ..LackingUnits::default() };
    assert_eq!(state_of(&mut world, &long, &lacking), state::IN_SYNC);
    lacking.degraded = vec![all(1)];
    assert_eq!(state_of(&mut world, &long, &lacking), state::DEGRADED);
    lacking.down = vec![all(2)];
    assert_eq!(state_of(&mut world, &long, &lacking), state::DOWN);
    lacking.gone = vec![all(0)];
    assert_eq!(state_of(&mut world, &long, &lacking), state::LOST);
    assert_eq!(state_of(&mut world, &empty, &lacking), state::IN_SYNC);
    let inode = Inode(long.inode.0 + 1000);
    let gone = world.call(CALLER, inode.shard(), &Request::CopyState { inode });
    assert_eq!(gone, Answer::Refused(Errno::ESTALE));
}
