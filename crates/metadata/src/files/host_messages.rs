//! Messages of a service to the first daemon of another host about a file that is open there, and
//! the answers (`size_coherence` has the protocol).
//!
//! Encoded: one byte of number, then the fields in order. Numbers never change their meaning.

use wire::codec::Field;
use wire::{Inode, Malformed, Reader, ShardIndex};

use crate::core::coding::Put;
use crate::core::peer_messages::Message;

/// Message of the service of `from`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostMessage {
    /// Query for the unreported size of a file. Answered by `glimpsed`.
    Glimpse {
        /// Receiver of the answer.
        from: ShardIndex,
        /// Identifies it in the answer.
        token: u64,
        /// The file.
        inode: Inode,
    },
    /// The shard knows the reported size `end`.
    SizeReported {
        /// The file.
        inode: Inode,
        /// The size that was unreported.
        end: u64,
    },
    /// The file is about to be truncated. Answered by `begun`.
    BeginTruncate {
        /// Receiver of the answer.
        from: ShardIndex,
        /// Identifies it in the answer.
        token: u64,
        /// The file.
        inode: Inode,
        /// Its new size in bytes.
        size: u64,
    },
    /// The file has been truncated. Answered by `ended`.
    EndTruncate {
        /// Receiver of the answer.
        from: ShardIndex,
        /// Identifies it in the answer.
        token: u64,
        /// The file.
        inode: Inode,
        /// Its new size in bytes.
        size: u64,
    },
}

impl HostMessage {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match *self {
            HostMessage::Glimpse { from, token, inode } => put(&mut to, 1, from, &[token, inode.0]),
            HostMessage::SizeReported { inode, end } => {
                put(&mut to, 2, ShardIndex(0), &[inode.0, end])
            }
            HostMessage::BeginTruncate { from, token, inode, size } => {
                put(&mut to, 3, from, &[token, inode.0, size]);
            }
            HostMessage::EndTruncate { from, token, inode, size } => {
                put(&mut to, 4, from, &[token, inode.0, size]);
            }
        }
        to
    }

    /// Reads a message.
    ///
    /// # Errors
    /// `Malformed` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<HostMessage, Malformed> {
        let mut reader = Reader::new(bytes);
        let (kind, from) = (reader.u8()?, ShardIndex(reader.u16()?));
        let mut next = || u64::take(&mut reader);
        Ok(match kind {
            1 => HostMessage::Glimpse { from, token: next()?, inode: Inode(next()?) },
            2 => HostMessage::SizeReported { inode: Inode(next()?), end: next()? },
            3 => {
                let (token, inode, size) = (next()?, Inode(next()?), next()?);
                HostMessage::BeginTruncate { from, token, inode, size }
            }
            4 => {
                let (token, inode, size) = (next()?, Inode(next()?), next()?);
                HostMessage::EndTruncate { from, token, inode, size }
            }
            _ => return Err(Malformed),
        })
    }

    /// The answer of `host` to a `Glimpse`: the unreported size; 0: nothing.
    #[must_use]
    pub fn glimpsed(host: u16, token: u64, inode: Inode, end: u64) -> Vec<u8> {
        encoded(&Message::Glimpsed { host, token, inode, end })
    }

    /// The answer of `host` to a `BeginTruncate`.
    #[must_use]
    pub fn truncate_begun(host: u16, token: u64, inode: Inode) -> Vec<u8> {
        encoded(&Message::TruncateBegun { host, token, inode })
    }

    /// The answer of `host` to an `EndTruncate`.
    #[must_use]
    pub fn truncate_ended(host: u16, token: u64, inode: Inode) -> Vec<u8> {
        encoded(&Message::TruncateEnded { host, token, inode })
    }

    /// A report of `host`, the first of its `daemons`, to a service: the bytes that its processes moved
    /// in `millis`, and the nanoseconds that they were in transfers, by file. `number` is larger than in
    /// reports before.
    #[must_use]
    pub fn transfers(
        (host, daemons): (u16, u16),
        number: u64,
        millis: u32,
        all: &[(Inode, u64, u64)],
    ) -> Vec<u8> {
        let words = all.iter().flat_map(|&(inode, bytes, nanos)| [inode.0, bytes, nanos]);
        let entries: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        encoded(&Message::Transfers { host, daemons, number, millis, entries: &entries })
    }
}

fn put(to: &mut Vec<u8>, kind: u8, from: ShardIndex, words: &[u64]) {
    kind.append_to(to);
    from.0.append_to(to);
    words.iter().for_each(|word| word.append_to(to));
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Messages survive encoding.
        #[test]
        fn messages_survive_encoding(shard: u16, n: [u64; 3]) {
            let [token, inode, size] = n;
            let (from, inode) = (ShardIndex(shard), Inode(inode));
            let all = [
                HostMessage::Glimpse { from, token, inode },
                HostMessage::SizeReported { inode, end: size },
                HostMessage::BeginTruncate { from, token, inode, size },
                HostMessage::EndTruncate { from, token, inode, size },
            ];
            for word in all {
                prop_assert_eq!(HostMessage::decode(&word.encode()), Ok(word));
            }
        }

        /// Any bytes are read without a panic.
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let _ = HostMessage::decode(&bytes);
        }
    }
}
