//! A worker: receives requests and messages, and drives its cores; and its thread.
//!
//! One thread at a time runs a worker, under its lock. Usually that is its own thread, which spins
//! briefly, yields briefly, then sleeps on the doorbell until it is rung or a deadline expires
//! (`shm::wait`). While it sleeps, the thread of `net` runs the worker if it is awake anyway
//! (`peers`): a request of another host then costs no second wake-up.
//!
//! Requests for metadata and for data share its time, and urgent ones come first
//! (`qos::kind_queue`), each kind in the order in which it came. Messages of other kinds are handled
//! at once, but those about ends of clients and services after all requests that came before.

use crate::host::size_request::SizeRequest;
use crate::sessions::client_session::ClientSession;
use crate::sessions::settlement::{LeftRequests, Settlement};
use crate::shard::Shard;
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::reply::{LOST_MICROS, ReplyTo, Sender};
use crate::shares::inbox::StartTicket;
use crate::target::TargetLoop;
use crate::threads::bulk::{self, ClientTransfer};
use crate::threads::own_service::OwnService;
use crate::threads::queued::{
    QueuedRequest, WorkerQueue, ends_something, kind_of, kind_of_admitted,
};
use gateway::{Admitted, Route, admit_from_session};
use qos::kind_queue::{KindQueue, RequestKind};
use shm::session::Sleep;
use shm::wait::{Next, SpinPolicy, steady_nanos};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use wire::codec::Reader;
use wire::errno::Errno;
use wire::limits::{SLOT_BYTES, SLOT_COUNT};
use wire::{DaemonIndex, Header, Reply, Request};

/// Longest sleep without a deadline.
const SLEEP_MICROS_MAX: u64 = 60_000_000;
/// Length of a short sleep, in which local operations do not wake the worker: a hundred times the
/// cost of a check.
const SHORT_SLEEP_MICROS: u64 = 2_000;
/// After this many rounds with only local operations no client is expected to wait.
const LOCAL_OPS_ONLY_MIN: u32 = 8;
/// How long after a local operation a worker sleeps only shortly.
const LOCAL_OPS_TIME: Duration = Duration::from_millis(50);
/// How long a service without the lease waits before it looks again.
const LEASE_PAUSE_MICROS: u64 = 5_000;
/// Closes that wait for the owner of a service at most. Of one that is lost the shard hears when the file
/// has no name any more.
const LATE_CLOSES_MAX: usize = 4096;
/// Busy rounds between two checks of deadlines.
const BUSY_ROUNDS: u32 = 64;
/// Requests that are served before newer ones, and what is due, are looked for.
const SERVED_MAX: usize = 64;
/// Longest wait of a status query for busy workers.
const PUBLISH_TIME: Duration = Duration::from_millis(20);

/// Buffer for one request of a session.
pub(crate) type RequestBuffer = Box<[u8; SLOT_BYTES]>;

/// Kind of work in a round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum RoundResult {
    /// None.
    Nothing,
    /// Only requests that were forwarded to other daemons.
    Forwarded,
    /// Local operations, which no client waits for.
    OpLog,
    /// Work for the worker's own cores.
    Own,
}

/// One worker.
pub(crate) struct Worker {
    number: usize,
    service: OwnService,
    /// Worker 0 owns the target.
    target: Option<TargetLoop>,
    clients: Vec<Option<Arc<ClientSession>>>,
    notes: VecDeque<WorkerMessage>,
    rung: Vec<u16>,
    queue: KindQueue<QueuedRequest>,
    /// The session and slot whose request was read last in this round, and its length.
    read_last: Option<(u16, u16, usize)>,
    /// Requests that had to wait and start now.
    released: Vec<(Arc<ClientSession>, u16, Option<StartTicket>)>,
    /// Closes that nobody waits for, header first, of services that are on their way to their owners.
    late_closes: VecDeque<Vec<u8>>,
    /// It has started and not ended.
    is_running: bool,
    /// When the sleep of its thread ends, by the steady clock; `i64::MIN` if it is awake.
    sleeps_until: i64,
}

/// All workers of a daemon.
pub(crate) struct Workers {
    cells: Vec<Mutex<Worker>>,
}

impl Workers {
    /// Workers that have not started, by number.
    pub(crate) fn new(workers: Vec<Worker>) -> Workers {
        Workers { cells: workers.into_iter().map(Mutex::new).collect() }
    }

