//! The mechanics of every move of an extent between memory, the SSD and other nodes. `demote`,
//! `promote`, `prefetch`, `migration` and the requests that need spilled bytes decide what moves.
//!
//! An extent that moves is hidden first, so that clients ask by a message. Once no hazard pointer
//! protects it, the caller copies its bytes. Then its entry at the new location is published, and
//! the old one leaves like any extent that is taken from its file. Any access during the move
//! cancels it: the extent is republished at its old location and the copy is discarded on
//! completion. So nobody waits for a copy, and bytes change only where the extent is visible. A
//! discarded copy may start late, when the slot and the old location are another extent's: it then
//! reads useless bytes and writes only to the new location (`shm::extents`), which nobody else has
//! before the copy ends.
//!
//! Reads of other hosts neither cancel nor hinder the move of a migration: the bytes of a hidden extent
//! do not change, so they read at its old location, whose space stays protected.
//!
//!   none --begin_move--> hidden          Effect::Hide, Effect::CheckHazards
//!   hidden --Hazards, not protected--> copied  Effect::Copy
//!   hidden --Hazards, protected; accessed--> none      Effect::Show
//!   copied --accessed--> discarded                     Effect::Show
//!   copied --Copied: yes--> none         Effect::Publish at the new location, Effect::Unpublish
//!   copied --Copied: no--> none                        Effect::Show
//!   discarded --Copied--> none
//!
//! After a kill, a hidden entry is shown again unless another visible entry has its range
//! (`recover`): an entry at the new location becomes visible only when all its bytes are there.
//!
//! Moves of extents that nobody uses leave a part of those that may be in flight to others, and jobs
//! take turns at promotions (`admission::job_shares`). The caller copies them by class and job.
//!
//! Moves that no request waits for keep to a rate, if one is set; others do not, but count.
//!
//! Invariants:
//!  1. A moving extent belongs to its file at its old location; `slots` has a reserved slot for the
//!     new one.
//!  2. A moving extent is in no record of `replacement`.

use crate::admission::job_shares::JobShares;
use crate::effect::{CopyClass, Effect, FillJob, Validity};
use crate::space::pool::Pool;
use crate::tiering::Tiering;
use qos::dirty::DirtyJob;
use std::collections::BTreeMap;
use tokens::TokenBucket;
use wire::reply::Extent;
use wire::{DaemonIndex, Inode};

/// Most moves in flight: many small extents move at once, because each move needs a hazard check.
pub const MOVES_MAX: usize = 64;
/// Most bytes in flight, except for one longer extent of each class.
const MOVES_BYTES_MAX: u64 = 16 << 20;
/// Most moves and bytes of all that nobody uses now, so that a burst of them leaves some for extents in
/// use: three quarters. Promotions of these come in passes of 100 ms (`ssd_scan`), so others find places
/// between them.
const UNUSED_MOVES_MAX: usize = MOVES_MAX / 4 * 3;
const UNUSED_BYTES_MAX: u64 = MOVES_BYTES_MAX / 4 * 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MovePhase {
    /// Its hazard pointers are checked in this round.
    Hidden(u64),
    Copied,
}

/// Why an extent moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MovePurpose {
    /// Another tier suits it better, or a request needs it here.
    Tiering,
    /// This target is slow.
    Migration,
}

#[derive(Clone, Copy, Debug)]
struct Move {
    ticket: u64,
    from: Extent,
    to: Extent,
    /// The backing store has all its bytes.
    is_clean: bool,
    /// It was demoted before, and is promoted.
    returns: bool,
    purpose: MovePurpose,
    phase: MovePhase,
    class: CopyClass,
    job: FillJob,
}

/// Counters of moves since the target was created.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MoveCounts {
    /// Bytes demoted.
    pub bytes_demoted: u64,
    /// Bytes promoted.
    pub bytes_promoted: u64,
    /// Bytes that migrated to other targets.
    pub bytes_migrated: u64,
    /// Demoted bytes that were promoted again, or would have been if there were space.
    pub bytes_refaulted: u64,
    /// Moves cancelled by an access.
    pub cancelled: u64,
}

