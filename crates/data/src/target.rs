//! The target: requests in, effects out.
//!
//! A request is run to its end in one step, except that one which needs space that the device must
//! preallocate first is parked until the device answered. What comes behind it is parked, too, unless it
//! only looks, or gives room and is of another file: so changes of a file happen in the order in which
//! they came. Who removes a file waits for nobody.
//!
//!   arrived --run--> answered            `Target::run`
//!   arrived --room must be made--> parked `Target::run`   Effect::Preallocate
//!   arrived --another is parked--> parked `Target::step`
//!   parked --the device answered--> run   `Target::resume`
//!   run --no room--> waiting              `Target::wait`
//!
//! New pieces go to memory while it has room, then to the SSD; who finds none waits (`admission`). What
//! is freed waits for the pins of clients in `slots`.
//!
//! Invariants, checked at the end of each step:
//!  1. Each tier's bytes are accounted for (`tier`); pieces that leave count as used.
//!  2. The front of `parked`, and nothing else, waits for a device.
//!  3. The used bytes of both tiers are within the quota.

use crate::abroad::Abroad;
use crate::accounts::{Accounts, Beyond, is_first};
use crate::admission::Admission;
use crate::ahead::{Ahead, Member};
use crate::buddy::History;
use crate::clean::Clean;
use crate::early::Early;
use crate::effect::{Answer, Defined, Effect, Haste, Input, Source};
use crate::fill::{Fills, Job, Need};
use crate::lend::GivingBack;
use crate::parts::Parts;
use crate::resident::Residents;
use crate::rise::Rising;
use crate::saving::Saving;
use crate::shares::Shares;
use crate::sink::{Moves, Sinking};
use crate::slots::Slots;
use crate::tier::{Found, Space, Tier};
use crate::uses::Uses;
use crate::wish::Wishes;
use crate::work::Work;
use placement::piece::{self, Span};
use std::collections::{BTreeSet, VecDeque};
use wire::limits::SLOT_BYTES;
use wire::reply::Piece;
use wire::{DaemonIndex, Errno, Inode};

/// Most pieces of one answer to `MapPieces`: it must fit a slot.
pub const MAP_PIECES_MAX: usize = 256;
/// When to come again for space that is just being freed: the pins are looked at in the very loop
/// that gets the answer, so this is one round trip.
const RETRY_MICROS: u32 = 100;
/// When to come again for space of early pieces: the caller makes sure that nobody uses them.
const EARLY_RETRY_MICROS: u32 = 10_000;
/// When to come again for space of clean pieces: mostly they go at once.
const DROP_RETRY_MICROS: u32 = 1_000;

const _: () = assert!(MAP_PIECES_MAX * Piece::BYTES + 1024 <= SLOT_BYTES);

/// What a target is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The arena.
    pub memory: Space,
    /// The SSD file.
    pub ssd: Space,
    /// Rows of the piece table.
    pub slot_count: u32,
    /// Most bytes that pieces may hold together; `u64::MAX` for no quota.
    pub quota_bytes: u64,
    /// When pieces sink from memory to the SSD.
    pub sinking: Sinking,
}

/// Why a piece can not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// For good.
    Refused(Errno),
    /// There is no room, and nothing here leaves.
    Full(Errno),
    /// Others wait for room.
    Behind,
    /// Space is being freed.
    Busy,
    /// Early pieces will be given back.
    Early,
    /// Clean pieces will be dropped.
    Dropping,
    /// A device preallocates.
    Parked,
    /// It takes longer than who waits does, and goes on.
    GoesOn,
    /// Whose the file is may not use more.
    Beyond(Beyond),
}

