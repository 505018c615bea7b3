//! Hazard pointers: the extents of a target that clients copy from or into right now. One named
//! segment for each daemon, which outlives it: a daemon that takes over sees the copies in progress
//! from before its predecessor was killed, however long a client is stopped in one.
//!
//! Layout: a page whose first u32 is the highest session number ever plus one; then `HAZARD_COUNT`
//! slots of 64 bytes of the daemon itself, and as many for each session:
//!
//!   0   pointer u64   thread << 32 | slot of the extent + 1; 0: free
//!   8   claims  u64   pages of the extent that the thread fills now or is about to (`extents::io`)
//!   16  group   u64   the page group of the extent that they are in
//!
//! A copier sets its hazard pointer and then reads the extent's header; a daemon that wants to
//! reuse the space hides the header and then scans the hazard pointers. One of the two sees the
//! other.
//!
//! Invariants:
//!  1. A slot is taken by compare and exchange and freed by its owner. So clients of an earlier
//!     daemon may use the slots of a session together with those of a later one that has the same
//!     session number.
//!  2. Nobody else touches a slot of a living thread. A slot of a dead thread protects nothing and
//!     claims nothing.
//!  3. A thread claims the pages it fills in its slot from before it claims them in the extent
//!     until they are valid there.

use crate::kept::KeptFile;
use crate::segment::{Access, Segment, SharedEntry};
use crate::session::{SESSION_COUNT_MAX, SESSION_COUNT_PRESENT};
use crate::sync::{AtomicU64, fence};
use crate::wait::{self, Backoff, Next};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};
use rustix::fd::{BorrowedFd, OwnedFd};
use wire::errno::{Errno, Result};

/// Concurrent copies of one session.
pub const HAZARD_COUNT: usize = 64;
/// A cache line each: threads of a program copy concurrently.
const HAZARD_SLOT_BYTES: usize = 64;
const HEADER: usize = 4096;
/// Length of the slots of the daemon, or of one session.
const BLOCK: usize = HAZARD_COUNT * HAZARD_SLOT_BYTES;
/// A client maps a multiple of this many blocks.
const BLOCKS_MAPPED_ALIKE: usize = 64;

const _: () = assert!(HEADER.is_multiple_of(4096) && BLOCK.is_multiple_of(4096));

/// Length of the segment; memory is touched as it is used.
pub const HAZARDS_BYTES: usize = HEADER + (1 + SESSION_COUNT_MAX) * BLOCK;

/// Maximum wait of a daemon for a client that fills a page. The daemon serves others, too.
const DAEMON_MICROS_MAX: u64 = 1_000_000;

/// The fields of a slot.
#[repr(C)]
struct HazardSlot {
    pointer: AtomicU64,
    claims: AtomicU64,
    group: AtomicU64,
}

// SAFETY: atomics in the order of the table above. WHY: each copy of a file's bytes takes one.
unsafe impl SharedEntry for HazardSlot {}

/// The mapped segment.
pub struct HazardPointers {
    segment: Segment,
    /// Blocks that are mapped.
    blocks: usize,
    /// The file, where later blocks are not mapped.
    file: Option<KeptFile>,
}

/// Value of a hazard pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HazardPointer(u64);

impl HazardPointer {
    fn new(thread: u32, extent: u32) -> Result<HazardPointer> {
        let extent = extent.checked_add(1).ok_or(Errno::EINVAL)?;
        Ok(HazardPointer(u64::from(thread) << 32 | u64::from(extent)))
    }

    const fn extent(self) -> Option<u32> {
        (self.0 as u32).checked_sub(1)
    }

    const fn thread(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn is_of_dead_thread(self) -> bool {
        wait::is_dead(self.thread())
    }
}

impl HazardPointers {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.file.iter().for_each(KeptFile::give_up);
        self.segment.detach();
    }

