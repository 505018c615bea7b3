//! Whose the bytes of this daemon's target are, and limits on them: the books that the target and the
//! metadata service beside it share, questions to shards about owners, and requests that wait, for an
//! owner or for more than their account may use.
//!
//! Both sides are run by worker 0, under its lock: what the service reads in the books is what the target
//! has in use, and what it writes there holds from the target's next step on.

use crate::reply::ReplyTo;
use crate::shared::{Guest, Shared};
use crate::target::{Final, TargetLoop};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::codec::{Reader, Writer};
use wire::errno::Errno;
use wire::quota::{Account, OWNERS_MAX, Owner};
use wire::{Inode, Reply, Request};

/// Questions about owners that are under way at once.
const QUESTIONS_MAX: usize = 8;
/// A question that is not answered is asked again after this.
const AGAIN: Duration = Duration::from_millis(50);
/// How long a request waits here before it is told to come again: as long as the metadata service lets
/// one wait.
const WAIT: Duration = Duration::from_secs(5);
/// What it is told then.
const RETRY_MICROS: u32 = 1000;
/// Bytes of an encoded request besides those that it brings.
const REQUEST_BYTES: usize = 128;

/// What a target and its service tell each other.
#[derive(Default)]
pub(crate) struct Books {
    /// The target counts.
    is_on: AtomicBool,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    used: BTreeMap<Account, u64>,
    allowed: BTreeMap<Account, u64>,
    /// How often `allowed` changed.
    version: u64,
    is_counted: bool,
}

impl Books {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True once the target counts.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Bytes that the target has in use for an account.
    pub(crate) fn used(&self, account: u64) -> u64 {
        self.pages().used.get(&Account(account)).copied().unwrap_or(0)
    }

    /// Calls `each` with every account that has some.
    pub(crate) fn each(&self, each: &mut dyn FnMut(u64, u64)) {
        self.pages().used.iter().for_each(|(account, &bytes)| each(account.0, bytes));
    }

    /// True once the target knows whose all its bytes are.
    pub(crate) fn is_counted(&self) -> bool {
        self.is_on() && self.pages().is_counted
    }

    /// An account may use so much from now on; `None`: as much as there is.
    pub(crate) fn allow(&self, account: u64, allowance: Option<u64>) {
        let mut pages = self.pages();
        pages.version += 1;
        match allowance {
            Some(bytes) => drop(pages.allowed.insert(Account(account), bytes)),
            None => drop(pages.allowed.remove(&Account(account))),
        }
    }
}

/// What a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// To know whose the file is.
    Owner,
    /// So many bytes more for an account.
    Limit(Account, u64),
}

/// Requests about one file, in their order.
struct Line {
    why: Why,
    requests: VecDeque<(Vec<u8>, ReplyTo)>,
    until: Instant,
}

/// A question about owners.
struct Question {
    inodes: Vec<Inode>,
    sent: Instant,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Waiting {
    lines: BTreeMap<Inode, Line>,
    questions: BTreeMap<u64, Question>,
    asked: u64,
    /// The books as they were written last, and the version that was read.
    noted: BTreeMap<Account, u64>,
    version: u64,
}

impl Waiting {
    fn is_asked(&self, inode: Inode) -> bool {
        self.questions.values().any(|question| question.inodes.contains(&inode))
    }
}

/// The file that a request changes, if it changes one.
const fn changed(request: &Request<'_>) -> Option<(Inode, bool)> {
    match *request {
        Request::MapPieces { inode, allocate: 1, .. } | Request::Write { inode, .. } => {
            Some((inode, true))
        }
        Request::Truncate { inode, .. } | Request::Punch { inode, .. } => Some((inode, false)),
        _ => None,
    }
}

/// A request to come again.
pub(crate) fn encoded(request: &Request<'_>) -> Vec<u8> {
    let brought = if let Request::Write { bytes, .. } = request { bytes.len() } else { 0 };
    let mut bytes = vec![0; REQUEST_BYTES + brought];
    let mut writer = Writer::new(&mut bytes);
    request.encode(&mut writer);
    let length = writer.finish().unwrap_or(0);
    bytes.truncate(length);
    bytes
}

impl TargetLoop {
    /// Puts a request aside that can not be carried out before something is known, or before those that
    /// came earlier. Where nothing is limited none is.
    pub(crate) fn put_aside(
        &mut self,
        shared: &Shared,
        request: &Request<'_>,
        to: ReplyTo,
    ) -> Option<ReplyTo> {
        if let Request::Remove { inodes } = *request {
            // Nobody has these open: whoever asked for pieces of them is gone.
            for inode in wire::request::removed(inodes) {
                self.refuse_line(shared, inode, Errno::ESTALE);
            }
            return Some(to);
        }
        let Some((inode, makes)) = changed(request) else { return Some(to) };
        if let Some(line) = self.waiting.lines.get_mut(&inode) {
            line.requests.push_back((encoded(request), to));
            return None;
        }
        let accounts = self.target.accounts();
        if !makes || !accounts.has_limits() || accounts.is_known(inode) {
            return Some(to);
        }
        self.hold(inode, Why::Owner, encoded(request), to);
        self.ask_owners(shared, &[inode]);
        None
    }

