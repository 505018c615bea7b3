//! What is moved keeps to a rate as long as nobody waits for it.

use crate::effect::{Effect, Input};
use crate::resident_tests::{perform, ready};
use crate::sink::Sinking;
use crate::target::{Settings, Target};
use wire::{Inode, Request};

const BLOCK: u64 = 64 << 10;
const CHUNK_LOG2: u8 = 16;
/// Blocks of the memory; half of it is to be free.
const MEMORY: u64 = 64;

struct World {
    target: Target,
    now: u32,
}

impl World {
    /// Of so many blocks a second, with memory full of what is idle.
    fn full(rate: u64) -> World {
        let mut target = Target::new(Settings {
            memory: ready(MEMORY * BLOCK),
            ssd: ready(256 * BLOCK),
            slot_count: 1024,
            quota_bytes: u64::MAX,
            sinking: Sinking {
                normal_below_bytes: MEMORY * BLOCK / 2,
                forced_below_bytes: MEMORY * BLOCK / 4,
                idle_millis: 10,
            },
        });
        target.set_move_rate(rate * BLOCK);
        let mut world = World { target, now: u32::MAX - 100 };
        for block in 0..MEMORY {
            world.ask(&Request::MapPieces {
                inode: Inode(1),
                chunk_log2: CHUNK_LOG2,
                allocate: 1,
                offset: block * BLOCK,
                length: 1,
                ahead: 0,
            });
        }
        world
    }

    fn ask(&mut self, request: &Request<'_>) {
        let mut out = Vec::new();
        self.target.step(Input::Request { ticket: 1, request }, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        perform(&mut self.target, effects, &[], &mut |_, _| {});
    }

    /// Looks for what is to move, every ten milliseconds; these slots are in use.
    fn look(&mut self, millis: u32, used: std::ops::Range<u32>) {
        for _ in 0..millis / 10 {
            self.now = self.now.wrapping_add(10);
            // As many as may be under way.
            for _ in 0..MEMORY {
                let (mut out, mut was_used) = (Vec::new(), |slot| used.contains(&slot));
                self.target.sink(self.now, &mut was_used, &mut out);
                self.target.rise(self.now, &mut was_used, &mut out);
                self.perform(out);
            }
        }
    }

    fn sunk(&self) -> u64 {
        self.target.moved().bytes_sunk / BLOCK
    }
}

#[test]
fn what_is_idle_sinks_at_the_rate() {
    let mut world = World::full(10);
    world.look(1000, 0..0);
    let sunk = world.sunk();
    assert!((9..=12).contains(&sunk), "{sunk} blocks");
    assert!(world.target.move_wait_millis() > 0);
    world.look(1000, 0..0);
    let more = world.sunk() - sunk;
    assert!((9..=11).contains(&more), "{more} blocks");
    // And all that is to.
    world.look(4000, 0..0);
    assert!(world.sunk() >= MEMORY / 2);
    assert!(!world.target.is_sinking());
}

#[test]
fn without_a_rate_it_sinks_at_once() {
    let mut world = World::full(0);
    world.look(50, 0..0);
    assert!(world.sunk() >= MEMORY / 2);
    assert_eq!(world.target.move_wait_millis(), 0);
}

#[test]
fn memory_that_is_taken_back_is_given_back_at_once() {
    let mut world = World::full(1);
    world.look(50, 0..0);
    let before = world.sunk();
    assert!(before <= 1);
    let mut out = Vec::new();
    world.target.lend(MEMORY / 4 * BLOCK, &mut out);
    world.perform(out);
    world.look(50, 0..0);
    let (sunk, memory) = (world.sunk(), world.target.memory_lent());
    assert_eq!(memory.used, memory.allowed);
    assert!(sunk > before);
    // It counts, so nothing else moves for as long as that would have taken.
    world.target.lend(MEMORY * BLOCK, &mut Vec::new());
    world.look(30_000, 0..1024);
    assert_eq!((world.sunk(), world.target.moved().bytes_risen), (sunk, 0));
}

#[test]
fn what_is_used_rises_at_the_rate() {
    let mut world = World::full(0);
    world.look(50, 0..0);
    let all = world.sunk();
    world.target.set_move_rate(4 * BLOCK);
    // In use in each second lap, so that it is proven and not in use when it is hidden.
    for _ in 0..10 {
        world.look(100, 0..1024);
        world.look(100, 0..0);
    }
    let risen = world.target.moved().bytes_risen / BLOCK;
    assert!((1..=9).contains(&risen), "{risen} of {all} blocks");
}
