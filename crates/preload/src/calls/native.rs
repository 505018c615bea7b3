//! System calls that this library makes for itself. They go straight to the kernel.

use crate::arch::raw;
use libc::{SYS_close, SYS_fcntl};

/// One system call with up to six arguments; the kernel's answer as it is.
#[must_use]
pub fn call(number: i64, a: [u64; 6]) -> i64 {
    // WHY: the handler may not call libc, whose wrappers are the very thing that is rewritten.
    // SAFETY: the arguments are the application's own (it asked for this call), or those of a call
    // that touches no memory but buffers of ours that live across it.
    unsafe { raw::call6(number, a[0], a[1], a[2], a[3], a[4], a[5]) }
}

/// `close`.
pub fn close(fd: i32) {
    let _ = call(SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
}

/// The lowest free descriptor that stands for the same file as `fd`, or a negative errno.
#[must_use]
pub fn duplicate(fd: i32, lowest: i32, close_on_exec: bool) -> i64 {
    let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    call(SYS_fcntl, [fd as u64, command as u64, lowest as u64, 0, 0, 0])
}

/// Writes one line to the standard error stream. For what a person must be told.
pub fn say(line: &[u8]) {
    let _ = call(libc::SYS_write, [2, line.as_ptr() as u64, line.len() as u64, 0, 0, 0]);
}
