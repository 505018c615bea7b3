//! Interference: a job that is slower since another moves many bytes beside it on the same host, compared
//! with its own time before that (section 3 of the Sunway paper: jobs that share a forwarding node).
//!
//! An observer adds one sample of each host in equal spans, of all jobs there. Beside job B, job A is
//! disturbed if the median of its time for a byte, over the last spans in which both move bytes, is
//! twice that of the spans before B began to move any. Both must move `ACTIVE_BYTES` per second in a span
//! for it to count, and B at least as much as A: of two jobs the smaller one does not disturb the other.
//!
//!   alone --B moves bytes, beside A--> beside --twice as slow in SPANS_MIN--> disturbed
//!     ^ '--------------------------------- B is idle for SPANS_MIN spans, or A as fast as before ---'
//!
//! Only times of one job in one run are compared, so that no speed of a machine matters.
//!
//! Invariants:
//!  1. The same samples give the same findings.
//!  2. Nothing is said of a job that has no time of its own before the other began.

use crate::advice::ACTIVE_BYTES;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Spans that are needed alone and beside the other.
pub const SPANS_MIN: usize = 4;
/// Spans that are kept of each job alone, and beside another.
const SPANS_MAX: usize = 16;
/// A job is disturbed if a byte takes so many times as long as before.
const SLOWDOWN_MIN: f64 = 2.0;
/// Jobs of a host that are compared, the ones with most bytes in the span.
const JOBS_MAX: usize = 16;

/// Bytes that a job moved in a span, and the time that its processes spent on them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moved {
    /// The bytes.
    pub bytes: f64,
    /// Seconds in reads and writes, summed over its processes.
    pub seconds: f64,
}

/// Two jobs of which one disturbs the other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interference {
    /// The host that they share.
    pub host: String,
    /// The job that is slower than before.
    pub job: String,
    /// The job that began to move bytes then.
    pub by: String,
    /// How many times as long a byte takes as before.
    pub slowdown: f64,
    /// Bytes per second that the other moved meanwhile.
    pub by_bytes_per_second: f64,
}

impl Interference {
    /// It in one line.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "job {} takes {:.1} times as long for a byte on {} since job {} moves {}/s there",
            self.job,
            self.slowdown,
            self.host,
            self.by,
            crate::text::bytes(self.by_bytes_per_second as u64)
        )
    }
}

/// A job beside another.
#[derive(Clone, Debug)]
struct Pair {
    /// Seconds for a byte before the other began.
    alone: f64,
    /// Seconds for a byte, and bytes per second of both, in the last spans.
    beside: VecDeque<(f64, f64, f64)>,
    idle_spans: usize,
}

/// The jobs of a host as they did in the last spans.
#[derive(Clone, Debug, Default)]
struct HostJobs {
    /// Seconds for a byte in the last spans of each job.
    history: BTreeMap<String, VecDeque<f64>>,
    pairs: BTreeMap<(String, String), Pair>,
    /// Jobs that moved bytes in the last span.
    active: BTreeSet<String>,
}

/// All hosts.
#[derive(Clone, Debug, Default)]
pub struct InterferenceWatch {
    hosts: BTreeMap<String, HostJobs>,
}

impl InterferenceWatch {
    /// A span of `seconds` is over, in which the jobs of a host moved these bytes. A host without an
    /// answer is left out.
    pub fn add_span(&mut self, host: &str, seconds: f64, moved: &BTreeMap<String, Moved>) {
        if seconds <= 0.0 {
            return;
        }
        let is_active = |one: &Moved| one.bytes >= ACTIVE_BYTES * seconds && one.seconds > 0.0;
        let mut active: Vec<_> = moved.iter().filter(|(_, one)| is_active(one)).collect();
        active.sort_by(|a, b| b.1.bytes.total_cmp(&a.1.bytes));
        active.truncate(JOBS_MAX);
        let active: BTreeMap<&str, Moved> =
            active.into_iter().map(|(job, one)| (job.as_str(), *one)).collect();
        self.hosts.entry(host.to_owned()).or_default().add_span(seconds, &active, moved);
    }

