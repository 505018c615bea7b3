//! A service's log is shipped to its followers (O6): what the owner appends, they append.
//!
//! ```text
//!  owner:    append --> filling --seal--> lanes, one for each follower --> Parcel(n) ..
//!  follower: Parcel(n) --> stored --> Receipt(n)
//! ```
//!
//! Two buffers take turns as in the paper: records go to the one that fills while the other is on
//! its way (`Owner::seal` swaps them). A lane numbers its parcels from 1. The first asks which records
//! the follower has (`Position`). If the owner still keeps all later ones it sends those: the *delta*.
//! Else it sends a snapshot of the service, in slices, between which the records of the same time are
//! sent. Records hold absolute states, so the mixture is the state at its end.
//!
//! Invariants
//! 1. A follower stores the parcels of a lane in their order, each once. A parcel of an older epoch
//!    or of an older lane is refused.
//! 2. The owner acknowledges an operation as replicated when every follower that is in sync, or
//!    that was proposed to be, has sent the receipt for its record.
//! 3. A lane keeps a bounded number of bytes for repetition; a follower that is too slow begins anew.
//!    So does one whose delta the owner keeps no longer.
//! 4. A delta goes only to a copy that has no record which its owner's log has not: one of the same
//!    epoch, or exactly the copy with which the owner began.

pub mod follower;
pub mod owner;

use crate::change::Tenure;
use encoding::{Decode, Encode};
use wire::codec::{Malformed, Reader};

/// A lane: the stream of parcels from an owner to one follower. A later lane of the same epoch has a
/// larger number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lane {
    /// The service, and the owner's epoch.
    pub of: Tenure,
    /// Counts the lanes of the owner.
    pub number: u64,
}

/// The records that a copy of a service has: all that the owner of an epoch had, up to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The epoch.
    pub epoch: u64,
    /// Records of the owner of that epoch.
    pub records: u64,
    /// Whether it has nothing beyond. A process that was killed may have stored more than it knew.
    pub is_exact: bool,
}

/// Contents of a parcel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents<'a> {
    /// Asks for the position of the follower's copy. The first parcel of a lane.
    Ask,
    /// A snapshot begins: the follower begins another copy.
    Snapshot,
    /// Log records, each with its length.
    Records(&'a [u8]),
    /// Log records that are a slice of a snapshot, each with its length.
    Slice(&'a [u8]),
    /// The snapshot is complete: this copy replaces the older one.
    Complete,
}

/// A message of an owner to a follower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parcel<'a> {
    /// The lane.
    pub lane: Lane,
    /// Number in the lane, from 1.
    pub number: u64,
    /// The first parcel of the lane without a receipt: the follower has those before it, or lost them.
    pub first: u64,
    /// Records of this owner up to the end of this parcel.
    pub records: u64,
    /// Its contents.
    pub contents: Contents<'a>,
}

/// A message of a follower to the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// The lane.
    pub lane: Lane,
    /// All parcels up to this one are stored. `None`: the lane is not known here, begin anew.
    pub stored: Option<u64>,
    /// The position of the follower's copy, if it is known.
    pub position: Option<Position>,
}

/// Appends a record to a batch.
pub fn put_record(batch: &mut Vec<u8>, record: &[u8]) {
    record.encode(batch);
}

/// The records of a batch, as far as they are whole.
pub fn records(batch: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut reader = Reader::new(batch);
    core::iter::from_fn(move || reader.bytes().ok())
}

/// Whether a batch is whole records and nothing else.
fn is_batch(batch: &[u8]) -> bool {
    let mut reader = Reader::new(batch);
    while !reader.rest().is_empty() {
        if reader.bytes().is_err() {
            return false;
        }
    }
    true
}

impl Encode for Lane {
    fn encode(&self, to: &mut Vec<u8>) {
        self.of.encode(to);
        self.number.encode(to);
    }
}

impl Decode for Lane {
    fn decode(from: &mut Reader<'_>) -> Result<Lane, Malformed> {
        Ok(Lane { of: Tenure::decode(from)?, number: from.u64()? })
    }
}

impl Encode for Parcel<'_> {
    fn encode(&self, to: &mut Vec<u8>) {
        self.lane.encode(to);
        self.number.encode(to);
        self.first.encode(to);
        self.records.encode(to);
        let (kind, bytes) = match self.contents {
            Contents::Records(bytes) => (0_u8, bytes),
            Contents::Slice(bytes) => (1, bytes),
            Contents::Complete => (2, &[][..]),
            Contents::Ask => (3, &[][..]),
            Contents::Snapshot => (4, &[][..]),
        };
        kind.encode(to);
        bytes.encode(to);
    }
}

impl<'a> Parcel<'a> {
    /// Parses an encoded parcel.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Parcel<'a>, Malformed> {
        let mut from = Reader::new(bytes);
        let (lane, number, first) = (Lane::decode(&mut from)?, from.u64()?, from.u64()?);
        let (records, kind, bytes) = (from.u64()?, from.u8()?, from.bytes()?);
        from.end()?;
        let contents = match kind {
            0 if is_batch(bytes) => Contents::Records(bytes),
            1 if is_batch(bytes) => Contents::Slice(bytes),
            2 if bytes.is_empty() => Contents::Complete,
            3 if bytes.is_empty() => Contents::Ask,
            4 if bytes.is_empty() => Contents::Snapshot,
            _ => return Err(Malformed),
        };
        Ok(Parcel { lane, number, first, records, contents })
    }
}

impl Encode for Receipt {
    fn encode(&self, to: &mut Vec<u8>) {
        self.lane.encode(to);
        self.stored.map_or(u64::MAX, |number| number).encode(to);
        let kind = self.position.map_or(0_u8, |it| 1 + u8::from(it.is_exact));
        kind.encode(to);
        if let Some(position) = self.position {
            position.epoch.encode(to);
            position.records.encode(to);
        }
    }
}

impl Decode for Receipt {
    fn decode(from: &mut Reader<'_>) -> Result<Receipt, Malformed> {
        let lane = Lane::decode(from)?;
        let stored = Some(from.u64()?).filter(|&number| number != u64::MAX);
        let kind = from.u8()?;
        let position = match kind {
            0 => None,
            1 | 2 => {
                let (epoch, records) = (from.u64()?, from.u64()?);
                Some(Position { epoch, records, is_exact: kind == 2 })
            }
            _ => return Err(Malformed),
        };
        Ok(Receipt { lane, stored, position })
    }
}
