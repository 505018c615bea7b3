//! Children: telling threads from processes, and calling the hooks around a fork.
//!
//! A call makes a *thread* when it has CLONE_VM without CLONE_VFORK: it passes untouched, and one
//! hook runs ahead of it alone, because parent and child run at once and share all that a hook could
//! change. Else it makes a *process*: `prefork` in the parent, then `child` in the child, `parent` in
//! the parent.
//! With CLONE_VM (vfork, posix_spawn) the child runs in the parent's memory while the parent
//! waits; `is_vfork_child` tells the handler so.
//!
//! Invariant: `VFORKS` counts the vforks under way in this memory. It is too high for good if a
//! signal handler leaves by siglongjmp between our count and the kernel's answer; that costs a
//! getpid per question and nothing else.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::arch::{Frame, raw};
use crate::dispatch::{self, Answer};

const VM: u64 = libc::CLONE_VM as u64;
const VFORK: u64 = libc::CLONE_VFORK as u64;

/// clone_args: flags lie at 0; the first version has 64 bytes.
const CLONE_ARGS_BYTES_MIN: u64 = 64;

static VFORKS: AtomicU64 = AtomicU64::new(0);
static OWN: AtomicI64 = AtomicI64::new(0);

/// Notes which process this memory belongs to. Called at start, and in the child of a fork.
pub fn remember() {
    OWN.store(raw::getpid(), Ordering::Relaxed);
    VFORKS.store(0, Ordering::Relaxed);
}

/// The process that this memory belongs to, even when asked by a vfork child.
#[must_use]
pub fn owner() -> i64 {
    OWN.load(Ordering::Relaxed)
}

/// Whether the caller runs in its parent's memory, between vfork and exec. What it changes here,
/// the parent keeps; what it does to descriptors, the parent does not see (unless CLONE_FILES).
#[inline]
#[must_use]
pub fn is_vfork_child() -> bool {
    VFORKS.load(Ordering::Relaxed) != 0 && raw::getpid() != owner()
}

/// The flags that `number` with these arguments means to clone; `None` if not readable as such.
fn flags(number: u64, frame: &Frame) -> Option<u64> {
    let [first, second, ..] = frame.args;
    match number.cast_signed() {
        libc::SYS_clone => Some(first),
        libc::SYS_fork => Some(libc::SIGCHLD as u64),
        libc::SYS_vfork => Some(VM | VFORK | libc::SIGCHLD as u64),
        libc::SYS_clone3 if first != 0 && first % 8 == 0 && second >= CLONE_ARGS_BYTES_MIN => {
            // SAFETY: not null, aligned, and of a size that the kernel would read too. A pointer
            // into nowhere faults here where the kernel says EFAULT; callers probe with null or
            // size 0 only. WHY: the flags lie in the application's memory.
            Some(unsafe { (first as *const u64).read_volatile() })
        }
        _ => None,
    }
}

/// Ahead of a call that may make a process.
pub(crate) fn before(frame: &Frame) -> Answer {
    let number = frame.number();
    let Some(flags) = flags(number, frame) else {
        return Answer::Pass;
    };
    if flags & VM != 0 && flags & VFORK == 0 {
        if let Some(hooks) = dispatch::hooks() {
            (hooks.thread)();
        }
        return Answer::Pass;
    }
    if let Some(hooks) = dispatch::hooks() {
        (hooks.prefork)(flags);
    }
    if flags & VM != 0 {
        VFORKS.fetch_add(1, Ordering::Relaxed);
    }
    match number.cast_signed() {
        libc::SYS_fork => Answer::Fork,
        libc::SYS_vfork => Answer::Vfork,
        libc::SYS_clone => Answer::Clone,
        _ => Answer::Clone3,
    }
}

/// Behind it, in both processes. rax stays what the kernel said.
pub(crate) fn after(frame: &Frame, number: u64) {
    let result = frame.rax.cast_signed();
    let Some(flags) = flags(number, frame) else {
        return;
    };
    let hooks = dispatch::hooks();
    if result == 0 {
        if flags & VM == 0 {
            remember();
        }
        if let Some(hooks) = hooks {
            (hooks.child)(flags);
        }
        return;
    }
    if flags & VM != 0 {
        VFORKS.fetch_sub(1, Ordering::Relaxed);
    }
    if let Some(hooks) = hooks {
        (hooks.parent)(flags, result);
    }
}
