//! Clients: each has some operations under way, repeats them until they are answered, and keeps the
//! bytes of a write until all copies have them.

use crate::checks::Floors;
use crate::world::CELL;
use replicas::node::{Read, Request};
use replicas::operation::{ByteRange, Kind, Object, RequestId, Requested};
use replicas::placement::UnitIndex;
use std::collections::BTreeMap;

/// A file of the model: one stripe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub(crate) object: Object,
    pub(crate) unit: UnitIndex,
    /// Version of the table when it was made.
    pub(crate) born: u64,
    pub(crate) is_behind: bool,
}

/// An operation of a client.
pub(crate) struct Op {
    pub(crate) file: File,
    pub(crate) cells: (u64, u64),
    /// `None`: a read.
    pub(crate) kind: Option<Kind>,
    pub(crate) floors: Floors,
    /// The primary alone may answer.
    pub(crate) is_for_primary: bool,
    pub(crate) is_stored: bool,
    pub(crate) began: i64,
    /// When it is asked for again, unless an answer comes.
    pub(crate) again_at: i64,
}

/// One client. When it dies, another one with a new number takes its place.
pub(crate) struct Client {
    pub(crate) number: u64,
    pub(crate) last: u64,
    pub(crate) ops: BTreeMap<u64, Op>,
}

impl Client {
    pub(crate) const fn new(number: u64) -> Client {
        Client { number, last: 0, ops: BTreeMap::new() }
    }

    /// The bytes of a write, by the number that its cells have.
    pub(crate) fn buffer(&self, id: RequestId) -> Option<u64> {
        let op = self.ops.get(&id.sequence).filter(|_| id.client == self.number)?;
        op.kind.map(|_| write_number(id))
    }

    pub(crate) fn request(&self, sequence: u64, ticket: u64, epoch: u64) -> Option<Request> {
        let op = self.ops.get(&sequence)?;
        let kind = op.kind?;
        let mut here = self.ops.iter().filter(|(_, other)| other.file.unit == op.file.unit);
        let oldest = here.next().map_or(sequence, |(&oldest, _)| oldest);
        Some(Request {
            ticket,
            epoch,
            object: op.file.object,
            range: range_of(op, kind),
            kind,
            requested: Requested {
                id: RequestId { client: self.number, sequence },
                oldest,
                is_behind: op.file.is_behind,
            },
            born: op.file.born,
        })
    }

    pub(crate) fn read(&self, sequence: u64, ticket: u64) -> Option<Read> {
        let op = self.ops.get(&sequence)?;
        let range = range_of(op, Kind::Write);
        let client = self.number;
        Some(Read { ticket, client, object: op.file.object, range, born: op.file.born })
    }
}

const fn range_of(op: &Op, kind: Kind) -> ByteRange {
    match kind {
        Kind::Remove => ByteRange::ALL,
        _ => ByteRange { start: op.cells.0 * CELL, end: op.cells.1 * CELL },
    }
}

pub(crate) const fn write_number(id: RequestId) -> u64 {
    id.client << 32 | id.sequence
}
