//! Origins: who sent a request, by a number that nobody else has in the instance's life.
//!
//! From above: 10 bits of the daemon that gave the session, 16 of its start, 26 of the session, and 12 of
//! the slot or row in it.

use crate::id::DaemonIndex;
use crate::limits::{ANSWERERS, DAEMON_COUNT_MAX};

/// Below lie session and slot; what is above says which start of which daemon it was.
pub const START_SHIFT: u32 = 38;
const START_BITS: u32 = 16;
/// Origins of one start of a daemon.
pub const PER_START: u64 = 1 << START_SHIFT;
/// Origins of one session.
pub const PER_SESSION: u64 = ANSWERERS as u64;
/// Sessions of one start of a daemon.
pub const SESSIONS_MAX: u64 = PER_START / PER_SESSION;

const _: () = assert!(START_SHIFT + START_BITS + DAEMON_COUNT_MAX.trailing_zeros() <= u64::BITS);

/// The first origin that a daemon gives in its start number `start`, of which the low bits count.
#[must_use]
pub const fn first(daemon: DaemonIndex, start: u64) -> u64 {
    let start = start & ((1 << START_BITS) - 1);
    (((daemon.0 as u64) << START_BITS) | start) << START_SHIFT
}

/// Which daemon gives an origin.
#[must_use]
pub const fn giver(origin: u64) -> DaemonIndex {
    DaemonIndex((origin >> (START_SHIFT + START_BITS)) as u16)
}
