//! Truncates that wait until earlier writes of this host have arrived.

use metadata::DataOp;
use shm::host::HostSegment;
use std::time::Instant;
use wire::{Inode, Layout};

/// Poll interval while a truncate waits for bytes in flight: the duration of a transfer.
const POLL_MICROS: u64 = 100;

/// A truncate that waits.
pub(crate) struct HeldTruncate {
    pub(crate) token: u64,
    pub(crate) inode: Inode,
    pub(crate) layout: Layout,
    pub(crate) op: DataOp,
    /// When it stops waiting.
    pub(crate) until: Instant,
}

/// Truncates of one worker that wait.
#[derive(Default)]
pub(crate) struct HeldTruncates {
    held: Vec<HeldTruncate>,
}

impl HeldTruncates {
    /// Holds a truncate.
    pub(crate) fn hold_truncate(&mut self, truncate: HeldTruncate) {
        self.held.push(truncate);
    }

    /// Takes truncates whose earlier writes have arrived, or that have waited for too long.
    pub(crate) fn take_ready(&mut self, host: &HostSegment) -> Vec<HeldTruncate> {
        if self.held.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let waits = |one: &HeldTruncate| host.has_transfers(one.inode) && now < one.until;
        let (held, ready) = std::mem::take(&mut self.held).into_iter().partition(waits);
        self.held = held;
        ready
    }

    /// True if a truncate waits.
    pub(crate) fn has_any_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Microseconds until the next poll, if a truncate waits.
    pub(crate) fn poll_micros(&self) -> Option<u64> {
        self.has_any_held().then_some(POLL_MICROS)
    }
}
