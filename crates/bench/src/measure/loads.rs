//! Loads: this program's own processes that work until their input ends, and say how far they are when
//! asked (`worker::load`, `worker::steady`).

use crate::measure::{interrupt, programs};
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest wait until a steady load has written or read all of its file once.
const FIRST_ROUND_MAX: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A load that runs. Dropping it ends it.
pub(crate) struct LoadProcess {
    child: Child,
    to: Option<ChildStdin>,
    from: Lines<BufReader<ChildStdout>>,
}

impl LoadProcess {
    /// Starts a load and waits until it has begun.
    pub(crate) fn start(mut command: Command) -> Result<LoadProcess, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("starting a load: {error}"))?;
        let from = BufReader::new(child.stdout.take().ok_or("a load without output")?).lines();
        let mut load = LoadProcess { to: child.stdin.take(), child, from };
        load.numbers()?;
        Ok(load)
    }

    /// The numbers with which it answers now.
    pub(crate) fn numbers(&mut self) -> Result<Vec<f64>, String> {
        let to = self.to.as_mut().ok_or("a load without input")?;
        to.write_all(b"\n").map_err(|error| format!("a load: {error}"))?;
        self.line()?.ok_or_else(|| "a load has ended".into())
    }

    /// The numbers of its next line; `None` after the last one.
    fn line(&mut self) -> Result<Option<Vec<f64>>, String> {
        let Some(line) = self.from.next() else { return Ok(None) };
        let line = line.map_err(|error| format!("a load: {error}"))?;
        let numbers = line.split(' ').map(str::parse).collect::<Result<_, _>>();
        numbers.map(Some).map_err(|_| format!("a load says {line}"))
    }

    /// Ends it, and fails if it does. The numbers with which it ends, if it says any.
    pub(crate) fn end(mut self) -> Result<Option<Vec<f64>>, String> {
        // The end of its input.
        drop(self.to.take());
        let last = self.line()?;
        match self.close() {
            Ok(status) if status.success() => Ok(last),
            Ok(status) => Err(format!("a load ended with {status}")),
            Err(error) => Err(format!("the end of a load: {error}")),
        }
    }

    fn close(&mut self) -> std::io::Result<ExitStatus> {
        drop(self.to.take());
        self.child.wait()
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

/// The operations of a steady load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SteadyCount {
    pub(crate) operations: f64,
    pub(crate) seconds: f64,
    /// The longest operation since the count before.
    pub(crate) longest_ms: f64,
    pub(crate) errors: f64,
    /// The longest operation that failed since the count before.
    pub(crate) longest_failed_ms: f64,
    /// Files that stay.
    pub(crate) kept: f64,
}

impl SteadyCount {
    fn of(numbers: &[f64]) -> Result<SteadyCount, String> {
        match *numbers {
            [operations, nanos, longest, errors, longest_failed, kept] => Ok(SteadyCount {
                operations,
                seconds: nanos / 1e9,
                longest_ms: longest / 1e6,
                errors,
                longest_failed_ms: longest_failed / 1e6,
                kept,
            }),
            _ => Err(format!("a load says {numbers:?}")),
        }
    }

    /// Operations per second since an earlier count.
    pub(crate) fn rate_since(&self, before: &SteadyCount) -> f64 {
        (self.operations - before.operations) / (self.seconds - before.seconds)
    }
}

/// A load of `worker::steady`.
pub(crate) struct SteadyRun(LoadProcess);

impl SteadyRun {
    /// Starts a load behind a command prefix. It begins with the first count.
    pub(crate) fn prepare(
        through: &[String],
        kind: &str,
        path: &str,
        number: u64,
    ) -> Result<SteadyRun, String> {
        let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
        let mut command = programs::command(through, &own.to_string_lossy());
        command.args(["steady", kind, path, &number.to_string()]);
        LoadProcess::start(command).map(SteadyRun)
    }

    /// As `prepare`, and waits until it has used each block of its file, or each thread has begun.
    pub(crate) fn start(
        through: &[String],
        kind: &str,
        path: &str,
        number: u64,
    ) -> Result<SteadyRun, String> {
        let mut load = SteadyRun::prepare(through, kind, path, number)?;
        await_that("a load has used its whole file", FIRST_ROUND_MAX, || {
            Ok(load.count()?.operations >= number as f64)
        })?;
        Ok(load)
    }

    pub(crate) fn count(&mut self) -> Result<SteadyCount, String> {
        SteadyCount::of(&self.0.numbers()?)
    }

    /// Ends it: it compares what it wrote. All that it did.
    pub(crate) fn end(self) -> Result<SteadyCount, String> {
        SteadyCount::of(&self.0.end()?.ok_or("a load said nothing at its end")?)
    }
}

/// Waits until a condition holds.
pub(crate) fn await_that(
    what: &str,
    time_max: Duration,
    mut holds: impl FnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let begun = Instant::now();
    while !holds()? {
        interrupt::check()?;
        if begun.elapsed() > time_max {
            return Err(format!("not so within {} s: {what}", time_max.as_secs()));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_never_holds_is_an_error() {
        let error = await_that("the end", Duration::ZERO, || Ok(false)).expect_err("it never is");
        assert_eq!(error, "not so within 0 s: the end");
        let time = Duration::from_secs(60);
        let error = await_that("the end", time, || Err("gone".into())).expect_err("gone");
        assert_eq!(error, "gone");
        assert_eq!(await_that("the end", Duration::ZERO, || Ok(true)), Ok(()));
    }

    #[test]
    fn the_last_line_of_a_load_is_what_it_did() {
        let load = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            LoadProcess::start(command)
        };
        let last = load("read line; echo 1 2; cat; echo 3 4").expect("begun").end();
        assert_eq!(last, Ok(Some(vec![3.0, 4.0])));
        let last = load("read line; echo 1 2; cat").expect("begun").end();
        assert_eq!(last, Ok(None));
        assert!(load("read line; echo 1 2; cat; exit 3").expect("begun").end().is_err());
        assert!(load("read line; echo one").is_err());
    }

    #[test]
    fn counts_have_the_units_of_reports() {
        let count = SteadyCount::of(&[30.0, 4e9, 5e6, 1.0, 2e6, 7.0]).expect("six numbers");
        assert!((count.longest_ms - 5.0).abs() < 1e-9 && (count.kept - 7.0).abs() < 1e-9);
        let before = SteadyCount { operations: 10.0, seconds: 2.0, ..count };
        assert!((count.rate_since(&before) - 10.0).abs() < 1e-9);
        assert!(SteadyCount::of(&[1.0]).is_err());
    }
}
