//! From a stub to the handler: the verdict, the hooks that the file system's calls install, and
//! the two functions that `arch` calls.
//!
//! Invariants of everything that runs below `enter` (the *handler*):
//! 1. It calls nothing in libc: no allocation, no thread-local of std, no stdio; `arch::raw` only.
//! 2. It can't panic: no indexing, no unwrap, no arithmetic that may overflow unchecked.
//! 3. It may be interrupted by a signal whose handler comes here again on the same thread, or
//!    never comes back (siglongjmp, cancellation): a lock held across application code deadlocks.
//! 4. It runs on the application's stack, which may be a signal stack of 2 KiB.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::arch::Frame;
use crate::process;
#[cfg(feature = "trace")]
use crate::trace;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel makes the call with the application's own registers.
    Pass,
    /// The call is answered: rax is this (negative: minus errno).
    Done(i64),
}

/// The handler. Installed once, before the sites are patched; each must keep this module's rules.
#[derive(Debug)]
pub struct Hooks {
    /// A selected call that makes no process.
    pub call: fn(&mut Frame) -> Verdict,
    /// Ahead of a call that makes a thread.
    pub thread: fn(),
    /// Ahead of a fork or vfork, in the parent (not of a thread): clone's flags.
    pub prefork: fn(u64),
    /// In the child. With `CLONE_VM` in the flags it shares memory with its waiting parent.
    pub child: fn(u64),
    /// Behind it, in the parent: the child's id, or minus errno. A vfork child has then gone.
    pub parent: fn(u64, i64),
}

static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(ptr::null_mut());

/// Installs the handler, for good.
pub fn install(hooks: &'static Hooks) {
    HOOKS.store(ptr::from_ref(hooks).cast_mut(), Ordering::Release);
}

/// Where the handler is kept, for another copy of this library in the process.
#[must_use]
pub(crate) fn place() -> *const AtomicPtr<Hooks> {
    &raw const HOOKS
}

/// The installed handler.
#[inline]
pub(crate) fn hooks() -> Option<&'static Hooks> {
    let hooks = HOOKS.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from a `&'static Hooks` in `install`. WHY: the handler
    // may not use std's once cells, which can block.
    unsafe { hooks.as_ref() }
}

/// What a stub is told, in rcx. `arch` tests the values in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Answer {
    /// Native.
    Pass = 0,
    /// rax holds the result.
    Done = 1,
    /// Native by the instruction that is followed by `after`, for each number.
    Clone = 2,
    Fork = 3,
    Vfork = 4,
    Clone3 = 5,
}

/// Decides about a call that makes no process.
#[inline]
pub fn dispatch(frame: &mut Frame) -> Verdict {
    #[cfg(feature = "trace")]
    if let Some(verdict) = trace::fake(frame) {
        return verdict;
    }
    match hooks() {
        Some(hooks) => (hooks.call)(frame),
        None => Verdict::Pass,
    }
}

/// Entered from `arch::enter` for every selected number.
pub(crate) extern "C" fn enter(frame: *mut Frame) -> u64 {
    // SAFETY: the caller built the frame on its stack and uses it only after we return. WHY: the
    // border to assembly knows no references.
    let frame = unsafe { &mut *frame };
    #[cfg(feature = "trace")]
    trace::count(frame.number());
    let answer = match frame.number().cast_signed() {
        libc::SYS_clone | libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone3 => {
            process::before(frame)
        }
        _ => match dispatch(frame) {
            Verdict::Pass => Answer::Pass,
            Verdict::Done(result) => {
                frame.rax = result.cast_unsigned();
                Answer::Done
            }
        },
    };
    answer as u64
}

/// Entered from `arch::enter` behind a native fork, in parent and child; rax is the result.
pub(crate) extern "C" fn after(frame: *mut Frame, number: u64) {
    // SAFETY: as in `enter`; behind a vfork the parent's frame is made only when the child is gone.
    let frame = unsafe { &mut *frame };
    process::after(frame, number);
}
