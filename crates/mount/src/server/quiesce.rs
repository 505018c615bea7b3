//! Waits until all requests that the kernel sent before a certain one are executed.
//!
//! The kernel releases `flock` and `F_OFD_SETLK` locks of a closed file by `RELEASE`, which it
//! sends after `close` has returned, without waiting. Requests are taken in the order in which they
//! were sent, but by many threads. So a program that closes a file and requests its lock again may
//! conflict with its own old lock. Therefore a lock request that is refused makes each serving
//! thread pass a point at which it is about to release no lock, and tries again. A signal wakes
//! threads that wait for a request; a thread that has taken one executes it first.
//!
//! With rings the kernel hands a request to a thread before the thread polls: the thread has passed
//! when it has polled after the request to pass and executed what it found.

use rustix::io::Errno;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Signal that wakes a thread that waits for a request.
const WAKE: libc::c_int = libc::SIGURG;

/// A signal that arrives just before a thread waits is lost, so it is repeated at this interval.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(1);

/// A thread that does not pass within this time is not about to release a lock; the request is
/// answered without it.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(1);

/// A serving thread.
#[derive(Debug)]
struct ServingThread {
    thread: libc::pthread_t,
    /// Number of the last request to pass that it has met.
    passed: AtomicU64,
}

/// All serving threads.
#[derive(Default)]
pub(crate) struct Quiesce {
    threads: Mutex<Vec<Arc<ServingThread>>>,
    /// Number of the last request to pass.
    requested: AtomicU64,
    /// Number of threads that wait for others to pass.
    waiting: AtomicU64,
    passed: Mutex<()>,
    passing: Condvar,
}

/// Registration of the calling thread as a serving thread, until it is dropped.
pub(crate) struct Serving<'t> {
    quiesce: &'t Quiesce,
    own: Arc<ServingThread>,
}

fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs a signal handler that does nothing, so that the signal interrupts system calls.
///
/// # Errors
/// As of `sigaction`.
#[expect(unsafe_code, reason = "no crate installs a handler that lets system calls end")]
pub(crate) fn prepare() -> Result<(), Errno> {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: all zeros is a valid value of this type: no flags, so system calls are interrupted,
    // and no blocked signals. The handler does nothing, which is safe at any point.
    // WHY: crates set `SA_RESTART`, with which the thread would sleep on.
    let answer = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        libc::sigaction(WAKE, &raw const action, core::ptr::null_mut())
    };
    if answer == 0 { Ok(()) } else { Err(Errno::INVAL) }
}

impl Quiesce {
    /// Registers the calling thread.
    #[expect(unsafe_code, reason = "the number by which a thread is sent a signal")]
    pub(crate) fn begin(&self) -> Serving<'_> {
        // SAFETY: it returns the id of the calling thread and cannot fail.
        // WHY: `std` returns thread ids only for threads that are joined.
        let thread = unsafe { libc::pthread_self() };
        let own = Arc::new(ServingThread { thread, passed: AtomicU64::new(0) });
        guard(&self.threads).push(Arc::clone(&own));
        Serving { quiesce: self, own }
    }

    /// Waits until each serving thread except the caller has passed once. The caller is not about
    /// to release a lock, so other callers of this function need not wait for it.
    pub(crate) fn wait_for_all(&self) {
        self.waiting.fetch_add(1, SeqCst);
        let asking = self.requested.fetch_add(1, SeqCst) + 1;
        let number = current();
        let all = guard(&self.threads).clone();
        let (own, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|thread| thread.thread == number);
        let is_missing = |thread: &Arc<ServingThread>| thread.passed.load(SeqCst) < asking;
        let since = Instant::now();
        for thread in &others {
            while is_missing(thread) && since.elapsed() < QUIESCE_TIMEOUT {
                own.iter().for_each(|own| self.pass(own, self.requested.load(SeqCst)));
                self.wake(thread);
                let passed = guard(&self.passed);
                if is_missing(thread) {
                    let _ = self.passing.wait_timeout(passed, SIGNAL_INTERVAL);
                }
            }
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn pass(&self, thread: &ServingThread, requested: u64) {
        thread.passed.fetch_max(requested, SeqCst);
        if self.waiting.load(SeqCst) != 0 {
            drop(guard(&self.passed));
            self.passing.notify_all();
        }
    }

    #[expect(unsafe_code, reason = "a signal to one thread")]
    fn wake(&self, thread: &Arc<ServingThread>) {
        // A thread in the list has not ended, because it removes itself first.
        let threads = guard(&self.threads);
        if threads.iter().any(|other| Arc::ptr_eq(other, thread)) {
            // SAFETY: the thread lives, see above, and the signal has a handler that does nothing.
            // WHY: nothing else ends its wait in the kernel.
            unsafe { libc::pthread_kill(thread.thread, WAKE) };
        }
    }
}

#[expect(unsafe_code, reason = "the number by which a thread is known here")]
fn current() -> libc::pthread_t {
    // SAFETY: it returns the id of the calling thread and cannot fail. WHY: as in `begin`.
    unsafe { libc::pthread_self() }
}

impl Serving<'_> {
    /// The thread passes: it is not about to release a lock.
    pub(crate) fn pass(&self) {
        self.pass_of(self.requested());
    }

    /// Number of the last request to pass.
    pub(crate) fn requested(&self) -> u64 {
        self.quiesce.requested.load(SeqCst)
    }

    /// True if the thread has not passed since this request.
    pub(crate) fn is_due(&self, requested: u64) -> bool {
        self.own.passed.load(SeqCst) < requested
    }

    /// The thread has executed all that the kernel had handed to it at this request.
    pub(crate) fn pass_of(&self, requested: u64) {
        self.quiesce.pass(&self.own, requested);
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        guard(&self.quiesce.threads).retain(|thread| !Arc::ptr_eq(thread, &self.own));
        self.pass_of(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    #[test]
    fn a_thread_finishes_its_request_before_it_passes() {
        prepare().expect("a handler");
        let (quiesce, is_done, is_stopped) =
            (Quiesce::default(), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (taken, began) = mpsc::channel();
            let (go, goes) = mpsc::channel::<()>();
            let (quiesce, is_done, is_stopped) = (&quiesce, &is_done, &is_stopped);
            // A thread that has a request.
            scope.spawn(move || {
                let serving = quiesce.begin();
                taken.send(()).expect("a receiver");
                goes.recv().expect("a sender");
                is_done.store(true, SeqCst);
                serving.pass();
            });
            // A thread that waits for a request.
            let (waits, waiting) = mpsc::channel();
            scope.spawn(move || {
                let serving = quiesce.begin();
                waits.send(()).expect("a receiver");
                while !is_stopped.load(SeqCst) {
                    serving.pass();
                    let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
                        tv_sec: 60,
                        tv_nsec: 0,
                    });
                }
            });
            began.recv().expect("a sender");
            waiting.recv().expect("a sender");
            let _own = quiesce.begin();
            scope.spawn(move || go.send(()));
            quiesce.wait_for_all();
            assert!(is_done.load(SeqCst), "it passed with a request in its hands");
            is_stopped.store(true, SeqCst);
            quiesce.wait_for_all();
        });
    }
}
