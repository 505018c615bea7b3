//! The backing directory: what a `metadata::Service` and the `data::Target` ask of it, by threads of
//! their own. The site's file system may take its time, and a worker has none.
//!
//! Reading order: `tree` (what was told of files, and those that are open), `list` (a directory's
//! entries, in parts), `fetch` (bytes of a file into a place of the target), `ask` (the target's side:
//! where a file lies is asked of its shard once). What the tree is made of is the crate `below`'s.
//!
//! What a worker asks for is bounded where it is asked: a directory once whoever looks, and a few pieces.
//! A listing goes no further than `PARTS_AHEAD` parts before its worker.

mod ask;

mod fetch;

mod list;

mod tree;

pub(crate) use ask::Asks;
pub(crate) use fetch::{Fetch, Outcome, Wanted, put};
pub(crate) use list::{Listed, seen};
pub(crate) use tree::{Told, Tree};

use crate::inbox::Note;
use crate::shared::Shared;
use crate::target::Devices;
use list::Gate;
use placement::map::WORKER_OF_TARGET;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use wire::Inode;

/// Parts of listings that wait for a worker.
const PARTS_AHEAD: usize = 4;

/// Something to do.
enum Order {
    /// Read the entries of a directory for a worker.
    List { worker: usize, directory: Inode, place: (Vec<u8>, u64) },
    /// Look for a name for a worker.
    Look { worker: usize, key: u128, place: (Vec<u8>, u64), name: Vec<u8> },
    /// Fetch bytes.
    Fetch(Fetch),
}

/// What is to be done: first what somebody waits for.
#[derive(Default)]
struct Queue {
    orders: Mutex<[VecDeque<Order>; 2]>,
    /// There is one more.
    more: Condvar,
}

impl Queue {
    fn push(&self, order: Order) {
        let is_later = matches!(&order, Order::Fetch(fetch) if fetch.wanted.is_later());
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let [now, later] = &mut *orders;
        if is_later { later } else { now }.push_back(order);
        self.more.notify_one();
    }

    fn pop(&self) -> Order {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(order) = orders.iter_mut().find_map(VecDeque::pop_front) {
                return order;
            }
            orders = self.more.wait(orders).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The way to the threads.
pub(crate) struct Below {
    orders: Arc<Queue>,
    gate: Arc<Gate>,
}

/// The threads' side.
pub(crate) struct Orders {
    orders: Arc<Queue>,
    tree: Tree,
    gate: Arc<Gate>,
}

/// Both sides.
pub(crate) fn below(tree: Tree) -> (Below, Orders) {
    let orders = Arc::new(Queue::default());
    let gate = Arc::new(Gate::new(PARTS_AHEAD));
    let below = Below { orders: Arc::clone(&orders), gate: Arc::clone(&gate) };
    (below, Orders { orders, tree, gate })
}

impl Below {
    /// Has a directory's entries read; they come to the worker by `Note::Listed`.
    fn list(&self, worker: usize, directory: Inode, place: (Vec<u8>, u64)) {
        self.orders.push(Order::List { worker, directory, place });
    }

    /// Has a name looked for; the worker hears by `Note::Looked`.
    fn look(&self, worker: usize, key: u128, place: (Vec<u8>, u64), name: Vec<u8>) {
        self.orders.push(Order::Look { worker, key, place, name });
    }

    /// Has bytes fetched; the target hears by `Note::Fetched`.
    pub(crate) fn fetch(&self, fetch: Fetch) {
        self.orders.push(Order::Fetch(fetch));
    }

    /// Whoever waits for a worker does not any more: it takes nothing.
    pub(crate) fn stop(&self) {
        self.gate.stop();
    }
}

impl Shared {
    /// See `Below::list`. Only where there is a backing directory a service asks.
    pub(crate) fn list_below(&self, worker: usize, directory: Inode, place: (Vec<u8>, u64)) {
        match &self.below {
            Some(below) => below.list(worker, directory, place),
            None => tracing::error!("there is no backing directory"),
        }
    }
}

impl Shared {
    /// See `Below::look`.
    pub(crate) fn look_below(
        &self,
        worker: usize,
        key: u128,
        place: (Vec<u8>, u64),
        name: Vec<u8>,
    ) {
        if let Some(below) = &self.below {
            below.look(worker, key, place, name);
        }
    }
}

impl Orders {
    /// How many threads are to carry them out: as many pieces of one file, or files, are read at once.
    pub(crate) fn width(&self) -> usize {
        self.tree.below.width()
    }

    /// Carries orders out, beside others that do, until the process ends.
    pub(crate) fn run(&self, shared: &Shared, devices: &Devices) -> ! {
        let mut buffer = fetch::buffer();
        loop {
            match self.orders.pop() {
                Order::List { worker, directory, place } => {
                    let place = (&*place.0, place.1);
                    list::list(&*self.tree.below, place, &self.gate, &mut |outcome| {
                        shared.tell(worker, Note::Listed { directory, outcome });
                    });
                }
                Order::Look { worker, key, place, name } => {
                    let outcome = self.tree.below.look(&place.0, place.1, &name);
                    let outcome = outcome.map_err(|error| tree::Fault::from(error).into());
                    shared.tell(worker, Note::Looked { key, outcome: outcome.map(Box::new) });
                }
                Order::Fetch(wanted) => {
                    let (ticket, outcome) =
                        fetch::carry_out(&self.tree, devices, wanted, &mut buffer);
                    shared.tell(WORKER_OF_TARGET, Note::Fetched { ticket, outcome });
                }
            }
        }
    }
}
