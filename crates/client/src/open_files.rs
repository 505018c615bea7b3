//! Open files: from a path and flags to an open file description, and its end.
//!
//! Opening and deleting meet in the host segment: an opener counts itself in, then looks again
//! whether the file exists; a shard of another host is told by a message.

use core::sync::atomic::Ordering::Relaxed;
use rustix::fs::OFlags;
use shm::host::{Vnode, VnodeIndex};
use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::request::create;
use wire::{Attributes, Credentials, Inode, Layout, Reply, Request};

use crate::again::Looks;
use crate::errno::{by_path, existing, ignore_gone};
use crate::layout::{File, heir};
use crate::namespace::may_change;
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::request::{To, own_credentials};
use crate::walk::{Last, Look, Looked, Sight, Walk, entry_in};
use crate::{Client, OfdIndex, ProcessIndex};

/// Flags of `open(2)` that mean something here, with this machine's numbers.
pub(crate) mod o {
    use super::OFlags;
    pub(crate) const ACCESS: u32 = 3;
    pub(crate) const WRITE_ONLY: u32 = 1;
    pub(crate) const READ_WRITE: u32 = 2;
    pub(crate) const CREATE: u32 = OFlags::CREATE.bits();
    pub(crate) const EXCLUSIVE: u32 = OFlags::EXCL.bits();
    pub(crate) const TRUNCATE: u32 = OFlags::TRUNC.bits();
    pub(crate) const APPEND: u32 = OFlags::APPEND.bits();
    pub(crate) const DIRECTORY: u32 = OFlags::DIRECTORY.bits();
    pub(crate) const NO_FOLLOW: u32 = OFlags::NOFOLLOW.bits();
    pub(crate) const PATH: u32 = OFlags::PATH.bits();
    pub(crate) const TEMPORARY: u32 = OFlags::TMPFILE.bits();
    /// What only matters while opening.
    pub(crate) const MOMENTARY: u32 =
        CREATE | EXCLUSIVE | TRUNCATE | OFlags::NOCTTY.bits() | OFlags::CLOEXEC.bits();
    /// What `F_SETFL` changes.
    /// Writes are to be at their place when they return.
    pub(crate) const ANY_SYNC: u32 = OFlags::SYNC.bits() | OFlags::DSYNC.bits();
    pub(crate) const CHANGEABLE: u32 = APPEND
        | OFlags::NONBLOCK.bits()
        | OFlags::DIRECT.bits()
        | OFlags::NOATIME.bits()
        | 0o20_000;
}

/// Word of an open file description that holds the mode at the time of the open.
const SPARE_MODE: usize = 0;
/// Word of an open file description for the bits of `mark`.
const SPARE_MARKS: usize = 1;
/// Word that holds the directory in which the file was found, or 0.
const SPARE_PARENT: usize = 2;
/// Words of a reader (`fetch`): where he left off, where what was asked for ahead of him ends, and how
/// many buffers ahead that may be.
const SPARE_READ_TO: usize = 3;
const SPARE_FETCHED_TO: usize = 4;
const SPARE_WINDOW: usize = 5;

/// Bits of an open file description of ours.
pub(crate) mod mark {
    /// Locks were taken in its name.
    pub(crate) const LOCKED: u64 = 1;
    /// Counted by `O_TMPFILE`: whoever closes it last asks the shard whether it got a name.
    pub(crate) const NAMELESS: u64 = 2;
    /// Counted by `O_TMPFILE | O_EXCL`: it may not get a name.
    pub(crate) const NO_NAME_EVER: u64 = 4;
}

/// A file that was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The open file description, with one reference.
    pub ofd: OfdIndex,
}

/// An open file description and its file, as words of shared memory.
pub(crate) struct Open<'a> {
    pub(crate) index: OfdIndex,
    pub(crate) words: &'a shm::host::File,
    pub(crate) vnode: &'a Vnode,
    pub(crate) inode: Inode,
}

