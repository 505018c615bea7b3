//! Work between the thread that finds names and those that copy: bounded, in order, large files first.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Names that wait. Each may hold two directories open.
const WAITING_MAX: usize = 128;

/// The queue.
pub(super) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    /// There is more, or the end.
    more: Condvar,
    /// There is room.
    room: Condvar,
}

struct Inner<T> {
    tasks: VecDeque<T>,
    /// Threads that are at a task, and may add to it.
    running: usize,
    is_closed: bool,
}

impl<T> Queue<T> {
    /// An empty one, for so many threads that take.
    pub(super) fn new(threads: usize) -> Queue<T> {
        let inner = Inner { tasks: VecDeque::new(), running: threads, is_closed: false };
        Queue { inner: Mutex::new(inner), more: Condvar::new(), room: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task behind all others, as soon as there is room.
    pub(super) fn push(&self, task: T) {
        let mut inner = self.lock();
        while inner.tasks.len() >= WAITING_MAX {
            inner = self.room.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.tasks.push_back(task);
        self.more.notify_one();
    }

    /// Adds tasks before all others. Only for who is at a task: he may not wait for himself.
    pub(super) fn push_first(&self, tasks: impl Iterator<Item = T>) {
        let mut inner = self.lock();
        for task in tasks {
            inner.tasks.push_front(task);
        }
        self.more.notify_all();
    }

    /// No more will be pushed from outside.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.more.notify_all();
    }

    /// The next task, if one waits.
    pub(super) fn try_next(&self) -> Option<T> {
        let task = self.lock().tasks.pop_front();
        if task.is_some() {
            self.room.notify_one();
        }
        task
    }

    /// The next task; `None` when there will be none. Who asks is done with his last one.
    pub(super) fn next(&self) -> Option<T> {
        let mut inner = self.lock();
        inner.running -= 1;
        loop {
            if let Some(task) = inner.tasks.pop_front() {
                inner.running += 1;
                self.room.notify_one();
                return Some(task);
            }
            if inner.is_closed && inner.running == 0 {
                self.more.notify_all();
                return None;
            }
            inner = self.more.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_that_is_pushed_is_done_also_what_comes_while_others_end() {
        let queue = Queue::new(3);
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while let Some(depth) = queue.next() {
                        done.fetch_add(1, Ordering::Relaxed);
                        queue.push_first((0..depth).map(|_| depth - 1));
                    }
                });
            }
            for _ in 0..10 * WAITING_MAX {
                queue.push(2_usize);
            }
            queue.close();
        });
        // Each makes two, each of which makes one.
        assert_eq!(done.into_inner(), 10 * WAITING_MAX * 5);
    }
}
