//! Which faults a run has, and when each happens.

use testkit::Random;

pub(crate) const MILLI: i64 = 1_000_000;
pub(crate) const SECOND: i64 = 1_000 * MILLI;

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
    /// Pairs of daemons whose memory is needed: their copies leave.
    pub(crate) returns: u64,
    /// Messages that are lost.
    pub(crate) loss_percent: u64,
}

/// One fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Kill(u16),
    Start(u16),
    Cut(u16),
    Unheard(u16),
    OneWay(u16, u16),
    Heal,
    Pause(u16, i64),
    Slow(u16, i64),
    Flip,
    KillClient(usize),
    Flood(usize, u16, i64),
    /// These nodes and all that they stored. Happens only when every unit has its copies.
    Lose(u16, u16),
    /// This node, whatever is whole.
    LoseNow(u16),
    Return(u16, u16),
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
        returns: 0,
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
        let mut plan = Vec::new();
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
                    0 => {
                        plan.push((at, Fault::Kill(daemon)));
                        plan.push((at + length, Fault::Start(daemon)));
                    }
                    1..=3 => {
                        let fault = match kind {
                            1 => Fault::Cut(daemon),
                            2 => Fault::Unheard(daemon),
                            _ => Fault::OneWay(any(random), any(random)),
                        };
                        plan.push((at, fault));
                        plan.push((at + length, Fault::Heal));
                    }
                    4 => plan.push((at, Fault::Pause(daemon, length))),
                    5 => plan.push((at, Fault::Slow(daemon, length))),
                    6 => plan.push((at, Fault::Flip)),
                    7 => plan.push((at, Fault::KillClient(random.uniform(3) as usize))),
                    _ => plan.push((at, Fault::Flood(random.uniform(3) as usize, daemon, length))),
                }
            }
        }
        let end = self.plan_large(SECOND + span + 2 * SECOND, daemons, random, &mut plan);
        plan.sort_by_key(|&(when, _)| when);
        (plan, end)
    }

    /// Faults of whole nodes, one after the other. When all have ended.
    fn plan_large(
        &self,
        mut end: i64,
        daemons: u16,
        random: &mut Random,
        plan: &mut Vec<(i64, Fault)>,
    ) -> i64 {
        for number in 0..self.losses.0.max(self.returns) {
            let first = random.uniform(daemons.into()) as u16;
            let second = (first + 1 + random.uniform(u64::from(daemons) - 1) as u16) % daemons;
            if number < self.returns {
                plan.push((end, Fault::Return(first, second)));
                plan.push((end + 5 * SECOND, Fault::Kill(first)));
                plan.push((end + 5 * SECOND, Fault::Kill(second)));
            } else {
                let both = if self.losses.1 > 1 { second } else { first };
                if self.losses.1 > 1 && number % 2 == 1 {
                    // The first one comes back with bytes that are older than what is lost.
                    plan.push((end, Fault::Kill(first)));
                    plan.push((end + SECOND, Fault::LoseNow(second)));
                } else {
                    plan.push((end, Fault::Lose(first, both)));
                }
            }
            plan.push((end + 6 * SECOND, Fault::Start(first)));
            plan.push((end + 6 * SECOND, Fault::Start(second)));
            end += 10 * SECOND;
        }
        end
    }
}
