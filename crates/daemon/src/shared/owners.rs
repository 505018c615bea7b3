//! The daemon that owns each metadata service now, in an instance whose services may move. The thread of
//! the membership sets it, all threads read it; requests and messages go by it. Clients keep naming the
//! owner of the first map, by which a service is known.
//!
//! A few words per service. Each is read alone: a request that meets an owner of a moment ago is refused
//! there, and comes again.
//!
//! Programs of the first owner's host do not reach its service elsewhere: they have files open and sizes
//! unreported of which only the memory of that host knows. They wait until the service is back, as they
//! wait for a daemon that starts again. A service that has another home than the first one has left that
//! host for good, and reported all that (`shard::leaving`): then they are as programs of any other host,
//! also where its first owner serves it again.
//!
//! A daemon that was added has services of its own without shards: they count what is on its target. They
//! are in no membership, and stay.
//!
//! Invariant: where services move, one gets a request or a message only while this daemon has the lease
//! of its owner (`Owners::serve_until`).

use cluster::membership::{Membership, ServiceIndex};
use gateway::route::From;
use gateway::{Route, Router};
use placement::ServiceName;
use shm::wait::steady_nanos;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64};
use wire::errno::Result;
use wire::{DaemonIndex, Header, ShardIndex};

/// Numbers by which a daemon knows the services that it serves. Those of its workers come first: their
/// services are its own. Behind them each service of the instance has a number, under which the daemon
/// serves it where it took it over.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    me: DaemonIndex,
    /// Daemons of the first map.
    daemons: u16,
    workers: usize,
}

impl Numbers {
    /// At daemon `me` of so many, with so many workers each.
    pub(crate) const fn new(me: DaemonIndex, daemons: u16, workers: usize) -> Numbers {
        Numbers { me, daemons: if daemons == 0 { 1 } else { daemons }, workers }
    }

    /// Workers of each daemon.
    pub(crate) const fn workers(self) -> usize {
        self.workers
    }

    /// Services of the instance.
    pub(crate) const fn services(self) -> usize {
        self.daemons as usize * self.workers
    }

    /// Numbers that there are.
    pub(crate) const fn count(self) -> usize {
        self.workers + self.services()
    }

    /// The service of this name.
    pub(crate) const fn index(self, name: ServiceName) -> ServiceIndex {
        ServiceIndex(name.worker as u32 * self.daemons as u32 + name.first.0 as u32)
    }

    /// Name of a service.
    pub(crate) const fn service_name(self, service: ServiceIndex) -> ServiceName {
        let daemons = self.daemons as u32;
        let first = DaemonIndex((service.0 % daemons) as u16);
        ServiceName { first, worker: (service.0 / daemons) as u8 }
    }

    /// True if the service is that of a worker of this daemon.
    pub(crate) const fn is_own(self, service: ServiceIndex) -> bool {
        self.service_name(service).first.0 == self.me.0
    }

    /// Number of a service here.
    pub(crate) const fn of(self, service: ServiceIndex) -> usize {
        match self.is_own(service) {
            true => self.service_name(service).worker as usize,
            false => self.workers + service.0 as usize,
        }
    }

    /// Number of a service here where it is one that this daemon took over, be it its first owner.
    pub(crate) const fn elsewhere(self, service: ServiceIndex) -> usize {
        self.workers + service.0 as usize
    }

    /// True if there is a service of this name that the instance began with.
    const fn is_first(self, name: ServiceName) -> bool {
        name.first.0 < self.daemons
    }

    /// True at a daemon with which the instance did not begin.
    pub(crate) const fn was_added(self) -> bool {
        self.me.0 >= self.daemons
    }

    /// The service of a worker; `None` at a daemon that was added.
    pub(crate) fn of_worker(self, worker: usize) -> Option<ServiceIndex> {
        (!self.was_added())
            .then(|| self.index(ServiceName { first: self.me, worker: worker as u8 }))
    }

    /// The service of this number, if there is one.
    pub(crate) fn service(self, number: usize) -> Option<ServiceIndex> {
        match number.checked_sub(self.workers) {
            None => self.of_worker(number),
            Some(index) => (index < self.services()).then_some(ServiceIndex(index as u32)),
        }
    }
}

/// The daemon that owned a service before this one goes on with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EarlierOwner {
    /// This one, or none: the log has everything.
    This,
    /// Another one: the log is a copy, without what that daemon had not shipped.
    Another,
}

