//! Locks that are to end: the home daemon tells the shards of their files, and again until they have
//! answered, since a lock outlives the daemon that keeps it. What is to be told stands in the host
//! segment
//! (`shm::host`, `releases`), which this daemon's death leaves as it is; here is what is on its way.
//!
//! A row is told of by one request at a time, and cleared when that is answered. Requests between two
//! daemons keep their order, so none that is late can end a lock that was taken after the answer.

use crate::inbox::PartAnswer;
use crate::reply::ReplyTo;
use crate::shared::Shared;
use shm::host::HostSegment;
use shm::host::releases::{Due, ReleaseIndex};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::Request;
use wire::errno::Errno;

/// What shards were told and have not answered yet.
#[derive(Default)]
pub(crate) struct Releases {
    on_way: Mutex<BTreeSet<ReleaseIndex>>,
}

impl Releases {
    fn on_way(&self) -> MutexGuard<'_, BTreeSet<ReleaseIndex>> {
        self.on_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells what is not on its way. `is_gone` says of a thread whether it is dead. True if anything is
    /// to be
    /// told, or was and is not answered.
    pub(crate) fn tell(&self, shared: &Shared, is_gone: &dyn Fn(u32) -> bool) -> bool {
        let mut all = Vec::new();
        shared.host.release_list(is_gone, &mut |due| all.push(due));
        for Due { row, inode, owner } in &all {
            if self.on_way().insert(*row) {
                let header = shared.own_header(inode.shard());
                let request = Request::Release { inode: *inode, owner: *owner };
                shared.hand_in(&header, &request, ReplyTo::Release { row: *row });
            }
        }
        !all.is_empty()
    }

    /// A shard has answered, or will not.
    pub(crate) fn answered(&self, host: &HostSegment, row: ReleaseIndex, answer: PartAnswer) {
        // There may be no such file any more, or never was. Otherwise the lock may be there still.
        if let PartAnswer::Ended(Ok(()) | Err(Errno::ESTALE | Errno::EINVAL)) = answer {
            host.release_answered(row);
        }
        self.on_way().remove(&row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::Segment;
    use shm::host::HOST_BYTES;
    use wire::Inode;

    #[test]
    fn what_a_shard_could_not_do_is_told_again() {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        let host = HostSegment::new(segment).expect("a segment");
        let releases = Releases::default();
        let listed = || {
            let mut rows = Vec::new();
            host.release_list(&|_| true, &mut |due| rows.push(due.row));
            rows
        };
        for outcome in [Ok(()), Err(Errno::ESTALE), Err(Errno::EINVAL)] {
            assert!(host.release_leave(Inode(5), 7));
            let row = listed()[0];
            for answer in [PartAnswer::Again(1), PartAnswer::Ended(Err(Errno::EIO))] {
                assert!(releases.on_way().insert(row));
                releases.answered(&host, row, answer);
                assert_eq!(listed(), [row], "to be told again");
                assert!(releases.on_way().is_empty());
            }
            releases.answered(&host, row, PartAnswer::Ended(outcome));
            assert!(listed().is_empty());
        }
    }
}
