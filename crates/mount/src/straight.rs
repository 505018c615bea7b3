//! Files that are open to be written past the kernel's pages: who opens one of them to write next does
//! the same, as the kernel lets those with pages and those without wait for each other.
//!
//! The kernel tells the end of an open file (`RELEASE`) when `close` returns, and waits for nobody: who
//! opens the file again at once may be served first. Before that it tells of each descriptor that is
//! closed (`FLUSH`), and waits. So the end of such an open file is likely to be on its way, and is
//! waited for. It is not if the descriptor had copies; so each is waited for once.
//!
//! And files that programs run from: who opens one to write is refused by the kernel itself, but it looks
//! after a file was opened to be cut (`O_RDONLY | O_TRUNC`), and the program would have lost its bytes.

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
    /// A program runs from it, or did so a moment ago.
    Runs,
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

    /// A program runs from a file.
    pub(crate) fn runs(&self, inode: Inode, handle: u64) {
        if let Some(stripe) = self.stripe(inode) {
            stripe.guard().insert((inode.0, handle), State::Runs);
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
            && matches!(
                stripe.guard().remove(&(inode.0, handle)),
                Some(State::Leaves | State::Runs)
            )
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
            let all = handles.range(of(inode)).map(|(_, state)| *state);
            let mut all = all.filter(|state| *state != State::Runs);
            if all.clone().any(|state| state != State::Leaves) {
                return true;
            }
            if all.next().is_none() {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                for (_, state) in handles.range_mut(of(inode)) {
                    if *state == State::Leaves {
                        *state = State::Stays;
                    }
                }
                return true;
            }
            let waited = stripe.left.wait_timeout(handles, left);
            handles = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// True if a program runs from a file: the end of one that is over may be on its way, too.
    pub(crate) fn is_run(&self, inode: Inode) -> bool {
        self.is_run_after(inode, PATIENCE)
    }

    fn is_run_after(&self, inode: Inode, patience: Duration) -> bool {
        let Some(stripe) = self.stripe(inode) else { return false };
        let runs = |handles: &mut Handles| {
            handles.range(of(inode)).any(|(_, state)| *state == State::Runs)
        };
        let waited = stripe.left.wait_timeout_while(stripe.guard(), patience, runs);
        waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
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

    #[test]
    fn a_program_that_runs_is_no_writer_and_its_end_is_waited_for() {
        let (known, one) = (Straight::new(), Inode(7));
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(60));
        assert!(!known.is_run_after(one, long), "nobody runs it");
        known.add(one, 1);
        assert!(!known.is_run_after(one, long), "who writes does not run it");
        known.remove(one, 1);
        known.runs(one, 2);
        assert!(known.is_run_after(one, short), "it runs");
        assert!(!known.has_after(one, long), "nobody writes it");
        std::thread::scope(|scope| {
            scope.spawn(|| known.remove(one, 2));
            assert!(!known.is_run_after(one, long), "it ends");
        });
    }
}
