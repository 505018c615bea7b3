//! Dirty extents of jobs: those in memory that a job's requests allocated, and that can leave only by a
//! copy, to the SSD, another node or the backing store. `qos::dirty` says how many bytes of them a job
//! may have; this is the record of which there are, and of which leaves first.
//!
//! A job is what the request says that allocates the extent; extents that are filled, stored for other
//! targets, or found after a start are of none. A moved extent stays its job's. Clean extents, pinned
//! ones and those that move do not count.
//!
//!   none --assign--> a job's --count: it is watched--> dirty --uncount: it moves, is clean, or leaves-->
//!   a job's --forget: it leaves its file--> none
//!
//! Within a job extents leave in the order in which they became dirty, those in use once later.
//!
//! Invariants:
//!  1. `bounds` has the sum of the counted extents of each job.
//!  2. A counted slot is in the order of its job at least once; other slots there mean nothing.
//!  3. `numbers` names exactly the jobs of `jobs`.

use qos::dirty::{DirtyAnswer, DirtyBounds, DirtyJob};
use std::collections::{BTreeMap, VecDeque};
use wire::JobWord;
use wire::reply::Extent;

/// Extents in use that are passed over for one victim.
const LOOKS_MAX: usize = 64;
/// An order is swept once it has this many slots, and twice as many as there are extents.
const ORDER_SLOTS_MIN: usize = 256;
/// A job goes down by one part in this many of its bound before its writers go on without demotion.
const BELOW_PARTS: u64 = 16;

/// Number of a job here; 0: none.
type JobNumber = u16;

/// A slot, and the job of its extent.
#[derive(Clone, Copy, Debug, Default)]
struct SlotJob {
    job: JobNumber,
    is_counted: bool,
    length_log2: u8,
}

/// A job with extents.
#[derive(Clone, Debug)]
struct JobExtents {
    job: DirtyJob,
    /// Slots that are the job's, wherever their extents are.
    slots: u32,
    /// Those that are dirty.
    counted: u32,
    order: VecDeque<u32>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirtyExtents {
    bounds: DirtyBounds,
    slots: Vec<SlotJob>,
    jobs: Vec<Option<JobExtents>>,
    free: Vec<JobNumber>,
    numbers: BTreeMap<DirtyJob, JobNumber>,
}

impl DirtyExtents {
    /// Sets time and size of the memory, before a job asks.
    pub(crate) fn pass_time(&mut self, now: u32, memory: u64) {
        self.bounds.set_memory(memory);
        self.bounds.pass_time(now);
    }

    #[cfg(test)]
    fn of(&self, number: JobNumber) -> Option<&JobExtents> {
        self.jobs.get(usize::from(number).checked_sub(1)?)?.as_ref()
    }

    fn of_mut(&mut self, number: JobNumber) -> Option<&mut JobExtents> {
        self.jobs.get_mut(usize::from(number).checked_sub(1)?)?.as_mut()
    }

    /// The job as which the one of a request counts; `None`: it is of none.
    pub(crate) fn admit(&mut self, word: JobWord) -> Option<DirtyJob> {
        if word.number == 0 {
            return None;
        }
        let job = self.bounds.admit(DirtyJob { user: word.user, number: word.number })?;
        self.bounds.set_bound(job, u64::from(word.dirty_mib_max) << 20);
        Some(job)
    }

    /// A request of a job needs an extent of this length. Its job is to be admitted.
    pub(crate) fn ask(&mut self, job: DirtyJob, length: u64) -> DirtyAnswer {
        self.bounds.ask(job, length)
    }

    /// True if a rule sets the bound of a job.
    pub(crate) fn has_rule(&self, job: DirtyJob) -> bool {
        self.bounds.has_rule(job)
    }

    /// True if this many bytes more would bring a job to its bound.
    pub(crate) fn is_near_bound(&self, job: DirtyJob, more: u64) -> bool {
        self.bounds.excess(job, more) > 0
    }

