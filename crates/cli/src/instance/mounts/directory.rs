//! Directories that are created for mounts. Their mode says so, in which nobody would create a
//! directory for another purpose: so they are removed with the last mount on them, of whatever
//! instance.

use super::{top, users};
use crate::state::directories;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Only the owner may enter it, and it is sticky.
const MODE: u32 = 0o1700;

/// Creates the directory.
///
/// # Errors
/// As of `mkdir`.
pub(super) fn create(at: &Path) -> io::Result<()> {
    DirBuilder::new().mode(MODE).create(at)
}

/// Holds a directory between the look at it and the mount: instances that start at the same time would
/// mount over one another.
#[derive(Debug)]
pub(super) struct DirectoryClaim {
    _locked: File,
}

impl DirectoryClaim {
    /// Claims the directory on which no mount is; `None` if there is one meanwhile, if the directory was
    /// removed, or if another command holds it for so long.
    pub(super) fn take(at: &Path, timeout: Duration) -> Option<DirectoryClaim> {
        let locked = File::open(at).ok()?;
        if !directories::lock_until(&locked, Instant::now() + timeout) {
            return None;
        }
        let (own, now) = (locked.metadata().ok()?, fs::symlink_metadata(at).ok()?);
        let is_it = (own.dev(), own.ino()) == (now.dev(), now.ino());
        (is_it && top(at).is_none()).then_some(DirectoryClaim { _locked: locked })
    }
}

/// Removes the directory after the mount of the file system `device` on it has ended, if it was
/// created for a mount and no other is on it, here or in another mount namespace.
pub(super) fn remove(at: &Path, device: &str) {
    let is_created = |found: fs::Metadata| {
        found.is_dir() && found.uid() == directories::user() && found.mode() & 0o7777 == MODE
    };
    if top(at).is_none()
        && at.symlink_metadata().is_ok_and(is_created)
        && !users::is_mounted_on(at, device)
        && let Some(_claim) = DirectoryClaim::take(at, Duration::ZERO)
    {
        // Fails, as it must, if it has files meanwhile.
        let _ = fs::remove_dir(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_directory_that_was_created_for_a_mount_is_removed() {
        let place = tempfile::tempdir().expect("a directory");
        let [made, used, own] = ["made", "used", "own"].map(|name| place.path().join(name));
        create(&made).expect("created");
        create(&used).expect("created");
        fs::write(used.join("f"), "").expect("written");
        fs::create_dir(&own).expect("a directory");
        [&made, &used, &own].into_iter().for_each(|at| remove(at, "0:0"));
        assert_eq!([&made, &used, &own].map(|at| at.exists()), [false, true, true]);
    }

    #[test]
    fn one_command_at_a_time_has_a_directory() {
        let place = tempfile::tempdir().expect("a directory");
        let at = place.path().join("at");
        create(&at).expect("created");
        let first = DirectoryClaim::take(&at, Duration::ZERO).expect("free");
        assert!(DirectoryClaim::take(&at, Duration::from_millis(5)).is_none(), "it is held");
        remove(&at, "0:0");
        assert!(at.exists(), "another command is about to mount on it");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| DirectoryClaim::take(&at, Duration::from_secs(600)));
            drop(first);
            assert!(second.join().expect("no panic").is_some(), "it waits");
        });
        remove(&at, "0:0");
        assert!(!at.exists() && DirectoryClaim::take(&at, Duration::ZERO).is_none(), "removed");
        assert!(DirectoryClaim::take(Path::new("/proc"), Duration::ZERO).is_none(), "a mount");
    }
}
