//! Clean extents: those of which the backing store has all bytes, so that they can be evicted
//! without a copy. This is the record of them; `backing::eviction` decides when one goes.
//!
//! An extent is clean from when it was filled, or cleaned, until a client changes a byte. This
//! record says which extents were clean when last checked, in which order they go (`clock`), which
//! are hidden for eviction at present, and how many bytes requests need that they did not find.
//!
//! Invariants:
//!  1. Each slot of `known` has an extent; it is in its tier's policy, or in `under_way`.
//!  2. `bytes` is the sum of their lengths, by tier.
//!  3. `stuck` is a subset of `known`.

use crate::effect::Effect;
use crate::space::pool::Pool;
use crate::tiering::clock::{ClockPolicy, Policy, VictimRule};
use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::reply::Extent;

/// Most extents that are hidden for eviction.
const EVICTIONS_MAX: usize = 64;
/// Most extents that are examined for one victim.
pub(crate) const LOOKS_MAX: u32 = 256;
/// When nothing else could be evicted for this time, extents in use are evicted, too, for a request
/// that needs space.
const SPARE_USED_MILLIS: u32 = 100;
/// Files being evicted on request at a time; for more, it is not known which of their extents were
/// tried already.
const EVICT_REQUESTS_MAX: usize = 1024;
/// At most this time is counted between two scans for waiting requests.
const PAUSE_MILLIS_MAX: u32 = 100;

/// An extent that is hidden for eviction.
#[derive(Clone, Copy, Debug)]
struct Eviction {
    extent: Extent,
    /// Its hazard pointers are checked in this round.
    round: u64,
}

/// Known clean extents, and evictions in flight.
#[derive(Clone, Debug)]
pub(crate) struct CleanExtents {
    policies: [ClockPolicy; 2],
    known: BTreeSet<u32>,
    /// Slots that were protected when their eviction was last tried.
    stuck: BTreeSet<u32>,
    bytes: [u64; 2],
    under_way: BTreeMap<(Inode, u64), Eviction>,
    /// Files whose eviction was requested.
    requested: BTreeSet<Inode>,
    reserve_bytes: u64,
    /// Bytes that a request needed and did not find.
    needed: u64,
    /// Since when space is needed and only extents in use could be evicted.
    stalled_since: Option<u32>,
    now: u32,
    /// Milliseconds during which evictions were looked for: the clock of requests that wait for
    /// them.
    waiting_millis: u32,
    pub(crate) bytes_evicted: u64,
}

/// Index of a tier: 0 is memory, 1 the SSD.
const fn index_of(tier: u8) -> usize {
    (tier != Extent::MEMORY) as usize
}

const fn tier_of(extent: &Extent) -> usize {
    index_of(extent.tier)
}

impl CleanExtents {
    /// Without clean extents; `reserve_bytes` of memory are to be kept free.
    pub(crate) const fn new(reserve_bytes: u64) -> CleanExtents {
        CleanExtents {
            policies: [ClockPolicy::new(u32::MAX), ClockPolicy::new(u32::MAX)],
            known: BTreeSet::new(),
            stuck: BTreeSet::new(),
            bytes: [0; 2],
            under_way: BTreeMap::new(),
            requested: BTreeSet::new(),
            reserve_bytes,
            needed: 0,
            stalled_since: None,
            now: 0,
            waiting_millis: 0,
            bytes_evicted: 0,
        }
    }

    /// An extent was filled or cleaned.
    pub(crate) fn insert(&mut self, holder: u8, extent: &Extent) {
        if self.known.insert(extent.slot) {
            self.bytes[tier_of(extent)] += extent.length();
        }
        self.policies[tier_of(extent)].insert_of(holder, extent, false, self.now);
    }

    /// Gives an extent to another holder.
    pub(crate) fn give(&mut self, slot: u32, holder: u8) {
        for policy in &mut self.policies {
            policy.give(slot, holder, self.now);
        }
    }

    /// The policies of memory and of the SSD.
    pub(crate) const fn policies(&self) -> &[ClockPolicy; 2] {
        &self.policies
    }

    /// True if a request finds no space.
    pub(crate) const fn is_needed(&self) -> bool {
        self.needed > 0
    }

    /// An extent leaves its file, or is not clean. True if it was known to be.
    pub(crate) fn remove(&mut self, extent: &Extent) -> bool {
        let was_known = self.known.remove(&extent.slot);
        if was_known {
            self.stuck.remove(&extent.slot);
            self.bytes[tier_of(extent)] -= extent.length();
            self.policies[tier_of(extent)].remove(extent.slot);
        }
        was_known
    }

    /// True if the extent was clean when last checked.
    pub(crate) fn contains(&self, extent: &Extent) -> bool {
        self.known.contains(&extent.slot)
    }

    /// Bytes in clean extents of a tier.
    pub(crate) const fn bytes(&self, tier: u8) -> u64 {
        self.bytes[index_of(tier)]
    }

