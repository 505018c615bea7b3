//! The things that a store keeps.

use serde::{Deserialize, Serialize};

/// One thing to keep.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A run of a job; it replaces an earlier record of the same run.
    Run(Box<JobRun>),
    /// The load of one second.
    Load(LoadSample),
    /// A change of an instance.
    Event(EventRecord),
}

/// A run of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobRun {
    /// The instance that it used.
    pub instance: String,
    /// Name of the job.
    pub job: String,
    /// Its user.
    pub user: String,
    /// Its programs.
    pub command: String,
    /// Begin, in milliseconds since 1970.
    pub begin_ms: u64,
    /// Seconds from its first to its last moment.
    pub seconds: f64,
    /// False: it was killed, or ran when it was recorded.
    pub is_complete: bool,
    /// True: times and the order of transfers are estimates.
    pub is_sampled: bool,
    /// Number of hosts.
    pub hosts: u64,
    /// Number of processes.
    pub ranks: u64,
    /// Reads, writes, and operations on names.
    pub operations: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Seconds in I/O, of all processes.
    pub io_seconds: f64,
    /// Findings about it.
    pub advice: Vec<Advice>,
    /// Its profile, as JSON; lists of runs have none.
    #[serde(skip)]
    pub profile: String,
}

/// A finding about a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// Name of the trigger.
    pub trigger: String,
    /// `ok`, `info`, `warn` or `high`.
    pub severity: String,
    /// Figures that show it.
    pub evidence: String,
    /// The change that helps; empty: none is needed.
    pub change: String,
    /// Seconds that the change saves, if known.
    pub saves_seconds: Option<f64>,
}

/// The load of an instance, or of one of its jobs, in a second or a minute. `None`: not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadSample {
    /// The instance.
    pub instance: String,
    /// The job; empty: the whole instance.
    pub job: String,
    /// When, in milliseconds since 1970; of a minute, its begin.
    pub at_ms: u64,
    /// Its figures, in the order of `FIGURES`.
    pub figures: [Option<f64>; FIGURES.len()],
    /// Seconds that it covers.
    pub samples: u64,
}

/// The figures of a load sample, which are also the columns of the store. In a row of a minute each is
/// the mean, and those ending in `_max` are the largest of a second.
pub const FIGURES: [&str; 10] = [
    "operations_per_second",
    "read_bytes_per_second",
    "written_bytes_per_second",
    "requests_per_second",
    "memory_used",
    "ssd_used",
    "dirty_bytes",
    "writers_waiting",
    "read_bytes_per_second_max",
    "written_bytes_per_second_max",
];

/// A change of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// The instance.
    pub instance: String,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// `info`, `warn` or `high`.
    pub kind: String,
    /// One line.
    pub text: String,
}

/// The length of the spans of load samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Kept for an hour.
    Second,
    /// Kept as long as runs.
    Minute,
}

impl Span {
    /// Its table.
    #[must_use]
    pub const fn table(self) -> &'static str {
        match self {
            Span::Second => "seconds",
            Span::Minute => "minutes",
        }
    }
}
