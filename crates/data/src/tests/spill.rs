//! When extents are spilled, and to which spill hosts; what these accept; and requests for bytes
//! that cannot be fetched back. The model (`model`) checks that no byte is lost on the way.

use crate::effect::{Answer, Effect, Input};
use crate::space::tier::{Backing, Space};
use crate::target::{Settings, Target};
use crate::tests::pinned::ready;
use crate::tiering::demote::DemotionSettings;
use std::collections::VecDeque;
use wire::reply::Extent;
use wire::{DaemonIndex, Errno, Inode, Request};

const BLOCK: u64 = 64 << 10;
const BLOCKS: u64 = 16;
/// A file of one extent, a stripe long.
const STRIPE_LOG2: u8 = 16;

struct SpillWorld {
    target: Target,
    now: u32,
    /// Copies that were begun.
    copies: Vec<(u64, Extent, Extent)>,
    let_go: Vec<u64>,
    waits: usize,
}

impl SpillWorld {
    fn new(ssd_blocks: u64) -> SpillWorld {
        SpillWorld::with_memory(ready(BLOCKS * BLOCK), ssd_blocks)
    }

    fn with_memory(memory: Space, ssd_blocks: u64) -> SpillWorld {
        let settings = Settings {
            memory,
            ssd: ready(ssd_blocks * BLOCK),
            slot_count: 64,
            quota_bytes: u64::MAX,
            demotion: DemotionSettings {
                demote_low_watermark_bytes: BLOCKS / 2 * BLOCK,
                demote_min_watermark_bytes: BLOCKS / 4 * BLOCK,
                idle_millis: 1,
            },
        };
        let mut target = Target::new(settings);
        target.set_spill_hosts([DaemonIndex(5), DaemonIndex(6)], 100);
        SpillWorld { target, now: 0, copies: Vec::new(), let_go: Vec::new(), waits: 0 }
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Vec<(u64, Answer)> {
        let (mut bytes_left, mut answers) = (VecDeque::from(effects), Vec::new());
        while let Some(effect) = bytes_left.pop_front() {
            let mut out = Vec::new();
            match effect {
                Effect::CheckHazards { round } => {
                    self.target
                        .step(Input::Hazards { round, protected: &[], reading: &[] }, &mut out);
                }
                Effect::Copy { ticket, from, to, .. } => self.copies.push((ticket, from, to)),
                Effect::ReleaseSpilled { slot, location } => {
                    self.let_go.push(location);
                    self.target.step(Input::SpilledReleased { slot }, &mut out);
                }
                Effect::GiveBack { location, length_log2 } => {
                    let outcome = Ok(());
                    let given = Input::GivenBack { location, length_log2, outcome };
                    self.target.step(given, &mut out);
                }
                Effect::Provision { .. } => {
                    self.target.step(Input::Provisioned { outcome: Ok(()) }, &mut out);
                }
                Effect::Wait { .. } => self.waits += 1,
                Effect::Reply { ticket, answer } => answers.push((ticket, answer)),
                _ => {}
            }
            bytes_left.extend(out);
        }
        answers
    }

    fn ask(&mut self, ticket: u64, request: &Request<'_>) -> Vec<(u64, Answer)> {
        let mut out = Vec::new();
        self.target.step(Input::Request { ticket, request, job: wire::JobWord::NONE }, &mut out);
        self.perform(out)
    }

    fn make(&mut self, inode: Inode) -> Answer {
        let (stripe_log2, allocate, offset, length, ahead) = (STRIPE_LOG2, 1, BLOCK, BLOCK, 0);
        let request = Request::MapExtents {
            inode,
            stripe_log2,
            allocate,
            offset,
            length,
            preallocate: ahead,
        };
        self.ask(1, &request).pop().expect("an answer").1
    }

    fn look(&mut self, millis: u32) {
        self.now += millis;
        let mut out = Vec::new();
        self.target.demote(self.now, &mut |_| false, &mut out);
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

    /// Ends all copies; returns the hosts that they led to.
    fn end_all(&mut self, outcome: wire::errno::Result<()>) -> Vec<(u8, u64)> {
        let copies = std::mem::take(&mut self.copies);
        copies
            .into_iter()
            .map(|(ticket, _, to)| {
                self.end(ticket, outcome);
                (to.tier, to.location >> 48)
            })
            .collect()
    }

    fn read(&mut self, ticket: u64, file: u64) -> Vec<(u64, Answer)> {
        let (inode, offset, length) = (Inode(file), BLOCK, BLOCK as u32);
        self.ask(ticket, &Request::Read { inode, stripe_log2: STRIPE_LOG2, offset, length })
    }
}

fn fill(world: &mut SpillWorld, files: u64) {
    for file in 1..=files {
        assert!(matches!(world.make(Inode(file)), Answer::Extents(_)), "file {file}");
    }
}

/// Memory that is wanted back goes to other nodes, in turn; merely cold extents go to the SSD.
#[test]
fn extents_go_to_the_ssd_unless_memory_must_be_given_back() {
    let mut world = SpillWorld::new(64);
    fill(&mut world, 10);
    world.look(10);
    let cool = world.end_all(Ok(()));
    assert!(!cool.is_empty() && cool.iter().all(|to| to.0 == Extent::SSD), "{cool:?}");
    world.lend(0);
    world.look(10);
    let back = world.end_all(Ok(()));
    assert!(back.iter().all(|to| to.0 == Extent::SPILLED), "{back:?}");
    for spill_host in [5, 6] {
        assert!(back.iter().any(|to| to.1 == spill_host), "{back:?}");
    }
    assert_eq!(world.target.memory_lent().used, 0);
}

/// Reclaimed memory stays with the node from the first step of a target on.
#[test]
fn a_target_provisions_no_more_memory_than_it_begins_with() {
    for (blocks, held) in [(0, 0), (4, 4), (BLOCKS, BLOCKS)] {
        let length = BLOCKS * BLOCK;
        let ahead = Space { length, backing: Backing::OnDemand, zeroed_from: 0, ahead: length };
        let mut world = SpillWorld::with_memory(ahead, 64);
        world.target.begin_lent(blocks * BLOCK);
        fill(&mut world, 1);
        world.look(10);
        assert_eq!(world.target.memory_lent().held, held * BLOCK);
    }
}

/// Without an SSD idle extents stay, until memory is nearly full.
#[test]
fn idle_extents_stay_without_an_ssd() {
    let mut world = SpillWorld::new(0);
    fill(&mut world, 12);
    world.look(10);
    assert!(world.copies.is_empty(), "less than half is free, more than a fourth");
    fill_from(&mut world, 13, 15);
    world.look(10);
    assert!(!world.end_all(Ok(())).is_empty());
}

fn fill_from(world: &mut SpillWorld, from: u64, to: u64) {
    for file in from..=to {
        assert!(matches!(world.make(Inode(file)), Answer::Extents(_)), "file {file}");
    }
}

/// A host that refused is not asked again for a while, and if all did, the SSD is used.
#[test]
fn a_spill_host_that_refused_is_left_out_for_a_while() {
    let mut world = SpillWorld::new(64);
    fill(&mut world, 8);
    world.lend(0);
    world.look(10);
    let refused = world.end_all(Err(Errno::ENOSPC));
    assert!(refused.iter().all(|to| to.0 == Extent::SPILLED));
    assert_eq!(world.let_go.len(), refused.len(), "they may have taken some of it");
    world.look(10);
    let then = world.end_all(Ok(()));
    assert!(!then.is_empty() && then.iter().all(|to| to.0 == Extent::SSD), "{then:?}");
    fill_from(&mut world, 9, 10);
    world.lend(BLOCKS);
    fill_from(&mut world, 11, 12);
    world.lend(0);
    world.look(1000);
    let later = world.end_all(Ok(()));
    assert!(!later.is_empty() && later.iter().all(|to| to.0 == Extent::SPILLED), "{later:?}");
}

/// A spill host has spare space, or refuses at once; what it stores counts for none of its own
/// users, and goes on to nobody.
#[test]
fn a_spill_host_accepts_what_leaves_spare_space_and_spills_nothing_further() {
    let mut world = SpillWorld::new(0);
    world.target.count();
    let hosted = |number| Inode::spilled(DaemonIndex(9), number);
    let taken =
        (0..BLOCKS).take_while(|&one| matches!(world.make(hosted(one)), Answer::Extents(_)));
    let taken = taken.count() as u64;
    assert_eq!(taken, BLOCKS - BLOCKS / 4 - 1);
    assert_eq!(world.make(hosted(99)), Answer::Refused(Errno::ENOSPC));
    assert_eq!(world.waits, 0, "somebody waits");
    assert!(world.target.account_usage().unknown().is_empty());
    world.lend(0);
    world.look(10);
    assert!(world.copies.is_empty(), "it went on");
    assert_eq!(world.target.spilled_bytes().spilled_in, taken * BLOCK);
    let inodes: Vec<u8> = (0..taken).flat_map(|one| hosted(one).0.to_le_bytes()).collect();
    assert_eq!(world.ask(1, &Request::Remove { inodes: &inodes }), [(1, Answer::Done)]);
    assert_eq!(world.target.spilled_bytes().spilled_in, 0);
}

/// A world with a spilled file, and local space for it.
fn one_spilled() -> SpillWorld {
    let mut world = SpillWorld::new(0);
    fill(&mut world, 1);
    world.lend(0);
    world.look(10);
    world.end_all(Ok(()));
    world.lend(BLOCKS);
    world
}

/// A request for bytes that cannot be fetched back is refused; they stay where they are, and may be
/// had later.
#[test]
fn a_spilled_extent_that_cannot_be_fetched_is_an_error_and_not_lost() {
    let mut world = one_spilled();
    assert_eq!(world.read(7, 1), [], "it waits");
    assert_eq!(world.read(8, 1), [], "that request, too, and it comes once");
    let (ticket, ..) = world.copies.pop().expect("it comes");
    assert!(world.copies.is_empty());
    let refused = Answer::Refused(Errno::EIO);
    assert_eq!(world.end(ticket, Err(Errno::EIO)), [(7, refused.clone()), (8, refused)]);
    assert_eq!(world.read(9, 1), []);
    let (ticket, ..) = world.copies.pop().expect("it comes");
    assert_eq!(world.end(ticket, Ok(())), [(9, Answer::Bytes { length: BLOCK as u32 })]);
    assert_eq!(world.let_go.len(), 1, "its keeper needs it no longer");
}

/// A request that waits for some of a file allocates nothing of it any more when the file is
/// removed.
#[test]
fn an_extent_fetched_back_for_a_removed_file_is_discarded() {
    let mut world = one_spilled();
    let (inode, stripe_log2, allocate, ahead) = (Inode(1), STRIPE_LOG2, 1, 0);
    let (offset, length) = (0, 2 * BLOCK);
    let both =
        Request::MapExtents { inode, stripe_log2, allocate, offset, length, preallocate: ahead };
    assert_eq!(world.ask(7, &both), [], "it waits for the second half");
    let removed = world.ask(8, &Request::Remove { inodes: &1u64.to_le_bytes() });
    assert_eq!(removed, [(7, Answer::Refused(Errno::ESTALE)), (8, Answer::Done)]);
    world.end_all(Ok(()));
    assert_eq!(world.target.extents().count(), 0);
}
