//! Where an instance keeps what on a host: run directory, shared memory, data.
//!
//! ```text
//! ${XDG_RUNTIME_DIR:-/tmp}/forebay-<uid>/<name>.lock   held while an instance is changed
//! ${XDG_RUNTIME_DIR:-/tmp}/forebay-<uid>/<name>/       instance.json host.json secret peers
//!                                                      d<i>.sock d<i>.log d<i>.ready
//! /dev/shm/forebay-<uid>-<name>/h<first>/              named shared memory of a host's daemons
//! <dir>/forebay-<uid>-<name>/d<i>/                     log of metadata, SSD target
//! ```
//! All lie where others may write, so each must be a real directory, ours, and ours alone.

use crate::failure::{Failure, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest path of a Unix socket, without its NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The longest name that is appended to a run directory for a socket.
const SOCKET_NAME: &str = "/d1023.sock";
/// Between attempts to take a lock that another command holds.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The user, as the kernel knows us.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The user as others of this machine know him: the root of a user namespace is somebody else outside,
/// and what lies beside the directories of others is named by that.
fn user_outside() -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    outside(user(), &map).unwrap_or_else(user)
}

/// Lines `inside outside count`.
fn outside(user: u32, map: &str) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut words = line.split_whitespace().map(str::parse::<u32>);
        let (inside, outside) = (words.next()?.ok()?, words.next()?.ok()?);
        let beyond = user.checked_sub(inside)?;
        (beyond < words.next()?.ok()?).then(|| outside.saturating_add(beyond))
    })
}

/// The directory of all run directories of this user.
pub(crate) fn base() -> PathBuf {
    let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // A job often inherits the variable from a login node, without the directory.
    let parent = set.filter(|path| path.is_absolute() && path.is_dir());
    parent.unwrap_or_else(|| "/tmp".into()).join(format!("forebay-{}", user_outside()))
}

/// The run directory of an instance.
///
/// # Errors
/// Its path is too long for sockets.
pub(crate) fn run(name: &str) -> Result<PathBuf> {
    let path = base().join(name);
    let length = path.as_os_str().len() + SOCKET_NAME.len();
    if length > SOCKET_PATH_BYTES_MAX {
        let why = format!(
            "{length} bytes with the name of a socket, {SOCKET_PATH_BYTES_MAX} are possible: take \
             a shorter --name or XDG_RUNTIME_DIR"
        );
        return Err(Failure::at("run directory", path.display(), why));
    }
    Ok(path)
}

/// Shared memory of an instance, of all hosts that share this machine.
pub(crate) fn shm(name: &str) -> PathBuf {
    format!("/dev/shm/forebay-{}-{name}", user_outside()).into()
}

/// Data of an instance in `dir`.
pub(crate) fn data(name: &str, dir: &Path) -> PathBuf {
    dir.join(format!("forebay-{}-{name}", user_outside()))
}

/// Makes a directory of mode 0700, or makes sure that it is ours and of that mode already.
///
/// # Errors
/// It is a link, another's, open to others, or can not be made.
pub(crate) fn make_private(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Failure::at("can not make a directory", path.display(), error)),
    }
    check_private(path)
}

/// Makes sure that a directory is no link, ours, and closed to others.
///
/// # Errors
/// As it says.
pub(crate) fn check_private(path: &Path) -> Result<()> {
    let unsafe_because = |why: &str| {
        let advice = format!("{why}: remove it, or take another --name");
        Failure::at("unsafe directory", path.display(), advice)
    };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let directory = rustix::fs::open(path, flags, Mode::empty());
    let found = match directory.and_then(rustix::fs::fstat) {
        Ok(found) => found,
        Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
            return Err(unsafe_because("it is no directory or a link"));
        }
        Err(error) => return Err(Failure::at("can not open", path.display(), error)),
    };
    if found.st_uid != user() {
        return Err(unsafe_because(&format!("it belongs to user {}", found.st_uid)));
    }
    if found.st_mode & 0o077 != 0 {
        return Err(unsafe_because("others may use it"));
    }
    Ok(())
}

