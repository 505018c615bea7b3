//! The way from workers to the thread of the membership: records of their services, in two buffers of
//! which one fills while the other is shipped, and between them marks of what waits for followers.
//!
//! ```text
//!  worker: append, wait, slice --> parts of its shipment --take--> members::engine, in their order
//! ```
//!
//! Invariants
//! 1. Parts arrive in the order in which they were put: a slice of a snapshot after the records that it
//!    contains, a mark after the records for which somebody waits.
//! 2. A shipment has a bounded number of bytes. From `BEHIND_BYTES` on a worker begins no request; what
//!    steps that nobody asked for add beyond `BYTES_MAX` is left out, and followers begin anew.
//!    Nobody waits for the thread here: the thread of `net`, which brings receipts, runs workers too.
//! 3. Before the node runs, and after it has ended, nothing is put: a node that begins has its followers
//!    begin anew.
//! 4. Where services move, one that has not begun in this epoch has no shipment: nothing is taken until
//!    it has, and it begins with an empty one.

use cluster::shipping::owner::LANE_BYTES_MAX;
use cluster::shipping::{Lane, put_record};
use config::choice::MetadataSync;
use metadata::SnapshotCursor;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that a buffer of records has before the next one begins: as a parcel of the core.
const PART_BYTES: usize = 256 << 10;
/// From this many bytes on requests are told to come again: a second of 80,000 operations.
const BEHIND_BYTES: usize = 16 << 20;
/// More is not kept: as much as the core keeps for a follower. Between the two are the steps that go on
/// by themselves.
const BYTES_MAX: usize = LANE_BYTES_MAX;
const _: () = assert!(BEHIND_BYTES < BYTES_MAX);
/// Buffers that are kept for the next records.
const SPARE_COUNT_MAX: usize = 2;

/// A part of a shipment.
#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    /// Records, as `cluster::shipping::records` reads them.
    Records(Vec<u8>),
    /// Records after those before are missing, until the end of this shipment.
    Lost,
    /// Something waits until the records before are replicated. Tickets of a worker grow.
    Wait(u64),
    /// A slice of a snapshot for a follower.
    Slice {
        /// Of the follower.
        lane: Lane,
        /// Its records.
        batch: Vec<u8>,
        /// Where the next slice begins; `None`: this is the last.
        next: Option<SnapshotCursor>,
    },
}

#[derive(Default)]
struct Shipment {
    parts: Vec<Part>,
    spare: Vec<Vec<u8>>,
    /// `Part::Lost` is among the parts.
    is_full: bool,
}

#[derive(Default)]
struct OfWorker {
    shipment: Mutex<Shipment>,
    bytes: AtomicUsize,
}

const WAITS: u8 = 0;
const RUNS: u8 = 1;
const ENDED: u8 = 2;

/// See the module.
pub(crate) struct Shipments {
    sync: MetadataSync,
    /// Services go on at followers.
    services_move: bool,
    state: AtomicU8,
    of_workers: Vec<OfWorker>,
}

impl Shipments {
    /// For so many numbers of services (`owners::Numbers`): those of workers, and those of services that
    /// may be taken over.
    pub(super) fn new(sync: MetadataSync, numbers: usize) -> Shipments {
        let of_workers = (0..numbers).map(|_| OfWorker::default()).collect();
        Shipments { sync, services_move: false, state: AtomicU8::new(WAITS), of_workers }
    }

    /// The same in an instance whose services go on at followers.
    pub(super) const fn with_services_that_move(mut self) -> Shipments {
        self.services_move = true;
        self
    }

    /// True: a change is at the followers before the operation returns.
    pub(crate) fn is_always(&self) -> bool {
        self.sync == MetadataSync::Always
    }

    /// True: a change is at the followers before another host sees it, which outlives this one.
    pub(crate) fn is_ahead_of_other_hosts(&self) -> bool {
        self.services_move || self.is_always()
    }

