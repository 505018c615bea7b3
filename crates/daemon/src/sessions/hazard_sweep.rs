//! Hazard pointers of sessions that ended: those of killed threads are freed before the kernel gives
//! their numbers to other threads, which would then seem to copy, and to fill pages.

use crate::target::Devices;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The sessions that ended and may have hazard pointers.
pub(crate) struct HazardSweep {
    devices: Arc<Devices>,
    ended: BTreeSet<u16>,
}

impl HazardSweep {
    /// No session has ended.
    pub(crate) const fn new(devices: Arc<Devices>) -> HazardSweep {
        HazardSweep { devices, ended: BTreeSet::new() }
    }

    /// A session ended. A killed process closes its sockets slightly before it is gone.
    pub(crate) fn add_ended(&mut self, session: u16) {
        self.ended.insert(session);
    }

    /// Frees the hazard pointers of dead threads. False if those of living ones are left: clients of an
    /// earlier daemon share the numbers of sessions.
    pub(crate) fn run(&mut self) -> bool {
        let hazards = &self.devices.client_hazards;
        self.ended.retain(|&session| {
            let mut is_any_left = false;
            hazards.each(session, &mut |_| is_any_left = true);
            is_any_left
        });
        self.ended.is_empty()
    }
}
