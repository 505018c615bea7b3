//! The kernel's table of mounts as text, `/proc/self/mountinfo`: a line for each, later mounts
//! above earlier ones.

use alloc::borrow::ToOwned as _;
use alloc::string::String;
use alloc::vec::Vec;

/// The file system type of our mounts in the table: type and subtype.
pub const KIND: &str = "fuse.forebay";
/// Its type.
pub const TYPE: &str = KIND.split_at(4).0;
/// Its subtype.
pub const SUBTYPE: &str = KIND.split_at(5).1;

/// A mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// Number of the file system, `major:minor`. Bind mounts of it have the same.
    pub device: String,
    /// Its mount point.
    pub at: Vec<u8>,
    /// Its file system type.
    pub kind: String,
}

impl Mounted {
    /// True if it is a mount of an instance.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.kind == KIND
    }
}

/// All mounts of a table, in its order. Malformed lines are skipped.
pub fn read(table: &[u8]) -> impl DoubleEndedIterator<Item = Mounted> {
    table.split(|&byte| byte == b'\n').filter_map(line)
}

/// `36 35 98:0 /root /at options [field ...] - kind source options`.
fn line(line: &[u8]) -> Option<Mounted> {
    let mut words = line.split(|&byte| byte == b' ');
    let device = core::str::from_utf8(words.nth(2)?).ok()?.to_owned();
    let at = unescaped(words.nth(1)?);
    words.find(|word| word == b"-")?;
    let kind = core::str::from_utf8(words.next()?).ok()?.to_owned();
    Some(Mounted { device, at, kind })
}

/// A path of the table, where blanks and the like are octal.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut bytes = path.iter().copied();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        let digits = bytes.clone().take(3).filter(|digit| (b'0'..=b'7').contains(digit));
        if byte == b'\\' && digits.clone().count() == 3 {
            plain.push(digits.fold(0, |sum: u8, digit| sum.wrapping_shl(3) | (digit - b'0')));
            bytes.nth(2);
        } else {
            plain.push(byte);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let table = b"29 1 254:0 / / rw - ext4 /dev/vda rw\n\
            31 29 0:57 / /tmp/a\\040b\\134c\\04 rw,nosuid shared:3 master:1 - fuse.forebay forebay rw\n\
            what is that\n\
            32 29 0:20 /x /p rw\n";
        let all: Vec<Mounted> = read(table).collect();
        let ours = Mounted {
            device: "0:57".to_owned(),
            at: br"/tmp/a b\c\04".to_vec(),
            kind: KIND.to_owned(),
        };
        assert!(all.len() == 2 && all.last() == Some(&ours) && ours.is_ours(), "{all:?}");
        assert!(all.first().is_some_and(|root| root.at == b"/" && !root.is_ours()));
    }
}
