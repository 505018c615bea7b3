//! The target's side: where files lie below is asked of their shards, once for each file; what is to be
//! filled meanwhile waits for that.

use super::{Fetch, Outcome, Told, Wanted};
use crate::inbox::Note;
use crate::reply::ReplyTo;
use crate::shared::{Guest, Shared};
use crate::target::TargetLoop;
use data::Input;
use placement::map::WORKER_OF_TARGET;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::{Inode, Reply, Request};

/// Files of which it is remembered where they lie.
const TOLD_MAX: usize = 1 << 16;
/// A question that is not answered is asked again after this.
const AGAIN: Duration = Duration::from_millis(50);
/// A file that is not where it was said to be is asked for again after this,
const ASTRAY: Duration = Duration::from_millis(20);
/// for so long: it may just have been moved or saved anew, and its shard be told next.
const ASTRAY_MAX: Duration = Duration::from_secs(2);

/// What is wanted of a file of which it is not known where it lies.
struct Waiting {
    ticket: u64,
    wanted: Wanted,
    until: Option<Instant>,
}

impl Waiting {
    fn fetch(self, inode: Inode, told: &Arc<Told>) -> Fetch {
        let (Waiting { ticket, wanted, until }, told) = (self, Arc::clone(told));
        Fetch { ticket, inode, wanted, told, until }
    }
}

/// A question to a shard.
struct Question {
    sent: Instant,
    /// Nobody is asked for longer.
    until: Instant,
    /// The target wants to know how much of the file counts.
    by_target: bool,
    /// The answer says what was so before.
    is_late: bool,
    waiting: Vec<Waiting>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Asks {
    told: BTreeMap<Inode, Arc<Told>>,
    questions: BTreeMap<Inode, Question>,
    /// Files that were not where they were said to be, and when they are asked for again.
    astray: VecDeque<(Instant, Inode, Waiting)>,
}

impl Asks {
    /// What lies below of a file is another version than was told: what is here of it may go, and is not
    /// to come from the earlier one, which may be open still.
    pub(crate) fn ask_anew(&mut self, inode: Inode) {
        self.told.remove(&inode);
        if let Some(question) = self.questions.get_mut(&inode) {
            question.is_late = true;
        }
    }
}

impl TargetLoop {
    /// The target asks how much of a file lies below.
    pub(crate) fn ask_below(&mut self, shared: &Shared, inode: Inode) {
        self.question(shared, inode).by_target = true;
    }

    /// The target wants something of a file.
    pub(crate) fn fetch(&mut self, shared: &Shared, (ticket, inode): (u64, Inode), wanted: Wanted) {
        self.fetch_again(shared, inode, Waiting { ticket, wanted, until: None });
    }

    fn fetch_again(&mut self, shared: &Shared, inode: Inode, waiting: Waiting) {
        match self.asks.told.get(&inode) {
            Some(told) => order(shared, waiting.fetch(inode, told)),
            None => self.question(shared, inode).waiting.push(waiting),
        }
    }

    fn question(&mut self, shared: &Shared, inode: Inode) -> &mut Question {
        self.asks.questions.entry(inode).or_insert_with(|| {
            send(shared, inode);
            let sent = Instant::now();
            let until = sent + shared.timeout;
            Question { sent, until, by_target: false, is_late: false, waiting: Vec::new() }
        })
    }

    /// A shard answered. What says nothing is asked again later.
    pub(crate) fn told_below(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        inode: Inode,
        answer: &[u8],
    ) {
        let outcome = match Reply::decode(&mut Reader::new(answer)) {
            Ok(Reply::Bytes { bytes }) => Told::decode(bytes),
            Ok(Reply::Refused { errno }) => Err(errno),
            _ => return,
        };
        self.end_question(shared, guests, inode, outcome);
    }

