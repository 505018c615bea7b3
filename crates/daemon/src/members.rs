//! Which daemons are alive, as the daemons of an instance with failure domains agree; and the copies of
//! services at other daemons. Here is the state that threads share; `members::driver` is the thread that
//! drives this daemon's `cluster::Node`, `engine` its part in an instance with followers, which has the
//! `copies` of services that the daemon follows. `shipments` is what workers hand to it.

pub(crate) mod copies;
pub(crate) mod driver;
pub(crate) mod engine;
mod hosts;
mod questions;
pub(crate) mod shipments;
mod space;
mod stored;

use cluster::change::Change;
use cluster::exchange::Balancing;
use cluster::membership::{Member, Membership, Presence, ServiceIndex};
use cluster::node::BalanceReport;
use config::control::{BalanceStatus, MemberStatus, MembershipStatus, ServiceStatus};
use metadata::{SingleFiles, TargetPresence};
use replicas::change::Change as UnitChange;
use shipments::Shipments;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::DaemonIndex;

/// Messages of other daemons that wait at most. The core repeats what is lost.
const WAITING_MAX: usize = 4096;
/// Bytes of these messages: parcels of several services, each with a window of its own.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The number below that of each start of a daemon that is added.
const UNSTARTED: u64 = 0;

/// Proposals that wait at most. Their senders repeat what is lost.
const PROPOSALS_MAX: usize = 1024;

/// A word about the balance of loads: `wire::welcome::BALANCE_MAGIC`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BalanceWord {
    /// No service moves for the load.
    Off,
    /// Services move whenever that is a gain.
    On,
    /// One look at the loads is asked for.
    Now,
}

/// A message for the core, and the daemon that sent it.
type Incoming = (DaemonIndex, Vec<u8>);

/// See the module.
pub(crate) struct Members {
    incoming: Mutex<Arrivals>,
    arrived: Condvar,
    view: Mutex<View>,
    /// Shipments of the workers; `None`: the instance has no followers.
    pub(crate) shipments: Option<Shipments>,
}

#[derive(Default)]
struct Arrivals {
    messages: VecDeque<Incoming>,
    bytes: usize,
    proposals: Vec<Change>,
    /// A worker has shipped something that is not to wait.
    is_called: bool,
    /// This daemon has no part in units any more, and is to count as dead.
    is_given_up: bool,
}

/// Arrivals that the thread has taken.
struct Taken {
    messages: VecDeque<Incoming>,
    proposals: Vec<Change>,
    is_given_up: bool,
}

/// The membership as this daemon knows it.
#[derive(Clone)]
struct View {
    membership: Membership,
    is_voter: bool,
    leads: bool,
    /// The services that this daemon owns.
    services: Vec<ServiceStatus>,
    /// Copies of other services that it has, and their bytes.
    copies: (usize, u64),
    /// Its findings about loads, where it leads.
    balance: BalanceReport,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The start of a daemon with this number.
const fn start_of(incarnation: u64) -> u64 {
    1 + (incarnation.saturating_sub(1) >> 32)
}

/// The balance of loads for `status`; `None` where services do not move for it.
fn balance_status(membership: &Membership, report: &BalanceReport) -> Option<BalanceStatus> {
    let Balancing { number, is_on, is_asked } = membership.balancing()?;
    let services = || membership.services().map(|it| it.0);
    let moved = services().filter(|&it| membership.has_moved(it));
    let with_place =
        |service: ServiceIndex, daemon: Option<DaemonIndex>| Some((service.0, daemon?.0));
    Some(BalanceStatus {
        number,
        is_on,
        is_asked,
        to_move: membership.services_to_move() as u64,
        loads: report.loads.clone(),
        moved: moved.filter_map(|it| with_place(it, membership.home(it))).collect(),
        going: services().filter_map(|it| with_place(it, membership.next_home(it))).collect(),
        resting: report.resting.iter().map(|it| it.0).collect(),
        plan: report.plan.iter().map(|it| (it.hot.0, it.cool.0)).collect(),
    })
}

impl Members {
    fn new(membership: Membership, shipments: Option<Shipments>) -> Members {
        let (is_voter, leads, services, copies) = (false, false, Vec::new(), (0, 0));
        let balance = BalanceReport::default();
        let view = View { membership, is_voter, leads, services, copies, balance };
        let view = Mutex::new(view);
        Members { incoming: Mutex::default(), arrived: Condvar::new(), view, shipments }
    }

