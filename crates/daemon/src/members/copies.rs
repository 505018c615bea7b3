//! The copies of services that this daemon follows: one journal for each, beside its own logs, in
//! `copy-d<first owner>w<worker>`. A journal has the records of the owner in their order, so it is
//! replayed as the owner's log is.
//!
//! How far a copy has come is in shared memory, which outlives the daemon and not its host, as the
//! journals do: a daemon that starts again gets the records since, one on another host everything.
//!
//! | offset in an entry | bytes | contents |
//! |---|---|---|
//! | 0 | 8 | epoch of the owner; 0: the copy is no state of a log |
//! | 8 | 8 | records of that owner |
//! | 16 | 8 | progress of the journal, `store::journal::Progress` |
//! | 24 | 8 | bytes of the journal after its last snapshot |
//!
//! A copy with which this daemon becomes the owner is the service's log from then on. Its entry has this
//! daemon's epoch then, with the highest bit: a daemon that starts again does not follow with it, and
//! goes on with it if it still is the owner. It is given up when another daemon owns the service. Its
//! records are appended by the service, which notes the progress.
//!
//! The state that the records give is kept, too (`followed`), so that a service goes on without a replay.
//!
//! A worker's service, too, is followed while another daemon owns it, and goes on from the copy. Its
//! first log, `log<worker>`, is given up like a copy that is owned: where it exists it is the log.
//!
//! Invariants
//! 1. Records are in the journal before the entry says so.
//! 2. The epoch is 0 before the journal becomes another state than a log's, and while it changes.
//! 3. One of the two has the journal open: this module, or the service.
//! 4. Where the first log of a worker's service exists this daemon is not in sync.

mod followed;

use crate::shared::log_progress::LogProgress;
use crate::shared::owners::{EarlierOwner, Numbers};
use cluster::membership::ServiceIndex;
use cluster::node::StandbyStep;
use cluster::shipping::owner::COPY_BYTES_MAX;
use cluster::shipping::{Position, records};
use followed::FollowedState;
use metadata::LoggedState;
use placement::ServiceName;
use shm::Segment;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use store::journal::{Progress, STEP_BYTES};
use store::medium::{Files, RealFiles};
use store::{Damage, Expected, For, Identity, Journal, Kind, Options, Replay, Sync};
use wire::errno::Result;

/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 32;
/// Offset of the progress in an entry.
const PROGRESS_OFFSET: usize = 16;
/// Bit of the epoch: the copy is a log of this daemon.
const IS_OWNED: u64 = 1 << 63;
/// A copy that is this many times as long as one may become is made anew: it was continued after many
/// starts, and no owner knows its length.
const TOO_LONG_FACTOR: u64 = 8;

/// See the module.
pub(crate) struct Copies {
    data: PathBuf,
    instance: u64,
    numbers: Numbers,
    entries: Arc<Segment>,
    journals: BTreeMap<ServiceIndex, CopiedLog>,
    /// Copies that are logs of this daemon, or were.
    owned: BTreeSet<ServiceIndex>,
    /// Copies with which services of workers are about to go on, each in an epoch.
    beginning: BTreeMap<ServiceIndex, u64>,
}

/// The log of a service that this daemon took over.
pub(crate) struct TakenLog {
    /// Its directory.
    pub(crate) directory: PathBuf,
    /// How it is opened.
    pub(crate) options: Options,
    /// Where the service notes how far it has come.
    pub(crate) progress: LogProgress,
    /// The daemon that owned the service before.
    pub(crate) earlier: EarlierOwner,
    /// The log, open, and its state, where this daemon followed it up to now: nothing is to be replayed.
    pub(crate) followed: Cell<Option<Box<FollowedLog>>>,
}

/// A log that is open, and the state that it gives.
pub(crate) struct FollowedLog {
    /// The log.
    pub(crate) journal: Journal,
    /// Its state.
    pub(crate) state: LoggedState,
}

/// The state of a copy as its entry has it, for a check: nothing is opened.
pub(crate) struct KnownCopy {
    /// Its epoch.
    pub(crate) epoch: u64,
    /// Whether it is a log of this daemon.
    pub(crate) is_owned: bool,
    /// How far it has come at least.
    pub(crate) progress: Progress,
}

impl KnownCopy {
    /// Of a service; `None`: what there is is no state of a log.
    pub(crate) fn of(entries: &Segment, service: ServiceIndex) -> Option<KnownCopy> {
        let offset = service.0 as usize * ENTRY_BYTES;
        let load = |at: usize| Some(entries.word64(offset + at).ok()?.load(Acquire));
        let epoch = load(0).filter(|&epoch| epoch > 0)?;
        let progress = Progress::from_word(load(PROGRESS_OFFSET)?);
        Some(KnownCopy { epoch: epoch & !IS_OWNED, is_owned: epoch & IS_OWNED != 0, progress })
    }
}

