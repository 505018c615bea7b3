//! When files changed last that the kernel was let keep pages of: what it has of a file that changed
//! since is old. While such a file is open, who writes to it has the pages dropped (`pages`); between
//! its close and the next open this is how it is known.

use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::Inode;

/// How many files are remembered: the kernel reads others anew.
const ROWS: usize = 16_384;
const STRIPE: usize = 64;

/// A file, the time of its last change, and what pages of it are.
type Row = (Inode, i64, Had);

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
        let stripe = || Mutex::new([(Inode::NONE, 0, Had::Others); STRIPE]);
        Versions { rows: (0..ROWS / STRIPE).map(|_| stripe()).collect() }
    }

    fn stripe(&self, inode: Inode) -> Option<(MutexGuard<'_, [Row; STRIPE]>, usize)> {
        let place = wire::hash::mix(inode.0, 5) as usize % ROWS;
        let stripe = self.rows.get(place / STRIPE)?;
        Some((stripe.lock().unwrap_or_else(PoisonError::into_inner), place % STRIPE))
    }

    /// What the kernel may have of a file that was last changed at `changed`; it is read from now on.
    pub(crate) fn had(&self, inode: Inode, changed: i64) -> Had {
        let Some((mut stripe, place)) = self.stripe(inode) else { return Had::Others };
        let Some(row) = stripe.get_mut(place) else { return Had::Others };
        let (known, at, had) = core::mem::replace(row, (inode, changed, Had::Read));
        if (known, at) == (inode, changed) { had } else { Had::Others }
    }

    /// The file is closed whose pages the kernel wrote, and nobody else did.
    pub(crate) fn wrote(&self, inode: Inode, changed: i64) {
        if let Some((mut stripe, place)) = self.stripe(inode)
            && let Some(row) = stripe.get_mut(place)
            && *row != (inode, changed, Had::Read)
        {
            *row = (inode, changed, Had::Written);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_until_it_changes() {
        let versions = Versions::new();
        let asked = [(7, 1), (7, 1), (7, 2), (7, 2), (8, 2), (7, 2), (7, 1)];
        let had = asked.map(|(inode, changed)| versions.had(Inode(inode), changed));
        use Had::{Others, Read, Written};
        assert_eq!(had, [Others, Read, Others, Read, Others, Read, Others]);
        versions.wrote(Inode(7), 3);
        let had = [2, 3, 3].map(|changed| versions.had(Inode(7), changed));
        assert_eq!(had, [Others, Others, Read], "it is another file since it was asked about");
        versions.wrote(Inode(7), 4);
        let had = [4, 4].map(|changed| versions.had(Inode(7), changed));
        assert_eq!(had, [Written, Read]);
        versions.wrote(Inode(7), 4);
        assert_eq!(versions.had(Inode(7), 4), Read, "nothing was written");
    }
}
