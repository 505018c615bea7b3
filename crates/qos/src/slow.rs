//! Slow targets of a pool (S8; section 3 of the Sunway paper): found by Beacon's rule, tested again over
//! windows that widen.
//!
//! Time is divided into spans, a report of each host in one. In a window of spans a target is slow if
//! the mean over its active spans and its peak are both below half of the mean of all peaks, while it
//! carries its share: over 60 % of the mean load. Load is the time that clients spent in transfers. So
//! a target with less work is not slow, and one that holds up its clients is, whether they wait for it
//! or move fewer bytes in the same time (Beacon's measure, the volume, tells only the first). Rates
//! are compared as they are and divided by `max_perf`: a target that is known to be slower is not slow,
//! and neither is a faster one whose clients ask for no more.
//!
//!   well --slow in SUSPECT_SPANS--> suspect --still, in FOUND_SPANS from the same begin--> slow
//!    ^ '------------------------------' not slow in a wider window: others interfered
//!    '--its rate is no longer below half, or it was idle for RETRY_NANOS--- slow
//!
//! Invariants:
//!  1. The same spans give the same findings.
//!  2. Nothing is found while fewer than two targets are active.

use std::collections::VecDeque;

/// A span in which a target moves fewer bytes per second is not counted in its mean (Beacon:
/// 0.1 MB/s).
pub const ACTIVE_BYTES: f64 = 100_000.0;
/// Spans of the first window.
pub const SUSPECT_SPANS: usize = 4;
/// Spans of the window in which a suspect must still be slow: with spans of a second, and a report that
/// comes up to two late, it is found within 10 s.
pub const FOUND_SPANS: usize = 6;
/// A slow target that was idle for so long gets new files again, which show whether it is well.
pub const RETRY_NANOS: i64 = 30_000_000_000;

/// A target in one span.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sample {
    /// Bytes per second that it moved.
    pub bytes_per_second: f64,
    /// Clients that were in a transfer, on average.
    pub load: f64,
}

/// A change of what is known of a target.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Finding {
    /// The target.
    pub target: u32,
    /// True: it is slow from now on; false: it is not any more.
    pub is_slow: bool,
    /// Mean bytes per second over its active spans of the window.
    pub bytes_per_second: f64,
    /// The mean of the peaks of all targets in the window.
    pub peers_bytes_per_second: f64,
}

