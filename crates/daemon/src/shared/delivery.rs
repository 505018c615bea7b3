//! Delivery: replies to their destinations, and requests to the worker or daemon that answers them,
//! from any thread.
//!
//! A request that cannot be passed on is answered here at once, so its sender always gets a reply.
//! Some replies of other daemons carry state of this host, which is taken up on their way: leases
//! (`host::leases`), sizes (`host::sizes`), lock releases (`host::lock_releases`).

use crate::host::sizes::{NotSent, Unsent};
use crate::host::unreported_sizes::DueReports;
use crate::sessions::client_session::ClientSession;
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::network::{encode_request, message};
use crate::shared::reply::{FULL_MICROS, LOST_MICROS, ReplyTo, encode_short, part_answer};
use crate::units::{DividedAsk, Event, LossAnswer, PushAnswer, StoreAnswer};
use gateway::{Admitted, Route};
use net::Urgency;
use net::bulk::Fabric as _;
use shm::wait::steady_nanos;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use wire::codec::Reader;
use wire::errno::Errno;
use wire::limits::SLOT_BYTES;
use wire::{DaemonIndex, Header, Inode, Reply, Request, ShardIndex};

/// Replies.
impl Shared {
    /// Delivers an encoded reply.
    pub(crate) fn answer(&self, to: ReplyTo, bytes: &[u8]) {
        let inboxes = &self.inboxes;
        match to {
            ReplyTo::Slot { client, slot } => self.answer_slot(client, slot, bytes),
            ReplyTo::Walk { client, slot, sent_nanos, request } => {
                self.host.leases.walk_answered(inboxes, sent_nanos, &request, bytes);
                self.answer(ReplyTo::Slot { client, slot }, bytes);
            }
            ReplyTo::Size { client, slot, request } => {
                let noted = self.host.truncates.note_reply(self.links(), request, bytes);
                noted.lost.into_iter().for_each(|to| self.busy(to, LOST_MICROS));
                let bytes = noted.replacement.as_deref().unwrap_or(bytes);
                self.answer(ReplyTo::Slot { client, slot }, bytes);
            }
            ReplyTo::Passed(ask) => {
                let held = self.units.as_ref().map(|units| &units.held);
                let (to, bytes) = ask.take_reply(held, bytes);
                self.answer(to, &bytes);
            }
            ReplyTo::Divided(ask) => self.answer_divided(&ask, bytes),
            ReplyTo::KnownLoss { .. } | ReplyTo::StoredCopy { .. } | ReplyTo::PushedCopy(_) => {
                self.tell_units(&to, bytes);
            }
            ReplyTo::Peer(answer, _) => self.net.sender.reply(answer, bytes),
            ReplyTo::Part { worker, job, daemon } => {
                let answer = part_answer(bytes);
                inboxes.send_to_worker(worker, WorkerMessage::Part { job, daemon, answer });
            }
            ReplyTo::Removals { worker, place } => {
                let answer = part_answer(bytes);
                inboxes.send_to_worker(worker, WorkerMessage::Removals { place, answer });
            }
            ReplyTo::Owners { query } => {
                inboxes.send_to_target(WorkerMessage::Owners { query, answer: bytes.to_vec() });
            }
            ReplyTo::LocateBacking { inode } => {
                let answer = bytes.to_vec();
                inboxes.send_to_target(WorkerMessage::BackingLocated { inode, answer });
            }
            ReplyTo::IsClean { inode, number } => {
                let yes = Ok(Reply::Number { value: 1 });
                let is_clean = Reply::decode(&mut Reader::new(bytes)) == yes;
                inboxes.send_to_target(WorkerMessage::IsClean { inode, number, is_clean });
            }
            ReplyTo::SpaceReport { round, shard } => {
                let by = (round, shard);
                inboxes.send_to_target(WorkerMessage::GaveBack { by, answer: bytes.to_vec() });
            }
            ReplyTo::SpilledReleased { slot } => {
                let answer = part_answer(bytes);
                inboxes.send_to_target(WorkerMessage::SpilledReleased { slot, answer });
            }
            ReplyTo::OwnFetch(own) => own.answered(self, bytes),
            ReplyTo::Visit(visit) => self.bulk.transport.answer(visit, bytes.to_vec()),
            ReplyTo::Release { entry } => {
                let answer = part_answer(bytes);
                self.host.lock_releases.release_answered(&self.host.segment, entry, answer);
            }
            // A thread that waits no longer has closed its end.
            ReplyTo::Thread(waiting) => drop(waiting.try_send(bytes.to_vec())),
            ReplyTo::UnreportedSizes(answers) => drop(answers),
            ReplyTo::Nobody => {}
        }
    }

