//! Open files: from a path and flags to an open file description, and its end.
//!
//! Opening and deleting meet in the host segment: an opener counts itself in, then looks again
//! whether the file exists; a shard of another host is told by a message.

use core::sync::atomic::Ordering::Relaxed;
use shm::host::VnodeIndex;
use wire::attributes::{extra, mode, want};
use wire::errno::{Errno, Result};
use wire::request::{made, open};
use wire::{Attributes, Credentials, Inode, Reply, Request};

use crate::again::Looks;
use crate::errno::{by_path, existing, ignore_gone};
use crate::layout::{File, heir};
use crate::namespace::flags_of_creation;
use crate::opened::{CAPABLE, Open, mark, o};
use crate::pages::Granted;
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::permission::wanted;
use crate::request::{To, own_credentials};
use crate::saves::{closes_through, is_through};
use crate::walk::{Last, Look, Looked, Sight, Walk, entry_in};
use crate::{Client, OfdIndex, ProcessIndex};

/// A file that was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The open file description, with one reference.
    pub ofd: OfdIndex,
}

/// A file that is counted in, and is to be opened.
pub(crate) struct Counted {
    pub(crate) file: File,
    pub(crate) mode: u32,
    /// Its row in the host segment.
    pub(crate) vnode: VnodeIndex,
    /// When it was made, in nanoseconds since 1970, if by a post of this process; else 0. Its row says
    /// then that it is written to.
    pub(crate) made_at: i64,
}

impl Counted {
    const fn of(attributes: &Attributes, vnode: VnodeIndex) -> Counted {
        let capable = if attributes.has(extra::CAPABILITY) { CAPABLE } else { 0 };
        Counted { file: File::of(attributes), mode: attributes.mode | capable, vnode, made_at: 0 }
    }
}

/// Flags as they are worked with: `O_PATH` leaves only three others.
fn normal(flags: u32) -> Result<u32> {
    if flags & o::PATH != 0 {
        return Ok(flags & (o::PATH | o::DIRECTORY | o::NO_FOLLOW));
    }
    let both = o::CREATE | o::DIRECTORY;
    if flags & o::TEMPORARY == o::TEMPORARY {
        let may_write = wanted(flags) & want::WRITE != 0;
        return if may_write && flags & o::CREATE == 0 { Ok(flags) } else { Err(Errno::EINVAL) };
    }
    if flags & both == both { Err(Errno::EINVAL) } else { Ok(flags) }
}

/// What one round of an open came to.
enum Round {
    Opened(Outcome<Opened>),
    /// The file went away between look and open.
    Again,
    /// What the create found is a symbolic link: look properly.
    Follow,
}

impl Client {
    /// `openat(2)` with the kernel's flags; `mode` as in `made`.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open(
        &self,
        at: At<'_>,
        flags: u32,
        mode: u32,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Opened>> {
        let flags = normal(flags)?;
        if flags & o::TEMPORARY == o::TEMPORARY {
            return self.open_nameless(at, flags, mode, who, buffer);
        }
        let mut look = if flags & o::CREATE == 0 { Look::Surely } else { Look::Index };
        let mut looks = None;
        loop {
            match self.open_once(at, flags, mode, look, who, buffer)? {
                Round::Opened(outcome) => return Ok(outcome),
                Round::Again => looks.get_or_insert_with(|| Looks::new(self)).again()?,
                Round::Follow => look = Look::Surely,
            }
        }
    }

