//! A worker: one process that does the measured work, phase by phase.
//!
//! Protocol with the runner, by lines: the worker prints `ready PHASE`, waits for a line on stdin,
//! works, and prints `done PHASE AMOUNT UNIT BEGIN END`, where UNIT is `ops` or `bytes` and the
//! times are nanoseconds of the host's clock, which all workers share. Data that is read is
//! verified; a wrong byte ends the run.

mod data;
mod io500;
pub(crate) mod load;
mod metadata;
mod remote;
pub(crate) mod repeat;
mod scale;
pub(crate) mod steady;
mod two_mounts;

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Minimum duration of a repeatable phase. One pass over a few thousand names or a few MiB takes
/// only milliseconds, so a single interruption would dominate it.
const PHASE_MIN: Duration = Duration::from_millis(100);

/// Arguments of this worker.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    /// The directory shared by all workers of this run.
    directory: String,
    /// Index of this worker, from 0; `processes` is the number of workers.
    index: u64,
    processes: u64,
    files: u64,
    megabytes: u64,
}

/// Amount of work in a phase.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    /// The phase is not measured.
    Nothing,
    Operations(u64),
    Bytes(u64),
}

/// Runs `forebay-bench worker GROUP DIRECTORY INDEX PROCESSES FILES MEGABYTES`.
pub(crate) fn main(words: &[String]) -> Result<(), String> {
    let [group, directory, numbers @ ..] = words else {
        return Err("worker: workers are started by the runner only".into());
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
            "own" => self.data(data::FileSharing::Own)?,
            "shared" => self.data(data::FileSharing::Shared)?,
            "hard-own" => self.hard(data::FileSharing::Own)?,
            "hard-shared" => self.hard(data::FileSharing::Shared)?,
            "io500" => self.io500()?,
            "find" => return self.find(),
            "remote-metadata" => self.remote_metadata()?,
            "remote-data" => self.remote_data()?,
            "two-mounts" => self.two_mounts()?,
            "once" => self.once()?,
            "bursts" => self.bursts()?,
            "scale-home" => return self.scale(scale::DirectorySharing::Home),
            "scale-wide" => return self.scale(scale::DirectorySharing::Wide),
            _ => return Err(io::Error::other(format!("unknown group {group}"))),
        }
        // The directory is removed after all workers have finished their last phase.
        self.phase("end", Amount::Nothing, || Ok(()))?;
        if self.index == 0 { std::fs::remove_dir_all(&self.directory) } else { Ok(()) }
    }

    /// Waits for the start of the phase, does `work` and reports its times.
    fn phase(
        &self,
        name: &str,
        amount: Amount,
        work: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.phase_of_time(name, || work().map(|()| amount))
    }

    /// As `phase`, for work that changes nothing: repeats passes of amount `pass` for at least
    /// `PHASE_MIN`.
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

    /// As `phase`, for work whose amount is known only at its end.
    fn phase_of_time(
        &self,
        name: &str,
        work: impl FnOnce() -> io::Result<Amount>,
    ) -> io::Result<()> {
        self.phase_of_busy_time(name, || {
            let begun = Instant::now();
            work().map(|amount| (amount, begun.elapsed()))
        })
    }

    /// As `phase_of_time`, for work that says how much of its time counts.
    fn phase_of_busy_time(
        &self,
        name: &str,
        work: impl FnOnce() -> io::Result<(Amount, Duration)>,
    ) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "ready {name}")?;
        out.flush()?;
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line)? == 0 {
            return Err(io::Error::other("the runner is gone"));
        }
        let begin = now_nanos();
        let done = work().map_err(|error| io::Error::other(format!("{name}: {error}")));
        let (amount, busy) = done?;
        let end = begin + busy.as_nanos();
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

/// An error about contents that differ from the expected ones.
fn wrong(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("wrong contents: {what}"))
}
