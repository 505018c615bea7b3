//! State that the daemons of one host keep for that host as a whole: leases, sizes of shared files,
//! and leftovers of dead processes in the host segment.
//!
//! A host runs one or more daemons. The first of them is the home daemon, which does the work that
//! must be done once per host. The layout of the host segment is in `shm::host`.
//!
//! `Host` is the part that all threads share.
//!
//! Reading order: `links`, `leases` (this host's right to cache directories of other hosts),
//! `size_request` and `sizes` (the host's half of size coherence), `unreported_sizes`, `liveness`
//! (which processes live), `reaper` (cleans up after the others), `lock_releases`, `activity` (counters
//! of what the processes do).

pub(crate) mod activity;
pub(crate) mod audit;
pub(crate) mod leases;
pub(crate) mod links;
pub(crate) mod liveness;
pub(crate) mod lock_releases;
pub(crate) mod reaper;
pub(crate) mod size_request;
pub(crate) mod sizes;
pub(crate) mod unreported_sizes;

use crate::host::activity::HostActivity;
use crate::host::leases::HostLeases;
use crate::host::liveness::Liveness;
use crate::host::lock_releases::LockReleases;
use crate::host::sizes::RemoteTruncates;
use crate::host::unreported_sizes::UnreportedSizes;
use shm::host::HostSegment;
use shm::local_ops::OpLog;
use std::sync::Arc;

/// State of the host, as far as this daemon keeps or shares it.
pub(crate) struct Host {
    /// Host segment: open files of this host.
    pub(crate) segment: HostSegment,
    /// Operations that clients completed in shared memory.
    pub(crate) op_log: OpLog,
    /// Leases of this host on directories of other hosts.
    pub(crate) leases: HostLeases,
    /// Truncates of files that are open here while their shard is on another host.
    pub(crate) truncates: RemoteTruncates,
    /// Reports of unreported sizes. `None` if files that are being written cannot be written back.
    pub(crate) unreported: Option<UnreportedSizes>,
    /// Releases of dead processes' locks.
    pub(crate) lock_releases: LockReleases,
    /// Which processes of this host live.
    pub(crate) liveness: Arc<Liveness>,
    /// Counters of what the processes do. Present in the home daemon only.
    pub(crate) activity: Option<HostActivity>,
}
