//! How long an open file is, as its host knows it, and how often it was cut.
//!
//! Who learns a size from the shard, or notes what he wrote, may be stopped at any moment in between;
//! somebody cuts the file meanwhile. So one word holds both: bits 48..63 count beginnings and ends of
//! cuts, 0..47 the size. What was begun before a cut finds another count and notes nothing.
//!
//! Invariants
//! 1. The size may be too small, and saturates at 256 TiB: who needs more asks the shard. It is never
//!    what was before a cut.
//! 2. Of a shard on this host only its worker counts, and cuts at the targets while the count is odd.
//!    Who finds it odd asks the shard, which answers once it is even, and begins anew.
//! 3. Of a shard on another host, who cuts counts two before he asks for it, and two afterwards. If the
//!    file is of the mode `posix` the first daemon of the host counts instead, as the worker would
//!    (`daemon::sizes`), whoever cuts.
//! 4. Counted first, `dirty_end` cleared then: who noted before is before the cut, with all he wrote.
//! 5. `cut_to` holds the count at which the last cut began, and its size, before `sizes` has them.

use super::{HostSegment, Vnode};
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use wire::Inode;

/// Bits of a word for the size.
const SIZE_BITS: u32 = 48;
const SIZE: u64 = (1 << SIZE_BITS) - 1;
const ONE: u64 = 1 << SIZE_BITS;

/// How often a file was cut, modulo 2^16 and in the place that it has in the word: beginnings and ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cuts(u64);

impl Cuts {
    const fn of(word: u64) -> Cuts {
        Cuts(word & !SIZE)
    }

    /// What `number` said.
    #[must_use]
    pub const fn from_number(number: u64) -> Cuts {
        Cuts(number << SIZE_BITS)
    }

    /// Its number, for a message.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 >> SIZE_BITS
    }

    /// True while the targets cut.
    #[must_use]
    #[inline]
    pub const fn is_under_way(self) -> bool {
        self.0 & ONE != 0
    }

    /// Before the cut that is under way, if one is.
    #[must_use]
    pub const fn before(self) -> Cuts {
        Cuts(self.0 & !ONE)
    }

    /// After the cut that is under way, if one is.
    #[must_use]
    pub const fn after(self) -> Cuts {
        if self.is_under_way() { self.next() } else { self }
    }

    const fn next(self) -> Cuts {
        Cuts(self.0.wrapping_add(ONE))
    }
}

/// The file was cut since: nothing is noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut;

/// The words of a file at one moment.
///
/// A size that is seen here was noted as dirty before, so if it is not dirty now, the shard knows it,
/// and an answer that comes later holds it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    sizes: u64,
    dirty_end: u64,
}

impl Seen {
    /// The size with what is told afterwards.
    #[must_use]
    #[inline]
    pub fn size_with(&self, told: u64) -> u64 {
        told.max(self.dirty_end)
    }
}

impl Vnode {
    /// How often it was cut.
    #[must_use]
    #[inline]
    pub fn cuts(&self) -> Cuts {
        Cuts::of(self.sizes.load(SeqCst))
    }

    /// The size as this host knows it.
    #[must_use]
    #[inline]
    pub fn size(&self) -> u64 {
        (self.sizes.load(SeqCst) & SIZE).max(self.dirty_end.load(SeqCst))
    }

    /// The words now, before the shard is asked.
    #[must_use]
    #[inline]
    pub fn seen(&self) -> Seen {
        let sizes = self.sizes.load(SeqCst);
        Seen { sizes, dirty_end: self.dirty_end.load(SeqCst) }
    }

    /// Takes over what the shard said since, unless somebody on this host changed it meanwhile.
    #[inline]
    pub fn learn(&self, seen: &Seen, size: u64) {
        let (known, size) = (seen.sizes & SIZE, size.min(SIZE));
        if known != size && (seen.dirty_end == 0 || size > known) {
            let learned = seen.sizes & !SIZE | size;
            let _ = self.sizes.compare_exchange(seen.sizes, learned, SeqCst, SeqCst);
        }
    }

    /// It is at least `end` long, by what was begun when `cuts` was the count. Returns the size before,
    /// if that was less.
    ///
    /// # Errors
    /// `Cut`.
    #[inline]
    pub fn raise(&self, cuts: Cuts, end: u64) -> Result<Option<u64>, Cut> {
        let end = end.min(SIZE);
        let mut word = self.sizes.load(SeqCst);
        loop {
            let size = word ^ cuts.0;
            if size > SIZE {
                return Err(Cut);
            }
            if size >= end {
                return Ok(None);
            }
            match self.sizes.compare_exchange(word, cuts.0 | end, SeqCst, SeqCst) {
                Ok(_) => return Ok(Some(size)),
                Err(now) => word = now,
            }
        }
    }

    /// Notes that everything before `end` may have been written, as `raise`.
    ///
    /// # Errors
    /// `Cut`: what was written may be cut off, so write it anew.
    #[inline]
    pub fn note_written(&self, cuts: Cuts, end: u64) -> Result<Option<u64>, Cut> {
        if self.dirty_end.load(SeqCst) < end {
            if self.cuts() != cuts {
                return Err(Cut);
            }
            self.dirty_end.fetch_max(end, SeqCst);
        }
        self.raise(cuts, end)
    }

