//! One file of records: reading it from the beginning, then appending to it.
//!
//! Invariants:
//!  1. What lies beyond `position` is zero, up to the length of the medium.
//!  2. Records before `position` are whole and count 1, 2, 3 ..
//!  3. After a flush failed nothing is appended.
//!
//! Where reading stops at something that is no record, there are two cases. Nothing that counts
//! further follows: the process or the node died while it wrote; nobody was told that the record
//! was there, and it is cut off. A record follows that was written after this one was safe: the
//! file is damaged, and the error says where.

use crate::error::{Error, Kind, Result};
use crate::medium::Medium;
use crate::record::{self, Decoded, HEAD_BYTES, HEADER_BYTES, RECORD_BYTES_MAX, Record};
use std::path::{Path, PathBuf};
use wire::Errno;

/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 20;
/// When the device has no room for a whole step, a smaller one is tried.
const STEP_BYTES_MIN: u64 = 64 << 10;

/// One file that is appended to.
pub struct LogFile<M> {
    medium: M,
    path: PathBuf,
    generation: u64,
    /// End of the last record.
    position: u64,
    /// Number of the last record.
    sequence: u64,
    /// Number of the last record that a flush made safe.
    synced: u64,
    keeps: Keeps,
    poisoned: bool,
}

/// What a file keeps when the node dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeps {
    /// Nothing is promised: every record counts as safe once it is written.
    Written,
    /// What was flushed.
    Flushed,
}

/// One file that is read.
pub struct Reading<M> {
    medium: M,
    path: PathBuf,
    generation: u64,
    position: u64,
    sequence: u64,
    /// Bytes of the medium from `start` on.
    bytes: Vec<u8>,
    start: u64,
    /// The tail was looked at.
    is_at_end: bool,
}

impl<M: Medium> LogFile<M> {
    /// Begins an empty file.
    ///
    /// # Errors
    /// What the device says.
    pub fn begin(
        mut medium: M,
        path: &Path,
        generation: u64,
        keeps: Keeps,
        step_bytes: u64,
    ) -> Result<LogFile<M>> {
        let fail = |errno| Error::new("begin a log file", path, Kind::Device(errno));
        medium.grow(step_bytes.max(STEP_BYTES_MIN)).map_err(fail)?;
        medium.write(0, &record::encode_head(generation)).map_err(fail)?;
        let path = path.to_path_buf();
        let position = HEAD_BYTES as u64;
        let (sequence, synced, poisoned) = (0, 0, false);
        Ok(LogFile { medium, path, generation, position, sequence, synced, keeps, poisoned })
    }

    fn fail(&self, doing: &'static str, errno: Errno) -> Error {
        Error::new(doing, &self.path, Kind::Device(errno))
    }

    /// End of the last record.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that can be appended without asking the device.
    pub fn room(&self) -> u64 {
        // A file that was cut by somebody else may end within the zeros behind its last record.
        self.medium.length().saturating_sub(self.position)
    }

    /// Sees to it that `bytes` can be appended; asks the device for `step_bytes` at least.
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
        grown.map_err(|errno| self.fail("make room in the log", errno))
    }

    /// Appends one record, into space that was reserved. It is safe from the death of the process
    /// when this returns.
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
        if stored > self.room() {
            return Err(self.fail(DOING, Errno::ENOSPC));
        }
        let unsynced = match self.keeps {
            Keeps::Written => 0,
            Keeps::Flushed => u32::try_from(self.sequence - self.synced).unwrap_or(u32::MAX),
        };
        let (sequence, generation) = (self.sequence + 1, self.generation as u32);
        let header = record::encode_header(&Record { sequence, unsynced, generation, bytes });
        // The header comes last: without it there is no record, with it there is all of it, as far
        // as the process goes.
        let content = self.medium.write(self.position + HEADER_BYTES as u64, bytes);
        let written = content.and_then(|()| self.medium.write(self.position, &header));
        if let Err(errno) = written {
            // What stands there now nobody knows.
            self.poisoned = true;
            return Err(self.fail(DOING, errno));
        }
        self.sequence = sequence;
        self.position += stored;
        Ok(())
    }

    /// Makes all that was appended safe from the death of the node.
    ///
    /// # Errors
    /// What the device says; from then on, poisoned.
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

    /// Nothing is appended from now on: something failed that makes it unsafe.
    pub const fn poison(&mut self) {
        self.poisoned = true;
    }

    /// The path is another now.
    pub fn renamed(&mut self, path: &Path) {
        self.path = path.to_path_buf();
    }
}

impl<M: Medium> Reading<M> {
    /// Looks at the head of a file.
    ///
    /// # Errors
    /// `Corrupt` at offset 0 if it has none of `generation`.
    pub fn open(medium: M, path: &Path, generation: u64) -> Result<Reading<M>> {
        let (position, path) = (0, path.to_path_buf());
        let (bytes, start, sequence, is_at_end) = (Vec::new(), 0, 0, false);
        let mut reading =
            Reading { medium, path, generation, position, sequence, bytes, start, is_at_end };
        reading.fill(HEAD_BYTES)?;
        if record::decode_head(reading.ahead()) != Some(generation) {
            return Err(reading.corrupt(0, 0));
        }
        reading.position = HEAD_BYTES as u64;
        Ok(reading)
    }

