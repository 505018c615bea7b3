//! When files changed last that the kernel was let keep pages of, and how often somebody had begun to
//! write to them: what it has of a file that changed since, or may have, is old. While such a file is
//! open, who writes to it has the pages dropped (`pages`); between its close and the next open this is
//! how it is known. The time alone would not do: another host tells it late.

use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::Inode;

/// How many files are remembered: the kernel reads others anew.
const ROWS: usize = 16_384;
const STRIPE: usize = 64;

/// A file, the time of its last change, how often somebody had begun to write, and what pages of it are.
type Row = (Inode, i64, u64, Had);

/// Whose bytes the kernel may have in pages of a file as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Had {
    /// Those of before.
    Others,
    /// Its own, which were read.
    Read,
    /// Its own, which were written through this mount and perhaps not read since.
    Written,
}

/// The last few files.
pub(crate) struct Versions {
    rows: Vec<Mutex<[Row; STRIPE]>>,
}

impl Versions {
    pub(crate) fn new() -> Versions {
        let stripe = || Mutex::new([(Inode::NONE, 0, 0, Had::Others); STRIPE]);
        Versions { rows: (0..ROWS / STRIPE).map(|_| stripe()).collect() }
    }

    fn stripe(&self, inode: Inode) -> Option<(MutexGuard<'_, [Row; STRIPE]>, usize)> {
        let place = wire::hash::mix(inode.0, 5) as usize % ROWS;
        let stripe = self.rows.get(place / STRIPE)?;
        Some((stripe.lock().unwrap_or_else(PoisonError::into_inner), place % STRIPE))
    }

    /// What the kernel may have of a file that was last changed at `changed`; it is read from now on.
    /// `writers`: how often somebody had begun to write before it was opened now, and since.
    pub(crate) fn had(&self, inode: Inode, changed: i64, writers: (u64, u64)) -> Had {
        let Some((mut stripe, place)) = self.stripe(inode) else { return Had::Others };
        let Some(row) = stripe.get_mut(place) else { return Had::Others };
        let new = (inode, changed, writers.1, Had::Read);
        let (known, at, writers_then, had) = core::mem::replace(row, new);
        if (known, at, writers_then) == (inode, changed, writers.0) { had } else { Had::Others }
    }

    /// The file is closed whose pages the kernel wrote, and nobody else did.
    pub(crate) fn wrote(&self, inode: Inode, changed: i64) {
        if let Some((mut stripe, place)) = self.stripe(inode)
            && let Some(row) = stripe.get_mut(place)
            && row.0 == inode
            && row.1 != changed
        {
            (row.1, row.3) = (changed, Had::Written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_until_it_changes() {
        let versions = Versions::new();
        let had = |inode, changed, writers| versions.had(Inode(inode), changed, writers);
        use Had::{Others, Read, Written};
        let asked = [(7, 1), (7, 1), (7, 2), (7, 2), (8, 2), (7, 2), (7, 1)];
        let seen = asked.map(|(inode, changed)| had(inode, changed, (5, 5)));
        assert_eq!(seen, [Others, Read, Others, Read, Others, Read, Others]);
        // By who writes himself, by others, and when nobody knows.
        let asked = [(5, 6), (6, 6), (7, 7), (7, 7), (u64::MAX, u64::MAX), (7, 7)];
        let seen = asked.map(|writers| had(7, 1, writers));
        assert_eq!(seen, [Read, Read, Others, Read, Others, Others]);
        versions.wrote(Inode(7), 3);
        let seen = [2, 3, 3].map(|changed| had(7, changed, (7, 7)));
        assert_eq!(seen, [Others, Others, Read], "it is another file since it was asked about");
        versions.wrote(Inode(7), 4);
        let seen = [4, 4].map(|changed| had(7, changed, (7, 7)));
        assert_eq!(seen, [Written, Read]);
        versions.wrote(Inode(7), 4);
        assert_eq!(had(7, 4, (7, 7)), Read, "nothing was written");
        versions.wrote(Inode(9), 4);
        assert_eq!(had(9, 4, (0, 0)), Others, "it was not let keep any");
    }
}
