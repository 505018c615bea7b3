//! The thread `units` of a daemon: its start, with what an earlier start kept, and its end.
//!
//! A daemon that was killed may have left bytes that no unit has: those of an object that was to be
//! erased. They are erased before the node takes part in anything, or they would show in an object that
//! is made there later.

use super::clears::RunningClears;
use super::kept_log::{KeptLog, KeptLogPlace, KeptUnits};
use super::object::StripeBytes;
use super::performer::DaemonPerformer;
use super::shell::Shell;
use super::{Units, runner};
use crate::shared::Shared;
use crate::shared::reply::LOST_MICROS;
use crate::startup::found::Found;
use crate::startup::memory::Mapped;
use crate::startup::settings::Settings;
use crate::startup::{Failure, StartResult, WithoutCopies, failed};
use replicas::node::{Settings as UnitSettings, Window};
use replicas::operation::ByteRange;
use replicas::packet::ASK_BYTES_MAX;
use replicas::table::Table;
use shm::wait::steady_nanos;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::Inode;
use wire::limits::STRIPE_LOG2_MIN;
use wire::reply::Extent;

/// Length of the memory that says how far the log of units has come.
pub(crate) const UNITS_PROGRESS_BYTES: usize = size_of::<u64>();

/// The thread before it runs.
pub(crate) struct UnitThread {
    settings: UnitSettings,
    /// Number of this start of the daemon.
    start: u64,
    table: Arc<Table>,
    kept: (KeptLog, KeptUnits),
    /// Bytes of the target that no unit has.
    left_over: Vec<StripeBytes>,
}

/// Those of these extents that are of no object.
fn left_over(kept: &KeptUnits, extents: impl Iterator<Item = (Inode, Extent)>) -> Vec<StripeBytes> {
    let objects = kept.values().flat_map(|of_unit| of_unit.objects().map(|(object, _)| object));
    let places = objects.filter_map(|object| StripeBytes::of(object, ByteRange::ALL));
    let ends: BTreeMap<(Inode, u64), u64> =
        places.map(|it| ((it.inode, it.offset), it.offset + it.length)).collect();
    let is_of_none = |(inode, extent): &(Inode, Extent)| {
        let before = ends.range((*inode, 0)..=(*inode, extent.start)).next_back();
        before.is_none_or(|(_, end)| *end <= extent.start)
    };
    let bytes = |(inode, extent): (Inode, Extent)| {
        let (stripe_log2, offset, length) = (STRIPE_LOG2_MIN, extent.start, extent.length());
        StripeBytes { inode, stripe_log2, offset, length }
    };
    extents.filter(is_of_none).map(bytes).collect()
}

impl UnitThread {
    /// Reads what an earlier start of this daemon kept. `table`: the first one of the instance; a newer
    /// one comes from the membership.
    ///
    /// # Errors
    /// The log is not the one that was left.
    pub(crate) fn new(
        settings: &Settings,
        found: &Found,
        progress: Mapped,
        table: &Arc<Table>,
    ) -> StartResult<UnitThread> {
        let (identity, expected) = (found.identity(), found.expected());
        let place =
            KeptLogPlace::in_directory(&settings.data, identity, expected, progress.segment);
        let kept =
            place.and_then(KeptLog::open).map_err(Failure::of_file(WithoutCopies::NewInstance))?;
        let settings = UnitSettings {
            own: settings.me(),
            slice_bytes: ASK_BYTES_MAX,
            // Copies that are made anew are moves in the background, as those between tiers.
            fill_bytes_per_second: settings.instance.tiering_rate,
            behind_bytes_max: 0,
            client: Window::CLIENT,
            peer: Window::PEER,
        };
        let (start, table, left_over) = (found.number(), Arc::clone(table), Vec::new());
        Ok(UnitThread { settings, start, table, kept, left_over })
    }

