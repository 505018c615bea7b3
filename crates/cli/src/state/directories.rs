//! The directories of an instance on a host: run directory, shared memory, data.
//!
//! ```text
//! (`/var/tmp` or `$HOME` where another user has taken the name in `/tmp`)
//! ${XDG_RUNTIME_DIR:-/tmp}/forebay-<uid>/<name>.lock   locked while an instance is started or stopped
//! ${XDG_RUNTIME_DIR:-/tmp}/forebay-<uid>/<name>/       instance.json host.json secret peers
//!                                                      d<i>.sock d<i>.log d<i>.ready
//! /dev/shm/forebay-<uid>-<name>/h<first>/              named shared memory of a host's daemons
//! <dir>/forebay-<uid>-<name>/d<i>/                     metadata log, SSD file
//! ```
//! They are in directories where other users may write. So each must be a real directory, owned by
//! the user, and closed to others.

use crate::failure::{Failure, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest path of a Unix socket, without its NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The longest socket name in a run directory.
const SOCKET_NAME: &str = "/d1023.sock";
/// Pause between attempts to take a lock that another command holds.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The effective user of this process.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The user id outside of all user namespaces. The root of a namespace is another user outside, and
/// the directories are named by the id outside because they are next to those of other users.
fn user_outside() -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    outside(user(), &map).unwrap_or_else(user)
}

/// The id outside of `user`, from lines `inside outside count`.
fn outside(user: u32, map: &str) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut words = line.split_whitespace().map(str::parse::<u32>);
        let (inside, outside) = (words.next()?.ok()?, words.next()?.ok()?);
        let offset = user.checked_sub(inside)?;
        (offset < words.next()?.ok()?).then(|| outside.saturating_add(offset))
    })
}

/// The directory of all run directories of this user.
pub(crate) fn base() -> PathBuf {
    let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // A job often inherits the variable from a login node where the directory existed.
    let parent = set.filter(|path| path.is_absolute() && path.is_dir());
    let name = format!("forebay-{}", user_outside());
    let parents = match parent {
        Some(parent) => vec![parent],
        None => {
            let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_dir());
            ["/tmp".into(), "/var/tmp".into()].into_iter().chain(home).collect()
        }
    };
    base_among(parents.into_iter().map(|parent| parent.join(&name)).collect())
}

/// The first of the places where this user has a directory; else the first where nothing is. In
/// `/tmp` another user can take the name, and nobody but that user and root can remove it then.
fn base_among(places: Vec<PathBuf>) -> PathBuf {
    let own = places.iter().find(|place| matches!(why_not_private(place), Ok(None)));
    let free = || places.iter().find(|place| fs::symlink_metadata(place).is_err());
    own.or_else(free).or(places.first()).cloned().unwrap_or_default()
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
            "{length} bytes with a socket name, but at most {SOCKET_PATH_BYTES_MAX} are possible: use \
             a shorter --name or XDG_RUNTIME_DIR"
        );
        return Err(Failure::at("path too long", path.display(), why));
    }
    Ok(path)
}

/// Directory for the shared memory of an instance, for all of its hosts on this machine.
pub(crate) fn shm(name: &str) -> PathBuf {
    format!("/dev/shm/forebay-{}-{name}", user_outside()).into()
}

/// Directory for the data of an instance in `dir`.
pub(crate) fn data(name: &str, dir: &Path) -> PathBuf {
    dir.join(format!("forebay-{}-{name}", user_outside()))
}

/// Creates a directory with mode 0700, or checks that an existing one is private.
///
/// # Errors
/// It is a link, belongs to another user, is open to others, or cannot be made.
pub(crate) fn make_private(path: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Failure::at("cannot create a directory", path.display(), error)),
    }
    check_private(path)
}

/// Checks that a directory is private: not a link, owned by the user, and closed to others.
///
/// # Errors
/// The directory is not private.
pub(crate) fn check_private(path: &Path) -> Result<()> {
    let Some(why) = why_not_private(path)? else { return Ok(()) };
    let advice = match path == base() {
        true => "set XDG_RUNTIME_DIR to a directory of yours",
        false => "remove it, or use another --name",
    };
    Err(Failure::at("unsafe directory", path.display(), format!("{why}: {advice}")))
}

