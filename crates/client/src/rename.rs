//! Rename, and the path of a directory: what looks at the tree upwards.

use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::limits::PATH_BYTES_MAX;
use wire::request::rename;
use wire::{Attributes, Credentials, Inode, Request};

use crate::directory::ENTRIES_BYTES;
use crate::errno::{by_path, existing};
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::request::To;
use crate::walk::{Last, Look, Looked, Sight, Walk};
use crate::{Client, OfdIndex};

/// Deepest directory whose ancestors are looked at: a path of 4 KiB has no more components.
const DEPTH_MAX: u32 = 2048;

impl Client {
    /// `renameat2(2)`. After `Outcome::Outside` ask both buffers which path left the instance.
    ///
    /// # Errors
    /// As `rename(2)`.
    pub fn rename(
        &self,
        from: At<'_>,
        to: At<'_>,
        flags: u32,
        who: &Credentials,
        (from_buffer, to_buffer): (&mut PathBuffer, &mut PathBuffer),
    ) -> Result<Outcome<()>> {
        let known = rename::NO_REPLACE | rename::EXCHANGE;
        if flags & !known != 0 || flags & known == known {
            return Err(Errno::EINVAL);
        }
        from_buffer.way.clear();
        to_buffer.way.clear();
        let old = self.walk(from, Follow::Never, Look::Surely, who, from_buffer)?;
        let look = if flags & rename::EXCHANGE == 0 { Look::Index } else { Look::Surely };
        let new = self.walk(to, Follow::Never, look, who, to_buffer)?;
        match (old, new) {
            (Outcome::Done(old), Outcome::Done(new)) => {
                self.rename_walked(&old, &new, flags, who).map(Outcome::Done)
            }
            _ => Ok(Outcome::Outside),
        }
    }

    fn rename_walked(
        &self,
        old: &Walk<'_>,
        new: &Walk<'_>,
        flags: u32,
        who: &Credentials,
    ) -> Result<()> {
        if old.last != Last::Name || new.last != Last::Name {
            return Err(Errno::EBUSY);
        }
        let Looked::Found(moved) = old.found else { return Err(Errno::ENOENT) };
        let is_exchange = flags & rename::EXCHANGE != 0;
        let replaced = match new.found {
            Looked::Found(file) => Some(*file),
            Looked::Absent if is_exchange => return Err(Errno::ENOENT),
            _ if new.parent.mode & mode::STICKY != 0 => {
                self.look_for_removal(new, who).or_else(absent_is_none)?
            }
            _ => None,
        };
        if flags & rename::NO_REPLACE != 0 && replaced.is_some() {
            return Err(Errno::EEXIST);
        }
        let other_is_directory = is_exchange && replaced.is_some_and(|file| file.is_directory());
        if !moved.is_directory() && (old.slash || (new.slash && !other_is_directory)) {
            return Err(Errno::ENOTDIR);
        }
        self.may_remove(old.parent, Some(moved), who)?;
        match &replaced {
            Some(file) => self.may_remove(new.parent, Some(file), who)?,
            None => self.may_change(new.parent, who)?,
        }
        let is_same_place = old.parent.inode == new.parent.inode;
        if moved.is_directory() && !is_same_place {
            // Its `..` changes, which is a write to the directory itself.
            self.permits(moved, who, want::WRITE)?;
            self.check_not_below(moved, new.parent)?;
        }
        if let Some(file) = replaced.filter(|file| is_exchange && file.is_directory()) {
            self.check_not_below(&file, old.parent)?;
        }
        let request = Request::Rename {
            parent: old.parent.inode,
            name: old.name,
            new_parent: new.parent.inode,
            new_name: new.name,
            flags,
        };
        let shard = old.entry.shard;
        let done = by_path(self.call_done(To::Shard(shard), &request, who));
        if done == Err(Errno::EISDIR) && !moved.is_directory() {
            // A directory that is above the file is not empty, and that is said first.
            let mut above = Attributes::default();
            if self.look(new.parent, new.name, who, &mut above)? == Sight::Found {
                self.check_not_below(&above, old.parent).map_err(|_| Errno::ENOTEMPTY)?;
            }
        }
        done
    }

    /// A directory can not become its own descendant.
    fn check_not_below(&self, directory: &Attributes, place: &Attributes) -> Result<()> {
        let mut here = *place;
        for _ in 0..DEPTH_MAX {
            if here.inode == directory.inode {
                return Err(Errno::EINVAL);
            }
            if here.inode == Inode::ROOT {
                return Ok(());
            }
            here = by_path(self.attributes_of(here.parent))?;
        }
        Err(Errno::ELOOP)
    }

    /// The path of a directory, found from its parents' listings. Slow: `getcwd` keeps the path it
    /// came by, and asks here only when it came by none. `PathBuffer::outside` is the result.
    ///
    /// # Errors
    /// `ENOENT` if it was removed, `ENAMETOOLONG`, `EIO`.
    pub fn path_of(&self, directory: Inode, buffer: &mut PathBuffer) -> Result<()> {
        buffer.way.clear();
        let mut here = by_path(self.attributes_of(directory))?;
        for _ in 0..DEPTH_MAX {
            if here.inode == Inode::ROOT {
                return buffer.way.put_before(self.prefix());
            }
            let parent = by_path(self.attributes_of(here.parent))?;
            self.name_in(&parent, here.inode, buffer)?;
            here = parent;
        }
        Err(Errno::ENAMETOOLONG)
    }

    /// The path by which an open file was found, if it still has that name in that directory.
    ///
    /// # Errors
    /// `ENOENT` if it has not, `EBADF`, `EIO`.
    pub fn path_of_open(&self, ofd: OfdIndex, buffer: &mut PathBuffer) -> Result<()> {
        let open = self.opened(ofd)?;
        if open.mode() & mode::TYPE == mode::DIRECTORY {
            return self.path_of(open.inode, buffer);
        }
        let parent = existing(open.parent()).and_then(|parent| self.attributes_of(parent));
        let parent = parent.map_err(|_| Errno::ENOENT)?;
        self.path_of(parent.inode, buffer)?;
        let mut directory = [0; PATH_BYTES_MAX];
        let length = buffer.outside().len();
        let to = directory.get_mut(..length).ok_or(Errno::ENAMETOOLONG)?;
        to.copy_from_slice(buffer.outside());
        buffer.way.clear();
        self.name_in(&parent, open.inode, buffer)?;
        buffer.way.put_before(directory.get(..length).unwrap_or(&[]))
    }

    /// Puts the name that `inode` has in `parent` before what is in the buffer.
    fn name_in(&self, parent: &Attributes, inode: Inode, buffer: &mut PathBuffer) -> Result<()> {
        let (mut after, mut found) = (0, Err(Errno::ENOENT));
        self.each_part(parent, 0, |shard| {
            self.read_part(parent.inode, shard, after, ENTRIES_BYTES, &mut |entry| {
                if entry.inode == inode {
                    found = buffer.way.put_component_before(entry.name);
                    return false;
                }
                after = entry.next;
                true
            })
        })?;
        found
    }
}

fn absent_is_none(errno: Errno) -> Result<Option<Attributes>> {
    if errno == Errno::ENOENT { Ok(None) } else { Err(errno) }
}
