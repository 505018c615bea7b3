//! Logs that lack records: what `metadata::rescue` makes of them. Random histories over several
//! services; then records of their logs are lost, all services are salvaged, and afterwards every name
//! leads to a file, every file has a name, and everything can be removed.

use crate::sim::{Outcome, Random, World, config, dump};
use metadata::Service;
use metadata::rescue::{Finding, Held, Instance, LOST_AND_FOUND, Loss, Plan, Repair, Rescue};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use wire::{Inode, request::rename};

const ROOT: Inode = Inode::ROOT;

fn world(random: &mut Random) -> World {
    let (daemons, workers) = (1 + random.uniform(3) as u16, 1 + random.uniform(2));
    let services = (0..daemons).flat_map(|it| (0..workers).map(move |worker| (it, worker)));
    World::of(services.map(|(it, worker)| config(it, daemons, worker, workers)).collect())
}

/// A number from the environment.
fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// The first seed of a test.
fn seed(usual: u64) -> u64 {
    variable("TEST_SEED", usual)
}

/// How many histories a test has.
fn rounds(usual: u64) -> u64 {
    usual * variable("TEST_SCALE", 1)
}

/// Of an operation that another state may refuse.
fn may_fail(_: Outcome) {}

/// Directories and files with several names are made, renamed and removed.
fn history(world: &mut World, random: &mut Random, steps: usize) {
    let mut directories = vec![ROOT];
    for _ in 0..steps {
        let parent = directories[random.uniform(directories.len())];
        let other = directories[random.uniform(directories.len())];
        if world.stat(parent).is_err() || world.stat(other).is_err() {
            directories.retain(|it| *it == ROOT || world.stat(*it).is_ok_and(|it| it.links > 0));
            continue;
        }
        let name = [b'a' + random.uniform(12) as u8];
        let new = [b'a' + random.uniform(12) as u8];
        match random.uniform(10) {
            0..=3 => may_fail(world.root().file(parent, &name)),
            4 => directories.extend(world.root().directory(parent, &name).map(|it| it.inode)),
            5 => directories.extend(world.root().wide(parent, &name).map(|it| it.inode)),
            6 => {
                if let Ok(file) = world.root().look(parent, &name) {
                    may_fail(world.root().link(file.inode, other, &new));
                }
            }
            7 => may_fail(world.root().rename((parent, &name), (other, &new), 0)),
            8 => {
                let flags = if random.chance(30) { rename::EXCHANGE } else { 0 };
                may_fail(world.root().rename((parent, &name), (other, &new), flags));
            }
            _ => {
                let gone = world.root().unlink(parent, &name);
                may_fail(gone.or_else(|_| world.root().rmdir(parent, &name)));
            }
        }
    }
    world.settle();
}

/// The states that the logs give, and their comparison.
fn rescue(world: &World, damaged: &BTreeSet<usize>, round: u64) -> (Vec<Service>, Rescue) {
    let first = &world.seats[0].config;
    let mut rescue = Rescue::new(Instance {
        map: first.map.clone(),
        workers: first.workers,
        backing: false,
        spread: first.spread,
        placement: first.placement,
        stripe_log2: first.stripe_log2,
        flags: 0,
        uid: 0,
        gid: 0,
        round,
        now: world.now,
    });
    let mut services = Vec::new();
    for (at, seat) in world.seats.iter().enumerate() {
        let mut service = Service::new(seat.config.clone());
        for record in &seat.log {
            service.replay(record).expect("a record of our own");
        }
        let (daemon, worker) = (seat.config.daemon, seat.config.worker);
        rescue
            .add_service(daemon, worker, &service.outline(), damaged.contains(&at))
            .expect("an outline of our own");
        services.push(service);
    }
    (services, rescue)
}

