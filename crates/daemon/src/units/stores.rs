//! Writes of pulled bytes to the own target, which may have to wait for space, or for something that it
//! moves at the moment.
//!
//!   with the target --Busy--> waiting --a moment--> with the target
//!   with the target --no space, and it is no client's--> waiting --a second--> with the target
//!   with the target --Done, Refused--> ended
//!
//! Bytes that fill a copy wait longer for space than those of a client: a fill that fails at once is
//! begun anew at once, with two changes of the membership each time.
//!
//! The error of a refused write is kept for the client whose request it was: its answer is about bytes
//! that were lost on their way, and does not know why. A request that was refused is not tried again: the
//! first time it waited for space already.

use super::object::StripeBytes;
use super::shell::PullJob;
use replicas::operation::RequestId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wire::Reply;
use wire::codec::Reader;
use wire::errno::{Errno, Result};

/// A target that is busy is asked again after this time.
const AGAIN_NANOS: i64 = 2_000_000;
/// A target without space for bytes that fill a copy is asked again after this time,
const FULL_AGAIN_NANOS: i64 = 1_000_000_000;
/// so many times.
const FULL_AGAIN_MAX: u32 = 10;
/// Refused requests that are remembered. Each is under way at this daemon for some seconds.
const REFUSED_MAX: usize = 256;

/// A write for the own target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StoreOrder {
    /// Of the pull; the target's answer is `Event::Stored` with it.
    pub(crate) ticket: u64,
    pub(crate) to: StripeBytes,
    /// As many as `to` has.
    pub(crate) bytes: Arc<[u8]>,
}

/// The target's answer to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreAnswer {
    Done,
    /// To be tried again.
    Busy,
    Refused(Errno),
}

impl StoreAnswer {
    /// From an encoded reply.
    pub(crate) fn of(reply: &[u8]) -> StoreAnswer {
        match Reply::decode(&mut Reader::new(reply)) {
            Ok(Reply::Done {}) => StoreAnswer::Done,
            Ok(Reply::Busy { .. } | Reply::Stale { .. }) => StoreAnswer::Busy,
            Ok(Reply::Refused { errno }) => StoreAnswer::Refused(errno),
            _ => StoreAnswer::Refused(Errno::EIO),
        }
    }
}

struct RunningStore {
    order: StoreOrder,
    request: Option<RequestId>,
    /// When it goes to the target again; `None`: it is there.
    again_at: Option<i64>,
    /// How often it found no space.
    found_full: u32,
}

