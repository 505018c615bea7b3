//! Units of file data of which this daemon has copies, in an instance with copies of files: the thread
//! `units`, which drives this daemon's `replicas::node::Node`. Its events wait here.
//!
//! ```text
//!  members::driver --MemberView, Advice--> UnitInbox --> runner --> shell --> Node, kept_log, pulls
//!  net             --Packet------------------^              '--> Performer: net, members, target
//!  target          --Stored------------------^
//!  agents          --Request, Read-----------^
//! ```
//!
//! `shell` feeds the node and does what it asks for, in its order, through a `shell::Performer`; `pulls`
//! brings bytes of clients and of other copies; `kept_log` is what survives the process, with the ranges
//! of which no copy has the bytes (`spoiled`). Which daemon has which copy, and what happens to it, is
//! decided in the crate `replicas`.
//!
//! Invariants
//! 1. Packets may be lost here, as on their way. Nothing else is, and what is not lost has a bound
//!    elsewhere: pulls and requests are bounded by windows of the node.

mod agent;
mod kept_log;
mod pulls;
mod runner;
mod shell;
mod spoiled;

use cluster::node::Node as MembersNode;
use replicas::change::CopyId;
use replicas::node::{Read, Request};
use replicas::packet::{Given, Packet};
use replicas::placement::UnitIndex;
use replicas::table::Table;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use wire::DaemonIndex;

/// Packets of other daemons that wait at most. Nodes repeat what is lost.
const PACKETS_MAX: usize = 8192;
/// Bytes for pulls in them: as much as a client has under way at a daemon.
const PACKET_BYTES_MAX: usize = 64 << 20;

/// This daemon's place in the instance, as the membership says.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MemberView {
    /// The table of units.
    pub(crate) table: Arc<Table>,
    /// Number of the start with which this daemon takes part.
    pub(crate) incarnation: u64,
    /// Until when it counts as alive for sure; `i64::MIN`: it does not.
    pub(crate) lease_until: i64,
    /// Version of the table that it may act on until then.
    pub(crate) granted: u64,
    /// Version of the table for which all leases of dead daemons have ended.
    pub(crate) settled: u64,
}

impl MemberView {
    /// As the node of the membership knows it; `None`: the instance has no units.
    pub(crate) fn of(node: &mut MembersNode, now: i64) -> Option<MemberView> {
        let table = Arc::clone(node.units()?);
        let (incarnation, settled) = (node.incarnation(), node.units_settled(now));
        let lease_until = node.lease_until(now).unwrap_or(i64::MIN);
        let granted = node.units_granted();
        Some(MemberView { table, incarnation, lease_until, granted, settled })
    }
}

/// An event for the thread.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Event {
    /// Of another daemon.
    Packet(DaemonIndex, Packet),
    /// Of the thread of the membership.
    MemberView(MemberView),
    /// The leader advises to hand over a unit.
    Advice(CopyId),
    /// A client's change of an object.
    Request(UnitIndex, Request),
    /// A client's read of an object.
    Read(UnitIndex, Read),
    /// The target has taken the bytes of the pull with this ticket, or has not.
    Stored(u64, bool),
}

#[derive(Default)]
struct UnitEvents {
    events: VecDeque<Event>,
    packets: usize,
    /// Of files, in these packets.
    packet_bytes: usize,
    is_over: bool,
}

/// The events that wait for the thread.
#[derive(Default)]
pub(crate) struct UnitInbox {
    waiting: Mutex<UnitEvents>,
    arrived: Condvar,
}

impl UnitInbox {
    /// Adds an event. A packet is lost where too many wait; of several views the last one counts.
    pub(crate) fn put(&self, event: Event) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_over {
            return;
        }
        if let Event::Packet(_, packet) = &event {
            let bytes = match packet {
                Packet::Given(_, Given::Bytes(bytes)) => bytes.len(),
                _ => 0,
            };
            if waiting.packets == PACKETS_MAX || waiting.packet_bytes + bytes > PACKET_BYTES_MAX {
                return;
            }
            waiting.packets += 1;
            waiting.packet_bytes += bytes;
        }
        let is_newer = matches!(event, Event::MemberView(_))
            && matches!(waiting.events.back(), Some(Event::MemberView(_)));
        if is_newer {
            waiting.events.pop_back();
        }
        waiting.events.push_back(event);
        self.arrived.notify_one();
    }

    /// Waits for events, not longer than `time`, and takes them. `None`: there are no more.
    fn take(&self, time: Duration) -> Option<VecDeque<Event>> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |it: &mut UnitEvents| it.events.is_empty() && !it.is_over;
        let waited = self.arrived.wait_timeout_while(waiting, time, is_idle);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (waiting.packets, waiting.packet_bytes) = (0, 0);
        let events = std::mem::take(&mut waiting.events);
        (!waiting.is_over || !events.is_empty()).then_some(events)
    }

    /// Nothing is added any more, and the thread ends when it has taken the rest.
    pub(crate) fn end(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use replicas::change::Reign;
    use replicas::node::Message;
    use replicas::operation::Stamp;
    use replicas::packet::PullId;

    fn packet(since: u64) -> Event {
        let of = Reign { unit: UnitIndex(0), epoch: 1 };
        let lane = CopyId { of, daemon: DaemonIndex(1), since };
        Event::Packet(DaemonIndex(0), Packet::Message(Message::Open { lane }))
    }

    fn view(settled: u64) -> Event {
        let table = Table::initial(&[0, 1], &[2], 1, false).expect("a setup");
        let table = Arc::new(table);
        Event::MemberView(MemberView { table, incarnation: 1, lease_until: 9, granted: 1, settled })
    }

    #[test]
    fn packets_have_a_bound_and_other_events_are_kept() {
        let inbox = UnitInbox::default();
        for since in 0..PACKETS_MAX as u64 + 5 {
            inbox.put(packet(since));
        }
        inbox.put(Event::Stored(7, true));
        let taken = inbox.take(Duration::ZERO).expect("it goes on");
        assert_eq!(taken.len(), PACKETS_MAX + 1);
        assert_eq!(taken.back(), Some(&Event::Stored(7, true)));
        inbox.put(packet(1));
        assert_eq!(inbox.take(Duration::ZERO), Some(VecDeque::from([packet(1)])));
        let of = Reign { unit: UnitIndex(0), epoch: 1 };
        let id = PullId { ticket: 1, of, stamp: Stamp { epoch: 1, number: 1 } };
        let given =
            || Event::Packet(DaemonIndex(0), Packet::Given(id, Given::Bytes(vec![7; 1 << 18])));
        (0..PACKET_BYTES_MAX / (1 << 18) + 3).for_each(|_| inbox.put(given()));
        inbox.put(packet(2));
        let taken = inbox.take(Duration::ZERO).expect("it goes on");
        assert_eq!(taken.len(), PACKET_BYTES_MAX / (1 << 18) + 1);
        assert_eq!(taken.back(), Some(&packet(2)));
    }

    #[test]
    fn the_last_view_counts_and_events_keep_their_order() {
        let inbox = UnitInbox::default();
        let events = [view(1), view(2), packet(1), view(3), view(4)];
        events.into_iter().for_each(|event| inbox.put(event));
        let expected = VecDeque::from([view(2), packet(1), view(4)]);
        assert_eq!(inbox.take(Duration::ZERO), Some(expected));
        inbox.put(packet(2));
        inbox.end();
        inbox.put(packet(3));
        assert_eq!(inbox.take(Duration::ZERO), Some(VecDeque::from([packet(2)])));
        assert_eq!(inbox.take(Duration::ZERO), None);
    }
}