    /// Number of workers.
    pub(crate) fn count(&self) -> usize {
        self.cells.len()
    }

    /// Locks a worker, if it has started and no other thread is running it.
    pub(crate) fn try_lock(&self, number: usize) -> Option<MutexGuard<'_, Worker>> {
        let worker = match self.cells.get(number)?.try_lock() {
            Ok(worker) => worker,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        worker.is_running.then_some(worker)
    }

    /// Gives a worker its service in this epoch of its owners.
    pub(crate) fn give(&self, number: usize, shard: Shard, epoch: u64) {
        if let Some(cell) = self.cells.get(number) {
            cell.lock().unwrap_or_else(PoisonError::into_inner).service.come(shard, epoch);
        }
    }

    /// Updates the metrics of all workers for a status query, because a worker that sleeps only
    /// shortly does not. One that stays busy beyond `PUBLISH_TIME` keeps those that it last published.
    pub(crate) fn publish(&self, shared: &Shared) {
        let deadline = Instant::now() + PUBLISH_TIME;
        for number in 0..self.count() {
            loop {
                if let Some(mut worker) = self.try_lock(number) {
                    worker.publish(shared);
                    break;
                }
                if Instant::now() >= deadline {
                    break;
                }
                std::thread::yield_now();
            }
        }
    }

    /// Main loop of a worker's thread: runs until the daemon stops.
    pub(crate) fn run(&self, number: usize, shared: &Shared) {
        let Some(cell) = self.cells.get(number) else { return };
        let lock = || cell.lock().unwrap_or_else(PoisonError::into_inner);
        let mut message = RequestBuffer::new([0; SLOT_BYTES]);
        lock().begin(shared);
        shared.net.sender.flush();
        let mut spin_policy = SpinPolicy::new();
        let (mut rounds, mut rewrites, mut last) = (0, false, RoundResult::Nothing);
        let mut local_op_rounds = 0u32;
        loop {
            let mut result = RoundResult::Nothing;
            if rewrites
                || shared.inboxes.bells.has_rung(number)
                || shared.host.op_log.has_any(number)
            {
                (result, rewrites) = lock().take_all(shared, &mut message);
                shared.net.sender.flush();
            }
            let is_quiet = result == RoundResult::Nothing && !rewrites;
            if !is_quiet {
                last = result;
                local_op_rounds = if result == RoundResult::OpLog {
                    local_op_rounds.saturating_add(1)
                } else {
                    0
                };
                spin_policy.arrived(result == RoundResult::OpLog);
                rounds += 1;
                if rounds % BUSY_ROUNDS != 0 {
                    continue;
                }
            }
            if is_quiet && shared.stopping.load(Acquire) {
                break;
            }
            // Forwarded requests can be left to the thread that receives the replies.
            let sleeps_now = match last {
                RoundResult::Forwarded => shared.net.is_awake.load(Relaxed),
                // Yielding would cost the clients' threads more than an occasional wake-up.
                RoundResult::OpLog => local_op_rounds >= LOCAL_OPS_ONLY_MIN,
                _ => false,
            };
            if is_quiet && !sleeps_now && spin_policy.pause() == Next::Poll {
                shared.inboxes.bells.note_cpu(number);
                continue;
            }
            let mut worker = lock();
            let (idle_micros, how) = worker.tick_before_sleep(shared);
            rewrites = worker.has_more();
            let sleeps = is_quiet && !rewrites;
            worker.sleeps_until = i64::MIN;
            if sleeps {
                if how == Sleep::Deep {
                    worker.publish(shared);
                }
                worker.sleeps_until = steady_nanos().saturating_add_unsigned(idle_micros * 1000);
            }
            drop(worker);
            shared.net.sender.flush_all();
            if sleeps {
                let has_more = || how == Sleep::Deep && shared.host.op_log.has_any(number);
                shared.inboxes.bells.sleep(number, idle_micros, how, has_more);
            }
        }
        lock().end(shared);
    }
}

