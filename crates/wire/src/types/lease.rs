//! Leases: the right of clients of one host to use cached directories of a service of another host
//! without asking. Granting and revoking are in `metadata`, the cache is in `shm`.
//!
//! Times are of a clock that cannot be set and that runs on in a suspended machine, each host's own
//! (`CLOCK_BOOTTIME`); only durations are compared between hosts.

use crate::id::DaemonIndex;
use crate::limits::{DAEMON_COUNT_MAX, WORKER_COUNT_MAX};

/// Term of a lease, counted from the request. A change of a directory waits this long for a host
/// that does not answer; much longer than the pauses of a host with a share of a processor.
pub const TERM_NANOS: i64 = 1_000_000_000;
/// Time that the grantor adds to the term: two clocks may drift apart in a term by a thousandth of
/// this.
pub const MARGIN_NANOS: i64 = 50_000_000;
/// Renewal interval of a lease in use.
pub const RENEW_NANOS: i64 = TERM_NANOS / 3;
/// Services of an instance, by `service`.
pub const SERVICE_COUNT_MAX: usize = DAEMON_COUNT_MAX as usize * WORKER_COUNT_MAX;

/// Services whose daemons are on one host.
pub const SERVICES_OF_HOST_MAX: usize = 256;

/// The number of the service of one worker of the daemon that owned it first.
#[must_use]
pub const fn service(first: DaemonIndex, worker: usize) -> usize {
    first.0 as usize * WORKER_COUNT_MAX + worker % WORKER_COUNT_MAX
}

const _: () = assert!(RENEW_NANOS * 3 <= TERM_NANOS && MARGIN_NANOS * 20 >= TERM_NANOS);
