//! The log of one worker's metadata service: a directory with one file of records, the generation,
//! and at times a second one that will replace it.
//!
//! Records hold absolute states, so a log can be rewritten while it is in use: the new generation
//! receives, in slices, a snapshot of everything, and meanwhile every new record goes to both
//! files. When the snapshot is complete the new file gets its name, and only then the old one is
//! removed.
//!
//!   one generation --begin_rewrite--> two    `Journal::begin_rewrite`   file `log-<g+1>.new`
//!   two --the new one fails--> one           `Journal::abandon_rewrite` the old one goes on
//!   two --all is written--> one              `Journal::finish_rewrite`  renamed to `log-<g+1>`
//!
//! Invariants:
//!  1. At any time the file `log-<g>` with the highest number holds every appended record, or a
//!     newer state.
//!  2. Space for a record is there before it is acknowledged: `reserve` comes before the work.
//!  3. With `Sync::Group` a record survives the death of the node once `commit` has returned.

use crate::error::{Error, Kind, Result};
use crate::identity::{Expected, Identity};
use crate::log_file::{Durability, Gap, LogFile, Reading};
use crate::medium::{Files, RealFiles};
use crate::record::Head;
use std::path::{Path, PathBuf};

/// Bytes of the log that only requests that free space may use, so that a full device can be
/// emptied; with those for the removal of each file (`Journal::keep_for_removals`).
pub const SPARE_BYTES: u64 = 1 << 20;
/// The last of them, which requests that free space leave to those that only read. These append
/// nothing, but a step is not begun without space.
pub const READING_BYTES: u64 = 512 << 10;
const _: () = assert!(READING_BYTES < SPARE_BYTES);
/// How far a log file is preallocated: 80,000 records of 200 bytes. Each step costs one `fallocate`
/// and one mapping, 0.4 ms together.
pub const STEP_BYTES: u64 = 16 << 20;

const SUFFIX_NEW: &str = ".new";

/// When records are flushed to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// Never: they survive the death of the daemon, not of the node.
    Never,
    /// Each `commit` flushes all records appended since the last.
    Group,
}

/// How a replay takes records that are damaged or missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// It fails there.
    Refuse,
    /// It goes on with the next whole record, and lists the gap. The log must be rewritten before the
    /// next replay, which would find the gap again.
    Skip,
}

/// How far a log has come. Only the last processes that used it know; the node's death loses it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Progress {
    /// Generation of the file.
    pub generation: u64,
    /// Number of the last record in it.
    pub sequence: u64,
}

/// In a word: bits of the sequence.
const SEQUENCE_BITS: u32 = 40;

impl Progress {
    /// As one word, which is stored at once: a rewrite has 64 MiB of records at least, so 2^24
    /// generations are beyond the life of an instance, and 2^40 records take 32 TiB.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        self.generation << SEQUENCE_BITS | self.sequence & ((1 << SEQUENCE_BITS) - 1)
    }

    /// The inverse of `to_word`.
    #[must_use]
    pub const fn from_word(word: u64) -> Progress {
        let sequence = word & ((1 << SEQUENCE_BITS) - 1);
        Progress { generation: word >> SEQUENCE_BITS, sequence }
    }
}

/// Settings of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The log that the files belong to.
    pub identity: Identity,
    /// Whether there must be a log.
    pub expected: Expected,
    /// How much it must have at least, if that is known.
    pub progress: Progress,
    /// Treatment of records that are damaged or missing.
    pub damage: Damage,
    /// When records are flushed to the device.
    pub sync: Sync,
    /// How far files are preallocated; `STEP_BYTES` except in tests.
    pub step_bytes: u64,
}

/// Purpose of the requested space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// Anything.
    Any,
    /// A request that frees space: it may use the spare space.
    Freeing,
    /// A request that only reads: all that is left.
    Reading,
}

/// A log open for appending.
pub struct Journal<F: Files = RealFiles> {
    files: F,
    options: Options,
    generation: u64,
    current: LogFile<F::File>,
    next: Option<LogFile<F::File>>,
    /// Bytes kept for removals beyond `SPARE_BYTES`.
    removal_bytes: u64,
}

