//! Where the reply to a request goes, and getting it there, from any thread.

use crate::inbox::{Note, PartAnswer};
use crate::shared::{Guest, Shared};
use crate::sizes::Asked;
use net::bulk::Fabric as _;
use placement::map::WORKER_OF_TARGET;
use shm::host::releases::ReleaseIndex;
use shm::wait::steady_nanos;
use std::sync::Arc;
use wire::codec::{Reader, Writer};
use wire::errno::Errno;
use wire::limits::SLOT_BYTES;
use wire::{DaemonIndex, Header, Inode, Reply, Request, ShardIndex, reply};

/// When to ask again for what a lost peer was asked: it takes this long at least to come back.
pub(crate) const LOST_MICROS: u32 = 10_000;
/// When to ask again for what did not fit a queue.
pub(crate) const FULL_MICROS: u32 = 1_000;

/// Who sent a request: its origin, and how many it sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asker {
    pub(crate) origin: u64,
    pub(crate) sequence: u64,
}

impl Asker {
    /// Of an encoded request. One that can not be decoded is refused, whoever sent it.
    pub(crate) fn of(bytes: &[u8]) -> Asker {
        let header = Header::decode(&mut Reader::new(bytes));
        header.map_or(Asker { origin: 0, sequence: 0 }, |header| Asker {
            origin: header.origin,
            sequence: header.sequence,
        })
    }
}

/// Where a reply goes.
pub(crate) enum ReplyTo {
    /// A slot or row of a session.
    Slot { guest: Arc<Guest>, slot: u16 },
    /// As `Slot`; the answer of another daemon to a walk may also grant leases (`leases`).
    Walk { guest: Arc<Guest>, slot: u16, sent_nanos: i64, request: Vec<u8> },
    /// As `Slot`; the answer of another daemon says something that is noted here first (`sizes`).
    Size { guest: Arc<Guest>, slot: u16, asked: Asked },
    /// Another daemon, for who sent a request by it.
    Peer(net::Answer, Asker),
    /// A part of a job of a worker of this daemon.
    Part { worker: usize, job: u64, daemon: u16 },
    /// The removals of a worker of this daemon.
    Removals { worker: usize, target: DaemonIndex },
    /// The target of this daemon, which asked whose files are.
    Owners { question: u64 },
    /// The same, which asked where a file lies below.
    Below { inode: Inode },
    /// The same, which asked whether a file is saved as it is.
    IsSaved { inode: Inode, number: u64 },
    /// The same, which asked a service to give back space.
    Room { round: u64, shard: ShardIndex },
    /// The same, which told a target to let go of a piece.
    Dismissed { slot: u32 },
    /// A transfer of a peer that waits for its piece.
    Visit(net::bulk::Visit),
    /// What is told of locks that are to end.
    Release { row: ReleaseIndex },
    /// Nobody waits for it, but it is counted how many are on their way (`untold`).
    Untold(Arc<()>),
    /// Nobody waits for it.
    Nobody,
}

