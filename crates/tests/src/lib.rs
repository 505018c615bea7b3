//! What the worker program and the tests that start it agree on: how a file's bytes come from a
//! number, so that neither sends them. The tests are in `tests/`, the worker in `src/bin`.
#![forbid(unsafe_code)]

/// The byte at `offset` of the content called `seed`; never 0, which is a hole's.
#[must_use]
pub const fn byte_at(seed: u64, offset: u64) -> u8 {
    let mixed =
        (offset ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    ((mixed >> 56) as u8) | 1
}

/// `length` bytes of the content called `seed`, from `offset` on.
#[must_use]
pub fn content(seed: u64, offset: u64, length: u64) -> Vec<u8> {
    (offset..offset + length).map(|at| byte_at(seed, at)).collect()
}

/// A number that stands for bytes read.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    let step = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
