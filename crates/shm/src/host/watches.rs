//! What the kernels behind this host's mounts remember (`wire::watch`), and until when: so that who
//! changes it tells them first.
//!
//! A mount says what its kernel is about to be told, then looks, then tells it. Who changes something
//! makes that known first (closes the gate of posts, announces a post, marks the file as written), then
//! looks here. All of that is in one order, so either the mount is told, or it saw that a change is on
//! its way and has its kernel remember nothing.
//!
//! A word says of all that falls on it until when it may be remembered, in milliseconds above 20
//! bits which count how often that was said: so a mount which was told of a change, and watches
//! anew, is told again. What is over needs no clearing; a mount that stands still is waited for no
//! longer than that.
//!
//! Every process of the host may write these words. Nobody has a kernel remember anything for longer than
//! `SPAN_MILLIS`: a word that says so is put right by who meets it, to that long from then, once. So a
//! wild one holds nobody up for longer, and what was truly promised before is kept.
//!
//! What kernels behind mounts of other hosts remember is noted by the services of this host, under
//! the number `OTHERS`: until when any of them may. Which do, each service knows by itself; after a
//! restart of its daemon the words are what is left.
//!
//! Layout: a page with the set of mounts u64, then at 64 a row of 64 bytes for each (process u32, 4
//! unused bytes, its start u64); behind it for each mount, and for `OTHERS`, `BUCKETS` words u64.

use super::{HostSegment, turns};
use crate::sync::{AtomicU64, fence};
use crate::wait;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::watch::{MARGIN_NANOS, MOUNT_COUNT_MAX, OTHERS, VALID_NANOS, Watch};

const PAGE: usize = 4096;
const START: usize = turns::END.next_multiple_of(PAGE);
const ROW: usize = 64;
const BUCKETS: usize = 1 << 16;
const WORDS: usize = START + PAGE;
pub(super) const END: usize = WORDS + (MOUNT_COUNT_MAX + 1) * BUCKETS * 8;

/// Bits of a word that count.
const COUNT_BITS: u32 = 20;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// For so long from now something may be remembered.
const SPAN_MILLIS: u64 = ((VALID_NANOS + MARGIN_NANOS) / 1_000_000).unsigned_abs();
/// So much later a time may be that somebody said: whole milliseconds, and those that a count carries
/// when
/// a word is said a million times within a span.
const CARRIED_MILLIS: u64 = 20;

const _: () = assert!(ROW * (MOUNT_COUNT_MAX + 1) <= PAGE && MOUNT_COUNT_MAX + 1 < 64);

/// In which word something is noted.
#[must_use]
pub fn bucket_of(watch: Watch) -> usize {
    watch.hash() as usize % BUCKETS
}

/// True if nothing is remembered under a word any more.
#[must_use]
pub fn is_over(word: u64) -> bool {
    (word >> COUNT_BITS).saturating_mul(1000) <= wait::now_micros()
}

/// A word as it may be believed at a time.
const fn believed(word: u64, now_micros: u64) -> u64 {
    let latest = (now_micros / 1000).saturating_add(SPAN_MILLIS);
    match word >> COUNT_BITS > latest.saturating_add(CARRIED_MILLIS) {
        true => latest << COUNT_BITS | word & COUNT,
        false => word,
    }
}

/// What the marks of an open file (`vnodes`) say of mounts: who writes to it without a message (8 bits: 0
/// nobody so far, the number of a mount if only it does, else `SHARED`), by which mounts' kernels pages
/// of it may be kept, a bit each, whether there ever were any, and what is known of other hosts.
pub mod pages {
    use wire::watch::MOUNT_COUNT_MAX;

