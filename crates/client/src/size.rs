//! How long an open file is: what this host knows, what the shard was told, and telling it (G7).
//!
//! A writer notes the end of what it wrote in two shared words: first `dirty_end`, then `size`. The
//! shard is told at close, fsync, stat, and each 64 MiB. While `dirty_end` is not zero the shard's
//! size and time of modification are old.

use core::sync::atomic::Ordering::SeqCst;
use shm::host::Vnode;
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::request::set;
use wire::{Attributes, Credentials, Inode, Reply, Request};

use crate::attributes::Change;
use crate::errno::by_descriptor;
use crate::layout::File;
use crate::open_files::Open;
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::request::{To, own_credentials};
use crate::{Client, OfdIndex};

/// Growth after which the shard is told even though nobody asked: log2 of 64 MiB.
const TELL_LOG2: u32 = 26;

/// What the words of a file said before the shard was asked.
///
/// The order matters: a size that is seen here was noted as dirty before, so if it is not dirty
/// now, the shard knows it, and an answer that comes later holds it.
pub(crate) struct Seen {
    size: u64,
    dirty_end: u64,
}

impl Seen {
    pub(crate) fn of(vnode: &Vnode) -> Seen {
        let size = vnode.size.load(SeqCst);
        Seen { size, dirty_end: vnode.dirty_end.load(SeqCst) }
    }

    /// Takes over the shard's size, unless somebody on this host changed it meanwhile.
    pub(crate) fn learn(&self, vnode: &Vnode, size: u64) {
        if self.size != size && (self.dirty_end == 0 || size > self.size) {
            let _ = vnode.size.compare_exchange(self.size, size, SeqCst, SeqCst);
        }
    }
}

impl Open<'_> {
    /// The size as this host knows it.
    pub(crate) fn size(&self) -> u64 {
        self.vnode.size.load(SeqCst).max(self.vnode.dirty_end.load(SeqCst))
    }

    /// Notes that everything before `end` may have been written. True if it is time to tell.
    pub(crate) fn note_written(&self, end: u64) -> bool {
        if self.vnode.dirty_end.load(SeqCst) < end {
            self.vnode.dirty_end.fetch_max(end, SeqCst);
        }
        if self.vnode.size.load(SeqCst) >= end {
            return false;
        }
        let before = self.vnode.size.fetch_max(end, SeqCst);
        before < end && before >> TELL_LOG2 != end >> TELL_LOG2
    }

    /// Notes that contents changed within the size.
    pub(crate) fn note_modified(&self) {
        let _ = self.vnode.dirty_end.compare_exchange(0, 1.min(self.size()), SeqCst, SeqCst);
    }
}

impl Client {
    /// The size, asked of the shard if it may have grown elsewhere.
    pub(crate) fn size_now(&self, open: &Open<'_>) -> Result<u64> {
        let seen = Seen::of(open.vnode);
        let attributes = by_descriptor(self.attributes_of(open.inode))?;
        seen.learn(open.vnode, attributes.size);
        Ok(open.size())
    }

    /// The size as this host knows it, without a message.
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    pub fn size_known(&self, ofd: OfdIndex) -> Result<u64> {
        Ok(self.opened(ofd)?.size())
    }

    /// Tells the shard what was written, if anything was.
    ///
    /// # Errors
    /// `ESTALE` if the file is gone, `EIO`.
    pub(crate) fn flush(&self, vnode: &Vnode, inode: Inode) -> Result<()> {
        let end = vnode.dirty_end.load(SeqCst);
        if end == 0 {
            return Ok(());
        }
        let request = Request::Extend { inode, size: end };
        let answer = self.call(To::Shard(inode.shard()), &request, &own_credentials())?;
        // A shard of this host answers `Done`: it read `dirty_end` itself, and cleared it. Others can
        // not, so it is done here.
        let is_noted = answer.with(|reply| Ok(matches!(reply, Reply::Done {})))?;
        if !is_noted {
            let _ = vnode.dirty_end.compare_exchange(end, 0, SeqCst, SeqCst);
        }
        Ok(())
    }

    /// Tells the shard what was written to a file that is perhaps open on this host.
    ///
    /// # Errors
    /// As `flush`.
    pub(crate) fn flush_if_open(&self, inode: Inode) -> Result<()> {
        let host = self.host()?;
        let Some(found) = host.vnode_find(inode) else { return Ok(()) };
        if host.vnode(found)?.dirty_end.load(SeqCst) == 0 {
            return Ok(());
        }
        // Counted in, the row can not become another file's meanwhile.
        let index = host.vnode_open(inode)?;
        let flushed = host.vnode(index).and_then(|vnode| self.flush(vnode, inode));
        self.close_vnode(inode, index, false);
        flushed
    }

    /// Truncates or extends an open file.
    ///
    /// # Errors
    /// `EFBIG`, `ENOSPC`, `EIO`.
    pub(crate) fn set_size(&self, open: &Open<'_>, size: u64) -> Result<()> {
        let file = open.file();
        let who = own_credentials();
        let attributes = self.set_size_of(open.vnode, &file, size, set::BY_DESCRIPTOR, &who);
        open.set_layout(&by_descriptor(attributes)?);
        Ok(())
    }

    fn set_size_of(
        &self,
        vnode: &Vnode,
        file: &File,
        size: u64,
        mask: u32,
        who: &Credentials,
    ) -> Result<Attributes> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        self.settle(vnode)?;
        let _changing = self.changing(vnode);
        if file.is_inline() && size > self.inline_bytes() {
            let request = Request::MoveOut { inode: file.inode };
            self.call_done(To::Shard(file.inode.shard()), &request, who)?;
        }
        // Told first: who is killed in between must not take with him what was acknowledged.
        self.flush(vnode, file.inode)?;
        // What comes now needs no telling: the new size is absolute.
        // But what it cuts off must be cut off where the bytes are.
        let dirty_end = vnode.dirty_end.swap(0, SeqCst);
        let cuts = if vnode.size.load(SeqCst) > size { set::CUTS } else { 0 };
        let change = Change { mask: set::SIZE | cuts | mask, size, ..Change::default() };
        match self.change(file.inode, &change, who) {
            Ok(attributes) => {
                vnode.size.store(size, SeqCst);
                Ok(attributes)
            }
            Err(errno) => {
                vnode.dirty_end.fetch_max(dirty_end, SeqCst);
                Err(errno)
            }
        }
    }

    /// `truncate(2)`.
    ///
    /// # Errors
    /// As `truncate(2)`.
    pub fn truncate(
        &self,
        at: At<'_>,
        size: u64,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        self.with_found(at, Follow::Yes, who, buffer, |attributes| {
            if attributes.is_directory() {
                return Err(Errno::EISDIR);
            }
            if !attributes.is_regular() {
                return Err(Errno::EINVAL);
            }
            attributes.permits(who, want::WRITE)?;
            let host = self.host()?;
            let index = host.vnode_open(attributes.inode)?;
            let file = File::of(attributes);
            let changed =
                host.vnode(index).and_then(|vnode| self.set_size_of(vnode, &file, size, 0, who));
            self.close_vnode(attributes.inode, index, false);
            changed.map(drop)
        })
    }

    /// `ftruncate(2)`.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    pub fn ftruncate(&self, ofd: OfdIndex, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        let open = match self.open_for(ofd, want::WRITE) {
            // A descriptor of something that can not be written at all.
            Err(Errno::EISDIR) => return Err(Errno::EINVAL),
            Err(Errno::EBADF) if self.opened(ofd).is_ok() => return Err(Errno::EINVAL),
            open => open?,
        };
        self.set_size(&open, size)
    }
}
