//! The bytes that clients saw, and whether that can be.
//!
//! A byte of the model is a cell. Each write has a number of its own, and a stamp that its answer
//! tells and that the cell shows where it is read. Stamps are compared with time: what a client
//! reads is not older than anything that was acknowledged, or read, before the read began; and a
//! write has one stamp, however often it was asked for.

use replicas::operation::{Object, Stamp};
use std::collections::BTreeMap;

/// A cell of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cell {
    /// Number of the write; 0: zeros.
    pub(crate) write: u64,
    pub(crate) stamp: Stamp,
    /// It fails its checksum.
    pub(crate) is_flipped: bool,
    /// It is known that all copies do.
    pub(crate) is_spoiled: bool,
}

#[derive(Default)]
struct Seen {
    /// The largest stamp that was acknowledged or read.
    floor: Stamp,
    /// Stamp of each write of zeros, once known.
    zeros: BTreeMap<u64, Option<Stamp>>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Checks {
    cells: BTreeMap<(Object, u64), Seen>,
    /// Object, cells, and the stamp once known, of each write.
    writes: BTreeMap<u64, Written>,
    removals: BTreeMap<Object, Stamp>,
}

struct Written {
    object: Object,
    cells: (u64, u64),
    is_zeros: bool,
    stamp: Option<Stamp>,
}

/// Floors when an operation began, cell by cell.
pub(crate) type Floors = Vec<Stamp>;

impl Checks {
    pub(crate) fn floors(&self, object: Object, (start, end): (u64, u64)) -> Floors {
        let floor = |cell| self.cells.get(&(object, cell)).map_or(Stamp::default(), |it| it.floor);
        (start..end).map(floor).collect()
    }

    pub(crate) fn begun(&mut self, write: u64, object: Object, cells: (u64, u64), is_zeros: bool) {
        self.writes.insert(write, Written { object, cells, is_zeros, stamp: None });
        if is_zeros {
            for cell in cells.0..cells.1 {
                self.cells.entry((object, cell)).or_default().zeros.insert(write, None);
            }
        }
    }

    pub(crate) fn acknowledged(&mut self, write: u64, stamp: Stamp, floors: &Floors) {
        let written = self.writes.get(&write).expect("it was begun");
        let (object, cells, is_zeros) = (written.object, written.cells, written.is_zeros);
        self.has_stamp(write, stamp);
        for (cell, &floor) in (cells.0..cells.1).zip(floors) {
            assert!(stamp > floor, "{write} at {object:?} {cell} has {stamp:?}, before {floor:?}");
            let seen = self.cells.entry((object, cell)).or_default();
            seen.floor = seen.floor.max(stamp);
            if is_zeros {
                seen.zeros.insert(write, Some(stamp));
            }
        }
    }

    /// The last removal of an object that was acknowledged, if it may have been one.
    pub(crate) fn removed(&self, object: Object) -> Stamp {
        self.removals.get(&object).copied().unwrap_or_default()
    }

    /// A removal was acknowledged.
    pub(crate) fn was_removed(&mut self, object: Object, stamp: Stamp) {
        let last = self.removals.entry(object).or_default();
        *last = stamp.max(*last);
    }

    /// Whether the place of each change of an object in their order is known.
    pub(crate) fn are_known(&self, object: Object) -> bool {
        self.writes.values().all(|it| it.object != object || it.stamp.is_some())
    }

    fn has_stamp(&mut self, write: u64, stamp: Stamp) {
        let known = &mut self.writes.get_mut(&write).expect("it was begun").stamp;
        let first = *known.get_or_insert(stamp);
        assert_eq!(first, stamp, "{write} was made twice");
    }

    /// Checks a read. `is_kept`: what was read once stays, because writes are acknowledged on all
    /// copies.
    pub(crate) fn read(
        &mut self,
        object: Object,
        start: u64,
        cells: &[Cell],
        floors: &Floors,
        is_kept: bool,
    ) {
        for ((at, cell), &floor) in (start..).zip(cells).zip(floors) {
            let name = format!("{object:?} cell {at}: {cell:?}, floor {floor:?}");
            if cell.write == 0 {
                let zeros = self.cells.get(&(object, at)).map(|seen| &seen.zeros);
                let mut known = zeros.into_iter().flat_map(BTreeMap::values);
                let may = floor == Stamp::default()
                    || known.any(|stamp| stamp.is_none_or(|stamp| stamp >= floor));
                assert!(may, "zeros at {name}");
                continue;
            }
            let written = self.writes.get(&cell.write).expect("a write");
            let covers = written.cells.0 <= at && at < written.cells.1;
            assert!(written.object == object && covers, "bytes of elsewhere at {name}");
            assert!(cell.stamp >= floor, "old bytes at {name}");
            if is_kept {
                self.has_stamp(cell.write, cell.stamp);
                let seen = self.cells.entry((object, at)).or_default();
                seen.floor = seen.floor.max(cell.stamp);
            }
        }
    }
}
