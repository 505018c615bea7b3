//! Accepted connections that have not proven themselves: how many there may be, which one gives way
//! to a newcomer, and how long each may take.
//!
//! Everybody that reaches the port can open such connections, but a daemon of the instance needs one
//! for a round trip only. So a newcomer is never turned away: the oldest one gives way, and of a
//! source that has many, the oldest of that source. Pure; sockets are in `transport`.
//!
//! Invariant: there are at most `COUNT_MAX`, and at most `SOURCE_COUNT_MAX` of a source.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Maximum number of strangers.
pub(crate) const COUNT_MAX: usize = 128;
/// Maximum number of one address: half of all, so that no single host can displace all others.
pub(crate) const SOURCE_COUNT_MAX: usize = COUNT_MAX / 2;
/// From this number on, a stranger has less time.
const CROWDED_COUNT: usize = COUNT_MAX / 4;
/// Time for the handshake.
const TIME: Duration = Duration::from_secs(5);
/// The same when many wait: a round trip and a lost packet between hosts.
const CROWDED_TIME: Duration = Duration::from_secs(1);

struct Stranger {
    source: Option<IpAddr>,
    since: Instant,
}

/// The strangers by connection number, which is the order of their arrival.
#[derive(Default)]
pub(crate) struct Strangers(BTreeMap<u64, Stranger>);

impl Strangers {
    /// Adds a connection; returns the one that has to be closed for it.
    pub(crate) fn add(&mut self, key: u64, source: Option<IpAddr>, now: Instant) -> Option<u64> {
        let of_source = self.0.iter().filter(|(_, one)| one.source == source);
        let oldest_of_source = of_source.clone().next().map(|(&key, _)| key);
        let leaves = if of_source.count() >= SOURCE_COUNT_MAX {
            oldest_of_source
        } else if self.0.len() >= COUNT_MAX {
            self.0.keys().next().copied()
        } else {
            None
        };
        if let Some(leaves) = leaves {
            self.0.remove(&leaves);
        }
        self.0.insert(key, Stranger { source, since: now });
        leaves
    }

    /// Removes a connection: it has proven itself, or is closed.
    pub(crate) fn remove(&mut self, key: u64) {
        self.0.remove(&key);
    }

    /// Time that each may take now.
    fn time(&self) -> Duration {
        if self.0.len() >= CROWDED_COUNT { CROWDED_TIME } else { TIME }
    }

    /// When the first one has to be closed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        // They arrived in the order of their numbers.
        self.0.values().next().map(|one| one.since + self.time())
    }

    /// Those whose time is over.
    pub(crate) fn late(&self, now: Instant) -> Vec<u64> {
        let time = self.time();
        let late = self.0.iter().take_while(|(_, one)| one.since + time <= now);
        late.map(|(&key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn a_source_with_many_connections_displaces_only_its_own() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        assert_eq!(strangers.add(0, address(1), now), None);
        for key in 1..=SOURCE_COUNT_MAX as u64 {
            assert_eq!(strangers.add(key, address(2), now), None);
        }
        assert_eq!(strangers.add(1000, address(2), now), Some(1));
        assert_eq!(strangers.add(1001, address(2), now), Some(2));
        assert_eq!(strangers.add(1002, address(3), now), None);
        assert!(strangers.0.contains_key(&0));
    }

    #[test]
    fn the_oldest_of_a_full_table_gives_way() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        for key in 0..COUNT_MAX as u64 {
            assert_eq!(strangers.add(key, address(key as u8), now), None);
        }
        assert_eq!(strangers.add(500, address(200), now), Some(0));
        strangers.remove(1);
        assert_eq!(strangers.add(501, address(201), now), None);
        assert_eq!(strangers.add(502, address(202), now), Some(2));
    }

    #[test]
    fn a_crowd_has_less_time() {
        let (mut strangers, begun) = (Strangers::default(), Instant::now());
        strangers.add(0, address(0), begun);
        assert_eq!(strangers.deadline(), Some(begun + TIME));
        assert!(strangers.late(begun + CROWDED_TIME).is_empty());
        for key in 1..CROWDED_COUNT as u64 {
            strangers.add(key, address(key as u8), begun + TIME / 10);
        }
        assert_eq!(strangers.deadline(), Some(begun + CROWDED_TIME));
        assert_eq!(strangers.late(begun + CROWDED_TIME), [0]);
        assert_eq!(strangers.late(begun + TIME).len(), CROWDED_COUNT);
    }

    proptest! {
        /// Whatever arrives and leaves, the bounds hold, and the newcomer stays.
        #[test]
        fn the_bounds_hold(arrivals in proptest::collection::vec((0u8..4, any::<bool>()), 0..600)) {
            let (mut strangers, now) = (Strangers::default(), Instant::now());
            for (key, (source, leaves)) in arrivals.into_iter().enumerate() {
                let key = key as u64;
                strangers.add(key, address(source), now);
                prop_assert!(strangers.0.contains_key(&key) && strangers.0.len() <= COUNT_MAX);
                let of_source = strangers.0.values().filter(|one| one.source == address(source));
                prop_assert!(of_source.count() <= SOURCE_COUNT_MAX);
                if leaves {
                    strangers.remove(key / 2);
                }
            }
        }
    }
}