    fn open_once(
        &self,
        at: At<'_>,
        flags: u32,
        mode: u32,
        look: Look,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Round> {
        let creates = flags & o::CREATE != 0;
        let stays = flags & o::NO_FOLLOW != 0 || (creates && flags & o::EXCLUSIVE != 0);
        let follow = match at.path {
            // Refused below for its slash, wherever a link leads.
            [.., b'/'] if creates => Follow::Never,
            _ if stays => Follow::No,
            _ => Follow::Yes,
        };
        let walk = match self.walk(at, follow, look, who, buffer)? {
            Outcome::Done(walk) => walk,
            Outcome::Outside => return Ok(Round::Opened(Outcome::Outside)),
            Outcome::Special(special) => return Ok(Round::Opened(Outcome::Special(special))),
        };
        let round = self.open_found(&walk, flags, mode, look, who)?;
        if let Round::Opened(Outcome::Done(opened)) = &round
            && walk.last == Last::Name
        {
            let open = self.opened(opened.ofd)?;
            open.set_parent(walk.parent.inode);
            if is_through(&walk.parent.layout) {
                open.set(mark::THROUGH);
            }
        }
        Ok(round)
    }

    fn open_found(
        &self,
        walk: &Walk<'_>,
        flags: u32,
        mode: u32,
        look: Look,
        who: &Credentials,
    ) -> Result<Round> {
        if flags & o::CREATE == 0 {
            let round = self.open_existing(walk.existing()?, flags, None, who)?;
            return self.unless_removed(walk, round);
        }
        if walk.last == Last::Name && walk.slash {
            return Err(Errno::EISDIR);
        }
        if flags & o::EXCLUSIVE != 0 && matches!(walk.found, Looked::Found(_)) {
            return Err(Errno::EEXIST);
        }
        if walk.last != Last::Name {
            return Err(Errno::EISDIR);
        }
        match walk.found {
            Looked::Found(found) => {
                let round = self.open_existing(found, flags, None, who)?;
                self.unless_removed(walk, round)
            }
            Looked::Absent | Looked::Unknown => self.open_new(walk, flags, mode, look, who),
        }
    }

    /// Creates the last name of a walk, or opens what somebody else created.
    fn open_new(
        &self,
        walk: &Walk<'_>,
        flags: u32,
        mode: u32,
        look: Look,
        who: &Credentials,
    ) -> Result<Round> {
        if let Err(refused) = self.may_change(walk.parent, who) {
            // What exists may be opened in a directory that may not be changed.
            let mut found = Attributes::default();
            return match self.look(walk.parent, walk.name, who, &mut found)? {
                Sight::Found if look == Look::Index => Ok(Round::Follow),
                _ => Err(refused),
            };
        }
        let shard = walk.entry.shard;
        let mode = mode::REGULAR | mode & (mode::PERMISSIONS | made::UMASK);
        let (heir, mode) = heir(walk.parent, who, mode);
        let layout = self.layout_of_child(walk.parent, mode)?;
        if let Some(counted) = self.post_create(walk, mode, layout, &heir) {
            // A new file is open for whatever its own permissions say.
            let opened = self.allocate_open(&counted, flags & !o::TRUNCATE)?;
            return Ok(Round::Opened(Outcome::Done(opened)));
        }
        let is_far = !self.is_near(shard)?;
        let made_at = if is_far { self.host()?.draw_turn() } else { 0 };
        let request = Request::Create {
            parent: walk.parent.inode,
            name: walk.name,
            mode,
            device: 0,
            flags: flags_of_creation(flags, is_far),
            layout,
            target: &[],
        };
        let answer = by_path(self.call(To::Shard(shard), &request, &heir))?;
        let (is_new, entry) = answer.with(|reply| {
            let is_new = matches!(reply, Reply::Created { .. });
            Ok((is_new, entry_in(&reply).ok_or(Errno::EIO)?))
        })?;
        let found = match entry {
            Ok(attributes) => attributes,
            Err(inode) => match self.attributes_of(inode) {
                Err(Errno::ESTALE) => return Ok(Round::Again),
                found => found?,
            },
        };
        if is_new {
            // A new file is open for whatever its own permissions say.
            let flags = flags & !o::TRUNCATE;
            return self.open_inode_as(&found, flags, (Some(made_at), None), who);
        }
        if found.is_symlink() && flags & o::NO_FOLLOW == 0 && look == Look::Index {
            return Ok(Round::Follow);
        }
        // The create told the far shard that this host has it open only if it made the file.
        let round = self.open_existing(&found, flags, None, who)?;
        self.unless_removed(walk, round)
    }

    /// A file that was found by its name and is counted in: is there a post about the name, which may
    /// be its removal? Who posts that looks whether the file is open after he announced it.
    fn unless_removed(&self, walk: &Walk<'_>, round: Round) -> Result<Round> {
        match &round {
            Round::Opened(Outcome::Done(opened))
                if walk.last == Last::Name && self.has_post(&walk.entry) =>
            {
                self.host()?.file_release(opened.ofd)?;
                self.drop_open(&self.opened(opened.ofd)?);
                Ok(Round::Again)
            }
            _ => Ok(round),
        }
    }

    fn open_existing(
        &self,
        found: &Attributes,
        flags: u32,
        pages: Option<&mut Granted>,
        who: &Credentials,
    ) -> Result<Round> {
        self.may_open(found, flags, who)?;
        let kind = found.mode & mode::TYPE;
        let is_plain = matches!(kind, mode::REGULAR | mode::DIRECTORY | mode::SYMLINK);
        if !is_plain && flags & o::PATH == 0 {
            return Ok(Round::Opened(Outcome::Special(*found)));
        }
        self.open_inode_as(found, flags, (None, pages), who)
    }

    /// Opens a file once more that is open already, as `/proc/self/fd` does it.
    ///
    /// # Errors
    /// As `open(2)` of an existing file.
    pub fn open_inode(
        &self,
        inode: Inode,
        flags: u32,
        who: &Credentials,
    ) -> Result<Outcome<Opened>> {
        self.open_inode_with(inode, flags, None, who)
    }

    /// As `open_inode`, for a kernel that is to keep pages of the file.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open_inode_for_pages(
        &self,
        inode: Inode,
        flags: u32,
        granted: &mut Granted,
        who: &Credentials,
    ) -> Result<Outcome<Opened>> {
        self.open_inode_with(inode, flags, Some(granted), who)
    }

