//! Open files. A handle is the number of an open file in the host's table, as programs that are
//! preloaded have them.

use client::{At, Granted, OfdIndex, Opened, Outcome, Position};
use fuse::abi::{flag, open as answer};
use fuse::reply::{self, Validity};
use std::time::Duration;
use wire::Inode;
use wire::codec::Writer;
use wire::errno::{Errno, Result};

use crate::answer::{Request, within};
use crate::attributes::stale;
use crate::serve::Scratch;
use crate::versions::Had;
use crate::watches::VALID;

/// Flags of an open that mean something to the instance.
const ACCESS: u32 = libc::O_ACCMODE as u32;
/// With one of these bytes pass the kernel's pages: as it is asked for, as the file is to be written
/// whole, or as only the instance knows where its end is.
const STRAIGHT: u32 = (libc::O_DIRECT | libc::O_TRUNC | libc::O_APPEND) as u32;

/// The kernel opens it to run it (`__FMODE_EXEC`).
const RUNS: u32 = 0x20;

/// True if a file is cut though it is not opened to write. The kernel looks only afterwards whether a
/// program runs from it.
const fn cuts_unwritten(flags: u32) -> bool {
    !writes(flags) && flags & libc::O_TRUNC as u32 != 0
}

/// True if the kernel opens a file to write.
const fn writes(flags: u32) -> bool {
    flags & ACCESS != libc::O_RDONLY as u32
}

/// Who only writes, or writes all of it, goes straight, with a copy less; who reads finds pages again,
/// and what he himself wrote.
const fn is_straight(flags: u32) -> bool {
    flags & ACCESS == libc::O_WRONLY as u32 || flags & STRAIGHT != 0
}

/// Flags without those that the kernel has carried out: it follows links itself.
const fn own(flags: u32) -> u32 {
    flags & !(libc::O_NOFOLLOW as u32)
}

