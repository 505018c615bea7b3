//! Messages between the nodes of two daemons.
//!
//! A primary has a lane to each other copy of its unit. Everything that it orders there has a
//! number from 1; a copy takes orders in their order, each once, and reports the end of each. So a
//! message may be lost, come twice or late, and a lane ends with the epoch of the unit or the time
//! of the copy that it names.

use crate::change::CopyId;
use crate::kept::{Begun, Replies};
use crate::operation::{ByteRange, Object, Operation, Source, Stamp};

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
}

/// Some of the primary's objects in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inventory {
    /// The object before the first, if there is one.
    pub after: Option<Object>,
    /// The last one. `None`: there are no others behind.
    pub last: Option<Object>,
    /// Each object in between, with its version.
    pub versions: Vec<(Object, Option<Stamp>)>,
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
