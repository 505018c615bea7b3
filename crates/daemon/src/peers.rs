//! What comes from other daemons, on the thread of `net`: checked, routed, handed to the worker.
//!
//! A reply to what this daemon asked goes straight to who waits for it. What a lost peer was asked
//! is answered `Busy`: the client asks again under the same identity until its time is over.

use crate::inbox::Note;
use crate::reply::{LOST_MICROS, ReplyTo};
use crate::shared::{Shared, message};
use gateway::{Route, admit_from_peer};
use net::handshake::Proven;
use net::{Answer, Handler, Lost};
use placement::map::worker_of_shard;
use std::sync::Arc;
use wire::codec::{Malformed, Reader};
use wire::limits::SHARD_COUNT;
use wire::{DaemonIndex, Reply, ShardIndex};

/// The daemon's side of `net`.
pub(crate) struct Peers {
    /// The daemon.
    pub(crate) shared: Arc<Shared>,
}

impl Handler for Peers {
    type Token = ReplyTo;

    fn request(&mut self, from: DaemonIndex, answer: Answer, bytes: &[u8]) {
        let shared = &self.shared;
        let to = ReplyTo::Peer(answer);
        let admitted = match admit_from_peer(bytes) {
            Ok(admitted) => admitted,
            Err(errno) => {
                tracing::warn!(peer = from.0, %errno, "wrong request of a peer");
                return shared.refuse(to, errno);
            }
        };
        match shared.router.route(&admitted.header, gateway::route::From::Peer) {
            Ok(Route::Worker(worker)) => shared.hand_to_worker(worker, bytes.to_vec(), to),
            Ok(Route::Peer(_) | Route::Stale(_)) => {
                let epoch = shared.router.map.epoch;
                shared.answer_with(to, &Reply::Stale { epoch });
            }
            Ok(Route::Wait) => shared.busy(to, LOST_MICROS),
            Err(errno) => shared.refuse(to, errno),
        }
    }

    fn reply(&mut self, token: ReplyTo, outcome: Result<&[u8], Lost>) {
        match outcome {
            Ok(bytes) => self.shared.answer(token, bytes),
            Err(Lost) => self.shared.busy(token, LOST_MICROS),
        }
    }

    fn message(&mut self, from: DaemonIndex, bytes: &[u8]) {
        if self.take_message(bytes).is_err() {
            tracing::warn!(peer = from.0, "malformed message of a peer");
        }
    }

    fn up(&mut self, _: Proven) {}

    fn down(&mut self, _: DaemonIndex) {}
}

impl Peers {
    fn take_message(&self, bytes: &[u8]) -> Result<(), Malformed> {
        let shared = &self.shared;
        let mut reader = Reader::new(bytes);
        match reader.u8()? {
            message::METADATA => {
                let shard = ShardIndex(reader.u16()?);
                if shard.0 >= SHARD_COUNT || shared.router.map.owner(shard) != shared.router.me {
                    return Err(Malformed);
                }
                let worker = worker_of_shard(shard, shared.router.workers);
                shared.tell(worker, Note::Peer(reader.rest().to_vec()));
            }
            message::ORIGIN_GONE => {
                let (first, count) = (reader.u64()?, reader.u64()?);
                for worker in 0..shared.router.workers {
                    shared.tell(worker, Note::OriginGone { first, count });
                }
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }
}

/// The message that tells all other daemons that a session's origins are gone.
pub(crate) fn tell_origin_gone(shared: &Shared, first: u64, count: u64) {
    let mut bytes = vec![message::ORIGIN_GONE];
    bytes.extend_from_slice(&first.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    for peer in (0..shared.router.map.daemon_count()).filter(|peer| *peer != shared.router.me.0) {
        // Lost with a lost peer: what waits there is withdrawn when the lock comes free.
        let _ = shared.net.message(DaemonIndex(peer), bytes.clone());
    }
}