    fn end_question(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        inode: Inode,
        outcome: Result<Told>,
    ) {
        if let Some(question) = self.asks.questions.get_mut(&inode)
            && std::mem::take(&mut question.is_late)
        {
            question.sent = Instant::now();
            return send(shared, inode);
        }
        let Some(question) = self.asks.questions.remove(&inode) else { return };
        // Who has it open reads what is not there any more: it was replaced below.
        let outcome = match outcome {
            // It was made here, and not saved yet.
            Err(Errno::ESTALE) if !inode.is_from_below() => Ok(Told::nothing()),
            Err(Errno::ESTALE) => Err(Errno::EIO),
            outcome => outcome,
        };
        let outcome = outcome.map(Arc::new);
        if let Ok(told) = &outcome
            && !told.is_nothing()
        {
            if self.asks.told.len() >= TOLD_MAX {
                self.asks.told.clear();
            }
            self.asks.told.insert(inode, Arc::clone(told));
        }
        for waiting in question.waiting {
            match &outcome {
                Ok(told) => order(shared, waiting.fetch(inode, told)),
                Err(errno) => {
                    let outcome = waiting.wanted.refused(*errno);
                    self.fetched(shared, guests, waiting.ticket, outcome);
                }
            }
        }
        if question.by_target {
            let outcome = outcome.map(|told| (told.size, told.layout));
            self.step(shared, guests, Input::Below { inode, outcome });
        }
    }

    /// What was wanted is there, or not, or not yet.
    pub(crate) fn fetched(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        ticket: u64,
        outcome: Outcome,
    ) {
        let Fetch { inode, wanted, told, until, .. } = match outcome {
            Outcome::Astray(fetch) => fetch,
            Outcome::Filled(outcome) => {
                return self.step(shared, guests, Input::Filled { ticket, outcome });
            }
            Outcome::Read(outcome) => return self.answer_read(shared, ticket, outcome),
        };
        // Somebody else may have heard something new of it meanwhile.
        if self.asks.told.get(&inode) == Some(&told) {
            self.asks.told.remove(&inode);
        }
        let now = Instant::now();
        let until = until.or(Some(now + ASTRAY_MAX));
        let waiting = Waiting { ticket, wanted, until };
        self.asks.astray.push_back((now + ASTRAY, inode, waiting));
    }

    /// Where a file lies below, as far as is known here.
    pub(crate) fn path_below(&self, inode: Inode) -> Option<&[u8]> {
        self.asks.told.get(&inode).map(|told| told.first_path())
    }

    /// True if that is being asked.
    pub(crate) fn is_asked(&self, inode: Inode) -> bool {
        self.asks.questions.contains_key(&inode)
    }

    /// Asks it, for whoever looks then.
    pub(crate) fn ask_place(&mut self, shared: &Shared, inode: Inode) {
        self.question(shared, inode);
    }

    /// Files are gone.
    pub(crate) fn forget_told(&mut self, inodes: &[u8]) {
        for inode in wire::request::removed(inodes) {
            self.asks.told.remove(&inode);
        }
    }

    /// Asks again what was not answered, and gives up what nobody answers. Returns for how many
    /// microseconds nothing will be due.
    pub(crate) fn keep_asks(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
    ) -> Option<u64> {
        let now = Instant::now();
        while let Some((_, inode, waiting)) = self.asks.astray.pop_front_if(|it| it.0 <= now) {
            self.fetch_again(shared, inode, waiting);
        }
        let mut late = Vec::new();
        for (&inode, question) in &mut self.asks.questions {
            if question.until <= now {
                late.push(inode);
            } else if question.sent + AGAIN <= now {
                question.sent = now;
                send(shared, inode);
            }
        }
        for inode in late {
            self.end_question(shared, guests, inode, Err(Errno::EIO));
        }
        let astray = self.asks.astray.front().map(|(at, ..)| *at);
        let again = self.asks.questions.values().map(|question| question.sent + AGAIN);
        let next = again.chain(astray).min()?;
        u64::try_from(next.saturating_duration_since(now).as_micros()).ok()
    }
}

fn send(shared: &Shared, inode: Inode) {
    let header = shared.own_header(inode.shard());
    shared.hand_in(&header, &Request::Below { inode }, ReplyTo::Below { inode });
}

fn order(shared: &Shared, fetch: Fetch) {
    match &shared.below {
        Some(below) => below.fetch(fetch),
        None => {
            // A number from below, and there is none: somebody made it up.
            let (ticket, outcome) = (fetch.ticket, fetch.wanted.refused(Errno::EIO));
            shared.tell(WORKER_OF_TARGET, Note::Fetched { ticket, outcome });
        }
    }
}