impl Shared {
    /// Delivers an encoded reply.
    pub(crate) fn answer(&self, to: ReplyTo, bytes: &[u8]) {
        match to {
            ReplyTo::Slot { guest, slot } if bytes.len() <= SLOT_BYTES => {
                guest.slots.reply(usize::from(slot), bytes);
            }
            // Admission bounds what may be asked; a reply beyond that is a fault of ours or of a
            // peer, and the client must not wait for it.
            ReplyTo::Slot { guest, slot } => {
                tracing::error!(length = bytes.len(), "a reply does not fit its slot");
                let refused = Reply::Refused { errno: Errno::EIO };
                self.answer_with(ReplyTo::Slot { guest, slot }, &refused);
            }
            ReplyTo::Walk { guest, slot, sent_nanos, request } => {
                self.leases.answered(self, sent_nanos, &request, bytes);
                self.answer(ReplyTo::Slot { guest, slot }, bytes);
            }
            ReplyTo::Size { guest, slot, asked } => {
                let noted = self.note_size(asked, bytes);
                let bytes = noted.as_deref().unwrap_or(bytes);
                self.answer(ReplyTo::Slot { guest, slot }, bytes);
            }
            ReplyTo::Peer(answer, _) => self.net.reply(answer, bytes),
            ReplyTo::Part { worker, job, daemon } => {
                let answer = part_answer(bytes);
                self.tell(worker, Note::Part { job, daemon, answer });
            }
            ReplyTo::Removals { worker, target } => {
                let answer = part_answer(bytes);
                self.tell(worker, Note::Removals { target, answer });
            }
            ReplyTo::Owners { question } => {
                self.tell(WORKER_OF_TARGET, Note::Owners { question, answer: bytes.to_vec() });
            }
            ReplyTo::Below { inode } => {
                self.tell(WORKER_OF_TARGET, Note::ToldBelow { inode, answer: bytes.to_vec() });
            }
            ReplyTo::IsSaved { inode, number } => {
                let yes = Ok(Reply::Number { value: 1 });
                let is_saved = Reply::decode(&mut Reader::new(bytes)) == yes;
                self.tell(WORKER_OF_TARGET, Note::IsSaved { inode, number, is_saved });
            }
            ReplyTo::Room { round, shard } => {
                let by = (round, shard);
                self.tell(WORKER_OF_TARGET, Note::GaveBack { by, answer: bytes.to_vec() });
            }
            ReplyTo::Dismissed { slot } => {
                let answer = part_answer(bytes);
                self.tell(WORKER_OF_TARGET, Note::Dismissed { slot, answer });
            }
            ReplyTo::Visit(visit) => self.bulk.answer(visit, bytes.to_vec()),
            ReplyTo::Release { row } => {
                self.releases.answered(&self.host, row, part_answer(bytes));
            }
            ReplyTo::Untold(answers) => drop(answers),
            ReplyTo::Nobody => {}
        }
    }

    /// Where the answer of another daemon to `request` goes, which is `bytes` with its header.
    pub(crate) fn to_walk(&self, to: ReplyTo, request: &Request<'_>, bytes: &[u8]) -> ReplyTo {
        let is_first = self.router.me.0 == self.host_number;
        match (to, request) {
            (ReplyTo::Slot { guest, slot }, Request::Walk { .. }) if is_first => {
                let (sent_nanos, request) = (steady_nanos(), bytes.to_vec());
                ReplyTo::Walk { guest, slot, sent_nanos, request }
            }
            (to, _) => to,
        }
    }

    /// Delivers a short reply.
    pub(crate) fn answer_with(&self, to: ReplyTo, reply: &Reply<'_>) {
        let mut bytes = [0; 256];
        let mut writer = Writer::new(&mut bytes);
        reply.encode(&mut writer);
        let length = writer.finish().unwrap_or(0);
        self.answer(to, bytes.get(..length).unwrap_or_default());
    }

    /// Refuses.
    pub(crate) fn refuse(&self, to: ReplyTo, errno: Errno) {
        self.answer_with(to, &Reply::Refused { errno });
    }

    /// Refuses for now.
    pub(crate) fn busy(&self, to: ReplyTo, retry_micros: u32) {
        self.answer_with(to, &Reply::Busy { retry_micros });
    }
}

fn part_answer(bytes: &[u8]) -> PartAnswer {
    match Reply::decode(&mut Reader::new(bytes)) {
        Ok(Reply::Busy { retry_micros }) => PartAnswer::Again(u64::from(retry_micros)),
        Ok(Reply::Stale { .. }) => PartAnswer::Again(u64::from(LOST_MICROS)),
        Ok(Reply::Refused { errno }) => PartAnswer::Ended(Err(errno)),
        Ok(_) => PartAnswer::Ended(Ok(())),
        Err(_) => PartAnswer::Ended(Err(Errno::EIO)),
    }
}

/// Room for a reply with `payload` bytes in it.
pub(crate) const fn room_for(payload: usize) -> usize {
    payload + 64
}

/// Encodes pieces as `Reply::Pieces`.
pub(crate) fn encode_pieces(pieces: &[reply::Piece]) -> Vec<u8> {
    use wire::codec::Field;
    let mut list = vec![0; pieces.len() * reply::Piece::BYTES];
    let mut writer = Writer::new(&mut list);
    for piece in pieces {
        piece.put(&mut writer);
    }
    encode(&Reply::Pieces { pieces: &list }, list.len())
}

/// Encodes a reply whose variable part is `payload` bytes long.
pub(crate) fn encode(reply: &Reply<'_>, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0; room_for(payload)];
    let mut writer = Writer::new(&mut bytes);
    reply.encode(&mut writer);
    let length = writer.finish().unwrap_or(0);
    bytes.truncate(length);
    bytes
}
