//! Recovery after a kill: rebuilds a target from the entries of the extent table.
//!
//! The table is the only source of truth. An entry is published by storing its fields, its
//! checksum, and last its inode; it is removed by one bit of the inode. A kill in between leaves an
//! empty entry either way, and the space of an empty entry is free, unless a hazard pointer still
//! protects what it held: then it waits as if it had left just now. An entry with a wrong checksum
//! is read as empty, too.
//!
//! An entry may be hidden. If another visible entry has the same range of the file, the extent had
//! been moved, and the hidden entry is removed (`demote`); else it is shown again.
//!
//! The remaining entries are still verified: an impossible entry (a location outside its device, an
//! odd start) or one that claims what another claims is discarded. Of two entries that claim the
//! same, both are discarded, because nothing says whose bytes these are; their files answer EIO
//! until they are removed or truncated to zero.

use crate::effect::Effect;
use crate::space::buddy::{BLOCK_LOG2_MAX, BLOCK_LOG2_MIN};
use crate::target::{Settings, Target};
use std::collections::BTreeSet;
use wire::Inode;
use wire::limits::FILE_BYTES_MAX;
use wire::reply::Extent;

/// Why an entry was discarded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DiscardReason {
    /// It is malformed, or lies outside its device.
    Impossible,
    /// Another entry claims some of its location.
    LocationTwice,
    /// Another entry claims some of its range of the file, or its slot.
    RangeTwice,
}

/// An entry that was discarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiscardedExtent {
    /// The file that it named.
    pub inode: Inode,
    /// The extent that it described.
    pub extent: Extent,
    /// The reason.
    pub reason: DiscardReason,
}

impl std::fmt::Display for DiscardedExtent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.reason {
            DiscardReason::Impossible => "is impossible",
            DiscardReason::LocationTwice => "claims a location that another claims",
            DiscardReason::RangeTwice => "claims a range of the file that another claims",
        };
        let Extent { start, slot, location, length_log2, tier } = self.extent;
        let inode = self.inode.0;
        write!(f, "an entry of the extent table {what}, slot={slot} inode={inode} start={start} ")?;
        write!(f, "location={location} length_log2={length_log2} tier={tier}")
    }
}

impl Target {
    /// Builds a target from the entries of the extent table, those shown and those hidden. `out`
    /// receives the effects for hidden and discarded entries; the second result lists the discarded
    /// ones, for the log.
    #[must_use]
    pub fn recover(
        settings: Settings,
        shown: impl IntoIterator<Item = (Inode, Extent)>,
        hidden: impl IntoIterator<Item = (Inode, Extent)>,
        out: &mut Vec<Effect>,
    ) -> (Target, Vec<DiscardedExtent>) {
        let mut discarded = Vec::new();
        let mut entries: Vec<(Inode, Extent)> = shown.into_iter().collect();
        let range = |&(inode, extent): &(Inode, Extent)| (inode, extent.start, extent.length_log2);
        let ranges: BTreeSet<_> = entries.iter().map(range).collect();
        let (spill, hidden): (Vec<_>, Vec<_>) =
            hidden.into_iter().partition(|(_, extent)| extent.tier == Extent::SPILLED);
        for entry in hidden {
            let (slot, was_replaced) = (entry.1.slot, ranges.contains(&range(&entry)));
            if was_replaced {
                out.push(Effect::Unpublish { slot });
                continue;
            }
            out.push(Effect::Show { slot });
            entries.push(entry);
        }
        // A local extent wins over a spilled one: a copy in either direction was complete, or did
        // not matter.
        let ranges: BTreeSet<_> = entries.iter().map(range).collect();
        let (needless, spill): (Vec<_>, Vec<_>) =
            spill.into_iter().partition(|entry| ranges.contains(&range(entry)));
        entries.extend(spill);
        entries.retain(|&(inode, extent)| {
            let possible = is_possible(&settings, inode, &extent);
            if !possible {
                discarded.push(DiscardedExtent {
                    inode,
                    extent,
                    reason: DiscardReason::Impossible,
                });
            }
            possible
        });
        let slot = |_: Inode, extent: &Extent| (0, u64::from(extent.slot), 1);
        let location = |_: Inode, extent: &Extent| {
            let length = if extent.tier == Extent::SPILLED { 1 } else { extent.length() };
            (u64::from(extent.tier), extent.location, length)
        };
        let range = |inode: Inode, extent: &Extent| (inode.0, extent.start, extent.length());
        discard_overlaps(&mut entries, slot, DiscardReason::RangeTwice, &mut discarded);
        discard_overlaps(&mut entries, location, DiscardReason::LocationTwice, &mut discarded);
        discard_overlaps(&mut entries, range, DiscardReason::RangeTwice, &mut discarded);

        let mut target = Target::new(settings);
        let Target { pool, tiering, .. } = &mut target;
        pool.restore(&entries);
        entries.iter().for_each(|(inode, extent)| tiering.order.watch(pool, *inode, extent));
        tiering.spill.restore_counts(pool);
        for (_, extent) in needless {
            out.push(Effect::Unpublish { slot: extent.slot });
            target.restore_released_spill([(extent.slot, extent.location)], out);
        }
        target.pool.set_damaged(discarded.iter().map(|entry| entry.inode));
        let shown = discarded.iter().filter(|entry| entry.extent.slot < settings.slot_count);
        out.extend(shown.map(|entry| Effect::Unpublish { slot: entry.extent.slot }));
        (target, discarded)
    }

