//! Builds with debug assertions: counts, for tests, the calls that reach the handler.
//!
//! `FOREBAY_TRACE` names a file of `select::LIMIT` counters of 8 bytes, shared by all processes
//! that write to it. Descriptor `FAKE` is answered without the kernel, to measure the cost of
//! interception.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::arch::{Frame, raw};
use crate::entry::dispatch::Verdict;
use crate::entry::select;

/// read, write and close of this descriptor are answered with `FAKE_RESULT`.
pub const FAKE: i32 = -77_777;

/// Result of calls on `FAKE`.
pub const FAKE_RESULT: i64 = 42;

static COUNTERS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Maps the counters in the file `path` (with its final zero byte). On failure nothing is counted.
pub fn open(path: &[u8]) {
    let bytes = (select::LIMIT * 8) as u64;
    let path = path.as_ptr().addr() as u64;
    let flags = (libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    // SAFETY: the path ends in zero (the caller's promise by type of the environment); the mapping
    // is new memory of our own.
    let mapped = unsafe {
        let file = raw::call3(libc::SYS_open, path, flags, 0o600);
        if file < 0 {
            return;
        }
        let descriptor = file.cast_unsigned();
        let _ = raw::call2(libc::SYS_ftruncate, descriptor, bytes);
        let shared = libc::MAP_SHARED as u64;
        let mapped = raw::call6(libc::SYS_mmap, 0, bytes, protection, shared, descriptor, 0);
        raw::close(file);
        mapped
    };
    if mapped > 0 {
        COUNTERS.store(mapped as *mut AtomicU64, Ordering::Release);
    }
}

/// Counts one call.
#[inline]
pub fn count(number: u64) {
    let counters = COUNTERS.load(Ordering::Acquire);
    if counters.is_null() || number >= select::LIMIT as u64 {
        return;
    }
    // SAFETY: the mapping holds LIMIT counters and is never unmapped.
    // WHY: shared between processes.
    unsafe { (*counters.add(number as usize)).fetch_add(1, Ordering::Relaxed) };
}

/// Answers calls on the descriptor `FAKE`.
#[inline]
pub fn fake(frame: &Frame) -> Option<Verdict> {
    let [first, ..] = frame.args;
    let ours = first as i32 == FAKE;
    match frame.number().cast_signed() {
        libc::SYS_read | libc::SYS_write | libc::SYS_close if ours => {
            Some(Verdict::Done(FAKE_RESULT))
        }
        _ => None,
    }
}
