//! From an entry to its shard, from a stripe to its target.
//!
//! The members of a group (O11) are spread evenly over the numbers of all targets: of `n` of `all`,
//! member `i` is `i * all / n` behind the first, which the hash of the file's number chooses.
//! Daemons of a host have consecutive numbers, so no host has two members more than another with as
//! many daemons. Stripe 0 is where it would be by hash: extents preallocated before their files
//! exist are right for both.
//!
//! An instance gets more targets while it has files. A file is on the targets that there were when it
//! was made: their number is in its layout (`Layout::place`), where it is another one than that with
//! which the instance began. So nothing that is placed moves, and a process that has the layout finds the
//! bytes without knowing how many targets there are now.

use wire::attributes::{Layout, placement, spread};
use wire::hash::{NameHash, mix};
use wire::limits::SHARD_COUNT;
use wire::{Attributes, DaemonIndex, Inode, ShardIndex};

/// The shard that holds the entry with hash `hash` of `directory`.
#[must_use]
pub const fn entry_shard(directory: &Attributes, hash: NameHash) -> ShardIndex {
    let shard = hash.wide_shard();
    let is_spread = shard.0 < spread::wide_below(directory.layout.spread);
    if is_spread { shard } else { ShardIndex(directory.layout.place) }
}

/// Entries of a directory that one shard holds because of their hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The shard.
    pub shard: ShardIndex,
    /// The hash before the first of them, for a listing that has come as far as `parts` was told.
    pub after: u64,
    /// The last hash.
    pub last: u64,
}

impl Part {
    /// True for the entries that are not spread by their hashes.
    #[must_use]
    pub const fn is_at_home(&self) -> bool {
        self.last == u64::MAX
    }
}

/// Where the entries of `directory` with a hash above `after` are, in the order of hashes.
pub fn parts(directory: &Attributes, after: u64) -> impl Iterator<Item = Part> + use<> {
    let below = spread::wide_below(directory.layout.spread);
    let home = ShardIndex(directory.layout.place);
    let first = NameHash(after).wide_shard().0;
    let wide = (first..below).map(move |shard| {
        let (begin, end) = (NameHash::first_of(shard), NameHash::first_of(shard + 1));
        Part { shard: ShardIndex(shard), after: after.max(begin.saturating_sub(1)), last: end - 1 }
    });
    let begin = NameHash::first_of(below).saturating_sub(1).max(after);
    let rest = Part { shard: home, after: begin, last: u64::MAX };
    wide.chain((below < SHARD_COUNT).then_some(rest))
}

/// The number of targets over which a file is placed that is not on one alone.
const fn count_of(layout: &Layout, first: u16) -> u16 {
    let count = if layout.place == 0 { first } else { layout.place };
    if count == 0 { 1 } else { count }
}

/// The target of stripe number `stripe` of a file, in an instance that began with `first` targets.
#[must_use]
pub const fn target(layout: &Layout, inode: Inode, stripe: u64, first: u16) -> DaemonIndex {
    match layout.placement {
        placement::LOCAL => DaemonIndex(layout.place),
        placement::HASH => hashed(inode, stripe, count_of(layout, first)),
        _ => {
            let group = targets(layout, inode, first);
            group.member((stripe % group.count as u64) as u16)
        }
    }
}

const fn hashed(inode: Inode, stripe: u64, count: u16) -> DaemonIndex {
    DaemonIndex((mix(inode.0, stripe) % count as u64) as u16)
}

/// All targets that may have stripes of a file, in the order in which a group takes turns, in an
/// instance that began with `first` targets.
#[must_use]
pub const fn targets(layout: &Layout, inode: Inode, first: u16) -> Targets {
    let of = count_of(layout, first);
    match (layout.placement, placement::group_count(layout.placement)) {
        (placement::LOCAL, _) => Targets::one(DaemonIndex(layout.place)),
        (_, None) => Targets { first: 0, next: 0, count: of, of },
        (_, Some(count)) => {
            let count = if count < of { count } else { of };
            Targets { first: hashed(inode, 0, of).0, next: 0, count, of }
        }
    }
}

/// The layout of a new file in an instance that has `now` targets and began with `first`, in its one
/// form: whatever a client asks for, the bytes are on targets that there are.
#[must_use]
pub const fn admitted(layout: Layout, first: u16, now: u16) -> Layout {
    let place = match layout.placement {
        placement::LOCAL if now > 0 => layout.place % now,
        _ if layout.place > first && layout.place <= now => layout.place,
        _ => 0,
    };
    Layout { place, ..layout }
}

/// Some of an instance's targets, each once, by members of a group.
#[derive(Clone, Debug)]
pub struct Targets {
    first: u16,
    /// The next member.
    next: u16,
    count: u16,
    /// Number of targets over which the file is placed.
    of: u16,
}

