//! Reports unreported sizes of this host when a target runs out of space.
//!
//! A program that overwrites a file in place reports that when it closes the file. Until then its
//! shard considers the file clean, although all its extents may differ from the backing store. So
//! before a service declares that writeback frees no more space, the home daemon of each host
//! reports all unreported sizes. That includes growing files, which does no harm, and only their
//! shards can distinguish them.
//!
//! Elsewhere: sizes of killed processes (`reaper`), and sizes that a shard queries (`sizes`).

use shm::host::HostSegment;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::Inode;

/// Minimum interval between reports: a file that is being written is unreported again at once, and
/// one report suffices to tell its shard that it is dirty.
const PAUSE: Duration = Duration::from_secs(1);

/// State of the reports.
#[derive(Default)]
pub(crate) struct UnreportedSizes(Mutex<Reporting>);

#[derive(Default)]
struct Reporting {
    /// Start of the last report.
    at: Option<Instant>,
    /// Each request that is neither answered nor lost holds one clone.
    pending: Arc<()>,
}

/// Sizes to be reported.
pub(crate) struct DueReports {
    /// Files and their unreported sizes, each with a token that the request holds until it is
    /// answered or lost.
    pub(crate) files: Vec<(Inode, u64, Arc<()>)>,
    /// There are unreported sizes, or reports in flight: services may soon know of more dirty files.
    pub(crate) comes: bool,
}

impl UnreportedSizes {
    /// Unreported sizes of this host that must be reported now: all, or none if reports are in
    /// flight or were sent a moment ago.
    pub(crate) fn take_due(&self, host: &HostSegment) -> DueReports {
        let mut files = Vec::new();
        host.vnode_list(&mut |_, vnode| {
            let (inode, size) = (Inode(vnode.inode.load(SeqCst)), vnode.dirty_end.load(SeqCst));
            if size != 0 && !inode.is_none() {
                files.push((inode, size));
            }
        });
        let mut reporting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_under_way = Arc::strong_count(&reporting.pending) > 1;
        let comes = is_under_way || !files.is_empty();
        let is_due = reporting.at.is_none_or(|at| at.elapsed() >= PAUSE);
        if files.is_empty() || is_under_way || !is_due {
            return DueReports { files: Vec::new(), comes };
        }
        reporting.at = Some(Instant::now());
        let with_token = |(inode, size)| (inode, size, Arc::clone(&reporting.pending));
        DueReports { files: files.into_iter().map(with_token).collect(), comes }
    }
}
