//! Does what the node asks for, in a daemon: packets go to `net`, changes of the table to the thread of
//! the membership, bytes to the own target, answers to clients.
//!
//! The target is asked as clients ask it. A read and a change are over when the function returns: the
//! thread waits for worker 0, which never waits for it. Pulled bytes may have to wait for space, so
//! nothing waits for them here: the answer is an event (`stores`).

use super::agent::reply_of;
use super::clears::ClearEnd;
use super::object::StripeBytes;
use super::shell::{CopyBytes, Performer, PullJob, ReadBy};
use super::stores::{RunningStores, StoreAnswer, StoreOrder};
use super::waiting::WaitingAsk;
use super::ways::read_below;
use super::{Event, LossAnswer, PushAnswer, PushAttempt, UnitBytes, Units};
use crate::backing::IfChanged;
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::network::{encode_request, message};
use crate::shared::reply::{LOST_MICROS, ReplyTo, encode_reply};
use net::Urgency;
use placement::map::WORKER_OF_TARGET;
use replicas::change::Change;
use replicas::dirty::Notice;
use replicas::node::{Answer, Counters};
use replicas::operation::{ByteRange, Object, Operation, RequestId};
use replicas::placement::UnitIndex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::{DaemonIndex, Header, JobWord, Reply, Request};

/// A target that says nothing for this time has a line in the log.
const SLOW_TIME: Duration = Duration::from_secs(5);

/// Bytes per second that copies are filled with.
#[derive(Debug)]
struct FillRate {
    since: Instant,
    filled: u64,
    bytes_per_second: u64,
}

impl FillRate {
    /// Time that each rate is of, at least.
    const WINDOW: Duration = Duration::from_secs(2);

    const fn new(now: Instant) -> FillRate {
        FillRate { since: now, filled: 0, bytes_per_second: 0 }
    }

    /// So many bytes were filled since the daemon started.
    fn count(&mut self, filled: u64, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed >= FillRate::WINDOW {
            let bytes = filled.saturating_sub(self.filled) as f64;
            self.bytes_per_second = (bytes / passed.as_secs_f64()) as u64;
            (self.since, self.filled) = (now, filled);
        }
    }
}

/// See the module.
pub(super) struct DaemonPerformer {
    shared: Arc<Shared>,
    stores: RunningStores,
    framed: Vec<u8>,
    fill_rate: FillRate,
}

impl DaemonPerformer {
    pub(super) fn new(shared: Arc<Shared>) -> DaemonPerformer {
        let (stores, framed) = (RunningStores::default(), Vec::new());
        DaemonPerformer { shared, stores, framed, fill_rate: FillRate::new(Instant::now()) }
    }

    fn units(&self) -> Option<&Units> {
        self.shared.units.as_ref()
    }

