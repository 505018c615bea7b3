//! Versions of files of which the kernel may have cached pages: change time, and a counter of opens
//! for writing. If the file has another version, cached pages are stale. While such a file is open,
//! a writer makes the kernel drop its pages (`pages`); between its close and the next open this
//! table decides. The change time alone would not suffice, because another host reports it late.

use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::Inode;

/// Number of files in the table; for others cached pages count as stale.
const SLOTS: usize = 16_384;

const STRIPE: usize = 64;

/// Inode, change time, counter of opens for writing, and state of the cached pages.
type PageVersion = (Inode, i64, u64, CachedPages);

/// State of the cached pages of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CachedPages {
    /// They may be of an older version.
    Stale,
    /// They are current and were read.
    Read,
    /// They are current and were written through this mount, perhaps without being read since.
    Written,
}

/// The table.
pub(crate) struct PageVersions {
    slots: Vec<Mutex<[PageVersion; STRIPE]>>,
}

impl PageVersions {
    pub(crate) fn new() -> PageVersions {
        let stripe = || Mutex::new([(Inode::NONE, 0, 0, CachedPages::Stale); STRIPE]);
        PageVersions { slots: (0..SLOTS / STRIPE).map(|_| stripe()).collect() }
    }

    fn stripe(&self, inode: Inode) -> Option<(MutexGuard<'_, [PageVersion; STRIPE]>, usize)> {
        let place = wire::hash::mix(inode.0, 5) as usize % SLOTS;
        let stripe = self.slots.get(place / STRIPE)?;
        Some((stripe.lock().unwrap_or_else(PoisonError::into_inner), place % STRIPE))
    }

    /// State of the cached pages of a file whose change time is `changed`; from now on they count
    /// as read. `writers`: the counter of opens for writing before this open, and now.
    pub(crate) fn cached_pages(
        &self,
        inode: Inode,
        changed: i64,
        writers: (u64, u64),
    ) -> CachedPages {
        let Some((mut stripe, place)) = self.stripe(inode) else { return CachedPages::Stale };
        let Some(slot) = stripe.get_mut(place) else { return CachedPages::Stale };
        let new = (inode, changed, writers.1, CachedPages::Read);
        let (known, at, writers_then, cached_pages) = core::mem::replace(slot, new);
        if (known, at, writers_then) == (inode, changed, writers.0) {
            cached_pages
        } else {
            CachedPages::Stale
        }
    }

    /// A file was closed that only this kernel wrote.
    pub(crate) fn wrote(&self, inode: Inode, changed: i64) {
        if let Some((mut stripe, place)) = self.stripe(inode)
            && let Some(slot) = stripe.get_mut(place)
            && slot.0 == inode
            && slot.1 != changed
        {
            (slot.1, slot.3) = (changed, CachedPages::Written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_pages_are_current_until_the_file_changes() {
        let page_versions = PageVersions::new();
        let cached_pages =
            |inode, changed, writers| page_versions.cached_pages(Inode(inode), changed, writers);
        use CachedPages::{Read, Stale, Written};
        let requested = [(7, 1), (7, 1), (7, 2), (7, 2), (8, 2), (7, 2), (7, 1)];
        let seen = requested.map(|(inode, changed)| cached_pages(inode, changed, (5, 5)));
        assert_eq!(seen, [Stale, Read, Stale, Read, Stale, Read, Stale]);
        // Opens for writing by this mount, by others, and with an unknown counter.
        let requested = [(5, 6), (6, 6), (7, 7), (7, 7), (u64::MAX, u64::MAX), (7, 7)];
        let seen = requested.map(|writers| cached_pages(7, 1, writers));
        assert_eq!(seen, [Read, Read, Stale, Read, Stale, Stale]);
        page_versions.wrote(Inode(7), 3);
        let seen = [2, 3, 3].map(|changed| cached_pages(7, changed, (7, 7)));
        assert_eq!(seen, [Stale, Stale, Read], "it is another file since it was asked about");
        page_versions.wrote(Inode(7), 4);
        let seen = [4, 4].map(|changed| cached_pages(7, changed, (7, 7)));
        assert_eq!(seen, [Written, Read]);
        page_versions.wrote(Inode(7), 4);
        assert_eq!(cached_pages(7, 4, (7, 7)), Read, "nothing was written");
        page_versions.wrote(Inode(9), 4);
        assert_eq!(cached_pages(9, 4, (0, 0)), Stale, "it was not let keep any");
    }
}
