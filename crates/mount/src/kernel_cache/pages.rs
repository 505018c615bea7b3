//! Cached pages of the kernel: dropping them, and knowing that they are gone.
//!
//! The open inode has a mark that a kernel may have pages of the file
//! (`client::Client::note_page_fill`), set before the kernel gets the first page. A program that
//! changes bytes checks the mark and has the pages dropped. So the mark is cleared only if no page
//! was filled since the kernel was told to drop them. It stays until the kernel has dropped them,
//! so that a change in the meantime has them dropped again.
//!
//! The kernel believes that a read ends at the end of the file only if it received no notification
//! about the file since the read began. So a drop that a read causes is sent after its reply
//! (`watches::ReplyTracker`).
//!
//! To drop a page the kernel locks it, and a page that is being read or written stays locked until
//! the reply. So a thread of its own drops pages (`serve::notices`), never a thread that serves requests.
//!
//! After a direct write the page cache may contain the old bytes: a read between the kernel's own
//! invalidation and the write can have filled them in. So they are dropped after such a write,
//! before its reply. The thread that serves it waits for that only a moment, and then leaves the reply
//! to the thread of waits (`DeferredReply`): a busy machine may not run the dropping thread for long.
//!
//! After a write through pages they can be there, too, if others write to the file: the kernel copies
//! the bytes into a page and sends them; the page is dropped for a write of others, and another
//! thread reads it again, or writes all of it, before the bytes arrive. A page that was not brought so
//! since the last drop cannot be such a page, nor can one that only the writing thread brought: its
//! earlier calls precede its write. Any other is dropped before the reply. It is not locked by the
//! write: the kernel keeps a page locked until the reply only if it was neither read nor written as a
//! whole.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::Inode;
use wire::errno::Result;

/// Number of slots, which files share.
const SLOTS: usize = 1024;

const PAGE_BYTES: u64 = 4096;

/// How long a thread that serves requests waits for a page drop. The pages are locked by requests that
/// other threads serve, unless all of those also wait here.
const DROP_TIMEOUT: Duration = Duration::from_millis(3);

/// Reads and writes through pages of the files of a slot.
#[derive(Default)]
struct FillSlot {
    count: u64,
    brought: Option<BroughtPages>,
}

/// Pages that were read, or written as a whole, since the kernel last dropped all of them.
#[derive(Clone, Copy)]
struct BroughtPages {
    inode: Inode,
    /// First byte, and the byte after the last one.
    start: u64,
    end: u64,
    /// The thread that brought them; 0: several, or unknown.
    by: u32,
}

/// Counts fills of cached pages.
pub(crate) struct PageFills {
    slots: Box<[Mutex<FillSlot>]>,
}

/// Page drops that the dropping thread has to do.
#[derive(Default)]
pub(crate) struct PageDrops {
    drops: Mutex<OutstandingDrops>,
    done: Condvar,
    /// Number of replies that another thread sends.
    deferred: AtomicUsize,
}

/// A reply that follows a drop, and is sent by the thread of waits.
pub(crate) struct DeferredReply {
    page_drops: Arc<PageDrops>,
    number: u64,
}

#[derive(Default)]
struct OutstandingDrops {
    /// Number of the last drop that was requested.
    last: u64,
    /// Those that are not done, by number.
    numbers: BTreeSet<u64>,
}

/// A range of a file; length 0 means up to the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageRange {
    pub(crate) inode: Inode,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PageFills {
    pub(crate) fn new() -> PageFills {
        PageFills { slots: (0..SLOTS).map(|_| Mutex::default()).collect() }
    }

    fn slot(&self, inode: Inode) -> Option<MutexGuard<'_, FillSlot>> {
        self.slots.get(wire::hash::mix(inode.0, 7) as usize % SLOTS).map(guard)
    }

    /// Number of fills so far.
    pub(crate) fn count(&self, inode: Inode) -> Option<u64> {
        self.slot(inode).map(|slot| slot.count)
    }

    /// Called before bytes are read into pages by a thread; `note` records it in the open inode.
    pub(crate) fn begin_read(
        &self,
        range: PageRange,
        thread: u32,
        note: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.begin(range, Some(thread), note)
    }

    /// Called before bytes of a thread are written from pages.
    pub(crate) fn begin_write(
        &self,
        range: PageRange,
        thread: u32,
        note: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.begin(range, (range.length >= PAGE_BYTES).then_some(thread), note)
    }

    /// `by`: the thread that brings the pages, if it does.
    fn begin(
        &self,
        range: PageRange,
        by: Option<u32>,
        note: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut slot = self.slot(range.inode);
        if let Some(slot) = slot.as_deref_mut() {
            slot.count += 1;
            if let Some(thread) = by {
                slot.bring(BroughtPages::of(range, thread));
            }
        }
        note()
    }

    /// The kernel dropped all pages of a file. If none was filled since the number of fills was
    /// `before`, they are gone: calls `forget`.
    pub(crate) fn note_dropped(&self, inode: Inode, before: Option<u64>, forget: impl FnOnce()) {
        let mut slot = self.slot(inode);
        if let Some(slot) = slot.as_deref_mut()
            && Some(slot.count) == before
        {
            slot.brought = slot.brought.filter(|known| known.inode != inode);
            forget();
        }
    }

    /// True if pages of this range may have been brought before a write of it arrived, that a thread
    /// had made before.
    pub(crate) fn may_be_older(&self, range: PageRange, thread: u32) -> bool {
        self.slot(range.inode).is_none_or(|slot| {
            let new = BroughtPages::of(range, thread);
            slot.brought.is_some_and(|known| {
                let is_same = known.inode == new.inode;
                let is_apart = is_same && (known.end <= new.start || new.end <= known.start);
                !(is_apart || is_same && known.by != 0 && known.by == new.by)
            })
        })
    }
}

