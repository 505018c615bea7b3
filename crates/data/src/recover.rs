//! After a kill: from the rows of the piece table back to a target.
//!
//! The table is the only truth. A row is published by storing its fields, its checksum, and last
//! its inode; it is taken away by a bit of the inode. A kill in between leaves an empty row either way,
//! and the space of an empty row is free, unless somebody still pins what it held: then it waits for
//! him as if it had left just now. A row whose checksum is wrong is read as empty, too.
//!
//! A row may be hidden for a moment. If another row that is shown has the same range of the file, the
//! piece had come to its new place, and the hidden row goes (`sink`); else it is shown again.
//!
//! What is left is still not believed: a row that can not be (a place outside, an odd start) or
//! that claims what another row claims is dropped. Of two rows that claim the same, both are
//! dropped, because nothing says which bytes these are; their files answer EIO until they are
//! removed or cut to nothing.

use crate::buddy::{BLOCK_LOG2_MAX, BLOCK_LOG2_MIN};
use crate::effect::Effect;
use crate::target::{Settings, Target};
use std::collections::BTreeSet;
use wire::Inode;
use wire::limits::FILE_BYTES_MAX;
use wire::reply::Piece;

/// Why a row was dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// No piece of any file looks like this, or it lies outside its device.
    Impossible,
    /// Another row claims some of its place.
    PlaceTwice,
    /// Another row claims some of its range of the file, or its slot.
    RangeTwice,
}

/// A row that was not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// The file that it named.
    pub inode: Inode,
    /// The piece that it described.
    pub piece: Piece,
    /// What is wrong with it.
    pub reason: Reason,
}

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.reason {
            Reason::Impossible => "is impossible",
            Reason::PlaceTwice => "claims a place that another claims",
            Reason::RangeTwice => "claims a range of the file that another claims",
        };
        let Piece { start, slot, place, length_log2, tier } = self.piece;
        let inode = self.inode.0;
        write!(f, "a row of the piece table {what}, slot={slot} inode={inode} start={start} ")?;
        write!(f, "place={place} length_log2={length_log2} tier={tier}")
    }
}

impl Target {
    /// Builds a target from the rows that the piece table holds: those that are shown, and those that are
    /// hidden for a moment. `out` gets what must be done about the latter and about rows that were
    /// dropped; the second result says why, for the log.
    #[must_use]
    pub fn recover(
        settings: Settings,
        shown: impl IntoIterator<Item = (Inode, Piece)>,
        hidden: impl IntoIterator<Item = (Inode, Piece)>,
        out: &mut Vec<Effect>,
    ) -> (Target, Vec<Dropped>) {
        let mut dropped = Vec::new();
        let mut rows: Vec<(Inode, Piece)> = shown.into_iter().collect();
        let range = |&(inode, piece): &(Inode, Piece)| (inode, piece.start, piece.length_log2);
        let ranges: BTreeSet<_> = rows.iter().map(range).collect();
        let (abroad, hidden): (Vec<_>, Vec<_>) =
            hidden.into_iter().partition(|(_, piece)| piece.tier == Piece::ABROAD);
        for row in hidden {
            let (slot, was_replaced) = (row.1.slot, ranges.contains(&range(&row)));
            if was_replaced {
                out.push(Effect::Unpublish { slot });
                continue;
            }
            out.push(Effect::Show { slot });
            rows.push(row);
        }
        // What is here is what counts: a copy either way ended, or did not matter.
        let ranges: BTreeSet<_> = rows.iter().map(range).collect();
        let (needless, abroad): (Vec<_>, Vec<_>) =
            abroad.into_iter().partition(|row| ranges.contains(&range(row)));
        rows.extend(abroad);
        rows.retain(|&(inode, piece)| {
            let possible = is_possible(&settings, inode, &piece);
            if !possible {
                dropped.push(Dropped { inode, piece, reason: Reason::Impossible });
            }
            possible
        });
        let slot = |_: Inode, piece: &Piece| (0, u64::from(piece.slot), 1);
        let place = |_: Inode, piece: &Piece| {
            let length = if piece.tier == Piece::ABROAD { 1 } else { piece.length() };
            (u64::from(piece.tier), piece.place, length)
        };
        let range = |inode: Inode, piece: &Piece| (inode.0, piece.start, piece.length());
        drop_overlaps(&mut rows, slot, Reason::RangeTwice, &mut dropped);
        drop_overlaps(&mut rows, place, Reason::PlaceTwice, &mut dropped);
        drop_overlaps(&mut rows, range, Reason::RangeTwice, &mut dropped);

        let mut target = Target::new(settings);
        for (_, piece) in &rows {
            let device = match piece.tier {
                Piece::MEMORY => &mut target.memory,
                Piece::SSD => &mut target.ssd,
                _ => continue,
            };
            let taken = device.take_at(piece.place, piece.length_log2);
            assert!(taken, "rows that overlap were dropped: slot={}", piece.slot);
        }
        target.slots.restore(&rows);
        rows.iter().for_each(|(inode, piece)| target.watch(*inode, piece));
        target.count_abroad();
        for (_, piece) in needless {
            out.push(Effect::Unpublish { slot: piece.slot });
            target.restore_dismissed([(piece.slot, piece.place)], out);
        }
        target.damaged = dropped.iter().map(|row| row.inode).collect();
        let shown = dropped.iter().filter(|row| row.piece.slot < settings.slot_count);
        out.extend(shown.map(|row| Effect::Unpublish { slot: row.piece.slot }));
        (target, dropped)
    }

