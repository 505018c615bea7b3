//! Leases of this host: drives a `metadata::Holder`, whose table clients read in shared memory.
//!
//! Replies that grant leases and messages of services arrive on the thread of `net`; worker 0
//! handles timeouts. Clients' requests to other hosts go through the first daemon of the host,
//! unless that one is down; only it is granted leases.

use crate::shared::inbox::Inboxes;
use crate::shared::network::Network;
use metadata::{AnsweredWalk, Holder, LeaseTable};
use placement::map::WORKER_OF_TARGET;
use shm::index::Leases;
use shm::session::Doorbells;
use shm::wait::steady_nanos;
use std::sync::{Mutex, PoisonError};
use wire::codec::Reader;
use wire::{Attributes, DaemonIndex, Header, Inode, Reply, Request, ShardIndex};

/// The leases that this daemon holds.
pub(crate) struct HostLeases {
    holder: Mutex<Holder>,
    memory: Leases,
}

/// The lease table in shared memory, and the use bits beside the doorbells.
struct SharedLeases<'a> {
    memory: &'a Leases,
    bells: &'a Doorbells,
}

impl LeaseTable for SharedLeases<'_> {
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

impl HostLeases {
    /// Holds no lease yet.
    pub(crate) const fn new(holder: Holder, memory: Leases) -> HostLeases {
        HostLeases { holder: Mutex::new(holder), memory }
    }

    fn with_table<R>(
        &self,
        bells: &Doorbells,
        run: impl FnOnce(&mut Holder, &mut SharedLeases<'_>) -> R,
    ) -> R {
        let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        run(&mut holder, &mut SharedLeases { memory: &self.memory, bells })
    }

    /// Another daemon has answered a request of a client of this host.
    pub(crate) fn walk_answered(
        &self,
        inboxes: &Inboxes,
        sent_nanos: i64,
        request: &[u8],
        reply: &[u8],
    ) {
        let mut reader = Reader::new(request);
        let (Ok(header), Ok(request)) = (Header::decode(&mut reader), Request::decode(&mut reader))
        else {
            return;
        };
        let Ok(reply) = Reply::decode(&mut Reader::new(reply)) else { return };
        let walked = AnsweredWalk { shard: ShardIndex(header.shard), sent_nanos, request, reply };
        let is_sooner = self.with_table(&inboxes.bells, |holder, table| {
            holder.walked(steady_nanos(), &walked, table)
        });
        if is_sooner {
            let _ = inboxes.bells.wake(WORKER_OF_TARGET);
        }
    }

    /// Handles a message of a metadata service.
    pub(crate) fn take_message(
        &self,
        (net, inboxes): (&Network, &Inboxes),
        from: DaemonIndex,
        bytes: &[u8],
    ) {
        let mut out = Vec::new();
        self.with_table(&inboxes.bells, |holder, table| {
            let is_from_owner = |shard| net.owner(shard) == from;
            holder.take(steady_nanos(), is_from_owner, bytes, table, &mut out);
        });
        out.into_iter().for_each(|(to, bytes)| net.send_to_shard(inboxes, to, bytes));
    }

    /// Handles expired deadlines. Returns the microseconds until the next one.
    pub(crate) fn tick(&self, net: &Network, inboxes: &Inboxes) -> Option<u64> {
        let mut out = Vec::new();
        let now = steady_nanos();
        let deadline = self.with_table(&inboxes.bells, |holder, table| {
            if holder.deadline().is_some_and(|at| at <= now) {
                holder.tick(now, table, &mut out);
            }
            holder.deadline()
        });
        out.into_iter().for_each(|(to, bytes)| net.send_to_shard(inboxes, to, bytes));
        deadline.map(|at| u64::try_from(at.saturating_sub(now)).unwrap_or(0) / 1000)
    }
}
