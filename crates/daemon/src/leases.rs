//! Leases of this host: drives a `metadata::Holder`, whose rows clients read in shared memory.
//!
//! Answers that grant something and words of services come on the thread of `net`; worker 0 keeps the
//! time. Requests of clients for other hosts go through the first daemon of the host, unless that is
//! gone; only it is granted leases.

use crate::shard::send;
use crate::shared::Shared;
use metadata::{Holder, Table, Walked};
use placement::map::WORKER_OF_TARGET;
use shm::doorbell::Doorbells;
use shm::leases::Leases;
use shm::wait::steady_nanos;
use std::sync::{Mutex, PoisonError};
use wire::codec::Reader;
use wire::{Attributes, DaemonIndex, Header, Inode, Reply, Request, ShardIndex};

/// What this daemon holds.
pub(crate) struct Held {
    holder: Mutex<Holder>,
    memory: Leases,
}

/// The memory and the bits in it.
struct Rows<'a> {
    memory: &'a Leases,
    bells: &'a Doorbells,
}

impl Table for Rows<'_> {
    fn extend(&mut self, service: usize, until: i64) {
        self.memory.extend(service, until);
    }
    fn close(&mut self, service: usize) {
        self.memory.close(service);
    }
    fn open(&mut self, service: usize, until: i64) {
        self.memory.begin(service, until);
    }
    fn put(&mut self, key: u128, directory: &Attributes) {
        self.memory.put(key, directory);
    }
    fn remove(&mut self, key: u128, directory: Inode) {
        self.memory.remove(key, directory);
    }
    fn was_used(&mut self, service: usize) -> bool {
        self.bells.take_use(service)
    }
}

impl Held {
    /// Nothing yet.
    pub(crate) const fn new(holder: Holder, memory: Leases) -> Held {
        Held { holder: Mutex::new(holder), memory }
    }

    fn with<R>(&self, shared: &Shared, run: impl FnOnce(&mut Holder, &mut Rows<'_>) -> R) -> R {
        let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        run(&mut holder, &mut Rows { memory: &self.memory, bells: &shared.bells })
    }

    /// A request of a client of this host was answered by another daemon.
    pub(crate) fn answered(&self, shared: &Shared, sent_nanos: i64, request: &[u8], reply: &[u8]) {
        let mut reader = Reader::new(request);
        let (Ok(header), Ok(request)) = (Header::decode(&mut reader), Request::decode(&mut reader))
        else {
            return;
        };
        let Ok(reply) = Reply::decode(&mut Reader::new(reply)) else { return };
        let walked = Walked { shard: ShardIndex(header.shard), sent_nanos, request, reply };
        let is_sooner =
            self.with(shared, |holder, rows| holder.walked(steady_nanos(), &walked, rows));
        if is_sooner {
            let _ = shared.bells.kick(WORKER_OF_TARGET);
        }
    }

    /// A word of a service.
    pub(crate) fn take(&self, shared: &Shared, from: DaemonIndex, bytes: &[u8]) {
        let mut out = Vec::new();
        self.with(shared, |holder, rows| {
            holder.take(steady_nanos(), from, bytes, rows, &mut out);
        });
        out.into_iter().for_each(|(to, bytes)| send(shared, to, bytes));
    }

    /// Does what is due. Returns for how many microseconds nothing will be.
    pub(crate) fn keep_time(&self, shared: &Shared) -> Option<u64> {
        let mut out = Vec::new();
        let now = steady_nanos();
        let deadline = self.with(shared, |holder, rows| {
            if holder.deadline().is_some_and(|at| at <= now) {
                holder.keep(now, rows, &mut out);
            }
            holder.deadline()
        });
        out.into_iter().for_each(|(to, bytes)| send(shared, to, bytes));
        deadline.map(|at| u64::try_from(at.saturating_sub(now)).unwrap_or(0) / 1000)
    }
}
