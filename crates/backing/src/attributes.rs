//! Metadata of a file other than its contents: owner, mode, times, extended attributes, access
//! control lists.

use crate::node::{Kind, Node};
use nix::fcntl::AtFlags as At;
use nix::unistd::{Gid, Uid};
use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Access control lists, which the kernel shows as extended attributes.
const LISTS: [&CStr; 2] = [c"system.posix_acl_access", c"system.posix_acl_default"];
/// Largest value of an extended attribute on Linux, in bytes.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Mode bits set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
const SECOND_NANOS: i64 = 1_000_000_000;

/// True if the file system did not accept some extended attributes or access control lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributesLost(pub bool);

/// Metadata of a file other than its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMetadata {
    /// Permission bits, set-id and sticky bits.
    pub mode: u32,
    /// User id and group id.
    pub owner: (u32, u32),
    /// Access time and modification time, in nanoseconds since 1970.
    pub times: [i64; 2],
    /// Extended attributes in `user.*`, file capabilities, and access control lists.
    pub extended: Vec<(CString, Vec<u8>)>,
}

impl FileMetadata {
    /// Reads the metadata of an open file or directory; `node` is its `stat`.
    ///
    /// # Errors
    /// As of the system calls. A file system without extended attributes is not an error.
    pub fn of(file: impl AsFd, node: &Node) -> io::Result<FileMetadata> {
        let file = file.as_fd();
        let mut extended = Vec::new();
        for name in names_of(&file)?.into_iter().filter(is_copied) {
            let mut value = vec![0; VALUE_BYTES_MAX];
            match rustix::fs::fgetxattr(file, name.as_c_str(), &mut value) {
                Ok(length) => value.truncate(length),
                // It was removed in the meantime.
                Err(Errno::NODATA) => continue,
                Err(errno) => return Err(errno.into()),
            }
            extended.push((name, value));
        }
        Ok(FileMetadata { extended, ..FileMetadata::of_name(node) })
    }

    /// Metadata from `stat` alone, for files that cannot be opened.
    pub(crate) fn of_name(node: &Node) -> FileMetadata {
        let Timestamps { last_access, last_modification } = node.times();
        let times = [last_access, last_modification].map(|time| nanos(&time));
        FileMetadata { mode: node.mode(), owner: node.owner(), times, extended: Vec::new() }
    }

