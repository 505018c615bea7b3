//! Names with `*` for any letters, and directories.

/// A name with `*` for any number of any letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: Vec<u8>,
}

impl Pattern {
    /// The pattern of a text.
    #[must_use]
    pub fn new(text: &str) -> Pattern {
        Pattern { text: text.as_bytes().to_vec() }
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether it names more than itself.
    #[must_use]
    pub fn has_star(&self) -> bool {
        self.text.contains(&b'*')
    }

    /// Whether a name matches as a whole. Takes at most the product of both lengths.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        let (mut at, mut place) = (0, 0);
        // After the last star: where it stands, and the first letter that it does not cover.
        let mut star: Option<(usize, usize)> = None;
        while let Some(letter) = name.get(place) {
            match self.text.get(at) {
                Some(b'*') => {
                    star = Some((at + 1, place));
                    at += 1;
                }
                Some(own) if own == letter => {
                    at += 1;
                    place += 1;
                }
                _ => {
                    let Some((after, covered)) = star else { return false };
                    star = Some((after, covered + 1));
                    (at, place) = (after, covered + 1);
                }
            }
        }
        self.text.iter().skip(at).all(|letter| *letter == b'*')
    }

    /// Whether a directory is this one or below it; with a star, whether it matches as a whole.
    #[must_use]
    pub fn matches_dir(&self, dir: &[u8]) -> bool {
        if self.has_star() {
            return self.matches(dir);
        }
        let own = self.text.strip_suffix(b"/").unwrap_or(&self.text);
        dir.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }
}
