//! What a command ends with when it fails: one line `what: where: what to do`, and an exit code.

use std::fmt::Display;

/// Exit code: it did not work.
pub(crate) const FAILED: u8 = 1;
/// Exit code: the command line, a variable or the settings file makes no sense.
pub(crate) const USAGE: u8 = 2;
/// Exit code: there is no such instance.
pub(crate) const NO_INSTANCE: u8 = 3;
/// Exit code of `run`, as shells have it: the command can not be run.
pub(crate) const NOT_RUNNABLE: u8 = 126;
/// Exit code of `run`, as shells have it: there is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// A failed command.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    text: String,
    code: u8,
}

/// What most functions here return.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with an exit code of its own.
    pub(crate) fn with_code(code: u8, text: impl Into<String>) -> Failure {
        Failure { text: text.into(), code }
    }

    /// It did not work.
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        Failure::with_code(FAILED, text)
    }

    /// Something was wrong with `place`.
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

    /// The same failure on a host.
    pub(crate) fn on_host(self, host: &str) -> Failure {
        Failure { text: format!("host {host}: {}", self.text), code: self.code }
    }
}

impl From<config::Wrong> for Failure {
    fn from(wrong: config::Wrong) -> Failure {
        Failure::with_code(USAGE, wrong.to_string())
    }
}
