//! Staging of what lies in the instance already, most of it below in the backing directory: its daemons
//! bring it up. This process only tells them of each file, by the attribute that any program can set.

use super::tally::{Tally, count};
use below::rise::{raise, still_to_rise};
use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind::WouldBlock;
use std::io::Result;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Nothing came for so long: nothing will.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pauses between looks how far it is.
const PAUSE: Duration = Duration::from_millis(5);
/// See `PAUSE`.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Files that are asked about in one look.
const LOOKS_MAX: usize = 64;

/// How it comes up.
#[derive(Debug)]
pub(crate) struct Manner {
    /// `memory` or `ssd`.
    pub(crate) tier: String,
    /// Files are read in this order, so many at a time.
    pub(crate) order: Option<u32>,
    /// Until all is there.
    pub(crate) waits: bool,
}

/// A file that comes up.
struct Coming {
    path: PathBuf,
    left: u64,
}

struct Riser<'a> {
    manner: &'a Manner,
    tally: &'a Tally,
    /// Names the list.
    list: u64,
    index: u64,
    coming: VecDeque<Coming>,
}

/// Has all of `paths` brought up.
pub(crate) fn run(paths: &[PathBuf], manner: &Manner) -> Tally {
    let tally = Tally::new(if manner.waits { "brought up" } else { "coming up:" });
    let list = fresh_number();
    let mut riser = Riser { manner, tally: &tally, list, index: 0, coming: VecDeque::new() };
    for path in paths {
        each_file(path, &tally, "can not be brought up", &mut |path, _| {
            riser.tell(path.to_owned())
        });
    }
    if manner.waits {
        riser.wait();
    }
    tally
}

/// Lets `tell` do something with a file and its size, or with all below a directory in the order of
/// names. Links are not followed, except the first. What can not be done is counted, with these words.
pub(super) fn each_file(
    top: &Path,
    tally: &Tally,
    words: &str,
    tell: &mut dyn FnMut(&Path, u64) -> Result<()>,
) {
    let mut left = vec![top.to_owned()];
    while let Some(path) = left.pop() {
        let is_top = path == top;
        let found = if is_top { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
        let told = found.and_then(|found| {
            if found.is_dir() {
                count(&tally.folders);
                let mut below: Vec<PathBuf> = fs::read_dir(&path)?
                    .map(|entry| entry.map(|entry| entry.path()))
                    .collect::<Result<_>>()?;
                below.sort_unstable_by(|one, other| other.cmp(one));
                left.append(&mut below);
            } else if found.is_file() {
                tell(&path, found.len())?;
            }
            Ok(())
        });
        if let Err(error) = told {
            tally.fail(&path, format!("{words}: {error}"));
        }
        tally.tick();
    }
}

/// A number that no other list has.
pub(crate) fn fresh_number() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let process = u64::from(std::process::id());
    ((since.as_nanos() as u64) ^ process.rotate_left(40)).max(1)
}

impl Riser<'_> {
    fn wish(&self) -> String {
        match self.manner.order {
            Some(group) => format!("{} {} {} {group}", self.manner.tier, self.list, self.index),
            None => self.manner.tier.clone(),
        }
    }

    /// Tells of one file.
    fn tell(&mut self, path: PathBuf) -> Result<()> {
        let wish = self.wish();
        let before = still_to_rise(&path)?;
        let since = Instant::now();
        loop {
            match raise(&path, &wish) {
                // As much is to come as may be.
                Err(error) if error.kind() == WouldBlock && since.elapsed() < PATIENCE => {
                    std::thread::sleep(PAUSE_MAX);
                    self.tally.tick();
                }
                told => break told?,
            }
        }
        self.index += 1;
        // What is on the SSD comes to memory only since it is wished for.
        let left = before.max(still_to_rise(&path)?);
        if left == 0 {
            count(&self.tally.skipped);
        } else if self.manner.waits {
            self.coming.push_back(Coming { path, left });
        } else {
            count(&self.tally.files);
            self.tally.bytes.fetch_add(left, Relaxed);
        }
        Ok(())
    }

    /// Waits until all is there, or nothing comes any more.
    fn wait(&mut self) {
        let mut moved = Instant::now();
        let mut pause = PAUSE;
        while !self.coming.is_empty() {
            let mut has_moved = false;
            for _ in 0..self.coming.len().min(LOOKS_MAX) {
                let Some(mut one) = self.coming.pop_front() else { break };
                match still_to_rise(&one.path) {
                    Ok(left) => {
                        has_moved |= left < one.left || left == 0;
                        self.tally.bytes.fetch_add(one.left.saturating_sub(left), Relaxed);
                        one.left = left;
                        if left == 0 {
                            count(&self.tally.files);
                        } else {
                            self.coming.push_back(one);
                        }
                    }
                    Err(error) => {
                        has_moved = true;
                        self.tally.fail(&one.path, format!("can not be brought up: {error}"));
                    }
                }
            }
            self.tally.tick();
            if has_moved {
                (moved, pause) = (Instant::now(), PAUSE);
                continue;
            }
            if moved.elapsed() > PATIENCE {
                let why = format!("does not come up: nothing came for {} s", PATIENCE.as_secs());
                self.coming.drain(..).for_each(|one| self.tally.fail(&one.path, &why));
                return;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            if pause == PAUSE_MAX {
                self.tell_again();
            }
        }
    }

    /// A daemon that was killed has forgotten what it was told.
    fn tell_again(&mut self) {
        for _ in 0..self.coming.len().min(LOOKS_MAX) {
            let Some(one) = self.coming.pop_front() else { break };
            match raise(&one.path, &self.manner.tier) {
                Err(error) if error.kind() != WouldBlock => {
                    self.tally.fail(&one.path, format!("can not be brought up: {error}"));
                }
                _ => self.coming.push_back(one),
            }
        }
    }
}
