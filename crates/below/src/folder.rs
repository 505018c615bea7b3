//! An open directory, and what is reached from it without following a symbolic link.

use crate::draft;
use crate::node::{Kind, Node};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path};

/// A directory, whoever looks at it.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// On the way: to be entered, and not to be read.
const STEP: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// Not followed, and no wait for the other end of a pipe that took the file's place.
const FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
}

/// A name in a listing; the kind where the file system tells it.
pub type Entry = (OsString, Option<Kind>);

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Folder {
    /// The directory at a path that a user gave: links on the way to it are followed.
    ///
    /// # Errors
    /// As of `open`.
    pub fn open(path: &Path) -> io::Result<Folder> {
        Ok(Folder { fd: rustix::fs::open(path, FOLDER, Mode::empty())? })
    }

    /// As `open`; what is missing on the way is made.
    ///
    /// # Errors
    /// As of `mkdir` and `open`.
    pub fn open_or_make(path: &Path) -> io::Result<Folder> {
        std::fs::create_dir_all(path)?;
        Folder::open(path)
    }

    /// The directory at `path` below this one; the empty path is this one.
    ///
    /// # Errors
    /// As of `open`; ELOOP or ENOTDIR if a part of the path is a link, EINVAL if it leads upwards.
    pub fn folder(&self, path: &Path) -> io::Result<Folder> {
        Ok(Folder { fd: self.below(path, FOLDER)? })
    }

    /// A file at `path` below this one, to read.
    ///
    /// # Errors
    /// As of `folder`.
    pub fn file_below(&self, path: &Path) -> io::Result<File> {
        Ok(self.below(path, FILE)?.into())
    }

    fn below(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let kept = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), kept) {
            Ok(fd) => Ok(fd),
            // Not known, not permitted (some containers), or longer than the kernel reads at once.
            Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG) => self.by_steps(path, flags),
            Err(errno) => Err(errno.into()),
        }
    }

    /// As `below`, name by name.
    fn by_steps(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let (mut here, mut parts) = (None, path.components().peekable());
        while let Some(part) = parts.next() {
            let name = match part {
                Component::CurDir => OsStr::new("."),
                Component::Normal(name) => name,
                _ => return Err(Errno::INVAL.into()),
            };
            let above = here.as_ref().unwrap_or(&self.fd);
            let flags = if parts.peek().is_some() { STEP } else { flags };
            here = Some(rustix::fs::openat(above, name, flags | OFlags::NOFOLLOW, Mode::empty())?);
        }
        here.ok_or_else(|| Errno::INVAL.into())
    }

    /// A file in this directory, to read.
    ///
    /// # Errors
    /// As of `open`; ELOOP if it is a symbolic link.
    pub fn file(&self, name: &OsStr) -> io::Result<File> {
        Ok(rustix::fs::openat(&self.fd, name, FILE, Mode::empty())?.into())
    }

    /// What is under a name.
    ///
    /// # Errors
    /// As of `fstatat`.
    pub fn node(&self, name: &OsStr) -> io::Result<Node> {
        Node::at(&self.fd, name)
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// As of `readlinkat`.
    pub fn link(&self, name: &OsStr) -> io::Result<OsString> {
        let target = rustix::fs::readlinkat(&self.fd, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    /// All names but `.` and `..`.
    ///
    /// # Errors
    /// As of `getdents`.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let kind = Kind::listed(entry.file_type());
                found.push((OsString::from_vec(name.to_vec()), kind));
            }
        }
        Ok(found)
    }

    /// Makes a directory that only its maker may enter, until it has its attributes. False if
    /// there is one already, in which the maker may make files then.
    ///
    /// # Errors
    /// As of `mkdirat`; EEXIST if something else has the name.
    pub fn make_folder(&self, name: &OsStr) -> io::Result<bool> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => return Ok(true),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let there = self.node(name)?;
        if there.kind != Kind::Folder {
            return Err(Errno::EXIST.into());
        }
        if there.mode() & 0o300 != 0o300 {
            let fd = rustix::fs::openat(&self.fd, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
            // If it is another user's, making files will say so.
            let _ = rustix::fs::fchmod(fd, Mode::from_raw_mode(there.mode() | 0o300));
        }
        Ok(false)
    }

    /// Removes temporary names that a run left here which was killed; those of runs that may go on
    /// stay. `names` is what is listed; what is left of it are the other names.
    pub fn sweep(&self, names: &mut Vec<Entry>) {
        names.retain(|(name, _)| {
            let Some(maker) = draft::Maker::of(name) else { return true };
            if maker.is_gone(|| self.node(name)) {
                let _ = match self.node(name) {
                    Ok(node) if node.kind == Kind::Folder => self.remove_folder(name),
                    _ => self.remove(name),
                };
            }
            false
        });
    }

    /// Takes away the name of what is no directory.
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
    pub fn remove_folder(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Gives what has a name one in another directory that nobody has.
    ///
    /// # Errors
    /// As of `rename`; EEXIST.
    pub fn rename(&self, name: &OsStr, to: &Folder, as_name: &OsStr) -> io::Result<()> {
        let new = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(&self.fd, name, &to.fd, as_name, new) {
            // A file system, or a kernel, without it. EINVAL is said of a move into itself, too.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match to.node(as_name) {
                Ok(_) => Err(Errno::EXIST.into()),
                Err(_) => Ok(rustix::fs::renameat(&self.fd, name, &to.fd, as_name)?),
            },
            done => Ok(done?),
        }
    }

    /// Gives what is no directory a further name that nobody has.
    ///
    /// # Errors
    /// As of `link`; EEXIST; EPERM or EOPNOTSUPP where there are no further names.
    pub fn link_to(&self, name: &OsStr, to: &Folder, as_name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.fd, name, &to.fd, as_name, AtFlags::empty())?)
    }

    /// Waits until all that was written to the file system is on the device.
    ///
    /// # Errors
    /// As of `syncfs`.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.fd)?)
    }

    /// Waits until what was done to names in this directory is on the device.
    ///
    /// # Errors
    /// As of `fsync`.
    pub fn sync(&self) -> io::Result<()> {
        match rustix::fs::fsync(&self.fd) {
            // Some file systems keep directories in order by themselves.
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

    /// Both ways to a directory, which must answer alike.
    fn ways(folder: &Folder, path: &str) -> [io::Result<Folder>; 2] {
        let by_steps = folder.by_steps(Path::new(path), FOLDER).map(|fd| Folder { fd });
        [folder.folder(Path::new(path)), by_steps]
    }

    #[test]
    fn no_link_is_followed_and_nothing_leads_out() {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().join("root");
        fs::create_dir_all(root.join("a/b")).expect("made");
        fs::create_dir(place.path().join("outside")).expect("made");
        fs::write(place.path().join("outside/secret"), "x").expect("written");
        symlink("../outside", root.join("out")).expect("linked");
        symlink("a", root.join("within")).expect("linked");
        symlink("../outside/secret", root.join("file")).expect("linked");
        let folder = Folder::open(&root).expect("open");
        for way in ways(&folder, "a/b").into_iter().chain(ways(&folder, ".")) {
            way.expect("is there");
        }
        for path in ["out", "within", "within/b", "..", "a/../../outside", "/etc", "a/none"] {
            for way in ways(&folder, path) {
                assert!(way.is_err(), "{path}");
            }
        }
        let error = folder.file(OsStr::new("file")).expect_err("a link");
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    }

    #[test]
    fn a_directory_is_made_or_entered_and_nothing_else_taken_for_one() {
        let place = tempfile::tempdir().expect("a directory");
        let folder = Folder::open(place.path()).expect("open");
        assert!(folder.make_folder(OsStr::new("new")).expect("made"));
        assert!(!folder.make_folder(OsStr::new("new")).expect("there"));
        fs::write(place.path().join("file"), "").expect("written");
        symlink("new", place.path().join("link")).expect("linked");
        for name in ["file", "link"] {
            assert!(folder.make_folder(OsStr::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn a_path_longer_than_the_kernel_reads_is_walked() {
        let place = tempfile::tempdir().expect("a directory");
        let folder = Folder::open(place.path()).expect("open");
        let name = "n".repeat(200);
        let (mut here, mut path) = (folder.folder(Path::new("")).expect("itself"), String::new());
        for _ in 0..30 {
            here.make_folder(OsStr::new(&name)).expect("made");
            here = here.folder(Path::new(&name)).expect("entered");
            path = format!("{path}{name}/");
        }
        folder.folder(Path::new(&path)).expect("6000 bytes long");
    }
}
