//! The size of an open file as its host knows it, and its truncate epoch.
//!
//! A process that learns a size from the shard, or notes a write, may be stopped at any moment in
//! between, and the file may be truncated meanwhile. So one word holds both: bits 48..63 count the
//! beginnings and ends of truncations (the epoch), 0..47 the size. An operation that began before a
//! truncation finds another epoch and notes nothing.
//!
//! Invariants
//! 1. The size may be too small, and saturates at 256 TiB: a caller that needs more asks the shard.
//!    It is never a size from before a truncation.
//! 2. For a shard on this host only its worker counts, and truncates at the targets while the epoch
//!    is odd. A caller that finds it odd asks the shard, which answers once it is even, and starts
//!    over.
//! 3. For a shard on another host, the truncating process adds two before it sends the request, and
//!    two afterwards. If the file has the mode `posix` the first daemon of the host counts instead,
//!    as the worker would (`daemon::sizes`), whichever process truncates.
//! 4. The epoch is counted first, `dirty_end` cleared then: a write noted before is ordered before
//!    the truncation. A process that asks another host to truncate clears only what is reported: it
//!    may be killed before it asks.
//! 5. `truncated_to` holds the epoch at which the last truncation began, and its size, before
//!    `sizes` has them.

use super::{HostSegment, Vnode};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use wire::Inode;

/// Bits of a word for the size.
const SIZE_BITS: u32 = 48;
const SIZE: u64 = (1 << SIZE_BITS) - 1;
const ONE: u64 = 1 << SIZE_BITS;

/// The truncate epoch: beginnings and ends of truncations, modulo 2^16, in the bits that it has in
/// the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TruncateEpoch(u64);

impl TruncateEpoch {
    const fn of(word: u64) -> TruncateEpoch {
        TruncateEpoch(word & !SIZE)
    }

    /// The epoch with this number.
    #[must_use]
    pub const fn from_number(number: u64) -> TruncateEpoch {
        TruncateEpoch(number << SIZE_BITS)
    }

    /// Its number, for a message.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 >> SIZE_BITS
    }

    /// True while the targets truncate.
    #[must_use]
    #[inline]
    pub const fn is_under_way(self) -> bool {
        self.0 & ONE != 0
    }

    /// The epoch before the truncation that is under way, if one is.
    #[must_use]
    pub const fn before(self) -> TruncateEpoch {
        TruncateEpoch(self.0 & !ONE)
    }

    /// The epoch after the truncation that is under way, if one is.
    #[must_use]
    pub const fn after(self) -> TruncateEpoch {
        if self.is_under_way() { self.next() } else { self }
    }

    const fn next(self) -> TruncateEpoch {
        TruncateEpoch(self.0.wrapping_add(ONE))
    }
}

/// The file was truncated since: nothing is noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Truncated;

/// The size words of a file at one moment.
///
/// A size that is seen here was noted as dirty before, so if it is not dirty now, the shard knows
/// it, and a later answer includes it.
#[derive(Clone, Copy, Debug)]
pub struct SizeSnapshot {
    sizes: u64,
    dirty_end: u64,
}

impl SizeSnapshot {
    /// The size, given the one that the shard reported afterwards.
    #[must_use]
    #[inline]
    pub fn size_with(&self, reported: u64) -> u64 {
        reported.max(self.dirty_end)
    }
}

impl Vnode {
    /// Its truncate epoch.
    #[must_use]
    #[inline]
    pub fn truncate_epoch(&self) -> TruncateEpoch {
        TruncateEpoch::of(self.sizes.load(SeqCst))
    }

    /// The size as this host knows it.
    #[must_use]
    #[inline]
    pub fn size(&self) -> u64 {
        (self.sizes.load(SeqCst) & SIZE).max(self.dirty_end.load(SeqCst))
    }

    /// The size words now, before the shard is asked.
    #[must_use]
    #[inline]
    pub fn size_snapshot(&self) -> SizeSnapshot {
        let sizes = self.sizes.load(SeqCst);
        SizeSnapshot { sizes, dirty_end: self.dirty_end.load(SeqCst) }
    }

