//! Seeking, and forcing data to its devices.

use core::sync::atomic::Ordering::Relaxed;
use placement::piece;
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::{DaemonIndex, Reply, Request};

use crate::errno::{by_descriptor, ignore_gone};
use crate::layout::File;
use crate::opened::{Open, mark, o};
use crate::request::{To, own_credentials};
use crate::{Client, OfdIndex, ProcessIndex};

/// `whence` of `lseek(2)`.
pub(crate) mod whence {
    pub(crate) const SET: u32 = 0;
    pub(crate) const CURRENT: u32 = 1;
    pub(crate) const END: u32 = 2;
    pub(crate) const DATA: u32 = 3;
    pub(crate) const HOLE: u32 = 4;
}

/// Pieces that a search for a hole looks at before it says that there is none: one message each.
const PIECES_LOOKED_AT_MAX: u32 = 65_536;
/// Targets that one fsync reaches. A file over more of them is on more nodes than an fsync of a
/// temporary instance promises anything about.
const TARGETS_FLUSHED_MAX: u32 = 64;

impl Client {
    /// `lseek(2)`. Of a directory: the offsets that a listing gave, 0, and `SEEK_CUR` with 0.
    ///
    /// # Errors
    /// As `lseek(2)`.
    pub fn seek(&self, ofd: OfdIndex, offset: i64, from: u32) -> Result<u64> {
        let open = self.opened(ofd)?;
        if open.flags() & o::PATH != 0 {
            return Err(Errno::EBADF);
        }
        let guard = open.words.lock_offset();
        let base = match from {
            whence::SET => 0,
            whence::CURRENT => open.words.offset.load(Relaxed),
            whence::END if open.mode() & mode::TYPE == mode::DIRECTORY => FILE_BYTES_MAX,
            whence::END => self.size_now(&open)?,
            whence::DATA | whence::HOLE => {
                let start = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                let size = self.size_now(&open)?;
                self.settle(open.vnode)?;
                if start >= size {
                    return Err(Errno::ENXIO);
                }
                let found = match from {
                    whence::DATA => self.find_data(&open, start, size)?.ok_or(Errno::ENXIO)?,
                    _ => self.find_hole(&open, start, size)?,
                };
                open.words.offset.store(found, Relaxed);
                return Ok(found);
            }
            _ => return Err(Errno::EINVAL),
        };
        let to = base.checked_add_signed(offset).filter(|&to| to <= FILE_BYTES_MAX);
        let to = to.ok_or(Errno::EINVAL)?;
        open.words.offset.store(to, Relaxed);
        drop(guard);
        Ok(to)
    }

    /// First offset from `start` on with data, before `size`.
    fn find_data(&self, open: &Open<'_>, start: u64, size: u64) -> Result<Option<u64>> {
        let file = open.file();
        if file.is_inline() {
            return Ok(Some(start));
        }
        // Mostly there is data right here, and the target of this offset knows.
        let near = self.data_on(self.target_of(&file, start)?, &file, start)?;
        if near == Some(start) {
            return Ok(near);
        }
        let mut nearest = None;
        self.each_target(&file, start, size, &mut |target| {
            let found = self.data_on(target, &file, start)?;
            nearest = [nearest, found].into_iter().flatten().min();
            Ok(())
        })?;
        Ok(nearest.filter(|&found| found < size))
    }

    fn data_on(&self, target: DaemonIndex, file: &File, offset: u64) -> Result<Option<u64>> {
        let request =
            Request::SeekData { inode: file.inode, chunk_log2: file.chunk_log2(), offset };
        match self.call(To::Target(target), &request, &own_credentials()) {
            Err(Errno::ENXIO) => Ok(None),
            answer => answer?.with(|reply| match reply {
                Reply::Number { value } => Ok(Some(value)),
                _ => Err(Errno::EIO),
            }),
        }
    }

    /// First hole from `start` on: a piece that begins without data, or the end.
    fn find_hole(&self, open: &Open<'_>, start: u64, size: u64) -> Result<u64> {
        let file = open.file();
        if file.is_inline() {
            return Ok(size);
        }
        let mut at = start;
        for _ in 0..PIECES_LOOKED_AT_MAX {
            if at >= size {
                break;
            }
            if self.data_on(self.target_of(&file, at)?, &file, at)? != Some(at) {
                return Ok(at);
            }
            at = piece::at(at, file.chunk_log2()).end();
        }
        Ok(size)
    }

    /// `fsync(2)`, `fdatasync(2)`.
    ///
    /// # Errors
    /// As `fsync(2)`.
    pub fn sync(&self, ofd: OfdIndex) -> Result<()> {
        self.sync_here(ofd)?;
        let open = self.opened(ofd)?;
        if open.has(mark::THROUGH) { self.await_saved(open.inode) } else { Ok(()) }
    }

    /// The same in the instance alone.
    ///
    /// # Errors
    /// As `sync`.
    pub fn sync_here(&self, ofd: OfdIndex) -> Result<()> {
        let open = self.opened(ofd)?;
        if open.flags() & o::PATH != 0 {
            return Err(Errno::EBADF);
        }
        if open.mode() & mode::TYPE != mode::REGULAR {
            return Ok(());
        }
        self.settle_all(&open)?;
        by_descriptor(self.flush(open.vnode, open.inode))?;
        let file = open.file();
        let size = self.size_now(&open)?;
        if file.is_inline() || size == 0 {
            return Ok(());
        }
        let who = own_credentials();
        let mut reached = 0u32;
        self.each_target(&file, 0, size, &mut |target| {
            reached = reached.saturating_add(1);
            if reached > TARGETS_FLUSHED_MAX {
                return Ok(());
            }
            let request = Request::Flush { inode: file.inode };
            ignore_gone(self.call_done(To::Target(target), &request, &who))
        })
    }

    /// What a close does for others before the open file goes: waits for what is on its way, and tells
    /// the shard how long the file is.
    ///
    /// # Errors
    /// `EBADF`; `EIO` if the size could not be told, or why something did not arrive.
    pub fn tell_size(&self, ofd: OfdIndex) -> Result<()> {
        let open = self.opened(ofd)?;
        if !open.is_writable() {
            return Ok(());
        }
        let settled = self.settle_all(&open);
        if self.has_one_host() && self.is_near(open.inode.shard()) == Ok(true) {
            // Who asks on this host looks at what was written.
            return settled;
        }
        ignore_gone(self.flush(open.vnode, open.inode)).and(settled)
    }

    /// `sync(2)`, `syncfs(2)`: all files that `process` has open.
    ///
    /// # Errors
    /// The first that a file gives.
    pub fn sync_all(&self, process: ProcessIndex) -> Result<()> {
        let mut outcome = Ok(());
        self.for_each_fd(process, &mut |_, ofd, _| {
            let may = self.opened(ofd).is_ok_and(|open| open.is_writable());
            if may && outcome.is_ok() {
                outcome = self.sync(ofd);
            }
        });
        outcome
    }
}
