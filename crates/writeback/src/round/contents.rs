//! Writes contents. Each file is written completely under a temporary name, by several threads, a
//! large one in parts. Then a batch of files waits for the device together, and then each file gets
//! its name. In an object store several files get their names concurrently, if the names hold what
//! is expected.

use crate::backends::{Backend, Dir, NewNode, Precondition, Uncommitted, WriteAt};
use crate::instance::{BeginRange, Instance};
use crate::round::order::Writer;
use crate::round::partials::{self, KnownPartial};
use crate::round::verify::{self, WrittenRanges};
use crate::round::{Round, Trigger, is_version};
use crate::state::{BackingLocation, Place, SyncState, WritebackError, WritebackResult};
use backing::{AttributesLost, FileMetadata, parallel_map};
use config::choice::WritebackVerify;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::backing::{Stamp, Version};
use wire::{Attributes, Inode};

/// Maximum number of files in a batch.
const BATCH: usize = 256;
/// Maximum total size of a batch in bytes; a larger file forms a batch of its own.
const BATCH_BYTES: u64 = 256 << 20;
/// The same for an object store, where contents are in memory until they are sent.
const BATCH_BYTES_REMOTE: u64 = 64 << 20;

/// The same while writers wait for space, because each batch frees space when it ends.
const BATCH_BYTES_FOR_SPACE: u64 = 32 << 20;

/// How long a round for space goes on although other clients wait: listing all that is dirty is
/// expensive, so some batches should follow.
pub(crate) const SPACE_ROUND_TIME: Duration = Duration::from_secs(1);

/// Name under which contents are committed.
#[derive(Clone, Debug)]
pub(crate) enum CommitTo {
    /// A name under which the file is not yet in the backing store.
    NewName(Place),
    /// The name under which an older version of the file is.
    Existing(Place),
}

impl CommitTo {
    fn place(&self) -> &Place {
        match self {
            CommitTo::NewName(place) | CommitTo::Existing(place) => place,
        }
    }
}

/// A file to write.
#[derive(Debug)]
pub(crate) struct WriteJob {
    pub(crate) commit_to: CommitTo,
    /// The directory of the name.
    pub(crate) dir: Dir,
    pub(crate) sync_state: SyncState,
    /// Its attributes in the instance.
    pub(crate) attributes: Attributes,
    /// Its partial file, if some of it was written while it was open for writing.
    pub(crate) known_partial: Option<KnownPartial>,
}

/// A file whose write has started.
struct StartedWrite {
    partial: Uncommitted,
    metadata: FileMetadata,
    /// Ranges to copy, by several threads.
    parts: Vec<Range<u64>>,
}

/// A file that is complete and does not have its name yet.
struct ReadyWrite {
    partial: Uncommitted,
    version: Version,
    metadata: FileMetadata,
    lost_attributes: bool,
}

/// Writes all jobs, and counts the outcome of each.
pub(crate) fn write(round: &mut Round<'_>, jobs: Vec<WriteJob>) {
    let backend = round.backend;
    let jobs = round.reopen_dirs(jobs);
    let jobs = match &mut round.cache.order {
        Some(order) => order.sort(round.options.now, jobs, of_writer, bytes_of),
        None => jobs,
    };
    let is_for_space = round.options.trigger == Trigger::Space;
    let batch_bytes = match is_for_space {
        true => BATCH_BYTES_FOR_SPACE,
        false if backend.is_object_store() => BATCH_BYTES_REMOTE,
        false => BATCH_BYTES,
    };
    let bytes = jobs.iter().map(bytes_of).sum();
    round.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    let (mut jobs, begun) = (jobs.into_iter().peekable(), Instant::now());
    while jobs.peek().is_some() {
        let (mut batch, mut bytes) = (Vec::new(), 0_u64);
        while let Some(job) = jobs.next_if(|job| {
            batch.is_empty() || bytes.saturating_add(job.attributes.size) <= batch_bytes
        }) {
            bytes += job.attributes.size;
            batch.push(job);
            if batch.len() >= BATCH {
                break;
            }
        }
        write_batch(round, batch);
        let is_interrupted =
            round.counters.is_interrupted.load(Ordering::Relaxed) && !round.scope.is_only;
        if is_interrupted && (!is_for_space || begun.elapsed() >= SPACE_ROUND_TIME) {
            // They are still dirty, and the next round finds them.
            for job in jobs {
                round.counters.bytes.fetch_sub(bytes_of(&job), Ordering::Relaxed);
                round.report.open += 1;
                round.report.outcomes.leave(job.sync_state.inode);
            }
            return;
        }
    }
}

