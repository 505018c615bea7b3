//! How long an open file is: what this host knows, what the shard was told, and telling it (G7).
//!
//! A writer notes the end of what it wrote in two shared words: first `dirty_end`, then the size. The
//! shard is told at close, fsync, stat, and each 64 MiB. While `dirty_end` is not zero the shard's
//! size and time of modification are old. What becomes of that when somebody cuts the file meanwhile is
//! in `shm::host::lengths`.

use core::sync::atomic::Ordering::SeqCst;
use shm::host::{Cut, Cuts, Vnode};
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::request::set;
use wire::{Attributes, Credentials, Inode, Reply, Request};

use crate::attributes::Change;
use crate::errno::by_descriptor;
use crate::layout::File;
use crate::opened::Open;
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::request::{Patience, To, own_credentials, sleep_micros};
use crate::{Client, OfdIndex};

/// Growth after which the shard is told even though nobody asked: log2 of 64 MiB.
const TELL_LOG2: u32 = 26;

/// Cuts that one write or append may meet and begin anew without a pause.
const AT_ONCE: u32 = 16;
/// Pause before it begins anew, further on.
const PAUSE_MICROS: u64 = 100;
/// Looks for the end of a cut that the shard knows to be over.
const ROUNDS_MAX: u32 = 64;

impl Open<'_> {
    /// The size as this host knows it.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.vnode.size()
    }

    /// Notes that everything before `end` may have been written, by what began when `cuts` was the
    /// count. True if it is time to tell.
    ///
    /// # Errors
    /// `Cut`: write it anew.
    #[inline]
    pub(crate) fn note_written(&self, cuts: Cuts, end: u64) -> core::result::Result<bool, Cut> {
        let before = self.vnode.note_written(cuts, end)?;
        Ok(before.is_some_and(|before| before >> TELL_LOG2 != end >> TELL_LOG2))
    }

    /// Notes that contents changed within the size; if it was cut since, that is news enough.
    pub(crate) fn note_modified(&self) {
        let cuts = self.vnode.cuts();
        let _ = self.vnode.note_written(cuts, 1.min(self.size()));
    }
}

/// What a write or an append does that met a cut: it begins anew, as long as a request may take.
pub(crate) struct Met {
    count: u32,
    patience: Option<Patience>,
}

impl Met {
    pub(crate) const fn new() -> Met {
        Met { count: 0, patience: None }
    }

    /// Before it begins anew.
    ///
    /// # Errors
    /// `EIO` if the file is cut all the time.
    #[cold]
    pub(crate) fn again(&mut self, client: &Client) -> Result<()> {
        self.count = self.count.saturating_add(1);
        if self.count < AT_ONCE {
            return Ok(());
        }
        let patience = self.patience.get_or_insert_with(|| Patience::new(client.timeout_micros()));
        patience.sleep(PAUSE_MICROS)
    }
}

impl Client {
    /// The size, asked of the shard if it may have grown elsewhere.
    pub(crate) fn size_now(&self, open: &Open<'_>) -> Result<u64> {
        let seen = open.vnode.seen();
        let attributes = by_descriptor(self.attributes_of(open.inode))?;
        open.vnode.learn(&seen, attributes.size);
        Ok(seen.size_with(attributes.size))
    }

    /// How often the file was cut, for who is about to change it. Not while it is cut: what is written
    /// then may be cut off, or not.
    ///
    /// # Errors
    /// `EIO`.
    #[inline]
    pub(crate) fn uncut(&self, open: &Open<'_>) -> Result<Cuts> {
        let cuts = open.vnode.cuts();
        if cuts.is_under_way() { self.await_cut(open) } else { Ok(cuts) }
    }

    #[cold]
    fn await_cut(&self, open: &Open<'_>) -> Result<Cuts> {
        for round in 0..ROUNDS_MAX {
            // The shard answers when the targets have cut.
            by_descriptor(self.attributes_of(open.inode))?;
            if !open.vnode.cuts().is_under_way() {
                break;
            }
            if round >= AT_ONCE {
                sleep_micros(PAUSE_MICROS);
            }
        }
        // Nobody cuts for so long; what is written is as if before the cut then.
        Ok(open.vnode.cuts())
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
        let cuts = vnode.cuts();
        let end = vnode.dirty_end.load(SeqCst);
        if end == 0 {
            return Ok(());
        }
        let request = Request::Extend { inode, size: end };
        let answer = self.call(To::Shard(inode.shard()), &request, &own_credentials())?;
        // A shard of this host answers `Done`: it read `dirty_end` itself, and cleared it. So does the
        // daemon where nothing is untold any more. Others can not, so it is done here, unless it was cut
        // and perhaps written to as far as before.
        let is_noted = answer.with(|reply| Ok(matches!(reply, Reply::Done {})))?;
        if !is_noted && vnode.cuts() == cuts {
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
        self.tell_page_keepers(open)
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
        let cuts = vnode.cuts();
        let is_near = self.is_near(file.inode.shard())?;
        let is_counted = is_near || file.is_posix();
        let dirty_end = if is_counted {
            // The shard's worker sees and changes the words himself (`shm::host::lengths`), or a daemon
            // of this host that passes request and answer on.
            0
        } else {
            // Told first: who is killed in between must not take with him what was acknowledged.
            self.flush(vnode, file.inode)?;
            // What comes now needs no telling: the new size is absolute.
            vnode.cut_far()
        };
        // But what it cuts off must be cut off where the bytes are.
        let cuts_off = match (is_near, is_counted) {
            // Who writes until it is counted may make it longer still.
            (false, true) => set::CUTS | set::COUNTED,
            _ if vnode.size() > size => set::CUTS,
            _ => 0,
        };
        let change = Change { mask: set::SIZE | cuts_off | mask, size, ..Change::default() };
        match self.change(file.inode, &change, who) {
            Ok(attributes) => {
                if is_counted {
                    // Not cut, but longer perhaps.
                    let _ = vnode.raise(cuts, size);
                } else {
                    vnode.is_cut_far(size);
                }
                Ok(attributes)
            }
            Err(errno) => {
                if dirty_end != 0 {
                    vnode.dirty_end.fetch_max(dirty_end, SeqCst);
                    // Who told meanwhile found nothing to tell.
                    let _ = self.flush(vnode, file.inode);
                }
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
            self.permits(attributes, who, want::WRITE)?;
            self.take_capability(attributes)?;
            let host = self.host()?;
            let index = host.vnode_open(attributes.inode)?;
            let file = File::of(attributes);
            let changed =
                host.vnode(index).and_then(|vnode| self.set_size_of(vnode, &file, size, 0, who));
            self.close_vnode(attributes.inode, index, false);
            changed?;
            self.tell_page_keepers_of(attributes.inode)
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
        self.take_capability_open(&open)?;
        self.set_size(&open, size)
    }
}
