//! Memory of the extent table: entries of slots become present before the target uses the slots. A
//! program or daemon that touched one for which `/dev/shm` has no room would be killed; a request
//! that finds no slot waits for space like any other.

use crate::target::devices::Devices;
use data::Target;
use std::time::{Duration, Instant};

/// Slots whose memory is made present at a time: 224 KiB.
const STEP: u32 = 4096;
/// Pause after `/dev/shm` had no room for a step.
const PAUSE: Duration = Duration::from_millis(200);

/// How far the entries of slots are present.
#[derive(Default)]
pub(crate) struct SlotMemory {
    /// Slots below it may be used.
    ready: u32,
    /// Not before this time is memory asked for again.
    retry_at: Option<Instant>,
}

impl SlotMemory {
    /// Makes the first entries present.
    pub(crate) fn first(devices: &Devices, target: &mut Target) -> SlotMemory {
        let mut memory = SlotMemory::default();
        memory.extend(devices, target);
        memory
    }

    /// Makes the next entries present, if the target comes near the end of those that are. True if
    /// a request may have found none and can go on now.
    pub(crate) fn extend(&mut self, devices: &Devices, target: &mut Target) -> bool {
        let (made, all) = (target.slot_count(), devices.table.count());
        if made.saturating_add(STEP / 2) <= self.ready || self.ready == all {
            return false;
        }
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        let slots = self.ready..made.saturating_add(STEP).min(all);
        let reserved = devices
            .table
            .reserve(slots.clone())
            .and_then(|()| devices.states.reserve(slots.clone()));
        match reserved {
            Ok(()) => {
                let was_short = self.ready > 0 && made >= self.ready;
                *self = SlotMemory { ready: slots.end, retry_at: None };
                target.allow_slots(slots.end);
                was_short
            }
            Err(errno) => {
                if self.retry_at.is_none() {
                    tracing::warn!(
                        slots = self.ready,
                        %errno,
                        "no memory in /dev/shm for more extents, writes wait for space"
                    );
                }
                self.retry_at = Some(Instant::now() + PAUSE);
                target.allow_slots(self.ready);
                false
            }
        }
    }
}