impl Request<'_> {
    /// `keeps`: the kernel may keep pages, and have kept those of before.
    fn say_opened(
        &self,
        (handle, inode): (u64, Inode),
        flags: u32,
        keeps: Option<bool>,
        to: &mut Writer<'_>,
    ) {
        if keeps.is_none() && writes(flags) {
            self.server.straight.add(inode, handle);
        } else if flags & RUNS != 0 {
            self.server.straight.runs(inode, handle);
        }
        let mut said = match keeps {
            None => answer::DIRECT_IO | answer::PARALLEL_DIRECT_WRITES,
            Some(false) => 0,
            Some(true) => answer::KEEP_CACHE,
        };
        // Its closing is of interest to who has locked ranges of it; that is half as much again as an
        // open and a close take.
        if !writes(flags) && !self.server.locks.has_been_locked(inode) {
            said |= answer::NOFLUSH;
        }
        reply::opened(to, handle, said, 0);
    }

    pub(crate) fn open(&self, flags: u32, kills_ids: bool, to: &mut Writer<'_>) -> Result<()> {
        if cuts_unwritten(flags) && self.server.straight.is_run(self.node()) {
            return Err(Errno::ETXTBSY);
        }
        let mut granted = None;
        let is_straight =
            is_straight(flags) || writes(flags) && self.server.straight.has(self.node());
        let file = if is_straight {
            self.open_node(flags)?
        } else {
            let granted = granted.insert(Granted::default());
            let client = self.server.client;
            let opened = client.open_inode_for_pages(self.node(), own(flags), granted, &self.who());
            within(opened.map_err(stale)?)?
        };
        if kills_ids {
            let _ = self.kill_ids(file.ofd);
        }
        if self.server.through.has(self.node()) {
            self.server.client.set_through(file.ofd);
        }
        let keeps = granted.and_then(|granted| self.may_keep(file, flags, &granted));
        let opened = (self.server.handles.add(file.ofd)?, self.node());
        self.say_opened(opened, flags, keeps, to);
        Ok(())
    }

    /// May the kernel keep pages of a file that is opened? `None`: no. False: what it has of before is
    /// old.
    fn may_keep(&self, file: Opened, flags: u32, granted: &Granted) -> Option<bool> {
        let client = self.server.client;
        if !client.may_keep_pages(file.ofd, granted) {
            return None;
        }
        // An empty one has no pages, and a read of it would not come here.
        let now = granted.attributes.or_else(|| client.fstat(file.ofd).ok());
        let now = now.filter(|now| now.size != 0)?;
        let had = self.server.versions.had(now.inode, now.changed, granted.writers);
        if !self.is_read_late(&now, flags) {
            return Some(had != Had::Others);
        }
        // Its access time is to follow. Reads may not come here where the kernel has what was written.
        if had == Had::Written {
            self.note_read(flags);
            self.server.forget_attributes(self.node());
        }
        Some(had == Had::Written)
    }

    /// Opens the node once more.
    pub(crate) fn open_node(&self, flags: u32) -> Result<Opened> {
        let opened = self.server.client.open_inode(self.node(), own(flags), &self.who());
        within(opened.map_err(stale)?)
    }

    pub(crate) fn create(
        &self,
        name: &[u8],
        flags: u32,
        mode: u32,
        kills_ids: bool,
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let (client, who) = (self.server.client, self.who());
        let flags = flags | (libc::O_CREAT | libc::O_NOFOLLOW) as u32;
        let entry = if self.watch_name(name) { VALID } else { Duration::ZERO };
        let new = flags | libc::O_EXCL as u32;
        let made = match client.open(self.below(name), new, mode, &who, &mut scratch.path) {
            Err(Errno::EEXIST) if flags != new => self.open_met(name, (flags, mode), scratch)?,
            made => made?,
        };
        let file = match made {
            Outcome::Done(file) => file,
            Outcome::Outside => return Err(Errno::EIO),
            // The kernel opens it itself once it knows what it is.
            Outcome::Special(_) => return Err(Errno::ESTALE),
        };
        if kills_ids {
            let _ = client.kill_set_id(file.ofd, |gid| self.may_keep_set_gid(gid));
        }
        self.say_created(file, flags, (name, entry), to)
    }

    /// Opens a file that was not there when the kernel looked, so it has not checked who may open it. He
    /// does so with his own rights. Where these can not be known or do not suffice the kernel looks
    /// again.
    fn open_met(
        &self,
        name: &[u8],
        (flags, mode): (u32, u32),
        scratch: &mut Scratch,
    ) -> Result<Outcome<Opened>> {
        let who = self.who_unchecked().ok_or(Errno::ESTALE)?;
        let met = self.server.client.open(self.below(name), flags, mode, &who, &mut scratch.path);
        met.map_err(|errno| match errno {
            Errno::EACCES | Errno::EPERM | Errno::ELOOP => Errno::ESTALE,
            other => other,
        })
    }

    /// With the name that was made, and how long it may be believed.
    fn say_created(
        &self,
        file: Opened,
        flags: u32,
        (name, entry): (&[u8], Duration),
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let client = self.server.client;
        let inode = client.inode_of(file.ofd)?;
        let handle = self.server.handles.add(file.ofd)?;
        if client.is_through(file.ofd) {
            self.server.through.note(inode, true);
        }
        let is_noted = self.note_watch(inode);
        let (made, is_alone) = match client.attributes_of_made(file.ofd, name, &self.who()) {
            Some((attributes, is_alone)) => (Ok(attributes), is_alone),
            None => (client.fstat(file.ofd), client.is_written_here_alone(inode)),
        };
        match made {
            Ok(attributes) => {
                let valid = if is_noted && is_alone { VALID } else { Duration::ZERO };
                let validity = Validity { entry, attributes: valid };
                self.entry(&attributes, validity).write(to);
                self.say_opened((handle, inode), flags, None, to);
                Ok(())
            }
            Err(errno) => {
                let _ = self.server.handles.close(handle);
                Err(errno)
            }
        }
    }

    pub(crate) fn temporary_file(
        &self,
        flags: u32,
        mode: u32,
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let (client, who) = (self.server.client, self.who());
        let flags = flags | libc::O_TMPFILE as u32;
        let at = At::itself(self.node());
        let file = within(client.open(at, flags, mode, &who, &mut scratch.path)?)?;
        self.say_created(file, flags, (b"", Duration::ZERO), to)
    }

    pub(crate) fn read(
        &self,
        handle: u64,
        (offset, size): (u64, u32),
        flags: u32,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let ofd = self.opened(handle)?;
        let client = self.server.client;
        self.read_pages(ofd, flags, || {
            to.fill(size as usize, |room| client.read(ofd, room, Position::At(offset)))
        })?;
        self.note_read(client.flags(ofd)?);
        Ok(())
    }

    pub(crate) fn write(
        &self,
        handle: u64,
        offset: u64,
        flags: u32,
        data: &[u8],
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let (client, ofd) = (self.server.client, self.opened(handle)?);
        if flags & flag::WRITE_KILL_SUIDGID != 0 {
            self.kill_ids(ofd)?;
        }
        let write = || client.write(ofd, data, Position::At(offset));
        let count = self.write_pages(ofd, (offset, flags), write)?;
        reply::count(to, count as u32);
        Ok(())
    }

    /// Takes set-id bits away, which who opens or writes may not keep. The kernel, which asks for that
    /// and remembers the mode all the same, is told.
    fn kill_ids(&self, ofd: OfdIndex) -> Result<()> {
        if self.server.client.kill_set_id(ofd, |gid| self.may_keep_set_gid(gid))? {
            self.server.forget_attributes(self.node());
        }
        Ok(())
    }

    /// The last descriptor is closed. Nobody learns what goes wrong now: `flush` came before.
    pub(crate) fn release(&self, handle: u64) -> Result<()> {
        self.server.straight.remove(self.node(), handle);
        self.server.handles.close(handle)
    }

    /// A descriptor is closed: others see how long the file is.
    pub(crate) fn flush(&self, handle: u64) -> Result<()> {
        let (client, ofd) = (self.server.client, self.opened(handle)?);
        self.server.straight.leaves(self.node(), handle);
        client.tell_size(ofd)?;
        // What the kernel has of it was written by itself: the next one who opens it finds that.
        if writes(client.flags(ofd)?)
            && client.keeps_pages(ofd)?
            && !client.shares_pages(ofd)?
            && let Ok(now) = client.fstat(ofd)
        {
            self.server.versions.wrote(now.inode, now.changed);
        }
        Ok(())
    }

    pub(crate) fn sync(&self, handle: u64) -> Result<()> {
        self.server.client.sync_here(self.opened(handle)?)
    }

    pub(crate) fn allocate(&self, handle: u64, offset: u64, length: u64, mode: u32) -> Result<()> {
        let file = self.opened(handle)?;
        // The kernel does not say here whether the bits have to go.
        if self.header.uid != 0 {
            self.kill_ids(file)?;
        }
        self.server.client.allocate(file, mode, offset, length)
    }

    pub(crate) fn seek(
        &self,
        handle: u64,
        offset: u64,
        whence: u32,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let found = self.server.client.seek(self.opened(handle)?, offset.cast_signed(), whence)?;
        reply::offset(to, found);
        Ok(())
    }
}
