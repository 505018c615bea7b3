//! Both ends of bulk transfers: buffers of sessions, and pieces of the target.
//!
//! A transfer that comes from a peer finds its piece in what is remembered here, or asks worker 0,
//! which owns the target. Whatever is remembered may be wrong: the piece table is looked at under
//! the pin, as clients do. Bytes of the memory tier move between arena and socket; those of the SSD
//! tier, and of granules that hold nothing, by a copy of their own.

use crate::abroad::{End, Journey};
use crate::reply::{LOST_MICROS, ReplyTo};
use crate::shared::{Guest, Shared, encode_request};
use crate::target::Devices;
use net::bulk::{Answer, Ends, Fabric as _, Kind, Memory, Outcome, Range, Transfer, Visit};
use placement::map::WORKER_OF_TARGET;
use placement::piece;
use shm::Segment;
use shm::host::VnodeIndex;
use shm::pieces::{Use, admit};
use shm::stage::Pushed;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use wire::codec::{Field, Reader};
use wire::errno::{Errno, Result};
use wire::limits::STAGE_BUFFER_COUNT;
use wire::reply::Piece;
use wire::request::chunk_log2_of;
use wire::{DaemonIndex, Header, Inode, Reply, Request, ShardIndex};

/// Most threads that move bytes.
const LANE_COUNT_MAX: usize = 4;
/// Pieces that are remembered: a few MiB.
const KNOWN_MAX: usize = 64 * 1024;
/// When to come again after a piece went away at the very moment that it was found.
const AGAIN_MICROS: u32 = 100;

/// Threads that move bytes: half as many as there are processors, as clients copy meanwhile.
pub(crate) fn lane_count() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / 2).clamp(1, LANE_COUNT_MAX)
}

/// One end of a transfer.
pub(crate) enum Place {
    /// A buffer that a client has lent.
    Buffer { guest: Arc<Guest>, buffer: u8, at: usize },
    /// A part of the arena, pinned.
    Arena { devices: Arc<Devices>, slot: u32, at: usize },
    /// Memory of its own, for a part of a pinned piece.
    Copy { devices: Arc<Devices>, piece: Piece, within: u64, segment: Segment },
    /// A part of a piece that goes abroad, or comes home.
    Abroad(End),
}

