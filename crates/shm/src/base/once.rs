//! A cell that is filled once, for what a client learns after the program has started.
//!
//! `core` has such a cell for one thread only, and `std` is not available inside applications.
//! Nothing ever waits here: a second writer is refused. A fill that a `fork` interrupts leaves the
//! child with a cell that stays empty.

use crate::sync::{self, AtomicU32};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const EMPTY: u32 = 0;
const FILLING: u32 = 1;
const FULL: u32 = 2;

/// The cell. Its value is never dropped: the cell belongs in a static.
pub struct Once<T> {
    state: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is written by one thread before FULL is published and only read afterwards;
// it moves between threads (Send) and is seen by several (Sync).
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    /// An empty cell.
    #[must_use]
    pub const fn new() -> Once<T> {
        Once { state: AtomicU32::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// The value, if the cell was filled.
    #[must_use]
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if self.state.load(Acquire) != FULL {
            return None;
        }
        // WHY: there is no safe cell for this without a lock or an allocation.
        // SAFETY: FULL was published after the value was written, and it is never written again.
        Some(unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Fills the cell.
    ///
    /// # Errors
    /// The value itself, if the cell was filled or is being filled by another thread.
    pub fn set(&self, value: T) -> Result<&T, T> {
        if self.state.compare_exchange(EMPTY, FILLING, Acquire, Relaxed).is_err() {
            return Err(value);
        }
        sync::point();
        // WHY: as for `get`.
        // SAFETY: only the thread that moved EMPTY to FILLING comes here, once, and nobody reads
        // before FULL.
        let value = unsafe { (*self.value.get()).write(value) };
        self.state.store(FULL, Release);
        Ok(value)
    }
}

impl<T> Default for Once<T> {
    fn default() -> Once<T> {
        Once::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_stays() {
        let cell = Once::new();
        assert_eq!(cell.get(), None);
        assert_eq!(cell.set(1), Ok(&1));
        assert_eq!(cell.set(2), Err(2));
        assert_eq!(cell.get(), Some(&1));
    }
}
