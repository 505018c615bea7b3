//! The interface of a store, and how long it keeps what.

use crate::error::HistoryError;
use crate::record::{EventRecord, FIGURES, JobRun, LoadSample, Record, Span};
use serde::{Deserialize, Serialize};

/// How long rows of seconds are kept: an hour of one instance and ten jobs is 39,600 rows, about 5 MiB.
pub const SECONDS_KEPT_MS: u64 = 3_600_000;
const _: () = assert!(SECONDS_KEPT_MS.is_multiple_of(60_000));
/// Rows that an answer has at most.
pub const ROWS_MAX: usize = 10_000;

/// Age and size up to which a store keeps things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// How long runs, advice, events and rows of minutes are kept, in milliseconds.
    pub keep_ms: u64,
    /// Bytes of the store; 0: no bound of its own.
    pub bytes_max: u64,
}

/// Which rows are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Of this instance; `None`: of all.
    pub instance: Option<String>,
    /// Of this job; for load, `None` is the whole instance.
    pub job: Option<String>,
    /// Not before this time, in milliseconds since 1970.
    pub since_ms: u64,
    /// At most so many, the newest.
    pub rows: usize,
}

impl Query {
    /// The most rows of an answer, as databases take them.
    pub(crate) fn limit(&self) -> i64 {
        i64::try_from(self.rows.min(ROWS_MAX)).unwrap_or(i64::MAX)
    }
}

/// Databases have signed numbers only.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number as a database has it.
pub(crate) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The figures of a minute from those of its seconds, in SQL: means, and the largest of those whose names
/// end in `_max`.
pub(crate) fn minute_sums() -> String {
    let each = FIGURES.map(|name| match name.strip_suffix("_max") {
        Some(_) => format!("max({name})"),
        None => format!("avg({name})"),
    });
    each.join(", ")
}

/// A store. Rows come with the newest first.
pub trait Store: Send {
    /// Takes records, all or none.
    ///
    /// # Errors
    /// None of them is kept.
    fn write(&mut self, records: &[Record]) -> Result<(), HistoryError>;

    /// Makes the rows of all minutes that are over at `now_ms`, and removes what is too old.
    ///
    /// # Errors
    /// It is done the next time.
    fn tidy(&mut self, now_ms: u64) -> Result<(), HistoryError>;

    /// Runs with their advice, but without their profiles.
    ///
    /// # Errors
    /// The store cannot be read.
    fn runs(&mut self, query: &Query) -> Result<Vec<JobRun>, HistoryError>;

    /// The profile of run number `back` of a job, from the newest one on.
    ///
    /// # Errors
    /// The store cannot be read.
    fn profile(&mut self, job: &str, back: usize) -> Result<Option<String>, HistoryError>;

    /// The load.
    ///
    /// # Errors
    /// The store cannot be read.
    fn load(&mut self, span: Span, query: &Query) -> Result<Vec<LoadSample>, HistoryError>;

    /// The events.
    ///
    /// # Errors
    /// The store cannot be read.
    fn events(&mut self, query: &Query) -> Result<Vec<EventRecord>, HistoryError>;
}
