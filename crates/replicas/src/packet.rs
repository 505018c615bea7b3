//! Packets between daemons about units: a number first, that says what follows.
//!
//!   0 message    from node to node: `Node::receive`
//!   1 notice     from a primary to the daemon that owns a file's name: `DirtyObjects::notice`
//!   2 notice     back, when it is stored: `Node::noticed`
//!   3 ask        from a daemon that pulls, to the one that has the bytes
//!   4 given      back: the bytes, or why there are none
//!
//! Each may be lost, come twice or late. A receiver takes nothing from it that the sender has no right
//! to say: nodes compare the sender with the table. Numbers never change their meaning.

use crate::change::Reign;
use crate::dirty::Notice;
use crate::kept::REPLIES_BYTES_MAX;
use crate::node::Message;
use crate::operation::{ByteRange, Object, Source, Stamp};
use encoding::{Decode, Encode, check};
use wire::codec::{Malformed, Reader};
use wire::limits::{BOUNCE_BUFFER_BYTES, FRAME_BYTES_MAX};

/// Bytes that are asked for at once, at most: those of the longest request of a client.
pub const ASK_BYTES_MAX: u64 = BOUNCE_BUFFER_BYTES as u64;

// The longest is the memory of requests that a primary hands to a copy.
const _: () = assert!(REPLIES_BYTES_MAX + 1024 <= FRAME_BYTES_MAX);
const _: () = assert!(ASK_BYTES_MAX + 1024 <= FRAME_BYTES_MAX as u64);

/// The pull of an operation, at the daemon that pulls. By the stamp it knows a late answer to an earlier
/// process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PullId {
    /// As in `Action::Pull`.
    pub ticket: u64,
    /// The unit, and the epoch in which it is pulled.
    pub of: Reign,
    /// Of the operation.
    pub stamp: Stamp,
}

/// A daemon asks for bytes that it pulls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The pull.
    pub id: PullId,
    /// A client of the daemon that is asked, or the copy there: it gives nothing unless
    /// `Node::may_give` says so.
    pub source: Source,
    /// The object.
    pub object: Object,
    /// The bytes: at least one, and `ASK_BYTES_MAX` at most.
    pub range: ByteRange,
}

/// The answer to an ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Given {
    /// The bytes.
    Bytes(Vec<u8>),
    /// There are none: the client's request is answered.
    Failed,
    /// They fail their checksum.
    Corrupt,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packet {
    /// For the node.
    Message(Message),
    /// For the owner of the file's name.
    Notice(Notice),
    /// The owner has stored a notice.
    Noticed(Notice),
    /// For the daemon that has the bytes.
    Ask(Ask),
    /// For the daemon that asked.
    Given(PullId, Given),
}

impl Encode for Packet {
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Packet::Message(message) => {
                to.push(0);
                message.encode(to);
            }
            Packet::Notice(notice) => {
                to.push(1);
                notice.encode(to);
            }
            Packet::Noticed(notice) => {
                to.push(2);
                notice.encode(to);
            }
            Packet::Ask(ask) => {
                to.push(3);
                ask.encode(to);
            }
            Packet::Given(id, given) => {
                to.push(4);
                id.encode(to);
                given.encode(to);
            }
        }
    }
}

impl Decode for Packet {
    fn decode(from: &mut Reader<'_>) -> Result<Packet, Malformed> {
        Ok(match from.u8()? {
            0 => Packet::Message(Message::decode(from)?),
            1 => Packet::Notice(Notice::decode(from)?),
            2 => Packet::Noticed(Notice::decode(from)?),
            3 => Packet::Ask(Ask::decode(from)?),
            4 => {
                let id = PullId::decode(from)?;
                Packet::Given(id, Given::decode(from)?)
            }
            _ => return Err(Malformed),
        })
    }
}

impl Encode for PullId {
    /// ticket:u64 of stamp
    fn encode(&self, to: &mut Vec<u8>) {
        self.ticket.encode(to);
        self.of.encode(to);
        self.stamp.encode(to);
    }
}

impl Decode for PullId {
    fn decode(from: &mut Reader<'_>) -> Result<PullId, Malformed> {
        let (ticket, of) = (from.u64()?, Reign::decode(from)?);
        Ok(PullId { ticket, of, stamp: Stamp::decode(from)? })
    }
}

impl Encode for Ask {
    /// id source object range
    fn encode(&self, to: &mut Vec<u8>) {
        self.id.encode(to);
        self.source.encode(to);
        self.object.encode(to);
        self.range.encode(to);
    }
}

impl Decode for Ask {
    fn decode(from: &mut Reader<'_>) -> Result<Ask, Malformed> {
        let (id, source) = (PullId::decode(from)?, Source::decode(from)?);
        let (object, range) = (Object::decode(from)?, ByteRange::decode(from)?);
        check((1..=ASK_BYTES_MAX).contains(&range.length()))?;
        Ok(Ask { id, source, object, range })
    }
}

impl Encode for Given {
    /// 0 bytes; 1; 2
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Given::Bytes(bytes) => {
                to.push(0);
                bytes.as_slice().encode(to);
            }
            Given::Failed => to.push(1),
            Given::Corrupt => to.push(2),
        }
    }
}

impl Decode for Given {
    fn decode(from: &mut Reader<'_>) -> Result<Given, Malformed> {
        Ok(match from.u8()? {
            0 => {
                let bytes = from.bytes()?;
                check(bytes.len() as u64 <= ASK_BYTES_MAX)?;
                Given::Bytes(bytes.to_vec())
            }
            1 => Given::Failed,
            2 => Given::Corrupt,
            _ => return Err(Malformed),
        })
    }
}