/// Starts all services with the changes of the plan. `held`: files of which targets hold a page.
fn salvage(world: &mut World, damaged: &BTreeSet<usize>, round: u64, held: &[Inode]) -> Plan {
    let (mut services, mut rescue) = rescue(world, damaged, round);
    held.iter().for_each(|file| rescue.add_held(*file, Held { bytes: 4096, end: 4096 }));
    let plan = rescue.plan();
    for (at, service) in services.iter_mut().enumerate() {
        let config = &world.seats[at].config;
        let own = |it: &&Repair| (it.daemon, it.worker) == (config.daemon, config.worker);
        for repair in plan.repairs.iter().filter(own) {
            service.replay(&repair.record).expect("a record");
        }
        service.skip_numbers(round);
        world.seats[at].log = vec![dump(service)];
    }
    for at in 0..world.seats.len() {
        world.dead.insert(at);
    }
    world.queue.clear();
    for at in 0..world.seats.len() {
        world.crash(at);
    }
    world.settle();
    plan
}

/// Loses records of some logs: single ones, a range, an end, or all. Returns the damaged services.
fn damage(world: &mut World, random: &mut Random) -> BTreeSet<usize> {
    let mut damaged = BTreeSet::new();
    for _ in 0..1 + random.uniform(2) {
        let at = random.uniform(world.seats.len());
        let log = &mut world.seats[at].log;
        if log.is_empty() {
            continue;
        }
        damaged.insert(at);
        let first = random.uniform(log.len());
        match random.uniform(8) {
            0 => log.clear(),
            1 => log.truncate(first),
            2..=4 => drop(log.remove(first)),
            _ => drop(log.drain(first..(first + 1 + random.uniform(9)).min(log.len()))),
        }
    }
    damaged
}

/// Removes everything below a directory; the number of files.
fn remove_all(world: &mut World, directory: Inode, what: &str) -> usize {
    let mut files = 0;
    for name in world.root().list(directory) {
        let found = world.root().look(directory, &name);
        let found = found.unwrap_or_else(|error| panic!("{what}: {name:?}: {error:?}"));
        if found.is_directory() {
            assert_eq!(found.parent, directory, "{what}: {name:?}");
            files += remove_all(world, found.inode, what);
            let removed = world.root().rmdir(directory, &name);
            removed.unwrap_or_else(|error| panic!("{what}: rmdir {name:?}: {error:?}"));
        } else {
            files += 1;
            let removed = world.root().unlink(directory, &name);
            removed.unwrap_or_else(|error| panic!("{what}: unlink {name:?}: {error:?}"));
        }
    }
    files
}

/// "Everything else can be read and staged out" (docs/semantics/durability.md): after a salvage the
/// tree is whole, whatever records were lost.
#[test]
fn after_a_salvage_the_tree_is_whole() {
    let (first, count) = (seed(1), rounds(150));
    let mut seen = BTreeSet::new();
    for seed in first..first + count {
        let mut random = Random(seed);
        let mut world = world(&mut random);
        for round in 1..=2 {
            let what = format!("seed {seed}, round {round}");
            history(&mut world, &mut random, 60);
            let damaged = damage(&mut world, &mut random);
            let plan = salvage(&mut world, &damaged, round, &[]);
            seen.extend(plan.findings.iter().map(|finding| finding.loss));
            let again = rescue(&world, &BTreeSet::new(), round + 1).1.plan();
            assert_eq!(again, Plan::default(), "{what}: something is left");
            for at in 0..world.seats.len() {
                let orphans: Vec<_> = world.seats[at].service.orphans().collect();
                for inode in orphans {
                    let links = world.stat(inode).map(|it| it.links);
                    assert_eq!(links, Ok(0), "{what}: {inode:?}");
                }
            }
        }
        let what = format!("seed {seed}");
        let removed = remove_all(&mut world, ROOT, &what);
        world.settle();
        let root = world.stat(ROOT).expect("the root");
        assert_eq!((root.size, root.links), (0, 2), "{what}: {removed} files were removed");
    }
    let expected = [Loss::File, Loss::DirectoryAttributes, Loss::Name, Loss::Links];
    let is_seen = |loss: &Loss| seen.contains(loss);
    assert!(count < 100 || expected.iter().all(is_seen), "the histories lose too little: {seen:?}");
}

