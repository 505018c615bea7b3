//! The pool: the space of a target, given out extent by extent, and the requests that wait for it.
//!
//! This is the ground of the crate. It knows which location belongs to which extent, what that
//! counts for, and what a hazard check must precede; it does not know which extent should leave
//! (`tiering`), what the backing store has (`backing`), or what a request does next (`target`). All
//! of these take the pool as an argument.
//!
//!   free --claim--> claimed --occupy--> an extent of a file
//!                   claimed --unclaim--> free
//!   an extent --leave--> leaving --a hazard check, not protected--> free  Effect::Unpublish
//!   free --take_for_move--> the destination of a move --occupy_moved--> an extent of a file
//!                           the destination of a move --release_destination--> free
//!
//! Invariants, checked at the end of each step:
//!  1. Each tier's bytes are accounted for (`tier`); extents that are leaving count as used.
//!  2. The front of `parked`, and nothing else, waits for a device.
//!  3. The used bytes of both tiers are within the quota.
//!  4. `incoming` is what the destinations of moves take in each tier, those of discarded copies
//!     included.

use crate::admission::job::Job;
use crate::admission::queue::Admission;
use crate::admission::stop::Stop;
use crate::admission::work::Work;
use crate::effect::{Effect, Haste, Validity};
use crate::space::accounts::{Accounts, is_first};
use crate::space::buddy::BlockContents;
use crate::space::member::Member;
use crate::space::preallocation::Preallocation;
use crate::space::slots::Slots;
use crate::space::tier::{Allocation, Space, Tier};
use placement::extent::Span;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::quota::{Account, Owner};
use wire::reply::Extent;
use wire::{DaemonIndex, Errno, Inode};

/// Fraction of the SSD kept free for writers: one part in this many.
const SSD_FREE_PARTS: u64 = 16;

/// Why nothing can be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClaimError {
    /// For a reason that more space would not change, or a device provisions it.
    Stop(Stop),
    /// Nothing is free; what the request waits for is for others to say.
    NoSpace { errno: Errno, length: u64 },
}

/// Extents allocated for writers since the target was created.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct AllocationCounts {
    pub(crate) bytes: u64,
    pub(crate) extents: u64,
    /// Bytes of these on the SSD, because memory was full.
    pub(crate) bytes_overflowed: u64,
}

/// Space of a target, and what waits for it.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    memory: Tier,
    ssd: Tier,
    slots: Slots,
    preallocation: Preallocation,
    accounts: Accounts,
    /// Files that lost an extent; see `recover`.
    damaged: BTreeSet<Inode>,
    quota_bytes: u64,
    member: Member,
    /// Requests that wait until there is space.
    pub(crate) admission: Admission,
    /// Requests that wait until a device has provisioned space, or for such a request.
    pub(crate) parked: VecDeque<Job>,
    /// Tier whose device was asked to provision space.
    provisioning: Option<u8>,
    /// Bytes of the destinations of moves, by tier.
    incoming: [u64; 3],
    /// Bytes of extents that this target stores for others.
    hosted_bytes: u64,
    allocated: AllocationCounts,
    /// Number of the next hazard check, and the last that was answered. Rounds count from 1.
    round: u64,
    round_answered: u64,
    /// True if something was hidden since the last hazard check was requested.
    needs_hazard_check: bool,
    /// Milliseconds, which may wrap; set by each call that tells the time.
    pub(crate) now: u32,
}

impl Pool {
    /// A pool whose devices are empty.
    pub(crate) fn new(memory: Space, ssd: Space, slot_count: u32, quota_bytes: u64) -> Pool {
        Pool {
            memory: Tier::new(memory),
            ssd: Tier::new(ssd),
            slots: Slots::new(slot_count),
            preallocation: Preallocation::default(),
            accounts: Accounts::default(),
            damaged: BTreeSet::new(),
            quota_bytes,
            member: Member { index: DaemonIndex(0), count: 1 },
            admission: Admission::default(),
            parked: VecDeque::new(),
            provisioning: None,
            incoming: [0; 3],
            hosted_bytes: 0,
            allocated: AllocationCounts::default(),
            round: 1,
            round_answered: 0,
            needs_hazard_check: false,
            now: 0,
        }
    }