    /// Takes a mapping. A fresh one, all zeros, is valid as it is.
    ///
    /// # Errors
    /// `EINVAL` if it is too short.
    pub fn new(segment: Segment) -> Result<HazardPointers> {
        if segment.len() < HAZARDS_BYTES {
            return Err(Errno::EINVAL);
        }
        Ok(HazardPointers { segment, blocks: 1 + SESSION_COUNT_MAX, file: None })
    }

    /// Maps what a client of `session` needs of the file: the slots of the daemon and of the sessions
    /// up to its own. Those of later sessions are mapped for as long as they are read.
    ///
    /// # Errors
    /// `EINVAL` if the file is too short or there is no such session; errors of the operating system.
    pub fn of_client(file: OwnedFd, session: u16) -> Result<HazardPointers> {
        let blocks = (2 + usize::from(session)).next_multiple_of(BLOCKS_MAPPED_ALIKE);
        let blocks = blocks.min(1 + SESSION_COUNT_MAX);
        let segment = Segment::map(&file, HEADER + blocks * BLOCK, Access::ReadWrite)?;
        Ok(HazardPointers { segment, blocks, file: Some(KeptFile::new(file)) })
    }

    /// The file, if this process keeps it.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(KeptFile::descriptor)
    }

    /// A slot of a block: block 0 is the daemon's, the others the sessions'.
    #[inline]
    fn slot(&self, block: usize, slot: usize) -> Result<&HazardSlot> {
        if block >= self.blocks {
            return Err(Errno::EINVAL);
        }
        self.segment.entry(HEADER + block * BLOCK + slot % HAZARD_COUNT * HAZARD_SLOT_BYTES)
    }

    /// The hazard pointers of a client of `session`. While all slots are taken it waits, at most
    /// `timeout_micros`.
    #[must_use]
    pub const fn of_session(&self, session: u16, timeout_micros: u64) -> SessionHazards<'_> {
        SessionHazards { hazards: self, block: 1 + session as usize, timeout_micros }
    }

    /// Pages in a group of `extent` that living threads fill: those of other threads, and those
    /// that the calling thread was filling when a signal arrived whose handler holds `own`.
    fn claims(&self, extent: u32, group: u64, own: &HazardGuard<'_>) -> Claims {
        let me = wait::thread_id();
        let mut found = Claims { others: 0, interrupted: 0 };
        let mut look = |slot: &HazardSlot| {
            let word = HazardPointer(slot.pointer.load(SeqCst));
            if word.extent() != Some(extent) || core::ptr::eq(slot, own.slot) {
                return;
            }
            // The slot of the thread that has the claim seen by the caller does not change until the
            // page is valid. Of other slots the two words may be of two moments: then the caller
            // waits in vain.
            let is_there = slot.group.load(SeqCst) == group;
            let claims = slot.claims.load(SeqCst);
            if !is_there || claims == 0 || word.is_of_dead_thread() {
                return;
            }
            if word.thread() == me {
                found.interrupted |= claims;
            } else {
                found.others |= claims;
            }
        };
        if self.each_slot(&mut look).is_err() {
            // Without room to look: whatever is claimed is somebody's.
            found.others = u64::MAX;
        }
        found
    }

    /// True if a living thread with this number protects `extent` by another slot than `own`.
    fn is_protected_by(&self, thread: u32, extent: u32, own: &HazardGuard<'_>) -> bool {
        let mut is_found = false;
        let mut look = |slot: &HazardSlot| {
            let word = HazardPointer(slot.pointer.load(SeqCst));
            is_found |= word.thread() == thread
                && word.extent() == Some(extent)
                && !core::ptr::eq(slot, own.slot);
        };
        // Without room to look it may.
        let is_complete = self.each_slot(&mut look).is_ok();
        (is_found || !is_complete) && !wait::is_dead(thread)
    }

    /// Calls `look` with the slots of the daemon and of all sessions.
    fn each_slot(&self, look: &mut dyn FnMut(&HazardSlot)) -> Result<()> {
        let count = 1 + self.sessions_most();
        for block in 0..count.min(self.blocks) {
            (0..HAZARD_COUNT).filter_map(|slot| self.slot(block, slot).ok()).for_each(&mut *look);
        }
        self.each_beyond(count, look)
    }

    /// Calls `look` with the slots of the first `count` blocks that are not mapped.
    fn each_beyond(&self, count: usize, look: &mut dyn FnMut(&HazardSlot)) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| count > self.blocks) else { return Ok(()) };
        let (start, length) = (HEADER + self.blocks * BLOCK, (count - self.blocks) * BLOCK);
        let beyond = Segment::map_part(file.get()?, start as u64, length, Access::ReadWrite)?;
        (0..length).step_by(HAZARD_SLOT_BYTES).try_for_each(|at| {
            look(beyond.entry(at)?);
            Ok(())
        })
    }

    /// Highest session number ever plus one: slots beyond are not in use.
    fn sessions_most(&self) -> usize {
        let most = self.segment.word32(0).map_or(0, |most| most.load(SeqCst));
        (most as usize).min(SESSION_COUNT_MAX)
    }

    /// Records that a session with this number exists, before it sets hazard pointers.
    ///
    /// # Errors
    /// `ENOSPC` if there is no memory for its slots.
    pub fn note_session(&self, session: u16) -> Result<()> {
        let most = self.segment.word32(0)?;
        // Those before it are read, too, and may have had no client.
        let blocks = 2 + usize::from(session).min(SESSION_COUNT_MAX - 1);
        let first = (most.load(SeqCst) as usize).min(blocks - 1);
        self.segment.reserve(HEADER + first * BLOCK, (blocks - first) * BLOCK)?;
        most.fetch_max(u32::from(session) + 1, SeqCst);
        Ok(())
    }

    // ---- the daemon's side ----

    /// As `new`, with memory for the header, the daemon's own slots, and those of the first
    /// sessions.
    ///
    /// # Errors
    /// As `new`; `ENOSPC` if there is no memory for them.
    pub fn reserved(segment: Segment) -> Result<HazardPointers> {
        segment.reserve(0, HEADER + (1 + SESSION_COUNT_PRESENT) * BLOCK)?;
        HazardPointers::new(segment)
    }

    /// The hazard pointers of the daemon's own threads.
    #[must_use]
    pub const fn of_daemon(&self) -> SessionHazards<'_> {
        SessionHazards { hazards: self, block: 0, timeout_micros: DAEMON_MICROS_MAX }
    }

    /// Calls `each` with the extents that living threads of `session` protect.
    pub fn each(&self, session: u16, each: &mut dyn FnMut(u32)) {
        for slot in 0..HAZARD_COUNT {
            let Ok(slot) = self.slot(1 + usize::from(session), slot) else { return };
            let word = HazardPointer(slot.pointer.load(SeqCst));
            let Some(extent) = word.extent() else { continue };
            if word.is_of_dead_thread() {
                let _ = slot.pointer.compare_exchange(word.0, 0, AcqRel, Relaxed);
            } else {
                each(extent);
            }
        }
    }

    /// True if a living thread of `session` protects `extent`.
    #[must_use]
    pub fn is_protected(&self, session: u16, extent: u32) -> bool {
        let mut found = false;
        self.each(session, &mut |protected| found |= protected == extent);
        found
    }
}

