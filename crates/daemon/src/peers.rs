//! What comes from other daemons, on the thread of `net`: checked, routed, carried out or handed to
//! the worker.
//!
//! A wake-up across processors costs as much as the way over the wire. So this thread runs a worker
//! that nobody drives, and while it is awake it also takes the rings of workers that sleep: a client
//! that waits for one far answer after the other meets this thread alone. Work that piles up, work
//! of local clients and the target's are the worker's own thread's: it is woken for them.
//!
//! A reply to what this daemon asked goes straight to who waits for it. What a lost peer was asked
//! is answered `Busy`: the client asks again under the same identity until its time is over.

use crate::inbox::Note;
use crate::reply::{Asker, LOST_MICROS, ReplyTo};
use crate::shared::{Shared, message};
use crate::worker::{Message, Took, Worker, Workers};
use gateway::{Admitted, Route, admit_from_peer};
use net::handshake::Proven;
use net::{Answer, Handler, Haste, Lost};
use placement::map::worker_of_shard;
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};
use wire::codec::{Malformed, Reader};
use wire::limits::{SHARD_COUNT, SLOT_BYTES};
use wire::{DaemonIndex, Header, Inode, Reply, ShardIndex};

/// Most requests and messages that are carried out on this thread in one round; more are work for
/// several threads.
const CARRIED_OUT_MAX: u32 = 16;

/// The daemon's side of `net`.
pub(crate) struct Peers {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    message: Message,
    carried_out: u32,
    /// Workers that this thread ran since it last rested, as bits.
    ran: u64,
}

impl Handler for Peers {
    type Token = ReplyTo;

    fn request(&mut self, from: DaemonIndex, answer: Answer, bytes: &[u8]) {
        self.admit(from, bytes, ReplyTo::Peer(answer, Asker::of(bytes)));
    }

    fn reply(&mut self, token: ReplyTo, outcome: Result<&[u8], Lost>) {
        match outcome {
            Ok(bytes) => self.shared.answer(token, bytes),
            Err(Lost) => self.shared.busy(token, LOST_MICROS),
        }
    }

    fn message(&mut self, from: DaemonIndex, bytes: &[u8]) {
        if self.take_message(from, bytes).is_err() {
            tracing::warn!(peer = from.0, "malformed message of a peer");
        }
    }

    fn bulk(&mut self, from: Proven, stream: TcpStream) {
        self.shared.bulk.accepted(from, stream);
    }

    fn up(&mut self, _: Proven) {}

    fn down(&mut self, _: DaemonIndex) {}

    fn look(&mut self) -> bool {
        self.carried_out = 0;
        if !self.shared.net_watches.load(Relaxed) {
            self.shared.net_watches.store(true, Relaxed);
        }
        (0..self.workers.count()).filter(|number| self.take_rings(*number)).count() > 0
    }

    fn rest(&mut self) -> bool {
        self.shared.net_watches.store(false, Relaxed);
        let count = self.workers.count();
        let is_quiet =
            (0..count).filter(|number| self.shared.bells.unwatch(*number)).count() == count;
        if is_quiet {
            self.publish();
        }
        is_quiet
    }
}

impl Peers {
    /// The daemon's side of `net` before anything came.
    pub(crate) fn new(shared: Arc<Shared>, workers: Arc<Workers>) -> Peers {
        let message = Message::new([0; SLOT_BYTES]);
        Peers { shared, workers, message, carried_out: 0, ran: 0 }
    }

    /// Takes the rings of a worker that sleeps. True if there were any.
    fn take_rings(&mut self, number: usize) -> bool {
        let bells = &self.shared.bells;
        if !bells.watch(number) || !bells.has_rung(number) {
            return false;
        }
        let Some(mut worker) = self.workers.try_lock(number) else { return false };
        let took = worker.take(&self.shared, &mut self.message);
        let needs_thread = took == Took::Own || worker.needs_thread();
        drop(worker);
        self.has_run(number, needs_thread);
        took != Took::Nothing
    }

