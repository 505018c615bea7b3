//! This daemon's place in the instance, and messages to other daemons: the router, the sender of
//! `net`, and the framing of messages that expect no reply.
//!
//! Replies, and requests of this daemon's own, are in `delivery`.

use crate::shared::inbox::{Inboxes, WorkerMessage};
use crate::shared::owners::Owners;
use crate::shared::reply::ReplyTo;
use gateway::route::From;
use gateway::{Route, Router};
use net::Counters;
use net::Urgency;
use placement::ServiceName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::codec::{Reader, Writer};
use wire::errno::Result;
use wire::limits::{SHARD_COUNT, SLOT_BYTES};
use wire::{Credentials, DaemonIndex, Header, JobWord, Request, ShardIndex};

/// Kinds of messages between daemons: the first byte.
pub(crate) mod message {
    /// For the metadata service of a shard (two bytes); the service defines the rest.
    pub(crate) const METADATA: u8 = 1;
    /// Client ids that are gone: first and count, eight bytes each.
    pub(crate) const CLIENT_GONE: u8 = 2;
    /// A request without a reply, header first.
    pub(crate) const REQUEST: u8 = 3;
    /// A message of a metadata service about leases; the service defines the rest.
    pub(crate) const LEASES: u8 = 4;
    /// A request whose sender is dead: client id and sequence number, eight bytes each.
    pub(crate) const WITHDRAWN: u8 = 5;
    /// Query whether the receiver's host still has a file open, for which the file is kept: eight
    /// bytes.
    pub(crate) const IS_OPEN: u8 = 6;
    /// For the metadata service of a name (first daemon, two bytes, and worker, one); the service
    /// defines the rest.
    pub(crate) const SERVICE: u8 = 7;
    /// Query which client ids of the receiver's sessions are gone: eight bytes each.
    pub(crate) const CLIENT_IDS: u8 = 8;
    /// A message of a metadata service about the size of a file; the service defines the rest.
    pub(crate) const SIZES: u8 = 16;
    /// About rules and caps; `qos::exchange` defines the rest.
    pub(crate) const SHARES: u8 = 17;
    /// About the membership; `cluster::Node` defines the rest.
    pub(crate) const MEMBERS: u8 = 18;
    /// About units of file data: a `replicas::packet::Packet`.
    pub(crate) const UNITS: u8 = 20;
    /// The receiver's target is slow; the indices of targets that are not, two bytes each.
    pub(crate) const SLOW: u8 = 21;
    /// Asks for nothing but the acknowledgement of the receiver's host.
    pub(crate) const ARE_YOU_THERE: u8 = 19;
}

/// Ways to other daemons, and this daemon's place among them.
pub(crate) struct Network {
    /// Routes requests to workers and daemons.
    pub(crate) router: Router,
    /// Owners of services where these may move; `None`: those of the map.
    pub(crate) owners: Option<Owners>,
    /// Number of this host: the index of its first daemon.
    pub(crate) host_number: u16,
    /// Number of daemons of this host.
    pub(crate) host_count: u16,
    /// Connections to other daemons.
    pub(crate) sender: net::Sender<ReplyTo>,
    /// Counts of connections that were refused or broken.
    pub(crate) counters: Arc<Counters>,
    /// The thread of `net` is awake and answers the doorbells of sleeping workers.
    pub(crate) is_awake: AtomicBool,
}

impl Network {
    /// True in the home daemon of this host.
    pub(crate) fn is_home(&self) -> bool {
        self.router.me.0 == self.host_number
    }

