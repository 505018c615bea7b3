//! Bookkeeping of the models for pinned files, and single cases.

use crate::effect::{Answer, Effect, Input};
use crate::space::tier::{Backing, Space};
use crate::target::{Settings, Target};
use crate::tiering::demote::DemotionSettings;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::reply::Extent;
use wire::request::PINNED_STRIPE;
use wire::{Inode, Request};

/// Slots whose entries have the mark.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks(BTreeSet<u32>);

impl Marks {
    pub(crate) fn set(&mut self, slot: u32, is_pinned: bool) {
        let _ = if is_pinned { self.0.insert(slot) } else { self.0.remove(&slot) };
    }

    /// An extent is about to move or to be evicted.
    pub(crate) fn check_hidden(target: &Target, (inode, extent): &(Inode, Extent)) {
        let stays = target.is_pinned(*inode) && extent.tier == Extent::MEMORY;
        assert!(!stays, "{inode:?} is resident, and {extent:?} goes");
    }

    /// Files that an entry of `table` says are pinned.
    pub(crate) fn inodes(&self, table: &BTreeMap<u32, (Inode, Extent)>) -> BTreeSet<Inode> {
        self.0.iter().filter_map(|slot| table.get(slot)).map(|row| row.0).collect()
    }

    /// Recovery from `table`; files with extents are known to be pinned as before.
    pub(crate) fn restore(
        &self,
        table: &BTreeMap<u32, (Inode, Extent)>,
        (old, new): (&Target, &mut Target),
        out: &mut Vec<Effect>,
    ) {
        new.restore_pinned(self.inodes(table).into_iter(), out);
        for (inode, _) in table.values() {
            assert_eq!(old.is_pinned(*inode), new.is_pinned(*inode), "{inode:?}");
        }
    }
}

/// Performs effects, with copies that take no time; these slots are protected. `see` is shown each
/// effect. Returns the last answer to a request.
pub(crate) fn perform(
    target: &mut Target,
    effects: Vec<Effect>,
    protected: &[u32],
    see: &mut dyn FnMut(&Target, &Effect),
) -> Option<Answer> {
    let (mut bytes_left, mut answer) = (VecDeque::from(effects), None);
    while let Some(effect) = bytes_left.pop_front() {
        see(target, &effect);
        let mut out = Vec::new();
        match effect {
            Effect::CheckHazards { round } => {
                target.step(Input::Hazards { round, protected, reading: &[] }, &mut out)
            }
            Effect::Copy { ticket, .. } => {
                target.step(Input::Copied { ticket, outcome: Ok(()) }, &mut out);
            }
            Effect::Reply { answer: now, .. } => answer = Some(now),
            _ => {}
        }
        bytes_left.extend(out);
    }
    answer
}

/// A device that is provisioned as a whole.
pub(crate) const fn ready(length: u64) -> Space {
    Space { length, backing: Backing::Ready, zeroed_from: 0, ahead: 0 }
}

const BLOCK: u64 = 64 << 10;
const MEMORY: u64 = 16 * BLOCK;
/// A file of one extent, a stripe long.
const STRIPE_LOG2: u8 = 16;

struct PinnedWorld {
    target: Target,
    now: u32,
    marks: Marks,
}

