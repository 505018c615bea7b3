//! Daemons are added and leave, and processes are killed when that is at a certain step, as the
//! membership shows it.

use super::{Counts, Host, What, World};
use cluster::change::Change;
use cluster::membership::{Member, Membership, Presence};
use encoding::Encode as _;
use std::collections::BTreeMap;
use testkit::Random;
use testkit::world::{HostFault, MILLI, SECOND};
use wire::DaemonIndex;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Step {
    /// A daemon has an index, and then it takes part.
    Added,
    Came,
    /// A service is to go to another home, has that as a follower, in sync, and is there.
    Named,
    Follows,
    InSync,
    Moved,
    /// A daemon is to leave, has nothing any more, and has left.
    Leaves,
    Empty,
    Left,
    /// Two sets of voters decide.
    Joint,
}

pub(crate) const STEPS: [Step; 10] = [
    Step::Added,
    Step::Came,
    Step::Named,
    Step::Follows,
    Step::InSync,
    Step::Moved,
    Step::Leaves,
    Step::Empty,
    Step::Left,
    Step::Joint,
];

/// The next time that a step is seen somebody is killed, and starts again after `length`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StepKill {
    step: Step,
    /// The leader, or one of those that the step is about.
    victim: u64,
    length: i64,
}

impl StepKill {
    pub(crate) fn any(random: &mut Random) -> StepKill {
        let step = STEPS[random.uniform(STEPS.len() as u64) as usize];
        let length = SECOND / 20 + random.uniform(2_000_000_000).cast_signed();
        StepKill { step, victim: random.uniform(16), length }
    }
}

/// Facts of a membership: a step, of a daemon or a service and its home, and the daemons that it is
/// about.
type Facts = BTreeMap<(Step, u64), Vec<DaemonIndex>>;

/// Steps of a run.
#[derive(Default)]
pub(super) struct Steps {
    /// Those to come at which somebody is killed.
    kills: Vec<StepKill>,
    /// The facts of the newest membership, and its epoch.
    seen: (u64, Facts),
}

/// The facts of an instance that began with so many daemons.
fn facts(membership: &Membership, began: u16) -> Facts {
    let mut facts = Facts::new();
    for (daemon, member) in membership.daemons() {
        let mut add = |step, is_so: bool| {
            if is_so {
                facts.insert((step, daemon.0.into()), vec![daemon]);
            }
        };
        let leaves = member.is_to_leave() && !member.has_left();
        add(Step::Added, daemon.0 >= began);
        add(Step::Came, daemon.0 >= began && member.presence == Presence::Up);
        add(Step::Leaves, leaves);
        add(Step::Empty, leaves && membership.held_by(daemon) == 0);
        add(Step::Left, member.has_left());
    }
    for (service, seat) in membership.services() {
        let Some(home) = membership.home(service) else { continue };
        let next = membership.next_home(service);
        let follower = next.and_then(|next| seat.follower(next));
        let number = u64::from(service.0) << 16;
        let mut near: Vec<DaemonIndex> = next.into_iter().chain([home]).collect();
        near.extend(seat.followers.iter().map(|it| it.daemon));
        for (step, is_so) in [
            (Step::Named, next.is_some()),
            (Step::Follows, follower.is_some()),
            (Step::InSync, follower.is_some_and(|it| it.is_in_sync)),
        ] {
            if is_so {
                facts.insert((step, number), near.clone());
            }
        }
        if membership.has_moved(service) {
            facts.insert((Step::Moved, number | u64::from(home.0)), near);
        }
    }
    if membership.voters().is_joint() {
        let next = membership.voters().next().iter().map(|it| it.daemon);
        facts.insert((Step::Joint, membership.voters().since()), next.collect());
    }
    facts
}

impl World {
    /// Somebody adds a daemon, and starts it when it has an index. Two may do this at once.
    pub(super) fn grow(&mut self, token: u64) {
        let any = self.random.uniform(self.hosts.len() as u64) as u16;
        self.push(200 * MILLI, What::Grow { token });
        let Some(node) = self.node(any).filter(|_| self.is_running(any)) else { return };
        let is_mine = |it: &Member| it.incarnation >> 20 == token >> 20;
        let mine = node.membership().daemons().find(|(_, it)| is_mine(it)).map(|it| it.0);
        let daemon = DaemonIndex(node.membership().daemons().count() as u16);
        let Some(DaemonIndex(index)) = mine else {
            let domain = u32::from(daemon.0) % self.setup.domains;
            let add = Change::Add { daemon, incarnation: token, domain };
            self.with(any, |node, out| node.propose(&add, out));
            return;
        };
        self.events.retain(|what| *what != What::Grow { token });
        while self.count() <= index {
            let host = Host::new(&mut self.random);
            self.hosts.push(host);
        }
        // It is told what the daemon knows that added it.
        let known = self.node(any).map(|node| node.membership().to_bytes());
        let disk = &mut self.hosts[usize::from(index)].disk;
        (disk.incarnation, disk.began, disk.membership) = (token, token + 1, known);
        self.begin(index);
    }

    /// Asks for the change until it is made.
    pub(super) fn leave(&mut self, index: u16) {
        let daemon = DaemonIndex(index);
        let is_made = self.nodes().any(|node| {
            let member = node.membership().member(daemon);
            member.is_some_and(|it| it.has_left() || it.presence == Presence::Leaving)
        });
        if !is_made {
            let any = self.random.uniform(self.hosts.len() as u64) as u16;
            if self.is_running(any) {
                self.with(any, |node, out| node.propose(&Change::Leave { daemon }, out));
            }
            self.push(300 * MILLI, What::Leave(index));
        }
    }

    pub(super) fn kill_at_step(&mut self, kill: StepKill) {
        self.steps.kills.push(kill);
    }

    /// A daemon knows another membership.
    pub(super) fn note_steps(&mut self, index: u16) {
        let Some(node) = self.node(index).filter(|_| !self.is_healed) else { return };
        let epoch = node.membership().epoch;
        if self.steps.kills.is_empty() || epoch <= self.steps.seen.0 {
            return;
        }
        let now = facts(node.membership(), self.setup.daemons);
        let before = std::mem::replace(&mut self.steps.seen, (epoch, now)).1;
        let new = self.steps.seen.1.iter().filter(|(fact, _)| !before.contains_key(fact));
        let new: Vec<(Step, Vec<DaemonIndex>)> =
            new.map(|((step, _), near)| (*step, near.clone())).collect();
        for (step, near) in new {
            let place = self.steps.kills.iter().position(|kill| kill.step == step);
            let Some(kill) = place.map(|place| self.steps.kills.swap_remove(place)) else {
                continue;
            };
            let leader =
                || (0..self.count()).find(|&it| self.node(it).is_some_and(|it| it.leads()));
            let victim = match kill.victim % 4 {
                0 => leader(),
                _ => near.get((kill.victim / 4) as usize % near.len().max(1)).map(|it| it.0),
            };
            let Some(victim) = victim.filter(|&it| it < self.count()) else { continue };
            self.counts.add_kill(step);
            self.stop(victim);
            self.push(kill.length, What::Fault(HostFault::Start(victim).into()));
        }
    }
}

impl Counts {
    fn add_kill(&mut self, step: Step) {
        let place = STEPS.iter().position(|&it| it == step);
        self.kills_at_steps.iter_mut().skip(place.unwrap_or(0)).take(1).for_each(|it| *it += 1);
    }
}
