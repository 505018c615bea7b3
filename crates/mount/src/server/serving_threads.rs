//! How many serving threads are busy. A request may wait for long: for another host, for the backing
//! store, for its share. So that such requests stop nobody else's, more threads are started when all of a
//! group are busy and none took a request for a while (`serve::growth`). They stay: a thread that waits
//! for requests costs its buffers.
//!
//! A group has the threads that take requests from the same place: `/dev/fuse`, or the queue of a
//! processor.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Largest number of threads of a group.
pub(crate) const THREADS_MAX: usize = 256;
/// A group whose threads are all busy, and of which none took a request for this time, gets another.
const STUCK_TIME: Duration = Duration::from_millis(10);

/// Threads that take requests from the same place.
#[derive(Default)]
pub(crate) struct ThreadGroup {
    count: AtomicUsize,
    busy: AtomicUsize,
    /// Requests taken so far.
    taken: AtomicU64,
    /// Node of the last file that was opened, read or written; 0: none was.
    file: AtomicU64,
}

/// All groups.
pub(crate) struct ServingThreads {
    groups: Vec<ThreadGroup>,
    /// The thread that starts others waits until a group is full.
    is_waiting: AtomicBool,
    is_over: Mutex<bool>,
    changed: Condvar,
}

/// A request that a thread carries out, until it is dropped.
pub(crate) struct BusyThread<'t>(&'t ThreadGroup);

impl Drop for BusyThread<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

impl ServingThreads {
    /// So many groups without threads.
    pub(crate) fn new(groups: usize) -> ServingThreads {
        ServingThreads {
            groups: (0..groups).map(|_| ThreadGroup::default()).collect(),
            is_waiting: AtomicBool::new(false),
            is_over: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    /// A thread is added to a group. False: it has as many as it may have.
    pub(crate) fn add(&self, group: usize) -> bool {
        let Some(group) = self.groups.get(group) else { return false };
        group
            .count
            .fetch_update(SeqCst, SeqCst, |count| (count < THREADS_MAX).then_some(count + 1))
            .is_ok()
    }

    /// A thread that was added could not be started.
    pub(crate) fn remove(&self, group: usize) {
        if let Some(group) = self.groups.get(group) {
            group.count.fetch_sub(1, SeqCst);
        }
    }

    /// A thread of a group has taken a request. `None`: the group is not known.
    pub(crate) fn take(&self, group: usize) -> Option<BusyThread<'_>> {
        let group = self.groups.get(group)?;
        group.taken.fetch_add(1, Relaxed);
        // With `is_waiting` in `await_full`: one of both sees the other.
        let busy = group.busy.fetch_add(1, SeqCst) + 1;
        if busy >= group.count.load(Relaxed) && self.is_waiting.load(SeqCst) {
            drop(self.is_over.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
        Some(BusyThread(group))
    }

    /// A request of a group opens, reads or writes a file.
    pub(crate) fn note_file(&self, group: usize, node: u64) {
        if let Some(group) = self.groups.get(group) {
            group.file.store(node, Relaxed);
        }
    }

    /// The node of the file of which a group had the last request.
    pub(crate) fn file_of(&self, group: usize) -> Option<u64> {
        let node = self.groups.get(group)?.file.load(Relaxed);
        (node != 0).then_some(node)
    }

    fn is_full(&self) -> bool {
        let is_full = |group: &ThreadGroup| {
            let count = group.count.load(SeqCst);
            count > 0 && count < THREADS_MAX && group.busy.load(SeqCst) >= count
        };
        self.groups.iter().any(is_full)
    }

    /// Waits until groups are stuck, and returns them; `None`: the mount is over.
    pub(crate) fn await_stuck(&self) -> Option<Vec<usize>> {
        let mut is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.is_waiting.store(true, SeqCst);
            while !*is_over && !self.is_full() {
                is_over = self.changed.wait(is_over).unwrap_or_else(PoisonError::into_inner);
            }
            self.is_waiting.store(false, SeqCst);
            let before: Vec<u64> =
                self.groups.iter().map(|group| group.taken.load(SeqCst)).collect();
            let waited = self.changed.wait_timeout_while(is_over, STUCK_TIME, |is_over| !*is_over);
            is_over = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *is_over {
                return None;
            }
            let stuck =
                self.groups.iter().zip(before).enumerate().filter(|(_, (group, before))| {
                    let count = group.count.load(SeqCst);
                    let is_full = count > 0 && group.busy.load(SeqCst) >= count;
                    is_full && group.taken.load(SeqCst) == *before
                });
            let stuck: Vec<usize> = stuck.map(|(number, _)| number).collect();
            if !stuck.is_empty() {
                return Some(stuck);
            }
        }
    }

    /// The mount is over: no more threads are started.
    pub(crate) fn end(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_stuck_when_all_its_threads_are_busy_and_take_nothing() {
        let threads = ServingThreads::new(2);
        assert!(threads.add(0) && threads.add(1) && threads.add(1) && !threads.add(2));
        std::thread::scope(|scope| {
            let first = threads.take(1).expect("the group");
            let growing = scope.spawn(|| threads.await_stuck());
            let second = threads.take(1).expect("the group");
            assert_eq!(growing.join().expect("no panic"), Some(vec![1]));
            drop((first, second));
        });
        threads.end();
        assert_eq!(threads.await_stuck(), None);
    }

    #[test]
    fn a_group_grows_to_its_maximum() {
        let threads = ServingThreads::new(1);
        let count = (0..2 * THREADS_MAX).filter(|_| threads.add(0)).count();
        assert_eq!(count, THREADS_MAX);
        threads.remove(0);
        assert!(threads.add(0) && !threads.add(0));
    }
}