impl Memory for Place {
    fn region(&self) -> (&Segment, usize) {
        match self {
            Place::Buffer { guest, at, .. } => (guest.slots.stage().segment(), *at),
            Place::Arena { devices, at, .. } => (devices.arena.segment(), *at),
            Place::Copy { segment, .. } => (segment, 0),
            Place::Abroad(end) => end.region(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match self {
            Place::Buffer { guest, buffer, .. } => guest.slots.stage().give_back(*buffer),
            Place::Arena { devices, slot, .. } => devices.pins.unpin(*slot),
            Place::Copy { devices, piece, .. } => devices.pins.unpin(piece.slot),
            Place::Abroad(_) => {}
        }
    }
}

/// Who learns how a transfer of ours ended.
pub(crate) enum Token {
    /// Who waits for the answer.
    Answer(ReplyTo),
    /// The row of the file; the transfer itself, to be started again.
    Pushed { vnode: VnodeIndex, peer: DaemonIndex, range: Range, until: Instant },
    /// A piece that goes abroad, or comes home, of which this is a part.
    Journey { journey: Arc<Journey>, range: Range },
}

/// Our end of a transfer that a client asks for.
pub(crate) struct OwnEnd {
    kind: Kind,
    range: Range,
    memory: Place,
}

/// Our end of the transfer that an admitted request asks for, if it is one.
pub(crate) fn end_of(guest: &Arc<Guest>, request: &Request<'_>) -> Option<OwnEnd> {
    let (kind, range, buffer) = match *request {
        Request::Fetch { inode, chunk_log2, offset, length, buffer } => {
            (Kind::Fetch, Range { inode, chunk_log2, offset, length }, buffer)
        }
        Request::Store { inode, chunk_log2, offset, length, buffer, .. } => {
            (Kind::Store, Range { inode, chunk_log2, offset, length }, buffer)
        }
        _ => return None,
    };
    let at = guest.slots.stage().place(buffer, range.length as usize).ok()?;
    let memory = Place::Buffer { guest: Arc::clone(guest), buffer, at };
    Some(OwnEnd { kind, range, memory })
}

impl Shared {
    /// Starts a transfer; its end is the reply to `to`.
    pub(crate) fn start_transfer(&self, peer: DaemonIndex, end: OwnEnd, to: ReplyTo) {
        let OwnEnd { kind, range, memory } = end;
        let token = Token::Answer(to);
        self.bulk.start(Transfer { peer, kind, range, memory, until: None, token });
    }

    /// Starts what a client pushed with a buffer of its stage, unless that was done before. The
    /// client counted it in the file's row: it is counted out at its end, whatever that is.
    pub(crate) fn start_push(&self, guest: &Arc<Guest>, buffer: u8) {
        let stage = guest.slots.stage();
        let Some(pushed) = stage.begin_moving(buffer) else { return };
        let Pushed { inode, vnode, target, chunk_log2, offset, length, .. } = pushed;
        let range = Range { inode, chunk_log2, offset, length };
        let is_far = target != self.router.me && target.0 < self.router.map.daemon_count();
        match stage.place(buffer, length as usize) {
            Ok(at) if is_far && range.is_possible() => {
                let memory = Place::Buffer { guest: Arc::clone(guest), buffer, at };
                self.push(target, range, memory, vnode, Instant::now() + self.timeout);
            }
            _ => {
                stage.give_back(buffer);
                self.end_push(inode, vnode, Err(Errno::EINVAL));
            }
        }
    }

    /// Starts what a client pushed that is gone: it may have died before it said so, and nobody
    /// looks at its slots any more.
    pub(crate) fn start_pushes(&self, guest: &Arc<Guest>) {
        let stage = guest.slots.stage();
        let mut left: Vec<_> = (0..STAGE_BUFFER_COUNT as u8)
            .filter_map(|buffer| Some((stage.pushed_at(buffer)?, buffer)))
            .collect();
        left.sort_unstable();
        left.into_iter().for_each(|(_, buffer)| self.start_push(guest, buffer));
    }

    fn push(
        &self,
        peer: DaemonIndex,
        range: Range,
        memory: Place,
        vnode: VnodeIndex,
        until: Instant,
    ) {
        let token = Token::Pushed { vnode, peer, range, until };
        let (kind, until) = (Kind::Store, Some(until));
        self.bulk.start(Transfer { peer, kind, range, memory, until, token });
    }

    /// Counts a push out.
    fn end_push(&self, inode: Inode, vnode: VnodeIndex, outcome: Result<()>) {
        if let Err(errno) = outcome {
            tracing::warn!(inode = inode.0, %errno, "bytes did not arrive");
        }
        // A row that is another file's by now: somebody closed this one without waiting.
        if let Ok(row) = self.host.vnode(vnode)
            && row.inode.load(SeqCst) == inode.0
        {
            row.end_push(outcome);
        }
    }
}

/// What this daemon does at the ends of transfers.
pub(crate) struct BulkEnds {
    shared: Arc<Shared>,
    devices: Arc<Devices>,
    /// Pieces by file and start.
    known: Mutex<BTreeMap<(Inode, u64), Piece>>,
}

impl BulkEnds {
    pub(crate) const fn new(shared: Arc<Shared>, devices: Arc<Devices>) -> BulkEnds {
        BulkEnds { shared, devices, known: Mutex::new(BTreeMap::new()) }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<(Inode, u64), Piece>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part of `piece` that a transfer is for, pinned; `None` if the piece is another's now.
    fn place(&self, kind: Kind, range: &Range, piece: Piece) -> Option<Result<Place>> {
        self.devices.pins.pin(piece.slot);
        if self.devices.table.get(piece.slot) != Some((range.inode, piece)) {
            self.devices.pins.unpin(piece.slot);
            self.known().remove(&(range.inode, piece.start));
            return None;
        }
        let within = range.offset.saturating_sub(piece.start);
        let place = self.place_pinned(kind, range.length as usize, &piece, within);
        if place.is_err() {
            self.devices.pins.unpin(piece.slot);
        }
        Some(place)
    }

    fn place_pinned(&self, kind: Kind, length: usize, piece: &Piece, within: u64) -> Result<Place> {
        let devices = &self.devices;
        let target = devices.target();
        let is_direct = piece.tier == Piece::MEMORY
            && (kind == Kind::Store || target.is_defined(piece, within, length)?);
        if is_direct {
            devices.states.note_use(piece.slot, Use::Read);
            admit(piece, devices.arena.len())?;
            if kind == Kind::Store {
                target.define_range(&devices.client_pins.of_daemon(), piece, within, length)?;
            }
            let at = usize::try_from(piece.place + within).map_err(|_| Errno::EIO)?;
            devices.arena.prepare(at, length);
            return Ok(Place::Arena { devices: Arc::clone(devices), slot: piece.slot, at });
        }
        let segment = Segment::private(length)?;
        if kind == Kind::Fetch {
            let mut bytes = vec![0; length];
            target.read_pinned(piece, within, &mut bytes)?;
            segment.copy_in(0, &bytes)?;
        }
        Ok(Place::Copy { devices: Arc::clone(devices), piece: *piece, within, segment })
    }

    /// What a target said about the pieces of a range.
    fn found(&self, kind: Kind, range: &Range, list: &[u8]) -> Answer<Place> {
        let start = piece::at(range.offset, chunk_log2_of(range.chunk_log2)).start;
        let mut reader = Reader::new(list);
        while let Ok(piece) = Piece::take(&mut reader) {
            if piece.start == start {
                let mut known = self.known();
                if known.len() >= KNOWN_MAX {
                    known.clear();
                }
                known.insert((range.inode, start), piece);
                drop(known);
                return match self.place(kind, range, piece) {
                    Some(Ok(place)) => Answer::Memory(place),
                    Some(Err(errno)) => Answer::Refused(errno),
                    None => Answer::Busy(AGAIN_MICROS),
                };
            }
        }
        match kind {
            Kind::Fetch => Answer::Hole,
            Kind::Store => Answer::Refused(Errno::EIO),
        }
    }
}

impl Ends for BulkEnds {
    type Token = Token;
    type Memory = Place;
    /// The encoded reply of the target.
    type Word = Vec<u8>;

    fn visit(
        &self,
        from: DaemonIndex,
        kind: Kind,
        range: &Range,
        visit: Visit,
    ) -> Option<Answer<Place>> {
        let span = piece::at(range.offset, chunk_log2_of(range.chunk_log2));
        if range.end() > span.end() {
            tracing::warn!(peer = from.0, "a transfer over more than one piece");
            return Some(Answer::Refused(Errno::EINVAL));
        }
        let known = self.known().get(&(range.inode, span.start)).copied();
        match known.and_then(|piece| self.place(kind, range, piece)) {
            Some(Ok(place)) => return Some(Answer::Memory(place)),
            Some(Err(errno)) => return Some(Answer::Refused(errno)),
            None => {}
        }
        let request = Request::MapPieces {
            inode: range.inode,
            chunk_log2: range.chunk_log2,
            allocate: u8::from(kind == Kind::Store),
            offset: span.start,
            length: span.length(),
            ahead: 0,
        };
        let own = self.shared.own_header(ShardIndex(0));
        let header = Header { shard: Header::TARGET, daemon: self.shared.router.me.0, ..own };
        let bytes = encode_request(&header, &request);
        self.shared.hand_to_worker(WORKER_OF_TARGET, bytes, ReplyTo::Visit(visit));
        None
    }

    fn told(&self, kind: Kind, range: &Range, word: Vec<u8>) -> Answer<Place> {
        match Reply::decode(&mut Reader::new(&word)) {
            Ok(Reply::Pieces { pieces }) => self.found(kind, range, pieces),
            Ok(Reply::Refused { errno }) => Answer::Refused(errno),
            Ok(Reply::Busy { retry_micros }) => Answer::Busy(retry_micros),
            _ => Answer::Refused(Errno::EIO),
        }
    }

    fn stored(&self, range: &Range, memory: Place) -> Result<()> {
        let Place::Copy { piece, within, segment, .. } = &memory else { return Ok(()) };
        let mut bytes = vec![0; range.length as usize];
        segment.copy_out(0, &mut bytes)?;
        let pins = self.devices.client_pins.of_daemon();
        self.devices.target().write_pinned(&pins, piece, *within, &bytes)
    }

    fn ended(&self, token: Token, memory: Place, outcome: Outcome) {
        let token = match token {
            Token::Answer(token) => token,
            Token::Journey { journey, range } => {
                return self.shared.part_of_journey_ended(journey, range, memory, outcome);
            }
            Token::Pushed { vnode, peer, range, until } => {
                let outcome = match outcome {
                    Outcome::Moved(_) => Ok(()),
                    Outcome::Refused(errno) => Err(errno),
                    // The piece went away after the client had seen it, and its space is not free
                    // yet. That takes a moment.
                    Outcome::Busy(_) if Instant::now() < until => {
                        return self.shared.push(peer, range, memory, vnode, until);
                    }
                    // The client pushes it again, to the daemon that is started next.
                    Outcome::Lost if self.shared.stopping.load(SeqCst) => {
                        return std::mem::forget(memory);
                    }
                    Outcome::Busy(_) | Outcome::Lost => Err(Errno::EIO),
                };
                drop(memory);
                return self.shared.end_push(range.inode, vnode, outcome);
            }
        };
        if let Place::Buffer { guest, buffer, .. } = &memory {
            let count = if let Outcome::Moved(count) = outcome { Some(count) } else { None };
            guest.slots.stage().fetched(*buffer, count);
        }
        // The client has its buffer back before it is answered.
        drop(memory);
        match outcome {
            Outcome::Moved(count) => {
                self.shared.answer_with(token, &Reply::Number { value: u64::from(count) });
            }
            Outcome::Refused(errno) => self.shared.refuse(token, errno),
            Outcome::Busy(micros) => self.shared.busy(token, micros),
            Outcome::Lost => self.shared.busy(token, LOST_MICROS),
        }
    }
}
