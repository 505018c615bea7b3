//! The backing store, the writeback of each host, and the owner of the files' names, which lists the
//! dirty objects.
//!
//! Checked: what a mark calls clean is in the backing store with these very bytes, or later ones; the
//! list of a lost unit has each object with acknowledged bytes that are nowhere else, and none whose
//! bytes are all saved, and those are right; in the end everything is saved.

use crate::checks::Cell;
use crate::clients::File;
use crate::world::{CELL, CELLS, Note, World, read_again};
use replicas::change::Reign;
use replicas::dirty::{DirtyObjects, Event, Notice};
use replicas::kept::Kept;
use replicas::node::{Node, Read};
use replicas::operation::{ByteRange, Object, Stamp};
use replicas::placement::UnitIndex;
use replicas::table::CopyState;
use std::collections::BTreeMap;
use testkit::world::MILLI;
use wire::DaemonIndex;

pub(crate) const OWNER: u16 = 1001;

/// A writeback of an object.
struct Run {
    host: u16,
    /// The process.
    process: u64,
    of: Reign,
    object: Object,
    clean: Stamp,
    cells: Vec<Cell>,
    /// A later change removed the object, perhaps not on all copies yet.
    is_removed: bool,
}

#[derive(Default)]
struct Saved {
    cells: Vec<Cell>,
    is_removed: bool,
    /// The owner knows that this was saved.
    told: Stamp,
}

#[derive(Default)]
pub(crate) struct Backing {
    saved: BTreeMap<(UnitIndex, Object), Saved>,
    pub(crate) list: DirtyObjects,
    runs: BTreeMap<u64, Run>,
}

impl Backing {
    fn cells(&self, place: (UnitIndex, Object)) -> Vec<Cell> {
        let mut cells = self.saved.get(&place).map(|it| it.cells.clone()).unwrap_or_default();
        cells.resize(CELLS as usize, Cell::default());
        cells
    }
}

impl World {
    /// The owner's process.
    pub(crate) fn at_owner(&mut self, from: u16, note: Note) {
        match note {
            Note::Notice(bytes) => {
                let notice: Notice = read_again(&bytes);
                if notice.event == Event::Removed {
                    self.check_removed(&notice);
                }
                self.backing.list.notice(&notice);
                self.send(OWNER, from, Note::Noticed(bytes));
            }
            Note::CleanUpTo(unit, object, stamp) => {
                self.backing.list.written_back(unit, object, stamp);
            }
            _ => {}
        }
    }

    /// A removal is noticed when no copy has the object any more.
    fn check_removed(&mut self, notice: &Notice) {
        let (unit, object, stamp) = (notice.unit, notice.object, notice.stamp);
        let row = self.registry.table.unit(unit).expect("a unit");
        let copies = row.with(CopyState::InSync).filter(|_| row.epoch == stamp.epoch);
        for copy in copies {
            let cells = self.cells(copy.0, unit, object, (0, CELLS as usize));
            let is_gone = cells.iter().all(|it| it.stamp == Stamp::default() || it.stamp > stamp);
            assert!(is_gone, "{copy:?} has {object:?}, which was removed by {stamp:?}: {cells:?}");
        }
        self.checks.was_removed(object, stamp);
    }

    /// The owner asks primaries about what their predecessors told.
    pub(crate) fn ask_primaries(&mut self) {
        let table = self.registry.table.clone();
        for (unit, row) in table.units() {
            let Some(primary) = row.primary else { continue };
            for object in self.backing.list.stale(unit, row.epoch).collect::<Vec<_>>() {
                self.send(OWNER, primary.0, Note::AskClean(unit, object));
            }
        }
    }

    pub(crate) fn tell_clean(&mut self, index: u16, unit: UnitIndex, object: Object) {
        let mut clean = None;
        self.with(index, |node, now, out| clean = node.clean_up_to(unit, object, now, out));
        if let Some(stamp) = clean {
            self.send(index, OWNER, Note::CleanUpTo(unit, object, stamp));
        }
    }

