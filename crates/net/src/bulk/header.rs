//! Header in front of the bytes of a transfer on a bulk stream. All little-endian, 48 bytes:
//!
//!   0   kind     u8    1 store, 2 fetch, 3 done, 4 data, 5 busy, 6 fetched data, 7 elsewhere
//!   1   stripe   u8    log2 of the file's stripe size; store and fetch; log2 of the extent; fetched data
//!   2   errno    u16   done: 0, or the reason of a refusal
//!   4   length   u32   bytes requested (fetch) or following (store, data); busy: microseconds
//!   8   id       u64   of the transfer; the reply carries the same
//!   16  inode    u64   store and fetch
//!   24  offset   u64   store and fetch; elsewhere: the location there
//!   32  job      u32, u32, u32   store, fetch: user, number, bound (`wire::JobWord`)
//!   44  0        u32
//!
//! Fields that a kind does not use are zero. Every number comes from a peer and is checked here
//! against its bounds; only the target knows whether the extent exists.

use wire::codec::{Malformed, Reader, Writer};
use wire::limits::{BOUNCE_BUFFER_BYTES, FILE_BYTES_MAX, STRIPE_LOG2_MAX, STRIPE_LOG2_MIN};
use wire::request::stripe_log2_of;
use wire::{Errno, Inode, JobWord};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 48;
/// Longest retry delay that a peer may request, in microseconds.
const BUSY_MICROS_MAX: u32 = 10_000_000;

/// A range of a file on a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The file.
    pub inode: Inode,
    /// log2 of its stripe size.
    pub stripe_log2: u8,
    /// First offset in the file.
    pub offset: u64,
    /// Number of bytes, at least 1 and at most `BOUNCE_BUFFER_BYTES`.
    pub length: u32,
    /// The job for which a store takes memory, or a fetch waits for the backing store.
    pub job: JobWord,
}

impl Range {
    /// True if all fields are within their bounds.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        !self.inode.is_none()
            && (STRIPE_LOG2_MIN..=STRIPE_LOG2_MAX).contains(&stripe_log2_of(self.stripe_log2))
            && (1..=BOUNCE_BUFFER_BYTES).contains(&(self.length as usize))
            && self.end() <= FILE_BYTES_MAX
    }

    /// First offset after the range.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.length as u64)
    }
}

/// Kind and parameters of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Store the bytes that follow in this range.
    Store(Range),
    /// Send the bytes of this range.
    Fetch(Range),
    /// The store is complete, or the transfer is refused.
    Done(Result<(), Errno>),
    /// Length of the fetched bytes that follow; 0: the whole range is a hole.
    Data(u32),
    /// As `Data`, of an extent that was fetched from the backing store for a reader, to which nobody had
    /// come before; log2 of its length.
    Fetched(u32, u8),
    /// The transfer may be retried after this many microseconds.
    Busy(u32),
    /// The bytes to fetch are at another daemon, which the location names.
    Elsewhere(u64),
}

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Matches a reply to its transfer.
    pub id: u64,
    /// Kind and parameters.
    pub message: Message,
}

impl Header {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let job = JobWord::NONE;
        let none = Range { inode: Inode::NONE, stripe_log2: 0, offset: 0, length: 0, job };
        let (kind, errno, range) = match self.message {
            Message::Store(range) => (1, 0, range),
            Message::Fetch(range) => (2, 0, range),
            Message::Done(outcome) => (3, outcome.err().map_or(0, |errno| errno.0), none),
            Message::Data(length) => (4, 0, Range { length, ..none }),
            Message::Busy(micros) => (5, 0, Range { length: micros, ..none }),
            Message::Fetched(length, stripe_log2) => (6, 0, Range { length, stripe_log2, ..none }),
            Message::Elsewhere(offset) => (7, 0, Range { offset, ..none }),
        };
        let mut writer = Writer::new(&mut bytes);
        writer.u8(kind);
        writer.u8(range.stripe_log2);
        writer.u16(errno);
        writer.u32(range.length);
        writer.u64(self.id);
        writer.u64(range.inode.0);
        writer.u64(range.offset);
        range.job.encode(&mut writer);
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// `Malformed` if the bytes are not a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Malformed> {
        let mut reader = Reader::new(bytes);
        let (kind, stripe_log2, errno) = (reader.u8()?, reader.u8()?, reader.u16()?);
        let (length, id) = (reader.u32()?, reader.u64()?);
        let (inode, offset) = (Inode(reader.u64()?), reader.u64()?);
        let job = JobWord::decode(&mut reader)?;
        let range = Range { inode, stripe_log2, offset, length, job };
        let message = match kind {
            1 => Message::Store(checked(range)?),
            2 => Message::Fetch(checked(range)?),
            3 => Message::Done(if errno == 0 { Ok(()) } else { Err(Errno(errno)) }),
            4 if length as usize <= BOUNCE_BUFFER_BYTES => Message::Data(length),
            5 if length <= BUSY_MICROS_MAX => Message::Busy(length),
            6 if length as usize <= BOUNCE_BUFFER_BYTES && stripe_log2 <= STRIPE_LOG2_MAX => {
                Message::Fetched(length, stripe_log2)
            }
            7 => Message::Elsewhere(offset),
            _ => return Err(Malformed),
        };
        let header = Header { id, message };
        // Unused fields must be zero, so that each header has exactly one encoding.
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
        (1u64.., 16u8..=26, 0u64..1 << 62, 1u32..=256 * 1024, any::<[u32; 3]>()).prop_map(
            |(inode, stripe_log2, offset, length, [user, number, dirty_mib_max])| Range {
                inode: Inode(inode),
                stripe_log2,
                offset,
                length,
                job: JobWord { user, number, dirty_mib_max },
            },
        )
    }

    fn message() -> impl Strategy<Value = Message> {
        prop_oneof![
            range().prop_map(Message::Store),
            range().prop_map(Message::Fetch),
            any::<u16>().prop_map(|n| Message::Done(if n == 0 { Ok(()) } else { Err(Errno(n)) })),
            (0u32..=256 * 1024).prop_map(Message::Data),
            (0u32..=256 * 1024, 0u8..=26).prop_map(|(length, log2)| Message::Fetched(length, log2)),
            (0u32..=10_000_000).prop_map(Message::Busy),
            any::<u64>().prop_map(Message::Elsewhere),
        ]
    }

    proptest! {
        #[test]
        fn a_header_round_trips(id: u64, message in message()) {
            let header = Header { id, message };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        /// Arbitrary bytes are refused, or decode to a header within its bounds that encodes to the
        /// same bytes.
        #[test]
        fn arbitrary_bytes_never_panic(
            id: u64,
            message in message(),
            changes in proptest::collection::vec((0..HEADER_BYTES, any::<u8>()), 0..4),
        ) {
            let mut bytes = Header { id, message }.encode();
            for (at, to) in changes {
                bytes[at] = to;
            }
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
                match header.message {
                    Message::Store(range) | Message::Fetch(range) => {
                        prop_assert!(range.length > 0 && !range.inode.is_none());
                        prop_assert!(range.length as usize <= BOUNCE_BUFFER_BYTES);
                        prop_assert!(range.end() <= FILE_BYTES_MAX);
                    }
                    Message::Data(length) | Message::Fetched(length, _) => {
                        prop_assert!(length as usize <= BOUNCE_BUFFER_BYTES);
                    }
                    Message::Done(_) | Message::Busy(_) | Message::Elsewhere(_) => {}
                }
            }
        }
    }
}
