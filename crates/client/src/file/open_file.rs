//! An open file description and its file, as words of shared memory: flags, marks, and
//! client-private words. Creation and freeing: `open::opening`, `open::closing`.

use core::sync::atomic::Ordering::Relaxed;
use rustix::fs::OFlags;
use shm::activity::OpenWords;
use shm::host::{Vnode, VnodeIndex};
use wire::attributes::{extra, mode, want};
use wire::errno::{Errno, Result};
use wire::quota::Owner;
use wire::request::ANY_TRUNCATE_EPOCH;
use wire::{Attributes, Inode, Layout};

use crate::OfdIndex;
use crate::file::layout::File;
use crate::lookup::inodes;
use crate::transport::Transport;
use crate::transport::errno::existing;

/// Flags of `open(2)` that have a meaning here, with this machine's values.
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
    /// Flags that matter only while opening.
    pub(crate) const MOMENTARY: u32 =
        CREATE | EXCLUSIVE | TRUNCATE | OFlags::NOCTTY.bits() | OFlags::CLOEXEC.bits();
    /// Flags that make a write durable before it returns.
    pub(crate) const ANY_SYNC: u32 = OFlags::SYNC.bits() | OFlags::DSYNC.bits();
    pub(crate) const CHANGEABLE: u32 = APPEND
        | OFlags::NONBLOCK.bits()
        | OFlags::DIRECT.bits()
        | OFlags::NOATIME.bits()
        | 0o20_000;
}

/// `whence` of `lseek(2)`.
pub(crate) mod whence {
    pub(crate) const SET: u32 = 0;
    pub(crate) const CURRENT: u32 = 1;
    pub(crate) const END: u32 = 2;
    pub(crate) const DATA: u32 = 3;
    pub(crate) const HOLE: u32 = 4;
}

/// Private word of an open file description: the mode at the time of the open.
const SPARE_MODE: usize = 0;
/// Bit of that word that no mode uses: the file had `security.capability`.
pub(crate) const CAPABLE: u32 = 1 << 31;
/// Private word for the bits of `mark`; another one is of `shm::host::File::note_push`.
const SPARE_MARKS: usize = shm::host::SPARE_MARKS;
/// Private word: the directory in which the file was found, or 0. `counted` names it, too.
const SPARE_PARENT: usize = shm::host::SPARE_DIRECTORY;
/// Private words of a sequential reader (`io::readahead`): where its last read ended, the end of
/// what was requested ahead, and the readahead window in buffers.
const SPARE_READ_TO: usize = 3;
const SPARE_FETCHED_TO: usize = 4;
const SPARE_WINDOW: usize = 5;
/// Before the first read, and only in a mount: creation time if a local operation created the file,
/// or 0.
const SPARE_CREATED_AT: usize = SPARE_READ_TO;

/// Bits of the marks word of an open file description.
pub(crate) mod mark {
    /// The open file may own locks.
    pub(crate) const LOCKED: u64 = 1;
    /// Opened by `O_TMPFILE`: the last close asks the shard whether the file has a name.
    pub(crate) const NAMELESS: u64 = 2;
    /// Opened by `O_TMPFILE | O_EXCL`: the file may never get a name.
    pub(crate) const NO_NAME_EVER: u64 = 4;
    /// A close or sync after writing waits for writeback (`open::write_through`).
    pub(crate) const WRITE_THROUGH: u64 = 8;
}

/// An open file description and its file, as words of shared memory.
pub(crate) struct OpenFile<'a> {
    pub(crate) index: OfdIndex,
    pub(crate) words: &'a shm::host::File,
    pub(crate) vnode: &'a Vnode,
    pub(crate) inode: Inode,
}

impl OpenFile<'_> {
    /// The words by which its transfers are counted.
    #[inline]
    pub(crate) const fn counted(&self) -> OpenWords<'_> {
        let [_, _, parent, ..] = &self.words.spare;
        OpenWords { place: &self.words.activity, inode: self.inode, parent }
    }

    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.words.flags.load(Relaxed)
    }

    /// The file as its targets identify it.
    #[inline]
    pub(crate) fn file(&self) -> File {
        let layout = Layout::from_word(self.words.layout.load(Relaxed));
        File { inode: self.inode, layout, good_for: ANY_TRUNCATE_EPOCH }
    }

    /// Updates the layout after the file ceased to be inline or short.
    pub(crate) fn set_layout(&self, attributes: &Attributes) -> File {
        self.words.layout.store(attributes.layout.word(), Relaxed);
        File { inode: self.inode, layout: attributes.layout, good_for: ANY_TRUNCATE_EPOCH }
    }

    /// The mode at the time of the open.
    #[inline]
    pub(crate) fn mode(&self) -> u32 {
        self.spare(SPARE_MODE) as u32
    }

    pub(crate) fn set_mode(&self, mode: u32) {
        self.set_private_word(SPARE_MODE, u64::from(mode));
    }

    /// The directory in which the file was found when it was opened.
    pub(crate) fn parent(&self) -> Inode {
        Inode(self.spare(SPARE_PARENT))
    }

    pub(crate) fn set_parent(&self, parent: Inode) {
        self.set_private_word(SPARE_PARENT, parent.0);
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
        self.set_private_word(SPARE_READ_TO, offset);
        self.set_private_word(SPARE_WINDOW, window);
    }

    pub(crate) fn fetched_to(&self) -> u64 {
        self.spare(SPARE_FETCHED_TO)
    }

    pub(crate) fn set_fetched_to(&self, offset: u64) {
        self.set_private_word(SPARE_FETCHED_TO, offset);
    }

    /// Records the creation time of a file that a local operation created.
    pub(crate) fn set_created_at(&self, nanos: i64) {
        self.set_private_word(SPARE_CREATED_AT, nanos.cast_unsigned());
    }

    /// Once only: the attributes of a file that a local operation of this process created for this
    /// owner and that was not used since, as they were then. The project is left out; `stat` does
    /// not show it.
    pub(crate) fn take_created(&self, (uid, gid): (u32, u32)) -> Option<Attributes> {
        let owner = (Owner { uid, project: 0 }, gid);
        let nanos = self.spare(SPARE_CREATED_AT);
        self.set_created_at(0);
        let layout = self.file().layout;
        (nanos != 0).then(|| {
            Attributes::of_new(self.inode, self.mode(), owner, nanos.cast_signed(), layout)
        })
    }

    fn set_private_word(&self, place: usize, value: u64) {
        if let Some(word) = self.words.spare.get(place) {
            word.store(value, Relaxed);
        }
    }

    #[inline]
    fn spare(&self, place: usize) -> u64 {
        self.words.spare.get(place).map_or(0, |word| word.load(Relaxed))
    }

    /// True if the descriptor allows writing.
    pub(crate) fn is_writable(&self) -> bool {
        let access = self.flags() & o::ACCESS;
        self.flags() & o::PATH == 0 && (access == o::WRITE_ONLY || access == o::READ_WRITE)
    }
}

