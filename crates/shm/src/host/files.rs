//! Open file descriptions: what descriptors made by dup, fork and exec share.
//!
//! Layout: a bitmap of rows in use, then rows of 128 bytes:
//!
//!   0    refs        u32   descriptors that stand for it, over all processes
//!   4    generation  u32   counts the uses of the row: an owner of locks is (row, generation)
//!   8    vnode       u32
//!   12   flags       u32   as given to open
//!   16   inode       u64
//!   24   offset      u64
//!   32   layout      u64   the file's layout, packed by the client
//!   40   lock        u32   thread that moves the offset
//!   48   cursor      4 x u64   of a directory listing
//!   80   spare       6 x u64   for the client

use super::{Guard, HostSegment, VnodeIndex, each_bit, give_row, lock, take_row, vnodes};
use crate::segment::Row;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use wire::Inode;
use wire::errno::{Errno, Result};

/// Most open files of a host.
pub const FILE_COUNT: usize = 256 * 1024;
const ROW: usize = 128;
const BITMAP: usize = vnodes::END;
const ROWS: usize = BITMAP + FILE_COUNT / 8;
pub(super) const END: usize = ROWS + FILE_COUNT * ROW;
/// Its hint in a lane.
const HINT: usize = 0;

/// An open file description.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OfdIndex(pub u32);

/// The words of an open file description, as they lie in its row.
#[repr(C)]
pub struct File {
    /// Descriptors that stand for it.
    pub refs: AtomicU32,
    /// Counts the uses of the row.
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
    _unused: AtomicU32,
    /// Position of a directory listing.
    pub cursor: [AtomicU64; 4],
    /// For the client's own use.
    pub spare: [AtomicU64; 6],
}

// SAFETY: atomics in the order of the table above. WHY: each call on a descriptor comes here.
unsafe impl Row for File {}

const _: () = assert!(size_of::<File>() == ROW);

/// Holds the offset of an open file while it lives.
pub struct OffsetGuard<'a>(#[expect(dead_code, reason = "held for its drop")] Guard<'a>);

impl File {
    /// Keeps others from moving the offset.
    #[must_use]
    pub fn lock_offset(&self) -> OffsetGuard<'_> {
        OffsetGuard(lock(&self.lock))
    }
}

impl HostSegment {
    /// A new open file description with one reference; the caller fills in the rest.
    ///
    /// # Errors
    /// `ENFILE` if there are too many.
    pub fn file_allocate(&self, inode: Inode, vnode: VnodeIndex, flags: u32) -> Result<OfdIndex> {
        let index = OfdIndex(take_row(&self.segment, BITMAP, FILE_COUNT / 64, HINT)?);
        let file = self.file(index)?;
        file.generation.fetch_add(1, Relaxed);
        file.vnode.store(vnode.0, Relaxed);
        file.flags.store(flags, Relaxed);
        file.inode.store(inode.0, Relaxed);
        file.offset.store(0, Relaxed);
        file.lock.store(0, Relaxed);
        file.cursor.iter().for_each(|word| word.store(0, Relaxed));
        file.spare.iter().for_each(|word| word.store(0, Relaxed));
        file.refs.store(1, Release);
        Ok(index)
    }

    /// The words of an open file description.
    ///
    /// # Errors
    /// `EBADF` for a number that is none.
    #[inline]
    pub fn file(&self, index: OfdIndex) -> Result<&File> {
        if index.0 as usize >= FILE_COUNT {
            return Err(Errno::EBADF);
        }
        self.segment.row(ROWS + index.0 as usize * ROW)
    }

    /// One reference more.
    pub fn file_retain(&self, index: OfdIndex) {
        if let Ok(file) = self.file(index) {
            file.refs.fetch_add(1, Relaxed);
        }
    }

    /// One reference more for who found the row in a table that others change: only of a row that is
    /// open. It may be another file's by now; so he looks into the table again, and then keeps the
    /// reference or closes it.
    #[must_use]
    pub fn file_retain_open(&self, index: OfdIndex) -> bool {
        let more = |refs: u32| if refs == 0 { None } else { refs.checked_add(1) };
        self.file(index).is_ok_and(|file| file.refs.fetch_update(SeqCst, SeqCst, more).is_ok())
    }

    /// One reference less; true if it was the last: the caller then closes the file and calls
    /// `file_free`.
    ///
    /// # Errors
    /// `EBADF` for a number that is none, or that has no reference.
    pub fn file_release(&self, index: OfdIndex) -> Result<bool> {
        let refs = &self.file(index)?.refs;
        let before = refs
            .fetch_update(AcqRel, Acquire, |refs| refs.checked_sub(1))
            .map_err(|_| Errno::EBADF)?;
        Ok(before == 1)
    }

    /// Every row in use.
    pub fn file_list(&self, each: &mut dyn FnMut(OfdIndex, &File)) {
        each_bit(&self.segment, BITMAP, FILE_COUNT / 64, &mut |row| {
            if let Ok(file) = self.file(OfdIndex(row)) {
                each(OfdIndex(row), file);
            }
        });
    }

    /// Gives the row back, after the last reference.
    ///
    /// # Errors
    /// `EBADF` for a number that is none.
    pub fn file_free(&self, index: OfdIndex) -> Result<()> {
        self.file(index)?.inode.store(0, Release);
        give_row(&self.segment, BITMAP, index.0, HINT)
    }
}
