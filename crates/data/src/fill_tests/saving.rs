//! Files that are saved while they are used: what is clean by that is dropped, and comes from below.

use super::{Files, World, byte_below};
use crate::effect::{Effect, Input};
use std::collections::{BTreeMap, BTreeSet};
use wire::Inode;
use wire::reply::Piece;

/// What lies below of files that were saved, and who is asked about them.
#[derive(Default)]
pub(super) struct Saved {
    /// The contents below.
    pub(super) below: BTreeMap<Inode, Vec<u8>>,
    /// Of those, which are what the file is.
    pub(super) is_as_is: BTreeSet<Inode>,
    /// Slots with the mark, and those of them of which somebody may not see it.
    marked: BTreeSet<u32>,
    unseen: BTreeSet<u32>,
    /// Questions that are not answered, and the answers that were right when they came.
    questions: Vec<(Inode, u64, Option<bool>)>,
    /// What is said to who asks for room: something is being saved, and that goes on.
    pub(super) room: Option<bool>,
    /// Who asked is told when it is looked next.
    asked: Option<u64>,
}

impl Saved {
    pub(super) fn forget_questions(&mut self) {
        self.questions.clear();
    }

    /// A file is gone.
    pub(super) fn forget(&mut self, inode: Inode) {
        self.below.remove(&inode);
        self.is_as_is.remove(&inode);
        self.questions.retain(|question| question.0 != inode);
    }
}

impl World {
    /// A byte of a piece is changed.
    pub(super) fn changes(&mut self, slot: u32) {
        self.clean.remove(&slot);
        self.saved.marked.remove(&slot);
    }

    pub(super) fn byte_below(&self, inode: Inode, at: u64) -> u8 {
        match self.saved.below.get(&inode) {
            Some(bytes) => bytes.get(at as usize).copied().unwrap_or(0),
            None => byte_below(inode.0, at),
        }
    }

    pub(super) fn may_be_dropped(&self, inode: Inode) -> bool {
        inode.is_from_below() || self.saved.below.contains_key(&inode)
    }

    pub(super) fn perform_saving(&mut self, effect: Effect) {
        match effect {
            Effect::BeginSaving { slot } => {
                self.saved.marked.insert(slot);
                match self.pinned.contains_key(&slot) {
                    true => self.saved.unseen.insert(slot),
                    false => self.saved.unseen.remove(&slot),
                };
            }
            Effect::StopSaving { slot } => {
                self.saved.marked.remove(&slot);
                self.saved.unseen.remove(&slot);
            }
            Effect::AskSaved { inode, number } => {
                self.saved.questions.push((inode, number, None));
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn ask_about_room(&mut self, round: u64, body: &[u8]) {
        match self.saved.room {
            None => self.step(Input::RoomAsked { round, comes: false, goes_on: false }, body),
            Some(_) => self.saved.asked = Some(round),
        }
    }

    pub(super) fn answer_about_room(&mut self, body: &[u8]) {
        if let (Some(round), Some(goes_on)) = (self.saved.asked.take(), self.saved.room) {
            self.step(Input::RoomAsked { round, comes: true, goes_on }, body);
        }
    }

    /// The writer saves a file as it is now, of which so much is known.
    pub(super) fn save(&mut self, file: u64, files: &Files) {
        let inode = Inode(file);
        let Some(bytes) = files.get(&file) else { return };
        // Its draft is that now, and no part of one any more.
        self.parts.remove(&inode);
        self.saved.below.insert(inode, bytes.clone());
        self.saved.is_as_is.insert(inode);
        self.ends.insert(inode, bytes.len() as u64);
    }

    /// If it bears the mark a piece is clean.
    pub(super) fn end_saving(
        &mut self,
        inode: Inode,
        piece: Piece,
        found: &mut Vec<(Inode, Piece)>,
    ) {
        let is_unseen = self.saved.unseen.remove(&piece.slot);
        if self.saved.marked.remove(&piece.slot) {
            assert!(!is_unseen, "somebody may have changed it");
            self.clean.insert(piece.slot);
            found.push((inode, piece));
        }
    }

    /// A shard is reached by a question, or what it said comes back; or one of them is lost.
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
                if let Some(is_saved) = answer.filter(|_| !is_lost) {
                    self.step(Input::IsSaved { inode, number, is_saved }, &[]);
                }
            }
        }
        true
    }
}