    const WRITER_SHIFT: u32 = 32;
    const KEEPERS_SHIFT: u32 = 40;
    /// Pages were kept since the file is open anywhere on this host.
    pub const EVER: u64 = 1 << 63;
    /// Other hosts may have written to it, since the same time, and perhaps do still.
    pub const OTHERS_WRITE: u64 = 1 << 61;
    /// Kernels of other hosts may keep pages of it.
    pub const OTHERS_KEEP: u64 = 1 << 60;
    /// Who writes to it on other hosts knows that kernels of this one may keep pages, or will be told so.
    pub const ENTERED: u64 = 1 << 59;
    /// Programs, or more than one mount, write to it.
    pub const SHARED: u8 = 0xff;
    const KEEPERS: u64 = (1 << MOUNT_COUNT_MAX) - 1;

    /// Who writes.
    #[must_use]
    pub const fn writer(marks: u64) -> u8 {
        (marks >> WRITER_SHIFT) as u8
    }

    /// With `by` among those who write.
    #[must_use]
    pub const fn with_writer(marks: u64, by: u8) -> u64 {
        let known = writer(marks);
        let now = if known == 0 || known == by { by } else { SHARED };
        marks & !(0xff << WRITER_SHIFT) | (now as u64) << WRITER_SHIFT
    }

    /// The bit of a mount whose kernel keeps pages.
    #[must_use]
    pub const fn keeper(mount: u8) -> u64 {
        (1 << KEEPERS_SHIFT >> 1) << mount
    }

    /// The bits of all but `own`.
    #[must_use]
    pub const fn keepers_but(marks: u64, own: u8) -> u64 {
        let all = marks & KEEPERS << KEEPERS_SHIFT;
        if own == 0 { all } else { all & !keeper(own) }
    }
}