/// Mean of the peaks of all targets, in bytes per second.
#[derive(Clone, Copy, PartialEq, Debug)]
struct PeersMean {
    plain: f64,
    /// As if all had the `max_perf` of the first.
    relative: f64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Health {
    Well,
    /// Slow in all windows of this many spans and fewer.
    Suspect(usize),
    /// Slow; active last at this time, and the mean when it was found.
    Slow(i64, PeersMean),
}

#[derive(Debug)]
struct Patient {
    target: u32,
    max_perf: f64,
    spans: VecDeque<Sample>,
    health: Health,
}

impl Patient {
    fn window(&self, spans: usize) -> impl Iterator<Item = &Sample> {
        self.spans.iter().skip(self.spans.len().saturating_sub(spans))
    }
}

/// Members that are slow by Beacon's rule (see the module): `series` has bytes per second of each, in
/// equal spans, `loads` what each carries. Gives indices.
#[must_use]
pub fn slow_members(series: &[Vec<f64>], loads: &[f64]) -> Vec<usize> {
    let number = series.len() as f64;
    let half = share(series.iter().map(|one| peak(one)).sum(), number) / 2.0;
    let mean_load = share(loads.iter().sum(), number);
    let is_slow = |(one, load): (&Vec<f64>, &f64)| {
        active_mean(one) < half && peak(one) < half && *load > 0.6 * mean_load
    };
    let members = series.iter().zip(loads).enumerate();
    members.filter(|(_, member)| is_slow(*member)).map(|(at, _)| at).collect()
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn peak(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}

fn active_mean(rates: &[f64]) -> f64 {
    let active = || rates.iter().copied().filter(|rate| *rate > ACTIVE_BYTES);
    share(active().sum(), active().count() as f64)
}

/// The targets of a pool, as they did in the last spans.
#[derive(Debug)]
pub struct Diagnosis {
    patients: Vec<Patient>,
}

impl Diagnosis {
    /// Nothing is known of these targets, each with its `max_perf`.
    #[must_use]
    pub fn new(targets: &[(u32, u64)]) -> Diagnosis {
        let patient = |&(target, max_perf): &(u32, u64)| {
            let spans = VecDeque::with_capacity(FOUND_SPANS);
            Patient { target, max_perf: max_perf.max(1) as f64, spans, health: Health::Well }
        };
        Diagnosis { patients: targets.iter().map(patient).collect() }
    }

    /// True if a target is slow, as far as known.
    #[must_use]
    pub fn is_slow(&self, target: u32) -> bool {
        let found = self.patients.iter().find(|one| one.target == target);
        found.is_some_and(|one| matches!(one.health, Health::Slow(..)))
    }

    /// The targets.
    pub fn targets(&self) -> impl Iterator<Item = u32> {
        self.patients.iter().map(|one| one.target)
    }

    /// True if a target was slow in the last window, so that its rate is that of the target and not
    /// of its clients.
    #[must_use]
    pub fn is_suspect(&self, target: u32) -> bool {
        let found = self.patients.iter().find(|one| one.target == target);
        found.is_some_and(|one| one.health != Health::Well)
    }

    /// A span is over, at `now` in nanoseconds; `sample` gives each target's part. Returns what
    /// changed.
    pub fn add_span(&mut self, now: i64, sample: impl Fn(u32) -> Sample) -> Vec<Finding> {
        for one in &mut self.patients {
            if one.spans.len() >= FOUND_SPANS {
                one.spans.pop_front();
            }
            let sample = sample(one.target);
            one.spans.push_back(sample);
            if let Health::Slow(active_at, _) = &mut one.health
                && sample.bytes_per_second > ACTIVE_BYTES
            {
                *active_at = now;
            }
        }
        let count = self.patients.first().map_or(0, |one| one.spans.len());
        let mut findings = Vec::new();
        for at in 0..self.patients.len() {
            let Some(health) = self.patients.get(at).map(|one| one.health) else { continue };
            let (spans, next) = match health {
                Health::Well => (SUSPECT_SPANS, Health::Suspect(SUSPECT_SPANS)),
                Health::Suspect(spans) if spans + 1 >= FOUND_SPANS => {
                    (FOUND_SPANS, Health::Slow(now, self.peers_mean(FOUND_SPANS)))
                }
                Health::Suspect(spans) => (spans + 1, Health::Suspect(spans + 1)),
                Health::Slow(..) => (SUSPECT_SPANS, health),
            };
            if count < spans {
                continue;
            }
            let next = match health {
                Health::Slow(_, found) if self.is_well(at, found) => Health::Well,
                Health::Slow(..) => health,
                _ if self.is_slow_in(at, spans) => next,
                _ => Health::Well,
            };
            let is_slow = matches!(next, Health::Slow(..));
            if is_slow != matches!(health, Health::Slow(..)) {
                findings.extend(self.finding(at, spans, is_slow));
            }
            if let Some(one) = self.patients.get_mut(at) {
                one.health = next;
            }
        }
        findings
    }

    /// Slow targets that have been idle get new files again. Returns what changed.
    pub fn retry(&mut self, now: i64) -> Vec<Finding> {
        let mut findings = Vec::new();
        for at in 0..self.patients.len() {
            let Some(one) = self.patients.get_mut(at) else { continue };
            if matches!(one.health, Health::Slow(since, _) if now.saturating_sub(since) >= RETRY_NANOS)
            {
                one.health = Health::Well;
                // Earlier spans say nothing of the files that it gets now.
                one.spans.iter_mut().for_each(|span| *span = Sample::default());
                findings.extend(self.finding(at, FOUND_SPANS, false));
            }
        }
        findings
    }

    /// Nothing is known any more. Returns what changed.
    pub fn forget(&mut self) -> Vec<Finding> {
        let slow = |at: &usize| {
            self.patients.get(*at).is_some_and(|one| matches!(one.health, Health::Slow(..)))
        };
        let slow: Vec<usize> = (0..self.patients.len()).filter(slow).collect();
        let findings = slow.into_iter().filter_map(|at| self.finding(at, FOUND_SPANS, false));
        let findings = findings.collect();
        for one in &mut self.patients {
            one.health = Health::Well;
            one.spans.clear();
        }
        findings
    }

    fn finding(&self, at: usize, spans: usize, is_slow: bool) -> Option<Finding> {
        let series = self.series(spans, false);
        let peers = share(series.iter().map(|one| peak(one)).sum(), series.len() as f64);
        Some(Finding {
            target: self.patients.get(at)?.target,
            is_slow,
            bytes_per_second: series.get(at).map_or(0.0, |one| active_mean(one)),
            peers_bytes_per_second: peers,
        })
    }

    /// Bytes per second of each target in the last spans; of all `max_perf`, if `is_relative`, as if it
    /// were that of the first.
    fn series(&self, spans: usize, is_relative: bool) -> Vec<Vec<f64>> {
        let unit = self.patients.first().map_or(1.0, |one| one.max_perf);
        let of = |one: &Patient| {
            let scale = if is_relative { unit / one.max_perf } else { 1.0 };
            one.window(spans).map(|span| span.bytes_per_second * scale).collect()
        };
        self.patients.iter().map(of).collect()
    }

    fn is_slow_in(&self, at: usize, spans: usize) -> bool {
        let load = |one: &Patient| one.window(spans).map(|span| span.load).sum();
        let loads: Vec<f64> = self.patients.iter().map(load).collect();
        let is_slow = |series: &[Vec<f64>]| slow_members(series, &loads).contains(&at);
        is_slow(&self.series(spans, false)) && is_slow(&self.series(spans, true))
    }

    /// A slow target is well if it is active and its rate is not below half of the mean of the peaks of
    /// the active ones, whatever it carries: new files avoid it. While most of the others are idle, as
    /// those are that wait for it, the mean is that of when it was found.
    fn is_well(&self, at: usize, found: PeersMean) -> bool {
        let active = |one: &[f64]| one.iter().filter(|rate| **rate > ACTIVE_BYTES).count();
        let is_well = |series: &[Vec<f64>], found: f64| {
            let peaks: Vec<f64> =
                series.iter().filter(|one| active(one) > 0).map(|one| peak(one)).collect();
            let are_most = 2 * peaks.len().saturating_sub(1) >= series.len().saturating_sub(1);
            let mean = share(peaks.iter().sum(), peaks.len() as f64);
            let mean = if are_most { mean } else { mean.max(found) };
            series.get(at).is_some_and(|one| active_mean(one) >= mean / 2.0)
        };
        let series = self.series(SUSPECT_SPANS, false);
        let is_active = series.get(at).is_some_and(|one| active(one) == one.len());
        let relative = || self.series(SUSPECT_SPANS, true);
        is_active && (is_well(&series, found.plain) || is_well(&relative(), found.relative))
    }

    /// The mean of the peaks of all in the last spans.
    fn peers_mean(&self, spans: usize) -> PeersMean {
        let mean = |is_relative: bool| {
            let series = self.series(spans, is_relative);
            share(series.iter().map(|one| peak(one)).sum(), series.len() as f64)
        };
        PeersMean { plain: mean(false), relative: mean(true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// Spans from `from` on; `rate` and `load` of each target.
    fn spans(
        of: &mut Diagnosis,
        times: core::ops::Range<i64>,
        sample: impl Fn(u32) -> (f64, f64),
    ) -> Vec<(i64, u32, bool)> {
        let mut all = vec![];
        for time in times {
            let found = of.add_span(time * SECOND, |target| {
                let (bytes_per_second, load) = sample(target);
                Sample { bytes_per_second, load }
            });
            all.extend(found.iter().map(|one| (time, one.target, one.is_slow)));
        }
        all
    }

    fn eight(max_perf: impl Fn(u32) -> u64) -> Diagnosis {
        Diagnosis::new(&(0..8).map(|target| (target, max_perf(target))).collect::<Vec<_>>())
    }

    #[test]
    fn a_throttled_target_among_eight_is_found_in_six_spans_and_returns() {
        let mut all = eight(|_| 1);
        let throttled = |target| if target == 5 { (20e6, 2.0) } else { (100e6, 2.0) };
        assert_eq!(spans(&mut all, 0..20, throttled), [(5, 5, true)]);
        assert!(all.is_slow(5) && !all.is_slow(4));
        // New files avoid it: the few that it has are as slow as before, then it is well again.
        let few = |target| if target == 5 { (20e6, 0.2) } else { (100e6, 2.0) };
        assert_eq!(spans(&mut all, 20..40, few), []);
        let well = |target| if target == 5 { (60e6, 0.2) } else { (100e6, 2.0) };
        assert_eq!(spans(&mut all, 40..60, well), [(42, 5, false)]);
    }

    /// Ranks read, each of its target, and wait for the slowest: the others are active in one span of
    /// five.
    #[test]
    fn a_slow_target_is_not_well_because_its_peers_wait_for_it() {
        let mut all = eight(|_| 1);
        let mut found = Vec::new();
        for time in 0..60 {
            let lockstep = |target: u32| match target {
                5 => (20e6, 1.0),
                _ if time % 5 == 0 => (100e6, 1.0),
                // One of them ends a little later.
                3 if time % 5 == 1 => (5e6, 0.1),
                _ => (0.0, 0.0),
            };
            found.extend(spans(&mut all, time..time + 1, lockstep));
        }
        assert_eq!(found.iter().map(|one| (one.1, one.2)).collect::<Vec<_>>(), [(5, true)]);
        assert!(all.is_slow(5));
    }

    #[test]
    fn a_target_with_less_work_or_a_short_disturbance_is_not_slow() {
        let mut all = eight(|_| 1);
        let less = |target| if target == 5 { (20e6, 0.4) } else { (100e6, 2.0) };
        assert_eq!(spans(&mut all, 0..20, less), []);
        // Five bad spans: suspect after four, cleared by a wider window.
        let even = |_| (100e6, 2.0);
        let bad = |target| if target == 5 { (20e6, 2.0) } else { (100e6, 2.0) };
        assert_eq!(spans(&mut all, 20..30, even), []);
        assert_eq!(spans(&mut all, 30..35, bad), []);
        assert!(all.is_suspect(5));
        assert_eq!(spans(&mut all, 35..50, even), []);
        assert!(!all.is_suspect(5));
        // A single active target has no peers.
        assert_eq!(
            spans(&mut all, 50..70, |target| if target == 5 { (1e6, 2.0) } else { (0.0, 0.0) }),
            []
        );
    }

    #[test]
    fn max_perf_says_which_target_is_expected_to_be_slower() {
        let mut all = eight(|target| if target == 5 { 100 } else { 500 });
        let known = |target| if target == 5 { (100e6, 2.0) } else { (500e6, 2.0) };
        assert_eq!(spans(&mut all, 0..20, known), []);
        // Clients that ask all for the same do not make the faster ones slow.
        assert_eq!(spans(&mut all, 20..40, |_| (50e6, 1.0)), []);
        let worse = |target| if target == 5 { (20e6, 2.0) } else { (500e6, 2.0) };
        assert_eq!(spans(&mut all, 40..60, worse), [(45, 5, true)]);
    }

    #[test]
    fn an_idle_slow_target_gets_files_again_after_a_while() {
        let mut all = eight(|_| 1);
        let throttled = |target| if target == 5 { (20e6, 2.0) } else { (100e6, 2.0) };
        assert_eq!(spans(&mut all, 0..10, throttled).len(), 1);
        let idle = |target| if target == 5 { (0.0, 0.0) } else { (100e6, 2.0) };
        assert_eq!(spans(&mut all, 10..20, idle), []);
        assert_eq!(all.retry(20 * SECOND), []);
        let again = all.retry(40 * SECOND);
        assert_eq!(
            again.iter().map(|one| (one.target, one.is_slow)).collect::<Vec<_>>(),
            [(5, false)]
        );
        // It is still throttled, and found again.
        assert_eq!(spans(&mut all, 40..60, throttled), [(44, 5, true)]);
        let forgotten = all.forget();
        assert_eq!(forgotten.iter().map(|one| one.target).collect::<Vec<_>>(), [5]);
        assert!(!all.is_slow(5) && all.forget().is_empty());
    }
}
