//! Signals that should end a wait but may arrive before the thread sleeps.
//!
//! The kernel checks for signals and falls asleep in one step. A client that asks a daemon and then
//! sleeps on a word has a gap between the two, in which a handler runs unnoticed. So signals are
//! blocked from the start of such a wait and polled between short sleeps. A signal with a handler
//! is delivered when the wait ends or goes on; one that is ignored, or whose handler restarts
//! calls, does not end the wait. The C library's signal for `pthread_cancel` always does.
//!
//! Only for waits that a signal may end. Where the kernel's numbers are unknown nothing is blocked.

use crate::once::Once;
use core::sync::atomic::{Ordering::SeqCst, compiler_fence};

/// Numbers of the kernel's interface.
mod kernel {
    pub(super) const BLOCK: u64 = 0;
    pub(super) const SET_MASK: u64 = 2;
    pub(super) const RESTART: u64 = 0x1000_0000;
    /// Size of a signal set.
    pub(super) const SET_BYTES: u64 = 8;
    pub(super) const DEFAULT: u64 = 0;
    pub(super) const IGNORE: u64 = 1;
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The C library's signals: for `pthread_cancel`, and for a change of the ids of all threads, whose
/// sender waits.
const CANCEL: u32 = 32;
const SET_IDS: i32 = 33;

/// Signals raised by a fault of the thread itself, and the one that is waited for: never blocked.
const AT_ONCE: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS)
    | bit(SET_IDS);
/// Signals whose default action is to do nothing.
const HARMLESS: u64 =
    bit(libc::SIGCHLD) | bit(libc::SIGURG) | bit(libc::SIGWINCH) | bit(libc::SIGCONT);

/// A signal's disposition, as the kernel returns it.
#[repr(C)]
#[derive(Default)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(feature = "interleavings")))]
fn call(number: i64, [a, b, c, d]: [u64; 4]) -> i64 {
    // WHY: no crate in use has these calls for the kernel's own sets of signals.
    // SAFETY: callers pass pointers to values of their own that are as long as the call wants them.
    unsafe { crate::raw::call4(number, a, b, c, d) }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(feature = "interleavings"))))]
const fn call(_: i64, _: [u64; 4]) -> i64 {
    -1
}

fn set_mask(how: u64, set: u64) -> Option<u64> {
    let mut before = 0u64;
    let words = [how, &raw const set as u64, &raw mut before as u64, kernel::SET_BYTES];
    compiler_fence(SeqCst);
    (call(libc::SYS_rt_sigprocmask, words) == 0).then_some(before)
}

fn pending() -> u64 {
    let mut set = 0u64;
    let words = [&raw mut set as u64, kernel::SET_BYTES, 0, 0];
    if call(libc::SYS_rt_sigpending, words) == 0 { set } else { 0 }
}

fn action(signal: u32) -> Action {
    let mut action = Action::default();
    let words = [u64::from(signal), 0, &raw mut action as u64, kernel::SET_BYTES];
    let _ = call(libc::SYS_rt_sigaction, words);
    action
}

/// How signals are let in during a wait, in a process that defers signals to the end of its calls.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Sets the mask of blocked signals which it gets, and lets pending ones in.
    pub deliver: fn(u64),
    /// The signals that the program has blocked, from those that the kernel has blocked.
    pub asked: fn(u64) -> u64,
}

static DELIVERY: Once<Delivery> = Once::new();

/// Sets how signals are let in, where setting the mask is not enough.
pub fn set_delivery(delivery: Delivery) {
    let _ = DELIVERY.set(delivery);
}

/// Signals that arrived since they were blocked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrived {
    /// None that anybody handles.
    Nothing,
    /// Some that are to be delivered; the wait goes on.
    Passing,
    /// One that ends the wait.
    Ending,
}

