//! Directories that belong to one user alone: created, checked, emptied.
//!
//! /dev/shm and /tmp are open to everyone, so a path there may be another user's, or a link
//! elsewhere. A directory is used only if it is a directory, owned by this user, and closed to
//! others; it is emptied through descriptors, so nothing exchanged on the way leads elsewhere.

use crate::error::{Error, Kind, Result, c_path, errno};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::path::Path;

/// Deepest tree that is removed: ours are three deep.
const DEPTH_MAX: u32 = 32;
/// How many times a directory that is still being filled is emptied again.
const PASSES_MAX: u32 = 8;

const OPEN: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A path that was verified to be a directory of this user.
fn open(doing: &'static str, path: &Path) -> Result<OwnedFd> {
    let device = |errno| Error::new(doing, path, Kind::Device(errno));
    let name = c_path(path).map_err(device)?;
    let fd = match rustix::fs::open(name.as_c_str(), OPEN, Mode::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
            return Err(Error::new(doing, path, Kind::NotOurs));
        }
        Err(os) => return Err(device(errno(os))),
    };
    let stat = rustix::fs::fstat(&fd).map_err(|os| device(errno(os)))?;
    let is_ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0;
    if is_ours { Ok(fd) } else { Err(Error::new(doing, path, Kind::NotOurs)) }
}

/// Creates a directory with mode 0700; an existing one must be owned by this user and closed to
/// others. Its parent must exist.
///
/// # Errors
/// `NotOurs`, or the operating system's error.
pub fn create(path: &Path) -> Result<()> {
    const DOING: &str = "make a directory";
    let device = |errno| Error::new(DOING, path, Kind::Device(errno));
    let name = c_path(path).map_err(device)?;
    match rustix::fs::mkdir(name.as_c_str(), Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => open(DOING, path).map(drop),
        Err(os) => Err(device(errno(os))),
    }
}

/// Removes everything in a directory of this user.
///
/// # Errors
/// `NotOurs`, or the operating system's error; as much as possible is removed.
pub fn remove_contents(path: &Path) -> Result<()> {
    const DOING: &str = "empty a directory";
    let fd = open(DOING, path)?;
    empty(fd.as_fd(), DEPTH_MAX).map_err(|os| Error::new(DOING, path, Kind::Device(errno(os))))
}

/// Removes a directory of this user with everything in it. A missing one is no error.
///
/// # Errors
/// As `remove_contents`.
pub fn remove(path: &Path) -> Result<()> {
    const DOING: &str = "remove a directory";
    match remove_contents(path) {
        Ok(()) => {}
        Err(error) if error.kind == Kind::Device(wire::Errno::ENOENT) => return Ok(()),
        Err(error) => return Err(error),
    }
    let device = |errno| Error::new(DOING, path, Kind::Device(errno));
    let name = c_path(path).map_err(device)?;
    rustix::fs::rmdir(name.as_c_str()).map_err(|os| device(errno(os)))
}

fn empty(directory: BorrowedFd<'_>, depth: u32) -> rustix::io::Result<()> {
    let mut first = Ok(());
    for _ in 0..PASSES_MAX {
        rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0))?;
        let entries = list(directory)?;
        if entries.is_empty() {
            return Ok(());
        }
        let mut failed = Ok(());
        for (name, kind) in &entries {
            failed = failed.and(remove_entry(directory, name, *kind, depth));
        }
        if failed.is_err() {
            first = failed;
            break;
        }
    }
    first
}

fn list(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<(CString, FileType)>> {
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut reader = RawDir::new(directory, &mut buffer);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next() {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            entries.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(entries)
}

fn remove_entry(
    directory: BorrowedFd<'_>,
    name: &CStr,
    kind: FileType,
    depth: u32,
) -> rustix::io::Result<()> {
    if kind != FileType::Directory {
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            // Some file systems do not return the type in a listing.
            Err(rustix::io::Errno::ISDIR) => {}
            outcome => return outcome,
        }
    }
    if depth == 0 {
        return Err(rustix::io::Errno::LOOP);
    }
    let inner = rustix::fs::openat(directory, name, OPEN, Mode::empty())?;
    empty(inner.as_fd(), depth - 1)?;
    rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn offset(name: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("forebay-{}-{name}", std::process::id()));
        remove(&path).expect("a clean start");
        path
    }

    #[test]
    fn a_directory_is_created_closed_and_removed_with_its_contents() {
        let path = offset("made");
        create(&path).expect("made");
        create(&path).expect("it is ours");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let outside = offset("outside");
        create(&outside).expect("made");
        std::fs::write(outside.join("kept"), "x").expect("written");
        std::fs::create_dir_all(path.join("a/b/c")).expect("made");
        for index in 0..1000 {
            std::fs::write(path.join(format!("a/b/{index}")), "x").expect("written");
        }
        symlink(&outside, path.join("a/link")).expect("linked");
        remove_contents(&path).expect("emptied");
        assert_eq!(std::fs::read_dir(&path).expect("there").count(), 0);
        assert!(outside.join("kept").exists(), "a link was followed");
        remove(&path).expect("removed");
        remove(&path).expect("not there is no error");
        remove(&outside).expect("removed");
    }

    #[test]
    fn directories_of_others_are_refused() {
        let path = offset("open");
        create(&path).expect("made");
        let link = offset("link");
        symlink(&path, &link).expect("linked");
        let refused = |path: &Path| create(path).map_err(|error| error.kind);
        assert_eq!(refused(&link), Err(Kind::NotOurs), "a link");
        assert_eq!(remove_contents(&link).map_err(|error| error.kind), Err(Kind::NotOurs));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).expect("set");
        assert_eq!(refused(&path), Err(Kind::NotOurs), "open to the group");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("set");
        std::fs::remove_file(&link).expect("removed");
        std::fs::write(&link, "x").expect("written");
        assert_eq!(refused(&link), Err(Kind::NotOurs), "a file");
        std::fs::remove_file(&link).expect("removed");
        remove(&path).expect("removed");
    }
}