/// Removes a directory of ours with all that is in it. One that is not there is fine.
///
/// # Errors
/// It is not ours, or can not be removed.
pub(crate) fn remove(path: &Path) -> Result<()> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    check_private(path)?;
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Failure::at("can not remove", path.display(), error))
        }
        _ => Ok(()),
    }
}

/// Writes a file for us alone, whole or not at all.
///
/// # Errors
/// It can not be written.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    write_whole_by(path, &temporary, text)
}

/// As `write_whole`; until it is whole it is `temporary`.
///
/// # Errors
/// It can not be written.
pub(crate) fn write_whole_by(path: &Path, temporary: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options
        .open(temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(temporary, path));
    written.map_err(|error| {
        let _ = fs::remove_file(temporary);
        Failure::at("can not write", path.display(), error)
    })
}

/// Held while an instance is started or stopped, so that two commands do not do it at once.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Waits for the lock of the instance `name`, `limit` at most.
    ///
    /// # Errors
    /// Another command holds it too long, or its directory is not ours.
    pub(crate) fn take(name: &str, limit: Duration) -> Result<Lock> {
        let path = base().join(format!("{name}.lock"));
        let until = Instant::now() + limit;
        loop {
            make_private(&base())?;
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = match options.open(&path) {
                Ok(file) => file,
                // Between the two calls another command removed the directory, as the last one.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(Failure::at("can not open", path.display(), error)),
            };
            let taken = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            if taken.is_ok() && is_still(&file, &path) {
                return Ok(Lock { file, path });
            }
            if Instant::now() >= until {
                let why = "another forebay command works on this instance: try again";
                return Err(Failure::at("busy", path.display(), why));
            }
            if taken.is_err() {
                std::thread::sleep(LOCK_PAUSE);
            }
        }
    }

    /// Removes the lock itself, at the end of an instance.
    pub(crate) fn remove(self) {
        let _ = fs::remove_file(&self.path);
        // The last instance takes the user's own directory with it; another's keeps it.
        if let Some(parent) = self.path.parent() {
            let _ = fs::remove_dir(parent);
        }
        drop(self.file);
    }
}

/// Removes the lock of the instance that `run` was of, which a command on this host left: who holds it
/// sees that.
pub(crate) fn remove_lock_beside(run: &Path) {
    let mut name = run.as_os_str().to_owned();
    name.push(".lock");
    let _ = fs::remove_file(name);
}

/// True if `file` is what `path` names: the holder before us may have removed it.
fn is_still(file: &File, path: &Path) -> bool {
    let named = fs::symlink_metadata(path);
    let held = file.metadata();
    matches!((named, held), (Ok(a), Ok(b)) if (a.ino(), a.dev()) == (b.ino(), b.dev()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn a_directory_must_be_ours_alone() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("a");
        make_private(&path).expect("made");
        make_private(&path).expect("there already");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("chmod");
        assert!(make_private(&path).expect_err("wide").text().contains("others may use it"));
        assert!(remove(&path).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("chmod");
        let link = place.path().join("link");
        symlink(&path, &link).expect("a link");
        assert!(make_private(&link).expect_err("link").text().contains("a link"));
        assert!(remove(&link).is_err());
        fs::write(path.join("file"), "x").expect("written");
        remove(&path).expect("removed");
        remove(&path).expect("was removed before");
    }

    #[test]
    fn a_user_is_named_as_he_is_outside() {
        let map = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(
            [0, 1, 65536, 65537].map(|user| outside(user, map)),
            [Some(1000), Some(100_000), Some(165_535), None]
        );
        assert_eq!(outside(7, "0 0 4294967295\n"), Some(7));
    }

    #[test]
    fn a_file_is_written_whole() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("peers");
        write_whole(&path, "0 127.0.0.1:1\n").expect("written");
        write_whole(&path, "short\n").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "short\n");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(place.path()).expect("a listing").count(), 1);
    }
}
