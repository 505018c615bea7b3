//! Access times: a kernel leaves them to the file system that it asks for bytes.
//!
//! What the index of this host knows is looked at for each read, which costs little beside the request. A
//! file that it does not know, as its shard is on another host, is asked about now and then.

use rustix::fs::OFlags;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::attributes::is_read_late;
use wire::{Attributes, Inode};

use crate::answer::Request;

/// Files that are remembered to have been asked about.
const ROWS: usize = 256;
/// How often one is.
const PAUSE: Duration = Duration::from_secs(1);

/// The last few files that were asked about.
#[derive(Default)]
pub(crate) struct Accesses {
    rows: Mutex<Vec<(Inode, Instant)>>,
}

impl Accesses {
    /// True if it is time to ask about a file.
    fn may_ask(&self, inode: Inode) -> bool {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if rows.is_empty() {
            let long_ago = now.checked_sub(PAUSE).unwrap_or(now);
            rows.resize(ROWS, (Inode::NONE, long_ago));
        }
        let Some(row) = rows.get_mut(inode.0 as usize % ROWS) else { return false };
        if row.0 == inode && now.duration_since(row.1) < PAUSE {
            return false;
        }
        *row = (inode, now);
        true
    }
}

impl Request<'_> {
    /// True if a read by an open file with these flags would move the access time.
    pub(crate) fn is_read_late(&self, of: &Attributes, flags: u32) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        flags & OFlags::NOATIME.bits() == 0 && is_read_late(of, now)
    }

    /// The node was read, by an open file with these flags.
    pub(crate) fn note_read(&self, flags: u32) {
        if flags & OFlags::NOATIME.bits() != 0 {
            return;
        }
        let (server, inode) = (self.server, self.node());
        // A program that reads is not told that a time could not be noted.
        let _ = server.client.note_read(inode, || server.accesses.may_ask(inode));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_asked_about_once_in_a_while() {
        let accesses = Accesses::default();
        assert!(accesses.may_ask(Inode(7)));
        assert!(!accesses.may_ask(Inode(7)));
        assert!(accesses.may_ask(Inode(8)));
        assert!(accesses.may_ask(Inode(7 + ROWS as u64)), "it takes the place of another");
        assert!(accesses.may_ask(Inode(7)));
    }
}
