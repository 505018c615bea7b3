//! Turns: how a thread learns that all requests which the kernel sent before its own are done with.
//!
//! The kernel gives back `flock` and `F_OFD_SETLK` locks of a closed file by `RELEASE`, which it sends
//! after `close` has returned, and waits for nobody. Requests are taken in the order in which they were
//! sent, but by many threads: who closed a file and asks for its lock again may be refused for his own
//! old one. So who is refused lets each thread that serves pass once by a point where it is about to end
//! no lock, and asks again. A thread that waits for a request is woken by a signal for that; whatever it
//! had taken before, it does first.
//!
//! By rings the kernel gives a request to a thread before that looks: so it has passed when it
//! looked after it was asked to, and did what it found.

use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Wakes a thread that waits for a request.
const WAKE: libc::c_int = libc::SIGURG;
/// A signal that comes just before a thread waits is lost: it is sent again.
const AGAIN: Duration = Duration::from_millis(1);
/// A thread that stands still for so long ends no lock that was waited for: the answer is given without.
const PATIENCE: Duration = Duration::from_secs(1);

/// One thread that serves.
#[derive(Debug)]
struct Turn {
    thread: libc::pthread_t,
    /// The last asking that it came by after.
    passed: AtomicU64,
}

/// All threads that serve.
#[derive(Default)]
pub(crate) struct Turns {
    threads: Mutex<Vec<Arc<Turn>>>,
    /// How often it was asked to come by.
    asked: AtomicU64,
    /// Those who wait for others to come by.
    waiting: AtomicU64,
    passed: Mutex<()>,
    passing: Condvar,
}

/// The calling thread, as one that serves; until it is dropped.
pub(crate) struct Serving<'t> {
    turns: &'t Turns,
    own: Arc<Turn>,
}

fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prepares this process: the signal does nothing but to end a system call.
///
/// # Errors
/// What the kernel says.
#[expect(unsafe_code, reason = "no crate installs a handler that lets system calls end")]
pub(crate) fn prepare() -> Result<(), Errno> {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: all zeros is a value of this type: no flags, so that system calls end, and no signals held
    // back; the handler does nothing, which is safe at any point. WHY: `SA_RESTART`, which crates set,
    // would have the thread sleep on.
    let answer = unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        libc::sigaction(WAKE, &raw const action, core::ptr::null_mut())
    };
    if answer == 0 { Ok(()) } else { Err(Errno::INVAL) }
}

impl Turns {
    /// The calling thread begins to serve.
    #[expect(unsafe_code, reason = "the number by which a thread is sent a signal")]
    pub(crate) fn begin(&self) -> Serving<'_> {
        // SAFETY: it asks for the number of the calling thread, and can not fail. WHY: `std` tells the
        // number of threads that are joined only.
        let thread = unsafe { libc::pthread_self() };
        let own = Arc::new(Turn { thread, passed: AtomicU64::new(0) });
        guard(&self.threads).push(Arc::clone(&own));
        Serving { turns: self, own }
    }

    /// Waits until each thread that serves, but the caller, has come by once. The caller is about to
    /// end no lock, and others that do the same need not wait for him.
    pub(crate) fn let_all_pass(&self) {
        self.waiting.fetch_add(1, SeqCst);
        let asking = self.asked.fetch_add(1, SeqCst) + 1;
        let number = current();
        let all = guard(&self.threads).clone();
        let (own, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|turn| turn.thread == number);
        let is_missing = |turn: &Arc<Turn>| turn.passed.load(SeqCst) < asking;
        let since = Instant::now();
        for turn in &others {
            while is_missing(turn) && since.elapsed() < PATIENCE {
                own.iter().for_each(|own| self.pass(own, self.asked.load(SeqCst)));
                self.wake(turn);
                let passed = guard(&self.passed);
                if is_missing(turn) {
                    let _ = self.passing.wait_timeout(passed, AGAIN);
                }
            }
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    fn pass(&self, turn: &Turn, asked: u64) {
        turn.passed.fetch_max(asked, SeqCst);
        if self.waiting.load(SeqCst) != 0 {
            drop(guard(&self.passed));
            self.passing.notify_all();
        }
    }

    #[expect(unsafe_code, reason = "a signal to one thread")]
    fn wake(&self, turn: &Arc<Turn>) {
        // While it is in the list it has not ended: it takes itself out first.
        let threads = guard(&self.threads);
        if threads.iter().any(|other| Arc::ptr_eq(other, turn)) {
            // SAFETY: the thread lives, see above, and its signal has a handler that does nothing. WHY:
            // nothing else ends its wait in the kernel.
            unsafe { libc::pthread_kill(turn.thread, WAKE) };
        }
    }
}

#[expect(unsafe_code, reason = "the number by which a thread is known here")]
fn current() -> libc::pthread_t {
    // SAFETY: it asks for the number of the calling thread, and can not fail. WHY: as in `begin`.
    unsafe { libc::pthread_self() }
}

impl Serving<'_> {
    /// The thread ends no lock, or none any more.
    pub(crate) fn pass(&self) {
        self.pass_of(self.asked());
    }

    /// The last asking.
    pub(crate) fn asked(&self) -> u64 {
        self.turns.asked.load(SeqCst)
    }

    /// True if it was asked since the thread last passed.
    pub(crate) fn is_due(&self, asked: u64) -> bool {
        self.own.passed.load(SeqCst) < asked
    }

    /// The thread has done all that the kernel had given to it at an asking.
    pub(crate) fn pass_of(&self, asked: u64) {
        self.turns.pass(&self.own, asked);
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        guard(&self.turns.threads).retain(|turn| !Arc::ptr_eq(turn, &self.own));
        self.pass_of(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    #[test]
    fn who_took_a_request_does_it_before_all_have_passed() {
        prepare().expect("a handler");
        let (turns, is_done, is_over) =
            (Turns::default(), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (taken, began) = mpsc::channel();
            let (go, goes) = mpsc::channel::<()>();
            let (turns, is_done, is_over) = (&turns, &is_done, &is_over);
            // Has a request.
            scope.spawn(move || {
                let serving = turns.begin();
                taken.send(()).expect("a receiver");
                goes.recv().expect("a sender");
                is_done.store(true, SeqCst);
                serving.pass();
            });
            // Waits for one.
            let (waits, waiting) = mpsc::channel();
            scope.spawn(move || {
                let serving = turns.begin();
                waits.send(()).expect("a receiver");
                while !is_over.load(SeqCst) {
                    serving.pass();
                    let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
                        tv_sec: 60,
                        tv_nsec: 0,
                    });
                }
            });
            began.recv().expect("a sender");
            waiting.recv().expect("a sender");
            let _own = turns.begin();
            scope.spawn(move || go.send(()));
            turns.let_all_pass();
            assert!(is_done.load(SeqCst), "it passed with a request in its hands");
            is_over.store(true, SeqCst);
            turns.let_all_pass();
        });
    }
}
