//! What a name is: kind, mode, owner, size, times.

use rustix::fs::{AtFlags, FileType, Stat, Timespec, Timestamps};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe with a name, a socket or a device.
    Special,
}

impl Kind {
    /// The kind that a listing tells; `None` if it does not.
    pub(crate) fn listed(kind: FileType) -> Option<Kind> {
        match kind {
            FileType::RegularFile => Some(Kind::File),
            FileType::Directory => Some(Kind::Folder),
            FileType::Symlink => Some(Kind::Link),
            FileType::Unknown => None,
            _ => Some(Kind::Special),
        }
    }
}

/// What `stat` says of a file.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Its kind.
    pub kind: Kind,
    /// Its bytes.
    pub size: u64,
    /// Names that it has.
    pub links: u64,
    /// Which it is: two names with the same are one file.
    pub identity: (u64, u64),
    stat: Stat,
}

impl Node {
    pub(crate) fn new(stat: Stat) -> Node {
        // Of what is no file the kinds are the same as in a listing.
        let kind = Kind::listed(FileType::from_raw_mode(stat.st_mode)).unwrap_or(Kind::Special);
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let identity = (stat.st_dev, stat.st_ino);
        Node { kind, size, links: stat.st_nlink, identity, stat }
    }

    /// What is open.
    ///
    /// # Errors
    /// As of `fstat`.
    pub fn of(file: impl AsFd) -> io::Result<Node> {
        Ok(Node::new(rustix::fs::fstat(file)?))
    }

    /// What is under `name` in an open directory; a symbolic link is itself.
    ///
    /// # Errors
    /// As of `fstatat`.
    pub fn at(folder: impl AsFd, name: &OsStr) -> io::Result<Node> {
        Ok(Node::new(rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// True if both have the same size and were written at the same time: what copies compare.
    #[must_use]
    pub fn is_as_written(&self, other: &Node) -> bool {
        let written = |node: &Node| (node.stat.st_mtime, node.stat.st_mtime_nsec);
        (self.kind, self.size) == (other.kind, other.size) && written(self) == written(other)
    }

    /// True if its blocks are fewer than its bytes: there may be holes.
    #[must_use]
    pub fn may_have_holes(&self) -> bool {
        u64::try_from(self.stat.st_blocks).unwrap_or(0).saturating_mul(512) < self.size
    }

    /// Its mode without the kind.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.stat.st_mode & 0o7777
    }

    /// User and group that it belongs to.
    #[must_use]
    pub fn owner(&self) -> (u32, u32) {
        (self.stat.st_uid, self.stat.st_gid)
    }

    /// When it was written last, in nanoseconds since 1970.
    #[must_use]
    pub fn modified(&self) -> i64 {
        crate::attributes::nanos(&self.times().last_modification)
    }

    /// Kind as `mknod` takes it, and the device.
    pub(crate) fn special(&self) -> (FileType, u64) {
        (FileType::from_raw_mode(self.stat.st_mode), self.stat.st_rdev)
    }

    /// Times of the last access and write.
    pub(crate) fn times(&self) -> Timestamps {
        let time = |seconds, nanos| Timespec { tv_sec: seconds, tv_nsec: nanos };
        Timestamps {
            last_access: time(self.stat.st_atime, self.stat.st_atime_nsec),
            last_modification: time(self.stat.st_mtime, self.stat.st_mtime_nsec),
        }
    }
}