/// See `check_private`; `None`: it is private.
fn why_not_private(path: &Path) -> Result<Option<String>> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let directory = rustix::fs::open(path, flags, Mode::empty());
    let found = match directory.and_then(rustix::fs::fstat) {
        Ok(found) => found,
        Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
            return Ok(Some("it is a link or not a directory".to_owned()));
        }
        Err(error) => return Err(Failure::at("cannot open", path.display(), error)),
    };
    if found.st_uid != user() {
        return Ok(Some(format!("it belongs to user {}", found.st_uid)));
    }
    let is_open = found.st_mode & 0o077 != 0;
    Ok(is_open.then(|| "it is accessible to other users".to_owned()))
}

/// Removes a private directory with its contents. Succeeds if it does not exist.
///
/// # Errors
/// It is not private, or cannot be removed.
pub(crate) fn remove(path: &Path) -> Result<()> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    check_private(path)?;
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Failure::at("cannot remove", path.display(), error))
        }
        _ => Ok(()),
    }
}

/// Writes a file with mode 0600 atomically.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<()> {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    write_whole_by(path, &temporary, text)
}

/// As `write_whole`, through the file `temporary` of the same directory.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write_whole_by(path: &Path, temporary: &Path, text: &str) -> Result<()> {
    let new = temporary.file_name().unwrap_or_default().to_string_lossy();
    store::whole::replace_at(path, &new, text.as_bytes()).map_err(|errno| {
        let error = std::io::Error::from_raw_os_error(errno.0.into());
        Failure::at("cannot write", path.display(), error)
    })
}

/// Held while an instance is started or stopped, so that only one command does it at a time.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    file: File,
    path: PathBuf,
}

/// Locks a file or directory; false if another command holds it until then.
pub(crate) fn lock_until(file: &File, until: Instant) -> bool {
    while rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    true
}

impl InstanceLock {
    /// Waits for the lock of the instance `name`, at most `limit`.
    ///
    /// # Errors
    /// Another command holds it for longer, or its directory is not private.
    pub(crate) fn take(name: &str, limit: Duration) -> Result<InstanceLock> {
        let path = base().join(format!("{name}.lock"));
        let until = Instant::now() + limit;
        loop {
            make_private(&base())?;
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = match options.open(&path) {
                Ok(file) => file,
                // Another command, the last one, removed the directory between the two calls.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(Failure::at("cannot open", path.display(), error)),
            };
            let is_taken = lock_until(&file, until);
            if is_taken && is_still(&file, &path) {
                return Ok(InstanceLock { file, path });
            }
            if !is_taken || Instant::now() >= until {
                let why = "another forebay command is working on this instance: try again";
                return Err(Failure::at("busy", path.display(), why));
            }
        }
    }

    /// Removes the lock file, at the end of an instance.
    pub(crate) fn remove(self) {
        let _ = fs::remove_file(&self.path);
        // Removes the user's directory with the last instance; it fails while there are others.
        if let Some(parent) = self.path.parent() {
            let _ = fs::remove_dir(parent);
        }
        drop(self.file);
    }
}

/// Removes the lock file of the instance with the run directory `run`. A command that holds the
/// lock detects that.
pub(crate) fn remove_lock_beside(run: &Path) {
    let mut name = run.as_os_str().to_owned();
    name.push(".lock");
    let _ = fs::remove_file(name);
}

/// True if `path` still names `file`; the previous holder may have removed it.
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
    fn a_directory_must_be_private() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("a");
        make_private(&path).expect("made");
        make_private(&path).expect("there already");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("chmod");
        assert!(
            make_private(&path)
                .expect_err("wide")
                .text()
                .contains("it is accessible to other users")
        );
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
    fn a_name_that_another_user_took_is_left_to_it() {
        let place = tempfile::tempdir().expect("a directory");
        let places = [place.path().join("a"), place.path().join("b")];
        let base = || base_among(places.to_vec());
        assert_eq!(base(), places[0], "nothing is there");
        symlink("/tmp", &places[0]).expect("a link");
        assert_eq!(base(), places[1], "the first is not ours");
        make_private(&places[1]).expect("made");
        fs::remove_file(&places[0]).expect("removed");
        assert_eq!(base(), places[1], "the instances are there");
        make_private(&places[0]).expect("made");
        assert_eq!(base(), places[0]);
        symlink("/tmp", place.path().join("c")).expect("a link");
        assert_eq!(base_among(vec![place.path().join("c")]), place.path().join("c"));
    }

    #[test]
    fn a_user_of_a_namespace_has_the_id_outside() {
        let map = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(
            [0, 1, 65536, 65537].map(|user| outside(user, map)),
            [Some(1000), Some(100_000), Some(165_535), None]
        );
        assert_eq!(outside(7, "0 0 4294967295\n"), Some(7));
    }

    #[test]
    fn a_file_is_written_atomically() {
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
