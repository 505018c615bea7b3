//! Rates of operations in this instance, from the counters of all jobs of the host: for estimates
//! of what a change would save. A rate of too few operations is not measured.

use config::activity::{MeasuredRates, OperationClasses, ProcessProfile, Transfers};

/// Transfers of this mean size are large: their bytes take nearly all of their time.
const LARGE_BYTES: u64 = 1 << 20;
/// Bytes that a process must have moved in a file by large transfers.
const LARGE_BYTES_MIN: u64 = 16 << 20;
/// Transfers of this mean size are small: the call takes nearly all of their time.
const SMALL_BYTES: u64 = 4096;
/// Operations of which enough are timed, one in 64.
const OPERATIONS_MIN: u64 = 1024;

/// The times that each process measured, in each file.
#[derive(Default)]
pub(super) struct MeasuredTimes {
    bytes_per_second: Vec<f64>,
    call_nanos: Vec<f64>,
    name_nanos: Vec<f64>,
}

impl MeasuredTimes {
    /// Adds a job: its processes, and their transfers by file.
    pub(super) fn add(&mut self, processes: &[ProcessProfile], transfers: &[Transfers]) {
        self.bytes_per_second.extend(transfers.iter().filter_map(rate));
        self.call_nanos.extend(transfers.iter().filter_map(call_nanos));
        let names = processes.iter().filter_map(|process| name_nanos(&process.operations));
        self.name_nanos.extend(names);
    }

    /// The medians.
    pub(super) fn rates(self) -> MeasuredRates {
        MeasuredRates {
            bytes_per_second: median(self.bytes_per_second),
            call_nanos: median(self.call_nanos),
            name_nanos: median(self.name_nanos),
        }
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

fn rate(of: &Transfers) -> Option<f64> {
    let is_large = of.bytes >= LARGE_BYTES_MIN && of.bytes / of.number.max(1) >= LARGE_BYTES;
    (is_large && of.nanos > 0).then(|| of.bytes as f64 * 1e9 / of.nanos as f64)
}

fn call_nanos(of: &Transfers) -> Option<f64> {
    let is_small = of.number >= OPERATIONS_MIN && of.bytes / of.number <= SMALL_BYTES;
    (is_small && of.nanos > 0).then(|| of.nanos as f64 / of.number as f64)
}

fn name_nanos(of: &OperationClasses) -> Option<f64> {
    let all = [&of.open, &of.create, &of.stat, &of.unlink, &of.rename, &of.close];
    let number = all.iter().map(|one| one.number).fold(0, u64::saturating_add);
    let nanos = all.iter().map(|one| one.nanos).fold(0, u64::saturating_add);
    (number >= OPERATIONS_MIN && nanos > 0).then(|| nanos as f64 / number as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Job = (Vec<ProcessProfile>, Vec<Transfers>);

    fn job(transfers: &[(u64, u64, u64)], names: &[(u64, u64)]) -> Job {
        let one = |&(number, bytes, nanos): &(u64, u64, u64)| Transfers {
            number,
            bytes,
            nanos,
            ..Transfers::default()
        };
        let process = |&(number, nanos): &(u64, u64)| {
            let mut process = ProcessProfile::default();
            (process.operations.stat.number, process.operations.stat.nanos) = (number, nanos);
            process
        };
        (names.iter().map(process).collect(), transfers.iter().map(one).collect())
    }

    fn measured(jobs: &[Job]) -> MeasuredRates {
        let mut times = MeasuredTimes::default();
        jobs.iter().for_each(|(processes, transfers)| times.add(processes, transfers));
        times.rates()
    }

    #[test]
    fn rates_are_medians_of_what_was_done_often_enough() {
        let mib = 1 << 20;
        let large = [(16, 16 * mib, 16_000_000), (32, 32 * mib, 64_000_000), (64, 64 * mib, 1)];
        let small = [(2048, 2048 * 512, 2_048_000), (4096, 4096, 8_192_000), (9999, 9999, 9_999)];
        let rates = measured(&[job(&large, &[(2000, 2_000_000)]), job(&small, &[])]);
        let megabyte_each_millisecond = mib as f64 * 1000.0;
        assert_eq!(rates.bytes_per_second, megabyte_each_millisecond);
        assert_eq!((rates.call_nanos, rates.name_nanos), (1000.0, 1000.0));
    }

    #[test]
    fn what_was_done_rarely_or_was_not_timed_is_not_measured() {
        let rare = job(
            &[(1, 1 << 20, 5), (1000, 1000, 99), (2048, 2048, 0), (64, 64 << 20, 0)],
            &[(1000, 50), (5000, 0)],
        );
        assert_eq!(measured(&[rare]), MeasuredRates::default());
        assert_eq!(measured(&[]), MeasuredRates::default());
        let one = MeasuredRates { bytes_per_second: 5.0, call_nanos: 9.0, name_nanos: 0.0 };
        let other = MeasuredRates { bytes_per_second: 7.0, call_nanos: 0.0, name_nanos: 3.0 };
        let both = MeasuredRates { bytes_per_second: 7.0, call_nanos: 9.0, name_nanos: 3.0 };
        assert_eq!(one.best(other), both);
    }
}
