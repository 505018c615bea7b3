//! Recovery from arbitrary entries of the extent table.

use super::{ModelWorld, TIER_BYTES};
use crate::effect::{Effect, Input};
use crate::space::buddy::BLOCK_LOG2_MIN;
use crate::target::Target;
use proptest::prelude::*;
use wire::reply::Extent;
use wire::{Inode, Request};

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever entries are found, those accepted are consistent, and the others are named.
    #[test]
    fn recovery_accepts_no_entry_twice(
        entries in proptest::collection::vec(
            (0u64..4, 0u64..12, 0u32..45, 0u64..40, 13u8..18, 0u8..3), 0..40),
    ) {
        let settings = ModelWorld::new(false).settings;
        let unit = 1u64 << BLOCK_LOG2_MIN;
        let entries: Vec<(Inode, Extent)> = entries.into_iter()
            .map(|(inode, start, slot, location, length_log2, tier)| {
                let (start, location) = (start * unit, location * unit);
                (Inode(inode), Extent { start, slot, location, length_log2, tier })
            })
            .collect();
        let mut out = Vec::new();
        let (hidden, shown): (Vec<_>, Vec<_>) =
            entries.iter().copied().partition(|row| row.1.slot >= 40);
        let (mut target, discarded) = Target::recover(settings, shown, hidden, &mut out);
        let is_replaced =
            |effect: &&Effect| matches!(effect, Effect::Unpublish { slot } if *slot >= 40);
        let replaced = out.iter().filter(is_replaced).count();
        prop_assert_eq!(target.extents().count() + discarded.len() + replaced, entries.len());
        for row in &discarded {
            prop_assert!(target.is_damaged(row.inode));
        }
        let inodes: Vec<u8> = (1u64..4).flat_map(u64::to_le_bytes).collect();
        let request = Request::Remove { inodes: &inodes };
        target.step(Input::Request { ticket: 0, request: &request, job: wire::JobWord::NONE }, &mut out);
        target.step(Input::Hazards { round: u64::MAX, protected: &[], reading: &[] }, &mut out);
        prop_assert_eq!(target.pool.memory().bytes_free(), TIER_BYTES);
        prop_assert_eq!(target.pool.ssd().bytes_free(), TIER_BYTES);
    }
}