    /// Where the file was cut since `cuts` was the count; `None` if not once.
    #[must_use]
    pub fn cut_once_since(&self, cuts: Cuts) -> Option<u64> {
        let last = self.cut_to.load(SeqCst);
        (Cuts::of(last) == cuts.next()).then_some(last & SIZE)
    }

    /// A shard of another host is about to be asked to cut it. Returns what was untold, which the new
    /// size makes obsolete.
    pub fn cut_far(&self) -> u64 {
        self.sizes.fetch_add(2 * ONE, SeqCst);
        self.dirty_end.swap(0, SeqCst)
    }

    /// The shard of another host cut it.
    pub fn is_cut_far(&self, size: u64) {
        change(&self.sizes, |word| (word & !SIZE).wrapping_add(2 * ONE) | size.min(SIZE));
    }

    /// A shard of another host is about to be asked to cut it, by the daemon of this one.
    fn begin_far_cut(&self) {
        self.sizes.fetch_or(ONE, SeqCst);
    }

    /// The shard of another host cut it, since the count is odd. Of several such cuts the shortest is
    /// noted.
    fn far_cut_to(&self, size: u64) {
        let size = size.min(SIZE);
        let (count, last) = (self.sizes.load(SeqCst) & !SIZE, self.cut_to.load(SeqCst));
        let is_first = last & !SIZE != count;
        let shortest = if is_first { size } else { size.min(last & SIZE) };
        self.cut_to.store(count | shortest, SeqCst);
        change(&self.sizes, |word| word & !SIZE | size);
    }

    /// Nobody cuts it any more, at a shard of another host. `is_cut`: what is noted as untold was begun
    /// before.
    fn end_far_cut(&self, is_cut: bool) {
        if self.cuts().is_under_way() {
            if is_cut {
                self.dirty_end.store(0, SeqCst);
            } else {
                // What was begun before is as good as it was.
                self.cut_to.store(self.sizes.load(SeqCst) | SIZE, SeqCst);
            }
            change(&self.sizes, |word| if word & ONE == 0 { word } else { word.wrapping_add(ONE) });
        }
    }

    /// The worker's targets are about to cut it.
    fn begin_cut(&self, size: u64) {
        let size = size.min(SIZE);
        // A worker that was killed may have begun before.
        let begun = |word: u64| (word & !SIZE).wrapping_add(ONE) | ONE;
        self.cut_to.store(begun(self.sizes.load(SeqCst)) | size, SeqCst);
        change(&self.sizes, |word| begun(word) | size);
        self.dirty_end.store(0, SeqCst);
    }

    /// The worker's targets have cut it.
    fn end_cut(&self) {
        // Noted by who began before the cut, and writes it anew.
        self.dirty_end.store(0, SeqCst);
        change(&self.sizes, |word| (word | ONE).wrapping_add(ONE));
    }
}

fn change(word: &AtomicU64, to: impl Fn(u64) -> u64) {
    let _ = word.fetch_update(SeqCst, SeqCst, |word| Some(to(word)));
}

impl HostSegment {
    /// End of what was written to a file on this host and not told to its shard; 0: nothing.
    #[must_use]
    pub fn untold(&self, inode: Inode) -> u64 {
        self.rows_of(inode).map(|vnode| vnode.dirty_end.load(SeqCst)).max().unwrap_or(0)
    }

    /// For the shard, once it shows a file to be `end` long: that is told, unless more was written.
    pub fn note_told(&self, inode: Inode, end: u64) {
        for vnode in self.rows_of(inode) {
            let _ = vnode.dirty_end.compare_exchange(end, 0, SeqCst, SeqCst);
        }
    }

    /// How often a file was cut; `None` if no row of this host can tell.
    #[must_use]
    pub fn cuts(&self, inode: Inode) -> Option<Cuts> {
        let mut rows = self.rows_of(inode);
        let cuts = rows.next()?.cuts();
        rows.next().is_none().then_some(cuts)
    }

    /// For the shard, once log and index have the new size and before the targets cut.
    pub fn begin_cut(&self, inode: Inode, size: u64) {
        self.rows_of(inode).for_each(|vnode| vnode.begin_cut(size));
    }

    /// For the daemon that passes a request on, before it does: the file is about to be cut at a shard of
    /// another host.
    pub fn begin_far_cut(&self, inode: Inode) {
        self.rows_of(inode).for_each(Vnode::begin_far_cut);
    }

    /// For the daemon that passes the answer on: the file was cut.
    pub fn far_cut_to(&self, inode: Inode, size: u64) {
        self.rows_of(inode).for_each(|vnode| vnode.far_cut_to(size));
    }

    /// For that daemon, once nobody cuts the file any more. `is_cut`: somebody did.
    pub fn end_far_cut(&self, inode: Inode, is_cut: bool) {
        self.rows_of(inode).for_each(|vnode| vnode.end_far_cut(is_cut));
    }

    /// For the shard, once the targets have cut and before anybody is answered.
    pub fn end_cut(&self, inode: Inode) {
        self.rows_of(inode).for_each(Vnode::end_cut);
    }
}
