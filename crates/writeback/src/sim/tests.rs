//! Both trees are equal in the end, and nothing is lost on the way, whatever happens meanwhile.

use super::instance::place;
use super::listing::listing_below;
use super::{Faults, Faulty, World};
use crate::round::{Counts, How, Manner, Memory, Report, run};
use crate::scope::Scope;
use crate::site::Site;
use crate::state::{Lies, Tried, Trouble};
use std::fs;
use std::path::Path;
use wire::Inode;
use wire::below::{Stamp, Version};

/// Rounds after which all is saved, if nothing goes wrong.
const ROUNDS_MAX: usize = 12;
const SEEDS: u64 = 120;
/// Of the instance.
const OWNER: u64 = 7;
/// With the first a directory was set aside, nobody heard of it, and a file in it was taken for gone.
/// With the second two directories were moved into each other, and both moves were half told: neither
/// was found. With the third what is gone was removed and not told of, a directory got its number and
/// its name, and was taken for it. With the last a draft of which nobody was told kept a directory that
/// was gone.
const UNHEARD: [u64; 4] = [476, 347, 800, 2404];
/// As with the third of those, where a file system gives numbers again at once.
const DIED: [u64; 2] = [569, 1572];
/// With this one a file was cut before its draft was begun, which then was longer than the file.
const CUT: u64 = 921;

fn manner() -> Manner {
    Manner { threads: 1, idle_nanos: 0, how: How::Plainly, now: 0 }
}

/// One of all, at times in a hurry, in which what is written to is saved, too.
fn round(world: &World, memory: &mut Memory) -> Tried<Report> {
    let site = Site::new(world.place.path(), OWNER)?;
    let how = match world.random.lock().expect("numbers").below(4) {
        0 => How::Plainly,
        1 => How::Flush,
        _ => How::Hurried,
    };
    let manner = Manner { how, ..manner() };
    run(world, &Faulty { world, site }, (manner, &Scope::default()), memory, &Counts::default())
}

/// Rounds until there is nothing to save; all that was reported.
fn settle(world: &World, memory: &mut Memory) -> Report {
    let mut all = Report::default();
    world.with(|instance| instance.close_all());
    for _ in 0..ROUNDS_MAX {
        let report = round(world, memory).expect("a round");
        assert_eq!(report.failures, [], "nothing fails, seed {}", world.seed);
        all.conflicts.extend(report.conflicts);
        all.saved += report.saved;
        if world.with(|instance| instance.rows().is_empty() && instance.changed().is_empty()) {
            return all;
        }
    }
    let left = world.with(|instance| format!("{:#?} {:#?}", instance.rows(), instance.changed()));
    panic!("not all is saved, seed {}: {left}", world.seed);
}

fn assert_equal(world: &World, seed: u64) {
    let below = listing_below(world.place.path());
    let above = world.with(|instance| instance.listing());
    for (path, said) in &above {
        assert_eq!(below.get(path), Some(said), "{} below, seed {seed}", path.display());
    }
    let more: Vec<_> = below.keys().filter(|path| !above.contains_key(*path)).collect();
    assert!(more.is_empty(), "{more:?} are below alone, seed {seed}");
}

/// A tree below that is seen above.
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
fn what_users_did_is_there_in_the_end() {
    for seed in 0..SEEDS {
        let world = imported(seed);
        let mut memory = Memory::default();
        for _ in 0..4 {
            operate(&world, 20);
            settle(&world, &mut memory);
            assert_equal(&world, seed);
            assert!(world.with(|instance| instance.has_all()), "seed {seed}");
        }
    }
}

