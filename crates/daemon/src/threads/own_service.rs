//! The service of a worker: whether it is here, and whether it may do anything now.
//!
//! Where services go on at other daemons it does nothing without the lease of its owner: no request is
//! carried out, no deadline expires, and no operation of a client is applied. Requests are to be sent
//! again, messages of services are lost, and what its own jobs wait for waits here.
//!
//! One that leaves this host for good does its last steps when nobody may use it any more (`leave`).

use crate::shard::Shard;
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::taken_inbox::Stillness;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

/// See the module.
pub(crate) struct OwnService {
    /// Number of the worker.
    number: usize,
    /// `None`: this daemon does not own the service now, or reads its log.
    shard: Option<Shard>,
    /// Where services move: the epoch in which this daemon owns it.
    epoch: Option<u64>,
    has_begun: bool,
    /// It was to leave, and has reported what the memory of the host knew in this pause.
    still_in: Option<u64>,
    /// Messages that wait for the lease.
    held: VecDeque<WorkerMessage>,
}

impl OwnService {
    /// The service of a worker as its log has it, which has not begun.
    pub(crate) const fn new(number: usize, shard: Option<Shard>) -> OwnService {
        let (epoch, has_begun, still_in) = (None, false, None);
        OwnService { number, shard, epoch, has_begun, still_in, held: VecDeque::new() }
    }

    /// Where services move it comes later, until this daemon owns it in this epoch no more.
    pub(crate) fn come(&mut self, shard: Shard, epoch: u64) {
        assert!(self.shard.is_none(), "the service of an earlier epoch has ended");
        (self.shard, self.epoch, self.has_begun) = (Some(shard), Some(epoch), false);
        self.still_in = None;
    }

    /// The service, if it may do anything now. It begins the first time, and has what waited then.
    pub(crate) fn serving(&mut self, shared: &Shared) -> Option<&mut Shard> {
        if self.is_over(shared) {
            self.give_up(shared);
        }
        let shard = self.shard.as_mut()?;
        if self.still_in.is_some() {
            // Before it looks at the lease: a thread that finds it still knows that it looks again.
            note_stillness(shared, self.number, Stillness::None);
        }
        if !shared.net.has_lease(self.number) {
            if let Some(pause) = self.still_in {
                note_stillness(shared, self.number, Stillness::Still(pause));
            }
            return None;
        }
        if self.still_in.take().is_some() {
            shard.stay(shared);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            shard.begin(shared);
        }
        while let Some(note) = self.held.pop_front() {
            let other = take(shared, shard, note);
            debug_assert!(other.is_none(), "a message that is not for the service waited");
        }
        shard.send_unsent(shared);
        Some(shard)
    }

    /// The service is to leave this host for good: it stands still from here on, until it has the lease
    /// again. The thread of the membership has that, and lets nobody use it.
    fn leave(&mut self, shared: &Shared, pause: u64) {
        let is_over = self.is_over(shared);
        let Some(shard) = self.shard.as_mut().filter(|_| self.has_begun && !is_over) else {
            return;
        };
        if shard.leave(shared) {
            self.still_in = Some(pause);
            return note_stillness(shared, self.number, Stillness::Still(pause));
        }
        shard.stay(shared);
        self.still_in = None;
        note_stillness(shared, self.number, Stillness::Refused(pause));
    }

    fn is_over(&self, shared: &Shared) -> bool {
        self.epoch.is_some_and(|epoch| {
            let tenure = shared.inboxes.tenure(self.number);
            !tenure.is_some_and(|tenure| tenure.is_owned(epoch))
        })
    }

    /// Another daemon owns the service, or this one begins anew: requests that wait are sent again.
    fn give_up(&mut self, shared: &Shared) {
        (self.epoch, self.has_begun, self.still_in) = (None, false, None);
        self.held.retain(is_of_target);
        let Some(mut shard) = self.shard.take() else { return };
        shared.host.op_log.close_gate(self.number);
        shard.give_up(shared);
        shard.close();
        // The log is closed before anything else opens it.
        drop(shard);
        shared.metrics.with_service(self.number, |metrics| metrics.files.store(0, Relaxed));
        shared.inboxes.note_end(self.number, None);
        tracing::info!(worker = self.number, "the service of a worker has ended here");
    }

