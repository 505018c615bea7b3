//! Memory and two sides of a request, for all of these tests.

use shm::Segment;
use shm::doorbell::{DOORBELLS_BYTES, Doorbells};
use shm::session::{Interruptible, SESSION_BYTES, Session, Slot};
use wire::Errno;
use wire::limits::{SLOT_BYTES, SLOT_COUNT};

pub(crate) fn memory(length: usize) -> Segment {
    Segment::nameless(c"test", length).expect("nameless memory").0
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
        let mut pending = 0;
        let any = self.bells.take(0, |_| pending |= self.session.take_pending(0));
        let mut message = [0; SLOT_BYTES];
        for slot in (0..SLOT_COUNT).filter(|slot| pending & (1 << slot) != 0) {
            if let Some(length) = self.session.request(slot, &mut message) {
                message[..length].reverse();
                self.session.reply(slot, &message[..length]);
            }
        }
        if !any {
            self.bells.sleep(0, SECOND);
        }
        pending.count_ones()
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
        slot.wait(SECOND, Interruptible::No, || true).expect("answered");
        let answer = slot.read(<[u8]>::to_vec).expect("a reply");
        assert_eq!(answer, word.to_be_bytes());
    }
}
