//! The instance map: how many daemons there are, and which of them owned which shard first. Small, of
//! fixed size, everywhere.
//!
//! All shards of one worker thread of the first map are a *service*, which moves whole. It keeps its
//! name whichever daemon owns it: the daemon that owned it first, and the worker. Logs and messages
//! name services; requests and connections have owners.
//!
//! Each daemon that is added makes a new map, of the next epoch, in which nothing else is new: services
//! keep their names, and files their places, by the number of daemons of the first map. Numbers of
//! daemons that left stay theirs. Daemons know from the membership where services are; the map does not
//! tell.
//!
//! Encoded: epoch (8 bytes), number of daemons (2), then one owner (2) for each shard.

use wire::codec::{Malformed, Reader, Writer};
use wire::limits::{DAEMON_COUNT_MAX, SHARD_COUNT, WORKER_COUNT_MAX};
use wire::{DaemonIndex, ShardIndex};

/// Encoded length of a map.
pub const MAP_BYTES: usize = 8 + 2 + 2 * SHARD_COUNT as usize;

/// Epoch of the first map of an instance.
pub const FIRST_EPOCH: u64 = 1;

// A worker is named by a byte.
const _: () = assert!(WORKER_COUNT_MAX <= 256);

/// Name of a metadata service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServiceName {
    /// The daemon that owned it first.
    pub first: DaemonIndex,
    /// The worker thread that serves it, of any daemon.
    pub worker: u8,
}

/// The map. A later epoch replaces an earlier one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// Counts the changes of the map, each one daemon more.
    epoch: u64,
    daemon_count: u16,
    owners: [u16; SHARD_COUNT as usize],
}

impl Map {
    /// The first map of an instance: shards in turn over all daemons. `None` for a count of zero
    /// or above `DAEMON_COUNT_MAX`.
    #[must_use]
    pub fn initial(daemon_count: u16) -> Option<Map> {
        if daemon_count == 0 || daemon_count > DAEMON_COUNT_MAX {
            return None;
        }
        let owners = core::array::from_fn(|shard| shard as u16 % daemon_count);
        Some(Map { epoch: FIRST_EPOCH, daemon_count, owners })
    }

    /// The map of the same instance when it has so many daemons. `None`: there were more before, or there
    /// are too many.
    #[must_use]
    pub fn grown_to(&self, daemon_count: u16) -> Option<Map> {
        let added = daemon_count.checked_sub(self.daemon_count)?;
        let is_possible = daemon_count <= DAEMON_COUNT_MAX;
        let epoch = self.epoch + u64::from(added);
        is_possible.then(|| Map { epoch, daemon_count, ..self.clone() })
    }

    /// Counts the changes of the map, from `FIRST_EPOCH` on.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of daemons that there are or were; each is one target, too.
    #[must_use]
    pub const fn daemon_count(&self) -> u16 {
        self.daemon_count
    }

    /// Number of daemons of the first map. Their services have the shards, and files from then are placed
    /// over their targets.
    #[must_use]
    pub const fn first_count(&self) -> u16 {
        // Invariant: each later epoch has one daemon more.
        self.daemon_count - (self.epoch - FIRST_EPOCH) as u16
    }

    /// Services of the instance, where each daemon has so many workers. Those of daemons that were added
    /// have no shards: they serve their targets alone.
    pub fn services(&self, workers: usize) -> impl Iterator<Item = ServiceName> {
        let firsts = (0..self.daemon_count).map(DaemonIndex);
        firsts.flat_map(move |first| {
            (0..workers).map(move |worker| ServiceName { first, worker: worker as u8 })
        })
    }

    /// `Layout::place` of a file that is made now and placed over all targets.
    #[must_use]
    pub const fn place_of_new(&self) -> u16 {
        self.place_among(self.daemon_count)
    }

    /// The same when the instance has so many daemons.
    #[must_use]
    pub const fn place_among(&self, daemon_count: u16) -> u16 {
        if daemon_count <= self.first_count() { 0 } else { daemon_count }
    }

    /// The daemon that owned `shard` first, as the map has it.
    #[must_use]
    pub fn owner(&self, shard: ShardIndex) -> DaemonIndex {
        let index = usize::from(shard.0) % self.owners.len();
        DaemonIndex(self.owners.get(index).copied().unwrap_or(0))
    }

