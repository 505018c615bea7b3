//! Writeback of open files, range by range, while everything else happens to them.

use super::{FILE_BYTES, FillFiles, FillWorld};
use crate::effect::Answer;
use proptest::prelude::*;
use wire::reply::Extent;
use wire::{Errno, Inode, Request};

/// The next step of writeback for a file: it asks which extents from `offset` on are dirty, copies
/// them as far as the file is `known` to be long, or tells the shard, and the target if that still
/// lives.
#[derive(Clone, Debug)]
pub(super) struct RangeAct {
    offset: u64,
    most: u64,
    known: u64,
    tells_target: bool,
}

/// Bytes of the file in the backing store.
#[derive(Clone, Debug)]
pub(super) struct SavedRange {
    number: u64,
    extents: Vec<Extent>,
    copied: Option<Copied>,
}

#[derive(Clone, Debug)]
struct Copied {
    /// By offset.
    bytes: Vec<(u64, Vec<u8>)>,
    /// All extents that end at or before this offset were copied to their ends.
    whole: u64,
}

pub(super) fn part() -> impl Strategy<Value = RangeAct> {
    let offset = prop_oneof![2 => Just(0), 1 => 0..FILE_BYTES];
    let known = prop_oneof![3 => Just(u64::MAX), 1 => 0..FILE_BYTES];
    (offset, 1..FILE_BYTES, known, 0..4).prop_map(|(offset, most, known, one)| RangeAct {
        offset,
        most,
        known,
        tells_target: one != 0,
    })
}

impl FillWorld {
    pub(super) fn go_on_with_part(&mut self, file: u64, part: &RangeAct, files: &FillFiles) {
        let Some(bytes) = files.get(&file) else { return };
        let inode = Inode(file);
        match self.dirty_ranges.get(&inode).map(|part| part.copied.is_some()) {
            None => self.begin_range(inode, part.offset, part.most),
            Some(false) => self.copy_part(inode, part.known, bytes),
            Some(true) => self.end_range(inode, part.tells_target),
        }
    }

    fn begin_range(&mut self, inode: Inode, offset: u64, most: u64) {
        let number = self.ticket + 1;
        let clean = self.clean.clone();
        self.target.note_changed(inode, &|slot| clean.contains(&slot));
        let (answer, _) = self.call(&Request::BeginWriteback { inode, number, offset, most });
        let Answer::Extents(extents) = answer else { panic!("{answer:?}") };
        if !extents.is_empty() {
            // It has a partial file from now on.
            self.saved.is_as_is.remove(&inode);
            self.dirty_ranges.insert(inode, SavedRange { number, extents, copied: None });
        }
    }

    fn copy_part(&mut self, inode: Inode, known: u64, bytes: &[u8]) {
        let Some(part) = self.dirty_ranges.get_mut(&inode) else { return };
        let length = known.min(bytes.len() as u64);
        let (mut copies, mut whole) = (Vec::new(), u64::MAX);
        for extent in &part.extents {
            let end = extent.start + extent.length();
            let reached = end.min(length).max(extent.start);
            if reached < end {
                whole = whole.min(reached);
            }
            if reached > extent.start {
                let copy = &bytes[extent.start as usize..reached as usize];
                copies.push((extent.start, copy.to_vec()));
            }
        }
        part.copied = Some(Copied { bytes: copies, whole });
    }

    fn end_range(&mut self, inode: Inode, tells_target: bool) {
        let Some(SavedRange { number, copied: Some(copied), .. }) =
            self.dirty_ranges.remove(&inode)
        else {
            return;
        };
        let Copied { bytes: copies, whole } = copied;
        let counts = self.backed_ends.get(&inode).copied().unwrap_or(0);
        let backed_ends = copies.iter().map(|(start, copy)| start + copy.len() as u64);
        let end = backed_ends.fold(counts, u64::max);
        // Bytes beyond do not count, and would show.
        let backing = |at| if at < counts { self.backing_byte(inode, at) } else { 0 };
        let mut partial: Vec<u8> = (0..end).map(backing).collect();
        for (start, copy) in copies {
            partial[start as usize..][..copy.len()].copy_from_slice(&copy);
        }
        self.saved.backing.insert(inode, partial);
        self.backed_ends.insert(inode, end);
        if tells_target {
            let (answer, _) = self.call(&Request::EndWriteback { inode, number, end: whole });
            let is_valid = matches!(answer, Answer::Done | Answer::Refused(Errno::EAGAIN));
            assert!(is_valid, "{answer:?}");
        }
    }
}
