//! Pieces abroad (`data::abroad`): their bytes on the way to the targets that keep them and back, and
//! what those are told to let go of.
//!
//! Bytes go as those of any transfer between daemons (`bulk`), straight from the arena or into a place of
//! it that nobody sees yet, in parts as long as those of clients.

use crate::below::put;
use crate::inbox::{Note, PartAnswer};
use crate::reply::{LOST_MICROS, ReplyTo};
use crate::shared::{Guest, Shared, encode_request};
use crate::sink::Copy;
use crate::target::{Devices, TargetLoop, micros_until};
use data::Input;
use data::abroad::keeper;
use net::bulk::{Kind, Outcome, Range, Transfer};
use placement::map::WORKER_OF_TARGET;
use placement::piece;
use shm::Segment;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::errno::{Errno, Result};
use wire::limits::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN, STAGE_BUFFER_BYTES};
use wire::reply::Piece;
use wire::{DaemonIndex, Header, Inode, Request, ShardIndex};

/// How long a keeper may take for a piece at most, so that one that is gone does not hold up what is to
/// leave memory.
const KEEP_TIME: Duration = Duration::from_secs(5);
/// Pauses before a keeper is told again to let go: first, longest.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// See `PAUSE_MIN`.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A number that is larger than any that this target gave to pieces abroad before.
pub(crate) fn first_number() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0))
}

/// Who learns that all parts are there.
enum Whom {
    /// The target, which asked for a copy.
    Move,
    /// Who reads: the bytes that came.
    Reader(Mutex<Vec<u8>>),
}

/// Bytes of one piece on their way.
pub(crate) struct Journey {
    ticket: u64,
    kind: Kind,
    peer: DaemonIndex,
    until: Instant,
    whom: Whom,
    /// The piece abroad.
    piece: Piece,
    /// Where bytes that come belong, if not straight into the arena.
    to: Option<(Arc<Devices>, Piece)>,
    /// The first offset.
    first: u64,
    parts_left: AtomicUsize,
    failed: Mutex<Option<Errno>>,
}

/// Memory at this end of one part.
pub(crate) enum End {
    /// A part of the arena, whose slot is pinned.
    Arena { devices: Arc<Devices>, slot: u32, at: usize },
    /// Memory of its own.
    Own(Segment),
}

impl End {
    pub(crate) fn region(&self) -> (&Segment, usize) {
        match self {
            End::Arena { devices, at, .. } => (devices.arena.segment(), *at),
            End::Own(segment) => (segment, 0),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let End::Arena { devices, slot, .. } = self {
            devices.pins.unpin(*slot);
        }
    }
}

/// A chunk size by which a file is cut so that this is one of its pieces.
fn chunk_of(piece: &Piece) -> Option<u8> {
    let is_cut = |chunk: &u8| {
        let span = piece::at(piece.start, *chunk);
        (span.start, span.length_log2) == (piece.start, piece.length_log2)
    };
    (CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX).find(is_cut)
}

impl Journey {
    /// The end of one part, or why it failed.
    pub(crate) fn part_ended(&self, shared: &Shared, part: Result<()>) {
        if let Err(errno) = part {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert(errno);
        }
        if self.parts_left.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let ticket = self.ticket;
        let note = match &self.whom {
            Whom::Move => Note::Copied { ticket, outcome: failed.map_or(Ok(()), Err) },
            Whom::Reader(bytes) => {
                let bytes =
                    std::mem::take(&mut *bytes.lock().unwrap_or_else(PoisonError::into_inner));
                let outcome = failed.map_or(Ok(bytes), Err);
                Note::ReadAbroad { ticket, piece: self.piece, outcome }
            }
        };
        shared.tell(WORKER_OF_TARGET, note);
    }