    /// The arena.
    pub(crate) const fn memory(&self) -> &Tier {
        &self.memory
    }

    /// The SSD file.
    pub(crate) const fn ssd(&self) -> &Tier {
        &self.ssd
    }

    /// Lets the slots below `count` be used.
    pub(crate) fn allow_slots(&mut self, count: u32) {
        self.slots.allow(count);
    }

    /// The extents of all files.
    pub(crate) const fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Preallocated extents.
    pub(crate) const fn preallocation(&self) -> &Preallocation {
        &self.preallocation
    }

    /// Usage by account, and limits.
    pub(crate) const fn usage(&self) -> &Accounts {
        &self.accounts
    }

    /// Which stripes belong to this target.
    pub(crate) const fn member(&self) -> Member {
        self.member
    }

    /// Most bytes that all extents may hold.
    pub(crate) const fn quota_bytes(&self) -> u64 {
        self.quota_bytes
    }

    /// Bytes of extents that this target stores for others.
    pub(crate) const fn hosted_bytes(&self) -> u64 {
        self.hosted_bytes
    }

    /// Extents allocated for writers.
    pub(crate) const fn allocated(&self) -> AllocationCounts {
        self.allocated
    }

    /// True if the file lost an extent.
    pub(crate) fn is_damaged(&self, inode: Inode) -> bool {
        self.damaged.contains(&inode)
    }

    /// The file is removed or empty: nothing of it is lost any more.
    pub(crate) fn mend(&mut self, inode: Inode) {
        self.damaged.remove(&inode);
    }

    /// True if a device was asked to provision space.
    pub(crate) const fn is_provisioning(&self) -> bool {
        self.provisioning.is_some()
    }

    /// Length of a device in bytes.
    pub(crate) const fn device_length(&mut self, tier: u8) -> u64 {
        self.device(tier).length()
    }

    /// The device of a tier that this target has.
    const fn device(&mut self, tier: u8) -> &mut Tier {
        if tier == Extent::MEMORY { &mut self.memory } else { &mut self.ssd }
    }

    /// True if a request waits for a device.
    pub(crate) fn is_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// True for work that frees space and therefore bypasses waiting requests; a truncation stays
    /// behind earlier requests of its file.
    pub(crate) fn passes(&self, work: &Work) -> bool {
        let inode = work.range().0;
        let is_behind = || self.parked.iter().any(|one| one.work.range().0 == inode);
        matches!(work, Work::Remove { .. }) || matches!(work, Work::Clear { .. }) && !is_behind()
    }

    /// Removes and returns the matching requests: those that wait for space, then those that wait
    /// for a device.
    pub(crate) fn take_waiting(&mut self, is_it: impl Fn(&Job) -> bool) -> Vec<Job> {
        let mut jobs = self.admission.take_jobs(&is_it);
        if self.parked.iter().any(&is_it) {
            let parked = std::mem::take(&mut self.parked);
            let (taken, rest): (VecDeque<Job>, _) = parked.into_iter().partition(is_it);
            self.parked = rest;
            jobs.extend(taken);
        }
        jobs
    }

    /// True if the file has no extent in this span.
    pub(crate) fn is_vacant(&self, inode: Inode, span: &Span) -> bool {
        self.slots.over(inode, span.start, span.end()).next().is_none()
    }

    /// The extents that overlap `offset .. end`, without preallocated ones.
    pub(crate) fn shown(
        &self,
        inode: Inode,
        offset: u64,
        end: u64,
    ) -> impl Iterator<Item = Extent> {
        let extents = self.slots.over(inode, offset, end);
        extents.filter(move |extent| !self.preallocation.contains(inode, extent))
    }

