//! Pages of files that the kernel behind a mount keeps: when it may, and who has them dropped.
//!
//! Marks in the row of an open file say who of this host writes to it, which mounts' kernels may have
//! pages of it, and what other hosts do (`shm::host::watches::pages`); what they do with a file that is
//! not open here stands beside the rows (`shm::host::pages`), on the host of its shard. Who opens a file
//! of another host is told by its shard.
//!
//! Orders, of which each lets one of two see the other. Who begins to write: marks his row, is counted
//! among those who ever wrote, looks who keeps pages. Who keeps pages: reads that count, marks his row,
//! looks who writes. Who wrote looks behind his bytes whether anybody keeps pages; who fills pages marks
//! his row before he reads.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use shm::host::Vnode;
use shm::host::watches::pages;
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::reply::opened;
use wire::request::open;
use wire::{Attributes, Credentials, Inode, Reply, Request};

use crate::opened::{Open, o};
use crate::request::{To, own_credentials};
use crate::{Client, OfdIndex};

/// What an open says to who would have a kernel keep pages of the file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Granted {
    /// The file's attributes, if its shard is on another host.
    pub attributes: Option<Attributes>,
    /// How often somebody had begun to write to it before this open, and with it. If that is the same
    /// number as with an earlier open, nobody wrote between. `u64::MAX`: nobody knows.
    pub writers: (u64, u64),
    /// The shard says that pages may be kept, if it is on another host.
    may: bool,
}

impl Granted {
    /// By whom and how often a file of this host was written when it was opened.
    pub(crate) fn near(before: u64, now: u64, writes: bool) -> Granted {
        let is_only = now == before.wrapping_add(u64::from(writes));
        let writers = if is_only { (before, now) } else { (u64::MAX, u64::MAX) };
        Granted { attributes: None, writers, may: true }
    }
}

impl Client {
    /// Tells a shard of another host that a file is open on this one, after it was counted in. `extra`:
    /// further bits of `wire::request::open`.
    pub(crate) fn tell_opened(
        &self,
        (inode, vnode): (Inode, &Vnode),
        (flags, extra): (u32, u8),
        who: &Credentials,
    ) -> Result<(Attributes, Granted)> {
        let turn = self.host()?.draw_turn();
        let writes = flags & o::ACCESS != 0 && flags & o::PATH == 0;
        if writes {
            self.mark_writer(vnode);
        }
        let uses = extra | if writes { open::WRITES } else { 0 };
        let request = Request::Open { inode, turn, uses };
        let answer = self.call(To::Shard(inode.shard()), &request, who)?;
        let (attributes, writers, others) = answer.with(|reply| match reply {
            Reply::Opened { attributes, writers, others } => Ok((attributes, writers, others)),
            _ => Err(Errno::EIO),
        })?;
        if others & opened::OTHERS_KEEP != 0 {
            vnode.marks.fetch_or(pages::OTHERS_KEEP, SeqCst);
        }
        if extra & open::MAPS != 0 && others & opened::OTHERS_WRITE != 0 {
            vnode.marks.fetch_or(pages::OTHERS_WRITE, SeqCst);
        }
        let may = others & opened::MAY_KEEP != 0;
        let writers = (writers, writers.wrapping_add(u64::from(writes)));
        Ok((attributes, Granted { attributes: Some(attributes), writers, may }))
    }

    /// Counts who begins to write to a file of this host, and has said so in its row. True if somebody
    /// keeps pages of it.
    pub(crate) fn begin_writing(&self, inode: Inode, vnode: &Vnode) -> Result<bool> {
        let host = self.host()?;
        host.begin_writing(inode);
        let own = pages::keepers_but(vnode.marks.load(SeqCst), self.mount());
        Ok(own != 0 || host.others_use(inode) & opened::OTHERS_KEEP != 0)
    }

    /// Has all kernels forget what they remember of a file, and its pages, but that of this mount.
    ///
    /// # Errors
    /// As `call`.
    pub(crate) fn unwatch_file(&self, inode: Inode, vnode: Option<&Vnode>) -> Result<()> {
        let (to, request) = (To::Shard(inode.shard()), Request::Unwatch { inode });
        let others = self.call(to, &request, &own_credentials())?.with(|reply| match reply {
            Reply::Number { value } => Ok(value),
            _ => Err(Errno::EIO),
        })?;
        if let Some(vnode) = vnode.filter(|_| others & u64::from(opened::OTHERS_KEEP) != 0) {
            vnode.marks.fetch_or(pages::OTHERS_KEEP, SeqCst);
        }
        Ok(())
    }

    /// True if nobody but this mount, as far as the marks say, writes to a file.
    fn writes_alone(&self, marks: u64) -> bool {
        self.may_keep(marks) && marks & pages::OTHERS_WRITE == 0
    }

    fn others_write(&self, inode: Inode) -> bool {
        let uses = self.host().map_or(opened::OTHERS_WRITE, |host| host.others_use(inode));
        uses & opened::OTHERS_WRITE != 0
    }

