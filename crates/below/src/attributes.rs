//! What a file carries beside its contents: owner, mode, times, extended attributes, access lists.

use crate::node::{Kind, Node};
use nix::fcntl::AtFlags as At;
use nix::unistd::{Gid, Uid};
use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Access control lists, as extended attributes.
const LISTS: [&CStr; 2] = [c"system.posix_acl_access", c"system.posix_acl_default"];
/// The largest value that Linux has.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;
const SECOND_NANOS: i64 = 1_000_000_000;

/// True if the file system took fewer attributes than there were: extended ones or access lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost(pub bool);

/// What a file is given beside its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dress {
    /// Permission bits, set-id and sticky bits.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Nanoseconds since 1970 of the last access and of the last write.
    pub times: [i64; 2],
    /// Extended attributes of users, what a program may do, access lists.
    pub extended: Vec<(CString, Vec<u8>)>,
}

impl Dress {
    /// Of an open file or directory, which `node` is of.
    ///
    /// # Errors
    /// As of the calls; what the file system does not have at all is no error.
    pub fn of(file: impl AsFd, node: &Node) -> io::Result<Dress> {
        let file = file.as_fd();
        let mut extended = Vec::new();
        for name in names_of(&file)?.into_iter().filter(is_kept) {
            let mut value = vec![0; VALUE_BYTES_MAX];
            match rustix::fs::fgetxattr(file, name.as_c_str(), &mut value) {
                Ok(length) => value.truncate(length),
                // Taken away meanwhile.
                Err(Errno::NODATA) => continue,
                Err(errno) => return Err(errno.into()),
            }
            extended.push((name, value));
        }
        Ok(Dress { extended, ..Dress::of_name(node) })
    }

    /// Of what can not be opened.
    pub(crate) fn of_name(node: &Node) -> Dress {
        let Timestamps { last_access, last_modification } = node.times();
        let times = [last_access, last_modification].map(|time| nanos(&time));
        Dress { mode: node.mode(), owner: node.owner(), times, extended: Vec::new() }
    }

    /// Gives it to an open file or directory; what that had of its own goes. Its times come last, so
    /// nothing may be written to it afterwards.
    ///
    /// The owner is set where that is permitted; where it is not, set-id bits stay away.
    ///
    /// # Errors
    /// As of the calls; what the file system does not have at all is no error.
    pub fn put_on(&self, to: impl AsFd) -> io::Result<Lost> {
        let to = to.as_fd();
        let mut lost = false;
        // Before the mode: extended attributes of a file that nobody may write can not be set.
        for (name, value) in self.extended.iter().filter(|(name, _)| !is_list(name)) {
            lost |= !set_one(to, name, value)?;
        }
        let there = Node::of(to)?;
        let mut mode = self.mode;
        if there.owner() != self.owner {
            let (user, group) = self.owner;
            if std::os::unix::fs::fchown(to, Some(user), Some(group)).is_err() {
                // A group of its user's, perhaps.
                let _ = std::os::unix::fs::fchown(to, None, Some(group));
                mode &= !SET_ID;
            }
        }
        // What it had before, and what it got from the lists of its directory.
        for name in names_of(&to)?.iter().filter(|name| is_kept(name)) {
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
        Ok(Lost(lost))
    }

    /// As `put_on`, for what can not be opened: a link, a pipe, a device. It was made with its mode.
    ///
    /// # Errors
    /// As of the calls.
    pub fn put_on_name(&self, folder: impl AsFd, name: &OsStr) -> io::Result<()> {
        let folder = folder.as_fd();
        let there = Node::at(folder, name)?;
        if there.owner() != self.owner {
            let (user, group) = (Some(self.owner.0), Some(self.owner.1));
            let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
            let _ = nix::unistd::fchownat(folder, name, user, group, At::AT_SYMLINK_NOFOLLOW);
        }
        if there.kind != Kind::Link && there.mode() != self.mode {
            // No link took its place: whoever names it here made it, or looked.
            rustix::fs::chmodat(folder, name, Mode::from_raw_mode(self.mode), AtFlags::empty())?;
        }
        rustix::fs::utimensat(folder, name, &self.timestamps(), AtFlags::SYMLINK_NOFOLLOW)?;
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

/// Nanoseconds since 1970; times beyond what they hold are the last that they do.
pub(crate) fn nanos(time: &Timespec) -> i64 {
    time.tv_sec.saturating_mul(SECOND_NANOS).saturating_add(time.tv_nsec)
}

/// Gives an open file or directory the attributes of another, which `node` is of: see `Dress::put_on`.
///
/// # Errors
/// As of the calls; what the file system does not have at all is no error.
pub fn copy(from: impl AsFd, node: &Node, to: impl AsFd) -> io::Result<Lost> {
    Dress::of(from, node)?.put_on(to)
}

fn is_list(name: &CString) -> bool {
    LISTS.contains(&name.as_c_str())
}

/// Those of users, what a program may do, and lists. The rest is the file system's own, as how a file is
/// striped.
fn is_kept(name: &CString) -> bool {
    let is_users = name.as_bytes().starts_with(b"user.");
    is_users || name.as_c_str() == c"security.capability" || is_list(name)
}

/// Names of extended attributes; none where there are no such.
fn names_of(file: &impl AsFd) -> io::Result<Vec<CString>> {
    Ok(names_by(|room| rustix::fs::flistxattr(file, room))?)
}

/// As `names_of`, as `list` tells them.
fn names_by(
    list: impl Fn(&mut [c_char]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<CString>> {
    let mut room = vec![0; 1024];
    loop {
        match list(&mut room) {
            Ok(length) => {
                let bytes: Vec<u8> = room.iter().take(length).map(|&one| one as u8).collect();
                let parts = bytes.split(|&byte| byte == 0).filter(|part| !part.is_empty());
                return Ok(parts.flat_map(CString::new).collect());
            }
            Err(Errno::RANGE) if room.len() < VALUE_BYTES_MAX => room.resize(VALUE_BYTES_MAX, 0),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
        }
    }
}

/// Extended attributes and access lists of what has a name in a directory, without opening it: those that
/// may be read. None where the file system has no such.
///
/// # Errors
/// As of the calls.
pub(crate) fn extended_at(folder: impl AsFd, name: &[u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let folder = std::os::fd::AsRawFd::as_raw_fd(&folder.as_fd());
    let path = [format!("/proc/self/fd/{folder}/").as_bytes(), name].concat();
    let path = CString::new(path)?;
    let names = match names_by(|room| rustix::fs::llistxattr(path.as_c_str(), room)) {
        Err(errno) if is_nothing(errno) => return Ok(Vec::new()),
        names => names?,
    };
    let mut all = Vec::new();
    for name in names.into_iter().filter(is_kept) {
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

/// There is none such, it is gone, or it may not be read.
const fn is_nothing(errno: Errno) -> bool {
    use Errno as E;
    matches!(errno, E::NODATA | E::NOENT | E::NOTDIR | E::ACCESS | E::PERM)
}

/// Sets one extended attribute. False if the file system takes none such.
fn set_one(to: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> io::Result<bool> {
    match rustix::fs::fsetxattr(to, name, value, XattrFlags::empty()) {
        Ok(()) => Ok(true),
        // None at all, not of this size, or not of this user.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::TOOBIG | Errno::RANGE | Errno::PERM) => {
            Ok(false)
        }
        Err(errno) => Err(errno.into()),
    }
}
