//! What an object's metadata say of a file, by the names that s3fs, rclone, and those of AWS that fill
//! file systems from buckets have for it.
//!
//! | of a file | s3fs, rclone: `x-amz-meta-` | AWS: `x-amz-meta-` |
//! |---|---|---|
//! | kind, permissions | `mode`: decimal; octal with a 0 before it | `file-permissions`: octal |
//! | owner | `uid`, `gid`: decimal | `file-owner`, `file-group` |
//! | time of the last write | `mtime`: seconds, with a fraction or not | `file-mtime`: `NUMBERns` |
//!
//! What says nothing, or nonsense, counts as not there. A symbolic link is an object with that kind in
//! its mode, and its contents are where it leads.

use wire::attributes::mode;

/// Which version it is, in hex: a name of ours.
pub(crate) const VERSION: &str = "forebay-version";

/// What an object is to say of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Kind and permissions.
    pub mode: u32,
    /// User that it belongs to.
    pub uid: u32,
    /// Group that it belongs to.
    pub gid: u32,
    /// When it was written last, in nanoseconds since 1970.
    pub modified: i64,
    /// Which version it is from now on: this goes with copies, as no ETag does.
    pub number: u64,
}

impl Attributes {
    /// By the names of s3fs and rclone; the mode is one that both read.
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

/// What is said of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Said {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    /// Nanoseconds since 1970.
    pub(crate) modified: Option<i64>,
    /// Which version it is, where an instance wrote or copied it.
    pub(crate) version: Option<u64>,
}

impl Said {
    /// `value` gives the metadata of a name.
    pub(crate) fn of<'a>(value: &dyn Fn(&str) -> Option<&'a str>) -> Said {
        let first = |one, other| value(one).or_else(|| value(other));
        let number = |one, other| first(one, other).and_then(|text| text.parse().ok());
        Said {
            mode: first("mode", "file-permissions").and_then(mode_of),
            uid: number("uid", "file-owner"),
            gid: number("gid", "file-group"),
            modified: first("mtime", "file-mtime").and_then(nanos_of),
            version: value(VERSION).and_then(|text| u64::from_str_radix(text, 16).ok()),
        }
    }

    /// Kind and permissions of a file.
    pub(crate) fn file_mode(&self) -> u32 {
        let Some(said) = self.mode else { return mode::REGULAR | 0o644 };
        match said & mode::TYPE {
            kind @ (mode::SYMLINK | mode::FIFO | mode::SOCKET) => kind | said & mode::PERMISSIONS,
            _ => mode::REGULAR | said & mode::PERMISSIONS,
        }
    }

    /// Of a directory.
    pub(crate) fn directory_mode(&self) -> u32 {
        mode::DIRECTORY | self.mode.map_or(0o755, |said| said & mode::PERMISSIONS)
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
    // What is behind the point counts away from 1970 as well.
    if seconds.starts_with('-') { whole.checked_sub(nanos) } else { whole.checked_add(nanos) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(metadata: &[(&str, &'static str)]) -> Said {
        Said::of(&|name| metadata.iter().find(|(it, _)| *it == name).map(|(_, value)| *value))
    }

    #[test]
    fn each_tool_is_understood() {
        let s3fs = [("mode", "33204"), ("uid", "1000"), ("gid", "100"), ("mtime", "1615892351")];
        let s3fs = said(&s3fs);
        assert_eq!((s3fs.file_mode(), s3fs.uid, s3fs.gid), (0o100_664, Some(1000), Some(100)));
        assert_eq!(s3fs.modified, Some(1_615_892_351_000_000_000));
        let rclone = said(&[("mode", "0100600"), ("mtime", "1354040105.12345")]);
        assert_eq!(rclone.file_mode(), 0o100_600);
        assert_eq!(rclone.modified, Some(1_354_040_105_123_450_000));
        let aws = said(&[("file-permissions", "0100755"), ("file-mtime", "1595002920000000001ns")]);
        assert_eq!((aws.file_mode(), aws.modified), (0o100_755, Some(1_595_002_920_000_000_001)));
        let link = said(&[("mode", "41471")]);
        assert_eq!(link.file_mode(), mode::SYMLINK | 0o777);
        assert_eq!(said(&[("mode", "16893")]).directory_mode(), mode::DIRECTORY | 0o775);
        assert_eq!(said(&[("mtime", "-1.5")]).modified, Some(-1_500_000_000));
    }

    #[test]
    fn what_is_written_is_read() {
        for modified in [0, 1, -1, 1_700_000_000_123_456_789, -1_500_000_000, i64::MIN + 1] {
            let mode = mode::REGULAR | 0o4751;
            let written = Attributes { mode, uid: 12, gid: 34, modified, number: 0xfedc << 48 };
            let metadata = written.metadata();
            let find = |name: &str| metadata.iter().find(|(it, _)| *it == name);
            let said = Said::of(&|name| find(name).map(|(_, value)| value.as_str()));
            let all = (Some(mode), Some(12), Some(34), Some(modified), Some(0xfedc << 48));
            assert_eq!((said.mode, said.uid, said.gid, said.modified, said.version), all);
        }
    }

    #[test]
    fn nonsense_counts_as_nothing() {
        let nonsense = ["", "x", "-", "9999999999999999999999", "1.x", "0x1ff", "1e9", "\u{fc}"];
        for text in nonsense {
            let said = said(&[("mode", text), ("uid", text), ("gid", text), ("mtime", text)]);
            assert_eq!(said, Said::default(), "{text}");
        }
        assert_eq!(said(&[]).file_mode(), mode::REGULAR | 0o644);
        assert_eq!(said(&[("mode", "24576")]).file_mode(), mode::REGULAR, "a device");
    }
}