    /// Asks the own target, until it is not busy, and gives its reply to `with`.
    fn ask_target<T>(
        &self,
        (request, job): (&Request<'_>, JobWord),
        with: impl Fn(Reply<'_>) -> Result<T>,
    ) -> Result<T> {
        let header = self.shared.net.target_header(self.shared.net.router.me);
        let header = Header { job, ..header };
        loop {
            let (waiting, answers) = mpsc::sync_channel(1);
            let bytes = encode_request(&header, request);
            self.shared.hand_to_worker(WORKER_OF_TARGET, bytes, ReplyTo::Thread(waiting));
            let answer = loop {
                match answers.recv_timeout(SLOW_TIME) {
                    Ok(answer) => break answer,
                    // It ends before the daemon does, and a worker that fails ends the daemon.
                    Err(RecvTimeoutError::Timeout) => {
                        tracing::warn!(?request, "the target has not answered for seconds");
                    }
                    Err(RecvTimeoutError::Disconnected) => return Err(Errno::EIO),
                }
            };
            match Reply::decode(&mut Reader::new(&answer)).map_err(|_| Errno::EIO)? {
                Reply::Busy { retry_micros } => {
                    std::thread::sleep(Duration::from_micros(
                        retry_micros.clamp(100, 10_000).into(),
                    ));
                }
                Reply::Refused { errno } => return Err(errno),
                reply => return with(reply),
            }
        }
    }

    fn clear(&self, object: Object, range: ByteRange) -> Result<()> {
        self.clear_bytes(StripeBytes::of(object, range).ok_or(Errno::EINVAL)?)
    }

    /// Frees bytes of the own target.
    ///
    /// # Errors
    /// Some of them are what they were.
    pub(super) fn clear_bytes(&self, of: StripeBytes) -> Result<()> {
        let StripeBytes { inode, stripe_log2, offset, length } = of;
        if length == 0 {
            return Ok(());
        }
        let request = Request::Punch { inode, stripe_log2, offset, length };
        self.ask_target((&request, JobWord::NONE), |_| Ok(()))
    }

    fn send_order(&self, order: StoreOrder) {
        self.shared.inboxes.send_to_target(WorkerMessage::StoreCopy(order));
    }
}

impl Performer for DaemonPerformer {
    fn send(&mut self, to: DaemonIndex, packet: &[u8]) {
        self.framed.clear();
        self.framed.push(message::UNITS);
        self.framed.extend_from_slice(packet);
        self.shared.net.send(to, &self.framed, Urgency::Now);
    }

    fn end_round(&mut self, counters: &Counters) {
        self.shared.net.sender.flush();
        let metrics = &self.shared.metrics.daemon;
        metrics.unit_bytes_filled.store(counters.bytes_filled, Relaxed);
        self.fill_rate.count(counters.bytes_filled, Instant::now());
        metrics.unit_fill_rate.store(self.fill_rate.bytes_per_second, Relaxed);
        metrics.unit_repairs.store(counters.repairs, Relaxed);
    }

    fn counted(&mut self, unit: UnitIndex, bytes: Option<UnitBytes>) {
        if let Some(units) = self.units() {
            units.note_bytes(unit, bytes);
        }
    }

    fn propose(&mut self, change: &Change) {
        if let Some(members) = &self.shared.members {
            members.propose(*change);
        }
    }

    fn store(&mut self, job: &PullJob, bytes: Vec<u8>) {
        match self.stores.begin(job, bytes) {
            Ok(order) => self.send_order(order),
            Err(errno) => {
                if let Some(units) = self.units() {
                    units.inbox.put(Event::Stored(job.ticket, StoreAnswer::Refused(errno)));
                }
            }
        }
    }

    fn stored(&mut self, ticket: u64, stored: StoreAnswer, now: i64) -> Option<bool> {
        if let StoreAnswer::Refused(errno) = stored {
            tracing::debug!(ticket, %errno, "the target does not take the bytes of a copy");
        }
        self.stores.answered(ticket, stored, now)
    }

    fn tick(&mut self, now: i64) {
        for order in self.stores.due(now) {
            self.send_order(order);
        }
        if let Some(units) = self.units() {
            units.resume_pushed(&self.shared, now);
        }
    }

    fn read(
        &mut self,
        by: ReadBy,
        (_, object): (UnitIndex, Object),
        range: ByteRange,
    ) -> CopyBytes {
        let Some(of) = StripeBytes::of(object, range) else { return Err(range) };
        let StripeBytes { inode, stripe_log2, offset, length } = of;
        let length = u32::try_from(length).map_err(|_| range)?;
        let request = Request::Read { inode, stripe_log2, offset, length };
        // While a copy lacks bytes, these have one copy fewer than they should.
        let job = if by == ReadBy::Copy { JobWord::URGENT } else { JobWord::NONE };
        let read = self.ask_target((&request, job), |reply| match reply {
            Reply::Bytes { bytes } | Reply::FetchedBytes { bytes, .. } => Ok(bytes.to_vec()),
            _ => Err(Errno::EIO),
        });
        read.map_err(|errno| {
            tracing::warn!(inode = inode.0, offset, length, %errno, "cannot read bytes of a copy");
            range
        })
    }

    fn agent_of(&self, id: RequestId) -> Option<DaemonIndex> {
        self.units()?.agent_of(id, self.shared.net.router.me)
    }

    fn client_bytes(&mut self, id: RequestId, range: ByteRange) -> Option<Vec<u8>> {
        self.units()?.held.of(id, range.length())
    }

    fn change(&mut self, _: UnitIndex, operation: &Operation) -> Result<()> {
        self.clear(operation.object, operation.range)
    }

    fn erase(&mut self, _: UnitIndex, object: Object) -> Result<()> {
        self.clear(object, ByteRange::ALL)
    }

    fn loss_known(&mut self, ticket: u64, answer: LossAnswer) {
        if let Some(units) = self.units() {
            units.loss_known(&self.shared, ticket, answer);
        }
    }

    fn push_answered(&mut self, asked: PushAttempt, answer: PushAnswer) {
        if let Some(units) = self.units() {
            units.push_answered(&self.shared, asked, answer);
        }
    }

    fn answer(&mut self, ticket: u64, answer: Answer) {
        let Some(units) = self.units() else { return };
        let Some(mut waiting) = units.waiting.take_answered(ticket) else { return };
        if matches!(answer, Answer::AskPrimary | Answer::Stale) {
            let Some(left) = units.read_elsewhere(&self.shared, waiting) else { return };
            waiting = left;
        }
        if answer == Answer::Lost {
            return units.ask_loss(&self.shared, ticket, waiting);
        }
        let WaitingAsk { to, request: Some(request) } = waiting else { return };
        let refusal = self.stores.refusal(request.id());
        self.shared.answer_with(to, &reply_of(answer, request.bytes.length, refusal));
    }

    fn clear_ended(&mut self, (ticket, is_done): ClearEnd) {
        let waiting = self.units().and_then(|units| units.waiting.take_answered(ticket));
        let Some(WaitingAsk { to, .. }) = waiting else { return };
        if is_done {
            self.shared.answer_with(to, &Reply::Done {});
        } else {
            self.shared.busy(to, LOST_MICROS);
        }
    }

    fn reply(&mut self, ticket: u64, bytes: Vec<u8>) {
        let waiting = self.units().and_then(|units| units.waiting.take_answered(ticket));
        if let Some(WaitingAsk { to, .. }) = waiting {
            let reply = Reply::Bytes { bytes: &bytes };
            self.shared.answer(to, &encode_reply(&reply, bytes.len()));
        }
    }

    fn end_corrupt(&mut self, ticket: u64, is_repaired: bool) {
        let waiting = self.units().and_then(|units| units.waiting.take_answered(ticket));
        let Some(WaitingAsk { to, request }) = waiting else { return };
        match request {
            _ if is_repaired => self.shared.busy(to, LOST_MICROS),
            Some(request) => read_below(&self.shared, &request, to, IfChanged::Lost),
            None => self.shared.refuse(to, Errno::EIO),
        }
    }

    // Services know which files the backing store has: there is no list to be kept.
    fn notify(&mut self, _: &Notice) {}

    fn store_notice(&mut self, _: &Notice) -> bool {
        true
    }
}
