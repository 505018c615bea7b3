//! Access profile of a job: which files of a backing directory it read, in which order, and with
//! which gaps. There are two text formats: notes that a daemon appends while the job runs, and the
//! profile that is stored for the next run. All bytes are printable: a path is written byte by
//! byte, and a byte that is not a letter, a digit or one of `/._-+=,@~` is written as `%` and two
//! hexadecimal digits.
//!
//! ```text
//! 1790000000123 in/mesh.h5          note of a daemon: time (milliseconds since 1970) and path
//!
//! forebay-profile 1                 stored profile: format version,
//! 0 in/mesh.h5                      milliseconds since the previous file, and path
//! 612 in/step-1
//! end 2                             number of files
//! ```
//! Notes may end anywhere, because a daemon may be killed: incomplete lines are ignored. A stored
//! profile must be complete.

use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of files in a profile.
pub const FILES_MAX: usize = 1 << 16;
/// Maximum size of a profile, and of the notes of one daemon, in bytes.
pub const BYTES_MAX: usize = 16 << 20;
/// First line of a stored profile.
const HEAD: &str = "forebay-profile 1";
/// Maximum number of files that are assumed to be read concurrently.
const BATCH_MAX: u32 = 64;
/// The longest gaps, one in this many, are left out of the mean: the job may have waited for
/// something else.
const OUTLIERS: usize = 16;

/// A file that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileUse {
    /// Milliseconds since the first read of the previous file.
    pub gap_millis: u64,
    /// Path relative to the backing directory.
    pub path: Vec<u8>,
}

/// Files in the order of their first read, each once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessProfile {
    /// The files in order.
    pub uses: Vec<FileUse>,
}

/// Why a text is not a valid profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    line: usize,
    why: &'static str,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// Encodes a path.
#[must_use]
pub fn written(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for &byte in path {
        match byte {
            b'/' | b'.' | b'_' | b'-' | b'+' | b'=' | b',' | b'@' | b'~' => text.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => text.push(byte.into()),
            _ => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text
}

/// Decodes a path; `None` if it is not a valid relative path.
fn read(text: &str) -> Option<Vec<u8>> {
    let mut path = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            path.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        path.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
    }
    let names = path.split(|byte| *byte == b'/');
    let is_relative = names.into_iter().all(|name| !matches!(name, b"" | b"." | b".."));
    // Only the canonical encoding is accepted, and no NUL, at which the system would cut the path.
    let is_right = is_relative && written(&path) == text && !path.contains(&0);
    is_right.then_some(path)
}

/// Parses `NUMBER PATH`.
fn split(line: &str) -> Option<(u64, Vec<u8>)> {
    let (number, path) = line.split_once(' ')?;
    let parsed: u64 = number.parse().ok()?;
    Some((parsed, read(path)?)).filter(|_| parsed.to_string() == number)
}

/// The note of a daemon for the first read of a file.
#[must_use]
pub fn note(millis: u64, path: &[u8]) -> String {
    format!("{millis} {}\n", written(path))
}

impl AccessProfile {
    /// Merges the notes of several daemons. The earliest note of a file counts.
    #[must_use]
    pub fn of_notes<'a>(notes: impl Iterator<Item = &'a [u8]>) -> AccessProfile {
        // Time and line number, so that notes with the same time keep their order.
        let mut first: BTreeMap<Vec<u8>, (u64, usize)> = BTreeMap::new();
        let lines = notes.flat_map(|text| text.split_inclusive(|byte| *byte == b'\n'));
        for (number, line) in lines.enumerate() {
            let whole = line.strip_suffix(b"\n").and_then(|line| str::from_utf8(line).ok());
            let Some((millis, path)) = whole.and_then(split) else { continue };
            let at = (millis, number);
            first.entry(path).and_modify(|known| *known = at.min(*known)).or_insert(at);
        }
        let mut order: Vec<_> = first.into_iter().map(|(path, at)| (at, path)).collect();
        order.sort_unstable();
        let (mut before, mut bytes, mut uses) = (None, 0, Vec::new());
        for ((at, _), path) in order.into_iter().take(FILES_MAX) {
            let gap_millis = at - before.unwrap_or(at);
            // A gap has at most 20 digits, plus a space and a newline.
            bytes += written(&path).len() + 22;
            if bytes > BYTES_MAX - 64 {
                break;
            }
            before = Some(at);
            uses.push(FileUse { gap_millis, path });
        }
        AccessProfile { uses }
    }

    /// Encodes the profile.
    #[must_use]
    pub fn text(&self) -> String {
        let lines = self.uses.iter().map(|one| note(one.gap_millis, &one.path));
        format!("{HEAD}\n{}end {}\n", lines.collect::<String>(), self.uses.len())
    }

    /// Decodes a stored profile.
    ///
    /// # Errors
    /// The text is not a complete profile of this version.
    pub fn parse(text: &[u8]) -> Result<AccessProfile, Broken> {
        let broken = |line, why| Err(Broken { line, why });
        if text.len() > BYTES_MAX {
            return broken(1, "it is too long");
        }
        let Ok(text) = str::from_utf8(text) else { return broken(1, "it is no text") };
        let Some(text) = text.strip_suffix('\n') else { return broken(1, "it is not whole") };
        let mut lines = text.split('\n').enumerate();
        if lines.next().map(|(_, line)| line) != Some(HEAD) {
            return broken(1, "it is no history, or of another version");
        }
        let (mut uses, mut known) = (Vec::new(), std::collections::BTreeSet::new());
        for (index, line) in lines.by_ref() {
            if let Some(count) = line.strip_prefix("end ") {
                if count != uses.len().to_string() {
                    return broken(index + 1, "it has not so many files");
                }
                return match lines.next() {
                    Some((index, _)) => broken(index + 1, "it is behind the end"),
                    None => Ok(AccessProfile { uses }),
                };
            }
            let Some((gap_millis, path)) = split(line) else {
                return broken(index + 1, "it is no number and path");
            };
            if uses.len() >= FILES_MAX || !known.insert(path.clone()) {
                return broken(index + 1, "it is one too many, or named twice");
            }
            uses.push(FileUse { gap_millis, path });
        }
        broken(1, "it is not whole")
    }

    /// Number of files that the job read concurrently: the mean number of files between two long
    /// gaps. 1 if the gaps show no such pattern.
    #[must_use]
    pub fn batch(&self) -> u32 {
        let mut gaps: Vec<u64> = self.uses.iter().skip(1).map(|one| one.gap_millis).collect();
        gaps.sort_unstable();
        gaps.truncate(gaps.len() - gaps.len() / OUTLIERS);
        let sum: u64 = gaps.iter().fold(0, |sum, gap| sum.saturating_add(*gap));
        let mean = sum / (gaps.len() as u64).max(1);
        let is_long = |one: &&FileUse| one.gap_millis > mean / 4;
        let batches = 1 + self.uses.iter().skip(1).filter(is_long).count();
        // All files were read at once, so their order says nothing.
        if batches < 3 {
            return 1;
        }
        let batch = u32::try_from((self.uses.len() + batches / 2) / batches).unwrap_or(BATCH_MAX);
        batch.clamp(1, BATCH_MAX)
    }
}

#[cfg(test)]
mod tests;