/// One target.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) memory: Tier,
    pub(crate) ssd: Tier,
    pub(crate) slots: Slots,
    /// Files of which a piece was lost; see `recover`.
    pub(crate) damaged: BTreeSet<Inode>,
    pub(crate) early: Early,
    pub(crate) accounts: Accounts,
    pub(crate) fills: Fills,
    pub(crate) moves: Moves,
    pub(crate) rising: Rising,
    pub(crate) abroad: Abroad,
    pub(crate) residents: Residents,
    pub(crate) clean: Clean,
    pub(crate) saving: Saving,
    pub(crate) parts: Parts,
    pub(crate) admission: Admission,
    pub(crate) giving_back: GivingBack,
    pub(crate) ahead: Ahead,
    pub(crate) wishes: Wishes,
    pub(crate) uses: Uses,
    pub(crate) shares: Shares,
    pub(crate) member: Member,
    pub(crate) quota_bytes: u64,
    pub(crate) parked: VecDeque<Job>,
    /// The tier that was asked to preallocate.
    pub(crate) asked: Option<u8>,
    /// The next look at the pins, and the last that was answered. Rounds count from 1.
    pub(crate) round: u64,
    round_answered: u64,
    /// Did something leave since the last look was asked for?
    pub(crate) has_left: bool,
}

impl Target {
    /// A target whose devices are empty.
    #[must_use]
    pub fn new(settings: Settings) -> Target {
        Target {
            memory: Tier::new(settings.memory),
            ssd: Tier::new(settings.ssd),
            slots: Slots::new(settings.slot_count),
            damaged: BTreeSet::new(),
            early: Early::default(),
            accounts: Accounts::default(),
            fills: Fills::default(),
            moves: Moves::new(settings.sinking, settings.ssd.length > 0),
            giving_back: GivingBack::default(),
            rising: Rising::default(),
            abroad: Abroad::default(),
            residents: Residents::default(),
            saving: Saving::default(),
            parts: Parts::default(),
            clean: Clean::new(settings.sinking.forced_below_bytes),
            admission: Admission::default(),
            ahead: Ahead::default(),
            wishes: Wishes::default(),
            uses: Uses::default(),
            shares: Shares::default(),
            member: Member { index: DaemonIndex(0), count: 1 },
            quota_bytes: settings.quota_bytes,
            parked: VecDeque::new(),
            asked: None,
            round: 1,
            round_answered: 0,
            has_left: false,
        }
    }

    /// Takes one input and appends what the caller must now do, in that order. Never fails: a
    /// refusal is an answer.
    pub fn step(&mut self, input: Input<'_>, out: &mut Vec<Effect>) {
        match input {
            Input::Request { ticket, request } => match Work::of(request) {
                Ok(work) => {
                    self.note_resident(request, out);
                    let need = Need::of(request, &|inode| self.may_be_saved(inode));
                    self.admit(Job::new(ticket, work, need), out);
                }
                Err(errno) => reply(ticket, Answer::Refused(errno), out),
            },
            Input::Below { inode, outcome } => self.below(inode, outcome, out),
            Input::Filled { ticket, outcome } => self.filled(ticket, outcome, out),
            Input::MakeEarly { inodes } => self.make_early(inodes, out),
            Input::Wanted { pieces } => {
                pieces.iter().for_each(|&(inode, start)| {
                    self.keep_early(inode, (start, start.saturating_add(1)), out);
                });
            }
            Input::Unwanted { pieces } => {
                pieces.iter().for_each(|&(inode, start)| self.drop_early(inode, start, out));
            }
            Input::Preallocated { outcome } => self.preallocated(outcome, out),
            Input::Pins { round, pinned } => self.pins_seen(round, pinned, out),
            Input::Copied { ticket, outcome } => {
                self.copied(ticket, outcome, out);
                self.admit_waiting(out);
            }
            Input::GivenBack { place, length_log2, outcome } => {
                self.given_back((place, length_log2), outcome);
                self.admit_waiting(out);
            }
            Input::Saved { pieces } => self.saved(pieces, out),
            Input::IsSaved { inode, number, is_saved } => {
                self.told_saved((inode, number), is_saved, out);
            }
            Input::Withdraw { ticket } => self.withdraw(ticket, out),
            Input::Dismissed { slot } => self.dismissed(slot, out),
            Input::RoomAsked { round, comes, goes_on } => self.room_asked(round, (comes, goes_on)),
            Input::Tick => self.has_left |= self.slots.leaving_count() > 0,
        }
        self.finish(out);
    }

