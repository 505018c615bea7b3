//! One writer of an instance at a time, also while an earlier one dies.
//!
//! A process that was killed is taken for dead as soon as its first thread has ended. Another of its
//! threads may still stand in a call to a file system that does not answer, and that call, a write or a
//! rename, is carried out when it does again: over what the next writer saved since. A lock on a file
//! that nobody else has open is held until the last thread has ended.

use crate::objects::fresh;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// The file, in the run directory.
const FILE: &str = "writeback.alone";
/// Between two looks whether the earlier writer has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until no thread of an earlier writer of this instance is left, `patience` at most. Held as long
/// as the value lives.
///
/// # Errors
/// One is left, or the file can not be locked.
pub(crate) fn take(run: &Path, patience: Duration) -> Result<OwnedFd, String> {
    let until = Instant::now() + patience;
    let path = run.join(FILE);
    let failed = |error: Errno| format!("can not lock {}: {error}", path.display());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(Errno::AGAIN) => {
                let text = "an earlier writer has not ended: it runs, or was killed and still waits \
                            for what lies below; try again when it is gone from 'ps'";
                return Err(text.to_owned());
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// A number that is this instance's alone, whichever process writes for it: of the file that `take`
/// holds.
///
/// # Errors
/// It can not be read or written.
pub(crate) fn owner(lock: &OwnedFd) -> io::Result<u64> {
    let (file, mut number) = (File::from(lock.try_clone()?), [0; 8]);
    match file.read_exact_at(&mut number, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            number = fresh().to_le_bytes();
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
    fn a_writer_waits_for_the_end_of_another() {
        let run = tempfile::tempdir().expect("a directory");
        let first = take(run.path(), Duration::ZERO).expect("there is none");
        let said = take(run.path(), Duration::ZERO).expect_err("there is one");
        assert!(said.contains("an earlier writer has not ended"), "{said}");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| take(run.path(), Duration::from_secs(60)));
            drop(first);
            second.join().expect("no panic").expect("it has ended");
        });
    }
}