/// The slots of one session, as its clients use them.
#[derive(Clone, Copy)]
pub struct SessionHazards<'a> {
    hazards: &'a HazardPointers,
    block: usize,
    timeout_micros: u64,
}

impl<'a> SessionHazards<'a> {
    /// Protects `extent` while the calling thread copies from or into it, until the result is
    /// dropped.
    ///
    /// # Errors
    /// `EIO` if all slots were taken for too long.
    #[inline]
    pub fn protect(&self, extent: u32) -> Result<HazardGuard<'a>> {
        let me = wait::thread_id();
        let word = HazardPointer::new(me, extent)?;
        let slot = self.first_choice(me)?;
        let slot = if take(slot, 0, word) { slot } else { self.protect_slow(me, word)? };
        Ok(self.guard(slot))
    }

    /// As `protect`; `None` where it would wait or fail.
    #[inline(always)]
    pub(super) fn try_protect(&self, extent: u32) -> Option<HazardGuard<'a>> {
        let me = wait::thread_id();
        let word = HazardPointer::new(me, extent).ok()?;
        let slot = self.first_choice(me).ok()?;
        take(slot, 0, word).then(|| self.guard(slot))
    }

    /// The slot that a thread tries first.
    #[inline(always)]
    fn first_choice(&self, me: u32) -> Result<&'a HazardSlot> {
        // Neighbouring threads have neighbouring numbers.
        self.hazards.slot(self.block, me as usize)
    }

    /// The guard of a slot that was taken just now.
    #[inline(always)]
    fn guard(&self, slot: &'a HazardSlot) -> HazardGuard<'a> {
        // Left by a thread that died with this slot.
        slot.claims.store(0, Relaxed);
        // The caller must read the header after the daemon could see the hazard pointer.
        fence(SeqCst);
        HazardGuard { slot, by: *self }
    }

    /// Drops the hazard pointers of the calling thread, whose calls ended without returning. Pages
    /// that it claimed are taken over as from a dead thread.
    pub fn end_abandoned(&self) {
        let me = wait::thread_id();
        for slot in 0..HAZARD_COUNT {
            let Ok(slot) = self.hazards.slot(self.block, slot) else { return };
            let word = HazardPointer(slot.pointer.load(Relaxed));
            if word.thread() == me {
                let _ = slot.pointer.compare_exchange(word.0, 0, AcqRel, Relaxed);
            }
        }
    }

    /// A slot where the first choice is taken.
    #[cold]
    fn protect_slow(&self, me: u32, word: HazardPointer) -> Result<&'a HazardSlot> {
        let mut backoff = Backoff::new();
        let (mut give_up, mut naps) = (None, wait::Naps::new());
        loop {
            for step in 1..=HAZARD_COUNT {
                let slot = self.hazards.slot(self.block, me as usize + step)?;
                if slot.pointer.load(Relaxed) == 0 && take(slot, 0, word) {
                    return Ok(slot);
                }
            }
            if backoff.pause() == Next::Poll {
                continue;
            }
            for slot in 0..HAZARD_COUNT {
                let slot = self.hazards.slot(self.block, slot)?;
                let holder = HazardPointer(slot.pointer.load(Relaxed));
                if backoff.is_dead(holder.thread()) && take(slot, holder.0, word) {
                    return Ok(slot);
                }
            }
            let now = wait::now_micros();
            if now >= *give_up.get_or_insert(now.saturating_add(self.timeout_micros)) {
                return Err(Errno::EIO);
            }
            // Others may wait for a device.
            naps.pause(now);
        }
    }
}

