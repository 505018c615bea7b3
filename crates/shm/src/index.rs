//! The index: entries and attributes of local shards, readable without a message (B1).
//!
//! A cache that may forget anything: what it does not know costs a message. One writer (the worker
//! that owns the shards), any number of readers, each bucket under a sequence counter.
//!
//! Both tables grow by linear hashing: with `n` buckets a hash falls on its low bits, and where
//! that bucket does not exist yet, on one bit fewer. The writer adds bucket `n` by copying rows out
//! of the one that stood for it, then tells of `n + 1`, and only then empties the old places; a
//! reader that finds nothing looks whether the count is still the same. So a young index is small
//! and warm, and no insertion stalls.
//!
//! Of some directories it knows all entries: a row with a key that no name has says so, as long as the
//! header has counted no forgotten entry since. What is not found there does not exist.
//!
//! Who remembers by which directories a path led may do so until one of them has another name, another
//! place or other permissions: a number in the header is odd while that happens to a row, and another
//! afterwards (`directories`). A row that is forgotten counts as well, so what was read here and is
//! remembered has its rows here.
//!
//! Layout: a header of 64 bytes (log2 of the most buckets as two u32, the buckets in use as two u32,
//! forgotten entries as u64, the number for directories as u64), then room for all entry buckets, then
//! for all inode buckets, then spill buckets of either kind, fixed in number, for rows whose own bucket
//! is full: forgetting an entry would end what is known of whole directories, and each look at a file
//! whose attributes were forgotten is a message. A bucket: sequence u64 (odd while it is written), hand
//! u64 (which way is replaced next; top bit: some row has spilled), then `WAYS` rows.
//!
//!   entry row (32 bytes): key low u64, key high u64, inode u64 (0: known absent; all ones: to be
//!   asked for), mode u64
//!   inode row (88 bytes): the encoded attributes of `wire` as 11 words; the first is the inode

mod buckets;

use self::buckets::{Table, bucket_among, read_once, spill_count};
use crate::segment::Segment;
use crate::sync::{self, AtomicU32, AtomicU64, BUCKETS_MIN, fence, looks};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use wire::attributes::{ATTRIBUTES_BYTES, mode};
use wire::errno::{Errno, Result};
use wire::hash::{mix, neighbourly};
use wire::{Attributes, Inode, Layout};

const HEADER: usize = 64;
const FORGOTTEN: usize = 16;
const DIRECTORIES: usize = 24;
const FIRST_PAGE: usize = 4096;
const WAYS: usize = 4;
const ENTRY_ROW: usize = 32;
const INODE_WORDS: usize = ATTRIBUTES_BYTES / 8;
const INODE_ROW: usize = ATTRIBUTES_BYTES;
/// The word of an inode row that holds the number of links.
const LINKS_WORD: usize = 3;
const ENTRY_WORDS: usize = ENTRY_ROW / 8;
const ENTRY_BUCKET: usize = 16 + WAYS * ENTRY_ROW;
const ENTRY_BUCKET_WORDS: usize = ENTRY_BUCKET / 8;
const INODE_BUCKET: usize = 16 + WAYS * INODE_ROW;
const INODE_BUCKET_WORDS: usize = INODE_BUCKET / 8;
/// Buckets added with one row while a table doubles.
const SPLITS: usize = 4;
/// Memory of new buckets is made present in steps of so many bytes, which costs a fraction of
/// page faults one by one.
const POPULATE_BYTES: usize = 256 << 10;
const _: () = assert!(ATTRIBUTES_BYTES.is_multiple_of(8));

/// The most that an index grows to, as log2 of the number of buckets of four.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Entry buckets.
    pub entries_log2: u32,
    /// Inode buckets.
    pub inodes_log2: u32,
}

impl Shape {
    /// For 2 Mi rows of each kind, well filled at less than half of that: 81 and 207 MiB of address
    /// space, touched as used.
    pub const DEFAULT: Shape = Shape { entries_log2: 19, inodes_log2: 19 };

