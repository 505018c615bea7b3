//! One daemon of a number at a time, also while an earlier one dies.
//!
//! A process that is killed is a zombie, and taken for dead, as soon as its first thread ended. Another
//! of its threads may still be in the kernel, in a write to a device that is slow or stands still, and
//! that write is carried out whenever the device goes on: onto a place that a daemon which has taken up
//! the target would have given to another piece by then. Files that are closed by nobody else stay open
//! until the last thread has ended, and so does a lock on one.

use crate::settings::Settings;
use crate::startup::{Failure, Outcome};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks whether the earlier daemon has ended: first, longest.
const PAUSE: Duration = Duration::from_micros(200);
/// See `PAUSE`.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Held as long as the daemon lives. It is never handed to a client, who would hold it, too.
pub(crate) struct Alone {
    _lock: OwnedFd,
}

impl Alone {
    /// Waits until no thread of an earlier daemon of this number is left, before anything that it used is
    /// looked at. Half as long as a request may take: so who starts the daemon hears why it does not.
    pub(crate) fn take(settings: &Settings) -> Outcome<Alone> {
        let until = Instant::now() + Duration::from_micros(settings.timeout_micros / 2);
        store::directory::create(&settings.shm).map_err(|error| Failure(error.to_string()))?;
        // In memory, where to open it waits for no device.
        let path = settings.shm.join(format!("d{}.lock", settings.index.0));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let failed =
            |error: rustix::io::Errno| Failure(format!("can not lock {}: {error}", path.display()));
        let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let mut pause = PAUSE;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Alone { _lock: lock }),
                Err(rustix::io::Errno::AGAIN) if Instant::now() < until => thread::sleep(pause),
                Err(rustix::io::Errno::AGAIN) => return Err(Failure(in_the_way(settings))),
                Err(error) => return Err(failed(error)),
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

fn in_the_way(settings: &Settings) -> String {
    let (index, data) = (settings.index.0, settings.data.display());
    format!(
        "an earlier daemon {index} has not ended: it runs, or was killed and still waits for the device \
         of {data}; start again when it is gone from 'ps'"
    )
}