    /// Takes over the size that the shard reported since, unless this host changed it meanwhile.
    #[inline]
    pub fn learn(&self, size_snapshot: &SizeSnapshot, size: u64) {
        let (known, size) = (size_snapshot.sizes & SIZE, size.min(SIZE));
        if known != size && (size_snapshot.dirty_end == 0 || size > known) {
            let learned = size_snapshot.sizes & !SIZE | size;
            let _ = self.sizes.compare_exchange(size_snapshot.sizes, learned, SeqCst, SeqCst);
        }
    }

    /// Raises the size to `end`, for an operation that began in `truncate_epoch`. Returns the
    /// previous size, if that was less.
    ///
    /// # Errors
    /// `Truncated`.
    #[inline]
    pub fn raise(&self, truncate_epoch: TruncateEpoch, end: u64) -> Result<Option<u64>, Truncated> {
        let end = end.min(SIZE);
        let mut word = self.sizes.load(SeqCst);
        loop {
            let size = word ^ truncate_epoch.0;
            if size > SIZE {
                return Err(Truncated);
            }
            if size >= end {
                return Ok(None);
            }
            match self.sizes.compare_exchange(word, truncate_epoch.0 | end, SeqCst, SeqCst) {
                Ok(_) => return Ok(Some(size)),
                Err(now) => word = now,
            }
        }
    }

    /// Notes that everything before `end` may have been written, as `raise`.
    ///
    /// # Errors
    /// `Truncated`: the bytes may be cut off, so write them again.
    #[inline]
    pub fn note_written(
        &self,
        truncate_epoch: TruncateEpoch,
        end: u64,
    ) -> Result<Option<u64>, Truncated> {
        if self.dirty_end.load(SeqCst) < end {
            if self.truncate_epoch() != truncate_epoch {
                return Err(Truncated);
            }
            self.dirty_end.fetch_max(end, SeqCst);
        }
        self.raise(truncate_epoch, end)
    }

    /// The size to which the file was truncated since `truncate_epoch`; `None` unless exactly once.
    #[must_use]
    pub fn truncated_once_since(&self, truncate_epoch: TruncateEpoch) -> Option<u64> {
        let last = self.truncated_to.load(SeqCst);
        (TruncateEpoch::of(last) == truncate_epoch.next()).then_some(last & SIZE)
    }

    /// This process is about to ask a shard of another host to truncate the file. It reports the size
    /// after this: what is unreported may be another's acknowledged write, which must not be lost if
    /// this process is killed before it asks.
    pub fn begin_own_remote_truncate(&self) {
        self.sizes.fetch_add(2 * ONE, SeqCst);
    }

    /// The shard of another host truncated it.
    pub fn end_own_remote_truncate(&self, size: u64) {
        change(&self.sizes, |word| (word & !SIZE).wrapping_add(2 * ONE) | size.min(SIZE));
    }

    /// The daemon of this host is about to ask a shard of another host to truncate it.
    fn begin_remote_truncate(&self) {
        self.sizes.fetch_or(ONE, SeqCst);
    }

    /// The shard of another host truncated it while the epoch is odd. Of several truncations the
    /// shortest is noted.
    fn remote_truncate_to(&self, size: u64) {
        let size = size.min(SIZE);
        let (count, last) = (self.sizes.load(SeqCst) & !SIZE, self.truncated_to.load(SeqCst));
        let is_first = last & !SIZE != count;
        let shortest = if is_first { size } else { size.min(last & SIZE) };
        self.truncated_to.store(count | shortest, SeqCst);
        change(&self.sizes, |word| word & !SIZE | size);
    }

    /// No truncation at a shard of another host is under way any more. `is_truncated`: the
    /// unreported size is from before.
    fn end_remote_truncate(&self, is_truncated: bool) {
        if self.truncate_epoch().is_under_way() {
            if is_truncated {
                self.dirty_end.store(0, SeqCst);
            } else {
                // An operation that began before is still valid.
                self.truncated_to.store(self.sizes.load(SeqCst) | SIZE, SeqCst);
            }
            change(&self.sizes, |word| if word & ONE == 0 { word } else { word.wrapping_add(ONE) });
        }
    }