    /// The jobs that are disturbed now, the slowest first.
    #[must_use]
    pub fn found(&self) -> Vec<Interference> {
        let mut all = Vec::new();
        for (host, jobs) in &self.hosts {
            let each = jobs.pairs.iter().filter_map(|((job, by), pair)| {
                let (slowdown, by_bytes_per_second) = pair.disturbance()?;
                let (host, job, by) = (host.clone(), job.clone(), by.clone());
                Some(Interference { host, job, by, slowdown, by_bytes_per_second })
            });
            all.extend(each);
        }
        all.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown));
        all
    }
}

impl HostJobs {
    fn add_span(
        &mut self,
        seconds: f64,
        active: &BTreeMap<&str, Moved>,
        known: &BTreeMap<String, Moved>,
    ) {
        // A job that the daemons have forgotten, or that ended, is forgotten.
        self.history.retain(|job, _| known.contains_key(job));
        self.pairs.retain(|(job, by), _| known.contains_key(job) && known.contains_key(by));
        for &job in active.keys() {
            for &by in active.keys().filter(|by| **by != job) {
                let key = (job.to_owned(), by.to_owned());
                let has_begun = !self.active.contains(by) && !self.pairs.contains_key(&key);
                let alone = self.history.get(job).filter(|spans| spans.len() >= SPANS_MIN);
                if let Some(alone) = alone.filter(|_| has_begun) {
                    let alone = median(alone.iter().copied());
                    self.pairs.insert(key, Pair { alone, beside: VecDeque::new(), idle_spans: 0 });
                }
            }
        }
        for ((job, by), pair) in &mut self.pairs {
            match (active.get(job.as_str()), active.get(by.as_str())) {
                (Some(own), Some(other)) => {
                    pair.idle_spans = 0;
                    let rates = (own.bytes / seconds, other.bytes / seconds);
                    keep(&mut pair.beside, (own.seconds / own.bytes, rates.0, rates.1));
                }
                _ => pair.idle_spans += 1,
            }
        }
        self.pairs.retain(|_, pair| pair.idle_spans < SPANS_MIN);
        for (&job, own) in active {
            // Time beside a job that began later says nothing of the time before another.
            if !self.pairs.keys().any(|(disturbed, _)| disturbed == job) {
                let history = self.history.entry(job.to_owned()).or_default();
                keep(history, own.seconds / own.bytes);
            }
        }
        self.active = active.keys().map(|job| (*job).to_owned()).collect();
    }
}

impl Pair {
    /// The slowdown and the bytes per second of the other job, if it disturbs.
    fn disturbance(&self) -> Option<(f64, f64)> {
        let last = || self.beside.iter().rev().take(SPANS_MIN);
        if self.beside.len() < SPANS_MIN || self.alone <= 0.0 {
            return None;
        }
        let slowdown = median(last().map(|one| one.0)) / self.alone;
        let [own, other] = [median(last().map(|one| one.1)), median(last().map(|one| one.2))];
        (slowdown >= SLOWDOWN_MIN && other >= own).then_some((slowdown, other))
    }
}

fn keep<T>(all: &mut VecDeque<T>, one: T) {
    if all.len() >= SPANS_MAX {
        all.pop_front();
    }
    all.push_back(one);
}

