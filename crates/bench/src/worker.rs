//! A worker: one process that does the measured work, phase by phase.
//!
//! It speaks with the conductor by lines: it prints `ready PHASE`, waits for a line on stdin,
//! works, and prints `done PHASE AMOUNT UNIT BEGIN END`, where UNIT is `ops` or `bytes` and the
//! times are nanoseconds of the host's clock, which all workers share. What is read is checked; a
//! wrong byte ends the run.

mod data;
mod io500;
mod metadata;
mod remote;
pub(crate) mod repeat;
mod scale;
mod two_mounts;

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long at least a phase takes that can be done again. One pass over some thousand names or some
/// MiB takes a few milliseconds: one interruption more or less would be what it shows.
const PHASE_MIN: Duration = Duration::from_millis(100);

/// What one worker has to do.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    /// The directory of all workers of this run.
    directory: String,
    /// Which of them this is, from 0, and how many there are.
    index: u64,
    processes: u64,
    files: u64,
    megabytes: u64,
}

/// How much work a phase is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    /// It is not measured.
    Nothing,
    Operations(u64),
    Bytes(u64),
}

/// Runs `forebay-bench worker GROUP DIRECTORY INDEX PROCESSES FILES MEGABYTES`.
pub(crate) fn main(words: &[String]) -> Result<(), String> {
    let [group, directory, numbers @ ..] = words else {
        return Err("worker: only the conductor starts workers".into());
    };
    let numbers: Vec<u64> = numbers.iter().filter_map(|word| word.parse().ok()).collect();
    let &[index, processes, files, megabytes] = numbers.as_slice() else {
        return Err("worker: expected four numbers".into());
    };
    let worker = Worker { directory: directory.clone(), index, processes, files, megabytes };
    worker.run(group).map_err(|error| format!("worker {index} in {directory}: {error}"))
}

impl Worker {
    fn run(&self, group: &str) -> io::Result<()> {
        match group {
            "sockets" => return self.sockets(),
            "round-trips" => return self.round_trips(),
            _ => {}
        }
        std::fs::create_dir_all(&self.directory)?;
        match group {
            "metadata" => self.metadata()?,
            "list" => self.long_directory()?,
            "own" => self.data(data::Sharing::Own)?,
            "shared" => self.data(data::Sharing::Shared)?,
            "hard-own" => self.hard(data::Sharing::Own)?,
            "hard-shared" => self.hard(data::Sharing::Shared)?,
            "io500" => self.io500()?,
            "find" => return self.find(),
            "remote-metadata" => self.remote_metadata()?,
            "remote-data" => self.remote_data()?,
            "two-mounts" => self.two_mounts()?,
            "scale-home" => return self.scale(scale::Sharing::Home),
            "scale-wide" => return self.scale(scale::Sharing::Wide),
            _ => return Err(io::Error::other(format!("unknown group {group}"))),
        }
        // All have done their last phase before the directory goes.
        self.phase("end", Amount::Nothing, || Ok(()))?;
        if self.index == 0 { std::fs::remove_dir_all(&self.directory) } else { Ok(()) }
    }

    /// Waits until all workers are ready, does `work` and tells its times.
    fn phase(
        &self,
        name: &str,
        amount: Amount,
        work: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.phase_of_time(name, || work().map(|()| amount))
    }

    /// The same for a pass of so much that leaves everything as it was: it is done until time is over.
    fn phase_again(
        &self,
        name: &str,
        pass: Amount,
        mut work: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        self.phase_of_time(name, || {
            let begun = Instant::now();
            let mut passes = 0;
            while passes == 0 || begun.elapsed() < PHASE_MIN {
                work()?;
                passes += 1;
            }
            Ok(pass.times(passes))
        })
    }

    /// The same for work of which only its end tells how much it was.
    fn phase_of_time(
        &self,
        name: &str,
        work: impl FnOnce() -> io::Result<Amount>,
    ) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "ready {name}")?;
        out.flush()?;
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            return Err(io::Error::other("the conductor is gone"));
        }
        let begin = now_nanos();
        let amount = work().map_err(|error| io::Error::other(format!("{name}: {error}")))?;
        let end = now_nanos();
        let (amount, unit) = match amount {
            Amount::Nothing => (0, "ops"),
            Amount::Operations(count) => (count, "ops"),
            Amount::Bytes(count) => (count, "bytes"),
        };
        writeln!(out, "done {name} {amount} {unit} {begin} {end}")?;
        out.flush()
    }
}

impl Amount {
    const fn times(self, count: u64) -> Amount {
        match self {
            Amount::Nothing => Amount::Nothing,
            Amount::Operations(operations) => Amount::Operations(operations * count),
            Amount::Bytes(bytes) => Amount::Bytes(bytes * count),
        }
    }
}

fn now_nanos() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos())
}

/// Says what was expected where a file system showed something else.
fn wrong(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("wrong contents: {what}"))
}