/// Moves of one target.
#[derive(Clone, Debug)]
pub(crate) struct Moves {
    under_way: BTreeMap<(Inode, u64), Move>,
    /// New locations of moves that were cancelled during their copies, by ticket.
    discarded_copies: BTreeMap<u64, (Extent, MovePurpose)>,
    next_ticket: u64,
    rate: TokenBucket,
    /// Which job's extents in use are promoted next.
    promotions: JobShares,
    /// When the SSD last failed to take or to give an extent.
    pub(crate) refused_at: Option<u32>,
    pub(crate) moved: MoveCounts,
}

impl Default for Moves {
    fn default() -> Moves {
        Moves {
            under_way: BTreeMap::new(),
            discarded_copies: BTreeMap::new(),
            next_ticket: 0,
            rate: TokenBucket::new(0),
            promotions: JobShares::default(),
            refused_at: None,
            moved: MoveCounts::default(),
        }
    }
}

impl Moves {
    /// Moves in flight, those whose copies are discarded included.
    pub(crate) fn count(&self) -> usize {
        self.under_way.len() + self.discarded_copies.len()
    }

    /// Moves begun so far.
    pub(crate) const fn begun(&self) -> u64 {
        self.next_ticket
    }

    /// True while the file's extent that begins at `start` moves.
    pub(crate) fn is_moving(&self, inode: Inode, start: u64) -> bool {
        self.under_way.contains_key(&(inode, start))
    }

    /// True while the file's extent that begins at `start` migrates to another target.
    pub(crate) fn is_migrating(&self, inode: Inode, start: u64) -> bool {
        let one = self.under_way.get(&(inode, start));
        one.is_some_and(|one| one.purpose == MovePurpose::Migration)
    }

    /// Bytes of migrations in flight, those whose copies are discarded included.
    pub(crate) fn migrating_bytes(&self) -> u64 {
        let under_way = self.under_way.values().map(|one| (&one.to, one.purpose));
        let discarded = self.discarded_copies.values().map(|(to, purpose)| (to, *purpose));
        let all = under_way.chain(discarded);
        let migrating = all.filter(|(_, purpose)| *purpose == MovePurpose::Migration);
        migrating.map(|(to, _)| to.length()).sum()
    }

    /// Bytes of memory that moves in flight will free.
    pub(crate) fn leaving_bytes(&self) -> u64 {
        let demotes = self.under_way.values().filter(|one| one.from.tier == Extent::MEMORY);
        demotes.map(|one| one.from.length()).sum()
    }

    /// True if one more move of a class may start.
    pub(crate) fn may_move_another(&self, pool: &Pool, class: CopyClass) -> bool {
        let is_own = self.under_way.values().any(|one| one.class == class);
        let unused = self.under_way.values().filter(|one| one.class != CopyClass::Serves);
        let (count, bytes) =
            unused.fold((0, 0), |(count, bytes), one| (count + 1, bytes + one.to.length()));
        let has_part =
            class == CopyClass::Serves || count < UNUSED_MOVES_MAX && bytes < UNUSED_BYTES_MAX;
        let fits = !is_own || has_part && pool.all_incoming() < MOVES_BYTES_MAX;
        fits && self.count() < MOVES_MAX && !pool.is_parked()
    }

    /// Sets the rate of moves that no request waits for, in bytes per second; 0: unlimited.
    pub(crate) const fn set_rate(&mut self, bytes_per_second: u64) {
        self.rate = TokenBucket::new(bytes_per_second);
    }

    /// True if the rate lets a move start that no request waits for.
    pub(crate) fn has_tokens(&self, now: u32) -> bool {
        self.rate.is_open(now)
    }