impl Targets {
    /// One target.
    #[must_use]
    pub const fn one(target: DaemonIndex) -> Targets {
        Targets { first: target.0, next: 0, count: 1, of: target.0.saturating_add(1) }
    }

    /// True if these are all targets of an instance that has so many now.
    #[must_use]
    pub const fn is_all(&self, now: u16) -> bool {
        self.count == self.of && self.of == now
    }

    const fn member(&self, number: u16) -> DaemonIndex {
        if self.count == 1 {
            return DaemonIndex(self.first);
        }
        let behind = number as u32 * self.of as u32 / self.count as u32;
        DaemonIndex(((self.first as u32 + behind) % self.of as u32) as u16)
    }
}

impl Iterator for Targets {
    type Item = DaemonIndex;

    fn next(&mut self) -> Option<DaemonIndex> {
        if self.next == self.count {
            return None;
        }
        let member = self.member(self.next);
        self.next += 1;
        Some(member)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.count - self.next);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Targets {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    fn grouped(count: u16) -> Layout {
        let placement = placement::group(count).expect("a group");
        Layout { placement, ..Layout::default() }
    }

    /// Any placement, often one that there is.
    fn placements() -> impl Strategy<Value = u8> {
        prop_oneof![Just(placement::LOCAL), Just(placement::HASH), 0u8..=255]
    }

    fn of_stripes(layout: &Layout, inode: u64, stripes: u64, all: u16) -> Vec<u16> {
        (0..stripes).map(|stripe| target(layout, Inode(inode), stripe, all).0).collect()
    }

    /// Each spread that there is.
    fn spreads() -> impl Strategy<Value = u8> {
        let auto = (0..=spread::STEPS).prop_map(spread::after_steps);
        prop_oneof![Just(spread::HOME), Just(spread::WIDE), auto]
    }

    proptest! {
        /// The parts of a directory follow each other without gap, and each hash is in the part of the
        /// shard that holds its entry; a listing that begins later skips only what is before.
        #[test]
        fn each_hash_is_in_the_part_of_its_shard(
            spread in spreads(),
            place in 0..SHARD_COUNT,
            hash in NameHash::FIRST..1 << 63,
            after in 0u64..1 << 63,
        ) {
            let layout = Layout { spread, place, ..Layout::default() };
            let directory = Attributes { layout, ..Attributes::default() };
            let mut end = 0;
            for part in parts(&directory, 0) {
                prop_assert_eq!(part.after, end);
                end = part.last;
            }
            prop_assert!(end >= (1 << 63) - 1);
            let of_hash = |part: &Part| part.after < hash && hash <= part.last;
            let found: Vec<Part> = parts(&directory, 0).filter(of_hash).collect();
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!(found[0].shard, entry_shard(&directory, NameHash(hash)));
            let later: Vec<Part> = parts(&directory, after).filter(of_hash).collect();
            prop_assert_eq!(later.len(), usize::from(hash > after));
            prop_assert!(later.iter().all(|part| part.shard == found[0].shard));
        }

        /// Names leave their home, and only that, as a directory is spread.
        #[test]
        fn a_step_moves_names_from_home_alone(
            steps in 0..spread::STEPS,
            place in 0..SHARD_COUNT,
            hash in NameHash::FIRST..1 << 63,
        ) {
            let of = |steps| {
                let layout = Layout { spread: spread::after_steps(steps), place, ..Layout::default() };
                let directory = Attributes { layout, ..Attributes::default() };
                entry_shard(&directory, NameHash(hash))
            };
            let (before, later) = (of(steps), of(steps + 1));
            prop_assert!(before == later || before.0 == place && later == NameHash(hash).wide_shard());
            prop_assert_eq!(of(0).0, place);
            prop_assert_eq!(of(spread::STEPS), NameHash(hash).wide_shard());
        }

        /// The stripes of a file are on exactly as many targets as its group has, in turn, and
        /// those are the ones that requests about the file are sent to.
        #[test]
        fn stripes_rotate_over_the_group(
            all in 1u16..=1024,
            count in 1u16..=placement::GROUP_MAX,
            inode in any::<u64>(),
            number in 0u64..1 << 40,
        ) {
            let layout = grouped(count);
            let count = count.min(all);
            let round = of_stripes(&layout, inode, u64::from(count), all);
            let queried: Vec<u16> =
                targets(&layout, Inode(inode), all).map(|target| target.0).collect();
            prop_assert_eq!(&round, &queried);
            prop_assert_eq!(queried.len(), targets(&layout, Inode(inode), all).len());
            let different: BTreeSet<u16> = round.iter().copied().collect();
            prop_assert_eq!(different.len(), usize::from(count));
            prop_assert!(round.iter().all(|&target| target < all));
            let member = round[(number % u64::from(count)) as usize];
            prop_assert_eq!(target(&layout, Inode(inode), number, all).0, member);
        }

        /// Every placement names all targets that it puts a stripe on, each once; stripe 0 of a
        /// group is where a hashed file's is.
        #[test]
        fn every_stripe_is_on_a_target_that_is_queried(
            all in 1u16..=64,
            layout in (placements(), any::<u16>()),
            inode in any::<u64>(),
        ) {
            let (placement, place) = layout;
            let layout = Layout { placement, place, ..Layout::default() };
            let layout = admitted(layout, all, all);
            let queried: Vec<u16> =
                targets(&layout, Inode(inode), all).map(|target| target.0).collect();
            let different: BTreeSet<u16> = queried.iter().copied().collect();
            prop_assert_eq!(queried.len(), different.len());
            let stripes = of_stripes(&layout, inode, 200, all);
            prop_assert!(stripes.iter().all(|one| different.contains(one)));
            if layout.placement != placement::LOCAL {
                let hashed = target(&Layout::default(), Inode(inode), 0, all);
                prop_assert_eq!(target(&layout, Inode(inode), 0, all), hashed);
            }
        }

        /// A file stays where it is while the instance grows, and a new one is where it would be in an
        /// instance that began with as many targets; all its bytes are on targets that there are.
        #[test]
        fn files_stay_where_they_are_while_targets_come(
            first in 1u16..=40,
            more in 0u16..=40,
            even_more in 0u16..=40,
            layout in (placements(), 0u16..100),
            inode in any::<u64>(),
        ) {
            let (now, later) = (first + more, first + more + even_more);
            let (placement, place) = layout;
            let asked_for = Layout { placement, place, ..Layout::default() };
            let layout = admitted(asked_for, first, now);
            prop_assert_eq!(admitted(layout, first, now), layout);
            prop_assert_eq!(admitted(layout, first, later), layout);
            let stripes = of_stripes(&layout, inode, 100, first);
            prop_assert!(stripes.iter().all(|&target| target < now));
            let queried: BTreeSet<u16> =
                targets(&layout, Inode(inode), first).map(|target| target.0).collect();
            prop_assert!(queried.iter().all(|&target| target < now));
            prop_assert!(stripes.iter().all(|target| queried.contains(target)));
            let is_local = placement == placement::LOCAL;
            if !is_local {
                let newest = admitted(Layout { place: now, ..asked_for }, first, now);
                let in_new = Layout { place: 0, ..asked_for };
                prop_assert_eq!(
                    of_stripes(&newest, inode, 100, first),
                    of_stripes(&in_new, inode, 100, now)
                );
                let is_all = targets(&newest, Inode(inode), first).is_all(now);
                prop_assert_eq!(is_all, targets(&newest, Inode(inode), first).len() == usize::from(now));
                let older = targets(&in_new, Inode(inode), first);
                prop_assert!(more == 0 || !older.is_all(now), "the others have nothing of it");
            }
            prop_assert!(!is_local || layout.place < now);
        }

        /// Hosts with equally many daemons, which have consecutive numbers, share a group evenly.
        #[test]
        fn hosts_share_a_group_evenly(
            hosts in 1u16..=32,
            daemons in 1u16..=16,
            count in 1u16..=placement::GROUP_MAX,
            inode in any::<u64>(),
        ) {
            let all = hosts * daemons;
            let mut members = std::vec![0u16; usize::from(hosts)];
            for target in targets(&grouped(count), Inode(inode), all) {
                members[usize::from(target.0 / daemons)] += 1;
            }
            let (least, most) = (members.iter().min(), members.iter().max());
            prop_assert!(most.copied() <= least.map(|least| least + 1), "{members:?}");
        }
    }

    /// Of the stripes of many files each target gets its share, whatever their number and size: the
    /// most loaded one has at most this many hundredths more.
    #[test]
    fn many_files_load_all_targets_alike() {
        for (all, count, stripes, more) in [
            (4, 1, 1, 3),
            (4, 2, 5, 3),
            (6, 4, 7, 3),
            (10, 3, 2, 4),
            (64, 8, 100, 6),
            (64, 64, 3, 6),
        ] {
            let layout = grouped(count);
            let mut loads = std::vec![0u64; usize::from(all)];
            // Numbers as shards issue them: in turn, each shard its own.
            let files = 20_000 * u64::from(all) / 4;
            for file in 0..files {
                let inode = Inode::new(ShardIndex((file % 7) as u16), file / 7);
                for stripe in 0..stripes {
                    loads[usize::from(target(&layout, inode, stripe, all).0)] += 1;
                }
            }
            let most = loads.iter().max().copied().unwrap_or(0);
            let hundredths = most * u64::from(all) * 100 / (files * stripes);
            assert!(hundredths <= 100 + more, "{count} of {all}: {hundredths}, {loads:?}");
        }
    }
}
