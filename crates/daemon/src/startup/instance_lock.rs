//! Instance lock: only one daemon with a given index runs at a time, even while an earlier one
//! dies.
//!
//! A killed process is a zombie, and taken for dead, as soon as its first thread has ended. Another
//! of its threads may still be in the kernel, in a write to a slow or hung device. That write is
//! carried out when the device continues, at an offset that a daemon which has recovered the target
//! may have given to another extent by then. Descriptors that only this process holds stay open
//! until its last thread has ended, and so does a lock on one.
//!
//! The file names the daemon, for `forebay` where the record of the host is gone: one line of JSON
//! with its pid, its run directory, and its directory of data.

use crate::startup::failure::{Failure, StartResult};
use crate::startup::settings::Settings;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, fstat, stat};
use rustix::io::Errno;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// First pause between attempts to take the lock; it grows up to `PAUSE_MAX`.
const PAUSE: Duration = Duration::from_micros(200);
/// See `PAUSE`.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Held for the life of the daemon. The descriptor is never passed to a client, which would then
/// hold the lock, too.
pub(crate) struct InstanceLock {
    lock: OwnedFd,
    path: PathBuf,
    /// The line in it.
    holder: String,
}

impl InstanceLock {
    /// Waits until no thread of an earlier daemon with this index is left, before anything that it
    /// used is read. Waits at most half as long as a request may take, so that the starter learns
    /// the reason.
    pub(crate) fn take(settings: &Settings) -> StartResult<InstanceLock> {
        let until = Instant::now() + Duration::from_micros(settings.instance.timeout / 2);
        store::directory::create(&settings.shm).map_err(|error| Failure::new(error.to_string()))?;
        // In memory, so that opening it does not wait for a device.
        let path = settings.shm.join(format!("d{}.lock", settings.index));
        let failed =
            |error: Errno| Failure::new(format!("cannot lock {}: {error}", path.display()));
        let lock = open(&path).map_err(failed)?;
        let mut pause = PAUSE;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::AGAIN) if Instant::now() < until => thread::sleep(pause),
                Err(Errno::AGAIN) => return Err(Failure::new(blocked_by_earlier(settings))),
                Err(error) => return Err(failed(error)),
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let holder = serde_json::json!({
            "pid": std::process::id(),
            "run": settings.run.to_string_lossy(),
            "data": settings.data.to_string_lossy(),
        });
        let lock = InstanceLock { lock, path: path.clone(), holder: format!("{holder}\n") };
        lock.name_holder().map_err(failed)?;
        Ok(lock)
    }

    fn name_holder(&self) -> rustix::io::Result<()> {
        rustix::fs::ftruncate(&self.lock, 0)?;
        rustix::io::pwrite(&self.lock, self.holder.as_bytes(), 0).map(drop)
    }

    /// Whether the path still names the file; `None` if that cannot be read.
    pub(crate) fn is_named(&self) -> Option<bool> {
        match (fstat(&self.lock), stat(&self.path)) {
            (Ok(own), Ok(there)) => Some((own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)),
            (Ok(_), Err(Errno::NOENT)) => Some(false),
            _ => None,
        }
    }

    /// Locks a new file at the path, in directories that are made again. The earlier file stays
    /// locked: a thread that hangs keeps it.
    pub(crate) fn name_again(&mut self) -> StartResult<()> {
        let directory = self.path.parent().map(PathBuf::from).unwrap_or_default();
        for directory in directory.parent().into_iter().chain([directory.as_path()]) {
            store::directory::create(directory).map_err(|error| Failure::new(error.to_string()))?;
        }
        let failed =
            |error: Errno| Failure::new(format!("cannot lock {}: {error}", self.path.display()));
        let lock = open(&self.path).map_err(failed)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(failed)?;
        self.lock = lock;
        self.name_holder().map_err(|error| Failure::new(error.to_string()))
    }
}

fn open(path: &std::path::Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
}

fn blocked_by_earlier(settings: &Settings) -> String {
    let (index, data) = (settings.index, settings.data.display());
    format!(
        "an earlier daemon {index} has not ended: it runs, or was killed and still waits for the device \
         of {data}; start again when it is gone from 'ps'"
    )
}
