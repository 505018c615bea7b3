//! The rate of moves that no request waits for.

use crate::effect::{Effect, Input};
use crate::target::{Settings, Target};
use crate::tests::pinned::{perform, ready};
use crate::tiering::demote::DemotionSettings;
use wire::{Inode, Request};

const BLOCK: u64 = 64 << 10;
const STRIPE_LOG2: u8 = 16;
/// Blocks of the memory; half of it is to be free.
const MEMORY: u64 = 64;

struct RateWorld {
    target: Target,
    now: u32,
}

impl RateWorld {
    /// A world with a rate of this many blocks per second, and memory full of idle extents.
    fn full(rate: u64) -> RateWorld {
        let mut target = Target::new(Settings {
            memory: ready(MEMORY * BLOCK),
            ssd: ready(256 * BLOCK),
            slot_count: 1024,
            quota_bytes: u64::MAX,
            demotion: DemotionSettings {
                demote_low_watermark_bytes: MEMORY * BLOCK / 2,
                demote_min_watermark_bytes: MEMORY * BLOCK / 4,
                idle_millis: 10,
            },
        });
        target.set_tiering_rate(rate * BLOCK);
        let mut world = RateWorld { target, now: u32::MAX - 100 };
        for block in 0..MEMORY {
            world.ask(&Request::MapExtents {
                inode: Inode(1),
                stripe_log2: STRIPE_LOG2,
                allocate: 1,
                offset: block * BLOCK,
                length: 1,
                preallocate: 0,
            });
        }
        world
    }

    fn ask(&mut self, request: &Request<'_>) {
        let mut out = Vec::new();
        self.target.step(Input::Request { ticket: 1, request, job: wire::JobWord::NONE }, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        perform(&mut self.target, effects, &[], &mut |_, _| {});
    }

    /// Looks for extents to move, every ten milliseconds; these slots are in use.
    fn look(&mut self, millis: u32, used: std::ops::Range<u32>) {
        for _ in 0..millis / 10 {
            self.now = self.now.wrapping_add(10);
            // As many as may be in flight.
            for _ in 0..MEMORY {
                let (mut out, mut was_used) = (Vec::new(), |slot| used.contains(&slot));
                self.target.demote(self.now, &mut was_used, &mut out);
                self.target.promote(self.now, &mut was_used, &mut out);
                self.perform(out);
            }
        }
    }

    fn demoted(&self) -> u64 {
        self.target.moved().bytes_demoted / BLOCK
    }
}

#[test]
fn idle_extents_are_demoted_at_the_rate() {
    let mut world = RateWorld::full(10);
    world.look(1000, 0..0);
    let demoted = world.demoted();
    assert!((9..=12).contains(&demoted), "{demoted} blocks");
    assert!(world.target.tiering_wait_millis() > 0);
    world.look(1000, 0..0);
    let more = world.demoted() - demoted;
    assert!((9..=11).contains(&more), "{more} blocks");
    // And all that are to be moved.
    world.look(4000, 0..0);
    assert!(world.demoted() >= MEMORY / 2);
    assert!(!world.target.is_demoting());
}

#[test]
fn without_a_rate_extents_are_demoted_at_once() {
    let mut world = RateWorld::full(0);
    world.look(50, 0..0);
    assert!(world.demoted() >= MEMORY / 2);
    assert_eq!(world.target.tiering_wait_millis(), 0);
}

#[test]
fn memory_that_programs_take_is_given_back_at_once() {
    let mut world = RateWorld::full(1);
    world.look(50, 0..0);
    let before = world.demoted();
    assert!(before <= 1);
    let mut out = Vec::new();
    world.target.lend(MEMORY / 4 * BLOCK, &mut out);
    world.perform(out);
    world.look(50, 0..0);
    let (demoted, memory) = (world.demoted(), world.target.memory_lent());
    assert_eq!(memory.used, memory.allowed);
    assert!(demoted > before);
    // It counts, so nothing else moves for as long as that would have taken.
    world.target.lend(MEMORY * BLOCK, &mut Vec::new());
    world.look(30_000, 0..1024);
    assert_eq!((world.demoted(), world.target.moved().bytes_promoted), (demoted, 0));
}

#[test]
fn used_extents_are_promoted_at_the_rate() {
    let mut world = RateWorld::full(0);
    world.look(50, 0..0);
    let all = world.demoted();
    world.target.set_tiering_rate(4 * BLOCK);
    // Used in every second pass, so that it is hot and not in use when it is hidden.
    for _ in 0..10 {
        world.look(100, 0..1024);
        world.look(100, 0..0);
    }
    let promoted = world.target.moved().bytes_promoted / BLOCK;
    assert!((1..=9).contains(&promoted), "{promoted} of {all} blocks");
}
