//! When files changed last that the kernel was let keep pages of: what it has of a file that changed
//! since is old. While such a file is open, who writes to it has the pages dropped (`watches`); between
//! its close and the next open this is how it is known.

use std::sync::{Mutex, PoisonError};
use wire::Inode;

/// How many files are remembered: the kernel reads others anew.
const ROWS: usize = 16_384;
const STRIPE: usize = 64;

/// A file and the time of its last change.
type Row = (Inode, i64);

/// The last few files.
pub(crate) struct Versions {
    rows: Vec<Mutex<[Row; STRIPE]>>,
}

impl Versions {
    pub(crate) fn new() -> Versions {
        let stripe = || Mutex::new([(Inode::NONE, 0); STRIPE]);
        Versions { rows: (0..ROWS / STRIPE).map(|_| stripe()).collect() }
    }

    /// True if the file was last changed at `changed` when this was asked before. Remembers it.
    pub(crate) fn is_same(&self, inode: Inode, changed: i64) -> bool {
        let place = wire::hash::mix(inode.0, 5) as usize % ROWS;
        let Some(stripe) = self.rows.get(place / STRIPE) else { return false };
        let mut stripe = stripe.lock().unwrap_or_else(PoisonError::into_inner);
        let row = stripe.get_mut(place % STRIPE);
        row.is_some_and(|row| core::mem::replace(row, (inode, changed)) == (inode, changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_until_it_changes() {
        let versions = Versions::new();
        let asked = [(7, 1), (7, 1), (7, 2), (7, 2), (8, 2), (7, 2), (7, 1)];
        let same = asked.map(|(inode, changed)| versions.is_same(Inode(inode), changed));
        assert_eq!(same, [false, true, false, true, false, true, false]);
    }
}
