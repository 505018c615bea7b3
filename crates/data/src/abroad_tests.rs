//! Who sends pieces abroad, when, and where to; what keepers take; and what becomes of who needs bytes
//! that can not be had. That no byte is lost on the way is the model's to say (`model_tests`).

use crate::effect::{Answer, Effect, Input};
use crate::resident_tests::ready;
use crate::sink::Sinking;
use crate::target::{Settings, Target};
use std::collections::VecDeque;
use wire::reply::Piece;
use wire::{DaemonIndex, Errno, Inode, Request};

const BLOCK: u64 = 64 << 10;
const BLOCKS: u64 = 16;
/// A file that is one piece of a chunk.
const CHUNK_LOG2: u8 = 16;

struct World {
    target: Target,
    now: u32,
    /// Copies that were begun.
    copies: Vec<(u64, Piece, Piece)>,
    let_go: Vec<u64>,
    waits: usize,
}

impl World {
    fn new(ssd_blocks: u64) -> World {
        let settings = Settings {
            memory: ready(BLOCKS * BLOCK),
            ssd: ready(ssd_blocks * BLOCK),
            slot_count: 64,
            quota_bytes: u64::MAX,
            sinking: Sinking {
                normal_below_bytes: BLOCKS / 2 * BLOCK,
                forced_below_bytes: BLOCKS / 4 * BLOCK,
                idle_millis: 1,
            },
        };
        let mut target = Target::new(settings);
        target.set_keepers([DaemonIndex(5), DaemonIndex(6)], 100);
        World { target, now: 0, copies: Vec::new(), let_go: Vec::new(), waits: 0 }
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Vec<(u64, Answer)> {
        let (mut left, mut answers) = (VecDeque::from(effects), Vec::new());
        while let Some(effect) = left.pop_front() {
            let mut out = Vec::new();
            match effect {
                Effect::CheckPins { round } => {
                    self.target.step(Input::Pins { round, pinned: &[] }, &mut out);
                }
                Effect::Copy { ticket, from, to } => self.copies.push((ticket, from, to)),
                Effect::Dismiss { slot, place } => {
                    self.let_go.push(place);
                    self.target.step(Input::Dismissed { slot }, &mut out);
                }
                Effect::GiveBack { place, length_log2 } => {
                    let outcome = Ok(());
                    let given = Input::GivenBack { place, length_log2, outcome };
                    self.target.step(given, &mut out);
                }
                Effect::Preallocate { .. } => {
                    self.target.step(Input::Preallocated { outcome: Ok(()) }, &mut out);
                }
                Effect::Wait { .. } => self.waits += 1,
                Effect::Reply { ticket, answer } => answers.push((ticket, answer)),
                _ => {}
            }
            left.extend(out);
        }
        answers
    }

    fn ask(&mut self, ticket: u64, request: &Request<'_>) -> Vec<(u64, Answer)> {
        let mut out = Vec::new();
        self.target.step(Input::Request { ticket, request }, &mut out);
        self.perform(out)
    }

    fn make(&mut self, inode: Inode) -> Answer {
        let (chunk_log2, allocate, offset, length, ahead) = (CHUNK_LOG2, 1, BLOCK, BLOCK, 0);
        let request = Request::MapPieces { inode, chunk_log2, allocate, offset, length, ahead };
        self.ask(1, &request).pop().expect("an answer").1
    }

    fn look(&mut self, millis: u32) {
        self.now += millis;
        let mut out = Vec::new();
        self.target.sink(self.now, &mut |_| false, &mut out);
        self.perform(out);
    }

    fn lend(&mut self, blocks: u64) {
        let mut out = Vec::new();
        self.target.lend(blocks * BLOCK, &mut out);
        self.perform(out);
    }

    fn end(&mut self, ticket: u64, outcome: wire::errno::Result<()>) -> Vec<(u64, Answer)> {
        let mut out = Vec::new();
        self.target.step(Input::Copied { ticket, outcome }, &mut out);
        self.perform(out)
    }

    /// Ends all copies: where to they led.
    fn end_all(&mut self, outcome: wire::errno::Result<()>) -> Vec<(u8, u64)> {
        let copies = std::mem::take(&mut self.copies);
        copies
            .into_iter()
            .map(|(ticket, _, to)| {
                self.end(ticket, outcome);
                (to.tier, to.place >> 48)
            })
            .collect()
    }

    fn read(&mut self, ticket: u64, file: u64) -> Vec<(u64, Answer)> {
        let (inode, offset, length) = (Inode(file), BLOCK, BLOCK as u32);
        self.ask(ticket, &Request::Read { inode, chunk_log2: CHUNK_LOG2, offset, length })
    }
}

fn fill(world: &mut World, files: u64) {
    for file in 1..=files {
        assert!(matches!(world.make(Inode(file)), Answer::Pieces(_)), "file {file}");
    }
}

/// Memory that is wanted back goes to other nodes, in turn; what only is cool goes to the SSD.
#[test]
fn the_ssd_is_nearer_unless_memory_is_wanted_back() {
    let mut world = World::new(64);
    fill(&mut world, 10);
    world.look(10);
    let cool = world.end_all(Ok(()));
    assert!(!cool.is_empty() && cool.iter().all(|to| to.0 == Piece::SSD), "{cool:?}");
    world.lend(0);
    world.look(10);
    let back = world.end_all(Ok(()));
    assert!(back.iter().all(|to| to.0 == Piece::ABROAD), "{back:?}");
    for keeper in [5, 6] {
        assert!(back.iter().any(|to| to.1 == keeper), "{back:?}");
    }
    assert_eq!(world.target.memory_lent().used, 0);
}

/// Without an SSD what is idle stays, until memory is nearly full.
#[test]
fn what_is_only_idle_stays() {
    let mut world = World::new(0);
    fill(&mut world, 12);
    world.look(10);
    assert!(world.copies.is_empty(), "less than half is free, more than a fourth");
    fill_from(&mut world, 13, 15);
    world.look(10);
    assert!(!world.end_all(Ok(())).is_empty());
}

fn fill_from(world: &mut World, from: u64, to: u64) {
    for file in from..=to {
        assert!(matches!(world.make(Inode(file)), Answer::Pieces(_)), "file {file}");
    }
}

/// One that refused is not asked again for a while, and if all did the SSD is there.
#[test]
fn a_keeper_that_refuses_is_left_alone_for_a_while() {
    let mut world = World::new(64);
    fill(&mut world, 8);
    world.lend(0);
    world.look(10);
    let refused = world.end_all(Err(Errno::ENOSPC));
    assert!(refused.iter().all(|to| to.0 == Piece::ABROAD));
    assert_eq!(world.let_go.len(), refused.len(), "they may have taken some of it");
    world.look(10);
    let then = world.end_all(Ok(()));
    assert!(!then.is_empty() && then.iter().all(|to| to.0 == Piece::SSD), "{then:?}");
    fill_from(&mut world, 9, 10);
    world.lend(BLOCKS);
    fill_from(&mut world, 11, 12);
    world.lend(0);
    world.look(1000);
    let later = world.end_all(Ok(()));
    assert!(!later.is_empty() && later.iter().all(|to| to.0 == Piece::ABROAD), "{later:?}");
}

/// A keeper has room to spare, or says at once that it has not; what it keeps counts for none of its own
/// users, and goes on to nobody.
#[test]
fn a_keeper_keeps_what_leaves_it_room_and_passes_nothing_on() {
    let mut world = World::new(0);
    world.target.count();
    let kept = |number| Inode::abroad(DaemonIndex(9), number);
    let taken = (0..BLOCKS).take_while(|&one| matches!(world.make(kept(one)), Answer::Pieces(_)));
    let taken = taken.count() as u64;
    assert_eq!(taken, BLOCKS - BLOCKS / 4 - 1);
    assert_eq!(world.make(kept(99)), Answer::Refused(Errno::ENOSPC));
    assert_eq!(world.waits, 0, "somebody waits");
    assert!(world.target.accounts().unknown().is_empty());
    world.lend(0);
    world.look(10);
    assert!(world.copies.is_empty(), "it went on");
    assert_eq!(world.target.bytes_abroad().kept, taken * BLOCK);
    let inodes: Vec<u8> = (0..taken).flat_map(|one| kept(one).0.to_le_bytes()).collect();
    assert_eq!(world.ask(1, &Request::Remove { inodes: &inodes }), [(1, Answer::Done)]);
    assert_eq!(world.target.bytes_abroad().kept, 0);
}

/// With a file that is abroad, and room for it here.
fn one_abroad() -> World {
    let mut world = World::new(0);
    fill(&mut world, 1);
    world.lend(0);
    world.look(10);
    world.end_all(Ok(()));
    world.lend(BLOCKS);
    world
}

/// Who needs bytes that can not be had is told so; they stay where they are, and may be had later.
#[test]
fn what_can_not_be_fetched_is_an_error_and_is_not_lost() {
    let mut world = one_abroad();
    assert_eq!(world.read(7, 1), [], "it waits");
    assert_eq!(world.read(8, 1), [], "he, too, and it comes once");
    let (ticket, ..) = world.copies.pop().expect("it comes");
    assert!(world.copies.is_empty());
    let refused = Answer::Refused(Errno::EIO);
    assert_eq!(world.end(ticket, Err(Errno::EIO)), [(7, refused.clone()), (8, refused)]);
    assert_eq!(world.read(9, 1), []);
    let (ticket, ..) = world.copies.pop().expect("it comes");
    assert_eq!(world.end(ticket, Ok(())), [(9, Answer::Bytes { length: BLOCK as u32 })]);
    assert_eq!(world.let_go.len(), 1, "its keeper needs it no longer");
}

/// Who waits for some of a file makes nothing of it any more when it is removed.
#[test]
fn what_comes_home_for_a_removed_file_is_made_no_more_of() {
    let mut world = one_abroad();
    let (inode, chunk_log2, allocate, ahead) = (Inode(1), CHUNK_LOG2, 1, 0);
    let (offset, length) = (0, 2 * BLOCK);
    let both = Request::MapPieces { inode, chunk_log2, allocate, offset, length, ahead };
    assert_eq!(world.ask(7, &both), [], "it waits for the second half");
    let removed = world.ask(8, &Request::Remove { inodes: &1u64.to_le_bytes() });
    assert_eq!(removed, [(7, Answer::Refused(Errno::ESTALE)), (8, Answer::Done)]);
    world.end_all(Ok(()));
    assert_eq!(world.target.pieces().count(), 0);
}
