//! Windows: how much a node has under way for one client, and for one peer.
//!
//! A primary begins nothing for which a copy has no place, and answers a client `Busy` that has no
//! place here. A copy starts no more pulls for a peer than the peer's window: orders beyond it, as
//! after the death of a primary, wait for their turn. So whatever a client or a peer sends, the
//! space that it takes has a bound.
//!
//! Units of this daemon share the windows. Those that found no place are served in order, one
//! operation each: else a unit whose operation ends would take the place again before all others.
//!
//! Loads are counted per unit, anew after each input, so an operation that ends in whatever way
//! leaves none behind.

use crate::operation::{ByteRange, Kind, Operation};
use crate::placement::UnitIndex;
use std::collections::BTreeMap;
use wire::DaemonIndex;
use wire::limits::MIB;

/// Bytes of one operation at most, for the sum: no sum of so many operations overflows.
const COUNTED_BYTES_MAX: u64 = 1 << 40;

/// How much may be under way at a time. One operation may be larger than all bytes of a window:
/// it is under way alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Operations.
    pub operations: usize,
    /// Bytes of them.
    pub bytes: u64,
}

impl Window {
    /// The usual window of a client at a node. A process has 64 slots for requests, so one that
    /// spreads its requests over the units of a node is never refused; and 64 MiB keep a link of
    /// 12 GB/s busy for 5 ms, many times the way there and back.
    pub const CLIENT: Window = Window { operations: 64, bytes: 64 * MIB };
    /// The usual window of a peer at a node: eight units with all that a primary has under way, and
    /// four times the bytes of a client.
    pub const PEER: Window = Window { operations: 512, bytes: 256 * MIB };

    /// Whether an operation of so many bytes may begin beside the load.
    #[must_use]
    pub const fn has_place(&self, load: Load, bytes: u64) -> bool {
        let fits = load.bytes == 0 || load.bytes.saturating_add(bytes) <= self.bytes;
        load.operations < self.operations && fits
    }
}

/// A client, or a daemon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Party {
    /// The client of this number: requests and reads that have no answer.
    Client(u64),
    /// A daemon: orders to it that have not ended.
    Peer(DaemonIndex),
}

/// Operations under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Operations.
    pub operations: usize,
    /// Bytes of them that come from elsewhere.
    pub bytes: u64,
}

impl Load {
    pub(super) const fn add(&mut self, bytes: u64) {
        self.operations += 1;
        self.bytes += bytes;
    }

    pub(super) const fn remove(&mut self, bytes: u64) {
        self.operations -= 1;
        self.bytes -= bytes;
    }
}

/// Bytes that an operation has under way.
pub(super) fn bytes_of(operation: &Operation) -> u64 {
    bytes(operation.kind, operation.range)
}

/// As `bytes_of`, of an operation that has not begun.
pub(super) fn bytes(kind: Kind, range: ByteRange) -> u64 {
    if kind.has_bytes() { range.length().min(COUNTED_BYTES_MAX) } else { 0 }
}

/// Loads of the parties, of one unit or of all.
pub(super) type PartyLoads = BTreeMap<Party, Load>;

/// A unit with an operation that found no place.
struct Claim {
    unit: UnitIndex,
    party: Party,
    /// Made in the step that goes on now.
    is_renewed: bool,
}

#[derive(Default)]
pub(super) struct Loads {
    /// In the order in which they are served. One order for all parties, so that two units which
    /// need the same two parties never wait for each other.
    claims: Vec<Claim>,
    totals: PartyLoads,
    units: BTreeMap<UnitIndex, PartyLoads>,
    /// Somebody had no place.
    is_short: bool,
    /// Some load became less since.
    is_freed: bool,
}

impl Loads {
    pub(super) fn all(&self) -> impl Iterator<Item = (Party, Load)> {
        self.totals.iter().map(|(&party, &load)| (party, load))
    }

    /// Whether an operation of so many bytes may begin for the party.
    pub(super) fn has_place(&mut self, party: Party, window: Window, bytes: u64) -> bool {
        let load = self.totals.get(&party).copied().unwrap_or_default();
        let has_place = window.has_place(load, bytes);
        self.is_short |= !has_place;
        has_place
    }

    /// Whether no other unit that needs the party is served before this one.
    pub(super) fn is_next(&self, unit: UnitIndex, party: Party) -> bool {
        let mut before = self.claims.iter().take_while(|claim| claim.unit != unit);
        before.all(|claim| claim.party != party)
    }

    /// An operation of the unit found no place at the party: the unit stays where it is in the order,
    /// or becomes the last.
    pub(super) fn claim(&mut self, unit: UnitIndex, party: Party) {
        self.is_short = true;
        match self.claims.iter_mut().find(|claim| claim.unit == unit) {
            Some(claim) => (claim.party, claim.is_renewed) = (party, true),
            None => self.claims.push(Claim { unit, party, is_renewed: true }),
        }
    }

    /// A unit began something, or waits no more: the next may be served.
    pub(super) fn leave(&mut self, unit: UnitIndex) {
        let before = self.claims.len();
        self.claims.retain(|claim| claim.unit != unit);
        self.is_freed |= self.claims.len() < before && before > 1;
    }

    /// A step of the unit ends: without a claim in it, the unit waits no more.
    pub(super) fn end_step(&mut self, unit: UnitIndex) {
        match self.claims.iter_mut().find(|claim| claim.unit == unit) {
            Some(claim) if claim.is_renewed => claim.is_renewed = false,
            Some(_) => self.leave(unit),
            None => {}
        }
    }

    /// Units that wait for a place, in the order in which they are served.
    pub(super) fn claiming(&self) -> Vec<UnitIndex> {
        self.claims.iter().map(|claim| claim.unit).collect()
    }

    /// An operation of a unit begins for the party.
    pub(super) fn add(&mut self, unit: UnitIndex, party: Party, bytes: u64) {
        self.totals.entry(party).or_default().add(bytes);
        self.units.entry(unit).or_default().entry(party).or_default().add(bytes);
    }

    /// The load of a unit as it is now.
    pub(super) fn set(&mut self, unit: UnitIndex, now: PartyLoads) {
        let before = self.units.remove(&unit).unwrap_or_default();
        for (party, load) in &before {
            let less = now.get(party).is_none_or(|now| now.operations < load.operations);
            self.is_freed |= less && self.is_short;
            if let Some(total) = self.totals.get_mut(party) {
                total.operations -= load.operations;
                total.bytes -= load.bytes;
            }
        }
        for (&party, load) in &now {
            let total = self.totals.entry(party).or_default();
            total.operations += load.operations;
            total.bytes += load.bytes;
        }
        for party in before.keys() {
            if self.totals.get(party).is_some_and(|total| total.operations == 0) {
                self.totals.remove(party);
            }
        }
        if !now.is_empty() {
            self.units.insert(unit, now);
        }
    }

    /// A pull ended.
    pub(super) const fn freed(&mut self) {
        self.is_freed |= self.is_short;
    }

    /// No place was found by a test that is not of a party's load here.
    pub(super) const fn short(&mut self) {
        self.is_short = true;
    }

    /// Whether those that had no place may have one now.
    pub(super) const fn take_freed(&mut self) -> bool {
        let is_freed = self.is_freed;
        if is_freed {
            (self.is_freed, self.is_short) = (false, false);
        }
        is_freed
    }
}
