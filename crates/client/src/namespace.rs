//! Names: making directories, nodes, links and symbolic links, removing them, reading links, and
//! the path of a directory.
//!
//! The shard of an entry may not own the inode of its directory, so the permissions of the
//! directory are checked here, where its attributes are at hand.

use shm::host::VnodeIndex;
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::limits::SYMLINK_BYTES_MAX;
use wire::request::{create, made, open};
use wire::{Attributes, Credentials, Inode, Layout, Reply, Request};

use crate::again::Looks;
use crate::errno::by_path;
use crate::layout::heir;
use crate::opened::{mark, o};
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::request::To;
use crate::walk::{Last, Look, Looked, Sight, Walk};
use crate::{Client, OfdIndex};

/// What a new name gets, besides its place.
struct New<'a> {
    /// As in `made`.
    mode: u32,
    device: u64,
    target: &'a [u8],
}

/// Flags of `Request::Create` for an open with `flags`; the shard of another host registers it as well.
pub(crate) fn flags_of_creation(flags: u32, is_far: bool) -> u32 {
    let exclusive = if flags & o::EXCLUSIVE != 0 { create::EXCLUSIVE } else { 0 };
    match (is_far, flags & o::ACCESS) {
        (false, _) => exclusive,
        (true, 0) => exclusive | create::OPEN,
        (true, _) => exclusive | create::OPEN | create::WRITES,
    }
}

impl Client {
    /// May `who` make the last name of a walk for a file of this mode, as far as that is known here? That
    /// it exists is said before any other reason, so it is looked for where there is one.
    fn may_make(&self, walk: &Walk<'_>, mode: u32, who: &Credentials) -> Result<()> {
        let exists = match walk.found {
            Looked::Found(_) => true,
            Looked::Absent | Looked::Unknown => walk.last != Last::Name,
        };
        if exists {
            return Err(Errno::EEXIST);
        }
        let may = match walk.slash && mode & mode::TYPE != mode::DIRECTORY {
            true => Err(Errno::ENOENT),
            false => self.may_change(walk.parent, who),
        };
        if may.is_err() && walk.found == Looked::Unknown {
            let mut found = Attributes::default();
            if self.look(walk.parent, walk.name, who, &mut found)? == Sight::Found {
                return Err(Errno::EEXIST);
            }
        }
        may
    }

    /// Makes a name that must not exist.
    fn make(
        &self,
        at: At<'_>,
        new: &New<'_>,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        let walked = self.walk(at, Follow::Never, Look::Index, who, buffer)?;
        walked.and(|walk| {
            self.may_make(&walk, new.mode, who)?;
            let (heir, mode) = heir(walk.parent, who, new.mode);
            let request = Request::Create {
                parent: walk.parent.inode,
                name: walk.name,
                mode,
                device: new.device,
                flags: create::EXCLUSIVE,
                layout: self.layout_of_child(walk.parent, mode)?,
                target: new.target,
            };
            let shard = walk.entry.shard;
            by_path(self.call_done(To::Shard(shard), &request, &heir))
        })
    }

    /// `mkdirat(2)`; `mode` as in `made`.
    ///
    /// # Errors
    /// As `mkdir(2)`.
    pub fn make_directory(
        &self,
        at: At<'_>,
        mode: u32,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        // Of the bits above the permissions Linux takes the sticky one only.
        let mode = mode::DIRECTORY | mode & (0o777 | mode::STICKY | made::UMASK);
        self.make(at, &New { mode, device: 0, target: &[] }, who, buffer)
    }

    /// `mknodat(2)`: any kind but a directory. No type bits: a regular file. `mode` as in `made`.
    ///
    /// # Errors
    /// As `mknod(2)`.
    pub fn make_node(
        &self,
        at: At<'_>,
        mode: u32,
        device: u64,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        let kind = match mode & mode::TYPE {
            0 => mode::REGULAR,
            mode::DIRECTORY => return Err(Errno::EPERM),
            mode::CHARACTER | mode::BLOCK if !who.is_privileged() => return Err(Errno::EPERM),
            kind @ (mode::REGULAR | mode::FIFO | mode::SOCKET | mode::CHARACTER | mode::BLOCK) => {
                kind
            }
            _ => return Err(Errno::EINVAL),
        };
        let is_device = kind == mode::CHARACTER || kind == mode::BLOCK;
        let device = if is_device { device } else { 0 };
        let mode = kind | mode & (mode::PERMISSIONS | made::UMASK);
        self.make(at, &New { mode, device, target: &[] }, who, buffer)
    }

