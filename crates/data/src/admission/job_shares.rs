//! Which job's work begins next, where less may be in flight than waits: users have equally many, and the
//! jobs of each. So one with a thousand readers does not hold up those of others, at a backing store that
//! all share, and one with a thousand extents that are promoted does not hold up those of others. Urgent
//! work of the instance comes first. Work is a fill or a promotion, as the caller knows.
//!
//! The caller asks for one job after the other, again and again (a *round*), and a job that gets none
//! asks in the next round, too. Requests keep their order: only which of them begin is decided here.
//!
//! Invariants:
//!  1. A job without work in flight may begin some if there is a place, and no urgent work waits for it.
//!  2. No place stays free for a job that asks no more: another round gives it to one that does.

use crate::effect::FillJob;
use std::collections::BTreeSet;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobShares {
    /// Jobs that got none in the round before.
    waiting: BTreeSet<FillJob>,
    /// Those of this round.
    refused: BTreeSet<FillJob>,
}

impl JobShares {
    /// True if another job comes first that waits, and is urgent or has less in flight; `under_way` has
    /// the job of each.
    pub(crate) fn is_others_turn(
        &self,
        job: FillJob,
        under_way: impl Iterator<Item = FillJob> + Clone,
    ) -> bool {
        if job.is_urgent() {
            return false;
        }
        if self.waiting.iter().any(|other| other.is_urgent()) {
            return true;
        }
        let of_user = |user: u32| under_way.clone().filter(|one| one.user == user).count();
        let of_job = |job: FillJob| under_way.clone().filter(|one| *one == job).count();
        let (own_user, own_job) = (of_user(job.user), of_job(job));
        self.waiting.iter().any(|&other| match other.user == job.user {
            true => of_job(other) < own_job,
            false => of_user(other.user) < own_user,
        })
    }

    /// A job gets none now: it asks again in the next round.
    pub(crate) fn refuse(&mut self, job: FillJob) {
        self.refused.insert(job);
    }

    /// All that wait have asked. True if some got none.
    pub(crate) fn end_round(&mut self) -> bool {
        self.waiting = std::mem::take(&mut self.refused);
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn job(user: u32, number: u32) -> FillJob {
        FillJob { user, number }
    }

    /// Rounds in which these jobs ask in this order for as many fills as they need, while so many may be
    /// in flight; the fills of each then.
    fn shared(places: usize, missing: &[(FillJob, usize)]) -> Vec<usize> {
        let (mut shares, mut under_way) = (JobShares::default(), Vec::new());
        loop {
            for &(job, wants) in missing {
                while under_way.iter().filter(|one| **one == job).count() < wants {
                    let is_full = under_way.len() >= places;
                    if is_full || shares.is_others_turn(job, under_way.iter().copied()) {
                        shares.refuse(job);
                        break;
                    }
                    under_way.push(job);
                }
            }
            if !shares.end_round() || under_way.len() >= places {
                break;
            }
        }
        let count = |of: FillJob| under_way.iter().filter(|one| **one == of).count();
        missing.iter().map(|(of, _)| count(*of)).collect()
    }

    #[test]
    fn places_that_no_other_job_needs_are_used() {
        assert_eq!(shared(32, &[(job(1, 1), 100)]), [32]);
        assert_eq!(shared(32, &[(job(1, 1), 3), (job(2, 1), 4)]), [3, 4]);
    }

    /// One by one fills end; the places go to users, and then to jobs, with fewer.
    #[test]
    fn users_and_then_their_jobs_have_equally_many() {
        let jobs = [(job(1, 1), 100), (job(1, 2), 100), (job(2, 1), 100)];
        let mut shares = JobShares::default();
        let mut under_way: Vec<FillJob> = vec![job(1, 1); 16];
        for _ in 0..64 {
            for (job, _) in jobs {
                shares.refuse(job);
            }
            assert!(shares.end_round());
            under_way.remove(0);
            let next = jobs.iter().map(|(job, _)| *job);
            let mut next =
                next.filter(|job| !shares.is_others_turn(*job, under_way.iter().copied()));
            under_way.push(next.next().expect("the turn of a job"));
        }
        let count = |of: FillJob| under_way.iter().filter(|one| **one == of).count();
        assert_eq!(jobs.map(|(of, _)| count(of)), [4, 4, 8]);
    }

    #[test]
    fn urgent_work_gets_the_next_place() {
        let urgent = FillJob::from(wire::JobWord::URGENT);
        let mut shares = JobShares::default();
        let under_way = [urgent, urgent, job(1, 1)];
        shares.refuse(job(2, 1));
        assert!(shares.end_round());
        assert!(
            !shares.is_others_turn(urgent, under_way.iter().copied()),
            "others wait with fewer"
        );
        shares.refuse(urgent);
        assert!(shares.end_round());
        assert!(shares.is_others_turn(job(2, 1), under_way.iter().copied()), "it has none");
        // It asks no more.
        shares.refuse(job(2, 1));
        assert!(shares.end_round());
        assert!(!shares.is_others_turn(job(2, 1), under_way.iter().copied()));
    }

    #[test]
    fn a_place_is_not_kept_for_one_that_asks_no_more() {
        let mut shares = JobShares::default();
        let under_way = [job(1, 1)];
        shares.refuse(job(2, 1));
        assert!(shares.end_round());
        assert!(shares.is_others_turn(job(1, 1), under_way.iter().copied()));
        assert!(!shares.is_others_turn(job(1, 1), [].into_iter()), "it has none itself");
        // Its reader was killed, say.
        shares.refuse(job(1, 1));
        assert!(shares.end_round());
        assert!(!shares.is_others_turn(job(1, 1), under_way.iter().copied()));
        assert!(!shares.end_round());
    }
}
