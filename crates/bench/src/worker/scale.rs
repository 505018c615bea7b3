//! Phases of fixed duration on one of several hosts, with one thread per file of the worker: counts
//! the operations done in that time.

use super::{Amount, Worker, wrong};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Location of a host's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectorySharing {
    /// In a directory that the host's own daemon owns.
    Home,
    /// In one directory shared by all hosts, spread over all daemons.
    Wide,
}

/// Duration of a phase: seven periods of a CPU quota.
const PHASE: Duration = Duration::from_millis(700);

/// That of the removal of files: as many as were created in `PHASE` suffice for it.
const REMOVAL: Duration = Duration::from_millis(400);

const BLOCK_BYTES: usize = 64 << 10;
/// Blocks in the file of each thread.
const BLOCKS: u64 = 64;

/// Directories that a host tries until its own daemon owns one.
const TRIES_MAX: u64 = 1024;

impl Worker {
    /// Creates, stats, writes and reads as often as time allows, and with `Home` removes files and makes
    /// directories. The others stay until the instance stops.
    pub(super) fn scale(&self, sharing: DirectorySharing) -> io::Result<()> {
        let directory = match sharing {
            DirectorySharing::Home => self.home()?,
            DirectorySharing::Wide => self.directory.clone(),
        };
        let name = |thread, number| format!("{directory}/{}-{thread}-{number}", self.index);
        let mut files = Vec::new();
        self.phase("fill", Amount::Nothing, || {
            for thread in 0..self.files {
                let path = format!("{directory}/data-{}-{thread}", self.index);
                let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
                (0..BLOCKS)
                    .try_for_each(|number| file.write_all_at(&block(), offset_of_block(number)))?;
                files.push(file);
                File::create_new(name(thread, 0))?;
            }
            Ok(())
        })?;
        let made = self.create_and_stat("", name)?;
        if sharing == DirectorySharing::Home {
            self.remove_and_make(&made, name, &directory)?;
            // The same without paths through the root, which one host owns.
            std::env::set_current_dir(&directory)?;
            let name = |thread, number| format!("in-{thread}-{number}");
            (0..self.files).try_for_each(|thread| File::create_new(name(thread, 0)).map(drop))?;
            self.create_and_stat("-inside", name)?;
        }
        let bytes = |count: u64| Amount::Bytes(count * BLOCK_BYTES as u64);
        self.timed("write-64k", bytes, |thread, number, block| {
            files[thread as usize].write_all_at(block, offset_of_block(number))
        })?;
        self.timed("read-64k", bytes, |thread, number, block| {
            files[thread as usize].read_exact_at(block, offset_of_block(number))?;
            if block[BLOCK_BYTES - 1] == 0x5a { Ok(()) } else { Err(wrong("a block")) }
        })?;
        // The process must still exist when the runner reads its CPU time.
        self.phase("end", Amount::Nothing, || Ok(()))
    }

    /// Each thread creates files and stats them; number 0 already exists. Returns how many each created.
    fn create_and_stat(
        &self,
        suffix: &str,
        name: impl Fn(u64, u64) -> String + Sync,
    ) -> io::Result<Vec<u64>> {
        let made =
            self.timed(&format!("create{suffix}"), Amount::Operations, |thread, number, _| {
                File::create_new(name(thread, number + 1)).map(drop)
            })?;
        self.timed(&format!("stat{suffix}"), Amount::Operations, |thread, number, _| {
            // The files that this thread created, cyclically.
            let name = name(thread, number % (made[thread as usize] + 1));
            if fs::metadata(&name)?.len() == 0 { Ok(()) } else { Err(wrong(name)) }
        })?;
        Ok(made)
    }

    /// Each thread removes files that it created, as far as there are some, and makes directories.
    fn remove_and_make(
        &self,
        made: &[u64],
        name: impl Fn(u64, u64) -> String + Sync,
        directory: &str,
    ) -> io::Result<()> {
        self.phase_of_time("remove", || {
            let until = Instant::now() + REMOVAL;
            let counts = threads(self.files, |thread| {
                let files = 0..made[thread as usize];
                let mut left = files.map(|number| name(thread, number + 1));
                let mut count = 0;
                while Instant::now() < until
                    && let Some(name) = left.next()
                {
                    fs::remove_file(name)?;
                    count += 1;
                }
                Ok(count)
            })?;
            Ok(Amount::Operations(counts.iter().sum()))
        })?;
        let path = |thread, number| format!("{directory}/made-{}-{thread}-{number}", self.index);
        self.timed("mkdir", Amount::Operations, |thread, number, _| {
            fs::create_dir(path(thread, number))
        })?;
        Ok(())
    }

    /// A directory whose files' inodes are on this host's daemon. The upper 16 bits of an inode
    /// number are the shard in which it was created, and daemons own shards in turn; each new
    /// directory of the root goes to the next one. The inode of such a directory is on the owner of
    /// the root, so a subdirectory of it is used.
    fn home(&self) -> io::Result<String> {
        let root = Path::new(&self.directory).parent().unwrap_or(Path::new("/"));
        for number in 0..TRIES_MAX {
            let directory = root.join(format!("home-{}-{number}", self.index));
            fs::create_dir(&directory)?;
            let probe = File::create_new(directory.join("probe"))?;
            if (probe.metadata()?.ino() >> 48) % self.processes == self.index {
                let backing = directory.join("work");
                fs::create_dir(&backing)?;
                return Ok(backing.to_string_lossy().into_owned());
            }
        }
        Err(io::Error::other(format!("none of {TRIES_MAX} directories is on this host")))
    }

    /// A phase in which each thread calls `each` (thread, number of earlier calls, a block of its
    /// own) for a fixed time. Returns the number of calls of each thread.
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

/// Results of all threads, or the first error.
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

fn offset_of_block(number: u64) -> u64 {
    (number % BLOCKS) * BLOCK_BYTES as u64
}
