//! Files that lost their last name and are kept for a moment: the kernel behind a mount looks a name up
//! and opens what it found by another request, and a local file system would still have it in between.
//!
//! What `rename` replaces is kept where a mount of this host watches it, or one of another host looked at
//! it (`far_mounts`): its name leads to a file at every moment. What is removed is not: who comes too
//! late is told so (`ESTALE`), and his kernel looks the name up once more.
//!
//! Space and quotas are there for who needs them: then nothing is kept (`give_kept`).

use std::collections::BTreeMap;

use wire::Inode;
use wire::watch::Watch;

use crate::live::Ask;
use crate::service::Service;

/// How long.
const KEPT_NANOS: i64 = 1_000_000_000;
/// It was kept long enough.
const OVER: i64 = i64::MIN;

/// Until when each is kept, or `OVER`.
#[derive(Default)]
pub(crate) struct Kept(BTreeMap<Inode, i64>);

impl Kept {
    /// A file is gone.
    pub(crate) fn forget(&mut self, inode: Inode) {
        if !self.0.is_empty() {
            self.0.remove(&inode);
        }
    }
}

impl Service {
    /// A file is about to be replaced: it is kept if a mount may be about to open it.
    pub(crate) fn keep_for_mounts(&mut self, ask: &Ask<'_>, inode: Inode) {
        let mut is_watched = self.is_looked_at(inode);
        if ask.hands.has_mounts() && self.state.inodes.get(inode).is_some() {
            ask.hands.watchers(Watch::Attributes(inode), &mut |_, _| is_watched = true);
        }
        if is_watched {
            self.keep(inode);
        }
    }

    /// It is replaced now; that was about to happen since a while ago.
    pub(crate) fn keep_on(&mut self, inode: Inode) {
        if self.live.kept.0.contains_key(&inode) || self.is_looked_at(inode) {
            self.keep(inode);
        }
    }

    fn keep(&mut self, inode: Inode) {
        self.live.kept.0.insert(inode, self.live.steady.saturating_add(KEPT_NANOS));
        self.live.wake_at(self.live.now.saturating_add(KEPT_NANOS));
    }

    /// True if a file without a name is still kept.
    pub(crate) fn is_kept(&self, inode: Inode) -> bool {
        self.live.kept.0.get(&inode).is_some_and(|&until| until > self.live.steady)
    }

    /// Who needs their space gets it: all that are kept go, unless somebody has them open.
    pub(crate) fn give_kept(&mut self) {
        let (orphans, steady) = (&self.state.orphans, self.live.steady);
        let kept = self.live.kept.0.iter_mut().filter(|(inode, _)| orphans.contains(inode));
        kept.for_each(|(_, until)| *until = (*until).min(steady));
        self.end_kept();
    }

    /// True if files may be about to go that are removed for who asks.
    #[must_use]
    pub fn is_freeing(&self) -> bool {
        // A participant learns of the decision after the client.
        !self.live.unlinked.is_empty() || !self.state.prepared.is_empty()
    }

    /// What time brings: files that were kept long enough go, unless somebody has them open.
    pub(crate) fn end_kept(&mut self) {
        let steady = self.live.steady;
        let (orphans, unlinked) = (&self.state.orphans, &mut self.live.unlinked);
        let mut next = i64::MAX;
        self.live.kept.0.retain(|inode, until| {
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
            self.live.wake_at(self.live.now.saturating_add(next.saturating_sub(steady)));
        }
    }
}
