//! The log of one worker's metadata service: a directory with one file of records, the generation,
//! and now and then a second one that will take its place.
//!
//! Records hold absolute states, so a log can be rewritten while it is in use: the new generation
//! gets, in slices, a snapshot of everything, and meanwhile every live record as well as the old.
//! When all is there the new file gets its name, and only then the old one is removed.
//!
//!   one generation --begin_rewrite--> two    `Journal::begin_rewrite`   file `log-<g+1>.new`
//!   two --the new one fails--> one           `Journal::abandon_rewrite` the old one goes on
//!   two --all is written--> one              `Journal::finish_rewrite`  renamed to `log-<g+1>`
//!
//! Invariants:
//!  1. At any time the file `log-<g>` with the highest number holds every record that was appended,
//!     or a state that is newer.
//!  2. Space for a record is there before it is acknowledged: `reserve` comes before the work.
//!  3. With `Sync::Group` a record is safe from the death of the node when `commit` returned.

use crate::error::{Error, Kind, Result};
use crate::log_file::{Keeps, LogFile, Reading};
use crate::medium::{Files, RealFiles};
use std::path::Path;

/// Bytes of the log that only what frees space may use, so that a full device can be emptied.
pub const SPARE_BYTES: u64 = 1 << 20;
/// How far a log file is preallocated ahead: 80,000 records of 200 bytes. Each step costs one
/// `fallocate` and one mapping, 0.4 ms together.
pub const STEP_BYTES: u64 = 16 << 20;

const SUFFIX_NEW: &str = ".new";

/// When are records forced to the device?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// Never: they survive the death of the daemon, not of the node.
    Never,
    /// All that were appended since, by each `commit`.
    Group,
}

/// How a log is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// When records are forced to the device.
    pub sync: Sync,
    /// How far files are preallocated; `STEP_BYTES` but in tests.
    pub step_bytes: u64,
}

/// What space is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// Anything.
    Any,
    /// Something that makes room: it may use the last of it.
    Freeing,
}

/// A log that is appended to.
pub struct Journal<F: Files = RealFiles> {
    files: F,
    options: Options,
    generation: u64,
    current: LogFile<F::File>,
    next: Option<LogFile<F::File>>,
}

/// A log that is read.
pub struct Replay<F: Files = RealFiles> {
    files: F,
    options: Options,
    generation: u64,
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
    const fn keeps(&self) -> Keeps {
        match self.sync {
            Sync::Never => Keeps::Written,
            Sync::Group => Keeps::Flushed,
        }
    }
}

impl Journal<RealFiles> {
    /// Opens the log in `directory`, which exists and belongs to this log alone.
    ///
    /// # Errors
    /// What the device says; `Corrupt` if the file has no head.
    pub fn open(directory: &Path, options: Options) -> Result<Replay<RealFiles>> {
        Replay::open(RealFiles::new(directory), options)
    }
}

impl<F: Files> Replay<F> {
    /// Opens a log in any directory.
    ///
    /// # Errors
    /// See `Journal::open`.
    pub fn open(mut files: F, options: Options) -> Result<Replay<F>> {
        let root = files.path("");
        let fail = |errno| Error::new("open the log", &root, Kind::Device(errno));
        let names = files.names().map_err(fail)?;
        let generation = names.iter().filter_map(|name| generation_of(name)).max().unwrap_or(0);
        // What is older was replaced, and what is `.new` was never finished.
        for name in &names {
            let is_old = generation_of(name).is_some_and(|other| other < generation);
            let is_unfinished = name.strip_suffix(SUFFIX_NEW).and_then(generation_of).is_some();
            if is_old || is_unfinished {
                files.remove(name).map_err(fail)?;
            }
        }
        let mut reading = None;
        if generation > 0 {
            let name = name_of(generation);
            let file = files.open(&name).map_err(fail)?;
            reading = Some(Reading::open(file, &files.path(&name), generation)?);
        }
        Ok(Replay { files, options, generation, reading })
    }

    /// The next record, `None` after the last.
    ///
    /// # Errors
    /// `Corrupt` names the file and the offset. What was given before is good; nothing that lies
    /// behind is given.
    #[expect(clippy::should_implement_trait, reason = "a record borrows from the replay")]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        match &mut self.reading {
            Some(reading) => reading.next(),
            None => Ok(None),
        }
    }

    /// Goes on to appending; what was not read yet is read and checked.
    ///
    /// # Errors
    /// What the device says; `Corrupt`.
    pub fn into_journal(mut self) -> Result<Journal<F>> {
        while self.next()?.is_some() {}
        let Replay { mut files, options, mut generation, reading } = self;
        let current = match reading {
            Some(reading) => reading.into_log_file(options.keeps(), options.step_bytes)?,
            None => {
                generation = 1;
                let mut first = begin(&mut files, generation, &options)?;
                install(&mut files, &mut first, generation, &options)?;
                first
            }
        };
        Ok(Journal { files, options, generation, current, next: None })
    }
}

