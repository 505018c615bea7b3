//! Units of file data of which this daemon has copies, in an instance with copies of files: the thread
//! `units`, which drives this daemon's `replicas::node::Node`. Its events wait here.
//!
//! ```text
//!  members::driver --MemberView, Advice--> UnitInbox --> runner --> shell --> Node, kept_log, pulls
//!  net             --Packet------------------^              '--> performer: net, members, target
//!  target          --Stored------------------^
//!  services        --LossKnown---------------^
//!  scrub           --Damaged-----------------^
//!  sessions, net   --Request, Read-- ways ---^
//!  primaries       --PushAnswered------------^
//! ```
//!
//! `shell` feeds the node and does what it asks for, in its order, by a `shell::Performer`, which in a
//! daemon is `performer`; `pulls` brings bytes of clients and of other copies, and `stores` gives them
//! to the target; `kept_log` is what survives the process, with the ranges of which no copy has the
//! bytes (`spoiled`). `ways` brings clients' requests to the node of the primary: by the `agent`'s
//! arithmetic, with the bytes and answers in `asks`, and those that the node here answers in `waiting`;
//! `losses` asks how old a file is of which a unit has lost everything. `ways::pushed` has the writes
//! that returned before they arrived.
//! `object` says which bytes of files a unit has. Which daemon has which copy, and what happens to it,
//! is decided in the crate `replicas`.
//!
//! Invariants
//! 1. Packets may be lost here, as on their way. Nothing else is, and what is not lost has a bound
//!    elsewhere: pulls and requests are bounded by windows of the node.

mod agent;
mod asks;
mod clears;
mod kept_log;
mod losses;
mod object;
mod performer;
mod pulls;
mod runner;
mod shell;
mod spoiled;
mod stores;
mod thread;
mod waiting;
mod ways;

pub(crate) use asks::{DividedAsk, PassedAsk};
pub(crate) use kept_log::{FoundUnits, inspect};
pub(crate) use losses::{LossAnswer, LossesNow};
pub(crate) use object::StripeBytes;
pub(crate) use stores::{StoreAnswer, StoreOrder};
pub(crate) use thread::{UNITS_PROGRESS_BYTES, UnitThread};
pub(crate) use ways::pushed::{PushAnswer, PushAttempt};

use crate::shared::inbox::Inboxes;
use asks::ClientBytes;
use clears::{ClearAsk, RunningClears};
use cluster::node::Node as MembersNode;
use losses::FileLosses;
use replicas::change::CopyId;
use replicas::node::{Read, Request};
use replicas::operation::RequestId;
use replicas::packet::{Given, Packet};
use replicas::placement::UnitIndex;
use replicas::table::Table;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use waiting::WaitingAsks;
use ways::pushed::{self, CopiedPushes};
use wire::{DaemonIndex, Inode};

/// Packets of other daemons that wait at most. Nodes repeat what is lost.
const PACKETS_MAX: usize = 8192;
/// Bytes for pulls in them: as much as a client has under way at a daemon.
const PACKET_BYTES_MAX: usize = 64 << 20;

/// Time for which requests to a unit wait once all daemons with its copies count as dead. One that
/// lives, but was not heard of on a busy machine, is back as a rule; and a call to lost bytes ends within
/// a second of the death.
const AWAITED_TIME_MAX: Duration = Duration::from_millis(400);

/// Client ids of this daemon's own writes: so many may be under way.
const OWN_IDS: u64 = 1 << 12;

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
    /// Whether it differs from an earlier one.
    pub(crate) fn is_news(&self, before: &MemberView) -> bool {
        // The version stands for the table, which is long.
        let state = |it: &MemberView| {
            (it.table.version, it.incarnation, it.lease_until, it.granted, it.settled)
        };
        state(self) != state(before)
    }

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
    /// The service of files clears them.
    Clear(u64, ClearAsk),
    /// The target's answer to the bytes of the pull with this ticket.
    Stored(u64, StoreAnswer),
    /// How old the file of the request with this ticket is.
    LossKnown(u64, LossAnswer),
    /// The answer to an attempt of a client's write that has returned.
    PushAnswered(PushAttempt, PushAnswer),
    /// The page of a file at this offset fails its checksum at the own target.
    Damaged(Inode, u64),
}

/// Bytes of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct UnitBytes {
    /// At this daemon.
    pub(crate) here: u64,
    /// Those that its other copies have to get yet, once for each copy, where this daemon is its primary.
    pub(crate) unfilled: u64,
}

/// The state of its units that the threads of a daemon share.
pub(crate) struct Units {
    /// Events for the thread.
    pub(crate) inbox: UnitInbox,
    /// Bytes of writes of this host's clients.
    pub(crate) held: ClientBytes,
    waiting: WaitingAsks,
    /// Writes of this host's clients that have returned.
    pushed: CopiedPushes,
    /// Files that are younger than the loss of a unit.
    losses: FileLosses,
    /// The table as the thread of the membership knows it.
    table: Mutex<Arc<Table>>,
    /// When units were last left without a living copy.
    out_of_reach: Mutex<Option<Instant>>,
    /// Copies of files whose number says nothing (`Inode::copies`).
    copies: u8,
    /// Answers about lost files that are under way.
    pub(crate) lost_answers: AtomicU32,
    /// Client ids of this daemon's own writes, which no session gets.
    own_ids: u64,
    /// Their number.
    own_writes: AtomicU64,
    /// Bytes of the units that this daemon has copies of, as they were counted last.
    bytes: Mutex<BTreeMap<UnitIndex, UnitBytes>>,
}