    /// Bytes in extents; a moving extent counts once.
    pub(crate) fn bytes_used(&self) -> u64 {
        self.memory.bytes_used() + self.ssd.bytes_used() - self.incoming[0] - self.incoming[1]
    }

    /// Bytes of memory in use beyond the allowance, except `leaves` bytes that are being freed.
    pub(crate) fn bytes_beyond(&self, leaves: u64) -> u64 {
        let used = self.memory.bytes_used().saturating_sub(leaves);
        used.saturating_sub(self.preallocation.bytes()).saturating_sub(self.memory.allowance())
    }

    /// Scales a share of the whole memory to the present allowance.
    pub(crate) fn of_allowance(&self, bytes: u64) -> u64 {
        let (allowed, all) = (self.memory.allowance(), self.memory.length().max(1));
        (u128::from(bytes) * u128::from(allowed) / u128::from(all)) as u64
    }

    /// Bytes of the SSD kept free for writers; none while memory must be given back, or while a
    /// request waits for which the gaps there are too small.
    pub(crate) fn ssd_reserved_bytes(&self) -> u64 {
        if self.bytes_beyond(0) > 0 || !self.admission.is_empty() {
            0
        } else {
            self.ssd.bytes_total() / SSD_FREE_PARTS
        }
    }

    /// Takes a location and a slot for a new extent, which counts for its file from now on. With
    /// `tier`, only in that tier.
    pub(crate) fn claim(
        &mut self,
        inode: Inode,
        span: Span,
        tier: Option<u8>,
        out: &mut Vec<Effect>,
    ) -> Result<(Extent, BlockContents), ClaimError> {
        if !self.is_vacant(inode, &span) {
            return Err(ClaimError::Stop(Stop::Refused(Errno::EINVAL)));
        }
        let length = span.length();
        let is_allowed = self.accounts.check(inode, length);
        is_allowed.map_err(|over| ClaimError::Stop(Stop::OverLimit(over)))?;
        if self.bytes_used().saturating_add(length) > self.quota_bytes {
            return Err(ClaimError::NoSpace { errno: Errno::EDQUOT, length });
        }
        if self.slots.vacant().is_none() {
            return Err(ClaimError::NoSpace { errno: Errno::ENOSPC, length });
        }
        let (tier, location, contents) = self.allocate_block(span.length_log2, tier, out)?;
        let Some(slot) = self.slots.reserve() else { unreachable!("one is vacant") };
        self.accounts.change(inode, length.cast_signed());
        let length_log2 = span.length_log2;
        Ok((Extent { start: span.start, slot, location, length_log2, tier }, contents))
    }

    fn allocate_block(
        &mut self,
        log2: u8,
        only: Option<u8>,
        out: &mut Vec<Effect>,
    ) -> Result<(u8, u64, BlockContents), ClaimError> {
        for tier in [Extent::MEMORY, Extent::SSD] {
            if only.is_some_and(|only| only != tier) {
                continue;
            }
            match self.device(tier).take(log2) {
                Allocation::Block(location, contents) => {
                    if tier == Extent::SSD {
                        self.admission.note(Ok(()));
                    }
                    return Ok((tier, location, contents));
                }
                Allocation::Extend { location, length } => {
                    self.provision(tier, (location, length), Haste::Now, out);
                    return Err(ClaimError::Stop(Stop::Parked));
                }
                Allocation::Full => {}
            }
        }
        Err(ClaimError::NoSpace { errno: Errno::ENOSPC, length: 1 << log2 })
    }

    /// Makes a device provision a step. One step at a time: the answer to the one in flight tries
    /// again.
    fn provision(
        &mut self,
        tier: u8,
        (location, length): (u64, u64),
        haste: Haste,
        out: &mut Vec<Effect>,
    ) {
        if self.provisioning.is_none() {
            self.provisioning = Some(tier);
            out.push(Effect::Provision { tier, location, length, haste });
        }
    }

