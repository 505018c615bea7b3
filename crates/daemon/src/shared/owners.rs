//! The daemon that owns each metadata service now, in an instance whose services may move. The thread of
//! the membership sets it, all threads read it; requests and messages go by it. Clients keep naming the
//! owner of the first map, by which a service is known.
//!
//! A word per service. Each is read alone: a request that meets an owner of a moment ago is refused
//! there, and comes again.

use cluster::membership::Membership;
use gateway::route::From;
use gateway::{Route, Router};
use placement::ServiceName;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::{Acquire, Release};
use wire::errno::Result;
use wire::{DaemonIndex, Header, ShardIndex};

/// See the module.
pub(crate) struct Owners {
    /// Daemons of the first map.
    daemons: u16,
    of_services: Box<[AtomicU16]>,
}

impl Owners {
    /// As in the first map, of so many daemons with so many workers each.
    pub(crate) fn new(daemons: u16, workers: usize) -> Owners {
        let of_services = (0..workers).flat_map(|_| (0..daemons).map(AtomicU16::new)).collect();
        Owners { daemons, of_services }
    }

    /// The owner of a service. One that has none is at its last owner, which returns or has a successor.
    pub(crate) fn of(&self, service: ServiceName) -> DaemonIndex {
        let ServiceName { first, worker } = service;
        let number = usize::from(worker) * usize::from(self.daemons) + usize::from(first.0);
        self.of_services.get(number).map_or(first, |word| DaemonIndex(word.load(Acquire)))
    }

    /// Sets the owners as the membership has them.
    pub(crate) fn set(&self, membership: &Membership) {
        for (word, (_, seat)) in self.of_services.iter().zip(membership.services()) {
            word.store(seat.owner.unwrap_or(seat.last_owner).0, Release);
        }
    }

    /// As `Router::route`, which checks what the sender names, to the daemon that owns the service now.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn route(&self, router: &Router, header: &Header, from: From) -> Result<Route> {
        // The sender names the first owner, so for the router this may be another daemon's request.
        let named = router.route(header, From::Session)?;
        let is_routed = matches!(named, Route::Worker(_) | Route::Peer(_));
        if !is_routed || header.shard == Header::TARGET {
            return router.route(header, from);
        }
        let service = router.map.service(ShardIndex(header.shard), router.workers);
        let owner = self.of(service);
        Ok(match from {
            From::Session if owner != router.me => Route::Peer(owner),
            // The sender knows another membership: one of the two will learn.
            From::Peer if owner != router.me => Route::Wait,
            // No worker serves it here yet.
            _ if service.first != router.me => Route::Wait,
            _ => Route::Worker(usize::from(service.worker)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::change::{Change, Following, Tenure};
    use cluster::membership::ServiceIndex;
    use placement::Map;
    use wire::limits::SHARD_COUNT;
    use wire::{Credentials, JobWord};

    const DAEMONS: u16 = 3;
    const WORKERS: usize = 2;

    fn router(me: u16) -> Router {
        let map = Map::initial(DAEMONS).expect("three daemons");
        Router { map, me: DaemonIndex(me), workers: WORKERS }
    }

    fn header(router: &Router, shard: u16) -> Header {
        Header {
            shard,
            daemon: router.map.owner(ShardIndex(shard)).0,
            epoch: 1,
            client_id: 1,
            sequence: 1,
            host: 0,
            mount: 0,
            job: JobWord::NONE,
            caller: Credentials::ROOT,
        }
    }

    /// Service 1 of worker 0 goes from daemon 1 to a follower that is in sync.
    fn moved() -> (Membership, DaemonIndex) {
        let mut membership =
            Membership::initial(&[0, 1, 2], usize::from(DAEMONS) * WORKERS, 1, false)
                .expect("suitable");
        let (follower, of) = (DaemonIndex(2), Tenure { service: ServiceIndex(1), epoch: 1 });
        let since = membership.epoch;
        membership.apply(&Change::AddFollower { of, follower }).expect("a place");
        let seat = membership.seat(of.service).expect("a seat");
        let since = seat.follower(follower).map_or(since, |it| it.since);
        membership
            .apply(&Change::InSync { of: Following { of, follower, since } })
            .expect("it follows");
        let down = Change::Down { daemon: DaemonIndex(1), incarnation: 1 };
        membership.apply(&down).expect("it takes part");
        (membership, follower)
    }

    #[test]
    fn in_the_beginning_requests_go_where_the_map_has_them() {
        let owners = Owners::new(DAEMONS, WORKERS);
        for me in 0..DAEMONS {
            let router = router(me);
            for shard in 0..SHARD_COUNT {
                let header = header(&router, shard);
                let routed = owners.route(&router, &header, From::Session);
                assert_eq!(routed, router.route(&header, From::Session), "shard {shard}");
            }
            let target = Header { shard: Header::TARGET, ..header(&router, 0) };
            assert_eq!(
                owners.route(&router, &target, From::Peer),
                router.route(&target, From::Peer)
            );
            let old = Header { epoch: 0, ..header(&router, 0) };
            assert_eq!(owners.route(&router, &old, From::Session), Ok(Route::Stale(1)));
            let wrong = Header { daemon: 1, ..header(&router, 0) };
            assert!(owners.route(&router, &wrong, From::Session).is_err());
        }
    }

    #[test]
    fn requests_follow_a_service_and_wait_while_two_daemons_differ() {
        let (membership, successor) = moved();
        let owners = Owners::new(DAEMONS, WORKERS);
        owners.set(&membership);
        let name = ServiceName { first: DaemonIndex(1), worker: 0 };
        assert_eq!(owners.of(name), successor);
        // That of its other worker had no follower: its last owner is asked, until it returns.
        assert_eq!(owners.of(ServiceName { worker: 1, ..name }), DaemonIndex(1));
        let shards = |router: &Router| {
            let of = |shard: &u16| router.map.service(ShardIndex(*shard), WORKERS) == name;
            (0..SHARD_COUNT).filter(of).collect::<Vec<_>>()
        };
        let asked = router(0);
        for shard in shards(&asked) {
            let header = header(&asked, shard);
            let routed = owners.route(&asked, &header, From::Session);
            assert_eq!(routed, Ok(Route::Peer(successor)));
            assert_eq!(owners.route(&asked, &header, From::Peer), Ok(Route::Wait));
            // The daemon that had it knows better than to carry it out.
            let before = router(1);
            let routed = owners.route(&before, &header, From::Session);
            assert_eq!(routed, Ok(Route::Peer(successor)));
            assert_eq!(owners.route(&before, &header, From::Peer), Ok(Route::Wait));
        }
    }
}
