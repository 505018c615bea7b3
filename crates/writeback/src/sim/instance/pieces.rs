//! Bytes of files: which are here, which below, and what is saved of a file that is written to.

use super::{Below, DEPTH_MAX, File, Instance};
use crate::round::is_version;
use crate::sides::{Dirty, PartAsked};
use crate::state::Lies;
use below::Folder;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use wire::below::Version;
use wire::errno::{Errno, Result};
use wire::{DaemonIndex, Inode};

/// Of a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It was as it is when this number was told.
    Marked(u64),
    /// It is below, too.
    Clean,
    /// It is below alone, or nowhere, as it is all zero.
    Dropped,
}

/// Bytes of a piece.
pub(super) const PIECE_BYTES: usize = 8;

impl Instance {
    /// What is saved as it is is dropped: its bytes are below alone.
    pub(in crate::sim) fn drop_saved(&mut self) {
        for (inode, file) in &mut self.files {
            let Some(Below { now, next, draft }) = self.below.get(inode) else { continue };
            let is_saved = |now: &Lies| now.stamp.changed == file.attributes.changed;
            let is_told = next.is_none() && draft.is_none();
            let is_saved = is_told && now.as_ref().is_some_and(is_saved);
            let all = 0..file.contents.len().div_ceil(PIECE_BYTES);
            if file.attributes.is_regular() && is_saved && file.pieces.len() < all.len() {
                file.pieces = all.map(|piece| (piece, State::Dropped)).collect();
                self.dropped += 1;
            }
            for state in file.pieces.values_mut().filter(|state| **state == State::Clean) {
                *state = State::Dropped;
                self.parts_dropped += 1;
            }
        }
    }

    /// What is below of a file, as it would be read now, and how much of that counts.
    pub(super) fn bytes_below(&self, inode: Inode) -> Option<Vec<u8>> {
        let Below { now, next, draft } = self.below.get(&inode)?;
        let is_it = |next: &&Lies| {
            draft.as_ref().is_none_or(|draft| draft.version.number == next.version.number)
        };
        let first = draft.as_ref().or(now.as_ref());
        let all: Vec<&Lies> = first.into_iter().chain(next.as_ref().filter(is_it)).collect();
        let counts = all.iter().map(|lies| lies.counts).min()? as usize;
        if counts == 0 {
            return Some(Vec::new());
        }
        let mut bytes = all.iter().find_map(|lies| self.find(lies))?;
        assert!(bytes.len() >= counts, "what counts of {inode:?} is not there");
        bytes.truncate(counts);
        Some(bytes)
    }

    /// True if what is below alone of a file is there.
    pub(super) fn has_dropped(&self, inode: Inode, file: &File) -> bool {
        if !file.pieces.values().any(|state| *state == State::Dropped) {
            return true;
        }
        let dropped = file.pieces.iter().filter(|(_, state)| **state == State::Dropped);
        let mut ranges = dropped.map(|(piece, _)| {
            let start = piece * PIECE_BYTES;
            start..file.contents.len().min(start + PIECE_BYTES)
        });
        let lies = self
            .below
            .get(&inode)
            .is_some_and(|below| below.now.is_some() || below.draft.is_some());
        let mut below = match self.bytes_below(inode) {
            Some(bytes) => bytes,
            None if lies => return ranges.next().is_none(),
            // A hole.
            None => Vec::new(),
        };
        below.resize(file.contents.len().max(below.len()), 0);
        ranges.all(|range| below[range.clone()] == file.contents[range])
    }

    /// Somebody needs what is below alone of some pieces.
    pub(super) fn fill(&mut self, inode: Inode, pieces: std::ops::Range<usize>) {
        let file = self.files.get(&inode).expect("a file");
        assert!(self.has_dropped(inode, file), "bytes of {inode:?} are lost");
        let file = self.files.get_mut(&inode).expect("a file");
        file.pieces.retain(|piece, _| !pieces.contains(piece));
    }