    /// After `recover`: these extents had left their files, and a client may still copy from or
    /// into them. Their locations are reused when no hazard pointer protects them. One whose
    /// location is in use had been freed: the owner of a hazard pointer on it has yet to verify,
    /// and will find it gone.
    pub fn restore_leaving(&mut self, extents: impl IntoIterator<Item = Extent>) {
        for extent in extents {
            let is_local = [Extent::MEMORY, Extent::SSD].contains(&extent.tier);
            if is_local && fits(&extent, self.pool.device_length(extent.tier)) {
                self.pool.restore_leaving(extent);
            }
        }
    }
}

/// True for a block that a device of this length can have.
fn fits(extent: &Extent, space_bytes: u64) -> bool {
    (BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX).contains(&extent.length_log2)
        && extent.location.is_multiple_of(extent.length())
        && extent.location.checked_add(extent.length()).is_some_and(|end| end <= space_bytes)
}

fn is_possible(settings: &Settings, inode: Inode, extent: &Extent) -> bool {
    let space = match extent.tier {
        Extent::MEMORY => settings.memory,
        Extent::SSD => settings.ssd,
        Extent::SPILLED => return is_possible_spilled(settings, inode, extent),
        _ => return false,
    };
    !inode.is_none()
        && fits(extent, space.length)
        && extent.slot < settings.slot_count
        && extent.start.is_multiple_of(extent.length())
        && extent.start.checked_add(extent.length()).is_some_and(|end| end <= FILE_BYTES_MAX + 1)
}

/// As `is_possible`, for a spilled extent: nothing is known of its location here.
fn is_possible_spilled(settings: &Settings, inode: Inode, extent: &Extent) -> bool {
    !inode.is_none()
        && (BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX).contains(&extent.length_log2)
        && extent.slot < settings.slot_count
        && extent.start.is_multiple_of(extent.length())
        && extent.start.checked_add(extent.length()).is_some_and(|end| end <= FILE_BYTES_MAX + 1)
}

/// Discards every entry that shares some of its range (group, start, length) with another.
fn discard_overlaps(
    entries: &mut Vec<(Inode, Extent)>,
    range: impl Fn(Inode, &Extent) -> (u64, u64, u64),
    reason: DiscardReason,
    discarded: &mut Vec<DiscardedExtent>,
) {
    entries.sort_by_cached_key(|(inode, extent)| range(*inode, extent));
    let mut bad = vec![false; entries.len()];
    // The entry that reaches furthest so far, and where its range ends.
    let mut furthest: Option<(usize, u64, u64)> = None;
    for (index, (inode, extent)) in entries.iter().enumerate() {
        let (group, start, length) = range(*inode, extent);
        let end = start + length;
        match furthest {
            Some((other, other_group, other_end)) if group == other_group && start < other_end => {
                bad[index] = true;
                bad[other] = true;
                if end > other_end {
                    furthest = Some((index, group, end));
                }
            }
            _ => furthest = Some((index, group, end)),
        }
    }
    let mut bad = bad.into_iter();
    entries.retain(|&(inode, extent)| {
        let is_bad = bad.next() == Some(true);
        if is_bad {
            discarded.push(DiscardedExtent { inode, extent, reason });
        }
        !is_bad
    });
}
