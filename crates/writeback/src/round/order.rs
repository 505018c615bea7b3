//! The order in which new contents are written, by sets of jobs (`qos::sets`): for backing stores that
//! prefer few writers.
//!
//! Nothing here knows the jobs of files, so the files of one user in one directory are taken for a job.
//! Its phase begins when some of them are to be written, and ends with the round that finds none.

use qos::sets::{SetKey, Sets};
use std::collections::BTreeSet;
use wire::Inode;

/// A user and a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) uid: u32,
    pub(crate) directory: Inode,
}

impl Writer {
    /// A number for it; two writers with the same one share their phases.
    fn key(self) -> SetKey {
        self.directory.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(self.uid)
    }
}

/// The phases of all jobs.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobOrder {
    sets: Sets,
    /// Those that this round found.
    found: BTreeSet<SetKey>,
}

impl JobOrder {
    /// Puts files in the order in which they are written; `now` in nanoseconds since 1970.
    pub(crate) fn sort<T>(
        &mut self,
        now: i64,
        files: Vec<T>,
        writer: impl Fn(&T) -> Writer,
        bytes: impl Fn(&T) -> u64,
    ) -> Vec<T> {
        let items: Vec<(SetKey, u64)> =
            files.iter().map(|file| (writer(file).key(), bytes(file))).collect();
        for (key, _) in &items {
            self.sets.begin(u64::try_from(now).unwrap_or(0), *key);
            self.found.insert(*key);
        }
        let mut files: Vec<Option<T>> = files.into_iter().map(Some).collect();
        let order = self.sets.order(&items);
        order.into_iter().filter_map(|place| files.get_mut(place)?.take()).collect()
    }

    /// A round over everything ends: jobs of which it found nothing have no phase.
    pub(crate) fn end_round(&mut self) {
        let found = std::mem::take(&mut self.found);
        let idle: Vec<SetKey> = self.sets.waiting().filter(|key| !found.contains(key)).collect();
        idle.into_iter().for_each(|key| self.sets.end(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn files_of_one_job_are_written_together_and_frequent_jobs_first() {
        let writer = |job: &u64| Writer { uid: 1, directory: Inode(*job) };
        let mut order = JobOrder::default();
        // Job 1 writes each 10 s, jobs 7 and 8 each 1,000 s.
        for at in (0..2000).step_by(10) {
            let jobs = if at % 1000 == 0 { vec![8, 7, 1] } else { vec![1] };
            order.sort(at * SECOND, jobs, writer, |_| 1 << 20);
            order.end_round();
            order.end_round();
        }
        let sorted = order.sort(2000 * SECOND, vec![7, 8, 1, 7, 8, 1, 8], writer, |_| 1 << 20);
        assert_eq!(sorted.len(), 7);
        let last_of_1 = sorted.iter().rposition(|&job| job == 1);
        assert!(last_of_1 <= Some(2), "{sorted:?}");
        let rare: Vec<u64> = sorted.into_iter().filter(|&job| job != 1).collect();
        assert!(rare == [7, 7, 8, 8, 8] || rare == [8, 8, 8, 7, 7], "{rare:?}");
    }
}
