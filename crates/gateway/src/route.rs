//! Routing: which worker or daemon answers a request. Computed from the instance map, as the sender
//! did.
//!
//! The instance gets daemons while this one runs. A later map has what an earlier one has, so a request
//! by an earlier map than this daemon's is right, too.

use core::sync::atomic::AtomicU16;
use core::sync::atomic::Ordering::{Acquire, Release};
use placement::Map;
use placement::map::{FIRST_EPOCH, WORKER_OF_TARGET, worker_of_shard};
use wire::errno::{Errno, Result};
use wire::limits::DAEMON_COUNT_MAX;
use wire::{DaemonIndex, Header, ShardIndex};

/// Destination of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// A worker of this daemon.
    Worker(usize),
    /// Another daemon.
    Peer(DaemonIndex),
    /// None: the sender's map is outdated. Holds the current epoch.
    Stale(u64),
    /// None yet: the sender's map is newer than this daemon's, which will be updated.
    Wait,
}

/// Routing state of one daemon.
#[derive(Debug)]
pub struct Router {
    /// The instance map with which the daemon started: owners and names in it are those of each later
    /// one.
    pub map: Map,
    /// Index of this daemon.
    pub me: DaemonIndex,
    /// Number of its workers.
    pub workers: usize,
    /// Number of daemons now.
    daemon_count: AtomicU16,
    /// How many there may be.
    daemons_most: u16,
}

/// Source of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// A session of this daemon; the request may be forwarded.
    Session,
    /// Another daemon; the request must be for this one.
    Peer,
}

impl Router {
    /// Of a daemon that starts with this map.
    #[must_use]
    pub const fn new(map: Map, me: DaemonIndex, workers: usize) -> Router {
        let daemons_most = map.daemon_count();
        let daemon_count = AtomicU16::new(daemons_most);
        Router { map, me, workers, daemon_count, daemons_most }
    }

    /// The same in an instance that may get daemons.
    #[must_use]
    pub const fn that_grows(mut self) -> Router {
        self.daemons_most = DAEMON_COUNT_MAX;
        self
    }

    /// How many daemons there may be.
    #[must_use]
    pub const fn daemons_most(&self) -> u16 {
        self.daemons_most
    }

    /// Number of daemons that there are or were.
    #[must_use]
    pub fn daemon_count(&self) -> u16 {
        self.daemon_count.load(Acquire)
    }

    /// The map of now.
    #[must_use]
    pub fn map_now(&self) -> Map {
        self.map.grown_to(self.daemon_count()).unwrap_or_else(|| self.map.clone())
    }

