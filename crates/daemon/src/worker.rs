//! A worker: takes what comes and drives its cores; and its thread, which waits.
//!
//! A worker is run by one thread at a time, under its lock: mostly its own, which looks for a
//! moment, yields for a moment, then sleeps on the doorbell until somebody rings or something is due
//! (`shm::wait`). While it sleeps, the thread of `net` runs it in its stead if that is awake anyway
//! (`peers`): a request of another host then costs no second wake-up.

use crate::bulk;
use crate::inbox::Note;
use crate::reply::{Asker, LOST_MICROS, ReplyTo};
use crate::shard::Shard;
use crate::shared::{Guest, Shared};
use crate::sizes::Asked;
use crate::target::TargetLoop;
use gateway::{Route, admit_from_session};
use shm::doorbell::Sleep;
use shm::wait::{Habit, Next, steady_nanos};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use wire::codec::Reader;
use wire::errno::Errno;
use wire::limits::{SLOT_BYTES, SLOT_COUNT};
use wire::{Header, Reply, Request};

/// Longest sleep when nothing is due.
const SLEEP_MICROS_MAX: u64 = 60_000_000;
/// How long posts may wait while a worker dozes: a hundred times what it costs to look.
const DOZE_MICROS: u64 = 2_000;
/// After so many rounds with posts and no request in between nobody is expected to wait.
const POSTS_ONLY_MIN: u32 = 8;
/// How long after a post a worker only dozes.
const POSTS_TIME: Duration = Duration::from_millis(50);
/// Rounds with something to do between two looks at the clock's duties.
const BUSY_ROUNDS: u32 = 64;

/// Room for one request of a session.
pub(crate) type Message = Box<[u8; SLOT_BYTES]>;

/// What a round found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Took {
    /// Nothing.
    Nothing,
    /// Requests, all of which went on to other daemons.
    PassedOn,
    /// Posts: nobody waits.
    Posts,
    /// Something for the worker's own cores.
    Own,
}

/// One worker.
pub(crate) struct Worker {
    number: usize,
    shard: Shard,
    /// Worker 0 owns the target.
    target: Option<TargetLoop>,
    guests: Vec<Option<Arc<Guest>>>,
    notes: VecDeque<Note>,
    rung: Vec<u16>,
    /// It has begun and not ended.
    is_running: bool,
    /// Its thread sleeps until then; before that, it is awake. By the steady clock.
    sleeps_until: i64,
}

/// All workers of a daemon.
pub(crate) struct Workers {
    cells: Vec<Mutex<Worker>>,
}

impl Workers {
    /// Workers that have not begun, in the order of their numbers.
    pub(crate) fn new(workers: Vec<Worker>) -> Workers {
        Workers { cells: workers.into_iter().map(Mutex::new).collect() }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.cells.len()
    }

    /// A worker that runs and that nobody drives right now.
    pub(crate) fn try_lock(&self, number: usize) -> Option<MutexGuard<'_, Worker>> {
        let worker = match self.cells.get(number)?.try_lock() {
            Ok(worker) => worker,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        worker.is_running.then_some(worker)
    }

    /// The thread of a worker: runs until the daemon stops.
    pub(crate) fn run(&self, number: usize, shared: &Shared) {
        let Some(cell) = self.cells.get(number) else { return };
        let lock = || cell.lock().unwrap_or_else(PoisonError::into_inner);
        let mut message = Message::new([0; SLOT_BYTES]);
        lock().begin(shared);
        shared.net.flush();
        let mut habit = Habit::new();
        let (mut rounds, mut rewrites, mut last) = (0, false, Took::Nothing);
        let mut posts_only = 0u32;
        loop {
            let mut took = Took::Nothing;
            if rewrites || shared.bells.has_rung(number) || shared.posts.has_any(number) {
                let mut worker = lock();
                took = worker.take(shared, &mut message);
                if worker.shard.take_posts(shared) {
                    took = took.max(Took::Posts);
                }
                worker.make_early(shared);
                rewrites = worker.shard.keep_log_short();
                drop(worker);
                shared.net.flush();
            }
            let is_quiet = took == Took::Nothing && !rewrites;
            if !is_quiet {
                last = took;
                posts_only = if took == Took::Posts { posts_only.saturating_add(1) } else { 0 };
                habit.came(took == Took::Posts);
                rounds += 1;
                if rounds % BUSY_ROUNDS != 0 {
                    continue;
                }
            }
            if is_quiet && shared.stopping.load(Acquire) {
                break;
            }
            // What is passed on can be left to the thread that waits for the answers.
            let leaves_it = match last {
                Took::PassedOn => shared.net_watches.load(Relaxed),
                // To look for more by yielding would cost who posts more than a wake-up now and then.
                Took::Posts => posts_only >= POSTS_ONLY_MIN,
                _ => false,
            };
            if is_quiet && !leaves_it && habit.pause() == Next::Look {
                shared.bells.stand(number);
                continue;
            }
            let mut worker = lock();
            let (idle_micros, how) = worker.rest(shared);
            rewrites = worker.shard.keep_log_short();
            let sleeps = is_quiet && !rewrites;
            worker.sleeps_until = i64::MIN;
            if sleeps {
                if how == Sleep::Deep {
                    worker.publish(shared);
                }
                worker.sleeps_until = steady_nanos().saturating_add_unsigned(idle_micros * 1000);
            }
            drop(worker);
            shared.net.flush_all();
            if sleeps {
                let has_more = || how == Sleep::Deep && shared.posts.has_any(number);
                shared.bells.sleep(number, idle_micros, how, has_more);
            }
        }
        lock().end(shared);
    }
}