    /// Makes a device provision space that no request needs yet.
    pub(crate) fn provision_ahead(&mut self, out: &mut Vec<Effect>) {
        for tier in [Extent::MEMORY, Extent::SSD] {
            if self.provisioning.is_none()
                && let Some((location, length, haste)) = self.device(tier).ahead()
            {
                self.provision(tier, (location, length), haste, out);
            }
        }
    }

    /// Completion of a step. False if none was expected.
    pub(crate) fn note_provisioned(&mut self, outcome: wire::errno::Result<()>) -> bool {
        match self.provisioning.take() {
            Some(Extent::MEMORY) => self.memory.provisioned(outcome),
            Some(_) => {
                self.admission.note(outcome);
                self.ssd.provisioned(outcome);
            }
            None => return false,
        }
        true
    }

    /// Turns a location taken by `claim` into an extent of the file.
    pub(crate) fn occupy(&mut self, inode: Inode, extent: &Extent) {
        self.slots.occupy(inode, *extent);
        self.count_hosted(inode, extent.length().cast_signed());
    }

    /// Preallocates an extent. Uses provisioned space only: no request waits for this.
    pub(crate) fn preallocate_one(
        &mut self,
        inode: Inode,
        span: Span,
        out: &mut Vec<Effect>,
    ) -> Option<Extent> {
        let slot = self.slots.vacant()?;
        let (location, _) = self.memory.take_ready(span.length_log2)?;
        let (length_log2, tier) = (span.length_log2, Extent::MEMORY);
        let extent = Extent { start: span.start, slot, location, length_log2, tier };
        self.slots.insert(inode, extent);
        self.preallocation.insert(inode, &extent);
        if !is_first(&extent) {
            self.accounts.change(inode, extent.length().cast_signed());
        }
        out.push(Effect::Publish { inode, extent, valid: Validity::Preallocated });
        Some(extent)
    }

    /// Makes a preallocated extent the file's own.
    pub(crate) fn own_preallocated(&mut self, inode: Inode, extent: &Extent) {
        self.preallocation.remove(inode, extent);
        self.count_allocated(extent);
        if is_first(extent) {
            self.accounts.change(inode, extent.length().cast_signed());
        }
    }

    /// Counts an extent allocated for a writer.
    pub(crate) fn count_allocated(&mut self, extent: &Extent) {
        self.allocated.extents += 1;
        self.allocated.bytes += extent.length();
        self.allocated.bytes_overflowed +=
            if extent.tier == Extent::SSD { extent.length() } else { 0 };
    }

    /// Adds `bytes` to what is stored for another target; negative to subtract.
    pub(crate) fn count_hosted(&mut self, inode: Inode, bytes: i64) {
        if inode.is_spilled() {
            self.hosted_bytes = self.hosted_bytes.saturating_add_signed(bytes);
        }
    }

    /// Releases a location taken by `claim`; nobody has seen it.
    pub(crate) fn unclaim(&mut self, inode: Inode, extent: &Extent) {
        self.slots.unreserve(extent.slot);
        self.accounts.change(inode, -extent.length().cast_signed());
        self.device(extent.tier).release(extent.location, extent.length_log2);
    }

    /// An extent does not count for its file any more.
    pub(crate) fn uncount(&mut self, inode: Inode, extent: &Extent) {
        let was_preallocated = self.preallocation.remove(inode, extent);
        if !was_preallocated || !is_first(extent) {
            self.accounts.change(inode, -extent.length().cast_signed());
        }
        self.count_hosted(inode, -extent.length().cast_signed());
    }

    /// An extent in one of the devices leaves its file or its location, which is reused when no
    /// hazard pointer protects it.
    pub(crate) fn leave(&mut self, inode: Inode, extent: &Extent, out: &mut Vec<Effect>) {
        let round = self.note_hidden();
        self.slots.leave(inode, extent, round);
        out.push(Effect::Unpublish { slot: extent.slot });
    }

    /// Something is hidden: returns the round of the hazard check that follows.
    pub(crate) const fn note_hidden(&mut self) -> u64 {
        self.needs_hazard_check = true;
        self.round
    }

