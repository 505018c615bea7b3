//! One file of records: read from the beginning, then appended to.
//!
//! Invariants:
//!  1. Everything beyond `position` is zero, up to the length of the medium.
//!  2. Records before `position` are whole and count 1, 2, 3 ..
//!  3. After a failed flush nothing is appended.
//!
//! When reading finds something that is no record, there are two cases. If no later record follows,
//! the process or the node died during the write: the record was not acknowledged, and it is cut
//! off. If a record follows that was written after this one was safe, the file is corrupt, and the
//! error names the offset.

use crate::error::{Error, Kind, Result};
use crate::journal::Damage;
use crate::medium::Medium;
use crate::record::{self, Decoded, HEAD_BYTES, HEADER_BYTES, Head, RECORD_BYTES_MAX, Record};
use core::ops::Range;
use std::path::{Path, PathBuf};
use wire::Errno;

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;
/// When the device has no space for a whole step, a smaller one is tried.
const STEP_BYTES_MIN: u64 = 64 << 10;

/// A file open for appending.
pub struct LogFile<M> {
    medium: M,
    path: PathBuf,
    generation: u64,
    /// End of the last record.
    position: u64,
    /// Number of the last record.
    sequence: u64,
    /// Number of the last record that a flush made durable.
    synced: u64,
    durability: Durability,
    poisoned: bool,
}

/// Guarantee when the node dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Nothing is promised: every record counts as safe once it is written.
    Written,
    /// Everything that was flushed.
    Flushed,
}

/// A file open for reading.
pub struct Reading<M> {
    medium: M,
    path: PathBuf,
    generation: u64,
    position: u64,
    sequence: u64,
    /// Bytes of the medium from `start` on.
    bytes: Vec<u8>,
    start: u64,
    /// Where the last record's content is in `bytes`.
    record: Range<usize>,
    /// The tail was checked.
    is_at_end: bool,
    /// Bytes behind the last record, up to the last that is not zero.
    torn_bytes: u64,
    /// Records that were skipped.
    gaps: Vec<Gap>,
}

/// Records that are damaged or missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// Where the first of them is, or should be.
    pub offset: u64,
    /// Number of the first; 0: it is the head of the file.
    pub first: u64,
    /// Number of the last; `Gap::UNKNOWN`: nobody knows.
    pub last: u64,
}

impl Gap {
    /// See `last`.
    pub const UNKNOWN: u64 = u64::MAX;
}

impl<M: Medium> LogFile<M> {
    /// Creates an empty file.
    ///
    /// # Errors
    /// The device's error.
    pub fn begin(
        mut medium: M,
        path: &Path,
        head: &Head,
        durability: Durability,
        step_bytes: u64,
    ) -> Result<LogFile<M>> {
        let fail = |errno| Error::new("begin a log file", path, Kind::Device(errno));
        medium.grow(step_bytes.max(STEP_BYTES_MIN)).map_err(fail)?;
        medium.write(0, &record::encode_head(head)).map_err(fail)?;
        let (path, generation) = (path.to_path_buf(), head.generation);
        let position = HEAD_BYTES as u64;
        let (sequence, synced, poisoned) = (0, 0, false);
        Ok(LogFile { medium, path, generation, position, sequence, synced, durability, poisoned })
    }

    fn fail(&self, doing: &'static str, errno: Errno) -> Error {
        Error::new(doing, &self.path, Kind::Device(errno))
    }

    /// End of the last record.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Number of the last record.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Bytes that can be appended without asking the device for space.
    pub fn bytes_free(&self) -> u64 {
        // A file truncated by somebody else may end within the zeros behind its last record.
        self.medium.length().saturating_sub(self.position)
    }