impl PinnedWorld {
    fn new() -> PinnedWorld {
        let target = Target::new(Settings {
            memory: ready(MEMORY),
            ssd: ready(8 * MEMORY),
            slot_count: 1024,
            quota_bytes: u64::MAX,
            demotion: DemotionSettings {
                demote_low_watermark_bytes: MEMORY / 2,
                demote_min_watermark_bytes: MEMORY / 8,
                idle_millis: 10,
            },
        });
        PinnedWorld { target, now: 0, marks: Marks::default() }
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Option<Answer> {
        let marks = &mut self.marks;
        perform(&mut self.target, effects, &[], &mut |target, effect| match *effect {
            Effect::Publish { inode, extent, .. } => {
                marks.set(extent.slot, target.is_pinned(inode));
            }
            Effect::Mark { slot, is_pinned } => marks.set(slot, is_pinned),
            _ => {}
        })
    }

    fn call(&mut self, request: &Request<'_>) -> Answer {
        let mut out = Vec::new();
        self.target.step(Input::Request { ticket: 1, request, job: wire::JobWord::NONE }, &mut out);
        self.perform(out).expect("an answer")
    }

    fn make(&mut self, inode: u64, offset: u64, is_pinned: bool) -> Extent {
        let stripe_log2 = STRIPE_LOG2 | if is_pinned { PINNED_STRIPE } else { 0 };
        let inode = Inode(inode);
        let request = Request::MapExtents {
            inode,
            stripe_log2,
            allocate: 1,
            offset,
            length: 1,
            preallocate: 0,
        };
        match self.call(&request) {
            Answer::Extents(extents) => extents[0],
            other => panic!("{other:?}"),
        }
    }

    fn tell(&mut self, inode: u64, pinned: u8, changed: u64) {
        let request = Request::Own { inode: Inode(inode), uid: 1, project: 0, changed, pinned };
        assert_eq!(self.call(&request), Answer::Done);
    }

    /// Lets extents be demoted and promoted for a second, none in use.
    fn rest(&mut self) {
        for _ in 0..20 {
            self.now += 50;
            let mut out = Vec::new();
            self.target.demote(self.now, &mut |_| false, &mut out);
            self.perform(out);
            let mut out = Vec::new();
            if self.target.is_promoting() {
                self.target.promote(self.now, &mut |_| false, &mut out);
            }
            self.perform(out);
            self.target.check_records();
            self.target.check_records();
        }
    }

    fn in_memory(&self, inode: u64) -> u64 {
        let of_it = self.target.extents().filter(|row| row.0 == Inode(inode));
        of_it.filter(|row| row.1.tier == Extent::MEMORY).map(|row| row.1.length()).sum()
    }
}

#[test]
fn pinned_files_stay_while_four_times_the_memory_is_written() {
    let mut world = PinnedWorld::new();
    for at in 0..4 {
        world.make(7, at * BLOCK, true);
    }
    let pinned = world.in_memory(7);
    for file in 100..164 {
        world.make(file, BLOCK, false);
        world.rest();
        assert_eq!(world.in_memory(7), pinned);
    }
    assert_eq!(world.target.pinned_bytes(), pinned);
    assert!(world.target.moved().bytes_demoted > 0, "nothing was demoted");
    // An unpinned file is as cold as any.
    world.tell(7, 0, 1);
    assert_eq!(world.target.pinned_bytes(), 0);
    for file in 200..264 {
        world.make(file, BLOCK, false);
        world.rest();
    }
    assert_eq!(world.in_memory(7), 0);
}

#[test]
fn pinned_data_beyond_the_memory_goes_to_the_ssd_and_is_promoted_later() {
    let mut world = PinnedWorld::new();
    let all: Vec<Extent> = (0..20).map(|at| world.make(7, at * BLOCK, true)).collect();
    assert!(all.iter().any(|extent| extent.tier == Extent::SSD));
    let before = world.in_memory(7);
    assert!(before >= MEMORY - 4 * BLOCK);
    world.rest();
    assert_eq!(world.in_memory(7), before);
    // A part of it is truncated, and nobody uses the rest.
    let size = 4 * BLOCK;
    world.make(8, 0, true);
    assert_eq!(world.call(&Request::Remove { inodes: &8u64.to_le_bytes() }), Answer::Done);
    let file = |at: u64| Request::Punch {
        inode: Inode(7),
        stripe_log2: STRIPE_LOG2,
        offset: at * BLOCK,
        length: BLOCK,
    };
    for at in 0..15 {
        assert_eq!(world.call(&file(at)), Answer::Done);
    }
    world.rest();
    assert_eq!(world.in_memory(7), 5 * BLOCK);
    assert!(world.target.moved().bytes_promoted >= size - BLOCK);
}

/// "Pinning and unpinning take effect at once" (docs/semantics/durability.md).
#[test]
fn older_reports_and_earlier_opens_of_a_file_are_ignored() {
    let mut world = PinnedWorld::new();
    world.make(7, 0, false);
    // The file is pinned, but a client that opened it before does not know.
    world.tell(7, 1, 5);
    world.make(7, BLOCK, false);
    assert_eq!(world.target.pinned_bytes(), world.in_memory(7));
    world.tell(7, 0, 4);
    assert!(world.target.is_pinned(Inode(7)));
    // And the other way round.
    world.tell(7, 0, 6);
    world.make(7, 2 * BLOCK, true);
    assert_eq!(world.target.pinned_bytes(), 0);
    world.make(8, 0, false);
    world.make(8, BLOCK, true);
    assert!(!world.target.is_pinned(Inode(8)), "it had extents that were not");
    world.target.check_records();
}

#[test]
fn a_report_of_pinning_cancels_moves_at_once() {
    let mut world = PinnedWorld::new();
    let extents: Vec<Extent> = (0..12).map(|at| world.make(7, at * BLOCK, false)).collect();
    let mut out = Vec::new();
    world.now += 50;
    world.target.demote(world.now, &mut |_| false, &mut out);
    let hidden = out.iter().filter(|one| matches!(one, Effect::Hide { .. })).count();
    assert!(hidden > 0);
    world.tell(7, 1, 1);
    assert_eq!(world.target.moves_count(), 0);
    world.perform(out);
    world.rest();
    assert_eq!(world.in_memory(7), extents.iter().map(Extent::length).sum::<u64>());
    assert_eq!(world.marks.0.len(), extents.len());
}
