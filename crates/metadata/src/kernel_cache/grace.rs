//! Grace period of files that lost their last name: a kernel behind a mount looks a name up and
//! opens the inode by another request, and on a local file system the file would still exist in
//! between.
//!
//! A file that `rename` replaces gets a grace period if a mount of this host watches it, or one of
//! another host looked at it (`remote`), because its name leads to a file at every moment. A
//! removed file gets none: an open that comes too late fails with `ESTALE`, and the kernel looks
//! the name up again.
//!
//! Files in grace are released at once when space or quota is needed (`release_grace_files`).

use std::collections::BTreeMap;

use wire::Inode;
use wire::watch::Watch;

use crate::core::context::Context;
use crate::core::job::Call;
use crate::kernel_cache::KernelCaches;

/// The grace period.
const GRACE_NANOS: i64 = 1_000_000_000;
/// The grace period is over.
const OVER: i64 = i64::MIN;

/// End of the grace period of each file, or `OVER`.
#[derive(Default)]
pub(crate) struct GraceFiles(BTreeMap<Inode, i64>);

impl GraceFiles {
    /// A file is gone.
    pub(crate) fn forget(&mut self, inode: Inode) {
        if !self.0.is_empty() {
            self.0.remove(&inode);
        }
    }

    fn begin_grace(&mut self, cx: &mut Context, inode: Inode) {
        self.0.insert(inode, cx.steady.saturating_add(GRACE_NANOS));
        cx.wake_at(cx.now.saturating_add(GRACE_NANOS));
    }

    /// True if a file without a name is in its grace period.
    pub(crate) fn is_in_grace(&self, cx: &Context, inode: Inode) -> bool {
        self.0.get(&inode).is_some_and(|&until| until > cx.steady)
    }

    /// Ends all grace periods, because space is needed; files that are open stay.
    pub(crate) fn release_grace_files(&mut self, cx: &mut Context) {
        let (orphans, steady) = (&cx.state.orphans, cx.steady);
        let files = self.0.iter_mut().filter(|(inode, _)| orphans.contains(inode));
        files.for_each(|(_, until)| *until = (*until).min(steady));
        self.tick_grace_files(cx);
    }

    /// Timer: removes files whose grace period is over, unless they are open.
    pub(crate) fn tick_grace_files(&mut self, cx: &mut Context) {
        let steady = cx.steady;
        let (orphans, unlinked) = (&cx.state.orphans, &mut cx.unlinked);
        let mut next = i64::MAX;
        self.0.retain(|inode, until| {
            let is_orphan = orphans.contains(inode);
            if *until > steady {
                next = next.min(*until);
            } else if *until != OVER && is_orphan {
                *until = OVER;
                unlinked.push(*inode);
            }
            *until > steady || is_orphan
        });
        if next != i64::MAX {
            cx.wake_at(cx.now.saturating_add(next.saturating_sub(steady)));
        }
    }
}

impl KernelCaches {
    /// A file is about to be replaced: begins its grace period if a mount may be about to open it.
    pub(crate) fn begin_grace_if_watched(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        inode: Inode,
    ) {
        let mut is_watched = self.remote.was_viewed(cx, inode);
        if call.host_view.has_mounts() && cx.state.inodes.get(inode).is_some() {
            call.host_view.watchers(Watch::Attributes(inode), &mut |_, _| is_watched = true);
        }
        if is_watched {
            self.grace.begin_grace(cx, inode);
        }
    }

    /// The file is replaced now, some time after `begin_grace_if_watched`.
    pub(crate) fn renew_grace(&mut self, cx: &mut Context, inode: Inode) {
        if self.grace.0.contains_key(&inode) || self.remote.was_viewed(cx, inode) {
            self.grace.begin_grace(cx, inode);
        }
    }
}
