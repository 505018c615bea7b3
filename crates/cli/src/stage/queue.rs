//! The task queue between the thread that finds names and those that copy: bounded, in order, parts
//! of large files first.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Most waiting tasks. Each may hold two directories open.
const WAITING_MAX: usize = 128;

/// A bounded queue for several producers and consumers.
pub(super) struct Queue<T> {
    inner: Mutex<QueueState<T>>,
    /// Signals a new task, or the end.
    more: Condvar,
    /// Signals free space.
    space: Condvar,
}

struct QueueState<T> {
    tasks: VecDeque<T>,
    /// Threads that work on a task and may add others.
    running: usize,
    is_closed: bool,
}

impl<T> Queue<T> {
    /// An empty queue for `threads` consumers.
    pub(super) fn new(threads: usize) -> Queue<T> {
        let inner = QueueState { tasks: VecDeque::new(), running: threads, is_closed: false };
        Queue { inner: Mutex::new(inner), more: Condvar::new(), space: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task at the end, as soon as there is space.
    pub(super) fn push(&self, task: T) {
        let mut inner = self.lock();
        while inner.tasks.len() >= WAITING_MAX {
            inner = self.space.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.tasks.push_back(task);
        self.more.notify_one();
    }

    /// Adds tasks at the front without waiting for space, because it is called by the consumers
    /// themselves.
    pub(super) fn push_first(&self, tasks: impl Iterator<Item = T>) {
        let mut inner = self.lock();
        for task in tasks {
            inner.tasks.push_front(task);
        }
        self.more.notify_all();
    }

    /// Ends the queue: the producer adds no more tasks.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.more.notify_all();
    }

    /// The next task, if there is one.
    pub(super) fn try_next(&self) -> Option<T> {
        let task = self.lock().tasks.pop_front();
        if task.is_some() {
            self.space.notify_one();
        }
        task
    }

    /// Waits for the next task; `None` when there will be none. The caller has finished its last
    /// task.
    pub(super) fn next(&self) -> Option<T> {
        let mut inner = self.lock();
        inner.running -= 1;
        loop {
            if let Some(task) = inner.tasks.pop_front() {
                inner.running += 1;
                self.space.notify_one();
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
    fn all_tasks_are_done_including_those_added_by_consumers() {
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
        // Each task adds two, each of which adds one.
        assert_eq!(done.into_inner(), 10 * WAITING_MAX * 5);
    }
}
