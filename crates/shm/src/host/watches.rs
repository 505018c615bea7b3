//! Watches: what the kernels behind this host's mounts cache (`wire::watch`), and until when, so
//! that a process that changes it invalidates their caches first.
//!
//! A mount notes here what its kernel is about to cache, then reads it, then gives it to the
//! kernel. A process that changes something first announces that (closes the gate of local
//! operations, announces an operation, marks the file as written), then checks here. All of that is
//! in one order, so either the mount is notified, or it saw that a change is under way and does not
//! let its kernel cache.
//!
//! A word covers everything that hashes to it: the time until which it may be cached, in
//! milliseconds, above 20 bits that count the updates. So a mount that was notified of a change and
//! watches again is notified again. An expired word needs no clearing; nobody waits for a stopped
//! mount any longer than that.
//!
//! Every process of the host may write these words. No kernel may cache anything for longer than
//! `SPAN_MILLIS`: a word with a later time is corrected, once, by the process that finds it, to
//! that long from then. So an invalid word blocks nobody for longer, and every true promise is
//! kept.
//!
//! The services of this host note what kernels behind mounts of other hosts cache, under the number
//! `OTHERS`: until when any of them may. Each service knows which hosts those are; after a restart
//! of its daemon only the words are left.
//!
//! A service that no longer waits for a mount, which did not drop pages in time, says so in the mount's
//! entry until the mount has done it. So a mount that stood still knows, before it answers anything,
//! that its kernel may have old pages.
//!
//! Layout: a page with the set of mounts u64, then at 64 an entry of 64 bytes for each (process
//! u32, 4 unused bytes, its start u64, a bit for each service that does not wait for it: 4 u64); behind
//! it for each mount, and for `OTHERS`, `BUCKETS` words
//! u64.

use super::{HostSegment, open_sequence};
use crate::sync::{AtomicU64, fence};
use crate::wait;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::lease::SERVICES_OF_HOST_MAX;
use wire::watch::{MARGIN_NANOS, MOUNT_COUNT_MAX, OTHERS, VALID_NANOS, Watch};

const PAGE: usize = 4096;
const START: usize = open_sequence::END.next_multiple_of(PAGE);
const ENTRY_BYTES: usize = 64;
/// Offset in an entry of the bits of services, and the number of their words.
const BEHIND: usize = 16;
const BEHIND_WORDS: usize = SERVICES_OF_HOST_MAX / 64;
const BUCKETS: usize = 1 << 16;
/// Offset of the words of mounts; those of one have memory once the mount has its number.
pub(super) const WORDS: usize = START + PAGE;
/// Length of the words of a mount.
pub(super) const TABLE_BYTES: usize = BUCKETS * 8;
pub(super) const END: usize = WORDS + (MOUNT_COUNT_MAX + 1) * TABLE_BYTES;

/// Bits of a word that count.
const COUNT_BITS: u32 = 20;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// Maximum time from now for which anything may be cached.
const SPAN_MILLIS: u64 = ((VALID_NANOS + MARGIN_NANOS) / 1_000_000).unsigned_abs();
/// A noted time may be later by this much: rounding to whole milliseconds, and those that a count
/// carries when a word is updated a million times within a span.
const CARRIED_MILLIS: u64 = 20;

const _: () = assert!(ENTRY_BYTES * (MOUNT_COUNT_MAX + 1) <= PAGE && MOUNT_COUNT_MAX + 1 < 64);
const _: () = assert!(BEHIND + BEHIND_WORDS * 8 <= ENTRY_BYTES);

/// The word that covers a watch.
#[must_use]
pub fn bucket_of(watch: Watch) -> usize {
    watch.hash() as usize % BUCKETS
}

/// True if nothing is cached under a word any more.
#[must_use]
pub fn is_over(word: u64) -> bool {
    (word >> COUNT_BITS).saturating_mul(1000) <= wait::now_micros()
}

/// A word with its time limited to the maximum.
const fn trusted(word: u64, now_micros: u64) -> u64 {
    let latest = (now_micros / 1000).saturating_add(SPAN_MILLIS);
    match word >> COUNT_BITS > latest.saturating_add(CARRIED_MILLIS) {
        true => latest << COUNT_BITS | word & COUNT,
        false => word,
    }
}

