//! Directories that begin at home and are spread while they are used: what each shard answers, listings
//! that go on meanwhile, services that are killed at each moment of a step, and one that is down.

use std::collections::BTreeSet;

use crate::sim::faults::Faults;
use crate::sim::{Answer, Cut, Random, World, config};
use metadata::{Config, Input};
use wire::attributes::spread;
use wire::hash::NameHash;
use wire::{Attributes, Credentials, Errno, Inode, Request, ShardIndex};

const ROOT: Inode = Inode::ROOT;
/// Entries from which on a directory is spread.
const LEAST: u64 = 8;

/// Services that spread directories of `LEAST` entries.
fn world(daemons: u16) -> World {
    let auto = |config| Config { spread: spread::AUTO, widen_entries: LEAST, ..config };
    World::of((0..daemons).map(|daemon| auto(config(daemon, daemons, 0, 1))).collect())
}

fn names(count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("name-{number}").into_bytes()).collect()
}

fn spread_of(world: &World, directory: Inode) -> u8 {
    let owner = &world.seats[world.owner(directory.shard())].service;
    owner.attributes_of(directory).expect("the directory is there").layout.spread
}

/// The request that makes a file in a directory, by the layout that is known of it.
fn create_of<'a>(directory: &Attributes, name: &'a [u8]) -> Request<'a> {
    let Attributes { inode: parent, layout, .. } = *directory;
    let (mode, device, flags, target) = (0o100_644, 0, 1, &b""[..]);
    Request::Create { parent, name, mode, device, flags, layout, target }
}

/// How many services have each of these names.
fn holders(world: &World, directory: Inode, name: &[u8]) -> usize {
    world.seats.iter().filter(|seat| seat.service.entry_of(directory, name).is_some()).count()
}

#[test]
fn a_directory_that_grows_becomes_wide_and_has_the_same_names() {
    let mut world = world(4);
    let directory = world.root().directory(ROOT, b"d").expect("made");
    let d = directory.inode;
    assert_eq!(directory.layout.spread, spread::AUTO);
    let home = world.owner(ShardIndex(directory.layout.place));
    let mut made = vec![];
    for name in names(40) {
        let file = world.root().file(d, &name).expect("made").inode;
        made.push((name, file));
        let mut listed = world.root().list(d);
        listed.sort();
        let mut all: Vec<Vec<u8>> = made.iter().map(|(name, _)| name.clone()).collect();
        all.sort();
        assert_eq!(listed, all);
        world.settle();
        let is_wide = spread::is_wide(spread_of(&world, d));
        assert_eq!(is_wide, made.len() as u64 >= LEAST, "with {} names", made.len());
    }
    let mut elsewhere = 0;
    for (name, file) in &made {
        assert_eq!(world.root().look(d, name).map(|found| found.inode), Ok(*file));
        let shard = NameHash::of(d, name).wide_shard();
        assert_eq!(world.seats[world.owner(shard)].service.entry_of(d, name), Some(*file));
        assert_eq!(holders(&world, d, name), 1);
        // A sender with the layout from before is told that it is old, and not that the name is absent.
        let request = Request::Lookup { parent: d, name };
        let answer = world.call(Credentials::ROOT, ShardIndex(directory.layout.place), &request);
        if world.owner(shard) != home {
            assert_eq!(answer, Answer::Refused(Errno::EREMCHG));
            elsewhere += 1;
        }
    }
    assert!(elsewhere > 10, "{elsewhere} names are at other services");
    assert_eq!(world.stat(d).expect("there").size, 40);
    // A directory that is made in it begins at home.
    let below = world.root().directory(d, b"below").expect("made");
    assert_eq!(below.layout.spread, spread::AUTO);
    world.root().rmdir(d, b"below").expect("removed");
    assert_eq!(world.root().rmdir(ROOT, b"d").map(drop), Err(Errno::ENOTEMPTY));
    for (name, _) in made {
        world.root().unlink(d, &name).expect("removed");
    }
    assert!(world.root().list(d).is_empty());
    world.root().rmdir(ROOT, b"d").expect("removed");
}

#[test]
fn other_directories_stay_as_they_are() {
    let mut world = world(3);
    let wide = world.root().wide(ROOT, b"wide").expect("made").inode;
    let few = world.root().directory(ROOT, b"few").expect("made").inode;
    for (number, name) in names(20).iter().enumerate() {
        world.root().file(wide, name).expect("made");
        if (number as u64) < LEAST - 1 {
            world.root().file(few, name).expect("made");
        }
    }
    world.settle();
    assert_eq!((spread_of(&world, wide), spread_of(&world, few)), (spread::WIDE, spread::AUTO));
    // Alone, a service has nothing to spread to.
    let auto = Config { spread: spread::AUTO, widen_entries: LEAST, ..config(0, 1, 0, 1) };
    let mut world = World::of(vec![auto]);
    let directory = world.root().directory(ROOT, b"d").expect("made").inode;
    for name in names(20) {
        world.root().file(directory, &name).expect("made");
    }
    world.settle();
    assert_eq!(spread_of(&world, directory), spread::AUTO);
}