/// The user and the directory of a file: a job that writes in phases (`order`).
fn of_writer(job: &WriteJob) -> Writer {
    Writer { uid: job.attributes.uid, directory: job.commit_to.place().parent }
}

/// Upper bound of the bytes that a job copies.
fn bytes_of(job: &WriteJob) -> u64 {
    if job.attributes.is_regular() { job.attributes.size } else { 0 }
}

fn write_batch(round: &mut Round<'_>, batch: Vec<WriteJob>) {
    let (instance, backend) = (round.instance, round.backend);
    let threads = round.options.threads;
    let cache = &*round.cache;
    let mut begun = parallel_map(threads, &batch, |job| {
        start(instance, backend, job, cache.contested.contains(job.commit_to.place()))
    });
    let mut written = vec![WrittenRanges::default(); batch.len()];
    for (number, copied) in copy_batch(round, &batch, &begun) {
        match (begun.get_mut(number), written.get_mut(number), copied) {
            (_, Some(written), Ok(ranges)) => written.add(ranges),
            (Some(begun), _, Err(error)) => *begun = Err(error),
            _ => {}
        }
    }
    let all: Vec<_> = batch.iter().zip(begun).map(|both| Mutex::new(Some(both))).collect();
    let ready = parallel_map(threads, &all, |both| {
        let both = both.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (job, partial) = both.ok_or(WritebackError::Changed)?;
        finish(backend, job, partial?)
    });
    drop(all);
    let synced = sync(backend, &batch);
    let ready = compare(round, &batch, ready, &written);
    let both = batch.into_iter().zip(ready);
    let left: Vec<_> =
        if backend.is_object_store() { round.commit_known(both.collect()) } else { both.collect() };
    for (job, ready) in left {
        let (inode, place) = (job.sync_state.inode, job.commit_to.place().clone());
        let bytes = job.attributes.size;
        let done = match (ready, &synced) {
            (Ok(ready), Ok(())) => round.commit(job, ready),
            (Ok(_), Err(error)) => {
                Err(WritebackError::Backing(std::io::Error::from_raw_os_error(*error)))
            }
            (Err(error), _) => Err(error),
        };
        round.note_contents((inode, &place), done, bytes);
    }
}

/// Copies the contents of a batch, by several threads. For each part the number of its file, and the
/// bytes that the backing store was given.
fn copy_batch(
    round: &Round<'_>,
    batch: &[WriteJob],
    begun: &[WritebackResult<StartedWrite>],
) -> Vec<(usize, WritebackResult<WrittenRanges>)> {
    let (instance, backend, counts) = (round.instance, round.backend, round.counters);
    let is_compared = is_compared(round);
    let with_partial = batch.iter().zip(begun).enumerate();
    let parts: Vec<_> = with_partial
        .filter_map(|(number, (job, partial))| Some((number, job, partial.as_ref().ok()?)))
        .flat_map(|(number, job, begun)| {
            let size = |part: &Range<u64>| part.end - part.start;
            let less = bytes_of(job).saturating_sub(begun.parts.iter().map(size).sum());
            counts.bytes.fetch_sub(less, Ordering::Relaxed);
            let parts = begun.parts.iter();
            parts.map(move |part| (number, job, &begun.partial, part.clone()))
        })
        .collect();
    parallel_map(round.options.threads, &parts, |(number, job, partial, part)| {
        let mut ranges = WrittenRanges::default();
        let mut fill = |to: &mut WriteAt<'_>| {
            let mut to = |bytes: &[u8], at| {
                if is_compared {
                    ranges.note(bytes, at);
                }
                counts.admit(bytes.len() as u64);
                // A bucket takes contents when they are committed.
                let begun = Instant::now();
                let written = to(bytes, at);
                if !backend.is_object_store() {
                    counts.note_write(job.sync_state.inode, begun, written.is_err());
                }
                written
            };
            match job.known_partial {
                Some(_) => instance.copy_all(&job.attributes, part.clone(), &mut to).map(drop),
                None => instance.copy(&job.attributes, part.clone(), &mut to),
            }
        };
        let copied = backend.write(partial, part, &mut fill);
        counts.bytes.fetch_sub(part.end - part.start, Ordering::Relaxed);
        (*number, copied.map(|()| ranges))
    })
}