    /// The daemon that owned `shard` first.
    #[must_use]
    pub const fn first_owner(&self, shard: ShardIndex) -> DaemonIndex {
        DaemonIndex(shard.0 % self.first_count())
    }

    /// The daemon that owns a service, among `workers`. One without shards stays where it was.
    #[must_use]
    pub fn owner_of(&self, service: ServiceName, workers: usize) -> DaemonIndex {
        let ServiceName { first, worker } = service;
        let mut shards = (first.0..SHARD_COUNT).step_by(self.first_count().into()).map(ShardIndex);
        let one = shards.find(|&shard| worker_of_shard(shard, workers) == usize::from(worker));
        one.map_or(first, |shard| self.owner(shard))
    }

    /// The service of `shard`, among `workers`.
    #[must_use]
    pub const fn service(&self, shard: ShardIndex, workers: usize) -> ServiceName {
        let worker = worker_of_shard(shard, workers) as u8;
        ServiceName { first: self.first_owner(shard), worker }
    }

    /// Writes the encoded form.
    pub fn encode(&self, to: &mut Writer<'_>) {
        to.u64(self.epoch);
        to.u16(self.daemon_count);
        for &owner in &self.owners {
            to.u16(owner);
        }
    }

    /// Parses the encoded form.
    ///
    /// # Errors
    /// `Malformed` if it is too short, no instance has so many daemons in this epoch, or an owner is none
    /// of the first daemons.
    pub fn decode(from: &mut Reader<'_>) -> Result<Map, Malformed> {
        let epoch = from.u64()?;
        let daemon_count = from.u16()?;
        let is_possible = (FIRST_EPOCH..=u64::from(daemon_count)).contains(&epoch);
        if !is_possible || daemon_count > DAEMON_COUNT_MAX {
            return Err(Malformed);
        }
        let mut map = Map { epoch, daemon_count, owners: [0; SHARD_COUNT as usize] };
        let first_count = map.first_count();
        for owner in &mut map.owners {
            *owner = from.u16()?;
            if *owner >= first_count {
                return Err(Malformed);
            }
        }
        Ok(map)
    }
}

/// The worker thread of a daemon that owns `shard`, among `workers`.
#[must_use]
pub const fn worker_of_shard(shard: ShardIndex, workers: usize) -> usize {
    // Daemons take shards in turn, so the shard number itself would give every shard of daemon 0
    // of 2 to worker 0 of 2: mix it first.
    if workers <= 1 { 0 } else { (wire::hash::mix(shard.0 as u64, 1) % workers as u64) as usize }
}

