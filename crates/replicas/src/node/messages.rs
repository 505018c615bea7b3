//! Messages between the nodes of two daemons.
//!
//! A primary has a lane to each other copy of its unit. Everything that it orders there has a
//! number from 1; a copy takes orders in their order, each once, and reports the end of each. So a
//! message may be lost, come twice or late, and a lane ends with the epoch of the unit or the time
//! of the copy that it names.

use super::READ_LEASE_NANOS;
use crate::change::CopyId;
use crate::kept::{Begun, Replies, UNDER_WAY_MAX, decode_under_way};
use crate::operation::{ByteRange, Object, Operation, Source, Stamp};
use crate::table::ROWS_MAX;
use encoding::{Decode, Encode, ascend, check, decode_list, encode_list};
use wire::codec::{Malformed, Reader};

/// Objects that are compared at a time: an inventory of them is about 2 KiB.
pub(super) const WINDOW: usize = 64;

/// A message: for `Node::receive` of another daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Primary to copy: begin the lane.
    Open {
        /// The lane.
        lane: CopyId,
    },
    /// Copy to primary: nothing of earlier lanes changes bytes any more.
    Opened {
        /// The lane.
        lane: CopyId,
        /// Operations that the copy does not know to be on all copies.
        under_way: Vec<Begun>,
    },
    /// Primary to copy.
    Order {
        /// The lane.
        lane: CopyId,
        /// Its number in the lane.
        number: u64,
        /// All orders up to this number have ended on all copies.
        settled: u64,
        /// The order.
        order: Order,
    },
    /// Copy to primary: an order has ended.
    Ended {
        /// The lane.
        lane: CopyId,
        /// Number of the order.
        number: u64,
        /// How.
        end: End,
    },
    /// Copy to primary: may the copy be read?
    AskLease {
        /// The lane.
        lane: CopyId,
        /// The copy's time.
        sent: i64,
    },
    /// Primary to copy: it may be read.
    Lease {
        /// The lane.
        lane: CopyId,
        /// As in `AskLease`.
        sent: i64,
        /// Nanoseconds since then.
        length: i64,
        /// As in `Order`.
        settled: u64,
    },
    /// Copy to primary: these bytes of it fail their checksum.
    Repair {
        /// The lane.
        lane: CopyId,
        /// The object.
        object: Object,
        /// The bytes.
        range: ByteRange,
    },
}

/// An order of a primary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// An operation.
    Operation {
        /// The operation.
        operation: Operation,
        /// Where its bytes are.
        source: Source,
        /// An operation that this one takes the place of.
        replaces: Option<Stamp>,
    },
    /// Compare what there is: objects that the copy has and the primary does not are removed.
    Inventory(Inventory),
    /// Of operations from before the lane, only these are still under way.
    UnderWay(Vec<Stamp>),
    /// Requests that ended before.
    Replies(Replies),
    /// The backing store has these objects up to these stamps.
    Clean(Vec<(Object, Stamp)>),
}

/// Some of the primary's objects in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inventory {
    /// The object before the first, if there is one.
    pub after: Option<Object>,
    /// The last one. `None`: there are no others behind.
    pub last: Option<Object>,
    /// Each object in between.
    pub objects: Vec<Listed>,
}

/// An object of an inventory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The object.
    pub object: Object,
    /// Its version, unless something of it is under way.
    pub version: Option<Stamp>,
    /// As in `kept::Entry`.
    pub clean: Stamp,
}

impl Inventory {
    /// Whether an object is in the part of the unit that this compares.
    #[must_use]
    pub fn covers(&self, object: Object) -> bool {
        self.after.is_none_or(|after| object > after) && self.last.is_none_or(|last| object <= last)
    }
}

/// How an order ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The copy has it.
    Done,
    /// The bytes did not come from their source.
    Failed,
    /// They fail their checksum there.
    Corrupt,
    /// The copy has other versions of these objects, or none.
    Differs(Vec<Object>),
}

impl Encode for Message {
    /// number:u8, then the fields in their order
    fn encode(&self, to: &mut Vec<u8>) {
        let (number, lane) = match self {
            Message::Open { lane } => (0, lane),
            Message::Opened { lane, .. } => (1, lane),
            Message::Order { lane, .. } => (2, lane),
            Message::Ended { lane, .. } => (3, lane),
            Message::AskLease { lane, .. } => (4, lane),
            Message::Lease { lane, .. } => (5, lane),
            Message::Repair { lane, .. } => (6, lane),
        };
        to.push(number);
        lane.encode(to);
        match self {
            Message::Open { .. } => {}
            Message::Opened { under_way, .. } => encode_list(under_way, to),
            Message::Order { number, settled, order, .. } => {
                number.encode(to);
                settled.encode(to);
                order.encode(to);
            }
            Message::Ended { number, end, .. } => {
                number.encode(to);
                end.encode(to);
            }
            Message::AskLease { sent, .. } => sent.encode(to),
            Message::Lease { sent, length, settled, .. } => {
                sent.encode(to);
                length.encode(to);
                settled.encode(to);
            }
            Message::Repair { object, range, .. } => {
                object.encode(to);
                range.encode(to);
            }
        }
    }
}