/// Begins the file of a generation, not under its name yet.
fn begin<F: Files>(files: &mut F, generation: u64, options: &Options) -> Result<LogFile<F::File>> {
    let name = format!("{}{SUFFIX_NEW}", name_of(generation));
    let path = files.path(&name);
    let made = files.create(&name);
    let file = made.map_err(|errno| Error::new("make a log file", &path, Kind::Device(errno)))?;
    LogFile::begin(file, &path, generation, options.keeps(), options.step_bytes)
}

/// Gives a finished file its name. With `Sync::Group` the content comes to the device first, and
/// the name before anything is removed that it replaces.
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
    /// Length of the log: what a replay reads.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.current.position()
    }

    /// Sees to it that records of `bytes` in all, each counted with `record::OVERHEAD_BYTES`, can
    /// be appended. To be asked before a change is made that needs them.
    ///
    /// # Errors
    /// `ENOSPC`: refuse the request. The log stays as it is.
    pub fn reserve(&mut self, bytes: u64, what: For) -> Result<()> {
        let spare = if what == For::Any { SPARE_BYTES } else { 0 };
        let wanted = bytes.saturating_add(spare);
        let step = self.options.step_bytes;
        if let Some(next) = &mut self.next
            && next.reserve(wanted, step).is_err()
        {
            // Two logs do not fit. The old one is whole; a later rewrite may find room.
            self.abandon_rewrite();
        }
        self.current.reserve(wanted, step)
    }

    /// Appends one record. It survives the death of the daemon when this returns.
    ///
    /// # Errors
    /// `ENOSPC` if nothing was reserved and the device is full: the record is not in the log. Any
    /// other error: the log takes nothing more.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let stored = crate::record::bytes_stored(bytes.len());
        if self.current.room() < stored {
            self.reserve(stored, For::Freeing)?;
        }
        self.current.append(bytes)?;
        if let Some(next) = &mut self.next {
            let room = next.reserve(stored, self.options.step_bytes);
            if room.and_then(|()| next.append(bytes)).is_err() {
                self.abandon_rewrite();
            }
        }
        Ok(())
    }

    /// With `Sync::Group`, forces what was appended to the device; else does nothing.
    ///
    /// # Errors
    /// What the device says. Nothing since the last `commit` may be acknowledged, and the log takes
    /// nothing more until it was opened anew.
    pub fn commit(&mut self) -> Result<()> {
        match self.options.sync {
            Sync::Never => Ok(()),
            Sync::Group => self.current.sync(),
        }
    }

    /// True between `begin_rewrite` and its end, be it a failure.
    #[must_use]
    pub const fn is_rewriting(&self) -> bool {
        self.next.is_some()
    }

    /// Begins a new generation. From now on records go to both, and the caller appends, slice by
    /// slice, a snapshot of all that it holds.
    ///
    /// # Errors
    /// What the device says; then there is no new generation.
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

    /// Appends a part of the snapshot: a state as it is now. Does nothing if there is no rewrite
    /// (any more).
    ///
    /// # Errors
    /// What the device says; then the rewrite is abandoned.
    pub fn append_snapshot(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(next) = &mut self.next else { return Ok(()) };
        let stored = crate::record::bytes_stored(bytes.len());
        let room = next.reserve(stored, self.options.step_bytes);
        let appended = room.and_then(|()| next.append(bytes));
        if appended.is_err() {
            self.abandon_rewrite();
        }
        appended
    }

    /// The snapshot is whole: the new generation takes the place of the old. Does nothing if there
    /// is no rewrite (any more).
    ///
    /// # Errors
    /// What the device says. The old file goes on, unless a flush of the directory failed: then
    /// the log takes nothing more until it was opened anew.
    pub fn finish_rewrite(&mut self) -> Result<()> {
        let Some(mut next) = self.next.take() else { return Ok(()) };
        let generation = self.generation + 1;
        let installed = install(&mut self.files, &mut next, generation, &self.options);
        if let Err(error) = installed {
            let names = self.files.names().unwrap_or_default();
            if names.contains(&name_of(generation)) {
                // It has its name, but perhaps not after the node's death: neither file is sure to
                // be the one that is read, so neither may take more.
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

    /// Ends a rewrite without a result.
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