/// Adds everything below a directory: its inode, its path, and whether it is a directory.
fn add_below(
    world: &mut World,
    (directory, path): (Inode, &str),
    found: &mut BTreeMap<Inode, (String, bool)>,
) {
    for name in world.root().list(directory) {
        let one = world.root().look(directory, &name).expect("each name leads to an inode");
        let path = format!("{path}/{}", String::from_utf8_lossy(&name));
        if one.is_directory() {
            add_below(world, (one.inode, &path), found);
        }
        found.insert(one.inode, (path, one.is_directory()));
    }
}

/// Of a log that is cut anywhere, each file is where it was, or below a directory or name in lost+found
/// that is listed, or listed as lost. Nothing is renamed or removed here: such changes may be lost, too.
#[test]
fn a_cut_log_loses_nothing_in_silence() {
    let first = seed(1);
    let (mut saved_below, mut cuts) = (0, 0);
    for seed in first..first + rounds(8) {
        let grown = || {
            let mut random = Random(seed);
            let mut world = world(&mut random);
            let mut directories = vec![ROOT];
            for number in 0..30u8 {
                let parent = directories[random.uniform(directories.len())];
                let name = [b'a' + number % 26, b'a' + number / 26];
                match random.uniform(3) {
                    0 => drop(world.root().file(parent, &name).expect("made")),
                    1 => {
                        directories.push(world.root().directory(parent, &name).expect("made").inode)
                    }
                    _ => directories.push(world.root().wide(parent, &name).expect("made").inode),
                }
            }
            world.settle();
            world
        };
        let (mut whole, mut before) = (grown(), BTreeMap::new());
        add_below(&mut whole, (ROOT, ""), &mut before);
        let files = before.iter().filter(|(_, (_, is_directory))| !is_directory);
        let files: Vec<Inode> = files.map(|(inode, _)| *inode).collect();
        let logs: Vec<usize> = whole.seats.iter().map(|seat| seat.log.len()).collect();
        let all =
            logs.into_iter().enumerate().flat_map(|(at, end)| (0..end).map(move |it| (at, it)));
        for (at, cut) in all {
            let what = format!("seed {seed}, log {at} cut at record {cut}");
            let mut world = grown();
            world.seats[at].log.truncate(cut);
            let plan = salvage(&mut world, &BTreeSet::from([at]), 1, &files);
            let mut after = BTreeMap::new();
            add_below(&mut world, (ROOT, ""), &mut after);
            let is_listed = |losses: &[Loss], inode, path: &str| {
                let is_it = |it: &Finding| it.inode == inode || it.path == path.as_bytes();
                plan.findings.iter().any(|it| losses.contains(&it.loss) && is_it(it))
            };
            for (inode, (path, is_directory)) in &before {
                match after.get(inode) {
                    Some((now, _)) if now == path => {}
                    Some((now, _)) => {
                        let top = now.match_indices('/').nth(2).map_or(now.len(), |it| it.0);
                        let is_named = is_listed(&[Loss::Name], Inode::NONE, &now[..top]);
                        assert!(is_named, "{what}: {path} is {now}: {:?}", plan.findings);
                        saved_below += usize::from(top < now.len());
                    }
                    None => {
                        let is_named = is_listed(&[Loss::File, Loss::Data], *inode, path);
                        assert!(*is_directory || is_named, "{what}: {path}: {:?}", plan.findings);
                    }
                }
            }
            cuts += 1;
        }
    }
    assert!(saved_below > 0, "of {cuts} cuts none loses the name of a directory with files");
}

/// Without damage a salvage finds nothing and changes nothing.
#[test]
fn a_salvage_of_whole_logs_changes_nothing() {
    let first = seed(1);
    for seed in first..first + rounds(100) {
        let mut random = Random(seed);
        let mut world = world(&mut random);
        history(&mut world, &mut random, 80);
        let plan = rescue(&world, &BTreeSet::new(), 1).1.plan();
        assert_eq!(plan, Plan::default(), "seed {seed}");
    }
}

