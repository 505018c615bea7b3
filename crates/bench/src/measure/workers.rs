//! Worker processes that start each phase together, and the protocol with them (see `worker`).

use crate::measure::interrupt;
use crate::measure::programs::command;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Maximum duration of a phase of one worker; beyond it the run fails.
const PHASE_MAX: Duration = Duration::from_secs(120);
/// Interval at which a wait checks for an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Arguments of one worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerArgs {
    /// Command prefix; empty for none.
    pub(crate) through: Vec<String>,
    pub(crate) group: String,
    pub(crate) directory: String,
    /// Index of this worker, from 0; `processes` is the number of workers.
    pub(crate) index: u32,
    pub(crate) processes: u32,
    pub(crate) files: u64,
    pub(crate) megabytes: u64,
}

impl WorkerArgs {
    /// Arguments for `processes` workers that differ only in `index`.
    pub(crate) fn for_each_worker(&self, processes: u32) -> Vec<WorkerArgs> {
        (0..processes).map(|index| WorkerArgs { index, processes, ..self.clone() }).collect()
    }
}

/// A phase that all workers have completed.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) name: String,
    /// `/s` or `MiB/s`.
    pub(crate) unit: &'static str,
    /// In `unit`, from the first worker's begin to the last worker's end.
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
}

/// All workers of one measurement. Dropping it kills those that still run.
pub(crate) struct Workers {
    workers: Vec<WorkerProcess>,
}

impl Workers {
    /// Starts one worker per entry of `worker_args`.
    pub(crate) fn start(all_args: &[WorkerArgs]) -> Result<Workers, String> {
        let mut workers = Workers { workers: Vec::new() };
        for worker_args in all_args {
            workers.workers.push(WorkerProcess::start(worker_args)?);
        }
        Ok(workers)
    }

    /// Waits until all workers are ready for the same phase and returns its name; `None` if all
    /// have ended.
    pub(crate) fn ready(&mut self) -> Result<Option<String>, String> {
        let mut phases = Vec::new();
        for worker in &mut self.workers {
            phases.push(worker.line()?);
        }
        let first = phases.first().cloned().flatten();
        if phases.iter().any(|phase| *phase != first) {
            return Err("a worker ended early".into());
        }
        Ok(first.and_then(|line| line.strip_prefix("ready ").map(String::from)))
    }

    /// Runs the phase for which all workers are ready. `None` if the phase is not measured.
    pub(crate) fn go(&mut self, name: &str) -> Result<Option<Phase>, String> {
        let (mut amount, mut begin, mut end, mut unit) = (0, u128::MAX, 0, String::new());
        for worker in &mut self.workers {
            worker.go()?;
        }
        for worker in &mut self.workers {
            let done = worker.done()?;
            // Workers that did nothing in this phase do not affect its duration.
            if done.amount > 0 {
                amount += done.amount;
                begin = begin.min(done.begin);
                end = end.max(done.end);
                unit = done.unit;
            }
        }
        if amount == 0 {
            return Ok(None);
        }
        let (unit, scale) = if unit == "bytes" { ("MiB/s", 1048576.0) } else { ("/s", 1.0) };
        let seconds = end.saturating_sub(begin).max(1) as f64 / 1e9;
        Ok(Some(Phase { name: name.into(), unit, rate: amount as f64 / scale / seconds, seconds }))
    }

    /// Runs all phases, passes each result to `take`, and waits until the workers end.
    pub(crate) fn work(mut self, mut take: impl FnMut(Phase)) -> Result<(), String> {
        while let Some(name) = self.ready()? {
            if let Some(phase) = self.go(&name)? {
                take(phase);
            }
        }
        self.finish()
    }

    /// Waits until all workers end, after `ready` returned `None`.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        self.workers.iter_mut().try_for_each(WorkerProcess::finish)
    }
}

/// One worker process and its output lines.
struct WorkerProcess {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

/// Result of a phase as a worker reports it.
struct Done {
    amount: u128,
    unit: String,
    begin: u128,
    end: u128,
}

impl WorkerProcess {
    fn start(worker_args: &WorkerArgs) -> Result<WorkerProcess, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("this program's own path: {error}"))?;
        let numbers = [
            u64::from(worker_args.index),
            u64::from(worker_args.processes),
            worker_args.files,
            worker_args.megabytes,
        ];
        // In a process group of its own, so that everything behind a command prefix is killed with
        // it.
        let mut child = command(&worker_args.through, &program.to_string_lossy())
            .args(["worker", &worker_args.group, &worker_args.directory])
            .args(numbers.map(|number| number.to_string()))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting a worker: {error}"))?;
        let (Some(stdin), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a worker without pipes".into());
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(WorkerProcess { child, stdin, lines })
    }

    /// The next line, or `None` after the worker has closed its output.
    fn line(&mut self) -> Result<Option<String>, String> {
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            match self.lines.recv_timeout(POLL_INTERVAL) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if begun.elapsed() > PHASE_MAX => {
                    return Err(format!("a worker was silent for {} s", PHASE_MAX.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn go(&mut self) -> Result<(), String> {
        self.stdin.write_all(b"go\n").map_err(|error| format!("a worker is gone: {error}"))
    }

    fn done(&mut self) -> Result<Done, String> {
        let line = self.line()?.ok_or("a worker ended in a phase")?;
        parse(&line).ok_or_else(|| format!("unexpected line from a worker: {line}"))
    }

    fn finish(&mut self) -> Result<(), String> {
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("a worker ended with {status}")),
            Err(error) => Err(format!("waiting for a worker: {error}")),
        }
    }
}

/// `done PHASE AMOUNT UNIT BEGIN END`
fn parse(line: &str) -> Option<Done> {
    let words: Vec<&str> = line.split(' ').collect();
    let ["done", _, amount, unit, begin, end] = words[..] else { return None };
    Some(Done {
        amount: amount.parse().ok()?,
        unit: unit.into(),
        begin: begin.parse().ok()?,
        end: end.parse().ok()?,
    })
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // The process still exists only if the run failed.
        if matches!(self.child.try_wait(), Ok(None)) {
            let group = format!("-{}", self.child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    //! Parsing of workers' lines, and killing of workers that do not end.
    use super::*;

    #[test]
    fn worker_lines_are_parsed() {
        let done = parse("done create 200 ops 1000 3000").expect("a line");
        assert_eq!(
            (done.amount, done.unit.as_str(), done.begin, done.end),
            (200, "ops", 1000, 3000)
        );
        assert!(parse("done create 200 ops 1000").is_none());
        assert!(parse("ready create").is_none());
    }

    #[test]
    fn a_silent_worker_is_killed_with_its_children() {
        let through = ["sh", "-c", "sleep 1000 & echo $!; wait"].map(String::from).to_vec();
        let worker_args = WorkerArgs {
            through,
            group: "metadata".into(),
            directory: "/nowhere".into(),
            index: 0,
            processes: 1,
            files: 1,
            megabytes: 1,
        };
        let mut workers = Workers::start(&worker_args.for_each_worker(1)).expect("sh");
        let sleeper = workers.workers[0].line().expect("a line").expect("a pid");
        drop(workers);
        // Either gone, or a zombie until init reaps it; the kernel may need a moment.
        let begun = Instant::now();
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z") || stat.contains(") X") {
                break;
            }
            assert!(begun.elapsed() < PHASE_MAX, "{stat}");
            std::thread::yield_now();
        }
    }
}
