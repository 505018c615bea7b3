//! Changes of the table of units, and what each does. Every daemon applies the same changes in the
//! same order, so a change may be refused, but always by what it and the table say alone.

use crate::placement::{UnitIndex, best};
use crate::table::{CopyRow, CopyState, Holder, Presence, ROWS_MAX, Table, Unit};
use encoding::{Decode, Encode};
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};
use wire::limits::DAEMON_COUNT_MAX;

/// A unit in the time of one primary: a change that names another epoch is late.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Reign {
    /// The unit.
    pub unit: UnitIndex,
    /// Its epoch.
    pub epoch: u64,
}

/// A copy in the time of one primary, and since it is what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyId {
    /// The unit and its epoch.
    pub of: Reign,
    /// The daemon that has the copy.
    pub daemon: DaemonIndex,
    /// As in `CopyRow`.
    pub since: u64,
}

/// One change. The first three are those of the membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A daemon is dead. Copies in sync become primaries in its place.
    Down {
        /// The daemon.
        daemon: DaemonIndex,
        /// The start that died.
        incarnation: u64,
        /// Newest version of the table that was granted to the daemon with its lease: up to this
        /// one it may have acted on what the table says.
        known: u64,
    },
    /// A daemon takes part, again or for the first time.
    Up {
        /// The daemon; the next unused index for a new one.
        daemon: DaemonIndex,
        /// Number of its start, above the last.
        incarnation: u64,
        /// Its failure domain.
        domain: u32,
        /// Whether it has no bytes of an earlier start of it. For a unit that it had the last copy
        /// of, this says that all copies are gone.
        is_empty: bool,
        /// As in `Down`, of the start before, where nobody missed that.
        known: u64,
    },
    /// The copies of a daemon are to leave it.
    Leave {
        /// The daemon.
        daemon: DaemonIndex,
    },
    /// A daemon begins to be filled.
    Add {
        /// The unit.
        of: Reign,
        /// The daemon.
        daemon: DaemonIndex,
    },
    /// A copy is in sync. Proposed by the primary, which from then on acknowledges nothing without
    /// it.
    InSync {
        /// The copy.
        of: CopyId,
    },
    /// A copy no longer counts. Proposed by the primary when it does not answer, which acknowledges
    /// nothing without it until this is made, and by the policy for copies that are not needed.
    Drop {
        /// The copy.
        of: CopyId,
    },
    /// A copy in sync becomes the primary. Proposed by the primary, which from then on serves
    /// nothing until this is made or has become impossible.
    HandOver {
        /// The copy.
        of: CopyId,
    },
}

impl Change {
    /// The unit that it changes; `None`: a daemon, and so any unit.
    #[must_use]
    pub const fn unit(&self) -> Option<UnitIndex> {
        match *self {
            Change::Down { .. } | Change::Up { .. } | Change::Leave { .. } => None,
            Change::Add { of, .. } => Some(of.unit),
            Change::InSync { of } | Change::Drop { of } | Change::HandOver { of } => {
                Some(of.of.unit)
            }
        }
    }
}

/// The change does not fit the table: it is late, or was made already. It has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

impl Unit {
    fn succeed(&mut self, primary: DaemonIndex, since: u64) {
        // One that has started again waits as it did before.
        self.is_successor |= self.last != primary;
        self.primary = Some(primary);
        self.last = primary;
        self.epoch += 1;
        self.since = since;
    }

    /// A primary knew this version of the table, perhaps, and acknowledged without the copies that
    /// had left then.
    fn acted(&mut self, known: u64) {
        for copy in self.copies.iter_mut().filter(|copy| copy.left_at <= known) {
            copy.left_at = 0;
        }
    }

    /// A copy that has every acknowledged byte becomes the primary.
    fn crown(&mut self, daemon: DaemonIndex, since: u64) {
        for copy in self.copies.iter_mut().filter(|copy| copy.daemon == daemon) {
            if copy.state != CopyState::InSync {
                (copy.state, copy.since, copy.left_at) = (CopyState::InSync, since, 0);
            }
        }
        self.succeed(daemon, since);
    }

