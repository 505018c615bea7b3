//! Records: what a protected connection carries after its handshake. Each is a transport message of
//! the Noise protocol framework (AESGCM), so that a changed, lost, repeated or reordered byte is
//! detected before anything of its record is used.
//!
//! A record is: length of what follows u16, big-endian, as the Noise specification proposes;
//! ciphertext; tag (16). The nonce is the number of the record in its direction, which is not sent.
//! The length is not authenticated by itself: another one yields another tag.
//!
//! Invariants:
//!  1. No two records of a key have the same number: a key that has none left seals nothing.
//!  2. After a record that does not verify, nothing more is opened.

use core::ops::Range;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// Bytes of the length.
pub const LENGTH_BYTES: usize = 2;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Longest plaintext of a record: a message of Noise has at most 65,535 bytes.
pub const PLAIN_BYTES_MAX: usize = 65_535 - TAG_BYTES;
/// Records before a key is replaced: 64 GiB. An attacker that sees all of them tells the ciphertext
/// from random bytes with a probability of 2^-65.
const RECORDS_PER_KEY: u64 = 1 << 20;
/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;

/// The bytes were not sealed by the other side, or not as the next record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tampered;

impl core::fmt::Display for Tampered {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a record was changed on its way")
    }
}

impl core::error::Error for Tampered {}

/// A `CipherState` of the Noise specification: a key and the number of the next record.
struct Key {
    key: LessSafeKey,
    next: u64,
    is_broken: bool,
}

impl Key {
    fn new(bytes: &[u8; KEY_BYTES]) -> Option<Key> {
        Some(Key { key: of_bytes(bytes)?, next: 0, is_broken: false })
    }

    /// Advances to the next record; returns the nonce of this one.
    fn take_nonce(&mut self) -> Result<Nonce, Tampered> {
        let number = self.next;
        // The last number is that of `REKEY` in the specification.
        if self.is_broken || number >= u64::MAX - 1 {
            return Err(Tampered);
        }
        self.next += 1;
        Ok(nonce(number))
    }

    /// Replaces the key (`REKEY` of the specification) when it has sealed enough.
    fn renew(&mut self) -> Result<(), Tampered> {
        if !self.next.is_multiple_of(RECORDS_PER_KEY) {
            return Ok(());
        }
        let mut bytes = [0; KEY_BYTES];
        let _tag = self
            .key
            .seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut bytes)
            .map_err(|_| Tampered)?;
        self.key = of_bytes(&bytes).ok_or(Tampered)?;
        Ok(())
    }
}

fn of_bytes(bytes: &[u8; KEY_BYTES]) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM, bytes).ok().map(LessSafeKey::new)
}

fn nonce(number: u64) -> Nonce {
    let [a, b, c, d, e, f, g, h] = number.to_be_bytes();
    Nonce::assume_unique_for_key([0, 0, 0, 0, a, b, c, d, e, f, g, h])
}

/// The sending half.
pub struct Sealer(Key);

/// The receiving half.
pub struct Opener(Key);

/// The keys of one end of a connection.
pub struct Keys {
    /// For what it sends.
    pub sealer: Sealer,
    /// For what it receives.
    pub opener: Opener,
}

impl Keys {
    /// Keys of two directions; `None` cannot happen with keys of this length.
    pub(crate) fn new(own: &[u8; KEY_BYTES], theirs: &[u8; KEY_BYTES]) -> Option<Keys> {
        Some(Keys { sealer: Sealer(Key::new(own)?), opener: Opener(Key::new(theirs)?) })
    }
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl Sealer {
    /// Encrypts in place; returns the tag that follows.
    ///
    /// # Errors
    /// `Tampered` if no numbers are left: the connection ends.
    pub(crate) fn seal_in_place(&mut self, plain: &mut [u8]) -> Result<[u8; TAG_BYTES], Tampered> {
        let nonce = self.0.take_nonce()?;
        let tag = self
            .0
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), plain)
            .map_err(|_| Tampered)?;
        self.0.renew()?;
        tag.as_ref().try_into().map_err(|_| Tampered)
    }

    /// Appends records with the bytes of `plain` to `to`.
    ///
    /// # Errors
    /// `Tampered` if no numbers are left: the connection ends.
    pub fn seal(&mut self, plain: &[u8], to: &mut Vec<u8>) -> Result<(), Tampered> {
        for part in plain.chunks(PLAIN_BYTES_MAX) {
            to.extend_from_slice(&length_of(part.len())?);
            let start = to.len();
            to.extend_from_slice(part);
            let tag = self.seal_in_place(to.get_mut(start..).unwrap_or_default())?;
            to.extend_from_slice(&tag);
        }
        Ok(())
    }
}

