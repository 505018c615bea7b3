//! Files that are open for writing with direct I/O, which bypasses the kernel's page cache. A
//! further writer of such a file also uses direct I/O, because the kernel makes cached and direct
//! opens of one inode wait for each other.
//!
//! The kernel reports the end of an open file (`RELEASE`) after `close` has returned and without
//! waiting, so an open that follows at once may be served first. Before that it reports each closed
//! descriptor (`FLUSH`), and waits. So after a flush the release is probably on its way, and an
//! open waits for it. It is not if the descriptor was duplicated; therefore each open file is
//! waited for only once.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::Inode;

/// Number of maps, so that threads rarely contend for a lock.
const STRIPES: usize = 64;

/// How long an open waits for a release; enough for a busy machine to run the thread that has it.
/// If the descriptor was duplicated the time is lost once; a copy that a child holds between fork
/// and exec is gone within it.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(50);

/// State of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OpenState {
    /// No descriptor of it was closed.
    Open,
    /// A descriptor was closed, and the release is expected.
    Closing,
    /// The release did not arrive in time: the descriptor has copies.
    Shared,
}

/// By inode number and handle.
type OpenStates = BTreeMap<(u64, u64), OpenState>;

#[derive(Default)]
struct Stripe {
    handles: Mutex<OpenStates>,
    /// Notified when an expected release arrives.
    left: Condvar,
}

/// Files that are open for writing with direct I/O.
pub(crate) struct DirectIoFiles {
    stripes: Box<[Stripe]>,
}

impl Stripe {
    fn guard(&self) -> MutexGuard<'_, OpenStates> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of(inode: Inode) -> core::ops::RangeInclusive<(u64, u64)> {
    (inode.0, 0)..=(inode.0, u64::MAX)
}

impl DirectIoFiles {
    pub(crate) fn new() -> DirectIoFiles {
        DirectIoFiles { stripes: (0..STRIPES).map(|_| Stripe::default()).collect() }
    }

    fn stripe(&self, inode: Inode) -> Option<&Stripe> {
        self.stripes.get(wire::hash::mix(inode.0, 13) as usize % STRIPES)
    }

    /// A file was opened for writing with direct I/O.
    pub(crate) fn add(&self, inode: Inode, handle: u64) {
        if let Some(stripe) = self.stripe(inode) {
            stripe.guard().insert((inode.0, handle), OpenState::Open);
        }
    }

    /// A descriptor of a handle was closed.
    pub(crate) fn mark_closing(&self, inode: Inode, handle: u64) {
        if let Some(stripe) = self.stripe(inode)
            && let Some(state @ OpenState::Open) = stripe.guard().get_mut(&(inode.0, handle))
        {
            *state = OpenState::Closing;
        }
    }

    /// A handle was released.
    pub(crate) fn remove(&self, inode: Inode, handle: u64) {
        if let Some(stripe) = self.stripe(inode)
            && stripe.guard().remove(&(inode.0, handle)) == Some(OpenState::Closing)
        {
            stripe.left.notify_all();
        }
    }

    /// True if a file is open for writing with direct I/O. If all such open files are closing,
    /// waits for their release.
    pub(crate) fn has(&self, inode: Inode) -> bool {
        self.has_after(inode, CLOSE_TIMEOUT)
    }

    fn has_after(&self, inode: Inode, timeout: Duration) -> bool {
        let Some(stripe) = self.stripe(inode) else { return false };
        let until = Instant::now() + timeout;
        let mut handles = stripe.guard();
        loop {
            let mut all = handles.range(of(inode)).map(|(_, state)| *state);
            if all.clone().any(|state| state != OpenState::Closing) {
                return true;
            }
            if all.next().is_none() {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                for (_, state) in handles.range_mut(of(inode)) {
                    if *state == OpenState::Closing {
                        *state = OpenState::Shared;
                    }
                }
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
    fn a_closing_writer_is_waited_for_once() {
        let (known, one) = (DirectIoFiles::new(), Inode(7));
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(60));
        let begun = Instant::now();
        known.add(Inode(8), 9);
        assert!(!known.has_after(one, long), "it is not open");
        known.add(one, 1);
        assert!(known.has_after(one, long), "the open file is not closing");
        known.mark_closing(one, 1);
        assert!(known.has_after(one, short), "it does not end");
        known.mark_closing(one, 1);
        assert!(known.has_after(one, long), "it was waited for");
        known.add(one, 2);
        known.mark_closing(one, 2);
        assert!(known.has_after(one, long), "one of two does not leave");
        known.remove(one, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| known.remove(one, 2));
            assert!(!known.has_after(one, long), "it ends");
        });
        assert!(known.has(Inode(8)), "another file's");
        assert!(begun.elapsed() < long, "only closing files are waited for");
    }
}
