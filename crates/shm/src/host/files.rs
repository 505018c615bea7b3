//! Open file descriptions: the state shared by descriptors made by dup, fork and exec.
//!
//! Layout: a bitmap of entries in use, then entries of 128 bytes:
//!
//!   0    refs        u32   descriptors that refer to it, over all processes
//!   4    generation  u32   counts the uses of the entry: an owner of locks is (entry, generation)
//!   8    vnode       u32
//!   12   flags       u32   as given to open
//!   16   inode       u64
//!   24   offset      u64
//!   32   layout      u64   the file's layout, packed by the client
//!   40   lock        u32   thread that moves the offset
//!   44   activity    u32   place of its file record in the activity segment
//!   48   cursor      4 x u64   of a directory listing
//!   80   spare       6 x u64   for the client; the second: marks, of which bit 4 says that a writer
//!                              did not wait for the arrival of its bytes (`pending`); the third: the
//!                              directory in which the file was found

use super::{Entries, Guard, HostSegment, PASSED, VnodeIndex, each_bit, give_entry, lock, vnodes};
use crate::segment::SharedEntry;
use crate::sync::{AtomicU32, AtomicU64};
use crate::wait;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::Inode;
use wire::errno::{Errno, Result};

/// Maximum number of open files of a host.
pub const FILE_COUNT: usize = 256 * 1024;
const ENTRY_BYTES: usize = 128;
const BITMAP: usize = vnodes::END;
const ENTRIES: usize = BITMAP + FILE_COUNT / 8;
pub(super) const END: usize = ENTRIES + FILE_COUNT * ENTRY_BYTES;
/// End of the entries of all lanes.
pub(super) const LANES_END: usize = ENTRIES + super::LANE_ENTRIES * ENTRY_BYTES;
/// Its hint in a lane.
const HINT: usize = 0;
const TABLE: Entries =
    Entries { bitmap: BITMAP, base: ENTRIES, count: FILE_COUNT, bytes: ENTRY_BYTES, field: HINT };

/// An open file description.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OfdIndex(pub u32);

/// The fields of an open file description, in shared memory.
#[repr(C)]
pub struct File {
    /// Descriptors that refer to it.
    pub refs: AtomicU32,
    /// Counts the uses of the entry.
    pub generation: AtomicU32,
    /// The file.
    pub vnode: AtomicU32,
    /// Flags of open and `F_SETFL`.
    pub flags: AtomicU32,
    /// The inode.
    pub inode: AtomicU64,
    /// The offset.
    pub offset: AtomicU64,
    /// The layout, packed.
    pub layout: AtomicU64,
    lock: AtomicU32,
    /// Place of the file record where its last transfer was counted (`activity`).
    pub activity: AtomicU32,
    /// Position of a directory listing.
    pub cursor: [AtomicU64; 4],
    /// For the client's own use.
    pub spare: [AtomicU64; 6],
}

// SAFETY: atomics in the order of the table above. WHY: each call on a descriptor comes here.
unsafe impl SharedEntry for File {}

const _: () = assert!(size_of::<File>() == ENTRY_BYTES);

/// The word of `File::spare` with the directory in which the file was found when it was opened; 0: none
/// is known.
pub const SPARE_DIRECTORY: usize = 2;

/// The word of `File::spare` with marks.
pub const SPARE_MARKS: usize = 1;
/// Of the marks: some bytes may be on their way to other hosts.
const PUSHED: u64 = 16;

/// Holds the lock on the offset of an open file while it lives.
pub struct OffsetGuard<'a>(#[expect(dead_code, reason = "held for its drop")] Guard<'a>);

