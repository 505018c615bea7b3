//! What stands before the bytes of a transfer on a bulk stream. All little-endian, 40 bytes:
//!
//!   0   kind     u8    1 store, 2 fetch, 3 done, 4 data, 5 busy
//!   1   chunk    u8    log2 of the file's chunk; store and fetch
//!   2   errno    u16   done: 0, or why it was refused
//!   4   length   u32   bytes wanted (fetch), that follow (store, data); busy: microseconds
//!   8   id       u64   of the transfer; the answer carries the same
//!   16  inode    u64   store and fetch
//!   24  offset   u64   store and fetch
//!   32  0        u64
//!
//! Fields that a kind does not use are zero. Every number comes from a peer and is checked here
//! against what it can be at most; whether the piece exists is asked of the target.

use wire::codec::{Malformed, Reader, Writer};
use wire::limits::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN, FILE_BYTES_MAX, STAGE_BUFFER_BYTES};
use wire::request::chunk_log2_of;
use wire::{Errno, Inode};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 40;
/// Longest pause that a peer may ask for, in microseconds.
const BUSY_MICROS_MAX: u32 = 10_000_000;

/// A range of a file on a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The file.
    pub inode: Inode,
    /// log2 of its chunk.
    pub chunk_log2: u8,
    /// First offset in the file.
    pub offset: u64,
    /// Number of bytes, at least 1 and at most `STAGE_BUFFER_BYTES`.
    pub length: u32,
}

impl Range {
    /// True if its numbers can be those of a range.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        !self.inode.is_none()
            && (CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX).contains(&chunk_log2_of(self.chunk_log2))
            && (1..=STAGE_BUFFER_BYTES).contains(&(self.length as usize))
            && self.end() <= FILE_BYTES_MAX
    }

    /// First offset behind it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length as u64)
    }
}

/// What a header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// Put the bytes that follow there.
    Store(Range),
    /// Send what is there.
    Fetch(Range),
    /// The store is done, or the transfer refused.
    Done(Result<(), Errno>),
    /// What was to be fetched follows; 0 bytes: all of it is a hole.
    Data(u32),
    /// The transfer may be asked for again after so many microseconds.
    Busy(u32),
}

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Pairs an answer with its transfer.
    pub id: u64,
    /// The rest.
    pub word: Word,
}

impl Header {
    /// The bytes of the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let none = Range { inode: Inode::NONE, chunk_log2: 0, offset: 0, length: 0 };
        let (kind, errno, range) = match self.word {
            Word::Store(range) => (1, 0, range),
            Word::Fetch(range) => (2, 0, range),
            Word::Done(outcome) => (3, outcome.err().map_or(0, |errno| errno.0), none),
            Word::Data(length) => (4, 0, Range { length, ..none }),
            Word::Busy(micros) => (5, 0, Range { length: micros, ..none }),
        };
        let mut writer = Writer::new(&mut bytes);
        writer.u8(kind);
        writer.u8(range.chunk_log2);
        writer.u16(errno);
        writer.u32(range.length);
        writer.u64(self.id);
        writer.u64(range.inode.0);
        writer.u64(range.offset);
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Malformed` if the bytes are none.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Malformed> {
        let mut reader = Reader::new(bytes);
        let (kind, chunk_log2, errno) = (reader.u8()?, reader.u8()?, reader.u16()?);
        let (length, id) = (reader.u32()?, reader.u64()?);
        let (inode, offset) = (Inode(reader.u64()?), reader.u64()?);
        let range = Range { inode, chunk_log2, offset, length };
        let word = match kind {
            1 => Word::Store(checked(range)?),
            2 => Word::Fetch(checked(range)?),
            3 => Word::Done(if errno == 0 { Ok(()) } else { Err(Errno(errno)) }),
            4 if length as usize <= STAGE_BUFFER_BYTES => Word::Data(length),
            5 if length <= BUSY_MICROS_MAX => Word::Busy(length),
            _ => return Err(Malformed),
        };
        let header = Header { id, word };
        // What a kind does not use is zero: no two headers say the same.
        if header.encode() == *bytes { Ok(header) } else { Err(Malformed) }
    }
}

fn checked(range: Range) -> Result<Range, Malformed> {
    if range.is_possible() { Ok(range) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range() -> impl Strategy<Value = Range> {
        (1u64.., 16u8..=26, 0u64..1 << 62, 1u32..=256 * 1024).prop_map(
            |(inode, chunk_log2, offset, length)| Range {
                inode: Inode(inode),
                chunk_log2,
                offset,
                length,
            },
        )
    }

    fn word() -> impl Strategy<Value = Word> {
        prop_oneof![
            range().prop_map(Word::Store),
            range().prop_map(Word::Fetch),
            any::<u16>().prop_map(|n| Word::Done(if n == 0 { Ok(()) } else { Err(Errno(n)) })),
            (0u32..=256 * 1024).prop_map(Word::Data),
            (0u32..=10_000_000).prop_map(Word::Busy),
        ]
    }

    proptest! {
        #[test]
        fn a_header_comes_back(id: u64, word in word()) {
            let header = Header { id, word };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        /// Whatever a peer sends is refused or is a header that keeps to the bounds and comes back.
        #[test]
        fn any_bytes_are_survived(
            id: u64,
            word in word(),
            changes in proptest::collection::vec((0..HEADER_BYTES, any::<u8>()), 0..4),
        ) {
            let mut bytes = Header { id, word }.encode();
            for (at, to) in changes {
                bytes[at] = to;
            }
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
                match header.word {
                    Word::Store(range) | Word::Fetch(range) => {
                        prop_assert!(range.length > 0 && !range.inode.is_none());
                        prop_assert!(range.length as usize <= STAGE_BUFFER_BYTES);
                        prop_assert!(range.end() <= FILE_BYTES_MAX);
                    }
                    Word::Data(length) => prop_assert!(length as usize <= STAGE_BUFFER_BYTES),
                    Word::Done(_) | Word::Busy(_) => {}
                }
            }
        }
    }
}