impl Worker {
    /// A worker that has not started.
    /// Without a shard it gets one later, where services move.
    pub(crate) fn new(
        number: usize,
        shard: Option<Shard>,
        target: Option<TargetLoop>,
        queue: WorkerQueue,
    ) -> Worker {
        let service = OwnService::new(number, shard);
        let (clients, notes, rung) = (Vec::new(), VecDeque::new(), Vec::new());
        let (released, late_closes) = (Vec::new(), VecDeque::new());
        let (is_running, sleeps_until) = (false, i64::MIN);
        Worker {
            number,
            service,
            target,
            clients,
            notes,
            rung,
            queue: queue.0,
            read_last: None,
            released,
            late_closes,
            is_running,
            sleeps_until,
        }
    }

    fn begin(&mut self, shared: &Shared) {
        // Where it needs no lease it begins at once.
        let _ = self.service.serving(shared);
        if let Some(target) = &mut self.target {
            target.begin(shared);
        }
        self.publish(shared);
        self.is_running = true;
    }

    fn end(&mut self, shared: &Shared) {
        self.is_running = false;
        self.service.end(shared);
    }

    /// Handles expired deadlines; returns the microseconds until the next one, and how to sleep. If
    /// local operations came lately, or are likely, the sleep is short and the thread checks by
    /// itself, so that a few of them need no wake-up.
    fn tick_before_sleep(&mut self, shared: &Shared) -> (u64, Sleep) {
        let makes_preallocated = self.preallocate_files(shared);
        let micros = self.tick(shared);
        let Some(shard) = self.service.serving(shared) else {
            // Nobody rings when this daemon gets the lease; the service itself comes with a message.
            let most = if self.service.is_here() { LEASE_PAUSE_MICROS } else { micros };
            return (micros.min(most), Sleep::Short);
        };
        let lately = shard.local_ops.applied_at.is_some_and(|at| at.elapsed() < LOCAL_OPS_TIME);
        if !lately && !makes_preallocated && !shared.host.op_log.has_any(self.number) {
            return (micros, Sleep::Deep);
        }
        shared.host.op_log.sweep(self.number);
        (micros.min(SHORT_SLEEP_MICROS), Sleep::Short)
    }

    /// True if a deadline expires before the worker's thread would wake up.
    pub(crate) fn needs_thread(&mut self) -> bool {
        !self.queue.is_empty()
            || self.service.is_due_before(self.sleeps_until)
            || self.target.as_ref().is_some_and(|one| one.target.waits_for_space())
    }

    /// True if no request waits.
    pub(crate) fn is_free(&self) -> bool {
        self.queue.is_empty()
    }

    /// True if there is work for another round: requests that wait, or the log's.
    fn has_more(&mut self) -> bool {
        self.service.keep_log_short() || !self.queue.is_empty()
    }

    /// Takes rings, messages, requests and local operations, and does the work that follows them.
    /// Also returns whether another round is needed.
    fn take_all(&mut self, shared: &Shared, message: &mut RequestBuffer) -> (RoundResult, bool) {
        let mut result = self.take(shared, message);
        if self.service.serving(shared).is_some_and(|shard| shard.take_local_ops(shared)) {
            result = result.max(RoundResult::OpLog);
        }
        self.preallocate_files(shared);
        (result, self.has_more())
    }

    /// Takes rings, messages and requests.
    pub(crate) fn take(&mut self, shared: &Shared, message: &mut RequestBuffer) -> RoundResult {
        let mut rung = std::mem::take(&mut self.rung);
        let mut result = RoundResult::Nothing;
        if shared.inboxes.bells.take(self.number, |session| rung.push(session)) {
            // It has come, or is over.
            let _ = self.service.serving(shared);
            // Before the sessions' slots are read: the message that opens a session precedes its
            // rings.
            result = self.take_notes(shared, message);
            // Before newer requests, which might not have to wait any more.
            self.start_released(shared, message);
            for session in rung.drain(..) {
                result = result.max(self.take_session(shared, session, message));
            }
        }
        self.rung = rung;
        result = result.max(self.serve_queue(shared, message, SERVED_MAX));
        // The next round may have another buffer.
        self.read_last = None;
        result
    }

    /// Serves at most `most` of the requests that wait.
    fn serve_queue(
        &mut self,
        shared: &Shared,
        message: &mut RequestBuffer,
        most: usize,
    ) -> RoundResult {
        let mut result = RoundResult::Nothing;
        for _ in 0..most {
            let begun = self.queue.several_wait().then(Instant::now);
            let Some((kind, request)) = self.queue.pop() else { break };
            result = result.max(self.serve(shared, message, request));
            if let Some(begun) = begun {
                let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.queue.served(kind, nanos);
            }
        }
        result
    }