    fn open_inode_with(
        &self,
        inode: Inode,
        flags: u32,
        pages: Option<&mut Granted>,
        who: &Credentials,
    ) -> Result<Outcome<Opened>> {
        let found = by_path(self.attributes_of(inode))?;
        let flags = normal(flags & !(o::CREATE | o::EXCLUSIVE))?;
        match self.open_existing(&found, flags, pages, who)? {
            Round::Opened(outcome) => Ok(outcome),
            Round::Again | Round::Follow => self.open_deleted(inode, flags),
        }
    }

    /// A file without a name that some descriptor holds; `ENOENT` if none does any more.
    fn open_deleted(&self, inode: Inode, flags: u32) -> Result<Outcome<Opened>> {
        let host = self.host()?;
        let vnode = host.vnode_open(inode)?;
        // Counted in first: who closed it last before that has told, and the file is gone.
        let asked = match self.is_near(inode.shard()) {
            Ok(true) => self.asked_attributes(inode),
            Ok(false) => host.vnode(vnode).and_then(|row| {
                Ok(self.tell_opened((inode, row), (flags, 0), &own_credentials())?.0)
            }),
            Err(errno) => Err(errno),
        };
        match by_path(asked) {
            Ok(found) => self.allocate_open(&Counted::of(&found, vnode), flags).map(Outcome::Done),
            Err(errno) => {
                self.close_vnode(inode, vnode, false);
                Err(errno)
            }
        }
    }

    /// Counts in, looks again, makes the open file description. `made_at`: this process made the file,
    /// by which a shard on another host knows that it is open here, and drew that number before. `pages`:
    /// a kernel is to keep pages of it.
    fn open_inode_as(
        &self,
        found: &Attributes,
        flags: u32,
        (made_at, mut pages): (Option<u64>, Option<&mut Granted>),
        who: &Credentials,
    ) -> Result<Round> {
        let inode = found.inode;
        let host = self.host()?;
        let index = host.vnode_open(inode)?;
        let vnode = host.vnode(index)?;
        let seen = vnode.seen();
        let mut attributes = Attributes::default();
        let is_near = self.is_near(inode.shard())?;
        let writers = if pages.is_some() { host.writers_ever(inode) } else { 0 };
        let again = if is_near {
            self.read_attributes(inode, &mut attributes)
        } else {
            let answer = match made_at {
                Some(made_at) if !host.was_closed_since(inode, made_at) => Ok(*found),
                _ => {
                    let wanted = if pages.is_some() { open::PAGES } else { 0 };
                    let told = self.tell_opened((inode, vnode), (flags, wanted), who);
                    told.map(|(attributes, granted)| {
                        pages.iter_mut().for_each(|pages| **pages = granted);
                        attributes
                    })
                }
            };
            answer.map(|answer| attributes = answer)
        };
        match again {
            Ok(()) if attributes.links > 0 => {}
            Ok(()) | Err(Errno::ESTALE | Errno::ENOENT) => {
                self.close_vnode(inode, index, false);
                return Ok(Round::Again);
            }
            Err(errno) => {
                self.close_vnode(inode, index, false);
                return Err(errno);
            }
        };
        vnode.learn(&seen, attributes.size);
        let opened = self.allocate_open(&Counted::of(&attributes, index), flags)?;
        if let Some(pages) = pages.filter(|_| is_near) {
            let writes = self.opened(opened.ofd)?.is_writable();
            *pages = Granted::near(writers, host.writers_ever(inode), writes);
        }
        if flags & o::TRUNCATE != 0 && attributes.is_regular() && flags & o::PATH == 0 {
            let open = self.opened(opened.ofd)?;
            if let Err(errno) = self.set_size(&open, 0) {
                self.drop_open(&open);
                return Err(errno);
            }
        }
        Ok(Round::Opened(Outcome::Done(opened)))
    }

