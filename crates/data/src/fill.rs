//! Files that lie in the backing directory (`may_lie_below`): their bytes, or what was dropped of them,
//! lie there until somebody asks for them, and come piece by piece.
//!
//! A piece of such a file is published when the bytes from below are in it, never before. So a piece that
//! is there is like any other, for clients and for everything here: only where there is none it matters
//! that one may lie below. Whoever needs such a piece waits (`Job`) until it is there, and goes on then
//! as if it always had been. How much of a file counts below its shard knows; it is asked once and
//! remembered here (`ends`), and gets less when the file is cut.
//!
//!   none --needed--> under way --Input::Filled--> published
//!                    under way --cut, removed--> void --Input::Filled--> none
//!
//! Invariants:
//!  1. What `ends` says is no more than the shard would say after the last cut that came here.
//!  2. A piece under way has a place and a reserved slot, and none of its range is published.

use crate::admission::{GRACE_MILLIS, Turn};
use crate::effect::{Defined, Effect, Haste};
use crate::target::{MAP_PIECES_MAX, Stop, Target};
use crate::work::Work;
use placement::piece::{self, Span};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::errno::Result;
use wire::limits::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN, FILE_BYTES_MAX};
use wire::reply::Piece;
use wire::request::chunk_log2_of;
use wire::{Errno, Inode, Layout, Request};

/// Pieces under way at once: so much that a parallel file system has something to do, and no more memory
/// than that waits for it.
const UNDER_WAY_MAX: usize = 32;
/// Files whose ends are remembered.
const ENDS_MAX: usize = 1 << 16;
/// No more pieces than have so much, or one, must be there at one moment to answer who asks for
/// pieces: he comes again for what is behind.
const NEED_BYTES_MAX: u64 = 8 << 20;
/// Who waits for room for so long gets none.
const STARVING_MILLIS: u32 = 10_000;

/// What a request needs of a file from below before it can be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    inode: Inode,
    chunk_log2: u8,
    offset: u64,
    end: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Reads,
    /// It changes bytes, or tells where they are to who does. Also what is written whole comes from
    /// below first: who is stopped in the middle leaves what was there.
    Writes,
    /// It makes zeros.
    Punches,
}

impl Need {
    /// `None`: the request needs nothing.
    pub(crate) fn of(request: &Request<'_>, may_be_saved: &dyn Fn(Inode) -> bool) -> Option<Need> {
        let (inode, chunk_log2, offset, length) = match *request {
            Request::MapPieces { inode, chunk_log2, offset, length, .. }
            | Request::Punch { inode, chunk_log2, offset, length } => {
                (inode, chunk_log2, offset, length)
            }
            Request::Read { inode, chunk_log2, offset, length } => {
                (inode, chunk_log2, offset, u64::from(length))
            }
            Request::Write { inode, chunk_log2, offset, bytes, .. } => {
                (inode, chunk_log2, offset, bytes.len() as u64)
            }
            Request::SeekData { inode, chunk_log2, offset } => (inode, chunk_log2, offset, 0),
            _ => return None,
        };
        let chunk_log2 = chunk_log2_of(chunk_log2);
        let is_chunk = (CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX).contains(&chunk_log2);
        if !may_be_saved(inode) || !is_chunk {
            return None;
        }
        let end = match request {
            Request::MapPieces { .. } => {
                let spans = piece::over(offset, length, chunk_log2).take(MAP_PIECES_MAX);
                let first = piece::at(offset, chunk_log2).end();
                let is_near = |span: &Span| span.end() <= first.max(offset + NEED_BYTES_MAX);
                let last = spans.take_while(is_near).last();
                last.map_or(offset, |span| span.end()).min(offset.saturating_add(length))
            }
            _ => offset.saturating_add(length),
        };
        let kind = match request {
            Request::Punch { .. } => Kind::Punches,
            Request::Read { .. } | Request::MapPieces { allocate: 0, .. } => Kind::Reads,
            _ => Kind::Writes,
        };
        Some(Need { inode, chunk_log2, offset, end, kind })
    }