    /// The writeback of a host looks for something to do.
    pub(crate) fn write_back(&mut self, index: u16) {
        let dirty = match &self.hosts[usize::from(index)].node {
            Some(node) if self.is_running(index) => dirty(node, index),
            _ => return,
        };
        if dirty.is_empty() {
            return;
        }
        let (unit, object) = dirty[self.random.uniform(dirty.len() as u64) as usize];
        let mut begun = None;
        self.with(index, |node, now, out| begun = node.begin_writeback(unit, object, now, out));
        let Some(clean) = begun else { return };
        let host = &self.hosts[usize::from(index)];
        let (process, node) = (host.process(), host.node.as_ref().expect("it runs"));
        let epoch = node.table().unit(unit).expect("a unit").epoch;
        let born = node.table().version;
        let of = Reign { unit, epoch };
        let ticket = self.next_ticket();
        let run =
            Run { host: index, process, of, object, clean, cells: Vec::new(), is_removed: false };
        self.backing.runs.insert(ticket, run);
        let range = ByteRange { start: 0, end: CELLS * CELL };
        let read = Read { ticket, client: 1 << 40 | u64::from(index), object, range, born };
        self.with(index, |node, now, out| node.read(unit, read, now, out));
    }

    /// Whether the ticket is one of a writeback, which reads its bytes now.
    pub(crate) fn serve_writeback(&mut self, index: u16, ticket: u64) -> bool {
        let Some(run) = self.backing.runs.get(&ticket) else { return false };
        let (unit, object) = (run.of.unit, run.object);
        let cells = self.cells(index, unit, object, (0, CELLS as usize));
        if let Some(at) = cells.iter().position(|cell| cell.is_flipped) {
            self.end_writeback(ticket);
            if !cells[at].is_spoiled {
                self.found_flipped(index, unit, object, at as u64);
            }
            return true;
        }
        let node = self.hosts[usize::from(index)].node.as_ref().expect("it runs");
        let has = |kept: &Kept| kept.objects().any(|it| it.0 == object);
        let is_removed = !node.kept().get(&unit).is_some_and(has);
        let run = self.backing.runs.get_mut(&ticket).expect("it was found");
        (run.cells, run.is_removed) = (cells, is_removed);
        let time = MILLI + self.random.uniform(60 * MILLI as u64).cast_signed();
        self.push_commit(time, ticket);
        true
    }

    /// The answer to a writeback's read is none of bytes.
    pub(crate) fn end_writeback(&mut self, ticket: u64) {
        if let Some(run) = self.backing.runs.remove(&ticket) {
            self.end_run(&run, None);
        }
    }

    fn end_run(&mut self, run: &Run, clean: Option<Stamp>) {
        if self.hosts[usize::from(run.host)].process() == run.process {
            self.with(run.host, |node, now, out| {
                node.end_writeback(run.of, run.object, clean, now, out);
            });
        }
    }

    /// The bytes get their name in the backing store, and then the owner and the node are told. The
    /// process may end in between.
    pub(crate) fn commit(&mut self, ticket: u64) {
        let Some(mut run) = self.backing.runs.remove(&ticket) else { return };
        let (index, place) = (run.host, (run.of.unit, run.object));
        let host = &self.hosts[usize::from(index)];
        let now = host.clock(self.events.now());
        let may = host.node.as_ref().is_some_and(|node| node.may_write_back(run.of, now));
        let is_reached = !self.is_cut(index, OWNER) && !self.is_cut(OWNER, index);
        if !may || !is_reached || !self.is_running(index) || host.process() != run.process {
            return self.end_run(&run, None);
        }
        let saved = self.backing.saved.entry(place).or_default();
        (saved.cells, saved.is_removed) = (std::mem::take(&mut run.cells), run.is_removed);
        self.tally.saved += 1;
        let is_told = self.random.uniform(8) > 0;
        if is_told {
            saved.told = saved.told.max(run.clean);
            self.backing.list.written_back(place.0, place.1, run.clean);
        }
        let knows = is_told && self.random.uniform(8) > 0;
        self.end_run(&run, knows.then_some(run.clean));
        self.check_marks(Some(place));
    }

