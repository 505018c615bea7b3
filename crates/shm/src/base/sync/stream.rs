//! A copy that bypasses the processor's cache.
//!
//! A plain store to a line that is not in the cache reads it from memory first, and the copied
//! bytes displace the application's working set. Streaming stores do neither; they are no slower
//! where a line is written whole.

use core::ptr::copy_nonoverlapping;

/// A cache line.
const LINE: usize = 64;

/// As `core::ptr::copy_nonoverlapping`; whole lines of the destination do not enter the cache.
/// Other processors see all of it before any later store.
///
/// # Safety
/// As there.
#[cfg(target_arch = "x86_64")]
// SAFETY: the caller's obligation, as documented above; the body states what it adds.
pub(crate) unsafe fn copy_past_cache(from: *const u8, to: *mut u8, length: usize) {
    use core::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    let head = (to.addr().wrapping_neg() % LINE).min(length);
    let lines = (length - head) / LINE * LINE;
    // Streaming stores may become visible late: the fence orders them before later stores. Every
    // processor of this kind has the instructions.
    // WHY: nothing safe stores past the cache.
    // SAFETY: `head`, whole lines and the rest are consecutive in the range that the caller vouches
    // for; the lines begin at a multiple of their length, as streaming stores demand of their 16
    // bytes.
    unsafe {
        copy_nonoverlapping(from, to, head);
        let mut at = head;
        while at < head + lines {
            let (from, to) = (from.add(at).cast(), to.add(at).cast());
            let line = [
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            ];
            _mm_stream_si128(to, line[0]);
            _mm_stream_si128(to.add(1), line[1]);
            _mm_stream_si128(to.add(2), line[2]);
            _mm_stream_si128(to.add(3), line[3]);
            at += LINE;
        }
        copy_nonoverlapping(from.add(at), to.add(at), length - at);
        _mm_sfence();
    }
}

/// As `core::ptr::copy_nonoverlapping`.
///
/// # Safety
/// As there.
#[cfg(not(target_arch = "x86_64"))]
// SAFETY: the caller's obligation, as documented above.
pub(crate) unsafe fn copy_past_cache(from: *const u8, to: *mut u8, length: usize) {
    // WHY: as for any copy into shared memory.
    // SAFETY: the caller vouches for the same.
    unsafe { copy_nonoverlapping(from, to, length) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    /// Each length up to a few lines, at each alignment of both ends: the copied bytes and those
    /// around.
    #[test]
    fn all_bytes_are_copied_and_no_others() {
        const LENGTH: usize = 6 * LINE;
        let mut source = vec![0; LENGTH];
        for (at, byte) in source.iter_mut().enumerate() {
            *byte = (at * 7 + at / 251) as u8 | 1;
        }
        for length in 0..=4 * LINE + 1 {
            for to in 0..LINE + 2 {
                for from in [0, 1, 8, 16, 31, LINE] {
                    let mut bytes = vec![0; LENGTH];
                    // SAFETY: both ranges are in their vectors.
                    unsafe {
                        copy_past_cache(source[from..].as_ptr(), bytes[to..].as_mut_ptr(), length);
                    }
                    assert_eq!(bytes[to..to + length], source[from..from + length]);
                    let around = bytes[..to].iter().chain(&bytes[to + length..]);
                    assert!(around.copied().all(|byte| byte == 0), "{length} bytes to {to}");
                }
            }
        }
    }
}