/// Bits of the marks of an open inode (`vnodes`) about mounts: which writes to it without a message
/// (8 bits: 0 none so far, the number of a mount if only it does, else `SHARED`), which mounts'
/// kernels may cache pages of it, a bit each, whether any ever did, whether one maps it for
/// writing, and how other hosts use it.
pub mod pages {
    use wire::watch::MOUNT_COUNT_MAX;

    const WRITER_SHIFT: u32 = 32;
    const CACHERS_SHIFT: u32 = 40;
    /// Pages were cached since the file is open on this host.
    pub const EVER: u64 = 1 << 63;
    /// Other hosts may have written to it since then, and may still.
    pub const OTHERS_WRITE: u64 = 1 << 61;
    /// Kernels of other hosts may cache pages of it.
    pub const OTHERS_CACHE: u64 = 1 << 60;
    /// Writers on other hosts know that kernels of this one may cache pages, or will be told.
    pub const ENTERED: u64 = 1 << 59;
    /// Programs, or more than one mount, write to it.
    pub const SHARED: u8 = 0xff;
    /// A kernel of this host may have a mapping of it that is written.
    pub const MAPPED: u64 = 1 << 62;
    /// A program of this host has mapped it for writing without the kernel: its stores announce
    /// nothing.
    pub const STORED: u64 = 1 << 58;
    /// The service of the file does not have it, and no other daemon has.
    pub(crate) const LOST: u64 = 1;
    const CACHERS: u64 = (1 << MOUNT_COUNT_MAX) - 1;

    const _: () = assert!(CACHERS_SHIFT as usize + MOUNT_COUNT_MAX <= 58);

    /// The writer.
    #[must_use]
    pub const fn writer(marks: u64) -> u8 {
        (marks >> WRITER_SHIFT) as u8
    }

    /// Marks with `by` added to the writers.
    #[must_use]
    pub const fn with_writer(marks: u64, by: u8) -> u64 {
        let known = writer(marks);
        let now = if known == 0 || known == by { by } else { SHARED };
        marks & !(0xff << WRITER_SHIFT) | (now as u64) << WRITER_SHIFT
    }

    /// The bit of a mount whose kernel caches pages.
    #[must_use]
    pub const fn cacher(mount: u8) -> u64 {
        (1 << CACHERS_SHIFT >> 1) << mount
    }

    /// The bits of all mounts but `own`.
    #[must_use]
    pub const fn cachers_except(marks: u64, own: u8) -> u64 {
        let all = marks & CACHERS << CACHERS_SHIFT;
        if own == 0 { all } else { all & !cacher(own) }
    }
}

/// The value of a word, corrected once if it is invalid, so that its time passes.
fn corrected(word: &AtomicU64) -> u64 {
    let mut known = word.load(SeqCst);
    loop {
        let right = trusted(known, wait::now_micros());
        if right == known {
            return known;
        }
        match word.compare_exchange(known, right, SeqCst, SeqCst) {
            Ok(_) => return right,
            Err(now) => known = now,
        }
    }
}

impl HostSegment {
    /// Calls `each` with the mounts whose kernels may cache pages of a file.
    pub fn page_cache_mounts(&self, inode: Inode, each: &mut dyn FnMut(u8)) {
        let Some(marks) = self.marks_of(inode) else { return };
        let caches = |number: &u8| marks & pages::cacher(*number) != 0;
        (1..=MOUNT_COUNT_MAX as u8).filter(caches).for_each(each);
    }

    /// Calls `each` with the files of which a mount's kernel may cache pages.
    pub fn page_cache_files(&self, number: u8, each: &mut dyn FnMut(Inode)) {
        fence(SeqCst);
        self.vnode_list(&mut |_, entry| {
            let inode = Inode(entry.inode.load(SeqCst));
            if !inode.is_none() && entry.marks.load(SeqCst) & pages::cacher(number) != 0 {
                each(inode);
            }
        });
    }

    #[inline(always)]
    fn mounts(&self) -> Result<&AtomicU64> {
        self.segment.word64(START)
    }

