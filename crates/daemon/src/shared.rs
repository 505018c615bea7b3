//! State that all threads of the daemon share, one struct for each subject. No state of a core is
//! here; metrics are for display only.
//!
//! A function receives the parts that it needs. `Shared` as a whole is needed where replies are
//! delivered and requests are routed (`delivery`), and above that.
//!
//! Layers of the daemon. No layer calls one above it.
//!
//! ```text
//!  startup
//!  threads, sessions::acceptor, host::{reaper, activity}, shares::dispatcher    loops
//!  shard | target                                 drivers of the cores, performers of effects
//!  delivery                                       replies and requests, wherever they go
//!  units                                          clients' requests for bytes with copies
//!  host::{leases, sizes, ..} | sessions | shares | members | backing | threads::bulk    one subject each
//!  network, owners -> inbox, taken_inbox, reply   messages to other daemons, and to workers
//! ```
//!
//! Reading order: `inbox`, `taken_inbox`, `reply`, `owners`, `network`, `delivery`, `metrics`.

pub(crate) mod delivery;
pub(crate) mod gone_hosts;
pub(crate) mod inbox;
pub(crate) mod kept_record;
pub(crate) mod log_progress;
pub(crate) mod metrics;
pub(crate) mod network;
pub(crate) mod order_queue;
pub(crate) mod owners;
pub(crate) mod reply;
pub(crate) mod slow_targets;
pub(crate) mod taken_inbox;
pub(crate) mod thrashing;

use crate::backing::Backing;
use crate::host::Host;
use crate::host::audit::Audit;
use crate::host::links::HostLinks;
use crate::members::Members;
use crate::members::shipments::Shipments;
use crate::sessions::SessionSets;
use crate::shared::gone_hosts::GoneHosts;
use crate::shared::inbox::Inboxes;
use crate::shared::metrics::Metrics;
use crate::shared::network::Network;
use crate::shared::slow_targets::SlowTargets;
use crate::shares::Shares;
use crate::target::space::ledger::AccountLedger;
use crate::target::tiering::lending::Lending;
use crate::threads::bulk::BulkTransfers;
use crate::units::Units;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Times of this daemon.
pub(crate) struct Timing {
    /// When this daemon started.
    pub(crate) begun: Instant,
    /// Bound on every wait of a client.
    pub(crate) timeout: Duration,
    /// Longest wait of a write for space.
    pub(crate) enospc_timeout_millis: u32,
}

impl Timing {
    /// Milliseconds since the start, the target's time.
    pub(crate) fn millis(&self) -> u32 {
        self.begun.elapsed().as_millis() as u32
    }
}

/// State shared by all threads.
pub(crate) struct Shared {
    /// Messages to the workers of this daemon.
    pub(crate) inboxes: Inboxes,
    /// Messages to other daemons.
    pub(crate) net: Network,
    /// Bulk transfers to and from other daemons.
    pub(crate) bulk: BulkTransfers,
    /// State of the host.
    pub(crate) host: Host,
    /// Sessions of clients.
    pub(crate) sessions: SessionSets,
    /// Space of the target by account.
    pub(crate) ledger: AccountLedger,
    /// Memory lent to this daemon.
    pub(crate) lending: Lending,
    /// The backing store, if there is one.
    pub(crate) backing: Option<Backing>,
    /// Which daemons are alive, in an instance with failure domains.
    pub(crate) members: Option<Members>,
    /// Units of file data, in an instance with copies of files.
    pub(crate) units: Option<Units>,
    /// Shares and limits of users and jobs.
    pub(crate) shares: Shares,
    /// The audit log.
    pub(crate) audit: Audit,
    /// Times.
    pub(crate) timing: Timing,
    /// Set once: all threads finish their work and end.
    pub(crate) stopping: AtomicBool,
    /// The named files in shared memory were removed.
    pub(crate) is_memory_gone: AtomicBool,
    /// Metrics.
    pub(crate) metrics: Metrics,
    /// Targets that were found slow.
    pub(crate) slow_targets: SlowTargets,
    /// Hosts that are gone, as services know.
    pub(crate) gone_hosts: GoneHosts,
}

impl Shared {
    /// Shipments of the workers to followers; `None`: the instance has none.
    pub(crate) fn shipments(&self) -> Option<&Shipments> {
        self.members.as_ref()?.shipments.as_ref()
    }

    /// The host segment, and the ways to the shards of its files.
    pub(crate) const fn links(&self) -> HostLinks<'_> {
        let Shared { host, net, inboxes, .. } = self;
        HostLinks { segment: &host.segment, net, inboxes }
    }
}
