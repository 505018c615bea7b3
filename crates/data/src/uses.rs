//! Which files of the backing directory are read, each when it first is, for who keeps a history of it;
//! and whether a list that was made of such a history still holds.
//!
//! A file is used when somebody misses bytes of it that he reads, or reads some that were brought up for
//! him (`ahead` sees that by their marks). Both count: if only what is missed did, a run that finds all
//! in
//! time would leave no history, and the next one would find nothing.
//!
//! A list that is a guess names files; each file that is used is one of them (right) or not (wrong). Once
//! more are wrong than right of late, what it still names stays below.
//!
//!   followed --wrong ones, more than right ones--> given up, for good
//!
//! Invariants:
//!  1. A file counts once.
//!  2. `fresh` names only files that are in `seen`.

use crate::target::Target;
use std::collections::BTreeSet;
use wire::Inode;

/// Files that are noted; of more nothing is said.
const FILES_MAX: usize = 1 << 16;
/// So many wrong ones say nothing: a job reads something that no other run of it did.
const WRONG_MIN: u32 = 8;
/// Of that many files the older ones count half.
const LATELY: u32 = 64;

/// A list that may be wrong.
#[derive(Clone, Debug, Default)]
struct Guess {
    list: u64,
    named: BTreeSet<Inode>,
    right: u32,
    wrong: u32,
    is_given_up: bool,
}

impl Guess {
    /// A file is used. True if the list is to be given up, now.
    fn count(&mut self, inode: Inode) -> bool {
        if self.list == 0 || self.is_given_up {
            return false;
        }
        match self.named.contains(&inode) {
            true => self.right += 1,
            false => self.wrong += 1,
        }
        if self.right + self.wrong > LATELY {
            (self.right, self.wrong) = (self.right / 2, self.wrong / 2);
        }
        self.is_given_up = self.wrong >= WRONG_MIN && self.wrong > self.right;
        self.is_given_up
    }
}

/// What became of guesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Guessed {
    /// Files that a list names.
    pub named: u64,
    /// Files that were used and that it names.
    pub right: u64,
    /// Files that were used and that it does not.
    pub wrong: u64,
    /// It is not followed any more.
    pub is_given_up: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    is_recorded: bool,
    seen: BTreeSet<Inode>,
    fresh: Vec<Inode>,
    guess: Guess,
    guessed: Guessed,
}

impl Target {
    /// From now on files that are used are told of by `take_uses`.
    pub fn record_uses(&mut self) {
        self.uses.is_recorded = true;
    }

    /// Files that were first used since this was called.
    pub fn take_uses(&mut self) -> Vec<Inode> {
        core::mem::take(&mut self.uses.fresh)
    }

    /// What became of a list that may be wrong.
    #[must_use]
    pub const fn guessed(&self) -> Guessed {
        self.uses.guessed
    }

    /// A list that may be wrong names a file. False if it was given up.
    pub(crate) fn guess(&mut self, list: u64, inode: Inode) -> bool {
        let Uses { guess, guessed, .. } = &mut self.uses;
        if guess.list != list {
            *guess = Guess { list, ..Guess::default() };
            *guessed = Guessed::default();
        }
        if !guess.is_given_up && guess.named.len() < FILES_MAX {
            guess.named.insert(inode);
            guessed.named = guess.named.len() as u64;
        }
        !guess.is_given_up
    }

    /// Somebody reads a file.
    pub(crate) fn note_use(&mut self, inode: Inode) {
        let uses = &mut self.uses;
        let is_noted = uses.is_recorded || uses.guess.list != 0;
        if !is_noted || uses.seen.len() >= FILES_MAX || !uses.seen.insert(inode) {
            return;
        }
        if uses.is_recorded {
            uses.fresh.push(inode);
        }
        let list = uses.guess.list;
        if list != 0 {
            match uses.guess.named.contains(&inode) {
                true => uses.guessed.right += 1,
                false => uses.guessed.wrong += 1,
            }
        }
        if uses.guess.count(inode) {
            uses.guessed.is_given_up = true;
            self.wishes.remove_list(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(named: u64) -> Guess {
        Guess { list: 1, named: (0..named).map(Inode).collect(), ..Guess::default() }
    }

    #[test]
    fn a_guess_is_given_up_when_more_is_wrong_than_right() {
        // A few others say nothing, nor as many others as named ones.
        let mut guess = of(1000);
        assert!((0..7).all(|file| !guess.count(Inode(5000 + file))));
        let mut guess = of(1000);
        for file in 0..400 {
            assert!(!guess.count(Inode(file)), "file {file}");
            assert!(file % 2 == 0 || !guess.count(Inode(6000 + file)), "file {file}");
        }
        // However long it was right: of late it is not.
        let given_up = (0..).take_while(|file| !guess.count(Inode(9000 + file))).count();
        assert!((8..=LATELY as usize).contains(&given_up), "after {given_up}");
        assert!(!guess.count(Inode(9999)), "once");
    }

    #[test]
    fn a_job_that_reads_nothing_that_is_named_ends_the_guess_soon() {
        let mut guess = of(10);
        let given_up = (0..).take_while(|file| !guess.count(Inode(100 + file))).count();
        assert_eq!(given_up as u32 + 1, WRONG_MIN);
        assert!(!Guess::default().count(Inode(1)), "there is none");
    }
}
