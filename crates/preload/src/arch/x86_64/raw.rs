//! The handler's own system calls. Why not through libc: `shm::raw`.

pub use shm::raw::{call0, call1, call2, call3, call4, call5, call6};

/// getpid, never from a cached answer.
#[must_use]
pub fn getpid() -> i64 {
    // SAFETY: getpid takes nothing and touches no memory.
    unsafe { call0(libc::SYS_getpid) }
}

/// Closes a descriptor of ours; callers ignore errors.
pub fn close(descriptor: i64) {
    // SAFETY: callers pass a descriptor that they opened.
    let _ = unsafe { call1(libc::SYS_close, descriptor.cast_unsigned()) };
}

/// Writes a line to standard error, as it is; a closed or full standard error loses it.
pub fn complain(parts: &[&[u8]]) {
    for part in parts {
        // SAFETY: the kernel reads exactly the slice.
        let _ =
            unsafe { call3(libc::SYS_write, 2, part.as_ptr().addr() as u64, part.len() as u64) };
    }
}
