//! Partial files: for a file that is open for writing and does not fit the instance, bytes are
//! written to a partial file, which has a private name and becomes the file when it is complete.
//!
//! A partial file begins with the bytes of the file in the backing store that count. Dirty ranges
//! are copied to it one part at a time. Then the shard is told how many of its bytes count, and the
//! targets that they may evict what did not change since (`data::backing::dirty_ranges`). So at any
//! time it is known which bytes exist only there, and no other record is needed. When the file is
//! complete, it is written from its partial file: what is newer in the instance is copied, and the
//! partial file gets the file's name (`contents`).
//!
//! A file with several hard links is rewritten in place when it is complete. That may be
//! interrupted, and evicted bytes are read from the partial file, so the partial file stays until
//! the rewrite is done.
//!
//! *Invariant:* the bytes of a partial file that count are bytes of the file, except where the
//! instance has dirty ones; no byte that counts is removed.
//!
//! Not here: a store that cannot read incomplete objects (`Backend::partials`).

use crate::backends::{Dir, PartialFiles, Uncommitted};
use crate::instance::{BeginRange, DirtyRange};
use crate::round::contents::SPACE_ROUND_TIME;
use crate::round::{Round, Trigger};
use crate::state::{
    BackingLocation, Place, SyncState, WritebackError, WritebackResult, unique_number,
};
use backing::parallel_map;
use std::io;
use std::ops::Range;
use std::time::Instant;
use wire::backing::{Stamp, Version};
use wire::{Attributes, Inode};

/// Bytes of a file that are written at a time from each target; each such step frees space.
const PART_BYTES: u64 = if cfg!(test) { 24 } else { 32 << 20 };

/// A file that is open for writing.
#[derive(Clone, Debug)]
pub(crate) struct OpenForWrite {
    inode: Inode,
    /// A name that it has or is to have.
    place: Place,
    /// Size as reported so far.
    size: u64,
}

impl OpenForWrite {
    pub(crate) fn of(sync_state: &SyncState, place: &Place) -> Option<OpenForWrite> {
        let attributes = sync_state.attributes.filter(Attributes::is_regular)?;
        let (inode, place) = (sync_state.inode, place.clone());
        Some(OpenForWrite { inode, place, size: attributes.size })
    }
}

/// A partial file that the instance knows.
#[derive(Clone, Debug)]
pub(crate) struct KnownPartial {
    pub(crate) dir: Dir,
    pub(crate) location: BackingLocation,
}

impl KnownPartial {
    /// A new one, of which the first `counts` bytes count.
    fn begun(
        dir: &Dir,
        place: Place,
        partial: &backing::PartialFile,
        counts: u64,
    ) -> WritebackResult<KnownPartial> {
        let number = backing::Node::of(partial.file())?.identity.1;
        let (version, stamp) = (Version::of_partial(number), Stamp::default());
        Ok(KnownPartial {
            dir: dir.clone(),
            location: BackingLocation { place, version, counts, stamp },
        })
    }

    /// Opens it and truncates it to the bytes that count.
    pub(crate) fn open(
        &self,
        partials: &dyn PartialFiles,
    ) -> WritebackResult<backing::PartialFile> {
        let BackingLocation { place, version, counts, .. } = &self.location;
        let Some(partial) = partials.open(&self.dir, &place.name, version.number)? else {
            let name = place.name.display();
            let why = format!(
                "its partial file {name} was removed from the backing store: its contents are lost"
            );
            return Err(WritebackError::Backing(io::Error::other(why)));
        };
        partials.resize(&partial, *counts)?;
        Ok(partial)
    }
}