    /// Delivers an encoded reply to a client.
    fn answer_slot(&self, client: Arc<ClientSession>, slot: u16, bytes: &[u8]) {
        if bytes.len() <= SLOT_BYTES {
            return client.slots.reply(usize::from(slot), bytes);
        }
        // Admission bounds the length of replies, so this is a bug here or in a peer; the client must
        // not wait forever.
        tracing::error!(length = bytes.len(), "a reply does not fit its slot");
        self.refuse(ReplyTo::Slot { client, slot }, Errno::EIO);
    }

    /// A part of a divided request is answered.
    fn answer_divided(&self, ask: &DividedAsk, bytes: &[u8]) {
        if let Some((to, reply)) = ask.part_ended(bytes) {
            self.answer_with(to, &reply);
        }
    }

    /// An answer that the units of this daemon wait for.
    fn tell_units(&self, to: &ReplyTo, bytes: &[u8]) {
        let event = match *to {
            ReplyTo::KnownLoss { ticket } => Event::LossKnown(ticket, LossAnswer::of(bytes)),
            ReplyTo::StoredCopy { ticket } => Event::Stored(ticket, StoreAnswer::of(bytes)),
            ReplyTo::PushedCopy(asked) => Event::PushAnswered(asked, PushAnswer::of(bytes)),
            _ => return,
        };
        if let Some(units) = &self.units {
            units.inbox.put(event);
        }
    }

    /// Delivers a short reply.
    pub(crate) fn answer_with(&self, to: ReplyTo, reply: &Reply<'_>) {
        let mut bytes = [0; 256];
        self.answer(to, encode_short(reply, &mut bytes));
    }

    /// Refuses a request.
    pub(crate) fn refuse(&self, to: ReplyTo, errno: Errno) {
        self.answer_with(to, &Reply::Refused { errno });
    }

    /// Asks the client to retry after `retry_micros`.
    pub(crate) fn busy(&self, to: ReplyTo, retry_micros: u32) {
        self.answer_with(to, &Reply::Busy { retry_micros });
    }

    /// Answers a request that `host::sizes` has not sent.
    pub(crate) fn answer_unsent(&self, (to, why): Unsent) {
        match why {
            NotSent::Retry(retry_micros) => self.busy(to, retry_micros),
            NotSent::Refused(errno) => self.refuse(to, errno),
            NotSent::Needless => self.answer_with(to, &Reply::Done {}),
        }
    }
}

/// Requests.
impl Shared {
    /// Passes an admitted request, header first, to a worker or a service that was taken over.
    pub(crate) fn hand_to_worker(&self, worker: usize, bytes: Vec<u8>, to: ReplyTo) {
        if let Err(WorkerMessage::Request { to, .. }) =
            self.inboxes.try_send_to_worker(worker, WorkerMessage::Request { bytes, to })
        {
            self.busy(to, FULL_MICROS);
        }
    }

    /// Passes an admitted request, header first, to another daemon, or to a service that this one took
    /// over. It is sent by `flush` of the sender.
    pub(crate) fn hand_to_peer(&self, peer: DaemonIndex, bytes: &[u8], to: ReplyTo) {
        if let Err(to) = self.net.request(&self.inboxes, peer, bytes, to) {
            self.busy(to, LOST_MICROS);
        }
    }

    /// Passes a request of this daemon's own, header first, to the target of a daemon.
    pub(crate) fn hand_to_target(&self, daemon: DaemonIndex, bytes: Vec<u8>, to: ReplyTo) {
        if daemon == self.net.router.me {
            self.hand_to_worker(placement::map::WORKER_OF_TARGET, bytes, to);
        } else {
            self.hand_to_peer(daemon, &bytes, to);
        }
    }

    /// Passes an admitted request without a reply to another daemon. It may be delayed, because
    /// only later messages to that daemon depend on it.
    pub(crate) fn forward_without_reply(
        &self,
        peer: DaemonIndex,
        admitted: &Admitted<'_>,
        to: ReplyTo,
    ) {
        let mut bytes = admitted.encode();
        // Lost if the peer is lost or its queue is full.
        if peer == self.net.router.me {
            self.hand_to_peer(peer, &bytes, ReplyTo::Nobody);
        } else {
            bytes.insert(0, message::REQUEST);
            self.net.send(peer, &bytes, Urgency::Batched);
        }
        self.answer_with(to, &Reply::Done {});
    }

