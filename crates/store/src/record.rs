//! The bytes of a log: a head of the file, then records, then zeros up to the end of the file.
//!
//! Head, 32 bytes, little-endian:
//!
//!   0   magic       8   "FORELOG2"
//!   8   generation  u64
//!   16  instance    u64 of the `Identity`
//!   24  part        u32 of the `Identity`
//!   28  crc         u32 CRC-32C of bytes 0 .. 28
//!
//! Record, at a multiple of 8:
//!
//!   0   length      u32 of the content; 0: no record, the log ends here
//!   4   crc         u32 CRC-32C of the 24 bytes with this field zero, then of the content
//!   8   sequence    u64 1 for the first record of a file, then one more each
//!   16  unsynced    u32 how many records before this one may be missing after the node died
//!   20  generation  u32 lower half of the file's
//!   24  content     1 .. `RECORD_BYTES_MAX` bytes; a fill of zeros up to the next multiple of 8, which
//!                   nothing reads
//!
//! Decoding is pure and takes any bytes.

use crate::identity::Identity;

/// Bytes of the head of a file.
pub const HEAD_BYTES: usize = 32;
/// Bytes before the content of a record.
pub const HEADER_BYTES: usize = 24;
/// Records begin at multiples of this.
pub const ALIGN_BYTES: u64 = 8;
/// Longest content: the largest inode record (a page of contents, its extended attributes) many
/// times over, and short enough that a torn length is recognised.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Most bytes that a record takes beyond its content.
pub const OVERHEAD_BYTES: u64 = HEADER_BYTES as u64 + ALIGN_BYTES;

const MAGIC: &[u8; 8] = b"FORELOG2";

/// A record in the bytes of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Its number in the file.
    pub sequence: u64,
    /// Number of records before it that may be missing after the node died.
    pub unsynced: u32,
    /// Lower half of the generation of its file.
    pub generation: u32,
    /// Its content.
    pub bytes: &'a [u8],
}

impl Record<'_> {
    /// Bytes from its beginning to that of the next record.
    #[must_use]
    pub const fn bytes_stored(&self) -> u64 {
        bytes_stored(self.bytes.len())
    }
}

/// Bytes that a record with content of this length takes.
#[must_use]
pub const fn bytes_stored(length: usize) -> u64 {
    (HEADER_BYTES as u64 + length as u64).next_multiple_of(ALIGN_BYTES)
}

/// Result of decoding bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    /// A whole record.
    Record(Record<'a>),
    /// The length is zero, or no header fits: the end of a log.
    End,
    /// A header whose content would need this many bytes in all, more than there are.
    Short(usize),
    /// No record.
    Bad,
}

fn field32(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u32::from_le_bytes(*field))
}

fn field64(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u64::from_le_bytes(*field))
}

/// Decodes the record at the beginning of `bytes`, which may be anything.
#[must_use]
pub fn decode_record(bytes: &[u8]) -> Decoded<'_> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Decoded::End;
    };
    let length = field32(header, 0) as usize;
    if length == 0 {
        return Decoded::End;
    }
    if length > RECORD_BYTES_MAX {
        return Decoded::Bad;
    }
    let Some(content) = rest.get(..length) else { return Decoded::Short(HEADER_BYTES + length) };
    let mut zeroed = *header;
    zeroed[4..8].fill(0);
    if crc32c::crc32c_append(crc32c::crc32c(&zeroed), content) != field32(header, 4) {
        return Decoded::Bad;
    }
    Decoded::Record(Record {
        sequence: field64(header, 8),
        unsynced: field32(header, 16),
        generation: field32(header, 20),
        bytes: content,
    })
}

/// Sequence and generation that the bytes would have if they were a record: a cheap test that they
/// are not the expected one.
#[must_use]
pub fn peek(bytes: &[u8]) -> Option<(u64, u32)> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    Some((field64(header, 8), field32(header, 20)))
}

/// Bytes that the record at the beginning of `bytes` takes if its header is right; `None` if no record
/// has such a header.
#[must_use]
pub fn stored_as_said(bytes: &[u8]) -> Option<u64> {
    let length = field32(bytes.first_chunk::<HEADER_BYTES>()?, 0) as usize;
    (1..=RECORD_BYTES_MAX).contains(&length).then(|| bytes_stored(length))
}

/// The header of a record.
#[must_use]
pub fn encode_header(record: &Record<'_>) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&(record.bytes.len() as u32).to_le_bytes());
    header[8..16].copy_from_slice(&record.sequence.to_le_bytes());
    header[16..20].copy_from_slice(&record.unsynced.to_le_bytes());
    header[20..24].copy_from_slice(&record.generation.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header), record.bytes);
    header[4..8].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The head of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Generation of the file.
    pub generation: u64,
    /// The log that it belongs to.
    pub identity: Identity,
}

/// The bytes of a head.
#[must_use]
pub fn encode_head(from: &Head) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..16].copy_from_slice(&from.generation.to_le_bytes());
    head[16..24].copy_from_slice(&from.identity.instance.to_le_bytes());
    head[24..28].copy_from_slice(&from.identity.part.to_le_bytes());
    let crc = crc32c::crc32c(&head[..28]);
    head[28..].copy_from_slice(&crc.to_le_bytes());
    head
}

/// The head in some bytes; `None` if it is no head.
#[must_use]
pub fn decode_head(bytes: &[u8]) -> Option<Head> {
    let head = bytes.first_chunk::<HEAD_BYTES>()?;
    let is_right = head.starts_with(MAGIC) && crc32c::crc32c(&head[..28]) == field32(head, 28);
    let identity = Identity { instance: field64(head, 16), part: field32(head, 24) };
    is_right.then(|| Head { generation: field64(head, 8), identity })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_of_an_older_version_is_readable() {
        let bytes = [
            3, 0, 0, 0, 0x96, 0xf8, 0xb0, 0x95, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0,
            b'a', b'b', b'c',
        ];
        let record = Record { sequence: 7, unsynced: 2, generation: 5, bytes: b"abc" };
        assert_eq!(encode_header(&record), bytes[..HEADER_BYTES]);
        assert_eq!(decode_record(&bytes), Decoded::Record(record));
    }

    proptest! {
        /// A record decodes to what was encoded; truncated or with any bit flipped it does not.
        #[test]
        fn records_survive(
            content in proptest::collection::vec(any::<u8>(), 1..300),
            sequence: u64, unsynced: u32, generation: u32, turned: usize, cut: usize,
        ) {
            let record = Record { sequence, unsynced, generation, bytes: &content };
            let mut bytes = encode_header(&record).to_vec();
            bytes.extend(&content);
            prop_assert_eq!(decode_record(&bytes), Decoded::Record(record));
            let short = decode_record(&bytes[..cut % bytes.len()]);
            prop_assert!(matches!(short, Decoded::End | Decoded::Short(_)));
            let bit = turned % (8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!matches!(decode_record(&bytes), Decoded::Record(_)));
        }

        /// Any bytes are decoded to something.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = (decode_record(&bytes), decode_head(&bytes));
        }
    }
}
