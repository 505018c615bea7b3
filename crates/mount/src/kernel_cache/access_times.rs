//! Access times: the kernel leaves them to the file system that serves the reads.
//!
//! The index of this host is checked for each read, which costs little compared with the request. A
//! file that is not in it, because its shard is on another host, is queried at intervals.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::Inode;

/// Number of files of which the last query is remembered.
const SLOTS: usize = 256;

/// Minimum interval between two queries of a file.
const PAUSE: Duration = Duration::from_secs(1);

/// Files that were queried recently.
#[derive(Default)]
pub(crate) struct AccessTimes {
    slots: Mutex<Vec<(Inode, Instant)>>,
}

impl AccessTimes {
    /// True if a file may be queried now; notes the query.
    pub(crate) fn may_query(&self, inode: Inode) -> bool {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if slots.is_empty() {
            let long_ago = now.checked_sub(PAUSE).unwrap_or(now);
            slots.resize(SLOTS, (Inode::NONE, long_ago));
        }
        let Some(slot) = slots.get_mut(inode.0 as usize % SLOTS) else { return false };
        if slot.0 == inode && now.duration_since(slot.1) < PAUSE {
            return false;
        }
        *slot = (inode, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_queried_at_most_once_per_interval() {
        let access_times = AccessTimes::default();
        assert!(access_times.may_query(Inode(7)));
        assert!(!access_times.may_query(Inode(7)));
        assert!(access_times.may_query(Inode(8)));
        assert!(access_times.may_query(Inode(7 + SLOTS as u64)), "it takes the place of another");
        assert!(access_times.may_query(Inode(7)));
    }
}
