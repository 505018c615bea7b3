//! Bounds on the dirty bytes of jobs: a job that has reached its bound waits until some of its bytes
//! leave, and others do not; what leaves is its own; a wait that brings nothing ends.

use crate::effect::{Answer, Effect, Input};
use crate::target::{Settings, Target};
use crate::tests::pinned::{perform, ready};
use crate::tiering::demote::DemotionSettings;
use std::collections::BTreeMap;
use wire::reply::Extent;
use wire::{Inode, JobWord, Request};

const BLOCK: u64 = 1 << 20;
const STRIPE_LOG2: u8 = 20;
/// Blocks of the memory, of which the usual rule keeps one free.
const MEMORY: u64 = 64;

/// A job with a bound of so many blocks; 0: the usual one.
const fn job(number: u32, blocks: u64) -> JobWord {
    JobWord { user: 1, number, dirty_mib_max: ((blocks * BLOCK) >> 20) as u32 }
}

struct BoundedWorld {
    target: Target,
    now: u32,
    /// Answers to requests, by ticket.
    answers: BTreeMap<u64, Answer>,
    last_ticket: u64,
    asked_for_space: u64,
    /// Nothing is demoted.
    is_stuck: bool,
}

impl BoundedWorld {
    fn new(ssd: u64) -> BoundedWorld {
        let target = Target::new(Settings {
            memory: ready(MEMORY * BLOCK),
            ssd: ready(ssd * BLOCK),
            slot_count: 1024,
            quota_bytes: u64::MAX,
            demotion: DemotionSettings {
                demote_low_watermark_bytes: BLOCK,
                demote_min_watermark_bytes: BLOCK / 2,
                idle_millis: 10,
            },
        });
        let answers = BTreeMap::new();
        let (last_ticket, asked_for_space, is_stuck) = (0, 0, false);
        BoundedWorld { target, now: 0, answers, last_ticket, asked_for_space, is_stuck }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        let (answers, asked) = (&mut self.answers, &mut self.asked_for_space);
        let mut see = |_: &Target, effect: &Effect| match effect {
            Effect::Reply { ticket, answer } => drop(answers.insert(*ticket, answer.clone())),
            Effect::RequestSpace { .. } => *asked += 1,
            _ => {}
        };
        perform(&mut self.target, effects, &[], &mut see);
        self.target.tiering.check_records(&self.target.pool);
    }

    /// Asks for a block of a file. Returns the ticket.
    fn ask(&mut self, of: JobWord, file: u64, block: u64) -> u64 {
        self.last_ticket += 1;
        let (inode, ticket) = (Inode(file), self.last_ticket);
        let (offset, length) = (block * BLOCK, BLOCK);
        let request = Request::MapExtents {
            inode,
            stripe_log2: STRIPE_LOG2,
            allocate: 1,
            offset,
            length,
            preallocate: 0,
        };
        let mut out = Vec::new();
        self.target.pass_time(self.now);
        self.target.step(Input::Request { ticket, request: &request, job: of }, &mut out);
        self.perform(out);
        ticket
    }

    /// True if it was answered with an extent.
    fn has(&self, ticket: u64) -> bool {
        matches!(self.answers.get(&ticket), Some(Answer::Extents(extents)) if extents.len() == 1)
    }

    /// Writes blocks from this one on until one has to wait; the tickets.
    fn fill(&mut self, of: JobWord, file: u64, blocks: std::ops::Range<u64>) -> u64 {
        let (first, mut made) = (blocks.start, 0);
        for block in blocks {
            let ticket = self.ask(of, file, block);
            if !self.has(ticket) {
                break;
            }
            made = block + 1 - first;
        }
        made
    }

    /// Lets time pass: demotes, and lets those come back that waited for long.
    fn pass(&mut self, millis: u32) {
        for _ in 0..millis / 10 {
            self.now += 10;
            let mut out = Vec::new();
            if self.target.is_demoting() && !self.is_stuck {
                self.target.demote(self.now, &mut |_| false, &mut out);
            }
            self.perform(out);
            let mut out = Vec::new();
            self.target.tick_writers(self.now, 10_000, &mut out);
            self.perform(out);
        }
    }

    fn remove(&mut self, file: u64) {
        let inodes = file.to_le_bytes();
        let mut out = Vec::new();
        let (request, job) = (&Request::Remove { inodes: &inodes }, JobWord::NONE);
        self.target.step(Input::Request { ticket: 1 << 40, request, job }, &mut out);
        self.perform(out);
    }

    fn in_memory(&self, file: u64) -> u64 {
        let of_it = self.target.extents().filter(|row| row.0 == Inode(file));
        of_it.filter(|row| row.1.tier == Extent::MEMORY).count() as u64
    }
}

#[test]
fn a_job_at_its_bound_waits_for_its_own_bytes_and_others_do_not() {
    let mut world = BoundedWorld::new(256);
    assert_eq!(world.fill(job(2, 0), 20, 1..11), 10);
    assert_eq!(world.fill(job(1, 8), 10, 1..30), 8);
    assert!(world.target.has_bounded_writers());
    assert_eq!(world.fill(job(2, 0), 21, 1..11), 10, "another job");
    world.pass(20);
    assert!(world.has(19), "its ticket is answered once others of its extents have left");
    assert!(!world.target.has_bounded_writers());
    assert!(world.in_memory(10) <= 8, "{}", world.in_memory(10));
    assert_eq!((world.in_memory(20), world.in_memory(21)), (10, 10));
    // A stream of the job goes on at the pace of the copies.
    for block in 30..60 {
        let ticket = world.ask(job(1, 8), 10, block);
        world.pass(20);
        assert!(world.has(ticket), "block {block}");
        assert!(world.in_memory(10) <= 9, "{}", world.in_memory(10));
    }
    assert_eq!((world.in_memory(20), world.in_memory(21)), (10, 10));
}

