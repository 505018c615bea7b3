//! The secret of a dashboard: 128 random bits, which only its address contains.

use crate::failure::{Failure, Result};
use config::control::to_hex;
use std::hint::black_box;

/// The secret of a dashboard.
pub(super) struct Token(String);

impl Token {
    /// A new one.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub(super) fn new() -> Result<Token> {
        Ok(Token(random_word()?))
    }

    /// Its text, for the address.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Whether `word` is the secret. The time tells only whether the length is right.
    pub(super) fn is(&self, word: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), word.as_bytes());
        let difference = own.iter().zip(other).fold(0, |sum, (a, b)| black_box(sum | (a ^ b)));
        own.len() == other.len() && black_box(difference) == 0
    }
}

/// 128 random bits in hexadecimal digits.
///
/// # Errors
/// The kernel gives no random bytes.
pub(super) fn random_word() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(format!("cannot get random bytes: {error}")))?;
    Ok(to_hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_secret_is_accepted() {
        let token = Token::new().expect("random bytes");
        let text = token.text().to_owned();
        assert_eq!(text.len(), 32);
        assert!(token.is(&text));
        for place in 0..text.len() {
            let mut other = text.clone().into_bytes();
            other[place] ^= 1;
            assert!(!token.is(&String::from_utf8(other).expect("text")), "{place}");
            assert!(!token.is(&text[..place]), "{place}");
        }
        assert!(!token.is(&format!("{text}0")) && !token.is("") && !token.is(&text.to_uppercase()));
        assert_ne!(Token::new().expect("random bytes").text(), text);
    }
}
