//! In the end both trees are equal, and nothing is lost on the way, whatever happens meanwhile.

use super::instance::place;
use super::listing::listing_of;
use super::{Faults, Faulty, World};
use crate::backends::posix::PosixBackend;
use crate::round::order::JobOrder;
use crate::round::scope::Scope;
use crate::round::{RoundCache, RoundCounters, RoundOptions, RoundReport, Trigger, run};
use crate::state::{BackingLocation, WritebackError, WritebackResult};
use config::choice::WritebackVerify as Verify;
use std::fs;
use std::path::{Path, PathBuf};
use wire::Inode;
use wire::backing::{Stamp, Version};

/// Number of rounds after which everything is written, without faults.
const ROUNDS_MAX: usize = 12;
const SEEDS: u64 = 120;
/// Owner number of the instance.
const OWNER: u64 = 7;
/// Seeds with lost answers. With the first a directory was moved aside, the answer was lost, and a
/// file in it was taken for deleted. With the second two directories were moved into each other,
/// both moves were in doubt, and neither directory was found. With the third a deleted directory
/// was removed and not reported, and a new directory with its inode number and name was taken for
/// it. With the last an unreported partial file kept a deleted directory.
const UNHEARD: [u64; 4] = [476, 347, 800, 2404];
/// Seeds with kills: as the third of those, on a file system that reuses inode numbers at once.
const DIED: [u64; 2] = [569, 1572];
/// With this seed a file was truncated before its partial file was created, which then was longer
/// than the file.
const CUT: u64 = 921;

fn options() -> RoundOptions {
    let verifies = Verify::Contents;
    RoundOptions { threads: 1, idle_nanos: 0, trigger: Trigger::Normal, now: 0, verifies }
}

/// A round over everything; sometimes one for space, which also writes files that are open for
/// writing.
fn round(world: &World, cache: &mut RoundCache) -> WritebackResult<RoundReport> {
    let posix = PosixBackend::new(world.place.path(), OWNER)?;
    let trigger = match world.random.lock().expect("numbers").uniform(4) {
        0 => Trigger::Normal,
        1 => Trigger::Flush,
        _ => Trigger::Space,
    };
    let options = RoundOptions { trigger, ..options() };
    run(
        world,
        &Faulty { world, posix },
        (options, &Scope::default()),
        cache,
        &RoundCounters::default(),
    )
}

/// Runs rounds until nothing is dirty; returns the sum of their reports.
fn settle(world: &World, cache: &mut RoundCache) -> RoundReport {
    let mut all = RoundReport::default();
    world.with(|instance| instance.close_all());
    for _ in 0..ROUNDS_MAX {
        let report = round(world, cache).expect("a round");
        assert_eq!(report.failures, [], "nothing fails, seed {}", world.seed);
        all.conflicts.extend(report.conflicts);
        all.written += report.written;
        if world.with(|instance| {
            instance.dirty_names().is_empty() && instance.dirty_inodes().is_empty()
        }) {
            return all;
        }
    }
    let left = world
        .with(|instance| format!("{:#?} {:#?}", instance.dirty_names(), instance.dirty_inodes()));
    panic!("not everything is written, seed {}: {left}", world.seed);
}

fn assert_equal(world: &World, seed: u64) {
    let backing = listing_of(world.place.path());
    let instance = world.with(|instance| instance.listing());
    for (path, said) in &instance {
        assert_eq!(
            backing.get(path),
            Some(said),
            "{} in the backing store, seed {seed}",
            path.display()
        );
    }
    let more: Vec<_> = backing.keys().filter(|path| !instance.contains_key(*path)).collect();
    assert!(more.is_empty(), "{more:?} are only in the backing store, seed {seed}");
}

