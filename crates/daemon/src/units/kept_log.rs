//! The log of what this daemon keeps of its copies of units: each step of `replicas::kept`, in its place.
//!
//! It is in the directory `units` beside the logs of services, survives the daemon as these do, and not
//! its host. How far it has come is a word in shared memory, so an older file is not taken for it.
//!
//! Content of a record, after its kind:
//!
//! | kind | content |
//! |---|---|
//! | 0 | steps, until the end: unit:u32 step |
//! | 1 | unit:u32, of which nothing is kept any more |
//! | 2 | unit:u32 object range: bytes that no copy has with a correct checksum |
//! | 3 | unit:u32 object range: there are bytes again, or none at all |
//!
//! Records hold changes. A log that is rewritten gets, between the new steps, units as a whole: what a
//! record before has of a unit does not count. A step of a unit that is not there is left out: it was
//! made before the unit's turn.
//!
//! Invariants
//! 1. Steps between two calls of `flush` are one record, so they are there together or not at all.
//! 2. A unit as a whole is written without a step in between.

use super::object::{StripeBytes, objects_at};
use super::spoiled::SpoiledRanges;
use encoding::{Decode as _, Encode as _};
use replicas::kept::{Kept, KeptStep};
use replicas::operation::{ByteRange, Object};
use replicas::placement::UnitIndex;
use shm::Segment;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Release};
use store::journal::{Progress, STEP_BYTES};
use store::log_file::Gap;
use store::medium::{Files, RealFiles};
use store::record::RECORD_BYTES_MAX;
use store::{Damage, Expected, Identity, Journal, Kind, Options, Replay, Sync};
use wire::Inode;
use wire::codec::{Malformed, Reader};

/// A log shorter than this is not rewritten.
const REWRITE_BYTES_MIN: u64 = 16 << 20;
/// A log is rewritten when it is this many times as long as after the last time.
const REWRITE_FACTOR: u64 = 4;
/// Worker in the identity of the log: no worker of a daemon has this number.
const LOG_OF_UNITS: u16 = 0xfffe;

const STEPS: u8 = 0;
const GONE: u8 = 1;
const SPOILED: u8 = 2;
const MENDED: u8 = 3;

/// The kept state of each unit.
pub(super) type KeptUnits = BTreeMap<UnitIndex, Kept>;

/// See the module.
pub(super) struct KeptLog<F: Files = RealFiles> {
    journal: Journal<F>,
    spoiled: SpoiledRanges,
    /// The record that is put together; empty: none.
    record: Vec<u8>,
    step: Vec<u8>,
    progress: Segment,
    /// Units that are to be written as a whole, while the log is rewritten.
    left: VecDeque<UnitIndex>,
    /// Length of the log after it was rewritten last.
    live_bytes: u64,
    rewrite_bytes_min: u64,
}

/// Where a log is, whose it is, and how far it has come.
pub(super) struct KeptLogPlace<F: Files = RealFiles> {
    pub(super) files: F,
    /// For messages.
    pub(super) path: PathBuf,
    /// Of the daemon.
    pub(super) identity: Identity,
    pub(super) expected: Expected,
    /// One word that outlives the daemon and not its host.
    pub(super) progress: Segment,
    /// How far files are preallocated; `STEP_BYTES` except in tests.
    pub(super) step_bytes: u64,
}

impl KeptLogPlace {
    /// The log of a daemon with its files in `data`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(super) fn in_directory(
        data: &Path,
        identity: Identity,
        expected: Expected,
        progress: Segment,
    ) -> store::Result<KeptLogPlace> {
        let path = data.join("units");
        store::directory::create(&path)?;
        let (files, step_bytes) = (RealFiles::new(&path), STEP_BYTES);
        Ok(KeptLogPlace { files, path, identity, expected, progress, step_bytes })
    }
}

impl<F: Files> KeptLog<F> {
    /// Opens the log, and reads what was kept.
    ///
    /// # Errors
    /// The device's error; `Corrupt`, `Missing` and others if it is not the log that was left.
    pub(super) fn open(place: KeptLogPlace<F>) -> store::Result<(KeptLog<F>, KeptUnits)> {
        let KeptLogPlace { files, path, identity, expected, progress, step_bytes } = place;
        let options = Options {
            identity: identity.of_worker(LOG_OF_UNITS),
            expected,
            progress: Progress::from_word(word(&progress, &path)?.load(Acquire)),
            damage: Damage::Refuse,
            sync: Sync::Never,
            step_bytes,
        };
        let mut replay = Replay::open(files, options)?;
        let (mut units, mut spoiled) = (KeptUnits::new(), SpoiledRanges::default());
        let mut records = 0;
        while let Some(record) = replay.next()? {
            records += 1;
            let wrong = Kind::Corrupt { offset: 0, sequence: records };
            apply(record, &mut units, &mut spoiled)
                .map_err(|_| store::Error::new("read a step of a unit", &path, wrong))?;
        }
        let journal = replay.into_journal()?;
        // Nobody knows how much of it lives.
        let (live_bytes, rewrite_bytes_min) = (0, REWRITE_BYTES_MIN);
        let (record, step, left) = (Vec::new(), Vec::new(), VecDeque::new());
        let log = KeptLog {
            journal,
            spoiled,
            record,
            step,
            progress,
            left,
            live_bytes,
            rewrite_bytes_min,
        };
        log.note_progress();
        Ok((log, units))
    }