    /// Slots of the known clean extents.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.known.iter().copied()
    }

    /// True if there are no clean extents.
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// True if some extent may be evicted that was not protected when last tried.
    pub(crate) fn has_hope(&self) -> bool {
        self.stuck.len() < self.known.len()
    }

    /// Sets the bytes of memory to keep free.
    pub(crate) const fn set_reserve(&mut self, bytes: u64) {
        self.reserve_bytes = bytes;
    }

    /// Bytes of memory to keep free.
    pub(crate) const fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// The clock of requests that wait for evictions: it stands still while there are none.
    pub(crate) const fn waiting_millis(&self) -> u32 {
        self.waiting_millis
    }

    /// A request needs `length` bytes and finds none. True if something may be evicted for it.
    pub(crate) fn need(&mut self, length: u64) -> bool {
        if self.known.is_empty() {
            return false;
        }
        self.needed = self.needed.max(length);
        true
    }

    /// There is more space than before: requests that still need some say so again.
    pub(crate) const fn reset_need(&mut self) {
        self.needed = 0;
    }

    /// No request waits for space any more.
    pub(crate) const fn clear_need(&mut self) {
        (self.needed, self.stalled_since) = (0, None);
    }

    /// True while extents in use are not evicted.
    pub(crate) fn spares_used(&self) -> bool {
        let millis = |since| self.waiting_millis.wrapping_sub(since);
        self.stalled_since.is_none_or(|since| millis(since) < SPARE_USED_MILLIS)
    }

    /// Bytes of a tier that are hidden for eviction.
    pub(crate) fn evicting_bytes(&self, tier: u8) -> u64 {
        let extents = self.under_way.values().map(|one| &one.extent);
        extents.filter(|extent| extent.tier == tier).map(Extent::length).sum()
    }

    /// Sets the time; requests that wait for evictions have waited a little longer.
    pub(crate) fn pass_time(&mut self, now_millis: u32) {
        let passed = now_millis.wrapping_sub(self.now).min(PAUSE_MILLIS_MAX);
        self.waiting_millis = self.waiting_millis.wrapping_add(passed);
        self.now = now_millis;
    }

    /// The next clean extent of a tier to evict, of the first of these holders that has one.
    pub(crate) fn victim(
        &mut self,
        tier: u8,
        holders: &[u8],
        was_used: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        let policy = &mut self.policies[index_of(tier)];
        policy.victim_of((holders, false), self.now, VictimRule::Forced, LOOKS_MAX, was_used)
    }

    /// True if one more extent may be hidden for eviction.
    pub(crate) fn may_evict_another(&self) -> bool {
        self.under_way.len() < EVICTIONS_MAX
    }

    /// True while some extent is hidden for eviction.
    pub(crate) fn is_evicting_any(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// True while the file's extent that begins at `start` is hidden for eviction.
    pub(crate) fn is_evicting(&self, inode: Inode, start: u64) -> bool {
        self.under_way.contains_key(&(inode, start))
    }

    /// Hides an extent in order to evict it. Returns by how much that lowers what is needed.
    pub(crate) fn hide(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        extent: Extent,
        out: &mut Vec<Effect>,
    ) -> u64 {
        self.policies[tier_of(&extent)].remove(extent.slot);
        let needed = self.needed.saturating_sub(extent.length());
        let lowered = std::mem::replace(&mut self.needed, needed) - needed;
        let one = Eviction { extent, round: pool.note_hidden() };
        self.under_way.insert((inode, extent.start), one);
        out.push(Effect::HideToEvict { slot: extent.slot });
        lowered
    }

    /// This much is needed, after all.
    pub(crate) const fn raise_need(&mut self, bytes: u64) {
        self.needed += bytes;
    }

    /// Space was needed before this scan: if nothing can be evicted, extents in use soon are.
    pub(crate) fn note_stalled(&mut self) {
        self.stalled_since.get_or_insert(self.waiting_millis);
    }

    /// The extents hidden for eviction whose hazard pointers were checked in round `round`.
    pub(crate) fn checked(&self, round: u64) -> Vec<(Inode, Extent)> {
        let checked = self.under_way.iter().filter(|(_, one)| one.round <= round);
        checked.map(|(&(inode, _), one)| (inode, one.extent)).collect()
    }

    /// An eviction ends. False if there was none.
    pub(crate) fn end_eviction(&mut self, inode: Inode, start: u64) -> bool {
        self.under_way.remove(&(inode, start)).is_some()
    }

    /// An extent is evicted.
    pub(crate) fn note_evicted_bytes(&mut self, bytes: u64) {
        self.stalled_since = None;
        self.bytes_evicted += bytes;
    }

    /// True if the extent was protected when its eviction was last tried.
    pub(crate) fn is_stuck(&self, slot: u32) -> bool {
        self.stuck.contains(&slot)
    }

    /// The extent is protected.
    pub(crate) fn note_stuck(&mut self, slot: u32) {
        self.stuck.insert(slot);
    }

    /// The eviction of a file is requested. True if that is new: then all of its extents are tried.
    pub(crate) fn request_eviction(
        &mut self,
        inode: Inode,
        extents: impl Iterator<Item = Extent>,
    ) -> bool {
        if self.requested.len() >= EVICT_REQUESTS_MAX {
            self.requested.clear();
        }
        let is_new = self.requested.insert(inode);
        if is_new {
            for extent in extents {
                self.stuck.remove(&extent.slot);
            }
        }
        is_new
    }

    /// True while the eviction of a file is requested.
    pub(crate) fn is_requested(&self, inode: Inode) -> bool {
        self.requested.contains(&inode)
    }

    /// All of a file was tried.
    pub(crate) fn end_requested(&mut self, inode: Inode) {
        self.requested.remove(&inode);
    }

    /// Checks the invariants; for tests: it examines all clean extents.
    #[cfg(test)]
    pub(crate) fn check(&self, pool: &Pool) {
        let mut bytes = [0; 2];
        for &slot in &self.known {
            let (_, extent) = pool.slots().get(slot).expect("a clean slot has no extent");
            bytes[tier_of(&extent)] += extent.length();
        }
        assert_eq!(bytes, self.bytes);
        assert!(self.stuck.is_subset(&self.known));
        for (&(inode, start), one) in &self.under_way {
            let extent = pool.slots().at(inode, start);
            assert_eq!(extent, Some(one.extent), "its file has another extent");
            assert!(self.known.contains(&one.extent.slot));
        }
    }
}