    /// `symlinkat(2)`.
    ///
    /// # Errors
    /// As `symlink(2)`.
    pub fn symlink(
        &self,
        target: &[u8],
        at: At<'_>,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        if target.is_empty() {
            return Err(Errno::ENOENT);
        }
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let new = New { mode: mode::SYMLINK | 0o777, device: 0, target };
        self.make(at, &new, who, buffer)
    }

    /// `unlinkat(2)` of what is no directory.
    ///
    /// # Errors
    /// As `unlink(2)`.
    pub fn unlink(
        &self,
        at: At<'_>,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        let walked = self.walk(at, Follow::Never, Look::Index, who, buffer)?;
        walked.and(|walk| {
            if walk.last != Last::Name {
                return Err(Errno::EISDIR);
            }
            let found = self.look_for_removal(&walk, who)?;
            match found {
                Some(file) if file.is_directory() => return Err(Errno::EISDIR),
                Some(_) if walk.slash => return Err(Errno::ENOTDIR),
                _ => {}
            }
            self.may_remove(walk.parent, found.as_ref(), who)?;
            if found.is_some_and(|file| self.post_unlink(&walk, &file)) {
                return Ok(());
            }
            let shard = walk.entry.shard;
            let request = Request::Unlink { parent: walk.parent.inode, name: walk.name };
            by_path(self.call_done(To::Shard(shard), &request, who))
        })
    }

    /// `rmdir(2)`.
    ///
    /// # Errors
    /// As `rmdir(2)`.
    pub fn remove_directory(
        &self,
        at: At<'_>,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        let walked = self.walk(at, Follow::Never, Look::Index, who, buffer)?;
        walked.and(|walk| {
            match walk.last {
                Last::Name => {}
                Last::Dot if walk.parent.inode == Inode::ROOT => return Err(Errno::EBUSY),
                Last::Dot => return Err(Errno::EINVAL),
                Last::DotDot => return Err(Errno::ENOTEMPTY),
            }
            let found = self.look_for_removal(&walk, who)?;
            if found.is_some_and(|file| !file.is_directory()) {
                return Err(Errno::ENOTDIR);
            }
            self.may_remove(walk.parent, found.as_ref(), who)?;
            let shard = walk.entry.shard;
            let request = Request::RemoveDirectory { parent: walk.parent.inode, name: walk.name };
            by_path(self.call_done(To::Shard(shard), &request, who))
        })
    }

    /// What is about to be removed: `None` if the shard may find out.
    pub(crate) fn look_for_removal(
        &self,
        walk: &Walk<'_>,
        who: &Credentials,
    ) -> Result<Option<Attributes>> {
        match walk.found {
            Looked::Found(attributes) => Ok(Some(*attributes)),
            Looked::Absent => Err(Errno::ENOENT),
            Looked::Unknown if walk.slash || walk.parent.mode & mode::STICKY != 0 => {
                let mut found = Attributes::default();
                match self.look(walk.parent, walk.name, who, &mut found)? {
                    Sight::Found => Ok(Some(found)),
                    Sight::Absent | Sight::Unknown => Err(Errno::ENOENT),
                }
            }
            Looked::Unknown => Ok(None),
        }
    }

    /// `linkat(2)`.
    ///
    /// # Errors
    /// As `linkat(2)`.
    pub fn link(
        &self,
        from: At<'_>,
        follow: Follow,
        to: At<'_>,
        who: &Credentials,
        (from_buffer, to_buffer): (&mut PathBuffer, &mut PathBuffer),
    ) -> Result<Outcome<()>> {
        to_buffer.way.clear();
        match self.find(from, follow, who, from_buffer)? {
            Outcome::Done(attributes) => self.link_inode(attributes, to, who, to_buffer),
            Outcome::Outside => Ok(Outcome::Outside),
            Outcome::Special(special) => Ok(Outcome::Special(special)),
        }
    }

    /// `linkat(2)` of an open file: gives a name to one of `O_TMPFILE`.
    ///
    /// # Errors
    /// As `linkat(2)` with `AT_EMPTY_PATH`.
    pub fn link_open(
        &self,
        ofd: OfdIndex,
        to: At<'_>,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        if self.opened(ofd)?.has(mark::NO_NAME_EVER) {
            return Err(Errno::ENOENT);
        }
        let attributes = self.attributes_open(ofd)?;
        self.link_inode(&attributes, to, who, buffer)
    }

    fn link_inode(
        &self,
        file: &Attributes,
        to: At<'_>,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        // What can not be linked is refused for the new name first.
        let look = if file.is_directory() { Look::Surely } else { Look::Index };
        let walked = self.walk(to, Follow::Never, look, who, buffer)?;
        walked.and(|walk| {
            self.may_make(&walk, mode::REGULAR, who)?;
            if file.is_directory() {
                return Err(Errno::EPERM);
            }
            let shard = walk.entry.shard;
            let request =
                Request::Link { inode: file.inode, parent: walk.parent.inode, name: walk.name };
            by_path(self.call_done(To::Shard(shard), &request, who))
        })
    }

    /// `readlinkat(2)`: the bytes of the target that fit, and their number.
    ///
    /// # Errors
    /// `EINVAL` if it is no symbolic link or `target` is empty, and what a walk says.
    pub fn read_link(
        &self,
        at: At<'_>,
        target: &mut [u8],
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<usize>> {
        if target.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.with_found(at, Follow::No, who, buffer, |attributes| {
            self.read_link_of(attributes, target, who)
        })
    }

    /// `readlinkat(2)` with an empty path: of an open symbolic link (`O_PATH | O_NOFOLLOW`).
    ///
    /// # Errors
    /// As `read_link`.
    pub fn fread_link(&self, ofd: OfdIndex, target: &mut [u8], who: &Credentials) -> Result<usize> {
        let attributes = self.attributes_open(ofd)?;
        // Linux answers ENOENT here, as if the empty path were one.
        if !attributes.is_symlink() {
            return Err(Errno::ENOENT);
        }
        by_path(self.read_link_of(&attributes, target, who))
    }

    pub(crate) fn read_link_of(
        &self,
        link: &Attributes,
        target: &mut [u8],
        who: &Credentials,
    ) -> Result<usize> {
        if !link.is_symlink() {
            return Err(Errno::EINVAL);
        }
        let request = Request::ReadLink { inode: link.inode };
        self.call(To::Shard(link.inode.shard()), &request, who)?.with(|reply| {
            let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
            let length = bytes.len().min(target.len());
            for (to, from) in target.iter_mut().zip(bytes) {
                *to = *from;
            }
            Ok(length)
        })
    }

    /// A file without a name that is counted in.
    pub(crate) fn make_nameless(
        &self,
        parent: &Attributes,
        mode: u32,
        who: &Credentials,
    ) -> Result<(Attributes, VnodeIndex)> {
        let host = self.host()?;
        let mut looks = Looks::new(self);
        loop {
            let made_at = host.draw_turn();
            let attributes = self.create_nameless(parent, mode, who)?;
            let inode = attributes.inode;
            let vnode = host.vnode_open(inode)?;
            if self.is_near(inode.shard())? || !host.was_closed_since(inode, made_at) {
                return Ok((attributes, vnode));
            }
            // We stood still between the two, and the shard may have been told that nobody has it.
            let turn = host.draw_turn();
            let open = Request::Open { inode, turn, uses: open::WRITES };
            match self.call(To::Shard(inode.shard()), &open, who) {
                Ok(_) => return Ok((attributes, vnode)),
                Err(Errno::ESTALE) => self.close_vnode(inode, vnode, false),
                Err(errno) => {
                    self.close_vnode(inode, vnode, true);
                    return Err(errno);
                }
            }
            looks.again()?;
        }
    }

    /// A nameless file below `parent`, for `O_TMPFILE`.
    fn create_nameless(
        &self,
        parent: &Attributes,
        mode: u32,
        who: &Credentials,
    ) -> Result<Attributes> {
        self.may_change(parent, who)?;
        let (heir, mode) = heir(parent, who, mode);
        let layout: Layout = self.layout_of_child(parent, mode)?;
        let request = Request::CreateNameless { parent: parent.inode, mode, layout };
        // Any shard of a wide directory will do; the thread's number spreads them.
        let seed = shm::wait::thread_id().to_le_bytes();
        let shard = Client::shard_of_entry(parent, &seed);
        by_path(self.call_attributes(To::Shard(shard), &request, &heir))
    }
}
