//! Files that stay open are saved part by part, while all else happens to them.

use super::{FILE_BYTES, Files, World};
use crate::effect::Answer;
use proptest::prelude::*;
use wire::reply::Piece;
use wire::{Errno, Inode, Request};

/// The next step of the writer for a file: it asks for what is to be saved at `offset` and behind, copies
/// it as far as the file is `known` to be long, or tells the shard, and the target if it lives so long.
#[derive(Clone, Debug)]
pub(super) struct Part {
    offset: u64,
    most: u64,
    known: u64,
    tells_target: bool,
}

/// What it has of it.
#[derive(Clone, Debug)]
pub(super) struct PartSaved {
    number: u64,
    pieces: Vec<Piece>,
    copied: Option<Copied>,
}

#[derive(Clone, Debug)]
struct Copied {
    /// By their offsets.
    bytes: Vec<(u64, Vec<u8>)>,
    /// All pieces that end there or before were there to their ends.
    whole: u64,
}

pub(super) fn part() -> impl Strategy<Value = Part> {
    let offset = prop_oneof![2 => Just(0), 1 => 0..FILE_BYTES];
    let known = prop_oneof![3 => Just(u64::MAX), 1 => 0..FILE_BYTES];
    (offset, 1..FILE_BYTES, known, 0..4).prop_map(|(offset, most, known, one)| Part {
        offset,
        most,
        known,
        tells_target: one != 0,
    })
}

impl World {
    pub(super) fn go_on_with_part(&mut self, file: u64, part: &Part, files: &Files) {
        let Some(bytes) = files.get(&file) else { return };
        let inode = Inode(file);
        match self.parts.get(&inode).map(|part| part.copied.is_some()) {
            None => self.begin_part(inode, part.offset, part.most),
            Some(false) => self.copy_part(inode, part.known, bytes),
            Some(true) => self.end_part(inode, part.tells_target),
        }
    }

    fn begin_part(&mut self, inode: Inode, offset: u64, most: u64) {
        let number = self.ticket + 1;
        let clean = self.clean.clone();
        self.target.note_changed(inode, &|slot| clean.contains(&slot));
        let (answer, _) = self.call(&Request::BeginSaving { inode, number, offset, most });
        let Answer::Pieces(pieces) = answer else { panic!("{answer:?}") };
        if !pieces.is_empty() {
            // It has a draft from now on.
            self.saved.is_as_is.remove(&inode);
            self.parts.insert(inode, PartSaved { number, pieces, copied: None });
        }
    }

    fn copy_part(&mut self, inode: Inode, known: u64, bytes: &[u8]) {
        let Some(part) = self.parts.get_mut(&inode) else { return };
        let length = known.min(bytes.len() as u64);
        let (mut copies, mut whole) = (Vec::new(), u64::MAX);
        for piece in &part.pieces {
            let end = piece.start + piece.length();
            let reached = end.min(length).max(piece.start);
            if reached < end {
                whole = whole.min(reached);
            }
            if reached > piece.start {
                let copy = &bytes[piece.start as usize..reached as usize];
                copies.push((piece.start, copy.to_vec()));
            }
        }
        part.copied = Some(Copied { bytes: copies, whole });
    }

    fn end_part(&mut self, inode: Inode, tells_target: bool) {
        let Some(PartSaved { number, copied: Some(copied), .. }) = self.parts.remove(&inode) else {
            return;
        };
        let Copied { bytes: copies, whole } = copied;
        let counts = self.ends.get(&inode).copied().unwrap_or(0);
        let ends = copies.iter().map(|(start, copy)| start + copy.len() as u64);
        let end = ends.fold(counts, u64::max);
        // What lay behind does not count, and would show.
        let below = |at| if at < counts { self.byte_below(inode, at) } else { 0 };
        let mut draft: Vec<u8> = (0..end).map(below).collect();
        for (start, copy) in copies {
            draft[start as usize..][..copy.len()].copy_from_slice(&copy);
        }
        self.saved.below.insert(inode, draft);
        self.ends.insert(inode, end);
        if tells_target {
            let (answer, _) = self.call(&Request::EndSaving { inode, number, end: whole });
            let is_told = matches!(answer, Answer::Done | Answer::Refused(Errno::EAGAIN));
            assert!(is_told, "{answer:?}");
        }
    }
}