#[test]
fn what_users_do_while_it_is_saved_is_there_too() {
    let (mut dropped, mut parts) = (0, 0);
    for seed in (0..SEEDS).chain([CUT]) {
        let world = imported(seed);
        let mut memory = Memory::default();
        operate(&world, 20);
        world.set(Faults { busy_in: Some(10), ..Faults::default() });
        for _ in 0..6 {
            round(&world, &mut memory).expect("a round");
            assert!(world.with(|instance| instance.has_all()), "seed {seed}");
        }
        world.set(Faults::default());
        settle(&world, &mut memory);
        assert_equal(&world, seed);
        dropped += world.with(|instance| instance.dropped);
        parts += world.with(|instance| instance.parts_dropped);
    }
    assert!(dropped > 0, "nothing that was saved was dropped");
    assert!(parts > 0, "no part of a file that was written to was dropped");
}

#[test]
fn calls_that_fail_are_made_again() {
    for seed in (0..SEEDS).chain(UNHEARD) {
        let world = imported(seed);
        let mut memory = Memory::default();
        operate(&world, 30);
        world.set(Faults { error_in: Some(15), busy_in: Some(20), lives: None });
        for _ in 0..10 {
            let _ = round(&world, &mut memory);
            assert!(world.with(|instance| instance.has_all()), "seed {seed}");
        }
        world.set(Faults::default());
        settle(&world, &mut memory);
        assert_equal(&world, seed);
    }
}

#[test]
fn a_writer_that_dies_at_any_call_leaves_what_the_next_goes_on_with() {
    for seed in 0..SEEDS / 10 {
        for lives in 1.. {
            let world = imported(seed);
            operate(&world, 25);
            world.set(Faults { lives: Some(lives), ..Faults::default() });
            let _ = round(&world, &mut Memory::default());
            let has_died = world.is_dead();
            world.set(Faults::default());
            assert!(world.with(|instance| instance.has_all()), "seed {seed}, call {lives}");
            let mut memory = Memory::default();
            settle(&world, &mut memory);
            assert_equal(&world, seed);
            if !has_died {
                break;
            }
        }
    }
}

#[test]
fn writers_die_again_and_again_while_users_go_on() {
    for seed in (0..SEEDS).chain(DIED) {
        let world = imported(seed);
        operate(&world, 25);
        for turn in 0..12_u32 {
            let lives = Some(7 + turn * 13 % 90);
            world.set(Faults { lives, error_in: Some(60), busy_in: Some(25) });
            let _ = round(&world, &mut Memory::default());
            assert!(world.with(|instance| instance.has_all()), "seed {seed}");
        }
        world.set(Faults::default());
        settle(&world, &mut Memory::default());
        assert_equal(&world, seed);
    }
}

