//! From a stub to the handler: the verdict, the hooks that the file system's calls install, and the
//! two functions that `arch` calls.
//!
//! Invariants of everything that `enter` calls (the *handler*):
//! 1. It calls nothing in libc: no allocation, no thread-local of std, no stdio; `arch::raw` only.
//! 2. It cannot panic: no indexing, no unwrap, no unchecked arithmetic that may overflow.
//! 3. A signal may interrupt it, whose handler may enter it again on the same thread or never
//!    return (siglongjmp, cancellation): a lock held across application code would deadlock.
//! 4. It runs on a stack of `call_stack`; where there is none, on the application's.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::arch::Frame;
use crate::entry::process;
#[cfg(debug_assertions)]
use crate::trace;

/// Decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel makes the call with the application's own registers.
    Pass,
    /// The call is answered: rax is this (negative: minus errno).
    Done(i64),
}

/// The handler. Installed once, before the sites are patched; each hook must obey this module's
/// invariants.
#[derive(Debug)]
pub struct Hooks {
    /// A selected call that creates no process.
    pub call: fn(&mut Frame) -> Verdict,
    /// Before a call that creates a thread: clone's flags.
    pub thread: fn(u64),
    /// Before a fork or vfork, in the parent (not before a new thread): clone's flags. Other than 0:
    /// minus the errno with which the call fails.
    pub prefork: fn(u64) -> i64,
    /// In the child. With `CLONE_VM` in the flags it shares memory with its waiting parent.
    pub child: fn(u64),
    /// After it, in the parent: the child's id, or minus errno. A vfork child has then ended.
    pub parent: fn(u64, i64),
    /// All calls of the calling thread ended without returning: a signal handler left them.
    pub abandoned: fn(),
}

static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(ptr::null_mut());

/// Installs the handler permanently.
pub fn install(hooks: &'static Hooks) {
    HOOKS.store(ptr::from_ref(hooks).cast_mut(), Ordering::Release);
}

/// Address of the handler pointer, for another copy of this library in the process.
#[must_use]
pub(crate) fn hooks_address() -> *const AtomicPtr<Hooks> {
    &raw const HOOKS
}

/// The installed handler.
#[inline]
pub(crate) fn hooks() -> Option<&'static Hooks> {
    let hooks = HOOKS.load(Ordering::Acquire);
    // SAFETY: the pointer is null or came from a `&'static Hooks` in `install`.
    // WHY: the handler may not use std's once cells, which can block.
    unsafe { hooks.as_ref() }
}

/// Answer to a stub, in rcx. `arch` tests the values in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum StubAnswer {
    /// Native.
    Pass = 0,
    /// rax holds the result.
    Done = 1,
    /// Native, by the instruction for the number, which is followed by a call of `after`.
    Clone = 2,
    Fork = 3,
    Vfork = 4,
    Clone3 = 5,
}

/// Decides about a call that creates no process.
#[inline]
pub fn dispatch(frame: &mut Frame) -> Verdict {
    #[cfg(debug_assertions)]
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
    // SAFETY: the caller built the frame on its stack and uses it only after we return.
    // WHY: assembly knows no references.
    let frame = unsafe { &mut *frame };
    #[cfg(debug_assertions)]
    trace::count(frame.number());
    let answer = match frame.number().cast_signed() {
        libc::SYS_clone | libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone3 => {
            process::before(frame)
        }
        _ => answer_call(frame),
    };
    answer as u64
}

/// The same for calls that create no process.
pub(crate) extern "C" fn enter_selected(frame: *mut Frame) -> u64 {
    // SAFETY: as in `enter`.
    let frame = unsafe { &mut *frame };
    #[cfg(debug_assertions)]
    trace::count(frame.number());
    answer_call(frame) as u64
}

#[inline(always)]
fn answer_call(frame: &mut Frame) -> StubAnswer {
    match dispatch(frame) {
        Verdict::Pass => StubAnswer::Pass,
        Verdict::Done(result) => {
            frame.rax = result.cast_unsigned();
            StubAnswer::Done
        }
    }
}

/// Entered from `arch::enter` after a native fork, in parent and child; rax is the result.
pub(crate) extern "C" fn after(frame: *mut Frame, number: u64) {
    // SAFETY: as in `enter`; after a vfork the parent's frame is built only when the child is gone.
    let frame = unsafe { &mut *frame };
    process::after(frame, number);
}
