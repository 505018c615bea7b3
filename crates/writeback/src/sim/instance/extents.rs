//! Contents of files: which extents are in the instance, which in the backing store, and which
//! parts of a file that is open for writing are written.

use super::{DEPTH_MAX, FakeInstance, File, Located};
use crate::instance::{BeginRange, DirtyRange};
use crate::round::is_version;
use crate::state::BackingLocation;
use backing::Dir;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use wire::backing::Version;
use wire::errno::{Errno, Result};
use wire::{DaemonIndex, Inode};

/// State of an extent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Being cleaned: unchanged since writeback with this number began.
    Marked(u64),
    /// The backing store has the same bytes.
    Clean,
    /// Evicted: only the backing store has the bytes, or they are all zero.
    Dropped,
}

/// Size of an extent in bytes.
pub(super) const EXTENT_BYTES: usize = 8;

impl FakeInstance {
    /// Evicts all clean files.
    pub(in crate::sim) fn drop_clean(&mut self) {
        for (inode, file) in &mut self.files {
            let Some(Located { now, next, partial }) = self.backing.get(inode) else { continue };
            let is_clean = |now: &BackingLocation| now.stamp.changed == file.attributes.changed;
            let is_confirmed = next.is_none() && partial.is_none();
            let is_clean = is_confirmed && now.as_ref().is_some_and(is_clean);
            let all = 0..file.contents.len().div_ceil(EXTENT_BYTES);
            if file.attributes.is_regular() && is_clean && file.extents.len() < all.len() {
                file.extents = all.map(|extent| (extent, State::Dropped)).collect();
                self.dropped += 1;
            }
            for state in file.extents.values_mut().filter(|state| **state == State::Clean) {
                *state = State::Dropped;
                self.parts_dropped += 1;
            }
        }
    }

    /// The bytes of a file in the backing store that count, as a read would find them.
    pub(super) fn bytes_in_backing(&self, inode: Inode) -> Option<Vec<u8>> {
        let Located { now, next, partial } = self.backing.get(&inode)?;
        let is_it = |next: &&BackingLocation| {
            partial.as_ref().is_none_or(|partial| partial.version.number == next.version.number)
        };
        let first = partial.as_ref().or(now.as_ref());
        let all: Vec<&BackingLocation> =
            first.into_iter().chain(next.as_ref().filter(is_it)).collect();
        let counts = all.iter().map(|location| location.counts).min()? as usize;
        if counts == 0 {
            return Some(Vec::new());
        }
        let mut bytes = all.iter().find_map(|location| self.find(location))?;
        assert!(bytes.len() >= counts, "what counts of {inode:?} is not there");
        bytes.truncate(counts);
        Some(bytes)
    }

    /// True if the evicted bytes of a file are in the backing store.
    pub(super) fn has_dropped(&self, inode: Inode, file: &File) -> bool {
        if !file.extents.values().any(|state| *state == State::Dropped) {
            return true;
        }
        let dropped = file.extents.iter().filter(|(_, state)| **state == State::Dropped);
        let mut ranges = dropped.map(|(extent, _)| {
            let start = extent * EXTENT_BYTES;
            start..file.contents.len().min(start + EXTENT_BYTES)
        });
        let location = self
            .backing
            .get(&inode)
            .is_some_and(|backing| backing.now.is_some() || backing.partial.is_some());
        let mut backing = match self.bytes_in_backing(inode) {
            Some(bytes) => bytes,
            None if location => return ranges.next().is_none(),
            // A hole.
            None => Vec::new(),
        };
        backing.resize(file.contents.len().max(backing.len()), 0);
        ranges.all(|range| backing[range.clone()] == file.contents[range])
    }

    /// Reads evicted extents back into the instance.
    pub(super) fn fill(&mut self, inode: Inode, extents: std::ops::Range<usize>) {
        let file = self.files.get(&inode).expect("a file");
        assert!(self.has_dropped(inode, file), "bytes of {inode:?} are lost");
        let file = self.files.get_mut(&inode).expect("a file");
        file.extents.retain(|extent, _| !extents.contains(extent));
    }