    /// Length of the segment.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.inode_spills() + INODE_BUCKET * spill_count(self.inodes_log2)
    }

    const fn inode_buckets(self) -> usize {
        HEADER + (ENTRY_BUCKET << self.entries_log2)
    }

    const fn entry_spills(self) -> usize {
        self.inode_buckets() + (INODE_BUCKET << self.inodes_log2)
    }

    const fn inode_spills(self) -> usize {
        self.entry_spills() + ENTRY_BUCKET * spill_count(self.entries_log2)
    }
}

/// What the index knows of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hit {
    /// It exists: inode and type bits.
    Found(Inode, u32),
    /// It does not exist.
    Absent,
    /// Ask.
    Unknown,
}

/// The writer was in a bucket for as long as a reader looked: what lies there is not known, and that is
/// not to know that nothing does. A writer may lose its processor in the middle of a row.
struct InTheWay;

/// An index, from either side.
pub struct Index {
    segment: Segment,
    entries: Table,
    inodes: Table,
}

impl Index {
    fn new(segment: Segment, shape: Shape) -> Index {
        let table = |(base, spills), count_word, log2: u32, row_bytes, mode_at| Table {
            base,
            spills,
            spill_count: spill_count(log2),
            count_word,
            buckets_max: 1 << log2,
            row_bytes,
            mode_at,
            rows: AtomicU64::new(0),
            populated: AtomicU64::new(base as u64),
        };
        let entries = (HEADER, shape.entry_spills());
        let inodes = (shape.inode_buckets(), shape.inode_spills());
        let entries = table(entries, 2, shape.entries_log2, ENTRY_ROW, 24);
        let inodes = table(inodes, 3, shape.inodes_log2, INODE_ROW, 16);
        Index { segment, entries, inodes }
    }

    /// Takes a mapping of zeros that the writer made with `shape`.
    ///
    /// # Errors
    /// `EINVAL` if it is too short.
    pub fn create(segment: Segment, shape: Shape) -> Result<Index> {
        if segment.len() < shape.bytes() {
            return Err(Errno::EINVAL);
        }
        segment.word32(0)?.store(shape.entries_log2, Relaxed);
        segment.word32(4)?.store(shape.inodes_log2, Relaxed);
        let index = Index::new(segment, shape);
        for table in [&index.entries, &index.inodes] {
            let count = index.count_of(table)?;
            count.store(BUCKETS_MIN.min(table.buckets_max), Release);
        }
        // An earlier writer may have been killed in the middle of a change.
        let directories = index.word(DIRECTORIES)?;
        directories.store((directories.load(Relaxed) | 1).wrapping_add(1), Release);
        Ok(index)
    }

