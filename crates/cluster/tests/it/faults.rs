//! Which faults a run has, and when each happens.

use crate::world::steps::StepKill;
use testkit::Random;
use testkit::world::{HostFault, Plan, SECOND};

/// Numbers of faults in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Processes that are killed and start again.
    pub(crate) kills: u64,
    /// Hosts that no other reaches for a while.
    pub(crate) cuts: u64,
    /// Pairs of hosts of which one does not reach the other for a while.
    pub(crate) one_way_cuts: u64,
    /// Processes that stand still for a while.
    pub(crate) pauses: u64,
    /// Changes of the load, after which services move.
    pub(crate) moves: u64,
    /// Nodes that come back with nothing.
    pub(crate) losses: u64,
    /// Two of them at nearly the same time.
    pub(crate) double_losses: u64,
    /// Processes that end in the middle of what one input led to.
    pub(crate) crashes: u64,
    /// Processes that are killed and stay away for so long that voters are replaced.
    pub(crate) absences: u64,
    /// Daemons that join.
    pub(crate) grows: u64,
    /// Daemons that leave.
    pub(crate) leaves: u64,
    /// Processes that are killed at a step of these.
    pub(crate) steps: u64,
    /// Messages that are lost.
    pub(crate) loss_percent: u64,
}

/// One fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Host(HostFault),
    Weigh(u64),
    /// The node and all that it stored. Happens only when every service has its followers.
    Lose(u16),
    /// The same, and so much later another one.
    LoseTwo(u16, u16, i64),
    /// The second one.
    LoseNow(u16),
    Crash(u16, i64),
    AtStep(StepKill),
    Grow,
    Leave(u16),
}

impl From<HostFault> for Fault {
    fn from(fault: HostFault) -> Fault {
        Fault::Host(fault)
    }
}

impl Faults {
    pub(crate) const NONE: Faults = Faults {
        kills: 0,
        cuts: 0,
        one_way_cuts: 0,
        pauses: 0,
        moves: 0,
        losses: 0,
        double_losses: 0,
        crashes: 0,
        absences: 0,
        grows: 0,
        leaves: 0,
        steps: 0,
        loss_percent: 0,
    };

    /// The faults of a run, in their order, and the time at which all have ended.
    pub(crate) fn plan(&self, daemons: u16, random: &mut Random) -> (Vec<(i64, Fault)>, i64) {
        let mut plan = Plan::default();
        let other = self.kills + self.cuts + self.one_way_cuts + self.pauses + self.moves;
        let other = other + self.crashes + self.absences + self.grows + self.leaves;
        let span = SECOND * (2 + (other + self.steps) as i64);
        let mut any = |end: u64| random.uniform(end);
        let mut at = || 3 * SECOND + any(span.cast_unsigned()).cast_signed();
        let mut times: Vec<i64> = (0..other).map(|_| at()).collect();
        let mut next = || times.pop().expect("one for each");
        let daemon = |random: &mut Random| random.uniform(daemons.into()) as u16;
        let length =
            |random: &mut Random| SECOND / 20 + random.uniform(3_000_000_000).cast_signed();
        for _ in 0..self.kills {
            plan.kill(next(), daemon(random), length(random));
        }
        for _ in 0..self.cuts {
            plan.cut(next(), HostFault::Cut(daemon(random)), length(random));
        }
        for _ in 0..self.one_way_cuts {
            let (from, to) = (daemon(random), daemon(random));
            plan.cut(next(), HostFault::OneWay(from, to), length(random));
        }
        for _ in 0..self.pauses {
            plan.add(next(), HostFault::Pause(daemon(random), length(random)));
        }
        for _ in 0..self.moves {
            plan.add(next(), Fault::Weigh(random.next()));
        }
        for _ in 0..self.crashes {
            plan.add(next(), Fault::Crash(daemon(random), length(random)));
        }
        for _ in 0..self.absences {
            plan.kill(next(), daemon(random), 3 * SECOND + 2 * length(random));
        }
        for index in 0..self.grows {
            let when = next();
            // Some at once.
            let same = plan.iter().rev().find(|it| it.1 == Fault::Grow && index % 2 == 1);
            plan.add(same.map_or(when, |it| it.0), Fault::Grow);
        }
        for _ in 0..self.steps {
            plan.add(3 * SECOND, Fault::AtStep(StepKill::any(random)));
        }
        for _ in 0..self.leaves {
            plan.add(next(), Fault::Leave(daemon(random)));
        }
        let mut end = 3 * SECOND + span + 4 * SECOND;
        if self.absences > 0 {
            end += 6 * SECOND;
        }
        for _ in 0..self.losses {
            let index = daemon(random);
            plan.add(end, Fault::Lose(index));
            plan.add(end + length(random), HostFault::Start(index));
            end += 4 * SECOND;
        }
        for _ in 0..self.double_losses {
            let first = daemon(random);
            let second = (first + 1 + random.uniform(u64::from(daemons) - 1) as u16) % daemons;
            let between = random.uniform(800_000_000).cast_signed();
            plan.add(end, Fault::LoseTwo(first, second, between));
            end += 20 * SECOND;
        }
        (plan.in_order(), end)
    }
}