    /// Pieces that are not known to be below, and are noted if there is a number.
    pub(in crate::sim) fn begin_saving(
        &mut self,
        inode: Inode,
        part: &PartAsked,
    ) -> Result<Vec<Dirty>> {
        let file = self.files.get_mut(&inode).ok_or(Errno::ESTALE)?;
        let (mut all, mut bytes) = (Vec::new(), 0);
        for piece in 0..file.contents.len().div_ceil(PIECE_BYTES) {
            let start = (piece * PIECE_BYTES) as u64;
            let is_below = matches!(file.pieces.get(&piece), Some(State::Clean | State::Dropped));
            let is_enough = part.number != 0 && bytes >= part.most;
            if is_below || start < part.offset || is_enough {
                continue;
            }
            if part.number != 0 {
                file.pieces.insert(piece, State::Marked(part.number));
            }
            bytes += PIECE_BYTES as u64;
            let range = start..start + PIECE_BYTES as u64;
            all.push(Dirty { target: DaemonIndex(0), range });
        }
        Ok(all)
    }

    pub(in crate::sim) fn end_saving(
        &mut self,
        inode: Inode,
        (number, end): (u64, u64),
    ) -> Result<()> {
        let file = self.files.get_mut(&inode).ok_or(Errno::ESTALE)?;
        let is_it = |(piece, state): &(&usize, &mut State)| {
            let is_whole = ((*piece + 1) * PIECE_BYTES) as u64 <= end;
            is_whole && **state == State::Marked(number)
        };
        file.pieces.iter_mut().filter(is_it).for_each(|(_, state)| *state = State::Clean);
        Ok(())
    }

    /// All bytes of a file; those that nobody has read are looked for below.
    pub(in crate::sim) fn read(&mut self, inode: Inode) -> Result<Vec<u8>> {
        let file = self.files.get(&inode).ok_or(Errno::ESTALE)?;
        assert!(self.has_dropped(inode, file), "bytes of {inode:?} are lost");
        let file = self.files.get_mut(&inode).ok_or(Errno::ESTALE)?;
        let dropped = file.pieces.values_mut().filter(|state| **state == State::Dropped);
        // It may be dropped again, whatever else of the file is changed.
        dropped.for_each(|state| *state = State::Clean);
        Ok(file.contents.clone())
    }

    /// Bytes of a file as its users see them.
    pub(in crate::sim) fn contents(&self, inode: Inode) -> Result<Vec<u8>> {
        self.files.get(&inode).map(|file| file.contents.clone()).ok_or(Errno::ESTALE)
    }

    /// True if what is below alone of any file is there.
    pub(in crate::sim) fn has_all(&self) -> bool {
        self.files.iter().all(|(inode, file)| self.has_dropped(*inode, file))
    }

    /// Where a directory lies. What is about to be moved may be told to be in itself.
    pub(super) fn path_below(&self, directory: Inode, depth: u32) -> Option<PathBuf> {
        if directory == Inode::ROOT {
            return Some(self.root.clone());
        }
        let depth = depth.checked_sub(1)?;
        let Below { now, next, .. } = self.below.get(&directory)?;
        [now, next].into_iter().flatten().find_map(|lies| {
            let path = self.path_below(lies.place.parent, depth)?.join(&lies.place.name);
            let number = path.symlink_metadata().ok()?.ino();
            (number == lies.version.number).then_some(path)
        })
    }

    pub(super) fn find(&self, lies: &Lies) -> Option<Vec<u8>> {
        let path = self.path_below(lies.place.parent, DEPTH_MAX)?;
        let node = Folder::open(&path).ok()?.node(&lies.place.name).ok()?;
        let is_draft = lies.version == Version::of_draft(node.identity.1);
        if !is_draft && !is_version(&node.into(), &lies.version) {
            return None;
        }
        std::fs::read(path.join(&lies.place.name)).ok()
    }
}