    /// True: this daemon takes part in the membership no more, so nothing is replicated.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.load(Acquire) == ENDED
    }

    /// True if a worker begins no request now.
    pub(crate) fn is_behind(&self, worker: usize) -> bool {
        self.of_workers.get(worker).is_some_and(|it| it.bytes.load(Relaxed) > BEHIND_BYTES)
    }

    /// A worker's service has logged a record.
    pub(crate) fn append(&self, worker: usize, record: &[u8]) {
        self.put(worker, record.len(), |shipment| {
            let is_open = |part: &Part| matches!(part, Part::Records(it) if it.len() < PART_BYTES);
            if !shipment.parts.last().is_some_and(is_open) {
                let buffer = shipment.spare.pop().unwrap_or_default();
                shipment.parts.push(Part::Records(buffer));
            }
            if let Some(Part::Records(buffer)) = shipment.parts.last_mut() {
                put_record(buffer, record);
            }
        });
    }

    /// Something waits for the records so far. The caller wakes the thread: `Members::wake`.
    pub(crate) fn wait(&self, worker: usize, ticket: u64) {
        if let Some(of_worker) = self.of_workers.get(worker) {
            lock(&of_worker.shipment).parts.push(Part::Wait(ticket));
        }
    }

    /// A slice of a snapshot, as `Part::Slice`.
    pub(crate) fn slice(
        &self,
        worker: usize,
        lane: Lane,
        batch: Vec<u8>,
        next: Option<SnapshotCursor>,
    ) {
        let bytes = batch.len();
        self.put(worker, bytes, |it| it.parts.push(Part::Slice { lane, batch, next }));
    }

    fn put(&self, worker: usize, bytes: usize, put: impl FnOnce(&mut Shipment)) {
        let Some(of_worker) = self.of_workers.get(worker) else { return };
        if self.state.load(Acquire) != RUNS {
            return;
        }
        let mut shipment = lock(&of_worker.shipment);
        if shipment.is_full {
            return;
        }
        if of_worker.bytes.load(Relaxed) > BYTES_MAX {
            shipment.is_full = true;
            shipment.parts.push(Part::Lost);
            return;
        }
        of_worker.bytes.fetch_add(bytes, Relaxed);
        put(&mut shipment);
    }

    /// Takes the shipment of a worker; `emptied` is an empty list whose memory is used again.
    pub(super) fn take(&self, worker: usize, emptied: &mut Vec<Part>) {
        let Some(of_worker) = self.of_workers.get(worker) else { return };
        let mut shipment = lock(&of_worker.shipment);
        std::mem::swap(&mut shipment.parts, emptied);
        shipment.is_full = false;
        of_worker.bytes.store(0, Relaxed);
    }

    /// Gives the buffer of taken records back.
    pub(super) fn recycle(&self, worker: usize, mut buffer: Vec<u8>) {
        let Some(of_worker) = self.of_workers.get(worker) else { return };
        let mut shipment = lock(&of_worker.shipment);
        if shipment.spare.len() < SPARE_COUNT_MAX && buffer.capacity() <= 2 * PART_BYTES {
            buffer.clear();
            shipment.spare.push(buffer);
        }
    }

    /// A service is about to begin: what it shipped in the time of an earlier owner is not in its log.
    pub(crate) fn forget(&self, worker: usize) {
        let Some(of_worker) = self.of_workers.get(worker) else { return };
        let mut shipment = lock(&of_worker.shipment);
        shipment.parts.clear();
        shipment.is_full = false;
        of_worker.bytes.store(0, Relaxed);
    }

    /// Bytes that were put and not taken.
    pub(super) fn bytes_waiting(&self, worker: usize) -> usize {
        self.of_workers.get(worker).map_or(0, |it| it.bytes.load(Relaxed))
    }

    /// The node runs.
    pub(super) fn begin(&self) {
        self.state.store(RUNS, Release);
    }

    /// The node has ended: nothing is put any more.
    pub(super) fn end(&self) {
        self.state.store(ENDED, Release);
    }
}

