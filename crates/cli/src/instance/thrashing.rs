//! Daemons whose memory and SSD are too small for what programs read (`data::backing::thrashing`).

use super::inspect::DaemonReport;
use config::control::ThrashingSpan;
use insight::profile::ThrashingBytes;
use serde::Serialize;

/// A daemon whose tiers thrash now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ThrashingDaemon {
    /// Its number.
    pub(crate) daemon: u16,
    /// Its host; empty: this host.
    pub(crate) host: String,
    /// The figures.
    #[serde(flatten)]
    pub(crate) span: ThrashingSpan,
}

impl ThrashingDaemon {
    /// It in one line.
    pub(crate) fn line(&self) -> String {
        let (evidence, change) = bytes_of(&self.span).texts();
        format!("daemon {} thrashes: {evidence}; {change}", self.daemon)
    }
}

/// The daemons that thrash now.
pub(crate) fn of_now(reports: &[DaemonReport]) -> Vec<ThrashingDaemon> {
    let of = |one: &DaemonReport| {
        let span = *one.status()?.thrashing.last().filter(|last| last.is_now)?;
        Some(ThrashingDaemon { daemon: one.daemon.index, host: one.host.clone(), span })
    };
    reports.iter().filter_map(of).collect()
}

/// The sum over daemons, of each the worst time between two moments in milliseconds since 1970.
pub(crate) fn between<'a>(
    daemons: impl Iterator<Item = &'a [ThrashingSpan]>,
    (begin_ms, end_ms): (u64, u64),
) -> Option<ThrashingBytes> {
    let mut sum: Option<ThrashingBytes> = None;
    for spans in daemons {
        let overlaps = |span: &&ThrashingSpan| {
            // The bytes of a window come before it is found.
            let first_ms = span.began_ms.saturating_sub(span.window_ms);
            first_ms <= end_ms && begin_ms <= span.seen_ms
        };
        let worst = spans.iter().filter(overlaps).max_by_key(|span| span.bytes_refetched);
        if let Some(worst) = worst {
            sum.get_or_insert_default().add(bytes_of(worst));
        }
    }
    sum
}

fn bytes_of(span: &ThrashingSpan) -> ThrashingBytes {
    ThrashingBytes {
        seconds: span.window_ms as f64 / 1000.0,
        fetched: span.bytes_fetched,
        refetched: span.bytes_refetched,
        prefetched: span.bytes_prefetched,
        discarded: span.bytes_discarded,
        tiers: span.bytes_of_tiers,
        sufficient: span.bytes_sufficient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_worst_time_of_each_daemon_while_it_ran() {
        let span = |began_ms, bytes_refetched| ThrashingSpan {
            began_ms,
            seen_ms: began_ms + 1000,
            window_ms: 30_000,
            bytes_refetched,
            ..ThrashingSpan::default()
        };
        let first = [span(100_000, 5), span(200_000, 7), span(300_000, 9)];
        let second = [span(210_000, 1)];
        let of = |times| {
            between([&first[..], &second[..]].into_iter(), times).map(|found| found.refetched)
        };
        assert_eq!(of((150_000, 250_000)), Some(8));
        assert_eq!(of((102_000, 160_000)), None);
        assert_eq!(of((0, 1_000_000)), Some(10));
    }
}