    /// Makes sure that `bytes` can be appended; asks the device for `step_bytes` at least.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn reserve(&mut self, bytes: u64, step_bytes: u64) -> Result<()> {
        let needed = self.position.saturating_add(bytes);
        let length = self.medium.length();
        if needed <= length {
            return Ok(());
        }
        let step = length.saturating_add(step_bytes).max(needed);
        let small = needed.next_multiple_of(STEP_BYTES_MIN);
        let grown = self.medium.grow(step).or_else(|_| self.medium.grow(small));
        grown.map_err(|errno| self.fail("reserve space in the log", errno))
    }

    /// Appends one record, into reserved space. It survives the death of the process once this
    /// returns.
    ///
    /// # Errors
    /// `ENOSPC` if too little was reserved; a record of a forbidden length; a poisoned file.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        const DOING: &str = "append to the log";
        if self.poisoned {
            return Err(Error::new(DOING, &self.path, Kind::Poisoned));
        }
        let length = bytes.len();
        if length == 0 || length > RECORD_BYTES_MAX {
            return Err(Error::new(DOING, &self.path, Kind::BadLength { length }));
        }
        let stored = record::bytes_stored(length);
        if stored > self.bytes_free() {
            return Err(self.fail(DOING, Errno::ENOSPC));
        }
        let unsynced = match self.durability {
            Durability::Written => 0,
            Durability::Flushed => u32::try_from(self.sequence - self.synced).unwrap_or(u32::MAX),
        };
        let (sequence, generation) = (self.sequence + 1, self.generation as u32);
        let header = record::encode_header(&Record { sequence, unsynced, generation, bytes });
        // The header is written last: without it there is no record, with it the record is
        // complete, as far as the process is concerned.
        let content = self.medium.write(self.position + HEADER_BYTES as u64, bytes);
        let written = content.and_then(|()| self.medium.write(self.position, &header));
        if let Err(errno) = written {
            // It is unknown what is there now.
            self.poisoned = true;
            return Err(self.fail(DOING, errno));
        }
        self.sequence = sequence;
        self.position += stored;
        Ok(())
    }

    /// Makes all appended records durable, so that they survive the death of the node.
    ///
    /// # Errors
    /// The device's error; from then on, poisoned.
    pub fn sync(&mut self) -> Result<()> {
        const DOING: &str = "flush the log";
        if self.poisoned {
            return Err(Error::new(DOING, &self.path, Kind::Poisoned));
        }
        if self.synced < self.sequence || self.sequence == 0 {
            if let Err(errno) = self.medium.sync() {
                self.poisoned = true;
                return Err(self.fail(DOING, errno));
            }
            self.synced = self.sequence;
        }
        Ok(())
    }

    /// Nothing is appended from now on, because something failed that makes it unsafe.
    pub const fn poison(&mut self) {
        self.poisoned = true;
    }

    /// The path has changed.
    pub fn renamed(&mut self, path: &Path) {
        self.path = path.to_path_buf();
    }
}

impl<M: Medium> Reading<M> {
    /// Checks the head of a file.
    ///
    /// # Errors
    /// `Corrupt` at offset 0 if it has none of that generation, and damage is refused; `Foreign` if it
    /// is the head of another log.
    pub fn open(medium: M, path: &Path, head: &Head, damage: Damage) -> Result<Reading<M>> {
        let mut reading = Reading {
            medium,
            path: path.to_path_buf(),
            generation: head.generation,
            position: 0,
            sequence: 0,
            bytes: Vec::new(),
            start: 0,
            record: 0..0,
            is_at_end: false,
            torn_bytes: 0,
            gaps: Vec::new(),
        };
        reading.fill(HEAD_BYTES)?;
        match record::decode_head(reading.ahead()) {
            Some(found) if found == *head => {}
            Some(found) if found.identity != head.identity => {
                return Err(Error::new("read the log", path, Kind::Foreign));
            }
            None if damage == Damage::Skip => {
                reading.gaps.push(Gap { offset: 0, first: 0, last: 0 });
            }
            _ => return Err(reading.corrupt(0, 0)),
        }
        reading.position = HEAD_BYTES as u64;
        Ok(reading)
    }

