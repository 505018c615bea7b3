//! Pools of targets: their names and targets, as requests and replies carry them.
//!
//! A pool has a number, which the layouts of directories and files name. Targets are encoded one
//! after another, each by its number (2 bytes) and the bytes per second that the pool may use of it
//! (8 bytes), of which the highest bit says that they were measured.

use crate::codec::{Malformed, Reader, Writer};
use crate::id::DaemonIndex;

/// Largest number of a pool: a layout has seven bits for it. 0 is none.
pub const POOL_ID_MAX: u8 = 127;
/// Longest name of a pool.
pub const POOL_NAME_BYTES_MAX: usize = 63;
/// Maximum number of targets of a pool: its description fits a request beside the name.
pub const POOL_TARGETS_MAX: usize = 1024;
/// Bytes per second that a pool uses of a target for which nothing else is said: above what one
/// device or link of today does, and a sixteenth of it (to which observations correct it) is that
/// of a slow disk.
pub const MAX_PERF_DEFAULT: u64 = 4 << 30;
/// The value that stands for no pool; no pool has this name.
pub const NO_POOL: &[u8] = b"none";

/// A target of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolTarget {
    /// Its number.
    pub target: DaemonIndex,
    /// The bytes per second that the pool may use of it.
    pub max_perf: u64,
    /// They were measured: they say which target is chosen, and are no limit.
    pub is_measured: bool,
}

/// Bit of an encoded `max_perf` that was measured.
const MEASURED: u64 = 1 << 63;

impl PoolTarget {
    /// Encoded length.
    pub const BYTES: usize = 10;

    /// Writes the encoded form.
    pub fn encode(&self, to: &mut Writer<'_>) {
        to.u16(self.target.0);
        to.u64(self.max_perf & !MEASURED | if self.is_measured { MEASURED } else { 0 });
    }

    /// The bytes per second to which the pool is held; of a target that was measured, those of any.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        if self.is_measured { MAX_PERF_DEFAULT } else { self.max_perf }
    }
}

/// The targets of an encoded list, in its order.
pub fn targets(bytes: &[u8]) -> impl Iterator<Item = PoolTarget> {
    let mut reader = Reader::new(bytes);
    core::iter::from_fn(move || {
        let target = DaemonIndex(reader.u16().ok()?);
        let word = reader.u64().ok()?;
        let (max_perf, is_measured) = (word & !MEASURED, word & MEASURED != 0);
        Some(PoolTarget { target, max_perf, is_measured })
    })
}

/// True if the bytes are a list of targets, as many as a pool may have.
#[must_use]
pub const fn are_targets(bytes: &[u8]) -> bool {
    bytes.len().is_multiple_of(PoolTarget::BYTES)
        && bytes.len() / PoolTarget::BYTES <= POOL_TARGETS_MAX
}

/// True for the name of a pool: up to 63 letters, digits, points, hyphens and underscores, and not
/// `none`.
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    let is_known = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (1..=POOL_NAME_BYTES_MAX).contains(&name.len()) && name.iter().all(is_known) && name != NO_POOL
}

/// A pool, as `Request::Pools` lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolEntry<'a> {
    /// Its number.
    pub id: u8,
    /// Its name.
    pub name: &'a [u8],
    /// Its targets, encoded.
    pub targets: &'a [u8],
}

impl<'a> PoolEntry<'a> {
    /// Encoded length.
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        1 + 4 + self.name.len() + 4 + self.targets.len()
    }

    /// Writes the encoded form.
    pub fn encode(&self, to: &mut Writer<'_>) {
        to.u8(self.id);
        to.bytes(self.name);
        to.bytes(self.targets);
    }

    /// Reads the encoded form.
    ///
    /// # Errors
    /// `Malformed` if the input is too short.
    pub fn decode(from: &mut Reader<'a>) -> Result<PoolEntry<'a>, Malformed> {
        Ok(PoolEntry { id: from.u8()?, name: from.bytes()?, targets: from.bytes()? })
    }
}

const _: () = assert!(
    POOL_TARGETS_MAX * PoolTarget::BYTES + POOL_NAME_BYTES_MAX + 1024 <= crate::limits::SLOT_BYTES
);
const _: () = assert!(POOL_TARGETS_MAX == crate::limits::DAEMON_COUNT_MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words() {
        for name in [&b"fast"[..], b"a", b"x.1-2_3", b"nones", &[b'a'; POOL_NAME_BYTES_MAX]] {
            assert!(is_name(name), "{}", name.escape_ascii());
        }
        for name in [&b""[..], b"a b", b"a/b", b"none", b"\xff", &[b'a'; POOL_NAME_BYTES_MAX + 1]] {
            assert!(!is_name(name), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn pools_survive_encoding() {
        let both =
            [(0, 1, false), (7, u64::MAX >> 1, true)].map(|(target, max_perf, is_measured)| {
                PoolTarget { target: DaemonIndex(target), max_perf, is_measured }
            });
        assert_eq!(both.map(|one| one.limit()), [1, MAX_PERF_DEFAULT]);
        let mut bytes = [0; 2 * PoolTarget::BYTES];
        let mut writer = Writer::new(&mut bytes);
        both.iter().for_each(|one| one.encode(&mut writer));
        assert_eq!(writer.finish(), Ok(2 * PoolTarget::BYTES));
        assert!(are_targets(&bytes) && !are_targets(&bytes[1..]));
        assert!(targets(&bytes).eq(both));
        let pool = PoolEntry { id: 3, name: b"fast", targets: &bytes };
        let mut encoded = [0; 64];
        let mut writer = Writer::new(&mut encoded);
        pool.encode(&mut writer);
        assert_eq!(writer.finish(), Ok(pool.encoded_bytes()));
        assert_eq!(PoolEntry::decode(&mut Reader::new(&encoded)), Ok(pool));
    }
}
