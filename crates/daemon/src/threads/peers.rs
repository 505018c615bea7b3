//! Frames of other daemons, on the thread of `net`: checked, routed, carried out or passed to the
//! worker.
//!
//! A wake-up across CPUs costs as much as the network round trip. So this thread runs a worker that
//! no other thread is running, and while it is awake it also answers the doorbells of sleeping
//! workers: a client that waits for one remote reply after another involves this thread only.
//! Accumulated work, work of local clients and work of the target belong to the worker's own
//! thread, which is woken for them.
//!
//! A reply to a request of this daemon goes directly to its destination. Requests to a lost peer
//! are answered `Busy`: the client retries with the same identity until its timeout.

use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::network::message;
use crate::shared::reply::{LOST_MICROS, ReplyTo, Sender};
use crate::threads::worker::{RequestBuffer, RoundResult, Worker, Workers};
use crate::units::Event;
use encoding::Decode as _;
use gateway::{Admitted, Route, Router, admit_from_peer};
use net::handshake::PeerIdentity;
use net::{Channel, Handler, Lost, ReplyHandle};
use placement::ServiceName;
use replicas::packet::Packet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};
use wire::codec::{Malformed, Reader};
use wire::limits::{SHARD_COUNT, SLOT_BYTES};
use wire::{DaemonIndex, Header, Inode, Reply, ShardIndex};

/// Maximum number of requests and messages carried out on this thread per round; beyond it, the
/// work is worth several threads.
const CARRIED_OUT_MAX: u32 = 16;

/// The daemon's handler for `net`.
pub(crate) struct Peers {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    message: RequestBuffer,
    carried_out: u32,
    /// Bit set of the workers that this thread has run since it last slept.
    ran: u64,
}

impl Handler for Peers {
    type Token = ReplyTo;

    fn request(&mut self, from: DaemonIndex, answer: ReplyHandle, bytes: &[u8]) {
        self.admit_request(from, bytes, ReplyTo::Peer(answer, Sender::of(bytes)));
    }

    fn reply(&mut self, token: ReplyTo, outcome: Result<&[u8], Lost>) {
        match outcome {
            Ok(bytes) => self.shared.answer(token, bytes),
            Err(Lost) => self.shared.busy(token, LOST_MICROS),
        }
    }

    fn message(&mut self, from: DaemonIndex, bytes: &[u8]) {
        if self.take_message(from, bytes).is_err() {
            tracing::warn!(peer = from.0, "malformed message from peer");
        }
    }

    fn bulk(&mut self, from: PeerIdentity, stream: Channel) {
        self.shared.bulk.transport.accepted(from, stream);
    }

    fn up(&mut self, peer: PeerIdentity) {
        self.shared.shares.note_up(peer.daemon);
    }

    fn down(&mut self, _: DaemonIndex) {}

    fn look(&mut self) -> bool {
        self.carried_out = 0;
        if !self.shared.net.is_awake.load(Relaxed) {
            self.shared.net.is_awake.store(true, Relaxed);
        }
        (0..self.workers.count()).filter(|number| self.take_rings(*number)).count() > 0
    }

    fn before_sleep(&mut self) -> bool {
        self.shared.net.is_awake.store(false, Relaxed);
        let count = self.workers.count();
        let is_quiet =
            (0..count).filter(|number| self.shared.inboxes.bells.unwatch(*number)).count() == count;
        if is_quiet {
            self.publish();
        }
        is_quiet
    }
}

impl Peers {
    /// Creates the handler.
    pub(crate) fn new(shared: Arc<Shared>, workers: Arc<Workers>) -> Peers {
        let message = RequestBuffer::new([0; SLOT_BYTES]);
        Peers { shared, workers, message, carried_out: 0, ran: 0 }
    }

