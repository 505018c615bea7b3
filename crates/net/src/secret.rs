//! The secret that the daemons of one instance share. It is never sent; possession is proven.

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// The secret. It does not show itself in logs.
#[derive(Clone)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// Takes the bytes.
    #[must_use]
    pub const fn new(bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// Reads the text of a secret file: 64 hexadecimal digits, white space around them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Secret> {
        let digits = text.trim().as_bytes();
        let mut bytes = [0; SECRET_BYTES];
        if digits.len() != 2 * SECRET_BYTES {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            let high = char::from(*high).to_digit(16)?;
            let low = char::from(*low).to_digit(16)?;
            *byte = u8::try_from(high << 4 | low).ok()?;
        }
        Some(Secret(bytes))
    }

    fn mac(&self, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        for part in parts {
            // Lengths keep two lists of parts apart that are the same when joined.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        Some(mac)
    }

    /// HMAC-SHA256 over `parts`.
    #[must_use]
    pub fn prove(&self, parts: &[&[u8]]) -> [u8; PROOF_BYTES] {
        // HMAC takes keys of any length, so there always is one.
        self.mac(parts).map_or([0; PROOF_BYTES], |mac| mac.finalize().into_bytes().into())
    }

    /// True if `proof` is that of `parts`; takes as long for a wrong proof as for a right one.
    #[must_use]
    pub fn verify(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(parts).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_64_digits() {
        let text = format!(" {}\n", "0a".repeat(32));
        assert_eq!(Secret::parse(&text).map(|secret| secret.0), Some([10; 32]));
        assert!(Secret::parse("0a").is_none());
        assert!(Secret::parse(&"zz".repeat(32)).is_none());
        assert!(Secret::parse(&"\u{e9}".repeat(32)).is_none());
    }

    #[test]
    fn a_proof_is_of_its_parts_and_secret() {
        let (one, other) = (Secret::new([1; 32]), Secret::new([2; 32]));
        let proof = one.prove(&[b"ab", b"c"]);
        assert!(one.verify(&[b"ab", b"c"], &proof));
        assert!(!one.verify(&[b"a", b"bc"], &proof));
        assert!(!other.verify(&[b"ab", b"c"], &proof));
        assert!(!one.verify(&[b"ab", b"c"], &proof[..31]));
    }
}
