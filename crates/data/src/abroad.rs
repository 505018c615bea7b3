//! Pieces abroad: memory that is given back to programs of this node, or is full where there is no SSD,
//! moves to the memory of other nodes (O9, O17, O19).
//!
//! Where a file's pieces are asked for is computed, and stays: this target. It keeps the row of a piece
//! that went abroad, and who needs its bytes waits until they are here again (`come_home`). So clients,
//! metadata and other targets know nothing of it, and there is one place where it is decided which
//! bytes count. The target that keeps them, the *keeper*, has them as a file of its own, under a number
//! that no shard gives (`Inode::abroad`) and that is used once. It may have it sink to its SSD, as it
//! sees fit; but takes none in unless it has room to spare, and sends none on.
//!
//! A piece goes as it sinks (`sink`): hidden, copied, and then its row says where. The row of a new
//! place is written before the copy begins, as one that is gone: after a kill such rows say what a
//! keeper may hold that is not needed (`restore_dismissed`). It is free again when the keeper has let
//! go of it.
//!
//!   none --a move begins--> going        Effect::Intend, Effect::Hide; then as in `sink`
//!   going --Copied: yes--> abroad        Effect::Publish, Effect::Unpublish of the old place
//!   going --Copied: no; asked for--> dismissed       Effect::Dismiss
//!   abroad --asked for--> coming         a move to a place here
//!   coming --Copied: yes--> dismissed    Effect::Publish at the place here, Effect::Dismiss
//!   coming --Copied: no--> abroad        who asked is refused
//!   abroad --cut off, removed--> dismissed           Effect::Unpublish, Effect::Dismiss
//!   dismissed --Dismissed--> none        Effect::Forget
//!
//! Invariants:
//!  1. What is `dismissed` has a reserved slot, and its number is no piece's.
//!  2. A file of the number of a piece abroad is changed by nobody but a copy to it.

use crate::effect::Effect;
use crate::fill::Job;
use crate::target::{Stop, Target};
use crate::tier::Found;
use crate::work::Work;
use std::collections::BTreeMap;
use wire::reply::Piece;
use wire::{DaemonIndex, Errno, Inode};

/// A keeper takes pieces in while it has more free than one part in so many of what it may hold.
const SPARE_PARTS: u64 = 4;
/// A keeper that refused is left alone for so long.
const REFUSED_MILLIS: u32 = 1000;
/// No more than have so much, or one, are brought home for who asks for pieces: he comes again.
const HOME_BYTES_MAX: u64 = 8 << 20;
/// Where the number of a piece abroad ends in its place, and its keeper begins.
const KEEPER_SHIFT: u32 = 48;

/// A target that may keep pieces.
#[derive(Clone, Copy, Debug)]
struct Keeper {
    index: DaemonIndex,
    refused_at: Option<u32>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Abroad {
    keepers: Vec<Keeper>,
    /// Whose turn it is.
    next: usize,
    next_number: u64,
    /// Pieces of this target there, and their bytes.
    count: usize,
    bytes: u64,
    /// Pieces of others here: their bytes.
    kept_bytes: u64,
    /// Places that are not needed, by their slots.
    dismissed: BTreeMap<u32, u64>,
}

/// What lies where it was not made for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Kept {
    /// Bytes of this target in the memory of others.
    pub abroad: u64,
    /// Bytes of others here.
    pub kept: u64,
}

/// Who keeps a piece abroad, and under which number.
#[must_use]
pub fn keeper(home: DaemonIndex, piece: &Piece) -> (DaemonIndex, Inode) {
    let index = DaemonIndex((piece.place >> KEEPER_SHIFT) as u16);
    (index, Inode::abroad(home, piece.place))
}

impl Abroad {
    /// True if some target may keep pieces now.
    pub(crate) fn may_take(&self, now: u32) -> bool {
        self.keepers.iter().any(|keeper| keeper.is_open(now))
    }

    /// True if there are targets that may keep pieces.
    pub(crate) const fn is_on(&self) -> bool {
        !self.keepers.is_empty()
    }

    /// A place that was never used.
    fn place(&mut self, now: u32) -> Option<u64> {
        let count = self.keepers.len();
        let open = (0..count).map(|one| (self.next + one) % count);
        let at = open.into_iter().find(|&at| self.keepers[at].is_open(now))?;
        self.next = (at + 1) % count;
        self.next_number += 1;
        Some(u64::from(self.keepers[at].index.0) << KEEPER_SHIFT | self.next_number)
    }

    fn count_in(&mut self, piece: &Piece) {
        self.count += 1;
        self.bytes += piece.length();
    }

    fn count_out(&mut self, piece: &Piece) {
        self.count -= 1;
        self.bytes -= piece.length();
    }

    /// A piece of another target is kept here from now on, or not any more.
    pub(crate) fn keep(&mut self, inode: Inode, bytes: i64) {
        if inode.is_abroad() {
            self.kept_bytes = self.kept_bytes.saturating_add_signed(bytes);
        }
    }
}

impl Keeper {
    fn is_open(&self, now: u32) -> bool {
        self.refused_at.is_none_or(|at| now.wrapping_sub(at) >= REFUSED_MILLIS)
    }
}

