//! Reads the backing store for a `metadata::Service` and the `data::Target`, on threads of its own,
//! because the site's file system may block for long and a worker must not.
//!
//! Reading order: `tree` (known locations of files, and open files), `list` (entries of a
//! directory, in parts), `fetch` (bytes of a file into an extent of the target), `locations` (the
//! target's side: asks the owning shard once where a file is backed), `below` (bytes that no target has).
//! The tree itself is in the crate `backing`.
//!
//! `shared::order_queue` decides which order comes next: jobs share the store.
//!
//! Each caller bounds what it requests: one directory per client that lists it, and a few extents.
//! A listing is at most `PARTS_AHEAD` parts ahead of its worker.

mod locations;

pub(crate) mod fetch;

pub(crate) mod list;

mod tree;

mod below;

pub(crate) use below::{BelowRead, IfChanged};
pub(crate) use fetch::{Fetch, FetchKind, FetchOutcome, write_extent};
pub(crate) use list::{ListingPart, as_backing_entries};
pub(crate) use locations::{BackingLocations, EndedQuery};
pub(crate) use tree::{FileLocations, Tree};

use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::order_queue::{self, OrderKind, OrderQueue, TakenOrder};
use crate::target::Devices;
use data::FillJob;
use list::ListingGate;
use qos::scheduler::{OptionsError, Work};
use std::sync::Arc;
use std::time::Instant;
use wire::Inode;

/// Maximum number of listing parts that wait for a worker.
const PARTS_AHEAD: usize = 4;

/// A job of the threads.
enum Order {
    /// Reads the entries of a directory for a worker.
    List { worker: usize, directory: Inode, place: (Vec<u8>, u64) },
    /// Probes a name for a worker.
    Probe { worker: usize, key: u128, place: (Vec<u8>, u64), name: Vec<u8> },
    /// Fetches bytes.
    Fetch(Fetch),
    /// Reads bytes that nothing else has.
    Below(BelowRead),
}

impl Order {
    /// Its kind for the queue; `None`: nobody waits for it.
    fn kind(&self) -> Option<OrderKind> {
        let kind = |job: FillJob, work, bytes| {
            Some(OrderKind { user: job.user, job: job.number.into(), work, bytes })
        };
        match self {
            Order::List { .. } | Order::Probe { .. } => kind(FillJob::default(), Work::Metadata, 0),
            Order::Fetch(fetch) if fetch.kind.is_background() => None,
            Order::Fetch(fetch) => {
                let work = if fetch.job.is_urgent() { Work::Urgent } else { Work::Read };
                kind(fetch.job, work, fetch.kind.bytes())
            }
            Order::Below(read) => kind(FillJob::default(), Work::Read, read.length.into()),
        }
    }
}

/// Handle for submitting jobs.
pub(crate) struct Backing {
    orders: Arc<OrderQueue<Order>>,
    gate: Arc<ListingGate>,
}

/// State shared by the threads.
pub(crate) struct BackingReader {
    orders: Arc<OrderQueue<Order>>,
    tree: Tree,
    gate: Arc<ListingGate>,
}

/// Creates both ends.
///
/// # Errors
/// More threads than a scheduler has places for.
pub(crate) fn channel(tree: Tree) -> Result<(Backing, BackingReader), OptionsError> {
    let orders = Arc::new(OrderQueue::new(tree.backing.width())?);
    let gate = Arc::new(ListingGate::new(PARTS_AHEAD));
    let backing = Backing { orders: Arc::clone(&orders), gate: Arc::clone(&gate) };
    Ok((backing, BackingReader { orders, tree, gate }))
}

impl Backing {
    fn push(&self, order: Order) {
        match order.kind() {
            Some(kind) => self.orders.push(kind, order),
            None => self.orders.push_background(order),
        }
    }

    /// Reads the entries of a directory; they arrive at the worker as
    /// `WorkerMessage::ListingPart`.
    pub(crate) fn list(&self, worker: usize, directory: Inode, place: (Vec<u8>, u64)) {
        self.push(Order::List { worker, directory, place });
    }

    /// Probes a name; the worker gets `WorkerMessage::Looked`.
    pub(crate) fn probe(&self, worker: usize, key: u128, place: (Vec<u8>, u64), name: Vec<u8>) {
        self.push(Order::Probe { worker, key, place, name });
    }

    /// Fetches bytes; the target gets `WorkerMessage::Fetched`.
    pub(crate) fn fetch(&self, fetch: Fetch) {
        self.push(Order::Fetch(fetch));
    }

    /// Reads bytes for a client that waits.
    pub(crate) fn read_below(&self, read: BelowRead) {
        self.push(Order::Below(read));
    }

    /// Releases threads that wait for a worker, because workers take no more messages.
    pub(crate) fn stop(&self) {
        self.gate.stop();
    }
}

impl BackingReader {
    /// Number of threads to start: as many extents or files are read in parallel.
    pub(crate) fn thread_count(&self) -> usize {
        order_queue::threads(self.tree.backing.width())
    }

    /// Performs jobs, in parallel with other threads, until the process ends.
    pub(crate) fn run(&self, shared: &Shared, devices: &Devices) -> ! {
        let mut buffer = fetch::copy_buffer();
        loop {
            let TakenOrder { order, place } = self.orders.pop();
            self.carry_out(shared, devices, order, &mut buffer);
            self.orders.complete(&place);
        }
    }

    fn carry_out(&self, shared: &Shared, devices: &Devices, order: Order, buffer: &mut [u8]) {
        let Shared { inboxes, metrics, .. } = shared;
        match order {
            Order::List { worker, directory, place } => {
                let place = (&*place.0, place.1);
                list::list(&*self.tree.backing, place, &self.gate, &mut |outcome| {
                    let part = WorkerMessage::ListingPart { directory, outcome };
                    inboxes.send_to_worker(worker, part);
                });
            }
            Order::Probe { worker, key, place, name } => {
                let outcome = self.tree.backing.look(&place.0, place.1, &name);
                let outcome = outcome.map_err(|error| tree::Fault::from(error).into());
                let looked = WorkerMessage::Looked { key, outcome: outcome.map(Box::new) };
                inboxes.send_to_worker(worker, looked);
            }
            Order::Below(read) => below::perform(shared, (&self.tree, devices), read, buffer),
            Order::Fetch(kind) => {
                let (begun, inode) = (Instant::now(), kind.inode);
                let (ticket, outcome) = fetch::perform(&self.tree, devices, kind, buffer);
                let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                let is_failed =
                    matches!(outcome, FetchOutcome::Filled(Err(_)) | FetchOutcome::Read(Err(_)));
                metrics.note_fetch(inode, micros, is_failed);
                inboxes.send_to_target(WorkerMessage::Fetched { ticket, outcome });
            }
        }
    }
}
