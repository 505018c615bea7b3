//! Routing: which worker or daemon answers a request. Computed from the instance map, as the sender
//! did.

use placement::Map;
use placement::map::{WORKER_OF_TARGET, worker_of_shard};
use wire::errno::{Errno, Result};
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
#[derive(Clone, Debug)]
pub struct Router {
    /// The instance map.
    pub map: Map,
    /// Index of this daemon.
    pub me: DaemonIndex,
    /// Number of its workers.
    pub workers: usize,
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
    /// Destination of a request with this header.
    ///
    /// # Errors
    /// `EINVAL` for a daemon or shard that does not exist.
    pub fn route(&self, header: &Header, from: From) -> Result<Route> {
        if header.epoch > self.map.epoch {
            return Ok(Route::Wait);
        }
        if header.epoch < self.map.epoch {
            return Ok(Route::Stale(self.map.epoch));
        }
        let owner = DaemonIndex(header.daemon);
        if header.daemon >= self.map.daemon_count() {
            return Err(Errno::EINVAL);
        }
        let is_target = header.shard == Header::TARGET;
        if !is_target && self.map.owner(ShardIndex(header.shard)) != owner {
            return Err(Errno::EINVAL);
        }
        if owner != self.me {
            return match from {
                From::Session => Ok(Route::Peer(owner)),
                From::Peer => Ok(Route::Stale(self.map.epoch)),
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
        let router = Router { map, me: DaemonIndex(1), workers: 2 };
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
}