/// Whether contents are read back before they are committed. A bucket has nothing that could be read
/// then: its backend compares within `commit`.
fn is_compared(round: &Round<'_>) -> bool {
    round.options.verifies == WritebackVerify::Contents && !round.backend.is_object_store()
}

/// Reads back what the files of a batch were given, where that is asked for, and fails those that differ.
fn compare(
    round: &Round<'_>,
    batch: &[WriteJob],
    ready: Vec<WritebackResult<ReadyWrite>>,
    written: &[WrittenRanges],
) -> Vec<WritebackResult<ReadyWrite>> {
    if !is_compared(round) {
        return ready;
    }
    let all: Vec<_> = batch.iter().zip(&ready).zip(written).collect();
    let found = parallel_map(round.options.threads, &all, |((job, ready), written)| {
        let ready = ready.as_ref().ok()?;
        let of = (&ready.partial, job.attributes.size);
        verify::contents(round.backend, of, written).err()
    });
    drop(all);
    let both = ready.into_iter().zip(found);
    both.map(|(ready, error)| error.map_or(ready, Err)).collect()
}

/// Syncs each file system that the batch wrote to once.
fn sync(backend: &dyn Backend, batch: &[WriteJob]) -> Result<(), i32> {
    let mut devices = Vec::new();
    for job in batch {
        let failed = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let device = job.dir.device().map_err(failed)?;
        if !devices.contains(&device) {
            backend.sync(&job.dir).map_err(failed)?;
            devices.push(device);
        }
    }
    Ok(())
}

/// Divides a file into parts for several threads.
fn parts(backend: &dyn Backend, job: &WriteJob) -> Vec<Range<u64>> {
    let size = bytes_of(job);
    let length = backend.part_bytes(size);
    let starts = (0..size.div_ceil(length)).map(move |number| number * length);
    starts.map(move |start| start..size.min(start + length)).collect()
}

/// Continues with the partial file of a file that was open for writing.
fn resume(
    instance: &dyn Instance,
    backend: &dyn Backend,
    job: &WriteJob,
    known_partial: &KnownPartial,
) -> WritebackResult<StartedWrite> {
    let (attributes, partials) =
        (&job.attributes, backend.partials().ok_or(WritebackError::NotReady)?);
    if attributes.size < known_partial.location.counts {
        // The shard does not know the final size yet; a read at the end makes the writer report it.
        let end = known_partial.location.counts - 1..known_partial.location.counts;
        instance.copy_all(attributes, end, &mut |_, _| Ok(()))?;
        return Err(WritebackError::Changed);
    }
    let metadata = instance.metadata(attributes)?;
    let partial = known_partial.open(partials)?;
    let dirty =
        instance.begin_writeback(attributes, &BeginRange { number: 0, offset: 0, most: 0 })?;
    let parts = partials::parts(&dirty, attributes.size, backend.part_bytes(attributes.size));
    Ok(StartedWrite {
        partial: Uncommitted::Partial(partial, known_partial.location.counts),
        metadata,
        parts,
    })
}

