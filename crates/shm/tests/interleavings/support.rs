//! Memory, two sides of a request, and a target with one piece, for all of these tests.

use rustix::fd::{AsFd, OwnedFd};
use shm::Segment;
use shm::arena::Arena;
use shm::doorbell::{DOORBELLS_BYTES, Doorbells, Sleep};
use shm::piece_io::Target;
use shm::pieces::{
    HEADER_BYTES, PieceStates, PieceTable, STATE_BYTES, STRETCH_LOG2, stretches_bytes,
};
use shm::pins::{PINS_BYTES, Pins, SessionPins};
use shm::session::{Interruptible, SESSION_BYTES, Session, Slot};
use shm::sync::model;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use wire::errno::Result;
use wire::limits::{SLOT_BYTES, SLOT_COUNT};
use wire::reply::Piece;
use wire::{Errno, Inode};

pub(crate) fn memory(length: usize) -> Segment {
    Segment::nameless(c"test", length).expect("nameless memory").0
}

/// A thread that works with what all share.
pub(crate) fn spawn<S: Send + Sync + 'static, T: Send + 'static>(
    all: &Arc<S>,
    work: impl FnOnce(&S) -> T + Send + 'static,
) -> model::Thread<T> {
    let all = Arc::clone(all);
    model::spawn(move || work(&all))
}

/// Waits for threads that nobody kills.
pub(crate) fn join<T>(threads: impl IntoIterator<Item = model::Thread<T>>) {
    threads.into_iter().for_each(|thread| drop(thread.join().expect("not killed")));
}

/// A daemon's bell and the session of one client.
pub(crate) struct Both {
    pub(crate) bells: Doorbells,
    pub(crate) session: Session,
}

pub(crate) const SECOND: u64 = 1_000_000;

impl Both {
    pub(crate) fn new() -> Both {
        Both {
            bells: Doorbells::new(memory(DOORBELLS_BYTES)).expect("long enough"),
            session: Session::new(memory(SESSION_BYTES)).expect("long enough"),
        }
    }

    /// Answers what is there with its bytes reversed; sleeps if nobody rang. Says how many requests
    /// it saw.
    pub(crate) fn answer(&self) -> u32 {
        let (any, count) = self.look();
        if !any {
            self.bells.sleep(0, SECOND, Sleep::Deep, || false);
        }
        count
    }

    /// Answers what is there. Says whether anybody rang, and how many requests it saw.
    pub(crate) fn look(&self) -> (bool, u32) {
        let mut pending = 0;
        let any = self.bells.take(0, |_| pending |= self.session.take_pending(0));
        let mut message = [0; SLOT_BYTES];
        for slot in (0..SLOT_COUNT).filter(|slot| pending & (1 << slot) != 0) {
            if let Some(length) = self.session.request(slot, &mut message) {
                message[..length].reverse();
                self.session.reply(slot, &message[..length]);
            }
        }
        (any, pending.count_ones())
    }

    /// A worker that answers `count` requests.
    pub(crate) fn serve(&self, count: u32) {
        let mut done = 0;
        while done < count {
            done += self.answer();
        }
    }

    /// Puts `word` into a slot of its own.
    pub(crate) fn prepare(&self, word: u64) -> Slot<'_> {
        let mut slot = self.session.claim(SECOND).expect("a slot");
        let written = slot.write(|to| {
            to[..8].copy_from_slice(&word.to_le_bytes());
            Ok::<usize, Errno>(8)
        });
        written.expect("fits");
        slot
    }

    /// One request and its answer.
    pub(crate) fn ask(&self, word: u64) {
        let mut slot = self.prepare(word);
        slot.submit(0, &self.bells, 5).expect("worker 0");
        // The daemon lives as long as the model does.
        slot.wait(SECOND, Interruptible::No, || true).expect("answered");
        let answer = slot.read(<[u8]>::to_vec).expect("a reply");
        assert_eq!(answer, word.to_be_bytes());
    }
}

/// A target of two pieces' room, and the pins of its clients.
pub(crate) struct OneTarget {
    pub(crate) arena: Arena,
    pub(crate) table: PieceTable,
    pub(crate) states: PieceStates,
    pins: Pins,
    ssd: OwnedFd,
    piece: Piece,
    /// Where in the piece the bytes are that tests are about.
    start: usize,
}

