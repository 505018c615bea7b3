//! Sinking: cool pieces move from memory to the SSD of the same target, so that memory has room for who
//! writes next (O14, O16, O17). And how a piece moves, which is the same upwards (`rise`).
//!
//! A piece that moves is hidden first, so that clients come and ask; once nobody pins it, its bytes
//! are copied by the caller; then its row at the new place is shown, and the old one goes as any
//! piece goes that is taken from its file. Whoever asks for it meanwhile ends the move at once: the
//! piece is shown where it was, and the copy is thrown away when it ends. So nobody waits for a copy,
//! and bytes change only where the piece is seen. A copy that is thrown away may begin late, when the
//! slot and the old place are another piece's: what it reads is of no use then, and it writes to the new
//! place alone (`shm::piece_io`), which nobody else has before it ended.
//!
//!   none --sink, rise--> hidden          Effect::Hide, Effect::CheckPins
//!   hidden --Pins, not pinned--> copied  Effect::Copy
//!   hidden --Pins, pinned; asked for--> none           Effect::Show
//!   copied --asked for--> thrown away                  Effect::Show
//!   copied --Copied: yes--> none         Effect::Publish at the new place, Effect::Unpublish
//!   copied --Copied: no--> none                        Effect::Show
//!   thrown away --Copied--> none
//!
//! After a kill a row that is hidden and has no other that is shown is shown again (`recover`): a row
//! at the new place is shown when all its bytes are there, and not before.
//!
//! What nobody waits for keeps to a rate, if one is set; what somebody waits for does not, but counts.
//!
//! Invariants:
//!  1. A piece that moves is its file's at its old place: `slots` knows the new one by a reserved slot.
//!  2. `Moves::bytes` are what the new places in a tier take, also those of copies that are thrown away.

use crate::coolness::{ANYBODY, Out, Policy, Waves};
use crate::effect::{Defined, Effect};
use crate::target::Target;
use crate::thresholds::{Counts, InForce};
use std::collections::BTreeMap;
use tokens::TokenBucket;
use wire::Inode;
use wire::reply::Piece;

/// Most moves under way: small pieces go many at a time, as each move takes a look at the pins.
pub const MOVES_MAX: usize = 64;
/// Most bytes under way, but for one piece that is longer.
const MOVES_BYTES_MAX: u64 = 16 << 20;
/// Most marks of pieces that are looked at in one step: some microseconds.
const LOOKS_MAX: u32 = 256;
/// Once pieces sink, they do until one part in so many of the memory more is free than at what they
/// began.
const BEYOND_PARTS: u64 = 16;
/// So much of the SSD stays free for who writes: one part in so many.
const SSD_FREE_PARTS: u64 = 16;
/// After the SSD refused, nothing sinks for so long.
const REFUSED_MILLIS: u32 = 1000;

/// When pieces sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sinking {
    /// While less memory than this is free, those that are idle (Cn); 0: none.
    pub normal_below_bytes: u64,
    /// While less than this is, the least recently used (Cf).
    pub forced_below_bytes: u64,
    /// How long an idle one was not in use.
    pub idle_millis: u32,
}

impl Sinking {
    /// Nothing ever sinks.
    pub const NEVER: Sinking =
        Sinking { normal_below_bytes: 0, forced_below_bytes: 0, idle_millis: 0 };
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its pins are to be looked at in this round.
    Hidden(u64),
    Copied,
}

#[derive(Clone, Copy, Debug)]
struct Move {
    ticket: u64,
    from: Piece,
    to: Piece,
    /// All its bytes lie below, too.
    is_clean: bool,
    /// It sank before, and comes up.
    returns: bool,
    stage: Stage,
}

/// What was moved since the target was made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Moved {
    /// Bytes that sank.
    pub bytes_sunk: u64,
    /// Bytes that rose.
    pub bytes_risen: u64,
    /// What had sunk, and rose or would have if there were room.
    pub bytes_returned: u64,
    /// Moves that were ended by use.
    pub cancelled: u64,
}