    fn mount_entry(number: u8) -> Result<usize> {
        let place = usize::from(number);
        if (1..=MOUNT_COUNT_MAX).contains(&place) {
            Ok(START + place * ENTRY_BYTES)
        } else {
            Err(Errno::EINVAL)
        }
    }

    fn watch_word(&self, number: u8, bucket: usize) -> Result<&AtomicU64> {
        if !(1..=OTHERS).contains(&number) {
            return Err(Errno::EINVAL);
        }
        self.segment.word64(HostSegment::table(number) + bucket % BUCKETS * 8)
    }

    /// Offset of the words of a mount, or of `OTHERS`.
    fn table(number: u8) -> usize {
        WORDS + usize::from(number).saturating_sub(1) * TABLE_BYTES
    }

    fn reserve_table(&self, number: u8) -> Result<()> {
        self.segment.reserve(HostSegment::table(number), TABLE_BYTES)
    }

    /// Takes a number for a mount that process `pid` serves, which started at `started`.
    ///
    /// # Errors
    /// `ENFILE` if there are too many; `ENOSPC` if there is no memory for one more.
    pub fn take_mount(&self, pid: u32, started: u64) -> Result<u8> {
        for number in 1..=MOUNT_COUNT_MAX as u8 {
            let entry = HostSegment::mount_entry(number)?;
            if self.segment.word32(entry)?.compare_exchange(0, pid, SeqCst, Relaxed).is_ok() {
                if let Err(errno) = self.reserve_table(number) {
                    self.segment.word32(entry)?.store(0, SeqCst);
                    return Err(errno);
                }
                self.segment.word64(entry + 8)?.store(started, SeqCst);
                self.forget_behind(number);
                self.mounts()?.fetch_or(1 << number, SeqCst);
                return Ok(number);
            }
        }
        Err(Errno::ENFILE)
    }

    /// A mount is gone, and its kernel caches nothing.
    pub fn give_mount(&self, number: u8) {
        let Ok(entry) = HostSegment::mount_entry(number) else { return };
        if let (Ok(mounts), Ok(pid)) = (self.mounts(), self.segment.word32(entry)) {
            mounts.fetch_and(!(1 << number), SeqCst);
            let _ = self.segment.word64(entry + 8).map(|started| started.store(0, SeqCst));
            pid.store(0, SeqCst);
        }
    }

    /// Records whether a service, by its number modulo `SERVICES_OF_HOST_MAX`, gave up its wait for a
    /// mount to drop pages, which the mount has yet to do.
    pub fn set_behind(&self, number: u8, service: usize, is_behind: bool) {
        let (place, bit) = (service / 64 % BEHIND_WORDS, 1 << (service % 64));
        let word = HostSegment::mount_entry(number)
            .and_then(|entry| self.segment.word64(entry + BEHIND + place * 8));
        let Ok(word) = word else { return };
        if is_behind {
            word.fetch_or(bit, SeqCst);
        } else if word.load(SeqCst) & bit != 0 {
            word.fetch_and(!bit, SeqCst);
        }
    }

    /// Calls `each` with the mounts for which a service no longer waits (`set_behind`).
    pub fn behind_mounts(&self, service: usize, each: &mut dyn FnMut(u8)) {
        let (place, bit) = (service / 64 % BEHIND_WORDS, 1 << (service % 64));
        let is_behind = |number: &u8| {
            let entry = HostSegment::mount_entry(*number);
            let word = entry.and_then(|entry| self.segment.word64(entry + BEHIND + place * 8));
            self.has_mount(*number) && word.is_ok_and(|word| word.load(SeqCst) & bit != 0)
        };
        (1..=MOUNT_COUNT_MAX as u8).filter(is_behind).for_each(each);
    }

    /// True if a service no longer waits for this mount to drop pages, which the mount has yet to do.
    #[must_use]
    pub fn is_behind(&self, number: u8) -> bool {
        let Ok(entry) = HostSegment::mount_entry(number) else { return false };
        let mut words = (0..BEHIND_WORDS).map(|place| entry + BEHIND + place * 8);
        words.any(|at| self.segment.word64(at).is_ok_and(|word| word.load(SeqCst) != 0))
    }

