//! Reading: inline contents by a message, everything else from the pieces.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use shm::host::Cuts;
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::limits::{FILE_BYTES_MAX, INLINE_BYTES_MAX};
use wire::{Reply, Request};

use crate::errno::by_descriptor;
use crate::opened::Open;
use crate::request::{To, own_credentials};
use crate::{Client, OfdIndex};

/// Where a read or write takes place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// At the open file's offset, which moves.
    Current,
    /// At this offset.
    At(u64),
}

impl Client {
    /// `read(2)`, `pread(2)`.
    ///
    /// # Errors
    /// As `read(2)`.
    #[inline]
    pub fn read(&self, ofd: OfdIndex, to: &mut [u8], position: Position) -> Result<usize> {
        let open = self.open_for(ofd, want::READ)?;
        let guard = (position == Position::Current).then(|| open.words.lock_offset());
        let offset = match position {
            Position::At(offset) if offset > FILE_BYTES_MAX => return Err(Errno::EINVAL),
            Position::At(offset) => offset,
            Position::Current => open.words.offset.load(Relaxed),
        };
        let count = self.read_at(&open, offset, to)?;
        if guard.is_some() {
            open.words.offset.store(offset.saturating_add(count as u64), Relaxed);
        }
        Ok(count)
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
        let open = self.open_for(ofd, want::READ)?;
        match position {
            Position::At(offset) if offset > FILE_BYTES_MAX => Err(Errno::EINVAL),
            Position::At(offset) => self.read_each(&open, offset, buffers),
            Position::Current => {
                let guard = open.words.lock_offset();
                let offset = open.words.offset.load(Relaxed);
                let count = self.read_each(&open, offset, buffers)?;
                open.words.offset.store(offset.saturating_add(count as u64), Relaxed);
                drop(guard);
                Ok(count)
            }
        }
    }

    fn read_each<'b>(
        &self,
        open: &Open<'_>,
        offset: u64,
        buffers: impl Iterator<Item = &'b mut [u8]>,
    ) -> Result<usize> {
        let mut done = 0usize;
        for buffer in buffers {
            let wanted = buffer.len();
            if wanted == 0 {
                continue;
            }
            match self.read_at(open, offset.saturating_add(done as u64), buffer) {
                Ok(count) => {
                    done = done.saturating_add(count);
                    if count < wanted {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Reads at an offset; fewer bytes than wanted at the end of the file.
    #[inline]
    pub(crate) fn read_at(&self, open: &Open<'_>, offset: u64, to: &mut [u8]) -> Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        let mut file = open.file();
        if file.is_inline() {
            if let Some(count) = self.read_inline(open, offset, to)? {
                return Ok(count);
            }
            file = open.file();
        }
        let end = offset.saturating_add(to.len() as u64);
        let mut size = open.size();
        if end > size {
            // It may have grown on another host.
            size = self.size_now(open)?;
        }
        let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = to.len().min(left);
        let Some(to) = to.get_mut(..count).filter(|to| !to.is_empty()) else { return Ok(0) };
        self.settle(open.vnode)?;
        self.read_bytes(open, &file, offset, to)?;
        Ok(count)
    }

    /// Reads inline contents; `None` if the file is not inline any more.
    fn read_inline(&self, open: &Open<'_>, offset: u64, to: &mut [u8]) -> Result<Option<usize>> {
        let cuts = open.vnode.cuts();
        if let Some(attributes) = self.attributes_in_index(open.inode) {
            if !attributes.is_inline() {
                self.moved(open, cuts, &attributes);
                return Ok(None);
            }
            // The second read of every program that reads to the end costs no message.
            if offset >= attributes.size && open.vnode.dirty_end.load(SeqCst) == 0 {
                return Ok(Some(0));
            }
        }
        let length = to.len().min(INLINE_BYTES_MAX) as u32;
        let request = Request::ReadInline { inode: open.inode, offset, length };
        let to_shard = To::Shard(open.inode.shard());
        let answer = by_descriptor(self.call(to_shard, &request, &own_credentials()))?;
        answer.with(|reply| match reply {
            Reply::Contents { bytes, .. } => {
                let count = bytes.len().min(to.len());
                for (to, from) in to.iter_mut().zip(bytes) {
                    *to = *from;
                }
                Ok(Some(count))
            }
            Reply::Moved { attributes } => {
                self.moved(open, cuts, &attributes);
                Ok(None)
            }
            _ => Err(Errno::EIO),
        })
    }

    /// The contents are not inline any more: takes over layout and size. `cuts`: the count before it was
    /// asked.
    pub(crate) fn moved(&self, open: &Open<'_>, cuts: Cuts, attributes: &wire::Attributes) {
        open.set_layout(attributes);
        let _ = open.vnode.raise(cuts, attributes.size);
    }
}