/// Two granules of 4096 bytes.
pub(crate) const LENGTH: usize = 2 * GRANULE;
pub(crate) const GRANULE: usize = 4096;
pub(crate) const PIECE: Piece =
    Piece { start: 0, slot: 0, place: 0, length_log2: 13, tier: Piece::MEMORY };
/// Of two stretches.
const LONG: Piece = Piece { length_log2: STRETCH_LOG2 + 1, ..PIECE };
/// The last granule of the first and the first of the second.
const LONG_START: usize = (1 << STRETCH_LOG2) - GRANULE;
pub(crate) const FILE: Inode = Inode(5);

impl OneTarget {
    /// The piece's space holds bytes 0xee of some other file; `valid` granules are defined.
    pub(crate) fn new(valid: u64) -> OneTarget {
        let all = OneTarget::with(PIECE, 0);
        model::quietly(|| {
            all.states.reset(&PIECE, valid).expect("slot 0");
            all.table.publish(FILE, &PIECE).expect("slot 0");
            all.pins.note_session(0);
        });
        all
    }

    /// The same, and the two granules are of two stretches of a long piece.
    pub(crate) fn long(valid: u64) -> OneTarget {
        let all = OneTarget::with(LONG, LONG_START);
        model::quietly(|| {
            all.states.reset(&LONG, 0).expect("slot 0");
            for (stretch, bits) in [(0, (valid & 1) << 63), (1, valid >> 1)] {
                let granules = all.states.granules(&LONG, stretch).expect("a stretch");
                granules.valid.store(bits, SeqCst);
                granules.claimed.store(bits, SeqCst);
            }
            all.table.publish(FILE, &LONG).expect("slot 0");
        });
        all
    }

    fn with(piece: Piece, start: usize) -> OneTarget {
        let stretches = memory(stretches_bytes(piece.length()) as usize);
        let pins = Pins::new(memory(PINS_BYTES)).expect("long enough");
        model::quietly(|| pins.note_session(0));
        let all = OneTarget {
            arena: Arena::new(memory(piece.length() as usize)),
            table: PieceTable::new(memory(HEADER_BYTES * 2)),
            states: PieceStates::new(memory(STATE_BYTES * 2), stretches),
            pins,
            ssd: Segment::nameless(c"ssd", LENGTH).expect("nameless memory").1,
            piece,
            start,
        };
        model::quietly(|| all.arena.copy_in(start as u64, &[0xee; LENGTH]).expect("fits"));
        all
    }

    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            arena: &self.arena,
            ssd: self.ssd.as_fd(),
            table: &self.table,
            states: &self.states,
        }
    }

    /// What a client pins with.
    pub(crate) fn pins(&self) -> SessionPins<'_> {
        self.pins.of_session(0, SECOND)
    }

    /// True if somebody pins the piece.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.is_pinned(0, PIECE.slot)
    }

    /// Bytes `at ..` of the two granules become `length` times `byte`, as a client writes.
    pub(crate) fn write(&self, at: usize, length: usize, byte: u8) {
        assert_eq!(self.try_write(at, length, byte), Ok(()));
    }

    /// As `write`, where somebody may stand still for too long.
    pub(crate) fn try_write(&self, at: usize, length: usize, byte: u8) -> Result<()> {
        let (bytes, at) = (vec![byte; length], (self.start + at) as u64);
        let done = self.target().write(&self.pins(), FILE, &self.piece, at, &bytes)?;
        assert_eq!(done, Ok(()), "the piece stays");
        Ok(())
    }

    /// `length` bytes of the two granules become zeros, as a daemon cuts a file.
    pub(crate) fn zero(&self, at: usize, length: usize) {
        let at = (self.start + at) as u64;
        self.target().zero_pinned(&self.piece, at, length as u64).expect("zeroed");
    }

    /// Both granules, as their file has them.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![1; LENGTH];
        self.target().read_pinned(&self.piece, self.start as u64, &mut bytes).expect("read");
        bytes
    }
}