    /// True if the service is here, whether it may do anything or not.
    pub(crate) const fn is_here(&self) -> bool {
        self.shard.is_some()
    }

    /// Takes a message for the service, now or later. Returns any other one.
    pub(crate) fn take_note(
        &mut self,
        shared: &Shared,
        note: WorkerMessage,
    ) -> Option<WorkerMessage> {
        if let WorkerMessage::Leave { pause } = note {
            self.leave(shared, pause);
            return None;
        }
        if let Some(shard) = self.serving(shared) {
            return take(shared, shard, note);
        }
        if !is_for_service(&note) {
            return Some(note);
        }
        // Without the service only the target waits for something.
        if self.is_here() || is_of_target(&note) {
            self.held.push_back(note);
        }
        None
    }

    /// Takes a message of another service, which is lost without the lease.
    pub(crate) fn take_peer_message(&mut self, shared: &Shared, bytes: &[u8]) {
        if let Some(shard) = self.serving(shared) {
            shard.take_peer_message(shared, bytes);
        }
    }

    /// Rewrites the log in slices when it is long. True if there are more slices.
    pub(crate) fn keep_log_short(&mut self) -> bool {
        self.shard.as_mut().is_some_and(Shard::keep_log_short)
    }

    /// True if the service has something to do before this time, by the steady clock.
    pub(crate) fn is_due_before(&mut self, steady_nanos: i64) -> bool {
        self.shard.as_mut().is_some_and(|shard| shard.is_due_before(steady_nanos))
    }

    /// Updates the metrics that `status` shows.
    pub(crate) fn publish(&self, shared: &Shared) {
        if let Some(shard) = &self.shard {
            shard.publish(shared);
        }
    }

    /// Closes the log before the daemon ends.
    pub(crate) fn end(&mut self, shared: &Shared) {
        if let Some(shard) = self.serving(shared) {
            shard.end(shared);
        } else if let Some(shard) = &mut self.shard {
            shard.close();
        }
        if self.epoch.take().is_some() {
            self.shard = None;
            shared.inboxes.note_end(self.number, None);
        }
    }
}

/// Whether the target asks for something: what it asked the service before is lost with that.
const fn is_of_target(note: &WorkerMessage) -> bool {
    matches!(note, WorkerMessage::DrawSpace { .. })
}

/// Whether a message is for the service of a worker; requests and messages of services are not held.
const fn is_for_service(note: &WorkerMessage) -> bool {
    matches!(
        note,
        WorkerMessage::ClientGone { .. }
            | WorkerMessage::Withdrawn { .. }
            | WorkerMessage::HostLost(_)
            | WorkerMessage::UnitsLost { .. }
            | WorkerMessage::DrawSpace { .. }
            | WorkerMessage::Part { .. }
            | WorkerMessage::Removals { .. }
            | WorkerMessage::ListingPart { .. }
            | WorkerMessage::Looked { .. }
            | WorkerMessage::Replicated { .. }
            | WorkerMessage::Slice { .. }
            | WorkerMessage::Grown
            | WorkerMessage::DoubtNotices
    )
}

fn note_stillness(shared: &Shared, number: usize, stillness: Stillness) {
    if let Some(tenure) = shared.inboxes.tenure(number) {
        tenure.note_stillness(stillness);
    }
}

fn take(shared: &Shared, shard: &mut Shard, note: WorkerMessage) -> Option<WorkerMessage> {
    match note {
        WorkerMessage::ClientGone { first, count } => shard.client_gone(shared, first, count),
        WorkerMessage::Withdrawn { client_id, sequence } => {
            shard.withdrawn(shared, client_id, sequence);
        }
        WorkerMessage::DrawSpace { account, requested } => {
            shard.draw_space(shared, account, requested);
        }
        WorkerMessage::HostLost(gone) => shard.host_lost(shared, gone),
        note => return shard.take_answer(shared, note),
    }
    None
}
