//! Locks of dead processes that must be released. The home daemon reports them to the shards of
//! their files, and repeats that until it is answered, since a lock outlives the daemon that keeps
//! it. Pending releases are in the host segment (`shm::host`, `releases`), which survives this
//! daemon; this module keeps those that are in flight.
//!
//! An entry is reported by one request at a time and cleared when that is answered. Requests
//! between two daemons keep their order, so no late one can release a lock that was taken after the
//! answer.

use crate::shared::reply::PartAnswer;
use shm::host::HostSegment;
use shm::host::releases::{Due, ReleaseIndex};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::errno::Errno;

/// Releases that were sent to shards and are not answered.
#[derive(Default)]
pub(crate) struct LockReleases {
    in_flight: Mutex<BTreeSet<ReleaseIndex>>,
}

impl LockReleases {
    fn in_flight(&self) -> MutexGuard<'_, BTreeSet<ReleaseIndex>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists releases that are not in flight, which the caller must send. `is_gone` tells whether a
    /// thread is dead. Also true if any release is pending.
    pub(crate) fn take_due(
        &self,
        host: &HostSegment,
        is_gone: &dyn Fn(u32) -> bool,
    ) -> (Vec<Due>, bool) {
        let mut all = Vec::new();
        host.release_list(is_gone, &mut |due| all.push(due));
        let any = !all.is_empty();
        all.retain(|due| self.in_flight().insert(due.entry));
        (all, any)
    }

    /// A shard has answered, or the request is lost.
    pub(crate) fn release_answered(
        &self,
        host: &HostSegment,
        entry: ReleaseIndex,
        answer: PartAnswer,
    ) {
        // Done, also if the file does not exist. After any other error the lock may still exist.
        if let PartAnswer::Ended(Ok(()) | Err(Errno::ESTALE | Errno::EINVAL)) = answer {
            host.release_answered(entry);
        }
        self.in_flight().remove(&entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::Segment;
    use shm::host::HOST_BYTES;
    use wire::Inode;

    #[test]
    fn a_failed_release_is_sent_again() {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        let host = HostSegment::new(segment).expect("a segment");
        let releases = LockReleases::default();
        let listed = || {
            let mut entries = Vec::new();
            host.release_list(&|_| true, &mut |due| entries.push(due.entry));
            entries
        };
        for outcome in [Ok(()), Err(Errno::ESTALE), Err(Errno::EINVAL)] {
            assert!(host.release_leave(Inode(5), 7));
            let entry = listed()[0];
            for answer in [PartAnswer::Again(1), PartAnswer::Ended(Err(Errno::EIO))] {
                assert!(releases.in_flight().insert(entry));
                releases.release_answered(&host, entry, answer);
                assert_eq!(listed(), [entry], "it is repeated");
                assert!(releases.in_flight().is_empty());
            }
            releases.release_answered(&host, entry, PartAnswer::Ended(outcome));
            assert!(listed().is_empty());
        }
    }
}