impl Target {
    /// These targets may keep pieces of this one: those of other nodes. Numbers begin behind `number`,
    /// which is more than any that was ever used; its lower 48 bits count. At the start.
    pub fn set_keepers(&mut self, keepers: impl IntoIterator<Item = DaemonIndex>, number: u64) {
        let open = |index| Keeper { index, refused_at: None };
        self.abroad.keepers = keepers.into_iter().map(open).collect();
        self.abroad.next_number = number & ((1 << KEEPER_SHIFT) - 1);
        self.moves.set_abroad(self.abroad.is_on());
        let pieces: Vec<_> = self.slots.iter().collect();
        for (inode, piece) in pieces {
            let in_memory = piece.tier == Piece::MEMORY;
            if in_memory && !self.clean.contains(&piece) && !self.early.contains(inode, &piece) {
                self.watch(inode, &piece);
            }
        }
    }

    /// What lies where it was not made for.
    #[must_use]
    pub fn bytes_abroad(&self) -> Kept {
        Kept { abroad: self.abroad.bytes, kept: self.abroad.kept_bytes }
    }

    /// True if this piece is abroad, there.
    #[must_use]
    pub fn is_abroad(&self, piece: &Piece) -> bool {
        self.slots.get(piece.slot).is_some_and(|(_, now)| now == *piece)
    }

    /// True if a piece of another target may come here: there is room to spare, and nobody waits.
    pub(crate) fn takes_in(&self, length: u64) -> bool {
        let kept = self.memory.allowance() / SPARE_PARTS;
        let left = self.memory.bytes_free().saturating_sub(length);
        left > kept && self.admission.is_empty() && !self.fills.is_starving()
    }

    /// Where a piece goes that leaves memory: there is room for it, as far as is known.
    pub(crate) fn way_out(&self, inode: Inode, length: u64) -> Option<u8> {
        let left = self.ssd.bytes_free().checked_sub(length);
        let to_ssd = left.is_some_and(|left| left >= self.ssd_kept_free()).then_some(Piece::SSD);
        let may_go = !inode.is_abroad() && self.abroad.may_take(self.moves.now());
        let abroad = may_go.then_some(Piece::ABROAD);
        // The SSD is nearer, but slower than memory that is wanted back can be taken.
        if self.bytes_beyond(0) > 0 { abroad.or(to_ssd) } else { to_ssd.or(abroad) }
    }

    /// A place for a piece in another tier, or none, now.
    pub(crate) fn take_to_move(
        &mut self,
        tier: u8,
        length_log2: u8,
        out: &mut Vec<Effect>,
    ) -> Option<u64> {
        let device = match tier {
            Piece::MEMORY => &mut self.memory,
            Piece::SSD => &mut self.ssd,
            _ => return self.abroad.place(self.moves.now()),
        };
        match device.take(length_log2) {
            Found::Block(place, _) => Some(place),
            Found::Extend { place, length } => {
                if self.asked.is_none() {
                    self.asked = Some(tier);
                    let haste = crate::Haste::Soon;
                    out.push(Effect::Preallocate { tier, place, length, haste });
                }
                None
            }
            Found::Full => None,
        }
    }

    /// A place is not needed, which a move was to lead to, or whose piece is elsewhere or gone. Its slot
    /// is reserved.
    pub(crate) fn dismiss(&mut self, slot: u32, place: u64, out: &mut Vec<Effect>) {
        self.abroad.dismissed.insert(slot, place);
        out.push(Effect::Dismiss { slot, place });
    }

    /// The keeper has let go of it.
    pub(crate) fn dismissed(&mut self, slot: u32, out: &mut Vec<Effect>) {
        if self.abroad.dismissed.remove(&slot).is_some() {
            self.slots.unreserve(slot);
            out.push(Effect::Forget { slot });
        }
    }

    /// A piece went abroad, or a keeper refused it.
    pub(crate) fn note_gone(&mut self, to: &Piece, went: bool) {
        if to.tier != Piece::ABROAD {
            return;
        }
        if went {
            return self.abroad.count_in(to);
        }
        let (index, now) = (keeper(DaemonIndex(0), to).0, self.moves.now());
        let mut keepers = self.abroad.keepers.iter_mut();
        if let Some(keeper) = keepers.find(|keeper| keeper.index == index) {
            keeper.refused_at = Some(now);
        }
    }

    /// A piece that is abroad is its file's no longer, or at another place. True if it was abroad.
    pub(crate) fn leave_abroad(
        &mut self,
        inode: Inode,
        piece: &Piece,
        out: &mut Vec<Effect>,
    ) -> bool {
        if piece.tier != Piece::ABROAD {
            return false;
        }
        self.abroad.count_out(piece);
        self.slots.depart(inode, piece);
        out.push(Effect::Unpublish { slot: piece.slot });
        self.dismiss(piece.slot, piece.place, out);
        true
    }