/// The directory of the copy of a service, in that of a daemon's data.
pub(crate) fn directory_of(data: &Path, ServiceName { first, worker }: ServiceName) -> PathBuf {
    data.join(format!("copy-d{}w{worker}", first.0))
}

/// One copy.
struct CopiedLog<F: Files = RealFiles> {
    journal: Journal<F>,
    /// Its bytes after the last snapshot.
    whole_bytes: u64,
    /// The state that its records give.
    state: FollowedState,
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CopyEntry {
    epoch: u64,
    records: u64,
    progress: Progress,
    whole_bytes: u64,
}

impl Copies {
    /// Of an instance with this number.
    pub(crate) fn new(
        data: PathBuf,
        (instance, numbers): (u64, Numbers),
        entries: Segment,
    ) -> Copies {
        let (entries, journals) = (Arc::new(entries), BTreeMap::new());
        let (owned, beginning) = (BTreeSet::new(), BTreeMap::new());
        Copies { data, instance, numbers, entries, journals, owned, beginning }
    }

    /// This daemon owns a service in this epoch, with the copy that it has: its log. `None`: it has no
    /// copy that is a state of a log.
    pub(crate) fn take_over(&mut self, service: ServiceIndex, epoch: u64) -> Option<TakenLog> {
        // From here on the service has it.
        let copy = self.journals.remove(&service);
        let word = self.word(service, 0).ok()?;
        let before = word.load(Acquire);
        // Of a worker's service whose first log is gone this is the log, also after the memory was lost.
        let is_log = || self.numbers.is_own(service) && !self.first_log(service).exists();
        if before == 0 && !(is_log() && self.directory(service).exists()) {
            return None;
        }
        let is_own = before == 0 || before & IS_OWNED != 0;
        let earlier = if is_own { EarlierOwner::This } else { EarlierOwner::Another };
        self.beginning.insert(service, epoch);
        if is_own || !self.numbers.is_own(service) {
            self.begins(service);
        }
        let offset = service.0 as usize * ENTRY_BYTES + PROGRESS_OFFSET;
        let progress = LogProgress::new(Arc::clone(&self.entries), offset);
        let options = self.options(service, Expected::Existing, progress.load().ok()?);
        let followed = copy.filter(|_| !is_own).and_then(CopiedLog::into_followed).map(Box::new);
        let followed = Cell::new(followed);
        Some(TakenLog { directory: self.directory(service), options, progress, earlier, followed })
    }

    /// A service is about to begin with the copy that this daemon has: it is its log from now on. Before,
    /// a start would find again that another daemon was the owner since (`EarlierOwner`).
    pub(crate) fn begins(&mut self, service: ServiceIndex) {
        let Some(epoch) = self.beginning.remove(&service) else { return };
        let _ = self.word(service, 0).map(|word| word.store(epoch | IS_OWNED, Release));
        self.owned.insert(service);
    }

    /// Opens the copies of earlier starts: their positions. Copies that cannot be used begin anew.
    pub(crate) fn open(&mut self, services: usize) -> Vec<(ServiceIndex, Position)> {
        let mut positions = Vec::new();
        for service in (0..services as u32).map(ServiceIndex) {
            let Some(entry) = self.entry(service) else {
                if self.word(service, 0).is_ok_and(|word| word.load(Acquire) & IS_OWNED != 0) {
                    self.owned.insert(service);
                }
                continue;
            };
            match self.open_copy(service, &entry) {
                Ok(()) => {
                    let CopyEntry { epoch, records, .. } = entry;
                    positions.push((service, Position { epoch, records, is_exact: false }));
                }
                Err(error) => {
                    tracing::warn!(%error, "a copy cannot be used, it is made anew");
                    self.forget(service);
                }
            }
        }
        positions
    }

    fn open_copy(&mut self, service: ServiceIndex, entry: &CopyEntry) -> store::Result<()> {
        let options = self.options(service, Expected::Existing, entry.progress);
        let files = RealFiles::new(&self.directory(service));
        let copy = CopiedLog::open(Replay::open(files, options)?, entry.whole_bytes)?;
        if copy.is_too_long() {
            // The journal is not used: `begin` makes another.
            self.forget(service);
            let path = self.directory(service);
            return Err(store::Error::new(
                "continue a copy",
                &path,
                Kind::Device(wire::Errno::EFBIG),
            ));
        }
        self.journals.insert(service, copy);
        Ok(())
    }

