//! The secret that the daemons of one instance share. It is never sent; the handshake proves it.

use ring::digest::{Context, SHA256};

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;

/// The secret. Its `Debug` output hides it from logs.
#[derive(Clone)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// Wraps the bytes.
    #[must_use]
    pub const fn new(bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// Parses the text of a secret file: 64 hexadecimal digits, surrounded by optional white space.
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

    /// The number of the instance: as random as the secret, which it does not reveal.
    #[must_use]
    pub fn instance_number(&self) -> u64 {
        let mut context = Context::new(&SHA256);
        context.update(b"forebay instance");
        context.update(&self.0);
        let digest = context.finish();
        digest.as_ref().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// The bytes, as the pre-shared key of a handshake.
    pub(crate) const fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
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
    fn instances_with_other_secrets_have_other_numbers() {
        let number = |byte| Secret::new([byte; 32]).instance_number();
        assert_eq!(number(1), number(1));
        assert_ne!(number(1), number(2));
        assert_ne!(number(1), u64::from_le_bytes([1; 8]), "the secret is in the number");
    }

    #[test]
    fn a_secret_is_not_in_its_debug_output() {
        assert_eq!(format!("{:?}", Secret::new([10; 32])), "Secret(..)");
    }
}