#[inline(always)]
fn take(slot: &HazardSlot, from: u64, word: HazardPointer) -> bool {
    slot.pointer.compare_exchange(from, word.0, SeqCst, Relaxed).is_ok()
}

/// A hazard pointer of the calling thread.
pub struct HazardGuard<'a> {
    slot: &'a HazardSlot,
    by: SessionHazards<'a>,
}

/// Pages of an extent that living threads fill.
pub(crate) struct Claims {
    pub(crate) others: u64,
    /// By the calling thread itself, in the call that a signal interrupted.
    pub(crate) interrupted: u64,
}

impl HazardGuard<'_> {
    /// Claims pages of a group of the extent, which the caller fills from now on.
    pub(crate) fn claim(&self, group: u64, page_bits: u64) {
        self.slot.group.store(group, Release);
        self.slot.claims.store(page_bits, SeqCst);
    }

    /// Pages that other living threads fill in a group of `extent`, which is the protected one.
    pub(crate) fn others(&self, extent: u32, group: u64) -> Claims {
        self.by.hazards.claims(extent, group, self)
    }

    /// True if a living thread with this number protects `extent` by another slot than this one.
    pub(crate) fn is_protected_by(&self, thread: u32, extent: u32) -> bool {
        self.by.hazards.is_protected_by(thread, extent, self)
    }

    /// Maximum wait of its owner for others.
    pub(crate) const fn timeout_micros(&self) -> u64 {
        self.by.timeout_micros
    }
}

