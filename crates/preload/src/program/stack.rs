//! The stack that a program finds at its start: count, arguments, environment, auxiliary vector.
//!
//! The strings stay where the kernel put them for `forebay-program`; the words are written below
//! all that this thread has used, and nothing above is returned to.

use core::ffi::c_char;

use crate::calls::process::state::kernel;
use crate::calls::{native, user};
use crate::program::{HIDDEN, VARIABLE};
use wire::errno::Result;

/// Values of the program's entries of the auxiliary vector.
pub(super) struct Entries {
    pub headers: u64,
    pub header_count: u64,
    pub base: u64,
    pub entry: u64,
    pub path: u64,
    /// Our own entries.
    pub own: [(u64, u64); 2],
}

impl Entries {
    /// The value of an entry that the kernel created for another program.
    fn value(&self, kind: u64, given: u64) -> u64 {
        match kind {
            libc::AT_PHDR => self.headers,
            libc::AT_PHNUM => self.header_count,
            libc::AT_BASE => self.base,
            libc::AT_ENTRY => self.entry,
            libc::AT_EXECFN => self.path,
            _ => given,
        }
    }
}

/// Zeroed memory that is never freed.
pub(super) fn memory(bytes: u64) -> Result<u64> {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let args = [0, bytes, protection, flags, u64::from(u32::MAX), 0];
    kernel(native::call(libc::SYS_mmap, args)).map(|at| at as u64)
}

/// Space left above for what runs until the program begins.
const RESERVE_BYTES: u64 = 64 * 1024;

/// Writes the words; returns the stack pointer.
///
/// # Safety
/// The pointers are what the loader passed to the constructor: arrays that end with null, followed,
/// after the environment, by the auxiliary vector.
pub(super) unsafe fn build(
    entries: &Entries,
    count: usize,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> Result<u64> {
    // SAFETY: the caller's promise: every word read is before the end of its array.
    let word = |array: *const *const c_char, index: usize| unsafe { *array.add(index) } as u64;
    let mut variables = 0;
    while word(environment, variables) != 0 {
        variables += 1;
    }
    // SAFETY: the auxiliary vector begins after the environment's null.
    let auxiliary = unsafe { environment.add(variables + 1) };
    let mut pairs = 0;
    while word(auxiliary, 2 * pairs) != libc::AT_NULL {
        pairs += 1;
    }
    let words = 1 + count + 1 + variables + 1 + 2 * (pairs + entries.own.len() + 1);
    let current = (&raw const words) as u64;
    let start = (current - RESERVE_BYTES - 8 * words as u64) & !15;
    let mut at = start;
    let mut push = |value: u64| {
        let outcome = user::put(at, value);
        at += 8;
        outcome
    };
    push(count as u64)?;
    for index in 0..count {
        push(word(arguments, index))?;
    }
    push(0)?;
    for index in 0..variables {
        let entry = word(environment, index);
        let text = user::text(entry, 1 << 17, wire::Errno::E2BIG)?;
        let hidden = text.strip_prefix(HIDDEN).filter(|shown| shown.starts_with(b"LD_"));
        if hidden.is_some() {
            push(entry + HIDDEN.len() as u64)?;
        } else if text.strip_prefix(VARIABLE).is_none_or(|rest| rest.first() != Some(&b'=')) {
            push(entry)?;
        }
    }
    push(0)?;
    for index in 0..pairs {
        let kind = word(auxiliary, 2 * index);
        push(kind)?;
        push(entries.value(kind, word(auxiliary, 2 * index + 1)))?;
    }
    for (kind, value) in entries.own {
        push(kind)?;
        push(value)?;
    }
    push(libc::AT_NULL)?;
    push(0)?;
    Ok(start)
}