    /// The pieces that hold some of it, of a file of which so much counts below; and whether all of one
    /// is covered.
    fn spans(self, counts: u64) -> impl Iterator<Item = (Span, bool)> {
        let spans = piece::over(self.offset, self.end - self.offset, self.chunk_log2);
        let is_covered = move |span: &Span| self.offset <= span.start && span.end() <= self.end;
        spans.take_while(move |span| span.start < counts).map(move |span| (span, is_covered(&span)))
    }

    pub(crate) const fn inode(&self) -> Inode {
        self.inode
    }

    pub(crate) const fn chunk(&self) -> u8 {
        self.chunk_log2
    }

    pub(crate) const fn range(&self) -> (u64, u64) {
        (self.offset, self.end)
    }

    fn touches(&self, inode: Inode, piece: &Piece) -> bool {
        let piece_end = piece.start + piece.length();
        self.inode == inode && self.offset < piece_end && piece.start < self.end
    }
}

/// A request that is not answered yet.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) ticket: u64,
    pub(crate) work: Work,
    pub(crate) need: Option<Need>,
    /// Since when there is no room for what it needs.
    starves_since: Option<u32>,
    /// It waited, or waits, for room that it needs to write.
    pub(crate) turn: Option<Turn>,
    /// A device was asked to preallocate for it.
    pub(crate) has_asked: bool,
}

impl Job {
    pub(crate) const fn new(ticket: u64, work: Work, need: Option<Need>) -> Job {
        Job { ticket, work, need, starves_since: None, turn: None, has_asked: false }
    }

    /// With a device that was asked to preallocate for it.
    pub(crate) fn asked(self) -> Job {
        Job { has_asked: true, ..self }
    }
}

/// Why a piece is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Purpose {
    /// Where it is to lie; `None`: as any new piece.
    pub(crate) tier: Option<u8>,
    /// Which list names it, and where.
    pub(crate) list: Option<(u64, u64)>,
    /// Nobody reads yet.
    pub(crate) is_wish: bool,
}

impl Purpose {
    /// Somebody waits for it, or will in a moment.
    pub(crate) const STREAM: Purpose = Purpose { tier: None, list: None, is_wish: false };
}

/// A piece that is being filled.
#[derive(Clone, Copy, Debug)]
struct Filling {
    ticket: u64,
    piece: Piece,
    purpose: Purpose,
    /// What comes is not the file's any more.
    is_void: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fills {
    /// Of files, how many bytes count below, and where their chunks are.
    ends: BTreeMap<Inode, (u64, Layout)>,
    /// Files of which that was asked, and the least size to which they were cut since.
    asked: BTreeMap<Inode, u64>,
    /// Those of them for which the answer comes too late.
    late: BTreeSet<Inode>,
    under_way: BTreeMap<(Inode, u64), Filling>,
    /// Those who wait for something, in the order in which they came.
    waiting: VecDeque<Job>,
    /// What the first of them needs for whom there is no room: what is there of it stays, and nobody
    /// behind takes what comes free. So each gets its turn, although all need more than there is.
    starving: Option<Need>,
    /// He makes a hole, and nothing comes free before something is saved: who saves may have to read for
    /// that, so others try, and who reads does without.
    is_passed: bool,
    ticket_next: u64,
}

impl Fills {
    /// True if bytes at `offset` and behind may lie below.
    pub(crate) fn counts(&self, inode: Inode, offset: u64) -> bool {
        self.end(inode).is_some_and(|end| offset < end)
    }

    /// What is known of how much of a file counts, or will be answered, is not so any more: it is more.
    pub(crate) fn ask_anew(&mut self, inode: Inode) {
        self.ends.remove(&inode);
        if self.asked.contains_key(&inode) {
            self.late.insert(inode);
        }
    }