    /// Compares what is kept with what the target has recovered.
    pub(crate) fn compare(&mut self, target: &data::Target) {
        // Files with one copy are in no unit, and extents that are ready for files to come have
        // no bytes yet.
        let is_ready = |it: &(Inode, Extent)| target.preallocated(it.0, it.1.start).is_some();
        let is_at_target = |it: &(Inode, Extent)| it.0.is_single() || is_ready(it);
        let extents = target.extents().filter(|it| !is_at_target(it));
        self.left_over = left_over(&self.kept.1, extents);
    }

    fn run_node(self, shared: &Arc<Shared>, units: &Units) -> StartResult<()> {
        let UnitThread { settings, start, table, kept, left_over } = self;
        let performer = DaemonPerformer::new(Arc::clone(shared));
        for bytes in left_over {
            let StripeBytes { inode, offset, .. } = bytes;
            tracing::info!(inode = inode.0, offset, "bytes that no unit has are erased");
            let erased = performer.clear_bytes(bytes);
            erased.map_err(failed("erase bytes that no unit has"))?;
        }
        let parts = (performer, RunningClears::new(settings.own, start));
        let mut shell = Shell::new(settings, table.as_ref().clone(), kept, parts, steady_nanos());
        runner::run(&mut shell, &units.inbox, steady_nanos)
    }

    /// Runs until the daemon stops, or until the log fails: then this daemon counts as dead, and others
    /// go on.
    pub(crate) fn run(self, shared: &Arc<Shared>) {
        let Some(units) = &shared.units else { return };
        let ended = self.run_node(shared, units);
        units.end(shared);
        if let Err(Failure { text: why, .. }) = ended {
            tracing::error!("{why}: this daemon has no part in any unit any more");
            if let Some(members) = &shared.members {
                members.give_up();
            }
        }
    }
}

impl Units {
    /// The node of this daemon is gone: requests that wait for it go elsewhere.
    fn end(&self, shared: &Shared) {
        self.inbox.end();
        for to in self.waiting.give_up() {
            shared.busy(to, LOST_MICROS);
        }
        shared.net.sender.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::super::object::object_of;
    use super::*;
    use replicas::kept::{Kept, KeptStep};
    use replicas::operation::{Kind, Operation, Stamp};
    use replicas::placement::UnitIndex;

    #[test]
    fn bytes_that_no_unit_has_are_found() {
        let mut units = KeptUnits::new();
        for (unit, inode, stripe) in [(0, 5, 0), (0, 5, 2), (7, 6, 1)] {
            let stamp = Stamp { epoch: 1, number: stripe + 1 };
            let (object, kind) = (object_of(Inode(inode), 16, stripe), Kind::Write);
            let range = ByteRange { start: 0, end: 9 };
            let operation = Operation { stamp, object, range, kind, requested: None };
            let kept: &mut Kept = units.entry(UnitIndex(unit)).or_default();
            kept.apply(&KeptStep::Begin(operation));
        }
        let (slot, location, tier, length_log2) = (0, 0, Extent::MEMORY, 12);
        let extent = |start| Extent { start, slot, location, length_log2, tier };
        let (stripe, length, stripe_log2) = (1 << 16, 4096, STRIPE_LOG2_MIN);
        let found: Vec<(u64, u64)> = vec![
            (4, 0),
            (5, 0),
            (5, stripe - 4096),
            (5, stripe),
            (5, 2 * stripe - 4096),
            (5, 2 * stripe),
            (5, 3 * stripe),
            (6, 0),
            (6, stripe),
            (7, stripe),
        ];
        let extents = found.into_iter().map(|(inode, start)| (Inode(inode), extent(start)));
        let left: Vec<StripeBytes> =
            [(4, 0), (5, stripe), (5, 2 * stripe - 4096), (5, 3 * stripe), (6, 0), (7, stripe)]
                .into_iter()
                .map(|(inode, offset)| StripeBytes {
                    inode: Inode(inode),
                    stripe_log2,
                    offset,
                    length,
                })
                .collect();
        assert_eq!(left_over(&units, extents), left);
    }
}
