//! Signals that are to end a wait, and come before the thread sleeps.
//!
//! The kernel looks for signals and falls asleep in one step; who asks a daemon and then sleeps on a word
//! has a gap between the two, in which a handler runs and nobody learns of it. So signals are held back
//! from the beginning of such a wait, and looked for between short sleeps. What has a handler is let in
//! when the wait ends or goes on; what is ignored, or restarts calls, does not end it.
//!
//! Only for waits that a signal may end. Where the kernel's numbers are not known nothing is held back.

use core::sync::atomic::{Ordering::SeqCst, compiler_fence};

/// Numbers and words of the kernel's interface.
mod kernel {
    pub(super) const BLOCK: u64 = 0;
    pub(super) const SET_MASK: u64 = 2;
    pub(super) const RESTART: u64 = 0x1000_0000;
    /// Bytes of a set of signals.
    pub(super) const SET_BYTES: u64 = 8;
    pub(super) const DEFAULT: u64 = 0;
    pub(super) const IGNORE: u64 = 1;
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What a fault of the thread itself raises, and the C library's own: these are never held back.
const AT_ONCE: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGABRT)
    | bit(libc::SIGSYS)
    | bit(32)
    | bit(33);
/// What nothing happens for by default.
const HARMLESS: u64 =
    bit(libc::SIGCHLD) | bit(libc::SIGURG) | bit(libc::SIGWINCH) | bit(libc::SIGCONT);

/// A signal's disposition, as the kernel tells it.
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

/// What signals have come since they were held back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// None that anybody asked for.
    Nothing,
    /// Some that are to be let in; the wait goes on.
    Passing,
    /// One that ends the wait.
    Ending,
}

/// Holds signals back from the calling thread until it is dropped.
#[derive(Debug)]
pub struct Held {
    /// What was held back before by somebody else. `None`: nothing is held back.
    before: Option<u64>,
}

impl Held {
    /// From now on.
    #[must_use]
    pub fn new() -> Held {
        Held { before: set_mask(kernel::BLOCK, !AT_ONCE) }
    }

    /// True if signals are held back.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.before.is_some()
    }

    /// What has come.
    #[must_use]
    pub fn came(&self) -> Came {
        let Some(before) = self.before else { return Came::Nothing };
        let mut left = pending() & !before & !AT_ONCE;
        let mut came = Came::Nothing;
        while left != 0 {
            let signal = left.trailing_zeros() + 1;
            left &= left - 1;
            let Action { handler, flags, .. } = action(signal);
            match handler {
                kernel::IGNORE => {}
                kernel::DEFAULT if HARMLESS >> (signal - 1) & 1 != 0 => {}
                kernel::DEFAULT => came = Came::Passing,
                _ if flags & kernel::RESTART != 0 => came = Came::Passing,
                _ => return Came::Ending,
            }
        }
        came
    }

    /// Lets in what has come, and holds back what comes next.
    pub fn let_in(&self) {
        if let Some(before) = self.before {
            set_mask(kernel::SET_MASK, before);
            set_mask(kernel::BLOCK, !AT_ONCE);
        }
    }
}

impl Default for Held {
    fn default() -> Held {
        Held::new()
    }
}

impl Drop for Held {
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
        let held = Held::new();
        assert!(held.is_held());
        assert_eq!(held.came(), Came::Nothing);
        raise(libc::SIGCHLD);
        raise(libc::SIGHUP);
        assert_eq!(held.came(), Came::Nothing, "nobody asked for these");
        raise(libc::SIGUSR2);
        assert_eq!((held.came(), RUN.load(SeqCst)), (Came::Passing, 0));
        held.let_in();
        assert_eq!((held.came(), RUN.load(SeqCst)), (Came::Nothing, 1));
        raise(libc::SIGUSR1);
        assert_eq!((held.came(), RUN.load(SeqCst)), (Came::Ending, 1));
        drop(held);
        assert_eq!(RUN.load(SeqCst), 2);
        raise(libc::SIGUSR1);
        assert_eq!(RUN.load(SeqCst), 3, "nothing is held back any more");
    }
}