impl Worker {
    /// A worker that has not begun.
    pub(crate) fn new(number: usize, shard: Shard, target: Option<TargetLoop>) -> Worker {
        let (guests, notes, rung) = (Vec::new(), VecDeque::new(), Vec::new());
        let (is_running, sleeps_until) = (false, i64::MIN);
        Worker { number, shard, target, guests, notes, rung, is_running, sleeps_until }
    }

    fn begin(&mut self, shared: &Shared) {
        self.shard.begin(shared);
        if let Some(target) = &mut self.target {
            target.begin(shared, &self.guests);
        }
        self.publish(shared);
        self.is_running = true;
    }

    fn end(&mut self, shared: &Shared) {
        self.is_running = false;
        self.shard.end(shared);
    }

    /// Does what is due; returns for how many microseconds nothing will be, and how to sleep. Where
    /// posts came lately, or may be coming, the thread looks by itself now and then: then a few of
    /// them wake nobody.
    fn rest(&mut self, shared: &Shared) -> (u64, Sleep) {
        let makes_early = self.make_early(shared);
        let micros = self.keep_time(shared);
        let lately = self.shard.posted_at.is_some_and(|at| at.elapsed() < POSTS_TIME);
        if !lately && !makes_early && !shared.posts.has_any(self.number) {
            return (micros, Sleep::Deep);
        }
        shared.posts.sweep(self.number);
        (micros.min(DOZE_MICROS), Sleep::Doze)
    }

    /// True if something is due before the worker's thread would see to it.
    pub(crate) fn needs_thread(&mut self) -> bool {
        self.shard.wants_time_before(self.sleeps_until)
            || self.target.as_ref().is_some_and(|one| one.target.waits_for_room())
    }

    /// Takes rings, notes and requests.
    pub(crate) fn take(&mut self, shared: &Shared, message: &mut Message) -> Took {
        let mut rung = std::mem::take(&mut self.rung);
        let mut took = Took::Nothing;
        if shared.bells.take(self.number, |session| rung.push(session)) {
            // Before the rings are looked at: the note that opens a session comes before them.
            took = self.take_notes(shared);
            for session in rung.drain(..) {
                took = took.max(self.take_session(shared, session, message));
            }
        }
        self.rung = rung;
        took
    }

    /// Takes the notes of other threads.
    fn take_notes(&mut self, shared: &Shared) -> Took {
        let mut notes = std::mem::take(&mut self.notes);
        if let Some(inbox) = shared.inboxes.get(self.number) {
            inbox.take(&mut notes);
        }
        let took = if notes.is_empty() { Took::Nothing } else { Took::Own };
        for note in notes.drain(..) {
            self.take_note(shared, note);
        }
        self.notes = notes;
        took
    }

    fn take_note(&mut self, shared: &Shared, note: Note) {
        match note {
            Note::Opened(guest) => {
                let place = usize::from(guest.session.index);
                if self.guests.len() <= place {
                    self.guests.resize(place + 1, None);
                }
                if let Some(row) = self.guests.get_mut(place) {
                    *row = Some(guest);
                }
            }
            Note::Closed(index) => self.part_with(shared, index),
            Note::Request { bytes, to } => self.take_admitted(shared, &bytes, to),
            Note::Peer(bytes) => self.take_message(shared, &bytes),
            Note::OriginGone { first, count } => {
                self.shard.origin_gone(shared, first, count);
                let gone = first..first.saturating_add(count);
                self.withdraw(shared, &|asker| gone.contains(&asker.origin));
            }
            Note::Withdrawn { origin, sequence } => {
                self.shard.withdrawn(shared, origin, sequence);
                self.withdraw(shared, &|asker| *asker == Asker { origin, sequence });
            }
            Note::Part { job, daemon, answer } => self.shard.part(shared, job, daemon, answer),
            Note::Removals { target, answer } => self.shard.removed(shared, target, answer),
            Note::DrawSpace { account, wanted } => self.shard.draw_space(shared, account, wanted),
            Note::Listed { directory, outcome } => {
                self.shard.listed(shared, directory, &outcome);
            }
            Note::Looked { key, outcome } => self.shard.looked(shared, key, outcome),
            note => self.take_note_of_target(shared, note),
        }
    }