    fn serve(
        &mut self,
        shared: &Shared,
        message: &mut RequestBuffer,
        request: QueuedRequest,
    ) -> RoundResult {
        match request {
            QueuedRequest::Slot(client, slot) => {
                let (session, number) = (client.session.index, usize::from(slot));
                let length = match self.read_last.take() {
                    Some((of, read, length)) if (of, read) == (session, slot) => Some(length),
                    _ => client.slots.request(number, message),
                };
                let Some(length) = length else { return RoundResult::Nothing };
                let bytes = message.get(..length).unwrap_or_default();
                self.take_slot(shared, &client, number, bytes, None)
            }
            QueuedRequest::Admitted(bytes, to) => {
                self.take_admitted(shared, &bytes, to);
                RoundResult::Own
            }
            QueuedRequest::Peer(bytes) => {
                self.take_message(shared, &bytes);
                RoundResult::Own
            }
        }
    }

    /// Handles the messages of other threads.
    fn take_notes(&mut self, shared: &Shared, message: &mut RequestBuffer) -> RoundResult {
        let mut notes = std::mem::take(&mut self.notes);
        if let Some(inbox) = shared.inboxes.of(self.number) {
            inbox.take(&mut notes);
        }
        let result = if notes.is_empty() { RoundResult::Nothing } else { RoundResult::Own };
        for note in notes.drain(..) {
            match note {
                WorkerMessage::Request { bytes, to } => {
                    self.queue.push(kind_of_admitted(&bytes), QueuedRequest::Admitted(bytes, to));
                }
                WorkerMessage::Peer(bytes) => {
                    self.queue.push(RequestKind::Metadata, QueuedRequest::Peer(bytes));
                }
                note => {
                    if ends_something(&note) {
                        self.serve_queue(shared, message, usize::MAX);
                    }
                    self.take_note(shared, note);
                }
            }
        }
        self.notes = notes;
        result
    }

    fn take_note(&mut self, shared: &Shared, note: WorkerMessage) {
        match note {
            WorkerMessage::Opened(client) => {
                let place = usize::from(client.session.index);
                if self.clients.len() <= place {
                    self.clients.resize(place + 1, None);
                }
                if let Some(row) = self.clients.get_mut(place) {
                    *row = Some(client);
                }
            }
            WorkerMessage::Released { client, slot, ticket } => {
                self.released.push((client, slot, ticket));
            }
            WorkerMessage::Closed(index) => self.close_session(shared, index),
            WorkerMessage::ClientGone { first, count } => self.client_gone(shared, first, count),
            WorkerMessage::Settle(settlement) => self.settle(shared, &settlement),
            WorkerMessage::Withdrawn { client_id, sequence } => {
                self.withdrawn(shared, client_id, sequence);
            }
            note => {
                if let Some(note) = self.service.take_note(shared, note)
                    && let Some(target) = &mut self.target
                {
                    target.take_target_message(shared, note);
                }
            }
        }
    }

    /// A session has ended. Its detached requests are still carried out, but not those that it
    /// waited for.
    fn close_session(&mut self, shared: &Shared, session: u16) {
        let Some(client) = self.clients.get_mut(usize::from(session)).and_then(Option::take) else {
            return;
        };
        let pending = client.slots.take_pending(self.number);
        if pending == 0 {
            return;
        }
        let mut message = RequestBuffer::new([0; SLOT_BYTES]);
        for slot in (0..SLOT_COUNT).filter(|slot| pending >> slot & 1 != 0) {
            if client.slots.is_detached(slot)
                && client.slots.reply_slot_of(slot).is_none()
                && let Some(length) = client.slots.request(slot, &mut message)
            {
                let bytes = message.get(..length).unwrap_or_default();
                self.take_slot(shared, &client, slot, bytes, None);
            }
        }
    }

