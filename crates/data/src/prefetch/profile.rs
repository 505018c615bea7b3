//! Notes each file of the backing store when it is first read, for the access profile of a job; and
//! judges whether a prefetch list made from such a profile still holds.
//!
//! A file counts as read when a reader misses bytes of it, or reads bytes that were prefetched
//! (`readahead` sees that by their reference bits). Both count: if only misses did, a run that
//! finds everything in time would leave no profile, and the next run would prefetch nothing.
//!
//! A speculative list names files; each file that is read is a hit or a miss. Once there have
//! recently been more misses than hits, the rest of the list is not prefetched.
//!
//!   followed --more misses than hits--> abandoned, permanently
//!
//! `Prefetch` ends the requests of a list that is abandoned.
//!
//! Invariants:
//!  1. A file counts once.
//!  2. `unreported` names only files that are in `counted`.

use std::collections::BTreeSet;
use wire::Inode;

/// Most files that are noted; others are ignored.
const FILES_MAX: usize = 1 << 16;
/// Fewer misses than this say nothing: a job reads something that no other run of it did.
const MISSES_MIN: u32 = 8;
/// Beyond this many files, older ones weigh half.
const RECENT_FILES: u32 = 64;

/// A prefetch list that may be wrong.
#[derive(Clone, Debug, Default)]
struct SpeculativeList {
    list: u64,
    listed: BTreeSet<Inode>,
    hits: u32,
    misses: u32,
    is_abandoned: bool,
}

impl SpeculativeList {
    /// Counts a file that is read. True if the list is to be abandoned, now.
    fn count(&mut self, inode: Inode) -> bool {
        if self.list == 0 || self.is_abandoned {
            return false;
        }
        match self.listed.contains(&inode) {
            true => self.hits += 1,
            false => self.misses += 1,
        }
        if self.hits + self.misses > RECENT_FILES {
            (self.hits, self.misses) = (self.hits / 2, self.misses / 2);
        }
        self.is_abandoned = self.misses >= MISSES_MIN && self.misses > self.hits;
        self.is_abandoned
    }
}

/// How well a speculative list matched the files read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProfileCounts {
    /// Files that the list names.
    pub listed: u64,
    /// Files read that it names.
    pub hits: u64,
    /// Files read that it does not name.
    pub misses: u64,
    /// It is not followed any more.
    pub is_abandoned: bool,
}

/// Files read, and how well the speculative list matches.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessLog {
    is_recorded: bool,
    counted: BTreeSet<Inode>,
    unreported: Vec<Inode>,
    speculative: SpeculativeList,
    profile_counts: ProfileCounts,
}

impl AccessLog {
    /// Starts recording files for `take_unreported`.
    pub(crate) const fn record(&mut self) {
        self.is_recorded = true;
    }

    /// Files first read since the last call.
    pub(crate) fn take_unreported(&mut self) -> Vec<Inode> {
        core::mem::take(&mut self.unreported)
    }

    /// How well the speculative list matched.
    pub(crate) const fn counts(&self) -> ProfileCounts {
        self.profile_counts
    }

    /// A speculative list names a file. False if the list was abandoned.
    pub(crate) fn name_speculative(&mut self, list: u64, inode: Inode) -> bool {
        let AccessLog { speculative, profile_counts, .. } = self;
        if speculative.list != list {
            *speculative = SpeculativeList { list, ..SpeculativeList::default() };
            *profile_counts = ProfileCounts::default();
        }
        if !speculative.is_abandoned && speculative.listed.len() < FILES_MAX {
            speculative.listed.insert(inode);
            profile_counts.listed = speculative.listed.len() as u64;
        }
        !speculative.is_abandoned
    }

    /// Somebody reads a file. Returns the list that is abandoned because of that.
    pub(crate) fn note_read(&mut self, inode: Inode) -> Option<u64> {
        let is_noted = self.is_recorded || self.speculative.list != 0;
        if !is_noted || self.counted.len() >= FILES_MAX || !self.counted.insert(inode) {
            return None;
        }
        if self.is_recorded {
            self.unreported.push(inode);
        }
        let list = self.speculative.list;
        if list != 0 {
            match self.speculative.listed.contains(&inode) {
                true => self.profile_counts.hits += 1,
                false => self.profile_counts.misses += 1,
            }
        }
        let is_abandoned = self.speculative.count(inode);
        self.profile_counts.is_abandoned |= is_abandoned;
        is_abandoned.then_some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(listed: u64) -> SpeculativeList {
        SpeculativeList {
            list: 1,
            listed: (0..listed).map(Inode).collect(),
            ..SpeculativeList::default()
        }
    }

    #[test]
    fn a_speculative_list_is_abandoned_when_misses_exceed_hits() {
        // A few other files say nothing, nor as many others as listed ones.
        let mut speculative = of(1000);
        assert!((0..7).all(|file| !speculative.count(Inode(5000 + file))));
        let mut speculative = of(1000);
        for file in 0..400 {
            assert!(!speculative.count(Inode(file)), "file {file}");
            assert!(file % 2 == 0 || !speculative.count(Inode(6000 + file)), "file {file}");
        }
        // However long the list matched: recently it does not.
        let abandoned = (0..).take_while(|file| !speculative.count(Inode(9000 + file))).count();
        assert!((8..=RECENT_FILES as usize).contains(&abandoned), "after {abandoned}");
        assert!(!speculative.count(Inode(9999)), "once");
    }

    #[test]
    fn a_speculative_list_without_hits_is_abandoned_soon() {
        let mut speculative = of(10);
        let abandoned = (0..).take_while(|file| !speculative.count(Inode(100 + file))).count();
        assert_eq!(abandoned as u32 + 1, MISSES_MIN);
        assert!(!SpeculativeList::default().count(Inode(1)), "there is none");
    }
}
