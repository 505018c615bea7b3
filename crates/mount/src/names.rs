//! Names: looking them up, making, moving and removing them.

use client::{At, Follow, PathBuffer};
use fuse::reply::{Entry, Validity};
use std::time::Duration;
use wire::attributes::spread;
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::limits::SYMLINK_BYTES_MAX;
use wire::watch::Watch;
use wire::{Attributes, Inode};

use crate::answer::{Request, within};
use crate::serve::Scratch;
use crate::watches::VALID;

/// How often a name is looked up whose file is gone each time.
const LOOKS_MAX: u32 = 64;

/// What happens to a wide directory elsewhere is told late.
pub(crate) fn is_told_late(of: &Attributes) -> bool {
    of.is_directory() && of.layout.spread == spread::WIDE
}

impl Request<'_> {
    pub(crate) fn look_up(
        &self,
        name: &[u8],
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let entry = match name {
            b"." | b".." => self.look_by_number(name, &mut scratch.path)?,
            _ => self.look(name, &mut scratch.path)?,
        };
        entry.write(to);
        Ok(())
    }

    /// A node that the kernel has forgotten, and somebody has a handle of (`open_by_handle_at`, NFS); or
    /// where it is. A file without a name is known by who has it open alone.
    fn look_by_number(&self, name: &[u8], path: &mut PathBuffer) -> Result<Entry> {
        let at = if name == b"." { At::itself(self.node()) } else { self.below(name) };
        let found = self.server.client.stat(at, Follow::Never, &self.who(), path)?;
        let found = within(found)?;
        if found.links == 0 {
            return Err(Errno::ESTALE);
        }
        Ok(self.entry(&found, Validity::default()))
    }

    /// What the kernel is told of a name, and for how long.
    ///
    /// # Errors
    /// As `stat`; that there is no such name is no error if the kernel may remember it.
    pub(crate) fn look(&self, name: &[u8], path: &mut PathBuffer) -> Result<Entry> {
        for _ in 0..LOOKS_MAX {
            let is_watched = self.watch_name(name);
            let entry = if is_watched { VALID } else { Duration::ZERO };
            let found = self.server.client.stat(self.below(name), Follow::Never, &self.who(), path);
            let found = match found.and_then(within) {
                Err(Errno::ENOENT) if is_watched => {
                    let validity = Validity { entry, ..Validity::default() };
                    return Ok(Entry { validity, ..Entry::default() });
                }
                found => found?,
            };
            // Who replaces a file that is watched has it held.
            let held = if is_watched { Ok(()) } else { self.server.pin(found.inode) };
            if matches!(held, Err(Errno::ENOENT | Errno::ESTALE)) {
                // Another has the name by now, or none.
                continue;
            }
            if is_told_late(&found) || !self.watch_attributes(found.inode) {
                return Ok(self.entry(&found, Validity { entry, attributes: Duration::ZERO }));
            }
            let at = At::itself(found.inode);
            match self.server.client.stat(at, Follow::Never, &self.who(), path).and_then(within) {
                Ok(now) => return Ok(self.entry(&now, Validity { entry, attributes: VALID })),
                Err(Errno::ENOENT | Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::ESTALE)
    }

    /// The same of a name that was just made.
    fn look_made(&self, name: &[u8], scratch: &mut Scratch, to: &mut Writer<'_>) -> Result<()> {
        let entry = self.look(name, &mut scratch.path)?;
        if entry.node == 0 {
            // Somebody removed it at once.
            return Err(Errno::EIO);
        }
        entry.write(to);
        Ok(())
    }

    /// True if the kernel may remember where a name leads that is looked at after this.
    pub(crate) fn watch_name(&self, name: &[u8]) -> bool {
        let Some((watch, shard)) = self.server.client.watch_of_name(self.node(), name) else {
            return false;
        };
        self.telling.look();
        self.server.watches.watch(self.server.client, watch, shard)
    }

    /// True if the kernel may remember attributes that are looked at after this.
    pub(crate) fn watch_attributes(&self, inode: Inode) -> bool {
        self.note_watch(inode) && self.server.client.is_written_here_alone(inode)
    }

    /// The same, if nobody writes to the file but by this mount, which the caller looks at after this.
    pub(crate) fn note_watch(&self, inode: Inode) -> bool {
        self.telling.look();
        let (client, watch) = (self.server.client, Watch::Attributes(inode));
        self.server.watches.watch(client, watch, inode.shard())
    }

    pub(crate) fn read_link(&self, scratch: &mut Scratch, to: &mut Writer<'_>) -> Result<()> {
        let mut target = [0; SYMLINK_BYTES_MAX];
        let (client, at) = (self.server.client, At::itself(self.node()));
        let length = client.read_link(at, &mut target, &self.who(), &mut scratch.path)?;
        to.raw(target.get(..within(length)?).unwrap_or_default());
        self.note_read(0);
        Ok(())
    }

    pub(crate) fn symlink(
        &self,
        name: &[u8],
        target: &[u8],
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let (client, who) = (self.server.client, self.who());
        within(client.symlink(target, self.below(name), &who, &mut scratch.path)?)?;
        self.look_made(name, scratch, to)
    }

    pub(crate) fn make_node(
        &self,
        name: &[u8],
        mode: u32,
        device: u32,
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let (client, who) = (self.server.client, self.who());
        let major = device >> 8 & 0xfff;
        let minor = device & 0xff | device >> 12 & 0xf_ff00;
        let device = libc::makedev(major, minor);
        within(client.make_node(self.below(name), mode, device, &who, &mut scratch.path)?)?;
        self.look_made(name, scratch, to)
    }

    pub(crate) fn make_directory(
        &self,
        name: &[u8],
        mode: u32,
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let (client, who) = (self.server.client, self.who());
        within(client.make_directory(self.below(name), mode, &who, &mut scratch.path)?)?;
        self.look_made(name, scratch, to)
    }

    pub(crate) fn unlink(&self, name: &[u8], scratch: &mut Scratch) -> Result<()> {
        within(self.server.client.unlink(self.below(name), &self.who(), &mut scratch.path)?)
    }

    pub(crate) fn remove_directory(&self, name: &[u8], scratch: &mut Scratch) -> Result<()> {
        let (client, who) = (self.server.client, self.who());
        within(client.remove_directory(self.below(name), &who, &mut scratch.path)?)
    }

    pub(crate) fn rename(
        &self,
        name: &[u8],
        to: At<'_>,
        flags: u32,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Scratch { path, other } = scratch;
        let (client, who) = (self.server.client, self.who());
        // Whoever just looked the file up that is replaced still finds it.
        let replaced = client.stat(to, Follow::Never, &who, path).and_then(within);
        if let Ok(replaced) = replaced {
            let _ = self.server.pin(replaced.inode);
        }
        within(client.rename(self.below(name), to, flags, &who, (path, other))?)
    }

    pub(crate) fn link(
        &self,
        file: Inode,
        name: &[u8],
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let Scratch { path, other } = scratch;
        let (client, who) = (self.server.client, self.who());
        let from = At::itself(file);
        within(client.link(from, Follow::Never, self.below(name), &who, (path, other))?)?;
        self.look_made(name, scratch, to)
    }
}
