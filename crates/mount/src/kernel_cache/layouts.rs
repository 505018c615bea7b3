//! Cache of directory layouts. A layout determines the shard of a name. It changes only where the spread
//! is `spread::AUTO`, until the directory is wide; a shard that a name has left says so.

use std::sync::{Mutex, PoisonError};
use wire::{Attributes, Inode, Layout};

/// Number of directories in the cache; others are queried.
const SLOTS: usize = 16_384;

const STRIPE: usize = 64;

/// The cache.
pub(crate) struct LayoutCache {
    slots: Vec<Mutex<[(Inode, Layout); STRIPE]>>,
}

impl LayoutCache {
    pub(crate) fn new() -> LayoutCache {
        let stripe = || Mutex::new([(Inode::NONE, Layout::default()); STRIPE]);
        LayoutCache { slots: (0..SLOTS / STRIPE).map(|_| stripe()).collect() }
    }

    fn with<R>(&self, directory: Inode, with: impl FnOnce(&mut (Inode, Layout)) -> R) -> Option<R> {
        let place = wire::hash::mix(directory.0, 9) as usize % SLOTS;
        let mut stripe =
            self.slots.get(place / STRIPE)?.lock().unwrap_or_else(PoisonError::into_inner);
        stripe.get_mut(place % STRIPE).map(with)
    }

    /// The layout of a directory, if it is cached.
    pub(crate) fn get(&self, directory: Inode) -> Option<Layout> {
        self.with(directory, |slot| (slot.0 == directory).then_some(slot.1)).flatten()
    }

    /// The layout of a directory has changed.
    pub(crate) fn forget(&self, directory: Inode) {
        let forget = |slot: &mut (Inode, Layout)| {
            if slot.0 == directory {
                slot.0 = Inode::NONE;
            }
        };
        let _ = self.with(directory, forget);
    }

    /// Caches the layout of `met` if it is a directory.
    pub(crate) fn note(&self, met: &Attributes) {
        if met.is_directory() {
            let _ = self.with(met.inode, |slot| *slot = (met.inode, met.layout));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::attributes::mode;

    #[test]
    fn layouts_of_known_directories_are_returned() {
        let layouts = LayoutCache::new();
        let layout = Layout { place: 7, ..Layout::default() };
        let met =
            |inode, mode| Attributes { inode: Inode(inode), mode, layout, ..Attributes::default() };
        layouts.note(&met(3, mode::DIRECTORY));
        layouts.note(&met(4, mode::REGULAR));
        assert_eq!((layouts.get(Inode(3)), layouts.get(Inode(4))), (Some(layout), None));
        layouts.forget(Inode(5));
        assert_eq!(layouts.get(Inode(3)), Some(layout));
        layouts.forget(Inode(3));
        assert_eq!(layouts.get(Inode(3)), None);
    }
}
