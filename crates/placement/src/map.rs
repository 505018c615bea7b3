//! The instance map: which daemon owns which shard, in which epoch. Small, of fixed size,
//! everywhere.
//!
//! Encoded: epoch (8 bytes), number of daemons (2), then one owner (2) for each shard.

use wire::codec::{Malformed, Reader, Writer};
use wire::limits::{DAEMON_COUNT_MAX, SHARD_COUNT};
use wire::{DaemonIndex, ShardIndex};

/// Encoded length of a map.
pub const MAP_BYTES: usize = 8 + 2 + 2 * SHARD_COUNT as usize;

/// The map. A later epoch replaces an earlier one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// Counts the changes of the map. The first is 1.
    pub epoch: u64,
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
        Some(Map { epoch: 1, daemon_count, owners })
    }

    /// Number of daemons; each is one target, too.
    #[must_use]
    pub const fn daemon_count(&self) -> u16 {
        self.daemon_count
    }

    /// The daemon that owns `shard`.
    #[must_use]
    pub fn owner(&self, shard: ShardIndex) -> DaemonIndex {
        let index = usize::from(shard.0) % self.owners.len();
        DaemonIndex(self.owners.get(index).copied().unwrap_or(0))
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
    /// `Malformed` if it is too short or an owner does not exist.
    pub fn decode(from: &mut Reader<'_>) -> Result<Map, Malformed> {
        let epoch = from.u64()?;
        let daemon_count = from.u16()?;
        if daemon_count == 0 || daemon_count > DAEMON_COUNT_MAX {
            return Err(Malformed);
        }
        let mut owners = [0; SHARD_COUNT as usize];
        for owner in &mut owners {
            *owner = from.u16()?;
            if *owner >= daemon_count {
                return Err(Malformed);
            }
        }
        Ok(Map { epoch, daemon_count, owners })
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
    use proptest::prelude::*;

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

    #[test]
    fn an_owner_that_does_not_exist_is_refused() {
        let map = Map::initial(2).expect("two daemons");
        let mut bytes = [0; MAP_BYTES];
        map.encode(&mut Writer::new(&mut bytes));
        bytes[10] = 2;
        assert_eq!(Map::decode(&mut Reader::new(&bytes)), Err(Malformed));
    }
}
