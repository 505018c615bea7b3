//! The conductor: starts workers, lets them begin each phase together, and collects rates.

use crate::external;
use crate::instance::Instance;
use crate::quiet;
use crate::report::{Key, Report};
use crate::settings::{Place, Settings};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long a phase of one worker may take before the run counts as failed.
const PHASE_SECONDS_MAX: u64 = 120;

/// Measures everything that the settings name. True: nothing failed.
pub(crate) fn main(settings: &Settings) -> Result<bool, String> {
    let mut instances = Vec::new();
    let mut places = settings.places.clone();
    for &daemons in &settings.instances {
        let instance = Instance::start(&settings.forebay, daemons)?;
        places.push(instance.place(daemons));
        instances.push(instance);
    }
    let names = places.iter().map(|place| place.name.clone()).collect();
    let mut report = Report::new(names);
    for repetition in 0..settings.repetitions {
        eprintln!("repetition {} of {}", repetition + 1, settings.repetitions);
        for &processes in &settings.processes {
            for group in &settings.groups {
                for place in turned(&places, repetition) {
                    quiet::settle();
                    let run = Run { settings, place, group, processes };
                    if let Err(text) = run.measure(&mut report) {
                        report.failed(format!(
                            "{group}, {processes} processes, {}: {text}",
                            place.name
                        ));
                    }
                }
            }
        }
    }
    drop(instances);
    print!("{}", report.table());
    if let Some(file) = &settings.json {
        std::fs::write(file, report.json()).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(report.failures().is_empty())
}

/// The places, beginning with another in each repetition, so that none always comes after the same.
fn turned(places: &[Place], repetition: u32) -> impl Iterator<Item = &Place> {
    places.iter().cycle().skip(repetition as usize % places.len()).take(places.len())
}

/// One group of tests with one number of processes in one place.
pub(crate) struct Run<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) place: &'a Place,
    pub(crate) group: &'a str,
    pub(crate) processes: u32,
}

impl Run<'_> {
    fn measure(&self, report: &mut Report) -> Result<(), String> {
        match self.group {
            "fio" => external::fio(self, report),
            "mpi" => external::mpi(self, report),
            _ => self.workers(report),
        }
    }

    /// Puts down one value.
    pub(crate) fn record(&self, report: &mut Report, test: &str, unit: &'static str, rate: f64) {
        let key =
            Key { group: self.group.into(), test: test.into(), processes: self.processes, unit };
        report.add(key, &self.place.name, rate);
    }

    /// A program, started so that it sees the place.
    pub(crate) fn command(&self, program: &str) -> Command {
        match self.place.through.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        }
    }

    /// A directory that no one else uses.
    pub(crate) fn directory(&self) -> String {
        format!("{}/forebay-bench-{}", self.place.directory, std::process::id())
    }

    fn workers(&self, report: &mut Report) -> Result<(), String> {
        let mut workers = Vec::new();
        for index in 0..self.processes {
            workers.push(Worker::start(self, index)?);
        }
        while let Some(phase) = Worker::ready(&mut workers)? {
            let (mut amount, mut begin, mut end) = (0.0, u128::MAX, 0);
            for worker in &mut workers {
                worker.go()?;
            }
            for worker in &mut workers {
                let done = worker.done()?;
                amount += done.0;
                begin = begin.min(done.1);
                end = end.max(done.2);
            }
            let seconds = end.saturating_sub(begin).max(1) as f64 / 1e9;
            if amount > 0.0 {
                let (unit, scale) =
                    if self.group == "metadata" { ("/s", 1.0) } else { ("MiB/s", 1048576.0) };
                self.record(report, &phase, unit, amount / scale / seconds);
            }
        }
        workers.iter_mut().try_for_each(Worker::finish)
    }
}

/// One worker process and the lines that it prints.
struct Worker {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    fn start(run: &Run<'_>, index: u32) -> Result<Worker, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("this program's own path: {error}"))?;
        let numbers = [
            u64::from(index),
            u64::from(run.processes),
            run.settings.files,
            run.settings.megabytes,
        ];
        let mut child = run
            .command(&program.to_string_lossy())
            .args(["worker", run.group, &run.directory()])
            .args(numbers.map(|number| number.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting a worker: {error}"))?;
        let (Some(orders), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
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
        Ok(Worker { child, orders, lines })
    }

    /// The next line, or `None` when the worker has closed its output.
    fn line(&mut self) -> Result<Option<String>, String> {
        match self.lines.recv_timeout(Duration::from_secs(PHASE_SECONDS_MAX)) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("a worker was silent for {PHASE_SECONDS_MAX} s"))
            }
        }
    }

    /// Waits until all are ready for the same phase, which is returned; `None` if all have ended.
    fn ready(workers: &mut [Worker]) -> Result<Option<String>, String> {
        let mut phases = Vec::new();
        for worker in workers {
            phases.push(worker.line()?);
        }
        let first = phases.first().cloned().flatten();
        if phases.iter().any(|phase| *phase != first) {
            return Err("a worker ended early".into());
        }
        Ok(first.and_then(|line| line.strip_prefix("ready ").map(String::from)))
    }

    fn go(&mut self) -> Result<(), String> {
        self.orders.write_all(b"go\n").map_err(|error| format!("a worker is gone: {error}"))
    }

    /// Amount, begin and end of the phase just done.
    fn done(&mut self) -> Result<(f64, u128, u128), String> {
        let line = self.line()?.ok_or("a worker ended in a phase")?;
        let mut words = line.split(' ').skip(2);
        let mut next = || words.next().and_then(|word| word.parse::<u128>().ok());
        match (next(), next(), next()) {
            (Some(amount), Some(begin), Some(end)) => Ok((amount as f64, begin, end)),
            _ => Err(format!("a worker said: {line}")),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("a worker ended with {status}")),
            Err(error) => Err(format!("waiting for a worker: {error}")),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Only where the run failed is the process still there.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
