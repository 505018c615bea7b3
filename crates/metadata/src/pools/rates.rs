//! Rates of the targets of pools, from the reports of hosts: about once a second each host tells the
//! services how many bytes its processes moved in their files, and for how long (`daemon::host`). A
//! service knows the target of each file of a pool.
//!
//! A *span* has one report of each host: it ends when a host reports again. So spans follow the hosts'
//! pace, and while nothing moves there are none.
//!
//! Invariants
//! 1. A report that is late or comes twice is ignored.
//! 2. Where a pool has targets on several hosts, only transfers to other hosts count: those in shared
//!    memory are faster, whatever the target.

use std::collections::{BTreeMap, BTreeSet};

use qos::slow::Sample;
use wire::codec::Field;
use wire::{Inode, Reader};

/// A report that comes so long after the first one of a span begins another.
const SPAN_NANOS_MAX: i64 = 3_000_000_000;

/// A file of a pool: the pool, and its target.
pub(crate) type Placed = (u8, u32);

/// A host's report, as `Message::Transfers` carries it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferReport<'a> {
    pub(crate) host: u16,
    /// Number of daemons of the host, the first of which has its number.
    pub(crate) daemons: u16,
    /// Larger in each report of a host.
    pub(crate) number: u64,
    /// The time that it covers.
    pub(crate) millis: u32,
    /// Inode, bytes and nanoseconds in transfers, eight bytes each.
    pub(crate) entries: &'a [u8],
}

impl TransferReport<'_> {
    /// True if a target is on the host itself.
    pub(crate) fn is_own(&self, target: u32) -> bool {
        target.checked_sub(u32::from(self.host)).is_some_and(|at| at < u32::from(self.daemons))
    }
}

/// The span that goes on.
#[derive(Default)]
pub(crate) struct Rates {
    /// The last report of each host.
    numbers: BTreeMap<u16, u64>,
    hosts: BTreeSet<u16>,
    begun: i64,
    samples: BTreeMap<Placed, Sample>,
}

/// A span that has ended: a sample for each target that was active.
pub(crate) type EndedSpan = BTreeMap<Placed, Sample>;

impl Rates {
    /// Takes a report. `placed` gives the place of a file if its transfers count. Returns the span that
    /// this report ends.
    pub(crate) fn take(
        &mut self,
        now: i64,
        report: &TransferReport<'_>,
        placed: impl Fn(Inode) -> Option<Placed>,
    ) -> Option<EndedSpan> {
        let last = self.numbers.entry(report.host).or_default();
        if report.number <= *last {
            return None;
        }
        *last = report.number;
        let is_late = now.saturating_sub(self.begun) > SPAN_NANOS_MAX;
        let ends = self.hosts.contains(&report.host) || is_late;
        let ended = (ends && !self.hosts.is_empty()).then(|| {
            self.hosts.clear();
            core::mem::take(&mut self.samples)
        });
        if self.hosts.is_empty() {
            self.begun = now;
        }
        self.hosts.insert(report.host);
        let seconds = f64::from(report.millis.max(1)) / 1e3;
        let mut reader = Reader::new(report.entries);
        let mut next = || u64::take(&mut reader).ok();
        while let (Some(inode), Some(bytes), Some(nanos)) = (next(), next(), next()) {
            let Some(place) = placed(Inode(inode)) else { continue };
            let sample = self.samples.entry(place).or_default();
            sample.bytes_per_second += bytes as f64 / seconds;
            sample.load += nanos as f64 / 1e9 / seconds;
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(all: &[(u64, u64, u64)]) -> Vec<u8> {
        all.iter()
            .flat_map(|&(inode, bytes, nanos)| [inode, bytes, nanos])
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    #[test]
    fn a_span_has_one_report_of_each_host() {
        let mut rates = Rates::default();
        let mut take = |now: i64, host: u16, number: u64, bytes: u64| {
            let entries = entries(&[(7, bytes, 500_000_000), (8, 1, 1)]);
            let report =
                TransferReport { host, daemons: 1, number, millis: 1000, entries: &entries };
            let placed = |inode: Inode| (inode.0 == 7).then_some((1, 3));
            let ended = rates.take(now, &report, placed)?;
            ended.get(&(1, 3)).map(|sample| (sample.bytes_per_second, sample.load))
        };
        assert_eq!(take(1, 0, 1, 1000), None);
        assert_eq!(take(2, 1, 1, 500), None);
        assert_eq!(take(3, 1, 1, 900), None, "the same again");
        assert_eq!(take(4, 0, 2, 10), Some((1500.0, 1.0)));
        // The other host is silent; a report much later ends the span, too.
        assert_eq!(take(4 + 2 * SPAN_NANOS_MAX, 1, 2, 5), Some((10.0, 0.5)));
    }
}