/// What was dropped of it is nowhere while it is changed in place, but in the draft.
#[test]
fn who_dies_while_a_file_with_several_names_is_changed_loses_no_byte() {
    for lives in 1.. {
        let world = imported(0);
        let mut memory = Memory::default();
        world.with(|instance| {
            let file = instance.at("b");
            instance.link(file, Inode::ROOT, "further");
            instance.write(file, 0, &[7; 60]);
        });
        settle(&world, &mut memory);
        world.with(|instance| {
            instance.drop_saved();
            instance.write(instance.at("b"), 30, b"x");
        });
        world.set(Faults { lives: Some(lives), ..Faults::default() });
        let _ = round(&world, &mut memory);
        let has_died = world.is_dead();
        world.set(Faults::default());
        world.with(|instance| instance.drop_saved());
        assert!(world.with(|instance| instance.has_all()), "call {lives}");
        settle(&world, &mut Memory::default());
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
fn what_others_changed_stays_and_ours_lands_beside() {
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
    // Of `b` a byte is not read yet; what was read is in the instance.
    world.with(|instance| instance.truncate(instance.at("b"), 0));
    world.with(|instance| instance.write(instance.at("b"), 0, b"ours"));
    let report = settle(&world, &mut Memory::default());
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
fn a_directory_in_which_others_left_something_stays_with_it() {
    let world = imported(0);
    fs::write(world.place.path().join("d/theirs"), "of others").expect("written");
    world.with(|instance| {
        instance.remove(instance.at("d"), "e");
        instance.remove(Inode::ROOT, "d");
    });
    let report = settle(&world, &mut Memory::default());
    assert_eq!(report.conflicts.len(), 1, "{:?}", report.conflicts);
    assert_eq!(read(&world, "d/theirs"), "of others");
    assert!(!world.place.path().join("d/e").exists());
}

#[test]
fn another_tree_at_the_same_path_is_not_touched() {
    let world = imported(0);
    let site = Site::new(world.place.path(), OWNER).expect("a site");
    let elsewhere = world.place.path().with_extension("away");
    fs::rename(world.place.path(), &elsewhere).expect("renamed");
    fs::create_dir(world.place.path()).expect("made");
    world.with(|instance| instance.create(Inode::ROOT, "new", b"x"));
    let lower = Faulty { world: &world, site };
    let all = (manner(), &Scope::default());
    let done = run(&*world, &lower, all, &mut Memory::default(), &Counts::default());
    assert!(matches!(done, Err(Trouble::Below(_))), "{done:?}");
    assert_eq!(fs::read_dir(world.place.path()).expect("listed").count(), 0);
    fs::remove_dir(world.place.path()).expect("removed");
    fs::rename(&elsewhere, world.place.path()).expect("back");
    settle(&world, &mut Memory::default());
    assert_eq!(read(&world, "new"), "x");
}

/// Where something is about to lie that is moved as it is.
fn moved(world: &World, inode: Inode, parent: Inode, name: &str) -> Lies {
    let standing = world.with(|instance| instance.standing(inode)).expect("it is known");
    Lies { place: place(parent, name), ..standing.now.expect("it lies below") }
}

#[test]
fn a_directory_that_got_the_number_of_what_is_gone_stays() {
    let world = imported(0);
    let (gone, at) = (world.with(|instance| instance.at("d")), place(Inode::ROOT, "d"));
    let told = moved(&world, gone, Inode::ROOT, "d");
    fs::remove_file(world.place.path().join("d/e")).expect("removed");
    world.with(|instance| {
        instance.remove(gone, "e");
        instance.remove(Inode::ROOT, "d");
        let new = instance.make_directory(Inode::ROOT, "d");
        // What lies there is the new one, as nobody can tell it from the other.
        instance.saving(new, &told).expect("told");
        instance.saved(&at, gone, new).expect("told");
        instance.wrote(new, &told).expect("told");
    });
    settle(&world, &mut Memory::default());
    assert_equal(&world, 0);
}

#[test]
fn directories_whose_moves_into_each_other_are_half_told_are_found() {
    let moves = [("a/b", "d/x"), ("a", "d/x/y")];
    for done in 0..=moves.len() {
        let world = imported(0);
        let all @ [outer, inner, other] =
            world.with(|instance| ["a", "a/b", "d"].map(|path| instance.at(path)));
        assert!(all.iter().all(|inode| !inode.is_none()));
        let told =
            [(inner, moved(&world, inner, other, "x")), (outer, moved(&world, outer, inner, "y"))];
        world.with(|instance| {
            instance.rename((outer, "b"), (other, "x"));
            instance.rename((Inode::ROOT, "a"), (inner, "y"));
            told.iter().for_each(|(inode, lies)| instance.saving(*inode, lies).expect("told"));
        });
        let root = world.place.path();
        for (from, to) in moves.iter().take(done) {
            fs::rename(root.join(from), root.join(to)).expect("renamed");
        }
        settle(&world, &mut Memory::default());
        assert_equal(&world, 0);
    }
}

/// With a file that somebody writes to.
fn written_to() -> std::sync::Arc<World> {
    let world = imported(0);
    world.with(|instance| {
        let file = instance.create(instance.at("d"), "new", &[1; 100]);
        instance.set_written(file, true);
    });
    world
}

#[test]
fn a_draft_of_what_is_gone_goes_before_its_directory() {
    for lives in 1.. {
        let world = written_to();
        let memory = &mut Memory::default();
        while world.with(|instance| instance.standing(instance.at("d/new"))?.draft).is_none() {
            round(&world, memory).expect("a round");
        }
        world.with(|instance| {
            instance.remove(instance.at("d"), "new");
            instance.remove(instance.at("d"), "e");
            instance.remove(Inode::ROOT, "d");
        });
        world.set(Faults { lives: Some(lives), ..Faults::default() });
        let _ = round(&world, memory);
        let has_died = world.is_dead();
        world.set(Faults::default());
        settle(&world, &mut Memory::default());
        assert_equal(&world, lives.into());
        if !has_died {
            break;
        }
    }
}

/// Nor does one of which nobody was told, as its writer died.
#[test]
fn a_draft_that_nobody_knows_keeps_no_directory() {
    for lives in 1.. {
        let world = written_to();
        world.set(Faults { lives: Some(lives), ..Faults::default() });
        let manner = Manner { how: How::Hurried, ..manner() };
        let site = Site::new(world.place.path(), OWNER).expect("a site");
        let lower = Faulty { world: &world, site };
        let all = (manner, &Scope::default());
        let _ = run(&*world, &lower, all, &mut Memory::default(), &Counts::default());
        let has_died = world.is_dead();
        world.set(Faults::default());
        world.with(|instance| {
            instance.remove(instance.at("d"), "new");
            instance.remove(instance.at("d"), "e");
            instance.remove(Inode::ROOT, "d");
        });
        let report = settle(&world, &mut Memory::default());
        assert_eq!(report.conflicts, [], "call {lives}");
        assert_equal(&world, lives.into());
        if !has_died {
            break;
        }
    }
}

#[test]
fn what_is_the_writers_own_goes_with_the_instance() {
    let world = written_to();
    let place = world.place.path();
    world.with(|instance| {
        instance.open(instance.at("b"));
        instance.remove(Inode::ROOT, "b");
    });
    let memory = &mut Memory::default();
    let go = |memory: &mut Memory, how| {
        let lower = Faulty { world: &world, site: Site::new(place, OWNER).expect("a site") };
        let all = (Manner { how, ..manner() }, &Scope::default());
        run(&*world, &lower, all, memory, &Counts::default()).expect("a round")
    };
    let own = || -> usize {
        let names = ["", "d"].map(|directory| fs::read_dir(place.join(directory)).expect("listed"));
        let is_own =
            |name: &fs::DirEntry| name.file_name().to_string_lossy().starts_with(".forebay-");
        names.into_iter().flatten().flatten().filter(is_own).count()
    };
    for _ in 0..ROUNDS_MAX {
        go(memory, How::Hurried);
    }
    assert_eq!(own(), 2, "a draft, and what is aside");
    go(memory, How::Leave);
    assert_eq!(own(), 0);
    assert!(place.join("a/a").exists());
}

#[test]
fn a_file_that_is_gone_and_half_written_in_place_goes() {
    let world = imported(0);
    let file = world.with(|instance| instance.at("b"));
    let told = moved(&world, file, Inode::ROOT, "b");
    world.with(|instance| {
        instance.truncate(file, 0);
        instance.write(file, 0, b"new");
        let stamp = Stamp::of(&instance.standing(file).and_then(|it| it.attributes).expect("it"));
        let version = Version { size: 3, modified: 1, ..told.version };
        instance.saving(file, &Lies { version, stamp, counts: 3, ..told }).expect("told");
        instance.remove(Inode::ROOT, "b");
        instance.create(Inode::ROOT, "b", b"another");
    });
    fs::write(world.place.path().join("b"), "ne").expect("written");
    let report = settle(&world, &mut Memory::default());
    assert_eq!(report.conflicts, []);
    assert_equal(&world, 0);
}

#[test]
fn the_top_keeps_its_own_attributes() {
    let world = imported(0);
    let of = |path: &Path| fs::metadata(path).expect("stat").permissions();
    let before = of(world.place.path());
    world.with(|instance| instance.change_mode(Inode::ROOT, 0o700));
    settle(&world, &mut Memory::default());
    assert_eq!(of(world.place.path()), before);
}
