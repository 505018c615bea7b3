//! When extents of a slow target migrate, to which targets, and for how long readers are sent there. The
//! model (`model`) checks that no byte is lost on the way.

use crate::LOCATE;
use crate::effect::{Answer, Effect, Input};
use crate::target::{Settings, Target};
use crate::tests::pinned::ready;
use crate::tiering::demote::DemotionSettings;
use std::collections::VecDeque;
use wire::reply::Extent;
use wire::{DaemonIndex, Errno, Inode, JobWord, Request};

/// Length of an extent, of all that do not begin in the first block of a file.
const BLOCK: u64 = 128 << 10;
const STRIPE_LOG2: u8 = 17;
/// Targets of other hosts; of the pool, 5 and 7 are not slow.
const HOSTS: [DaemonIndex; 3] = [DaemonIndex(5), DaemonIndex(6), DaemonIndex(7)];
const WELL: [DaemonIndex; 3] = [DaemonIndex(5), DaemonIndex(7), DaemonIndex(99)];

struct SlowWorld {
    target: Target,
    /// The file to which requests refer.
    inode: Inode,
    now: u32,
    /// Copies that were begun.
    copies: Vec<(u64, Extent, Extent)>,
    /// Slots that clients, and transfers to other hosts, use.
    protected: Vec<u32>,
    reading: Vec<u32>,
    released: usize,
}

impl SlowWorld {
    fn new(blocks: u64) -> SlowWorld {
        SlowWorld::with(Inode(1), blocks)
    }

