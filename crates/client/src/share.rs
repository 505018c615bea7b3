//! Files as the kernel can map them: the parts of the arena and of the SSD file that hold them.
//!
//! A shared mapping reaches the bytes without the protocols of `shm::piece_io`, so every piece of
//! the range is made to exist and each of its granules defined before. The mapping must be kept
//! with an open file: a file that is open keeps its pieces when it is deleted. What a truncation
//! cuts off under a mapping is given to other files; as on any file system a program must not touch
//! a mapping beyond the end of its file.

use placement::piece::{self, Span};
use rustix::fd::{AsRawFd, BorrowedFd};
use shm::pieces::Use;
use wire::DaemonIndex;
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::reply::Piece;

use crate::layout::File;
use crate::pieces::{MOVES_MAX, Want};
use crate::{Client, OfdIndex};

/// A part of a file and what holds it.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// First offset in the file, of whole pages.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// The descriptor that holds it; it belongs to the client.
    pub descriptor: i32,
    /// Where it starts there.
    pub place: u64,
}

impl Client {
    /// Calls `each` for the parts of `offset .. offset + length`, in order, up to the last piece
    /// that holds something of the file now.
    ///
    /// # Errors
    /// `EBADF` without the right to read, `ENOSPC`, `EIO`; `ENODEV` if a part lies on another host.
    pub fn share(
        &self,
        ofd: OfdIndex,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(Part) -> Result<()>,
    ) -> Result<()> {
        let open = self.open_for(ofd, want::READ)?;
        // What is mapped to be read may be made writable later, by who may write.
        let may_write = self.open_for(ofd, want::WRITE).is_ok();
        let how = if may_write { Use::Write } else { Use::Read };
        let end = offset.checked_add(length).ok_or(Errno::EOVERFLOW)?.min(self.size_now(&open)?);
        if offset >= end {
            return Ok(());
        }
        self.settle(open.vnode)?;
        if open.file().is_inline() {
            self.move_out(&open)?;
        }
        let file = self.reach(&open, end)?;
        for span in piece::over(offset, end.saturating_sub(offset), file.chunk_log2()) {
            let target = self.target_of(&file, span.start)?;
            let by = self.mapped(target)?.ok_or(Errno::ENODEV)?;
            let piece = self.defined_piece(target, &file, &span, how)?;
            let first = span.start.max(offset);
            let last = span.end().min(offset.saturating_add(length));
            let holder: BorrowedFd<'_> = by.tier(piece.tier);
            each(Part {
                offset: first,
                length: last.saturating_sub(first),
                descriptor: holder.as_raw_fd(),
                place: piece.place.saturating_add(first.saturating_sub(span.start)),
            })?;
        }
        Ok(())
    }

    /// The piece of `span`, all of it defined: from then on it is the file's, whoever wrote to it.
    fn defined_piece(
        &self,
        target: DaemonIndex,
        file: &File,
        span: &Span,
        how: Use,
    ) -> Result<Piece> {
        for _ in 0..MOVES_MAX {
            let found = self.piece(target, file, span, Want::Write, 0)?.ok_or(Errno::EIO)?;
            let by = self.mapped(target)?.ok_or(Errno::ENODEV)?;
            if by.target().define_all(&by.pins(), file.inode, &found, how)?.is_ok() {
                return Ok(found);
            }
            self.forget_piece(file, span);
        }
        Err(Errno::EIO)
    }

    /// Somebody may have written through a mapping: the file was modified now.
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    pub fn note_written(&self, ofd: OfdIndex) -> Result<()> {
        self.open_for(ofd, want::READ)?.note_modified();
        Ok(())
    }
}