    /// Routes a request of this daemon's own; see `hand_to_peer`.
    pub(crate) fn route_own_request(&self, header: &Header, request: &Request<'_>, to: ReplyTo) {
        match self.net.route(header, gateway::route::From::Session) {
            Ok(Route::Worker(worker)) if !self.net.is_taken_over(worker) => {
                self.hand_to_worker(worker, encode_request(header, request), to);
            }
            Ok(Route::Worker(_)) => self.hand_elsewhere(self.net.router.me, header, request, to),
            Ok(Route::Peer(peer)) => self.hand_elsewhere(peer, header, request, to),
            Ok(Route::Stale(epoch)) => self.answer_with(to, &Reply::Stale { epoch }),
            Ok(Route::Wait) => self.busy(to, LOST_MICROS),
            Err(errno) => self.refuse(to, errno),
        }
    }

    /// Passes a request of this daemon's own to a service without access to the host segment.
    fn hand_elsewhere(
        &self,
        peer: DaemonIndex,
        header: &Header,
        request: &Request<'_>,
        to: ReplyTo,
    ) {
        match *request {
            Request::Extend { inode, .. } => self.report_size(peer, header, inode, to),
            _ => self.hand_to_peer(peer, &encode_request(header, request), to),
        }
    }

    /// Routes a request of this daemon's own to the shard of a file.
    pub(crate) fn ask_shard_of(&self, inode: Inode, request: &Request<'_>, to: ReplyTo) {
        self.route_own_request(&self.net.own_header(inode.shard()), request, to);
    }

    /// The answer of a shard to a request of this daemon's own, which is sent again while the shard is
    /// busy; `None`: there is none in time. For threads that may wait.
    pub(crate) fn ask_in_time(
        &self,
        shard: ShardIndex,
        request: &Request<'_>,
        until: Instant,
    ) -> Option<Vec<u8>> {
        loop {
            let (waiting, answers) = mpsc::sync_channel(1);
            self.route_own_request(&self.net.own_header(shard), request, ReplyTo::Thread(waiting));
            self.net.sender.flush();
            let left = until.saturating_duration_since(Instant::now());
            let answer = answers.recv_timeout(left).ok()?;
            match Reply::decode(&mut Reader::new(&answer)) {
                // The answer for a daemon that is down is there at once, whatever time is left.
                Ok(Reply::Busy { .. } | Reply::Stale { .. }) if Instant::now() >= until => {
                    return None;
                }
                Ok(Reply::Busy { .. } | Reply::Stale { .. }) => {
                    std::thread::sleep(Duration::from_micros(LOST_MICROS.into()));
                }
                _ => return Some(answer),
            }
        }
    }

    /// Reports the current unreported size of a file to its shard, of another host's or taken over.
    pub(crate) fn report_size(
        &self,
        peer: DaemonIndex,
        header: &Header,
        inode: Inode,
        to: ReplyTo,
    ) {
        if let Err(unsent) =
            self.host.truncates.send_report(self.links(), (peer, header), inode, to)
        {
            self.answer_unsent(unsent);
        }
    }

    /// Reports all unreported sizes of this host, in its home daemon. True if there are any, or
    /// reports are in flight.
    pub(crate) fn report_sizes_for_space(&self) -> bool {
        let unreported = self.host.unreported.as_ref().filter(|_| self.net.is_home());
        let Some(unreported) = unreported else { return false };
        let DueReports { files, comes } = unreported.take_due(&self.host.segment);
        for (inode, size, token) in files {
            let to = ReplyTo::UnreportedSizes(token);
            self.ask_shard_of(inode, &Request::Extend { inode, size }, to);
        }
        comes
    }

    /// A file of a shard on another host was closed here, or queried about: reports the close to
    /// the shard, unless some process has it open.
    pub(crate) fn report_if_closed(&self, inode: Inode) {
        if !self.net.is_on_host(inode.shard())
            && let Some(open_sequence) = self.host.segment.next_close_sequence(inode)
        {
            let close = Request::Close { inode, open_sequence };
            self.ask_shard_of(inode, &close, ReplyTo::Nobody);
        }
    }

    /// Destination of another daemon's reply to `request`, which with its header is encoded in
    /// `bytes`.
    pub(crate) fn to_walk(&self, to: ReplyTo, request: &Request<'_>, bytes: &[u8]) -> ReplyTo {
        match (to, request) {
            (ReplyTo::Slot { client, slot }, Request::Walk { .. }) if self.net.is_home() => {
                let (sent_nanos, request) = (steady_nanos(), bytes.to_vec());
                ReplyTo::Walk { client, slot, sent_nanos, request }
            }
            (to, _) => to,
        }
    }
}
