//! Phases of a fixed time on one of several hosts, by as many threads as the worker has files: how much
//! is done in it.

use super::{Amount, Worker, wrong};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Where a host's files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// In a directory that its own daemon has.
    Home,
    /// In one directory with those of all others, over all daemons.
    Wide,
}

/// How long each phase takes: seven periods of a share.
const PHASE: Duration = Duration::from_millis(700);

const BLOCK_BYTES: usize = 64 << 10;
/// Blocks of the file of each thread.
const BLOCKS: u64 = 64;

/// Directories that each host tries until one is its own.
const TRIES_MAX: u64 = 1024;

impl Worker {
    /// Creates, looks at, writes and reads as much as there is time for. What it leaves goes with the
    /// instance.
    pub(super) fn scale(&self, sharing: Sharing) -> io::Result<()> {
        let directory = match sharing {
            Sharing::Home => self.home()?,
            Sharing::Wide => self.directory.clone(),
        };
        let name = |thread, number| format!("{directory}/{}-{thread}-{number}", self.index);
        let mut files = Vec::new();
        self.phase("fill", Amount::Nothing, || {
            for thread in 0..self.files {
                let path = format!("{directory}/data-{}-{thread}", self.index);
                let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
                (0..BLOCKS).try_for_each(|number| file.write_all_at(&block(), place(number)))?;
                files.push(file);
                File::create_new(name(thread, 0))?;
            }
            Ok(())
        })?;
        self.create_and_stat("", name)?;
        if sharing == Sharing::Home {
            // The same without a path that begins at the root, which is one host's.
            std::env::set_current_dir(&directory)?;
            let name = |thread, number| format!("in-{thread}-{number}");
            (0..self.files).try_for_each(|thread| File::create_new(name(thread, 0)).map(drop))?;
            self.create_and_stat("-inside", name)?;
        }
        let bytes = |count: u64| Amount::Bytes(count * BLOCK_BYTES as u64);
        self.timed("write-64k", bytes, |thread, number, block| {
            files[thread as usize].write_all_at(block, place(number))
        })?;
        self.timed("read-64k", bytes, |thread, number, block| {
            files[thread as usize].read_exact_at(block, place(number))?;
            if block[BLOCK_BYTES - 1] == 0x5a { Ok(()) } else { Err(wrong("a block")) }
        })?;
        // Whoever asks for the time that this process used, finds it still here.
        self.phase("end", Amount::Nothing, || Ok(()))
    }

    /// Each thread makes files and looks at them; number 0 is there already.
    fn create_and_stat(
        &self,
        suffix: &str,
        name: impl Fn(u64, u64) -> String + Sync,
    ) -> io::Result<()> {
        let made =
            self.timed(&format!("create{suffix}"), Amount::Operations, |thread, number, _| {
                File::create_new(name(thread, number + 1)).map(drop)
            })?;
        self.timed(&format!("stat{suffix}"), Amount::Operations, |thread, number, _| {
            // Those that this thread made, again and again.
            let name = name(thread, number % (made[thread as usize] + 1));
            if fs::metadata(&name)?.len() == 0 { Ok(()) } else { Err(wrong(name)) }
        })?;
        Ok(())
    }

    /// A directory whose files' inodes this host's daemon has. The upper 16 bits of an inode's number
    /// are the shard in which it was born, and daemons have shards in turn; a directory of the root
    /// takes the next. Its own inode is where the root's are: what is used is a directory below it.
    fn home(&self) -> io::Result<String> {
        let root = Path::new(&self.directory).parent().unwrap_or(Path::new("/"));
        for number in 0..TRIES_MAX {
            let directory = root.join(format!("home-{}-{number}", self.index));
            fs::create_dir(&directory)?;
            let probe = File::create_new(directory.join("probe"))?;
            if (probe.metadata()?.ino() >> 48) % self.processes == self.index {
                let below = directory.join("work");
                fs::create_dir(&below)?;
                return Ok(below.to_string_lossy().into_owned());
            }
        }
        Err(io::Error::other(format!("none of {TRIES_MAX} directories is on this host")))
    }

    /// A phase in which each thread does `each` (its number, how often it did it before, a block of
    /// its own) for a fixed time. Returns how often each did.
    fn timed(
        &self,
        name: &str,
        amount: impl Fn(u64) -> Amount,
        each: impl Fn(u64, u64, &mut [u8]) -> io::Result<()> + Sync,
    ) -> io::Result<Vec<u64>> {
        let mut counts = Vec::new();
        self.phase_of_time(name, || {
            let until = Instant::now() + PHASE;
            counts = threads(self.files, |thread| {
                let (mut number, mut block) = (0, block());
                while Instant::now() < until {
                    each(thread, number, &mut block)?;
                    number += 1;
                }
                Ok(number)
            })?;
            Ok(amount(counts.iter().sum()))
        })?;
        Ok(counts)
    }
}

/// What all threads return, or the first error.
fn threads(count: u64, work: impl Fn(u64) -> io::Result<u64> + Sync) -> io::Result<Vec<u64>> {
    std::thread::scope(|scope| {
        let work = &work;
        let all: Vec<_> = (0..count).map(|thread| scope.spawn(move || work(thread))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, io::Result<u64>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended")))
        };
        all.into_iter().map(join).collect()
    })
}

fn block() -> Vec<u8> {
    vec![0x5a; BLOCK_BYTES]
}

fn place(number: u64) -> u64 {
    (number % BLOCKS) * BLOCK_BYTES as u64
}