impl Opener {
    /// Records opened so far.
    pub(crate) const fn count(&self) -> u64 {
        self.0.next
    }

    /// Opens a message without its length in place; returns the plaintext.
    ///
    /// # Errors
    /// `Tampered` if it is not the next record of the other side; for ever after, too.
    pub(crate) fn open_in_place<'a>(
        &mut self,
        message: &'a mut [u8],
    ) -> Result<&'a mut [u8], Tampered> {
        let nonce = self.0.take_nonce()?;
        match self.0.key.open_in_place(nonce, Aad::empty(), message) {
            Ok(plain) => {
                self.0.renew()?;
                Ok(plain)
            }
            Err(_) => {
                self.0.is_broken = true;
                Err(Tampered)
            }
        }
    }

    /// Opens the first record of `bytes` in place: the range of its plaintext, and its whole
    /// length. `None`: the record is incomplete.
    ///
    /// # Errors
    /// `Tampered` if it is not the next record of the other side; for ever after, too.
    pub fn open(&mut self, bytes: &mut [u8]) -> Result<Option<(Range<usize>, usize)>, Tampered> {
        if self.0.is_broken {
            return Err(Tampered);
        }
        let Some(end) = end_of(bytes)? else { return Ok(None) };
        let Some(message) = bytes.get_mut(LENGTH_BYTES..end) else { return Ok(None) };
        let plain = self.open_in_place(message)?.len();
        Ok(Some((LENGTH_BYTES..LENGTH_BYTES + plain, end)))
    }
}

/// The length field of a record with so many bytes of plaintext.
pub(crate) fn length_of(plain: usize) -> Result<[u8; LENGTH_BYTES], Tampered> {
    u16::try_from(plain + TAG_BYTES).map(u16::to_be_bytes).map_err(|_| Tampered)
}