impl Open<'_> {
    pub(crate) fn flags(&self) -> u32 {
        self.words.flags.load(Relaxed)
    }

    /// The file as its targets know it.
    pub(crate) fn file(&self) -> File {
        File { inode: self.inode, layout: Layout::from_word(self.words.layout.load(Relaxed)) }
    }

    /// Takes over a layout that changed: the file is inline, or short, no longer.
    pub(crate) fn set_layout(&self, attributes: &Attributes) -> File {
        self.words.layout.store(attributes.layout.word(), Relaxed);
        File { inode: self.inode, layout: attributes.layout }
    }

    /// The mode as it was at the open.
    pub(crate) fn mode(&self) -> u32 {
        self.spare(SPARE_MODE) as u32
    }

    pub(crate) fn set_mode(&self, mode: u32) {
        self.set_spare(SPARE_MODE, u64::from(mode));
    }

    /// The directory in which the file was found when it was opened.
    pub(crate) fn parent(&self) -> Inode {
        Inode(self.spare(SPARE_PARENT))
    }

    fn set_parent(&self, parent: Inode) {
        self.set_spare(SPARE_PARENT, parent.0);
    }

    pub(crate) fn has(&self, mark: u64) -> bool {
        self.spare(SPARE_MARKS) & mark != 0
    }

    pub(crate) fn set(&self, mark: u64) {
        if let Some(word) = self.words.spare.get(SPARE_MARKS) {
            word.fetch_or(mark, Relaxed);
        }
    }

    pub(crate) fn read_to(&self) -> u64 {
        self.spare(SPARE_READ_TO)
    }

    pub(crate) fn window(&self) -> u64 {
        self.spare(SPARE_WINDOW)
    }

    pub(crate) fn set_read_to(&self, offset: u64, window: u64) {
        self.set_spare(SPARE_READ_TO, offset);
        self.set_spare(SPARE_WINDOW, window);
    }

    pub(crate) fn fetched_to(&self) -> u64 {
        self.spare(SPARE_FETCHED_TO)
    }

    pub(crate) fn set_fetched_to(&self, offset: u64) {
        self.set_spare(SPARE_FETCHED_TO, offset);
    }

    fn set_spare(&self, place: usize, value: u64) {
        if let Some(word) = self.words.spare.get(place) {
            word.store(value, Relaxed);
        }
    }

    fn spare(&self, place: usize) -> u64 {
        self.words.spare.get(place).map_or(0, |word| word.load(Relaxed))
    }

    /// True if it may be written through this descriptor.
    pub(crate) fn is_writable(&self) -> bool {
        let access = self.flags() & o::ACCESS;
        self.flags() & o::PATH == 0 && (access == o::WRITE_ONLY || access == o::READ_WRITE)
    }
}

/// A file that is counted in, and is to be opened.
pub(crate) struct Counted {
    pub(crate) file: File,
    pub(crate) mode: u32,
    /// Its row in the host segment.
    pub(crate) vnode: VnodeIndex,
}

impl Counted {
    const fn of(attributes: &Attributes, vnode: VnodeIndex) -> Counted {
        Counted { file: File::of(attributes), mode: attributes.mode, vnode }
    }
}

/// Bits of `want` for the access mode of `flags`. The access mode 3, an old oddity of Linux, asks
/// for both permissions and allows neither.
fn wanted(flags: u32) -> u32 {
    let by_mode = match flags & o::ACCESS {
        0 => want::READ,
        o::WRITE_ONLY => want::WRITE,
        _ => want::READ | want::WRITE,
    };
    if flags & o::TRUNCATE != 0 { by_mode | want::WRITE } else { by_mode }
}

