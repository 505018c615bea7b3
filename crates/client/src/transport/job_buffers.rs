//! How many bounce buffers each job has whose requests a mount makes. The jobs of a mount share the
//! buffers of its sessions: one with many writers that wait for a slow way must leave some to the others,
//! or these have no request there when it is their turn.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::transport::activity::Activity;

/// Jobs are told apart by so many numbers; two with the same number count as one.
const ACCOUNT_COUNT: usize = 256;

/// Buffers of transfers, by job.
pub(crate) struct JobBuffers {
    held: [AtomicU32; ACCOUNT_COUNT],
}

/// A buffer of a job, until it is dropped.
pub(crate) struct HeldBuffer<'a> {
    held: &'a AtomicU32,
    others: u32,
}

impl HeldBuffer<'_> {
    /// Buffers that the job had before.
    pub(crate) fn others(&self) -> usize {
        self.others as usize
    }
}

impl Drop for HeldBuffer<'_> {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Relaxed);
    }
}

impl JobBuffers {
    pub(crate) const fn new() -> JobBuffers {
        JobBuffers { held: [const { AtomicU32::new(0) }; ACCOUNT_COUNT] }
    }

    /// Counts a buffer for the job of the calling thread; `None` in a process that is no mount.
    pub(crate) fn hold(&self, activity: &Activity) -> Option<HeldBuffer<'_>> {
        self.hold_for(activity.account()?)
    }

    fn hold_for(&self, account: u8) -> Option<HeldBuffer<'_>> {
        let held = self.held.get(usize::from(account))?;
        Some(HeldBuffer { held, others: held.fetch_add(1, Relaxed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_count_for_their_job_until_they_are_dropped() {
        let buffers = JobBuffers::new();
        let hold = |account| buffers.hold_for(account).expect("an account");
        let [first, second, of_other] = [hold(1), hold(1), hold(2)];
        assert_eq!([first.others(), second.others(), of_other.others()], [0, 1, 0]);
        drop(first);
        assert_eq!(hold(1).others(), 1);
        drop(second);
        assert_eq!(hold(1).others(), 0);
    }
}