    /// Destination of a request with this header: `Router::route`, to the owner of now.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn route(&self, header: &Header, from: From) -> Result<Route> {
        match &self.owners {
            None => self.router.route(header, from),
            Some(owners) => owners.route(&self.router, header, from),
        }
    }

    /// Whether there is a service of this name.
    pub(crate) fn has_service(&self, name: ServiceName) -> bool {
        let is_one = usize::from(name.worker) < self.router.workers;
        name.first.0 < self.sender.daemon_count() && is_one
    }

    /// The daemon that owns a service now.
    pub(crate) fn owner_of(&self, service: ServiceName) -> DaemonIndex {
        let Router { map, workers, .. } = &self.router;
        self.owners.as_ref().map_or_else(|| map.owner_of(service, *workers), |it| it.of(service))
    }

    /// The daemon that owns a shard now.
    pub(crate) fn owner(&self, shard: ShardIndex) -> DaemonIndex {
        let Router { map, workers, .. } = &self.router;
        match &self.owners {
            None => map.owner(shard),
            Some(owners) => owners.of(map.service(shard, *workers)),
        }
    }

    /// Number here of a service which has this owner (`owners::Numbers`); `None`: this daemon does not
    /// serve it now.
    pub(crate) fn number_of(&self, service: ServiceName, owner: DaemonIndex) -> Option<usize> {
        let me = self.router.me;
        if owner != me {
            return None;
        }
        match &self.owners {
            None => (service.first == me).then_some(usize::from(service.worker)),
            Some(owners) => owners.number(service),
        }
    }

    /// True if this is the number of a service that this daemon took over: to it, programs of this host
    /// are those of another.
    pub(crate) const fn is_taken_over(&self, number: usize) -> bool {
        number >= self.router.workers
    }

    /// True if a daemon is one of this host.
    pub(crate) fn is_of_host(&self, daemon: DaemonIndex) -> bool {
        let place = daemon.0.checked_sub(self.host_number);
        place.is_some_and(|place| place < self.host_count)
    }

    /// True if the service of a shard belongs to this host, and has access to the host segment. While it
    /// is at another host it is not reached from here, unless it has left this one for good (`owners`).
    pub(crate) fn is_on_host(&self, shard: ShardIndex) -> bool {
        let service = self.router.map.service(shard, self.router.workers);
        let has_moved = || self.owners.as_ref().is_some_and(|owners| owners.has_moved(service));
        self.is_of_host(service.first) && !has_moved()
    }

    /// Whether the service of this number may do anything now: where services move it needs the lease.
    pub(crate) fn has_lease(&self, number: usize) -> bool {
        self.owners.as_ref().is_none_or(|owners| owners.has_lease(number))
    }

    /// Connects as many daemons as the instance has. New files use the first `target_count` targets,
    /// whose daemons have come. True if there are more of these targets than before.
    pub(crate) fn grow(&self, daemon_count: u16, target_count: u16) -> bool {
        self.sender.grow(daemon_count);
        let has_grown = self.router.grow(target_count);
        if has_grown {
            tracing::info!(target_count, "the instance has more targets");
        }
        has_grown
    }

    /// Sends an admitted request, header first, to another daemon, or to a service that this one took
    /// over.
    ///
    /// # Errors
    /// The destination of the reply, if the peer is lost or too much waits.
    pub(crate) fn request(
        &self,
        inboxes: &Inboxes,
        peer: DaemonIndex,
        bytes: &[u8],
        to: ReplyTo,
    ) -> std::result::Result<(), ReplyTo> {
        if peer != self.router.me {
            return self.sender.request(peer, bytes, to);
        }
        let number = Header::decode(&mut Reader::new(bytes)).ok().and_then(|header| {
            let service = self.router.map.service(ShardIndex(header.shard), self.router.workers);
            self.number_of(service, peer)
        });
        let Some(number) = number else { return Err(to) };
        let message = WorkerMessage::Request { bytes: bytes.to_vec(), to };
        match inboxes.try_send_to_worker(number, message) {
            Err(WorkerMessage::Request { to, .. }) => Err(to),
            _ => Ok(()),
        }
    }

    /// One shard of each service of the instance.
    pub(crate) fn services(&self) -> BTreeSet<ShardIndex> {
        let Router { map, workers, .. } = &self.router;
        let all = (0..SHARD_COUNT).map(ShardIndex);
        let all = all.map(|shard| (map.service(shard, *workers), shard));
        all.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Header of a request of this daemon's own to a shard, which names it as clients do.
    pub(crate) fn own_header(&self, shard: ShardIndex) -> Header {
        Header {
            shard: shard.0,
            daemon: self.router.map.owner(shard).0,
            epoch: self.router.epoch(),
            client_id: u64::MAX,
            sequence: 0,
            host: self.host_number,
            mount: 0,
            job: JobWord::NONE,
            caller: Credentials::ROOT,
        }
    }

    /// Header of a request of this daemon's own to the target of a daemon.
    pub(crate) fn target_header(&self, daemon: DaemonIndex) -> Header {
        let own = self.own_header(ShardIndex(0));
        Header { shard: Header::TARGET, daemon: daemon.0, ..own }
    }

    /// Sends a message to a daemon. It is lost if the daemon is not connected or its queue is full.
    pub(crate) fn send(&self, peer: DaemonIndex, bytes: &[u8], urgency: Urgency) {
        if self.sender.send_message(peer, bytes, urgency).is_err() {
            tracing::debug!(peer = peer.0, "message dropped");
        }
    }

    /// Sends a message of a metadata service to a shard, wherever its owner is. The services
    /// tolerate its loss.
    pub(crate) fn send_to_shard(&self, inboxes: &Inboxes, to: ShardIndex, bytes: Vec<u8>) {
        let (service, owner) = (self.router.map.service(to, self.router.workers), self.owner(to));
        if let Some(number) = self.number_of(service, owner) {
            return inboxes.send_to_worker(number, WorkerMessage::Peer(bytes));
        }
        let mut framed = Vec::with_capacity(bytes.len() + 3);
        framed.push(message::METADATA);
        framed.extend_from_slice(&to.0.to_le_bytes());
        framed.extend_from_slice(&bytes);
        self.send_to_owner(owner, &framed);
    }

    /// Sends to the owner of a service that this daemon does not serve.
    fn send_to_owner(&self, owner: DaemonIndex, framed: &[u8]) {
        if owner != self.router.me {
            self.send(owner, framed, Urgency::Now);
        }
    }

    /// Sends a message to a service of any daemon. The services tolerate its loss.
    pub(crate) fn send_to_service(&self, inboxes: &Inboxes, to: ServiceName, bytes: Vec<u8>) {
        let owner = self.owner_of(to);
        if let Some(number) = self.number_of(to, owner) {
            return inboxes.send_to_worker(number, WorkerMessage::Peer(bytes));
        }
        let [low, high] = to.first.0.to_le_bytes();
        let mut framed = vec![message::SERVICE, low, high, to.worker];
        framed.extend_from_slice(&bytes);
        self.send_to_owner(owner, &framed);
    }

    /// Tells all other daemons that a session's client ids are gone. A message may be lost with a
    /// peer: requests waiting there are then withdrawn when their lock becomes free.
    pub(crate) fn send_client_gone(&self, first: u64, count: u64) {
        self.send_to_all_peers(message::CLIENT_GONE, [first, count]);
    }

    /// Tells all other daemons that the sender of a request is dead. No effect where the request does
    /// not wait.
    pub(crate) fn send_withdrawn(&self, client_id: u64, sequence: u64) {
        self.send_to_all_peers(message::WITHDRAWN, [client_id, sequence]);
    }

    fn send_to_all_peers(&self, kind: u8, words: [u64; 2]) {
        let mut bytes = vec![kind];
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        for peer in (0..self.sender.daemon_count()).filter(|peer| *peer != self.router.me.0) {
            self.send(DaemonIndex(peer), &bytes, Urgency::Now);
        }
    }
}

/// Encodes header and request.
pub(crate) fn encode_request(header: &Header, request: &Request<'_>) -> Vec<u8> {
    let mut bytes = [0; SLOT_BYTES];
    let mut writer = Writer::new(&mut bytes);
    header.encode(&mut writer);
    request.encode(&mut writer);
    let length = writer.finish().unwrap_or(0);
    bytes.get(..length).unwrap_or_default().to_vec()
}