/// Moves of one target.
#[derive(Clone, Debug)]
pub(crate) struct Moves {
    sinking: Sinking,
    /// There is an SSD, or somebody who keeps pieces.
    has_way_out: bool,
    has_ssd: bool,
    policy: Waves,
    under_way: BTreeMap<(Inode, u64), Move>,
    /// New places of moves that were ended in the middle of their copies, by ticket.
    thrown_away: BTreeMap<u64, Piece>,
    /// By tier of the new places.
    bytes: [u64; 3],
    next_ticket: u64,
    rate: TokenBucket,
    is_on: bool,
    refused_at: Option<u32>,
    now: u32,
    moved: Moved,
    /// But for what moved; see `counts`.
    made: Counts,
}

impl Moves {
    /// Without an SSD nothing moves.
    pub(crate) const fn new(sinking: Sinking, has_ssd: bool) -> Moves {
        Moves {
            sinking,
            has_way_out: has_ssd,
            has_ssd,
            policy: Waves::new(sinking.idle_millis),
            under_way: BTreeMap::new(),
            thrown_away: BTreeMap::new(),
            bytes: [0; 3],
            next_ticket: 0,
            rate: TokenBucket::new(0),
            is_on: false,
            refused_at: None,
            now: 0,
            moved: Moved { bytes_sunk: 0, bytes_risen: 0, bytes_returned: 0, cancelled: 0 },
            made: Counts::ZERO,
        }
    }

    /// Bytes of new places in a tier.
    pub(crate) const fn bytes_to(&self, tier: u8) -> u64 {
        self.bytes[tier as usize]
    }

    /// Bytes of new places in the devices of this target.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes[0] + self.bytes[1]
    }

    pub(crate) const fn has_ssd(&self) -> bool {
        self.has_ssd
    }

    /// Others keep pieces, or nobody does.
    pub(crate) fn set_abroad(&mut self, is_on: bool) {
        self.has_way_out = self.has_ssd || is_on;
    }

    /// With less memory free than this, pieces sink.
    pub(crate) fn sinks_below(&self) -> u64 {
        if !self.has_ssd {
            return 0;
        }
        self.sinking.normal_below_bytes.max(self.sinking.forced_below_bytes)
    }

    /// While so much stays free, what is used on the SSD may come up for what is idle here.
    pub(crate) const fn changes_above(&self) -> u64 {
        let Sinking { normal_below_bytes: normal, forced_below_bytes: forced, .. } = self.sinking;
        forced.saturating_add(normal.saturating_sub(forced) / 2)
    }

    /// See `Policy::has_idle`.
    pub(crate) fn has_idle(&self) -> bool {
        let may_sink = self.sinking.normal_below_bytes > 0;
        may_sink && self.policy.has_idle(self.now)
    }

    /// The time of the last look for something to move.
    pub(crate) const fn now(&self) -> u32 {
        self.now
    }

    /// See `now`.
    pub(crate) const fn set_now(&mut self, now: u32) {
        self.now = now;
    }

    /// A piece of a file is here now.
    pub(crate) fn insert(&mut self, holder: u8, piece: &Piece) {
        if piece.tier == Piece::MEMORY && self.has_way_out {
            self.policy.insert_of(holder, piece, false, self.now);
        }
    }

    /// A piece came up because it is in use.
    fn insert_proven(&mut self, holder: u8, piece: &Piece) {
        if self.sinking != Sinking::NEVER {
            self.policy.insert_of(holder, piece, true, self.now);
        }
    }

    /// A piece is this holder's from now on.
    pub(crate) fn give(&mut self, slot: u32, holder: u8) {
        self.policy.give(slot, holder, self.now);
    }

    /// A piece that may sink, and is somebody's, is proven to be in use.
    pub(crate) fn prove(&mut self, holder: u8, piece: &Piece) {
        if holder != ANYBODY && piece.tier == Piece::MEMORY && self.policy.contains(piece.slot) {
            self.policy.insert_of(holder, piece, true, self.now);
        }
    }

    /// Pieces in memory that may sink.
    pub(crate) const fn policy(&self) -> &Waves {
        &self.policy
    }

    /// A piece is its file's no longer, or early.
    pub(crate) fn remove(&mut self, piece: &Piece) {
        if piece.tier == Piece::MEMORY {
            self.policy.remove(piece.slot);
        }
    }

    fn count(&self) -> usize {
        self.under_way.len() + self.thrown_away.len()
    }
}

