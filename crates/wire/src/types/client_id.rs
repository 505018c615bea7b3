//! Client ids: the sender of a request, by a number that is unique in the instance's life.
//!
//! From the top: 10 bits of the daemon that gave the session, 16 of its start, 26 of the session,
//! and 12 of the slot or reply slot in it.

use crate::id::DaemonIndex;
use crate::limits::{ANSWER_SLOT_COUNT, DAEMON_COUNT_MAX};

/// Bits of session and slot; those above tell the daemon and its start.
pub const START_SHIFT: u32 = 38;
const START_BITS: u32 = 16;
/// Client ids of one start of a daemon.
pub const PER_START: u64 = 1 << START_SHIFT;
/// Client ids of one session.
pub const PER_SESSION: u64 = ANSWER_SLOT_COUNT as u64;
/// Sessions of one start of a daemon.
pub const SESSIONS_MAX: u64 = PER_START / PER_SESSION;

const _: () = assert!(START_SHIFT + START_BITS + DAEMON_COUNT_MAX.trailing_zeros() <= u64::BITS);

/// The first client id that a daemon gives in its start number `start`, of which the low bits
/// count.
#[must_use]
pub const fn first(daemon: DaemonIndex, start: u64) -> u64 {
    let start = start & ((1 << START_BITS) - 1);
    (((daemon.0 as u64) << START_BITS) | start) << START_SHIFT
}

/// The daemon that gave a client id.
#[must_use]
pub const fn issuer(client_id: u64) -> DaemonIndex {
    DaemonIndex((client_id >> (START_SHIFT + START_BITS)) as u16)
}