impl Drop for HazardGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.pointer.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn hazards() -> HazardPointers {
        HazardPointers::new(Segment::nameless(c"test", HAZARDS_BYTES).expect("memory").0)
            .expect("long enough")
    }

    fn all(hazards: &HazardPointers, session: u16) -> Vec<u32> {
        let mut found = Vec::new();
        hazards.each(session, &mut |extent| found.push(extent));
        found.sort_unstable();
        found
    }

    #[test]
    fn a_hazard_pointer_is_seen_until_it_is_dropped() {
        let hazards = hazards();
        let mine = hazards.of_session(3, 0);
        let held: Vec<_> =
            (0..HAZARD_COUNT as u32).map(|extent| mine.protect(extent).expect("a row")).collect();
        assert_eq!(all(&hazards, 3), (0..HAZARD_COUNT as u32).collect::<Vec<_>>());
        assert_eq!(all(&hazards, 2), []);
        assert_eq!(mine.protect(99).err(), Some(Errno::EIO));
        drop(held);
        assert_eq!(all(&hazards, 3), []);
        let last = SESSION_COUNT_MAX as u16;
        assert!(hazards.of_session(last - 1, 0).protect(7).is_ok());
        assert_eq!(hazards.of_session(last, 0).protect(7).err(), Some(Errno::EINVAL));
        assert_eq!(mine.protect(u32::MAX).err(), Some(Errno::EINVAL));
    }

    /// The pages that the client of each session claims are seen by those of all others, whether or
    /// not they have its slots mapped.
    #[test]
    fn clients_that_map_what_they_need_see_the_claims_of_all() {
        const EXTENT: u32 = 9;
        let (segment, file) = Segment::nameless(c"test", HAZARDS_BYTES).expect("memory");
        let daemon = HazardPointers::new(segment).expect("long enough");
        let sessions = [0, 61, 62, 63, 500, SESSION_COUNT_MAX as u16 - 1];
        let client = |session: u16| {
            let file = rustix::io::fcntl_dupfd_cloexec(&file, 0).expect("a descriptor");
            let client = HazardPointers::of_client(file, session).expect("a mapping");
            client.note_session(session).expect("memory");
            client
        };
        let clients = sessions.map(|session| (session, client(session)));
        for (session, claiming) in &clients {
            let guard = claiming.of_session(*session, 0).protect(EXTENT).expect("a row");
            guard.claim(7, 0b101);
            assert_eq!(all(&daemon, *session), [EXTENT]);
            for (other, looking) in clients.iter().filter(|(other, _)| other != session) {
                // Another thread, because a thread's own claims are told apart.
                let seen = std::thread::scope(|scope| {
                    let look = || {
                        let own = looking.of_session(*other, 0).protect(EXTENT).expect("a row");
                        own.others(EXTENT, 7).others
                    };
                    scope.spawn(look).join().expect("no panic")
                });
                assert_eq!(seen, 0b101, "of {session} by {other}");
            }
        }
    }

    #[test]
    fn hazard_pointers_of_dead_threads_protect_nothing_and_are_reused() {
        let hazards = hazards();
        let dead = std::thread::scope(|scope| {
            let leave = || {
                (0..HAZARD_COUNT as u32).for_each(|extent| {
                    core::mem::forget(hazards.of_session(0, 0).protect(extent).expect("a row"));
                });
            };
            scope.spawn(leave).join()
        });
        dead.expect("no panic");
        let mine = hazards.of_session(0, 60_000_000).protect(5).expect("a dead thread's slot");
        assert_eq!(all(&hazards, 0), [5]);
        drop(mine);
        assert_eq!(all(&hazards, 0), []);
    }
}