    /// Epoch of the map of now.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.map.epoch() + u64::from(self.daemon_count() - self.map.daemon_count())
    }

    /// `Map::place_of_new` of the map of now.
    #[must_use]
    pub fn place_of_new(&self) -> u16 {
        self.map.place_among(self.daemon_count())
    }

    /// The instance has so many daemons now. False: it had as many before, or cannot have so many.
    pub fn grow(&self, daemon_count: u16) -> bool {
        let is_possible = self.map.grown_to(daemon_count).is_some();
        is_possible && self.daemon_count.fetch_max(daemon_count, Release) < daemon_count
    }

    /// Destination of a request with this header.
    ///
    /// # Errors
    /// `EINVAL` for a daemon or shard that does not exist.
    pub fn route(&self, header: &Header, from: From) -> Result<Route> {
        let (epoch, daemon_count) = (self.epoch(), self.daemon_count());
        if header.epoch > epoch {
            return Ok(Route::Wait);
        }
        if header.epoch < FIRST_EPOCH {
            return Ok(Route::Stale(epoch));
        }
        let owner = DaemonIndex(header.daemon);
        let is_target = header.shard == Header::TARGET;
        if header.daemon >= daemon_count {
            // A file may be on targets of which this daemon does not know yet.
            let may_come = is_target && header.daemon < self.daemons_most;
            return if may_come { Ok(Route::Wait) } else { Err(Errno::EINVAL) };
        }
        if !is_target && self.map.owner(ShardIndex(header.shard)) != owner {
            return Err(Errno::EINVAL);
        }
        if owner != self.me {
            return match from {
                From::Session => Ok(Route::Peer(owner)),
                From::Peer => Ok(Route::Stale(epoch)),
            };
        }
        Ok(Route::Worker(match is_target {
            true => WORKER_OF_TARGET,
            false => worker_of_shard(ShardIndex(header.shard), self.workers),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Credentials;

    fn header(shard: u16, daemon: u16, epoch: u64) -> Header {
        let (caller, job) = (Credentials::ROOT, wire::JobWord::NONE);
        Header { job, shard, daemon, epoch, client_id: 0, sequence: 0, host: 0, mount: 0, caller }
    }

    #[test]
    fn a_request_goes_to_the_owner_of_its_shard() {
        let map = Map::initial(3).expect("three");
        let router = Router::new(map, DaemonIndex(1), 2);
        let to = |header: Header, from| router.route(&header, from);
        let Ok(Route::Worker(worker)) = to(header(4, 1, 1), From::Session) else {
            panic!("shard 4 of 3 daemons is daemon 1's");
        };
        assert_eq!(worker, worker_of_shard(ShardIndex(4), 2));
        let peer = Ok(Route::Peer(DaemonIndex(2)));
        assert_eq!(to(header(5, 2, 1), From::Session), peer);
        assert_eq!(to(header(5, 2, 1), From::Peer), Ok(Route::Stale(1)));
        assert_eq!(to(header(5, 1, 1), From::Session), Err(Errno::EINVAL));
        assert_eq!(to(header(5, 9, 1), From::Session), Err(Errno::EINVAL));
        assert_eq!(to(header(4, 1, 0), From::Session), Ok(Route::Stale(1)));
        assert_eq!(to(header(4, 1, 2), From::Session), Ok(Route::Wait));
        let target = header(Header::TARGET, 1, 1);
        assert_eq!(to(target, From::Peer), Ok(Route::Worker(WORKER_OF_TARGET)));
    }

    #[test]
    fn requests_by_earlier_maps_are_right_while_the_instance_grows() {
        let map = Map::initial(3).expect("three");
        let fixed = Router::new(map.clone(), DaemonIndex(1), 2);
        let unknown = header(Header::TARGET, 3, 1);
        assert_eq!(fixed.route(&unknown, From::Session), Err(Errno::EINVAL));
        let router = fixed.that_grows();
        let to = |shard, daemon, epoch| router.route(&header(shard, daemon, epoch), From::Session);
        let owners: Vec<_> = (0..12).map(|shard| to(shard, shard % 3, 1)).collect();
        let target = |daemon, epoch| to(Header::TARGET, daemon, epoch);
        assert_eq!((target(3, 1), target(3, 3)), (Ok(Route::Wait), Ok(Route::Wait)));
        assert!(router.grow(5) && !router.grow(5) && !router.grow(4) && !router.grow(u16::MAX));
        assert_eq!((router.daemon_count(), router.epoch()), (5, 3));
        assert_eq!(Some(router.map_now()), map.grown_to(5));
        for epoch in [1, 2, 3] {
            let now: Vec<_> = (0..12).map(|shard| to(shard, shard % 3, epoch)).collect();
            assert_eq!(now, owners, "epoch {epoch}");
            assert_eq!(target(4, epoch), Ok(Route::Peer(DaemonIndex(4))));
            assert_eq!(target(5, epoch), Ok(Route::Wait), "it may come");
            assert_eq!(target(DAEMON_COUNT_MAX, epoch), Err(Errno::EINVAL));
        }
        assert_eq!(to(4, 4, 3), Err(Errno::EINVAL), "added daemons own no shard by name");
        assert_eq!((target(4, 4), target(4, 0)), (Ok(Route::Wait), Ok(Route::Stale(3))));
    }
}
