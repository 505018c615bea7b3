//! Writeback of files in use: clean extents are evicted, and filled again.

use super::{FillFiles, FillWorld, backing_byte};
use crate::effect::{Effect, Input};
use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::reply::Extent;

/// Contents of files in the backing store after writeback, and the queries about them.
#[derive(Default)]
pub(super) struct Saved {
    /// Contents in the backing store.
    pub(super) backing: BTreeMap<Inode, Vec<u8>>,
    /// Files whose contents there equal the file.
    pub(super) is_as_is: BTreeSet<Inode>,
    /// Slots with the cleaning mark, and those of them whose mark some client may not see.
    marked: BTreeSet<u32>,
    unseen: BTreeSet<u32>,
    /// Queries without answer, and answers that were right when they were sent.
    questions: Vec<(Inode, u64, Option<bool>)>,
    /// Answer to space queries: something will be written back, and whether that makes progress.
    pub(super) may_free: Option<bool>,
    /// A space query to be answered at the next look.
    space_round: Option<u64>,
}

impl Saved {
    pub(super) fn forget_questions(&mut self) {
        self.questions.clear();
    }

    /// A file is removed.
    pub(super) fn forget(&mut self, inode: Inode) {
        self.backing.remove(&inode);
        self.is_as_is.remove(&inode);
        self.questions.retain(|question| question.0 != inode);
    }
}

impl FillWorld {
    /// A byte of an extent is changed.
    pub(super) fn changes(&mut self, slot: u32) {
        self.clean.remove(&slot);
        self.saved.marked.remove(&slot);
    }

    pub(super) fn backing_byte(&self, inode: Inode, at: u64) -> u8 {
        match self.saved.backing.get(&inode) {
            Some(bytes) => bytes.get(at as usize).copied().unwrap_or(0),
            None => backing_byte(inode.0, at),
        }
    }

    pub(super) fn is_evictable(&self, inode: Inode) -> bool {
        inode.is_backed() || self.saved.backing.contains_key(&inode)
    }

    pub(super) fn perform_writeback(&mut self, effect: Effect) {
        match effect {
            Effect::MarkCleaning { slot } => {
                self.saved.marked.insert(slot);
                match self.protected.contains_key(&slot) {
                    true => self.saved.unseen.insert(slot),
                    false => self.saved.unseen.remove(&slot),
                };
            }
            Effect::UnmarkCleaning { slot } => {
                self.saved.marked.remove(&slot);
                self.saved.unseen.remove(&slot);
            }
            Effect::QueryClean { inode, number } => {
                self.saved.questions.push((inode, number, None));
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn request_space_line(&mut self, round: u64, body: &[u8]) {
        match self.saved.may_free {
            None => {
                self.step(Input::SpaceReported { round, comes: false, progresses: false }, body)
            }
            Some(_) => self.saved.space_round = Some(round),
        }
    }

    pub(super) fn answer_space_request(&mut self, body: &[u8]) {
        if let (Some(round), Some(progresses)) =
            (self.saved.space_round.take(), self.saved.may_free)
        {
            self.step(Input::SpaceReported { round, comes: true, progresses }, body);
        }
    }

    /// Writes a file back as it is, as far as it is known to be long.
    pub(super) fn save(&mut self, file: u64, files: &FillFiles) {
        let inode = Inode(file);
        let Some(bytes) = files.get(&file) else { return };
        // The whole file replaces its partial file.
        self.dirty_ranges.remove(&inode);
        self.saved.backing.insert(inode, bytes.clone());
        self.saved.is_as_is.insert(inode);
        self.backed_ends.insert(inode, bytes.len() as u64);
    }

    /// An extent that still has the mark is clean.
    pub(super) fn end_cleaning(
        &mut self,
        inode: Inode,
        extent: Extent,
        found: &mut Vec<(Inode, Extent)>,
    ) {
        let is_unseen = self.saved.unseen.remove(&extent.slot);
        if self.saved.marked.remove(&extent.slot) {
            assert!(!is_unseen, "somebody may have changed it");
            self.clean.insert(extent.slot);
            found.push((inode, extent));
        }
    }

    /// A query reaches a shard, or its answer returns; or one of them is lost.
    pub(super) fn answer_question(&mut self, which: usize, is_lost: bool) -> bool {
        if self.saved.questions.is_empty() {
            return false;
        }
        let which = which % self.saved.questions.len();
        let (inode, number, answer) = self.saved.questions[which];
        let is_as_is = self.saved.is_as_is.contains(&inode);
        match answer {
            None if !is_lost => self.saved.questions[which].2 = Some(is_as_is),
            answer => {
                self.saved.questions.swap_remove(which);
                if let Some(is_clean) = answer.filter(|_| !is_lost) {
                    self.step(Input::IsClean { inode, number, is_clean }, &[]);
                }
            }
        }
        true
    }
}