    /// The shard is on this host again, where the file has this size. `is_truncated`: by a truncation of
    /// which this host was not told.
    fn settle(&self, size: u64, is_truncated: bool) {
        if is_truncated {
            self.begin_truncate(size);
            return self.end_truncate();
        }
        // Of one of which it was told, the end perhaps was not.
        self.end_remote_truncate(true);
        if self.size() > size.max(self.dirty_end.load(SeqCst)) {
            // It was truncated, or a size that was reported here is lost. An unreported one is to come.
            self.end_own_remote_truncate(size);
        }
    }

    /// The worker's targets are about to truncate it.
    fn begin_truncate(&self, size: u64) {
        let size = size.min(SIZE);
        // A worker that was killed may have begun before.
        let begun = |word: u64| (word & !SIZE).wrapping_add(ONE) | ONE;
        self.truncated_to.store(begun(self.sizes.load(SeqCst)) | size, SeqCst);
        change(&self.sizes, |word| begun(word) | size);
        self.dirty_end.store(0, SeqCst);
    }

    /// The worker's targets have truncated it.
    fn end_truncate(&self) {
        // Noted by writers that began before the truncation, and that write again.
        self.dirty_end.store(0, SeqCst);
        change(&self.sizes, |word| (word | ONE).wrapping_add(ONE));
    }
}

fn change(word: &AtomicU64, to: impl Fn(u64) -> u64) {
    let _ = word.fetch_update(SeqCst, SeqCst, |word| Some(to(word)));
}

impl HostSegment {
    /// End of the bytes written to a file on this host and not reported to its shard; 0: none.
    #[must_use]
    pub fn unreported(&self, inode: Inode) -> u64 {
        self.entries_of(inode).map(|vnode| vnode.dirty_end.load(SeqCst)).max().unwrap_or(0)
    }

    /// For the shard, once it shows a file to be `end` long: that is reported, unless more was
    /// written.
    pub fn note_reported(&self, inode: Inode, end: u64) {
        for vnode in self.entries_of(inode) {
            let _ = vnode.dirty_end.compare_exchange(end, 0, SeqCst, SeqCst);
        }
    }

    /// The truncate epoch of a file; `None` if no open inode of this host has it.
    #[must_use]
    pub fn truncate_epoch(&self, inode: Inode) -> Option<TruncateEpoch> {
        let mut entries = self.entries_of(inode);
        let truncate_epoch = entries.next()?.truncate_epoch();
        entries.next().is_none().then_some(truncate_epoch)
    }

    /// For the shard, once log and index have the new size and before the targets truncate.
    pub fn begin_truncate(&self, inode: Inode, size: u64) {
        self.entries_of(inode).for_each(|vnode| vnode.begin_truncate(size));
    }

    /// For the daemon that forwards a request, before it does: the file is about to be truncated at
    /// a shard of another host.
    pub fn begin_remote_truncate(&self, inode: Inode) {
        self.entries_of(inode).for_each(Vnode::begin_remote_truncate);
    }

    /// For the daemon that forwards the reply: the file was truncated.
    pub fn remote_truncate_to(&self, inode: Inode, size: u64) {
        self.entries_of(inode).for_each(|vnode| vnode.remote_truncate_to(size));
    }

    /// For that daemon, once no truncation of the file is under way. `is_truncated`: one succeeded.
    pub fn end_remote_truncate(&self, inode: Inode, is_truncated: bool) {
        self.entries_of(inode).for_each(|vnode| vnode.end_remote_truncate(is_truncated));
    }

    /// For a shard that is on this host again, after another daemon may have truncated the file: its
    /// size, and whether this host is yet to be told of a truncation.
    pub fn settle_size(&self, inode: Inode, size: u64, is_truncated: bool) {
        self.entries_of(inode).for_each(|vnode| vnode.settle(size, is_truncated));
    }

    /// For the shard, once the targets have truncated and before any reply.
    pub fn end_truncate(&self, inode: Inode) {
        self.entries_of(inode).for_each(Vnode::end_truncate);
    }
}