/// A log open for reading.
pub struct Replay<F: Files = RealFiles> {
    files: F,
    options: Options,
    generation: u64,
    /// The file is missing, or older than the last one: nobody knows how many records that had.
    is_incomplete: bool,
    reading: Option<Reading<F::File>>,
}

fn name_of(generation: u64) -> String {
    format!("log-{generation:08}")
}

fn generation_of(name: &str) -> Option<u64> {
    let generation = name.strip_prefix("log-")?.parse().ok()?;
    (name_of(generation) == name).then_some(generation)
}

impl Options {
    const fn durability(&self) -> Durability {
        match self.sync {
            Sync::Never => Durability::Written,
            Sync::Group => Durability::Flushed,
        }
    }
}

impl Journal<RealFiles> {
    /// Opens the log in `directory`, which exists and belongs to this log alone.
    ///
    /// # Errors
    /// The device's error; `Corrupt` if the file has no head, `Foreign` if it is of another log,
    /// `Missing` or `Old` if the expected log is not there.
    pub fn open(directory: &Path, options: Options) -> Result<Replay<RealFiles>> {
        Replay::open(RealFiles::new(directory), options)
    }
}

impl<F: Files> Replay<F> {
    /// Opens a log in any directory, and removes files of it that were replaced or never finished.
    ///
    /// # Errors
    /// See `Journal::open`.
    pub fn open(files: F, options: Options) -> Result<Replay<F>> {
        let mut replay = Replay::inspect(files, options)?;
        let Replay { files, generation, .. } = &mut replay;
        let root = files.path("");
        let fail = |errno| Error::new("open the log", &root, Kind::Device(errno));
        for name in &files.names().map_err(fail)? {
            let is_old = generation_of(name).is_some_and(|other| other < *generation);
            let is_unfinished = name.strip_suffix(SUFFIX_NEW).and_then(generation_of).is_some();
            if is_old || is_unfinished {
                files.remove(name).map_err(fail)?;
            }
        }
        Ok(replay)
    }

    /// Opens a log to read it only: nothing is changed, not even what the next start would remove.
    ///
    /// # Errors
    /// See `Journal::open`.
    pub fn inspect(mut files: F, options: Options) -> Result<Replay<F>> {
        let root = files.path("");
        let fail = |errno| Error::new("open the log", &root, Kind::Device(errno));
        let names = files.names().map_err(fail)?;
        let generation = names.iter().filter_map(|name| generation_of(name)).max().unwrap_or(0);
        let is_missing = generation == 0 && options.expected == Expected::Existing;
        let expected = options.progress.generation;
        let is_old = generation < expected;
        if options.damage == Damage::Refuse && (is_old || is_missing) {
            let path = files.path(&name_of(expected.max(1)));
            let kind = match generation {
                0 => Kind::Missing,
                found => Kind::Old { found, expected },
            };
            return Err(Error::new("open the log", &path, kind));
        }
        let mut reading = None;
        if generation > 0 {
            let name = name_of(generation);
            let file = files.open(&name).map_err(fail)?;
            let head = Head { generation, identity: options.identity };
            reading = Some(Reading::open(file, &files.path(&name), &head, options.damage)?);
        }
        let is_incomplete = is_old || is_missing;
        Ok(Replay { files, options, generation, is_incomplete, reading })
    }