fn median(all: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = all.collect();
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spans of a second: of each job its megabytes and its seconds.
    fn spans(watch: &mut InterferenceWatch, count: usize, jobs: &[(&str, f64, f64)]) {
        let of = |&(job, megabytes, seconds): &(&str, f64, f64)| {
            (job.to_owned(), Moved { bytes: megabytes * 1e6, seconds })
        };
        let moved: BTreeMap<String, Moved> = jobs.iter().map(of).collect();
        (0..count).for_each(|_| watch.add_span("n1", 1.0, &moved));
    }

    fn pairs(watch: &InterferenceWatch) -> Vec<(String, String)> {
        watch.found().into_iter().map(|one| (one.job, one.by)).collect()
    }

    #[test]
    fn a_job_that_is_slower_since_another_began_is_found_and_clears() {
        let mut watch = InterferenceWatch::default();
        spans(&mut watch, 6, &[("a", 100.0, 1.0), ("b", 0.0, 0.0)]);
        assert_eq!(watch.found(), []);
        spans(&mut watch, 3, &[("a", 40.0, 1.0), ("b", 60.0, 1.0)]);
        assert_eq!(watch.found(), [], "three spans may be chance");
        spans(&mut watch, 1, &[("a", 40.0, 1.0), ("b", 60.0, 1.0)]);
        let found = watch.found();
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((one.host.as_str(), one.job.as_str(), one.by.as_str()), ("n1", "a", "b"));
        assert!((one.slowdown - 2.5).abs() < 1e-9, "{one:?}");
        assert!(one.line().starts_with("job a takes 2.5 times as long"), "{}", one.line());
        // The other pauses, and the job is as fast as before.
        spans(&mut watch, SPANS_MIN, &[("a", 100.0, 1.0), ("b", 0.0, 0.0)]);
        assert_eq!(watch.found(), []);
        // It began anew.
        spans(&mut watch, SPANS_MIN, &[("a", 30.0, 1.0), ("b", 60.0, 1.0)]);
        assert_eq!(pairs(&watch), [("a".to_owned(), "b".to_owned())]);
        spans(&mut watch, 1, &[("a", 30.0, 1.0)]);
        assert_eq!(watch.found(), [], "the other has ended");
    }

    #[test]
    fn slowdowns_below_two_and_of_other_causes_are_not_found() {
        let begins = |beside: &[(&str, f64, f64)]| {
            let mut watch = InterferenceWatch::default();
            spans(&mut watch, 6, &[("a", 100.0, 1.0)]);
            spans(&mut watch, 10, beside);
            pairs(&watch)
        };
        assert_eq!(begins(&[("a", 51.0, 1.0), ("b", 60.0, 1.0)]), []);
        assert_eq!(begins(&[("a", 50.0, 1.0), ("b", 60.0, 1.0)]).len(), 1);
        assert_eq!(begins(&[("a", 50.0, 1.0), ("b", 49.0, 1.0)]), [], "the smaller one");
        assert_eq!(begins(&[("a", 50.0, 0.5), ("b", 60.0, 1.0)]), [], "it asks for less");
        assert_eq!(begins(&[("a", 20.0, 1.0), ("b", 0.01, 1.0)]), [], "the other is idle");
        assert_eq!(begins(&[("a", 20.0, 1.0)]), [], "nobody is beside it");
    }

    #[test]
    fn jobs_that_began_together_have_no_time_to_compare_with() {
        let mut watch = InterferenceWatch::default();
        spans(&mut watch, 6, &[("a", 100.0, 1.0), ("b", 100.0, 1.0)]);
        spans(&mut watch, 10, &[("a", 10.0, 1.0), ("b", 100.0, 1.0)]);
        assert_eq!(watch.found(), []);
        // A third one begins beside both, which both had time before.
        spans(&mut watch, 10, &[("a", 4.0, 1.0), ("b", 45.0, 1.0), ("c", 200.0, 1.0)]);
        assert_eq!(
            pairs(&watch),
            [("a".to_owned(), "c".to_owned()), ("b".to_owned(), "c".to_owned())]
        );
    }

    #[test]
    fn hosts_are_apart() {
        let mut watch = InterferenceWatch::default();
        let moved = |job: &str, megabytes: f64| {
            BTreeMap::from([(job.to_owned(), Moved { bytes: megabytes * 1e6, seconds: 1.0 })])
        };
        (0..6).for_each(|_| watch.add_span("n1", 1.0, &moved("a", 100.0)));
        for _ in 0..6 {
            watch.add_span("n1", 1.0, &moved("a", 20.0));
            watch.add_span("n2", 1.0, &moved("b", 100.0));
        }
        assert_eq!(watch.found(), []);
        watch.add_span("n1", 0.0, &moved("a", 20.0));
    }
}