    /// The backing store has all that copies in sync take for clean.
    pub(crate) fn check_marks(&self, only: Option<(UnitIndex, Object)>) {
        for (index, host) in self.hosts.iter().enumerate() {
            let Some(node) = &host.node else { continue };
            for (&unit, kept) in node.kept() {
                let row = self.registry.table.unit(unit).expect("a unit");
                let copy = row.copy(DaemonIndex(index as u16));
                if copy.is_none_or(|copy| copy.state != CopyState::InSync) {
                    continue;
                }
                let objects =
                    kept.objects().filter(|it| only.is_none_or(|it2| it2 == (unit, it.0)));
                for (object, entry) in objects {
                    let cells = self.cells(index as u16, unit, object, (0, CELLS as usize));
                    let place = (unit, object);
                    if self.backing.saved.get(&place).is_some_and(|it| it.is_removed) {
                        continue;
                    }
                    let saved = self.backing.cells(place);
                    for (at, (cell, saved)) in cells.iter().zip(saved).enumerate() {
                        let is_said = cell.stamp <= entry.clean && entry.clean > Stamp::default();
                        let is_same = saved.stamp == cell.stamp && saved.write == cell.write;
                        assert!(
                            !is_said || cell.is_flipped || is_same || saved.stamp > cell.stamp,
                            "{index} takes {object:?} of {unit:?} for clean up to {:?}, cell {at} \
                             is {cell:?} and {saved:?} is saved",
                            entry.clean
                        );
                    }
                }
            }
        }
    }

    /// No copy of a unit is in reach: the list of what is lost.
    pub(crate) fn check_lost(&mut self, unit: UnitIndex) {
        let listed: Vec<Object> = self.backing.list.of(unit).collect();
        for file in self.files.clone().into_iter().filter(|file| file.unit == unit) {
            let object = file.object;
            let is_listed = listed.contains(&object);
            let place = (unit, object);
            let saved = self.backing.cells(place);
            let told = self.backing.saved.get(&place).map_or(Stamp::default(), |it| it.told);
            let removed = self.checks.removed(object);
            let floors = self.checks.floors(object, (0, CELLS));
            let is_missing = floors
                .iter()
                .zip(&saved)
                .any(|(&floor, saved)| floor > saved.stamp && floor > removed);
            assert!(is_listed || !is_missing, "{object:?} is lost and not listed: {floors:?}");
            // A new primary may have told of what its predecessor did, before it is asked.
            let epoch = self.registry.table.unit(unit).expect("a unit").epoch;
            let is_saved =
                told.epoch == epoch && floors.iter().all(|&floor| floor <= told) && told > removed;
            if is_saved && self.checks.are_known(object) {
                assert!(!is_listed, "{object:?} is listed and saved up to {told:?}: {floors:?}");
                self.checks.read(object, 0, &saved, &floors, false);
                self.tally.spared += 1;
            }
            self.tally.listed += u64::from(is_listed);
        }
    }

    /// An object that is not saved, although nothing keeps it from being.
    pub(crate) fn unsaved(&self) -> Option<String> {
        for (index, host) in self.hosts.iter().enumerate() {
            let node = host.node.as_ref()?;
            for (unit, object) in dirty(node, index as u16) {
                let cells = self.cells(index as u16, unit, object, (0, CELLS as usize));
                if cells.iter().all(|cell| !cell.is_flipped) {
                    return Some(format!("{object:?} of {unit:?} is dirty at {index}"));
                }
            }
        }
        let is_open = |file: &&File| {
            let mut listed = self.backing.list.of(file.unit);
            let row = self.registry.table.unit(file.unit).expect("a unit");
            let primary = row.primary.map_or(0, |primary| primary.0);
            let cells = self.cells(primary, file.unit, file.object, (0, CELLS as usize));
            let is_sound = cells.iter().all(|cell| !cell.is_flipped);
            is_sound && row.lost_at <= file.born && listed.any(|object| object == file.object)
        };
        self.files.iter().find(is_open).map(|file| format!("{file:?} is listed as dirty"))
    }
}

/// Objects that the writeback of a primary has to save.
fn dirty(node: &Node, index: u16) -> Vec<(UnitIndex, Object)> {
    let own = Some(DaemonIndex(index));
    let is_mine = |unit| node.table().unit(unit).is_some_and(|it| it.primary == own);
    let mine = node.kept().iter().filter(|(unit, _)| is_mine(**unit));
    mine.flat_map(|(&unit, kept)| kept.dirty().map(move |(object, _)| (unit, object))).collect()
}