    /// Starts requests that had to wait for their share. Of a session or thread that has ended, only
    /// those that it did not wait for.
    fn start_released(&mut self, shared: &Shared, message: &mut RequestBuffer) {
        if self.released.is_empty() {
            return;
        }
        for (client, slot, ticket) in std::mem::take(&mut self.released) {
            let slot = usize::from(slot);
            let place = usize::from(client.session.index);
            let open = self.clients.get(place).and_then(Option::as_ref);
            let is_open = open.is_some_and(|open| Arc::ptr_eq(open, &client))
                && client.slots.is_awaited(client.slots.reply_slot_of(slot).unwrap_or(slot));
            let is_left =
                client.slots.is_detached(slot) && client.slots.reply_slot_of(slot).is_none();
            if (is_open || is_left)
                && let Some(length) = client.slots.request(slot, message)
            {
                let bytes = message.get(..length).unwrap_or_default();
                self.take_slot(shared, &client, slot, bytes, ticket);
            }
        }
    }

    /// The requests of a session wait here, or at the dispatcher of shares.
    fn take_session(
        &mut self,
        shared: &Shared,
        session: u16,
        message: &mut RequestBuffer,
    ) -> RoundResult {
        let client = self.clients.get(usize::from(session)).and_then(Option::as_ref);
        let Some(client) = client.map(Arc::clone) else { return RoundResult::Nothing };
        let mut pending = client.slots.take_pending(self.number);
        let mut result = RoundResult::Nothing;
        while pending != 0 {
            let slot = pending.trailing_zeros() as usize;
            pending &= pending - 1;
            if let Some(length) = client.slots.request(slot, message) {
                // Also if it does not wait here: the buffer has no earlier one any more.
                self.read_last = Some((session, slot as u16, length));
                let bytes = message.get(..length).unwrap_or_default();
                if shared.shares.is_active()
                    && shared.shares.must_wait(&client, slot, self.number, bytes)
                {
                    result = RoundResult::Own;
                    continue;
                }
                let kind = kind_of(bytes);
                self.queue.push(kind, QueuedRequest::Slot(Arc::clone(&client), slot as u16));
            }
        }
        result
    }

    /// Handles one request of a session.
    fn take_slot(
        &mut self,
        shared: &Shared,
        client: &Arc<ClientSession>,
        slot: usize,
        bytes: &[u8],
        ticket: Option<StartTicket>,
    ) -> RoundResult {
        if let Some(worker_metrics) = shared.metrics.workers.get(self.number) {
            worker_metrics.requests.fetch_add(1, Relaxed);
        }
        let asked_in = slot;
        let slot = match client.slots.reply_slot_of(slot) {
            Some(row) => {
                // The request named another slot for its reply, so its own slot is free again.
                client.slots.reply(slot, &[]);
                row
            }
            None => slot,
        };
        let to = ReplyTo::Slot { client: Arc::clone(client), slot: slot as u16 };
        let host = shared.net.host_number;
        let mut admitted = match admit_from_session(bytes, &client.session.peer, host) {
            Ok(admitted) => admitted,
            Err(errno) => {
                shared.refuse(to, errno);
                return RoundResult::Own;
            }
        };
        admitted.header.job = shared.shares.job_word(client, asked_in, &admitted.request);
        let caller = admitted.header.caller.uid;
        shared.audit.note_request(&admitted.request, caller, &client.session.peer);
        if let Some(units) = &shared.units
            && units.take_from_session(shared, (client, slot), &admitted)
        {
            return RoundResult::Own;
        }
        if let Request::Push { buffer } = admitted.request {
            let job = admitted.header.job;
            shared.start_push(client, (buffer, job), ticket);
            shared.answer_with(to, &Reply::Done {});
            return RoundResult::Own;
        }
        let route = shared.net.route(&admitted.header, gateway::route::From::Session);
        if let Request::Fetch { buffer, .. } = admitted.request
            && !matches!(route, Ok(Route::Peer(_)))
        {
            // The reply may have no reader.
            client.slots.bounce_buffers().complete_readahead(buffer, None);
        }
        match route {
            Ok(Route::Worker(worker)) if worker == self.number => {
                self.carry_out(shared, &admitted.header, &admitted.request, to);
            }
            Ok(Route::Worker(number)) if shared.net.is_taken_over(number) => {
                let me = shared.net.router.me;
                return forward(shared, me, &admitted, (client, slot), to, ticket);
            }
            Ok(Route::Worker(worker)) => shared.hand_to_worker(worker, admitted.encode(), to),
            Ok(Route::Peer(peer)) => {
                return forward(shared, peer, &admitted, (client, slot), to, ticket);
            }
            Ok(Route::Stale(epoch)) => shared.answer_with(to, &Reply::Stale { epoch }),
            Ok(Route::Wait) => self.wait_for_owner(shared, &admitted, (client, slot), to),
            Err(errno) => shared.refuse(to, errno),
        }
        RoundResult::Own
    }