    /// Takes a message of another daemon.
    pub(crate) fn put(&self, from: DaemonIndex, bytes: &[u8]) {
        let mut incoming = lock(&self.incoming);
        let is_room = incoming.messages.len() < WAITING_MAX;
        if is_room && incoming.bytes < WAITING_BYTES_MAX {
            incoming.bytes += bytes.len();
            incoming.messages.push_back((from, bytes.to_vec()));
            self.arrived.notify_one();
        }
    }

    /// Has the thread look at once at what workers shipped.
    pub(crate) fn wake(&self) {
        lock(&self.incoming).is_called = true;
        self.arrived.notify_one();
    }

    /// Proposes a change of a unit of file data. It may be lost.
    pub(crate) fn propose(&self, change: UnitChange) {
        self.put_proposal(Change::Unit { change });
    }

    /// Proposes that the instance gets this daemon, if it is the next one. It may be lost.
    pub(crate) fn propose_daemon(&self, daemon: DaemonIndex, domain: u32) {
        let count = lock(&self.view).membership.daemons().count();
        if usize::from(daemon.0) == count {
            self.put_proposal(Change::Add { daemon, incarnation: UNSTARTED, domain });
        }
    }

    /// Proposes that a daemon leaves, if it may. It may be lost.
    pub(crate) fn propose_leave(&self, daemon: DaemonIndex) {
        let may = lock(&self.view).membership.may_leave(daemon).is_ok();
        if may {
            self.put_proposal(Change::Leave { daemon });
        }
    }

    /// Proposes what a word about the balance of loads asks for, unless it is so. It may be lost.
    pub(crate) fn propose_balance(&self, word: BalanceWord) {
        let Some(before) = lock(&self.view).membership.balancing() else { return };
        let to = match word {
            BalanceWord::Now if !before.is_asked => before.with_request(),
            BalanceWord::On if !before.is_on => before.turned(true),
            BalanceWord::Off if before.is_on => before.turned(false),
            _ => return,
        };
        self.put_proposal(Change::Balance { to });
    }

    /// Whether a daemon leaves the instance, or has left it.
    pub(crate) fn leaves(&self, daemon: DaemonIndex) -> bool {
        let view = lock(&self.view);
        view.membership.member(daemon).is_some_and(|it| it.is_to_leave() || it.has_left())
    }

    /// Whether the target of a daemon takes new files.
    pub(crate) fn target_presence(&self, daemon: DaemonIndex) -> TargetPresence {
        match lock(&self.view).membership.member(daemon) {
            None => TargetPresence::Gone,
            Some(it) if it.is_to_leave() || it.has_left() => TargetPresence::Gone,
            Some(it) if it.presence == Presence::Up => TargetPresence::Here,
            Some(_) => TargetPresence::Away,
        }
    }

    /// Whether files may have one copy. Proposes it where that is not decided; the proposal may be lost.
    pub(crate) fn allow_single_files(&self) -> SingleFiles {
        let (is_allowed, may_be) = {
            let view = lock(&self.view);
            (view.membership.has_single_files, view.membership.may_have_single_files())
        };
        match (is_allowed, may_be) {
            (true, _) => SingleFiles::Allowed,
            (false, true) => {
                self.put_proposal(Change::AllowSingle);
                SingleFiles::Asked
            }
            (false, false) => SingleFiles::Refused,
        }
    }

    fn put_proposal(&self, change: Change) {
        let mut incoming = lock(&self.incoming);
        if incoming.proposals.len() < PROPOSALS_MAX {
            incoming.proposals.push(change);
            incoming.is_called = true;
            self.arrived.notify_one();
        }
    }

    /// This daemon has lost what it kept of its units: it must not count as alive any more.
    pub(crate) fn give_up(&self) {
        let mut incoming = lock(&self.incoming);
        (incoming.is_given_up, incoming.is_called) = (true, true);
        self.arrived.notify_one();
    }

