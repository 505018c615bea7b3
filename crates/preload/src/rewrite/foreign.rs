//! Whether an image that is not libc's makes system calls itself: a quick search, because most do
//! not and some are long.

use core::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};

use crate::entry::select;

/// Bytes before a `syscall` in which its number is set.
const BEFORE_BYTES: usize = 48;
const BLOCK: usize = 16;

/// True if a selected number is loaded shortly before what looks like a `syscall`. By chance that is
/// so once in some gigabytes of code.
#[must_use]
pub(super) fn may_call(text: &[u8]) -> bool {
    let mut from = 0;
    while let Some(at) = find_syscall(text, from) {
        let before = text.get(at.saturating_sub(BEFORE_BYTES)..at).unwrap_or(&[]);
        if sets_number(before) {
            return true;
        }
        from = at + 2;
    }
    false
}

/// True if the bytes of a `syscall` are there.
#[must_use]
pub(super) fn has_syscall(text: &[u8]) -> bool {
    find_syscall(text, 0).is_some()
}

/// Offset of the next `0f 05`.
fn find_syscall(text: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(block) = text.get(at..at + BLOCK) {
        let mut mask = is_first_byte(block);
        while mask != 0 {
            let found = at + mask.trailing_zeros() as usize;
            if text.get(found + 1) == Some(&0x05) {
                return Some(found);
            }
            mask &= mask - 1;
        }
        at += BLOCK;
    }
    let rest = text.get(at..)?;
    rest.windows(2).position(|pair| pair == [0x0f, 0x05]).map(|found| at + found)
}

/// A bit for each byte of a block of 16 that is 0x0f.
fn is_first_byte(block: &[u8]) -> u32 {
    debug_assert!(block.len() >= BLOCK);
    // WHY: a byte at a time would take a millisecond for each megabyte.
    // SAFETY: the block has 16 bytes, and every x86_64 processor has SSE2.
    unsafe {
        let bytes = _mm_loadu_si128(block.as_ptr().cast());
        _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(0x0f))).cast_unsigned()
    }
}

/// True if code has `mov eax, number` or `mov rax, number` of a selected call.
fn sets_number(code: &[u8]) -> bool {
    let is_selected = |number: &[u8]| match *number {
        [low, high, 0, 0] => select::selected(u16::from_le_bytes([low, high])),
        _ => false,
    };
    let short = code
        .windows(5)
        .any(|bytes| bytes.first() == Some(&0xb8) && is_selected(bytes.get(1..).unwrap_or(&[])));
    short
        || code.windows(7).any(|bytes| {
            bytes.starts_with(&[0x48, 0xc7, 0xc0]) && is_selected(bytes.get(3..).unwrap_or(&[]))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_wherever_they_are() {
        for offset in 0..40 {
            let mut text = vec![0x90; offset];
            text.extend([0x0f, 0x05, 0x0f, 0x0f]);
            assert!(!may_call(&text), "no number");
            text.extend([0xb8, 0x11, 0, 0, 0, 0x49, 0x89, 0xca, 0x0f, 0x05, 0xc3]);
            assert!(may_call(&text), "pread64");
            text[offset + 5] = 0x27;
            assert!(!may_call(&text), "getpid");
            text.extend([0x48, 0xc7, 0xc0, 0xa9, 1, 0, 0, 0x0f, 0x05]);
            assert!(may_call(&text), "io_uring_setup");
        }
        assert!(!may_call(&[0x0f]));
        assert!(!may_call(&[]));
    }
}