/// A directory with one name less than is needed, with which `then` goes on.
fn nearly_grown(daemons: u16) -> (World, Attributes, BTreeSet<Vec<u8>>) {
    let mut world = world(daemons);
    // Directories of the root are at home at each service in turn: the next one apart from its inode.
    world.root().directory(ROOT, b"first").expect("made");
    let directory = world.root().directory(ROOT, b"d").expect("made");
    let home = world.owner(ShardIndex(directory.layout.place));
    assert_ne!(home, world.owner(directory.inode.shard()));
    let mut all = BTreeSet::new();
    for name in names(LEAST as u8 - 1) {
        world.root().file(directory.inode, &name).expect("made");
        all.insert(name);
    }
    world.settle();
    (world, directory, all)
}

/// Any service is killed at any effect of any step from the last creation to the end, and comes back.
#[test]
fn a_kill_at_any_moment_leaves_each_name_once_and_the_directory_wide() {
    let mut kills = 0;
    for effects in 0..6 {
        for replies in [false, true] {
            for moment in 0.. {
                let (mut world, directory, mut all) = nearly_grown(3);
                let (d, name) = (directory.inode, b"last".to_vec());
                let shard = world.shard_of_name(d, &name);
                let request = create_of(&directory, &name);
                let sent = world.prepare(Credentials::ROOT, shard, &request);
                world.send_again(&sent);
                all.insert(name.clone());
                let mut steps = 0;
                while !spread::is_wide(spread_of(&world, d)) && world.dead.is_empty() {
                    if steps == moment {
                        world.cut = Some(Cut { effects, replies });
                    }
                    steps += 1;
                    if let Some((to, bytes)) =
                        (!world.queue.is_empty()).then(|| world.queue.remove(0))
                    {
                        world.step(to, Input::Peer { message: &bytes });
                    } else {
                        world.now += 1_000_000;
                        world.do_what_is_due();
                    }
                }
                world.cut = None;
                let is_killed = !world.dead.is_empty();
                for at in world.dead.clone() {
                    world.crash(at);
                }
                world.send_again(&sent);
                world.settle();
                assert!(spread::is_wide(spread_of(&world, d)), "{effects} {replies} {moment}");
                let listed = world.root().list(d);
                assert_eq!(listed.len(), all.len(), "each once");
                assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), all);
                assert_eq!(world.stat(d).expect("there").size, all.len() as u64);
                kills += u64::from(is_killed);
                if steps <= moment {
                    break;
                }
            }
        }
    }
    println!("{kills} kills");
    assert!(kills > 20, "{kills} kills");
}

/// While a service that is to get names is down, the home goes on after a moment.
#[test]
fn a_service_that_is_down_holds_nobody_up() {
    let (mut world, directory, all) = nearly_grown(3);
    let d = directory.inode;
    let home = world.owner(ShardIndex(directory.layout.place));
    let owner = world.owner(d.shard());
    let down = (0..3).find(|at| *at != home && *at != owner).expect("a third one");
    world.dead.insert(down);
    let (mut longest, mut count) = (0, all.len());
    for name in names(60).split_off(LEAST as usize - 1) {
        let layout = directory.layout;
        let (mode, target): (u32, &[u8]) = (0o100_644, b"");
        let request =
            Request::Create { parent: d, name: &name, mode, device: 0, flags: 1, layout, target };
        let ticket = world.send(Credentials::ROOT, ShardIndex(layout.place), &request);
        let since = world.now;
        while world.answer(ticket).is_none() {
            while !world.queue.is_empty() {
                let (to, bytes) = world.queue.remove(0);
                if !world.dead.contains(&to) {
                    world.step(to, Input::Peer { message: &bytes });
                }
            }
            world.now += 100_000;
            for at in (0..3).filter(|at| *at != down) {
                if world.is_due(at) {
                    world.step(at, Input::Tick);
                }
            }
            assert!(world.now - since < 1_000_000_000, "it waits for the service that is down");
        }
        assert!(matches!(world.answer(ticket), Some(Answer::Created(_))));
        longest = longest.max(world.now - since);
        count += 1;
    }
    assert!(longest < 15_000_000, "{longest} ns");
    assert!(!spread::is_wide(spread_of(&world, d)));
    world.crash(down);
    world.settle();
    assert!(spread::is_wide(spread_of(&world, d)));
    assert_eq!(world.root().list(d).len(), count);
}