/// A backing directory with files, imported into the instance.
fn imported(seed: u64) -> std::sync::Arc<World> {
    let world = World::new(seed);
    let root = world.place.path();
    fs::create_dir_all(root.join("a/b")).expect("made");
    fs::create_dir(root.join("d")).expect("made");
    for name in ["a/a", "a/b/c", "b", "c", "d/e"] {
        fs::write(root.join(name), format!("contents of {name}")).expect("written");
    }
    world.with(|instance| instance.import());
    world
}

fn operate(world: &World, count: usize) {
    let mut random = world.random.lock().expect("numbers");
    world.with(|instance| (0..count).for_each(|_| instance.operate(&mut random)));
}

#[test]
fn all_changes_reach_the_backing_store() {
    for seed in 0..SEEDS {
        let world = imported(seed);
        let mut cache = RoundCache::default();
        // The order of files changes nothing of what arrives.
        cache.order = (seed % 2 == 1).then(JobOrder::default);
        for _ in 0..4 {
            operate(&world, 20);
            settle(&world, &mut cache);
            assert_equal(&world, seed);
            assert!(world.with(|instance| instance.has_all()), "seed {seed}");
        }
    }
}

#[test]
fn changes_during_writeback_reach_the_backing_store() {
    let (mut dropped, mut parts) = (0, 0);
    for seed in (0..SEEDS).chain([CUT]) {
        let world = imported(seed);
        let mut cache = RoundCache::default();
        // The order of files changes nothing of what arrives.
        cache.order = (seed % 2 == 1).then(JobOrder::default);
        operate(&world, 20);
        world.set(Faults { busy_in: Some(10), ..Faults::default() });
        for _ in 0..6 {
            round(&world, &mut cache).expect("a round");
            assert!(world.with(|instance| instance.has_all()), "seed {seed}");
        }
        world.set(Faults::default());
        settle(&world, &mut cache);
        assert_equal(&world, seed);
        dropped += world.with(|instance| instance.dropped);
        parts += world.with(|instance| instance.parts_dropped);
    }
    assert!(dropped > 0, "no clean file was evicted");
    assert!(parts > 0, "no part of an open file was evicted");
}

#[test]
fn failed_calls_are_retried() {
    for seed in (0..SEEDS).chain(UNHEARD) {
        let world = imported(seed);
        let mut cache = RoundCache::default();
        operate(&world, 30);
        world.set(Faults { error_in: Some(15), busy_in: Some(20), ..Faults::default() });
        for _ in 0..10 {
            let _ = round(&world, &mut cache);
            assert!(world.with(|instance| instance.has_all()), "seed {seed}");
        }
        world.set(Faults::default());
        settle(&world, &mut cache);
        assert_equal(&world, seed);
    }
}

/// A store that has lost bytes, or has others than it was given: nothing of that counts as saved.
#[test]
fn a_store_that_has_other_bytes_is_found_out_and_gets_them_again() {
    let mut found = 0;
    for seed in 0..SEEDS {
        let world = imported(seed);
        let mut cache = RoundCache::default();
        operate(&world, 30);
        world.set(Faults { lie_in: Some(3), busy_in: Some(20), ..Faults::default() });
        for _ in 0..5 {
            let report = round(&world, &mut cache).expect("a round");
            let is_it = |failure: &&(PathBuf, String)| failure.1.contains("the backing store has");
            found += report.failures.iter().filter(is_it).count();
            assert!(world.with(|instance| instance.has_all()), "seed {seed}");
        }
        world.set(Faults::default());
        settle(&world, &mut cache);
        assert_equal(&world, seed);
    }
    assert!(found > 0, "no lie was told");
}

#[test]
fn a_daemon_killed_at_any_call_leaves_a_state_that_the_next_completes() {
    for seed in 0..SEEDS / 10 {
        for lives in 1.. {
            let world = imported(seed);
            operate(&world, 25);
            world.set(Faults { lives: Some(lives), ..Faults::default() });
            let _ = round(&world, &mut RoundCache::default());
            let has_died = world.is_dead();
            world.set(Faults::default());
            assert!(world.with(|instance| instance.has_all()), "seed {seed}, call {lives}");
            let mut cache = RoundCache::default();
            settle(&world, &mut cache);
            assert_equal(&world, seed);
            if !has_died {
                break;
            }
        }
    }
}