    /// Waits for messages or a call, not longer than `time`, and takes them.
    fn take(&self, time: Duration) -> Taken {
        let incoming = lock(&self.incoming);
        let is_idle = |it: &mut Arrivals| it.messages.is_empty() && !it.is_called;
        let waited = self.arrived.wait_timeout_while(incoming, time, is_idle);
        let (mut incoming, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let Arrivals { messages, proposals, is_given_up, .. } = std::mem::take(&mut *incoming);
        // For good.
        incoming.is_given_up = is_given_up;
        Taken { messages, proposals, is_given_up }
    }

    /// Epoch of the membership, and daemons that are down in it.
    pub(crate) fn summary(&self) -> (u64, u64) {
        let view = lock(&self.view);
        let is_down = |presence| presence == Presence::Down;
        let away = |member: &Member| is_down(member.presence) && !member.has_left();
        let down = view.membership.daemons().filter(|(_, member)| away(member));
        (view.membership.epoch, down.count() as u64)
    }

    /// The membership for `status`; `None` where this daemon is no voter.
    pub(crate) fn status(&self) -> Option<MembershipStatus> {
        let View { membership, is_voter, leads, balance, .. } = lock(&self.view).clone();
        let members = membership.daemons().map(|(daemon, member)| {
            let presence = match member.presence {
                _ if member.has_left() => "left",
                Presence::Up => "up",
                Presence::Down => "down",
                Presence::Leaving => "leaving",
            };
            let leaves = member.is_to_leave();
            let held = if leaves { membership.held_by(daemon) } else { 0 };
            let (domain, held) = (member.domain, held as u64);
            let start = start_of(member.incarnation);
            MemberStatus { domain, presence: presence.to_owned(), start, leaves, held }
        });
        let moving = membership.services().filter(|it| membership.next_home(it.0).is_some());
        is_voter.then(|| MembershipStatus {
            epoch: membership.epoch,
            leads,
            services_moving: moving.count() as u64,
            single_files: membership.has_single_files,
            members: members.collect(),
            owners: membership.services().map(|(_, seat)| seat.owner.map(|it| it.0)).collect(),
            balance: if leads { balance_status(&membership, &balance) } else { None },
        })
    }

    /// The services that this daemon owns, with their followers; none in an instance without followers.
    pub(crate) fn services(&self) -> Vec<ServiceStatus> {
        lock(&self.view).services.clone()
    }

    /// Copies of other services that this daemon has, and their bytes.
    pub(crate) fn copies(&self) -> (u64, u64) {
        let (count, bytes) = lock(&self.view).copies;
        (count as u64, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::change::LastAllowed;
    use replicas::change::{CopyId, Reign};
    use replicas::placement::UnitIndex;

    fn members() -> Members {
        let membership = Membership::initial(&[0, 1, 2], 3, 0, true).expect("a setup");
        Members::new(membership, None)
    }

    fn proposal(since: u64) -> UnitChange {
        let of = Reign { unit: UnitIndex(0), epoch: 1 };
        UnitChange::InSync { of: CopyId { of, daemon: DaemonIndex(1), since } }
    }

    #[test]
    fn proposals_are_taken_once_and_have_a_bound() {
        let members = members();
        (0..PROPOSALS_MAX as u64 + 3).for_each(|since| members.propose(proposal(since)));
        // It does not wait: there is something.
        let taken = members.take(Duration::from_secs(3600));
        let of_unit = |since| Change::Unit { change: proposal(since) };
        let expected: Vec<Change> = (0..PROPOSALS_MAX as u64).map(of_unit).collect();
        assert_eq!(taken.proposals, expected);
        assert!(taken.messages.is_empty() && !taken.is_given_up);
        assert!(members.take(Duration::ZERO).proposals.is_empty());
    }

    #[test]
    fn only_the_next_daemon_is_proposed() {
        let members = members();
        (2..5).for_each(|index| members.propose_daemon(DaemonIndex(index), 7));
        let expected = Change::Add { daemon: DaemonIndex(3), incarnation: UNSTARTED, domain: 7 };
        assert_eq!(members.take(Duration::from_secs(3600)).proposals, [expected]);
    }

    #[test]
    fn only_a_daemon_that_may_leave_is_proposed() {
        let members = members();
        (0..3).for_each(|_| members.propose_leave(DaemonIndex(1)));
        members.propose_leave(DaemonIndex(7));
        let leave = Change::Leave { daemon: DaemonIndex(1) };
        assert_eq!(members.take(Duration::from_secs(3600)).proposals, [leave; 3]);
        let leaves = |daemon| members.leaves(DaemonIndex(daemon));
        assert!(!leaves(1) && !leaves(7));
        lock(&members.view).membership.apply(&leave).expect("two others are up");
        assert!(leaves(1) && !leaves(0));
        members.propose_leave(DaemonIndex(1));
        assert!(members.take(Duration::ZERO).proposals.is_empty(), "it leaves already");
    }

    #[test]
    fn the_balance_is_said_once_and_shown_by_the_leader() {
        let membership = Membership::initial(&[0, 1], 4, 1, false).expect("a setup");
        let members = Members::new(membership.with_owners_that_return(), None);
        let proposed = |word| {
            members.propose_balance(word);
            members.take(Duration::ZERO).proposals
        };
        assert!(proposed(BalanceWord::Off).is_empty(), "it is off");
        for word in [BalanceWord::On, BalanceWord::Now] {
            let [change] = proposed(word)[..] else { panic!("{word:?} is proposed") };
            lock(&members.view).membership.apply(&change).expect("the next word");
            assert!(proposed(word).is_empty(), "{word:?} once");
        }
        lock(&members.view).is_voter = true;
        let status = || members.status().and_then(|it| it.balance);
        assert_eq!(status(), None, "it does not lead");
        let loads = vec![Some(7), None, Some(0), None];
        let found = BalanceReport { loads: loads.clone(), ..BalanceReport::default() };
        let mut view = lock(&members.view);
        (view.leads, view.balance) = (true, found);
        drop(view);
        let expected = BalanceStatus {
            number: 2,
            is_on: true,
            is_asked: true,
            loads,
            ..BalanceStatus::default()
        };
        assert_eq!(status(), Some(expected));
        // Where services have no homes there is nothing to say.
        let other = self::members();
        other.propose_balance(BalanceWord::On);
        assert!(other.take(Duration::ZERO).proposals.is_empty());
    }

    #[test]
    fn files_have_one_copy_where_no_daemon_leaves() {
        let members = members();
        assert_eq!(members.allow_single_files(), SingleFiles::Asked);
        assert_eq!(members.take(Duration::from_secs(3600)).proposals, [Change::AllowSingle]);
        let apply = |members: &Members, change| {
            lock(&members.view).membership.apply(&change).expect("it may");
        };
        apply(&members, Change::AllowSingle);
        assert_eq!(members.allow_single_files(), SingleFiles::Allowed);
        members.propose_leave(DaemonIndex(1));
        assert!(members.take(Duration::ZERO).proposals.is_empty(), "it may have files");

        let shrinking = self::members();
        apply(&shrinking, Change::Leave { daemon: DaemonIndex(1) });
        assert_eq!(shrinking.allow_single_files(), SingleFiles::Refused);
        assert!(shrinking.take(Duration::ZERO).proposals.is_empty());
    }

    #[test]
    fn a_daemon_that_has_left_is_none_that_is_down() {
        use TargetPresence::{Away, Gone, Here};
        let membership = Membership::initial(&[0, 1, 2], 1, 0, true).expect("a setup");
        let members = Members::new(membership.with_owners_that_return(), None);
        let status = |is_voter| {
            lock(&members.view).is_voter = is_voter;
            members.status()
        };
        assert_eq!(status(false), None);
        let word = |daemon: usize| {
            let member = status(true).expect("a voter").members[daemon].clone();
            (member.presence, member.leaves, member.held)
        };
        let apply = |change| lock(&members.view).membership.apply(&change).expect("it may");
        let daemon = DaemonIndex(1);
        apply(Change::Leave { daemon });
        assert_eq!(word(1), ("leaving".to_owned(), true, 0));
        let presence = |daemon: u16| members.target_presence(DaemonIndex(daemon));
        assert_eq!([0, 1, 3].map(presence), [Here, Gone, Gone]);
        apply(Change::Left { daemon });
        assert_eq!((word(1), word(0).0), (("left".to_owned(), false, 0), "up".to_owned()));
        assert_eq!(members.summary().1, 0);
        let daemon = DaemonIndex(0);
        apply(Change::Leave { daemon });
        assert_eq!(word(0), ("leaving".to_owned(), true, 1), "it has the only service");
        apply(Change::Down { daemon, incarnation: 1, known: LastAllowed::UNKNOWN });
        assert_eq!((word(0).0, word(0).1), ("down".to_owned(), true));
        assert_eq!(members.summary().1, 1);
        let down =
            Change::Down { daemon: DaemonIndex(2), incarnation: 1, known: LastAllowed::UNKNOWN };
        apply(down);
        assert_eq!([0, 1, 2].map(presence), [Gone, Gone, Away], "none that leaves comes back");
    }

    #[test]
    fn a_daemon_that_is_given_up_stays_so() {
        let members = members();
        members.put(DaemonIndex(1), &[1, 2]);
        members.give_up();
        let taken = members.take(Duration::from_secs(3600));
        assert!(taken.is_given_up && taken.messages == [(DaemonIndex(1), vec![1, 2])]);
        assert!(members.take(Duration::ZERO).is_given_up);
    }
}