/// What Linux checks before it opens a file that exists.
fn check_existing(attributes: &Attributes, flags: u32, who: &Credentials) -> Result<()> {
    let kind = attributes.mode & mode::TYPE;
    let is_directory = kind == mode::DIRECTORY;
    if flags & o::DIRECTORY != 0 && !is_directory {
        return Err(Errno::ENOTDIR);
    }
    if flags & o::PATH != 0 {
        return Ok(());
    }
    if kind == mode::SYMLINK {
        return Err(Errno::ELOOP);
    }
    let wanted = wanted(flags);
    if is_directory && (wanted & want::WRITE != 0 || flags & o::CREATE != 0) {
        return Err(Errno::EISDIR);
    }
    attributes.permits(who, wanted)?;
    if kind == mode::SOCKET { Err(Errno::ENXIO) } else { Ok(()) }
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
    /// `openat(2)` with the kernel's flags; the umask is applied to `mode` already.
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
            self.opened(opened.ofd)?.set_parent(walk.parent.inode);
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
            let round = self.open_existing(walk.existing()?, flags, who)?;
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
                let round = self.open_existing(found, flags, who)?;
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
        if let Err(refused) = may_change(walk.parent, who) {
            // What exists may be opened in a directory that may not be changed.
            let mut found = Attributes::default();
            return match self.look(walk.parent, walk.name, who, &mut found)? {
                Sight::Found if look == Look::Index => Ok(Round::Follow),
                _ => Err(refused),
            };
        }
        let shard = walk.entry.shard;
        let (heir, mode) = heir(walk.parent, who, mode::REGULAR | mode & mode::PERMISSIONS);
        let layout = self.layout_of_child(walk.parent, mode)?;
        if let Some(counted) = self.post_create(walk, mode, layout, &heir) {
            // A new file is open for whatever its own permissions say.
            let opened = self.allocate_open(&counted, flags & !o::TRUNCATE)?;
            return Ok(Round::Opened(Outcome::Done(opened)));
        }
        let is_far = !self.is_near(shard)?;
        let made_at = if is_far { self.host()?.draw_turn() } else { 0 };
        let exclusive = if flags & o::EXCLUSIVE != 0 { create::EXCLUSIVE } else { 0 };
        let request = Request::Create {
            parent: walk.parent.inode,
            name: walk.name,
            mode,
            device: 0,
            flags: exclusive | if is_far { create::OPEN } else { 0 },
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
            return self.open_inode_as(&found, flags, Some(made_at), who);
        }
        if found.is_symlink() && flags & o::NO_FOLLOW == 0 && look == Look::Index {
            return Ok(Round::Follow);
        }
        // The create told the far shard that this host has it open only if it made the file.
        let round = self.open_existing(&found, flags, who)?;
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

    fn open_existing(&self, found: &Attributes, flags: u32, who: &Credentials) -> Result<Round> {
        check_existing(found, flags, who)?;
        let kind = found.mode & mode::TYPE;
        let is_plain = matches!(kind, mode::REGULAR | mode::DIRECTORY | mode::SYMLINK);
        if !is_plain && flags & o::PATH == 0 {
            return Ok(Round::Opened(Outcome::Special(*found)));
        }
        self.open_inode_as(found, flags, None, who)
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
        let found = by_path(self.attributes_of(inode))?;
        let flags = normal(flags & !(o::CREATE | o::EXCLUSIVE))?;
        match self.open_existing(&found, flags, who)? {
            Round::Opened(outcome) => Ok(outcome),
            Round::Again | Round::Follow => self.open_deleted(&found, flags),
        }
    }

    /// A file without a name that some descriptor holds.
    fn open_deleted(&self, found: &Attributes, flags: u32) -> Result<Outcome<Opened>> {
        let vnode = self.host()?.vnode_open(found.inode)?;
        self.allocate_open(&Counted::of(found, vnode), flags).map(Outcome::Done)
    }

    /// Counts in, looks again, makes the open file description. `made_at`: this process made the file,
    /// by which a shard on another host knows that it is open here, and drew that number before.
    fn open_inode_as(
        &self,
        found: &Attributes,
        flags: u32,
        made_at: Option<u64>,
        who: &Credentials,
    ) -> Result<Round> {
        let inode = found.inode;
        let host = self.host()?;
        let index = host.vnode_open(inode)?;
        let vnode = host.vnode(index)?;
        let seen = vnode.seen();
        let mut attributes = Attributes::default();
        let again = if self.is_near(inode.shard())? {
            self.read_attributes(inode, &mut attributes)
        } else {
            let to = To::Shard(inode.shard());
            let answer = match made_at {
                Some(made_at) if !host.was_closed_since(inode, made_at) => Ok(*found),
                _ => {
                    let turn = host.draw_turn();
                    self.call_attributes(to, &Request::Open { inode, turn }, who)
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
        if flags & o::TRUNCATE != 0 && attributes.is_regular() && flags & o::PATH == 0 {
            let open = self.opened(opened.ofd)?;
            if let Err(errno) = self.set_size(&open, 0) {
                self.drop_open(&open);
                return Err(errno);
            }
        }
        Ok(Round::Opened(Outcome::Done(opened)))
    }

    /// Makes the open file description of a file that is counted in; counts out if it can not.
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
            let mode = mode::REGULAR | mode & mode::PERMISSIONS;
            let (attributes, vnode) = self.make_nameless(parent, mode, who)?;
            let flags = flags & !o::DIRECTORY & !(o::TEMPORARY & !o::DIRECTORY);
            let opened = self.allocate_open(&Counted::of(&attributes, vnode), flags)?;
            let open = self.opened(opened.ofd)?;
            open.set(mark::NAMELESS);
            if is_exclusive {
                open.set(mark::NO_NAME_EVER);
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
    /// `EBADF`; `EIO` if the size could not be told, or why something did not arrive. The descriptor
    /// is closed all the same.
    pub fn close(&self, ofd: OfdIndex, process: ProcessIndex) -> Result<()> {
        let open = self.opened(ofd)?;
        let settled = if open.is_writable() { self.settle_all(open.vnode) } else { Ok(()) };
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
        self.release_of_process(&open, process);
        if !is_left() && self.host()?.file_release(ofd)? {
            self.drop_open(&open);
        }
        told
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
    fn tell_all(&self, open: &Open<'_>) -> Result<()> {
        let settled = self.settle_all(open.vnode);
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

    fn of(mode: u32) -> Attributes {
        Attributes { mode, uid: 1, gid: 1, links: 1, ..Attributes::default() }
    }

    #[test]
    fn an_existing_file_is_checked_as_linux_does() {
        let me = Credentials::of(1, 1);
        let directory = of(mode::DIRECTORY | 0o755);
        let file = of(mode::REGULAR | 0o444);
        let link = of(mode::SYMLINK | 0o777);
        let socket = of(mode::SOCKET | 0o777);
        for (attributes, flags, outcome) in [
            (&directory, 0, Ok(())),
            (&directory, o::READ_WRITE, Err(Errno::EISDIR)),
            (&directory, o::CREATE, Err(Errno::EISDIR)),
            (&directory, o::TRUNCATE, Err(Errno::EISDIR)),
            (&file, 0, Ok(())),
            (&file, o::WRITE_ONLY, Err(Errno::EACCES)),
            (&file, o::TRUNCATE, Err(Errno::EACCES)),
            (&file, o::DIRECTORY, Err(Errno::ENOTDIR)),
            (&file, o::PATH | o::NO_FOLLOW, Ok(())),
            (&link, o::NO_FOLLOW, Err(Errno::ELOOP)),
            (&link, o::NO_FOLLOW | o::DIRECTORY, Err(Errno::ENOTDIR)),
            (&link, o::NO_FOLLOW | o::PATH, Ok(())),
            (&socket, 0, Err(Errno::ENXIO)),
        ] {
            assert_eq!(check_existing(attributes, flags, &me), outcome, "flags {flags:o}");
        }
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        assert_eq!(normal(o::CREATE | o::DIRECTORY), Err(Errno::EINVAL));
        assert_eq!(normal(o::TEMPORARY), Err(Errno::EINVAL));
        assert!(normal(o::TEMPORARY | o::READ_WRITE).is_ok());
        assert_eq!(normal(o::PATH | o::CREATE | o::APPEND), Ok(o::PATH));
    }
}