    /// Sets this metadata on an open file or directory and removes extended attributes that it does
    /// not have. Times are set last, so the caller must not write to the file afterwards.
    ///
    /// The owner is set if that is permitted. If not, set-id bits are not set.
    ///
    /// # Errors
    /// As of the system calls. A file system without extended attributes is not an error.
    pub fn put_on(&self, to: impl AsFd) -> io::Result<AttributesLost> {
        let to = to.as_fd();
        let mut lost = false;
        // Before the mode, because extended attributes of a file without write permission cannot be
        // set.
        for (name, value) in self.extended.iter().filter(|(name, _)| !is_list(name)) {
            lost |= !set_one(to, name, value)?;
        }
        let there = Node::of(to)?;
        let mut mode = self.mode;
        if there.owner() != self.owner {
            let (user, batch) = self.owner;
            if std::os::unix::fs::fchown(to, Some(user), Some(batch)).is_err() {
                // Setting only the group is permitted if the user is a member of it.
                let _ = std::os::unix::fs::fchown(to, None, Some(batch));
                mode &= !SET_ID;
            }
        }
        // Attributes that the file had before, or inherited from the default list of its directory.
        for name in names_of(&to)?.iter().filter(|name| is_copied(name)) {
            if !self.extended.iter().any(|(own, _)| own == name) {
                match rustix::fs::fremovexattr(to, name.as_c_str()) {
                    Ok(()) | Err(Errno::NODATA) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        if Node::of(to)?.mode() != mode {
            rustix::fs::fchmod(to, Mode::from_raw_mode(mode))?;
        }
        for (name, value) in self.extended.iter().filter(|(name, _)| is_list(name)) {
            lost |= !set_one(to, name, value)?;
        }
        rustix::fs::futimens(to, &self.timestamps())?;
        Ok(AttributesLost(lost))
    }

    /// As `put_on`, for files that cannot be opened: symbolic links, pipes, devices. They have
    /// their mode already.
    ///
    /// # Errors
    /// As of the system calls.
    pub fn put_on_name(&self, dir: impl AsFd, name: &OsStr) -> io::Result<()> {
        let dir = dir.as_fd();
        let there = Node::at(dir, name)?;
        if there.owner() != self.owner {
            let (user, batch) = (Some(self.owner.0), Some(self.owner.1));
            let (user, batch) = (user.map(Uid::from_raw), batch.map(Gid::from_raw));
            let _ = nix::unistd::fchownat(dir, name, user, batch, At::AT_SYMLINK_NOFOLLOW);
        }
        if there.kind != Kind::Link && there.mode() != self.mode {
            // `chmod` follows links, but no link can have replaced the file: only the caller uses
            // this name.
            rustix::fs::chmodat(dir, name, Mode::from_raw_mode(self.mode), AtFlags::empty())?;
        }
        rustix::fs::utimensat(dir, name, &self.timestamps(), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    fn timestamps(&self) -> Timestamps {
        let [last_access, last_modification] = self.times.map(|nanos| Timespec {
            tv_sec: nanos.div_euclid(SECOND_NANOS),
            tv_nsec: nanos.rem_euclid(SECOND_NANOS),
        });
        Timestamps { last_access, last_modification }
    }
}

/// Nanoseconds since 1970, saturated at the range of `i64`.
pub(crate) fn nanos(time: &Timespec) -> i64 {
    time.tv_sec.saturating_mul(SECOND_NANOS).saturating_add(time.tv_nsec)
}

/// Copies the metadata of one open file or directory to another; `node` is the `stat` of the
/// source. See `FileMetadata::put_on`.
///
/// # Errors
/// As of the system calls. A file system without extended attributes is not an error.
pub fn copy(from: impl AsFd, node: &Node, to: impl AsFd) -> io::Result<AttributesLost> {
    FileMetadata::of(from, node)?.put_on(to)
}

fn is_list(name: &CString) -> bool {
    LISTS.contains(&name.as_c_str())
}

/// True for attributes that are copied: `user.*`, file capabilities, and access control lists.
/// Others belong to the file system, such as its striping.
fn is_copied(name: &CString) -> bool {
    let is_users = name.as_bytes().starts_with(b"user.");
    is_users || name.as_c_str() == c"security.capability" || is_list(name)
}

/// Names of the extended attributes; empty if the file system has none.
fn names_of(file: &impl AsFd) -> io::Result<Vec<CString>> {
    Ok(names_by(|buffer| rustix::fs::flistxattr(file, buffer))?)
}

/// As `names_of`, with the system call `list`.
fn names_by(
    list: impl Fn(&mut [c_char]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<CString>> {
    let mut buffer = vec![0; 1024];
    loop {
        match list(&mut buffer) {
            Ok(length) => {
                let bytes: Vec<u8> = buffer.iter().take(length).map(|&one| one as u8).collect();
                let parts = bytes.split(|&byte| byte == 0).filter(|part| !part.is_empty());
                return Ok(parts.flat_map(CString::new).collect());
            }
            Err(Errno::RANGE) if buffer.len() < VALUE_BYTES_MAX => {
                buffer.resize(VALUE_BYTES_MAX, 0)
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
        }
    }
}

/// Extended attributes and access control lists of a name in a directory, without opening the file.
/// Attributes that the caller may not read are left out. Empty if the file system has no extended
/// attributes.
///
/// # Errors
/// As of the system calls.
pub(crate) fn extended_at(dir: impl AsFd, name: &[u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let dir = std::os::fd::AsRawFd::as_raw_fd(&dir.as_fd());
    let path = [format!("/proc/self/fd/{dir}/").as_bytes(), name].concat();
    let path = CString::new(path)?;
    let names = match names_by(|buffer| rustix::fs::llistxattr(path.as_c_str(), buffer)) {
        Err(errno) if is_nothing(errno) => return Ok(Vec::new()),
        names => names?,
    };
    let mut all = Vec::new();
    for name in names.into_iter().filter(is_copied) {
        let mut value = vec![0; VALUE_BYTES_MAX];
        match rustix::fs::lgetxattr(path.as_c_str(), name.as_c_str(), &mut value) {
            Ok(length) => value.truncate(length),
            Err(errno) if is_nothing(errno) => continue,
            Err(errno) => return Err(errno.into()),
        }
        all.push((name.into_bytes(), value));
    }
    Ok(all)
}

/// True if the attribute does not exist, the file is gone, or the caller may not read it.
const fn is_nothing(errno: Errno) -> bool {
    use Errno as E;
    matches!(errno, E::NODATA | E::NOENT | E::NOTDIR | E::ACCESS | E::PERM)
}

/// Sets one extended attribute. False if the file system does not accept it.
fn set_one(to: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> io::Result<bool> {
    match rustix::fs::fsetxattr(to, name, value, XattrFlags::empty()) {
        Ok(()) => Ok(true),
        // No extended attributes at all, value too large, or not permitted to this user.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::TOOBIG | Errno::RANGE | Errno::PERM) => {
            Ok(false)
        }
        Err(errno) => Err(errno.into()),
    }
}
