//! Ranges of objects of which no copy has the bytes with a correct checksum: reading them is an error, at
//! each copy, until they are written again. There are hardly ever any.

use replicas::operation::{ByteRange, Object};
use replicas::placement::UnitIndex;
use std::collections::BTreeMap;

/// See the module. Ranges of an object do not overlap.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct SpoiledRanges {
    ranges: BTreeMap<(UnitIndex, Object), Vec<ByteRange>>,
}

impl SpoiledRanges {
    /// These bytes are of no use.
    pub(super) fn spoil(&mut self, unit: UnitIndex, object: Object, range: ByteRange) {
        self.mend(unit, object, range);
        if range.length() > 0 {
            self.ranges.entry((unit, object)).or_default().push(range);
        }
    }

    /// There are bytes again, or none at all.
    pub(super) fn mend(&mut self, unit: UnitIndex, object: Object, range: ByteRange) {
        let Some(ranges) = self.ranges.get_mut(&(unit, object)) else { return };
        let left = |old: &ByteRange| {
            let before = ByteRange { start: old.start, end: old.end.min(range.start) };
            let behind = ByteRange { start: old.start.max(range.end), end: old.end };
            [before, behind].into_iter().filter(|it| it.length() > 0)
        };
        *ranges = ranges
            .iter()
            .flat_map(|old| if old.overlaps(range) { left(old).collect() } else { vec![*old] })
            .collect();
        if ranges.is_empty() {
            self.ranges.remove(&(unit, object));
        }
    }

    /// Whether some of these bytes are of no use.
    pub(super) fn overlaps(&self, unit: UnitIndex, object: Object, range: ByteRange) -> bool {
        let ranges = self.ranges.get(&(unit, object));
        ranges.is_some_and(|ranges| ranges.iter().any(|it| it.overlaps(range)))
    }

    /// Nothing of the unit is here any more.
    pub(super) fn forget(&mut self, unit: UnitIndex) {
        self.ranges.retain(|(it, _), _| *it != unit);
    }

    /// Those of a unit.
    pub(super) fn of(&self, unit: UnitIndex) -> impl Iterator<Item = (Object, ByteRange)> {
        let of_unit = self.ranges.iter().filter(move |((it, _), _)| *it == unit);
        of_unit.flat_map(|((_, object), ranges)| ranges.iter().map(|range| (*object, *range)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Inode;

    const UNIT: UnitIndex = UnitIndex(3);
    const OBJECT: Object = Object { inode: Inode(1), stripe: 0 };

    /// Against a byte by byte model, in every order of a few ranges.
    #[test]
    fn ranges_are_those_of_their_bytes() {
        let ranges: Vec<ByteRange> =
            (0..6).flat_map(|start| (start..6).map(move |end| ByteRange { start, end })).collect();
        for first in &ranges {
            for second in &ranges {
                for third in &ranges {
                    let (mut spoiled, mut model) = (SpoiledRanges::default(), [false; 6]);
                    let mut set = |range: &ByteRange, is_spoiled: bool| {
                        model[range.start as usize..range.end as usize].fill(is_spoiled);
                    };
                    spoiled.spoil(UNIT, OBJECT, *first);
                    set(first, true);
                    spoiled.spoil(UNIT, OBJECT, *second);
                    set(second, true);
                    spoiled.mend(UNIT, OBJECT, *third);
                    set(third, false);
                    for at in 0..6 {
                        let byte = ByteRange { start: at, end: at + 1 };
                        let is_spoiled = spoiled.overlaps(UNIT, OBJECT, byte);
                        assert_eq!(
                            is_spoiled, model[at as usize],
                            "{first:?} {second:?} {third:?}"
                        );
                    }
                    let length: u64 = spoiled.of(UNIT).map(|(_, range)| range.length()).sum();
                    assert_eq!(length, model.iter().filter(|it| **it).count() as u64);
                    assert_eq!(length == 0, spoiled == SpoiledRanges::default());
                }
            }
        }
    }

    #[test]
    fn a_unit_is_forgotten_as_a_whole() {
        let (mut spoiled, other) = (SpoiledRanges::default(), UnitIndex(4));
        let range = ByteRange { start: 0, end: 9 };
        spoiled.spoil(UNIT, OBJECT, range);
        spoiled.spoil(other, OBJECT, range);
        spoiled.forget(UNIT);
        assert!(!spoiled.overlaps(UNIT, OBJECT, range) && spoiled.overlaps(other, OBJECT, range));
        spoiled.mend(other, OBJECT, ByteRange::ALL);
        assert_eq!(spoiled, SpoiledRanges::default());
    }
}
