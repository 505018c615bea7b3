//! Extent cache: where the extents of recently used files are, per process.
//!
//! A cached location may be stale: each copy checks the extent table under a hazard pointer
//! (`shm::extents`). The attachment that reaches the extent is cached with it and is valid until any
//! attachment changes.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, fence};
use wire::Inode;
use wire::hash::neighbourly_extent;
use wire::reply::Extent;

/// Extents cached by a process, a power of two: 4 Ki extents of up to a stripe each, in 160 KiB.
const CACHE_ENTRIES: usize = 4096;

/// How an extent of this host is reached, in one word: the generation of the attachments in the
/// upper half, then the attachment's number in 16 bits; 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AttachmentRef(u64);

impl AttachmentRef {
    const SHIFT: u32 = 16;

    pub(crate) fn new(state: u32, number: u32) -> AttachmentRef {
        AttachmentRef(u64::from(state) << 32 | u64::from(number & 0xffff) << AttachmentRef::SHIFT)
    }

    pub(crate) const fn number(self) -> u32 {
        (self.0 >> AttachmentRef::SHIFT) as u32 & 0xffff
    }

    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// One cached extent. The sequence is odd while the entry is being written.
struct CachedExtent {
    sequence: AtomicU32,
    slot: AtomicU32,
    inode: AtomicU64,
    start: AtomicU64,
    place: AtomicU64,
    /// log2 of the length and the tier, 8 bits each; then `AttachmentRef`.
    shape: AtomicU64,
}

impl CachedExtent {
    const fn new() -> CachedExtent {
        CachedExtent {
            sequence: AtomicU32::new(0),
            slot: AtomicU32::new(0),
            inode: AtomicU64::new(0),
            start: AtomicU64::new(0),
            place: AtomicU64::new(0),
            shape: AtomicU64::new(0),
        }
    }

    fn set(&self, inode: Inode, extent: &Extent, reached_by: AttachmentRef) {
        let before = self.sequence.load(Relaxed);
        let odd = before | 1;
        // Another thread writes the entry, or died in it at a fork: leave it, it is only a cache.
        let taken = self.sequence.compare_exchange(before & !1, odd, Acquire, Relaxed);
        if taken.is_err() {
            return;
        }
        fence(Release);
        self.inode.store(inode.0, Relaxed);
        self.start.store(extent.start, Relaxed);
        self.slot.store(extent.slot, Relaxed);
        self.place.store(extent.location, Relaxed);
        let shape = u64::from(extent.length_log2) | u64::from(extent.tier) << 8;
        self.shape.store(shape | reached_by.0, Relaxed);
        self.sequence.store(odd.wrapping_add(1), Release);
    }

    #[inline]
    fn get(&self, inode: Inode, start: u64) -> Option<(Extent, AttachmentRef)> {
        let before = self.sequence.load(Acquire);
        if before & 1 != 0
            || self.inode.load(Relaxed) != inode.0
            || self.start.load(Relaxed) != start
        {
            return None;
        }
        let shape = self.shape.load(Relaxed);
        let extent = Extent {
            start,
            slot: self.slot.load(Relaxed),
            location: self.place.load(Relaxed),
            length_log2: shape as u8,
            tier: (shape >> 8) as u8,
        };
        fence(Acquire);
        let reached_by = AttachmentRef(shape >> AttachmentRef::SHIFT << AttachmentRef::SHIFT);
        (self.sequence.load(Relaxed) == before).then_some((extent, reached_by))
    }
}

/// The extent cache of the process.
pub(crate) struct ExtentCache {
    entries: [CachedExtent; CACHE_ENTRIES],
}

impl ExtentCache {
    #[expect(clippy::large_stack_arrays, reason = "evaluated at compile time, into a static")]
    pub(crate) const fn new() -> ExtentCache {
        ExtentCache { entries: [const { CachedExtent::new() }; CACHE_ENTRIES] }
    }

    #[inline]
    fn entry(&self, inode: Inode, start: u64) -> Option<&CachedExtent> {
        self.entries.get(neighbourly_extent(inode, start, 0) as usize % CACHE_ENTRIES)
    }

    #[inline]
    pub(crate) fn get(&self, inode: Inode, start: u64) -> Option<(Extent, AttachmentRef)> {
        self.entry(inode, start)?.get(inode, start)
    }

    pub(crate) fn put(&self, inode: Inode, extent: &Extent, reached_by: AttachmentRef) {
        if let Some(entry) = self.entry(inode, extent.start) {
            entry.set(inode, extent, reached_by);
        }
    }

    pub(crate) fn forget(&self, inode: Inode, start: u64) {
        let none = Extent { start: 0, slot: 0, location: 0, length_log2: 0, tier: 0 };
        if let Some(entry) =
            self.entry(inode, start).filter(|entry| entry.get(inode, start).is_some())
        {
            entry.set(Inode::NONE, &none, AttachmentRef(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extent_cache_returns_what_was_put_and_forgets() {
        let cache = std::boxed::Box::new(ExtentCache::new());
        let extent =
            Extent { start: 1 << 20, slot: 9, location: 1 << 30, length_log2: 20, tier: 1 };
        let reached_by = AttachmentRef::new(u32::MAX, 256);
        assert_eq!((reached_by.generation(), reached_by.number()), (u32::MAX, 256));
        assert_eq!(cache.get(Inode(5), 1 << 20), None);
        cache.put(Inode(5), &extent, reached_by);
        assert_eq!(cache.get(Inode(5), 1 << 20), Some((extent, reached_by)));
        assert_eq!(cache.get(Inode(6), 1 << 20), None);
        cache.forget(Inode(5), 1 << 20);
        assert_eq!(cache.get(Inode(5), 1 << 20), None);
    }
}
