//! Layouts of directories that were met: they say which shard has a name, and that never changes.

use std::sync::{Mutex, PoisonError};
use wire::{Attributes, Inode, Layout};

/// How many; others are asked for anew.
const ROWS: usize = 16_384;
const STRIPE: usize = 64;

/// The last few directories.
pub(crate) struct Places {
    rows: Vec<Mutex<[(Inode, Layout); STRIPE]>>,
}

impl Places {
    pub(crate) fn new() -> Places {
        let stripe = || Mutex::new([(Inode::NONE, Layout::default()); STRIPE]);
        Places { rows: (0..ROWS / STRIPE).map(|_| stripe()).collect() }
    }

    fn with<R>(&self, directory: Inode, with: impl FnOnce(&mut (Inode, Layout)) -> R) -> Option<R> {
        let place = wire::hash::mix(directory.0, 9) as usize % ROWS;
        let mut stripe =
            self.rows.get(place / STRIPE)?.lock().unwrap_or_else(PoisonError::into_inner);
        stripe.get_mut(place % STRIPE).map(with)
    }

    /// The layout of a directory that was noted.
    pub(crate) fn get(&self, directory: Inode) -> Option<Layout> {
        self.with(directory, |row| (row.0 == directory).then_some(row.1)).flatten()
    }

    /// Something was met; if it is a directory, its layout is noted.
    pub(crate) fn note(&self, met: &Attributes) {
        if met.is_directory() {
            let _ = self.with(met.inode, |row| *row = (met.inode, met.layout));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::attributes::mode;

    #[test]
    fn directories_are_known_that_were_met() {
        let places = Places::new();
        let layout = Layout { place: 7, ..Layout::default() };
        let met =
            |inode, mode| Attributes { inode: Inode(inode), mode, layout, ..Attributes::default() };
        places.note(&met(3, mode::DIRECTORY));
        places.note(&met(4, mode::REGULAR));
        assert_eq!((places.get(Inode(3)), places.get(Inode(4))), (Some(layout), None));
    }
}
