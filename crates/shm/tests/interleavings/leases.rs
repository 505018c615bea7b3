//! Leases: readers beside the daemon that is granted them, revocations, renewals, terms that end,
//! and a daemon that comes back.

use rustix::fd::{AsFd, OwnedFd};
use shm::Segment;
use shm::index::{LEASES_BYTES, Leases};
use shm::sync::{AtomicU64, model};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use wire::attributes::mode;
use wire::{Attributes, Inode};

const SERVICE: usize = 5;
const DIRECTORY: Inode = Inode(9);
const KEY: u128 = 77 << 64 | 9;

/// The directory's state at its service, and the time.
struct World {
    truth: AtomicU64,
    clock: AtomicU64,
}

fn memory() -> OwnedFd {
    Segment::nameless(c"test", LEASES_BYTES).expect("nameless memory").1
}

fn create(memory: &OwnedFd) -> Leases {
    let punch = |first: usize| {
        let segment = Segment::map(memory.as_fd(), LEASES_BYTES, shm::Access::ReadWrite)?;
        segment.zero(first, LEASES_BYTES - first)
    };
    model::uninterrupted(|| Leases::create(memory, 16, punch).expect("long enough"))
}

/// A directory, with a value in its permissions.
fn directory(value: u64) -> Attributes {
    let mode = mode::DIRECTORY | value as u32;
    Attributes { inode: DIRECTORY, mode, links: 2, ..Attributes::default() }
}

fn value_of(directory: &Attributes) -> u64 {
    u64::from(directory.mode & !mode::TYPE)
}

/// A walk: its result was true at some moment of it.
fn look(leases: &Leases, world: &World) -> bool {
    let first = world.truth.load(SeqCst);
    let found = leases.read(
        SERVICE,
        || world.clock.load(SeqCst).cast_signed(),
        |index| {
            let shm::index::Hit::Found(inode, _) = index.entry(KEY) else { return None };
            assert_eq!(inode, DIRECTORY);
            index.inode(inode)
        },
    );
    let last = world.truth.load(SeqCst);
    if let Some(found) = found {
        let value = value_of(&found);
        assert!(
            (first..=last).contains(&value),
            "{value} was believed while it was {first}..{last}"
        );
    }
    found.is_some()
}

/// A remembered record: generation, directory version, and value.
type Remembered = (u64, u64, u64);

fn remember(leases: &Leases, world: &World) -> Option<Remembered> {
    let generation = leases.generation(SERVICE)?;
    let number = leases.directory_version()?;
    let found = leases.read(
        SERVICE,
        || world.clock.load(SeqCst).cast_signed(),
        |index| index.inode(DIRECTORY),
    )?;
    Some((generation, number, value_of(&found)))
}

/// A remembered value that is still valid was true at some moment of the look.
fn check_remembered(
    leases: &Leases,
    world: &World,
    (generation, number, value): Remembered,
) -> bool {
    let first = world.truth.load(SeqCst);
    let now = || world.clock.load(SeqCst).cast_signed();
    let holds =
        leases.holds(SERVICE, generation, now) && leases.directory_version() == Some(number);
    let last = world.truth.load(SeqCst);
    assert!(
        !holds || (first..=last).contains(&value),
        "{value} was remembered while it was {first}..{last}"
    );
    holds
}

fn change(world: &World) -> Attributes {
    directory(world.truth.fetch_add(1, SeqCst) + 1)
}

fn world() -> Arc<World> {
    Arc::new(World { truth: AtomicU64::new(1), clock: AtomicU64::new(1) })
}

/// One reads the lease each time, the other uses its remembered value while that is valid.
fn readers(memory: &OwnedFd, world: &Arc<World>) -> [model::Thread<u32>; 2] {
    [false, true].map(|remembers| {
        let leases = model::uninterrupted(|| Leases::open(memory).expect("made"));
        let world = Arc::clone(world);
        model::spawn(move || {
            let mut known = None;
            let mut found = 0;
            for _ in 0..3 {
                known = known.filter(|&known| check_remembered(&leases, &world, known));
                if known.is_none() {
                    found += u32::from(look(&leases, &world));
                    known = if remembers { remember(&leases, &world) } else { None };
                }
            }
            found
        })
    })
}

#[test]
fn a_revoked_or_expired_lease_is_not_trusted() {
    model::explore(3000, || {
        let (memory, world) = (memory(), world());
        let leases = create(&memory);
        model::uninterrupted(|| {
            leases.begin(SERVICE, 10);
            leases.put(KEY, &directory(1));
            assert!(look(&leases, &world), "it is granted");
        });
        let readers = readers(&memory, &world);
        // Revoked, changed, granted again, and for longer.
        leases.remove(KEY, DIRECTORY);
        leases.put(KEY, &change(&world));
        leases.extend(SERVICE, 20);
        // Its term ends, and it changes without a message. Then there is another term.
        world.clock.store(30, SeqCst);
        let new = change(&world);
        leases.close(SERVICE);
        leases.remove(KEY, DIRECTORY);
        leases.begin(SERVICE, 40);
        leases.put(KEY, &new);
        let _ = readers.map(model::Thread::join);
        model::uninterrupted(|| assert!(look(&leases, &world), "it is granted"));
    });
}

#[test]
fn leases_of_an_earlier_daemon_are_not_trusted() {
    model::explore(1500, || {
        let (memory, world) = (memory(), world());
        let leases = create(&memory);
        model::uninterrupted(|| {
            leases.begin(SERVICE, 10);
            leases.put(KEY, &directory(1));
        });
        let readers = readers(&memory, &world);
        drop(leases);
        world.clock.store(20, SeqCst);
        let new = change(&world);
        let punch = |first: usize| {
            let segment = Segment::map(memory.as_fd(), LEASES_BYTES, shm::Access::ReadWrite)?;
            segment.zero(first, LEASES_BYTES - first)
        };
        let leases = Leases::create(&memory, SERVICE + 1, punch).expect("long enough");
        leases.begin(SERVICE, 40);
        leases.put(KEY, &new);
        let _ = readers.map(model::Thread::join);
        model::uninterrupted(|| assert!(look(&leases, &world), "it is granted"));
    });
}