    /// A file of so many blocks, which are written.
    fn with(inode: Inode, blocks: u64) -> SlowWorld {
        let settings = Settings {
            memory: ready(256 * BLOCK),
            ssd: ready(0),
            slot_count: 1024,
            quota_bytes: u64::MAX,
            demotion: DemotionSettings::NEVER,
        };
        let mut target = Target::new(settings);
        target.set_spill_hosts(HOSTS, 100);
        let (now, copies, released) = (u32::MAX - 1000, Vec::new(), 0);
        let (protected, reading) = (Vec::new(), Vec::new());
        let mut world = SlowWorld { target, inode, now, copies, protected, reading, released };
        for block in 1..=blocks {
            assert!(matches!(world.map(1, block, 1), Answer::Extents(_)));
        }
        world
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Vec<Answer> {
        let (mut left, mut answers) = (VecDeque::from(effects), Vec::new());
        while let Some(effect) = left.pop_front() {
            let mut out = Vec::new();
            match effect {
                Effect::CheckHazards { round } => {
                    let SlowWorld { protected, reading, .. } = self;
                    self.target.step(Input::Hazards { round, protected, reading }, &mut out);
                }
                Effect::Copy { ticket, from, to, .. } => self.copies.push((ticket, from, to)),
                Effect::ReleaseSpilled { slot, .. } => {
                    self.released += 1;
                    self.target.step(Input::SpilledReleased { slot }, &mut out);
                }
                Effect::Reply { answer, .. } => answers.push(answer),
                _ => {}
            }
            left.extend(out);
        }
        answers
    }

    fn step(&mut self, input: Input<'_>) -> Vec<Answer> {
        let mut out = Vec::new();
        self.target.pass_time(self.now);
        self.target.step(input, &mut out);
        self.perform(out)
    }

    fn map(&mut self, allocate: u8, block: u64, ticket: u64) -> Answer {
        let (inode, stripe_log2, preallocate) = (self.inode, STRIPE_LOG2, 0);
        let (offset, length) = (block * BLOCK, BLOCK);
        let request =
            &Request::MapExtents { inode, stripe_log2, allocate, offset, length, preallocate };
        let answers = self.step(Input::Request { ticket, request, job: JobWord::NONE });
        answers.last().cloned().unwrap_or(Answer::Busy { retry_micros: 0 })
    }

    /// Another host reads a block: its extent, if it is here, or else the host where it is.
    fn locate(&mut self, block: u64) -> Result<Extent, u64> {
        match self.map(LOCATE, block, 2) {
            Answer::Extents(extents) => Ok(extents[0]),
            Answer::Number(location) => Err(location >> 48),
            other => panic!("{other:?}"),
        }
    }

    /// A short read of another host.
    fn read(&mut self, offset: u64, length: u32) -> Vec<Effect> {
        let (inode, stripe_log2, ticket) = (self.inode, STRIPE_LOG2, 4);
        let request = &Request::Read { inode, stripe_log2, offset, length };
        let mut out = Vec::new();
        self.target.step(Input::Request { ticket, request, job: JobWord::NONE }, &mut out);
        out
    }

    fn locate_all(&mut self, blocks: core::ops::RangeInclusive<u64>) {
        blocks.for_each(|block| assert!(self.locate(block).is_ok()));
    }

    fn be_slow(&mut self) {
        assert_eq!(self.step(Input::Slow { others: &WELL }), []);
    }

    fn pass(&mut self, millis: u32) {
        self.now = self.now.wrapping_add(millis);
        assert_eq!(self.step(Input::Tick), []);
    }

    /// Ends all copies; returns the hosts that they led to.
    fn end_all(&mut self, outcome: wire::errno::Result<()>) -> Vec<u64> {
        let copies = std::mem::take(&mut self.copies);
        let end = |(ticket, _, to): (u64, Extent, Extent)| {
            self.step(Input::Copied { ticket, outcome });
            to.location >> 48
        };
        copies.into_iter().map(end).collect()
    }
}

#[test]
fn what_other_hosts_read_of_a_slow_target_moves_to_targets_that_are_well() {
    let mut world = SlowWorld::new(4);
    assert!(world.locate(1).is_ok() && world.copies.is_empty(), "it is well");
    world.be_slow();
    world.pass(1000);
    assert!(world.copies.is_empty(), "nobody reads");
    world.locate_all(2..=3);
    assert_eq!(world.end_all(Ok(())), [5, 7], "6 is slow, too");
    assert_eq!((world.locate(2), world.locate(3)), (Err(5), Err(7)));
    assert_eq!((world.target.reads_redirected(), world.copies.len()), (2, 0));
    assert_eq!(world.target.moved().bytes_migrated, 2 * BLOCK);
    assert_eq!(world.target.moved().bytes_demoted, 0, "that is no demotion");
    world.locate_all(1..=1);
    assert_eq!(world.end_all(Err(Errno::EIO)).len(), 1);
    assert!(world.locate(1).is_ok(), "it stays where it is");
}

#[test]
fn readers_do_not_hinder_a_migration_and_others_cancel_it() {
    let mut world = SlowWorld::new(4);
    world.be_slow();
    let extent = world.locate(1).expect("it is here");
    world.copies.clear();
    world.map(1, 1, 3);
    world.pass(1000);
    assert_eq!(world.locate(1), Ok(extent));
    assert!(world.copies.is_empty(), "somebody wrote a second ago");
    // A client uses it without a message.
    world.pass(5000);
    (world.protected, world.reading) = (vec![extent.slot], vec![]);
    world.be_slow();
    world.locate_all(1..=1);
    assert!(world.copies.is_empty(), "a client may write to it");
    // Only transfers to other hosts do.
    world.reading = vec![extent.slot];
    assert_eq!((world.locate(1), world.locate(1)), (Ok(extent), Ok(extent)));
    assert_eq!(world.end_all(Ok(())).len(), 1, "it moved once, and nobody waited");
    assert_eq!(world.locate(1), Err(5));
    // A writer gets it back.
    assert_eq!(world.map(1, 1, 3), Answer::Busy { retry_micros: 0 }, "it waits");
    assert_eq!(world.locate(1), Err(5), "and readers do not");
    world.protected.clear();
    let (ticket, ..) = world.copies.pop().expect("it comes");
    let answers = world.step(Input::Copied { ticket, outcome: Ok(()) });
    assert!(matches!(&answers[..], [Answer::Extents(all)] if all[0].tier == Extent::MEMORY));
    assert!(world.released > 0, "the other target needs it no longer");
    assert!(world.locate(1).is_ok());
    assert!(world.copies.is_empty(), "it stays for a while");
}

#[test]
fn a_reader_is_sent_elsewhere_until_the_target_has_been_well_for_long() {
    let mut world = SlowWorld::new(2);
    let comes_back =
        |world: &mut SlowWorld| world.map(LOCATE, 1, 2) == Answer::Busy { retry_micros: 0 };
    let mut recovers = Vec::new();
    for _ in 0..7 {
        world.be_slow();
        world.locate_all(1..=1);
        world.end_all(Ok(()));
        let mut silent = 0;
        while !comes_back(&mut world) {
            world.pass(10_000);
            silent += 10;
        }
        assert_eq!(world.end_all(Ok(())).len(), 1);
        recovers.push(silent - 10);
    }
    assert_eq!(recovers, [60, 120, 240, 480, 960, 1920, 1920]);
    // Much later nothing is known of that.
    world.pass(8_000_000);
    world.be_slow();
    world.locate_all(1..=1);
    world.end_all(Ok(()));
    world.pass(70_000);
    assert!(comes_back(&mut world));
}

#[test]
fn a_few_extents_are_in_flight_at_a_time() {
    let mut world = SlowWorld::new(200);
    world.be_slow();
    world.locate_all(1..=200);
    let mut moved = 0;
    while moved < 200 {
        assert!(!world.copies.is_empty() && world.copies.len() <= 32, "{}", world.copies.len());
        moved += world.end_all(Ok(())).len();
    }
    // When nobody says any more that it is slow, nothing else begins.
    let mut world = SlowWorld::new(200);
    world.be_slow();
    world.locate_all(1..=200);
    world.pass(11_000);
    let begun = world.copies.len();
    assert_eq!((world.end_all(Ok(())).len(), world.copies.len()), (begun, 0));
}

/// A short read that lies in an extent is answered from there, and one of several extents brings them
/// back.
#[test]
fn bytes_in_messages_come_from_where_they_are() {
    let mut world = SlowWorld::new(2);
    world.be_slow();
    world.locate_all(1..=1);
    world.end_all(Ok(()));
    let out = world.read(BLOCK + 7, 100);
    let within_and_length = out.iter().find_map(|effect| match effect {
        Effect::ReadSpilled { within, length, .. } => Some((*within, *length)),
        _ => None,
    });
    assert_eq!(within_and_length, Some((7, 100)));
    let is_answered = |out: &[Effect]| {
        out.iter().any(|effect| matches!(effect, Effect::ReadSpilled { .. } | Effect::Reply { .. }))
    };
    let out = world.read(2 * BLOCK - 10, 100);
    assert!(!is_answered(&out), "{out:?}");
    world.target.pool.set_damaged([world.inode].into_iter());
    let answer = Answer::Refused(Errno::EIO);
    assert!(world.read(BLOCK + 7, 100).contains(&Effect::Reply { ticket: 4, answer }));
}

/// Nobody is sent on twice.
#[test]
fn what_other_targets_have_spilled_here_stays() {
    let mut world = SlowWorld::with(Inode::spilled(DaemonIndex(5), 7), 2);
    world.be_slow();
    world.locate_all(1..=2);
    world.pass(1000);
    assert_eq!(world.copies, []);
}

/// Of several services each says which targets of its pool are not slow.
#[test]
fn a_target_that_became_slow_gets_nothing_any_more() {
    let mut world = SlowWorld::new(8);
    world.be_slow();
    world.pass(9000);
    assert_eq!(world.step(Input::Slow { others: &[DaemonIndex(6)] }), []);
    world.locate_all(1..=4);
    assert_eq!(world.end_all(Ok(())), [5, 6, 7, 5]);
    world.pass(2000);
    world.locate_all(5..=8);
    assert_eq!(world.end_all(Ok(())), [6, 6, 6, 6]);
}