    /// Sees to it that what a request needs is here. `None`: it waits, or was answered.
    pub(crate) fn come_home(&mut self, mut job: Job, out: &mut Vec<Effect>) -> Option<Job> {
        if self.abroad.count == 0 || !job.work.uses_pieces() {
            return Some(job);
        }
        let (inode, offset, end) = job.work.range();
        let is_abroad = |piece: &Piece| piece.tier == Piece::ABROAD;
        let first = self.slots.over(inode, offset, end).find(is_abroad);
        let Some(first) = first else { return Some(job) };
        let mut end = end;
        if let Work::Map { length, ahead, .. } = &mut job.work {
            (*length, *ahead) = ((*length).min(home_length(offset, &first)), 0);
            end = offset.saturating_add(*length);
        } else if let Work::Find { length, .. } = &mut job.work {
            *length = (*length).min(home_length(offset, &first));
            end = offset.saturating_add(*length);
        }
        let cuts = matches!(job.work, Work::Clear { .. });
        let is_needed = |piece: &Piece| {
            let is_all = offset <= piece.start && piece.start + piece.length() <= end;
            is_abroad(piece) && !(cuts && is_all)
        };
        let needed: Vec<_> = self.slots.over(inode, offset, end).filter(is_needed).collect();
        if needed.is_empty() || self.is_damaged(inode) {
            return Some(job);
        }
        for piece in &needed {
            if self.is_moving(inode, piece.start) {
                continue;
            }
            if !self.may_move_another() {
                break;
            }
            if !self.begin_return(inode, piece, out) {
                if self.asked.is_some() {
                    break;
                }
                let stop = self.no_room(Errno::ENOSPC, piece.length());
                self.do_without(job, stop, out);
                return None;
            }
        }
        self.fills.wait(job);
        None
    }

    /// Begins to bring a piece home, to memory if there is room.
    fn begin_return(&mut self, inode: Inode, piece: &Piece, out: &mut Vec<Effect>) -> bool {
        [Piece::MEMORY, Piece::SSD]
            .into_iter()
            .any(|tier| self.asked.is_none() && self.begin_move(inode, *piece, tier, out))
    }

    /// There is no room for what a request needs. Who reads gets the bytes from where they are, or is
    /// told to ask for them so; others wait.
    fn do_without(&mut self, job: Job, stop: Stop, out: &mut Vec<Effect>) {
        match job.work {
            Work::Map { .. } | Work::Write { .. } => self.refuse_or_wait(job, stop, out),
            Work::Read { inode, offset, length } => {
                let end = offset + u64::from(length);
                let piece = self.slots.over(inode, offset, end).next();
                let holds =
                    |piece: &Piece| piece.start <= offset && end <= piece.start + piece.length();
                match piece.filter(holds) {
                    Some(piece) => {
                        let within = offset - piece.start;
                        let ticket = job.ticket;
                        out.push(Effect::ReadAbroad { ticket, piece, within, length });
                    }
                    None => self.starve(job, stop, out),
                }
            }
            Work::Find { .. } => {
                Target::stop(job.ticket, Stop::Refused(Errno::ENOSPC), out);
            }
            _ => self.starve(job, stop, out),
        }
    }

    /// After `recover`: these places may be held by keepers, and are not needed.
    pub fn restore_dismissed(
        &mut self,
        rows: impl IntoIterator<Item = (u32, u64)>,
        out: &mut Vec<Effect>,
    ) {
        let pieces = self.slots.iter().filter(|(_, piece)| piece.tier == Piece::ABROAD);
        let held: std::collections::BTreeSet<u64> = pieces.map(|(_, piece)| piece.place).collect();
        for (slot, place) in rows {
            if !held.contains(&place) && self.slots.reserve_at(slot) {
                self.dismiss(slot, place, out);
            }
        }
    }

    /// After `recover`: counts what is abroad, and what is kept here.
    pub(crate) fn count_abroad(&mut self) {
        let pieces: Vec<_> = self.slots.iter().collect();
        for (inode, piece) in pieces {
            self.abroad.keep(inode, piece.length().cast_signed());
            if piece.tier == Piece::ABROAD {
                self.abroad.count_in(&piece);
            }
        }
    }

    /// Holds the invariants, for tests: it looks at all pieces.
    #[cfg(test)]
    pub(crate) fn check_abroad(&self) {
        let there = || self.slots.iter().filter(|(_, piece)| piece.tier == Piece::ABROAD);
        assert_eq!(there().count(), self.abroad.count);
        assert_eq!(there().map(|(_, piece)| piece.length()).sum::<u64>(), self.abroad.bytes);
        let kept = self.slots.iter().filter(|(inode, _)| inode.is_abroad());
        assert_eq!(kept.map(|(_, piece)| piece.length()).sum::<u64>(), self.abroad.kept_bytes);
        for (slot, place) in &self.abroad.dismissed {
            assert_eq!(self.slots.get(*slot), None, "a slot that is dismissed is in use");
            assert!(there().all(|(_, piece)| piece.place != *place), "a piece was dismissed");
        }
    }
}

/// So much from `offset` on is brought home at a time, if `first` has to be.
fn home_length(offset: u64, first: &Piece) -> u64 {
    (first.start + first.length()).saturating_sub(offset).max(HOME_BYTES_MAX)
}