    fn corrupt(&self, offset: u64, sequence: u64) -> Error {
        Error::new("read the log", &self.path, Kind::Corrupt { offset, sequence })
    }

    /// The bytes read so far from `position` on.
    fn ahead(&self) -> &[u8] {
        let at = usize::try_from(self.position - self.start).unwrap_or(usize::MAX);
        self.bytes.get(at..).unwrap_or(&[])
    }

    /// Reads until `ahead` has `needed` bytes, or all up to the end of the file.
    fn fill(&mut self, needed: usize) -> Result<()> {
        if self.ahead().len() >= needed {
            return Ok(());
        }
        let left = usize::try_from(self.medium.length().saturating_sub(self.position));
        let needed = needed.max(READ_BYTES).min(left.unwrap_or(READ_BYTES));
        self.bytes.resize(needed, 0);
        self.start = self.position;
        let read = self.medium.read(self.position, &mut self.bytes);
        let fail = |errno| Error::new("read the log", &self.path, Kind::Device(errno));
        self.bytes.truncate(read.map_err(fail)?);
        Ok(())
    }

    /// Goes on to the next record, which `record` returns then. False at the end of the log.
    ///
    /// # Errors
    /// `Corrupt` with the offset of the corruption, if damage is refused; nothing behind it is
    /// returned.
    pub fn advance(&mut self, damage: Damage) -> Result<bool> {
        if self.is_at_end {
            return Ok(false);
        }
        let (stored, length) = loop {
            self.fill(HEADER_BYTES)?;
            if let Decoded::Short(bytes) = record::decode_record(self.ahead()) {
                self.fill(bytes)?;
            }
            if let Some(found) = self.expected() {
                break found;
            }
            let (offset, first) = (self.position, self.sequence + 1);
            match self.find_later()? {
                None => return Ok(false),
                Some(_) if damage == Damage::Refuse => return Err(self.corrupt(offset, first)),
                Some(sequence) => {
                    self.sequence = sequence - 1;
                    self.gaps.push(Gap { offset, first, last: self.sequence });
                }
            }
        };
        let at = usize::try_from(self.position - self.start).unwrap_or(usize::MAX);
        self.sequence += 1;
        self.position += stored;
        let from = at.saturating_add(HEADER_BYTES);
        self.record = from..from.saturating_add(length);
        Ok(true)
    }

    /// Content of the record that `advance` found.
    pub fn record(&self) -> &[u8] {
        self.bytes.get(self.record.clone()).unwrap_or(&[])
    }

    /// Bytes of the record at `position`, in all and of its content, if it is the expected one.
    fn expected(&self) -> Option<(u64, usize)> {
        match record::decode_record(self.ahead()) {
            Decoded::Record(record)
                if record.sequence == self.sequence + 1
                    && record.generation == self.generation as u32 =>
            {
                Some((record.bytes_stored(), record.bytes.len()))
            }
            _ => None,
        }
    }

    /// There is no record at `position`. Goes to one that follows and was written when this one was
    /// safe, and returns its number. `None`: there is none, and this is the end of the log.
    fn find_later(&mut self) -> Result<Option<u64>> {
        let (end, missing) = (self.position, self.sequence + 1);
        if self.skip_as_said(missing)? {
            return Ok(Some(missing + 1));
        }
        // Later records fit the file, so they count no further than this.
        let last = missing + self.medium.length() / HEADER_BYTES as u64;
        let mut torn_end = end;
        loop {
            self.fill(HEADER_BYTES)?;
            let Some((sequence, generation)) = record::peek(self.ahead()) else { break };
            let is_likely =
                generation == self.generation as u32 && (missing..=last).contains(&sequence);
            if is_likely && self.is_safe_after(missing)? {
                return Ok(Some(sequence));
            }
            let is_zero = self.ahead().first_chunk() == Some(&[0; 8]);
            self.position += record::ALIGN_BYTES;
            if !is_zero {
                torn_end = self.position;
            }
            self.skip_zeros();
        }
        if self.ahead().iter().any(|byte| *byte != 0) {
            torn_end = self.position + self.ahead().len() as u64;
        }
        self.torn_bytes = torn_end - end;
        self.position = end;
        self.start = end;
        self.bytes.clear();
        self.is_at_end = true;
        Ok(None)
    }