    /// Empties what an earlier writer left, under readers: `punch` makes zeros of all behind the first
    /// page, as quick as the caller can.
    ///
    /// # Errors
    /// What `punch` says.
    pub fn empty<E>(
        segment: &Segment,
        punch: impl FnOnce(usize) -> core::result::Result<(), E>,
    ) -> core::result::Result<(), E> {
        // First of all nothing may be known whole that is about to be forgotten.
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
    /// `EINVAL` if its header and its length do not agree.
    pub fn open(segment: Segment) -> Result<Index> {
        let entries_log2 = segment.word32(0)?.load(Acquire);
        let inodes_log2 = segment.word32(4)?.load(Acquire);
        if entries_log2 > 28 || inodes_log2 > 28 {
            return Err(Errno::EINVAL);
        }
        let shape = Shape { entries_log2, inodes_log2 };
        if segment.len() < shape.bytes() {
            Err(Errno::EINVAL)
        } else {
            Ok(Index::new(segment, shape))
        }
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64> {
        self.segment.word64(offset)
    }

    /// Counts the buckets of a table.
    #[inline]
    fn count_of(&self, table: &Table) -> Result<&AtomicU32> {
        let words = self.segment.shorts::<{ FORGOTTEN / 4 }>(0)?;
        words.get(table.count_word).ok_or(Errno::EIO)
    }

    /// How many buckets a table has now, at least one.
    #[inline]
    fn count(&self, table: &Table) -> Result<u32> {
        // A count of zero is an index that a new daemon is about to fill.
        Ok(self.count_of(table)?.load(Acquire).max(1).min(table.buckets_max))
    }

    /// Where the bucket of a hash lies now.
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

    /// Numbers that find their buckets full together find room in neighbouring buckets, too.
    const fn inode_spill(&self, inode: Inode) -> usize {
        self.inodes.spill(neighbourly(inode, 13))
    }

    /// As `bucket` and `read`, of buckets of so many words; what is not found is looked for again if the
    /// table grew meanwhile, and where it would have spilled to.
    #[inline]
    fn find<const WORDS: usize, R>(
        &self,
        table: &Table,
        hash: u64,
        spill: impl Fn() -> usize,
        mut look: impl FnMut(&[AtomicU64; WORDS]) -> Option<R>,
    ) -> core::result::Result<Option<R>, InTheWay> {
        let count = self.count(table).map_err(|_| InTheWay)?;
        let bucket = table.base + bucket_among(count, hash) as usize * (8 * WORDS);
        let words = self.segment.words::<WORDS>(bucket).map_err(|_| InTheWay)?;
        let mut has_spilled = false;
        let found = read_once(words, &mut |words: &[AtomicU64; WORDS]| {
            let found = look(words);
            has_spilled = found.is_none() && words[1].load(Relaxed) & SPILLED != 0;
            found
        });
        match found {
            Some(Some(found)) => Ok(Some(found)),
            Some(None) if !has_spilled && self.count(table) == Ok(count) => Ok(None),
            _ => self.find_again(table, hash, spill, look),
        }
    }

    /// The same where one look does not tell. Apart, since every look-up else keeps what this needs.
    #[cold]
    #[inline(never)]
    fn find_again<const WORDS: usize, R>(
        &self,
        table: &Table,
        hash: u64,
        spill: impl Fn() -> usize,
        mut look: impl FnMut(&[AtomicU64; WORDS]) -> Option<R>,
    ) -> core::result::Result<Option<R>, InTheWay> {
        for _ in 0..looks() {
            let count = self.count(table).map_err(|_| InTheWay)?;
            let bucket = table.base + bucket_among(count, hash) as usize * (8 * WORDS);
            let read = self.read(bucket, |words: &[AtomicU64; WORDS]| {
                let found = look(words);
                let has_spilled = found.is_none() && words[1].load(Relaxed) & SPILLED != 0;
                (found, has_spilled)
            });
            let (found, has_spilled) = read.ok_or(InTheWay)?;
            // The rows of a bucket that grew are taken away after the count is told.
            if found.is_some() || self.count(table) == Ok(count) {
                return match has_spilled {
                    true => self.read(spill(), look).ok_or(InTheWay),
                    false => Ok(found),
                };
            }
        }
        Err(InTheWay)
    }

    /// Runs `read` on a bucket's words until no writer was in it meanwhile. `None` after many tries.
    fn read<const WORDS: usize, R>(
        &self,
        bucket: usize,
        mut read: impl FnMut(&[AtomicU64; WORDS]) -> R,
    ) -> Option<R> {
        let words = self.segment.words::<WORDS>(bucket).ok()?;
        (0..looks()).find_map(|_| {
            let found = read_once(words, &mut read);
            if found.is_none() {
                sync::spin_loop();
            }
            found
        })
    }

    /// The entry with this key (`wire::hash::entry_key`).
    #[must_use]
    pub fn entry(&self, key: u128) -> Hit {
        match self.entry_row(key) {
            Ok(Some(row)) => hit(row),
            Ok(None) | Err(InTheWay) => Hit::Unknown,
        }
    }

    /// The entry `key` in a directory; in one that is known whole, what is not found is absent.
    #[must_use]
    pub fn entry_in(&self, directory: Inode, key: u128) -> Hit {
        match self.entry_row(key) {
            Ok(Some(row)) => hit(row),
            Ok(None) if self.is_whole(directory) => Hit::Absent,
            Ok(None) | Err(InTheWay) => Hit::Unknown,
        }
    }

    /// True if all entries of a directory are known here.
    #[must_use]
    pub fn is_whole(&self, directory: Inode) -> bool {
        // Whoever looked for an entry before did so while nothing was forgotten yet.
        fence(Acquire);
        let Ok(Some((since, _))) = self.entry_row(whole_key(directory)) else { return false };
        self.word(FORGOTTEN).is_ok_and(|forgotten| forgotten.load(Acquire) == since.wrapping_sub(1))
    }

    /// What is remembered of directories that were found here holds as long as this is the same: their
    /// names, places, owners, permissions and layouts. `None` while some of it changes. Read it before
    /// the rows, and again before what is remembered is used.
    #[must_use]
    #[inline]
    pub fn directories(&self) -> Option<u64> {
        let now = self.word(DIRECTORIES).ok()?.load(Acquire);
        (now & 1 == 0).then_some(now)
    }

    /// Inode and type bits of the row with this key.
    fn entry_row(&self, key: u128) -> core::result::Result<Option<(u64, u32)>, InTheWay> {
        let spill = || self.entry_spill(key);
        self.find(&self.entries, key as u64, spill, |bucket| inode_and_mode(bucket, key))
    }

    /// The row in a bucket that has this key.
    fn row_of_entry(&self, bucket: usize, key: u128) -> Result<Option<usize>> {
        let (low, high) = (key as u64, (key >> 64) as u64);
        for way in 0..WAYS {
            let at = bucket + 16 + way * ENTRY_ROW;
            let row = self.segment.words::<2>(at)?;
            if row[0].load(Relaxed) == low && row[1].load(Relaxed) == high {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// The row in a bucket that is of this inode.
    fn row_of_inode(&self, bucket: usize, inode: Inode) -> Result<Option<usize>> {
        for way in 0..WAYS {
            let row = bucket + 16 + way * INODE_ROW;
            if self.word(row)?.load(Relaxed) == inode.0 {
                return Ok(Some(row));
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

    /// As `inode`, into the caller's own. False if unknown; then they may be anything.
    #[must_use]
    pub fn read_inode(&self, inode: Inode, to: &mut Attributes) -> bool {
        let row = self.find_inode(inode, |row| {
            *to = Attributes::from_words(&row.each_ref().map(|word| word.load(Relaxed)));
        });
        row.is_some()
    }

    /// How many names an inode has, if known.
    #[must_use]
    pub fn links(&self, inode: Inode) -> Option<u32> {
        self.find_inode(inode, |row| Attributes::links_in(row[LINKS_WORD].load(Relaxed)))
    }

    #[inline]
    fn find_inode<R>(
        &self,
        inode: Inode,
        mut look: impl FnMut(&[AtomicU64; INODE_WORDS]) -> R,
    ) -> Option<R> {
        let spill = || self.inode_spill(inode);
        let found = self.find::<INODE_BUCKET_WORDS, R>(
            &self.inodes,
            inode_hash(inode.0),
            spill,
            |[_, _, rows @ ..]| {
                let (rows, _) = rows.as_chunks::<INODE_WORDS>();
                rows.iter().find(|row| row[0].load(Relaxed) == inode.0).map(&mut look)
            },
        );
        // Both mean that the asker sends a message.
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

    /// As `write`, of what somebody may remember of a directory.
    fn write_directory(&self, bucket: usize, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let directories = self.word(DIRECTORIES)?;
        let before = directories.load(Relaxed) & !1;
        directories.store(before.wrapping_add(1), Relaxed);
        // Whoever sees what is written now does not take this number for even.
        fence(Release);
        let outcome = self.write(bucket, write);
        directories.store(before.wrapping_add(2), Release);
        outcome
    }

    /// True if a row is that of a directory, or of its name.
    fn is_of_directory(&self, table: &Table, row: usize) -> Result<bool> {
        let mode = self.word(row + table.mode_at)?.load(Relaxed) as u32;
        Ok(mode & mode::TYPE == mode::DIRECTORY && !self.is_empty(row)?)
    }

    fn empty_row(&self, bucket: usize, table: &Table) -> Result<Option<usize>> {
        for way in 0..WAYS {
            let row = bucket + 16 + way * table.row_bytes;
            if self.is_empty(row)? {
                table.rows.fetch_add(1, Relaxed);
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// The next row of a full bucket to be replaced.
    fn victim(&self, bucket: usize, table: &Table) -> Result<usize> {
        let hand = self.word(bucket + 8)?;
        let now = hand.load(Relaxed);
        hand.store(now & SPILLED | (now & !SPILLED).wrapping_add(1) & !SPILLED, Relaxed);
        Ok(bucket + 16 + (now as usize % WAYS) * table.row_bytes)
    }

    /// Bucket and row for what belongs into `bucket`, else into `spill`: its own, found by `row_of`, else
    /// an empty one. `None` if both are full.
    fn place(
        &self,
        table: &Table,
        (bucket, spill): (usize, usize),
        row_of: impl Fn(usize) -> Result<Option<usize>>,
    ) -> Result<Option<(usize, usize)>> {
        if let Some(row) = row_of(bucket)? {
            return Ok(Some((bucket, row)));
        }
        if self.has_spilled(bucket)?
            && let Some(row) = row_of(spill)?
        {
            return Ok(Some((spill, row)));
        }
        if let Some(row) = self.empty_row(bucket, table)? {
            return Ok(Some((bucket, row)));
        }
        let Some(row) = self.empty_row(spill, table)? else { return Ok(None) };
        let hand = self.word(bucket + 8)?;
        self.write(bucket, || {
            hand.store(hand.load(Relaxed) | SPILLED, Relaxed);
            Ok(())
        })?;
        Ok(Some((spill, row)))
    }

    /// Bucket and row for an entry: its own, else an empty one, else another's.
    fn place_of_entry(&self, key: u128) -> Result<(usize, usize)> {
        let bucket = self.entry_bucket(key)?;
        let buckets = (bucket, self.entry_spill(key));
        let place = self.place(&self.entries, buckets, |bucket| self.row_of_entry(bucket, key))?;
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
        match self.place(&self.inodes, buckets, |bucket| self.row_of_inode(bucket, inode))? {
            Some(place) => Ok(place),
            None => Ok((bucket, self.victim(bucket, &self.inodes)?)),
        }
    }

    /// A row is empty if its first word is zero: neither a key's low half nor an inode is.
    fn is_empty(&self, row: usize) -> Result<bool> {
        Ok(self.word(row)?.load(Relaxed) == 0)
    }

    /// Doubles the table, a few buckets with each new row, once it holds three rows for two
    /// buckets: by the end it holds hardly more, so that few buckets ever overflow.
    fn grow(&self, table: &Table) -> Result<()> {
        let count = self.count_of(table)?;
        for _ in 0..SPLITS {
            let buckets = count.load(Relaxed);
            let is_doubling = !buckets.is_power_of_two();
            let is_roomy = table.rows.load(Relaxed) <= u64::from(buckets) * 3 / 2;
            if buckets >= table.buckets_max || (is_roomy && !is_doubling) {
                break;
            }
            self.split(table, buckets, count)?;
        }
        Ok(())
    }

    /// Fills bucket number `buckets` with its rows, which another stood for so far.
    fn split(&self, table: &Table, buckets: u32, count: &AtomicU32) -> Result<()> {
        let end = table.at(buckets + 1) as u64;
        let populated = table.populated.load(Relaxed);
        if end > populated {
            let last = table.at(table.buckets_max) as u64;
            let step = (end.max(populated) + POPULATE_BYTES as u64).min(last);
            self.segment.populate(populated as usize, (step - populated) as usize);
            table.populated.store(step, Relaxed);
        }
        let bit = 1 << buckets.ilog2();
        let (from, to) = (table.at(buckets - bit), table.at(buckets));
        let hash_of = |word| if table.row_bytes == ENTRY_ROW { word } else { inode_hash(word) };
        let mut moved = [None; WAYS];
        for (way, slot) in moved.iter_mut().enumerate() {
            let row = from + 16 + way * table.row_bytes;
            let word = self.word(row)?.load(Relaxed);
            if word != 0 && hash_of(word) & u64::from(bit) != 0 {
                *slot = Some(way * table.row_bytes);
            }
        }
        let spilled = self.word(from + 8)?.load(Relaxed) & SPILLED;
        self.write(to, || {
            self.word(to + 8)?.store(spilled, Relaxed);
            self.copy_rows(from, to, table.row_bytes, &moved)
        })?;
        count.store(buckets + 1, Release);
        self.write(from, || {
            for within in moved.into_iter().flatten() {
                self.word(from + 16 + within)?.store(0, Relaxed);
            }
            Ok(())
        })
    }

    fn copy_rows(
        &self,
        from: usize,
        to: usize,
        row_bytes: usize,
        moved: &[Option<usize>],
    ) -> Result<()> {
        for within in moved.iter().copied().flatten() {
            for word in (0..row_bytes).step_by(8) {
                let value = self.word(from + 16 + within + word)?.load(Relaxed);
                self.word(to + 16 + within + word)?.store(value, Relaxed);
            }
        }
        Ok(())
    }

    fn set_entry(&self, key: u128, inode: u64, mode: u32) -> Result<()> {
        let (low, high) = (key as u64, (key >> 64) as u64);
        if low == 0 {
            // Such a row would look empty.
            return self.note_forgotten();
        }
        let (bucket, row) = self.place_of_entry(key)?;
        let is_of_directory = self.is_of_directory(&self.entries, row)?;
        let row = self.segment.words::<ENTRY_WORDS>(row)?;
        let words = [low, high, inode, u64::from(mode)];
        if row.iter().zip(words).all(|(old, new)| old.load(Relaxed) == new) {
            return Ok(());
        }
        let write = || {
            for (to, word) in row.iter().zip(words) {
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

    /// An entry that exists is about to be forgotten: no directory is known whole any more.
    fn note_forgotten(&self) -> Result<()> {
        self.word(FORGOTTEN)?.fetch_add(1, Release);
        fence(Release);
        Ok(())
    }

    /// All entries of a directory are known from now on, until one of any directory is forgotten.
    pub fn put_whole(&self, directory: Inode) {
        let Ok(forgotten) = self.word(FORGOTTEN) else { return };
        let since = forgotten.load(Relaxed).wrapping_add(1);
        let _ = self.set_entry(whole_key(directory), since, 0);
        // Its own row may have taken another's place.
        if forgotten.load(Relaxed).wrapping_add(1) != since {
            self.drop_entry(whole_key(directory));
        }
    }

    /// A directory is gone.
    pub fn forget_whole(&self, directory: Inode) {
        self.drop_entry(whole_key(directory));
    }

    /// The entry exists. Only the writer calls this and what follows.
    pub fn put_entry(&self, key: u128, inode: Inode, mode: u32) {
        let _ = self.set_entry(key, inode.0, mode);
    }

    /// The entry does not exist in `directory`. Where that is known whole, no row says as much.
    pub fn put_absent(&self, directory: Inode, key: u128) {
        if self.is_whole(directory) {
            return self.drop_entry(key);
        }
        let _ = self.set_entry(key, 0, 0);
    }

    /// Nothing is known about the entry, even if all others of its directory are.
    pub fn forget_entry(&self, key: u128) {
        let _ = self.set_entry(key, DOUBTED, 0);
    }

    /// There is no row for the entry any more.
    pub fn drop_entry(&self, key: u128) {
        let Ok(bucket) = self.entry_bucket(key) else { return };
        let buckets = (bucket, self.entry_spill(key));
        self.drop_row(&self.entries, buckets, |bucket| self.row_of_entry(bucket, key));
    }

    /// Clears the row that `row_of` finds where `place` would have put it.
    fn drop_row(
        &self,
        table: &Table,
        (bucket, spill): (usize, usize),
        row_of: impl Fn(usize) -> Result<Option<usize>>,
    ) {
        if let Ok(Some(row)) = row_of(bucket) {
            self.clear_row(table, bucket, row);
        } else if self.has_spilled(bucket) == Ok(true)
            && let Ok(Some(row)) = row_of(spill)
        {
            self.clear_row(table, spill, row);
        }
    }

    fn clear_row(&self, table: &Table, bucket: usize, row: usize) {
        // An empty row looks like one with key 0, which none has.
        if self.is_empty(row) != Ok(false) {
            return;
        }
        let write = || {
            self.word(row)?.store(0, Relaxed);
            Ok(())
        };
        let _ = match self.is_of_directory(table, row) {
            Ok(true) => self.write_directory(bucket, write),
            _ => self.write(bucket, write),
        };
        table.rows.fetch_sub(1, Relaxed);
    }

    /// The attributes of an inode.
    pub fn put_inode(&self, attributes: &Attributes) {
        let _ = self.set_inode(attributes.inode, &attributes.words());
    }

    fn set_inode(&self, inode: Inode, words: &[u64; INODE_WORDS]) -> Result<()> {
        let (bucket, row) = self.place_of_inode(inode)?;
        let is_of_directory = self.is_of_directory(&self.inodes, row)?;
        let row = self.segment.words::<INODE_WORDS>(row)?;
        let write = || {
            for (to, word) in row.iter().zip(words) {
                to.store(*word, Relaxed);
            }
            Ok(())
        };
        let old = row.each_ref().map(|word| word.load(Relaxed));
        match is_of_directory && remembered(&old) != remembered(words) {
            true => self.write_directory(bucket, write)?,
            false => self.write(bucket, write)?,
        }
        self.grow(&self.inodes)
    }

    /// The inode is gone, or no longer ours to tell of.
    pub fn forget_inode(&self, inode: Inode) {
        let Ok(bucket) = self.inode_bucket(inode) else { return };
        let buckets = (bucket, self.inode_spill(inode));
        self.drop_row(&self.inodes, buckets, |bucket| self.row_of_inode(bucket, inode));
    }
}

/// What may be remembered of a directory's row: not its times, its size or its number of links, which
/// change with each name in it.
fn remembered(words: &[u64; INODE_WORDS]) -> (Inode, Inode, [u32; 3], bool, Layout, u16) {
    let Attributes { inode, parent, mode, uid, gid, links, layout, extras, .. } =
        Attributes::from_words(words);
    (inode, parent, [mode, uid, gid], links == 0, layout, extras)
}

/// Bit of a bucket's hand: a row that belongs here may lie in its spill bucket.
const SPILLED: u64 = 1 << 63;

/// Stands for the inode of an entry of which nothing is known.
const DOUBTED: u64 = u64::MAX;

const fn hit((inode, mode): (u64, u32)) -> Hit {
    match inode {
        0 => Hit::Absent,
        DOUBTED => Hit::Unknown,
        inode => Hit::Found(Inode(inode), mode),
    }
}

/// Inode and type bits of the row with this key in an entry bucket.
#[inline]
fn inode_and_mode(bucket: &[AtomicU64; ENTRY_BUCKET_WORDS], key: u128) -> Option<(u64, u32)> {
    let (low, high) = (key as u64, (key >> 64) as u64);
    let [_, _, rows @ ..] = bucket;
    let (rows, _) = rows.as_chunks::<ENTRY_WORDS>();
    for [first, second, inode, mode] in rows {
        if first.load(Relaxed) == low && second.load(Relaxed) == high {
            return Some((inode.load(Relaxed), mode.load(Relaxed) as u32));
        }
    }
    None
}

/// The key of the row that says that a directory is known whole: that of no name, as unlikely as that
/// two names share one.
const fn whole_key(directory: Inode) -> u128 {
    (mix(directory.0, 3) as u128) << 64 | mix(directory.0, 4) as u128
}

const fn inode_hash(inode: u64) -> u64 {
    neighbourly(Inode(inode), 7)
}
