//! The follower's side of one service: it stores what the owner appends, and becomes the owner from it.

use super::{Contents, Lane, Parcel, Position, Receipt};

/// An action of the daemon; they are done in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FollowerOutput<'a> {
    /// Begins another copy beside the one there is.
    Begin,
    /// Appends records to all copies. They survive a kill of the daemon before the receipt is sent.
    Records(&'a [u8]),
    /// Appends records to the copy that was begun last.
    Slice(&'a [u8]),
    /// The copy that was begun last replaces the other.
    Complete,
    /// Sends the receipt to the owner.
    Receipt(Receipt),
}

/// One service of which this daemon keeps a copy; the default is one of which it has nothing yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standby {
    /// The lane that is received, and the number of its last stored parcel.
    lane: Option<(Lane, u64)>,
    /// The position of the whole copy. None: it is no state of a log, or nothing is known of it.
    position: Option<Position>,
    /// The copy has all records up to the last parcel of the lane.
    is_whole: bool,
}

impl Standby {
    /// A copy that was stored by an earlier process, which knew that it has these records at least.
    #[must_use]
    pub const fn returned(position: Position) -> Standby {
        let position = Some(Position { is_exact: false, ..position });
        Standby { lane: None, position, is_whole: false }
    }

    /// The log of an owner that handed the service over: exactly the records with which the owner of this
    /// epoch begins.
    #[must_use]
    pub const fn of_owner(epoch: u64) -> Standby {
        let position = Some(Position { epoch, records: 0, is_exact: true });
        Standby { lane: None, position, is_whole: true }
    }

    /// The service has another owner, in this epoch, and this follower stays in sync, so it has exactly
    /// the records with which that owner begins. One that an earlier process stored may have others, and
    /// what it has is not known then.
    pub fn stay(&mut self, epoch: u64) {
        let is_of_earlier = self.lane.is_none_or(|(lane, _)| lane.of.epoch < epoch);
        let is_earlier = |it: &Position| it.epoch < epoch && (it.is_exact || self.lane.is_some());
        if is_of_earlier && self.position.as_ref().is_some_and(is_earlier) {
            self.position = Some(Position { epoch, records: 0, is_exact: true });
        }
    }

    /// The position of the copy that the follower would go on from.
    #[must_use]
    pub const fn position(&self) -> Option<Position> {
        self.position
    }

    /// Whether an owner has asked for the position of the copy.
    #[must_use]
    pub const fn has_lane(&self) -> bool {
        self.lane.is_some()
    }

    /// Takes a parcel. `known_epoch` is the epoch of the service in this daemon's membership: an
    /// owner of an earlier one is no longer the owner.
    pub fn receive<'a>(
        &mut self,
        parcel: &Parcel<'a>,
        known_epoch: u64,
        out: &mut Vec<FollowerOutput<'a>>,
    ) {
        let lane = parcel.lane;
        if lane.of.epoch < known_epoch {
            return;
        }
        let receipt =
            |stored, position| FollowerOutput::Receipt(Receipt { lane, stored, position });
        let is_next = match self.lane {
            Some((known, stored)) if known == lane => {
                if parcel.number <= stored {
                    // The receipt was lost.
                    out.push(receipt(Some(stored), self.position));
                    return;
                }
                parcel.number == stored + 1 && parcel.contents != Contents::Ask
            }
            Some((known, _)) if known > lane => return,
            _ => {
                let is_first = parcel.number == 1 && parcel.contents == Contents::Ask;
                if !is_first && parcel.first > 1 {
                    out.push(receipt(None, None));
                }
                is_first
            }
        };
        // A gap: the owner repeats what lies before.
        if !is_next {
            return;
        }
        self.lane = Some((lane, parcel.number));
        self.store(parcel, out);
        out.push(receipt(Some(parcel.number), self.position));
    }

    fn store<'a>(&mut self, parcel: &Parcel<'a>, out: &mut Vec<FollowerOutput<'a>>) {
        let (epoch, records) = (parcel.lane.of.epoch, parcel.records);
        match parcel.contents {
            Contents::Ask => self.is_whole = false,
            Contents::Snapshot => {
                // From here on a copy that is not whole has later records without those before.
                self.position = self.position.filter(|_| self.is_whole);
                out.push(FollowerOutput::Begin);
            }
            Contents::Records(batch) => {
                let is_exact = self.position.is_some_and(|it| it.is_exact);
                let next = Position { epoch, records, is_exact };
                self.position = self.position.map(|_| next);
                // Without a snapshot before they are the delta.
                self.is_whole = self.position.is_some();
                out.push(FollowerOutput::Records(batch));
            }
            Contents::Slice(batch) => out.push(FollowerOutput::Slice(batch)),
            Contents::Complete => {
                self.position = Some(Position { epoch, records, is_exact: true });
                self.is_whole = true;
                out.push(FollowerOutput::Complete);
            }
        }
    }
}
