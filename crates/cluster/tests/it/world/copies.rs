//! The copy of a service that a follower stores.

use super::{Disk, Table};
use cluster::membership::ServiceIndex;
use cluster::node::StandbyStep;
use cluster::shipping::records;

/// A copy of a service as a follower stores it.
#[derive(Clone, Default)]
pub(super) struct Copy {
    pub(super) whole: Table,
    pub(super) begun: Option<Table>,
}

fn apply(table: &mut Table, batch: &[u8]) {
    for record in records(batch) {
        // Of messages that were changed any bytes come.
        let Some((key, value)) = record.split_first_chunk() else { continue };
        let Some(value) = value.first_chunk() else { continue };
        table.insert(u64::from_le_bytes(*key), u64::from_le_bytes(*value));
    }
}

/// Does a step. Whether it fits those before.
#[must_use]
pub(super) fn store(disk: &mut Disk, service: ServiceIndex, step: StandbyStep) -> bool {
    let copy = disk.copies.entry(service.0).or_default();
    match step {
        StandbyStep::Begin => copy.begun = Some(Table::new()),
        StandbyStep::Records(batch) => {
            apply(&mut copy.whole, &batch);
            if let Some(begun) = &mut copy.begun {
                apply(begun, &batch);
            }
        }
        StandbyStep::Slice(batch) => {
            let Some(begun) = &mut copy.begun else { return false };
            apply(begun, &batch);
        }
        StandbyStep::Complete => {
            let Some(begun) = copy.begun.take() else { return false };
            copy.whole = begun;
            // A log from the time when this daemon was the owner is older than the copy.
            disk.owned.remove(&service.0);
        }
    }
    true
}
