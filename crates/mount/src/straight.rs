//! Files that are open to be written past the kernel's pages: who opens one of them to write next does
//! the same, as the kernel lets those with pages and those without wait for each other.
//!
//! The kernel tells the end of an open file (`RELEASE`) when `close` returns, and waits for nobody: who
//! opens the file again at once may be served first. Before that it tells of each descriptor that is
//! closed (`FLUSH`), and waits. So the end of such an open file is likely to be on its way, and is
//! waited for. It is not if the descriptor had copies; so each is waited for once.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::Inode;

/// Maps, so that threads seldom meet.
const STRIPES: usize = 64;
/// What a busy machine needs to run the thread that has the end. With a copy of the descriptor it is
/// lost once, and with one that a child had between fork and exec it is enough.
const PATIENCE: Duration = Duration::from_millis(50);

/// What is known of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No descriptor of it was closed.
    Open,
    /// One was.
    Leaves,
    /// Its end was waited for in vain.
    Stays,
}

/// By number of file and handle.
type Handles = BTreeMap<(u64, u64), State>;

#[derive(Default)]
struct Stripe {
    handles: Mutex<Handles>,
    /// One that was to leave has left.
    left: Condvar,
}

/// See the module.
pub(crate) struct Straight {
    stripes: Box<[Stripe]>,
}

impl Stripe {
    fn guard(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of(inode: Inode) -> core::ops::RangeInclusive<(u64, u64)> {
    (inode.0, 0)..=(inode.0, u64::MAX)
}

impl Straight {
    pub(crate) fn new() -> Straight {
        Straight { stripes: (0..STRIPES).map(|_| Stripe::default()).collect() }
    }

    fn stripe(&self, inode: Inode) -> Option<&Stripe> {
        self.stripes.get(wire::hash::mix(inode.0, 13) as usize % STRIPES)
    }

    /// A file is open so.
    pub(crate) fn add(&self, inode: Inode, handle: u64) {
        if let Some(stripe) = self.stripe(inode) {
            stripe.guard().insert((inode.0, handle), State::Open);
        }
    }

    /// A descriptor of a handle is closed.
    pub(crate) fn leaves(&self, inode: Inode, handle: u64) {
        if let Some(stripe) = self.stripe(inode)
            && let Some(state @ State::Open) = stripe.guard().get_mut(&(inode.0, handle))
        {
            *state = State::Leaves;
        }
    }

    /// A handle is gone.
    pub(crate) fn remove(&self, inode: Inode, handle: u64) {
        if let Some(stripe) = self.stripe(inode)
            && stripe.guard().remove(&(inode.0, handle)) == Some(State::Leaves)
        {
            stripe.left.notify_all();
        }
    }

    /// True if a file is open so, after waiting for those who are about to leave, if nobody else is
    /// there.
    pub(crate) fn has(&self, inode: Inode) -> bool {
        self.has_after(inode, PATIENCE)
    }

    fn has_after(&self, inode: Inode, patience: Duration) -> bool {
        let Some(stripe) = self.stripe(inode) else { return false };
        let until = Instant::now() + patience;
        let mut handles = stripe.guard();
        loop {
            let mut all = handles.range(of(inode)).map(|(_, state)| *state);
            if all.clone().any(|state| state != State::Leaves) {
                return true;
            }
            if all.next().is_none() {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                handles.range_mut(of(inode)).for_each(|(_, state)| *state = State::Stays);
                return true;
            }
            let waited = stripe.left.wait_timeout(handles, left);
            handles = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_is_waited_for_once_and_nobody_else() {
        let (known, one) = (Straight::new(), Inode(7));
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(60));
        let begun = Instant::now();
        known.add(Inode(8), 9);
        assert!(!known.has_after(one, long), "nobody has it open");
        known.add(one, 1);
        assert!(known.has_after(one, long), "who has it open does not leave");
        known.leaves(one, 1);
        assert!(known.has_after(one, short), "it does not end");
        known.leaves(one, 1);
        assert!(known.has_after(one, long), "it was waited for");
        known.add(one, 2);
        known.leaves(one, 2);
        assert!(known.has_after(one, long), "one of two does not leave");
        known.remove(one, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| known.remove(one, 2));
            assert!(!known.has_after(one, long), "it ends");
        });
        assert!(known.has(Inode(8)), "another file's");
        assert!(begun.elapsed() < long, "nobody is waited for who does not leave");
    }
}