    fn take_note_of_target(&mut self, shared: &Shared, note: Note) {
        let Some(target) = &mut self.target else { return };
        match note {
            Note::Preallocated(outcome) => target.preallocated(shared, &self.guests, outcome),
            Note::Copied { ticket, outcome } => {
                target.copied(shared, &self.guests, ticket, outcome);
            }
            Note::ReadAbroad { ticket, piece, outcome } => {
                target.abroad_was_read(shared, ticket, &piece, outcome);
            }
            Note::Dismissed { slot, answer } => {
                target.dismissal_answered(shared, &self.guests, slot, answer);
            }
            Note::Lend(bytes) => target.lend(shared, &self.guests, bytes),
            Note::GivenBack { place, length_log2, outcome } => {
                let input = data::Input::GivenBack { place, length_log2, outcome };
                target.step(shared, &self.guests, input);
            }
            Note::Count => target.count(shared),
            Note::Owners { question, answer } => {
                target.owners(shared, &self.guests, question, &answer);
            }
            Note::ToldBelow { inode, answer } => {
                target.told_below(shared, &self.guests, inode, &answer);
            }
            Note::IsSaved { inode, number, is_saved } => {
                let input = data::Input::IsSaved { inode, number, is_saved };
                target.step(shared, &self.guests, input);
            }
            Note::Fetched { ticket, outcome } => {
                target.fetched(shared, &self.guests, ticket, outcome);
            }
            Note::GaveBack { by, answer } => target.gave_back(shared, &self.guests, by, &answer),
            Note::Allowed { account, denied } => {
                target.allowed(shared, &self.guests, account, denied);
            }
            _ => {}
        }
    }

    /// A session is over. What it said of its files and did not wait for is still carried out, but
    /// nothing that it waited for.
    fn part_with(&mut self, shared: &Shared, session: u16) {
        let Some(guest) = self.guests.get_mut(usize::from(session)).and_then(Option::take) else {
            return;
        };
        let pending = guest.slots.take_pending(self.number);
        if pending == 0 {
            return;
        }
        let mut message = Message::new([0; SLOT_BYTES]);
        for slot in (0..SLOT_COUNT).filter(|slot| pending >> slot & 1 != 0) {
            if guest.slots.is_detached(slot)
                && guest.slots.row_of(slot).is_none()
                && let Some(length) = guest.slots.request(slot, &mut message)
            {
                let bytes = message.get(..length).unwrap_or_default();
                self.take_slot(shared, &guest, slot, bytes);
            }
        }
    }

    fn take_session(&mut self, shared: &Shared, session: u16, message: &mut Message) -> Took {
        let guest = self.guests.get(usize::from(session)).and_then(Option::as_ref);
        let Some(guest) = guest.map(Arc::clone) else { return Took::Nothing };
        let mut pending = guest.slots.take_pending(self.number);
        let mut took = Took::Nothing;
        while pending != 0 {
            let slot = pending.trailing_zeros() as usize;
            pending &= pending - 1;
            if let Some(length) = guest.slots.request(slot, message) {
                let bytes = message.get(..length).unwrap_or_default();
                took = took.max(self.take_slot(shared, &guest, slot, bytes));
            }
        }
        took
    }