/// Creates the new file, with its final size if it is a regular file.
fn start(
    instance: &dyn Instance,
    backend: &dyn Backend,
    job: &WriteJob,
    is_contested: bool,
) -> WritebackResult<StartedWrite> {
    if let Some(known_partial) = &job.known_partial {
        return resume(instance, backend, job, known_partial);
    }
    let attributes = &job.attributes;
    let new = if attributes.is_regular() {
        NewNode::File(attributes.mode & 0o7777, attributes.size)
    } else if attributes.is_directory() {
        NewNode::Dir
    } else if attributes.is_symlink() {
        NewNode::Link(instance.target(attributes)?)
    } else {
        NewNode::Special(attributes.mode, attributes.device.into())
    };
    let metadata = instance.metadata(attributes)?;
    let place = job.commit_to.place();
    // Under a private name, because it may have to get another name.
    let is_aside = is_contested || backend.is_compared_aside() && attributes.is_regular();
    let aside = is_aside.then(|| place.aside(job.sync_state.inode));
    let name = &aside.as_ref().unwrap_or(place).name;
    let partial = backend.create((&job.dir, name), &new, &metadata)?;
    Ok(StartedWrite { partial, metadata, parts: parts(backend, job) })
}

/// Sets the metadata, after the contents are written.
fn finish(
    backend: &dyn Backend,
    job: &WriteJob,
    begun: StartedWrite,
) -> WritebackResult<ReadyWrite> {
    let StartedWrite { partial, metadata, .. } = begun;
    if let (Uncommitted::Partial(partial, _), Some(partials)) = (&partial, backend.partials()) {
        partials.resize(partial, job.attributes.size)?;
    }
    let AttributesLost(lost_attributes) = backend.set_metadata(&partial, &metadata)?;
    let version = partial.version()?;
    verify::length(&version, &job.attributes)?;
    Ok(ReadyWrite { partial, version, metadata, lost_attributes })
}

