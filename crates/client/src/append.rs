//! Appending: the shard hands out disjoint ranges at the end of the file, so that writers on any
//! host lose nothing.

use core::sync::atomic::Ordering::SeqCst;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::{Reply, Request};

use crate::Client;
use crate::errno::by_descriptor;
use crate::open_files::Open;
use crate::request::{To, own_credentials};

/// What was appended.
pub(crate) struct Appended {
    pub(crate) count: usize,
    /// First offset behind it.
    pub(crate) end: u64,
}

impl Client {
    /// Appends buffers as one range.
    pub(crate) fn append_each<'b>(
        &self,
        open: &Open<'_>,
        buffers: impl Iterator<Item = &'b [u8]> + Clone,
    ) -> Result<Appended> {
        let length = buffers.clone().fold(0u64, |sum, part| sum.saturating_add(part.len() as u64));
        if length == 0 {
            return Ok(Appended { count: 0, end: self.size_now(open)? });
        }
        // Several small buffers could be gathered, but who appends records writes them whole.
        if open.file().is_inline()
            && let Some(appended) = self.append_inline(open, buffers.clone(), length)?
        {
            return Ok(appended);
        }
        // Written beyond the end by others of this host, and not told yet: tell first, or the
        // range would lie in it.
        by_descriptor(self.flush(open.vnode, open.inode))?;
        let start = self.take_range(open, length)?;
        if start.saturating_add(length) > FILE_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        let count = self.write_range(open, start, buffers)?;
        let end = start.saturating_add(count as u64);
        open.vnode.size.fetch_max(end, SeqCst);
        Ok(Appended { count, end })
    }

    fn take_range(&self, open: &Open<'_>, length: u64) -> Result<u64> {
        let request = Request::Append { inode: open.inode, length };
        let to = To::Shard(open.inode.shard());
        by_descriptor(self.call(to, &request, &own_credentials()))?.with(|reply| match reply {
            Reply::Placed { offset, .. } => Ok(offset),
            _ => Err(Errno::EIO),
        })
    }

    /// Writes a range that is ours into the pieces; the size was told when it was taken.
    fn write_range<'b>(
        &self,
        open: &Open<'_>,
        start: u64,
        buffers: impl Iterator<Item = &'b [u8]>,
    ) -> Result<usize> {
        let mut done = 0usize;
        for buffer in buffers.filter(|buffer| !buffer.is_empty()) {
            match self.write_pieces(open, start.saturating_add(done as u64), buffer, false) {
                Ok(count) => {
                    done = done.saturating_add(count);
                    if count < buffer.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Appends to inline contents; `None` if they are not inline (any more) or would not fit.
    fn append_inline<'b>(
        &self,
        open: &Open<'_>,
        buffers: impl Iterator<Item = &'b [u8]>,
        length: u64,
    ) -> Result<Option<Appended>> {
        let mut bytes = [0; wire::limits::INLINE_BYTES_MAX];
        let mut filled = 0usize;
        for buffer in buffers {
            let end = filled.saturating_add(buffer.len());
            let Some(room) = bytes.get_mut(filled..end) else { break };
            room.copy_from_slice(buffer);
            filled = end;
        }
        let all = bytes.get(..filled).filter(|all| all.len() as u64 == length);
        let Some(all) = all.filter(|_| length <= self.inline_bytes()) else {
            self.move_out(open)?;
            return Ok(None);
        };
        let request = Request::WriteInline { inode: open.inode, offset: u64::MAX, bytes: all };
        let to = To::Shard(open.inode.shard());
        let answer = match by_descriptor(self.call(to, &request, &own_credentials())) {
            Err(Errno::EFBIG) => {
                self.move_out(open)?;
                return Ok(None);
            }
            answer => answer?,
        };
        answer.with(|reply| match reply {
            Reply::Placed { offset, size } => {
                open.vnode.size.fetch_max(size, SeqCst);
                let end = offset.saturating_add(length);
                Ok(Some(Appended { count: filled, end }))
            }
            Reply::Moved { attributes } => {
                self.moved(open, &attributes);
                Ok(None)
            }
            _ => Err(Errno::EIO),
        })
    }
}
