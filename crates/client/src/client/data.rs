//! Bytes of files.

use wire::errno::Result;

use crate::io::mmap::MappedRange;
use crate::io::read::Position;
use crate::io::{allocate, mmap, read, seek, write};
use crate::open::sync;
use crate::{Client, OfdIndex};

impl Client {
    /// Calls `each` for the ranges of `offset .. offset + length`, in order, up to the current end
    /// of the file.
    ///
    /// # Errors
    /// `EBADF` without the right to read, `ENOSPC`, `EIO`; `ENODEV` if a range is on another host.
    pub fn map_ranges(
        &self,
        ofd: OfdIndex,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(MappedRange) -> Result<()>,
    ) -> Result<()> {
        mmap::map_ranges(&self.files.io, ofd, offset, length, each)
    }

    /// Records a modification of the file through a mapping.
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    pub fn note_written(&self, ofd: OfdIndex) -> Result<()> {
        mmap::note_written(self.files.transport(), ofd)
    }

    /// `read(2)`, `pread(2)`.
    ///
    /// # Errors
    /// As `read(2)`.
    #[inline(always)]
    pub fn read(&self, ofd: OfdIndex, to: &mut [u8], position: Position) -> Result<usize> {
        read::read(&self.files.io, ofd, to, position)
    }

    /// `readv(2)`, `preadv(2)`.
    ///
    /// # Errors
    /// As `readv(2)`.
    pub fn read_vectored<'b>(
        &self,
        ofd: OfdIndex,
        buffers: impl Iterator<Item = &'b mut [u8]>,
        position: Position,
    ) -> Result<usize> {
        read::read_vectored(&self.files.io, ofd, buffers, position)
    }

    /// `lseek(2)`. For a directory: the offsets that a listing gave, 0, and `SEEK_CUR` with 0.
    ///
    /// # Errors
    /// As `lseek(2)`.
    pub fn seek(&self, ofd: OfdIndex, offset: i64, from: u32) -> Result<u64> {
        seek::seek(self.files.transport(), ofd, offset, from)
    }

    /// `fallocate(2)` with the kernel's mode bits: reserve (0, `KEEP_SIZE`), `PUNCH_HOLE` with
    /// `KEEP_SIZE`, `ZERO_RANGE` with and without it.
    ///
    /// # Errors
    /// As `fallocate(2)`; `EOPNOTSUPP` for other modes.
    pub fn allocate(&self, ofd: OfdIndex, mode: u32, offset: u64, length: u64) -> Result<()> {
        allocate::allocate(&self.files.io, ofd, mode, offset, length)
    }

    /// `write(2)`, `pwrite(2)`.
    ///
    /// # Errors
    /// As `write(2)`.
    #[inline(always)]
    pub fn write(&self, ofd: OfdIndex, from: &[u8], position: Position) -> Result<usize> {
        let written = write::write(&self.files.io, ofd, from, position)?;
        sync::settle_write(self.files.transport(), ofd)?;
        Ok(written)
    }

    /// `writev(2)`, `pwritev(2)`. With `O_APPEND` at the end, whatever the position.
    ///
    /// # Errors
    /// As `writev(2)`.
    pub fn write_vectored<'b>(
        &self,
        ofd: OfdIndex,
        buffers: impl Iterator<Item = &'b [u8]> + Clone,
        position: Position,
    ) -> Result<usize> {
        let written = write::write_vectored(&self.files.io, ofd, buffers, position)?;
        sync::settle_write(self.files.transport(), ofd)?;
        Ok(written)
    }

    /// `pwritev2(2)` with `RWF_APPEND`: writes at the end and leaves the file offset alone.
    ///
    /// # Errors
    /// As `writev(2)`.
    pub fn write_appending<'b>(
        &self,
        ofd: OfdIndex,
        buffers: impl Iterator<Item = &'b [u8]> + Clone,
    ) -> Result<usize> {
        let written = write::write_appending(&self.files.io, ofd, buffers)?;
        sync::settle_write(self.files.transport(), ofd)?;
        Ok(written)
    }

    /// Moves the offset on by `count` if it is `from`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn advance_from(&self, ofd: OfdIndex, from: u64, count: u64) -> Result<()> {
        seek::advance_from(self.files.transport(), ofd, from, count)
    }

    /// Makes a call at the offset of an open file and moves it by the number of bytes that the call
    /// returns.
    ///
    /// # Errors
    /// `EBADF`, and those of the call.
    pub fn at_offset(
        &self,
        ofd: OfdIndex,
        call: impl FnOnce(u64) -> Result<usize>,
    ) -> Result<usize> {
        seek::at_offset(self.files.transport(), ofd, call)
    }
}
