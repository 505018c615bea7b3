//! Ensures that an instance has one writeback daemon at a time, even while an earlier one dies.
//!
//! A killed process counts as dead once its main thread has ended. Another of its threads may still
//! be in a system call of a file system that does not respond, and that write or rename is executed
//! when the file system recovers, over what the next daemon has written since. A lock on an open
//! file that no other process has is held until the last thread has ended.

use crate::state::unique_number;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// The lock file in the run directory.
const FILE: &str = "writeback.instance";
/// Pause between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits, at most for `timeout`, until no thread of an earlier daemon of this instance is left. The
/// lock is held as long as the returned value lives.
///
/// # Errors
/// A thread is left, or the file cannot be locked.
pub(crate) fn take(run: &Path, timeout: Duration) -> Result<OwnedFd, String> {
    let until = Instant::now() + timeout;
    let path = run.join(FILE);
    let failed = |error: Errno| format!("cannot lock {}: {error}", path.display());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(Errno::AGAIN) => {
                let text = "an earlier writeback daemon has not ended: it runs, or was killed \
                            and still waits for the backing store; try again when it is gone \
                            from 'ps'";
                return Err(text.to_owned());
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// A number unique to this instance and the same for all its daemons; it is stored in the lock
/// file.
///
/// # Errors
/// It cannot be read or written.
pub(crate) fn owner(lock: &OwnedFd) -> io::Result<u64> {
    let (file, mut number) = (File::from(lock.try_clone()?), [0; 8]);
    match file.read_exact_at(&mut number, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            number = unique_number().to_le_bytes();
            file.write_all_at(&number, 0)?;
        }
        read => read?,
    }
    Ok(u64::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_waits_until_an_earlier_one_has_ended() {
        let run = tempfile::tempdir().expect("a directory");
        let first = take(run.path(), Duration::ZERO).expect("there is none");
        let said = take(run.path(), Duration::ZERO).expect_err("there is one");
        assert!(said.contains("an earlier writeback daemon has not ended"), "{said}");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| take(run.path(), Duration::from_secs(60)));
            drop(first);
            second.join().expect("no panic").expect("it has ended");
        });
    }
}
