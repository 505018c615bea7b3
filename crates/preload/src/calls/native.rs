//! System calls that this library makes itself. They go straight to the kernel.

use crate::arch::raw;
use crate::entry::call_stack;
use libc::{SYS_close, SYS_execve, SYS_execveat, SYS_fcntl};

/// One system call with up to six arguments; returns the kernel's raw result.
#[must_use]
pub fn call(number: i64, a: [u64; 6]) -> i64 {
    // WHY: the handler may not call libc, whose wrappers are the very code that is rewritten.
    // SAFETY: the arguments are the application's own (it asked for this call), or those of a call
    // that touches no memory but buffers of ours that live across it.
    unsafe { raw::call6(number, a[0], a[1], a[2], a[3], a[4], a[5]) }
}

/// A call that may wait for something that need not come, as for the other end of a pipe: signals
/// are handled meanwhile.
#[must_use]
pub fn call_waiting(number: i64, a: [u64; 6]) -> i64 {
    call_stack::call_waiting(number, &a)
}

/// `execveat`: signals that arrived during the call are handled before it. `execve` where it does the
/// same, as the program's C library does: filters of system calls, and tracers, may know no other.
#[must_use]
pub fn call_exec(a: [u64; 6]) -> i64 {
    let [directory, path, arguments, environment, flags, _] = a;
    if directory as u32 == libc::AT_FDCWD.cast_unsigned() && flags == 0 {
        return call_stack::call_exec(SYS_execve, &[path, arguments, environment, 0, 0, 0]);
    }
    call_stack::call_exec(SYS_execveat, &a)
}

/// `close`.
pub fn close(fd: i32) {
    let _ = call(SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
}

/// Duplicates `fd` to the lowest free descriptor not below `lowest`; a negative errno on failure.
#[must_use]
pub fn duplicate(fd: i32, lowest: i32, close_on_exec: bool) -> i64 {
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    call(SYS_fcntl, [fd as u64, command as u64, lowest as u64, 0, 0, 0])
}

/// Writes one line to standard error, for messages to people.
pub fn say(line: &[u8]) {
    let _ = call(libc::SYS_write, [2, line.as_ptr() as u64, line.len() as u64, 0, 0, 0]);
}
