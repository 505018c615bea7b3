//! Loads: this program's own processes that work until their input ends, and say how far they are when
//! asked (`worker::load`, `worker::steady`).

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

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
        let line = self.from.next().ok_or("a load has ended")?;
        let line = line.map_err(|error| format!("a load: {error}"))?;
        let numbers = line.split(' ').map(str::parse).collect::<Result<_, _>>();
        numbers.map_err(|_| format!("a load says {line}"))
    }

    /// Ends it, and fails if it does.
    pub(crate) fn end(mut self) -> Result<(), String> {
        match self.close() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("a load ended with {status}")),
            Err(error) => Err(format!("the end of a load: {error}")),
        }
    }

    fn close(&mut self) -> std::io::Result<ExitStatus> {
        // The end of its input.
        drop(self.to.take());
        self.child.wait()
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        let _ = self.close();
    }
}