    /// After `recover`: these pieces had left their files, and somebody may still copy from them or
    /// into them. Their places are used anew when nobody pins them any more. One whose place is in use
    /// had been freed: whoever pins it has yet to look, and will find that it is gone.
    pub fn restore_leaving(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        for piece in pieces {
            let device = match piece.tier {
                Piece::MEMORY => &mut self.memory,
                Piece::SSD => &mut self.ssd,
                _ => continue,
            };
            if !fits(&piece, device.length()) || !device.take_at(piece.place, piece.length_log2) {
                continue;
            }
            if self.slots.restore_leaving(piece, self.round) {
                self.has_left = true;
            } else {
                device.release(piece.place, piece.length_log2);
            }
        }
    }
}

/// True for a block that a device of so many bytes may have.
fn fits(piece: &Piece, space_bytes: u64) -> bool {
    (BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX).contains(&piece.length_log2)
        && piece.place.is_multiple_of(piece.length())
        && piece.place.checked_add(piece.length()).is_some_and(|end| end <= space_bytes)
}

fn is_possible(settings: &Settings, inode: Inode, piece: &Piece) -> bool {
    let space = match piece.tier {
        Piece::MEMORY => settings.memory,
        Piece::SSD => settings.ssd,
        Piece::ABROAD => return is_possible_abroad(settings, inode, piece),
        _ => return false,
    };
    !inode.is_none()
        && fits(piece, space.length)
        && piece.slot < settings.slot_count
        && piece.start.is_multiple_of(piece.length())
        && piece.start.checked_add(piece.length()).is_some_and(|end| end <= FILE_BYTES_MAX + 1)
}

/// As `is_possible`: of its place nothing is known here.
fn is_possible_abroad(settings: &Settings, inode: Inode, piece: &Piece) -> bool {
    !inode.is_none()
        && (BLOCK_LOG2_MIN..=BLOCK_LOG2_MAX).contains(&piece.length_log2)
        && piece.slot < settings.slot_count
        && piece.start.is_multiple_of(piece.length())
        && piece.start.checked_add(piece.length()).is_some_and(|end| end <= FILE_BYTES_MAX + 1)
}

/// Drops every row that shares something of its range (group, start, length) with another row.
fn drop_overlaps(
    rows: &mut Vec<(Inode, Piece)>,
    range: impl Fn(Inode, &Piece) -> (u64, u64, u64),
    reason: Reason,
    dropped: &mut Vec<Dropped>,
) {
    rows.sort_by_cached_key(|(inode, piece)| range(*inode, piece));
    let mut bad = vec![false; rows.len()];
    // The row that reaches furthest so far, and where to.
    let mut furthest: Option<(usize, u64, u64)> = None;
    for (index, (inode, piece)) in rows.iter().enumerate() {
        let (group, start, length) = range(*inode, piece);
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
    rows.retain(|&(inode, piece)| {
        let is_bad = bad.next() == Some(true);
        if is_bad {
            dropped.push(Dropped { inode, piece, reason });
        }
        !is_bad
    });
}
