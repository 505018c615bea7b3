//! The end of a run: without faults everything comes right, and then copies are equal.

use crate::world::{CELLS, World};
use replicas::node::Node;
use replicas::table::CopyState;
use wire::DaemonIndex;

impl World {
    /// Whether every unit has its copies, no operation waits and no node has anything to do.
    pub(crate) fn is_quiet(&self) -> bool {
        self.open().is_none()
    }

    fn open(&self) -> Option<String> {
        for (index, unit) in self.registry.table.units() {
            let is_whole = unit.primary.is_some() && unit.in_sync() == usize::from(unit.goal);
            if !is_whole || unit.copies.len() != usize::from(unit.goal) {
                return Some(format!("{index:?} is {unit:?}"));
            }
        }
        for (index, client) in self.clients.iter().enumerate() {
            if let Some((sequence, op)) = client.ops.first_key_value() {
                let (kind, file) = (op.kind, op.file);
                return Some(format!("client {index} waits for {sequence}: {kind:?} {file:?}"));
            }
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let node = host.node.as_ref()?;
            if node.table().version != self.registry.table.version || !Node::is_idle(node) {
                return Some(format!("node {index} has something to do"));
            }
        }
        self.unsaved()
    }

    pub(crate) fn check_all_is_well(&mut self) {
        if let Some(open) = self.open() {
            panic!("at {} {open}", self.events.now());
        }
        for index in 0..self.setup.daemons {
            self.add_counters(index);
        }
        let table = self.registry.table.clone();
        for (index, unit) in table.units() {
            let copies: Vec<DaemonIndex> = unit.with(CopyState::InSync).collect();
            let objects = |daemon: DaemonIndex| {
                let store = &self.hosts[usize::from(daemon.0)].store;
                store.keys().filter(move |it| it.0 == index).map(|it| it.1).collect::<Vec<_>>()
            };
            let mut all: Vec<_> = copies.iter().flat_map(|&copy| objects(copy)).collect();
            all.sort_unstable();
            all.dedup();
            for object in all {
                // Bytes that were lost do not come back.
                let is_file = self.files.iter().any(|it| it.object == object && it.unit == index);
                assert!(is_file, "{object:?} in {index:?} is of no file");
                let cells = |it: DaemonIndex| self.cells(it.0, index, object, (0, CELLS as usize));
                let first = cells(copies[0]);
                for &copy in &copies {
                    for (at, (one, two)) in first.iter().zip(cells(copy)).enumerate() {
                        let is_equal = one.write == two.write && one.stamp == two.stamp;
                        let is_flipped = one.is_flipped || two.is_flipped;
                        assert!(
                            is_equal || is_flipped,
                            "{index:?} {object:?} cell {at}: {one:?} at {:?}, {two:?} at {copy:?}",
                            copies[0]
                        );
                    }
                }
            }
        }
        self.check_files(&table);
        self.check_lent();
        self.check_marks(None);
        assert!(self.tally.written > 0, "nothing was written");
    }

    /// Every copy has what clients were told.
    fn check_files(&mut self, table: &replicas::table::Table) {
        for file in self.files.clone() {
            let unit = table.unit(file.unit).expect("a unit");
            if unit.lost_at > file.born {
                continue;
            }
            for copy in unit.with(CopyState::InSync) {
                let cells = self.cells(copy.0, file.unit, file.object, (0, CELLS as usize));
                for (at, cell) in (0..).zip(cells).filter(|(_, cell)| !cell.is_flipped) {
                    let floors = self.checks.floors(file.object, (at, at + 1));
                    self.checks.read(file.object, at, &[cell], &floors, !file.is_behind);
                }
            }
        }
    }

    /// A daemon of which all memory was reclaimed has nothing, if others can have it.
    fn check_lent(&self) {
        let most = self.setup.goals.iter().max().copied().unwrap_or(0);
        for (&index, _) in self.lent.iter().filter(|(_, cells)| **cells == 0) {
            let left = &self.hosts[usize::from(index)].store;
            assert!(left.is_empty() || self.setup.daemons <= most.into(), "{index} has {left:?}");
        }
    }

    fn add_counters(&mut self, index: u16) {
        if let Some(node) = &self.hosts[usize::from(index)].node {
            let counters = node.counters();
            self.tally.repairs += counters.repairs;
            self.tally.reads_at_copies += counters.reads_here;
            self.tally.bytes_filled += counters.bytes_filled;
        }
    }
}