/// The words of a service.
struct OwnerWords {
    owner: AtomicU16,
    /// Until when this daemon has the lease, by the steady clock in nanoseconds.
    served_until: AtomicI64,
    /// It has left the host of its first owner for good.
    has_moved: AtomicBool,
    /// Operations that this daemon carried out for it: its load (`members::driver`).
    operations: AtomicU64,
}

/// See the module.
pub(crate) struct Owners {
    numbers: Numbers,
    of_services: Box<[OwnerWords]>,
    /// Where services move: the daemons of this host.
    moving: Option<Range<u16>>,
}

impl Owners {
    /// As in the first map, where services stay.
    pub(crate) fn new(numbers: Numbers) -> Owners {
        let words = |service| OwnerWords {
            owner: AtomicU16::new(numbers.service_name(ServiceIndex(service)).first.0),
            served_until: AtomicI64::new(i64::MIN),
            has_moved: AtomicBool::new(false),
            operations: AtomicU64::new(0),
        };
        let of_services = (0..numbers.services() as u32).map(words).collect();
        Owners { numbers, of_services, moving: None }
    }

    /// The same in an instance whose services go on at followers; `host` has the daemons of this host.
    pub(crate) fn with_services_that_move(mut self, host: Range<u16>) -> Owners {
        self.moving = Some(host);
        self
    }

    /// True where services go on at followers.
    pub(crate) const fn services_move(&self) -> bool {
        self.moving.is_some()
    }

    fn words(&self, service: ServiceIndex) -> Option<&OwnerWords> {
        self.of_services.get(service.0 as usize)
    }

    /// The owner of a service. One that has none is at its last owner, which returns or has a successor.
    pub(crate) fn of(&self, service: ServiceName) -> DaemonIndex {
        let words = self.words_of(service);
        words.map_or(service.first, |words| DaemonIndex(words.owner.load(Acquire)))
    }

    fn words_of(&self, service: ServiceName) -> Option<&OwnerWords> {
        let is_first = self.numbers.is_first(service);
        self.words(self.numbers.index(service)).filter(|_| is_first)
    }

    /// Sets the owners as the membership has them.
    pub(crate) fn set(&self, membership: &Membership) {
        for (words, (service, seat)) in self.of_services.iter().zip(membership.services()) {
            words.owner.store(seat.owner.unwrap_or(seat.last_owner).0, Release);
            words.has_moved.store(membership.has_moved(service), Release);
        }
    }

    /// True if a service has left the host of its first owner for good.
    pub(crate) fn has_moved(&self, service: ServiceName) -> bool {
        self.words_of(service).is_some_and(|words| words.has_moved.load(Acquire))
    }

    /// Number here of a service that the instance began with.
    fn number_here(&self, service: ServiceIndex) -> usize {
        let has_moved = self.words(service).is_some_and(|it| it.has_moved.load(Acquire));
        if has_moved { self.numbers.elsewhere(service) } else { self.numbers.of(service) }
    }

    /// This daemon has the lease of a service until this time, by the steady clock in nanoseconds.
    pub(crate) fn serve_until(&self, service: ServiceIndex, nanos: i64) {
        let _ = self.words(service).map(|words| words.served_until.store(nanos, Release));
    }

    /// The service of this number has carried out operations.
    pub(crate) fn note_operations(&self, number: usize, count: u64) {
        let words = self.numbers.service(number).and_then(|it| self.words(it));
        let _ = words.map(|words| words.operations.fetch_add(count, Relaxed));
    }

    /// Operations that this daemon has carried out for a service, since it began.
    pub(crate) fn operations(&self, service: ServiceIndex) -> u64 {
        self.words(service).map_or(0, |words| words.operations.load(Relaxed))
    }

    /// Number here of a service that this daemon owns, if it serves it now.
    pub(crate) fn number(&self, service: ServiceName) -> Option<usize> {
        if !self.numbers.is_first(service) {
            return (service.first == self.numbers.me).then_some(usize::from(service.worker));
        }
        let index = self.numbers.index(service);
        self.is_served(index).then(|| self.number_here(index))
    }

    /// Whether the service of this number may do anything now.
    pub(crate) fn has_lease(&self, number: usize) -> bool {
        let is_added = || self.numbers.was_added() && number < self.numbers.workers();
        let is_served = |it| self.is_served(it) && self.number_here(it) == number;
        let may = || self.numbers.service(number).is_some_and(is_served);
        self.moving.is_none() || is_added() || may()
    }