    /// An open file that exists is to be written to; it is closed if that can not be made known.
    #[inline(never)]
    fn opened_to_write(&self, open: &Open<'_>) -> Result<()> {
        self.note_writer(open.inode, open.vnode).inspect_err(|_| self.drop_open(open))
    }

    /// Makes the open file description of a file that is counted in; counts out if it can not.
    #[inline(always)]
    fn allocate_open(&self, counted: &Counted, flags: u32) -> Result<Opened> {
        let host = self.host()?;
        let (inode, flags) = (counted.file.inode, flags & !o::MOMENTARY);
        let ofd = match host.file_allocate(inode, counted.vnode, flags) {
            Ok(ofd) => ofd,
            Err(errno) => {
                self.close_vnode(inode, counted.vnode, false);
                return Err(errno);
            }
        };
        let open = self.opened(ofd)?;
        open.words.layout.store(counted.file.layout.word(), Relaxed);
        open.set_mode(counted.mode);
        if self.mount() != 0 {
            open.set_made_at(counted.made_at);
        }
        if counted.made_at == 0 && open.is_writable() {
            self.opened_to_write(&open)?;
        }
        Ok(Opened { ofd })
    }

    fn open_nameless(
        &self,
        at: At<'_>,
        flags: u32,
        mode: u32,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Opened>> {
        let walked = self.walk(at, Follow::Yes, Look::Surely, who, buffer)?;
        walked.and(|walk| {
            let parent = walk.existing()?;
            if !parent.is_directory() {
                return Err(Errno::ENOTDIR);
            }
            let is_exclusive = flags & o::EXCLUSIVE != 0;
            let mode = mode::REGULAR | mode & (mode::PERMISSIONS | made::UMASK);
            let (attributes, vnode) = self.make_nameless(parent, mode, who)?;
            let flags = flags & !o::DIRECTORY & !(o::TEMPORARY & !o::DIRECTORY);
            let opened = self.allocate_open(&Counted::of(&attributes, vnode), flags)?;
            let open = self.opened(opened.ofd)?;
            open.set(mark::NAMELESS);
            if is_exclusive {
                open.set(mark::NO_NAME_EVER);
            } else if is_through(&parent.layout) {
                open.set(mark::THROUGH);
            }
            Ok(opened)
        })
    }

    /// The words of an open file description.
    ///
    /// # Errors
    /// `EBADF` if it is none.
    #[inline]
    pub(crate) fn opened(&self, ofd: OfdIndex) -> Result<Open<'_>> {
        let host = self.host()?;
        let words = host.file(ofd)?;
        let inode = existing(Inode(words.inode.load(Relaxed)))?;
        let vnode = host.vnode(VnodeIndex(words.vnode.load(Relaxed)))?;
        Ok(Open { index: ofd, words, vnode, inode })
    }