    /// 0: there are too many.
    fn number_of(&mut self, job: DirtyJob) -> JobNumber {
        if let Some(&number) = self.numbers.get(&job) {
            return number;
        }
        if self.free.is_empty() && self.jobs.len() >= usize::from(JobNumber::MAX) {
            return 0;
        }
        let fresh = JobExtents { job, slots: 0, counted: 0, order: VecDeque::new() };
        let number = self.free.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            self.jobs.len() as JobNumber
        });
        self.jobs[usize::from(number) - 1] = Some(fresh);
        self.numbers.insert(job, number);
        number
    }

    fn entry(&mut self, slot: u32) -> &mut SlotJob {
        let slot = slot as usize;
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, SlotJob::default());
        }
        &mut self.slots[slot]
    }

    fn known(&self, slot: u32) -> SlotJob {
        self.slots.get(slot as usize).copied().unwrap_or_default()
    }

    /// The job of an extent.
    pub(crate) fn job_of(&self, slot: u32) -> Option<DirtyJob> {
        let place = usize::from(self.known(slot).job).checked_sub(1)?;
        self.jobs.get(place)?.as_ref().map(|one| one.job)
    }

    /// An extent is a job's from now on. Not yet dirty.
    pub(crate) fn assign(&mut self, slot: u32, job: DirtyJob) {
        let number = self.number_of(job);
        self.give(slot, number);
    }

    /// An extent that a job is about to write, and that is of none, is its from now on: it counts when it
    /// is found dirty.
    pub(crate) fn adopt(&mut self, slot: u32, job: Option<DirtyJob>) {
        if let Some(job) = job.filter(|_| self.known(slot).job == 0) {
            self.assign(slot, job);
        }
    }

    /// An extent is of the job of another one, if that has one.
    pub(crate) fn assign_as(&mut self, slot: u32, other: u32) {
        match self.known(other).job {
            0 => {}
            number => self.give(slot, number),
        }
    }

    fn give(&mut self, slot: u32, number: JobNumber) {
        self.forget(slot);
        if let Some(job) = self.of_mut(number) {
            job.slots += 1;
            self.entry(slot).job = number;
        }
    }

    /// An extent leaves its file, or its slot for another one.
    pub(crate) fn forget(&mut self, slot: u32) {
        let number = self.known(slot).job;
        if number == 0 {
            return;
        }
        self.uncount(slot);
        self.entry(slot).job = 0;
        let Some(one) = self.of_mut(number) else { return };
        one.slots -= 1;
        if one.slots == 0 {
            let job = one.job;
            self.jobs[usize::from(number) - 1] = None;
            self.numbers.remove(&job);
            self.free.push(number);
            self.bounds.forget(job);
        }
    }

    /// An extent has a slot of its own at its new place.
    pub(crate) fn hand_over(&mut self, from: u32, to: u32) {
        if self.known(from).job != 0 {
            self.assign_as(to, from);
            self.forget(from);
        }
    }

    /// An extent in memory is dirty.
    pub(crate) fn count(&mut self, extent: &Extent) {
        let SlotJob { job: number, is_counted, .. } = self.known(extent.slot);
        if number == 0 || is_counted {
            return;
        }
        let Some(one) = self.of_mut(number) else { return };
        one.counted += 1;
        one.order.push_back(extent.slot);
        let job = one.job;
        let fills = one.order.len() >= ORDER_SLOTS_MIN.max(2 * one.counted as usize);
        let entry = self.entry(extent.slot);
        (entry.is_counted, entry.length_log2) = (true, extent.length_log2);
        self.bounds.add(job, extent.length());
        if fills {
            self.sweep(number);
        }
    }

    /// Leaves each dirty extent once in the order of its job.
    fn sweep(&mut self, number: JobNumber) {
        let Some(one) = self.of_mut(number) else { return };
        let order = std::mem::take(&mut one.order);
        let mut seen = std::collections::BTreeSet::new();
        let order = order.into_iter().filter(|&slot| {
            let known = self.known(slot);
            known.job == number && known.is_counted && seen.insert(slot)
        });
        let order: VecDeque<u32> = order.collect();
        if let Some(one) = self.of_mut(number) {
            one.order = order;
        }
    }

    /// An extent is not dirty any more, or it moves.
    pub(crate) fn uncount(&mut self, slot: u32) {
        let SlotJob { job: number, is_counted, length_log2 } = self.known(slot);
        if !is_counted {
            return;
        }
        self.entry(slot).is_counted = false;
        let Some(one) = self.of_mut(number) else { return };
        one.counted -= 1;
        let job = one.job;
        self.bounds.remove(job, 1 << length_log2);
    }

    /// True if some of a job should leave, so that a writer that waits for an extent of this length can
    /// go on, and others after it.
    pub(crate) fn is_to_leave(&self, job: DirtyJob, length: u64) -> bool {
        let below = self.bounds.bound(job).unwrap_or(0) / BELOW_PARTS;
        self.bounds.excess(job, below.max(length)) > 0
    }

    /// The extent of a job that leaves next. `was_used` reads and clears the reference bit of a slot.
    pub(crate) fn victim(
        &mut self,
        job: DirtyJob,
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        let number = *self.numbers.get(&job)?;
        for _ in 0..LOOKS_MAX {
            let slot = self.of_mut(number)?.order.pop_front()?;
            let known = self.known(slot);
            if known.job != number || !known.is_counted {
                continue;
            }
            if !was_used(slot) {
                return Some(slot);
            }
            self.of_mut(number)?.order.push_back(slot);
        }
        None
    }

    /// A victim stays: it is first again.
    pub(crate) fn put_back(&mut self, slot: u32) {
        let known = self.known(slot);
        if let Some(one) = self.of_mut(known.job).filter(|_| known.is_counted) {
            one.order.push_front(slot);
        }
    }

    /// Checks the invariants; for tests. `held` are the extents of all files.
    #[cfg(test)]
    pub(crate) fn check(&self, held: impl Iterator<Item = Extent>) {
        let held: BTreeMap<u32, Extent> = held.map(|extent| (extent.slot, extent)).collect();
        let mut bytes: BTreeMap<DirtyJob, u64> = BTreeMap::new();
        let mut slots: BTreeMap<JobNumber, (u32, u32)> = BTreeMap::new();
        for (slot, known) in self.slots.iter().enumerate().filter(|(_, known)| known.job != 0) {
            let one = self.of(known.job).expect("a job");
            let of_job = slots.entry(known.job).or_default();
            of_job.0 += 1;
            if known.is_counted {
                of_job.1 += 1;
                let extent = held.get(&(slot as u32)).expect("a dirty slot has no extent");
                assert_eq!((extent.tier, extent.length_log2), (Extent::MEMORY, known.length_log2));
                assert!(one.order.contains(&(slot as u32)), "slot={slot} is in no order");
                *bytes.entry(one.job).or_default() += extent.length();
            }
        }
        for (&job, &number) in &self.numbers {
            let one = self.of(number).expect("a job");
            assert_eq!(
                (one.job, slots.get(&number).copied()),
                (job, Some((one.slots, one.counted)))
            );
            assert_eq!(self.bounds.bytes(job), bytes.remove(&job).unwrap_or(0));
        }
        assert!(bytes.is_empty());
    }
}
