//! The index: entries and attributes of local shards, readable without a message (B1).
//!
//! A cache that may forget anything: a miss costs a message. One writer (the worker that owns the
//! shards), any number of readers, each bucket under a seqlock.
//!
//! Both tables grow by linear hashing: with `n` buckets a hash selects a bucket by its low bits,
//! and where that bucket does not exist yet, by one bit fewer. The writer adds bucket `n` by
//! copying records out of the bucket that stood for it, then publishes the count `n + 1`, and only
//! then empties the old places; a reader that finds nothing checks whether the count is still the
//! same. So a young index is small and warm, and no insertion stalls.
//!
//! For some directories the index is complete: a record with a key that no name has marks them,
//! valid as long as the header has counted no forgotten entry since. A name not found there does
//! not exist.
//!
//! A client may remember the directories of a path until one of them is renamed, moved, or gets
//! other permissions: the directory version in the header is odd while such a record changes, and
//! another one afterwards (`directory_version`). A forgotten record counts as a change as well, so
//! everything that was read here and is remembered has its records here.
//!
//! Layout: a header of 64 bytes (log2 of the maximum number of buckets as two u32, the buckets in
//! use as two u32, forgotten entries as u64, the directory version as u64), then space for all
//! entry buckets, then for all inode buckets, then spill buckets of either kind, fixed in number,
//! for records whose own bucket is full: forgetting an entry would end the completeness of whole
//! directories, and each `stat` of a file whose attributes were forgotten is a message. A bucket:
//! sequence u64 (odd while it is written), hand u64 (the way to replace next; top bit: some record
//! has spilled), then `WAYS` records.
//!
//!   entry record (32 bytes): key low u64, key high u64, inode u64 (0: known absent; all ones:
//!   unknown), mode u64
//!   inode record (88 bytes): the encoded attributes of `wire` as 11 words; the first is the inode
//!
//! A reader may map the buckets by parts, as they come into use, and read spill buckets through the
//! file: so it takes as much address space as there are records, not as there may be (`parts`).

mod buckets;
mod leases;
mod parts;
mod shape;

pub use leases::{LEASE_TIMES_BYTES, LEASES_BYTES, Leases};
pub use shape::Shape;

use self::buckets::{Table, bucket_among, complete_key, inode_hash, read, read_once, spill_count};
use self::parts::{Parts, TableParts};
use self::shape::shape_of;
use crate::segment::{Access, Segment};
use crate::sync::{AtomicU32, AtomicU64, BUCKETS_MIN, fence, read_attempts};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use rustix::fd::{BorrowedFd, OwnedFd};
use wire::attributes::{ATTRIBUTES_BYTES, mode};
use wire::errno::{Errno, Result};
use wire::hash::neighbourly;
use wire::{Attributes, Inode, Layout};

const HEADER: usize = 64;
const FORGOTTEN: usize = 16;
const DIRECTORIES: usize = 24;
const FIRST_PAGE: usize = 4096;
const WAYS: usize = 4;
const ENTRY_RECORD: usize = 32;
const INODE_WORDS: usize = ATTRIBUTES_BYTES / 8;
const INODE_RECORD: usize = ATTRIBUTES_BYTES;
/// The word of an inode record that holds the number of links.
const LINKS_WORD: usize = 3;
const ENTRY_WORDS: usize = ENTRY_RECORD / 8;
const ENTRY_BUCKET: usize = 16 + WAYS * ENTRY_RECORD;
const ENTRY_BUCKET_WORDS: usize = ENTRY_BUCKET / 8;
const INODE_BUCKET: usize = 16 + WAYS * INODE_RECORD;
const INODE_BUCKET_WORDS: usize = INODE_BUCKET / 8;
/// Buckets added with one record while a table doubles.
const SPLITS: usize = 4;
const _: () = assert!(ATTRIBUTES_BYTES.is_multiple_of(8));