    fn hold(&mut self, inode: Inode, why: Why, request: Vec<u8>, to: ReplyTo) {
        let until = Instant::now() + WAIT;
        let line = Line { why, requests: VecDeque::new(), until };
        let line = self.waiting.lines.entry(inode).or_insert(line);
        line.why = why;
        line.requests.push_front((request, to));
    }

    /// A request needs more for an account than that may use: asks for it.
    pub(crate) fn want_more(
        &mut self,
        shared: &Shared,
        (inode, request): (Inode, Vec<u8>),
        (account, wanted): (Account, u64),
        to: ReplyTo,
    ) {
        self.hold(inode, Why::Limit(account, wanted), request, to);
        shared.draw_space(account, wanted);
    }

    fn refuse_line(&mut self, shared: &Shared, inode: Inode, errno: Errno) {
        if let Some(line) = self.waiting.lines.remove(&inode) {
            line.requests.into_iter().for_each(|(_, to)| shared.refuse(to, errno));
        }
    }

    /// Carries out what waited about a file, the first as `first` says.
    fn resume(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        inode: Inode,
        first: Final,
    ) {
        let Some(mut line) = self.waiting.lines.remove(&inode) else { return };
        let mut last = first;
        while let Some((bytes, to)) = line.requests.pop_front() {
            match Request::decode(&mut Reader::new(&bytes)) {
                Ok(request) => self.carry_out_now(shared, guests, &request, to, last),
                Err(_) => shared.refuse(to, Errno::EPROTO),
            }
            last = Final::None;
            if let Some(again) = self.waiting.lines.get_mut(&inode) {
                again.requests.append(&mut line.requests);
            }
        }
    }

    /// The target counts from now on.
    pub(crate) fn count(&mut self, shared: &Shared) {
        self.target.count();
        shared.books.is_on.store(true, Relaxed);
        self.keep_books(shared);
        self.ask_unknown(shared);
    }

    /// Before a step: what accounts may use.
    pub(crate) fn read_books(&mut self, shared: &Shared) {
        let pages = shared.books.pages();
        if pages.version != self.waiting.version {
            self.waiting.version = pages.version;
            self.target.allow(pages.allowed.clone());
        }
    }

    /// After a step: what they use.
    pub(crate) fn keep_books(&mut self, shared: &Shared) {
        let accounts = self.target.accounts();
        let used = accounts.used();
        let is_counted = accounts.unknown().is_empty();
        let mut pages = shared.books.pages();
        if *used != self.waiting.noted {
            self.waiting.noted.clone_from(used);
            pages.used.clone_from(used);
        }
        let became_counted = is_counted && !pages.is_counted;
        pages.is_counted |= is_counted;
        drop(pages);
        if became_counted {
            // Before, the service did not know what is used.
            for line in self.waiting.lines.values() {
                if let Why::Limit(account, wanted) = line.why {
                    shared.draw_space(account, wanted);
                }
            }
        }
        if !is_counted && self.waiting.questions.is_empty() {
            self.ask_unknown(shared);
        }
    }