    /// What came is where it belongs.
    fn take(&self, range: &Range, memory: &End) -> Result<()> {
        let End::Own(segment) = memory else { return Ok(()) };
        let mut came = vec![0; range.length as usize];
        segment.copy_out(0, &mut came)?;
        let at = range.offset.saturating_sub(self.first);
        match (&self.whom, &self.to) {
            (Whom::Reader(bytes), _) => {
                let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
                let at = usize::try_from(at).map_err(|_| Errno::EIO)?;
                let place = bytes.get_mut(at..at + came.len()).ok_or(Errno::EIO)?;
                place.copy_from_slice(&came);
                Ok(())
            }
            (Whom::Move, Some((devices, piece))) => put(devices, piece, at, &came),
            (Whom::Move, None) => Ok(()),
        }
    }
}

impl Shared {
    /// A transfer of a part ended.
    pub(crate) fn part_of_journey_ended(
        &self,
        journey: Arc<Journey>,
        range: Range,
        memory: crate::bulk::Place,
        outcome: Outcome,
    ) {
        let part = match outcome {
            // A keeper without the piece: all that it had came there as a whole.
            Outcome::Moved(count) if journey.kind == Kind::Fetch && count != range.length => {
                Err(Errno::EIO)
            }
            Outcome::Moved(_) => match (&journey.kind, &memory) {
                (Kind::Fetch, crate::bulk::Place::Abroad(end)) => journey.take(&range, end),
                _ => Ok(()),
            },
            Outcome::Refused(errno) => Err(errno),
            Outcome::Busy(_) if Instant::now() < journey.until => {
                return self.start_part(journey, range, memory);
            }
            Outcome::Busy(_) | Outcome::Lost => Err(Errno::EIO),
        };
        drop(memory);
        journey.part_ended(self, part);
    }

    fn start_part(&self, journey: Arc<Journey>, range: Range, memory: crate::bulk::Place) {
        let (peer, kind, until) = (journey.peer, journey.kind, Some(journey.until));
        let token = crate::bulk::Token::Journey { journey, range };
        net::bulk::Fabric::start(&self.bulk, Transfer { peer, kind, range, memory, until, token });
    }

    /// Sends the parts of `length` bytes from `first` on; `end` makes this end of each.
    fn start_journey(
        &self,
        journey: Journey,
        (inode, chunk_log2): (Inode, u8),
        length: u64,
        end: impl Fn(u64, usize) -> Result<End>,
    ) {
        let step = STAGE_BUFFER_BYTES as u64;
        let first = journey.first;
        let journey = Arc::new(journey);
        for from in (0..length).step_by(STAGE_BUFFER_BYTES) {
            let part = (length - from).min(step) as u32;
            let range = Range { inode, chunk_log2, offset: first + from, length: part };
            match end(from, part as usize) {
                Ok(end) => {
                    let memory = crate::bulk::Place::Abroad(end);
                    self.start_part(Arc::clone(&journey), range, memory);
                }
                Err(errno) => journey.part_ended(self, Err(errno)),
            }
        }
    }
}

/// What keepers are to let go of.
#[derive(Default)]
pub(crate) struct Dismissals {
    /// By slot: the place, and the next pause if its keeper must be told again.
    all: BTreeMap<u32, (u64, Duration)>,
    /// Whose keepers are to be told, and when; those of the others were.
    due: BTreeSet<(Instant, u32)>,
}

impl TargetLoop {
    /// Moves the bytes of a piece abroad, or home.
    pub(crate) fn travel(&mut self, shared: &Shared, Copy { ticket, from, to }: Copy) {
        let goes = to.tier == Piece::ABROAD;
        let (there, here) = if goes { (to, from) } else { (from, to) };
        let Some(chunk_log2) = chunk_of(&there) else {
            let outcome = Err(Errno::EIO);
            return shared.tell(WORKER_OF_TARGET, Note::Copied { ticket, outcome });
        };
        let (peer, inode) = keeper(shared.router.me, &there);
        let in_arena = here.tier == Piece::MEMORY;
        let wait = if goes { KEEP_TIME.min(shared.timeout) } else { shared.timeout };
        let journey = Journey {
            ticket,
            kind: if goes { Kind::Store } else { Kind::Fetch },
            peer,
            until: Instant::now() + wait,
            whom: Whom::Move,
            piece: there,
            to: (!goes && !in_arena).then(|| (Arc::clone(&self.devices), here)),
            first: there.start,
            parts_left: AtomicUsize::new(parts(there.length())),
            failed: Mutex::new(None),
        };
        let devices = &self.devices;
        shared.start_journey(journey, (inode, chunk_log2), there.length(), |from, length| {
            let target = devices.target();
            let is_whole = !goes || target.is_defined(&here, from, length)?;
            if in_arena && is_whole {
                let at = usize::try_from(here.place + from).map_err(|_| Errno::EIO)?;
                shm::pieces::admit(&here, devices.arena.len())?;
                devices.pins.pin(here.slot);
                return Ok(End::Arena { devices: Arc::clone(devices), slot: here.slot, at });
            }
            let segment = Segment::private(length)?;
            if goes {
                let mut bytes = vec![0; length];
                target.read_pinned(&here, from, &mut bytes)?;
                segment.copy_in(0, &bytes)?;
            }
            Ok(End::Own(segment))
        });
    }