    /// Answers the doorbell of a sleeping worker. True if it had rung.
    fn take_rings(&mut self, number: usize) -> bool {
        let bells = &self.shared.inboxes.bells;
        if !bells.watch(number) || !bells.has_rung(number) {
            return false;
        }
        let Some(mut worker) = self.workers.try_lock(number) else { return false };
        let result = worker.take(&self.shared, &mut self.message);
        let needs_thread = result == RoundResult::Own || worker.needs_thread();
        drop(worker);
        self.has_run(number, needs_thread);
        result != RoundResult::Nothing
    }

    /// A worker that no thread is running and whose inbox is empty; none for a service that was taken
    /// over, which has a thread of its own.
    fn idle_worker(&self, number: usize) -> Option<MutexGuard<'_, Worker>> {
        if self.carried_out >= CARRIED_OUT_MAX {
            return None;
        }
        let worker = self.workers.try_lock(number).filter(|worker| worker.is_free())?;
        self.shared.inboxes.of(number)?.is_empty().then_some(worker)
    }

    /// Records that this thread has run a worker.
    fn has_run(&mut self, number: usize, needs_thread: bool) {
        self.carried_out += 1;
        self.ran |= 1 << number;
        if needs_thread {
            let _ = self.shared.inboxes.bells.wake(number);
        }
    }

    /// Updates the metrics of the workers that this thread has run.
    fn publish(&mut self) {
        while self.ran != 0 {
            let number = self.ran.trailing_zeros() as usize;
            self.ran &= self.ran - 1;
            if let Some(mut worker) = self.workers.try_lock(number) {
                worker.publish(&self.shared);
            }
        }
    }

    /// Handles a request of a peer.
    fn admit_request(&mut self, from: DaemonIndex, bytes: &[u8], to: ReplyTo) {
        let shared = &self.shared;
        let admitted = match admit_from_peer(bytes) {
            Ok(admitted) => admitted,
            Err(errno) => {
                tracing::warn!(peer = from.0, %errno, "invalid request from peer");
                return shared.refuse(to, errno);
            }
        };
        let to = match &shared.units {
            None => to,
            Some(units) => match units.take_from_peer(shared, &admitted, to) {
                Ok(()) => return,
                Err(to) => to,
            },
        };
        match shared.net.route(&admitted.header, gateway::route::From::Peer) {
            Ok(Route::Worker(worker)) => self.take_request(worker, &admitted, bytes, to),
            Ok(Route::Peer(_) | Route::Stale(_)) => {
                let epoch = shared.net.router.epoch();
                shared.answer_with(to, &Reply::Stale { epoch });
            }
            Ok(Route::Wait) => shared.busy(to, LOST_MICROS),
            Err(errno) => shared.refuse(to, errno),
        }
    }

    fn take_request(&mut self, number: usize, admitted: &Admitted<'_>, bytes: &[u8], to: ReplyTo) {
        let Admitted { header, request, .. } = admitted;
        let is_of_shard = header.shard != Header::TARGET;
        let Some(mut worker) = self.idle_worker(number).filter(|_| is_of_shard) else {
            return self.shared.hand_to_worker(number, bytes.to_vec(), to);
        };
        worker.carry_out(&self.shared, header, request, to);
        let needs_thread = worker.needs_thread();
        drop(worker);
        self.has_run(number, needs_thread);
    }

    /// Number of the service for which a message came. `Ok(None)`: it has moved, and services tolerate
    /// the loss of messages.
    fn number_of(
        &self,
        service: ServiceName,
        owner: DaemonIndex,
    ) -> Result<Option<usize>, Malformed> {
        let net = &self.shared.net;
        let number = net.number_of(service, owner);
        if number.is_none() && net.owners.is_none() { Err(Malformed) } else { Ok(number) }
    }

    /// Handles a message of another metadata service for one that is served here, if it is.
    fn take_service_message(&mut self, number: Option<usize>, bytes: &[u8]) {
        let Some(number) = number else { return };
        let Some(mut worker) = self.idle_worker(number) else {
            return self.shared.inboxes.send_to_worker(number, WorkerMessage::Peer(bytes.to_vec()));
        };
        worker.take_message(&self.shared, bytes);
        let needs_thread = worker.needs_thread();
        drop(worker);
        self.has_run(number, needs_thread);
    }

    fn take_message(&mut self, from: DaemonIndex, bytes: &[u8]) -> Result<(), Malformed> {
        let shared = &self.shared;
        let mut reader = Reader::new(bytes);
        match reader.u8()? {
            message::METADATA => {
                let shard = ShardIndex(reader.u16()?);
                if shard.0 >= SHARD_COUNT {
                    return Err(Malformed);
                }
                let Router { map, workers, .. } = &shared.net.router;
                let owner = shared.net.owner(shard);
                let number = self.number_of(map.service(shard, *workers), owner)?;
                self.take_service_message(number, reader.rest());
            }
            message::SERVICE => {
                let to = ServiceName { first: DaemonIndex(reader.u16()?), worker: reader.u8()? };
                if !shared.net.has_service(to) {
                    return Err(Malformed);
                }
                let number = self.number_of(to, shared.net.owner_of(to))?;
                self.take_service_message(number, reader.rest());
            }
            message::CLIENT_GONE => {
                shared.inboxes.client_gone(reader.u64()?, reader.u64()?);
            }
            message::CLIENT_IDS => {
                let (ids, host) = (&shared.sessions.client_ids, &shared.host.segment);
                ids.report_gone(&shared.net, host, from, reader.rest())?;
            }
            message::WITHDRAWN => {
                shared.inboxes.withdrawn(reader.u64()?, reader.u64()?);
            }
            message::IS_OPEN => {
                let inode = Inode(reader.u64()?);
                if inode.shard().0 >= SHARD_COUNT {
                    return Err(Malformed);
                }
                shared.report_if_closed(inode);
            }
            message::LEASES => {
                let ways = (&shared.net, &shared.inboxes);
                shared.host.leases.take_message(ways, from, reader.rest());
            }
            message::SIZES => shared.host.truncates.take_message(shared.links(), reader.rest())?,
            message::SHARES => shared.shares.take_message(from, reader.rest()),
            message::MEMBERS => {
                let members = shared.members.as_ref().ok_or(Malformed)?;
                members.put(from, reader.rest());
            }
            message::UNITS => {
                let units = shared.units.as_ref().ok_or(Malformed)?;
                units.inbox.put(Event::Packet(from, Packet::from_bytes(reader.rest())?));
            }
            message::SLOW => {
                let others = read_targets(&mut reader, shared.net.router.daemons_most())?;
                shared.inboxes.send_to_target(WorkerMessage::Slow { others });
            }
            message::ARE_YOU_THERE => {}
            message::REQUEST => self.admit_request(from, reader.rest(), ReplyTo::Nobody),
            _ => return Err(Malformed),
        }
        Ok(())
    }
}

/// The targets that a message names; there may be so many.
fn read_targets(reader: &mut Reader<'_>, count: u16) -> Result<Vec<DaemonIndex>, Malformed> {
    let mut all = Vec::new();
    while !reader.rest().is_empty() {
        let target = reader.u16()?;
        if target >= count || all.len() >= usize::from(count) {
            return Err(Malformed);
        }
        all.push(DaemonIndex(target));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_possible_targets_or_is_malformed() {
        let read = |bytes: &[u8]| read_targets(&mut Reader::new(bytes), 4);
        assert_eq!(read(&[]), Ok(vec![]));
        assert_eq!(read(&[3, 0, 0, 0]), Ok(vec![DaemonIndex(3), DaemonIndex(0)]));
        for malformed in [&[4, 0][..], &[1], &[1, 0, 1], &[1, 0, 1, 0, 1, 0, 1, 0, 1, 0]] {
            assert_eq!(read(malformed), Err(Malformed), "{malformed:?}");
        }
    }
}
