//! The lists against a plain model. What they are worth on traces: `tests/coolness`.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const IDLE_MILLIS: u32 = 50;

/// No piece is chosen that is not there, or twice, or younger than a pause; each that is there is chosen
/// if it is used no more.
#[derive(Clone, Debug)]
enum Act {
    Insert(u32, bool),
    Remove(u32),
    Use(u32),
    Victim(u32, bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0u32..20, any::<bool>()).prop_map(|(slot, proven)| Act::Insert(slot, proven)),
        1 => (0u32..20).prop_map(Act::Remove),
        3 => (0u32..20).prop_map(Act::Use),
        4 => (0u32..60, any::<bool>()).prop_map(|(pause, forced)| Act::Victim(pause, forced)),
    ]
}

proptest! {
    #[test]
    fn lists_hold_what_is_there(acts in proptest::collection::vec(act(), 1..200)) {
        let mut waves = Waves::new(IDLE_MILLIS);
        let (mut here, mut marks) = (BTreeSet::new(), BTreeSet::new());
        let mut now = u32::MAX - 500;
        for act in acts {
            match act {
                Act::Insert(slot, proven) => {
                    here.insert(slot);
                    match proven {
                        true => waves.insert_proven(slot, now),
                        false => waves.insert(slot, now),
                    }
                }
                Act::Remove(slot) => {
                    here.remove(&slot);
                    waves.remove(slot);
                }
                Act::Use(slot) => drop(marks.insert(slot)),
                Act::Victim(pause, forced) => {
                    now = now.wrapping_add(pause);
                    let out = if forced { Out::Forced } else { Out::Normal };
                    let mut looked = BTreeSet::new();
                    let victim = waves.victim(now, out, 8, &mut |slot| {
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
        let mut left = here.len();
        for _ in 0..40 {
            now = now.wrapping_add(IDLE_MILLIS);
            while let Some(slot) = waves.victim(now, Out::Normal, 8, &mut |_| false) {
                prop_assert!(here.remove(&slot));
                left -= 1;
            }
        }
        prop_assert_eq!(left, 0);
    }
}