    /// The word in shared memory.
    #[cfg(test)]
    pub(super) fn progress_word(&self) -> u64 {
        self.progress.word64(0).map_or(0, |word| word.load(Acquire))
    }

    fn note_progress(&self) {
        if let Ok(word) = self.progress.word64(0) {
            word.store(self.journal.progress().to_word(), Release);
        }
    }

    /// A step of a unit. It is stored when `flush` returns.
    ///
    /// # Errors
    /// The device's error: nothing that follows may be done.
    pub(super) fn put(&mut self, unit: UnitIndex, step: &KeptStep) -> store::Result<()> {
        self.step.clear();
        put_step(unit, step, &mut self.step);
        if self.record.len() + self.step.len() > RECORD_BYTES_MAX {
            self.flush()?;
        }
        if self.record.is_empty() {
            self.record.push(STEPS);
        }
        self.record.extend_from_slice(&self.step);
        Ok(())
    }

    /// Nothing is kept of a unit any more.
    ///
    /// # Errors
    /// As for `put`.
    pub(super) fn forget_unit(&mut self, unit: UnitIndex) -> store::Result<()> {
        self.flush()?;
        self.spoiled.forget(unit);
        self.record.push(GONE);
        unit.0.encode(&mut self.record);
        self.flush()
    }

    /// No copy has these bytes with a correct checksum.
    ///
    /// # Errors
    /// As for `put`.
    pub(super) fn spoil(
        &mut self,
        unit: UnitIndex,
        object: Object,
        range: ByteRange,
    ) -> store::Result<()> {
        self.flush()?;
        self.spoiled.spoil(unit, object, range);
        put_range(SPOILED, unit, (object, range), &mut self.record);
        self.flush()
    }

    /// There are bytes again, or none at all.
    ///
    /// # Errors
    /// As for `put`.
    pub(super) fn mend(
        &mut self,
        unit: UnitIndex,
        object: Object,
        range: ByteRange,
    ) -> store::Result<()> {
        if !self.spoiled.overlaps(unit, object, range) {
            return Ok(());
        }
        self.flush()?;
        self.spoiled.mend(unit, object, range);
        put_range(MENDED, unit, (object, range), &mut self.record);
        self.flush()
    }

    /// Whether reading these bytes is an error.
    pub(super) fn is_spoiled(&self, unit: UnitIndex, object: Object, range: ByteRange) -> bool {
        self.spoiled.overlaps(unit, object, range)
    }

    /// Stores the steps since the last call.
    ///
    /// # Errors
    /// As for `put`.
    pub(super) fn flush(&mut self) -> store::Result<()> {
        if self.record.is_empty() {
            return Ok(());
        }
        self.journal.append(&self.record)?;
        self.record.clear();
        self.note_progress();
        Ok(())
    }

    /// Goes on with the rewriting of a log that has become long: writes one unit as it is now. Nothing
    /// waits to be flushed.
    pub(super) fn tidy(&mut self, units: &KeptUnits) {
        if !self.journal.is_rewriting() && !self.left.is_empty() {
            // The journal gave it up, where a record found no space for two files.
            self.left.clear();
            self.live_bytes = self.journal.bytes();
        }
        let longest = self.rewrite_bytes_min.max(self.live_bytes.saturating_mul(REWRITE_FACTOR));
        if !self.journal.is_rewriting() && self.journal.bytes() <= longest {
            return;
        }
        if let Err(error) = self.rewrite_one(units) {
            tracing::warn!(%error, "cannot rewrite the log of units");
            self.journal.abandon_rewrite();
            self.left.clear();
            // It is tried again when it has grown further.
            self.live_bytes = self.journal.bytes();
        }
    }

    fn rewrite_one(&mut self, units: &KeptUnits) -> store::Result<()> {
        if !self.journal.is_rewriting() {
            self.journal.begin_rewrite()?;
            self.left = units.keys().copied().collect();
        }
        let next = self.left.pop_front();
        let Some(unit) = next else {
            let before = self.journal.bytes();
            self.journal.finish_rewrite()?;
            self.note_progress();
            self.live_bytes = self.journal.bytes();
            tracing::info!(before, after = self.live_bytes, "log of units rewritten");
            return Ok(());
        };
        for step in units.get(&unit).into_iter().flat_map(Kept::snapshot) {
            self.step.clear();
            self.step.push(STEPS);
            put_step(unit, &step, &mut self.step);
            self.journal.append_snapshot(&self.step)?;
        }
        for of_object in self.spoiled.of(unit) {
            self.step.clear();
            put_range(SPOILED, unit, of_object, &mut self.step);
            self.journal.append_snapshot(&self.step)?;
        }
        Ok(())
    }
}

