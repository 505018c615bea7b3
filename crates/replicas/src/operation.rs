//! An operation on the bytes of a unit, and its identity.
//!
//! The primary gives each operation a stamp. Of operations that overlap it lets only one be under
//! way, on all copies, so stamps order them and a copy needs no versions of single bytes.

use encoding::{Decode, Encode, check};
use wire::codec::{Malformed, Reader};
use wire::{DaemonIndex, Inode};

/// A stripe of a file: what belongs to one unit as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Object {
    /// The file.
    pub inode: Inode,
    /// Number of the stripe.
    pub stripe: u64,
}

/// Bytes of an object, from `start` up to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRange {
    /// The first byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
}

impl ByteRange {
    /// All bytes of an object.
    pub const ALL: ByteRange = ByteRange { start: 0, end: u64::MAX };
    /// No byte.
    pub const NONE: ByteRange = ByteRange { start: 0, end: 0 };

    /// Whether both have a byte in common.
    #[must_use]
    pub const fn overlaps(self, other: ByteRange) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Number of bytes.
    #[must_use]
    pub const fn length(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Place of an operation in the order of its unit: the primary's epoch, and a number that it
/// counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Stamp {
    /// Epoch of the unit.
    pub epoch: u64,
    /// Number within the epoch, from 1.
    pub number: u64,
}

/// A client's request. Repeated, it has the same identity, at whatever primary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RequestId {
    /// The client.
    pub client: u64,
    /// Counts the requests of the client.
    pub sequence: u64,
}

/// A request with what the client no longer asks about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requested {
    /// The request.
    pub id: RequestId,
    /// The client has an answer to each of its requests to this unit below this number.
    pub oldest: u64,
    /// Whether the client goes on as soon as the primary has the bytes (`--writes behind`).
    pub is_behind: bool,
}

/// Where the bytes of an operation are read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The client's buffer for this request, which it keeps until the answer.
    Client(RequestId),
    /// The same bytes of the copy at a daemon.
    Copy(DaemonIndex),
}

/// The change that an operation makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Bytes of a client.
    Write,
    /// Zeros: a truncation or a hole.
    Punch,
    /// The object is gone, with all its bytes.
    Remove,
    /// A copy forgets what it has of the object: all of it is sent next.
    Begin,
    /// Bytes as another copy has them.
    Copy,
    /// All of the object was sent.
    Complete {
        /// The copy has it as of this stamp.
        version: Stamp,
        /// As in `kept::Entry`.
        clean: Stamp,
    },
    /// No copy has these bytes with a correct checksum: reading them fails everywhere.
    Spoil,
}

impl Kind {
    /// Whether the bytes come from elsewhere.
    #[must_use]
    pub const fn has_bytes(self) -> bool {
        matches!(self, Kind::Write | Kind::Copy)
    }
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its place in the order, and its identity on all copies.
    pub stamp: Stamp,
    /// The object.
    pub object: Object,
    /// The bytes.
    pub range: ByteRange,
    /// The change that it makes.
    pub kind: Kind,
    /// The client's request, if it is one.
    pub requested: Option<Requested>,
}

impl Operation {
    /// Whether both touch a byte.
    #[must_use]
    pub fn overlaps(&self, object: Object, range: ByteRange) -> bool {
        self.object == object && self.range.overlaps(range)
    }

    /// See `Kind::has_bytes`.
    #[must_use]
    pub const fn has_bytes(&self) -> bool {
        self.kind.has_bytes()
    }

    /// Whether it is a change by a client, not a step of making copies equal.
    #[must_use]
    pub const fn is_change(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::Punch | Kind::Remove)
    }
}

impl Encode for Object {
    /// inode:u64 stripe:u64
    fn encode(&self, to: &mut Vec<u8>) {
        self.inode.0.encode(to);
        self.stripe.encode(to);
    }
}

impl Decode for Object {
    fn decode(from: &mut Reader<'_>) -> Result<Object, Malformed> {
        Ok(Object { inode: Inode(from.u64()?), stripe: from.u64()? })
    }
}

impl Encode for ByteRange {
    /// start:u64 end:u64
    fn encode(&self, to: &mut Vec<u8>) {
        self.start.encode(to);
        self.end.encode(to);
    }
}