    fn copy_mut(&mut self, of: CopyId) -> Result<&mut CopyRow, Refused> {
        if self.epoch != of.of.epoch || self.primary.is_none() {
            return Err(Refused);
        }
        let mut copies = self.copies.iter_mut();
        copies.find(|copy| copy.daemon == of.daemon && copy.since == of.since).ok_or(Refused)
    }
}

impl Table {
    /// Applies a change.
    ///
    /// # Errors
    /// `Refused`; the table is as it was.
    pub fn apply(&mut self, change: &Change) -> Result<(), Refused> {
        match *change {
            Change::Down { daemon, incarnation, known } => {
                let holder = self.holder(daemon).ok_or(Refused)?;
                if holder.presence == Presence::Down || holder.incarnation != incarnation {
                    return Err(Refused);
                }
                self.down(daemon, known);
            }
            Change::Up { daemon, incarnation, domain, is_empty, known } => {
                let holder = Holder { domain, presence: Presence::Up, incarnation };
                self.up(daemon, holder, is_empty, known)?;
            }
            Change::Leave { daemon } => {
                let holder = self.holders.get_mut(usize::from(daemon.0)).ok_or(Refused)?;
                if holder.presence != Presence::Up {
                    return Err(Refused);
                }
                holder.presence = Presence::Leaving;
            }
            Change::Add { of, daemon } => self.add(of, daemon)?,
            Change::InSync { of } => {
                let copy = self.unit_mut(of.of.unit)?.copy_mut(of)?;
                if copy.state != CopyState::Joining {
                    return Err(Refused);
                }
                (copy.state, copy.left_at) = (CopyState::InSync, 0);
            }
            Change::Drop { of } => self.remove(of)?,
            Change::HandOver { of } => {
                if !self.may_hand_over(of) {
                    return Err(Refused);
                }
                let since = self.version + 1;
                let unit = self.unit_mut(of.of.unit)?;
                unit.succeed(of.daemon, since);
                // The primary before proposed it, and serves nothing since.
                unit.is_successor = false;
                unit.acted(u64::MAX);
            }
        }
        self.version += 1;
        Ok(())
    }

    /// A daemon gets the next unused index, and may come with a later number of its start:
    /// `Change::Up`. Two that were added may come in any order.
    ///
    /// # Errors
    /// `Refused` if it may not: `Table::may_expect`.
    pub fn expect(&mut self, domain: u32, incarnation: u64) -> Result<(), Refused> {
        if !self.may_expect() {
            return Err(Refused);
        }
        self.add_target(Holder { domain, presence: Presence::Down, incarnation });
        Ok(())
    }

    /// Whether `apply` would make this hand-over.
    #[must_use]
    pub fn may_hand_over(&self, of: CopyId) -> bool {
        let unit = self.unit(of.of.unit).filter(|unit| unit.epoch == of.of.epoch);
        let copy = unit.filter(|unit| unit.primary.is_some_and(|primary| primary != of.daemon));
        let copy = copy.and_then(|unit| unit.copy(of.daemon));
        let is_ready =
            copy.is_some_and(|copy| copy.since == of.since && copy.state == CopyState::InSync);
        is_ready && self.is_up(of.daemon)
    }

    fn unit_mut(&mut self, unit: UnitIndex) -> Result<&mut Unit, Refused> {
        self.units.get_mut(unit.0 as usize).ok_or(Refused)
    }

    /// Units that each daemon is the primary of.
    fn loads(&self) -> Vec<usize> {
        let mut loads = vec![0; self.holders.len()];
        for primary in self.units.iter().filter_map(|unit| unit.primary) {
            if let Some(load) = loads.get_mut(usize::from(primary.0)) {
                *load += 1;
            }
        }
        loads
    }