    fn directory(&self, service: ServiceIndex) -> PathBuf {
        directory_of(&self.data, self.numbers.service_name(service))
    }

    /// The log with which a worker's service began.
    fn first_log(&self, service: ServiceIndex) -> PathBuf {
        self.data.join(format!("log{}", self.numbers.service_name(service).worker))
    }

    fn options(&self, service: ServiceIndex, expected: Expected, progress: Progress) -> Options {
        let ServiceName { first, worker } = self.numbers.service_name(service);
        let identity = Identity::of_daemon(self.instance, first.0).of_worker(worker.into());
        let (damage, sync, step_bytes) = (Damage::Refuse, Sync::Never, STEP_BYTES);
        Options { identity, expected, progress, damage, sync, step_bytes }
    }

    /// Does a step of a copy.
    ///
    /// # Errors
    /// The device's error: the copy is of no use any more, and is closed.
    pub(crate) fn store(&mut self, service: ServiceIndex, step: &StandbyStep) -> store::Result<()> {
        let stored = self.try_store(service, step);
        if stored.is_err() {
            self.remove(service);
        }
        stored
    }

    /// Gives up a copy and its space.
    fn remove(&mut self, service: ServiceIndex) {
        self.forget(service);
        self.journals.remove(&service);
        let removed = store::directory::remove(&self.directory(service));
        if let Err(error) = removed {
            tracing::warn!(%error, "cannot remove a copy");
        }
    }

    /// Gives up the copies that are not needed, and returns their services.
    pub(super) fn keep_only(
        &mut self,
        is_needed: impl Fn(ServiceIndex) -> bool,
    ) -> Vec<ServiceIndex> {
        let gone = self.journals.keys().copied().filter(|&it| !is_needed(it)).collect::<Vec<_>>();
        gone.iter().for_each(|&service| self.remove(service));
        gone
    }

    /// A log of this daemon is a copy from now on, of this position: the service was handed over.
    pub(super) fn keep(&mut self, service: ServiceIndex, mut journal: Journal, position: Position) {
        // Only the service knew how many files it may have to remove.
        journal.keep_for_removals(0);
        let whole_bytes = journal.bytes();
        self.owned.remove(&service);
        let state = FollowedState::unknown();
        self.journals.insert(service, CopiedLog { journal, whole_bytes, state });
        self.note(service, Some(position));
    }

    /// Gives up a log that cannot be replayed, after another daemon has become the owner.
    pub(super) fn give_up(&mut self, service: ServiceIndex) {
        self.owned.remove(&service);
        self.beginning.remove(&service);
        if self.directory(service).exists() {
            self.remove(service);
        }
    }

    /// Gives up the logs of services that others own in an epoch after this daemon's, unless a thread of
    /// it still has one. True if one has.
    pub(crate) fn give_up_owned(
        &mut self,
        is_elsewhere: impl Fn(ServiceIndex, u64) -> bool,
        is_running: impl Fn(ServiceIndex) -> bool,
    ) -> bool {
        let epoch =
            |service| self.word(service, 0).map_or(0, |word| word.load(Acquire) & !IS_OWNED);
        let obsolete = self.owned.iter().copied().filter(|&it| is_elsewhere(it, epoch(it)));
        let (later, now): (Vec<_>, Vec<_>) = obsolete.partition(|&service| is_running(service));
        for service in now {
            self.owned.remove(&service);
            self.remove(service);
        }
        !later.is_empty()
    }

    /// The copy of a worker's service is complete: the log with which it began is of no use.
    fn remove_first_log(&self, service: ServiceIndex) -> store::Result<()> {
        let first_log = self.first_log(service);
        if !self.numbers.is_own(service) || !first_log.exists() {
            return Ok(());
        }
        tracing::info!(path = %first_log.display(), "another daemon went on: this log is removed");
        store::directory::remove(&first_log)
    }

    fn try_store(&mut self, service: ServiceIndex, step: &StandbyStep) -> store::Result<()> {
        if !self.journals.contains_key(&service) {
            if !matches!(step, StandbyStep::Begin) {
                // Records before a snapshot: the copy is no state of a log, and they come again.
                return Ok(());
            }
            let directory = self.directory(service);
            store::directory::create(&directory)?;
            store::directory::remove_contents(&directory)?;
            self.owned.remove(&service);
            self.beginning.remove(&service);
            let options = self.options(service, Expected::New, Progress::default());
            let copy = CopiedLog::open(Replay::open(RealFiles::new(&directory), options)?, 0)?;
            self.journals.insert(service, copy);
        }
        match self.journals.get_mut(&service) {
            Some(copy) => copy.store(step)?,
            None => return Ok(()),
        }
        match step {
            StandbyStep::Complete => self.remove_first_log(service),
            _ => Ok(()),
        }
    }

