//! Files in units that lost all their copies: what a file had there is lost, unless the file is younger
//! than the loss, or was emptied since.
//!
//! Requests do not say how old their file is, and nobody asks as long as nothing is lost. The daemon
//! whose node calls bytes lost asks the service of the file (`Request::KnownLoss`), once for a file as a
//! rule: a file never becomes older.
//!
//! ```text
//!  node --Answer::Lost--> ask_loss --KnownLoss--> service of the file
//!                                                        |
//!           ask the node again <--it is younger-- loss_known --it is older--> EIO
//! ```

use super::Units;
use super::agent::UnitPlace;
use super::waiting::WaitingAsk;
use super::ways::CopyRequest;
use crate::shared::Shared;
use crate::shared::reply::{LOST_MICROS, ReplyTo};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::codec::Reader;
use wire::errno::Errno;
use wire::{Inode, Reply, Request};

/// Files of which this daemon remembers it. Those that it forgets are asked about again.
const FILES_MAX: usize = 1 << 16;

/// The last loss that each of some files is younger than.
#[derive(Default)]
pub(super) struct FileLosses {
    known: Mutex<BTreeMap<Inode, u64>>,
}

impl FileLosses {
    fn known(&self) -> MutexGuard<'_, BTreeMap<Inode, u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As far as it is known; 0: it may be older than all.
    pub(super) fn before(&self, inode: Inode) -> u64 {
        self.known().get(&inode).copied().unwrap_or(0)
    }

    fn note(&self, inode: Inode, loss: u64) {
        if loss == 0 {
            return;
        }
        let mut known = self.known();
        if known.len() >= FILES_MAX {
            known.clear();
        }
        let before = known.entry(inode).or_default();
        *before = loss.max(*before);
    }
}

/// A request that waits for the answer about its file.
pub(crate) struct LossAsk {
    request: CopyRequest,
    to: ReplyTo,
}

/// What becomes of a request when the service of its file has answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AfterLoss {
    /// The file is younger than this loss: the node is asked again.
    Younger(u64),
    /// The client asks again: the service cannot be reached now.
    Later,
    /// It is an error.
    Lost,
}

/// `lost_at`: when the unit lost its copies.
fn after_answer(answer: &[u8], lost_at: u64) -> AfterLoss {
    match Reply::decode(&mut Reader::new(answer)) {
        Ok(Reply::Number { value }) if value >= lost_at => AfterLoss::Younger(value),
        Ok(Reply::Busy { .. } | Reply::Stale { .. }) => AfterLoss::Later,
        _ => AfterLoss::Lost,
    }
}

impl Units {
    /// The node calls the bytes of a request lost: asks the service of the file how old that is.
    pub(super) fn ask_loss(&self, shared: &Shared, waiting: WaitingAsk) {
        let WaitingAsk { to, request: Some(request) } = waiting else {
            return shared.refuse(waiting.to, Errno::EIO);
        };
        let inode = request.bytes.inode;
        let to = ReplyTo::KnownLoss(Box::new(LossAsk { request, to }));
        shared.ask_shard_of(inode, &Request::KnownLoss { inode }, to);
    }

    /// The service of the file has answered.
    pub(crate) fn loss_known(&self, shared: &Shared, ask: LossAsk, answer: &[u8]) {
        let LossAsk { request, to } = ask;
        let table = self.table();
        let place = UnitPlace::of(&table, request.shape(self.copies), &request.bytes);
        let row = place.ok().and_then(|place| table.unit(place.unit));
        let Some(row) = row else { return shared.refuse(to, Errno::EINVAL) };
        match after_answer(answer, row.lost_at) {
            AfterLoss::Younger(loss) => {
                self.losses.note(request.bytes.inode, loss);
                self.go_on(shared, request, to);
            }
            AfterLoss::Later => shared.busy(to, LOST_MICROS),
            AfterLoss::Lost => {
                let inode = request.bytes.inode.0;
                tracing::debug!(inode, lost_at = row.lost_at, "bytes of a file are lost");
                shared.refuse(to, Errno::EIO);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::reply::encode_reply;

    #[test]
    fn a_file_is_asked_about_and_never_becomes_older() {
        let losses = FileLosses::default();
        let (one, two) = (Inode(1), Inode(2));
        losses.note(one, 5);
        losses.note(one, 3);
        losses.note(two, 0);
        assert_eq!([one, two].map(|inode| losses.before(inode)), [5, 0]);
        assert_eq!(losses.known().len(), 1, "nothing is known of the other");
        for number in 0..FILES_MAX as u64 + 10 {
            losses.note(Inode(10 + number), 7);
        }
        assert!(losses.known().len() <= FILES_MAX);
        assert_eq!(losses.before(Inode(FILES_MAX as u64 + 19)), 7);
    }

    #[test]
    fn only_a_younger_file_goes_on() {
        let after = |reply: Reply<'_>| after_answer(&encode_reply(&reply, 0), 9);
        let number = |value| Reply::Number { value };
        assert_eq!(after(number(9)), AfterLoss::Younger(9));
        assert_eq!(after(number(12)), AfterLoss::Younger(12));
        assert_eq!([8, 0].map(|value| after(number(value))), [AfterLoss::Lost; 2]);
        assert_eq!(after(Reply::Busy { retry_micros: 1 }), AfterLoss::Later);
        assert_eq!(after(Reply::Stale { epoch: 1 }), AfterLoss::Later);
        assert_eq!(after(Reply::Refused { errno: Errno::ESTALE }), AfterLoss::Lost);
        assert_eq!(after_answer(&[], 9), AfterLoss::Lost);
    }
}