fn lock(shipment: &Mutex<Shipment>) -> MutexGuard<'_, Shipment> {
    shipment.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::change::Tenure;
    use cluster::membership::ServiceIndex;
    use cluster::shipping::records;

    fn running() -> Shipments {
        let shipments = Shipments::new(MetadataSync::Batch, 2);
        shipments.begin();
        shipments
    }

    fn taken(shipments: &Shipments, worker: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        shipments.take(worker, &mut parts);
        parts
    }

    #[test]
    fn parts_keep_their_order_and_buffers_are_used_again() {
        let shipments = running();
        let lane = Lane { of: Tenure { service: ServiceIndex(3), epoch: 1 }, number: 2 };
        for _ in 0..3 {
            shipments.append(1, b"one");
            shipments.append(1, b"two");
            shipments.wait(1, 7);
            shipments.slice(1, lane, vec![9], None);
            shipments.append(1, b"three");
            let mut parts = taken(&shipments, 1).into_iter();
            let Some(Part::Records(first)) = parts.next() else { panic!("records first") };
            assert_eq!(records(&first).collect::<Vec<_>>(), [&b"one"[..], b"two"]);
            assert_eq!(parts.next(), Some(Part::Wait(7)));
            assert_eq!(parts.next(), Some(Part::Slice { lane, batch: vec![9], next: None }));
            let Some(Part::Records(last)) = parts.next() else { panic!("records last") };
            assert_eq!(records(&last).collect::<Vec<_>>(), [&b"three"[..]]);
            shipments.recycle(1, first);
            shipments.recycle(1, last);
            assert_eq!((taken(&shipments, 0), parts.next()), (Vec::new(), None));
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_said() {
        let shipments = running();
        let lane = Lane { of: Tenure { service: ServiceIndex(3), epoch: 1 }, number: 2 };
        let record = vec![0; 1 << 20];
        while shipments.bytes_waiting(0) <= BYTES_MAX {
            assert_eq!(shipments.is_behind(0), shipments.bytes_waiting(0) > BEHIND_BYTES);
            shipments.append(0, &record);
        }
        assert!(shipments.is_behind(0) && !shipments.is_behind(1));
        shipments.append(0, b"too much");
        shipments.wait(0, 8);
        shipments.append(0, b"later");
        shipments.slice(0, lane, vec![9], None);
        let mut parts = taken(&shipments, 0);
        assert_eq!(parts.split_off(parts.len() - 2), [Part::Lost, Part::Wait(8)]);
        let whole = |part: &Part| matches!(part, Part::Records(it) if it.len() > 1 << 20);
        assert!(parts.len() > 60 && parts.iter().all(whole));
        assert!(!shipments.is_behind(0));
        shipments.append(0, b"next");
        let parts = taken(&shipments, 0);
        let [Part::Records(all)] = parts.as_slice() else { panic!("one part: {parts:?}") };
        assert_eq!(records(all).collect::<Vec<_>>(), [&b"next"[..]]);
    }

    #[test]
    fn a_service_that_begins_ships_nothing_of_the_time_before() {
        let shipments = running();
        let record = vec![0; 1 << 20];
        while !shipments.is_behind(1) {
            shipments.append(1, &record);
        }
        shipments.wait(1, 3);
        shipments.append(0, b"another's");
        shipments.forget(1);
        assert!(!shipments.is_behind(1) && shipments.bytes_waiting(1) == 0);
        assert_eq!(taken(&shipments, 1), Vec::new());
        shipments.append(1, b"new");
        let parts = taken(&shipments, 1);
        let [Part::Records(all)] = parts.as_slice() else { panic!("one part: {parts:?}") };
        assert_eq!(records(all).collect::<Vec<_>>(), [&b"new"[..]]);
        assert_eq!(taken(&shipments, 0).len(), 1);
    }

    #[test]
    fn without_a_node_nothing_is_kept() {
        let shipments = Shipments::new(MetadataSync::Batch, 1);
        shipments.append(0, b"early");
        assert_eq!(taken(&shipments, 0), Vec::new());
        shipments.begin();
        shipments.append(0, b"now");
        shipments.end();
        shipments.append(0, b"late");
        let parts = taken(&shipments, 0);
        let [Part::Records(all)] = parts.as_slice() else { panic!("one part: {parts:?}") };
        assert_eq!(records(all).collect::<Vec<_>>(), [&b"now"[..]]);
    }
}