impl Target {
    /// What was moved so far.
    #[must_use]
    pub fn moved(&self) -> Moved {
        self.moves.moved
    }

    /// Moves under way, those included whose copies are thrown away.
    #[must_use]
    pub fn moves_count(&self) -> usize {
        self.moves.count()
    }

    /// True while memory is short enough for pieces to sink, and the SSD has room for them.
    #[must_use]
    pub fn is_sinking(&mut self) -> bool {
        let out = self.out();
        self.moves.is_on &= out.is_some();
        let has_room = self.ssd.bytes_free() > self.ssd_kept_free();
        out.is_some() && (has_room || self.abroad.is_on())
    }

    /// Bytes of the SSD that stay free for who writes; none while memory is to be given back, or while
    /// somebody waits, for whom the gaps there are too short.
    pub(crate) fn ssd_kept_free(&self) -> u64 {
        if self.bytes_beyond(0) > 0 || !self.admission.is_empty() {
            0
        } else {
            self.ssd.bytes_total() / SSD_FREE_PARTS
        }
    }

    /// True if nothing goes for who waits, or because memory is given back.
    fn has_time(&self) -> bool {
        !self.clean.is_needed() && self.admission.is_empty() && self.bytes_beyond(0) == 0
    }

    /// True if what is cool can sink, and need not go at once.
    pub(crate) fn can_sink(&self) -> bool {
        let Moves { has_ssd, sinking, .. } = self.moves;
        let has_room = self.ssd.bytes_free() > self.ssd_kept_free();
        self.has_time() && has_ssd && sinking != Sinking::NEVER && has_room
    }

    /// Which pieces are to sink now.
    fn out(&self) -> Option<Out> {
        let Moves { sinking, has_way_out, is_on, ref under_way, .. } = self.moves;
        let sinks = under_way.values().filter(|one| one.from.tier == Piece::MEMORY);
        let leaves: u64 = sinks.map(|one| one.from.length()).sum();
        // What is clean goes first, and without a copy.
        let clean = self.clean.bytes(Piece::MEMORY);
        if has_way_out && self.bytes_beyond(leaves + clean) > 0 {
            return Some(Out::Forced);
        }
        let clean = clean - self.spared_bytes();
        if !has_way_out || sinking == Sinking::NEVER {
            return None;
        }
        // What will be free in a moment, and what nobody asked for yet.
        let free = self.memory.bytes_free() + leaves + self.early_bytes();
        let beyond = if is_on { self.memory.bytes_total() / BEYOND_PARTS } else { 0 };
        let normal = self.of_allowance(sinking.normal_below_bytes).saturating_add(beyond);
        // What is idle stays rather than going to other nodes.
        let normal = if self.moves.has_ssd { normal } else { 0 };
        match free {
            _ if free + clean < self.of_allowance(sinking.forced_below_bytes) => Some(Out::Forced),
            _ if free < normal => Some(Out::Normal),
            _ => None,
        }
    }

