//! Memory, two sides of a request, and a target with one extent, for all of these tests.

use rustix::fd::{AsFd, OwnedFd};
use shm::Segment;
use shm::extents::{
    Arena, ExtentStates, ExtentTable, HAZARDS_BYTES, HEADER_BYTES, HazardPointers, PAGE_GROUP_LOG2,
    PageSums, STATE_BYTES, SessionHazards, Target, page_groups_bytes,
};
use shm::session::{
    DOORBELLS_BYTES, Doorbells, Interruptible, SESSION_BYTES, Session, Sleep, Slot,
};
use shm::sync::model;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use wire::errno::Result;
use wire::limits::{SLOT_BYTES, SLOT_COUNT};
use wire::reply::Extent;
use wire::{Errno, Inode};

pub(crate) fn memory(length: usize) -> Segment {
    Segment::nameless(c"test", length).expect("nameless memory").0
}

/// A thread that works on the shared value.
pub(crate) fn spawn<S: Send + Sync + 'static, T: Send + 'static>(
    all: &Arc<S>,
    work: impl FnOnce(&S) -> T + Send + 'static,
) -> model::Thread<T> {
    let all = Arc::clone(all);
    model::spawn(move || work(&all))
}

/// Waits for threads that are not killed.
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

    /// Answers pending requests with their bytes reversed; sleeps if there was no ring. Returns the
    /// number of requests.
    pub(crate) fn answer(&self) -> u32 {
        let (any, count) = self.look();
        if !any {
            self.bells.sleep(0, SECOND, Sleep::Deep, || false);
        }
        count
    }

    /// Answers pending requests. Returns whether there was a ring, and the number of requests.
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

/// A target with space for two extents, and the hazard pointers of its clients.
pub(crate) struct OneTarget {
    pub(crate) arena: Arena,
    pub(crate) table: ExtentTable,
    pub(crate) states: ExtentStates,
    hazards: HazardPointers,
    ssd: OwnedFd,
    extent: Extent,
    /// Offset in the extent of the bytes that tests use.
    start: usize,
}

/// Two pages of 4096 bytes.
pub(crate) const LENGTH: usize = 2 * PAGE;
pub(crate) const PAGE: usize = 4096;
pub(crate) const EXTENT: Extent =
    Extent { start: 0, slot: 0, location: 0, length_log2: 13, tier: Extent::MEMORY };
/// Two page groups.
const LONG: Extent = Extent { length_log2: PAGE_GROUP_LOG2 + 1, ..EXTENT };
/// The last page of the first group and the first of the second.
const LONG_START: usize = (1 << PAGE_GROUP_LOG2) - PAGE;
pub(crate) const FILE: Inode = Inode(5);

impl OneTarget {
    /// The extent's space holds bytes 0xee of some other file; `valid` pages are valid.
    pub(crate) fn new(valid: u64) -> OneTarget {
        let all = OneTarget::with(EXTENT, 0);
        model::uninterrupted(|| {
            all.states.reset(&EXTENT, valid).expect("slot 0");
            all.table.publish(FILE, &EXTENT).expect("slot 0");
            all.hazards.note_session(0).expect("memory");
        });
        all
    }

    /// The same, and the two pages are in two groups of a long extent.
    pub(crate) fn long(valid: u64) -> OneTarget {
        let all = OneTarget::with(LONG, LONG_START);
        model::uninterrupted(|| {
            all.states.reset(&LONG, 0).expect("slot 0");
            for (group, bits) in [(0, (valid & 1) << 63), (1, valid >> 1)] {
                let page_bits = all.states.page_bits(&LONG, group).expect("a group");
                page_bits.valid.store(bits, SeqCst);
                page_bits.claimed.store(bits, SeqCst);
            }
            all.table.publish(FILE, &LONG).expect("slot 0");
        });
        all
    }

    fn with(extent: Extent, start: usize) -> OneTarget {
        let page_groups = memory(page_groups_bytes(extent.length()) as usize);
        let hazards = HazardPointers::new(memory(HAZARDS_BYTES)).expect("long enough");
        model::uninterrupted(|| hazards.note_session(0).expect("memory"));
        let all = OneTarget {
            arena: Arena::new(memory(extent.length() as usize)),
            table: ExtentTable::new(memory(HEADER_BYTES * 2)),
            states: ExtentStates::new(
                memory(STATE_BYTES * 2),
                page_groups,
                PageSums::new(memory(4096)),
            ),
            hazards,
            ssd: Segment::nameless(c"ssd", LENGTH).expect("nameless memory").1,
            extent,
            start,
        };
        model::uninterrupted(|| all.arena.copy_in(start as u64, &[0xee; LENGTH]).expect("fits"));
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

    /// The hazard pointers of a client.
    pub(crate) fn hazards(&self) -> SessionHazards<'_> {
        self.hazards.of_session(0, SECOND)
    }

    /// True if a thread protects the extent.
    pub(crate) fn is_protected(&self) -> bool {
        self.hazards.is_protected(0, EXTENT.slot)
    }

    /// Sets bytes `at ..` of the two pages to `length` times `byte`, as a client writes.
    pub(crate) fn write(&self, at: usize, length: usize, byte: u8) {
        assert_eq!(self.try_write(at, length, byte), Ok(()));
    }

    /// As `write`, where a thread may be stopped for too long.
    pub(crate) fn try_write(&self, at: usize, length: usize, byte: u8) -> Result<()> {
        let (bytes, at) = (vec![byte; length], (self.start + at) as u64);
        let done = self.target().write(&self.hazards(), FILE, &self.extent, at, &bytes)?;
        assert_eq!(done, Ok(()), "the extent stays");
        Ok(())
    }

    /// A successor died and left its number, which is that of `thread` by now.
    pub(crate) fn leave_successor(&self, thread: u32) {
        let successor = self.states.successor(self.extent.slot).expect("slot 0");
        successor.store(thread, SeqCst);
    }

    /// Zeroes `length` bytes of the two pages, as a daemon truncates a file.
    pub(crate) fn zero(&self, at: usize, length: usize) {
        let at = (self.start + at) as u64;
        self.target().zero_stable(&self.extent, at, length as u64).expect("zeroed");
    }

    /// Both pages, as their file has them.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![1; LENGTH];
        self.target().read_stable(&self.extent, self.start as u64, &mut bytes).expect("read");
        bytes
    }
}
