//! The progress line on the terminal.

use config::printable::printable;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// The line appears only after this time, because most commands are shorter.
const QUIET_TIME: Duration = Duration::from_millis(500);

/// A progress line.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    begun: Instant,
    /// Columns of the line on the terminal.
    shown: usize,
}

impl Progress {
    /// A line with this text and the seconds since now. An empty text is never shown.
    pub(crate) fn new(what: impl Into<String>) -> Progress {
        Progress { what: what.into(), begun: Instant::now(), shown: 0 }
    }

    /// Updates the seconds. Called repeatedly while waiting.
    pub(crate) fn tick(&mut self) {
        if !self.what.is_empty() {
            let line = format!("{} ({} s) ", self.what, self.begun.elapsed().as_secs());
            self.show(line);
        }
    }

    /// Replaces the text.
    pub(crate) fn show(&mut self, line: String) {
        if self.begun.elapsed() < QUIET_TIME || !std::io::stderr().is_terminal() {
            return;
        }
        let line = printable(&line);
        // Padding overwrites the rest of a longer line.
        err_as_is!("\r{line:0$}", self.shown);
        let _ = std::io::stderr().flush();
        self.shown = line.chars().count();
    }

    /// Removes the line, so that other output can be written.
    pub(crate) fn hide(&mut self) {
        if self.shown > 0 {
            err_as_is!("\r{:1$}\r", "", self.shown);
            self.shown = 0;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.hide();
    }
}