    /// Milliseconds until the rate lets such a move start.
    pub(crate) fn token_wait_millis(&self, now: u32) -> u32 {
        self.rate.wait_millis(now)
    }

    /// Checks the invariants; for tests: it examines all moves.
    #[cfg(test)]
    pub(crate) fn check(&self, pool: &Pool) {
        let Moves { under_way, discarded_copies, .. } = self;
        for (&(inode, start), one) in under_way {
            assert_eq!(
                pool.slots().at(inode, start),
                Some(one.from),
                "its file has another extent"
            );
            assert_eq!(pool.slots().get(one.to.slot), None, "the new slot is in use");
        }
        for tier in [Extent::MEMORY, Extent::SSD, Extent::SPILLED] {
            let discarded = discarded_copies.values().map(|(to, _)| to);
            let new = under_way.values().map(|one| &one.to).chain(discarded);
            let new = new.filter(|to| to.tier == tier);
            assert_eq!(new.map(|to| to.length()).sum::<u64>(), pool.incoming(tier));
        }
    }
}

impl Tiering {
    /// The job for which an extent moves: the one that wrote it, else the owner of the file, if known.
    fn job_of(&self, pool: &Pool, inode: Inode, extent: &Extent) -> FillJob {
        if let Some(DirtyJob { user, number }) = self.order.dirty.job_of(extent.slot) {
            return FillJob { user, number };
        }
        let owner = pool.usage().owner(inode);
        FillJob { user: owner.map_or(0, |owner| owner.uid), number: 0 }
    }

    /// True if an extent in use may be promoted now. If not, its job comes before others with more
    /// promotions in flight in the next pass.
    pub(crate) fn may_promote(&mut self, pool: &Pool, (inode, extent): (Inode, &Extent)) -> bool {
        let job = self.job_of(pool, inode, extent);
        let moves = &mut self.moves;
        let serving = moves.under_way.values().filter(|one| one.class == CopyClass::Serves);
        let is_others_turn = moves.promotions.is_others_turn(job, serving.map(|one| one.job));
        let may_move = !is_others_turn && moves.may_move_another(pool, CopyClass::Serves);
        if !may_move {
            moves.promotions.refuse(job);
        }
        may_move && moves.has_tokens(pool.now)
    }

    /// A pass over the extents on the SSD begins.
    pub(crate) fn begin_promotions(&mut self) {
        self.moves.promotions.end_round();
    }

    /// Starts moving an extent to another tier. False if that has no space, or not yet; nothing was
    /// done then.
    pub(crate) fn begin_move(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        from: Extent,
        (tier, class): (u8, CopyClass),
        out: &mut Vec<Effect>,
    ) -> bool {
        if !pool.has_vacant_slot() {
            return false;
        }
        let location = match tier {
            Extent::SPILLED => self.spill.new_location(pool.now, &|_| true),
            tier => pool.take_for_move(tier, from.length_log2, out),
        };
        let Some(location) = location else { return false };
        let why = (MovePurpose::Tiering, class);
        self.move_to(pool, (inode, from), (tier, location), why, out);
        true
    }

    /// Starts moving an extent to another target, one of those that `is_such` names. False if none of
    /// them may take it now; nothing was done then.
    pub(crate) fn begin_migration(
        &mut self,
        pool: &mut Pool,
        (inode, from): (Inode, Extent),
        is_such: &dyn Fn(DaemonIndex) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        if !pool.has_vacant_slot() {
            return false;
        }
        let Some(location) = self.spill.new_location(pool.now, is_such) else { return false };
        let place = (Extent::SPILLED, location);
        let why = (MovePurpose::Migration, CopyClass::Ahead);
        self.move_to(pool, (inode, from), place, why, out);
        true
    }

