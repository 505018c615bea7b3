//! The history of each cell, as clients saw it, and whether a register would show it: each operation
//! takes effect at one time between its beginning and its end. A write has a value that no other write
//! has, so a cell is decided by the zones of its values (Gibbons and Korach): from the first end of an
//! operation with a value to the last beginning of one, a register has this value.

use std::collections::BTreeMap;

/// When an operation began, and when it ended.
type Span = (i64, i64);

/// A write that has no answer may take effect at any time, or never.
const NEVER: i64 = i64::MAX;

#[derive(Default)]
struct CellHistory {
    writes: BTreeMap<u64, Span>,
    reads: Vec<(u64, Span)>,
}

/// Of all cells, by the number of the file and that of the cell.
#[derive(Default)]
pub(super) struct Histories {
    cells: BTreeMap<(u64, u64), CellHistory>,
}

/// Times between which a register has a value for sure (`is_forward`), or, if all operations with it are
/// at the same time, may have it.
#[derive(Clone, Copy)]
struct Zone {
    value: u64,
    start: i64,
    end: i64,
    is_forward: bool,
}

impl CellHistory {
    /// Why no register shows this; `None`: one does.
    fn fault(&self) -> Option<String> {
        let first = (0, (i64::MIN, i64::MIN));
        let writes: BTreeMap<u64, Span> =
            self.writes.iter().map(|(&value, &span)| (value, span)).chain([first]).collect();
        let mut zones: BTreeMap<u64, (i64, i64, bool)> = writes
            .iter()
            .map(|(&value, &(began, ended))| (value, (ended, began, ended != NEVER)))
            .collect();
        for &(value, (began, ended)) in &self.reads {
            let Some(&(written, _)) = writes.get(&value) else {
                return Some(format!("{value} was never written, and is read at {began}"));
            };
            if ended < written {
                return Some(format!("{value} is read at {began} and written at {written}"));
            }
            let zone = zones.entry(value).or_insert((ended, began, true));
            *zone = (zone.0.min(ended), zone.1.max(began), true);
        }
        let zones = zones.into_iter().filter(|(_, (.., is_made))| *is_made);
        let zone = |(value, (end, start, _)): (u64, (i64, i64, bool))| Zone {
            value,
            start: end.min(start),
            end: end.max(start),
            is_forward: end < start,
        };
        let (mut forward, backward): (Vec<Zone>, Vec<Zone>) =
            zones.map(zone).partition(|zone| zone.is_forward);
        forward.sort_by_key(|zone| zone.start);
        let crossed = forward.windows(2).find(|pair| pair[1].start < pair[0].end);
        if let Some([one, two]) = crossed {
            return Some(format!(
                "{} and {} are both there from {} to {}",
                one.value, two.value, two.start, one.end
            ));
        }
        let is_within =
            |inner: &Zone, outer: &Zone| outer.start < inner.start && inner.end < outer.end;
        for inner in backward {
            if let Some(outer) = forward.iter().find(|outer| is_within(&inner, outer)) {
                let (value, Zone { start, end, .. }) = (inner.value, *outer);
                return Some(format!(
                    "{value} is written within the time of {}, {start} to {end}",
                    outer.value
                ));
            }
        }
        None
    }
}

impl Histories {
    /// A write of cells begins, which have this value then, and no other write.
    pub(super) fn begin_write(&mut self, file: u64, cells: (u64, u64), value: u64, now: i64) {
        for cell in cells.0..cells.1 {
            let writes = &mut self.cells.entry((file, cell)).or_default().writes;
            assert!(value != 0 && writes.insert(value, (now, NEVER)).is_none());
        }
    }

    /// It is acknowledged.
    pub(super) fn end_write(&mut self, file: u64, cells: (u64, u64), value: u64, now: i64) {
        for cell in cells.0..cells.1 {
            let writes = &mut self.cells.entry((file, cell)).or_default().writes;
            writes.get_mut(&value).expect("it has begun").1 = now;
        }
    }

    /// A read of cells from `first` on, which began and ends now.
    pub(super) fn read(&mut self, file: u64, first: u64, values: &[u64], span: Span) {
        for (cell, &value) in (first..).zip(values) {
            self.cells.entry((file, cell)).or_default().reads.push((value, span));
        }
    }

    /// # Panics
    /// If no register shows what was seen of some cell.
    pub(super) fn check(&self) {
        for ((file, cell), history) in &self.cells {
            if let Some(fault) = history.fault() {
                let CellHistory { writes, reads } = history;
                panic!("file {file} cell {cell}: {fault}; written {writes:?}, read {reads:?}");
            }
        }
    }
}

#[test]
fn a_register_shows_some_histories_and_no_others() {
    let of = |writes: &[(u64, Span)], reads: &[(u64, Span)]| {
        let writes = writes.iter().copied().collect();
        CellHistory { writes, reads: reads.to_vec() }.fault()
    };
    let writes = [(1, (10, 20)), (2, (30, 40))];
    let shown: [&[(u64, Span)]; 6] = [
        &[],
        &[(0, (1, 5)), (0, (12, 14)), (1, (15, 17)), (1, (20, 29)), (2, (41, 42))],
        &[(1, (31, 33)), (2, (34, 36)), (2, (50, 60))],
        &[(0, (15, 16)), (1, (10, 35))],
        &[(0, (5, 20)), (2, (31, 90))],
        &[(1, (35, 50))],
    ];
    for reads in shown {
        assert_eq!(of(&writes, reads), None, "{reads:?}");
    }
    let not_shown: [(&[(u64, Span)], &str); 6] = [
        (&[(3, (50, 60))], "never written"),
        (&[(2, (21, 29))], "is read at 21 and written at 30"),
        (&[(0, (21, 22))], "within the time of 0"),
        (&[(1, (41, 42))], "within the time of 1"),
        (&[(1, (12, 13)), (0, (14, 15))], "within the time of 0"),
        (&[(2, (41, 42)), (1, (45, 46))], "are both there"),
    ];
    for (reads, why) in not_shown {
        let fault = of(&writes, reads).expect("a fault");
        assert!(fault.contains(why), "{reads:?}: {fault}");
    }
    // Without an answer it may take effect late, or never; once it was read it has.
    let open = [(1, (10, 20)), (2, (30, NEVER))];
    assert_eq!(of(&open, &[(1, (90, 95)), (2, (96, 97))]), None);
    assert_eq!(of(&open, &[(1, (90, 95))]), None);
    assert!(of(&open, &[(2, (90, 95)), (1, (96, 97))]).is_some());
}
