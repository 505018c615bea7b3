//! Every metric: one row of a table each. From the rows come the atomics of a daemon, the objects
//! of `forebay status --json`, the text of `forebay status --prometheus`, and `docs/metrics.md`.
//!
//! A new metric is one row in `table` and the place that counts.

mod page;
mod prometheus;
mod table;

pub use page::page;
pub use prometheus::{Series, exposition};
pub use table::{
    DAEMON, DaemonMetrics, DaemonSample, DaemonValues, JOB, JobSample, WRITEBACK, WritebackSample,
};

/// Whether a metric only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Grows from 0 at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// The unit in which a metric is counted, and in which JSON has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricUnit {
    /// A number of things.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Microseconds. Prometheus has seconds.
    Micros,
}

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Its key in the JSON of `forebay status`, and the field of the values.
    pub key: &'static str,
    /// Its name in Prometheus.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Its unit.
    pub unit: MetricUnit,
    /// One line for people.
    pub help: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        let mut names = BTreeSet::new();
        for metric in DAEMON.iter().chain(&WRITEBACK).chain(&JOB) {
            let name = metric.name;
            assert!(names.insert(name), "{name} is there twice");
            assert!(name.starts_with("forebay_"), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
            let suffix = match metric.unit {
                MetricUnit::Count => "",
                MetricUnit::Bytes => "_bytes",
                MetricUnit::Seconds | MetricUnit::Micros => "_seconds",
            };
            assert!(name.trim_end_matches("_total").ends_with(suffix), "{name}");
            assert!(!metric.help.is_empty() && !metric.help.ends_with('.'), "{name}");
        }
    }

    #[test]
    fn values_have_the_keys_of_their_rows() {
        let keys = |value: serde_json::Value| -> BTreeSet<String> {
            value.as_object().expect("an object").keys().cloned().collect()
        };
        let of = |rows: &[Metric]| rows.iter().map(|row| row.key.to_owned()).collect();
        let daemon: BTreeSet<String> = of(&DAEMON);
        assert_eq!(keys(serde_json::to_value(DaemonSample::default()).expect("json")), daemon);
        let writeback: BTreeSet<String> = of(&WRITEBACK);
        assert_eq!(
            keys(serde_json::to_value(WritebackSample::default()).expect("json")),
            writeback
        );
    }

    #[test]
    fn counters_of_several_threads_are_added() {
        use std::sync::atomic::Ordering::Relaxed;
        let threads = [DaemonMetrics::default(), DaemonMetrics::default()];
        threads[0].requests.fetch_add(3, Relaxed);
        threads[1].requests.fetch_add(4, Relaxed);
        threads[1].files.store(1, Relaxed);
        let mut sum = DaemonSample::default();
        threads.iter().for_each(|one| sum.add(&one.load()));
        assert_eq!((sum.requests, sum.files, sum.sessions), (7, 1, 0));
    }
}