/// Bytes of the record that `bytes` begins with; `None`: the length is incomplete.
///
/// # Errors
/// `Tampered` if no record has this length.
pub(crate) fn end_of(bytes: &[u8]) -> Result<Option<usize>, Tampered> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(*length));
    // An empty record would make the other side work for nothing.
    if length <= TAG_BYTES { Err(Tampered) } else { Ok(Some(LENGTH_BYTES + length)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair() -> (Sealer, Opener) {
        let [one, other] = [(); 2].map(|()| Keys::new(&[7; 32], &[7; 32]).expect("keys"));
        (one.sealer, other.opener)
    }

    /// All that can be opened of `bytes`, and whether they were all genuine.
    fn opened(opener: &mut Opener, mut bytes: Vec<u8>) -> (Vec<u8>, bool) {
        let (mut plain, mut taken) = (Vec::new(), 0);
        loop {
            match opener.open(&mut bytes[taken..]) {
                Ok(Some((range, length))) => {
                    plain.extend_from_slice(&bytes[taken + range.start..taken + range.end]);
                    taken += length;
                }
                Ok(None) => return (plain, taken == bytes.len()),
                Err(Tampered) => {
                    assert_eq!(opener.open(&mut bytes[taken..]), Err(Tampered), "for ever after");
                    return (plain, false);
                }
            }
        }
    }

    fn messages() -> impl Strategy<Value = Vec<Vec<u8>>> {
        proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..60), 2..6)
    }

    proptest! {
        #[test]
        fn what_was_sealed_is_opened(messages in messages()) {
            let (mut sealer, mut opener) = pair();
            let mut bytes = Vec::new();
            for message in &messages {
                prop_assert_eq!(sealer.seal(message, &mut bytes), Ok(()));
            }
            prop_assert_eq!(opened(&mut opener, bytes), (messages.concat(), true));
        }

        /// Whatever is done to records on their way: what is opened was sent, from the beginning and
        /// in order, and the change is noticed.
        #[test]
        fn each_change_is_detected(
            messages in messages(),
            action in 0u8..6,
            which: prop::sample::Index,
            other: prop::sample::Index,
            bit in 0u32..8,
        ) {
            let (mut sealer, mut opener) = pair();
            let mut records = Vec::new();
            for message in &messages {
                let mut record = Vec::new();
                prop_assert_eq!(sealer.seal(message, &mut record), Ok(()));
                records.push(record);
            }
            let genuine = records.concat();
            let (at, to) = (which.index(records.len()), other.index(records.len()));
            match action {
                0 => {
                    let byte = other.index(records[at].len());
                    records[at][byte] ^= 1 << bit;
                }
                1 => {
                    let length = other.index(records[at].len());
                    records[at].truncate(length);
                }
                2 => records.swap(at, to),
                3 => {
                    let again = records[at].clone();
                    records.insert(to, again);
                }
                4 => drop(records.remove(at)),
                _ => records.insert(at, b"\0\x11injected: 17 by".to_vec()),
            }
            let changed = records.concat();
            // Cutting off whole records at the end leaves a genuine beginning: the connection's end
            // is what tells that something is missing.
            prop_assume!(changed != genuine);
            let is_beginning = genuine.starts_with(&changed);
            let sent = messages.concat();
            let (plain, is_genuine) = opened(&mut opener, changed);
            prop_assert!(sent.starts_with(&plain), "a prefix of what was sent");
            if is_genuine {
                prop_assert!(is_beginning);
            }
        }

        #[test]
        fn arbitrary_bytes_never_open(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (_, mut opener) = pair();
            prop_assert_eq!(opened(&mut opener, bytes).0, Vec::<u8>::new());
        }
    }

    /// The other direction has another key: a reflected record is detected.
    #[test]
    fn a_reflected_record_is_detected() {
        let mut one = Keys::new(&[1; 32], &[2; 32]).expect("keys");
        let mut bytes = Vec::new();
        one.sealer.seal(b"x", &mut bytes).expect("sealed");
        assert_eq!(one.opener.open(&mut bytes), Err(Tampered));
    }

    #[test]
    fn long_plaintext_becomes_several_records() {
        let (mut sealer, mut opener) = pair();
        let plain: Vec<u8> = (0..2 * PLAIN_BYTES_MAX + 5).map(|at| at as u8).collect();
        let mut bytes = Vec::new();
        sealer.seal(&plain, &mut bytes).expect("sealed");
        assert_eq!(bytes.len(), plain.len() + 3 * (LENGTH_BYTES + TAG_BYTES));
        assert!(opened(&mut opener, bytes) == (plain, true));
    }

    /// Both sides replace their keys after the same record, and the last number is not used.
    #[test]
    fn keys_are_replaced_and_numbers_end() {
        let (mut sealer, mut opener) = pair();
        (sealer.0.next, opener.0.next) = (RECORDS_PER_KEY - 1, RECORDS_PER_KEY - 1);
        for word in [&b"with the first key"[..], b"with the second key"] {
            let mut bytes = Vec::new();
            sealer.seal(word, &mut bytes).expect("sealed");
            assert_eq!(opened(&mut opener, bytes), (word.to_vec(), true));
        }
        let (mut sealer, _) = pair();
        sealer.0.next = RECORDS_PER_KEY;
        let (mut with_second, mut with_first) = (Vec::new(), Vec::new());
        let (mut renewed, _) = pair();
        renewed.0.next = RECORDS_PER_KEY - 1;
        renewed.seal(b"y", &mut Vec::new()).expect("sealed");
        renewed.seal(b"x", &mut with_second).expect("sealed");
        sealer.seal(b"x", &mut with_first).expect("sealed");
        assert_ne!(with_first, with_second, "the key is another one");
        sealer.0.next = u64::MAX - 1;
        assert_eq!(sealer.seal(b"x", &mut Vec::new()), Err(Tampered));
    }
}