    /// May the kernel of this mount keep pages of a file that is opened by `ofd`? Not while somebody else
    /// writes to it.
    #[must_use]
    pub fn may_keep_pages(&self, ofd: OfdIndex, granted: &Granted) -> bool {
        let Ok(open) = self.opened(ofd) else { return false };
        let Ok(is_near) = self.is_near(open.inode.shard()) else { return false };
        if open.mode() & mode::TYPE != mode::REGULAR
            || !granted.may
            || is_near && self.others_write(open.inode)
        {
            return false;
        }
        // It may have some of before.
        let entered = if is_near { 0 } else { pages::ENTERED };
        let own = pages::EVER | pages::keeper(self.mount()) | entered;
        let kept = |marks| self.writes_alone(marks).then_some(marks | own);
        if open.vnode.marks.fetch_update(SeqCst, SeqCst, kept).is_err() {
            return false;
        }
        if !is_near {
            return true;
        }
        // Who comes from now on finds the mark.
        let may = !self.others_write(open.inode);
        if may {
            open.vnode.marks.fetch_or(pages::ENTERED, SeqCst);
        }
        may
    }

    /// Before bytes are read into pages of this mount's kernel, or written that it has there.
    ///
    /// # Errors
    /// `EBADF`, and as `call` if others write to it, who are to know of that.
    pub fn note_pages(&self, ofd: OfdIndex) -> Result<()> {
        let open = self.opened(ofd)?;
        let own = pages::EVER | pages::keeper(self.mount()) | pages::ENTERED;
        let marks = open.vnode.marks.load(SeqCst);
        if marks & own == own {
            return Ok(());
        }
        if marks & pages::ENTERED == 0 {
            self.enter_pages(&open)?;
        }
        open.vnode.marks.fetch_or(own, SeqCst);
        Ok(())
    }

    /// Pages come of a file of which they are not kept: by a mapping, beside others who write perhaps.
    #[cold]
    fn enter_pages(&self, open: &Open<'_>) -> Result<()> {
        if self.is_near(open.inode.shard())? {
            // Who begins to write on another host from now on is told of it.
            open.vnode.marks.fetch_or(pages::EVER | pages::keeper(self.mount()), SeqCst);
            if !self.others_write(open.inode) {
                return Ok(());
            }
        }
        let to = (open.inode, open.vnode);
        self.tell_opened(to, (0, open::MAPS), &own_credentials()).map(drop)
    }

    /// True if the kernel of this mount may have pages of a file.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn keeps_pages(&self, ofd: OfdIndex) -> Result<bool> {
        Ok(self.opened(ofd)?.vnode.marks.load(SeqCst) & pages::keeper(self.mount()) != 0)
    }

    /// True if others write to a file of which this mount's kernel may have pages: they might do so
    /// without a word, by a mapping.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn shares_pages(&self, ofd: OfdIndex) -> Result<bool> {
        let marks = self.opened(ofd)?.vnode.marks.load(SeqCst);
        Ok(marks & pages::keeper(self.mount()) != 0 && !self.writes_alone(marks))
    }

    /// The kernel of this mount has dropped all pages of a file.
    pub fn drop_pages(&self, inode: Inode) {
        let Ok(host) = self.host() else { return };
        if let Some(row) = host.vnode_find(inode).and_then(|row| host.vnode(row).ok()) {
            row.marks.fetch_and(!pages::keeper(self.mount()), SeqCst);
        }
    }

    /// Bytes of an open file changed: kernels of other mounts drop what they have of it.
    ///
    /// # Errors
    /// As `call`.
    #[inline]
    pub(crate) fn tell_page_keepers(&self, open: &Open<'_>) -> Result<()> {
        // Who has it open to write is in the marks; from then on it is not opened so.
        if open.vnode.marks.load(Relaxed) & (pages::EVER | pages::OTHERS_KEEP) == 0 {
            return Ok(());
        }
        self.tell_keepers_of(open.inode, open.vnode)
    }

    #[cold]
    fn tell_keepers_of(&self, inode: Inode, vnode: &Vnode) -> Result<()> {
        fence(SeqCst);
        let marks = vnode.marks.load(SeqCst);
        if pages::keepers_but(marks, self.mount()) == 0 && marks & pages::OTHERS_KEEP == 0 {
            return Ok(());
        }
        self.unwatch_file(inode, Some(vnode))
    }

    /// Bytes arrived on other hosts that were written before: those who read them meanwhile drop them.
    ///
    /// # Errors
    /// As `call`.
    pub(crate) fn tell_of_arrived(&self, open: &Open<'_>) -> Result<()> {
        if open.vnode.marks.load(SeqCst) & pages::OTHERS_KEEP == 0 {
            return Ok(());
        }
        self.tell_keepers_of(open.inode, open.vnode)
    }

    /// As `tell_page_keepers`, of a file that was cut by its name.
    pub(crate) fn tell_page_keepers_of(&self, inode: Inode) -> Result<()> {
        let host = self.host()?;
        if !self.is_near(inode.shard())? {
            return self.unwatch_file(inode, None);
        }
        host.begin_writing(inode);
        if host.others_use(inode) & opened::OTHERS_KEEP != 0 {
            return self.unwatch_file(inode, None);
        }
        match host.vnode_find(inode).and_then(|row| host.vnode(row).ok()) {
            Some(vnode) if vnode.marks.load(SeqCst) & pages::EVER != 0 => {
                self.tell_keepers_of(inode, vnode)
            }
            _ => Ok(()),
        }
    }
}
