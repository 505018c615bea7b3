//! Requests of the model's clients that wait for room, and whether each gets its turn.

use super::{CHUNK_LOG2, World};
use crate::effect::{Answer, Defined, Effect, Input};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::reply::Piece;
use wire::{Errno, Inode, Request};

/// What a piece is of its file.
pub(super) type Range = (Inode, u64, u8);

pub(super) const fn range((inode, piece): (Inode, Piece)) -> Range {
    (inode, piece.start, piece.length_log2)
}

/// The ticket of who does not wait for room.
pub(super) const IMPATIENT: u64 = 7;
/// How long the others do.
const PATIENCE_MILLIS: u32 = 300;

/// Those who wait.
#[derive(Clone, Default)]
pub(super) struct Waiting {
    /// In the order in which they began.
    tickets: VecDeque<u64>,
    /// Those of them who wait for bytes instead, or did when this step began: others pass them by.
    away: BTreeSet<u64>,
    /// What they and others want who were not answered: file, offset, length.
    wants: BTreeMap<u64, (u64, u64, u64)>,
    next_ticket: u64,
    /// The same of who does not wait.
    own: (u64, u64, u64),
    /// Pieces that were made since the last answer.
    made: Vec<Range>,
    /// A question that is not answered at once.
    pub(super) defers: bool,
    asked: Option<u64>,
}

impl World {
    /// A client wants pieces, and waits until there is room.
    pub(super) fn want(&mut self, file: u64, offset: u64, length: u64) {
        self.waiting.next_ticket += 1;
        let ticket = 100 + self.waiting.next_ticket;
        self.waiting.wants.insert(ticket, (file, offset, length));
        self.send_want(ticket);
    }

    fn send_want(&mut self, ticket: u64) {
        let (file, offset, length) = self.waiting.wants[&ticket];
        let inode = Inode(file);
        let (chunk_log2, allocate, ahead) = (CHUNK_LOG2, 1, 0);
        let request = Request::MapPieces { inode, chunk_log2, allocate, offset, length, ahead };
        self.look_at_early(false);
        self.step(Input::Request { ticket, request: &request }, &[]);
    }

    /// An effect about those who wait.
    pub(super) fn perform_on_waiting(&mut self, effect: &Effect, out: &mut Vec<Effect>) {
        match *effect {
            Effect::Wait { ticket } => self.waiting.tickets.push_back(ticket),
            Effect::AskForRoom { round } => {
                assert_eq!(self.waiting.asked, None, "asked twice");
                self.waiting.asked = Some(round);
                if !self.waiting.defers {
                    self.answer_about_room(false, out);
                }
            }
            _ => {}
        }
    }

    fn answer_about_room(&mut self, comes: bool, out: &mut Vec<Effect>) {
        if let Some(round) = self.waiting.asked.take() {
            self.target.step(Input::RoomAsked { round, comes, goes_on: false }, out);
        }
    }

    /// The others say whether something is on its way.
    pub(super) fn room_asked(&mut self, comes: bool) {
        let mut out = Vec::new();
        self.answer_about_room(comes && self.waiting.defers, &mut out);
        self.perform(out, &[]);
    }

    /// Who does not wait asks.
    pub(super) const fn ask_at_once(&mut self, request: &Request<'_>) {
        self.waiting.own = match *request {
            Request::MapPieces { inode, offset, length, .. } => (inode.0, offset, length),
            Request::Write { inode, offset, bytes, .. } => (inode.0, offset, bytes.len() as u64),
            _ => (0, 0, 0),
        };
    }

    pub(super) fn note_made(&mut self, inode: Inode, piece: Piece, defined: Defined) {
        let moves = self.table.values().any(|&row| range(row) == range((inode, piece)));
        if !moves && defined != Defined::Early {
            self.waiting.made.push(range((inode, piece)));
        }
    }

    /// Is a piece of what is wanted?
    fn wants(&self, ticket: u64, &(inode, start, log2): &Range) -> bool {
        let own = Some(&self.waiting.own).filter(|_| ticket == IMPATIENT);
        let want = own.or_else(|| self.waiting.wants.get(&ticket));
        want.is_some_and(|&(file, offset, length)| {
            inode.0 == file && offset < start + (1 << log2) && start < offset + length
        })
    }

    /// Only who waits for longest gets what comes free. A piece that is there already, as somebody
    /// before him wanted it, anybody may have.
    pub(super) fn note_answer(&mut self, ticket: u64, answer: &Answer) {
        let place = self.waiting.tickets.iter().position(|&one| one == ticket);
        let is_served = matches!(answer, Answer::Pieces(_) | Answer::Done);
        let made = std::mem::take(&mut self.waiting.made);
        if is_served {
            self.waiting.away.extend(self.target.tickets_with_turn());
            let Waiting { tickets, away, .. } = &self.waiting;
            let ahead = || tickets.iter().copied().take_while(|&one| one != ticket);
            let is_behind = ahead().any(|one| !away.contains(&one));
            let mut takes = made.iter().filter(|piece| self.wants(ticket, piece));
            let is_theirs = |piece: &Range| ahead().any(|one| self.wants(one, piece));
            assert!(!is_behind || takes.all(is_theirs), "it was not its turn");
        }
        if place.is_some() {
            self.waiting.tickets.retain(|&one| one != ticket);
        }
        if ticket != IMPATIENT {
            self.seen.served += usize::from(place.is_some() && is_served);
            assert!(self.waiting.wants.remove(&ticket).is_some(), "answered twice");
            let is_refusal = matches!(answer, Answer::Refused(errno) if *errno != Errno::EINVAL);
            assert!(
                is_served || is_refusal || matches!(answer, Answer::Beyond { .. }),
                "{answer:?}"
            );
        }
    }

    /// A step is over.
    pub(super) fn note_away(&mut self) {
        self.waiting.away = self.target.tickets_with_turn();
    }

    pub(super) fn keep_writers(&mut self) {
        let mut out = Vec::new();
        self.target.keep_writers(self.millis, PATIENCE_MILLIS, &mut out);
        self.perform(out, &[]);
    }

    /// Nobody waits for nothing.
    pub(super) fn check_waiting(&mut self) {
        self.target.check_admission();
        let waiting = self.target.writers_waiting() + self.target.tickets_with_turn().len();
        assert_eq!(waiting, self.waiting.tickets.len());
        let something_leaves = self.target.moves_count() > 0
            || self.target.leaving_count() > 0
            || self.target.early_bytes() > 0
            || self.waiting.asked.is_some()
            || self.target.is_sinking();
        assert!(something_leaves || self.waiting.tickets.is_empty(), "they wait for nothing");
    }

    /// Their clients ask the next daemon again.
    pub(super) fn wait_again(&mut self) {
        let old = std::mem::take(&mut self.waiting);
        let Waiting { next_ticket, defers, wants, .. } = old;
        let tickets: Vec<u64> = wants.keys().copied().collect();
        self.waiting = Waiting { next_ticket, defers, wants, ..Waiting::default() };
        tickets.into_iter().for_each(|ticket| self.send_want(ticket));
    }

    /// Whoever wanted room was answered.
    pub(super) fn check_answered(&self) {
        assert!(self.waiting.wants.is_empty(), "{:?} wait for ever", self.waiting.wants);
    }
}