    /// Begins to move what is cool, if memory is short. To be called now and then while `is_sinking`, and
    /// when a copy ended. `was_used` says whether a piece was used since it was last asked about, and
    /// forgets it. True if something began to move.
    pub fn sink(
        &mut self,
        now_millis: u32,
        was_used: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<Effect>,
    ) -> bool {
        self.moves.now = now_millis;
        let refused_for = self.moves.refused_at.map(|at| now_millis.wrapping_sub(at));
        if refused_for.is_some_and(|millis| millis < REFUSED_MILLIS) {
            return false;
        }
        self.moves.refused_at = None;
        let before = self.moves.next_ticket;
        let givers = self.givers(Piece::MEMORY);
        let in_turn = self.has_time();
        while let Some(kind) = self.out() {
            self.moves.is_on = true;
            if !self.may_move_another() || !self.is_sinking() || in_turn && !self.has_tokens() {
                break;
            }
            let ahead = &mut self.ahead;
            let mut was_used = |slot| {
                let is_used = was_used(slot);
                if is_used {
                    ahead.note_used(slot);
                }
                is_used
            };
            let policy = &mut self.moves.policy;
            let givers = (givers.as_slice(), in_turn);
            let victim = policy.victim_of(givers, now_millis, kind, LOOKS_MAX, &mut was_used);
            let Some((inode, from)) = victim.and_then(|slot| self.slots.get(slot)) else { break };
            let way = self.way_out(inode, from.length());
            if !way.is_some_and(|tier| self.begin_move(inode, from, tier, out)) {
                self.watch(inode, &from);
                break;
            }
        }
        self.finish(out);
        self.moves.next_ticket > before
    }

    /// True if one more move may begin.
    pub(crate) fn may_move_another(&self) -> bool {
        let bytes = self.moves.bytes() + self.moves.bytes_to(Piece::ABROAD);
        let is_room = self.moves.under_way.is_empty() || bytes < MOVES_BYTES_MAX;
        is_room && self.moves.count() < MOVES_MAX && !self.is_waiting()
    }

    /// So many bytes a second are moved as far as nobody waits for them; 0: as fast as they can be.
    pub fn set_move_rate(&mut self, bytes_per_second: u64) {
        self.moves.rate = TokenBucket::new(bytes_per_second);
    }

    /// True if the rate lets something move that nobody waits for.
    pub(crate) fn has_tokens(&self) -> bool {
        self.moves.rate.is_open(self.moves.now)
    }

    /// Milliseconds from the last look on for which nothing is moved that nobody waits for.
    #[must_use]
    pub fn move_wait_millis(&self) -> u32 {
        self.moves.rate.wait_millis(self.moves.now)
    }

    /// True while a piece of this file that begins there moves.
    pub(crate) fn is_moving(&self, inode: Inode, start: u64) -> bool {
        self.moves.under_way.contains_key(&(inode, start))
    }

    /// Begins to move a piece to the other tier. False if there is no room for it, or not yet; nothing
    /// was done then.
    pub(crate) fn begin_move(
        &mut self,
        inode: Inode,
        from: Piece,
        tier: u8,
        out: &mut Vec<Effect>,
    ) -> bool {
        if self.slots.vacant().is_none() {
            return false;
        }
        let Some(place) = self.take_to_move(tier, from.length_log2, out) else { return false };
        let Some(slot) = self.slots.reserve() else { unreachable!("one is vacant") };
        let to = Piece { slot, place, tier, ..from };
        let ticket = self.moves.next_ticket;
        self.moves.next_ticket += 1;
        self.moves.rate.take(self.moves.now, to.length());
        self.moves.bytes[usize::from(tier)] += to.length();
        let returns = from.tier == Piece::SSD && self.rising.has_sunk(from.slot);
        self.unwatch(&from);
        let is_clean = self.take_clean(&from);
        let stage = Stage::Hidden(self.round);
        let one = Move { ticket, from, to, is_clean, returns, stage };
        self.moves.under_way.insert((inode, from.start), one);
        self.has_left = true;
        if tier == Piece::ABROAD {
            out.push(Effect::Intend { inode, piece: to });
        }
        if from.tier != Piece::ABROAD {
            out.push(Effect::Hide { slot: from.slot });
        }
        true
    }

