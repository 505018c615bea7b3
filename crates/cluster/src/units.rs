//! The table of units of file data in the membership: both change by the same order of changes.
//!
//!   a daemon dies, comes, leaves      one change, of the membership and then of the table
//!   a copy of a unit joins, leaves    `Change::Unit`, of the table alone
//!
//! The effect of a change of the table is in `replicas::change`. Here is the effect of a change of the
//! membership on it.
//!
//! Invariants
//! 1. Table and membership have the same daemons, with equal domains, presences and starts.
//! 2. The version of the table grows only with the epoch of the membership.

use crate::change::{Change, Refused};
use crate::membership::{Membership, Presence};
use replicas::change::Change as UnitChange;
use replicas::table::{Table, UNIT_BYTES_MAX, Unsuitable};
use std::sync::Arc;
use wire::DaemonIndex;
use wire::limits::{self, DAEMON_COUNT_MAX, FRAME_BYTES_MAX, UNIT_COUNT_MAX};

// The membership goes to others in one frame. Behind the units there are places for the members and
// services of the largest instance.
const _: () = assert!(UNIT_COUNT_MAX * UNIT_BYTES_MAX + (128 << 10) <= FRAME_BYTES_MAX);
const _: () = assert!(UNIT_COUNT_MAX >= DAEMON_COUNT_MAX as usize);

impl Membership {
    /// The same with units of file data: `goals` has the numbers of copies that files may ask for.
    /// For the first membership of an instance.
    ///
    /// # Errors
    /// `Unsuitable` if copies would not be apart, or more units than `limits::units_per_target`.
    pub fn with_units(
        mut self,
        goals: &[u8],
        units_per_target: u16,
        same_domain: bool,
    ) -> Result<Membership, Unsuitable> {
        let domains: Vec<u32> = self.members.iter().map(|member| member.domain).collect();
        if units_per_target > limits::units_per_target(domains.len(), goals.len()) {
            return Err(Unsuitable::Units);
        }
        let table = Table::initial(&domains, goals, units_per_target, same_domain)?;
        self.units = Some(Arc::new(table));
        Ok(self)
    }

    /// The units of file data and their copies; `None`: files have one copy.
    #[must_use]
    pub const fn units(&self) -> Option<&Arc<Table>> {
        self.units.as_ref()
    }

    /// Whether there may be units for one more target.
    pub(crate) fn may_add_units(&self) -> bool {
        self.units.as_ref().is_none_or(|units| {
            units.may_expect() && units.units().count() + units.units_of_target() <= UNIT_COUNT_MAX
        })
    }

    /// Makes a change of one unit.
    pub(crate) fn change_unit(&mut self, change: &UnitChange) -> Result<(), Refused> {
        let units = self.units.as_mut().filter(|_| change.unit().is_some()).ok_or(Refused)?;
        Arc::make_mut(units).apply(change).map_err(|_| Refused)
    }

    /// The effect of a change of daemons, which was made, on the table. Invariant 1: the table refuses
    /// nothing that the membership took.
    pub(crate) fn follow_in_units(&mut self, change: &Change) {
        let Some(units) = &mut self.units else { return };
        let _ = match *change {
            Change::Down { daemon, known, .. } => down(Arc::make_mut(units), daemon, known.version),
            Change::Left { daemon } => down(Arc::make_mut(units), daemon, u64::MAX),
            Change::Add { domain, incarnation, .. } => {
                Arc::make_mut(units).expect(domain, incarnation)
            }
            Change::Leave { daemon } => Arc::make_mut(units).apply(&UnitChange::Leave { daemon }),
            Change::Up { daemon, incarnation, domain, is_empty, known } => {
                let table = Arc::make_mut(units);
                let known = known.version;
                let up = UnitChange::Up { daemon, incarnation, domain, is_empty, known };
                let is_up = table.apply(&up);
                let member = self.members.get(usize::from(daemon.0));
                if member.is_some_and(|member| member.presence == Presence::Leaving) {
                    // It leaves on, also where it had died.
                    let _ = table.apply(&UnitChange::Leave { daemon });
                }
                is_up
            }
            _ => Ok(()),
        };
    }

    /// The daemons that a change of a unit concerns, which was made.
    pub(crate) fn concerned_by_unit(&self, change: &UnitChange) -> Vec<DaemonIndex> {
        let unit = change.unit().and_then(|unit| self.units.as_ref()?.unit(unit));
        let copies = unit.into_iter().flat_map(|unit| unit.copies.iter().map(|copy| copy.daemon));
        let subject = match *change {
            UnitChange::Drop { of } => Some(of.daemon),
            _ => None,
        };
        copies.chain(subject).collect()
    }
}

/// A daemon is dead. It acted on no later version of the table than this one.
fn down(
    table: &mut Table,
    daemon: DaemonIndex,
    known: u64,
) -> Result<(), replicas::change::Refused> {
    let incarnation = table.holder(daemon).map_or(0, |holder| holder.incarnation);
    table.apply(&UnitChange::Down { daemon, incarnation, known })
}
