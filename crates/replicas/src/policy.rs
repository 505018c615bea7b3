//! The next changes that a table needs: copies for units that have too few, the most endangered
//! first; the daemons that `placement` chooses, once all are safe, or other ones while memory of those
//! is needed by programs (`places`); and nothing that is not needed any more.
//!
//! The leader of the consensus asks from time to time. Each answer rests on the table and on what
//! daemons reported of their space, so a new leader goes on where the last one stopped.

mod places;

use crate::change::{Change, CopyId, Reign};
use crate::placement::{ChosenPlaces, UnitIndex, best};
use crate::space::Spaces;
use crate::table::{CopyState, ROWS_MAX, Table, Unit};
use places::Places;
use wire::DaemonIndex;

/// Units with too few copies that a daemon is filled with at a time. More would share its bandwidth and
/// all end late: the first units would be in danger for longer.
pub const JOINING_PER_DAEMON_MAX: usize = 4;
/// Units that move to a daemon at a time, or catch up there. Those that move have all their copies
/// meanwhile, so none is in danger; and of the time that a small one takes most is the way of its changes
/// to all daemons. At most a quarter of the units of a target have one copy more than they need.
pub const MOVING_PER_DAEMON_MAX: usize = 16;
const _: () = assert!(JOINING_PER_DAEMON_MAX < MOVING_PER_DAEMON_MAX);

/// The leader's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Proposes this change.
    Propose(Change),
    /// Tells the primary to hand over to this copy: `Node::advise`.
    HandOver(CopyId),
}

/// See the module; with what it found out for an earlier table.
#[derive(Default)]
pub struct Policy {
    places: ChosenPlaces,
}

impl Policy {
    /// As `next`, and sooner where few daemons changed since the last call.
    #[must_use]
    pub fn next(&mut self, table: &Table, spaces: &Spaces) -> Vec<Advice> {
        self.places.follow(table);
        next_with(table, &self.places, spaces)
    }
}

/// See the module. Nothing: the table is as it should be, or waits for copies that join.
#[must_use]
pub fn next(table: &Table, spaces: &Spaces) -> Vec<Advice> {
    Policy::default().next(table, spaces)
}

fn next_with(table: &Table, chosen: &ChosenPlaces, spaces: &Spaces) -> Vec<Advice> {
    let places = Places::new(table, chosen, spaces);
    let mut joining = vec![JoiningCopies::default(); table.daemons().count()];
    let mut units: Vec<(usize, UnitIndex, &Unit)> = Vec::new();
    for (index, unit) in table.units().filter(|(_, unit)| unit.primary.is_some()) {
        let safe = table.apart(&safe(table, unit));
        for daemon in unit.with(CopyState::Joining) {
            note_joining(&mut joining, daemon, safe < usize::from(unit.goal));
        }
        units.push((safe, index, unit));
    }
    units.sort_by_key(|&(safe, index, unit)| (safe.cmp(&usize::from(unit.goal)), safe, index));
    let mut found = Vec::new();
    for (safe, index, unit) in units {
        let bytes = spaces.bytes(index).unwrap_or(0);
        let chosen = places.of(index).unwrap_or_else(|| chosen.of(index));
        let view = View { table, index, unit, chosen, bytes, places: &places };
        if let Some(advice) = view.next(&joining) {
            if let Advice::Propose(Change::Add { daemon, .. }) = advice {
                note_joining(&mut joining, daemon, safe < usize::from(unit.goal));
            }
            found.push(advice);
        }
    }
    found
}

/// Copies that a daemon is filled with.
#[derive(Clone, Copy, Default)]
struct JoiningCopies {
    all: usize,
    /// Those of units with too few.
    missing: usize,
}

fn copies_at(joining: &[JoiningCopies], daemon: DaemonIndex) -> JoiningCopies {
    joining.get(usize::from(daemon.0)).copied().unwrap_or_default()
}

fn note_joining(joining: &mut [JoiningCopies], daemon: DaemonIndex, is_missing: bool) {
    if let Some(copies) = joining.get_mut(usize::from(daemon.0)) {
        copies.all += 1;
        copies.missing += usize::from(is_missing);
    }
}

/// Copies in sync at daemons that stay. Some of them may fail together: `Table::apart`.
fn safe(table: &Table, unit: &Unit) -> Vec<DaemonIndex> {
    unit.with(CopyState::InSync).filter(|&daemon| table.is_up(daemon)).collect()
}

struct View<'a> {
    table: &'a Table,
    index: UnitIndex,
    unit: &'a Unit,
    /// The daemons that should have its copies.
    chosen: &'a [DaemonIndex],
    bytes: u64,
    places: &'a Places,
}