impl Decode for Message {
    fn decode(from: &mut Reader<'_>) -> Result<Message, Malformed> {
        let (number, lane) = (from.u8()?, CopyId::decode(from)?);
        Ok(match number {
            0 => Message::Open { lane },
            1 => Message::Opened { lane, under_way: decode_under_way(from)? },
            2 => {
                let (number, settled) = (from.u64()?, from.u64()?);
                // An order has not ended when it is sent.
                check(settled < number)?;
                Message::Order { lane, number, settled, order: Order::decode(from)? }
            }
            3 => Message::Ended { lane, number: from.u64()?, end: End::decode(from)? },
            4 => Message::AskLease { lane, sent: i64::decode(from)? },
            5 => {
                let (sent, length) = (i64::decode(from)?, i64::decode(from)?);
                check((1..=READ_LEASE_NANOS).contains(&length))?;
                Message::Lease { lane, sent, length, settled: from.u64()? }
            }
            6 => {
                let object = Object::decode(from)?;
                Message::Repair { lane, object, range: ByteRange::decode(from)? }
            }
            _ => return Err(Malformed),
        })
    }
}

impl Encode for Order {
    /// 0 operation source, optional stamp; 1 inventory; 2 list of stamps, ascending; 3 replies;
    /// 4 list of objects with stamps, in the order of the objects
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Order::Operation { operation, source, replaces } => {
                to.push(0);
                operation.encode(to);
                source.encode(to);
                replaces.encode(to);
            }
            Order::Inventory(inventory) => {
                to.push(1);
                inventory.encode(to);
            }
            Order::UnderWay(stamps) => {
                to.push(2);
                encode_list(stamps, to);
            }
            Order::Replies(replies) => {
                to.push(3);
                replies.encode(to);
            }
            Order::Clean(marks) => {
                to.push(4);
                encode_list(marks, to);
            }
        }
    }
}

impl Decode for Order {
    fn decode(from: &mut Reader<'_>) -> Result<Order, Malformed> {
        Ok(match from.u8()? {
            0 => {
                let (operation, source) = (Operation::decode(from)?, Source::decode(from)?);
                Order::Operation { operation, source, replaces: Option::decode(from)? }
            }
            1 => Order::Inventory(Inventory::decode(from)?),
            2 => {
                // Those of all copies together.
                let stamps = decode_list(from, ROWS_MAX * UNDER_WAY_MAX)?;
                check(ascend(stamps.iter()))?;
                Order::UnderWay(stamps)
            }
            3 => Order::Replies(Replies::decode(from)?),
            4 => {
                let marks: Vec<(Object, Stamp)> = decode_list(from, WINDOW)?;
                check(ascend(marks.iter().map(|it| it.0)))?;
                Order::Clean(marks)
            }
            _ => return Err(Malformed),
        })
    }
}

impl Encode for Listed {
    /// object, optional version, clean
    fn encode(&self, to: &mut Vec<u8>) {
        self.object.encode(to);
        self.version.encode(to);
        self.clean.encode(to);
    }
}

impl Decode for Listed {
    fn decode(from: &mut Reader<'_>) -> Result<Listed, Malformed> {
        let (object, version) = (Object::decode(from)?, Option::decode(from)?);
        Ok(Listed { object, version, clean: Stamp::decode(from)? })
    }
}

impl Encode for Inventory {
    /// optional object before, is_last:flag, list of objects in their order. `last` is the last one
    /// of the list, or none where `is_last` is set.
    fn encode(&self, to: &mut Vec<u8>) {
        self.after.encode(to);
        self.last.is_none().encode(to);
        encode_list(&self.objects, to);
    }
}

impl Decode for Inventory {
    fn decode(from: &mut Reader<'_>) -> Result<Inventory, Malformed> {
        let (after, is_last) = (Option::decode(from)?, bool::decode(from)?);
        let objects: Vec<Listed> = decode_list(from, WINDOW)?;
        check(ascend(after.into_iter().chain(objects.iter().map(|it| it.object))))?;
        let last = objects.last().map(|it| it.object).filter(|_| !is_last);
        check(is_last || last.is_some())?;
        Ok(Inventory { after, last, objects })
    }
}

impl Encode for End {
    /// 0; 1; 2; 3 list of objects, ascending
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            End::Done => to.push(0),
            End::Failed => to.push(1),
            End::Corrupt => to.push(2),
            End::Differs(objects) => {
                to.push(3);
                encode_list(objects, to);
            }
        }
    }
}

impl Decode for End {
    fn decode(from: &mut Reader<'_>) -> Result<End, Malformed> {
        Ok(match from.u8()? {
            0 => End::Done,
            1 => End::Failed,
            2 => End::Corrupt,
            3 => {
                let objects = decode_list(from, WINDOW)?;
                check(ascend(objects.iter()))?;
                End::Differs(objects)
            }
            _ => return Err(Malformed),
        })
    }
}