#[test]
fn daemons_are_killed_repeatedly_during_changes() {
    for seed in (0..SEEDS).chain(DIED) {
        let world = imported(seed);
        operate(&world, 25);
        for turn in 0..12_u32 {
            let lives = Some(7 + turn * 13 % 90);
            world.set(Faults { lives, error_in: Some(60), busy_in: Some(25), ..Faults::default() });
            let _ = round(&world, &mut RoundCache::default());
            assert!(world.with(|instance| instance.has_all()), "seed {seed}");
        }
        world.set(Faults::default());
        settle(&world, &mut RoundCache::default());
        assert_equal(&world, seed);
    }
}

/// While it is rewritten in place, its evicted bytes exist only in the partial file.
#[test]
fn a_daemon_killed_while_it_rewrites_a_file_with_hard_links_loses_no_byte() {
    for lives in 1.. {
        let world = imported(0);
        let mut cache = RoundCache::default();
        world.with(|instance| {
            let file = instance.at("b");
            instance.link(file, Inode::ROOT, "further");
            instance.write(file, 0, &[7; 60]);
        });
        settle(&world, &mut cache);
        world.with(|instance| {
            instance.drop_clean();
            instance.write(instance.at("b"), 30, b"x");
        });
        world.set(Faults { lives: Some(lives), ..Faults::default() });
        let _ = round(&world, &mut cache);
        let has_died = world.is_dead();
        world.set(Faults::default());
        world.with(|instance| instance.drop_clean());
        assert!(world.with(|instance| instance.has_all()), "call {lives}");
        settle(&world, &mut RoundCache::default());
        assert_equal(&world, 0);
        if !has_died {
            return;
        }
    }
}

fn read(world: &World, name: &str) -> String {
    String::from_utf8_lossy(&fs::read(world.place.path().join(name)).expect(name)).into_owned()
}

#[test]
fn a_file_changed_by_others_stays_and_ours_gets_a_conflict_name() {
    let world = imported(0);
    let place = world.place.path();
    world.with(|instance| {
        let file = instance.at("b");
        instance.write(file, 0, b"ours");
        instance.truncate(file, 4);
        instance.remove(Inode::ROOT, "c");
        instance.create(Inode::ROOT, "new", b"ours too");
        instance.rename((instance.at("d"), "e"), (Inode::ROOT, "moved"));
    });
    for name in ["b", "c", "new", "moved"] {
        fs::write(place.join(name), "of others").expect("written");
    }
    // Some bytes of `b` were never read; those that were read are in the instance.
    world.with(|instance| instance.truncate(instance.at("b"), 0));
    world.with(|instance| instance.write(instance.at("b"), 0, b"ours"));
    let report = settle(&world, &mut RoundCache::default());
    assert_eq!(report.conflicts.len(), 4, "{:?}", report.conflicts);
    for name in ["b", "c", "new", "moved"] {
        assert_eq!(read(&world, name), "of others", "{name}");
    }
    let beside = |name: &str| {
        let names = fs::read_dir(place).expect("listed").flatten().map(|entry| entry.file_name());
        let start = format!("{name}.forebay-conflict-");
        let mut found = names.filter(|name| name.to_string_lossy().starts_with(&start));
        found.next().map(|name| read(&world, &name.to_string_lossy()))
    };
    assert_eq!(beside("b").as_deref(), Some("ours"));
    assert_eq!(beside("c"), None);
    assert_eq!(beside("new").as_deref(), Some("ours too"));
    assert_eq!(beside("moved").as_deref(), Some("contents of d/e"));
}