/// Result of looking up an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hit {
    /// It exists: inode and type bits.
    Found(Inode, u32),
    /// It does not exist.
    Absent,
    /// Unknown: send a message.
    Unknown,
}

/// The writer was in a bucket for as long as the reader tried: its contents are unknown, which is
/// not the same as absent. A writer may lose its processor in the middle of a record.
struct WriterInBucket;

/// An index, for either side.
pub struct Index {
    /// All of it; of a reader that maps parts, the first page.
    segment: Segment,
    parts: Option<Parts>,
    entries: Table,
    inodes: Table,
}

impl Index {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.parts.iter().for_each(|parts| parts.file().give_up());
        self.segment.detach();
        self.entries.parts.detach();
        self.inodes.parts.detach();
    }

    fn new(segment: Segment, shape: Shape) -> Index {
        let table = |(base, spills), count_word, log2: u32, record_bytes, mode_at| Table {
            base,
            spills,
            spill_count: spill_count(log2),
            count_word,
            buckets_max: 1 << log2,
            parts: TableParts::none(),
            record_bytes,
            mode_at,
            records: AtomicU64::new(0),
            populated: AtomicU64::new(base as u64),
        };
        let entries = (HEADER, shape.entry_spills());
        let inodes = (shape.inode_buckets(), shape.inode_spills());
        let entries = table(entries, 2, shape.entries_log2, ENTRY_RECORD, 24);
        let inodes = table(inodes, 3, shape.inodes_log2, INODE_RECORD, 16);
        Index { segment, parts: None, entries, inodes }
    }

    /// Takes a mapping of zeros that the writer made with `shape`.
    ///
    /// # Errors
    /// `EINVAL` if it is too short; `ENOSPC` if there is no memory for the first buckets.
    pub fn create(segment: Segment, shape: Shape) -> Result<Index> {
        if segment.len() < shape.bytes() {
            return Err(Errno::EINVAL);
        }
        segment.reserve(0, HEADER)?;
        segment.word32(0)?.store(shape.entries_log2, Relaxed);
        segment.word32(4)?.store(shape.inodes_log2, Relaxed);
        let index = Index::new(segment, shape);
        for table in [&index.entries, &index.inodes] {
            let first = BUCKETS_MIN.min(table.buckets_max) as usize * table.bucket_bytes();
            index.segment.reserve(table.base, first)?;
            let count = index.count_of(table)?;
            count.store(BUCKETS_MIN.min(table.buckets_max), Release);
        }
        // An earlier writer may have been killed in the middle of a change.
        let directories = index.word(DIRECTORIES)?;
        directories.store((directories.load(Relaxed) | 1).wrapping_add(1), Release);
        Ok(index)
    }

    /// Empties what an earlier writer left, while readers may use it: `punch` zeroes everything
    /// behind the first page, as quickly as it can.
    ///
    /// # Errors
    /// Errors of `punch`.
    pub fn empty<E>(
        segment: &Segment,
        punch: impl FnOnce(usize) -> core::result::Result<(), E>,
    ) -> core::result::Result<(), E> {
        // First, no directory may count as complete whose entries are about to be forgotten.
        if let Ok(forgotten) = segment.word64(FORGOTTEN) {
            forgotten.fetch_add(1, SeqCst);
        }
        if let Ok(directories) = segment.word64(DIRECTORIES) {
            directories.fetch_or(1, SeqCst);
        }
        punch(FIRST_PAGE)?;
        // In range of every index.
        let _ = segment.zero(HEADER, FIRST_PAGE - HEADER);
        Ok(())
    }

    /// Takes a reader's mapping.
    ///
    /// # Errors
    /// `EINVAL` if its header does not match its length.
    pub fn open(segment: Segment) -> Result<Index> {
        let shape = shape_of(&segment)?;
        if segment.len() < shape.bytes() {
            Err(Errno::EINVAL)
        } else {
            Ok(Index::new(segment, shape))
        }
    }

    /// Takes the file, and maps parts of it as they come into use.
    ///
    /// # Errors
    /// `EINVAL` if its header does not match its length; errors of the operating system.
    pub fn open_in_parts(file: OwnedFd) -> Result<Index> {
        let head = Segment::map(&file, FIRST_PAGE, Access::ReadOnly)?;
        let shape = shape_of(&head)?;
        let parts = Parts::new(file, shape)?;
        let mut index = Index::new(head, shape);
        parts.map_first(&mut index.entries)?;
        parts.map_first(&mut index.inodes)?;
        Ok(Index { parts: Some(parts), ..index })
    }

    /// The file, if parts of it are mapped.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.parts.as_ref().map(|parts| parts.file().descriptor())
    }

    /// Has the index count no longer as memory of this process.
    pub fn unmap_pages(&self) {
        self.segment.unmap_pages();
        self.entries.parts.unmap_pages();
        self.inodes.parts.unmap_pages();
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64> {
        self.segment.word64(offset)
    }

    /// The word that counts the buckets of a table.
    #[inline]
    fn count_of(&self, table: &Table) -> Result<&AtomicU32> {
        let words = self.segment.shorts::<{ FORGOTTEN / 4 }>(0)?;
        words.get(table.count_word).ok_or(Errno::EIO)
    }

    /// Number of buckets of a table, at least one.
    #[inline]
    fn count(&self, table: &Table) -> Result<u32> {
        // A count of zero is an index that a new daemon is about to fill.
        Ok(self.count_of(table)?.load(Acquire).max(1).min(table.buckets_max))
    }

    /// Current offset of the bucket of a hash.
    fn bucket(&self, table: &Table, hash: u64) -> Result<usize> {
        Ok(table.at(bucket_among(self.count(table)?, hash)))
    }

    fn entry_bucket(&self, key: u128) -> Result<usize> {
        self.bucket(&self.entries, key as u64)
    }

    const fn entry_spill(&self, key: u128) -> usize {
        self.entries.spill((key >> 64) as u64)
    }

    fn inode_bucket(&self, inode: Inode) -> Result<usize> {
        self.bucket(&self.inodes, inode_hash(inode.0))
    }

    /// Inodes whose buckets are full together spill into neighbouring buckets, too.
    const fn inode_spill(&self, inode: Inode) -> usize {
        self.inodes.spill(neighbourly(inode, 13))
    }

    /// As `bucket` and `read`, for buckets of `WORDS` words; a record that is not found is searched
    /// again if the table grew meanwhile, and in its spill bucket.
    #[inline(always)]
    fn find<const WORDS: usize, R>(
        &self,
        table: &Table,
        hash: u64,
        spill: impl Fn() -> usize,
        mut look_up: impl FnMut(&[AtomicU64; WORDS]) -> Option<R>,
    ) -> core::result::Result<Option<R>, WriterInBucket> {
        let count = self.count(table).map_err(|_| WriterInBucket)?;
        let Ok(words) = table.parts.first_words::<WORDS>(bucket_among(count, hash)) else {
            return self.find_slow(table, hash, spill, look_up);
        };
        let mut has_spilled = false;
        let found = read_once(words, &mut |words: &[AtomicU64; WORDS]| {
            let found = look_up(words);
            has_spilled = found.is_none() && words[1].load(Relaxed) & SPILLED != 0;
            found
        });
        match found {
            Some(Some(found)) => Ok(Some(found)),
            Some(None) if !has_spilled && self.count(table) == Ok(count) => Ok(None),
            _ => self.find_slow(table, hash, spill, look_up),
        }
    }

    /// The same where one attempt does not decide, and behind the first part of a table. Separate,
    /// because every other look-up would save the registers that this needs.
    #[cold]
    #[inline(never)]
    fn find_slow<const WORDS: usize, R>(
        &self,
        table: &Table,
        hash: u64,
        spill: impl Fn() -> usize,
        mut look_up: impl FnMut(&[AtomicU64; WORDS]) -> Option<R>,
    ) -> core::result::Result<Option<R>, WriterInBucket> {
        for _ in 0..read_attempts() {
            let count = self.count(table).map_err(|_| WriterInBucket)?;
            let words = self.words_of::<WORDS>(table, bucket_among(count, hash));
            let words = words.map_err(|_| WriterInBucket)?;
            let read = read(words, |words: &[AtomicU64; WORDS]| {
                let found = look_up(words);
                let has_spilled = found.is_none() && words[1].load(Relaxed) & SPILLED != 0;
                (found, has_spilled)
            });
            let (found, has_spilled) = read.ok_or(WriterInBucket)?;
            // The records of a bucket that grew are removed after the count is published.
            if found.is_some() || self.count(table) == Ok(count) {
                return match has_spilled {
                    true => self.read_spill(spill(), look_up).ok_or(WriterInBucket),
                    false => Ok(found),
                };
            }
        }
        Err(WriterInBucket)
    }

    /// The words of bucket `number`.
    fn words_of<'a, const WORDS: usize>(
        &'a self,
        table: &'a Table,
        number: u32,
    ) -> Result<&'a [AtomicU64; WORDS]> {
        match (table.parts.first_words(number), &self.parts) {
            (Ok(words), _) => Ok(words),
            (Err(_), None) => self.segment.words(table.base + number as usize * (8 * WORDS)),
            (Err(_), Some(parts)) => parts.further_words(table, number),
        }
    }

    /// The result of `look_up` on the words of a spill bucket. `None` after many attempts.
    fn read_spill<const WORDS: usize, R>(
        &self,
        at: usize,
        look_up: impl FnMut(&[AtomicU64; WORDS]) -> R,
    ) -> Option<R> {
        match &self.parts {
            None => read(self.segment.words(at).ok()?, look_up),
            Some(parts) => parts.read(at, look_up),
        }
    }

    /// The entry with this key (`wire::hash::entry_key`).
    #[must_use]
    pub fn entry(&self, key: u128) -> Hit {
        match self.entry_record(key) {
            Ok(Some(record)) => hit(record),
            Ok(None) | Err(WriterInBucket) => Hit::Unknown,
        }
    }

    /// The entry `key` in a directory; in one that is complete, a name that is not found is absent.
    #[must_use]
    #[inline]
    pub fn entry_in(&self, directory: Inode, key: u128) -> Hit {
        match self.entry_record(key) {
            Ok(Some(record)) => hit(record),
            Ok(None) if self.is_complete(directory) => Hit::Absent,
            Ok(None) | Err(WriterInBucket) => Hit::Unknown,
        }
    }

    /// True if all entries of a directory are known here.
    #[must_use]
    #[inline(never)]
    pub fn is_complete(&self, directory: Inode) -> bool {
        // A reader that looked for an entry before did so while nothing was forgotten yet.
        fence(Acquire);
        let Ok(Some((since, _))) = self.entry_record(complete_key(directory)) else { return false };
        self.word(FORGOTTEN).is_ok_and(|forgotten| forgotten.load(Acquire) == since.wrapping_sub(1))
    }

    /// Version of directory records: remembered names, locations, owners, permissions and layouts
    /// of directories found here are valid while it is the same. `None` while one of them changes.
    /// Read it before the records, and again before remembered values are used.
    #[must_use]
    #[inline]
    pub fn directory_version(&self) -> Option<u64> {
        let now = self.word(DIRECTORIES).ok()?.load(Acquire);
        (now & 1 == 0).then_some(now)
    }

    /// Inode and type bits of the record with this key.
    #[inline(always)]
    fn entry_record(&self, key: u128) -> core::result::Result<Option<(u64, u32)>, WriterInBucket> {
        let spill = || self.entry_spill(key);
        self.find(&self.entries, key as u64, spill, |bucket| inode_and_mode(bucket, key))
    }

    /// The record in a bucket that has this key.
    fn record_of_entry(&self, bucket: usize, key: u128) -> Result<Option<usize>> {
        let (low, high) = (key as u64, (key >> 64) as u64);
        for way in 0..WAYS {
            let at = bucket + 16 + way * ENTRY_RECORD;
            let record = self.segment.words::<2>(at)?;
            if record[0].load(Relaxed) == low && record[1].load(Relaxed) == high {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The record in a bucket that is of this inode.
    fn record_of_inode(&self, bucket: usize, inode: Inode) -> Result<Option<usize>> {
        for way in 0..WAYS {
            let record = bucket + 16 + way * INODE_RECORD;
            if self.word(record)?.load(Relaxed) == inode.0 {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn has_spilled(&self, bucket: usize) -> Result<bool> {
        Ok(self.word(bucket + 8)?.load(Relaxed) & SPILLED != 0)
    }

    /// The attributes of an inode, if known.
    #[must_use]
    pub fn inode(&self, inode: Inode) -> Option<Attributes> {
        let mut attributes = Attributes::default();
        self.read_inode(inode, &mut attributes).then_some(attributes)
    }

    /// As `inode`, into the caller's variable. False if unknown; then the variable may hold
    /// anything.
    #[must_use]
    pub fn read_inode(&self, inode: Inode, to: &mut Attributes) -> bool {
        let record = self.find_inode(inode, |record| {
            *to = Attributes::from_words(&record.each_ref().map(|word| word.load(Relaxed)));
        });
        record.is_some()
    }

    /// The number of names of an inode, if known.
    #[must_use]
    pub fn links(&self, inode: Inode) -> Option<u32> {
        self.find_inode(inode, |record| Attributes::links_in(record[LINKS_WORD].load(Relaxed)))
    }

    #[inline]
    fn find_inode<R>(
        &self,
        inode: Inode,
        mut look_up: impl FnMut(&[AtomicU64; INODE_WORDS]) -> R,
    ) -> Option<R> {
        let spill = || self.inode_spill(inode);
        let found = self.find::<INODE_BUCKET_WORDS, R>(
            &self.inodes,
            inode_hash(inode.0),
            spill,
            |[_, _, records @ ..]| {
                let (records, _) = records.as_chunks::<INODE_WORDS>();
                records.iter().find(|record| record[0].load(Relaxed) == inode.0).map(&mut look_up)
            },
        );
        // In both cases the caller sends a message.
        found.ok().flatten()
    }

    fn write(&self, bucket: usize, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let sequence = self.word(bucket)?;
        let before = sequence.load(Relaxed) & !1;
        sequence.store(before.wrapping_add(1), Relaxed);
        fence(Release);
        let outcome = write();
        sequence.store(before.wrapping_add(2), Release);
        outcome
    }

    /// As `write`, for a record that clients may remember of a directory.
    fn write_directory(&self, bucket: usize, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let directories = self.word(DIRECTORIES)?;
        let before = directories.load(Relaxed) & !1;
        directories.store(before.wrapping_add(1), Relaxed);
        // A reader that sees the new contents does not see this number as even.
        fence(Release);
        let outcome = self.write(bucket, write);
        directories.store(before.wrapping_add(2), Release);
        outcome
    }

    /// True if a record is that of a directory, or of its name.
    fn is_of_directory(&self, table: &Table, record: usize) -> Result<bool> {
        let mode = self.word(record + table.mode_at)?.load(Relaxed) as u32;
        Ok(mode & mode::TYPE == mode::DIRECTORY && !self.is_empty(record)?)
    }

    fn empty_record(&self, bucket: usize, table: &Table) -> Result<Option<usize>> {
        for way in 0..WAYS {
            let record = bucket + 16 + way * table.record_bytes;
            if self.is_empty(record)? {
                table.records.fetch_add(1, Relaxed);
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// The next record of a full bucket to be replaced.
    fn victim(&self, bucket: usize, table: &Table) -> Result<usize> {
        let hand = self.word(bucket + 8)?;
        let now = hand.load(Relaxed);
        hand.store(now & SPILLED | (now & !SPILLED).wrapping_add(1) & !SPILLED, Relaxed);
        Ok(bucket + 16 + (now as usize % WAYS) * table.record_bytes)
    }

    /// Bucket and record for an item of `bucket`, else of `spill`: its own, found by `record_of`,
    /// else an empty one. `None` if both are full.
    fn place(
        &self,
        table: &Table,
        (bucket, spill): (usize, usize),
        record_of: impl Fn(usize) -> Result<Option<usize>>,
    ) -> Result<Option<(usize, usize)>> {
        if let Some(record) = record_of(bucket)? {
            return Ok(Some((bucket, record)));
        }
        if self.has_spilled(bucket)?
            && let Some(record) = record_of(spill)?
        {
            return Ok(Some((spill, record)));
        }
        if let Some(record) = self.empty_record(bucket, table)? {
            return Ok(Some((bucket, record)));
        }
        // A place that has no memory is a full one.
        if self.segment.reserve(spill, table.bucket_bytes()).is_err() {
            return Ok(None);
        }
        let Some(record) = self.empty_record(spill, table)? else { return Ok(None) };
        let hand = self.word(bucket + 8)?;
        self.write(bucket, || {
            hand.store(hand.load(Relaxed) | SPILLED, Relaxed);
            Ok(())
        })?;
        Ok(Some((spill, record)))
    }

    /// Bucket and record for an entry: its own, else an empty one, else another's.
    fn place_of_entry(&self, key: u128) -> Result<(usize, usize)> {
        let bucket = self.entry_bucket(key)?;
        let buckets = (bucket, self.entry_spill(key));
        let place =
            self.place(&self.entries, buckets, |bucket| self.record_of_entry(bucket, key))?;
        if let Some(place) = place {
            return Ok(place);
        }
        self.note_forgotten()?;
        Ok((bucket, self.victim(bucket, &self.entries)?))
    }

    /// As `place_of_entry`, for an inode.
    fn place_of_inode(&self, inode: Inode) -> Result<(usize, usize)> {
        let bucket = self.inode_bucket(inode)?;
        let buckets = (bucket, self.inode_spill(inode));
        match self.place(&self.inodes, buckets, |bucket| self.record_of_inode(bucket, inode))? {
            Some(place) => Ok(place),
            None => Ok((bucket, self.victim(bucket, &self.inodes)?)),
        }
    }

    /// A record is empty if its first word is zero: neither a key's low half nor an inode is.
    fn is_empty(&self, record: usize) -> Result<bool> {
        Ok(self.word(record)?.load(Relaxed) == 0)
    }

    /// Doubles the table, a few buckets with each new record, once it holds three records for two
    /// buckets: by the end it holds hardly more, so that few buckets ever overflow. While there is
    /// no memory for a bucket, the table stays as it is, and records replace others.
    fn grow(&self, table: &Table) -> Result<()> {
        let count = self.count_of(table)?;
        for _ in 0..SPLITS {
            let buckets = count.load(Relaxed);
            let is_doubling = !buckets.is_power_of_two();
            let has_space = table.records.load(Relaxed) <= u64::from(buckets) * 3 / 2;
            if buckets >= table.buckets_max || (has_space && !is_doubling) {
                break;
            }
            if !table.reserve(&self.segment, buckets) {
                break;
            }
            self.split(table, buckets, count)?;
        }
        Ok(())
    }

    /// Fills bucket number `buckets` with its records, for which another bucket stood until now.
    fn split(&self, table: &Table, buckets: u32, count: &AtomicU32) -> Result<()> {
        let bit = 1 << buckets.ilog2();
        let (from, to) = (table.at(buckets - bit), table.at(buckets));
        let hash_of =
            |word| if table.record_bytes == ENTRY_RECORD { word } else { inode_hash(word) };
        let mut moved = [None; WAYS];
        for (way, slot) in moved.iter_mut().enumerate() {
            let record = from + 16 + way * table.record_bytes;
            let word = self.word(record)?.load(Relaxed);
            if word != 0 && hash_of(word) & u64::from(bit) != 0 {
                *slot = Some(way * table.record_bytes);
            }
        }
        let spilled = self.word(from + 8)?.load(Relaxed) & SPILLED;
        self.write(to, || {
            self.word(to + 8)?.store(spilled, Relaxed);
            self.copy_records(from, to, table.record_bytes, &moved)
        })?;
        count.store(buckets + 1, Release);
        self.write(from, || {
            for within in moved.into_iter().flatten() {
                self.word(from + 16 + within)?.store(0, Relaxed);
            }
            Ok(())
        })
    }

    fn copy_records(
        &self,
        from: usize,
        to: usize,
        record_bytes: usize,
        moved: &[Option<usize>],
    ) -> Result<()> {
        for within in moved.iter().copied().flatten() {
            for word in (0..record_bytes).step_by(8) {
                let value = self.word(from + 16 + within + word)?.load(Relaxed);
                self.word(to + 16 + within + word)?.store(value, Relaxed);
            }
        }
        Ok(())
    }

    fn set_entry(&self, key: u128, inode: u64, mode: u32) -> Result<()> {
        let (low, high) = (key as u64, (key >> 64) as u64);
        if low == 0 {
            // Such a record would look empty.
            return self.note_forgotten();
        }
        let (bucket, record) = self.place_of_entry(key)?;
        let is_of_directory = self.is_of_directory(&self.entries, record)?;
        let record = self.segment.words::<ENTRY_WORDS>(record)?;
        let words = [low, high, inode, u64::from(mode)];
        if record.iter().zip(words).all(|(old, new)| old.load(Relaxed) == new) {
            return Ok(());
        }
        let write = || {
            for (to, word) in record.iter().zip(words) {
                to.store(word, Relaxed);
            }
            Ok(())
        };
        match is_of_directory {
            true => self.write_directory(bucket, write)?,
            false => self.write(bucket, write)?,
        }
        self.grow(&self.entries)
    }

    /// An entry that exists is about to be forgotten: no directory is complete any more.
    fn note_forgotten(&self) -> Result<()> {
        self.word(FORGOTTEN)?.fetch_add(1, Release);
        fence(Release);
        Ok(())
    }

    /// All entries of a directory are known from now on, until an entry of any directory is
    /// forgotten.
    pub fn mark_complete(&self, directory: Inode) {
        let Ok(forgotten) = self.word(FORGOTTEN) else { return };
        let since = forgotten.load(Relaxed).wrapping_add(1);
        let _ = self.set_entry(complete_key(directory), since, 0);
        // Its own record may have replaced another.
        if forgotten.load(Relaxed).wrapping_add(1) != since {
            self.drop_entry(complete_key(directory));
        }
    }

    /// A directory is gone.
    pub fn unmark_complete(&self, directory: Inode) {
        self.drop_entry(complete_key(directory));
    }

    /// The entry exists. Only the writer calls this and what follows.
    pub fn put_entry(&self, key: u128, inode: Inode, mode: u32) {
        let _ = self.set_entry(key, inode.0, mode);
    }

    /// The entry does not exist in `directory`. In a complete directory that takes no record.
    pub fn put_absent(&self, directory: Inode, key: u128) {
        if self.is_complete(directory) {
            return self.drop_entry(key);
        }
        let _ = self.set_entry(key, 0, 0);
    }

    /// Nothing is known about the entry, even if all others of its directory are.
    pub fn forget_entry(&self, key: u128) {
        let _ = self.set_entry(key, UNKNOWN_INODE, 0);
    }

    /// Removes the record of an entry.
    pub fn drop_entry(&self, key: u128) {
        let Ok(bucket) = self.entry_bucket(key) else { return };
        let buckets = (bucket, self.entry_spill(key));
        self.drop_record(&self.entries, buckets, |bucket| self.record_of_entry(bucket, key));
    }

    /// Clears the record that `record_of` finds where `place` would have put it.
    fn drop_record(
        &self,
        table: &Table,
        (bucket, spill): (usize, usize),
        record_of: impl Fn(usize) -> Result<Option<usize>>,
    ) {
        if let Ok(Some(record)) = record_of(bucket) {
            self.clear_record(table, bucket, record);
        } else if self.has_spilled(bucket) == Ok(true)
            && let Ok(Some(record)) = record_of(spill)
        {
            self.clear_record(table, spill, record);
        }
    }

    fn clear_record(&self, table: &Table, bucket: usize, record: usize) {
        // An empty record looks like one with key 0, which no entry has.
        if self.is_empty(record) != Ok(false) {
            return;
        }
        let write = || {
            self.word(record)?.store(0, Relaxed);
            Ok(())
        };
        let _ = match self.is_of_directory(table, record) {
            Ok(true) => self.write_directory(bucket, write),
            _ => self.write(bucket, write),
        };
        table.records.fetch_sub(1, Relaxed);
    }

    /// The attributes of an inode.
    pub fn put_inode(&self, attributes: &Attributes) {
        let _ = self.set_inode(attributes.inode, &attributes.words());
    }

    fn set_inode(&self, inode: Inode, words: &[u64; INODE_WORDS]) -> Result<()> {
        let (bucket, record) = self.place_of_inode(inode)?;
        let is_of_directory = self.is_of_directory(&self.inodes, record)?;
        let record = self.segment.words::<INODE_WORDS>(record)?;
        let write = || {
            for (to, word) in record.iter().zip(words) {
                to.store(*word, Relaxed);
            }
            Ok(())
        };
        let old = record.each_ref().map(|word| word.load(Relaxed));
        match is_of_directory && remembered(&old) != remembered(words) {
            true => self.write_directory(bucket, write)?,
            false => self.write(bucket, write)?,
        }
        self.grow(&self.inodes)
    }

    /// The inode is gone, or another service's now.
    pub fn forget_inode(&self, inode: Inode) {
        let Ok(bucket) = self.inode_bucket(inode) else { return };
        let buckets = (bucket, self.inode_spill(inode));
        self.drop_record(&self.inodes, buckets, |bucket| self.record_of_inode(bucket, inode));
    }
}

/// The part of a directory's record that clients may remember: not its times, its size or its
/// number of links, which change with each name in it.
fn remembered(words: &[u64; INODE_WORDS]) -> (Inode, Inode, [u32; 3], bool, Layout, u16) {
    let Attributes { inode, parent, mode, uid, gid, links, layout, extras, .. } =
        Attributes::from_words(words);
    (inode, parent, [mode, uid, gid], links == 0, layout, extras)
}

/// Bit of a bucket's hand: a record that belongs here may be in its spill bucket.
const SPILLED: u64 = 1 << 63;

/// Stands for the inode of an entry of which nothing is known.
const UNKNOWN_INODE: u64 = u64::MAX;

const fn hit((inode, mode): (u64, u32)) -> Hit {
    match inode {
        0 => Hit::Absent,
        UNKNOWN_INODE => Hit::Unknown,
        inode => Hit::Found(Inode(inode), mode),
    }
}

/// Inode and type bits of the record with this key in an entry bucket.
#[inline]
fn inode_and_mode(bucket: &[AtomicU64; ENTRY_BUCKET_WORDS], key: u128) -> Option<(u64, u32)> {
    let (low, high) = (key as u64, (key >> 64) as u64);
    let [_, _, records @ ..] = bucket;
    let (records, _) = records.as_chunks::<ENTRY_WORDS>();
    for [first, second, inode, mode] in records {
        if first.load(Relaxed) == low && second.load(Relaxed) == high {
            return Some((inode.load(Relaxed), mode.load(Relaxed) as u32));
        }
    }
    None
}
