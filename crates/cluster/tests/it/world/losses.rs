//! Nodes that are lost with all that they had.

use super::{Disk, SECOND, What, World};
use crate::faults::Fault;
use cluster::membership::Seat;
use testkit::world::HostFault;
use wire::DaemonIndex;

impl World {
    /// From here on nothing is at one daemon alone, unless another one dies.
    pub(super) fn await_copies(&mut self) {
        self.loses_records = false;
        self.end_writes(12 * SECOND);
        self.settle(12 * SECOND);
    }

    /// Whether a daemon knows that it is an owner, and nobody follows yet: it acts in a moment.
    pub(super) fn is_alone(&self, index: u16) -> bool {
        let Some(node) = self.node(index) else { return false };
        let owned =
            node.membership().services().filter(|it| it.1.owner == Some(DaemonIndex(index)));
        let mut seats = owned.map(|it| it.1);
        seats.any(|seat| !seat.followers.iter().any(|it| it.is_in_sync))
    }

    /// One node is lost, and so much later another one; both return.
    pub(super) fn lose_two(&mut self, first: u16, second: u16, between: i64) {
        self.await_copies();
        self.lose(first);
        self.push(between, What::Fault(Fault::LoseNow(second)));
        self.push(between + 4 * SECOND, What::Fault(HostFault::Start(first).into()));
        self.push(between + 5 * SECOND, What::Fault(HostFault::Start(second).into()));
    }

    /// The second one is lost, unless it has what no other one has.
    pub(super) fn lose_unless_alone(&mut self, index: u16) {
        if !self.is_alone(index) {
            self.lose(index);
        }
    }

    /// A node ends with all that it had.
    pub(super) fn lose(&mut self, index: u16) {
        self.stop(index);
        let disk = &mut self.hosts[usize::from(index)].disk;
        let incarnation = disk.incarnation;
        *disk = Disk { incarnation, began: incarnation + 1, ..Disk::default() };
    }

    /// Services whose owner died before it acted, as this daemon knows of them.
    pub(super) fn count_passed_over(&mut self, index: u16) {
        // With one follower nobody else has all.
        let Some(node) = self.node(index).filter(|_| self.setup.followers > 1) else { return };
        let epoch = node.membership().epoch;
        if epoch <= self.seats.0 {
            return;
        }
        let now: Vec<Seat> = node.membership().services().map(|it| it.1.clone()).collect();
        let is_next = |(before, now): &(&Seat, &Seat)| {
            let copy = now.owner.and_then(|it| before.follower(it));
            before.owner.is_some() && copy.is_some_and(|it| it.had_all && !it.is_in_sync)
        };
        self.counts.passed_over += self.seats.1.iter().zip(&now).filter(is_next).count() as u64;
        self.seats = (epoch, now);
    }
}