    /// One request of a session.
    fn take_slot(
        &mut self,
        shared: &Shared,
        guest: &Arc<Guest>,
        slot: usize,
        bytes: &[u8],
    ) -> Took {
        if let Some(figures) = shared.figures.get(self.number) {
            figures.requests.fetch_add(1, Relaxed);
        }
        let slot = match guest.slots.row_of(slot) {
            Some(row) => {
                // It was handed in for that row, and is free for others.
                guest.slots.reply(slot, &[]);
                row
            }
            None => slot,
        };
        let to = ReplyTo::Slot { guest: Arc::clone(guest), slot: slot as u16 };
        let admitted = match admit_from_session(bytes, &guest.session.believed, shared.host_number)
        {
            Ok(admitted) => admitted,
            Err(errno) => {
                shared.refuse(to, errno);
                return Took::Own;
            }
        };
        if let Request::Push { buffer } = admitted.request {
            shared.start_push(guest, buffer);
            shared.answer_with(to, &Reply::Done {});
            return Took::Own;
        }
        let route = shared.router.route(&admitted.header, gateway::route::From::Session);
        if let Request::Fetch { buffer, .. } = admitted.request
            && !matches!(route, Ok(Route::Peer(_)))
        {
            // Perhaps nobody waits for an answer that says so.
            guest.slots.stage().fetched(buffer, None);
        }
        match route {
            Ok(Route::Worker(worker)) if worker == self.number => {
                self.carry_out(shared, &admitted.header, &admitted.request, to);
            }
            Ok(Route::Worker(worker)) => shared.hand_to_worker(worker, admitted.encode(), to),
            Ok(Route::Peer(peer)) => {
                let asked = Asked::by(&admitted.request);
                if let Some(end) = bulk::end_of(guest, &admitted.request) {
                    shared.start_bytes(peer, end, (guest, slot as u16), asked);
                    return Took::Own;
                }
                if guest.slots.is_detached(slot) {
                    shared.tell_peer(peer, &admitted, to);
                } else if let Request::Extend { inode, .. } = admitted.request {
                    shared.tell_untold(peer, &admitted.header, inode, to);
                } else if let Some(asked) = asked {
                    shared.ask_size(peer, admitted.encode(), (guest, slot as u16), asked);
                } else {
                    let bytes = admitted.encode();
                    let to = shared.to_walk(to, &admitted.request, &bytes);
                    shared.hand_to_peer(peer, &bytes, to);
                }
                return Took::PassedOn;
            }
            Ok(Route::Stale(epoch)) => shared.answer_with(to, &Reply::Stale { epoch }),
            Ok(Route::Wait) => shared.busy(to, LOST_MICROS),
            Err(errno) => shared.refuse(to, errno),
        }
        Took::Own
    }

    /// A request that was admitted and routed here by another thread.
    fn take_admitted(&mut self, shared: &Shared, bytes: &[u8], to: ReplyTo) {
        let mut reader = Reader::new(bytes);
        let header = Header::decode(&mut reader);
        let request = Request::decode(&mut reader);
        match (header, request) {
            (Ok(header), Ok(request)) => self.carry_out(shared, &header, &request, to),
            _ => shared.refuse(to, Errno::EPROTO),
        }
    }

    /// A message of another metadata service.
    pub(crate) fn take_message(&mut self, shared: &Shared, bytes: &[u8]) {
        if shared.books.is_on() {
            // It may ask what is used: what was written to early pieces is.
            self.make_early(shared);
        }
        self.shard.peer(shared, bytes);
    }

    /// A request for a core of this worker.
    pub(crate) fn carry_out(
        &mut self,
        shared: &Shared,
        header: &Header,
        request: &Request<'_>,
        to: ReplyTo,
    ) {
        if header.shard != Header::TARGET {
            return self.shard.request(shared, header, *request, to);
        }
        match &mut self.target {
            Some(target) => target.request(shared, &self.guests, request, to),
            None => shared.refuse(to, Errno::EPROTO),
        }
    }

    /// Some who sent requests wait no longer.
    fn withdraw(&mut self, shared: &Shared, is_gone: &dyn Fn(&Asker) -> bool) {
        if let Some(target) = &mut self.target {
            target.withdraw(shared, &self.guests, is_gone);
        }
    }

    /// Makes pieces for files to come. True if more may be wanted soon.
    fn make_early(&mut self, shared: &Shared) -> bool {
        self.target.as_mut().is_some_and(|target| target.make_early(shared, &self.guests))
    }

    /// Does what is due; returns for how many microseconds nothing will be.
    fn keep_time(&mut self, shared: &Shared) -> u64 {
        let shard = self.shard.keep_time(shared);
        let target = self.target.as_mut().and_then(|one| one.keep_time(shared, &self.guests));
        let leases = if self.number == 0 { shared.leases.keep_time(shared) } else { None };
        let sizes = if self.number == 0 { shared.keep_sizes() } else { None };
        shard
            .into_iter()
            .chain(target)
            .chain(leases)
            .chain(sizes)
            .min()
            .unwrap_or(u64::MAX)
            .min(SLEEP_MICROS_MAX)
    }

    /// Notes what `status` shows.
    pub(crate) fn publish(&mut self, shared: &Shared) {
        self.shard.publish(shared);
        if let Some(target) = &mut self.target {
            target.publish(shared, &self.guests);
        }
    }
}