impl Decode for ByteRange {
    fn decode(from: &mut Reader<'_>) -> Result<ByteRange, Malformed> {
        let (start, end) = (from.u64()?, from.u64()?);
        check(start <= end)?;
        Ok(ByteRange { start, end })
    }
}

impl Encode for Stamp {
    /// epoch:u64 number:u64
    fn encode(&self, to: &mut Vec<u8>) {
        self.epoch.encode(to);
        self.number.encode(to);
    }
}

impl Decode for Stamp {
    fn decode(from: &mut Reader<'_>) -> Result<Stamp, Malformed> {
        Ok(Stamp { epoch: from.u64()?, number: from.u64()? })
    }
}

impl Encode for RequestId {
    /// client:u64 sequence:u64
    fn encode(&self, to: &mut Vec<u8>) {
        self.client.encode(to);
        self.sequence.encode(to);
    }
}

impl Decode for RequestId {
    fn decode(from: &mut Reader<'_>) -> Result<RequestId, Malformed> {
        Ok(RequestId { client: from.u64()?, sequence: from.u64()? })
    }
}

impl Encode for Requested {
    /// id oldest:u64 is_behind:flag
    fn encode(&self, to: &mut Vec<u8>) {
        self.id.encode(to);
        self.oldest.encode(to);
        self.is_behind.encode(to);
    }
}

impl Decode for Requested {
    fn decode(from: &mut Reader<'_>) -> Result<Requested, Malformed> {
        let (id, oldest) = (RequestId::decode(from)?, from.u64()?);
        // A client that had its answer already would not ask.
        check(oldest <= id.sequence)?;
        Ok(Requested { id, oldest, is_behind: bool::decode(from)? })
    }
}

impl Encode for Source {
    /// 0 request, or 1 daemon:u16
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Source::Client(id) => {
                to.push(0);
                id.encode(to);
            }
            Source::Copy(daemon) => {
                to.push(1);
                daemon.encode(to);
            }
        }
    }
}

impl Decode for Source {
    fn decode(from: &mut Reader<'_>) -> Result<Source, Malformed> {
        match from.u8()? {
            0 => Ok(Source::Client(RequestId::decode(from)?)),
            1 => Ok(Source::Copy(DaemonIndex::decode(from)?)),
            _ => Err(Malformed),
        }
    }
}

impl Encode for Kind {
    /// number:u8, and for `Complete` its stamps
    fn encode(&self, to: &mut Vec<u8>) {
        to.push(match self {
            Kind::Write => 0,
            Kind::Punch => 1,
            Kind::Remove => 2,
            Kind::Begin => 3,
            Kind::Copy => 4,
            Kind::Complete { .. } => 5,
            Kind::Spoil => 6,
        });
        if let Kind::Complete { version, clean } = self {
            version.encode(to);
            clean.encode(to);
        }
    }
}

impl Decode for Kind {
    fn decode(from: &mut Reader<'_>) -> Result<Kind, Malformed> {
        Ok(match from.u8()? {
            0 => Kind::Write,
            1 => Kind::Punch,
            2 => Kind::Remove,
            3 => Kind::Begin,
            4 => Kind::Copy,
            5 => {
                let (version, clean) = (Stamp::decode(from)?, Stamp::decode(from)?);
                Kind::Complete { version, clean }
            }
            6 => Kind::Spoil,
            _ => return Err(Malformed),
        })
    }
}

impl Encode for Operation {
    /// stamp object range kind, optional requested
    fn encode(&self, to: &mut Vec<u8>) {
        self.stamp.encode(to);
        self.object.encode(to);
        self.range.encode(to);
        self.kind.encode(to);
        self.requested.encode(to);
    }
}

impl Decode for Operation {
    fn decode(from: &mut Reader<'_>) -> Result<Operation, Malformed> {
        let (stamp, object) = (Stamp::decode(from)?, Object::decode(from)?);
        let (range, kind) = (ByteRange::decode(from)?, Kind::decode(from)?);
        let requested = Option::decode(from)?;
        let operation = Operation { stamp, object, range, kind, requested };
        let fits = match kind {
            Kind::Remove | Kind::Begin => range == ByteRange::ALL,
            Kind::Complete { .. } => range == ByteRange::NONE,
            _ => true,
        };
        check(fits && (requested.is_none() || operation.is_change()))?;
        Ok(operation)
    }
}
