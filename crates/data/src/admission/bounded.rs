//! Requests of jobs that have reached their bound on dirty bytes (`qos::dirty`): they wait here, each
//! behind earlier ones of its job, until enough of the job's bytes have left or are being copied. Other
//! jobs go on. A request that waits for long is told to come back, so that its client sees that it is
//! not forgotten.
//!
//!   run --its job is at the bound, or earlier ones of it wait--> waiting   Effect::Wait
//!   waiting --its job may have more--> run
//!   waiting --for `WAIT_MILLIS`--> Busy
//!   waiting --Input::Withdraw; its file is removed--> Busy; ESTALE

use crate::admission::job::Job;
use crate::effect::Effect;
use qos::dirty::DirtyJob;
use std::collections::{BTreeMap, VecDeque};

/// How long a request waits before its client asks again.
const WAIT_MILLIS: u32 = 1000;

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct BoundedWriter {
    pub(crate) job: Job,
    /// Length of the extent that it needs.
    pub(crate) length: u64,
    /// Set at the caller's next clock reading.
    since: Option<u32>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct BoundedWriters {
    waiting: BTreeMap<DirtyJob, VecDeque<BoundedWriter>>,
    /// Requests that had to wait, so far.
    pub(crate) waits: u64,
}

impl BoundedWriters {
    /// True if none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Number of requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.values().map(VecDeque::len).sum()
    }

    /// True if requests of a job wait.
    pub(crate) fn has(&self, of: DirtyJob) -> bool {
        self.waiting.contains_key(&of)
    }

    /// Queues a request.
    pub(crate) fn wait(&mut self, of: DirtyJob, mut job: Job, length: u64, out: &mut Vec<Effect>) {
        job.tell_wait(out);
        self.waits += 1;
        let writer = BoundedWriter { job, length, since: None };
        self.waiting.entry(of).or_default().push_back(writer);
    }

    /// The jobs whose requests wait, each with the length that the first one needs.
    pub(crate) fn jobs(&self) -> Vec<(DirtyJob, u64)> {
        let first =
            |(&of, queue): (&DirtyJob, &VecDeque<BoundedWriter>)| Some((of, queue.front()?.length));
        self.waiting.iter().filter_map(first).collect()
    }

    /// The length that the first request of a job needs; `None`: none waits.
    pub(crate) fn first(&self, of: DirtyJob) -> Option<u64> {
        Some(self.waiting.get(&of)?.front()?.length)
    }

    /// Takes the first request of a job, to be tried again, and those behind it, to be put back by
    /// `put_behind`: meanwhile none waits.
    pub(crate) fn take_first(&mut self, of: DirtyJob) -> Option<(Job, VecDeque<BoundedWriter>)> {
        let mut queue = self.waiting.remove(&of)?;
        let first = queue.pop_front()?;
        Some((first.job, queue))
    }

    /// Puts the requests back that `take_first` took. True if the first one waits again.
    pub(crate) fn put_behind(&mut self, of: DirtyJob, behind: VecDeque<BoundedWriter>) -> bool {
        let again = self.waiting.contains_key(&of);
        if again || !behind.is_empty() {
            self.waiting.entry(of).or_default().extend(behind);
        }
        again
    }

    /// Removes and returns the matching requests.
    pub(crate) fn take_jobs(&mut self, is_it: impl Fn(&Job) -> bool) -> Vec<Job> {
        self.take(|writer| is_it(&writer.job))
    }

    fn take(&mut self, is_it: impl Fn(&BoundedWriter) -> bool) -> Vec<Job> {
        let mut taken = Vec::new();
        for queue in self.waiting.values_mut().filter(|queue| queue.iter().any(&is_it)) {
            let (these, rest): (VecDeque<_>, _) =
                std::mem::take(queue).into_iter().partition(&is_it);
            *queue = rest;
            taken.extend(these.into_iter().map(|writer| writer.job));
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        taken
    }

    /// Takes the requests that have waited for long.
    pub(crate) fn take_late(&mut self, now_millis: u32) -> Vec<Job> {
        for writer in self.waiting.values_mut().flatten() {
            writer.since.get_or_insert(now_millis);
        }
        let is_late = |since: u32| now_millis.wrapping_sub(since) >= WAIT_MILLIS;
        self.take(|writer| writer.since.is_some_and(is_late))
    }
}