impl File {
    /// Keeps other threads from moving the offset.
    #[must_use]
    #[inline]
    pub fn lock_offset(&self) -> OffsetGuard<'_> {
        OffsetGuard(lock(&self.lock))
    }

    /// Records that a write is about to be counted as on its way (`Vnode::begin_push`).
    #[inline]
    pub fn note_push(&self) {
        let [_, marks, ..] = &self.spare;
        if marks.load(Relaxed) & PUSHED == 0 {
            marks.fetch_or(PUSHED, SeqCst);
        }
    }

    /// True if the buffers of some writes through this open file may be memory of its processes.
    #[must_use]
    pub fn has_pushed(&self) -> bool {
        let [_, marks, ..] = &self.spare;
        marks.load(SeqCst) & PUSHED != 0 && self.refs.load(SeqCst) != 0
    }

    /// Gives back the lock on the offset if the calling thread has it, whose calls ended without
    /// returning.
    pub fn end_abandoned(&self) {
        let holder = self.lock.load(Relaxed);
        if holder & !PASSED == wait::thread_id() {
            let _ = self.lock.compare_exchange(holder, 0, AcqRel, Relaxed);
        }
    }
}

impl HostSegment {
    /// A new open file description with one reference; the caller fills in the rest.
    ///
    /// # Errors
    /// `ENFILE` if there are too many; `ENOSPC` if there is no memory for one more.
    pub fn file_allocate(&self, inode: Inode, vnode: VnodeIndex, flags: u32) -> Result<OfdIndex> {
        let index = OfdIndex(TABLE.take(&self.segment)?);
        let file = self.file(index)?;
        file.generation.fetch_add(1, Relaxed);
        file.vnode.store(vnode.0, Relaxed);
        file.flags.store(flags, Relaxed);
        file.inode.store(inode.0, Relaxed);
        file.offset.store(0, Relaxed);
        file.lock.store(0, Relaxed);
        // Counted as an open at its first transfer.
        file.activity.store(0, Relaxed);
        file.cursor.iter().for_each(|word| word.store(0, Relaxed));
        file.spare.iter().for_each(|word| word.store(0, Relaxed));
        file.refs.store(1, Release);
        Ok(index)
    }

    /// The fields of an open file description.
    ///
    /// # Errors
    /// `EBADF` for an index out of range.
    #[inline]
    pub fn file(&self, index: OfdIndex) -> Result<&File> {
        if index.0 as usize >= FILE_COUNT {
            return Err(Errno::EBADF);
        }
        self.segment.entry(ENTRIES + index.0 as usize * ENTRY_BYTES)
    }

    /// Adds a reference.
    pub fn file_retain(&self, index: OfdIndex) {
        if let Ok(file) = self.file(index) {
            file.refs.fetch_add(1, Relaxed);
        }
    }

    /// Adds a reference to an entry found in a table that others change, if the entry is in use. It
    /// may be another file's by now; so the caller reads the table again, and then keeps the
    /// reference or drops it.
    #[must_use]
    pub fn file_retain_open(&self, index: OfdIndex) -> bool {
        let more = |refs: u32| if refs == 0 { None } else { refs.checked_add(1) };
        self.file(index).is_ok_and(|file| file.refs.fetch_update(SeqCst, SeqCst, more).is_ok())
    }

    /// Drops a reference; true if it was the last: the caller then closes the file and calls
    /// `file_free`.
    ///
    /// # Errors
    /// `EBADF` for an index out of range, or an entry without a reference.
    pub fn file_release(&self, index: OfdIndex) -> Result<bool> {
        let refs = &self.file(index)?.refs;
        let before = refs
            .fetch_update(AcqRel, Acquire, |refs| refs.checked_sub(1))
            .map_err(|_| Errno::EBADF)?;
        Ok(before == 1)
    }

    /// Calls `each` for every entry in use.
    pub fn file_list(&self, each: &mut dyn FnMut(OfdIndex, &File)) {
        each_bit(&self.segment, BITMAP, FILE_COUNT / 64, &mut |entry| {
            if let Ok(file) = self.file(OfdIndex(entry)) {
                each(OfdIndex(entry), file);
            }
        });
    }

    /// Frees the entry, after the last reference.
    ///
    /// # Errors
    /// `EBADF` for an index out of range.
    pub fn file_free(&self, index: OfdIndex) -> Result<()> {
        self.file(index)?.inode.store(0, Release);
        give_entry(&self.segment, BITMAP, index.0, HINT)
    }
}
