//! Hosts that are gone for good, as the command says that puts another node in the place of one: each
//! service of the instance is told by the daemon that serves it, before anything runs in that place. So
//! what the programs of the lost node had open and locked is released, and nothing of the programs that
//! come after them.

use crate::shared::inbox::{Inboxes, WorkerMessage};
use crate::shared::owners::Numbers;
use cluster::membership::ServiceIndex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A host that is gone, by the number of its first daemon, and which of the times at which it was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GoneHost {
    pub(crate) host: u16,
    pub(crate) round: u16,
}

/// See the module.
pub(crate) struct GoneHosts {
    numbers: Numbers,
    /// The first daemon of each daemon's host.
    firsts: Vec<u16>,
    /// The last round that a service knows of a host.
    known: Mutex<BTreeMap<(u32, u16), u16>>,
}

impl GoneHosts {
    pub(crate) const fn new(numbers: Numbers, firsts: Vec<u16>) -> GoneHosts {
        GoneHosts { numbers, firsts, known: Mutex::new(BTreeMap::new()) }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<(u32, u16), u16>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The daemons of a host.
    pub(crate) fn daemons_of(&self, host: u16) -> Range<u16> {
        let count = self.firsts.iter().filter(|first| **first == host).count();
        host..host.saturating_add(u16::try_from(count).unwrap_or(u16::MAX))
    }

    /// The service of this number here knows it. True if the host is that of its first owner.
    pub(crate) fn note(&self, number: usize, gone: GoneHost) -> bool {
        let Some(service) = self.numbers.service(number) else { return false };
        self.known().insert((service.0, gone.host), gone.round);
        let first = self.numbers.service_name(service).first;
        self.firsts.get(usize::from(first.0)) == Some(&gone.host)
    }

    /// Services that learned it at this daemon.
    pub(crate) fn aware(&self, gone: GoneHost) -> Vec<u32> {
        let known = self.known();
        let of_host = known.iter().filter(|((_, host), _)| *host == gone.host);
        of_host
            .filter(|(_, round)| **round == gone.round)
            .map(|((service, _), _)| *service)
            .collect()
    }

    /// Tells the services that are served here and do not know it.
    pub(crate) fn tell(&self, inboxes: &Inboxes, gone: GoneHost) {
        let aware = self.aware(gone);
        for service in (0..self.numbers.services() as u32).filter(|it| !aware.contains(it)) {
            let service = ServiceIndex(service);
            let numbers = [self.numbers.of(service), self.numbers.elsewhere(service)];
            // One that is not served here is told by another daemon.
            for number in std::collections::BTreeSet::from(numbers) {
                let _ = inboxes.try_send_to_worker(number, WorkerMessage::HostLost(gone));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::DaemonIndex;

    #[test]
    fn a_service_knows_of_the_last_loss_of_a_host() {
        let numbers = Numbers::new(DaemonIndex(0), 3, 2);
        let gone = GoneHosts::new(numbers, vec![0, 1, 1]);
        let lost = |round| GoneHost { host: 1, round };
        assert!(!gone.note(0, lost(7)), "its own service");
        let of_another = numbers.of(ServiceIndex(5));
        assert!(gone.note(of_another, lost(7)), "one of daemon 2");
        assert_eq!(gone.aware(lost(7)), [0, 5]);
        gone.note(0, lost(8));
        assert_eq!((gone.aware(lost(7)), gone.aware(lost(8))), (vec![5], vec![0]));
        assert!(gone.aware(GoneHost { host: 0, round: 7 }).is_empty());
        assert_eq!((gone.daemons_of(0), gone.daemons_of(1)), (0..1, 1..3));
    }
}