    /// Notes the position of a copy after its steps; `None`: it is no state of a log.
    pub(crate) fn note(&self, service: ServiceIndex, position: Option<Position>) {
        let copy = self.journals.get(&service);
        let (Some(position), Some(copy)) = (position, copy) else { return self.forget(service) };
        let entry = CopyEntry {
            epoch: position.epoch,
            records: position.records,
            progress: copy.journal.progress(),
            whole_bytes: copy.whole_bytes,
        };
        self.put(service, &entry);
    }

    /// The copy is no state of a log from now on.
    pub(crate) fn forget(&self, service: ServiceIndex) {
        let _ = self.word(service, 0).map(|word| word.store(0, Release));
    }

    fn word(&self, service: ServiceIndex, number: usize) -> Result<&AtomicU64> {
        self.entries.word64(service.0 as usize * ENTRY_BYTES + number * size_of::<u64>())
    }

    fn put(&self, service: ServiceIndex, entry: &CopyEntry) {
        let store = |number, value| {
            let _ = self.word(service, number).map(|word| word.store(value, Release));
        };
        let is_same = self.word(service, 0).is_ok_and(|word| word.load(Acquire) == entry.epoch);
        if !is_same {
            store(0, 0);
        }
        // Within an epoch each of them may be older than the others: the journal has more.
        store(2, entry.progress.to_word());
        store(3, entry.whole_bytes);
        store(1, entry.records);
        store(0, entry.epoch);
    }

    fn entry(&self, service: ServiceIndex) -> Option<CopyEntry> {
        let load = |number| self.word(service, number).ok().map(|word| word.load(Acquire));
        let epoch = load(0).filter(|&epoch| epoch > 0 && epoch & IS_OWNED == 0)?;
        let (records, progress) = (load(1)?, Progress::from_word(load(2)?));
        Some(CopyEntry { epoch, records, progress, whole_bytes: load(3)? })
    }

    /// Number of copies, and their bytes.
    pub(super) fn lengths(&self) -> (usize, u64) {
        (self.journals.len(), self.journals.values().map(|it| it.journal.bytes()).sum())
    }
}

impl<F: Files> CopiedLog<F> {
    fn open(mut replay: Replay<F>, whole_bytes: u64) -> store::Result<CopiedLog<F>> {
        let mut state = FollowedState::new();
        while let Some(record) = replay.next()? {
            state.record(record);
        }
        Ok(CopiedLog { journal: replay.into_journal()?, whole_bytes, state })
    }

    fn is_too_long(&self) -> bool {
        let whole = self.whole_bytes.max(COPY_BYTES_MAX as u64);
        self.journal.bytes() > whole.saturating_mul(TOO_LONG_FACTOR)
    }

    fn store(&mut self, step: &StandbyStep) -> store::Result<()> {
        match step {
            StandbyStep::Begin => {
                self.journal.begin_rewrite()?;
                self.state.begin();
                Ok(())
            }
            StandbyStep::Records(batch) => {
                for record in records(batch) {
                    // A full device leaves the daemon's own log what it keeps for removals.
                    let stored = store::record::bytes_stored(record.len());
                    self.journal.reserve(stored, For::Any)?;
                    self.journal.append(record)?;
                    self.state.record(record);
                }
                Ok(())
            }
            StandbyStep::Slice(batch) => {
                for record in records(batch) {
                    self.journal.append_snapshot(record)?;
                    self.state.slice(record);
                }
                self.is_rewriting()
            }
            StandbyStep::Complete => {
                self.is_rewriting()?;
                self.journal.finish_rewrite()?;
                self.state.complete();
                self.whole_bytes = self.journal.bytes();
                Ok(())
            }
        }
    }

    /// The journal gives a rewrite up by itself where a record finds no space for two files.
    fn is_rewriting(&self) -> store::Result<()> {
        let gone = Kind::Device(wire::Errno::ENOSPC);
        let is_there = self.journal.is_rewriting();
        let error = || store::Error::new("copy a log", Path::new("copy"), gone);
        if is_there { Ok(()) } else { Err(error()) }
    }
}

impl CopiedLog {
    /// The log and its state; `None`: the state is not known. A snapshot that was coming is given up.
    fn into_followed(mut self) -> Option<FollowedLog> {
        self.journal.abandon_rewrite();
        let state = self.state.into_state()?;
        Some(FollowedLog { journal: self.journal, state })
    }
}

#[cfg(test)]
mod tests;