    /// Ends `is_behind` for all services.
    pub fn forget_behind(&self, number: u8) {
        let Ok(entry) = HostSegment::mount_entry(number) else { return };
        for at in (0..BEHIND_WORDS).map(|place| entry + BEHIND + place * 8) {
            let _ = self.segment.word64(at).map(|word| word.store(0, SeqCst));
        }
    }

    /// Calls `each` with number, process and start of all mounts; 0: the start is not noted yet.
    pub fn mount_list(&self, each: &mut dyn FnMut(u8, u32, u64)) {
        for number in 1..=MOUNT_COUNT_MAX as u8 {
            let Ok(entry) = HostSegment::mount_entry(number) else { return };
            if let (Ok(pid), Ok(started)) =
                (self.segment.word32(entry), self.segment.word64(entry + 8))
            {
                let pid = pid.load(SeqCst);
                if pid != 0 {
                    each(number, pid, started.load(SeqCst));
                }
            }
        }
    }

    /// A mount's kernel may cache what `bucket` covers until `until`, in microseconds of
    /// `wait::now_micros`. Returns the new word.
    ///
    /// # Errors
    /// `EINVAL` for a number that is no mount's.
    pub fn watch(&self, number: u8, bucket: usize, until: u64) -> Result<u64> {
        let word = self.watch_word(number, bucket)?;
        let now = wait::now_micros();
        let latest = trusted(u64::MAX, now) >> COUNT_BITS;
        let millis = until.div_ceil(1000).min(latest);
        let longer = |known: u64| {
            let time = millis.max(trusted(known, now) >> COUNT_BITS) << COUNT_BITS;
            // A carry from the count makes it a millisecond longer.
            time.saturating_add((known & COUNT) + 1)
        };
        let known = word.fetch_update(SeqCst, SeqCst, |known| Some(longer(known)));
        fence(SeqCst);
        Ok(longer(known.unwrap_or_default()))
    }

    /// Kernels of other hosts may cache `watch` for `nanos` nanoseconds from now.
    ///
    /// # Errors
    /// As `watch`.
    pub fn watch_for_others(&self, watch: Watch, nanos: i64) -> Result<()> {
        let micros = u64::try_from(nanos).unwrap_or(0).div_ceil(1000);
        if self.mounts()?.load(Relaxed) & 1 << OTHERS == 0 {
            self.reserve_table(OTHERS)?;
            self.mounts()?.fetch_or(1 << OTHERS, SeqCst);
        }
        let until = wait::now_micros().saturating_add(micros);
        self.watch(OTHERS, bucket_of(watch), until).map(drop)
    }

    /// True if there is a mount with this number.
    #[must_use]
    pub fn has_mount(&self, number: u8) -> bool {
        let is_one = (1..=MOUNT_COUNT_MAX).contains(&usize::from(number));
        is_one && self.mounts().is_ok_and(|mounts| mounts.load(SeqCst) & 1 << number != 0)
    }

    /// True if a process on this host has a file open for writing.
    #[must_use]
    pub fn has_writer(&self, inode: Inode) -> bool {
        self.marks_of(inode).is_some_and(|marks| pages::writer(marks) != 0)
    }

    /// True if kernels of mounts of this host may have cached pages of a file since it is open.
    #[must_use]
    pub fn had_pages(&self, inode: Inode) -> bool {
        self.marks_of(inode).is_some_and(|marks| marks & pages::EVER != 0)
    }

    fn marks_of(&self, inode: Inode) -> Option<u64> {
        fence(SeqCst);
        let entry = self.vnode_find(inode).and_then(|entry| self.vnode(entry).ok());
        entry.map(|entry| entry.marks.load(SeqCst))
    }

    /// The current word of a bucket.
    ///
    /// # Errors
    /// As `watch`.
    pub fn watch_now(&self, number: u8, bucket: usize) -> Result<u64> {
        Ok(self.watch_word(number, bucket)?.load(SeqCst))
    }

    /// A mount's kernel caches nothing any more that `bucket` covers, unless the word has changed.
    pub fn unwatch(&self, number: u8, bucket: usize, word: u64) {
        if let Ok(known) = self.watch_word(number, bucket) {
            let _ = known.compare_exchange(word, word & COUNT, SeqCst, Relaxed);
        }
    }