    /// The end of each step.
    pub(crate) fn finish(&mut self, out: &mut Vec<Effect>) {
        self.admit_writers(out);
        self.grant(out);
        if self.admission.is_empty() && !self.fills.is_starving() {
            self.clean.need_nothing();
        }
        if self.has_left {
            self.has_left = false;
            out.push(Effect::CheckPins { round: self.round });
            self.round += 1;
        }
        self.give_memory_back(out);
        self.memory.check();
        self.ssd.check();
        self.ask_ahead(out);
        assert!(self.parked.is_empty() || self.asked.is_some(), "parked without a reason");
    }

    pub(crate) fn request(&mut self, job: Job, out: &mut Vec<Effect>) {
        if job.work.makes_pieces() {
            let (inode, offset, end) = job.work.range();
            self.keep_early(inode, (offset, end), out);
        }
        if self.parked.is_empty() || job.work.only_looks() || self.passes(&job.work) {
            self.run(job, out);
        } else {
            self.parked.push_back(job);
        }
    }

    /// Slots that wait for pins to go. While it is not 0, `Input::Tick` makes it look again.
    #[must_use]
    pub fn leaving_count(&self) -> usize {
        self.slots.leaving_count()
    }

    /// All pieces and their files, for checks.
    pub fn pieces(&self) -> impl Iterator<Item = (Inode, Piece)> {
        self.slots.iter()
    }

    /// Is this the file of a piece that was lost?
    #[must_use]
    pub fn is_damaged(&self, inode: Inode) -> bool {
        self.damaged.contains(&inode)
    }

