//! The `stat` of a file: kind, mode, owner, size, times.

use rustix::fs::{AtFlags, FileType, Stat, Timespec, Timestamps};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A named pipe, a socket or a device.
    Special,
}

impl Kind {
    /// The kind from a directory listing; `None` if the listing does not report it.
    pub(crate) fn listed(kind: FileType) -> Option<Kind> {
        match kind {
            FileType::RegularFile => Some(Kind::File),
            FileType::Directory => Some(Kind::Dir),
            FileType::Symlink => Some(Kind::Link),
            FileType::Unknown => None,
            _ => Some(Kind::Special),
        }
    }
}

/// Attributes of a file, as `stat` returns them.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Kind of the file.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Number of hard links.
    pub links: u64,
    /// Device and inode number: names with equal identities are one file.
    pub identity: (u64, u64),
    stat: Stat,
}

impl Node {
    pub(crate) fn new(stat: Stat) -> Node {
        // The type bits of a mode are the same as in a listing.
        let kind = Kind::listed(FileType::from_raw_mode(stat.st_mode)).unwrap_or(Kind::Special);
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let identity = (stat.st_dev, stat.st_ino);
        Node { kind, size, links: stat.st_nlink, identity, stat }
    }

    /// The `stat` of an open file.
    ///
    /// # Errors
    /// As of `fstat`.
    pub fn of(file: impl AsFd) -> io::Result<Node> {
        Ok(Node::new(rustix::fs::fstat(file)?))
    }

    /// The `stat` of `name` in an open directory; links are not followed.
    ///
    /// # Errors
    /// As of `fstatat`.
    pub fn at(dir: impl AsFd, name: &OsStr) -> io::Result<Node> {
        Ok(Node::new(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// True if kind, size and modification time are equal: the test that copies use.
    #[must_use]
    pub fn is_as_written(&self, other: &Node) -> bool {
        let written = |node: &Node| (node.stat.st_mtime, node.stat.st_mtime_nsec);
        (self.kind, self.size) == (other.kind, other.size) && written(self) == written(other)
    }

    /// True if the file occupies fewer blocks than its size needs, so it may have holes.
    #[must_use]
    pub fn may_have_holes(&self) -> bool {
        u64::try_from(self.stat.st_blocks).unwrap_or(0).saturating_mul(512) < self.size
    }

    /// The mode without the type bits.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.stat.st_mode & 0o7777
    }

    /// User id and group id.
    #[must_use]
    pub fn owner(&self) -> (u32, u32) {
        (self.stat.st_uid, self.stat.st_gid)
    }

    /// Modification time, in nanoseconds since 1970.
    #[must_use]
    pub fn modified(&self) -> i64 {
        crate::attributes::nanos(&self.times().last_modification)
    }

    /// Type bits and device number, as `mknod` takes them.
    pub(crate) fn special(&self) -> (FileType, u64) {
        (FileType::from_raw_mode(self.stat.st_mode), self.stat.st_rdev)
    }

    /// Access and modification time.
    pub(crate) fn times(&self) -> Timestamps {
        let time = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos };
        Timestamps {
            last_access: time(self.stat.st_atime, self.stat.st_atime_nsec),
            last_modification: time(self.stat.st_mtime, self.stat.st_mtime_nsec),
        }
    }
}
