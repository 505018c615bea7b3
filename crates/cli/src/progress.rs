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
    is_shown: bool,
}

impl Progress {
    /// Begins now. An empty text is never shown.
    pub(crate) fn new(what: impl Into<String>) -> Progress {
        Progress { what: what.into(), begun: Instant::now(), is_shown: false }
    }

    /// Called now and then while waiting.
    pub(crate) fn tick(&mut self) {
        let passed = self.begun.elapsed();
        if passed < QUIET_TIME || self.what.is_empty() || !std::io::stderr().is_terminal() {
            return;
        }
        self.is_shown = true;
        eprint!("\r{} ({} s) ", self.what, passed.as_secs());
        let _ = std::io::stderr().flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            eprint!("\r{:1$}\r", "", self.what.len() + 12);
        }
    }
}
