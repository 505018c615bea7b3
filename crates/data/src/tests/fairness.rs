//! Fairness of several users in one memory: whose extents leave, and whose stay.

use crate::effect::{Answer, CopyClass, Effect, Input};
use crate::target::{Settings, Target};
use crate::tests::pinned::{perform, ready};
use crate::tiering::demote::DemotionSettings;
use std::collections::BTreeSet;
use wire::quota::Owner;
use wire::reply::Extent;
use wire::{Inode, Request};

const BLOCK: u64 = 64 << 10;
const STRIPE_LOG2: u8 = 16;
/// Number of blocks of the memory, and of the SSD.
const MEMORY: u64 = 32;
const SSD: u64 = 256;

struct FairnessWorld {
    target: Target,
    now: u32,
    /// Slots that are in use all the time.
    used: BTreeSet<u32>,
    protected: Vec<u32>,
}

impl FairnessWorld {
    fn new(ssd: u64) -> FairnessWorld {
        FairnessWorld::with(ssd, 10)
    }

    /// A world whose extents are idle after this many milliseconds.
    fn with(ssd: u64, idle_millis: u32) -> FairnessWorld {
        FairnessWorld::sized([MEMORY, ssd], idle_millis)
    }

    /// A world with so many blocks of memory and of SSD.
    fn sized([memory, ssd]: [u64; 2], idle_millis: u32) -> FairnessWorld {
        let mut target = Target::new(Settings {
            memory: ready(memory * BLOCK),
            ssd: ready(ssd * BLOCK),
            slot_count: 1024,
            quota_bytes: u64::MAX,
            demotion: DemotionSettings {
                demote_low_watermark_bytes: memory * BLOCK / 2,
                demote_min_watermark_bytes: memory * BLOCK / 4,
                idle_millis,
            },
        });
        target.count();
        FairnessWorld { target, now: 0, used: BTreeSet::new(), protected: Vec::new() }
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Option<Answer> {
        perform(&mut self.target, effects, &self.protected, &mut |_, _| {})
    }

    /// Allocates a block of a user's file; `None` if there is no space now.
    fn make(&mut self, uid: u32, file: u64, block: u64) -> Option<Extent> {
        let request = Request::MapExtents {
            inode: Inode(file),
            stripe_log2: STRIPE_LOG2,
            allocate: 1,
            offset: block * BLOCK,
            length: 1,
            preallocate: 0,
        };
        let mut out = Vec::new();
        self.target.step(
            Input::Request { ticket: 1, request: &request, job: wire::JobWord::NONE },
            &mut out,
        );
        let answer = self.perform(out);
        self.target.set_owner(Inode(file), Owner { uid, project: 0 }, 1);
        self.target.check_fairness();
        match answer {
            Some(Answer::Extents(extents)) => Some(extents[0]),
            _ => None,
        }
    }

    /// Writes a file back: its bytes are in the backing store, too.
    fn clean(&mut self, file: u64) {
        let of_it = self.target.extents().filter(|row| row.0 == Inode(file));
        let of_it: Vec<(Inode, Extent)> = of_it.collect();
        self.target.restore_clean(of_it.into_iter());
    }

    /// Lets time pass.
    fn rest(&mut self) {
        for _ in 0..10 {
            self.now += 50;
            self.look();
        }
    }

    /// Looks for extents to demote or evict.
    fn look(&mut self) {
        let used = self.used.clone();
        let mut out = Vec::new();
        let mut was_used = |slot| used.contains(&slot);
        if self.target.wants_eviction() {
            self.target.evict_clean(self.now, &mut was_used, &|_| true, &mut out);
        }
        let evicted = std::mem::take(&mut out);
        self.perform(evicted);
        self.target.demote(self.now, &mut was_used, &mut out);
        self.perform(out);
        self.target.check_fairness();
    }

    fn in_memory(&self, file: u64) -> u64 {
        let of_it = self.target.extents().filter(|row| row.0 == Inode(file));
        of_it.filter(|row| row.1.tier == Extent::MEMORY).map(|row| row.1.length()).sum::<u64>()
            / BLOCK
    }

    fn stream(&mut self, uid: u32, files: std::ops::Range<u64>) {
        for file in files {
            self.make(uid, file, 1);
            self.rest();
        }
    }
}

/// "A user's burst takes from others only what exceeds an equal share"
/// (docs/semantics/durability.md).
#[test]
fn a_users_equal_share_stays_while_another_writes_four_times_the_memory() {
    let mut world = FairnessWorld::new(SSD);
    // The coldest extents: nobody uses them again.
    for block in 1..=6 {
        world.make(2, 7, block);
    }
    world.rest();
    world.stream(1, 100..100 + 4 * MEMORY);
    assert_eq!(world.in_memory(7), 6);
    assert!(world.target.moved().bytes_demoted >= 3 * MEMORY * BLOCK);
}

/// While it is written a burst is in use, and nothing of it is idle.
#[test]
fn a_burst_is_demoted_only_when_it_is_idle() {
    let mut world = FairnessWorld::new(SSD);
    for block in 1..=6 {
        world.make(2, 7, block);
    }
    world.rest();
    for burst in 0..8 {
        for block in 1..=16 {
            let extent = world.make(1, 100 + burst, block).expect("an extent");
            world.used.insert(extent.slot);
        }
        world.look();
        world.used.clear();
        world.now += 5;
        world.look();
        assert_eq!(world.in_memory(7), 6, "after burst {burst}");
        world.rest();
    }
    assert_eq!(world.in_memory(7), 6);
    assert!(world.target.moved().bytes_demoted >= 3 * MEMORY * BLOCK);
}

/// A user whose extents do not move does not keep others' extents from moving.
#[test]
fn protected_extents_are_no_reason_to_wait() {
    let mut world = FairnessWorld::new(SSD);
    for block in 1..=8 {
        world.make(2, 7, block);
    }
    for block in 1..=16 {
        let extent = world.make(1, 8, block).expect("an extent");
        world.protected.push(extent.slot);
    }
    world.rest();
    assert_eq!((world.in_memory(7), world.in_memory(8)), (0, 16));
}

#[test]
fn data_beyond_an_equal_share_leaves_until_both_users_hold_the_same() {
    let mut world = FairnessWorld::new(SSD);
    for block in 1..=15 {
        world.make(2, 7, block);
    }
    world.stream(1, 100..100 + 2 * MEMORY);
    let bytes_left = world.in_memory(7);
    assert!((5..=9).contains(&bytes_left), "{bytes_left} of 15, half of what stays is 8");
}

#[test]
fn extents_in_use_are_no_victims_for_another_user() {
    let mut world = FairnessWorld::new(SSD);
    for block in 1..=4 {
        world.make(2, 7, block);
    }
    for block in 1..=20 {
        let extent = world.make(1, 8, block).expect("an extent");
        world.used.insert(extent.slot);
    }
    world.rest();
    assert_eq!((world.in_memory(7), world.in_memory(8)), (0, 20));
}

#[test]
fn a_users_input_stays_while_another_users_data_can_be_demoted() {
    let mut world = FairnessWorld::new(SSD);
    for block in 1..=6 {
        world.make(2, 7, block);
    }
    world.clean(7);
    world.stream(1, 100..100 + 2 * MEMORY);
    assert_eq!((world.in_memory(7), world.target.bytes_evicted()), (6, 0));
    // Clean extents of a user above its share go first, because they need no copy.
    for block in 1..=14 {
        world.make(3, 8, block);
    }
    world.clean(8);
    world.stream(1, 300..320);
    assert!(world.in_memory(8) < 14);
    assert_eq!(world.in_memory(7), 6);
}

#[test]
fn a_burst_of_one_user_is_demoted_before_another_users_input() {
    // Nothing is idle, so only what must go goes.
    let mut world = FairnessWorld::with(SSD, 1_000_000);
    for block in 1..=6 {
        world.make(2, 7, block);
    }
    world.clean(7);
    for block in 1..=20 {
        world.make(1, 8, block);
    }
    assert!(!world.target.wants_eviction(), "nothing can be evicted");
    world.rest();
    assert_eq!((world.in_memory(7), world.target.bytes_evicted()), (6, 0));
    assert!(world.target.memory_space().1 >= MEMORY / 4 * BLOCK, "it did not sink");
}

#[test]
fn a_users_input_is_evicted_when_nothing_can_be_demoted() {
    const SMALL: u64 = 8;
    let mut world = FairnessWorld::new(SMALL);
    for block in 1..=6 {
        world.make(2, 7, block);
    }
    world.clean(7);
    for file in 100..100 + MEMORY + SMALL - 6 {
        assert!(world.make(1, file, 1).is_some(), "there is space without clean extents");
    }
    world.rest();
    assert_eq!(world.in_memory(7), 0, "memory keeps nothing free");
}

#[test]
fn a_file_counts_for_its_new_owner() {
    let mut world = FairnessWorld::new(SSD);
    for block in 1..=8 {
        world.make(2, 7, block);
    }
    world.target.set_owner(Inode(7), Owner { uid: 1, project: 0 }, 2);
    world.target.set_owner(Inode(7), Owner { uid: 3, project: 0 }, 1);
    world.target.check_fairness();
    for file in 50..54 {
        world.make(2, file, 1);
    }
    world.stream(1, 100..130);
    assert_eq!((50..54).map(|file| world.in_memory(file)).sum::<u64>(), 4);
    assert_eq!(world.in_memory(7), 0, "the coldest extent of the largest holder");
}

#[test]
fn users_beyond_the_number_of_holders_share_one() {
    let mut world = FairnessWorld::new(1024);
    for uid in 0..600 {
        world.make(uid, 1000 + u64::from(uid), 1);
        world.now += 50;
        let mut out = Vec::new();
        world.target.demote(world.now, &mut |_| false, &mut out);
        world.perform(out);
    }
    world.target.check_fairness();
    assert!(world.target.moved().bytes_demoted > 0);
}

/// Files on the SSD, in use, for which memory has space: 200 extents of user 1, then 6 of user 2.
fn used_on_ssd() -> FairnessWorld {
    const FULL: u64 = 512;
    let mut world = FairnessWorld::sized([FULL, SSD], 1_000_000);
    for block in 1..=FULL {
        world.make(3, 9, block);
    }
    for block in 1..=200 {
        let extent = world.make(1, 10, block).expect("an extent");
        assert_eq!(extent.tier, Extent::SSD);
        world.used.insert(extent.slot);
    }
    for block in 1..=6 {
        let extent = world.make(2, 11, block).expect("an extent");
        world.used.insert(extent.slot);
    }
    let inodes = 9u64.to_le_bytes();
    let (request, job) = (&Request::Remove { inodes: &inodes }, wire::JobWord::NONE);
    let mut out = Vec::new();
    world.target.step(Input::Request { ticket: 2, request, job }, &mut out);
    world.perform(out);
    world
}

/// A pass over the SSD. Its copies begin; whose they are.
fn pass(world: &mut FairnessWorld, copies: &mut Vec<(u64, u32)>) {
    world.now += 100;
    let used = world.used.clone();
    for _ in 0..4 {
        let mut out = Vec::new();
        world.target.promote(world.now, &mut |slot| used.contains(&slot), &mut out);
        while let Some(effect) = out.pop() {
            match effect {
                Effect::CheckHazards { round } => {
                    let none = Input::Hazards { round, protected: &[], reading: &[] };
                    world.target.step(none, &mut out);
                }
                Effect::Copy { ticket, class, job, .. } => {
                    assert_eq!(class, CopyClass::Serves, "programs use it");
                    copies.push((ticket, job.user));
                }
                _ => {}
            }
        }
    }
}

/// A user with few extents does not wait until all of another one are promoted.
#[test]
fn promotions_of_another_user_come_next() {
    let mut world = used_on_ssd();
    let mut copies = Vec::new();
    for _ in 0..20 {
        pass(&mut world, &mut copies);
        assert!(copies.len() <= 64, "as many as may be in flight");
    }
    assert_eq!(copies.len(), 64);
    assert!(copies.iter().all(|&(_, user)| user == 1), "its extents come first in the pass");
    // Each place that becomes free is for the other user.
    for promoted in 1..=6 {
        let (ticket, _) = copies.remove(0);
        world.target.step(Input::Copied { ticket, outcome: Ok(()) }, &mut Vec::new());
        pass(&mut world, &mut copies);
        let of_other = copies.iter().filter(|&&(_, user)| user == 2).count();
        assert_eq!(of_other, promoted, "of the user with few");
    }
    // And then for the first one again, in the pass after next at the latest.
    let before = copies.len();
    let (ticket, _) = copies.remove(0);
    world.target.step(Input::Copied { ticket, outcome: Ok(()) }, &mut Vec::new());
    pass(&mut world, &mut copies);
    pass(&mut world, &mut copies);
    assert_eq!(copies.len(), before);
}

/// A burst of demotions leaves places, so that extents in use are promoted beside them.
#[test]
fn demotions_leave_places_for_promotions() {
    const FULL: u64 = 128;
    let mut world = FairnessWorld::sized([FULL, SSD], 10);
    for block in 1..=FULL {
        world.make(1, 10, block);
    }
    world.now += 1000;
    let (mut out, mut copies) = (Vec::new(), Vec::new());
    world.target.demote(world.now, &mut |_| false, &mut out);
    while let Some(effect) = out.pop() {
        match effect {
            Effect::CheckHazards { round } => {
                let none = Input::Hazards { round, protected: &[], reading: &[] };
                world.target.step(none, &mut out);
            }
            Effect::Copy { class, .. } => copies.push(class),
            _ => {}
        }
    }
    let of = |class: CopyClass| copies.iter().filter(|one| **one == class).count();
    // A quarter must be free; half is to be.
    assert_eq!([of(CopyClass::Frees), of(CopyClass::Ahead), copies.len()], [32, 16, 48]);
}
