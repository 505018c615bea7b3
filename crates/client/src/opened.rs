//! An open file description and its file, as words of shared memory: flags, marks, and what the client
//! keeps there for itself. How one is made and ends: `open_files`.

use core::sync::atomic::Ordering::Relaxed;
use rustix::fs::OFlags;
use shm::host::Vnode;
use wire::quota::Owner;
use wire::request::ANY_CUTS;
use wire::{Attributes, Inode, Layout};

use crate::OfdIndex;
use crate::layout::File;

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
/// Bit of it that no mode has: the file had `security.capability`.
pub(crate) const CAPABLE: u32 = 1 << 31;
/// Word of an open file description for the bits of `mark`.
const SPARE_MARKS: usize = 1;
/// Word that holds the directory in which the file was found, or 0.
const SPARE_PARENT: usize = 2;
/// Words of a reader (`fetch`): where he left off, where what was asked for ahead of him ends, and how
/// many buffers ahead that may be.
const SPARE_READ_TO: usize = 3;
const SPARE_FETCHED_TO: usize = 4;
const SPARE_WINDOW: usize = 5;
/// Before the first read, and where a mount is served: when the file was made by a post, or 0.
const SPARE_MADE_AT: usize = SPARE_READ_TO;

/// Bits of an open file description of ours.
pub(crate) mod mark {
    /// Locks were taken in its name.
    pub(crate) const LOCKED: u64 = 1;
    /// Counted by `O_TMPFILE`: whoever closes it last asks the shard whether it got a name.
    pub(crate) const NAMELESS: u64 = 2;
    /// Counted by `O_TMPFILE | O_EXCL`: it may not get a name.
    pub(crate) const NO_NAME_EVER: u64 = 4;
    /// Who closes or syncs it after writing waits until it is saved (`saves`).
    pub(crate) const THROUGH: u64 = 8;
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
        let layout = Layout::from_word(self.words.layout.load(Relaxed));
        File { inode: self.inode, layout, good_for: ANY_CUTS }
    }

    /// Takes over a layout that changed: the file is inline, or short, no longer.
    pub(crate) fn set_layout(&self, attributes: &Attributes) -> File {
        self.words.layout.store(attributes.layout.word(), Relaxed);
        File { inode: self.inode, layout: attributes.layout, good_for: ANY_CUTS }
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

    pub(crate) fn set_parent(&self, parent: Inode) {
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

    /// Notes when the file was made by a post.
    pub(crate) fn set_made_at(&self, nanos: i64) {
        self.set_spare(SPARE_MADE_AT, nanos.cast_unsigned());
    }

    /// The attributes of a file that was made by a post of this process for `owner` and not used since,
    /// as they were then, but for the project, which `stat` does not show; once.
    pub(crate) fn take_made(&self, (uid, gid): (u32, u32)) -> Option<Attributes> {
        let owner = (Owner { uid, project: 0 }, gid);
        let nanos = self.spare(SPARE_MADE_AT);
        self.set_made_at(0);
        let layout = self.file().layout;
        (nanos != 0).then(|| {
            Attributes::of_new(self.inode, self.mode(), owner, nanos.cast_signed(), layout)
        })
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