    /// Dirty extents, which are marked if the number is not 0.
    pub(in crate::sim) fn begin_writeback(
        &mut self,
        inode: Inode,
        part: &BeginRange,
    ) -> Result<Vec<DirtyRange>> {
        let file = self.files.get_mut(&inode).ok_or(Errno::ESTALE)?;
        let (mut all, mut bytes) = (Vec::new(), 0);
        for extent in 0..file.contents.len().div_ceil(EXTENT_BYTES) {
            let start = (extent * EXTENT_BYTES) as u64;
            let is_backed =
                matches!(file.extents.get(&extent), Some(State::Clean | State::Dropped));
            let is_enough = part.number != 0 && bytes >= part.most;
            if is_backed || start < part.offset || is_enough {
                continue;
            }
            if part.number != 0 {
                file.extents.insert(extent, State::Marked(part.number));
            }
            bytes += EXTENT_BYTES as u64;
            let range = start..start + EXTENT_BYTES as u64;
            all.push(DirtyRange { target: DaemonIndex(0), range });
        }
        Ok(all)
    }

    pub(in crate::sim) fn end_writeback(
        &mut self,
        inode: Inode,
        (number, end): (u64, u64),
    ) -> Result<()> {
        let file = self.files.get_mut(&inode).ok_or(Errno::ESTALE)?;
        let is_it = |(extent, state): &(&usize, &mut State)| {
            let is_whole = ((*extent + 1) * EXTENT_BYTES) as u64 <= end;
            is_whole && **state == State::Marked(number)
        };
        file.extents.iter_mut().filter(is_it).for_each(|(_, state)| *state = State::Clean);
        Ok(())
    }

    /// Reads all bytes of a file; evicted ones from the backing store.
    pub(in crate::sim) fn read(&mut self, inode: Inode) -> Result<Vec<u8>> {
        let file = self.files.get(&inode).ok_or(Errno::ESTALE)?;
        assert!(self.has_dropped(inode, file), "bytes of {inode:?} are lost");
        let file = self.files.get_mut(&inode).ok_or(Errno::ESTALE)?;
        let dropped = file.extents.values_mut().filter(|state| **state == State::Dropped);
        // It may be evicted again, whatever else of the file changes.
        dropped.for_each(|state| *state = State::Clean);
        Ok(file.contents.clone())
    }

    /// The contents of a file as its users see them.
    pub(in crate::sim) fn contents(&self, inode: Inode) -> Result<Vec<u8>> {
        self.files.get(&inode).map(|file| file.contents.clone()).ok_or(Errno::ESTALE)
    }

    /// True if the evicted bytes of all files are in the backing store.
    pub(in crate::sim) fn has_all(&self) -> bool {
        self.files.iter().all(|(inode, file)| self.has_dropped(*inode, file))
    }

    /// Path of a directory in the backing store. A directory with a move in doubt may appear to be
    /// in itself.
    pub(super) fn backing_path(&self, directory: Inode, depth: u32) -> Option<PathBuf> {
        if directory == Inode::ROOT {
            return Some(self.root.clone());
        }
        let depth = depth.checked_sub(1)?;
        let Located { now, next, .. } = self.backing.get(&directory)?;
        [now, next].into_iter().flatten().find_map(|location| {
            let path = self.backing_path(location.place.parent, depth)?.join(&location.place.name);
            let number = path.symlink_metadata().ok()?.ino();
            (number == location.version.number).then_some(path)
        })
    }

    pub(super) fn find(&self, location: &BackingLocation) -> Option<Vec<u8>> {
        let path = self.backing_path(location.place.parent, DEPTH_MAX)?;
        let node = Dir::open(&path).ok()?.node(&location.place.name).ok()?;
        let is_partial = location.version == Version::of_partial(node.identity.1);
        if !is_partial && !is_version(&node.into(), &location.version) {
            return None;
        }
        std::fs::read(path.join(&location.place.name)).ok()
    }
}