    /// The next record, `None` after the last.
    ///
    /// # Errors
    /// `Corrupt` names the file and the offset. The records returned before are good; nothing
    /// behind it is returned. `Old`: records are missing that were appended.
    #[expect(clippy::should_implement_trait, reason = "a record borrows from the replay")]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        let Some(reading) = &mut self.reading else { return Ok(None) };
        let Progress { generation, sequence } = self.options.progress;
        if !reading.advance(self.options.damage)? {
            if self.generation == generation && reading.sequence() < sequence {
                match self.options.damage {
                    Damage::Refuse => return Err(reading.too_short(sequence)),
                    Damage::Skip => reading.note_short(sequence),
                }
            }
            return Ok(None);
        }
        Ok(Some(reading.record()))
    }

    /// After `next` returned `None`: the records that were skipped.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        let reading = self.reading.as_ref();
        let mut gaps = reading.map_or(Vec::new(), |reading| reading.gaps().to_vec());
        if self.is_incomplete {
            let (offset, read) = reading.map_or((0, 0), |it| (it.position(), it.sequence()));
            gaps.push(Gap { offset, first: read + 1, last: Gap::UNKNOWN });
        }
        gaps
    }

    /// Path of the file that is read, or that is missing.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let missing = self.options.progress.generation.max(1);
        self.files.path(&name_of(if self.generation == 0 { missing } else { self.generation }))
    }

    /// After `next` returned `None`: bytes behind the last record that were no record.
    #[must_use]
    pub fn torn_bytes(&self) -> u64 {
        self.reading.as_ref().map_or(0, Reading::torn_bytes)
    }

    /// Switches to appending; records not read yet are read and checked.
    ///
    /// # Errors
    /// The device's error; `Corrupt`.
    pub fn into_journal(mut self) -> Result<Journal<F>> {
        while self.next()?.is_some() {}
        let Replay { mut files, options, mut generation, reading, .. } = self;
        let current = match reading {
            Some(reading) => reading.into_log_file(options.durability(), options.step_bytes)?,
            None => {
                // Never the number of a file that is missing.
                generation = options.progress.generation + 1;
                let mut first = begin(&mut files, generation, &options)?;
                install(&mut files, &mut first, generation, &options)?;
                first
            }
        };
        Ok(Journal { files, options, generation, current, next: None, removal_bytes: 0 })
    }
}

/// Creates the file of a generation, not under its final name yet.
fn begin<F: Files>(files: &mut F, generation: u64, options: &Options) -> Result<LogFile<F::File>> {
    let name = format!("{}{SUFFIX_NEW}", name_of(generation));
    let path = files.path(&name);
    let made = files.create(&name);
    let file = made.map_err(|errno| Error::new("make a log file", &path, Kind::Device(errno)))?;
    let head = Head { generation, identity: options.identity };
    LogFile::begin(file, &path, &head, options.durability(), options.step_bytes)
}

/// Gives a finished file its name. With `Sync::Group` the content is flushed first, and the name
/// before anything that it replaces is removed.
fn install<F: Files>(
    files: &mut F,
    file: &mut LogFile<F::File>,
    generation: u64,
    options: &Options,
) -> Result<()> {
    if options.sync == Sync::Group {
        file.sync()?;
    }
    let name = name_of(generation);
    let path = files.path(&name);
    let fail = |errno| Error::new("name a log file", &path, Kind::Device(errno));
    files.rename(&format!("{name}{SUFFIX_NEW}"), &name).map_err(fail)?;
    file.renamed(&path);
    if options.sync == Sync::Group {
        files.sync().map_err(fail)?;
    }
    Ok(())
}