/// A listing by several requests, of which others may come between.
struct Listing {
    /// Hashes of all names: shards without any are left out.
    hashes: BTreeSet<u64>,
    seen: Vec<Vec<u8>>,
    after: u64,
    is_over: bool,
}

impl Listing {
    /// One more request.
    fn go_on(&mut self, world: &mut World, directory: Inode) {
        let attributes =
            world.seats[world.owner(directory.shard())].service.attributes_of(directory);
        let attributes = attributes.expect("the directory is there");
        let Some(part) = placement::locate::parts(&attributes, self.after).next() else {
            self.is_over = true;
            return;
        };
        let (after, last) = (part.after, part.last);
        let request = Request::ReadDirectory { directory, after, last, bytes: 300 };
        let ticket = world.send(Credentials::ROOT, part.shard, &request);
        while world.answer(ticket).is_none() {
            deliver(world, |_| {});
        }
        match world.answer(ticket) {
            Some(Answer::Entries(more, entries, _)) => {
                self.after = entries.last().map_or(part.after, |entry| entry.0);
                self.seen.extend(entries.into_iter().map(|entry| entry.3));
                if !more {
                    let next = self.hashes.range(part.last.saturating_add(1)..).next();
                    self.is_over = next.is_none();
                    self.after = next.map_or(part.last, |hash| hash - 1);
                }
            }
            Some(Answer::Refused(Errno::EREMCHG)) => {}
            other => panic!("list: {other:?}"),
        }
    }
}

#[test]
fn listings_see_each_name_once_while_the_directory_is_spread() {
    let mut moved = 0;
    for seed in 0..60 {
        let mut random = Random(seed);
        let (mut world, directory, _) = nearly_grown(3);
        let d = directory.inode;
        let faults = Faults::new(4, usize::MAX, &[0]);
        for name in names(60).split_off(LEAST as usize - 1) {
            let shard = ShardIndex(directory.layout.place);
            let request = create_of(&directory, &name);
            if spread_of(&world, d) == spread::AUTO {
                world.send(Credentials::ROOT, shard, &request);
            }
        }
        let hashes = names(60).iter().map(|name| NameHash::of(d, name).0).collect();
        let mut listing = Listing { hashes, seen: vec![], after: 0, is_over: false };
        let before = spread_of(&world, d);
        let there: BTreeSet<Vec<u8>> = names(LEAST as u8 - 1).into_iter().collect();
        while !listing.is_over {
            for _ in 0..random.uniform(40) {
                match random.chance(70) {
                    true => faults.deliver(&mut world, &mut random),
                    false => {
                        world.now += 1_000_000;
                        world.do_what_is_due();
                    }
                }
            }
            listing.go_on(&mut world, d);
        }
        moved += u64::from(spread_of(&world, d) != before);
        let seen: BTreeSet<Vec<u8>> = listing.seen.iter().cloned().collect();
        assert_eq!(seen.len(), listing.seen.len(), "seed {seed}: a name twice");
        assert!(there.is_subset(&seen), "seed {seed}: a name is missing");
        world.settle();
        assert!(spread::is_wide(spread_of(&world, d)));
    }
    assert!(moved > 30, "{moved} listings met a step");
}

#[test]
fn local_operations_go_on_before_and_after() {
    let (mut world, directory, all) = nearly_grown(2);
    let d = directory.inode;
    let mut count = all.len();
    for at in 0..2 {
        let shards = (0..wire::limits::SHARD_COUNT).map(ShardIndex);
        let own: Vec<ShardIndex> = shards.filter(|&shard| world.owner(shard) == at).collect();
        for shard in own {
            world.step(at, Input::GrantNumbers { shard });
        }
    }
    let mut by_local_op = [0, 0];
    for name in names(120).split_off(LEAST as usize - 1) {
        let is_wide = spread::is_wide(spread_of(&world, d));
        assert_eq!(world.root().look(d, &name).map(drop), Err(Errno::ENOENT));
        match world.create_by_local_op(d, &name) {
            Some(_) => by_local_op[usize::from(is_wide)] += 1,
            None => drop(world.root().file(d, &name).expect("made")),
        }
        count += 1;
        assert_eq!(holders(&world, d, &name), 1);
        world.settle();
    }
    println!("{by_local_op:?}");
    assert!(by_local_op[0] > 0 && by_local_op[1] > 50, "{by_local_op:?}");
    assert_eq!(world.root().list(d).len(), count);
}

/// Delivers a message, or lets time pass if there is none.
fn deliver(world: &mut World, look: impl FnOnce(&[u8])) {
    match world.queue.is_empty() {
        true => {
            world.now += 1_000_000;
            world.do_what_is_due();
        }
        false => {
            let (to, bytes) = world.queue.remove(0);
            look(&bytes);
            world.step(to, Input::Peer { message: &bytes });
        }
    }
}