#[test]
fn alone_a_job_has_all_memory_and_beside_another_what_that_does_not_claim() {
    let mut world = BoundedWorld::new(256);
    assert_eq!(world.fill(job(1, 0), 10, 1..MEMORY + 1), MEMORY);
    assert_eq!(world.in_memory(10), MEMORY);
    let mut world = BoundedWorld::new(256);
    assert_eq!(world.fill(job(2, 0), 20, 1..4), 3);
    // Twice what the other one has is left for it; what is beyond goes to the SSD, and nobody waits.
    assert_eq!(world.fill(job(1, 0), 10, 1..2 * MEMORY), 2 * MEMORY - 1);
    assert_eq!((world.in_memory(10), world.target.bounded_waits()), (MEMORY - 6, 0));
    assert_eq!(world.fill(job(2, 0), 20, 4..7), 3);
    assert_eq!(world.in_memory(20), 6);
}

#[test]
fn requests_of_a_job_keep_their_order_and_come_back_after_a_second() {
    let mut world = BoundedWorld::new(256);
    world.is_stuck = true;
    assert_eq!(world.fill(job(1, 4), 10, 1..4), 3);
    assert_eq!(world.fill(job(1, 4), 11, 1..2), 1);
    let tickets = [5, 6, 7].map(|block| world.ask(job(1, 4), 10, block));
    world.pass(500);
    assert!(tickets.iter().all(|ticket| !world.answers.contains_key(ticket)));
    world.remove(11);
    assert!(world.has(tickets[0]), "there is place for the first");
    world.pass(600);
    let comes_back = Some(&Answer::Busy { retry_micros: 0 });
    assert_eq!(tickets.map(|ticket| world.answers.get(&ticket))[1..], [comes_back; 2]);
    assert!(!world.target.has_bounded_writers());
    // Nothing has left for ten seconds.
    world.pass(9_500);
    let ticket = world.ask(job(1, 4), 10, 8);
    assert!(world.has(ticket), "a wait that brings nothing ends");
}

#[test]
fn a_job_of_which_nothing_leaves_waits_for_ten_seconds() {
    let mut world = BoundedWorld::new(256);
    world.is_stuck = true;
    assert_eq!(world.fill(job(1, 4), 10, 1..5), 4);
    for second in 1..=10 {
        let tickets = [5, 6, 7].map(|block| world.ask(job(1, 4), 10, block));
        world.pass(900);
        assert!(tickets.iter().all(|ticket| !world.answers.contains_key(ticket)));
        world.pass(100);
        let has_each = tickets.map(|ticket| world.has(ticket));
        assert_eq!(has_each, [second == 10; 3], "after {second} s");
    }
}

#[test]
fn a_withdrawn_request_and_one_of_a_removed_file_wait_no_more() {
    let mut world = BoundedWorld::new(256);
    world.is_stuck = true;
    assert_eq!(world.fill(job(1, 4), 10, 1..5), 4);
    let [first, second] = [10, 11].map(|file| world.ask(job(1, 4), file, 9));
    let mut out = Vec::new();
    world.target.step(Input::Withdraw { ticket: first }, &mut out);
    world.perform(out);
    assert!(matches!(world.answers.get(&first), Some(Answer::Busy { .. })));
    world.remove(11);
    assert_eq!(world.answers.get(&second), Some(&Answer::Refused(wire::Errno::ESTALE)));
    assert!(!world.target.has_bounded_writers());
}

/// Without an SSD nothing can leave, so nobody waits; with a backing store, writeback is asked for.
#[test]
fn without_an_ssd_writeback_is_asked_for_or_nobody_waits() {
    let mut world = BoundedWorld::new(0);
    assert_eq!(world.fill(job(1, 4), 10, 1..9), 8);
    let mut world = BoundedWorld::new(0);
    world.target.set_backing(false);
    assert_eq!(world.fill(job(1, 4), 10, 1..9), 4);
    world.pass(100);
    assert!(world.asked_for_space > 0);
    // The backing store has the first two blocks.
    let of_it = world.target.extents().filter(|row| row.1.start <= 2 * BLOCK);
    let of_it: Vec<(Inode, Extent)> = of_it.collect();
    let mut out = Vec::new();
    world.target.step(Input::Cleaned { extents: &of_it }, &mut out);
    world.perform(out);
    assert!(world.has(world.last_ticket) && !world.target.has_bounded_writers());
}

/// Removed files and moved extents leave no trace in what is counted.
#[test]
fn what_is_removed_does_not_count() {
    let mut world = BoundedWorld::new(256);
    for round in 0..20 {
        let file = 100 + round;
        world.fill(job(1, 8), file, 1..12);
        world.pass(30);
        world.remove(file);
    }
    assert_eq!(world.fill(job(1, 8), 10, 1..9), 8, "all of its bound is there again");
}