    fn down(&mut self, daemon: DaemonIndex, known: u64) {
        if let Some(holder) = self.holders.get_mut(usize::from(daemon.0)) {
            holder.presence = Presence::Down;
        }
        let (since, mut loads) = (self.version + 1, self.loads());
        for unit in &mut self.units {
            let is_primary = unit.primary == Some(daemon);
            if is_primary {
                unit.acted(known);
            }
            unit.copies.retain(|copy| {
                copy.daemon != daemon || copy.state != CopyState::Joining || copy.left_at > 0
            });
            for copy in unit.copies.iter_mut().filter(|copy| copy.daemon == daemon) {
                if copy.state == CopyState::InSync {
                    copy.left_at = since;
                }
                if copy.state != CopyState::Behind {
                    (copy.state, copy.since) = (CopyState::Behind, since);
                }
            }
            if !is_primary {
                continue;
            }
            let load = |it: &DaemonIndex| loads.get(usize::from(it.0)).copied().unwrap_or(0);
            let holders = &self.holders;
            let is_present = |copy: &&CopyRow| {
                let holder = holders.get(usize::from(copy.daemon.0));
                holder.is_some_and(|holder| holder.presence != Presence::Down)
            };
            let able = unit.copies.iter().filter(|copy| copy.has_all()).filter(is_present);
            let order = |copy: &&CopyRow| {
                (copy.state != CopyState::InSync, load(&copy.daemon), copy.daemon.0)
            };
            let successor = able.min_by_key(order).map(|copy| copy.daemon);
            unit.primary = None;
            if let Some(successor) = successor {
                unit.crown(successor, since);
                if let Some(load) = loads.get_mut(usize::from(successor.0)) {
                    *load += 1;
                }
            }
        }
    }

    /// A daemon has started again before anyone missed it. Nothing was acknowledged without its copies in
    /// sync, so those that it kept go on to count, each as one that begins anew for its primary.
    fn restarted(&mut self, daemon: DaemonIndex, is_empty: bool, known: u64) {
        let is_in_sync = |unit: &Unit| unit.with(CopyState::InSync).any(|it| it == daemon);
        let in_sync: Vec<bool> =
            self.units.iter().map(|unit| is_in_sync(unit) && !is_empty).collect();
        self.down(daemon, known);
        for (unit, was_in_sync) in self.units.iter_mut().zip(in_sync) {
            // Without another one it becomes the primary as one that was missed does.
            if !was_in_sync || unit.primary.is_none() {
                continue;
            }
            for copy in unit.copies.iter_mut().filter(|copy| copy.daemon == daemon) {
                (copy.state, copy.left_at) = (CopyState::InSync, 0);
            }
        }
    }

    fn up(
        &mut self,
        daemon: DaemonIndex,
        as_it_is: Holder,
        is_empty: bool,
        known: u64,
    ) -> Result<(), Refused> {
        let index = usize::from(daemon.0);
        if index == self.holders.len() && daemon.0 < DAEMON_COUNT_MAX {
            self.holders.push(as_it_is);
            return Ok(());
        }
        let before = *self.holder(daemon).ok_or(Refused)?;
        if before.incarnation >= as_it_is.incarnation {
            return Err(Refused);
        }
        if before.presence != Presence::Down {
            // It started again before anyone missed it. Only the others know what was
            // under way. Copies that left after what it knew have all that it acknowledged.
            self.restarted(daemon, is_empty, known);
        }
        if let Some(holder) = self.holders.get_mut(index) {
            // One that leaves goes on to leave.
            let leaves = before.presence == Presence::Leaving;
            *holder = as_it_is;
            holder.presence = if leaves { Presence::Leaving } else { as_it_is.presence };
        }
        let since = self.version + 1;
        for unit in 0..self.units.len() {
            self.returned(UnitIndex(unit as u32), daemon, is_empty, since);
        }
        Ok(())
    }

    /// A daemon returns: its part in a unit.
    fn returned(&mut self, index: UnitIndex, daemon: DaemonIndex, is_empty: bool, since: u64) {
        let Some(unit) = self.units.get(index.0 as usize) else { return };
        let is_waiting = unit.primary.is_none();
        let best = if is_waiting { best(self, index, |it| self.is_up(it)) } else { None };
        let Ok(unit) = self.unit_mut(index) else { return };
        if is_empty {
            unit.copies.retain(|copy| copy.daemon != daemon);
        }
        if is_waiting && unit.copy(daemon).is_some_and(CopyRow::has_all) {
            unit.crown(daemon, since);
        } else if is_waiting
            && !unit.copies.iter().any(CopyRow::has_all)
            && let Some(best) = best
        {
            // No copy is left. Old bytes that others have are not to be read.
            unit.lost_at = since;
            let state = CopyState::InSync;
            unit.copies = vec![CopyRow { daemon: best, since, state, left_at: 0 }];
            unit.succeed(best, since);
        }
    }