    /// An open regular file that may be read (`want::READ`) or written.
    ///
    /// # Errors
    /// `EBADF` if it may not, `EISDIR` for a directory.
    #[inline]
    pub(crate) fn open_for(&self, ofd: OfdIndex, wanted: u32) -> Result<Open<'_>> {
        let open = self.opened(ofd)?;
        let flags = open.flags();
        let may = match flags & o::ACCESS {
            0 => want::READ,
            o::WRITE_ONLY => want::WRITE,
            o::READ_WRITE => want::READ | want::WRITE,
            _ => 0,
        };
        if flags & o::PATH != 0 || may & wanted != wanted {
            return Err(Errno::EBADF);
        }
        match open.mode() & mode::TYPE {
            mode::DIRECTORY => Err(Errno::EISDIR),
            mode::REGULAR => Ok(open),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The attributes of an open file as the shard has them.
    pub(crate) fn attributes_open(&self, ofd: OfdIndex) -> Result<Attributes> {
        crate::errno::by_descriptor(self.attributes_of(self.opened(ofd)?.inode))
    }

    /// One reference more: `dup`, or a descriptor passed on.
    pub fn retain(&self, ofd: OfdIndex) {
        if let Ok(host) = self.host() {
            host.file_retain(ofd);
        }
    }

    /// One reference more, for who found the open file in a table that other threads change: he looks
    /// there again, and lets go of it if it is another by now. False if it is open no more.
    #[must_use]
    pub fn retain_open(&self, ofd: OfdIndex) -> bool {
        self.host().is_ok_and(|host| host.file_retain_open(ofd))
    }

    /// Closes a descriptor of `process`: waits for what is on its way, tells the size, gives back the
    /// process's locks of the file, and with the last reference closes the open file.
    ///
    /// # Errors
    /// `EBADF`; `EIO` if the size could not be told, or why something did not arrive, or could not be
    /// saved where that is waited for. The descriptor is closed all the same.
    pub fn close(&self, ofd: OfdIndex, process: ProcessIndex) -> Result<()> {
        let open = self.opened(ofd)?;
        if closes_through(&open) {
            return self.close_unless(ofd, process, || false);
        }
        self.close_here(ofd, process)
    }

    /// As `close`, and waits for nothing below: nobody learns what comes of it.
    ///
    /// # Errors
    /// As `close`.
    pub fn close_here(&self, ofd: OfdIndex, process: ProcessIndex) -> Result<()> {
        let open = self.opened(ofd)?;
        let settled = if open.is_writable() { self.settle_all(&open) } else { Ok(()) };
        self.close_settled(ofd, &open, process).and(settled)
    }

    /// As `close`, but the reference stays if `is_left` says so: to a call of another thread, which lets
    /// go of it when it ends. From then on nothing of it is looked at any more.
    ///
    /// # Errors
    /// As `close`.
    pub fn close_unless(
        &self,
        ofd: OfdIndex,
        process: ProcessIndex,
        is_left: impl FnOnce() -> bool,
    ) -> Result<()> {
        let open = self.opened(ofd)?;
        let told = if open.is_writable() { self.tell_all(&open) } else { Ok(()) };
        let (inode, waits) = (open.inode, closes_through(&open));
        self.release_of_process(&open, process);
        if !is_left() && self.host()?.file_release(ofd)? {
            self.drop_open(&open);
        }
        // By then nobody holds anything for it, if this process is killed while it waits.
        told.and_then(|()| if waits { self.await_saved(inode) } else { Ok(()) })
    }

    /// Ends a reference that no descriptor stands for, as the end of a call: what the call wrote is told,
    /// locks of the process stay.
    pub fn let_go(&self, ofd: OfdIndex) {
        let Ok(open) = self.opened(ofd) else { return };
        if open.is_writable() {
            // The close that left it to us has returned: there is nobody to tell of a failure.
            let _ = self.tell_all(&open);
        }
        if self.host().and_then(|host| host.file_release(ofd)) == Ok(true) {
            self.drop_open(&open);
        }
    }

    /// Waits for what is on its way and tells the size.
    pub(crate) fn tell_all(&self, open: &Open<'_>) -> Result<()> {
        let settled = self.settle_all(open);
        ignore_gone(self.flush(open.vnode, open.inode)).and(settled)
    }

    fn close_settled(&self, ofd: OfdIndex, open: &Open<'_>, process: ProcessIndex) -> Result<()> {
        if self.closes_by_post(open) {
            self.release_of_process(open, process);
            if self.host()?.file_release(ofd)? {
                self.release_of_open(open);
                return self.close_by_post(open);
            }
            // Somebody made a second descriptor of it meanwhile.
            return ignore_gone(self.flush(open.vnode, open.inode));
        }
        let flushed = if open.is_writable() { self.flush(open.vnode, open.inode) } else { Ok(()) };
        self.release_of_process(open, process);
        if self.host()?.file_release(ofd)? {
            self.drop_open(open);
        }
        ignore_gone(flushed)
    }

    /// May this close of a written file be left to the shard? Only if it is the last of the open file,
    /// and the shard is on this host.
    fn closes_by_post(&self, open: &Open<'_>) -> bool {
        open.is_writable()
            && open.vnode.dirty_end.load(Relaxed) != 0
            && open.words.refs.load(Relaxed) == 1
            && !open.file().is_inline()
            && !open.has(mark::NAMELESS)
    }

    /// Closes a written file after its last reference is gone: the shard takes over what is to be told,
    /// and the count.
    fn close_by_post(&self, open: &Open<'_>) -> Result<()> {
        let vnode = open.words.vnode.load(Relaxed);
        let mut flushed = Ok(());
        if !self.post_close(open.inode, vnode) {
            flushed = self.flush(open.vnode, open.inode);
            self.close_vnode(open.inode, VnodeIndex(vnode), false);
        }
        if let Ok(host) = self.host() {
            let _ = host.file_free(open.index);
        }
        ignore_gone(flushed)
    }

    /// The last reference is gone.
    fn drop_open(&self, open: &Open<'_>) {
        self.release_of_open(open);
        self.drop_fetched(open);
        let vnode = VnodeIndex(open.words.vnode.load(Relaxed));
        self.close_vnode(open.inode, vnode, open.has(mark::NAMELESS));
        if let Ok(host) = self.host() {
            let _ = host.file_free(open.index);
        }
    }

    /// Counts out; the last one tells the shard what it waits for.
    pub(crate) fn close_vnode(&self, inode: Inode, index: VnodeIndex, nameless: bool) {
        let Ok(host) = self.host() else { return };
        let Ok(closed) = host.vnode_close(inode, index) else { return };
        if !closed.last {
            return;
        }
        let to = To::Shard(inode.shard());
        if self.is_near(inode.shard()) == Ok(false)
            && let Some(turn) = host.draw_turn_of_close(inode)
        {
            self.tell(to, &Request::Close { inode, turn }, &own_credentials());
        }
        if closed.deleted || nameless {
            self.tell(to, &Request::Reap { inode }, &own_credentials());
        }
    }

    /// `F_GETFL`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn flags(&self, ofd: OfdIndex) -> Result<u32> {
        Ok(self.opened(ofd)?.flags())
    }