/// Delivers messages, and lets time pass if there are none, until the directory is wide. The time that
/// has passed.
fn until_wide(world: &mut World, directory: Inode, mut look: impl FnMut(&[u8])) -> i64 {
    let since = world.now;
    while !spread::is_wide(spread_of(world, directory)) {
        deliver(world, &mut look);
        assert!(world.now - since < 60_000_000_000, "the directory is never wide");
    }
    world.now - since
}

/// The kernel of a mount moves what it remembers of a name with it: the service that has the name must
/// not change before that is forgotten.
#[test]
fn a_name_that_a_kernel_takes_along_holds_the_next_step_off() {
    for mount in [0, 1] {
        let (mut world, directory, _) = nearly_grown(3);
        let wide = world.root().wide(ROOT, b"wide").expect("made").inode;
        world.root().file(wide, b"f").expect("made");
        let (name, new_parent, new_name) = (&b"f"[..], directory.inode, &b"last"[..]);
        let request = Request::Rename { parent: wide, name, new_parent, new_name, flags: 0 };
        let shard = world.shard_of_name(wide, name);
        let mut sent = world.prepare(Credentials::ROOT, shard, &request);
        sent.header.mount = mount;
        let ticket = world.send_again(&sent);
        let passed = until_wide(&mut world, directory.inode, |_| {});
        assert_eq!(world.answer(ticket), Some(Answer::Done));
        assert_eq!(passed >= wire::watch::VALID_NANOS, mount != 0, "{passed} ns");
        assert_eq!(world.root().list(directory.inode).len() as u64, LEAST);
    }
}

/// A step fits the log of each service, also with the longest names.
#[test]
fn a_step_moves_no_more_than_fits() {
    let grown = 2048;
    let auto = |config| Config { spread: spread::AUTO, widen_entries: grown, ..config };
    let mut world = World::of((0..2).map(|daemon| auto(config(daemon, 2, 0, 1))).collect());
    let made = world.root().directory(ROOT, b"d").expect("made");
    let (directory, layout) = (made.inode, made.layout);
    let name = |number: u64| format!("{number:0>250}").into_bytes();
    let mut all = BTreeSet::from([name(0)]);
    for number in 1..grown {
        world.root().file(directory, &name(number)).expect("made");
        all.insert(name(number));
    }
    let (name, mode, device, flags, target) = (name(0), 0o100_644, 0, 1, &b""[..]);
    let request =
        Request::Create { parent: directory, name: &name, mode, device, flags, layout, target };
    world.send(Credentials::ROOT, ShardIndex(layout.place), &request);
    let (mut longest, mut total) = (0, 0);
    until_wide(&mut world, directory, |message| {
        longest = longest.max(message.len());
        total += message.len();
    });
    assert!(total > 200 << 10 && longest < 129 << 10, "{longest} of {total} bytes");
    world.settle();
    assert_eq!(world.root().list(directory).into_iter().collect::<BTreeSet<_>>(), all);
}

/// A name that moves is in the count of one of two services, whenever they are asked.
#[test]
fn the_number_of_entries_stays_as_it_is() {
    let mut count = 0;
    for seed in 0..60 {
        let mut random = Random(seed);
        let (mut world, directory, _) = nearly_grown(3);
        let (parent, layout) = (directory.inode, directory.layout);
        let faults = Faults::new(0, usize::MAX, &[0]);
        let (name, mode, device, flags, target) = (&b"last"[..], 0o100_644, 0, 1, &b""[..]);
        let request = Request::Create { parent, name, mode, device, flags, layout, target };
        let made = world.send(Credentials::ROOT, ShardIndex(layout.place), &request);
        let go_on = |world: &mut World, random: &mut Random| match random.chance(80) {
            true => faults.deliver(world, random),
            false => {
                world.now += 100_000;
                world.do_what_is_due();
            }
        };
        while world.answer(made).is_none() {
            go_on(&mut world, &mut random);
        }
        let mut asked = vec![];
        while !spread::is_wide(spread_of(&world, parent)) {
            let query = Request::GetAttributes { inode: parent };
            // Else messages come faster than they arrive, and time stands still.
            if world.queue.len() < 10 {
                asked.push(world.send(Credentials::ROOT, parent.shard(), &query));
            }
            go_on(&mut world, &mut random);
        }
        world.settle();
        count += asked.len();
        for ticket in asked {
            let found = world.answer(ticket).expect("it is answered").attributes();
            assert_eq!(found.size, LEAST, "seed {seed}");
        }
    }
    assert!(count > 500, "{count} answers");
}