    /// A worker that nobody drives and that has taken all that came before.
    fn idle_worker(&self, number: usize) -> Option<MutexGuard<'_, Worker>> {
        if self.carried_out >= CARRIED_OUT_MAX {
            return None;
        }
        let worker = self.workers.try_lock(number)?;
        self.shared.inboxes.get(number)?.is_empty().then_some(worker)
    }

    /// Notes that this thread ran a worker.
    fn has_run(&mut self, number: usize, needs_thread: bool) {
        self.carried_out += 1;
        self.ran |= 1 << number;
        if needs_thread {
            let _ = self.shared.bells.kick(number);
        }
    }

    /// Notes what `status` shows of the workers that this thread ran.
    fn publish(&mut self) {
        while self.ran != 0 {
            let number = self.ran.trailing_zeros() as usize;
            self.ran &= self.ran - 1;
            if let Some(mut worker) = self.workers.try_lock(number) {
                worker.publish(&self.shared);
            }
        }
    }

    /// A request of a peer.
    fn admit(&mut self, from: DaemonIndex, bytes: &[u8], to: ReplyTo) {
        let shared = &self.shared;
        let admitted = match admit_from_peer(bytes) {
            Ok(admitted) => admitted,
            Err(errno) => {
                tracing::warn!(peer = from.0, %errno, "wrong request of a peer");
                return shared.refuse(to, errno);
            }
        };
        match shared.router.route(&admitted.header, gateway::route::From::Peer) {
            Ok(Route::Worker(worker)) => self.take_request(worker, &admitted, bytes, to),
            Ok(Route::Peer(_) | Route::Stale(_)) => {
                let epoch = shared.router.map.epoch;
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

    /// A message of another metadata service for one of a worker.
    fn take_word(&mut self, number: usize, bytes: &[u8]) {
        let Some(mut worker) = self.idle_worker(number) else {
            return self.shared.tell(number, Note::Peer(bytes.to_vec()));
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
                if shard.0 >= SHARD_COUNT || shared.router.map.owner(shard) != shared.router.me {
                    return Err(Malformed);
                }
                let number = worker_of_shard(shard, shared.router.workers);
                self.take_word(number, reader.rest());
            }
            message::SERVICE => {
                let number = usize::from(reader.u8()?);
                if number >= shared.router.workers {
                    return Err(Malformed);
                }
                self.take_word(number, reader.rest());
            }
            message::ORIGIN_GONE => {
                let (first, count) = (reader.u64()?, reader.u64()?);
                for worker in 0..shared.router.workers {
                    shared.tell(worker, Note::OriginGone { first, count });
                }
            }
            message::ORIGINS => shared.tell_gone(from, reader.rest())?,
            message::WITHDRAWN => {
                let (origin, sequence) = (reader.u64()?, reader.u64()?);
                for worker in 0..shared.router.workers {
                    shared.tell(worker, Note::Withdrawn { origin, sequence });
                }
            }
            message::IS_OPEN => {
                let inode = Inode(reader.u64()?);
                if inode.shard().0 >= SHARD_COUNT {
                    return Err(Malformed);
                }
                shared.tell_if_closed(inode);
            }
            message::LEASES => shared.leases.take(shared, from, reader.rest()),
            message::SIZES => shared.take_size_word(reader.rest())?,
            message::REQUEST => self.admit(from, reader.rest(), ReplyTo::Nobody),
            _ => return Err(Malformed),
        }
        Ok(())
    }
}

/// The message that tells all other daemons that a session's origins are gone.
pub(crate) fn tell_origin_gone(shared: &Shared, first: u64, count: u64) {
    // Lost with a lost peer: what waits there is withdrawn when the lock comes free.
    tell_all(shared, message::ORIGIN_GONE, [first, count]);
}

/// Says to all other daemons, and to this one's workers, that who sent a request is dead. Where it
/// does not wait nothing changes.
pub(crate) fn tell_withdrawn(shared: &Shared, origin: u64, sequence: u64) {
    for worker in 0..shared.router.workers {
        shared.tell(worker, Note::Withdrawn { origin, sequence });
    }
    tell_all(shared, message::WITHDRAWN, [origin, sequence]);
}

fn tell_all(shared: &Shared, kind: u8, words: [u64; 2]) {
    let mut bytes = vec![kind];
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    for peer in (0..shared.router.map.daemon_count()).filter(|peer| *peer != shared.router.me.0) {
        let _ = shared.net.message(DaemonIndex(peer), &bytes, Haste::Now);
    }
}
