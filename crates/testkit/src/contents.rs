//! Contents of files that follow from a seed, so that neither a test nor the program that it starts sends
//! them. Most of the bytes of the tests come from here, so this crate is optimized.

/// The eight bytes at index `word` of the content called `seed`; never 0, which marks a hole.
const fn word_at(seed: u64, word: u64) -> u64 {
    let mixed =
        (word ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) | 0x0101_0101_0101_0101
}

/// `length` bytes of the content called `seed`, from `offset` on. Produced word by word.
#[must_use]
pub fn content(seed: u64, offset: u64, length: u64) -> Vec<u8> {
    let words = offset / 8..(offset + length).div_ceil(8);
    let words: Vec<[u8; 8]> = words.map(|word| word_at(seed, word).to_le_bytes()).collect();
    let bytes = words.as_flattened();
    let begin = usize::try_from(offset % 8).expect("small");
    let length = usize::try_from(length).expect("it fits memory");
    bytes[begin..begin + length].to_vec()
}

/// Checksum of bytes that were read.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mut sum = bytes.len() as u64;
    for &word in words.iter().chain([&last]) {
        sum = (sum.rotate_left(29) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    sum
}
