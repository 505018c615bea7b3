//! The scan of the extents on the SSD, by which `promote` finds hot ones.
//!
//! An extent on the SSD has the same reference bit as one in memory. Each *scan pass* reads each
//! bit once; an extent that is used in two consecutive passes, or taken up again twice after a pass
//! without use, is hot. An extent that is inserted again begins anew.
//!
//!   none --insert--> known --used in a pass, not used in a pass--> known
//!   known --used in `USES_HOT` passes more than not, `RETURNS_HOT` times after a pause--> hot
//!
//! Invariant: `entries` says where in `order` a slot is; the slot of each extent on the SSD that
//! neither moves nor is clean is there once.

/// Least time of a scan pass.
const PASS_MILLIS: u32 = 100;
/// In this many passes more used than not: the extent is hot.
const USES_HOT: u8 = 2;
/// Taken up again this often after a pass without use: the extent is hot.
const RETURNS_HOT: u8 = 2;

const NONE: u32 = u32::MAX;

/// State of a slot in the scan order.
#[derive(Clone, Copy, Debug)]
struct SsdEntry {
    at: u32,
    accesses: u8,
    returns: u8,
    /// Used in the last pass, or unknown: then its bytes are about to be written.
    was_used: bool,
    /// It was demoted from memory.
    has_demoted: bool,
}

impl SsdEntry {
    const fn new(at: u32) -> SsdEntry {
        SsdEntry { at, accesses: 0, returns: 0, was_used: true, has_demoted: false }
    }

    /// Records a scan. True if the extent is hot.
    fn look(&mut self, is_used: bool) -> bool {
        let SsdEntry { accesses, returns, was_used, .. } = self;
        *accesses =
            if is_used { (*accesses + 1).min(USES_HOT) } else { accesses.saturating_sub(1) };
        *returns += u8::from(is_used && !*was_used && *returns < RETURNS_HOT);
        *was_used = is_used;
        *accesses == USES_HOT || *returns == RETURNS_HOT
    }
}

/// Extents on the SSD that may be promoted: 12 bytes for each.
#[derive(Clone, Debug, Default)]
pub(crate) struct SsdScan {
    order: Vec<u32>,
    /// By slot.
    entries: Vec<SsdEntry>,
    /// Slots before this position were scanned in this pass, which began at `pass_since`.
    hand: usize,
    pass_since: Option<u32>,
}

impl SsdScan {
    /// An extent is on the SSD, and may be promoted.
    pub(crate) fn insert(&mut self, slot: u32) {
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, SsdEntry::new(NONE));
        }
        self.remove(slot);
        self.entries[slot as usize] = SsdEntry::new(self.order.len() as u32);
        self.order.push(slot);
    }

    /// An extent leaves its file, or must not move.
    pub(crate) fn remove(&mut self, slot: u32) {
        let Some(SsdEntry { at, .. }) = self.entries.get(slot as usize).copied() else { return };
        if at == NONE {
            return;
        }
        self.order.swap_remove(at as usize);
        if let Some(&moved) = self.order.get(at as usize) {
            self.entries[moved as usize].at = at;
        }
        self.entries[slot as usize].at = NONE;
    }

    /// Notes that a known extent was demoted from memory.
    pub(crate) fn note_demoted(&mut self, slot: u32) {
        if let Some(known) = self.entries.get_mut(slot as usize) {
            known.has_demoted = true;
        }
    }

    /// True if a known extent was demoted from memory.
    pub(crate) fn has_demoted(&self, slot: u32) -> bool {
        self.entries.get(slot as usize).is_some_and(|known| known.at != NONE && known.has_demoted)
    }

    /// As `has_demoted`, and clears that state.
    pub(crate) fn take_demoted(&mut self, slot: u32) -> bool {
        let has_demoted = self.has_demoted(slot);
        if has_demoted && let Some(known) = self.entries.get_mut(slot as usize) {
            known.has_demoted = false;
        }
        has_demoted
    }

    /// The next slot to scan. `None`: this pass is over.
    pub(crate) fn next(&mut self, now: u32) -> Option<u32> {
        if self.hand >= self.order.len() {
            self.hand = 0;
        }
        if self.hand == 0 {
            if self.pass_since.is_some_and(|since| now.wrapping_sub(since) < PASS_MILLIS) {
                return None;
            }
            self.pass_since = Some(now);
        }
        let slot = self.order.get(self.hand).copied()?;
        self.hand += 1;
        Some(slot)
    }

    /// True if the slot that `next` returned last is the first of a pass.
    pub(crate) const fn has_begun_pass(&self) -> bool {
        self.hand == 1
    }

    /// True if no extent may be promoted.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Records that the slot that `next` returned was used, or not. True if its extent is hot.
    pub(crate) fn note_look(&mut self, slot: u32, is_used: bool) -> bool {
        self.entries.get_mut(slot as usize).is_some_and(|entry| entry.look(is_used))
    }

    /// Checks the invariant; for tests. `slots` are those of all extents that may be promoted.
    #[cfg(test)]
    pub(crate) fn check(&self, slots: impl Iterator<Item = u32>) {
        let (mut slots, mut known) = (Vec::from_iter(slots), self.order.clone());
        slots.sort_unstable();
        known.sort_unstable();
        assert_eq!(slots, known);
        for (at, &slot) in (0..).zip(&self.order) {
            assert_eq!(self.entries[slot as usize].at, at);
        }
    }
}