impl Round<'_> {
    /// As `write`, at once, for one file without contents.
    pub(crate) fn write_now(&mut self, job: WriteJob) -> WritebackResult<()> {
        let partial = start(self.instance, self.backend, &job, false)?;
        let ready = finish(self.backend, &job, partial)?;
        self.commit(job, ready)
    }

    /// Looks up the directories of the jobs again: in an object store a directory is a path, and
    /// may have been moved.
    fn reopen_dirs(&mut self, jobs: Vec<WriteJob>) -> Vec<WriteJob> {
        if !self.backend.is_object_store() {
            return jobs;
        }
        let mut left = Vec::with_capacity(jobs.len());
        for mut job in jobs {
            let place = job.commit_to.place().clone();
            match self.dir(place.parent).and_then(|found| found.ok_or(WritebackError::NotReady)) {
                Ok(dir) => {
                    job.dir = dir;
                    left.push(job);
                }
                Err(error) => {
                    let of = (job.sync_state.inode, &place);
                    self.note_contents(of, Err(error), job.attributes.size);
                }
            }
        }
        left
    }

    fn note_contents(&mut self, of: (Inode, &Place), done: WritebackResult<()>, bytes: u64) {
        if done.is_ok() {
            self.report.bytes += bytes;
        }
        self.note(of, done, bytes);
    }

    /// Commits several files concurrently: new ones, and those that replace a version that is
    /// expected there. Returns the other jobs. If a precondition does not hold, the next round
    /// handles that file.
    fn commit_known(
        &mut self,
        all: Vec<(WriteJob, WritebackResult<ReadyWrite>)>,
    ) -> Vec<(WriteJob, WritebackResult<ReadyWrite>)> {
        let (mut left, mut to_commit) = (Vec::new(), Vec::new());
        for (job, ready) in all {
            match (self.known_there(&job), ready) {
                (Some(over), Ok(ready)) => match self.announce(&job, &ready) {
                    Ok(location) => {
                        to_commit.push((job, location, ready.lost_attributes, over, ready.partial))
                    }
                    Err(error) => {
                        let of = (job.sync_state.inode, job.commit_to.place());
                        self.note_contents(of, Err(error), job.attributes.size);
                    }
                },
                (_, ready) => left.push((job, ready)),
            }
        }
        let (announced, to_commit): (Vec<_>, Vec<_>) = to_commit
            .into_iter()
            .map(|(job, location, lost_attributes, over, partial)| {
                let (dir, name) = (job.dir.clone(), location.place.name.clone());
                let to_commit = (job.sync_state.inode, dir, name, over, Mutex::new(Some(partial)));
                ((job, location, lost_attributes), to_commit)
            })
            .unzip();
        let (backend, counts) = (self.backend, self.counters);
        let committed =
            parallel_map(self.options.threads, &to_commit, |(inode, dir, name, over, partial)| {
                let partial = partial.lock().unwrap_or_else(PoisonError::into_inner).take();
                let begun = Instant::now();
                let partial = partial.ok_or(backing::CopyError::Changed)?;
                let committed = backend.commit(partial, (dir, name), *over);
                let is_failed = matches!(committed, Err(backing::CopyError::Write(_)));
                counts.note_write(*inode, begun, is_failed);
                committed
            });
        for ((job, location, lost_attributes), committed) in announced.into_iter().zip(committed) {
            let done = self.report_committed(&job, &location, committed);
            if done.is_ok() {
                self.report.lost += u64::from(lost_attributes);
            }
            let of = (job.sync_state.inode, job.commit_to.place());
            self.note_contents(of, done, job.attributes.size);
        }
        left
    }

    fn known_there(&self, job: &WriteJob) -> Option<Precondition> {
        let place = job.commit_to.place();
        if self.cache.contested.contains(place) {
            return None;
        }
        match &job.commit_to {
            CommitTo::NewName(_) => self.backed_at(place).is_none().then_some(Precondition::Absent),
            CommitTo::Existing(_) => {
                job.sync_state.now.as_ref().map(|now| Precondition::Version(now.version))
            }
        }
    }

    fn announce(&mut self, job: &WriteJob, ready: &ReadyWrite) -> WritebackResult<BackingLocation> {
        let location = location_of(job.commit_to.place().clone(), ready.version, &job.attributes);
        self.instance.writing(job.sync_state.inode, &location)?;
        self.set_uncertain(job.sync_state.inode, &location.place);
        Ok(location)
    }

    /// Reports the outcome of a commit, as `perform` does.
    fn report_committed(
        &mut self,
        job: &WriteJob,
        location: &BackingLocation,
        committed: Result<(), backing::CopyError>,
    ) -> WritebackResult<()> {
        let inode = job.sync_state.inode;
        match committed.map_err(WritebackError::from) {
            Err(WritebackError::Changed) => {
                self.cache.contested.insert(location.place.clone());
                self.instance.not_written(inode)?;
                self.set_certain(inode, &location.place);
                return Err(WritebackError::Changed);
            }
            committed => committed?,
        }
        if let CommitTo::NewName(place) = &job.commit_to {
            self.report_name_written(place, inode)?;
        }
        self.instance.wrote(inode, location)?;
        self.set_certain(inode, &location.place);
        self.under_way.remove(&inode);
        Ok(())
    }

    fn commit(&mut self, job: WriteJob, ready: ReadyWrite) -> WritebackResult<()> {
        let lost_attributes = ready.lost_attributes;
        let place = job.commit_to.place().clone();
        self.cache.contested.remove(&place);
        match job.commit_to {
            CommitTo::NewName(_) => self.commit_new(&place, &job, ready)?,
            CommitTo::Existing(_) => self.commit_again(&place, &job, ready)?,
        }
        self.under_way.remove(&job.sync_state.inode);
        self.report.lost += u64::from(lost_attributes);
        Ok(())
    }

    fn commit_new(
        &mut self,
        place: &Place,
        job: &WriteJob,
        ready: ReadyWrite,
    ) -> WritebackResult<()> {
        let is_plain = !job.attributes.is_directory();
        let known = if is_plain { self.may_replace(place)? } else { None };
        let (to, over) = match known {
            Some(version) => (place.clone(), Precondition::Version(version)),
            None => {
                self.vacate(place)?;
                (self.unused_name(place, &job.dir, job.sync_state.inode)?, Precondition::Absent)
            }
        };
        let inode = job.sync_state.inode;
        self.commit_at(to, job, ready, over, |round| round.report_name_written(place, inode))
    }

    fn commit_again(
        &mut self,
        place: &Place,
        job: &WriteJob,
        ready: ReadyWrite,
    ) -> WritebackResult<()> {
        let inode = job.sync_state.inode;
        let node = self.backend.node(&job.dir, &place.name)?;
        let now = job.sync_state.now.as_ref().ok_or(WritebackError::Changed)?;
        let Some(node) = node else {
            return self.commit_at(place.clone(), job, ready, Precondition::Absent, |_| Ok(()));
        };
        let is_torn = self.torn.contains(&inode) && node.version.number == now.version.number;
        if is_torn || is_version(&node, &now.version) {
            // Rewritten in place, so that all hard links get the new contents. Hard links that
            // existed when the file was imported are separate files in the instance, unless links
            // were added since.
            let is_shared = job.attributes.links > 1
                || self.has_old_names(inode)
                || place.is_private()
                || !inode.is_backed();
            let has_names = node.links > 1 && is_shared;
            return match has_names || is_torn {
                true => self.rewrite(place, job, ready, node.version.number),
                false => {
                    let over = Precondition::Version(node.version);
                    self.commit_at(place.clone(), job, ready, over, |_| Ok(()))
                }
            };
        }
        let to = self.unused_name(place, &job.dir, inode)?;
        self.commit_at(to, job, ready, Precondition::Absent, |_| Ok(()))
    }

    fn commit_at(
        &mut self,
        to: Place,
        job: &WriteJob,
        ready: ReadyWrite,
        over: Precondition,
        update_names: impl FnOnce(&mut Self) -> WritebackResult<()>,
    ) -> WritebackResult<()> {
        let name = to.name.clone();
        let location = location_of(to, ready.version, &job.attributes);
        let at = (&job.dir, name.as_os_str());
        let commit = |round: &mut Self| Ok(round.backend.commit(ready.partial, at, over)?);
        let laid = self.perform(job.sync_state.inode, &location, commit, update_names);
        if over == Precondition::Absent && matches!(laid, Err(WritebackError::Changed)) {
            // The next round writes it under a private name, from which it can be moved to any
            // other.
            self.cache.contested.insert(job.commit_to.place().clone());
        }
        laid
    }

    /// Rewrites a file in place. Until that is done its partial file stays: bytes evicted from the
    /// instance would otherwise exist nowhere.
    fn rewrite(
        &mut self,
        place: &Place,
        job: &WriteJob,
        ready: ReadyWrite,
        number: u64,
    ) -> WritebackResult<()> {
        let inode = job.sync_state.inode;
        let ReadyWrite { partial, version, metadata, .. } = ready;
        let mut sync_state = job.sync_state.clone();
        let partial = match partial {
            Uncommitted::File(partial) => self.persist(&job.dir, partial, &mut sync_state)?,
            known_partial => known_partial,
        };
        let version = Version { number, ..version };
        let location = location_of(place.clone(), version, &job.attributes);
        self.instance.writing(inode, &location)?;
        self.set_uncertain(inode, place);
        self.backend.rewrite(&job.dir, &place.name, &partial, &metadata)?;
        self.instance.wrote(inode, &location)?;
        self.torn.remove(&inode);
        self.set_certain(inode, place);
        self.end_partial(&sync_state)
    }
}

fn location_of(place: Place, version: Version, attributes: &Attributes) -> BackingLocation {
    let counts = if attributes.is_regular() { version.size } else { 0 };
    BackingLocation { place, version, counts, stamp: Stamp::of(attributes) }
}
