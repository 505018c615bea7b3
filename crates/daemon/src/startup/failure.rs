//! Why a daemon cannot start.

use std::fmt::{self, Display};

/// Why the daemon cannot start: the action that failed, and its error.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Converts the error of an action into a `Failure`.
pub(crate) fn failed<E: Display>(doing: impl Display) -> impl FnOnce(E) -> Failure {
    move |error| Failure(format!("cannot {doing}: {error}"))
}

/// Result of a step of the start.
pub(crate) type StartResult<T> = Result<T, Failure>;

/// The failure of a start that gets no thread.
pub(crate) fn no_thread(name: &str) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| {
        let advice = "raise the limit of processes (ulimit -u), or give fewer --workers";
        Failure(format!("cannot start the thread {name}: {error}: {advice}"))
    }
}