    fn add(&mut self, of: Reign, daemon: DaemonIndex) -> Result<(), Refused> {
        let may = self.is_up(daemon);
        let since = self.version + 1;
        let unit = self.unit_mut(of.unit)?;
        if unit.epoch != of.epoch || unit.primary.is_none() || !may {
            return Err(Refused);
        }
        if let Some(copy) = unit.copies.iter_mut().find(|copy| copy.daemon == daemon) {
            if copy.state != CopyState::Behind {
                return Err(Refused);
            }
            (copy.state, copy.since) = (CopyState::Joining, since);
            return Ok(());
        }
        if unit.copies.len() == ROWS_MAX {
            return Err(Refused);
        }
        unit.copies.push(CopyRow { daemon, since, state: CopyState::Joining, left_at: 0 });
        Ok(())
    }

    fn remove(&mut self, of: CopyId) -> Result<(), Refused> {
        let since = self.version + 1;
        let unit = self.unit_mut(of.of.unit)?;
        let is_primary = unit.primary == Some(of.daemon);
        let copy = unit.copy_mut(of)?;
        match copy.state {
            CopyState::InSync if !is_primary => {
                (copy.state, copy.since, copy.left_at) = (CopyState::Behind, since, since);
            }
            CopyState::InSync => return Err(Refused),
            _ => unit.copies.retain(|copy| copy.daemon != of.daemon),
        }
        Ok(())
    }
}

impl Encode for Reign {
    /// unit:u32 epoch:u64
    fn encode(&self, to: &mut Vec<u8>) {
        self.unit.0.encode(to);
        self.epoch.encode(to);
    }
}

impl Decode for Reign {
    fn decode(from: &mut Reader<'_>) -> Result<Reign, Malformed> {
        Ok(Reign { unit: UnitIndex(from.u32()?), epoch: from.u64()? })
    }
}

impl Encode for CopyId {
    /// of daemon:u16 since:u64
    fn encode(&self, to: &mut Vec<u8>) {
        self.of.encode(to);
        self.daemon.encode(to);
        self.since.encode(to);
    }
}

impl Decode for CopyId {
    fn decode(from: &mut Reader<'_>) -> Result<CopyId, Malformed> {
        let (of, daemon) = (Reign::decode(from)?, DaemonIndex::decode(from)?);
        Ok(CopyId { of, daemon, since: from.u64()? })
    }
}

impl Encode for Change {
    /// number:u8, then the fields in their order
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Change::Down { daemon, incarnation, known } => {
                to.push(0);
                daemon.encode(to);
                incarnation.encode(to);
                known.encode(to);
            }
            Change::Up { daemon, incarnation, domain, is_empty, known } => {
                to.push(1);
                daemon.encode(to);
                incarnation.encode(to);
                domain.encode(to);
                is_empty.encode(to);
                known.encode(to);
            }
            Change::Leave { daemon } => {
                to.push(2);
                daemon.encode(to);
            }
            Change::Add { of, daemon } => {
                to.push(3);
                of.encode(to);
                daemon.encode(to);
            }
            Change::InSync { of } => {
                to.push(4);
                of.encode(to);
            }
            Change::Drop { of } => {
                to.push(5);
                of.encode(to);
            }
            Change::HandOver { of } => {
                to.push(6);
                of.encode(to);
            }
        }
    }
}

impl Decode for Change {
    fn decode(from: &mut Reader<'_>) -> Result<Change, Malformed> {
        let daemon = DaemonIndex::decode;
        Ok(match from.u8()? {
            0 => {
                let (daemon, incarnation) = (daemon(from)?, from.u64()?);
                Change::Down { daemon, incarnation, known: from.u64()? }
            }
            1 => {
                let (daemon, incarnation) = (daemon(from)?, from.u64()?);
                let (domain, is_empty) = (from.u32()?, bool::decode(from)?);
                Change::Up { daemon, incarnation, domain, is_empty, known: from.u64()? }
            }
            2 => Change::Leave { daemon: daemon(from)? },
            3 => Change::Add { of: Reign::decode(from)?, daemon: daemon(from)? },
            4 => Change::InSync { of: CopyId::decode(from)? },
            5 => Change::Drop { of: CopyId::decode(from)? },
            6 => Change::HandOver { of: CopyId::decode(from)? },
            _ => return Err(Malformed),
        })
    }
}
