//! Giving up what an instance has of files that lie below in the backing directory: it is read from there
//! again when a program asks. What lies nowhere else stays, and is counted.

use super::rise::each_file;
use super::tally::{Tally, count};
use below::rise::{raise, still_to_rise};
use std::io::ErrorKind::WouldBlock;
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Nothing went for so long: what is left stays.
const PATIENCE: Duration = Duration::from_secs(10);
/// First and longest pause before a file is asked for again.
const PAUSE: Duration = Duration::from_micros(100);
/// See `PAUSE`.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Gives up all of `paths`.
pub(crate) fn run(paths: &[PathBuf]) -> Tally {
    let tally = Tally::new("given up");
    for path in paths {
        let tell = &mut |path: &Path, size| give_up(path, size, &tally);
        each_file(path, &tally, "can not be given up", tell);
    }
    tally
}

fn give_up(path: &Path, size: u64, tally: &Tally) -> Result<()> {
    let before = still_to_rise(path)?;
    let (mut gone, mut moved, mut pause) = (before, Instant::now(), PAUSE);
    loop {
        match raise(path, "drop") {
            Err(error) if error.kind() == WouldBlock && moved.elapsed() < PATIENCE => {}
            Err(error) if error.kind() != WouldBlock => return Err(error),
            _ => break,
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
        let now = still_to_rise(path)?;
        if now > gone {
            (gone, moved, pause) = (now, Instant::now(), PAUSE);
        }
        tally.tick();
    }
    let after = still_to_rise(path)?;
    if after > before {
        count(&tally.files);
        tally.bytes.fetch_add(after - before, Relaxed);
    }
    if size > after {
        count(&tally.kept);
        tally.kept_bytes.fetch_add(size - after, Relaxed);
    }
    Ok(())
}