    /// True if there is any mount, of this host or of another that caches something of this one's.
    #[inline]
    #[must_use]
    pub fn has_mounts(&self) -> bool {
        self.mounts().is_ok_and(|mounts| mounts.load(SeqCst) != 0)
    }

    /// Calls `each` with the number and the word of each mount whose kernel may cache `watch`, if
    /// the mount noted that before the caller announced its change. Once for all mounts of other
    /// hosts together, with `OTHERS`.
    pub fn watchers(&self, watch: Watch, each: &mut dyn FnMut(u8, u64)) {
        fence(SeqCst);
        let Ok(mut mounts) = self.mounts().map(|mounts| mounts.load(SeqCst)) else { return };
        if mounts == 0 {
            return;
        }
        let bucket = bucket_of(watch);
        while mounts != 0 {
            let number = mounts.trailing_zeros() as u8;
            mounts &= mounts - 1;
            // Without a time the clock need not be read.
            let noted = self.watch_word(number, bucket).ok();
            let Some(noted) = noted.filter(|word| word.load(SeqCst) > COUNT) else { continue };
            let word = corrected(noted);
            if !is_over(word) {
                each(number, word);
            }
        }
    }

    /// True if the kernel of a mount other than `own` may cache one of `watches`; see `watchers`.
    #[must_use]
    #[inline(never)]
    pub fn is_watched<const N: usize>(&self, watches: [Watch; N], own: u8) -> bool {
        fence(SeqCst);
        let Ok(mounts) = self.mounts() else { return false };
        let mut others = mounts.load(SeqCst) & !1u64.checked_shl(own.into()).unwrap_or(0);
        if others == 0 {
            return false;
        }
        let buckets = watches.map(bucket_of);
        while others != 0 {
            let number = others.trailing_zeros() as u8;
            others &= others - 1;
            let is_noted = |bucket: &usize| {
                let noted = self.watch_word(number, *bucket).ok();
                // Without a time the clock need not be read.
                let noted = noted.filter(|word| word.load(SeqCst) > COUNT);
                noted.is_some_and(|word| !is_over(corrected(word)))
            };
            if buckets.iter().any(is_noted) {
                return true;
            }
        }
        false
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests {
    use super::*;
    use crate::host::HOST_BYTES;
    use crate::segment::Segment;

    fn watchers(host: &HostSegment, watch: Watch) -> std::vec::Vec<(u8, u64)> {
        let mut found = std::vec::Vec::new();
        host.watchers(watch, &mut |number, word| found.push((number, word)));
        found
    }

    #[test]
    fn a_watch_is_found_until_it_expires_or_is_dropped() {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        let host = HostSegment::new(segment).expect("a segment");
        let file = Watch::Attributes(Inode(77));
        assert!(!host.has_mounts() && watchers(&host, file).is_empty());
        let (one, two) =
            (host.take_mount(10, 11).expect("one"), host.take_mount(20, 21).expect("two"));
        let now = wait::now_micros();
        let later = now + SPAN_MILLIS * 1000;
        let watch = |number, until| host.watch(number, bucket_of(file), until).expect("watched");
        let first = watch(one, later);
        assert_eq!(watchers(&host, file), [(one, first)]);
        assert!(host.is_watched([file], two) && !host.is_watched([file], one));
        let again = watch(one, later);
        assert_ne!(again, first, "each time another word");
        host.unwatch(one, bucket_of(file), first);
        assert_eq!(watchers(&host, file), [(one, again)], "a word of before takes nothing away");
        watch(two, now.saturating_sub(2000));
        assert_eq!(watchers(&host, file), [(one, again)], "an expired watch is not found");
        host.unwatch(one, bucket_of(file), again);
        assert!(watchers(&host, file).is_empty());
        assert!(![first, again].contains(&watch(one, later)), "also after it was given back");
        let mut all = std::vec::Vec::new();
        host.mount_list(&mut |number, pid, started| all.push((number, pid, started)));
        assert_eq!(all, [(one, 10, 11), (two, 20, 21)]);
        host.give_mount(one);
        assert!(!host.has_mount(one) && host.has_mount(two) && !host.has_mount(OTHERS));
        host.watch_for_others(file, VALID_NANOS).expect("watched");
        assert!(host.has_mounts() && !host.has_mount(OTHERS) && host.is_watched([file], two));
        assert_eq!(
            watchers(&host, file).iter().map(|one| one.0).collect::<std::vec::Vec<_>>(),
            [OTHERS]
        );
        assert_eq!(host.take_mount(30, 31), Ok(one));
        let rest = (2..MOUNT_COUNT_MAX).filter(|_| host.take_mount(1, 1).is_ok()).count();
        assert_eq!((rest, host.take_mount(1, 1)), (MOUNT_COUNT_MAX - 2, Err(Errno::ENFILE)));
        assert_eq!(host.watch(0, 0, later), Err(Errno::EINVAL));
    }

    #[test]
    fn a_mount_is_behind_until_each_service_says_otherwise() {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        let host = HostSegment::new(segment).expect("a segment");
        let (one, two) =
            (host.take_mount(10, 11).expect("one"), host.take_mount(20, 21).expect("two"));
        host.set_behind(one, 3, true);
        host.set_behind(one, 200, true);
        assert!(host.is_behind(one) && !host.is_behind(two));
        host.set_behind(one, 3, false);
        host.set_behind(one, 3 + 64, false);
        assert!(host.is_behind(one));
        host.set_behind(one, 200, false);
        assert!(!host.is_behind(one));
        host.set_behind(two, 5, true);
        host.give_mount(two);
        assert_eq!(host.take_mount(30, 31), Ok(two));
        assert!(!host.is_behind(two), "another mount");
        host.set_behind(two, SERVICES_OF_HOST_MAX + 5, true);
        host.forget_behind(two);
        assert!(!host.is_behind(two) && !host.is_behind(0) && !host.is_behind(OTHERS));
        let started = |number| {
            let mut found = 0;
            host.mount_list(&mut |it, _, started| {
                found = if it == number { started } else { found }
            });
            found
        };
        assert_eq!((started(one), started(two)), (11, 31), "nothing else of the entries changed");
    }

    /// A torn or malicious word blocks nobody for longer than a valid one.
    #[test]
    fn a_watch_word_is_valid_for_a_bounded_time() {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        let host = HostSegment::new(segment).expect("a segment");
        let file = Watch::Attributes(Inode(77));
        let mount = host.take_mount(10, 11).expect("a number");
        let word = host.watch_word(mount, bucket_of(file)).expect("a word");
        for wild in [u64::MAX, 1 << 63 | 5, trusted(u64::MAX, wait::now_micros()) * 2] {
            word.store(wild, SeqCst);
            let before = wait::now_micros() / 1000;
            let [(_, seen)] = watchers(&host, file)[..] else { panic!("{wild:x} is not seen") };
            let after = wait::now_micros() / 1000;
            let time = seen >> COUNT_BITS;
            assert!(
                (before + SPAN_MILLIS..=after + SPAN_MILLIS).contains(&time),
                "{wild:x}: {time}"
            );
            assert_eq!(watchers(&host, file), [(mount, seen)], "it does not move on");
            // A new watch does not trust one either.
            word.store(wild, SeqCst);
            let now = wait::now_micros();
            let until = now + SPAN_MILLIS * 1000;
            let said = host.watch(mount, bucket_of(file), until).expect("watched") >> COUNT_BITS;
            assert!(said <= wait::now_micros() / 1000 + SPAN_MILLIS + 1, "{wild:x}: {said}");
            assert!(said >= now / 1000 + SPAN_MILLIS, "{wild:x}: {said}");
        }
        word.store(0, SeqCst);
        let said = host.watch(mount, bucket_of(file), u64::MAX).expect("watched") >> COUNT_BITS;
        assert!(said <= wait::now_micros() / 1000 + SPAN_MILLIS, "nor one that is asked for");
        // A valid word is never changed, though its time is a little later.
        let now = wait::now_micros();
        let promised = (now / 1000 + SPAN_MILLIS + CARRIED_MILLIS) << COUNT_BITS | 7;
        assert_eq!(trusted(promised, now), promised);
    }
}