    /// A request for a service that is on its way to its owner is sent again, or here if nobody waits for
    /// it.
    fn wait_for_owner(
        &mut self,
        shared: &Shared,
        admitted: &Admitted<'_>,
        (client, slot): (&Arc<ClientSession>, usize),
        to: ReplyTo,
    ) {
        let is_close = matches!(admitted.request, Request::Close { .. } | Request::Reap { .. });
        let has_place = self.late_closes.len() < LATE_CLOSES_MAX;
        if !(is_close && has_place && client.slots.is_detached(slot)) {
            return shared.busy(to, LOST_MICROS);
        }
        self.late_closes.push_back(admitted.encode());
        shared.answer_with(to, &Reply::Done {});
    }

    /// Sends closes to owners that are known by now. Returns the microseconds until the next time, if
    /// some still wait.
    fn send_late_closes(&mut self, shared: &Shared) -> Option<u64> {
        for bytes in std::mem::take(&mut self.late_closes) {
            let mut reader = Reader::new(&bytes);
            let (Ok(header), Ok(request)) =
                (Header::decode(&mut reader), Request::decode(&mut reader))
            else {
                continue;
            };
            match shared.net.route(&header, gateway::route::From::Session) {
                Ok(Route::Wait) => self.late_closes.push_back(bytes),
                _ => shared.route_own_request(&header, &request, ReplyTo::Nobody),
            }
        }
        (!self.late_closes.is_empty()).then_some(LEASE_PAUSE_MICROS)
    }

    /// Handles a request that another thread has admitted and routed here.
    fn take_admitted(&mut self, shared: &Shared, bytes: &[u8], to: ReplyTo) {
        let mut reader = Reader::new(bytes);
        let header = Header::decode(&mut reader);
        let request = Request::decode(&mut reader);
        match (header, request) {
            (Ok(header), Ok(request)) => self.carry_out(shared, &header, &request, to),
            _ => shared.refuse(to, Errno::EPROTO),
        }
    }

    /// Handles a message of another metadata service.
    pub(crate) fn take_message(&mut self, shared: &Shared, bytes: &[u8]) {
        if shared.ledger.counts_accounts() {
            // It may query usage, which includes data in preallocated extents.
            self.preallocate_files(shared);
        }
        self.service.take_peer_message(shared, bytes);
    }

    /// Carries out a request on a core of this worker.
    pub(crate) fn carry_out(
        &mut self,
        shared: &Shared,
        header: &Header,
        request: &Request<'_>,
        to: ReplyTo,
    ) {
        if header.shard != Header::TARGET {
            return match self.service.serving(shared) {
                Some(shard) => shard.request(shared, header, *request, to),
                None => shared.busy(to, LOST_MICROS),
            };
        }
        match &mut self.target {
            Some(target) => target.request(shared, (request, header.job), to),
            None => shared.refuse(to, Errno::EPROTO),
        }
    }

    /// Takes the requests of killed threads, then drops those that have changed nothing yet.
    fn settle(&mut self, shared: &Shared, settlement: &Settlement) {
        if let Some(session) = settlement.session {
            let mut message = RequestBuffer::new([0; SLOT_BYTES]);
            self.take_session(shared, session, &mut message);
            self.serve_queue(shared, &mut message, usize::MAX);
            self.read_last = None;
        }
        for requests in &settlement.requests {
            match *requests {
                LeftRequests::Of { first, count } => self.client_gone(shared, first, count),
                LeftRequests::One { client_id, sequence } => {
                    self.withdrawn(shared, client_id, sequence);
                }
            }
        }
        settlement.handled(shared);
    }

    fn withdrawn(&mut self, shared: &Shared, client_id: u64, sequence: u64) {
        self.service.take_note(shared, WorkerMessage::Withdrawn { client_id, sequence });
        self.withdraw(shared, &|asker| *asker == Sender { client_id, sequence });
    }

