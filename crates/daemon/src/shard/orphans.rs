//! Orphans: files without a name that are kept because a process had them open.
//!
//! The process that closes a deleted file last reports that, unless it is killed in between; so an
//! orphan without an open at two successive scans is freed. (At one scan it may be a file created
//! without a name, which its creator opens a moment later.) Hosts registered as having it open are
//! queried, since their close message may be lost.

use crate::shared::network::{Network, message};
use metadata::Service;
use net::Urgency;
use shm::host::HostSegment;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use wire::{DaemonIndex, Inode};

/// Interval between scans of orphans, while there are any.
const ORPHANS_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of orphans about which hosts are queried in one scan.
const QUERIED_MAX: usize = 256;

/// State between scans.
#[derive(Default)]
pub(crate) struct OrphanScan {
    /// Orphans that no process of this host had open at the last scan.
    unopened: BTreeSet<Inode>,
    /// Time of the next scan.
    at: Option<Instant>,
    /// Number of scans, which selects the orphans to query next.
    rounds: usize,
}

/// The result of a scan.
#[derive(Default)]
pub(crate) struct UnopenedOrphans {
    /// Orphans to be freed, unless another host has them open.
    pub(crate) unopened: Vec<Inode>,
    /// Those that this host is registered as having open, at a service that this daemon took over:
    /// whether it has is known here.
    pub(crate) queried_here: Vec<Inode>,
}

impl OrphanScan {
    /// Scans, if due.
    pub(crate) fn find_unopened(
        &mut self,
        service: &Service,
        host: &HostSegment,
        net: &Network,
    ) -> UnopenedOrphans {
        if service.orphans().next().is_none() {
            self.unopened.clear();
            self.at = None;
            return UnopenedOrphans::default();
        }
        let now = Instant::now();
        if *self.at.get_or_insert(now + ORPHANS_PAUSE) > now {
            return UnopenedOrphans::default();
        }
        let is_unheld = |inode: &Inode| host.vnode_find(*inode).is_none();
        let unopened: BTreeSet<Inode> = service.orphans().filter(is_unheld).collect();
        let gone: Vec<Inode> = self.unopened.intersection(&unopened).copied().collect();
        let first_queried = self.rounds.wrapping_mul(QUERIED_MAX) % gone.len().max(1);
        self.rounds = self.rounds.wrapping_add(1);
        let mut queried_here = Vec::new();
        for &inode in gone.iter().cycle().skip(first_queried).take(QUERIED_MAX.min(gone.len())) {
            if ask_hosts(service, net, inode) {
                queried_here.push(inode);
            }
        }
        self.unopened = unopened;
        self.at = Some(now + ORPHANS_PAUSE);
        UnopenedOrphans { unopened: gone, queried_here }
    }

    /// Time of the next scan, if there are orphans.
    pub(crate) const fn scan_at(&self) -> Option<Instant> {
        self.at
    }
}

/// Queries the hosts that are registered as having a file open. True if this daemon is asked.
fn ask_hosts(service: &Service, net: &Network, inode: Inode) -> bool {
    let mut bytes = vec![message::IS_OPEN];
    bytes.extend_from_slice(&inode.0.to_le_bytes());
    let mut is_asked = false;
    // A host has the index of its first daemon. A lost query is repeated.
    for first in service.hosts_of(inode).map(DaemonIndex) {
        if first == net.router.me {
            is_asked = true;
        } else {
            net.send(first, &bytes, Urgency::Batched);
        }
    }
    is_asked
}