    /// Answers a request with bytes of a piece abroad.
    pub(crate) fn read_abroad(
        &mut self,
        shared: &Shared,
        ticket: u64,
        piece: &Piece,
        (within, length): (u64, u32),
    ) {
        let Some(chunk_log2) = chunk_of(piece) else {
            return self.answer_read(shared, ticket, Err(Errno::EIO));
        };
        let (peer, inode) = keeper(shared.router.me, piece);
        let journey = Journey {
            ticket,
            kind: Kind::Fetch,
            peer,
            until: Instant::now() + shared.timeout,
            whom: Whom::Reader(Mutex::new(vec![0; length as usize])),
            piece: *piece,
            to: None,
            first: piece.start + within,
            parts_left: AtomicUsize::new(parts(length.into())),
            failed: Mutex::new(None),
        };
        shared.start_journey(journey, (inode, chunk_log2), length.into(), |_, length| {
            Segment::private(length).map(End::Own)
        });
    }

    /// Bytes of a piece abroad came, or not: it may have come home meanwhile, and who reads asks again.
    pub(crate) fn abroad_was_read(
        &mut self,
        shared: &Shared,
        ticket: u64,
        piece: &Piece,
        outcome: Result<Vec<u8>>,
    ) {
        match self.pending.get(&ticket) {
            Some(_) if outcome.is_err() && !self.target.is_abroad(piece) => {
                if let Some(pending) = self.pending.remove(&ticket) {
                    shared.busy(pending.to, LOST_MICROS);
                }
            }
            _ => self.answer_read(shared, ticket, outcome),
        }
    }

    /// A keeper is to let go of a place.
    pub(crate) fn begin_dismissal(&mut self, slot: u32, place: u64) {
        self.dismissals.all.insert(slot, (place, PAUSE_MIN));
        self.dismissals.due.insert((Instant::now(), slot));
    }

    /// A keeper answered.
    pub(crate) fn dismissal_answered(
        &mut self,
        shared: &Shared,
        guests: &[Option<Arc<Guest>>],
        slot: u32,
        answer: PartAnswer,
    ) {
        let Dismissals { all, due } = &mut self.dismissals;
        let Some((place, pause)) = all.get_mut(&slot) else { return };
        let micros = match answer {
            PartAnswer::Ended(Ok(())) => {
                all.remove(&slot);
                return self.step(shared, guests, Input::Dismissed { slot });
            }
            PartAnswer::Again(micros) => Duration::from_micros(micros),
            PartAnswer::Ended(Err(errno)) => {
                let keeper = keeper_of(shared, *place).0;
                tracing::warn!(keeper = keeper.0, %errno, "a target does not let go of a piece");
                PAUSE_MAX
            }
        };
        due.insert((Instant::now() + micros.clamp(*pause, PAUSE_MAX), slot));
        *pause = (*pause * 2).min(PAUSE_MAX);
    }

    /// Tells keepers what is due. Microseconds until something will be.
    pub(crate) fn keep_dismissals(&mut self, shared: &Shared) -> Option<u64> {
        let moved = self.target.bytes_abroad();
        shared.space.bytes_abroad.store(moved.abroad, Relaxed);
        shared.space.bytes_kept.store(moved.kept, Relaxed);
        let Dismissals { all, due } = &mut self.dismissals;
        let now = Instant::now();
        while let Some(&(at, slot)) = due.first() {
            if at > now {
                return Some(micros_until(at));
            }
            due.pop_first();
            let Some(&(place, _)) = all.get(&slot) else { continue };
            let (keeper, inode) = keeper_of(shared, place);
            let own = shared.own_header(ShardIndex(0));
            let header = Header { shard: Header::TARGET, daemon: keeper.0, ..own };
            let inodes = inode.0.to_le_bytes();
            let bytes = encode_request(&header, &Request::Remove { inodes: &inodes });
            shared.hand_to_peer(keeper, &bytes, ReplyTo::Dismissed { slot });
        }
        None
    }
}

fn keeper_of(shared: &Shared, place: u64) -> (DaemonIndex, Inode) {
    let piece = Piece { start: 0, slot: 0, place, length_log2: 0, tier: Piece::ABROAD };
    keeper(shared.router.me, &piece)
}

fn parts(length: u64) -> usize {
    length.div_ceil(STAGE_BUFFER_BYTES as u64) as usize
}
