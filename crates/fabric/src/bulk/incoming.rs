//! Visits on a stream that a peer dialled. Those of one MiB of a file are processed one after the
//! other.

use super::pipe::{Pipe, Stop};
use super::record::Record;
use crate::endpoint::{Grant, Peer};
use net::bulk::header::{Header, Message, Range};
use net::bulk::{BulkHandler, Kind};
use net::handshake::PeerIdentity;
use std::collections::{BTreeMap, VecDeque};
use wire::hash::mix;

/// log2 of the range of a file within which transfers keep their order: 1 MiB, as on TCP.
const ORDER_LOG2: u32 = 20;

/// The peer, as it introduced itself in its greeting.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) peer: Peer,
    pub(crate) window: Grant,
}

/// State of a visit. Only the first of its order is beyond `New`.
pub(crate) enum State<M> {
    New,
    /// The daemon has not answered yet.
    Admitting,
    /// It has memory, and waits for a slot.
    Starved(M),
    /// Its bytes are in flight. For a fetch they are in the slot already.
    Moving(Option<M>),
}

pub(crate) struct Job<M> {
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) range: Range,
    pub(crate) place: u64,
    pub(crate) state: State<M>,
}

pub(crate) struct Incoming<E: BulkHandler> {
    pub(crate) from: PeerIdentity,
    pub(crate) pipe: Pipe,
    /// `None` until it has greeted.
    pub(crate) origin: Option<Origin>,
    pub(crate) orders: BTreeMap<u64, VecDeque<Job<E::Memory>>>,
    /// An access failed: none is begun any more, or a later one could take place before the one
    /// that failed, which goes another way.
    pub(crate) failed: bool,
}

impl<E: BulkHandler> Incoming<E> {
    pub(crate) const fn new(from: PeerIdentity, pipe: Pipe) -> Incoming<E> {
        Incoming { from, pipe, origin: None, orders: BTreeMap::new(), failed: false }
    }

    /// Takes a record: returns its order, and whether it is the first of that.
    pub(crate) fn take(&mut self, record: &Record, most: usize) -> Result<(u64, bool), Stop> {
        let (kind, range) = match record.header.message {
            Message::Store(range) => (Kind::Store, range),
            Message::Fetch(range) => (Kind::Fetch, range),
            _ => return Err(Stop::Odd("an answer where a transfer belongs")),
        };
        if self.orders.values().map(VecDeque::len).sum::<usize>() >= most {
            return Err(Stop::Odd("more transfers than its window has slots"));
        }
        let order = mix(range.inode.0, range.offset >> ORDER_LOG2);
        let (id, place) = (record.header.id, record.place);
        let queue = self.orders.entry(order).or_default();
        queue.push_back(Job { id, kind, range, place, state: State::New });
        Ok((order, queue.len() == 1))
    }

    /// The first visit of an order.
    pub(crate) fn first(&mut self, order: u64) -> Option<&mut Job<E::Memory>> {
        self.orders.get_mut(&order)?.front_mut()
    }

    /// Answers the first visit of an order, which has ended. True if another is first now.
    pub(crate) fn end(&mut self, order: u64, message: Message, place: u64) -> bool {
        let Some(queue) = self.orders.get_mut(&order) else { return false };
        if let Some(job) = queue.pop_front() {
            let record = Record { header: Header { id: job.id, message }, place };
            self.pipe.push(&record.encode());
        }
        let more = !queue.is_empty();
        if !more {
            self.orders.remove(&order);
        }
        more
    }
}