/// The kinds of signals that are pending and not among `blocked`, those that the program has blocked.
#[must_use]
pub fn arrived(blocked: u64) -> Arrived {
    let mut left = pending() & !blocked & !AT_ONCE;
    let mut arrived = Arrived::Nothing;
    while left != 0 {
        let signal = left.trailing_zeros() + 1;
        left &= left - 1;
        let Action { handler, flags, .. } = action(signal);
        match handler {
            kernel::IGNORE => {}
            kernel::DEFAULT if HARMLESS >> (signal - 1) & 1 != 0 => {}
            kernel::DEFAULT => arrived = Arrived::Passing,
            _ if signal == CANCEL => return Arrived::Ending,
            _ if flags & kernel::RESTART != 0 => arrived = Arrived::Passing,
            _ => return Arrived::Ending,
        }
    }
    arrived
}

/// Blocks signals of the calling thread until it is dropped.
#[derive(Debug)]
pub struct BlockedSignals {
    /// Signals that were blocked before. `None`: nothing is blocked.
    before: Option<u64>,
    /// Those of them that the program has blocked: the others wait for the end of its call.
    asked: u64,
}

impl BlockedSignals {
    /// Blocks signals from now on.
    #[must_use]
    pub fn new() -> BlockedSignals {
        let before = set_mask(kernel::BLOCK, !AT_ONCE);
        let asked = DELIVERY
            .get()
            .map_or_else(|| before.unwrap_or(0), |delivery| (delivery.asked)(before.unwrap_or(0)));
        BlockedSignals { before, asked }
    }

    /// True if signals are blocked.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.before.is_some()
    }

    /// Signals that have arrived.
    #[must_use]
    pub fn arrived(&self) -> Arrived {
        self.before.map_or(Arrived::Nothing, |_| arrived(self.asked))
    }

    /// Delivers the pending signals, and blocks later ones again.
    pub fn deliver(&self) {
        if self.before.is_some() {
            match DELIVERY.get() {
                Some(delivery) => (delivery.deliver)(self.asked),
                None => drop(set_mask(kernel::SET_MASK, self.asked)),
            }
            set_mask(kernel::BLOCK, !AT_ONCE);
        }
    }
}

impl Default for BlockedSignals {
    fn default() -> BlockedSignals {
        BlockedSignals::new()
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set_mask(kernel::SET_MASK, before);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64", not(feature = "interleavings")))]
mod tests {
    //! Each with a signal of its own: dispositions are the process's.
    use super::*;
    use core::sync::atomic::AtomicU32;

    static RUN: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handler(_: i32) {
        RUN.fetch_add(1, SeqCst);
    }

    fn handle(signal: i32, by: usize, flags: i32) {
        // SAFETY: a handler that adds to an atomic, for a signal that no other test uses.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = by;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(signal, &raw const action, core::ptr::null_mut()), 0);
        }
    }

    fn raise(signal: i32) {
        // SAFETY: a call without memory.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    #[test]
    fn a_signal_is_seen_and_its_handler_runs_when_it_is_let_in() {
        let by = handler as *const () as usize;
        handle(libc::SIGUSR1, by, 0);
        handle(libc::SIGUSR2, by, libc::SA_RESTART);
        handle(libc::SIGHUP, libc::SIG_IGN, 0);
        let held = BlockedSignals::new();
        assert!(held.is_held());
        assert_eq!(held.arrived(), Arrived::Nothing);
        raise(libc::SIGCHLD);
        raise(libc::SIGHUP);
        assert_eq!(held.arrived(), Arrived::Nothing, "nobody asked for these");
        raise(libc::SIGUSR2);
        assert_eq!((held.arrived(), RUN.load(SeqCst)), (Arrived::Passing, 0));
        held.deliver();
        assert_eq!((held.arrived(), RUN.load(SeqCst)), (Arrived::Nothing, 1));
        raise(libc::SIGUSR1);
        assert_eq!((held.arrived(), RUN.load(SeqCst)), (Arrived::Ending, 1));
        drop(held);
        assert_eq!(RUN.load(SeqCst), 2);
        raise(libc::SIGUSR1);
        assert_eq!(RUN.load(SeqCst), 3, "nothing is held back any more");
    }
}
