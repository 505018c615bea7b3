//! Leases: what the daemon of one host was told of directories of a service of another, and what its
//! clients may believe without asking. Who grants and recalls: `metadata`; where it stands: `shm`.
//!
//! Times are of a clock that nobody sets and that runs on in a suspended machine, each host's own
//! (`CLOCK_BOOTTIME`); only lengths of time are compared between hosts.

use crate::id::DaemonIndex;
use crate::limits::{DAEMON_COUNT_MAX, WORKER_COUNT_MAX};

/// How long what was granted may be believed, counted from when it was asked for. A change of a
/// directory waits so long for a host that does not answer; much longer than a host with a share of
/// a processor pauses.
pub const TERM_NANOS: i64 = 1_000_000_000;
/// How much longer who granted it counts: what two clocks may drift apart in a term is a thousandth
/// of that.
pub const MARGIN_NANOS: i64 = 50_000_000;
/// How often a lease that is used is renewed.
pub const RENEW_NANOS: i64 = TERM_NANOS / 3;
/// Services of an instance, by `service`.
pub const SERVICE_COUNT_MAX: usize = DAEMON_COUNT_MAX as usize * WORKER_COUNT_MAX;

/// Services whose daemons are on one host.
pub const SERVICES_OF_HOST_MAX: usize = 256;

/// The number of the service that is one worker of a daemon.
#[must_use]
pub const fn service(daemon: DaemonIndex, worker: usize) -> usize {
    daemon.0 as usize * WORKER_COUNT_MAX + worker % WORKER_COUNT_MAX
}

const _: () = assert!(RENEW_NANOS * 3 <= TERM_NANOS && MARGIN_NANOS * 20 >= TERM_NANOS);
