//! The failure of a command: one line `what: where: what to do`, and an exit code.

use config::printable::{error_text, printable, without_os_error};
use std::fmt::Display;

/// Exit code: the command failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code: the command line, a variable or the settings file is invalid.
pub(crate) const USAGE: u8 = 2;
/// Exit code: there is no such instance.
pub(crate) const NO_INSTANCE: u8 = 3;
/// Exit code of `run`, as in shells: the command cannot be run.
pub(crate) const NOT_RUNNABLE: u8 = 126;
/// Exit code of `run`, as in shells: there is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// A failed command.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    text: String,
    code: u8,
}

/// The result of most functions of this crate.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with this exit code.
    pub(crate) fn with_code(code: u8, text: impl Into<String>) -> Failure {
        let text = without_os_error(&text.into());
        Failure { text: printable(&text).into_owned(), code }
    }

    /// A failure with exit code 1.
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        Failure::with_code(FAILED, text)
    }

    /// A failure with exit code 1 whose text has several lines, such as the end of a log.
    pub(crate) fn of_lines(text: &str) -> Failure {
        Failure { text: error_text(&text), code: FAILED }
    }

    /// A failure at `place`: `what: place: why`.
    pub(crate) fn at(what: &str, place: impl Display, why: impl Display) -> Failure {
        Failure::new(format!("{what}: {place}: {why}"))
    }

    /// There is no instance of that name.
    pub(crate) fn no_instance(name: &str) -> Failure {
        let text = format!("no such instance: {name}: start it with 'forebay start --name {name}'");
        Failure::with_code(NO_INSTANCE, text)
    }

    /// The line.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// The same failure, with the name of the host.
    pub(crate) fn on_host(self, host: &str) -> Failure {
        Failure { text: format!("host {host}: {}", self.text), code: self.code }
    }
}

impl From<config::InvalidValue> for Failure {
    fn from(invalid: config::InvalidValue) -> Failure {
        Failure::with_code(USAGE, invalid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_no_number_of_an_os_error() {
        let error = std::io::Error::from_raw_os_error(13);
        assert_eq!(
            Failure::at("cannot read", "a", error).text(),
            "cannot read: a: Permission denied"
        );
    }

    #[test]
    fn what_acts_on_a_terminal_is_escaped() {
        let failure = Failure::at("cannot read", "a\nb\u{1b}[2J", "why\u{9b}");
        assert_eq!(failure.text(), "cannot read: a\\nb\\u{1b}[2J: why\\u{9b}");
    }
}