/// The worker thread that owns a daemon's target.
pub const WORKER_OF_TARGET: usize = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locate::targets;
    use proptest::prelude::*;
    use wire::Layout;

    #[test]
    fn a_map_survives_encoding() {
        let map = Map::initial(7).expect("seven daemons");
        let mut bytes = [0; MAP_BYTES];
        let mut writer = Writer::new(&mut bytes);
        map.encode(&mut writer);
        assert_eq!(writer.finish(), Ok(MAP_BYTES));
        assert_eq!(Map::decode(&mut Reader::new(&bytes)), Ok(map));
    }

    proptest! {
        /// A map of any bytes is refused or names existing daemons, and encodes to the same bytes.
        #[test]
        fn changed_maps_are_refused_or_encode_to_the_same_bytes(
            daemons in 1u16..5, changes in proptest::collection::vec((0..MAP_BYTES, 0u8..6), 0..4),
            length in MAP_BYTES - 2..MAP_BYTES + 3,
        ) {
            let mut bytes = [0; MAP_BYTES + 3];
            Map::initial(daemons).expect("a few daemons").encode(&mut Writer::new(&mut bytes));
            changes.into_iter().for_each(|(at, to)| bytes[at] = to);
            let decoded = Map::decode(&mut Reader::new(&bytes[..length]));
            prop_assert!(decoded.is_err() || length >= MAP_BYTES);
            if let Ok(map) = decoded {
                let owners = (0..SHARD_COUNT).map(|shard| map.owner(ShardIndex(shard)).0);
                prop_assert!(owners.into_iter().all(|owner| owner < map.daemon_count()));
                let mut again = [0; MAP_BYTES];
                map.encode(&mut Writer::new(&mut again));
                prop_assert_eq!(&again[..], &bytes[..MAP_BYTES]);
            }
        }
    }

    proptest! {
        /// A service has one owner, whichever of its shards is asked, and keeps its name when that
        /// changes.
        #[test]
        fn a_service_keeps_its_name(daemons in 1u16..=40, workers in 1usize..=8, to in any::<u16>()) {
            let first = Map::initial(daemons).expect("a few daemons");
            let moved = first.service(ShardIndex(to % SHARD_COUNT), workers);
            let to = DaemonIndex(to % daemons);
            let mut map = first.clone();
            for shard in (0..SHARD_COUNT).map(ShardIndex) {
                if first.service(shard, workers) == moved {
                    map.owners[usize::from(shard.0)] = to.0;
                }
            }
            for shard in (0..SHARD_COUNT).map(ShardIndex) {
                let service = map.service(shard, workers);
                prop_assert_eq!(service, first.service(shard, workers));
                prop_assert_eq!(map.owner_of(service, workers), map.owner(shard));
                let expected = if service == moved { to } else { first.owner(shard) };
                prop_assert_eq!(map.owner(shard), expected);
            }
        }
    }

    #[test]
    fn an_owner_that_does_not_exist_is_refused() {
        let map = Map::initial(2).expect("two daemons");
        let mut bytes = [0; MAP_BYTES];
        map.encode(&mut Writer::new(&mut bytes));
        bytes[10] = 2;
        assert_eq!(Map::decode(&mut Reader::new(&bytes)), Err(Malformed));
    }

    proptest! {
        /// Services keep their names while daemons come, and new files are on all targets, whichever map
        /// finds their bytes.
        #[test]
        fn later_maps_have_the_same_services(
            daemons in 1u16..=40, more in 0u16..=40, workers in 1usize..=8, inode in any::<u64>(),
        ) {
            let (first, now) = (Map::initial(daemons).expect("a few daemons"), daemons + more);
            let map = first.grown_to(now).expect("a later map");
            let counts = (map.epoch(), map.daemon_count(), map.first_count());
            prop_assert_eq!(counts, (1 + u64::from(more), now, daemons));
            prop_assert_eq!(map.services(workers).count(), usize::from(now) * workers);
            for shard in (0..SHARD_COUNT).map(ShardIndex) {
                let service = map.service(shard, workers);
                prop_assert_eq!(service, first.service(shard, workers));
                prop_assert_eq!(map.owner(shard), first.owner(shard));
                prop_assert_eq!(map.owner_of(service, workers), service.first);
                prop_assert!(map.services(workers).any(|it| it == service));
            }
            let one_by_one = (daemons..=now).try_fold(first.clone(), |map, it| map.grown_to(it));
            prop_assert_eq!(one_by_one.as_ref(), Some(&map));
            let mut bytes = [0; MAP_BYTES];
            map.encode(&mut Writer::new(&mut bytes));
            let decoded = Map::decode(&mut Reader::new(&bytes)).ok();
            prop_assert_eq!(decoded.as_ref(), Some(&map));
            let new = Layout { place: map.place_of_new(), ..Layout::default() };
            prop_assert!(targets(&new, wire::Inode(inode), map.first_count()).is_all(now));
            prop_assert!(targets(&new, wire::Inode(inode), first.first_count()).is_all(now));
        }
    }

    #[test]
    fn an_instance_gets_no_fewer_daemons_and_not_too_many() {
        let map = Map::initial(3).and_then(|first| first.grown_to(5)).expect("two more");
        assert_eq!(map.grown_to(4), None);
        assert_eq!(map.grown_to(5).as_ref(), Some(&map));
        assert!(map.grown_to(DAEMON_COUNT_MAX).is_some());
        assert_eq!(map.grown_to(DAEMON_COUNT_MAX + 1), None);
        assert_eq!((map.place_of_new(), Map::initial(3).map(|it| it.place_of_new())), (5, Some(0)));
        assert_eq!([0, 3, 4, 6].map(|count| map.place_among(count)), [0, 0, 4, 6]);
    }

    /// Epoch and number of daemons fit each other, or no instance has the map.
    #[test]
    fn a_map_with_more_changes_than_daemons_is_refused() {
        for (epoch, count, is_right) in [(0, 3, false), (1, 3, true), (3, 3, true), (4, 3, false)] {
            let mut bytes = [0; MAP_BYTES];
            let mut writer = Writer::new(&mut bytes);
            writer.u64(epoch);
            writer.u16(count);
            assert_eq!(Map::decode(&mut Reader::new(&bytes)).is_ok(), is_right, "{epoch} {count}");
        }
    }
}