/// The records that a step adds to the log of a world of one service.
fn recorded(world: &mut World, step: impl FnOnce(&mut World)) -> Range<usize> {
    let before = world.seats[0].log.len();
    step(world);
    world.settle();
    before..world.seats[0].log.len()
}

/// The losses by name, in a world of one service whose state is known.
#[test]
fn each_loss_is_named() {
    let mut world = World::single();
    let (mut d, mut file) = (ROOT, ROOT);
    let of_directory = recorded(&mut world, |it| {
        d = it.root().directory(ROOT, b"d").expect("made").inode;
    });
    let of_file = recorded(&mut world, |it| {
        it.root().file(d, b"f").expect("made");
    });
    let of_linked = recorded(&mut world, |it| {
        file = it.root().file(d, b"g").expect("made").inode;
    });
    let of_link = recorded(&mut world, |it| {
        it.root().link(file, ROOT, b"h").expect("linked");
    });
    let whole = world.seats[0].log.clone();
    let mut without = |lost: Range<usize>| {
        world.seats[0].log = whole.clone();
        drop(world.seats[0].log.drain(lost));
        let (_, mut rescue) = rescue(&world, &BTreeSet::from([0]), 1);
        rescue.add_held(file, Held { bytes: 4096, end: 1 << 20 });
        rescue.add_damaged(file, 4096..12_288);
        let finding = |it: Finding| (it.loss, String::from_utf8(it.path).expect("a path"));
        rescue.plan().findings.into_iter().map(finding).collect::<Vec<_>>()
    };
    // The file is empty, so that the damage is behind its end.
    assert_eq!(without(0..0), []);
    let lost = format!("/{}/#{}", String::from_utf8_lossy(LOST_AND_FOUND), d.0);
    let expected = [(Loss::DirectoryAttributes, lost.clone()), (Loss::Name, lost)];
    assert_eq!(without(of_directory), expected);
    // A file whole, with its only name: nobody can name it.
    assert_eq!(without(of_file), []);
    // The second name is left, and nothing tells its size.
    let bytes = (Loss::Bytes, "/h".to_owned());
    let found = without(of_linked.clone());
    assert_eq!(found.first(), Some(&(Loss::File, "/h".to_owned())), "{found:?}");
    assert!(found.iter().skip(1).all(|it| it.0 == bytes.0), "{found:?}");
    assert_eq!(without(of_link.clone()), []);
    // Both names and the file: only the targets know that there was one.
    let nothing = |loss| (loss, String::new());
    let found = without(of_linked.start..of_link.end);
    assert_eq!(found, [nothing(Loss::Data), nothing(Loss::Bytes)]);
}

/// Targets free the data of a lost file, wherever it was, but not if it is in use.
#[test]
fn data_of_lost_files_is_freed_unless_it_is_in_use() {
    let mut world = World::single();
    let mut file = ROOT;
    let of_file = recorded(&mut world, |it| {
        file = it.root().file(ROOT, b"f").expect("made").inode;
    });
    let whole = world.seats[0].log.clone();
    let mut freed = |is_lost: bool, is_used: bool| {
        world.seats[0].log = whole.clone();
        if is_lost {
            drop(world.seats[0].log.drain(of_file.clone()));
        }
        let (_, mut rescue) = rescue(&world, &BTreeSet::from([0]), 1);
        rescue.add_held(file, Held { bytes: 4096, end: 4096 });
        if is_used {
            rescue.add_used(file);
        }
        for Repair { record, .. } in rescue.plan().repairs {
            world.seats[0].log.push(record);
        }
        world.removal_log.clear();
        world.crash(0);
        world.settle();
        world.removal_log.clone()
    };
    assert_eq!(freed(true, false), [file]);
    assert_eq!(freed(true, true), []);
    assert_eq!(freed(false, false), []);
}