impl Units {
    /// Before the first view, in this start of the daemon. Files have so many copies unless their number
    /// says another one.
    pub(crate) fn new(table: &Arc<Table>, copies: u8, (own, start): (DaemonIndex, u64)) -> Units {
        let own_ids = RunningClears::ids_before(own, start) - OWN_IDS;
        Units {
            own_ids,
            pushed: CopiedPushes::new(own_ids - pushed::UNDER_WAY_MAX),
            own_writes: AtomicU64::new(0),
            inbox: UnitInbox::default(),
            held: ClientBytes::default(),
            waiting: WaitingAsks::default(),
            losses: FileLosses::default(),
            table: Mutex::new(Arc::clone(table)),
            out_of_reach: Mutex::default(),
            copies,
            lost_answers: AtomicU32::new(0),
            bytes: Mutex::default(),
        }
    }

    /// Bytes of the units that this daemon has copies of.
    pub(crate) fn bytes(&self) -> BTreeMap<UnitIndex, UnitBytes> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes that copies have to get yet of the units that this daemon is the primary of.
    pub(crate) fn unfilled(&self) -> u64 {
        let all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().fold(0, |sum: u64, it| sum.saturating_add(it.unfilled))
    }

    /// The bytes of a unit; `None`: there is no copy of it here any more.
    fn note_bytes(&self, unit: UnitIndex, bytes: Option<UnitBytes>) {
        let mut all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match bytes {
            Some(bytes) => all.insert(unit, bytes),
            None => all.remove(&unit),
        };
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The last version of the table in which units lost all their copies; 0: none.
    pub(crate) fn newest_loss(&self) -> u64 {
        self.table().newest_loss()
    }

    /// The daemon that has the bytes of a client's write, as the attempt of it that came last says.
    /// `None`: none waits here.
    fn agent_of(&self, write: RequestId, own: DaemonIndex) -> Option<DaemonIndex> {
        if self.held.has(write) { Some(own) } else { self.waiting.sender_of(write) }
    }

    /// Whether requests to units without a living copy still wait for one.
    fn awaits_copies(&self) -> bool {
        let since = *self.out_of_reach.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() < AWAITED_TIME_MAX)
    }

    /// The membership has changed, as far as it is about units. Services of this daemon hear of units
    /// that lost all their copies before anybody is told so.
    pub(crate) fn adopt_view(&self, inboxes: &Inboxes, view: MemberView) {
        let before = self.newest_loss();
        let table = Arc::clone(&view.table);
        if loses_primaries(&self.table(), &table) {
            *self.out_of_reach.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(Instant::now());
        }
        *self.table.lock().unwrap_or_else(PoisonError::into_inner) = table;
        let loss = view.table.newest_loss();
        if loss > before {
            inboxes.units_lost(loss);
        }
        self.inbox.put(Event::MemberView(view));
    }
}

/// Whether a unit has no primary now that had one before.
fn loses_primaries(before: &Table, now: &Table) -> bool {
    let had_one = |unit| before.unit(unit).is_some_and(|row| row.primary.is_some());
    now.lost().any(had_one)
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
        inbox.put(Event::Stored(7, StoreAnswer::Busy));
        let taken = inbox.take(Duration::ZERO).expect("it goes on");
        assert_eq!(taken.len(), PACKETS_MAX + 1);
        assert_eq!(taken.back(), Some(&Event::Stored(7, StoreAnswer::Busy)));
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
    fn a_view_is_news_if_anything_of_it_changed() {
        let Event::MemberView(before) = view(1) else { panic!("a view") };
        let mut table = before.table.as_ref().clone();
        let down =
            replicas::change::Change::Down { daemon: DaemonIndex(1), incarnation: 1, known: 1 };
        table.apply(&down).expect("it was up");
        let changed = [
            MemberView { table: Arc::new(table), ..before.clone() },
            MemberView { incarnation: 2, ..before.clone() },
            MemberView { lease_until: 10, ..before.clone() },
            MemberView { granted: 2, ..before.clone() },
            MemberView { settled: 2, ..before.clone() },
        ];
        assert!(!before.is_news(&before) && changed.iter().all(|it| it.is_news(&before)));
    }

    #[test]
    fn units_lose_their_primaries_once() {
        let mut tables = vec![Table::initial(&[0, 1, 2], &[2], 4, false).expect("a setup")];
        for daemon in [1, 2] {
            let mut table = tables.last().expect("one").clone();
            let daemon = DaemonIndex(daemon);
            let down = replicas::change::Change::Down { daemon, incarnation: 1, known: 1 };
            table.apply(&down).expect("it was up");
            tables.push(table);
        }
        let [all, without_one, without_two] = &tables[..] else { panic!("three tables") };
        assert!(!loses_primaries(all, without_one), "each unit has a copy elsewhere");
        assert!(loses_primaries(without_one, without_two));
        assert!(!loses_primaries(without_two, without_two));
        assert!(!loses_primaries(without_two, all));
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
