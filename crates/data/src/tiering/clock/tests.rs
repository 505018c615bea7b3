//! The lists against a plain model. Their hit rates on traces: `tests/it/replacement`.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const IDLE_MILLIS: u32 = 50;

/// No victim is absent, or chosen twice, or was scanned within a pause; and each extent becomes a
/// victim once it is not used any more.
#[derive(Clone, Debug)]
enum PolicyAct {
    Insert(u32, bool),
    Remove(u32),
    Use(u32),
    Victim(u32, bool),
}

fn act() -> impl Strategy<Value = PolicyAct> {
    prop_oneof![
        3 => (0u32..20, any::<bool>()).prop_map(|(slot, hot)| PolicyAct::Insert(slot, hot)),
        1 => (0u32..20).prop_map(PolicyAct::Remove),
        3 => (0u32..20).prop_map(PolicyAct::Use),
        4 => (0u32..60, any::<bool>()).prop_map(|(pause, forced)| PolicyAct::Victim(pause, forced)),
    ]
}

proptest! {
    #[test]
    fn lists_hold_exactly_the_known_extents(acts in proptest::collection::vec(act(), 1..200)) {
        let mut clock = ClockPolicy::new(IDLE_MILLIS);
        let (mut here, mut marks) = (BTreeSet::new(), BTreeSet::new());
        let mut now = u32::MAX - 500;
        for act in acts {
            match act {
                PolicyAct::Insert(slot, hot) => {
                    here.insert(slot);
                    match hot {
                        true => clock.insert_hot(slot, now),
                        false => clock.insert(slot, now),
                    }
                }
                PolicyAct::Remove(slot) => {
                    here.remove(&slot);
                    clock.remove(slot);
                }
                PolicyAct::Use(slot) => drop(marks.insert(slot)),
                PolicyAct::Victim(pause, forced) => {
                    now = now.wrapping_add(pause);
                    let out = if forced { VictimRule::Forced } else { VictimRule::Normal };
                    let mut looked = BTreeSet::new();
                    let victim = clock.victim(now, out, 8, &mut |slot| {
                        looked.insert(slot);
                        marks.remove(&slot)
                    });
                    prop_assert!(looked.iter().all(|slot| here.contains(slot)));
                    if let Some(slot) = victim {
                        prop_assert!(here.remove(&slot) && looked.contains(&slot));
                    }
                }
            }
        }
        let mut bytes_left = here.len();
        for _ in 0..40 {
            now = now.wrapping_add(IDLE_MILLIS);
            while let Some(slot) = clock.victim(now, VictimRule::Normal, 8, &mut |_| false) {
                prop_assert!(here.remove(&slot));
                bytes_left -= 1;
            }
        }
        prop_assert_eq!(bytes_left, 0);
    }
}