/// The contents of a log of units, for a check: nothing is changed, and the daemon may run meanwhile.
#[derive(Default)]
pub(crate) struct FoundUnits {
    units: KeptUnits,
    spoiled: SpoiledRanges,
    /// Its file, or its directory where there is none.
    pub(crate) file: PathBuf,
    /// Whole records.
    pub(crate) records: u64,
    pub(crate) gaps: Vec<Gap>,
    /// Numbers of whole records that are none of this version.
    pub(crate) unreadable: Vec<u64>,
}

impl FoundUnits {
    /// The units of which there is a copy.
    pub(crate) fn units(&self) -> impl Iterator<Item = u32> {
        self.units.keys().map(|unit| unit.0)
    }

    /// Bytes of files that no copy has with a correct checksum.
    pub(crate) fn spoiled(&self) -> impl Iterator<Item = StripeBytes> {
        let ranges = self.units.keys().flat_map(|unit| self.spoiled.of(*unit));
        ranges.filter_map(|(object, range)| StripeBytes::of(object, range))
    }

    /// The unit that has this byte of a file here.
    pub(crate) fn unit_of(&self, inode: Inode, offset: u64) -> Option<u32> {
        objects_at(&self.units, inode, offset).next().map(|(unit, _, _)| unit.0)
    }
}

/// Reads the log of units of a daemon with its files in `data`, which has come as far as `progress` at
/// least.
///
/// # Errors
/// The device's error.
pub(crate) fn inspect(
    data: &Path,
    identity: Identity,
    progress: Progress,
) -> store::Result<FoundUnits> {
    let directory = data.join("units");
    let missing = Gap { offset: 0, first: 1, last: Gap::UNKNOWN };
    if !directory.exists() {
        let (file, gaps) = (directory, vec![missing]);
        return Ok(FoundUnits { file, gaps, ..FoundUnits::default() });
    }
    let options = Options {
        identity: identity.of_worker(LOG_OF_UNITS),
        expected: Expected::Existing,
        progress,
        damage: Damage::Skip,
        sync: Sync::Never,
        step_bytes: STEP_BYTES,
    };
    let mut replay = Replay::inspect(<RealFiles>::new(&directory), options)?;
    let mut found = FoundUnits::default();
    while let Some(record) = replay.next()? {
        found.records += 1;
        if apply(record, &mut found.units, &mut found.spoiled).is_err() {
            found.unreadable.push(found.records);
        }
    }
    (found.gaps, found.file) = (replay.gaps(), replay.path());
    Ok(found)
}

fn word<'a>(progress: &'a Segment, path: &Path) -> store::Result<&'a std::sync::atomic::AtomicU64> {
    let fail =
        |errno| store::Error::new("find how far the log has come", path, Kind::Device(errno));
    progress.word64(0).map_err(fail)
}

fn put_step(unit: UnitIndex, step: &KeptStep, to: &mut Vec<u8>) {
    unit.0.encode(to);
    step.encode(to);
}

fn put_range(kind: u8, unit: UnitIndex, of: (Object, ByteRange), to: &mut Vec<u8>) {
    to.push(kind);
    unit.0.encode(to);
    of.encode(to);
}

/// Does what a record says.
fn apply(
    record: &[u8],
    units: &mut KeptUnits,
    spoiled: &mut SpoiledRanges,
) -> Result<(), Malformed> {
    let mut reader = Reader::new(record);
    let kind = reader.u8()?;
    match kind {
        STEPS => {
            while !reader.rest().is_empty() {
                let (unit, step) = (UnitIndex(reader.u32()?), KeptStep::decode(&mut reader)?);
                let begins = matches!(step, KeptStep::New { .. } | KeptStep::Whole(_));
                if begins {
                    units.entry(unit).or_default();
                    spoiled.forget(unit);
                }
                if let Some(kept) = units.get_mut(&unit) {
                    kept.apply(&step);
                }
            }
            Ok(())
        }
        GONE => {
            let unit = UnitIndex(reader.u32()?);
            units.remove(&unit);
            spoiled.forget(unit);
            reader.end()
        }
        SPOILED | MENDED => {
            let unit = UnitIndex(reader.u32()?);
            let (object, range) = <(Object, ByteRange)>::decode(&mut reader)?;
            if kind == SPOILED && units.contains_key(&unit) {
                spoiled.spoil(unit, object, range);
            } else {
                spoiled.mend(unit, object, range);
            }
            reader.end()
        }
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests;
