//! File attributes in an object's metadata, by the names that s3fs, rclone, and the AWS services
//! that fill file systems from buckets use.
//!
//! | attribute | s3fs, rclone: `x-amz-meta-` | AWS: `x-amz-meta-` |
//! |---|---|---|
//! | kind, permissions | `mode`: decimal; octal with a 0 before it | `file-permissions`: octal |
//! | owner | `uid`, `gid`: decimal | `file-owner`, `file-group` |
//! | modification time | `mtime`: seconds, with a fraction or not | `file-mtime`: `NUMBERns` |
//!
//! Empty or invalid values are ignored. A symbolic link is an object with that kind in its mode;
//! its contents are the target.

use wire::attributes::mode;

/// Name of our own metadata field: the version number in hexadecimal.
pub(crate) const VERSION: &str = "forebay-version";

/// File attributes that are written to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Type and permission bits.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owner.
    pub gid: u32,
    /// Modification time, in nanoseconds since 1970.
    pub modified: i64,
    /// New version number. Unlike an ETag it is preserved by a copy.
    pub number: u64,
}

impl Attributes {
    /// The metadata by the names of s3fs and rclone, with the mode in a form that both can read.
    pub(crate) fn metadata(&self) -> [(&'static str, String); 5] {
        let Attributes { mode, uid, gid, modified, number } = *self;
        let sign = if modified < 0 { "-" } else { "" };
        let (seconds, nanos) = (modified.unsigned_abs() / SECOND, modified.unsigned_abs() % SECOND);
        [
            ("mode", format!("0{mode:o}")),
            ("uid", uid.to_string()),
            ("gid", gid.to_string()),
            ("mtime", format!("{sign}{seconds}.{nanos:09}")),
            (VERSION, format!("{number:016x}")),
        ]
    }
}

const SECOND: u64 = 1_000_000_000;

/// File attributes found in an object's metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct StoredAttributes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    /// Modification time, in nanoseconds since 1970.
    pub(crate) modified: Option<i64>,
    /// Version number, if an instance wrote or copied the object.
    pub(crate) version: Option<u64>,
}

impl StoredAttributes {
    /// `value` returns the metadata value of a name.
    pub(crate) fn of<'a>(value: &dyn Fn(&str) -> Option<&'a str>) -> StoredAttributes {
        let first = |one, other| value(one).or_else(|| value(other));
        let number = |one, other| first(one, other).and_then(|text| text.parse().ok());
        StoredAttributes {
            mode: first("mode", "file-permissions").and_then(mode_of),
            uid: number("uid", "file-owner"),
            gid: number("gid", "file-group"),
            modified: first("mtime", "file-mtime").and_then(nanos_of),
            version: value(VERSION).and_then(|text| u64::from_str_radix(text, 16).ok()),
        }
    }

    /// Type and permission bits for an object that is a file.
    pub(crate) fn file_mode(&self) -> u32 {
        let Some(stored) = self.mode else { return mode::REGULAR | 0o644 };
        match stored & mode::TYPE {
            kind @ (mode::SYMLINK | mode::FIFO | mode::SOCKET) => kind | stored & mode::PERMISSIONS,
            _ => mode::REGULAR | stored & mode::PERMISSIONS,
        }
    }

    /// Type and permission bits for a directory.
    pub(crate) fn directory_mode(&self) -> u32 {
        mode::DIRECTORY | self.mode.map_or(0o755, |stored| stored & mode::PERMISSIONS)
    }
}

fn mode_of(text: &str) -> Option<u32> {
    match text.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => u32::from_str_radix(octal, 8).ok(),
        _ => text.parse().ok(),
    }
}

fn nanos_of(text: &str) -> Option<i64> {
    if let Some(nanos) = text.strip_suffix("ns") {
        return nanos.parse().ok();
    }
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: i64 = digits.parse().ok()?;
    let whole = seconds.parse::<i64>().ok()?.checked_mul(1_000_000_000)?;
    // The fraction moves a time before 1970 further back.
    if seconds.starts_with('-') { whole.checked_sub(nanos) } else { whole.checked_add(nanos) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(metadata: &[(&str, &'static str)]) -> StoredAttributes {
        StoredAttributes::of(&|name| {
            metadata.iter().find(|(it, _)| *it == name).map(|(_, value)| *value)
        })
    }

    #[test]
    fn the_metadata_of_each_tool_is_parsed() {
        let s3fs = [("mode", "33204"), ("uid", "1000"), ("gid", "100"), ("mtime", "1615892351")];
        let s3fs = stored(&s3fs);
        assert_eq!((s3fs.file_mode(), s3fs.uid, s3fs.gid), (0o100_664, Some(1000), Some(100)));
        assert_eq!(s3fs.modified, Some(1_615_892_351_000_000_000));
        let rclone = stored(&[("mode", "0100600"), ("mtime", "1354040105.12345")]);
        assert_eq!(rclone.file_mode(), 0o100_600);
        assert_eq!(rclone.modified, Some(1_354_040_105_123_450_000));
        let aws =
            stored(&[("file-permissions", "0100755"), ("file-mtime", "1595002920000000001ns")]);
        assert_eq!((aws.file_mode(), aws.modified), (0o100_755, Some(1_595_002_920_000_000_001)));
        let link = stored(&[("mode", "41471")]);
        assert_eq!(link.file_mode(), mode::SYMLINK | 0o777);
        assert_eq!(stored(&[("mode", "16893")]).directory_mode(), mode::DIRECTORY | 0o775);
        assert_eq!(stored(&[("mtime", "-1.5")]).modified, Some(-1_500_000_000));
    }

    #[test]
    fn written_metadata_is_read_back() {
        for modified in [0, 1, -1, 1_700_000_000_123_456_789, -1_500_000_000, i64::MIN + 1] {
            let mode = mode::REGULAR | 0o4751;
            let written = Attributes { mode, uid: 12, gid: 34, modified, number: 0xfedc << 48 };
            let metadata = written.metadata();
            let find = |name: &str| metadata.iter().find(|(it, _)| *it == name);
            let stored = StoredAttributes::of(&|name| find(name).map(|(_, value)| value.as_str()));
            let all = (Some(mode), Some(12), Some(34), Some(modified), Some(0xfedc << 48));
            assert_eq!((stored.mode, stored.uid, stored.gid, stored.modified, stored.version), all);
        }
    }

    #[test]
    fn invalid_metadata_is_ignored() {
        let nonsense = ["", "x", "-", "9999999999999999999999", "1.x", "0x1ff", "1e9", "\u{fc}"];
        for text in nonsense {
            let stored = stored(&[("mode", text), ("uid", text), ("gid", text), ("mtime", text)]);
            assert_eq!(stored, StoredAttributes::default(), "{text}");
        }
        assert_eq!(stored(&[]).file_mode(), mode::REGULAR | 0o644);
        assert_eq!(stored(&[("mode", "24576")]).file_mode(), mode::REGULAR, "a device");
    }
}
