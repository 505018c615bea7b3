//! A worker thread: takes what comes, drives its cores, waits.
//!
//! Waiting is looking for a moment, yielding for a moment, then sleeping on the doorbell until
//! somebody rings or something is due (`shm::wait`).

use crate::inbox::Note;
use crate::reply::{LOST_MICROS, ReplyTo};
use crate::shard::Shard;
use crate::shared::{Guest, Shared};
use crate::target::TargetLoop;
use gateway::{Admitted, Route, admit_from_session};
use shm::wait::{Backoff, Next};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use wire::codec::Reader;
use wire::errno::Errno;
use wire::limits::SLOT_BYTES;
use wire::request::lock;
use wire::{Header, Reply, Request};

/// Longest sleep when nothing is due.
const SLEEP_MICROS_MAX: u64 = 60_000_000;
/// Rounds with something to do between two looks at the clock's duties.
const BUSY_ROUNDS: u32 = 64;

/// One worker.
pub(crate) struct Worker {
    number: usize,
    shard: Shard,
    /// Worker 0 owns the target.
    target: Option<TargetLoop>,
    guests: Vec<Option<Arc<Guest>>>,
    notes: VecDeque<Note>,
    rung: Vec<u16>,
}

impl Worker {
    /// A worker that has not begun.
    pub(crate) fn new(number: usize, shard: Shard, target: Option<TargetLoop>) -> Worker {
        let (guests, notes, rung) = (Vec::new(), VecDeque::new(), Vec::new());
        Worker { number, shard, target, guests, notes, rung }
    }

    /// Runs until the daemon stops.
    pub(crate) fn run(mut self, shared: &Shared) {
        let mut message = Box::new([0; SLOT_BYTES]);
        self.shard.begin(shared);
        if let Some(target) = &mut self.target {
            target.begin(shared, &self.guests);
        }
        self.publish(shared);
        let mut backoff = Backoff::new();
        let mut rounds = 0;
        loop {
            let came = self.take(shared, &mut message);
            let rewrites = self.shard.keep_log_short();
            if came || rewrites {
                backoff.reset();
                rounds += 1;
                if rounds % BUSY_ROUNDS != 0 {
                    continue;
                }
            }
            let is_quiet = !came && !rewrites;
            if is_quiet && shared.stopping.load(Acquire) {
                break;
            }
            if is_quiet && backoff.pause() == Next::Look {
                shared.bells.stand(self.number);
                continue;
            }
            let idle_micros = self.keep_time(shared);
            if is_quiet {
                self.publish(shared);
                shared.bells.sleep(self.number, idle_micros.min(SLEEP_MICROS_MAX));
            }
        }
        self.shard.end();
    }

    /// Takes rings, notes and requests. True if there were any.
    fn take(&mut self, shared: &Shared, message: &mut [u8; SLOT_BYTES]) -> bool {
        let mut rung = std::mem::take(&mut self.rung);
        let came = shared.bells.take(self.number, |session| rung.push(session));
        if came {
            // Before the rings are looked at: the note that opens a session comes before them.
            self.take_notes(shared);
            for session in rung.drain(..) {
                self.take_session(shared, session, message);
            }
        }
        self.rung = rung;
        came
    }

    fn take_notes(&mut self, shared: &Shared) {
        let mut notes = std::mem::take(&mut self.notes);
        if let Some(inbox) = shared.inboxes.get(self.number) {
            inbox.take(&mut notes);
        }
        for note in notes.drain(..) {
            self.take_note(shared, note);
        }
        self.notes = notes;
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
            Note::Closed(index) => {
                if let Some(row) = self.guests.get_mut(usize::from(index)) {
                    *row = None;
                }
            }
            Note::Request { bytes, to } => self.take_admitted(shared, &bytes, to),
            Note::Peer(bytes) => self.shard.peer(shared, &bytes),
            Note::OriginGone { first, count } => self.shard.origin_gone(shared, first, count),
            Note::Part { job, daemon, answer } => self.shard.part(shared, job, daemon, answer),
            Note::Preallocated(outcome) => {
                if let Some(target) = &mut self.target {
                    target.preallocated(shared, &self.guests, outcome);
                }
            }
        }
    }

    fn take_session(&mut self, shared: &Shared, session: u16, message: &mut [u8; SLOT_BYTES]) {
        let guest = self.guests.get(usize::from(session)).and_then(Option::as_ref);
        let Some(guest) = guest.map(Arc::clone) else { return };
        let mut pending = guest.slots.take_pending(self.number);
        while pending != 0 {
            let slot = pending.trailing_zeros() as usize;
            pending &= pending - 1;
            if let Some(length) = guest.slots.request(slot, message) {
                let bytes = message.get(..length).unwrap_or_default();
                self.take_slot(shared, &guest, slot, bytes);
            }
        }
    }

    /// One request of a session.
    fn take_slot(&mut self, shared: &Shared, guest: &Arc<Guest>, slot: usize, bytes: &[u8]) {
        if let Some(figures) = shared.figures.get(self.number) {
            figures.requests.fetch_add(1, Relaxed);
        }
        let to = ReplyTo::Slot { guest: Arc::clone(guest), slot: slot as u8 };
        let admitted = admit_from_session(bytes, &guest.session.believed, shared.host_number);
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(errno) => return shared.refuse(to, errno),
        };
        match shared.router.route(&admitted.header, gateway::route::From::Session) {
            Ok(Route::Worker(worker)) if worker == self.number => {
                self.carry_out(shared, &admitted.header, &admitted.request, to);
            }
            Ok(Route::Worker(worker)) => shared.hand_to_worker(worker, admitted.encode(), to),
            Ok(Route::Peer(peer)) => {
                note_far_wait(guest, &admitted);
                shared.hand_to_peer(peer, admitted.encode(), to);
            }
            Ok(Route::Stale(epoch)) => shared.answer_with(to, &Reply::Stale { epoch }),
            Ok(Route::Wait) => shared.busy(to, LOST_MICROS),
            Err(errno) => shared.refuse(to, errno),
        }
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

    fn carry_out(&mut self, shared: &Shared, header: &Header, request: &Request<'_>, to: ReplyTo) {
        if header.shard != Header::TARGET {
            return self.shard.request(shared, header, *request, to);
        }
        match &mut self.target {
            Some(target) => target.request(shared, &self.guests, request, to),
            None => shared.refuse(to, Errno::EPROTO),
        }
    }

    /// Does what is due; returns for how many microseconds nothing will be.
    fn keep_time(&mut self, shared: &Shared) -> u64 {
        let shard = self.shard.keep_time(shared);
        let target = self.target.as_mut().and_then(|one| one.keep_time(shared, &self.guests));
        shard.into_iter().chain(target).min().unwrap_or(u64::MAX)
    }

    /// Notes what `status` shows.
    pub(crate) fn publish(&mut self, shared: &Shared) {
        self.shard.publish(shared);
        if let Some(target) = &mut self.target {
            target.publish(shared, &self.guests);
        }
    }
}

/// Notes that the session may wait at another daemon, which must learn of its end.
fn note_far_wait(guest: &Guest, admitted: &Admitted<'_>) {
    if let Request::Lock { flags, .. } = admitted.request
        && flags & lock::WAIT != 0
    {
        guest.waited_far.store(true, Relaxed);
    }
}