    /// Extents that are leaving are checked once more.
    pub(crate) fn check_leaving(&mut self) {
        self.needs_hazard_check |= self.slots.leaving_count() > 0;
    }

    /// Requests a hazard check, if something was hidden.
    pub(crate) fn check_hazards(&mut self, out: &mut Vec<Effect>) {
        if self.needs_hazard_check {
            self.needs_hazard_check = false;
            out.push(Effect::CheckHazards { round: self.round });
            self.round += 1;
        }
    }

    /// Handles hazard check `round`: frees what left before it and is not protected.
    pub(crate) fn free_left(&mut self, round: u64, protected: &[u32]) {
        let Pool { memory, ssd, slots, .. } = self;
        slots.free(round, protected, |extent| match extent.tier {
            Extent::MEMORY => memory.release(extent.location, extent.length_log2),
            _ => ssd.release(extent.location, extent.length_log2),
        });
        self.round_answered = self.round_answered.max(round);
    }

    /// True if extents are leaving whose hazard pointers have not been checked yet. Extents that
    /// were found protected do not count, because a stopped process may hold a hazard pointer
    /// forever.
    pub(crate) fn is_freeing(&self) -> bool {
        self.slots.left_after(self.round_answered)
    }

    /// A location in one of the devices for an extent that moves, if there is one now.
    pub(crate) fn take_for_move(
        &mut self,
        tier: u8,
        length_log2: u8,
        out: &mut Vec<Effect>,
    ) -> Option<u64> {
        match self.device(tier).take(length_log2) {
            Allocation::Block(location, _) => Some(location),
            Allocation::Extend { location, length } => {
                self.provision(tier, (location, length), Haste::Soon, out);
                None
            }
            Allocation::Full => None,
        }
    }

    /// Bytes of the destinations of moves in a tier.
    pub(crate) const fn incoming(&self, tier: u8) -> u64 {
        self.incoming[tier as usize]
    }

    /// Bytes of the destinations of all moves.
    pub(crate) fn all_incoming(&self) -> u64 {
        self.incoming.iter().sum()
    }

    /// A move to this location begins.
    pub(crate) fn count_incoming(&mut self, to: &Extent) {
        self.incoming[usize::from(to.tier)] += to.length();
    }

    /// A move to this location is complete, or its location is released.
    pub(crate) fn uncount_incoming(&mut self, to: &Extent) {
        self.incoming[usize::from(to.tier)] -= to.length();
    }

    /// Releases the destination of a move in one of the devices.
    pub(crate) fn release_destination(&mut self, to: &Extent) {
        self.device(to.tier).release(to.location, to.length_log2);
        self.slots.unreserve(to.slot);
    }

