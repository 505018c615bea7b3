//! Children: distinguishing threads from processes, and calling the hooks around a fork.
//!
//! A call creates a *thread* if it has CLONE_VM without CLONE_VFORK: it passes untouched, and only
//! one hook runs before it, because parent and child run concurrently and share all that a hook
//! could change. Otherwise it creates a *process*: `prefork` runs in the parent, then `child` in
//! the child and `parent` in the parent. With CLONE_VM (vfork, posix_spawn) the child runs in the
//! parent's memory while the parent waits; `is_vfork_child` tells the handler so.
//!
//! Invariant: `VFORKS` counts the vforks in progress in this memory. It stays too high if a signal
//! handler leaves by siglongjmp between our count and the kernel's answer; that costs a getpid per
//! query and nothing else.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::arch::{Frame, raw};
use crate::entry::call_stack;
use crate::entry::dispatch::{self, StubAnswer};

const VM: u64 = libc::CLONE_VM as u64;
const VFORK: u64 = libc::CLONE_VFORK as u64;
const SETTLS: u64 = libc::CLONE_SETTLS as u64;

/// clone_args: flags are at offset 0; the first version has 64 bytes.
const CLONE_ARGS_BYTES_MIN: u64 = 64;

static VFORKS: AtomicU64 = AtomicU64::new(0);
static OWNER: AtomicI64 = AtomicI64::new(0);

/// Records which process this memory belongs to. Called at start, and in the child of a fork.
pub fn note_owner() {
    OWNER.store(raw::getpid(), Ordering::Relaxed);
    VFORKS.store(0, Ordering::Relaxed);
}

/// The process that this memory belongs to, also in a vfork child.
#[must_use]
pub fn owner() -> i64 {
    OWNER.load(Ordering::Relaxed)
}

/// True if the caller runs in its parent's memory, between vfork and exec. Its changes here stay in
/// the parent; what it does to descriptors does not (unless CLONE_FILES).
#[inline]
#[must_use]
pub fn is_vfork_child() -> bool {
    VFORKS.load(Ordering::Relaxed) != 0 && raw::getpid() != owner()
}

/// The clone flags of a call with these arguments; `None` if they cannot be read.
fn flags(number: u64, frame: &Frame) -> Option<u64> {
    let [first, second, ..] = frame.args;
    match number.cast_signed() {
        libc::SYS_clone => Some(first),
        libc::SYS_fork => Some(libc::SIGCHLD as u64),
        libc::SYS_vfork => Some(VM | VFORK | libc::SIGCHLD as u64),
        libc::SYS_clone3 if first != 0 && first % 8 == 0 && second >= CLONE_ARGS_BYTES_MIN => {
            // WHY: the flags are in the application's memory.
            // SAFETY: not null, aligned, and of a size that the kernel would read too. An invalid
            // pointer faults here where the kernel returns EFAULT; callers probe with null or size
            // 0 only.
            Some(unsafe { (first as *const u64).read_volatile() })
        }
        _ => None,
    }
}

/// Before a call that may create a process.
pub(crate) fn before(frame: &mut Frame) -> StubAnswer {
    let number = frame.number();
    let Some(flags) = flags(number, frame) else {
        return StubAnswer::Pass;
    };
    if flags & VM != 0 && flags & VFORK == 0 {
        if flags & SETTLS == 0 {
            call_stack::note_shared_number();
        }
        if let Some(hooks) = dispatch::hooks() {
            (hooks.thread)(flags);
        }
        return StubAnswer::Pass;
    }
    let refused = dispatch::hooks().map_or(0, |hooks| (hooks.prefork)(flags));
    if refused != 0 {
        frame.rax = refused.cast_unsigned();
        return StubAnswer::Done;
    }
    call_stack::note_before_child();
    if flags & VM != 0 {
        VFORKS.fetch_add(1, Ordering::Relaxed);
    }
    match number.cast_signed() {
        libc::SYS_fork => StubAnswer::Fork,
        libc::SYS_vfork => StubAnswer::Vfork,
        libc::SYS_clone => StubAnswer::Clone,
        _ => StubAnswer::Clone3,
    }
}

/// After it, in both processes. rax keeps the kernel's result.
pub(crate) fn after(frame: &Frame, number: u64) {
    let result = frame.rax.cast_signed();
    let Some(flags) = flags(number, frame) else {
        return;
    };
    let hooks = dispatch::hooks();
    if result == 0 {
        if flags & VM == 0 {
            note_owner();
            call_stack::reset_after_fork();
        }
        if let Some(hooks) = hooks {
            (hooks.child)(flags);
        }
        return;
    }
    if flags & VM != 0 {
        VFORKS.fetch_sub(1, Ordering::Relaxed);
        call_stack::release_of_vfork_child();
    }
    if let Some(hooks) = hooks {
        (hooks.parent)(flags, result);
    }
}