    /// Goes to the record behind record `missing`, if that has a right header. So the contents of a
    /// damaged record, which may be a copy of other records, are not searched.
    fn skip_as_said(&mut self, missing: u64) -> Result<bool> {
        let (from, is_it) = (self.position, record::peek(self.ahead()));
        let stored = record::stored_as_said(self.ahead());
        let generation = self.generation as u32;
        let Some(stored) = stored.filter(|_| is_it == Some((missing, generation))) else {
            return Ok(false);
        };
        self.position = from.saturating_add(stored);
        // `ahead` needs bytes from there on.
        if self.ahead().is_empty() {
            self.bytes.clear();
            self.start = self.position;
        }
        self.fill(HEADER_BYTES)?;
        let is_next = record::peek(self.ahead()) == Some((missing + 1, generation));
        if is_next && self.is_safe_after(missing)? {
            return Ok(true);
        }
        self.position = from;
        self.bytes.clear();
        self.start = from;
        self.fill(HEADER_BYTES)?;
        Ok(false)
    }

    /// True if there is, at `position`, a record that was written when record `missing` was safe.
    fn is_safe_after(&mut self, missing: u64) -> Result<bool> {
        if let Decoded::Short(bytes) = record::decode_record(self.ahead()) {
            self.fill(bytes)?;
        }
        let Decoded::Record(record) = record::decode_record(self.ahead()) else { return Ok(false) };
        Ok(record.sequence.saturating_sub(record.unsynced.into()) > missing)
    }

    /// Skips zeros that were read already: a file is preallocated far ahead.
    fn skip_zeros(&mut self) {
        let zeros = self.ahead().chunks_exact(8).take_while(|word| **word == [0; 8]).count();
        // A header may begin with a zero byte but not with eight, so no record is skipped.
        self.position += zeros as u64 * record::ALIGN_BYTES;
    }

    /// End of the last record that `next` returned.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Number of the last record that `next` returned.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// After `next` returned `None`: bytes behind the last record that were no record. A write that
    /// a death cut short leaves some; so does damage to the last record.
    pub const fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// The end of the log is missing: it had `expected` records. Once only, however often it is noted.
    pub fn note_short(&mut self, expected: u64) {
        let (offset, first) = (self.position, self.sequence + 1);
        if self.gaps.last().is_none_or(|gap| gap.last < expected) {
            self.gaps.push(Gap { offset, first, last: expected });
        }
    }

    /// Records that were skipped.
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// An error at the end of the log, which has fewer records than were appended.
    pub fn too_short(&self, expected: u64) -> Error {
        Error::new("read the log", &self.path, Kind::Old { found: self.sequence, expected })
    }

    /// Switches to appending, after `next` returned `None`: cuts off what is behind the last
    /// record.
    ///
    /// # Errors
    /// The device's error.
    pub fn into_log_file(mut self, durability: Durability, step_bytes: u64) -> Result<LogFile<M>> {
        let fail = |errno| Error::new("cut the end of the log", &self.path, Kind::Device(errno));
        // Zeros stay: on a full device the space would go to others.
        if self.torn_bytes > 0 {
            let length = self.medium.length();
            self.medium.cut(self.position).map_err(fail)?;
            let _ = self.medium.grow(length);
        }
        let mut file = LogFile {
            medium: self.medium,
            path: self.path,
            generation: self.generation,
            position: self.position,
            sequence: self.sequence,
            synced: 0,
            durability,
            poisoned: false,
        };
        // A full device must not keep the log from being opened: space is requested again before
        // the next append.
        let _ = file.reserve(STEP_BYTES_MIN, step_bytes);
        if durability == Durability::Flushed {
            file.sync()?;
        }
        Ok(file)
    }
}
