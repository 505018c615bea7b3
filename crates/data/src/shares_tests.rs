//! Several users in one memory: whose pieces go, and whose stay.

use crate::effect::{Answer, Effect, Input};
use crate::resident_tests::{perform, ready};
use crate::sink::Sinking;
use crate::target::{Settings, Target};
use std::collections::BTreeSet;
use wire::quota::Owner;
use wire::reply::Piece;
use wire::{Inode, Request};

const BLOCK: u64 = 64 << 10;
const CHUNK_LOG2: u8 = 16;
/// Blocks of the memory, and of the SSD.
const MEMORY: u64 = 32;
const SSD: u64 = 256;

struct World {
    target: Target,
    now: u32,
    /// Slots that are used all the time.
    used: BTreeSet<u32>,
    pinned: Vec<u32>,
}

impl World {
    fn new(ssd: u64) -> World {
        World::with(ssd, 10)
    }

    /// With pieces that are idle after so many milliseconds.
    fn with(ssd: u64, idle_millis: u32) -> World {
        let mut target = Target::new(Settings {
            memory: ready(MEMORY * BLOCK),
            ssd: ready(ssd * BLOCK),
            slot_count: 1024,
            quota_bytes: u64::MAX,
            sinking: Sinking {
                normal_below_bytes: MEMORY * BLOCK / 2,
                forced_below_bytes: MEMORY * BLOCK / 4,
                idle_millis,
            },
        });
        target.count();
        World { target, now: 0, used: BTreeSet::new(), pinned: Vec::new() }
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Option<Answer> {
        perform(&mut self.target, effects, &self.pinned, &mut |_, _| {})
    }

    /// A block of a user's file comes to be; `None` if there is no room now.
    fn make(&mut self, uid: u32, file: u64, block: u64) -> Option<Piece> {
        let request = Request::MapPieces {
            inode: Inode(file),
            chunk_log2: CHUNK_LOG2,
            allocate: 1,
            offset: block * BLOCK,
            length: 1,
            ahead: 0,
        };
        let mut out = Vec::new();
        self.target.step(Input::Request { ticket: 1, request: &request }, &mut out);
        let answer = self.perform(out);
        self.target.own(Inode(file), Owner { uid, project: 0 }, 1);
        self.target.check_shares();
        match answer {
            Some(Answer::Pieces(pieces)) => Some(pieces[0]),
            _ => None,
        }
    }

    /// What was made of a file is below, too.
    fn clean(&mut self, file: u64) {
        let of_it = self.target.pieces().filter(|row| row.0 == Inode(file));
        let of_it: Vec<(Inode, Piece)> = of_it.collect();
        self.target.restore_clean(of_it.into_iter());
    }

    /// Some time passes.
    fn rest(&mut self) {
        for _ in 0..10 {
            self.now += 50;
            self.look();
        }
    }

    /// A look for what is to go.
    fn look(&mut self) {
        let used = self.used.clone();
        let mut out = Vec::new();
        let mut was_used = |slot| used.contains(&slot);
        if self.target.wants_drops() {
            self.target.drop_clean(self.now, &mut was_used, &|_| true, &mut out);
        }
        let dropped = std::mem::take(&mut out);
        self.perform(dropped);
        self.target.sink(self.now, &mut was_used, &mut out);
        self.perform(out);
        self.target.check_shares();
    }

    fn in_memory(&self, file: u64) -> u64 {
        let of_it = self.target.pieces().filter(|row| row.0 == Inode(file));
        of_it.filter(|row| row.1.tier == Piece::MEMORY).map(|row| row.1.length()).sum::<u64>()
            / BLOCK
    }

    fn stream(&mut self, uid: u32, files: std::ops::Range<u64>) {
        for file in files {
            self.make(uid, file, 1);
            self.rest();
        }
    }
}

/// "A user's burst takes from another only what is beyond an equal part" (docs/semantics.md).
#[test]
fn what_a_user_holds_within_his_part_stays_while_another_writes_four_times_the_memory() {
    let mut world = World::new(SSD);
    // The coolest there are: nobody uses them again.
    for block in 1..=6 {
        world.make(2, 7, block);
    }
    world.rest();
    world.stream(1, 100..100 + 4 * MEMORY);
    assert_eq!(world.in_memory(7), 6);
    assert!(world.target.moved().bytes_sunk >= 3 * MEMORY * BLOCK);
}

/// While it is written a burst is in use, and nothing of it idle.
#[test]
fn a_burst_is_waited_for_until_it_is_idle() {
    let mut world = World::new(SSD);
    for block in 1..=6 {
        world.make(2, 7, block);
    }
    world.rest();
    for burst in 0..8 {
        for block in 1..=16 {
            let piece = world.make(1, 100 + burst, block).expect("a piece");
            world.used.insert(piece.slot);
        }
        world.look();
        world.used.clear();
        world.now += 5;
        world.look();
        assert_eq!(world.in_memory(7), 6, "after burst {burst}");
        world.rest();
    }
    assert_eq!(world.in_memory(7), 6);
    assert!(world.target.moved().bytes_sunk >= 3 * MEMORY * BLOCK);
}

/// Who does not move keeps nothing of others from moving.
#[test]
fn what_is_pinned_is_no_reason_to_wait() {
    let mut world = World::new(SSD);
    for block in 1..=8 {
        world.make(2, 7, block);
    }
    for block in 1..=16 {
        let piece = world.make(1, 8, block).expect("a piece");
        world.pinned.push(piece.slot);
    }
    world.rest();
    assert_eq!((world.in_memory(7), world.in_memory(8)), (0, 16));
}

#[test]
fn what_is_beyond_his_part_goes_until_both_hold_as_much() {
    let mut world = World::new(SSD);
    for block in 1..=15 {
        world.make(2, 7, block);
    }
    world.stream(1, 100..100 + 2 * MEMORY);
    let left = world.in_memory(7);
    assert!((5..=9).contains(&left), "{left} of 15, half of what stays is 8");
}

#[test]
fn what_is_in_use_is_nobodys_victim() {
    let mut world = World::new(SSD);
    for block in 1..=4 {
        world.make(2, 7, block);
    }
    for block in 1..=20 {
        let piece = world.make(1, 8, block).expect("a piece");
        world.used.insert(piece.slot);
    }
    world.rest();
    assert_eq!((world.in_memory(7), world.in_memory(8)), (0, 20));
}

#[test]
fn a_users_input_stays_while_what_another_wrote_can_sink() {
    let mut world = World::new(SSD);
    for block in 1..=6 {
        world.make(2, 7, block);
    }
    world.clean(7);
    world.stream(1, 100..100 + 2 * MEMORY);
    assert_eq!((world.in_memory(7), world.target.bytes_dropped()), (6, 0));
    // Of who holds more than his part it goes first, as it needs no copy.
    for block in 1..=14 {
        world.make(3, 8, block);
    }
    world.clean(8);
    world.stream(1, 300..320);
    assert!(world.in_memory(8) < 14);
    assert_eq!(world.in_memory(7), 6);
}

#[test]
fn a_burst_of_one_user_leaves_anothers_input_and_sinks() {
    // Nothing is idle, so only what has to go does.
    let mut world = World::with(SSD, 1_000_000);
    for block in 1..=6 {
        world.make(2, 7, block);
    }
    world.clean(7);
    for block in 1..=20 {
        world.make(1, 8, block);
    }
    assert!(!world.target.wants_drops(), "there is nothing that would be dropped");
    world.rest();
    assert_eq!((world.in_memory(7), world.target.bytes_dropped()), (6, 0));
    assert!(world.target.memory_room().1 >= MEMORY / 4 * BLOCK, "it did not sink");
}

#[test]
fn a_users_input_goes_where_nothing_can_sink() {
    const SMALL: u64 = 8;
    let mut world = World::new(SMALL);
    for block in 1..=6 {
        world.make(2, 7, block);
    }
    world.clean(7);
    for file in 100..100 + MEMORY + SMALL - 6 {
        assert!(world.make(1, file, 1).is_some(), "there is room without what is clean");
    }
    world.rest();
    assert_eq!(world.in_memory(7), 0, "memory keeps nothing free");
}

#[test]
fn a_file_that_is_given_away_counts_for_who_has_it() {
    let mut world = World::new(SSD);
    for block in 1..=8 {
        world.make(2, 7, block);
    }
    world.target.own(Inode(7), Owner { uid: 1, project: 0 }, 2);
    world.target.own(Inode(7), Owner { uid: 3, project: 0 }, 1);
    world.target.check_shares();
    for file in 50..54 {
        world.make(2, file, 1);
    }
    world.stream(1, 100..130);
    assert_eq!((50..54).map(|file| world.in_memory(file)).sum::<u64>(), 4);
    assert_eq!(world.in_memory(7), 0, "the coolest of who holds the most");
}

#[test]
fn more_users_than_can_be_told_apart_share() {
    let mut world = World::new(1024);
    for uid in 0..600 {
        world.make(uid, 1000 + u64::from(uid), 1);
        world.now += 50;
        let mut out = Vec::new();
        world.target.sink(world.now, &mut |_| false, &mut out);
        world.perform(out);
    }
    world.target.check_shares();
    assert!(world.target.moved().bytes_sunk > 0);
}
