//! Worker processes that begin each phase together, and the lines that they speak (`worker`).

use crate::interrupt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a phase of one worker may take before the run counts as failed.
const PHASE_MAX: Duration = Duration::from_secs(120);
/// How often a wait looks whether the user wants to stop.
const LOOK: Duration = Duration::from_millis(200);

/// What one worker is started with.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The command in front, empty for none.
    pub(crate) through: Vec<String>,
    pub(crate) group: String,
    pub(crate) directory: String,
    /// Which of all workers this is, from 0, and how many there are.
    pub(crate) index: u32,
    pub(crate) processes: u32,
    pub(crate) files: u64,
    pub(crate) megabytes: u64,
}

impl Order {
    /// `processes` orders that differ in their index alone.
    pub(crate) fn alike(&self, processes: u32) -> Vec<Order> {
        (0..processes).map(|index| Order { index, processes, ..self.clone() }).collect()
    }
}

/// A phase that all workers have done.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) name: String,
    /// `/s` or `MiB/s`.
    pub(crate) unit: &'static str,
    /// In that unit, from the first begin to the last end.
    pub(crate) rate: f64,
    pub(crate) seconds: f64,
}

/// All workers of one measurement. Those that still run are killed when this value goes.
pub(crate) struct Crew {
    workers: Vec<Worker>,
}

impl Crew {
    /// Starts a worker for each order.
    pub(crate) fn start(orders: &[Order]) -> Result<Crew, String> {
        let mut crew = Crew { workers: Vec::new() };
        for order in orders {
            crew.workers.push(Worker::start(order)?);
        }
        Ok(crew)
    }

    /// Waits until all are ready for the same phase, which is returned; `None` if all have ended.
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

    /// Lets all do the phase for which they are ready. `None`: nothing in it is measured.
    pub(crate) fn go(&mut self, name: &str) -> Result<Option<Phase>, String> {
        let (mut amount, mut begin, mut end, mut unit) = (0, u128::MAX, 0, String::new());
        for worker in &mut self.workers {
            worker.go()?;
        }
        for worker in &mut self.workers {
            let done = worker.done()?;
            // One that only waits for the others says nothing of their work.
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

    /// All phases, each given to `take` when it is done, and the end of the workers.
    pub(crate) fn work(mut self, mut take: impl FnMut(Phase)) -> Result<(), String> {
        while let Some(name) = self.ready()? {
            if let Some(phase) = self.go(&name)? {
                take(phase);
            }
        }
        self.finish()
    }

    /// Waits for the end of all, which have said that they have nothing left to do.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        self.workers.iter_mut().try_for_each(Worker::finish)
    }
}

/// One worker process and the lines that it prints.
struct Worker {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<String>,
}

/// What a worker says of a phase.
struct Done {
    amount: u128,
    unit: String,
    begin: u128,
    end: u128,
}

impl Worker {
    fn start(order: &Order) -> Result<Worker, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("this program's own path: {error}"))?;
        let numbers =
            [u64::from(order.index), u64::from(order.processes), order.files, order.megabytes];
        // A group of its own: what was started through another command is killed with it.
        let mut child = command(&order.through, &program.to_string_lossy())
            .args(["worker", &order.group, &order.directory])
            .args(numbers.map(|number| number.to_string()))
            .process_group(0)
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
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            match self.lines.recv_timeout(LOOK) {
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
        self.orders.write_all(b"go\n").map_err(|error| format!("a worker is gone: {error}"))
    }

    fn done(&mut self) -> Result<Done, String> {
        let line = self.line()?.ok_or("a worker ended in a phase")?;
        parse(&line).ok_or_else(|| format!("a worker said: {line}"))
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

/// A program behind the words of another command.
pub(crate) fn command(through: &[String], program: &str) -> Command {
    match through.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
        None => Command::new(program),
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Only where the run failed is the process still there.
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
    //! What workers say, and what becomes of those that do not end.
    use super::*;

    #[test]
    fn lines_of_workers() {
        let done = parse("done create 200 ops 1000 3000").expect("a line");
        assert_eq!(
            (done.amount, done.unit.as_str(), done.begin, done.end),
            (200, "ops", 1000, 3000)
        );
        assert!(parse("done create 200 ops 1000").is_none());
        assert!(parse("ready create").is_none());
    }

    #[test]
    fn a_worker_that_says_nothing_is_killed_with_what_it_started() {
        let through = ["sh", "-c", "sleep 1000 & echo $!; wait"].map(String::from).to_vec();
        let order = Order {
            through,
            group: "metadata".into(),
            directory: "/nowhere".into(),
            index: 0,
            processes: 1,
            files: 1,
            megabytes: 1,
        };
        let mut crew = Crew::start(&order.alike(1)).expect("sh");
        let sleeper = crew.workers[0].line().expect("a line").expect("a pid");
        drop(crew);
        // It is gone, or is dead and waits for init; the kernel may take a moment.
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
