//! Words of a service to the first daemon of another host about a file that is open there, and the
//! answers (`sizes` has the protocol).
//!
//! Encoded: one byte of number, then the fields in order. Numbers never change their meaning.

use wire::codec::Field;
use wire::{Inode, Malformed, Reader, ShardIndex};

use crate::coding::Put;
use crate::peer::Message;

/// What the service of `from` asks or tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostWord {
    /// Up to where was the file written without telling? Answered by `glimpsed`.
    Glimpse {
        /// Where the answer goes.
        from: ShardIndex,
        /// Names it in the answer.
        token: u64,
        /// The file.
        inode: Inode,
    },
    /// The shard knows what was written up to `end`.
    Told {
        /// The file.
        inode: Inode,
        /// What was untold.
        end: u64,
    },
    /// The file is about to be cut. Answered by `begun`.
    BeginCut {
        /// Where the answer goes.
        from: ShardIndex,
        /// Names it in the answer.
        token: u64,
        /// The file.
        inode: Inode,
        /// Its size.
        size: u64,
    },
    /// It is cut. Answered by `ended`.
    EndCut {
        /// Where the answer goes.
        from: ShardIndex,
        /// Names it in the answer.
        token: u64,
        /// The file.
        inode: Inode,
        /// Its size.
        size: u64,
    },
}

impl HostWord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match *self {
            HostWord::Glimpse { from, token, inode } => put(&mut to, 1, from, &[token, inode.0]),
            HostWord::Told { inode, end } => put(&mut to, 2, ShardIndex(0), &[inode.0, end]),
            HostWord::BeginCut { from, token, inode, size } => {
                put(&mut to, 3, from, &[token, inode.0, size]);
            }
            HostWord::EndCut { from, token, inode, size } => {
                put(&mut to, 4, from, &[token, inode.0, size]);
            }
        }
        to
    }

    /// Reads a word.
    ///
    /// # Errors
    /// `Malformed` if the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<HostWord, Malformed> {
        let mut reader = Reader::new(bytes);
        let (kind, from) = (reader.u8()?, ShardIndex(reader.u16()?));
        let mut next = || u64::take(&mut reader);
        Ok(match kind {
            1 => HostWord::Glimpse { from, token: next()?, inode: Inode(next()?) },
            2 => HostWord::Told { inode: Inode(next()?), end: next()? },
            3 => {
                let (token, inode, size) = (next()?, Inode(next()?), next()?);
                HostWord::BeginCut { from, token, inode, size }
            }
            4 => {
                let (token, inode, size) = (next()?, Inode(next()?), next()?);
                HostWord::EndCut { from, token, inode, size }
            }
            _ => return Err(Malformed),
        })
    }

    /// The answer of `host` to a `Glimpse`: the `end` of what was written and not told, 0: nothing.
    #[must_use]
    pub fn glimpsed(host: u16, token: u64, inode: Inode, end: u64) -> Vec<u8> {
        encoded(&Message::Glimpsed { host, token, inode, end })
    }

    /// The answer of `host` to a `BeginCut`.
    #[must_use]
    pub fn begun(host: u16, token: u64, inode: Inode) -> Vec<u8> {
        encoded(&Message::CutBegun { host, token, inode })
    }

    /// The answer of `host` to an `EndCut`.
    #[must_use]
    pub fn ended(host: u16, token: u64, inode: Inode) -> Vec<u8> {
        encoded(&Message::CutEnded { host, token, inode })
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
        /// Words survive encoding.
        #[test]
        fn words_survive_encoding(shard: u16, n: [u64; 3]) {
            let [token, inode, size] = n;
            let (from, inode) = (ShardIndex(shard), Inode(inode));
            let all = [
                HostWord::Glimpse { from, token, inode },
                HostWord::Told { inode, end: size },
                HostWord::BeginCut { from, token, inode, size },
                HostWord::EndCut { from, token, inode, size },
            ];
            for word in all {
                prop_assert_eq!(HostWord::decode(&word.encode()), Ok(word));
            }
        }

        /// Any bytes are read without a panic.
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let _ = HostWord::decode(&bytes);
        }
    }
}