    /// The pins were looked at in a round.
    pub(crate) fn copy_hidden(&mut self, round: u64, pinned: &[u32], out: &mut Vec<Effect>) {
        let mut stays = Vec::new();
        for (&(inode, _), one) in &mut self.moves.under_way {
            if !matches!(one.stage, Stage::Hidden(hidden) if hidden <= round) {
                continue;
            }
            if pinned.contains(&one.from.slot) {
                stays.push((inode, one.from));
                continue;
            }
            one.stage = Stage::Copied;
            out.push(Effect::Copy { ticket: one.ticket, from: one.from, to: one.to });
        }
        for (inode, piece) in stays {
            self.end_move(inode, &piece, out);
            self.note_pinned(inode, &piece);
        }
    }

    /// A copy ended.
    pub(crate) fn copied(
        &mut self,
        ticket: u64,
        outcome: wire::errno::Result<()>,
        out: &mut Vec<Effect>,
    ) {
        if let Some(to) = self.moves.thrown_away.remove(&ticket) {
            return self.give_up(&to, out);
        }
        let mut under_way = self.moves.under_way.iter();
        let Some((&(inode, start), &one)) = under_way.find(|(_, one)| one.ticket == ticket) else {
            return;
        };
        let Move { from, to, is_clean, returns, .. } = one;
        let is_here = [from.tier, to.tier].iter().all(|&tier| tier != Piece::ABROAD);
        if is_here {
            self.admission.note(outcome);
        }
        self.note_gone(&to, outcome.is_ok());
        if outcome.is_err() {
            if is_here {
                self.moves.refused_at = Some(self.moves.now);
            }
            self.moves.under_way.remove(&(inode, start));
            self.give_up(&to, out);
            self.watch_as(inode, &from, is_clean);
            self.note_sunk(&from, returns);
            return self.show_again(inode, &from, out);
        }
        self.moves.under_way.remove(&(inode, start));
        self.moves.bytes[usize::from(to.tier)] -= to.length();
        let Moved { bytes_sunk, bytes_risen, bytes_returned, .. } = &mut self.moves.moved;
        *bytes_returned += if returns { to.length() } else { 0 };
        *(if to.tier == Piece::MEMORY { bytes_risen } else { bytes_sunk }) += to.length();
        match to.tier {
            Piece::MEMORY if !is_clean && !self.is_resident(inode) => {
                let holder = self.holder(inode);
                self.moves.insert_proven(holder, &to);
            }
            // It may be dropped only where it is.
            Piece::ABROAD => {}
            _ => self.watch_as(inode, &to, is_clean),
        }
        self.note_sunk(&to, to.tier == Piece::SSD);
        let is_whole = from.tier == Piece::ABROAD;
        let defined = if is_whole { Defined::All } else { Defined::As(from) };
        out.push(Effect::Publish { inode, piece: to, defined });
        self.leave(inode, &from, out);
        self.slots.place(inode, to);
    }

    /// The new place of a piece is not needed.
    fn give_up(&mut self, to: &Piece, out: &mut Vec<Effect>) {
        self.moves.bytes[usize::from(to.tier)] -= to.length();
        let device = match to.tier {
            Piece::MEMORY => &mut self.memory,
            Piece::SSD => &mut self.ssd,
            _ => return self.dismiss(to.slot, to.place, out),
        };
        device.release(to.place, to.length_log2);
        self.slots.unreserve(to.slot);
    }

    /// A piece stays where it was. One that is abroad nobody sees, and who asked for it is refused.
    fn show_again(&mut self, inode: Inode, from: &Piece, out: &mut Vec<Effect>) {
        match from.tier {
            Piece::ABROAD => self.refuse_users(inode, from, out),
            _ => out.push(Effect::Show { slot: from.slot }),
        }
    }

    /// Somebody asks for `offset .. end` of a file: what moves there stays.
    pub(crate) fn end_moves(
        &mut self,
        inode: Inode,
        (offset, end): (u64, u64),
        out: &mut Vec<Effect>,
    ) {
        if self.moves.under_way.is_empty() {
            return;
        }
        let pieces: Vec<Piece> = self.slots.over(inode, offset, end).collect();
        for piece in pieces {
            self.end_move(inode, &piece, out);
        }
    }