impl<F: Files> Journal<F> {
    /// Length of the log: the bytes that a replay reads.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.current.position()
    }

    /// How far the log has come: what the next start must find.
    #[must_use]
    pub const fn progress(&self) -> Progress {
        Progress { generation: self.generation, sequence: self.current.sequence() }
    }

    /// Keeps this much space for removals: on a full device everything can be removed.
    pub const fn keep_for_removals(&mut self, bytes: u64) {
        self.removal_bytes = bytes;
    }

    /// Makes sure that records of `bytes` in all, each counted with `record::OVERHEAD_BYTES`, can
    /// be appended. To be called before the change that needs them.
    ///
    /// # Errors
    /// `ENOSPC`: refuse the request. The log stays as it is.
    pub fn reserve(&mut self, bytes: u64, what: For) -> Result<()> {
        let spare = match what {
            For::Any => SPARE_BYTES.saturating_add(self.removal_bytes),
            For::Freeing => READING_BYTES,
            For::Reading => 0,
        };
        let needed = bytes.saturating_add(spare);
        let step = self.options.step_bytes;
        if let Some(next) = &mut self.next
            && next.reserve(needed, step).is_err()
        {
            // Two logs do not fit. The old one is whole; a later rewrite may find space.
            self.abandon_rewrite();
        }
        self.current.reserve(needed, step)
    }

    /// Appends one record. It survives the death of the daemon once this returns.
    ///
    /// # Errors
    /// `ENOSPC` if nothing was reserved and the device is full: the record is not in the log. After
    /// any other error the log accepts nothing more.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let stored = crate::record::bytes_stored(bytes.len());
        if self.current.bytes_free() < stored {
            self.reserve(stored, For::Reading)?;
        }
        self.current.append(bytes)?;
        if let Some(next) = &mut self.next {
            let reserved = next.reserve(stored, self.options.step_bytes);
            if reserved.and_then(|()| next.append(bytes)).is_err() {
                self.abandon_rewrite();
            }
        }
        Ok(())
    }

    /// With `Sync::Group`, flushes the appended records to the device; else does nothing.
    ///
    /// # Errors
    /// The device's error. Nothing since the last `commit` may be acknowledged, and the log accepts
    /// nothing more until it was reopened.
    pub fn commit(&mut self) -> Result<()> {
        match self.options.sync {
            Sync::Never => Ok(()),
            Sync::Group => self.current.sync(),
        }
    }

    /// True between `begin_rewrite` and its end, successful or not.
    #[must_use]
    pub const fn is_rewriting(&self) -> bool {
        self.next.is_some()
    }

    /// Begins a new generation. From now on records go to both, and the caller appends, slice by
    /// slice, a snapshot of its whole state.
    ///
    /// # Errors
    /// The device's error; then there is no new generation.
    pub fn begin_rewrite(&mut self) -> Result<()> {
        self.abandon_rewrite();
        let begun = begin(&mut self.files, self.generation + 1, &self.options);
        match begun {
            Ok(next) => self.next = Some(next),
            Err(error) => {
                self.remove_new();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Appends a part of the snapshot: a state as it is now. Does nothing if no rewrite is in
    /// progress.
    ///
    /// # Errors
    /// The device's error; then the rewrite is abandoned.
    pub fn append_snapshot(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(next) = &mut self.next else { return Ok(()) };
        let stored = crate::record::bytes_stored(bytes.len());
        let reserved = next.reserve(stored, self.options.step_bytes);
        let appended = reserved.and_then(|()| next.append(bytes));
        if appended.is_err() {
            self.abandon_rewrite();
        }
        appended
    }

    /// The snapshot is complete: the new generation replaces the old. Does nothing if no rewrite is
    /// in progress.
    ///
    /// # Errors
    /// The device's error. The old file goes on, unless a flush of the directory failed: then the
    /// log accepts nothing more until it was reopened.
    pub fn finish_rewrite(&mut self) -> Result<()> {
        let Some(mut next) = self.next.take() else { return Ok(()) };
        let generation = self.generation + 1;
        let installed = install(&mut self.files, &mut next, generation, &self.options);
        if let Err(error) = installed {
            let names = self.files.names().unwrap_or_default();
            if names.contains(&name_of(generation)) {
                // It has its name, but perhaps not after the node died: neither file is sure to be
                // the one that is read, so neither may take more records.
                self.current.poison();
            } else {
                self.remove_new();
            }
            return Err(error);
        }
        let old = name_of(self.generation);
        self.current = next;
        self.generation = generation;
        // If it stays, the next start removes it.
        let _ = self.files.remove(&old);
        Ok(())
    }

    /// Abandons a rewrite.
    pub fn abandon_rewrite(&mut self) {
        if self.next.take().is_some() {
            self.remove_new();
        }
    }

    fn remove_new(&mut self) {
        let name = format!("{}{SUFFIX_NEW}", name_of(self.generation + 1));
        // If it stays, the next start removes it.
        let _ = self.files.remove(&name);
    }
}