impl Round<'_> {
    /// Notes a file that cannot be written because it is open for writing.
    pub(crate) fn note_written(&mut self, sync_state: &SyncState, place: &Place) {
        let may = self.options.trigger == Trigger::Space && self.backend.partials().is_some();
        if may && sync_state.is_written && self.instance.may_evict(sync_state.inode) {
            self.open_for_write.extend(OpenForWrite::of(sync_state, place));
        }
    }

    /// Notes a file that is not due.
    pub(crate) fn note_waiting(
        &mut self,
        why: &WritebackError,
        sync_state: &SyncState,
        place: &Place,
    ) {
        if matches!(why, WritebackError::NotDue) {
            self.note_written(sync_state, place);
        }
    }

    /// The partial file of an inode, if it has one.
    pub(crate) fn known_partial(
        &mut self,
        sync_state: &SyncState,
    ) -> WritebackResult<Option<KnownPartial>> {
        let Some(location) = sync_state.partial.clone() else { return Ok(None) };
        // It is about to leave that directory.
        let dir = self.dir_to_change(location.place.parent)?;
        Ok(Some(KnownPartial { dir, location }))
    }

    /// Makes the complete partial file of a file persistent, because its rewrite in place may be
    /// interrupted.
    pub(crate) fn persist(
        &mut self,
        dir: &Dir,
        mut partial: backing::PartialFile,
        sync_state: &mut SyncState,
    ) -> WritebackResult<Uncommitted> {
        let now = sync_state.now.as_ref().ok_or(WritebackError::Changed)?;
        let partials = self.backend.partials().ok_or(WritebackError::NotReady)?;
        // Bytes beyond were never in the backing store and are in the instance.
        let counts = now.counts.min(backing::Node::of(partial.file())?.size);
        let (parent, inode) = (now.place.parent, sync_state.inode);
        let name = partials.persist(&mut partial, inode)?;
        let known_partial = KnownPartial::begun(dir, Place { parent, name }, &partial, counts)?;
        self.report_begun(partials, &partial, inode, &known_partial)?;
        sync_state.partial = Some(known_partial.location);
        Ok(Uncommitted::Partial(partial, counts))
    }

    /// Reports a partial file to the instance, once it is durable.
    fn report_begun(
        &self,
        partials: &dyn PartialFiles,
        partial: &backing::PartialFile,
        inode: Inode,
        KnownPartial { dir, location }: &KnownPartial,
    ) -> WritebackResult<()> {
        let synced = partials.sync(partial, Some(dir)).map_err(WritebackError::from);
        let noted = synced.and_then(|()| Ok(self.instance.note_partial(inode, true, location)?));
        if noted.is_err() {
            // The instance does not know of it.
            let _ = self.backend.remove(dir, &location.place.name, false);
        }
        noted
    }

    /// Ends the partial file of a file whose bytes are elsewhere. Readers are redirected before it
    /// is removed.
    pub(crate) fn end_partial(&mut self, sync_state: &SyncState) -> WritebackResult<()> {
        if sync_state.partial.is_some() {
            self.instance.forget_partial(sync_state.inode)?;
        }
        self.remove_partial(sync_state)
    }

    /// Removes a partial file that is not read any more.
    pub(crate) fn remove_partial(&mut self, sync_state: &SyncState) -> WritebackResult<()> {
        let Some(location) = &sync_state.partial else { return Ok(()) };
        if self.dir(location.place.parent)?.is_none() {
            return Ok(());
        }
        // The first change of names in a directory sweeps unknown partial files.
        let dir = self.dir_to_change(location.place.parent)?;
        let node = self.backend.node(&dir, &location.place.name)?;
        if node.is_some_and(|node| node.version.number == location.version.number) {
            self.backend.remove(&dir, &location.place.name, false)?;
        }
        Ok(())
    }

    /// Reports a deleted inode as removed from the backing store. The report comes last, because
    /// after it the remains would not be searched for.
    pub(crate) fn report_gone(&mut self, sync_state: &SyncState) -> WritebackResult<()> {
        self.remove_partial(sync_state)?;
        self.cache.links.remove(&sync_state.inode);
        Ok(self.instance.gone(sync_state.inode)?)
    }

    /// Removes a partial file that a killed daemon created and did not report. True if the name is
    /// or was a partial file of ours.
    pub(crate) fn sweep_partial(&mut self, place: &Place) -> WritebackResult<bool> {
        let Some(inode) = backing::inode_of_partial(&place.name).map(Inode) else {
            return Ok(false);
        };
        let Some(partials) = self.backend.partials() else { return Ok(false) };
        let sync_state = self.instance.sync_state(inode)?;
        let partial = sync_state.as_ref().and_then(|sync_state| sync_state.partial.as_ref());
        if partial.is_some_and(|location| location.place == *place) {
            return Ok(true);
        }
        let Some(dir) = self.dir(place.parent)? else { return Ok(false) };
        let node = self.backend.node(&dir, &place.name)?;
        if !node.is_some_and(|node| partials.is_left_over(&place.name, node.version.modified)) {
            return Ok(false);
        }
        self.backend.remove(&dir, &place.name, false)?;
        Ok(true)
    }

    /// Writes parts of files that are open for writing, if nothing else freed space in this round.
    pub(crate) fn write_partials(&mut self) {
        let (mut all, begun) = (std::mem::take(&mut self.open_for_write), Instant::now());
        let Some(partials) = self.backend.partials().filter(|_| self.report.bytes == 0) else {
            return;
        };
        all.sort_by_key(|one| (std::cmp::Reverse(one.size), one.inode));
        all.dedup_by_key(|one| one.inode);
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for one in &all {
                match self.write_part(partials, one) {
                    Ok(0) | Err(WritebackError::Changed | WritebackError::NotReady) => {}
                    Ok(bytes) => {
                        self.report.parts += bytes;
                        goes_on = begun.elapsed() < SPACE_ROUND_TIME;
                        break;
                    }
                    Err(error) => {
                        let path = self.path(&one.place);
                        self.report.fail(path, error.to_string());
                    }
                }
            }
        }
    }

    /// Writes a part of a file; returns the number of bytes.
    fn write_part(
        &mut self,
        partials: &dyn PartialFiles,
        of: &OpenForWrite,
    ) -> WritebackResult<u64> {
        let sync_state = self.sync_state(of.inode)?.ok_or(WritebackError::Changed)?;
        let attributes = sync_state.attributes.ok_or(WritebackError::Changed)?;
        let (number, dirty) = self.begin_part(&attributes)?;
        if dirty.is_empty() {
            return Ok(0);
        }
        let (known_partial, partial, is_new) = match self.known_partial(&sync_state)? {
            Some(known_partial) => {
                let partial = known_partial.open(partials)?;
                (known_partial, partial, false)
            }
            None => {
                let (known_partial, partial) =
                    self.begin_partial(partials, (&sync_state, &attributes), of)?;
                (known_partial, partial, true)
            }
        };
        if is_new {
            self.report_begun(partials, &partial, of.inode, &known_partial)?;
        }
        let counts = known_partial.location.counts;
        let ends = parallel_map(self.options.threads, &dirty, |one| {
            let mut put = |bytes: &[u8], at| {
                self.counters.admit(bytes.len() as u64);
                partials.put(&partial, bytes, at, counts)
            };
            self.instance.copy_all(&attributes, one.range.clone(), &mut put)
        });
        let (mut end, mut bytes, mut whole) = (counts, 0, u64::MAX);
        for (one, reached) in dirty.iter().zip(ends) {
            let reached = reached?;
            if reached > one.range.start {
                // Otherwise the file was truncated before this range, and does not end there.
                end = end.max(reached);
            }
            if reached < one.range.end {
                // A range that was cut short stays dirty, so it frees no space.
                whole = whole.min(reached);
            } else {
                bytes += one.range.end - one.range.start;
            }
        }
        partials.resize(&partial, end)?;
        partials.sync(&partial, None)?;
        let location = BackingLocation { counts: end, ..known_partial.location };
        self.instance.note_partial(of.inode, false, &location)?;
        self.instance.end_writeback(&attributes, (number, whole), &dirty)?;
        let last = dirty.last().map_or(0, |one| one.range.end);
        self.cache.cursors.insert(of.inode, last);
        Ok(bytes)
    }

    /// The next dirty ranges of a file: after the ones written last, then from the start.
    fn begin_part(&mut self, attributes: &Attributes) -> WritebackResult<(u64, Vec<DirtyRange>)> {
        let hand = self.cache.cursors.remove(&attributes.inode).unwrap_or(0);
        for offset in if hand == 0 { vec![0] } else { vec![hand, 0] } {
            let number = unique_number().max(1);
            let part = BeginRange { number, offset, most: PART_BYTES };
            let dirty = self.instance.begin_writeback(attributes, &part)?;
            if !dirty.is_empty() {
                return Ok((number, dirty));
            }
        }
        Ok((0, Vec::new()))
    }

    /// The directory for the partial file of a file: its own, or the nearest ancestor that is not
    /// deleted. In a deleted directory it would prevent the removal as long as the file is open.
    fn home(&mut self, directory: Inode) -> WritebackResult<Inode> {
        // So the chain of its ancestors is known and ends.
        self.dir(directory)?.ok_or(WritebackError::NotReady)?;
        let mut at = directory;
        while at != Inode::ROOT {
            let sync_state = self.sync_state(at)?.ok_or(WritebackError::NotReady)?;
            if !sync_state.is_gone() {
                break;
            }
            at = sync_state.now.ok_or(WritebackError::NotReady)?.place.parent;
        }
        Ok(at)
    }

    fn begin_partial(
        &mut self,
        partials: &dyn PartialFiles,
        (sync_state, attributes): (&SyncState, &Attributes),
        of: &OpenForWrite,
    ) -> WritebackResult<(KnownPartial, backing::PartialFile)> {
        if self.torn.contains(&of.inode) || self.is_uncertain(of.inode) {
            return Err(WritebackError::NotReady);
        }
        let parent = self.home(of.place.parent)?;
        let dir = self.dir_to_change(parent)?;
        let source = match sync_state.now.as_ref().filter(|now| now.counts > 0) {
            Some(now) => Some((self.dir(now.place.parent)?.ok_or(WritebackError::NotReady)?, now)),
            None => None,
        };
        let source = source.as_ref().map(|(dir, now)| (dir, *now));
        let (partial, name, counts) = partials.begin(&dir, attributes, source)?;
        let known_partial = KnownPartial::begun(&dir, Place { parent, name }, &partial, counts)?;
        Ok((known_partial, partial))
    }
}

/// Divides the dirty ranges of a complete file into parts of at most `most` bytes.
pub(crate) fn parts(dirty: &[DirtyRange], size: u64, most: u64) -> Vec<Range<u64>> {
    let all = dirty.iter().map(|one| one.range.start..one.range.end.min(size));
    all.filter(|range| !range.is_empty())
        .flat_map(|range| {
            let starts = (0..(range.end - range.start).div_ceil(most)).map(move |at| at * most);
            starts.map(move |at| range.start + at..range.end.min(range.start + at + most))
        })
        .collect()
}
