//! Which faults a run has, and when each happens.

use testkit::Random;
use testkit::world::{HostFault, MILLI, Plan, SECOND};

/// Cells that a daemon may hold if none of its memory is reclaimed.
pub(crate) const MEMORY_CELLS: u64 = 320;

/// Numbers of faults in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Processes that are killed and start again with their bytes.
    pub(crate) kills: u64,
    /// Hosts that nobody reaches for a while.
    pub(crate) cuts: u64,
    /// Hosts that only the membership does not hear for a while.
    pub(crate) unheard: u64,
    /// Pairs of which one does not reach the other for a while.
    pub(crate) one_way_cuts: u64,
    /// Processes that stand still for a while.
    pub(crate) pauses: u64,
    /// Hosts whose bytes and messages are slow for a while.
    pub(crate) slow: u64,
    /// Bytes that flip on one copy.
    pub(crate) flips: u64,
    /// Clients that die.
    pub(crate) clients: u64,
    /// Clients that send much at once, and hosts whose messages come many times for a while.
    pub(crate) floods: u64,
    /// Nodes that come back with nothing; how many at once.
    pub(crate) losses: (u64, u64),
    /// Processes that are killed and start again before anyone misses them, each followed by the loss of
    /// another node.
    pub(crate) restarts: u64,
    /// Pairs of daemons whose memory is needed: their copies leave.
    pub(crate) returns: u64,
    /// Daemons whose memory is reclaimed, each with kills of any daemons while its copies leave and come
    /// back. The last one gets its memory back in some runs.
    pub(crate) reclaims: u64,
    /// Messages that are lost.
    pub(crate) loss_percent: u64,
}

/// One fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Host(HostFault),
    Unheard(u16),
    Slow(u16, i64),
    Flip,
    KillClient(usize),
    Flood(usize, u16, i64),
    /// These nodes and all that they stored. Happens only when every unit has its copies.
    Lose(u16, u16),
    /// This node, whatever is whole.
    LoseNow(u16),
    /// The process of the first one is killed and starts again after this time, and then the second one
    /// is lost. Happens only when every unit has its copies.
    RestartAndLose(u16, u16, i64),
    Return(u16, u16),
    /// A daemon may hold so many cells from now on.
    Lend(u16, u64),
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
        unheard: 0,
        one_way_cuts: 0,
        pauses: 0,
        slow: 0,
        flips: 0,
        clients: 0,
        floods: 0,
        losses: (0, 0),
        restarts: 0,
        returns: 0,
        reclaims: 0,
        loss_percent: 0,
    };

    /// The faults of a run, in their order, and the time at which all have ended. `peers` are all
    /// that messages go between.
    pub(crate) fn plan(
        &self,
        daemons: u16,
        peers: &[u16],
        random: &mut Random,
    ) -> (Vec<(i64, Fault)>, i64) {
        let mut plan = Plan::default();
        let kinds = [
            self.kills,
            self.cuts,
            self.unheard,
            self.one_way_cuts,
            self.pauses,
            self.slow,
            self.flips,
            self.clients,
            self.floods,
        ];
        let count: u64 = kinds.iter().sum();
        let span = SECOND / 2 + 350 * MILLI * count as i64;
        for (kind, &times) in kinds.iter().enumerate() {
            for _ in 0..times {
                let at = SECOND / 2 + random.uniform(span.cast_unsigned()).cast_signed();
                let daemon = random.uniform(daemons.into()) as u16;
                let any = |random: &mut Random| peers[random.uniform(peers.len() as u64) as usize];
                let length = 50 * MILLI + random.uniform(1500 * MILLI as u64).cast_signed();
                match kind {
                    0 => plan.kill(at, daemon, length),
                    1 => plan.cut(at, HostFault::Cut(daemon), length),
                    2 => plan.cut(at, Fault::Unheard(daemon), length),
                    3 => plan.cut(at, HostFault::OneWay(any(random), any(random)), length),
                    4 => plan.add(at, HostFault::Pause(daemon, length)),
                    5 => plan.add(at, Fault::Slow(daemon, length)),
                    6 => plan.add(at, Fault::Flip),
                    7 => plan.add(at, Fault::KillClient(random.uniform(3) as usize)),
                    _ => plan.add(at, Fault::Flood(random.uniform(3) as usize, daemon, length)),
                }
            }
        }
        let end = self.plan_large(SECOND + span + 2 * SECOND, daemons, random, &mut plan);
        (plan.in_order(), end)
    }

    /// Faults of whole nodes, one after the other. When all have ended.
    fn plan_large(
        &self,
        mut end: i64,
        daemons: u16,
        random: &mut Random,
        plan: &mut Plan<Fault>,
    ) -> i64 {
        for number in 0..self.reclaims {
            let daemon = random.uniform(daemons.into()) as u16;
            plan.add(end, Fault::Lend(daemon, [0, 0, 60][random.uniform(3) as usize]));
            let is_lent_again = number + 1 < self.reclaims || random.uniform(2) == 0;
            if is_lent_again {
                plan.add(end + 4 * SECOND, Fault::Lend(daemon, MEMORY_CELLS));
            }
            for _ in 0..4 {
                let at = end + random.uniform(6 * SECOND as u64).cast_signed();
                let killed = random.uniform(daemons.into()) as u16;
                plan.kill(
                    at,
                    killed,
                    50 * MILLI + random.uniform(900 * MILLI as u64).cast_signed(),
                );
            }
            end += 9 * SECOND;
        }
        for number in 0..self.losses.0.max(self.returns).max(self.restarts) {
            let first = random.uniform(daemons.into()) as u16;
            let second = (first + 1 + random.uniform(u64::from(daemons) - 1) as u16) % daemons;
            if number < self.restarts {
                // A beat comes every 100 ms, and one that is not heard for 220 ms is missed.
                let length = (5 + random.uniform(65).cast_signed()) * MILLI;
                plan.add(end, Fault::RestartAndLose(first, second, length));
            } else if number < self.returns {
                plan.add(end, Fault::Return(first, second));
                plan.add(end + 5 * SECOND, HostFault::Kill(first));
                plan.add(end + 5 * SECOND, HostFault::Kill(second));
            } else {
                let both = if self.losses.1 > 1 { second } else { first };
                if self.losses.1 > 1 && number % 2 == 1 {
                    // The first one comes back with bytes that are older than what is lost.
                    plan.add(end, HostFault::Kill(first));
                    plan.add(end + SECOND, Fault::LoseNow(second));
                } else {
                    plan.add(end, Fault::Lose(first, both));
                }
            }
            plan.add(end + 6 * SECOND, HostFault::Start(first));
            plan.add(end + 6 * SECOND, HostFault::Start(second));
            end += 10 * SECOND;
        }
        end
    }
}