    /// Ends the move of a piece, if it moves.
    pub(crate) fn end_move(&mut self, inode: Inode, piece: &Piece, out: &mut Vec<Effect>) {
        let Some(one) = self.moves.under_way.remove(&(inode, piece.start)) else { return };
        self.moves.moved.cancelled += 1;
        self.watch_as(inode, &one.from, one.is_clean);
        self.note_sunk(&one.from, one.returns);
        match one.stage {
            Stage::Hidden(_) => self.give_up(&one.to, out),
            Stage::Copied => drop(self.moves.thrown_away.insert(one.ticket, one.to)),
        }
        if one.from.tier != Piece::ABROAD {
            out.push(Effect::Show { slot: one.from.slot });
        }
    }

    /// A writer has a new piece.
    pub(crate) fn note_made(&mut self, piece: &Piece) {
        self.moves.made.pieces_made += 1;
        self.moves.made.bytes_made += piece.length();
        self.moves.made.bytes_missed += if piece.tier == Piece::SSD { piece.length() } else { 0 };
    }

    /// What `thresholds` follow, but for `sunk_micros`.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Moved { bytes_sunk, bytes_returned, .. } = self.moves.moved;
        Counts { bytes_sunk, bytes_returned, ..self.moves.made }
    }

    /// Bytes of memory that may be held, and of these those that are free, or nobody asked for yet.
    #[must_use]
    pub fn memory_room(&self) -> (u64, u64) {
        (self.memory.allowance(), self.memory.bytes_free() + self.early_bytes())
    }

    /// A piece on the SSD would come up if there were room. It counts once.
    pub(crate) fn note_wanted(&mut self, piece: &Piece) {
        if self.rising.take_sunk(piece.slot) {
            self.moves.moved.bytes_returned += piece.length();
        }
    }

    /// A piece is on the SSD because it sank, if `has_sunk`.
    fn note_sunk(&mut self, piece: &Piece, has_sunk: bool) {
        if has_sunk && piece.tier == Piece::SSD {
            self.rising.note_sunk(piece.slot);
        }
    }

    /// These thresholds are in force from now on, as parts of what is allowed of the memory.
    pub fn set_thresholds(&mut self, to: &InForce) {
        let (allowed, all) = (self.memory.allowance().max(1), self.memory.length());
        let of_all = |bytes: u64| {
            let bytes = u128::from(bytes) * u128::from(all) / u128::from(allowed);
            u64::try_from(bytes).unwrap_or(u64::MAX).min(all)
        };
        let sinking = &mut self.moves.sinking;
        sinking.normal_below_bytes = of_all(to.normal_below_bytes);
        sinking.forced_below_bytes = of_all(to.forced_below_bytes);
        self.rising.counts_wanted = true;
        self.clean.set_reserve(sinking.forced_below_bytes);
    }

    /// Pieces sink as this says from now on.
    #[cfg(test)]
    pub(crate) fn set_sinking(&mut self, sinking: Sinking) {
        self.moves.sinking = sinking;
    }

    /// Holds the invariants, for tests: it looks at all moves.
    #[cfg(test)]
    pub(crate) fn check_moves(&self) {
        let Moves { under_way, thrown_away, .. } = &self.moves;
        for (&(inode, start), one) in under_way {
            assert_eq!(self.slots.at(inode, start), Some(one.from), "its file has another piece");
            assert_eq!(self.slots.get(one.to.slot), None, "the new slot is in use");
        }
        for tier in [Piece::MEMORY, Piece::SSD, Piece::ABROAD] {
            let new = under_way.values().map(|one| &one.to).chain(thrown_away.values());
            let new = new.filter(|to| to.tier == tier);
            assert_eq!(new.map(|to| to.length()).sum::<u64>(), self.moves.bytes_to(tier));
        }
    }
}