    /// Are bytes on their way, to a piece that may be dropped when they are there?
    pub(crate) fn is_filling(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Does somebody wait for room?
    pub(crate) const fn is_starving(&self) -> bool {
        self.starving.is_some()
    }

    /// Does somebody who makes a hole?
    pub(crate) fn is_starving_to_punch(&self) -> bool {
        self.starving.is_some_and(|need| need.kind == Kind::Punches)
    }

    /// Is this piece of what he needs?
    pub(crate) fn starves_for(&self, inode: Inode, piece: &Piece) -> bool {
        self.starving.is_some_and(|need| need.touches(inode, piece))
    }

    /// How much of a file counts, if that is known.
    pub(crate) fn end(&self, inode: Inode) -> Option<u64> {
        self.ends.get(&inode).map(|&(end, _)| end)
    }

    pub(crate) fn layout(&self, inode: Inode) -> Option<Layout> {
        self.ends.get(&inode).map(|&(_, layout)| layout)
    }

    /// True if the piece that begins there is under way.
    pub(crate) fn is_filled(&self, inode: Inode, start: u64) -> bool {
        self.under_way.contains_key(&(inode, start))
    }

    /// True if what nobody waits for yet leaves room to what somebody will.
    pub(crate) fn has_room_ahead(&self) -> bool {
        self.under_way.len() < UNDER_WAY_MAX / 2
    }

    /// Pieces under way that are wished for.
    pub(crate) fn wished_count(&self) -> usize {
        self.under_way.values().filter(|one| one.purpose.is_wish).count()
    }

    /// Bytes of a list that are under way.
    pub(crate) fn bytes_of_list(&self, list: u64) -> u64 {
        let of_list = |one: &&Filling| one.purpose.list.is_some_and(|place| place.0 == list);
        self.under_way.values().filter(of_list).map(|one| one.piece.length()).sum()
    }

    /// A request waits for what is on its way.
    pub(crate) fn wait(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    fn void(&mut self, inode: Inode, from: u64) {
        for (_, filling) in self.under_way.range_mut((inode, 0)..=(inode, u64::MAX)) {
            filling.is_void |= filling.piece.start + filling.piece.length() > from;
        }
    }
}

impl Target {
    /// Runs a request if what it needs is there; else it waits.
    pub(crate) fn admit(&mut self, job: Job, out: &mut Vec<Effect>) {
        let Some(mut job) = self.come_home(job, out) else { return };
        let Some(need) = job.need.filter(|need| self.may_lie_below(need.inode)) else {
            return self.request(job, out);
        };
        match &mut job.work {
            // Early pieces are holes, which these files have not.
            Work::Map { length, ahead, .. } => (*length, *ahead) = (need.end - need.offset, 0),
            Work::Find { length, .. } => *length = need.end - need.offset,
            _ => {}
        }
        let filled = self.fill(&need, out);
        if need.kind == Kind::Reads && filled != Ok(true) {
            self.note_use(need.inode);
        }
        match filled {
            Ok(true) => self.request(job, out),
            Ok(false) => self.fills.waiting.push_back(job),
            Err(stop @ (Stop::Dropping | Stop::Busy)) => self.starve(job, stop, out),
            // Who makes a hole needs a piece of zeros over what is below.
            Err(Stop::Full(_)) if need.kind == Kind::Punches && self.is_over_backing() => {
                self.starve(job, Stop::Busy, out);
            }
            Err(stop) => self.refuse_or_wait(job, stop, out),
        }
    }

    /// There is no room for a request, or it is refused for another reason. Who reads does without:
    /// nothing is kept of what he gets.
    pub(crate) fn refuse(&mut self, job: &Job, stop: Stop, out: &mut Vec<Effect>) {
        let is_room = matches!(
            stop,
            Stop::Refused(Errno::ENOSPC | Errno::EDQUOT) | Stop::Full(_) | Stop::Beyond(_)
        );
        match self.unkept(job).filter(|_| is_room) {
            Some(effect) => out.push(effect),
            None => Target::stop(job.ticket, stop, out),
        }
    }

    /// How a request to read is answered from below, if there is nothing here of the one piece's range in
    /// which all of it lies.
    fn unkept(&self, job: &Job) -> Option<Effect> {
        let (&Work::Read { inode, offset, length }, Some(need)) = (&job.work, job.need) else {
            return None;
        };
        let span = piece::at(offset, need.chunk_log2);
        let is_absent = self.slots.over(inode, span.start, span.end()).next().is_none();
        let &counts = self.fills.ends.get(&inode)?;
        let below = counts.0.saturating_sub(offset).min(length.into()) as u32;
        let ticket = job.ticket;
        (need.end <= span.end() && is_absent).then_some(Effect::ReadBelow {
            ticket,
            inode,
            offset,
            length,
            below,
        })
    }

    /// A request waits for room, but not for ever, and not if nothing but its own could be dropped.
    pub(crate) fn starve(&mut self, mut job: Job, stop: Stop, out: &mut Vec<Effect>) {
        let now = self.clean.awake_millis();
        let since = *job.starves_since.get_or_insert(now);
        let waited = now.wrapping_sub(since);
        // As for writers: what is pinned is waited for a moment.
        let may_leave = waited < GRACE_MILLIS && (self.leaving_count() > 0 || self.is_sinking());
        let is_coming = self.fills.is_filling() || self.moves_count() > 0 || may_leave;
        let nothing_goes = !is_coming && !self.has_clean_beside(job.need);
        // Something may be saved, and dropped then.
        let may_be_saved = nothing_goes && self.is_over_backing();
        let punches = matches!(job.work, Work::Clear { .. });
        if may_be_saved && stop == Stop::Dropping && job.work.makes_pieces() {
            return self.wait(job, Stop::Full(Errno::ENOSPC), out);
        }
        let is_hopeless = nothing_goes && stop == Stop::Dropping && !(may_be_saved && punches);
        if is_hopeless || waited >= STARVING_MILLIS {
            let goes_on = !job.need.is_some_and(|need| need.kind == Kind::Reads)
                && self.saving_goes_on(STARVING_MILLIS);
            let stop = if goes_on { Stop::GoesOn } else { Stop::Refused(Errno::ENOSPC) };
            return self.refuse(&job, stop, out);
        }
        if self.fills.starving.is_none() {
            self.fills.starving = job.need;
            self.fills.is_passed = may_be_saved && punches;
        }
        self.fills.waiting.push_back(job);
    }

    /// True if what is here of what is needed from below is to stay for who waits.
    pub(crate) fn keeps_for(&self, need: Option<Need>) -> bool {
        need.is_some_and(|Need { inode, offset, .. }| {
            inode.is_from_below() || self.may_lie_below(inode) && self.fills.counts(inode, offset)
        })
    }

    /// Is there something clean but what a request itself needs, and who is passed by? That is a few
    /// pieces.
    fn has_clean_beside(&self, need: Option<Need>) -> bool {
        let pieces = self.clean.slots().filter_map(|slot| self.slots.get(slot));
        let is_own =
            |(inode, piece): (Inode, Piece)| need.is_some_and(|need| need.touches(inode, &piece));
        let stays = |(inode, piece): (Inode, Piece)| {
            self.fills.is_passed && self.fills.starves_for(inode, &piece)
        };
        pieces.into_iter().any(|row| !is_own(row) && !stays(row))
    }

    /// Sees to it that what is needed comes. True if all of it is there.
    fn fill(&mut self, need: &Need, out: &mut Vec<Effect>) -> core::result::Result<bool, Stop> {
        let inode = need.inode;
        if self.is_damaged(inode) || need.offset > FILE_BYTES_MAX {
            return Ok(true);
        }
        let Some(counts) = self.fills.end(inode) else {
            self.ask_end(inode, out);
            return Ok(false);
        };
        let mut is_there = true;
        let mut is_coming = false;
        for (span, is_covered) in need.spans(counts) {
            // All targets of a file are told of a hole, each with all of it.
            if need.kind == Kind::Punches && !self.has_chunk(inode, &span) {
                continue;
            }
            let is_free = self.slots.over(inode, span.start, span.end()).next().is_none();
            if !is_free {
                continue;
            }
            let comes = match need.kind {
                // Somebody waits for room who came before.
                _ if self.fills.starving.is_some() && !self.fills.is_passed => Ok(false),
                Kind::Punches if is_covered => match self.make_one(inode, span, out) {
                    // It holds zeros from now on: bytes from below would show again.
                    Ok(_) => continue,
                    Err(stop) => Err(stop),
                },
                _ => self.fill_one(inode, span, counts, Purpose::STREAM, out),
            };
            is_there = false;
            match comes {
                Ok(true) => is_coming = true,
                Ok(false) | Err(Stop::Parked) => break,
                // What is there already takes it on: it is asked for again.
                Err(stop @ (Stop::Dropping | Stop::Busy)) => return Err(stop),
                Err(_) if is_coming => break,
                Err(stop) => return Err(stop),
            }
        }
        if !is_there && need.kind == Kind::Reads {
            self.reached_file(inode);
            self.stream_on(need, counts, out);
        }
        Ok(is_there)
    }

    /// True if a piece of a file that lies below is this target's, and no other's.
    fn has_chunk(&self, inode: Inode, span: &Span) -> bool {
        let has = |layout: Layout| self.member.has(&layout, inode, span.start >> layout.chunk_log2);
        self.fills.layout(inode).is_none_or(has)
    }

    /// Has the file's shard asked how much of it counts.
    pub(crate) fn ask_end(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        if let Entry::Vacant(asked) = self.fills.asked.entry(inode) {
            asked.insert(u64::MAX);
            out.push(Effect::Below { inode });
        }
    }

    /// Has one piece filled. False if too many are.
    pub(crate) fn fill_one(
        &mut self,
        inode: Inode,
        span: Span,
        counts: u64,
        purpose: Purpose,
        out: &mut Vec<Effect>,
    ) -> core::result::Result<bool, Stop> {
        if self.fills.under_way.contains_key(&(inode, span.start)) {
            return Ok(true);
        }
        if self.fills.under_way.len() >= UNDER_WAY_MAX {
            return Ok(false);
        }
        let (piece, _) = self.claim(inode, span, purpose.tier, out)?;
        let ticket = self.fills.ticket_next;
        self.fills.ticket_next += 1;
        let filling = Filling { ticket, piece, purpose, is_void: false };
        self.fills.under_way.insert((inode, span.start), filling);
        let length = counts.min(span.end()) - span.start;
        let haste = if purpose.is_wish { Haste::Soon } else { Haste::Now };
        out.push(Effect::Fill { ticket, inode, piece, length, haste });
        self.wishes.rate.begins(self.moves.now());
        Ok(true)
    }

    /// The shard said how much of a file counts.
    pub(crate) fn below(
        &mut self,
        inode: Inode,
        outcome: Result<(u64, Layout)>,
        out: &mut Vec<Effect>,
    ) {
        if self.fills.late.remove(&inode) {
            return out.push(Effect::Below { inode });
        }
        let Some(cut) = self.fills.asked.remove(&inode) else { return };
        match outcome {
            Ok((end, layout)) => {
                if self.fills.ends.len() >= ENDS_MAX {
                    self.fills.ends.clear();
                }
                self.fills.ends.insert(inode, (end.min(cut), layout));
            }
            Err(errno) => {
                self.wishes.end(inode, Some(errno));
                let is_it = |need: Need| need.inode == inode;
                self.refuse_waiting(|job| job.need.is_some_and(is_it), errno, out);
            }
        }
        self.admit_waiting(out);
    }

    /// Bytes came, or not.
    pub(crate) fn filled(&mut self, ticket: u64, outcome: Result<()>, out: &mut Vec<Effect>) {
        let found = self.fills.under_way.iter().find(|(_, filling)| filling.ticket == ticket);
        let Some((&key, &Filling { piece, purpose, is_void, .. })) = found else { return };
        let inode = key.0;
        self.fills.under_way.remove(&key);
        let is_last = !self.fills.is_filling();
        self.wishes.rate.came(piece.length(), is_last, self.moves.now());
        // Who punched a hole over all of it made it meanwhile.
        let end = piece.start + piece.length();
        let is_void = is_void || self.slots.over(inode, piece.start, end).next().is_some();
        match outcome {
            Ok(()) if !is_void => {
                self.slots.place(inode, piece);
                self.watch_clean(inode, &piece);
                out.push(Effect::Publish { inode, piece, defined: Defined::Below });
                self.came(inode, &piece, purpose);
            }
            outcome => {
                self.unclaim(inode, &piece);
                if let Err(errno) = outcome
                    && !is_void
                {
                    if purpose.is_wish {
                        self.wishes.end(inode, Some(errno));
                    }
                    let is_it = |need: Need| need.touches(inode, &piece);
                    self.refuse_waiting(|job| job.need.is_some_and(is_it), errno, out);
                }
            }
        }
        self.admit_waiting(out);
    }

    /// Requests go on that waited.
    pub(crate) fn admit_waiting(&mut self, out: &mut Vec<Effect>) {
        self.fills.starving = None;
        for waiter in core::mem::take(&mut self.fills.waiting) {
            self.admit(waiter, out);
        }
    }

    /// Who sent a request that waits here is gone.
    pub(crate) fn withdraw_fill(&mut self, ticket: u64, out: &mut Vec<Effect>) {
        let waiting = &mut self.fills.waiting;
        if let Some(place) = waiting.iter().position(|job| job.ticket == ticket) {
            waiting.remove(place);
            Target::stop(ticket, Stop::Busy, out);
            // What stayed for it may go for others.
            self.admit_waiting(out);
        }
    }

    /// A piece of a file can not be had: who waits for it is refused.
    pub(crate) fn refuse_users(&mut self, inode: Inode, piece: &Piece, out: &mut Vec<Effect>) {
        let piece_end = piece.start + piece.length();
        for waiter in core::mem::take(&mut self.fills.waiting) {
            let (file, offset, end) = waiter.work.range();
            match file == inode && offset < piece_end && piece.start < end {
                true => Target::stop(waiter.ticket, Stop::Refused(Errno::EIO), out),
                false => self.fills.waiting.push_back(waiter),
            }
        }
    }

    fn refuse_waiting(
        &mut self,
        is_it: impl Fn(&Job) -> bool,
        errno: Errno,
        out: &mut Vec<Effect>,
    ) {
        let waiting = core::mem::take(&mut self.fills.waiting);
        for waiter in waiting {
            match is_it(&waiter) {
                true => Target::stop(waiter.ticket, Stop::Refused(errno), out),
                false => self.fills.waiting.push_back(waiter),
            }
        }
    }

    /// A file is cut, or gone: of what lies below only so much counts from now on.
    pub(crate) fn cut_below(&mut self, inode: Inode, size: u64) {
        if !self.may_lie_below(inode) {
            return;
        }
        let Fills { ends, asked, .. } = &mut self.fills;
        let end = ends.get_mut(&inode).map(|(end, _)| end);
        for end in [end, asked.get_mut(&inode)].into_iter().flatten() {
            *end = size.min(*end);
        }
        self.fills.void(inode, size);
    }

    /// As `cut_below`, of a file that will not be asked for again. Who waits for some of it, from below
    /// or from abroad, must not make pieces of it any more.
    pub(crate) fn forget_below(&mut self, inode: Inode, out: &mut Vec<Effect>) {
        self.refuse_waiting(|job| job.work.range().0 == inode, Errno::ESTALE, out);
        if !self.may_lie_below(inode) {
            return;
        }
        self.fills.late.remove(&inode);
        self.fills.ends.remove(&inode);
        self.fills.asked.remove(&inode);
        self.fills.void(inode, 0);
    }

    /// Those who waited for room and now wait for bytes, for checks.
    #[cfg(test)]
    pub(crate) fn tickets_with_turn(&self) -> BTreeSet<u64> {
        let waiting = self.fills.waiting.iter().filter(|job| job.turn.is_some());
        waiting.map(|job| job.ticket).collect()
    }

    /// True if all is at rest, for checks.
    #[cfg(test)]
    pub(crate) fn fills_nothing(&self) -> bool {
        self.fills.under_way.is_empty() && self.fills.waiting.is_empty()
    }
}
