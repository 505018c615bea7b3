//! The follower's side of one service: it stores what the owner appends, and becomes the owner from it.

use super::{Contents, Lane, Parcel, Receipt};

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
}

impl Standby {
    /// Takes a parcel. `known_epoch` is the epoch of the service in this daemon's membership: an
    /// owner of an earlier one is no longer the owner.
    pub fn receive<'a>(
        &mut self,
        parcel: &Parcel<'a>,
        known_epoch: u64,
        out: &mut Vec<FollowerOutput<'a>>,
    ) {
        if parcel.lane.of.epoch < known_epoch {
            return;
        }
        let is_next = match self.lane {
            Some((lane, stored)) if lane == parcel.lane => {
                if parcel.number <= stored {
                    // The receipt was lost.
                    let receipt = Receipt { lane, stored: Some(stored) };
                    out.push(FollowerOutput::Receipt(receipt));
                    return;
                }
                parcel.number == stored + 1
            }
            Some((lane, _)) if lane > parcel.lane => return,
            _ => {
                let is_first = parcel.number == 1;
                if is_first {
                    out.push(FollowerOutput::Begin);
                } else if parcel.first > 1 {
                    let receipt = Receipt { lane: parcel.lane, stored: None };
                    out.push(FollowerOutput::Receipt(receipt));
                }
                is_first
            }
        };
        // A gap: the owner repeats what lies before.
        if !is_next {
            return;
        }
        out.push(match parcel.contents {
            Contents::Records(batch) => FollowerOutput::Records(batch),
            Contents::Slice(batch) => FollowerOutput::Slice(batch),
            Contents::Complete => FollowerOutput::Complete,
        });
        self.lane = Some((parcel.lane, parcel.number));
        let receipt = Receipt { lane: parcel.lane, stored: Some(parcel.number) };
        out.push(FollowerOutput::Receipt(receipt));
    }
}
