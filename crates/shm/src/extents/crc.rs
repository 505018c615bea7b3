//! CRC-32C, by the fastest code for this processor.
//!
//! That code is chosen behind a lock when it is first used. A child that is forked at that moment
//! would wait for ever for a thread that it does not have. So one thread chooses; all others, and such
//! a child for good, use another library with the same result meanwhile.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crc_fast::CrcAlgorithm;

const NOT_CHOSEN: u8 = 0;
const CHOOSING: u8 = 1;
const CHOSEN: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(NOT_CHOSEN);

/// The CRC-32C of some bytes.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    if STATE.load(Acquire) != CHOSEN && !choose() {
        return crc32c::crc32c(bytes);
    }
    fastest(bytes)
}

fn fastest(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// True if the code is chosen now.
#[cold]
#[inline(never)]
fn choose() -> bool {
    let is_own = STATE.compare_exchange(NOT_CHOSEN, CHOOSING, Acquire, Relaxed).is_ok();
    if is_own {
        fastest(&[0]);
        STATE.store(CHOSEN, Release);
    }
    is_own
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// A sum that one library stored is checked by the other.
    #[test]
    fn both_libraries_agree() {
        let bytes: Vec<u8> = (0..5000u32).map(|at| ((at * at) >> 7) as u8).collect();
        for length in (0..300).chain([1000, 4095, 4096, 5000]) {
            let bytes = &bytes[..length];
            assert_eq!(fastest(bytes), crc32c::crc32c(bytes), "{length} bytes");
            assert_eq!(crc32c(bytes), fastest(bytes), "{length} bytes");
        }
        assert_eq!(crc32c(b"123456789"), 0xe306_9283, "the value of RFC 3720's polynomial");
    }
}