    /// Asks whose files are of which that is not known.
    fn ask_unknown(&mut self, shared: &Shared) {
        let room = QUESTIONS_MAX.saturating_sub(self.waiting.questions.len());
        let unknown = self.target.accounts().unknown().iter().copied();
        let wanted = unknown.filter(|&inode| !self.waiting.is_asked(inode));
        let wanted: Vec<Inode> = wanted.take(room * OWNERS_MAX).collect();
        for of_shard in wanted.chunk_by(|one, other| one.shard() == other.shard()) {
            for inodes in of_shard.chunks(OWNERS_MAX) {
                if self.waiting.questions.len() < QUESTIONS_MAX {
                    self.ask_owners(shared, inodes);
                }
            }
        }
    }

    fn ask_owners(&mut self, shared: &Shared, inodes: &[Inode]) {
        let Some(shard) = inodes.first().map(|inode| inode.shard()) else { return };
        let id = self.waiting.asked;
        self.waiting.asked += 1;
        let numbers: Vec<u8> = inodes.iter().flat_map(|inode| inode.0.to_le_bytes()).collect();
        let question = Question { inodes: inodes.to_vec(), sent: Instant::now() };
        self.waiting.questions.insert(id, question);
        let header = shared.own_header(shard);
        let request = Request::Owners { inodes: &numbers };
        shared.hand_in(&header, &request, ReplyTo::Owners { question: id });
    }

    /// An answer about owners. One that says nothing is asked again later.
    pub(crate) fn owners(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        id: u64,
        answer: &[u8],
    ) {
        let Ok(Reply::Bytes { bytes }) = Reply::decode(&mut Reader::new(answer)) else { return };
        let Some(Question { inodes, .. }) = self.waiting.questions.remove(&id) else { return };
        let mut reader = Reader::new(bytes);
        for inode in inodes {
            let (Ok(uid), Ok(project), Ok(changed)) = (reader.u32(), reader.u32(), reader.u64())
            else {
                break;
            };
            let owner = Owner { uid, project };
            self.target.own(inode, owner, changed.cast_signed());
            let waits = self.waiting.lines.get(&inode).is_some_and(|line| line.why == Why::Owner);
            match owner {
                Owner::GONE if waits => self.refuse_line(shared, inode, Errno::ESTALE),
                _ if waits => self.resume(shared, guests, inode, Final::None),
                _ => {}
            }
        }
        self.keep_books(shared);
        self.ask_unknown(shared);
    }

    /// An account may use more, or not (`denied`): who waits for that goes on.
    pub(crate) fn allowed(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        account: Account,
        denied: bool,
    ) {
        let is_of = |line: &Line| matches!(line.why, Why::Limit(of, _) if of == account);
        let lines = self.waiting.lines.iter().filter(|(_, line)| is_of(line));
        let waiting: Vec<Inode> = lines.map(|(&inode, _)| inode).collect();
        let first = if denied { Final::Limit } else { Final::None };
        waiting.into_iter().for_each(|inode| self.resume(shared, guests, inode, first));
    }

    /// Asks again what was not answered, and sends away who waited for too long. How long nothing will be
    /// due, in microseconds.
    pub(crate) fn keep_waiting(&mut self, shared: &Shared) -> Option<u64> {
        if !self.target.accounts().is_on() {
            return None;
        }
        let now = Instant::now();
        let lines = self.waiting.lines.iter();
        let late: Vec<Inode> =
            lines.filter(|(_, line)| line.until <= now).map(|(&inode, _)| inode).collect();
        for inode in late {
            if let Some(line) = self.waiting.lines.remove(&inode) {
                line.requests.into_iter().for_each(|(_, to)| shared.busy(to, RETRY_MICROS));
            }
        }
        let questions = self.waiting.questions.iter();
        let late = questions.filter(|(_, question)| question.sent + AGAIN <= now);
        let late: Vec<u64> = late.map(|(&id, _)| id).collect();
        for id in late {
            if let Some(question) = self.waiting.questions.remove(&id) {
                let is_wanted = |inode: &Inode| !self.target.accounts().is_known(*inode);
                let inodes: Vec<Inode> = question.inodes.into_iter().filter(is_wanted).collect();
                self.ask_owners(shared, &inodes);
            }
        }
        let is_idle = self.waiting.questions.is_empty() && self.waiting.lines.is_empty();
        (!is_idle).then_some(AGAIN.as_micros() as u64)
    }
}