    fn corrupt(&self, offset: u64, sequence: u64) -> Error {
        Error::new("read the log", &self.path, Kind::Corrupt { offset, sequence })
    }

    /// What was read and lies at `position`.
    fn ahead(&self) -> &[u8] {
        let at = usize::try_from(self.position - self.start).unwrap_or(usize::MAX);
        self.bytes.get(at..).unwrap_or(&[])
    }

    /// Sees to it that `ahead` has `wanted` bytes, or all up to the end of the file.
    fn fill(&mut self, wanted: usize) -> Result<()> {
        if self.ahead().len() >= wanted {
            return Ok(());
        }
        let left = usize::try_from(self.medium.length().saturating_sub(self.position));
        let wanted = wanted.max(READ_BYTES).min(left.unwrap_or(READ_BYTES));
        self.bytes.resize(wanted, 0);
        self.start = self.position;
        let read = self.medium.read(self.position, &mut self.bytes);
        let fail = |errno| Error::new("read the log", &self.path, Kind::Device(errno));
        self.bytes.truncate(read.map_err(fail)?);
        Ok(())
    }

    /// The next record's content, `None` at the end of the log.
    ///
    /// # Errors
    /// `Corrupt` with the offset of the damage; nothing behind it is given.
    #[expect(clippy::should_implement_trait, reason = "a record borrows from the reading")]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.is_at_end {
            return Ok(None);
        }
        self.fill(HEADER_BYTES)?;
        if let Decoded::Short(bytes) = record::decode_record(self.ahead()) {
            self.fill(bytes)?;
        }
        let Some(stored) = self.expected() else {
            self.check_tail()?;
            return Ok(None);
        };
        let at = usize::try_from(self.position - self.start).unwrap_or(usize::MAX);
        self.sequence += 1;
        self.position += stored;
        match record::decode_record(self.bytes.get(at..).unwrap_or(&[])) {
            Decoded::Record(record) => Ok(Some(record.bytes)),
            _ => Ok(None),
        }
    }

    /// Bytes of the record at `position`, if it is the one that must come next.
    fn expected(&self) -> Option<u64> {
        match record::decode_record(self.ahead()) {
            Decoded::Record(record)
                if record.sequence == self.sequence + 1
                    && record.generation == self.generation as u32 =>
            {
                Some(record.bytes_stored())
            }
            _ => None,
        }
    }

    /// At `position` is no record. Fails if one follows that was written when this one was safe.
    fn check_tail(&mut self) -> Result<()> {
        let (end, missing) = (self.position, self.sequence + 1);
        // Records that may follow fit the file, so they count no further than this.
        let last = missing + self.medium.length() / HEADER_BYTES as u64;
        loop {
            self.fill(HEADER_BYTES)?;
            let Some((sequence, generation)) = record::peek(self.ahead()) else { break };
            let is_likely =
                generation == self.generation as u32 && (missing..=last).contains(&sequence);
            if is_likely && self.is_safe_after(missing)? {
                return Err(self.corrupt(end, missing));
            }
            self.position += record::ALIGN_BYTES;
            self.skip_zeros();
        }
        self.position = end;
        self.start = end;
        self.bytes.clear();
        self.is_at_end = true;
        Ok(())
    }

    /// Is there, at `position`, a record that was written when record `missing` was safe?
    fn is_safe_after(&mut self, missing: u64) -> Result<bool> {
        if let Decoded::Short(bytes) = record::decode_record(self.ahead()) {
            self.fill(bytes)?;
        }
        let Decoded::Record(record) = record::decode_record(self.ahead()) else { return Ok(false) };
        Ok(record.sequence.saturating_sub(record.unsynced.into()) > missing)
    }

    /// Goes over zeros that were read already: a file is preallocated far ahead.
    fn skip_zeros(&mut self) {
        let zeros = self.ahead().chunks_exact(8).take_while(|word| **word == [0; 8]).count();
        // A header may begin with a zero byte but not with eight, so no record is gone over.
        self.position += zeros as u64 * record::ALIGN_BYTES;
    }

    /// Goes on to appending, after `next` gave `None`: cuts off what is behind the last record.
    ///
    /// # Errors
    /// What the device says.
    pub fn into_log_file(mut self, keeps: Keeps, step_bytes: u64) -> Result<LogFile<M>> {
        let fail = |errno| Error::new("cut the end of the log", &self.path, Kind::Device(errno));
        self.medium.cut(self.position).map_err(fail)?;
        let mut file = LogFile {
            medium: self.medium,
            path: self.path,
            generation: self.generation,
            position: self.position,
            sequence: self.sequence,
            synced: 0,
            keeps,
            poisoned: false,
        };
        // A full device must not keep the log from being opened: space is asked for again before
        // the next append.
        let _ = file.reserve(STEP_BYTES_MIN, step_bytes);
        if keeps == Keeps::Flushed {
            file.sync()?;
        }
        Ok(file)
    }
}