    /// `F_SETFL`: takes over `O_APPEND`, `O_NONBLOCK`, `O_DIRECT`, `O_NOATIME`, `O_ASYNC`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_flags(&self, ofd: OfdIndex, flags: u32) -> Result<()> {
        let open = self.opened(ofd)?;
        if open.flags() & o::PATH != 0 {
            return Err(Errno::EBADF);
        }
        let kept = open.flags() & !o::CHANGEABLE;
        open.words.flags.store(kept | flags & o::CHANGEABLE, Relaxed);
        Ok(())
    }

    /// The inode of an open file.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn inode_of(&self, ofd: OfdIndex) -> Result<Inode> {
        Ok(self.opened(ofd)?.inode)
    }

    /// The type bits of an open file's mode.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn kind_of(&self, ofd: OfdIndex) -> Result<u32> {
        Ok(self.opened(ofd)?.mode() & mode::TYPE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        assert_eq!(normal(o::CREATE | o::DIRECTORY), Err(Errno::EINVAL));
        assert_eq!(normal(o::TEMPORARY), Err(Errno::EINVAL));
        assert!(normal(o::TEMPORARY | o::READ_WRITE).is_ok());
        assert_eq!(normal(o::PATH | o::CREATE | o::APPEND), Ok(o::PATH));
    }
}