impl RunningStore {
    /// After which time it goes to the target again.
    fn again_after(&mut self, answer: StoreAnswer) -> Option<i64> {
        let is_full = matches!(answer, StoreAnswer::Refused(Errno::ENOSPC | Errno::EDQUOT));
        match answer {
            StoreAnswer::Busy => Some(AGAIN_NANOS),
            _ if is_full && self.request.is_none() && self.found_full < FULL_AGAIN_MAX => {
                self.found_full += 1;
                Some(FULL_AGAIN_NANOS)
            }
            _ => None,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct RunningStores {
    running: BTreeMap<u64, RunningStore>,
    refused: VecDeque<(RequestId, Errno)>,
}

impl RunningStores {
    /// Begins to store the bytes of a pull.
    ///
    /// # Errors
    /// The error with which the target refused them before, or `EINVAL` for an object that no target has.
    pub(super) fn begin(&mut self, job: &PullJob, bytes: Vec<u8>) -> Result<StoreOrder> {
        let PullJob { ticket, operation, .. } = *job;
        let to = StripeBytes::of(operation.object, operation.range).ok_or(Errno::EINVAL)?;
        let request = operation.requested.map(|requested| requested.id);
        if let Some(errno) = request.and_then(|request| self.refusal(request)) {
            return Err(errno);
        }
        if to.length != bytes.len() as u64 {
            return Err(Errno::EINVAL);
        }
        let order = StoreOrder { ticket, to, bytes: bytes.into() };
        let (again_at, found_full) = (None, 0);
        let running = RunningStore { order: order.clone(), request, again_at, found_full };
        self.running.insert(ticket, running);
        Ok(order)
    }

    /// The target answered. `Some`: it has ended, with the bytes stored or not.
    pub(super) fn answered(&mut self, ticket: u64, stored: StoreAnswer, now: i64) -> Option<bool> {
        if let Some(running) = self.running.get_mut(&ticket)
            && let Some(after) = running.again_after(stored)
        {
            running.again_at = Some(now + after);
            return None;
        }
        let request = self.running.remove(&ticket).and_then(|it| it.request);
        if let (StoreAnswer::Refused(errno), Some(request)) = (stored, request) {
            if self.refused.len() == REFUSED_MAX {
                self.refused.pop_front();
            }
            self.refused.push_back((request, errno));
        }
        Some(stored == StoreAnswer::Done)
    }

    /// Those that go to the target again.
    pub(super) fn due(&mut self, now: i64) -> Vec<StoreOrder> {
        let mut due = Vec::new();
        for running in
            self.running.values_mut().filter(|it| it.again_at.is_some_and(|at| at <= now))
        {
            running.again_at = None;
            due.push(running.order.clone());
        }
        due
    }

    /// The error with which the target refused the bytes of a request lately.
    pub(super) fn refusal(&self, request: RequestId) -> Option<Errno> {
        self.refused.iter().find(|(it, _)| *it == request).map(|(_, errno)| *errno)
    }
}

#[cfg(test)]
mod tests {
    use super::super::object::object_of;
    use super::*;
    use replicas::change::Reign;
    use replicas::operation::{ByteRange, Kind, Operation, Requested, Source, Stamp};
    use replicas::placement::UnitIndex;
    use wire::Inode;

    const ID: RequestId = RequestId { client: 3, sequence: 8 };

    fn job(ticket: u64, requested: Option<RequestId>) -> PullJob {
        let operation = Operation {
            stamp: Stamp { epoch: 1, number: ticket },
            object: object_of(Inode(3), 22, 2),
            range: ByteRange { start: 8, end: 12 },
            kind: Kind::Write,
            requested: requested.map(|id| Requested { id, oldest: 8, is_behind: false }),
        };
        let of = Reign { unit: UnitIndex(2), epoch: 1 };
        PullJob { ticket, of, operation, source: Source::Client(ID) }
    }

    #[test]
    fn a_busy_target_is_asked_again() {
        let mut stores = RunningStores::default();
        let order = stores.begin(&job(7, None), vec![1; 4]).expect("possible");
        let offset = (2 << 22) + 8;
        let to = StripeBytes { inode: Inode(3), stripe_log2: 22, offset, length: 4 };
        assert_eq!(order, StoreOrder { ticket: 7, to, bytes: vec![1; 4].into() });
        assert_eq!(stores.due(i64::MAX), [], "the target has it");
        assert_eq!(stores.answered(7, StoreAnswer::Busy, 100), None);
        assert_eq!(stores.due(100), []);
        assert_eq!(stores.due(100 + AGAIN_NANOS), [order]);
        assert_eq!(stores.due(i64::MAX), [], "the target has it again");
        assert_eq!(stores.answered(7, StoreAnswer::Done, 200), Some(true));
        assert_eq!(stores.due(i64::MAX), []);
    }

    #[test]
    fn bytes_that_fill_a_copy_wait_for_space() {
        let mut stores = RunningStores::default();
        let order = stores.begin(&job(7, None), vec![1; 4]).expect("possible");
        let full = StoreAnswer::Refused(Errno::ENOSPC);
        let mut now = 0;
        for _ in 0..FULL_AGAIN_MAX {
            assert_eq!(stores.answered(7, full, now), None);
            assert_eq!(stores.due(now + FULL_AGAIN_NANOS - 1), []);
            now += FULL_AGAIN_NANOS;
            assert_eq!(stores.due(now), std::slice::from_ref(&order));
        }
        assert_eq!(stores.answered(7, full, now), Some(false), "not for ever");
        // Another error is not waited for.
        stores.begin(&job(8, None), vec![1; 4]).expect("possible");
        assert_eq!(stores.answered(8, StoreAnswer::Refused(Errno::EIO), 0), Some(false));
    }

    #[test]
    fn a_refused_request_is_not_tried_again_and_has_its_error() {
        let mut stores = RunningStores::default();
        stores.begin(&job(7, Some(ID)), vec![1; 4]).expect("possible");
        assert_eq!(stores.refusal(ID), None);
        let refused = StoreAnswer::Refused(Errno::ENOSPC);
        assert_eq!(stores.answered(7, refused, 0), Some(false));
        assert_eq!(stores.refusal(ID), Some(Errno::ENOSPC));
        assert_eq!(stores.begin(&job(8, Some(ID)), vec![1; 4]), Err(Errno::ENOSPC));
        // Others are tried.
        let other = RequestId { sequence: 9, ..ID };
        assert!(stores.begin(&job(9, Some(other)), vec![1; 4]).is_ok());
        assert!(stores.begin(&job(10, None), vec![1; 4]).is_ok());
        // The memory has a bound, and the oldest goes first.
        for sequence in 100..100 + REFUSED_MAX as u64 {
            let request = RequestId { sequence, ..ID };
            stores.begin(&job(sequence, Some(request)), vec![1; 4]).expect("possible");
            assert_eq!(stores.answered(sequence, refused, 0), Some(false));
        }
        assert_eq!((stores.refused.len(), stores.refusal(ID)), (REFUSED_MAX, None));
    }

    #[test]
    fn other_lengths_and_objects_are_refused() {
        let mut stores = RunningStores::default();
        assert_eq!(stores.begin(&job(7, None), vec![1; 5]), Err(Errno::EINVAL));
        let mut wrong = job(7, None);
        wrong.operation.object.stripe = 2;
        assert_eq!(stores.begin(&wrong, vec![1; 4]), Err(Errno::EINVAL));
        assert!(stores.running.is_empty());
    }

    #[test]
    fn replies_are_read() {
        let encoded = |reply: &Reply<'_>| {
            let mut bytes = [0; 64];
            let mut writer = wire::codec::Writer::new(&mut bytes);
            reply.encode(&mut writer);
            let length = writer.finish().expect("space");
            StoreAnswer::of(&bytes[..length])
        };
        assert_eq!(encoded(&Reply::Done {}), StoreAnswer::Done);
        assert_eq!(encoded(&Reply::Busy { retry_micros: 4 }), StoreAnswer::Busy);
        let refused = Reply::Refused { errno: Errno::EDQUOT };
        assert_eq!(encoded(&refused), StoreAnswer::Refused(Errno::EDQUOT));
        assert_eq!(encoded(&Reply::Number { value: 1 }), StoreAnswer::Refused(Errno::EIO));
        assert_eq!(StoreAnswer::of(&[]), StoreAnswer::Refused(Errno::EIO));
    }
}
