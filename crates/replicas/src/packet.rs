//! What daemons send each other about units: a number first, that says what follows.
//!
//!   0 message    from node to node: `Node::receive`
//!   1 notice     from a primary to the daemon that owns a file's name: `DirtyObjects::notice`
//!   2 notice     back, when it is stored: `Node::noticed`
//!
//! Each may be lost, come twice or late. A receiver takes nothing from it that the sender has no right
//! to say: nodes compare the sender with the table. Numbers never change their meaning.

use crate::dirty::Notice;
use crate::kept::REPLIES_BYTES_MAX;
use crate::node::Message;
use encoding::{Decode, Encode};
use wire::codec::{Malformed, Reader};
use wire::limits::FRAME_BYTES_MAX;

// The longest is the memory of requests that a primary hands to a copy.
const _: () = assert!(REPLIES_BYTES_MAX + 1024 <= FRAME_BYTES_MAX);

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packet {
    /// For the node.
    Message(Message),
    /// For the owner of the file's name.
    Notice(Notice),
    /// The owner has stored a notice.
    Noticed(Notice),
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
        }
    }
}

impl Decode for Packet {
    fn decode(from: &mut Reader<'_>) -> Result<Packet, Malformed> {
        Ok(match from.u8()? {
            0 => Packet::Message(Message::decode(from)?),
            1 => Packet::Notice(Notice::decode(from)?),
            2 => Packet::Noticed(Notice::decode(from)?),
            _ => return Err(Malformed),
        })
    }
}
