//! Requests of the model's clients that wait for space, and whether each gets its turn.

use super::{ModelWorld, STRIPE_LOG2};
use crate::effect::{Answer, Effect, Input, Validity};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::reply::Extent;
use wire::{Errno, Inode, Request};

/// The part of its file that an extent covers.
pub(super) type Range = (Inode, u64, u8);

pub(super) const fn range((inode, extent): (Inode, Extent)) -> Range {
    (inode, extent.start, extent.length_log2)
}

/// The ticket of a request that does not wait for space.
pub(super) const IMPATIENT: u64 = 7;
/// How long the others wait.
const ENOSPC_TIMEOUT_MILLIS: u32 = 300;

/// The waiting requests.
#[derive(Clone, Default)]
pub(super) struct Waiting {
    /// In the order in which they began to wait.
    tickets: VecDeque<u64>,
    /// Those that wait for bytes instead, or did when this step began: others bypass them.
    away: BTreeSet<u64>,
    /// Range of each unanswered request: file, offset, length.
    wants: BTreeMap<u64, (u64, u64, u64)>,
    next_ticket: u64,
    /// The same for the request that does not wait.
    own: (u64, u64, u64),
    /// Extents allocated since the last answer.
    made: Vec<Range>,
    /// A space query that is not answered at once.
    pub(super) defers: bool,
    space_round: Option<u64>,
}

impl ModelWorld {
    /// A client requests extents, and waits until there is space.
    pub(super) fn want(&mut self, file: u64, offset: u64, length: u64) {
        self.waiting.next_ticket += 1;
        let ticket = 100 + self.waiting.next_ticket;
        self.waiting.wants.insert(ticket, (file, offset, length));
        self.send_want(ticket);
    }

    fn send_want(&mut self, ticket: u64) {
        let (file, offset, length) = self.waiting.wants[&ticket];
        let inode = Inode(file);
        let (stripe_log2, allocate, ahead) = (STRIPE_LOG2, 1, 0);
        let request = Request::MapExtents {
            inode,
            stripe_log2,
            allocate,
            offset,
            length,
            preallocate: ahead,
        };
        self.look_at_preallocated(false);
        self.step(Input::Request { ticket, request: &request, job: wire::JobWord::NONE }, &[]);
    }

    /// Handles an effect about waiting requests.
    pub(super) fn perform_on_waiting(&mut self, effect: &Effect, out: &mut Vec<Effect>) {
        match *effect {
            Effect::Wait { ticket } => self.waiting.tickets.push_back(ticket),
            Effect::RequestSpace { round } => {
                assert_eq!(self.waiting.space_round, None, "asked twice");
                self.waiting.space_round = Some(round);
                if !self.waiting.defers {
                    self.answer_space_request(false, out);
                }
            }
            _ => {}
        }
    }

    fn answer_space_request(&mut self, comes: bool, out: &mut Vec<Effect>) {
        if let Some(round) = self.waiting.space_round.take() {
            self.target.step(Input::SpaceReported { round, comes, progresses: false }, out);
        }
    }

    /// The others report whether something will be freed.
    pub(super) fn space_reported(&mut self, comes: bool) {
        let mut out = Vec::new();
        self.answer_space_request(comes && self.waiting.defers, &mut out);
        self.perform(out, &[]);
    }

    /// A client that does not wait sends a request.
    pub(super) const fn ask_at_once(&mut self, request: &Request<'_>) {
        self.waiting.own = match *request {
            Request::MapExtents { inode, offset, length, .. } => (inode.0, offset, length),
            Request::Write { inode, offset, bytes, .. } => (inode.0, offset, bytes.len() as u64),
            _ => (0, 0, 0),
        };
    }

    pub(super) fn note_allocated(&mut self, inode: Inode, extent: Extent, valid: Validity) {
        let moves = self.table.values().any(|&row| range(row) == range((inode, extent)));
        if !moves && valid != Validity::Preallocated {
            self.waiting.made.push(range((inode, extent)));
        }
    }

    /// True if the request covers the extent.
    fn wants(&self, ticket: u64, &(inode, start, log2): &Range) -> bool {
        let own = Some(&self.waiting.own).filter(|_| ticket == IMPATIENT);
        let want = own.or_else(|| self.waiting.wants.get(&ticket));
        want.is_some_and(|&(file, offset, length)| {
            inode.0 == file && offset < start + (1 << log2) && start < offset + length
        })
    }

    /// Only the request that has waited longest gets space that becomes free. An extent that exists
    /// already, for an earlier request, anybody may have.
    pub(super) fn note_answer(&mut self, ticket: u64, answer: &Answer) {
        let queued = self.waiting.tickets.iter().position(|&one| one == ticket);
        let is_served = matches!(answer, Answer::Extents(_) | Answer::Done);
        let made = std::mem::take(&mut self.waiting.made);
        if is_served {
            self.waiting.away.extend(self.target.tickets_with_turn());
            let Waiting { tickets, away, .. } = &self.waiting;
            let ahead = || tickets.iter().copied().take_while(|&one| one != ticket);
            let is_behind = ahead().any(|one| !away.contains(&one));
            let mut takes = made.iter().filter(|extent| self.wants(ticket, extent));
            let is_theirs = |extent: &Range| ahead().any(|one| self.wants(one, extent));
            assert!(!is_behind || takes.all(is_theirs), "it was not its turn");
        }
        if queued.is_some() {
            self.waiting.tickets.retain(|&one| one != ticket);
        }
        if ticket != IMPATIENT {
            self.seen.served += usize::from(queued.is_some() && is_served);
            assert!(self.waiting.wants.remove(&ticket).is_some(), "answered twice");
            let is_refusal = matches!(answer, Answer::Refused(errno) if *errno != Errno::EINVAL);
            assert!(
                is_served || is_refusal || matches!(answer, Answer::OverLimit { .. }),
                "{answer:?}"
            );
        }
    }

    /// A step is over.
    pub(super) fn note_away(&mut self) {
        self.waiting.away = self.target.tickets_with_turn();
    }

    pub(super) fn tick_writers(&mut self) {
        let mut out = Vec::new();
        self.target.tick_writers(self.millis, ENOSPC_TIMEOUT_MILLIS, &mut out);
        self.perform(out, &[]);
    }

    /// Checks that no request waits without a reason.
    pub(super) fn check_waiting(&mut self) {
        self.target.check_admission();
        let waiting = self.target.writers_waiting() + self.target.tickets_with_turn().len();
        assert_eq!(waiting, self.waiting.tickets.len());
        let something_leaves = self.target.moves_count() > 0
            || self.target.leaving_count() > 0
            || self.target.preallocated_bytes() > 0
            || self.waiting.space_round.is_some()
            || self.target.is_demoting();
        assert!(something_leaves || self.waiting.tickets.is_empty(), "they wait for nothing");
    }

    /// Clients repeat their requests to the next daemon.
    pub(super) fn wait_again(&mut self) {
        let old = std::mem::take(&mut self.waiting);
        let Waiting { next_ticket, defers, wants, .. } = old;
        let tickets: Vec<u64> = wants.keys().copied().collect();
        self.waiting = Waiting { next_ticket, defers, wants, ..Waiting::default() };
        tickets.into_iter().for_each(|ticket| self.send_want(ticket));
    }

    /// Every request for space was answered.
    pub(super) fn check_answered(&self) {
        assert!(self.waiting.wants.is_empty(), "{:?} wait for ever", self.waiting.wants);
    }
}
