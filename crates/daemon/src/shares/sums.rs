//! The shares of each job since it was first seen. An account is forgotten when it is idle; a report asks
//! later.

use config::control::JobShare;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Jobs that are remembered. The oldest go first.
const JOBS_MAX: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ShareSums(Mutex<Vec<JobShare>>);

impl ShareSums {
    fn lock(&self) -> MutexGuard<'_, Vec<JobShare>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a window of a job: what it got, and to what it was entitled.
    pub(crate) fn add(&self, job: &str, (got, entitled): (u64, u64)) {
        // The rule of a user's account limits jobs that are not told apart.
        if job.is_empty() {
            return;
        }
        let mut all = self.lock();
        let place = all.iter().position(|one| one.job == job).unwrap_or_else(|| {
            if all.len() >= JOBS_MAX {
                all.remove(0);
            }
            all.push(JobShare { job: job.to_owned(), ..JobShare::default() });
            all.len() - 1
        });
        if let Some(one) = all.get_mut(place) {
            one.got = one.got.saturating_add(got);
            one.entitled = one.entitled.saturating_add(entitled);
        }
    }

    /// All that are remembered.
    pub(crate) fn list(&self) -> Vec<JobShare> {
        self.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_a_job_add_up_and_the_oldest_jobs_go() {
        let sums = ShareSums::default();
        sums.add("a", (10, 40));
        sums.add("a", (20, 20));
        sums.add("", (1, 1));
        assert_eq!(sums.list(), [JobShare { job: "a".to_owned(), got: 30, entitled: 60 }]);
        (0..JOBS_MAX).for_each(|job| sums.add(&job.to_string(), (1, 1)));
        let all = sums.list();
        assert_eq!((all.len(), all[0].job.as_str()), (JOBS_MAX, "0"));
    }
}
