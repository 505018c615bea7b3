//! An open directory, and access to what is beneath it without following symbolic links.

use crate::node::{Kind, Node};
use crate::partial;
use rustix::fs::{AtFlags, Dir as DirReader, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path};

/// Flags of a directory that is opened to be read.
const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Flags of a directory on the way, which needs search permission but not read permission.
const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Flags of a file: links are not followed, and a pipe that replaced the file does not block.
const FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
}

/// A name in a listing, and its kind if the file system reports it.
pub type DirEntry = (OsString, Option<Kind>);

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    /// The directory at a path that a user gave; follows links.
    ///
    /// # Errors
    /// As of `open`.
    pub fn open(path: &Path) -> io::Result<Dir> {
        Ok(Dir { fd: rustix::fs::open(path, DIR, Mode::empty())? })
    }

    /// As `open`; creates missing directories.
    ///
    /// # Errors
    /// As of `mkdir` and `open`.
    pub fn open_or_create(path: &Path) -> io::Result<Dir> {
        std::fs::create_dir_all(path)?;
        Dir::open(path)
    }

    /// The directory at `path` relative to this one; the empty path is this one.
    ///
    /// # Errors
    /// As of `open`; ELOOP or ENOTDIR if a component is a link, EINVAL if the path leads out of
    /// this directory.
    pub fn dir(&self, path: &Path) -> io::Result<Dir> {
        Ok(Dir { fd: self.open_beneath(path, DIR)? })
    }

    /// Opens the file at `path` relative to this directory for reading.
    ///
    /// # Errors
    /// As of `dir`.
    pub fn file_at(&self, path: &Path) -> io::Result<File> {
        Ok(self.open_beneath(path, FILE)?.into())
    }

    fn open_beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve) {
            Ok(fd) => Ok(fd),
            // `openat2` is unknown, is not permitted (some containers), or the path is longer than
            // PATH_MAX.
            Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => self.by_steps(path, flags),
            Err(errno) => Err(errno.into()),
        }
    }

    /// As `open_beneath`, one component at a time.
    fn by_steps(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let (mut here, mut parts) = (None, path.components().peekable());
        while let Some(part) = parts.next() {
            let name = match part {
                Component::CurDir => OsStr::new("."),
                Component::Normal(name) => name,
                _ => return Err(Errno::INVAL.into()),
            };
            let parent = here.as_ref().unwrap_or(&self.fd);
            let flags = if parts.peek().is_some() { STEP } else { flags };
            here = Some(rustix::fs::openat(parent, name, flags | OFlags::NOFOLLOW, Mode::empty())?);
        }
        here.ok_or_else(|| Errno::INVAL.into())
    }

    /// Opens a file in this directory for reading.
    ///
    /// # Errors
    /// As of `open`; ELOOP if it is a symbolic link.
    pub fn file(&self, name: &OsStr) -> io::Result<File> {
        Ok(rustix::fs::openat(&self.fd, name, FILE, Mode::empty())?.into())
    }

    /// The `stat` of a name.
    ///
    /// # Errors
    /// As of `fstatat`.
    pub fn node(&self, name: &OsStr) -> io::Result<Node> {
        Node::at(&self.fd, name)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As of `readlinkat`.
    pub fn link(&self, name: &OsStr) -> io::Result<OsString> {
        let target = rustix::fs::readlinkat(&self.fd, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    /// All names except `.` and `..`.
    ///
    /// # Errors
    /// As of `getdents`.
    pub fn entries(&self) -> io::Result<Vec<DirEntry>> {
        let mut found = Vec::new();
        for entry in DirReader::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let kind = Kind::listed(entry.file_type());
                found.push((OsString::from_vec(name.to_vec()), kind));
            }
        }
        Ok(found)
    }

    /// Creates a directory with mode 0700 until its metadata is set. False if it exists already;
    /// then its owner may create files in it when this returns.
    ///
    /// # Errors
    /// As of `mkdirat`; EEXIST if the name is not a directory.
    pub fn make_dir(&self, name: &OsStr) -> io::Result<bool> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => return Ok(true),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let there = self.node(name)?;
        if there.kind != Kind::Dir {
            return Err(Errno::EXIST.into());
        }
        if there.mode() & 0o300 != 0o300 {
            let fd = rustix::fs::openat(&self.fd, name, DIR | OFlags::NOFOLLOW, Mode::empty())?;
            // If the directory belongs to another user, creating files in it reports the error.
            let _ = rustix::fs::fchmod(fd, Mode::from_raw_mode(there.mode() | 0o300));
        }
        Ok(false)
    }

    /// Removes temporary names that a killed process left here, but not those of processes that may
    /// still run. `names` is the listing; all temporary names are removed from it.
    pub fn sweep(&self, names: &mut Vec<DirEntry>) {
        names.retain(|(name, _)| {
            let Some(maker) = partial::Maker::of(name) else { return true };
            if maker.is_gone(|| self.node(name)) {
                let _ = match self.node(name) {
                    Ok(node) if node.kind == Kind::Dir => self.remove_dir(name),
                    _ => self.remove(name),
                };
            }
            false
        });
    }

    /// Removes a name that is not a directory.
    ///
    /// # Errors
    /// As of `unlink`.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As of `rmdir`.
    pub fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Renames, if the new name does not exist.
    ///
    /// # Errors
    /// As of `rename`; EEXIST.
    pub fn rename(&self, name: &OsStr, to: &Dir, as_name: &OsStr) -> io::Result<()> {
        let new = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&self.fd, name, &to.fd, as_name, new) {
            // The file system or the kernel lacks RENAME_NOREPLACE. EINVAL also means a move of a
            // directory into itself.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match to.node(as_name) {
                Ok(_) => Err(Errno::EXIST.into()),
                Err(_) => Ok(rustix::fs::renameat(&self.fd, name, &to.fd, as_name)?),
            },
            done => Ok(done?),
        }
    }

    /// Adds a hard link, if the new name does not exist.
    ///
    /// # Errors
    /// As of `link`; EEXIST; EPERM or EOPNOTSUPP if the file system has no hard links.
    pub fn link_to(&self, name: &OsStr, to: &Dir, as_name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.fd, name, &to.fd, as_name, AtFlags::empty())?)
    }

    /// Waits until all data written to this file system is on the device.
    ///
    /// # Errors
    /// As of `syncfs`.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.fd)?)
    }

    /// Waits until changes of names in this directory are on the device.
    ///
    /// # Errors
    /// As of `fsync`.
    pub fn sync(&self) -> io::Result<()> {
        match rustix::fs::fsync(&self.fd) {
            // Some file systems do not support fsync of directories because they need none.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Opens `path` with both methods, which must agree.
    fn ways(dir: &Dir, path: &str) -> [io::Result<Dir>; 2] {
        let by_steps = dir.by_steps(Path::new(path), DIR).map(|fd| Dir { fd });
        [dir.dir(Path::new(path)), by_steps]
    }

    #[test]
    fn no_symbolic_link_is_followed_and_no_path_leads_out() {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().join("root");
        fs::create_dir_all(root.join("a/b")).expect("made");
        fs::create_dir(place.path().join("outside")).expect("made");
        fs::write(place.path().join("outside/secret"), "x").expect("written");
        symlink("../outside", root.join("out")).expect("linked");
        symlink("a", root.join("within")).expect("linked");
        symlink("../outside/secret", root.join("file")).expect("linked");
        let dir = Dir::open(&root).expect("open");
        for way in ways(&dir, "a/b").into_iter().chain(ways(&dir, ".")) {
            way.expect("is there");
        }
        for path in ["out", "within", "within/b", "..", "a/../../outside", "/etc", "a/none"] {
            for way in ways(&dir, path) {
                assert!(way.is_err(), "{path}");
            }
        }
        let error = dir.file(OsStr::new("file")).expect_err("a link");
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    }

    #[test]
    fn make_dir_accepts_an_existing_directory_and_nothing_else() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = Dir::open(place.path()).expect("open");
        assert!(dir.make_dir(OsStr::new("new")).expect("made"));
        assert!(!dir.make_dir(OsStr::new("new")).expect("there"));
        fs::write(place.path().join("file"), "").expect("written");
        symlink("new", place.path().join("link")).expect("linked");
        for name in ["file", "link"] {
            assert!(dir.make_dir(OsStr::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn a_path_longer_than_the_kernel_reads_is_walked() {
        let place = tempfile::tempdir().expect("a directory");
        let dir = Dir::open(place.path()).expect("open");
        let name = "n".repeat(200);
        let (mut here, mut path) = (dir.dir(Path::new("")).expect("itself"), String::new());
        for _ in 0..30 {
            here.make_dir(OsStr::new(&name)).expect("made");
            here = here.dir(Path::new(&name)).expect("entered");
            path = format!("{path}{name}/");
        }
        dir.dir(Path::new(&path)).expect("6000 bytes long");
    }
}