    fn client_gone(&mut self, shared: &Shared, first: u64, count: u64) {
        self.service.take_note(shared, WorkerMessage::ClientGone { first, count });
        let gone = first..first.saturating_add(count);
        self.withdraw(shared, &|asker| gone.contains(&asker.client_id));
    }

    /// Withdraws requests of clients that are gone.
    fn withdraw(&mut self, shared: &Shared, is_gone: &dyn Fn(&Sender) -> bool) {
        if let Some(target) = &mut self.target {
            target.withdraw(shared, is_gone);
        }
    }

    /// Preallocates extents for files to be created. True if more may be needed soon.
    fn preallocate_files(&mut self, shared: &Shared) -> bool {
        self.target.as_mut().is_some_and(|target| target.preallocate_files(shared))
    }

    /// Handles expired deadlines; returns the microseconds until the next one.
    fn tick(&mut self, shared: &Shared) -> u64 {
        let shard = self.service.serving(shared).and_then(|shard| shard.tick(shared));
        let target = self.target.as_mut().and_then(|one| one.tick(shared));
        let leases = if self.number == 0 {
            shared.host.leases.tick(&shared.net, &shared.inboxes)
        } else {
            None
        };
        let closes = self.send_late_closes(shared);
        let sizes =
            if self.number == 0 { shared.host.truncates.tick(&shared.host.segment) } else { None };
        shard
            .into_iter()
            .chain(target)
            .chain(leases)
            .chain(sizes)
            .chain(closes)
            .min()
            .unwrap_or(u64::MAX)
            .min(SLEEP_MICROS_MAX)
    }

    /// Updates the metrics that `status` shows.
    pub(crate) fn publish(&mut self, shared: &Shared) {
        self.service.publish(shared);
        if let Some(target) = &mut self.target {
            target.publish(shared);
        }
    }
}

/// Starts a client's transfer to or from another host, unless the file was truncated since.
fn start_transfer(
    shared: &Shared,
    peer: DaemonIndex,
    end: ClientTransfer,
    (client, slot): (&Arc<ClientSession>, u16),
    size_request: Option<SizeRequest>,
    ticket: Option<StartTicket>,
) {
    let client = Arc::clone(client);
    let Some(request) = size_request else {
        return shared.bulk.start_transfer(peer, end, ReplyTo::Slot { client, slot }, ticket);
    };
    match shared.host.truncates.admit_transfer(&shared.host.segment, request) {
        Ok(()) => {
            let to = ReplyTo::Size { client, slot, request };
            shared.bulk.start_transfer(peer, end, to, ticket);
        }
        Err(errno) => {
            // The client has its buffer back before it is answered.
            drop(end);
            shared.refuse(ReplyTo::Slot { client, slot }, errno);
        }
    }
}

/// Forwards a request of a session to another daemon, or to a service that this one took over: to that,
/// programs of this host are those of another. Its reply goes to `slot`, which is `to`.
fn forward(
    shared: &Shared,
    peer: DaemonIndex,
    admitted: &Admitted<'_>,
    (client, slot): (&Arc<ClientSession>, usize),
    to: ReplyTo,
    ticket: Option<StartTicket>,
) -> RoundResult {
    let reply_slot = (client, slot as u16);
    let size_request = SizeRequest::of(&admitted.request);
    if let Some(end) = bulk::client_transfer(client, &admitted.request, admitted.header.job) {
        start_transfer(shared, peer, end, reply_slot, size_request, ticket);
        return RoundResult::Own;
    }
    if client.slots.is_detached(slot) {
        shared.forward_without_reply(peer, admitted, to);
    } else if let Request::Extend { inode, .. } = admitted.request {
        shared.report_size(peer, &admitted.header, inode, to);
    } else if let Some(size_request) = size_request {
        let (truncates, sent) = (&shared.host.truncates, (peer, admitted.encode()));
        let sent = truncates.send_request(shared.links(), sent, reply_slot, size_request);
        if let Err(unsent) = sent {
            shared.answer_unsent(unsent);
        }
    } else {
        let bytes = admitted.encode();
        let to = shared.to_walk(to, &admitted.request, &bytes);
        shared.hand_to_peer(peer, &bytes, to);
    }
    RoundResult::Forwarded
}
