//! Appending: the shard hands out disjoint ranges at the end of the file, so that writers on any
//! host lose nothing.

use shm::host::{Cuts, Vnode};
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::reply::{CUTS_OF_FIRST, CUTS_OF_HOST, CUTS_UNKNOWN};
use wire::{Reply, Request};

use crate::Client;
use crate::errno::by_descriptor;
use crate::opened::Open;
use crate::request::{To, own_credentials};
use crate::size::Met;

/// What was appended.
pub(crate) struct Appended {
    pub(crate) count: usize,
    /// First offset behind it.
    pub(crate) end: u64,
}

/// What a range is good for: as long as the file was not cut since. Then it may be another's.
#[derive(Clone, Copy)]
struct Uncut<'a> {
    vnode: &'a Vnode,
    /// The count when the range was given out.
    cuts: Cuts,
}

impl Uncut<'_> {
    /// # Errors
    /// `EAGAIN` if it was cut.
    fn check(&self) -> Result<()> {
        if self.vnode.cuts() == self.cuts { Ok(()) } else { Err(Errno::EAGAIN) }
    }
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
        let mut met = Met::new();
        loop {
            // Several small buffers could be gathered, but who appends records writes them whole.
            if open.file().is_inline()
                && let Some(appended) = self.append_inline(open, buffers.clone(), length)?
            {
                self.tell_page_keepers(open)?;
                return Ok(appended);
            }
            if let Some(appended) = self.append_once(open, buffers.clone(), length)? {
                return Ok(appended);
            }
            met.again(self)?;
        }
    }

    /// Takes a range and writes it. `None` if somebody cut the file meanwhile, and the range with it.
    fn append_once<'b>(
        &self,
        open: &Open<'_>,
        buffers: impl Iterator<Item = &'b [u8]> + Clone,
        length: u64,
    ) -> Result<Option<Appended>> {
        // Written beyond the end by others of this host, and not told yet: tell first, or the
        // range would lie in it.
        by_descriptor(self.flush(open.vnode, open.inode))?;
        let before = self.uncut(open)?;
        let (start, cuts) = self.take_range(open, length, before)?;
        if start.saturating_add(length) > FILE_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        let mut uncut = cuts.map(|cuts| Uncut { vnode: open.vnode, cuts });
        let mut left = length;
        let count = loop {
            let written = self.write_range(open, start, buffers.clone(), left, uncut);
            let Some(met) = uncut.filter(|uncut| uncut.check().is_err()) else { break written? };
            // Where it is cut is known when that is over, and at the latest by what is looked at next.
            let cuts = self.uncut(open)?;
            if cuts != met.cuts {
                match open.vnode.cut_once_since(met.cuts) {
                    // Behind or within the range: what is left of it is not another's.
                    Some(size) if size > start => left = left.min(size.saturating_sub(start)),
                    _ => return Ok(None),
                }
            }
            uncut = Some(Uncut { cuts, ..met });
        };
        // What was cut off was written before.
        let written = count as u64;
        let count = if written == left { usize::try_from(length).unwrap_or(count) } else { count };
        let end = start.saturating_add(count as u64);
        let told = uncut.map_or(before, |uncut| uncut.cuts);
        let _ = open.vnode.raise(told, start.saturating_add(written));
        self.tell_page_keepers(open)?;
        Ok(Some(Appended { count, end }))
    }

    /// A range, and how often the file was cut when it was given out, if its shard can know. `before`:
    /// the count now.
    fn take_range(
        &self,
        open: &Open<'_>,
        length: u64,
        before: Cuts,
    ) -> Result<(u64, Option<Cuts>)> {
        let request = Request::Append { inode: open.inode, length };
        let to = To::Shard(open.inode.shard());
        by_descriptor(self.call(to, &request, &own_credentials()))?.with(|reply| match reply {
            Reply::Range { offset, cuts: CUTS_UNKNOWN } => Ok((offset, None)),
            Reply::Range { offset, cuts: CUTS_OF_FIRST | CUTS_OF_HOST } => {
                Ok((offset, Some(before)))
            }
            Reply::Range { offset, cuts } => Ok((offset, Some(Cuts::from_number(cuts)))),
            _ => Err(Errno::EIO),
        })
    }

    /// Writes the first `left` bytes of a range that is ours into the pieces; the size was told when it
    /// was taken.
    fn write_range<'b>(
        &self,
        open: &Open<'_>,
        start: u64,
        buffers: impl Iterator<Item = &'b [u8]>,
        left: u64,
        uncut: Option<Uncut<'_>>,
    ) -> Result<usize> {
        let still = || uncut.map_or(Ok(()), |uncut| uncut.check());
        let cuts = uncut.map(|uncut| uncut.cuts);
        let mut done = 0usize;
        for buffer in buffers.filter(|buffer| !buffer.is_empty()) {
            let left = usize::try_from(left).unwrap_or(usize::MAX).saturating_sub(done);
            let buffer = buffer.get(..buffer.len().min(left)).unwrap_or(buffer);
            if buffer.is_empty() {
                break;
            }
            let at = start.saturating_add(done as u64);
            match self.write_pieces(open, at, buffer, false, (cuts, still)) {
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
        let cuts = open.vnode.cuts();
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
                let _ = open.vnode.raise(cuts, size);
                let end = offset.saturating_add(length);
                Ok(Some(Appended { count: filled, end }))
            }
            Reply::Moved { attributes } => {
                self.moved(open, cuts, &attributes);
                Ok(None)
            }
            _ => Err(Errno::EIO),
        })
    }
}