    /// The extents that count for accounts.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (Inode, Extent)> {
        let is_counted = |(inode, extent): &(Inode, Extent)| {
            !inode.is_spilled()
                && (!is_first(extent) || !self.preallocation.contains(*inode, extent))
        };
        self.slots.iter().filter(is_counted)
    }

    /// Takes a slot for an extent that moves. `None` if all are in use.
    pub(crate) fn reserve_slot(&mut self) -> Option<u32> {
        self.slots.reserve()
    }

    /// True if a slot is free.
    pub(crate) fn has_vacant_slot(&mut self) -> bool {
        self.slots.vacant().is_some()
    }

    /// Reserves this slot for a remote location. False if it is in use or does not exist.
    pub(crate) fn reserve_slot_at(&mut self, slot: u32) -> bool {
        self.slots.reserve_at(slot)
    }

    /// Frees a reserved slot that has no location in a device.
    pub(crate) fn unreserve_slot(&mut self, slot: u32) {
        self.slots.unreserve(slot);
    }

    /// A moved extent has its new location, in the slot that was reserved for it.
    pub(crate) fn occupy_moved(&mut self, inode: Inode, to: Extent) {
        self.slots.occupy(inode, to);
    }

    /// A spilled extent leaves its file or its location; its slot is reserved.
    pub(crate) fn depart(&mut self, inode: Inode, extent: &Extent) {
        self.slots.depart(inode, extent);
    }

    /// A request waits for space: earlier refusals of the devices do not count.
    pub(crate) const fn ask_devices_again(&mut self) {
        self.memory.ask_again();
        self.ssd.ask_again();
    }

    /// Sets the number of bytes that the arena may hold.
    pub(crate) fn allow_memory(&mut self, bytes: u64) {
        self.memory.allow(bytes);
    }

    /// Takes a free block of the arena beyond its allowance; see `Tier::give_back`.
    pub(crate) fn give_memory_back(&mut self, log2_min: u8) -> Option<(u64, u8)> {
        self.memory.give_back(log2_min)
    }

    /// Completion of giving a block of the arena back.
    pub(crate) fn note_given_back(&mut self, block: (u64, u8), outcome: wire::errno::Result<()>) {
        self.memory.given_back(block, outcome);
    }

    /// Recovery: see `Tier::forget_free`.
    pub(crate) fn forget_free_memory(&mut self, give_back: &mut dyn FnMut(u64, u64) -> bool) {
        self.memory.forget_free(give_back);
    }

    /// Space is short, also because of preallocated extents. False if there are none.
    pub(crate) fn need_preallocated(&mut self) -> bool {
        self.preallocation.need()
    }

    /// Recovery: an extent is preallocated.
    pub(crate) fn note_preallocated(&mut self, inode: Inode, extent: &Extent) {
        self.preallocation.insert(inode, extent);
    }

    /// Recovery: takes the locations and the slots of these extents, which do not overlap.
    pub(crate) fn restore(&mut self, entries: &[(Inode, Extent)]) {
        for (_, extent) in entries.iter().filter(|(_, extent)| extent.tier != Extent::SPILLED) {
            let taken = self.device(extent.tier).take_at(extent.location, extent.length_log2);
            assert!(taken, "overlapping entries were discarded: slot={}", extent.slot);
        }
        self.slots.restore(entries);
    }

    /// Recovery: an extent had left its file; a hazard pointer may protect it. Nothing happens if
    /// its location is in use.
    pub(crate) fn restore_leaving(&mut self, extent: Extent) {
        if !self.device(extent.tier).take_at(extent.location, extent.length_log2) {
            return;
        }
        if self.slots.restore_leaving(extent, self.round) {
            self.needs_hazard_check = true;
        } else {
            self.device(extent.tier).release(extent.location, extent.length_log2);
        }
    }

    /// Recovery: these files lost an extent.
    pub(crate) fn set_damaged(&mut self, inodes: impl Iterator<Item = Inode>) {
        self.damaged = inodes.collect();
    }

    /// Sets which stripes belong to this target.
    pub(crate) const fn set_member(&mut self, member: Member) {
        self.member = member;
    }

    /// Sets the owner of a file, which changed at `changed`.
    pub(crate) fn set_owner(&mut self, inode: Inode, owner: Owner, changed: i64) {
        self.accounts.set_owner(inode, owner, changed);
    }

    /// Sets the limits of accounts in bytes; accounts not named have none.
    pub(crate) fn set_limits(&mut self, limits: BTreeMap<Account, u64>) {
        self.accounts.allow(limits);
    }

    /// The file is removed: it counts for no account.
    pub(crate) fn forget_usage(&mut self, inode: Inode) {
        self.accounts.forget(inode);
    }

    /// Starts counting usage by account, beginning with the extents that exist.
    pub(crate) fn begin_accounts(&mut self) {
        if !self.accounts.is_on() {
            let held: Vec<_> = self.counted().collect();
            self.accounts.begin(held.into_iter());
        }
    }

    /// Checks invariants 1 and 2 at the end of a step.
    pub(crate) fn check(&self) {
        self.memory.check();
        self.ssd.check();
        assert!(!self.is_parked() || self.is_provisioning(), "parked without a reason");
    }
}
