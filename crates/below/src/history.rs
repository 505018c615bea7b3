//! Which files of a backing directory a job read, in which order and with which gaps: what a daemon notes
//! while it runs, and what is kept for the next run. Text, of which every byte is printable: a path is
//! given by its bytes, those that are no letter, digit or one of `/._-+=,@~` as `%` and two digits of 16.
//!
//! ```text
//! 1790000000123 in/mesh.h5          what a daemon notes: when (milliseconds since 1970), and what
//!
//! forebay-history 1                 what is kept: its version,
//! 0 in/mesh.h5                      milliseconds since the one before, and what
//! 612 in/step-1
//! end 2                             how many
//! ```
//! What a daemon notes may break off anywhere, as it may be killed: lines that are not whole are left
//! out. What is kept is whole or nothing.

use std::collections::BTreeMap;
use std::fmt;

/// Files of one history.
pub const FILES_MAX: usize = 1 << 16;
/// Bytes of one history, and of what one daemon notes.
pub const BYTES_MAX: usize = 16 << 20;
/// The first line.
const HEAD: &str = "forebay-history 1";
/// More files are not read at a time.
const GROUP_MAX: u32 = 64;
/// Of the gaps one in so many is left out of their mean: a job may have waited for something else.
const OUTLIERS: usize = 16;

/// A file that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Use {
    /// Milliseconds since the one before was first read.
    pub gap_millis: u64,
    /// Its path below the backing directory.
    pub path: Vec<u8>,
}

/// Files in the order in which they were first read; none twice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// See the type.
    pub uses: Vec<Use>,
}

/// Why a text is no history.
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

/// A path as it is written.
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

/// The path that is written so, if it is one below a directory.
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
    let is_below = names.into_iter().all(|name| !matches!(name, b"" | b"." | b".."));
    // One spelling of each path, and none that the system cuts off.
    let is_right = is_below && written(&path) == text && !path.contains(&0);
    is_right.then_some(path)
}

/// `NUMBER PATH`.
fn split(line: &str) -> Option<(u64, Vec<u8>)> {
    let (number, path) = line.split_once(' ')?;
    let parsed: u64 = number.parse().ok()?;
    Some((parsed, read(path)?)).filter(|_| parsed.to_string() == number)
}

/// What a daemon notes of a file's first use.
#[must_use]
pub fn note(millis: u64, path: &[u8]) -> String {
    format!("{millis} {}\n", written(path))
}

impl History {
    /// Of what daemons noted. A file that several of them had parts of was read when the first was.
    #[must_use]
    pub fn of_notes<'a>(notes: impl Iterator<Item = &'a [u8]>) -> History {
        // When, and in which line: those of one moment stay in the order in which they were noted.
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
            // A gap has 20 digits at most, and two signs are around it.
            bytes += written(&path).len() + 22;
            if bytes > BYTES_MAX - 64 {
                break;
            }
            before = Some(at);
            uses.push(Use { gap_millis, path });
        }
        History { uses }
    }

    /// What is kept of it.
    #[must_use]
    pub fn text(&self) -> String {
        let lines = self.uses.iter().map(|one| note(one.gap_millis, &one.path));
        format!("{HEAD}\n{}end {}\n", lines.collect::<String>(), self.uses.len())
    }

    /// What was kept.
    ///
    /// # Errors
    /// It is anything else.
    pub fn parse(text: &[u8]) -> Result<History, Broken> {
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
                    None => Ok(History { uses }),
                };
            }
            let Some((gap_millis, path)) = split(line) else {
                return broken(index + 1, "it is no number and path");
            };
            if uses.len() >= FILES_MAX || !known.insert(path.clone()) {
                return broken(index + 1, "it is one too many, or named twice");
            }
            uses.push(Use { gap_millis, path });
        }
        broken(1, "it is not whole")
    }

    /// How many files were read at a time, by as many readers: those between two gaps that are no short
    /// ones. 1 where there is no such rhythm.
    #[must_use]
    pub fn group(&self) -> u32 {
        let mut gaps: Vec<u64> = self.uses.iter().skip(1).map(|one| one.gap_millis).collect();
        gaps.sort_unstable();
        gaps.truncate(gaps.len() - gaps.len() / OUTLIERS);
        let sum: u64 = gaps.iter().fold(0, |sum, gap| sum.saturating_add(*gap));
        let mean = sum / (gaps.len() as u64).max(1);
        let is_long = |one: &&Use| one.gap_millis > mean / 4;
        let groups = 1 + self.uses.iter().skip(1).filter(is_long).count();
        // Where all came at once there is no order to follow.
        if groups < 3 {
            return 1;
        }
        let group = u32::try_from((self.uses.len() + groups / 2) / groups).unwrap_or(GROUP_MAX);
        group.clamp(1, GROUP_MAX)
    }
}

#[cfg(test)]
mod tests;
