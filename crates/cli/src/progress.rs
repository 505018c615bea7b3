//! A line on the terminal for what takes longer than a moment.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Nothing is shown before: most commands are done by then.
const QUIET_TIME: Duration = Duration::from_millis(500);

/// What is being waited for.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    begun: Instant,
    /// Columns that are written on now.
    shown: usize,
}

impl Progress {
    /// Begins now. An empty text is never shown.
    pub(crate) fn new(what: impl Into<String>) -> Progress {
        Progress { what: what.into(), begun: Instant::now(), shown: 0 }
    }

    /// Called now and then while waiting.
    pub(crate) fn tick(&mut self) {
        if !self.what.is_empty() {
            let line = format!("{} ({} s) ", self.what, self.begun.elapsed().as_secs());
            self.show(line);
        }
    }

    /// As `tick`, for a text that changes.
    pub(crate) fn show(&mut self, line: String) {
        if self.begun.elapsed() < QUIET_TIME || !std::io::stderr().is_terminal() {
            return;
        }
        // What the line before wrote further is written over.
        eprint!("\r{line:0$}", self.shown);
        let _ = std::io::stderr().flush();
        self.shown = line.chars().count();
    }

    /// Takes the line away, for another to be written.
    pub(crate) fn hide(&mut self) {
        if self.shown > 0 {
            eprint!("\r{:1$}\r", "", self.shown);
            self.shown = 0;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.hide();
    }
}
