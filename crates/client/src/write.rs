//! Writing at an offset: inline contents by a message, everything else into the pieces. At the end
//! of a file opened for appending: `append`.

use core::sync::atomic::Ordering::Relaxed;
use shm::host::{Cut, Cuts};
use wire::attributes::{extra, want};
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::request::set;
use wire::{Attributes, Credentials, Reply, Request};

use crate::attributes::{Change, without_set_id};
use crate::errno::by_descriptor;
use crate::layout::File;
use crate::opened::{CAPABLE, Open, o};
use crate::read::Position;
use crate::request::{To, own_credentials};
use crate::size::Met;
use crate::{Client, OfdIndex};

/// Bits of a mode that a write may take away.
const SET_ID: u32 = wire::attributes::mode::SET_UID | wire::attributes::mode::SET_GID;

impl Client {
    /// `write(2)`, `pwrite(2)`.
    ///
    /// # Errors
    /// As `write(2)`.
    pub fn write(&self, ofd: OfdIndex, from: &[u8], position: Position) -> Result<usize> {
        self.write_vectored(ofd, core::iter::once(from), position)
    }

    /// `writev(2)`, `pwritev(2)`. With `O_APPEND` at the end, whatever the position says.
    ///
    /// # Errors
    /// As `writev(2)`.
    pub fn write_vectored<'b>(
        &self,
        ofd: OfdIndex,
        buffers: impl Iterator<Item = &'b [u8]> + Clone,
        position: Position,
    ) -> Result<usize> {
        let open = self.open_for(ofd, want::WRITE)?;
        self.take_set_id(&open)?;
        let appends = open.flags() & o::APPEND != 0;
        match position {
            Position::At(offset) if offset > FILE_BYTES_MAX => Err(Errno::EINVAL),
            Position::At(_) if appends => Ok(self.append_each(&open, buffers)?.count),
            Position::At(offset) => self.write_each(&open, offset, buffers),
            Position::Current => {
                let guard = open.words.lock_offset();
                let count = if appends {
                    let appended = self.append_each(&open, buffers)?;
                    open.words.offset.store(appended.end, Relaxed);
                    appended.count
                } else {
                    let offset = open.words.offset.load(Relaxed);
                    let count = self.write_each(&open, offset, buffers)?;
                    open.words.offset.store(offset.saturating_add(count as u64), Relaxed);
                    count
                };
                drop(guard);
                Ok(count)
            }
        }
    }

    /// `pwritev2(2)` with `RWF_APPEND`: at the end; the offset stays.
    ///
    /// # Errors
    /// As `writev(2)`.
    pub fn write_appending<'b>(
        &self,
        ofd: OfdIndex,
        buffers: impl Iterator<Item = &'b [u8]> + Clone,
    ) -> Result<usize> {
        let open = self.open_for(ofd, want::WRITE)?;
        self.take_set_id(&open)?;
        Ok(self.append_each(&open, buffers)?.count)
    }

    pub(crate) fn write_each<'b>(
        &self,
        open: &Open<'_>,
        offset: u64,
        buffers: impl Iterator<Item = &'b [u8]>,
    ) -> Result<usize> {
        let mut done = 0usize;
        for buffer in buffers.filter(|buffer| !buffer.is_empty()) {
            match self.write_at(open, offset.saturating_add(done as u64), buffer) {
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

    /// Writes at an offset; fewer bytes than wanted when space runs out or at the largest size.
    pub(crate) fn write_at(&self, open: &Open<'_>, offset: u64, from: &[u8]) -> Result<usize> {
        let left = FILE_BYTES_MAX.checked_sub(offset).filter(|&left| left > 0);
        let left = usize::try_from(left.ok_or(Errno::EFBIG)?).unwrap_or(usize::MAX);
        let from = from.get(..from.len().min(left)).unwrap_or(from);
        if from.is_empty() {
            return Ok(0);
        }
        let mut met = Met::new();
        loop {
            if let Some(count) = self.write_once(open, offset, from)? {
                return Ok(count);
            }
            met.again(self)?;
        }
    }

    /// `None` if somebody cut the file meanwhile: what of the bytes is left is not known.
    #[inline]
    fn write_once(&self, open: &Open<'_>, offset: u64, from: &[u8]) -> Result<Option<usize>> {
        let cuts = self.uncut(open)?;
        if open.file().is_inline() && self.write_inline(open, cuts, offset, from)? {
            self.tell_page_keepers(open)?;
            return Ok(Some(from.len()));
        }
        let behind = self.writes_behind(open);
        if behind {
            open.vnode.take_failure()?;
        } else {
            // Somebody else writes behind: what is on its way must not come after these bytes.
            self.settle(open.vnode)?;
        }
        let count = match self.write_pieces(open, offset, from, behind, (Some(cuts), || Ok(()))) {
            Err(Errno::EAGAIN) => return Ok(None),
            count => count?,
        };
        if offset > open.size() && !open.file().is_sparse() {
            self.note_hole(open);
        }
        let end = offset.saturating_add(count as u64);
        match open.note_written(cuts, end) {
            Ok(false) => {}
            Ok(true) => {
                // Early news only: a failure is told by whoever tells next.
                let _ = self.flush(open.vnode, open.inode);
            }
            Err(Cut) => return Ok(None),
        }
        self.tell_page_keepers(open)?;
        Ok(Some(count))
    }

    /// Tells the shard, once for each open file, that `st_blocks` is not what the size says. A hint:
    /// a failure changes nothing else.
    #[cold]
    fn note_hole(&self, open: &Open<'_>) {
        let change = Change { mask: set::SPARSE | set::BY_DESCRIPTOR, ..Change::default() };
        if let Ok(attributes) = self.change(open.inode, &change, &own_credentials()) {
            open.set_layout(&attributes);
        }
    }

    /// Writes into an inline file. False if it is not inline (any more): write to its pieces.
    fn write_inline(&self, open: &Open<'_>, cuts: Cuts, offset: u64, from: &[u8]) -> Result<bool> {
        if offset.saturating_add(from.len() as u64) > self.inline_bytes() {
            self.move_out(open)?;
            return Ok(false);
        }
        let request = Request::WriteInline { inode: open.inode, offset, bytes: from };
        let to = To::Shard(open.inode.shard());
        let answer = match by_descriptor(self.call(to, &request, &own_credentials())) {
            Err(Errno::EFBIG) => {
                self.move_out(open)?;
                return Ok(false);
            }
            answer => answer?,
        };
        answer.with(|reply| match reply {
            Reply::Attributes { attributes } => {
                let _ = open.vnode.raise(cuts, attributes.size);
                Ok(true)
            }
            Reply::Moved { attributes } => {
                self.moved(open, cuts, &attributes);
                Ok(false)
            }
            _ => Err(Errno::EIO),
        })
    }

    /// Lets the shard move inline contents to their targets.
    pub(crate) fn move_out(&self, open: &Open<'_>) -> Result<File> {
        let cuts = open.vnode.cuts();
        let request = Request::MoveOut { inode: open.inode };
        let to = To::Shard(open.inode.shard());
        let attributes = self.call_attributes(to, &request, &own_credentials());
        let attributes = by_descriptor(attributes)?;
        self.moved(open, cuts, &attributes);
        Ok(open.file())
    }

    /// A write takes the set-id bits of a program away, unless root writes.
    fn take_set_id(&self, open: &Open<'_>) -> Result<()> {
        if open.mode() & (SET_ID | CAPABLE) == 0 {
            return Ok(());
        }
        self.take_capability_open(open)?;
        let who = own_credentials();
        if who.is_privileged() {
            return Ok(());
        }
        self.take_set_id_as(open, &who, |gid| who.is_in_group(gid)).map(|_| ())
    }

    /// Takes away what a program may do that others may not, before its contents change, whoever changes
    /// them.
    ///
    /// # Errors
    /// `EIO`; `ESTALE` if the file is gone.
    pub(crate) fn take_capability(&self, file: &Attributes) -> Result<()> {
        if !file.has(extra::CAPABILITY) {
            return Ok(());
        }
        let change = Change { mask: set::CAPABILITY | set::BY_DESCRIPTOR, ..Change::default() };
        self.change(file.inode, &change, &own_credentials()).map(drop)
    }

    /// As `take_capability`, of an open file.
    pub(crate) fn take_capability_open(&self, open: &Open<'_>) -> Result<()> {
        if open.mode() & CAPABLE == 0 {
            return Ok(());
        }
        let attributes = by_descriptor(self.attributes_of(open.inode))?;
        by_descriptor(self.take_capability(&attributes))?;
        open.set_mode(open.mode() & !CAPABLE);
        Ok(())
    }

    /// Takes the set-id bits of an open program away, whoever this process is: somebody else writes
    /// through it, who may be in a group. True if there were any.
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    pub fn kill_set_id(
        &self,
        ofd: OfdIndex,
        is_in_group: impl FnOnce(u32) -> bool,
    ) -> Result<bool> {
        self.take_set_id_as(&self.opened(ofd)?, &Credentials::checked(0, 0), is_in_group)
    }

    fn take_set_id_as(
        &self,
        open: &Open<'_>,
        who: &Credentials,
        is_in_group: impl FnOnce(u32) -> bool,
    ) -> Result<bool> {
        let attributes = by_descriptor(self.attributes_of(open.inode))?;
        let Some(bits) = without_set_id(&attributes, is_in_group) else { return Ok(false) };
        let mask = set::MODE | set::BY_DESCRIPTOR;
        let change = Change { mask, mode: bits, ..Change::default() };
        match self.change(open.inode, &change, who) {
            // A writer who is not the owner may not change the mode by himself.
            Ok(_) | Err(Errno::EPERM) => {
                open.set_mode(attributes.mode & !SET_ID);
                Ok(true)
            }
            Err(errno) => Err(errno),
        }
    }
}