    /// Starts moving an extent; a slot is vacant.
    fn move_to(
        &mut self,
        pool: &mut Pool,
        (inode, from): (Inode, Extent),
        (tier, location): (u8, u64),
        (purpose, class): (MovePurpose, CopyClass),
        out: &mut Vec<Effect>,
    ) {
        let Some(slot) = pool.reserve_slot() else { unreachable!("one is vacant") };
        let to = Extent { slot, location, tier, ..from };
        let job = self.job_of(pool, inode, &from);
        let Tiering { order, moves, .. } = self;
        let ticket = moves.next_ticket;
        moves.next_ticket += 1;
        moves.rate.take(pool.now, to.length());
        pool.count_incoming(&to);
        let returns = from.tier == Extent::SSD && order.ssd_scan.has_demoted(from.slot);
        order.unwatch(&from);
        let is_clean = order.take_clean(&from);
        let phase = MovePhase::Hidden(pool.note_hidden());
        let one = Move { ticket, from, to, is_clean, returns, purpose, phase, class, job };
        moves.under_way.insert((inode, from.start), one);
        if tier == Extent::SPILLED {
            out.push(Effect::RecordSpillIntent { inode, extent: to });
        }
        if from.tier != Extent::SPILLED {
            out.push(Effect::Hide { slot: from.slot });
        }
    }

    /// Handles hazard check `round`: starts the copies of hidden extents. Transfers to other hosts, and
    /// nothing else, protect `reading`, some of the protected slots.
    pub(crate) fn copy_hidden(
        &mut self,
        pool: &mut Pool,
        round: u64,
        (protected, reading): (&[u32], &[u32]),
        out: &mut Vec<Effect>,
    ) {
        let mut stays = Vec::new();
        for (&(inode, _), one) in &mut self.moves.under_way {
            if !matches!(one.phase, MovePhase::Hidden(hidden) if hidden <= round) {
                continue;
            }
            let slot = one.from.slot;
            let is_only_read = one.purpose == MovePurpose::Migration && reading.contains(&slot);
            if protected.contains(&slot) && !is_only_read {
                stays.push((inode, one.from));
                continue;
            }
            one.phase = MovePhase::Copied;
            let &mut Move { ticket, class, job, from, to, .. } = one;
            out.push(Effect::Copy { ticket, class, job, from, to });
        }
        for (inode, extent) in stays {
            self.cancel_move(pool, inode, &extent, out);
            self.order.note_protected(pool, inode, &extent);
        }
    }

    /// Completion of a copy. Returns an extent that stays spilled, because its bytes cannot be had:
    /// requests for it must be refused.
    pub(crate) fn end_copy(
        &mut self,
        pool: &mut Pool,
        ticket: u64,
        outcome: wire::errno::Result<()>,
        out: &mut Vec<Effect>,
    ) -> Option<(Inode, Extent)> {
        if let Some((to, _)) = self.moves.discarded_copies.remove(&ticket) {
            self.release_copy(pool, &to, out);
            return None;
        }
        let mut under_way = self.moves.under_way.iter();
        let (&(inode, start), &one) = under_way.find(|(_, one)| one.ticket == ticket)?;
        let Move { from, to, .. } = one;
        let is_here = [from.tier, to.tier].iter().all(|&tier| tier != Extent::SPILLED);
        if is_here {
            pool.admission.note(outcome);
        }
        self.spill.note_spill_result(pool.now, &to, outcome.is_ok());
        self.moves.under_way.remove(&(inode, start));
        if outcome.is_ok() {
            self.show_moved(pool, inode, &one, out);
            return None;
        }
        if is_here {
            self.moves.refused_at = Some(pool.now);
        }
        self.release_copy(pool, &to, out);
        self.order.watch_as(pool, inode, &from, one.is_clean);
        self.note_demoted(&from, one.returns);
        if from.tier == Extent::SPILLED {
            return Some((inode, from));
        }
        out.push(Effect::Show { slot: from.slot });
        None
    }