impl FillSlot {
    fn bring(&mut self, new: BroughtPages) {
        self.brought = Some(self.brought.map_or(new, |known| known.with(new)));
    }
}

impl BroughtPages {
    /// Whole pages.
    fn of(range: PageRange, by: u32) -> BroughtPages {
        let PageRange { inode, offset, length } = range;
        let start = offset & !(PAGE_BYTES - 1);
        let end = offset.saturating_add(length).div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
        BroughtPages { inode, start, end, by }
    }

    /// Both. Those of two files, which share a slot, count as all pages of either.
    fn with(self, new: BroughtPages) -> BroughtPages {
        if self.inode != new.inode {
            return BroughtPages { start: 0, end: u64::MAX, by: 0, ..self };
        }
        let by = if self.by == new.by { self.by } else { 0 };
        let (start, end) = (self.start.min(new.start), self.end.max(new.end));
        BroughtPages { inode: self.inode, start, end, by }
    }
}

impl PageDrops {
    /// Records a request; returns its number.
    pub(crate) fn ask(&self) -> u64 {
        let mut drops = guard(&self.drops);
        drops.last += 1;
        let number = drops.last;
        drops.numbers.insert(number);
        number
    }

    /// Records that a drop is done. True if the thread of waits may have to be woken.
    pub(crate) fn note_done(&self, number: u64) -> bool {
        guard(&self.drops).numbers.remove(&number);
        self.done.notify_all();
        self.deferred.load(SeqCst) != 0
    }

    /// Waits until a drop is done, at most for `DROP_TIMEOUT`. True if it is done.
    pub(crate) fn wait(&self, number: u64) -> bool {
        let until = Instant::now() + DROP_TIMEOUT;
        let mut drops = guard(&self.drops);
        while drops.numbers.contains(&number) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.done.wait_timeout(drops, left);
            drops = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl DeferredReply {
    pub(crate) fn new(page_drops: &Arc<PageDrops>, number: u64) -> DeferredReply {
        page_drops.deferred.fetch_add(1, SeqCst);
        DeferredReply { page_drops: Arc::clone(page_drops), number }
    }

    /// True if the drop is done.
    pub(crate) fn is_due(&self) -> bool {
        !guard(&self.page_drops.drops).numbers.contains(&self.number)
    }
}

impl Drop for DeferredReply {
    fn drop(&mut self) {
        self.page_drops.deferred.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_page_drop_is_bounded() {
        let page_drops = Arc::new(PageDrops::default());
        assert_eq!([(); 2].map(|()| page_drops.ask()), [1, 2]);
        std::thread::scope(|scope| {
            scope.spawn(|| page_drops.note_done(2));
            while !page_drops.wait(2) {}
            let begun = Instant::now();
            assert!(!page_drops.wait(1), "the first one is missing");
            assert!(begun.elapsed() >= DROP_TIMEOUT);
        });
        let deferred = DeferredReply::new(&page_drops, 1);
        assert!(!deferred.is_due());
        assert!(page_drops.note_done(1), "a reply waits for it");
        assert!(page_drops.wait(1) && deferred.is_due());
        drop(deferred);
        let next = page_drops.ask();
        assert!(!page_drops.note_done(next), "no reply waits");
    }

    #[test]
    fn only_pages_that_others_brought_since_the_last_drop_may_be_older_than_a_write() {
        let fills = PageFills::new();
        let (one, other) = (Inode(7), Inode(8));
        let range = |inode, offset, length| PageRange { inode, offset, length };
        let read = |range, thread| fills.begin_read(range, thread, || Ok(())).expect("noted");
        let written = range(one, 4090, 10);
        let may_be_older = |thread| fills.may_be_older(written, thread);
        assert!(!may_be_older(1), "nothing was read");
        read(range(one, 8192, 4096), 2);
        read(range(other, 0, 4096), 2);
        assert!(!may_be_older(1), "other pages");
        read(range(one, 4096, 1), 1);
        assert!(may_be_older(1), "between both, so it may have been read by the other thread");
        let mut is_forgotten = false;
        fills.note_dropped(one, fills.count(one), || is_forgotten = true);
        assert!(is_forgotten && !may_be_older(1), "dropped since");
        read(range(one, 0, 4096), 1);
        assert!(!may_be_older(1) && may_be_older(2), "its own read precedes its write");
        let before = fills.count(one);
        fills.begin_write(written, 3, || Ok(())).expect("noted");
        fills.note_dropped(one, before, || panic!("pages were filled meanwhile"));
        assert!(may_be_older(2));
        fills.note_dropped(one, fills.count(one), || {});
        fills.begin_write(written, 3, || Ok(())).expect("noted");
        assert!(!may_be_older(1), "a part of a page");
        fills.begin_write(range(one, 0, 8192), 3, || Ok(())).expect("noted");
        assert!(may_be_older(1) && !may_be_older(3), "whole pages");
        read(range(one, 0, 4096), 0);
        assert!(may_be_older(0), "unknown threads");
    }
}