    /// True if a request waits for a device.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.parked.is_empty()
    }

    fn preallocated(&mut self, outcome: wire::errno::Result<()>, out: &mut Vec<Effect>) {
        match self.asked.take() {
            Some(Piece::MEMORY) => self.memory.preallocated(outcome),
            Some(_) => {
                self.admission.note(outcome);
                self.ssd.preallocated(outcome);
            }
            None => return,
        }
        self.resume(out);
        self.admit_waiting(out);
    }

    fn ask_ahead(&mut self, out: &mut Vec<Effect>) {
        for (tier, device) in [(Piece::MEMORY, &mut self.memory), (Piece::SSD, &mut self.ssd)] {
            if self.asked.is_none()
                && let Some((place, length, haste)) = device.ahead()
            {
                self.asked = Some(tier);
                out.push(Effect::Preallocate { tier, place, length, haste });
            }
        }
    }

    fn resume(&mut self, out: &mut Vec<Effect>) {
        while let Some(job) = self.parked.pop_front() {
            let behind = std::mem::take(&mut self.parked);
            // What it needs may have been dropped meanwhile.
            self.admit(job, out);
            self.parked.extend(behind);
            if self.asked.is_some() {
                return;
            }
        }
    }

    fn pins_seen(&mut self, round: u64, pinned: &[u32], out: &mut Vec<Effect>) {
        let Target { memory, ssd, slots, .. } = self;
        slots.free(round, pinned, |piece| match piece.tier {
            Piece::MEMORY => memory.release(piece.place, piece.length_log2),
            _ => ssd.release(piece.place, piece.length_log2),
        });
        self.round_answered = self.round_answered.max(round);
        self.copy_hidden(round, pinned, out);
        self.drop_hidden(round, pinned, out);
        self.marked(round, pinned, out);
        self.part_marked(round, pinned, out);
        self.clean.need_anew();
        self.admit_waiting(out);
    }

    fn run(&mut self, job: Job, out: &mut Vec<Effect>) {
        let (ticket, work) = (job.ticket, &job.work);
        if let Some(inode) = work.inode_if_damage_matters()
            && self.damaged.contains(&inode)
        {
            return reply(ticket, Answer::Refused(Errno::EIO), out);
        }
        if let Work::BeginSaving(asked) = work {
            return self.answer_part(ticket, asked, out);
        }
        if work.uses_pieces() {
            let (inode, offset, end) = work.range();
            self.end_moves(inode, (offset, end), out);
            self.end_drops(inode, (offset, end), out);
        }
        let answer = match work {
            &Work::Map { inode, chunk_log2, offset, length, ahead } => {
                self.map(inode, chunk_log2, (offset, length), ahead, out)
            }
            &Work::Find { inode, offset, length } => {
                let end = offset.saturating_add(length);
                let pieces = self.shown(inode, offset, end).take(MAP_PIECES_MAX).collect();
                Ok(Answer::Pieces(pieces))
            }
            &Work::Read { inode, offset, length } => {
                self.read(ticket, inode, offset, length, out);
                Ok(Answer::Bytes { length })
            }
            &Work::Write { inode, chunk_log2, offset, length } => {
                let mut pieces = Vec::new();
                let range = (offset, u64::from(length));
                self.make(inode, chunk_log2, range, &mut pieces, out).map(|()| {
                    write(ticket, &pieces, offset, length, out);
                    Answer::Done
                })
            }
            &Work::Clear { inode, offset, end } => {
                self.clear(ticket, inode, offset, end, out);
                Ok(Answer::Done)
            }
            Work::Remove { inodes } => {
                inodes.iter().for_each(|&inode| self.remove(inode, out));
                Ok(Answer::Done)
            }
            &Work::Own { inode, owner, changed, resident } => {
                self.own(inode, owner, changed);
                self.tell_resident(inode, resident, changed, out);
                Ok(Answer::Done)
            }
            Work::Rise(asked) => Ok(self.wish(asked, out)),
            &Work::EndSaving { inode, number, end } => Ok(self.end_part(inode, (number, end), out)),
            work => Ok(self.look(ticket, work, out)),
        };
        match answer {
            Ok(answer) => reply(ticket, answer, out),
            Err(Stop::Parked) => self.parked.push_front(job.asked()),
            // What it needs from below is there, and stays.
            Err(stop @ (Stop::Dropping | Stop::Busy)) if self.keeps_for(job.need) => {
                self.starve(job, stop, out);
            }
            Err(stop) => self.refuse_or_wait(job, stop, out),
        }
    }

    fn map(
        &mut self,
        inode: Inode,
        chunk_log2: u8,
        (offset, length): (u64, u64),
        ahead: u64,
        out: &mut Vec<Effect>,
    ) -> Result<Answer, Stop> {
        let mut pieces = Vec::new();
        match self.make(inode, chunk_log2, (offset, length), &mut pieces, out) {
            Err(Stop::Parked) => return Err(Stop::Parked),
            Err(stop) if pieces.is_empty() => return Err(stop),
            Err(_) => {}
            Ok(()) => {
                let behind = (offset.saturating_add(length), ahead);
                self.make_ahead(inode, chunk_log2, behind, &mut pieces, out);
            }
        }
        Ok(Answer::Pieces(pieces))
    }

    /// A request can not have its pieces now.
    pub(crate) fn refuse_or_wait(&mut self, job: Job, stop: Stop, out: &mut Vec<Effect>) {
        match stop {
            Stop::Full(_) | Stop::Behind | Stop::Busy | Stop::Early | Stop::Dropping
                if job.work.makes_pieces() =>
            {
                self.wait(job, stop, out);
            }
            stop => self.refuse(&job, stop, out),
        }
    }

    /// Answers a request that can not have its pieces; not one that is parked.
    pub(crate) fn stop(ticket: u64, stop: Stop, out: &mut Vec<Effect>) {
        let answer = match stop {
            Stop::Refused(errno) | Stop::Full(errno) => Answer::Refused(errno),
            Stop::Busy | Stop::Behind | Stop::Parked => Answer::Busy { retry_micros: RETRY_MICROS },
            Stop::GoesOn => Answer::Busy { retry_micros: 0 },
            Stop::Early => Answer::Busy { retry_micros: EARLY_RETRY_MICROS },
            Stop::Dropping => Answer::Busy { retry_micros: DROP_RETRY_MICROS },
            Stop::Beyond(Beyond { account, wanted }) => Answer::Beyond { account, wanted },
        };
        reply(ticket, answer, out);
    }

    /// The pieces that hold a byte of `offset .. end`; an early one holds none.
    fn shown(&self, inode: Inode, offset: u64, end: u64) -> impl Iterator<Item = Piece> {
        let pieces = self.slots.over(inode, offset, end);
        pieces.filter(move |piece| !self.early.contains(inode, piece))
    }

    /// What changes nothing and always has an answer.
    fn look(&self, ticket: u64, work: &Work, out: &mut Vec<Effect>) -> Answer {
        match *work {
            Work::Usage { inode } => {
                let pieces = self.shown(inode, 0, u64::MAX);
                Answer::Number(pieces.map(|piece| piece.length()).sum())
            }
            Work::SeekData { inode, offset } if self.fills.counts(inode, offset) => {
                Answer::Number(offset)
            }
            Work::SeekData { inode, offset } => match self.shown(inode, offset, u64::MAX).next() {
                Some(piece) => Answer::Number(piece.start.max(offset)),
                None => Answer::Refused(Errno::ENXIO),
            },
            Work::Flush { inode } => {
                let on_ssd = |piece: Piece| piece.tier == Piece::SSD;
                if self.slots.over(inode, 0, u64::MAX).any(on_ssd) {
                    out.push(Effect::Flush { ticket });
                }
                Answer::Done
            }
            _ => Answer::Space {
                memory_total: self.memory.bytes_total(),
                // Who needs what is early or clean gets it.
                memory_free: self.memory.bytes_free()
                    + self.early_bytes()
                    + self.moves.bytes_to(Piece::MEMORY)
                    + self.clean.bytes(Piece::MEMORY),
                ssd_total: self.ssd.bytes_total(),
                // What moves is counted where it is.
                ssd_free: self.ssd.bytes_free()
                    + self.moves.bytes_to(Piece::SSD)
                    + self.clean.bytes(Piece::SSD),
            },
        }
    }

    /// Finds or makes the pieces that hold a range, at most `MAP_PIECES_MAX`. When it stops early,
    /// those before it are made: who comes again, or writes less, finds them.
    fn make(
        &mut self,
        inode: Inode,
        chunk_log2: u8,
        (offset, length): (u64, u64),
        pieces: &mut Vec<Piece>,
        out: &mut Vec<Effect>,
    ) -> Result<(), Stop> {
        for span in piece::over(offset, length, chunk_log2).take(MAP_PIECES_MAX) {
            let piece = match self.slots.at(inode, span.start) {
                Some(piece) if piece.length_log2 == span.length_log2 => piece,
                // Somebody cuts the file another way than before.
                Some(_) => return Err(Stop::Refused(Errno::EINVAL)),
                None if inode.is_abroad() && !self.takes_in(span.length()) => {
                    return Err(Stop::Refused(Errno::ENOSPC));
                }
                None if !self.admission.is_empty() => return Err(Stop::Behind),
                None => match self.make_one(inode, span, out) {
                    // Who sends it has other ways, and is not to wait.
                    Err(Stop::Parked) => return Err(Stop::Parked),
                    Err(_) if inode.is_abroad() => return Err(Stop::Refused(Errno::ENOSPC)),
                    made => made?,
                },
            };
            pieces.push(piece);
        }
        Ok(())
    }

    pub(crate) fn make_one(
        &mut self,
        inode: Inode,
        span: Span,
        out: &mut Vec<Effect>,
    ) -> Result<Piece, Stop> {
        let tier = inode.is_abroad().then_some(Piece::MEMORY);
        let (piece, history) = self.claim(inode, span, tier, out)?;
        self.place(inode, &piece);
        if !inode.is_abroad() {
            self.note_made(&piece);
        }
        let defined = match history {
            History::Fresh => Defined::All,
            History::Used => Defined::Nothing,
        };
        out.push(Effect::Publish { inode, piece, defined });
        Ok(piece)
    }

    /// This is target `index` of so many.
    pub fn set_member(&mut self, index: DaemonIndex, count: u16) {
        self.member = Member { index, count };
    }

    /// Takes a place and a slot for a new piece, which counts for its file from now on. `tier`: there, or
    /// nowhere.
    pub(crate) fn claim(
        &mut self,
        inode: Inode,
        span: Span,
        tier: Option<u8>,
        out: &mut Vec<Effect>,
    ) -> Result<(Piece, History), Stop> {
        if self.slots.over(inode, span.start, span.end()).next().is_some() {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        self.accounts.check(inode, span.length()).map_err(Stop::Beyond)?;
        if self.bytes_used().saturating_add(span.length()) > self.quota_bytes {
            return Err(self.no_room(Errno::EDQUOT, span.length()));
        }
        if self.slots.vacant().is_none() {
            return Err(self.no_room(Errno::ENOSPC, span.length()));
        }
        let (tier, place, history) = self.take(span.length_log2, tier, out)?;
        let Some(slot) = self.slots.reserve() else { unreachable!("one is vacant") };
        self.accounts.change(inode, span.length().cast_signed());
        let length_log2 = span.length_log2;
        Ok((Piece { start: span.start, slot, place, length_log2, tier }, history))
    }

    /// What `claim` took is a piece from now on.
    pub(crate) fn place(&mut self, inode: Inode, piece: &Piece) {
        self.slots.place(inode, *piece);
        self.abroad.keep(inode, piece.length().cast_signed());
        self.watch(inode, piece);
    }

    /// Gives back what `claim` took; nobody saw it.
    pub(crate) fn unclaim(&mut self, inode: Inode, piece: &Piece) {
        self.slots.unreserve(piece.slot);
        self.accounts.change(inode, -piece.length().cast_signed());
        match piece.tier {
            Piece::MEMORY => self.memory.release(piece.place, piece.length_log2),
            _ => self.ssd.release(piece.place, piece.length_log2),
        }
    }

    /// Bytes in pieces, of what moves once.
    pub(crate) fn bytes_used(&self) -> u64 {
        self.memory.bytes_used() + self.ssd.bytes_used() - self.moves.bytes()
    }

    fn take(
        &mut self,
        log2: u8,
        only: Option<u8>,
        out: &mut Vec<Effect>,
    ) -> Result<(u8, u64, History), Stop> {
        let tiers = [(Piece::MEMORY, &mut self.memory), (Piece::SSD, &mut self.ssd)];
        for (tier, device) in tiers {
            if only.is_some_and(|only| only != tier) {
                continue;
            }
            match device.take(log2) {
                Found::Block(place, history) => {
                    if tier == Piece::SSD {
                        self.admission.note(Ok(()));
                    }
                    return Ok((tier, place, history));
                }
                Found::Extend { place, length } => {
                    // One step at a time: if another is under way, its answer looks again.
                    if self.asked.is_none() {
                        self.asked = Some(tier);
                        let haste = Haste::Now;
                        out.push(Effect::Preallocate { tier, place, length, haste });
                    }
                    return Err(Stop::Parked);
                }
                Found::Full => {}
            }
        }
        Err(self.no_room(Errno::ENOSPC, 1 << log2))
    }

    /// Nothing is free; but perhaps soon, if the pins of something were not looked at yet, or something
    /// moves, is filled, or may be dropped. What was found pinned does not count: a stopped process may
    /// hold it for ever.
    pub(crate) fn no_room(&mut self, errno: Errno, length: u64) -> Stop {
        if self.slots.left_after(self.round_answered) {
            return Stop::Busy;
        }
        if self.clean.need(length) {
            return Stop::Dropping;
        }
        if self.moves_count() > 0 || self.fills.is_filling() {
            return Stop::Busy;
        }
        self.early.is_needed = !self.early.is_empty();
        if self.early.is_needed { Stop::Early } else { Stop::Full(errno) }
    }

    fn read(&self, ticket: u64, inode: Inode, offset: u64, length: u32, out: &mut Vec<Effect>) {
        let end = offset + u64::from(length);
        let mut at = offset;
        let mut push = |from: Source, part: u64| {
            if part > 0 {
                out.push(Effect::Read { ticket, from, length: part as u32 });
            }
        };
        for piece in self.slots.over(inode, offset, end) {
            push(Source::Hole, piece.start.saturating_sub(at));
            at = at.max(piece.start);
            let part = end.min(piece.start + piece.length()) - at;
            push(Source::Piece { piece, within: at - piece.start }, part);
            at += part;
        }
        push(Source::Hole, end - at);
    }

    /// Frees the pieces that lie in `offset .. end`; of those at its ends, zeroes the part inside.
    fn clear(&mut self, ticket: u64, inode: Inode, offset: u64, end: u64, out: &mut Vec<Effect>) {
        if end == u64::MAX {
            self.cut_below(inode, offset);
        }
        let pieces: Vec<Piece> = self.slots.over(inode, offset, end).collect();
        for piece in pieces {
            let piece_end = piece.start + piece.length();
            // Without it, the bytes below would show again, those that are saved there next, too.
            let hides = end != u64::MAX && self.may_be_saved(inode);
            if offset <= piece.start && piece_end <= end && !hides {
                self.give_back(inode, &piece, out);
            } else {
                let from = offset.max(piece.start);
                let (within, length) = (from - piece.start, end.min(piece_end) - from);
                out.push(Effect::Zero { ticket, piece, within, length });
            }
        }
        if offset == 0 && end == u64::MAX {
            self.damaged.remove(&inode);
        }
    }

    /// Frees all pieces of a file: mostly there are none, or one.
    fn remove(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        self.refuse_writers_of(inode, out);
        self.forget_below(inode, out);
        self.wishes.end(inode, None);
        while let Some(piece) = self.slots.first(inode) {
            self.give_back(inode, &piece, out);
        }
        self.damaged.remove(&inode);
        self.accounts.forget(inode);
        self.residents.forget(inode);
    }

    pub(crate) fn give_back(&mut self, inode: Inode, piece: &Piece, out: &mut Vec<Effect>) {
        self.end_move(inode, piece, out);
        self.end_drop(inode, piece, out);
        self.unwatch(piece);
        self.take_clean(piece);
        let was_early = self.early.remove(inode, piece);
        if !was_early || !is_first(piece) {
            self.accounts.change(inode, -piece.length().cast_signed());
        }
        self.leave(inode, piece, out);
        self.abroad.keep(inode, -piece.length().cast_signed());
    }

    /// A piece is its file's no longer, or at another place. Its own is free when nobody uses it.
    pub(crate) fn leave(&mut self, inode: Inode, piece: &Piece, out: &mut Vec<Effect>) {
        if !self.leave_abroad(inode, piece, out) {
            self.slots.leave(inode, piece, self.round);
            self.has_left = true;
            out.push(Effect::Unpublish { slot: piece.slot });
        }
    }
}

fn reply(ticket: u64, answer: Answer, out: &mut Vec<Effect>) {
    out.push(Effect::Reply { ticket, answer });
}

/// Cuts `length` bytes of a request, for `offset` of the file, to the pieces that hold them all.
fn write(ticket: u64, pieces: &[Piece], offset: u64, length: u32, out: &mut Vec<Effect>) {
    let end = offset + u64::from(length);
    for &piece in pieces {
        let at = offset.max(piece.start);
        let part = end.min(piece.start + piece.length()) - at;
        let (from, length) = ((at - offset) as u32, part as u32);
        out.push(Effect::Write { ticket, piece, within: at - piece.start, from, length });
    }
}
