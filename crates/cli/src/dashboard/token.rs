//! The secret of a dashboard: 128 random bits, which only its address contains, or a file of its user,
//! for collectors of metrics that ask again and again.

use crate::failure::{Failure, Result};
use config::control::to_hex;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Largest file with a secret that is read.
const BYTES_MAX: u64 = 4096;
/// Least length of a secret in a file: 96 bits in hexadecimal digits.
const LENGTH_MIN: usize = 24;

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

    /// The one in the first line of `path`, which only its owner reads. A file that does not exist is
    /// made, with a new one.
    ///
    /// # Errors
    /// Others can read the file, or it has no usable secret.
    pub(super) fn in_file(path: &Path) -> Result<Token> {
        let failed = |why: String| Failure::at("cannot use the token", path.display(), why);
        let mut options = OpenOptions::new();
        match options.write(true).create_new(true).mode(0o600).open(path) {
            Ok(mut file) => {
                let token = Token::new()?;
                let written = writeln!(file, "{}", token.0).and_then(|()| file.sync_all());
                return written.map(|()| token).map_err(|error| failed(error.to_string()));
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error.to_string())),
        }
        let file = File::open(path).map_err(|error| failed(error.to_string()))?;
        let found = file.metadata().map_err(|error| failed(error.to_string()))?;
        if !found.is_file() || found.mode() & 0o077 != 0 {
            return Err(failed("it is no file that only its owner can read: chmod 600".to_owned()));
        }
        let mut text = String::new();
        let read = file.take(BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| failed(error.to_string()))?;
        let word = text.lines().next().unwrap_or_default();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if word.len() < LENGTH_MIN || !word.bytes().all(is_plain) {
            let why =
                format!("its first line must have {LENGTH_MIN} letters, digits, - _ . or more");
            return Err(failed(why));
        }
        Ok(Token(word.to_owned()))
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
    #[test]
    fn a_file_has_the_secret_of_its_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        let made = Token::in_file(&path).expect("a new file");
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        assert_eq!(std::fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        assert_eq!(Token::in_file(&path).expect("the same").text(), made.text());
        mode(0o640).expect("a mode");
        let refused = |path: &Path| match Token::in_file(path) {
            Ok(_) => panic!("{} is accepted", path.display()),
            Err(failure) => failure.text().to_owned(),
        };
        assert!(refused(&path).ends_with("it is no file that only its owner can read: chmod 600"));
        mode(0o600).expect("a mode");
        for text in [
            "",
            "short",
            "with a space in its middle, but long enough",
            "\u{fc}".repeat(30).as_str(),
        ] {
            std::fs::write(&path, text).expect("written");
            assert!(refused(&path).contains("24 letters"), "{text}");
        }
        assert!(refused(directory.path()).contains("no file"));
    }
}