/// A word as it is, and as it stays: a wild one is another from now on, so that its time passes.
fn put_right(word: &AtomicU64) -> u64 {
    let mut known = word.load(SeqCst);
    loop {
        let right = believed(known, wait::now_micros());
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
    /// Calls `each` with the mounts whose kernels may have pages of a file.
    pub fn page_keepers(&self, inode: Inode, each: &mut dyn FnMut(u8)) {
        let Some(marks) = self.marks_of(inode) else { return };
        let keeps = |number: &u8| marks & pages::keeper(*number) != 0;
        (1..=MOUNT_COUNT_MAX as u8).filter(keeps).for_each(each);
    }

    #[inline(always)]
    fn mounts(&self) -> Result<&AtomicU64> {
        self.segment.word64(START)
    }

    fn mount_row(number: u8) -> Result<usize> {
        let place = usize::from(number);
        if (1..=MOUNT_COUNT_MAX).contains(&place) {
            Ok(START + place * ROW)
        } else {
            Err(Errno::EINVAL)
        }
    }

    fn watch_word(&self, number: u8, bucket: usize) -> Result<&AtomicU64> {
        if !(1..=OTHERS).contains(&number) {
            return Err(Errno::EINVAL);
        }
        let table = WORDS + (usize::from(number) - 1) * BUCKETS * 8;
        self.segment.word64(table + bucket % BUCKETS * 8)
    }

    /// A number for a mount that process `pid` serves, which began at `started`.
    ///
    /// # Errors `ENFILE` if there are too many.
    pub fn take_mount(&self, pid: u32, started: u64) -> Result<u8> {
        for number in 1..=MOUNT_COUNT_MAX as u8 {
            let row = HostSegment::mount_row(number)?;
            if self.segment.word32(row)?.compare_exchange(0, pid, SeqCst, Relaxed).is_ok() {
                self.segment.word64(row + 8)?.store(started, SeqCst);
                self.mounts()?.fetch_or(1 << number, SeqCst);
                return Ok(number);
            }
        }
        Err(Errno::ENFILE)
    }

    /// A mount is gone, and its kernel remembers nothing.
    pub fn give_mount(&self, number: u8) {
        let Ok(row) = HostSegment::mount_row(number) else { return };
        if let (Ok(mounts), Ok(pid)) = (self.mounts(), self.segment.word32(row)) {
            mounts.fetch_and(!(1 << number), SeqCst);
            let _ = self.segment.word64(row + 8).map(|started| started.store(0, SeqCst));
            pid.store(0, SeqCst);
        }
    }

    /// Calls `each` with number, process and start of all mounts; 0: the start is not noted yet.
    pub fn mount_list(&self, each: &mut dyn FnMut(u8, u32, u64)) {
        for number in 1..=MOUNT_COUNT_MAX as u8 {
            let Ok(row) = HostSegment::mount_row(number) else { return };
            if let (Ok(pid), Ok(started)) = (self.segment.word32(row), self.segment.word64(row + 8))
            {
                let pid = pid.load(SeqCst);
                if pid != 0 {
                    each(number, pid, started.load(SeqCst));
                }
            }
        }
    }

    /// A mount's kernel may remember what falls on `bucket` until `until`, in microseconds of
    /// `wait::now_micros`. The word as it is now.
    ///
    /// # Errors `EINVAL` for a number that is no mount's.
    pub fn watch(&self, number: u8, bucket: usize, until: u64) -> Result<u64> {
        let word = self.watch_word(number, bucket)?;
        let now = wait::now_micros();
        let latest = believed(u64::MAX, now) >> COUNT_BITS;
        let millis = until.div_ceil(1000).min(latest);
        let longer = |known: u64| {
            let time = millis.max(believed(known, now) >> COUNT_BITS) << COUNT_BITS;
            // What the count carries makes it a millisecond longer.
            time.saturating_add((known & COUNT) + 1)
        };
        let known = word.fetch_update(SeqCst, SeqCst, |known| Some(longer(known)));
        fence(SeqCst);
        Ok(longer(known.unwrap_or_default()))
    }

    /// Kernels of other hosts may remember `watch` for so many nanoseconds from now.
    ///
    /// # Errors As `watch`.
    pub fn watch_for_others(&self, watch: Watch, nanos: i64) -> Result<()> {
        let micros = u64::try_from(nanos).unwrap_or(0).div_ceil(1000);
        if self.mounts()?.load(Relaxed) & 1 << OTHERS == 0 {
            self.mounts()?.fetch_or(1 << OTHERS, SeqCst);
        }
        let until = wait::now_micros().saturating_add(micros);
        self.watch(OTHERS, bucket_of(watch), until).map(drop)
    }

    /// True if there is a mount of this number.
    #[must_use]
    pub fn has_mount(&self, number: u8) -> bool {
        let is_one = (1..=MOUNT_COUNT_MAX).contains(&usize::from(number));
        is_one && self.mounts().is_ok_and(|mounts| mounts.load(SeqCst) & 1 << number != 0)
    }

    /// True if somebody on this host has a file open to write.
    #[must_use]
    pub fn has_writer(&self, inode: Inode) -> bool {
        self.marks_of(inode).is_some_and(|marks| pages::writer(marks) != 0)
    }

    /// True if kernels of mounts of this host may have had pages of a file since it is open.
    #[must_use]
    pub fn had_pages(&self, inode: Inode) -> bool {
        self.marks_of(inode).is_some_and(|marks| marks & pages::EVER != 0)
    }

    fn marks_of(&self, inode: Inode) -> Option<u64> {
        fence(SeqCst);
        let row = self.vnode_find(inode).and_then(|row| self.vnode(row).ok());
        row.map(|row| row.marks.load(SeqCst))
    }

    /// The word of a bucket as it is.
    ///
    /// # Errors As `watch`.
    pub fn watch_now(&self, number: u8, bucket: usize) -> Result<u64> {
        Ok(self.watch_word(number, bucket)?.load(SeqCst))
    }

    /// A mount's kernel remembers nothing any more that falls on `bucket`, unless the word is
    /// another by now.
    pub fn unwatch(&self, number: u8, bucket: usize, word: u64) {
        if let Ok(known) = self.watch_word(number, bucket) {
            let _ = known.compare_exchange(word, word & COUNT, SeqCst, Relaxed);
        }
    }

    /// True if there is any mount, of this host or of another that remembers something of this one's.
    #[inline]
    #[must_use]
    pub fn has_mounts(&self) -> bool {
        self.mounts().is_ok_and(|mounts| mounts.load(SeqCst) != 0)
    }

    /// Calls `each` with the number and the word of each mount whose kernel may remember `watch`,
    /// as far as it said so before the caller made known that he is about to change it. Of all
    /// mounts of other hosts once, with `OTHERS`.
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
            let word = self.watch_word(number, bucket).map_or(0, put_right);
            if word > COUNT && !is_over(word) {
                each(number, word);
            }
        }
    }

    /// True if the kernel of a mount other than `own` may remember `watch`; see `watchers`.
    #[must_use]
    pub fn is_watched(&self, watch: Watch, own: u8) -> bool {
        let mut is_watched = false;
        self.watchers(watch, &mut |number, _| is_watched |= number != own);
        is_watched
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
    fn what_is_watched_is_found_until_its_time_is_over_or_it_is_given_back() {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        let host = HostSegment::new(segment).expect("a segment");
        let file = Watch::Attributes(Inode(77));
        assert!(!host.has_mounts() && watchers(&host, file).is_empty());
        let (one, two) =
            (host.take_mount(10, 11).expect("one"), host.take_mount(20, 21).expect("two"));
        let now = wait::now_micros();
        let far = now + SPAN_MILLIS * 1000;
        let watch = |number, until| host.watch(number, bucket_of(file), until).expect("watched");
        let first = watch(one, far);
        assert_eq!(watchers(&host, file), [(one, first)]);
        assert!(host.is_watched(file, two) && !host.is_watched(file, one));
        let again = watch(one, far);
        assert_ne!(again, first, "each time another word");
        host.unwatch(one, bucket_of(file), first);
        assert_eq!(watchers(&host, file), [(one, again)], "a word of before takes nothing away");
        watch(two, now.saturating_sub(2000));
        assert_eq!(watchers(&host, file), [(one, again)], "what is over is not remembered");
        host.unwatch(one, bucket_of(file), again);
        assert!(watchers(&host, file).is_empty());
        assert!(![first, again].contains(&watch(one, far)), "also after it was given back");
        let mut all = std::vec::Vec::new();
        host.mount_list(&mut |number, pid, started| all.push((number, pid, started)));
        assert_eq!(all, [(one, 10, 11), (two, 20, 21)]);
        host.give_mount(one);
        assert!(!host.has_mount(one) && host.has_mount(two) && !host.has_mount(OTHERS));
        host.watch_for_others(file, VALID_NANOS).expect("watched");
        assert!(host.has_mounts() && !host.has_mount(OTHERS) && host.is_watched(file, two));
        assert_eq!(
            watchers(&host, file).iter().map(|one| one.0).collect::<std::vec::Vec<_>>(),
            [OTHERS]
        );
        assert_eq!(host.take_mount(30, 31), Ok(one));
        let rest = (2..MOUNT_COUNT_MAX).filter(|_| host.take_mount(1, 1).is_ok()).count();
        assert_eq!((rest, host.take_mount(1, 1)), (MOUNT_COUNT_MAX - 2, Err(Errno::ENFILE)));
        assert_eq!(host.watch(0, 0, far), Err(Errno::EINVAL));
    }

    /// A torn word, or one of somebody who means harm, holds nobody up for longer than a true one.
    #[test]
    fn what_a_word_says_is_remembered_for_so_long_at_most() {
        let (segment, _) = Segment::nameless(c"test", HOST_BYTES).expect("memory");
        let host = HostSegment::new(segment).expect("a segment");
        let file = Watch::Attributes(Inode(77));
        let mount = host.take_mount(10, 11).expect("a number");
        let word = host.watch_word(mount, bucket_of(file)).expect("a word");
        for wild in [u64::MAX, 1 << 63 | 5, believed(u64::MAX, wait::now_micros()) * 2] {
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
            // Nor does who watches anew believe one.
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
        // A true word is never touched, though it is a little beyond.
        let now = wait::now_micros();
        let promised = (now / 1000 + SPAN_MILLIS + CARRIED_MILLIS) << COUNT_BITS | 7;
        assert_eq!(believed(promised, now), promised);
    }
}
