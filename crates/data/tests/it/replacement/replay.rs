//! A memory of fixed capacity, which is emptied below two watermarks as a target's is; used extents
//! are promoted while there is ample space, or in place of idle ones.

use super::policies::TracedPolicy;
use super::trace::{Event, Step};
use data::tiering::clock::VictimRule;
use std::collections::{BTreeMap, BTreeSet};

/// Extents that memory holds.
pub(crate) const CAPACITY: usize = 400;
/// With less than this many free, idle extents are demoted; below the second, any extents.
const LOW_WATERMARK: usize = CAPACITY / 4;
const MIN_WATERMARK: usize = CAPACITY / 8;
/// An extent used on the SSD in two passes is promoted while this many are free; or this many if an
/// idle one is demoted for it.
const PROMOTION_FLOOR: usize = LOW_WATERMARK + CAPACITY / 8;
const SWAP_FLOOR: usize = (LOW_WATERMARK + MIN_WATERMARK) / 2;
const PASS_MILLIS: u32 = 100;
/// Milliseconds of one step of a trace.
const STEP_MILLIS: u32 = 10;
/// Most moves that begin in one step.
const MOVES_MAX: usize = 64;

/// Costs of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Cost {
    pub(crate) made: usize,
    pub(crate) reads: usize,
    /// Reads of extents that were not in memory.
    pub(crate) missed: usize,
    pub(crate) demoted: usize,
    pub(crate) promoted: usize,
    /// Extents written while memory was full.
    pub(crate) refused: usize,
}

/// The memory, and the extents demoted from it.
#[derive(Default)]
struct Memory {
    /// The slot of each extent in memory.
    here: BTreeMap<(u32, u32), u32>,
    extents: BTreeMap<u32, (u32, u32)>,
    /// When an extent not in memory was last used.
    backing: BTreeMap<(u32, u32), Option<u32>>,
    marks: BTreeSet<u32>,
    next_slot: u32,
    free_slots: Vec<u32>,
    now: u32,
    cost: Cost,
}

pub(crate) fn replay(policy: &mut dyn TracedPolicy, steps: &[Step]) -> Cost {
    let mut memory = Memory::default();
    for step in steps {
        for &event in step {
            memory.event(policy, event);
        }
        memory.demote(policy);
        memory.now += STEP_MILLIS;
    }
    memory.cost
}

impl Memory {
    fn free(&self) -> usize {
        CAPACITY - self.here.len()
    }

    fn event(&mut self, policy: &mut dyn TracedPolicy, event: Event) {
        match event {
            Event::Open(file) => policy.opened(file, self.now),
            Event::Close(file) => policy.closed(file, self.now),
            Event::Write(file, extent) => {
                let is_known = self.here.contains_key(&(file, extent));
                if is_known || self.backing.contains_key(&(file, extent)) {
                    self.touch(policy, (file, extent));
                } else {
                    self.cost.made += 1;
                    if self.free() == 0 {
                        self.cost.refused += 1;
                        self.backing.insert((file, extent), None);
                    } else {
                        let slot = self.assign_slot((file, extent));
                        policy.made(slot, file, self.now);
                    }
                }
            }
            Event::Read(file, extent) => {
                self.cost.reads += 1;
                if !self.touch(policy, (file, extent)) {
                    self.cost.missed += 1;
                }
            }
            Event::Remove(file) => self.remove(policy, file),
        }
    }

    fn assign_slot(&mut self, extent: (u32, u32)) -> u32 {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.next_slot += 1;
            self.next_slot - 1
        });
        self.here.insert(extent, slot);
        self.extents.insert(slot, extent);
        self.marks.insert(slot);
        slot
    }

    /// False if the extent is not in memory.
    fn touch(&mut self, policy: &mut dyn TracedPolicy, extent: (u32, u32)) -> bool {
        if let Some(&slot) = self.here.get(&extent) {
            self.marks.insert(slot);
            policy.used(slot, self.now);
            return true;
        }
        let now = self.now;
        let free = self.free();
        let has_space = free > PROMOTION_FLOOR || free > SWAP_FLOOR && policy.gives_way(now);
        let Some(before) = self.backing.get_mut(&extent) else { return false };
        let is_hot = before.is_some_and(|then| now - then >= PASS_MILLIS);
        if is_hot && has_space {
            self.backing.remove(&extent);
            self.cost.promoted += 1;
            let slot = self.assign_slot(extent);
            policy.promoted(slot, extent.0, now);
        } else {
            before.get_or_insert(now);
        }
        false
    }

    fn leave(&mut self, slot: u32) -> Option<(u32, u32)> {
        let extent = self.extents.remove(&slot)?;
        self.here.remove(&extent);
        self.marks.remove(&slot);
        self.free_slots.push(slot);
        Some(extent)
    }

    fn remove(&mut self, policy: &mut dyn TracedPolicy, file: u32) {
        let all = (file, 0)..=(file, u32::MAX);
        let slots: Vec<u32> = self.here.range(all.clone()).map(|(_, &slot)| slot).collect();
        for slot in slots {
            policy.gone(slot);
            self.leave(slot);
        }
        let backing: Vec<_> = self.backing.range(all).map(|(&extent, _)| extent).collect();
        for extent in backing {
            self.backing.remove(&extent);
        }
        policy.removed(file);
    }

    fn demote(&mut self, policy: &mut dyn TracedPolicy) {
        for _ in 0..MOVES_MAX {
            let out = match self.free() {
                free if free < MIN_WATERMARK => VictimRule::Forced,
                free if free < LOW_WATERMARK => VictimRule::Normal,
                _ => return,
            };
            let marks = &mut self.marks;
            let victim = policy.victim(self.now, out, &mut |slot| marks.remove(&slot));
            let Some(extent) = victim.and_then(|slot| self.leave(slot)) else { return };
            self.cost.demoted += 1;
            self.backing.insert(extent, None);
        }
    }
}
