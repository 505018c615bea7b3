//! Names: looking them up, making, moving and removing them.

use client::{At, Client, Follow, Looked, PathBuffer};
use fuse::reply::{Entry, Validity};
use std::time::Duration;
use wire::attributes::spread;
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::limits::SYMLINK_BYTES_MAX;
use wire::request::rename;
use wire::watch::Watch;
use wire::{Attributes, Inode, ShardIndex};

use crate::answer::{Request, within};
use crate::attributes::stale;
use crate::nodes::BELOW_NAME;
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
            _ if self.server.is_above(self.header.node) => {
                self.look_below(name, &mut scratch.path)?
            }
            b"." | b".." => self.look_by_number(name, &mut scratch.path)?,
            _ => self.look(name, &mut scratch.path)?,
        };
        entry.write(to);
        Ok(())
    }

    /// The instance's root, in the kernel's.
    fn look_below(&self, name: &[u8], path: &mut PathBuffer) -> Result<Entry> {
        if name == BELOW_NAME.as_bytes() {
            self.look_by_number(b".", path)
        } else {
            Err(Errno::ENOENT)
        }
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
            if let Some(shard) = self.far_shard(name) {
                match self.look_far(name, shard, path) {
                    Err(Errno::ESTALE) => continue,
                    said => return said,
                }
            }
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
            self.server.places.note(&found);
            let looked = self.look_at(&found, path).and_then(|(now, attributes)| {
                // The shard keeps a file that is watched and replaced.
                self.note_through(self.node(), &now);
                let is_kept = is_watched && !attributes.is_zero();
                if is_kept { Ok(()) } else { self.server.pin(found.inode).map_err(stale) }?;
                Ok(self.entry(&now, Validity { entry, attributes }))
            });
            // Another has the name by now, or none.
            if looked != Err(Errno::ESTALE) {
                return looked;
            }
        }
        Err(Errno::ESTALE)
    }

    /// The attributes of what was found, and how long the kernel may remember them.
    ///
    /// # Errors
    /// `ESTALE` if it is gone.
    fn look_at(&self, found: &Attributes, path: &mut PathBuffer) -> Result<(Attributes, Duration)> {
        let client = self.server.client;
        if client.is_far(found.inode.shard()) {
            return self.look_at_far(found.inode, None);
        }
        if is_told_late(found) || !self.watch_attributes(found.inode) {
            return Ok((*found, Duration::ZERO));
        }
        let now = client.stat(At::itself(found.inode), Follow::Never, &self.who(), path);
        Ok((now.and_then(within).map_err(stale)?, VALID))
    }

    /// The same of an inode of another host. `first`: what its shard just said.
    ///
    /// # Errors
    /// As `look_at`.
    pub(crate) fn look_at_far(
        &self,
        inode: Inode,
        first: Option<Looked>,
    ) -> Result<(Attributes, Duration)> {
        self.telling.look();
        let client = self.server.client;
        let is_noted = self.server.watches.watch_far(client, Watch::Attributes(inode));
        let (found, stays) = client.look_at_far(inode, first)?;
        self.server.places.note(&found);
        Ok((found, if is_noted && stays { VALID } else { Duration::ZERO }))
    }

    /// What a shard of another host says of a name.
    ///
    /// # Errors
    /// `ESTALE` if it leads to what is gone by now.
    fn look_far(&self, name: &[u8], shard: ShardIndex, path: &mut PathBuffer) -> Result<Entry> {
        self.telling.look();
        let client = self.server.client;
        let seen = client.ask_look(self.node(), name, shard)?;
        let entry = if seen.name_stays { VALID } else { Duration::ZERO };
        if seen.inode.is_none() {
            let validity = Validity { entry, ..Validity::default() };
            return match seen.name_stays {
                true => Ok(Entry { validity, ..Entry::default() }),
                false => Err(Errno::ENOENT),
            };
        }
        let (found, attributes) = if client.is_far(seen.inode.shard()) {
            self.look_at_far(seen.inode, Some(seen).filter(|seen| seen.attributes.is_some()))?
        } else {
            let found = client.stat(At::itself(seen.inode), Follow::Never, &self.who(), path);
            self.look_at(&found.and_then(within).map_err(stale)?, path)?
        };
        self.note_through(self.node(), &found);
        Ok(self.entry(&found, Validity { entry, attributes }))
    }

    /// The shard of a name, if it is on another host.
    fn far_shard(&self, name: &[u8]) -> Option<ShardIndex> {
        let (client, parent) = (self.server.client, self.node());
        if client.has_one_host() {
            return None;
        }
        let known = client.layout_at_hand(parent).or_else(|| self.server.places.get(parent));
        let layout = match known {
            Some(layout) => layout,
            None if !client.is_far(parent.shard()) => return None,
            None => self.look_at_far(parent, None).ok()?.0.layout,
        };
        let (_, shard) = Client::watch_of_name(parent, &layout, name);
        client.is_far(shard).then_some(shard)
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

    /// True if the kernel may remember where a name leads, of a shard of this host, that is looked at
    /// after this.
    pub(crate) fn watch_name(&self, name: &[u8]) -> bool {
        self.watch_name_in(self.node(), name)
    }

    fn watch_name_in(&self, parent: Inode, name: &[u8]) -> bool {
        let client = self.server.client;
        let known = client.layout_at_hand(parent).or_else(|| self.server.places.get(parent));
        let Some(layout) = known else { return false };
        let (watch, shard) = Client::watch_of_name(parent, &layout, name);
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
        let client = self.server.client;
        self.removing(|who| within(client.unlink(self.below(name), who, &mut scratch.path)?))
    }

    pub(crate) fn remove_directory(&self, name: &[u8], scratch: &mut Scratch) -> Result<()> {
        let (client, path) = (self.server.client, &mut scratch.path);
        self.removing(|who| within(client.remove_directory(self.below(name), who, path)?))
    }

    pub(crate) fn rename(
        &self,
        name: &[u8],
        to: At<'_>,
        flags: u32,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Scratch { path, other } = scratch;
        let client = self.server.client;
        // The kernel takes what it remembers of a name along to the other.
        let _ = self.watch_name_in(to.base, to.path);
        if flags & rename::EXCHANGE != 0 {
            let _ = self.watch_name(name);
        }
        self.removing(|who| {
            within(client.rename(self.below(name), to, flags, who, (&mut *path, other))?)
        })?;
        let exchanged = self.below(name);
        let both = [Some(to), (flags & rename::EXCHANGE != 0).then_some(exchanged)];
        self.note_renamed(both, path);
        Ok(())
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