    /// A copy is complete: the extent is shown at its new location.
    fn show_moved(&mut self, pool: &mut Pool, inode: Inode, one: &Move, out: &mut Vec<Effect>) {
        let &Move { from, to, is_clean, returns, purpose, .. } = one;
        let Tiering { order, moves, spill, .. } = self;
        pool.uncount_incoming(&to);
        order.dirty.hand_over(from.slot, to.slot);
        let counts = &mut moves.moved;
        counts.bytes_refaulted += if returns { to.length() } else { 0 };
        *match (purpose, to.tier) {
            (MovePurpose::Migration, _) => &mut counts.bytes_migrated,
            (MovePurpose::Tiering, Extent::MEMORY) => &mut counts.bytes_promoted,
            (MovePurpose::Tiering, _) => &mut counts.bytes_demoted,
        } += to.length();
        match to.tier {
            Extent::MEMORY if !is_clean && !order.pinned.contains(inode) => {
                order.watch_promoted(pool, inode, &to);
            }
            // A spilled extent must be fetched back before it can be evicted.
            Extent::SPILLED => {}
            _ => order.watch_as(pool, inode, &to, is_clean),
        }
        if to.tier == Extent::SSD {
            order.ssd_scan.note_demoted(to.slot);
        }
        let is_whole = from.tier == Extent::SPILLED;
        let valid = if is_whole { Validity::All } else { Validity::As(from) };
        out.push(Effect::Publish { inode, extent: to, valid });
        spill.leave_location(pool, inode, &from, out);
        pool.occupy_moved(inode, to);
    }

    /// Releases the new location of a move.
    fn release_copy(&mut self, pool: &mut Pool, to: &Extent, out: &mut Vec<Effect>) {
        pool.uncount_incoming(to);
        match to.tier {
            Extent::SPILLED => self.spill.release_remote(to.slot, to.location, out),
            _ => pool.release_destination(to),
        }
    }

    /// A request accesses `offset .. end` of a file: moves there are cancelled.
    pub(crate) fn cancel_moves(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        (offset, end): (u64, u64),
        out: &mut Vec<Effect>,
    ) {
        if self.moves.under_way.is_empty() {
            return;
        }
        let extents: Vec<Extent> = pool.slots().over(inode, offset, end).collect();
        for extent in extents {
            self.cancel_move(pool, inode, &extent, out);
        }
    }

    /// A read of another host accesses `offset .. end` of a file: moves there are cancelled, but
    /// migrations and returns, which it does not hinder.
    pub(crate) fn cancel_moves_for_read(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        (offset, end): (u64, u64),
        out: &mut Vec<Effect>,
    ) {
        if self.moves.under_way.is_empty() {
            return;
        }
        let extents: Vec<Extent> = pool.slots().over(inode, offset, end).collect();
        for extent in extents {
            if extent.tier != Extent::SPILLED && !self.moves.is_migrating(inode, extent.start) {
                self.cancel_move(pool, inode, &extent, out);
            }
        }
    }

    /// Cancels the move of an extent, if it moves.
    pub(crate) fn cancel_move(
        &mut self,
        pool: &mut Pool,
        inode: Inode,
        extent: &Extent,
        out: &mut Vec<Effect>,
    ) {
        let Some(one) = self.moves.under_way.remove(&(inode, extent.start)) else { return };
        self.moves.moved.cancelled += 1;
        self.order.watch_as(pool, inode, &one.from, one.is_clean);
        self.note_demoted(&one.from, one.returns);
        match one.phase {
            MovePhase::Hidden(_) => self.release_copy(pool, &one.to, out),
            MovePhase::Copied => {
                self.moves.discarded_copies.insert(one.ticket, (one.to, one.purpose));
            }
        }
        if one.from.tier != Extent::SPILLED {
            out.push(Effect::Show { slot: one.from.slot });
        }
    }

    /// Notes that an extent is on the SSD because it was demoted, if `has_demoted`.
    fn note_demoted(&mut self, extent: &Extent, has_demoted: bool) {
        if has_demoted && extent.tier == Extent::SSD {
            self.order.ssd_scan.note_demoted(extent.slot);
        }
    }
}