    fn is_served(&self, service: ServiceIndex) -> bool {
        if self.moving.is_none() {
            return self.numbers.is_own(service);
        }
        let until = self.words(service).map(|words| words.served_until.load(Acquire));
        until.is_some_and(|until| until > steady_nanos())
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
        let is_from_here = || self.moving.as_ref().is_some_and(|it| it.contains(&service.first.0));
        let is_away = owner != service.first && is_from_here() && !self.has_moved(service);
        Ok(match from {
            From::Session if is_away => Route::Wait,
            From::Session if owner != router.me => Route::Peer(owner),
            // The sender knows another membership: one of the two will learn.
            From::Peer if owner != router.me => Route::Wait,
            // Without the lease another daemon may serve it.
            _ => self.number(service).map_or(Route::Wait, Route::Worker),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::change::{Change, Following, LastAllowed, Tenure};
    use cluster::membership::ServiceIndex;
    use placement::Map;
    use wire::limits::SHARD_COUNT;
    use wire::{Credentials, JobWord};

    const DAEMONS: u16 = 3;
    const WORKERS: usize = 2;

    fn router(me: u16) -> Router {
        let map = Map::initial(DAEMONS).expect("three daemons");
        Router::new(map, DaemonIndex(me), WORKERS)
    }

    fn owners(me: u16) -> Owners {
        Owners::new(Numbers::new(DaemonIndex(me), DAEMONS, WORKERS))
    }

    /// The same where services move: each daemon on a host of its own.
    fn moving(me: u16) -> Owners {
        owners(me).with_services_that_move(me..me + 1)
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
        let down =
            Change::Down { daemon: DaemonIndex(1), incarnation: 1, known: LastAllowed::UNKNOWN };
        membership.apply(&down).expect("it takes part");
        (membership, follower)
    }

    #[test]
    fn in_the_beginning_requests_go_where_the_map_has_them() {
        for me in 0..DAEMONS {
            let (owners, router) = (owners(me), router(me));
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
        let (owners, away) = (moving(0), moving(1));
        [&owners, &away].iter().for_each(|it| it.set(&membership));
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
            // The daemon that had it knows better than to carry it out. Programs of its host wait until
            // the service is back.
            let before = router(1);
            assert_eq!(away.route(&before, &header, From::Session), Ok(Route::Wait));
            assert_eq!(away.route(&before, &header, From::Peer), Ok(Route::Wait));
        }
    }

    /// Makes a follower the owner that is in sync.
    fn hand_over(membership: &mut Membership, service: ServiceIndex, to: u16) {
        let (follower, seat) = (DaemonIndex(to), membership.seat(service).expect("a seat"));
        let of = Tenure { service, epoch: seat.epoch };
        if seat.follower(follower).is_none() {
            membership.apply(&Change::AddFollower { of, follower }).expect("a place");
        }
        let entry = membership.seat(service).and_then(|it| it.follower(follower)).expect("follows");
        let of = Following { of, follower, since: entry.since };
        if !entry.is_in_sync {
            membership.apply(&Change::InSync { of }).expect("it follows");
        }
        membership.apply(&Change::HandOver { of }).expect("it is in sync");
    }

    #[test]
    fn programs_reach_a_service_that_left_their_host_wherever_it_is() {
        let initial = Membership::initial(&[0, 1, 2], usize::from(DAEMONS) * WORKERS, 1, false);
        let mut membership = initial.expect("suitable").with_owners_that_return();
        let (service, name) = (ServiceIndex(4), ServiceName { first: DaemonIndex(1), worker: 1 });
        let next = DaemonIndex(2);
        let of = Tenure { service, epoch: 1 };
        membership.apply(&Change::Rehome { of, next }).expect("it is at home");
        let (home, router) = (moving(1), router(1));
        let shard =
            (0..SHARD_COUNT).find(|shard| router.map.service(ShardIndex(*shard), WORKERS) == name);
        let header = header(&router, shard.expect("it has shards"));
        let asked = |owners: &Owners| owners.route(&router, &header, From::Session);
        home.set(&membership);
        home.serve_until(service, i64::MAX);
        assert!(!home.has_moved(name) && home.number(name) == Some(1) && home.has_lease(1));
        home.serve_until(service, i64::MIN);
        assert_eq!(asked(&home), Ok(Route::Wait), "it is about to leave");
        hand_over(&mut membership, service, 2);
        home.set(&membership);
        assert!(home.has_moved(name));
        assert_eq!(asked(&home), Ok(Route::Peer(next)), "it does not come back");
        // Here again it is as one that was taken over: no program has access to it.
        hand_over(&mut membership, service, 1);
        home.set(&membership);
        assert_eq!(asked(&home), Ok(Route::Wait));
        home.serve_until(service, i64::MAX);
        let number = Numbers::new(DaemonIndex(1), DAEMONS, WORKERS).elsewhere(service);
        assert_eq!((home.number(name), asked(&home)), (Some(number), Ok(Route::Worker(number))));
        assert!(home.has_lease(number) && !home.has_lease(1));
    }

    #[test]
    fn a_successor_serves_under_a_number_of_its_own_while_it_has_the_lease() {
        let (membership, successor) = moved();
        let owners = moving(successor.0);
        owners.set(&membership);
        let router = router(successor.0);
        let name = ServiceName { first: DaemonIndex(1), worker: 0 };
        let shard =
            (0..SHARD_COUNT).find(|it| router.map.service(ShardIndex(*it), WORKERS) == name);
        let header = header(&router, shard.expect("it has shards"));
        let routes =
            || [From::Session, From::Peer].map(|from| owners.route(&router, &header, from));
        assert_eq!(routes(), [Ok(Route::Wait), Ok(Route::Wait)], "no lease yet");
        owners.serve_until(ServiceIndex(1), i64::MAX);
        // Behind the workers, the second service of six.
        assert_eq!(owners.number(name), Some(WORKERS + 1));
        assert_eq!(routes(), [Ok(Route::Worker(WORKERS + 1)), Ok(Route::Worker(WORKERS + 1))]);
        owners.serve_until(ServiceIndex(1), steady_nanos());
        assert_eq!(routes(), [Ok(Route::Wait), Ok(Route::Wait)], "its lease has ended");
    }

    #[test]
    fn own_services_need_the_lease_where_services_move() {
        let (stays, moves) = (owners(2), moving(2));
        let own = ServiceName { first: DaemonIndex(2), worker: 1 };
        assert!(stays.number(own) == Some(1) && stays.has_lease(1));
        assert!(moves.number(own).is_none() && !moves.has_lease(1));
        moves.serve_until(ServiceIndex(5), i64::MAX);
        assert!(moves.number(own) == Some(1) && moves.has_lease(1) && !moves.has_lease(0));
        moves.serve_until(ServiceIndex(5), steady_nanos());
        assert!(moves.number(own).is_none() && !moves.has_lease(1));
    }

    #[test]
    fn numbers_are_different_and_lead_back_to_their_services() {
        for me in 0..DAEMONS {
            let numbers = Numbers::new(DaemonIndex(me), DAEMONS, WORKERS);
            let services = || (0..numbers.services() as u32).map(ServiceIndex);
            let all: std::collections::BTreeSet<usize> =
                services().map(|service| numbers.of(service)).collect();
            assert_eq!(all.len(), numbers.services());
            assert!(all.iter().all(|&number| number < numbers.count()));
            for service in services() {
                assert_eq!(numbers.index(numbers.service_name(service)), service);
                let number = numbers.of(service);
                assert_eq!(number < WORKERS, numbers.is_own(service));
                assert_eq!(numbers.service(number), Some(service));
                if numbers.is_own(service) {
                    assert_eq!(numbers.of_worker(number), Some(service));
                }
            }
            assert_eq!(numbers.service(numbers.count()), None);
        }
    }

    #[test]
    fn a_daemon_that_was_added_has_no_services_of_its_own() {
        let numbers = Numbers::new(DaemonIndex(DAEMONS), DAEMONS, WORKERS);
        for worker in 0..WORKERS {
            assert_eq!((numbers.of_worker(worker), numbers.service(worker)), (None, None));
        }
        for service in (0..numbers.services() as u32).map(ServiceIndex) {
            assert!(!numbers.is_own(service) && numbers.of(service) >= WORKERS);
            assert_eq!(numbers.service(numbers.of(service)), Some(service));
        }
        // Those of its workers have no shards, and need no lease.
        let added = moving(DAEMONS);
        let own = ServiceName { first: DaemonIndex(DAEMONS), worker: 1 };
        assert!(numbers.was_added() && added.has_lease(0) && !added.has_lease(WORKERS));
        assert_eq!((added.of(own), added.number(own)), (own.first, Some(1)));
        let known = moving(0);
        assert_eq!((known.of(own), known.number(own)), (own.first, None));
        assert!(!known.has_moved(own));
    }
}