/// A file whose open count this process has raised and that is about to be opened.
pub(crate) struct OpenReference {
    pub(crate) file: File,
    pub(crate) mode: u32,
    /// Its vnode in the host segment.
    pub(crate) vnode: VnodeIndex,
    /// Creation time in nanoseconds since 1970 if a local operation of this process created it,
    /// else 0. In the former case its vnode is already marked as open for writing.
    pub(crate) created_at: i64,
}

impl OpenReference {
    pub(crate) const fn of(attributes: &Attributes, vnode: VnodeIndex) -> OpenReference {
        let capable = if attributes.has(extra::CAPABILITY) { CAPABLE } else { 0 };
        OpenReference {
            file: File::of(attributes),
            mode: attributes.mode | capable,
            vnode,
            created_at: 0,
        }
    }
}

/// The shared words of an open file description.
///
/// # Errors
/// `EBADF` if there is none.
#[inline]
pub(crate) fn by_index(transport: &Transport, ofd: OfdIndex) -> Result<OpenFile<'_>> {
    let host = transport.host()?;
    let words = host.file(ofd)?;
    let inode = existing(Inode(words.inode.load(Relaxed)))?;
    let vnode = host.vnode(VnodeIndex(words.vnode.load(Relaxed)))?;
    Ok(OpenFile { index: ofd, words, vnode, inode })
}

/// An open regular file that may be read (`want::READ`) or written.
///
/// # Errors
/// `EBADF` if it may not, `EISDIR` for a directory.
#[inline]
pub(crate) fn open_for(transport: &Transport, ofd: OfdIndex, access: u32) -> Result<OpenFile<'_>> {
    let open = by_index(transport, ofd)?;
    let flags = open.flags();
    let may = match flags & o::ACCESS {
        0 => want::READ,
        o::WRITE_ONLY => want::WRITE,
        o::READ_WRITE => want::READ | want::WRITE,
        _ => 0,
    };
    if flags & o::PATH != 0 || may & access != access {
        return Err(Errno::EBADF);
    }
    match open.mode() & mode::TYPE {
        mode::DIRECTORY => Err(Errno::EISDIR),
        mode::REGULAR => Ok(open),
        _ => Err(Errno::EINVAL),
    }
}

/// The attributes of an open file as the shard has them.
pub(crate) fn attributes_open(transport: &Transport, ofd: OfdIndex) -> Result<Attributes> {
    crate::transport::errno::by_descriptor(inodes::attributes_of(
        transport,
        by_index(transport, ofd)?.inode,
    ))
}

/// `F_GETFL`.
pub(crate) fn flags(transport: &Transport, ofd: OfdIndex) -> Result<u32> {
    Ok(by_index(transport, ofd)?.flags())
}

/// `F_SETFL`: changes `O_APPEND`, `O_NONBLOCK`, `O_DIRECT`, `O_NOATIME`, `O_ASYNC`.
pub(crate) fn set_flags(transport: &Transport, ofd: OfdIndex, flags: u32) -> Result<()> {
    let open = by_index(transport, ofd)?;
    if open.flags() & o::PATH != 0 {
        return Err(Errno::EBADF);
    }
    let unchanged = open.flags() & !o::CHANGEABLE;
    open.words.flags.store(unchanged | flags & o::CHANGEABLE, Relaxed);
    Ok(())
}

/// The inode of an open file.
pub(crate) fn inode_of(transport: &Transport, ofd: OfdIndex) -> Result<Inode> {
    Ok(by_index(transport, ofd)?.inode)
}

/// The type bits of an open file's mode.
pub(crate) fn kind_of(transport: &Transport, ofd: OfdIndex) -> Result<u32> {
    Ok(by_index(transport, ofd)?.mode() & mode::TYPE)
}