impl View<'_> {
    fn of(&self) -> Reign {
        Reign { unit: self.index, epoch: self.unit.epoch }
    }

    fn copy_id(&self, daemon: DaemonIndex) -> Option<CopyId> {
        let copy = self.unit.copy(daemon)?;
        Some(CopyId { of: self.of(), daemon, since: copy.since })
    }

    fn drop_copy(&self, daemon: DaemonIndex) -> Option<Advice> {
        self.copy_id(daemon).map(|of| Advice::Propose(Change::Drop { of }))
    }

    fn next(&self, joining: &[JoiningCopies]) -> Option<Advice> {
        let safe = safe(self.table, self.unit);
        let goal = usize::from(self.unit.goal);
        let chosen = self.chosen;
        let coming: Vec<DaemonIndex> = self.unit.with(CopyState::Joining).collect();
        if self.table.apart(&safe) < goal {
            return self.repair(&safe, joining);
        }
        // Copies that the unit does not need, now that it has enough.
        let missing: Vec<DaemonIndex> =
            chosen.iter().copied().filter(|daemon| !safe.contains(daemon)).collect();
        if let Some(&extra) = coming.iter().find(|daemon| !missing.contains(daemon)) {
            return self.drop_copy(extra);
        }
        if let Some(daemon) = self.unit.with(CopyState::Behind).find(|it| !missing.contains(it)) {
            return self.drop_copy(daemon);
        }
        let best = chosen.first().copied().filter(|best| safe.contains(best));
        let primary = self.unit.primary?;
        if let Some(best) = best.or_else(|| safe.first().copied())
            && best != primary
            && (chosen.first() == Some(&best) || !self.table.is_up(primary))
        {
            return self.copy_id(best).map(Advice::HandOver);
        }
        let is_extra = |it: &DaemonIndex| {
            let others: Vec<DaemonIndex> =
                safe.iter().copied().filter(|other| other != it).collect();
            !chosen.contains(it) && *it != primary && self.table.apart(&others) >= goal
        };
        if let Some(extra) = self.unit.with(CopyState::InSync).find(is_extra) {
            return self.drop_copy(extra);
        }
        // The chosen daemon is back or new: it gets its copy, then the one in its place goes.
        let kept: Vec<DaemonIndex> =
            safe.iter().copied().filter(|daemon| chosen.contains(daemon)).collect();
        let has_place = |it: JoiningCopies| it.all < MOVING_PER_DAEMON_MAX;
        let may = |daemon: &DaemonIndex| {
            has_place(copies_at(joining, *daemon)) && self.may_add(*daemon, &kept)
        };
        let next = missing.into_iter().find(may);
        next.filter(|_| coming.is_empty()).and_then(|daemon| self.add(daemon))
    }

    /// The copy at a daemon begins, once the unit has a row for it: the oldest bytes give theirs, or
    /// a copy that leaves its daemon anyway.
    fn add(&self, daemon: DaemonIndex) -> Option<Advice> {
        if self.unit.copies.len() < ROWS_MAX || self.unit.copy(daemon).is_some() {
            return Some(Advice::Propose(Change::Add { of: self.of(), daemon }));
        }
        let behind = self.unit.copies.iter().filter(|copy| copy.state == CopyState::Behind);
        let oldest = behind.min_by_key(|copy| (copy.left_at > 0, copy.since));
        let mut in_sync = self.unit.with(CopyState::InSync);
        let leaves = |it: &DaemonIndex| !self.table.is_up(*it) && self.unit.primary != Some(*it);
        let least = oldest.map(|copy| copy.daemon).or_else(|| in_sync.find(leaves));
        least.and_then(|daemon| self.drop_copy(daemon))
    }

    /// Whether a copy at this daemon may begin, apart from these.
    fn may_add(&self, daemon: DaemonIndex, from: &[DaemonIndex]) -> bool {
        let is_copy = self.unit.copy(daemon).is_some_and(|it| it.state != CopyState::Behind);
        !is_copy && self.table.is_up(daemon) && self.table.is_apart(daemon, from)
    }

    fn repair(&self, safe: &[DaemonIndex], joining: &[JoiningCopies]) -> Option<Advice> {
        let are_safe = self.table.apart(safe);
        let needed = usize::from(self.unit.goal) - are_safe;
        // A copy that has old bytes catches up sooner than a new one is filled, so it may come
        // beside it; and as many of them at a time as move, since most of them is compared alone.
        let staying = self.table.staying(self.unit);
        let coming = self.table.apart(&staying) - are_safe;
        let has_place = |daemon| copies_at(joining, daemon).all < MOVING_PER_DAEMON_MAX;
        let mut returned = self.unit.with(CopyState::Behind);
        if coming <= needed
            && let Some(daemon) = returned.find(|&it| has_place(it) && self.may_add(it, &staying))
        {
            return self.add(daemon);
        }
        if coming >= needed {
            return None;
        }
        // Too few copies are worse than one that has no space for the next bytes.
        let is_able =
            |daemon| self.may_add(daemon, &staying) && self.places.may_take(daemon, self.bytes);
        let is_any_able = self.table.daemons().any(|(daemon, _)| is_able(daemon));
        let may = |daemon| {
            let has_place = copies_at(joining, daemon).missing < JOINING_PER_DAEMON_MAX;
            let takes = if is_any_able { is_able(daemon) } else { self.may_add(daemon, &staying) };
            has_place && takes
        };
        let next = best(self.table, self.index, may);
        next.and_then(|daemon| self.add(daemon))
    }
}