#[test]
fn a_removed_directory_with_foreign_files_stays() {
    let world = imported(0);
    fs::write(world.place.path().join("d/theirs"), "of others").expect("written");
    world.with(|instance| {
        instance.remove(instance.at("d"), "e");
        instance.remove(Inode::ROOT, "d");
    });
    let report = settle(&world, &mut RoundCache::default());
    assert_eq!(report.conflicts.len(), 1, "{:?}", report.conflicts);
    assert_eq!(read(&world, "d/theirs"), "of others");
    assert!(!world.place.path().join("d/e").exists());
}

/// The temporary names in a directory of the backing store.
fn temporary_in(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("a listing").flatten().map(|it| it.file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    names.filter(|name| name.starts_with(".forebay-part-")).collect()
}

/// A temporary name of a process that has ended, in a directory of the backing store.
fn name_of_dead(dir: &Path) -> String {
    let at = std::sync::Arc::new(backing::Dir::open(dir).expect("a directory"));
    let before = temporary_in(dir);
    let partial = backing::PartialFile::new(&at, 0o600).expect("made");
    let is_new = |name: &String| !before.contains(name);
    let name = temporary_in(dir).into_iter().find(is_new).expect("its name");
    drop(partial);
    let mut process = std::process::Command::new("true").spawn().expect("a process");
    let pid = process.id();
    process.wait().expect("it ends");
    let own = format!("-{:x}-", std::process::id());
    name.replacen(&own, &format!("-{pid:x}-"), 1)
}

/// The temporary files of a killed daemon are not files of others.
#[test]
fn temporary_files_of_a_killed_daemon_do_not_keep_a_directory() {
    let world = imported(0);
    world.with(|instance| instance.make_directory(Inode::ROOT, "x"));
    settle(&world, &mut RoundCache::default());
    let dir = world.place.path().join("x");
    fs::write(dir.join(name_of_dead(&dir)), "half").expect("written");
    world.with(|instance| {
        instance.remove(Inode::ROOT, "x");
        let again = instance.make_directory(Inode::ROOT, "x");
        instance.create(again, "new", b"new");
    });
    let report = settle(&world, &mut RoundCache::default());
    assert_eq!(report.conflicts, []);
    assert_equal(&world, 0);
}

/// Nor do they stay where nothing changes any more: what they were for is removed.
#[test]
fn temporary_files_of_a_killed_daemon_go_where_nothing_else_changes() {
    let mut marked = 0;
    for lives in 1.. {
        let world = imported(0);
        world.with(|instance| instance.create(instance.at("d"), "new", b"new"));
        world.set(Faults { lives: Some(lives), ..Faults::default() });
        let _ = round(&world, &mut RoundCache::default());
        let has_died = world.is_dead();
        world.set(Faults::default());
        // A file is made in a directory that is marked, or in the top directory.
        let state = world.with(|instance| instance.sync_state(instance.at("d")));
        let now = state.expect("a directory").now.expect("in the backing store");
        let mut dirs = vec![world.place.path().to_owned()];
        if now.stamp.changed == 0 {
            dirs.push(world.place.path().join("d"));
            marked += 1;
        }
        for dir in &dirs {
            fs::write(dir.join(name_of_dead(dir)), "half").expect("written");
        }
        world.with(|instance| instance.remove(instance.at("d"), "new"));
        settle(&world, &mut RoundCache::default());
        for dir in &dirs {
            assert_eq!(temporary_in(dir), [""; 0], "call {lives}: {}", dir.display());
        }
        assert_equal(&world, lives.into());
        if !has_died {
            break;
        }
    }
    assert!(marked > 0, "no directory was marked");
}

#[test]
fn another_file_system_mounted_at_the_path_is_not_touched() {
    let world = imported(0);
    let posix = PosixBackend::new(world.place.path(), OWNER).expect("a backing directory");
    let elsewhere = world.place.path().with_extension("away");
    fs::rename(world.place.path(), &elsewhere).expect("renamed");
    fs::create_dir(world.place.path()).expect("made");
    world.with(|instance| instance.create(Inode::ROOT, "new", b"x"));
    let backend = Faulty { world: &world, posix };
    let all = (options(), &Scope::default());
    let done = run(&*world, &backend, all, &mut RoundCache::default(), &RoundCounters::default());
    assert!(matches!(done, Err(WritebackError::Backing(_))), "{done:?}");
    assert_eq!(fs::read_dir(world.place.path()).expect("listed").count(), 0);
    fs::remove_dir(world.place.path()).expect("removed");
    fs::rename(&elsewhere, world.place.path()).expect("back");
    settle(&world, &mut RoundCache::default());
    assert_eq!(read(&world, "new"), "x");
}

/// The location of a file that is about to be moved unchanged.
fn moved(world: &World, inode: Inode, parent: Inode, name: &str) -> BackingLocation {
    let sync_state = world.with(|instance| instance.sync_state(inode)).expect("it is known");
    BackingLocation {
        place: place(parent, name),
        ..sync_state.now.expect("it is in the backing store")
    }
}

#[test]
fn a_directory_with_a_reused_inode_number_stays() {
    let world = imported(0);
    let (gone, at) = (world.with(|instance| instance.at("d")), place(Inode::ROOT, "d"));
    let location = moved(&world, gone, Inode::ROOT, "d");
    fs::remove_file(world.place.path().join("d/e")).expect("removed");
    world.with(|instance| {
        instance.remove(gone, "e");
        instance.remove(Inode::ROOT, "d");
        let new = instance.make_directory(Inode::ROOT, "d");
        // The backing store has the new one, which cannot be told from the old one.
        instance.writing(new, &location).expect("accepted");
        instance.name_written(&at, gone, new).expect("accepted");
        instance.wrote(new, &location).expect("accepted");
    });
    settle(&world, &mut RoundCache::default());
    assert_equal(&world, 0);
}

#[test]
fn directories_are_found_after_interrupted_moves_into_each_other() {
    let moves = [("a/b", "d/x"), ("a", "d/x/y")];
    for done in 0..=moves.len() {
        let world = imported(0);
        let all @ [outer, inner, other] =
            world.with(|instance| ["a", "a/b", "d"].map(|path| instance.at(path)));
        assert!(all.iter().all(|inode| !inode.is_none()));
        let locations =
            [(inner, moved(&world, inner, other, "x")), (outer, moved(&world, outer, inner, "y"))];
        world.with(|instance| {
            instance.rename((outer, "b"), (other, "x"));
            instance.rename((Inode::ROOT, "a"), (inner, "y"));
            locations.iter().for_each(|(inode, location)| {
                instance.writing(*inode, location).expect("accepted")
            });
        });
        let root = world.place.path();
        for (from, to) in moves.iter().take(done) {
            fs::rename(root.join(from), root.join(to)).expect("renamed");
        }
        settle(&world, &mut RoundCache::default());
        assert_equal(&world, 0);
    }
}

/// A world with a file that is open for writing.
fn written_to() -> std::sync::Arc<World> {
    let world = imported(0);
    world.with(|instance| {
        let file = instance.create(instance.at("d"), "new", &[1; 100]);
        instance.set_written(file, true);
    });
    world
}

#[test]
fn a_partial_file_of_a_deleted_file_is_removed_before_its_directory() {
    for lives in 1.. {
        let world = written_to();
        let cache = &mut RoundCache::default();
        while world.with(|instance| instance.sync_state(instance.at("d/new"))?.partial).is_none() {
            round(&world, cache).expect("a round");
        }
        world.with(|instance| {
            instance.remove(instance.at("d"), "new");
            instance.remove(instance.at("d"), "e");
            instance.remove(Inode::ROOT, "d");
        });
        world.set(Faults { lives: Some(lives), ..Faults::default() });
        let _ = round(&world, cache);
        let has_died = world.is_dead();
        world.set(Faults::default());
        settle(&world, &mut RoundCache::default());
        assert_equal(&world, lives.into());
        if !has_died {
            break;
        }
    }
}

/// Nor does a partial file that a killed daemon did not report.
#[test]
fn an_unknown_partial_file_does_not_keep_a_directory() {
    for lives in 1.. {
        let world = written_to();
        world.set(Faults { lives: Some(lives), ..Faults::default() });
        let options = RoundOptions { trigger: Trigger::Space, ..options() };
        let posix = PosixBackend::new(world.place.path(), OWNER).expect("a backing directory");
        let backend = Faulty { world: &world, posix };
        let all = (options, &Scope::default());
        let _ = run(&*world, &backend, all, &mut RoundCache::default(), &RoundCounters::default());
        let has_died = world.is_dead();
        world.set(Faults::default());
        world.with(|instance| {
            instance.remove(instance.at("d"), "new");
            instance.remove(instance.at("d"), "e");
            instance.remove(Inode::ROOT, "d");
        });
        let report = settle(&world, &mut RoundCache::default());
        assert_eq!(report.conflicts, [], "call {lives}");
        assert_equal(&world, lives.into());
        if !has_died {
            break;
        }
    }
}

#[test]
fn private_files_are_removed_when_the_instance_ends() {
    let world = written_to();
    let place = world.place.path();
    world.with(|instance| {
        instance.open(instance.at("b"));
        instance.remove(Inode::ROOT, "b");
    });
    let cache = &mut RoundCache::default();
    let go = |cache: &mut RoundCache, trigger| {
        let backend = Faulty {
            world: &world,
            posix: PosixBackend::new(place, OWNER).expect("a backing directory"),
        };
        let all = (RoundOptions { trigger, ..options() }, &Scope::default());
        run(&*world, &backend, all, cache, &RoundCounters::default()).expect("a round")
    };
    let own = || -> usize {
        let names = ["", "d"].map(|directory| fs::read_dir(place.join(directory)).expect("listed"));
        let is_private =
            |name: &fs::DirEntry| name.file_name().to_string_lossy().starts_with(".forebay-");
        names.into_iter().flatten().flatten().filter(is_private).count()
    };
    for _ in 0..ROUNDS_MAX {
        go(cache, Trigger::Space);
    }
    assert_eq!(own(), 2, "a draft, and what is aside");
    go(cache, Trigger::Shutdown);
    assert_eq!(own(), 0);
    assert!(place.join("a/a").exists());
}

#[test]
fn a_deleted_file_that_is_half_rewritten_is_removed() {
    let world = imported(0);
    let file = world.with(|instance| instance.at("b"));
    let location = moved(&world, file, Inode::ROOT, "b");
    world.with(|instance| {
        instance.truncate(file, 0);
        instance.write(file, 0, b"new");
        let stamp = Stamp::of(&instance.sync_state(file).and_then(|it| it.attributes).expect("it"));
        let version = Version { size: 3, modified: 1, ..location.version };
        instance
            .writing(file, &BackingLocation { version, stamp, counts: 3, ..location })
            .expect("accepted");
        instance.remove(Inode::ROOT, "b");
        instance.create(Inode::ROOT, "b", b"another");
    });
    fs::write(world.place.path().join("b"), "ne").expect("written");
    let report = settle(&world, &mut RoundCache::default());
    assert_eq!(report.conflicts, []);
    assert_equal(&world, 0);
}

#[test]
fn the_top_directory_keeps_its_own_metadata() {
    let world = imported(0);
    let of = |path: &Path| fs::metadata(path).expect("stat").permissions();
    let before = of(world.place.path());
    world.with(|instance| instance.change_mode(Inode::ROOT, 0o700));
    settle(&world, &mut RoundCache::default());
    assert_eq!(of(world.place.path()), before);
}
