//! Deaths and other faults of a run: one after the other, each after all is well again, or many at once.

use super::*;
use replicas::table::CopyRow;
use testkit::world::HostFault;

/// A host counts as troubled so long after its fault has ended: until it takes part again. Where voters
/// are lost at once, new ones are found one by one.
const AFTER: i64 = 10 * SECOND;
/// A copy may be dropped for so long after it was slow.
const SLOW_AFTER: i64 = 2 * SECOND;

/// One fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mishap {
    Host(HostFault),
    /// It dies in the middle of one of its next changes of its log.
    KillInLog(u16, u64),
    /// It loses all that it has.
    Lose(u16),
    /// Two hosts lose all they have.
    LoseBoth(u16, u16),
    Slow(u16, i64),
}

impl From<HostFault> for Mishap {
    fn from(fault: HostFault) -> Mishap {
        Mishap::Host(fault)
    }
}

impl Deaths {
    fn any(&mut self) -> u16 {
        self.random.uniform(self.setup.daemons.into()) as u16
    }

    /// Time until a daemon starts again: before anybody misses it, meanwhile, or long after.
    fn absence(&mut self) -> i64 {
        let most = [40, 400, 1500, 5000][self.random.uniform(4) as usize];
        (10 + self.random.uniform(most).cast_signed()) * MILLI
    }

    fn trouble(&mut self, index: u16, length: i64) {
        let until = self.events.now() + length + AFTER;
        let host = self.host(index);
        host.troubled_until = host.troubled_until.max(until);
    }

    fn start_later(&mut self, index: u16) {
        let after = self.absence();
        self.trouble(index, after);
        self.events.push(after, Happening::Mishap(HostFault::Start(index).into()));
    }

    pub(super) fn die(&mut self, index: u16) {
        if self.is_running(index) {
            self.tally.kills += 1;
            self.stop(index);
            self.start_later(index);
        }
    }

    /// Whether all is well, and most voters are left: without them nobody takes up the lost ones.
    fn may_lose(&self, victims: &[u16]) -> bool {
        let is_well = self.missing().is_none();
        let node = self.hosts.iter().find_map(|host| host.node.as_ref());
        node.is_some_and(|node| {
            let voters = node.membership().voters().next();
            let lost = voters.iter().filter(|it| victims.contains(&it.daemon.0)).count();
            is_well && 2 * lost < voters.len()
        })
    }

    fn lose_all(&mut self, victims: &[u16]) {
        let is_left = |daemon: DaemonIndex| !victims.contains(&daemon.0);
        let (table, now) = (Arc::clone(&self.newest), self.events.now());
        let is_slow = |daemon: DaemonIndex| {
            let troubled_until = self.hosts[usize::from(daemon.0)].troubled_until;
            !self.setup.is_apart && now < troubled_until - AFTER + SLOW_AFTER
        };
        for (index, unit) in table.units() {
            // A primary that is lost may have acknowledged bytes without the copies that had left.
            let is_primary_left = unit.primary.is_none_or(is_left);
            // Other copies may be about to leave, as too slow for it or the other way round. If the
            // leader is lost, too, nobody knows whether it went on without them.
            let leaves = |copy: &CopyRow| {
                !is_primary_left && (is_slow(copy.daemon) || unit.primary.is_some_and(is_slow))
            };
            let has_all = |copy: &&CopyRow| match copy.state {
                CopyState::InSync => !leaves(copy),
                _ => is_primary_left && copy.has_all(),
            };
            let mut copies = unit.copies.iter().filter(has_all);
            if !copies.any(|copy| is_left(copy.daemon)) {
                self.gone.insert(index);
            }
        }
        for &victim in victims {
            self.tally.losses += 1;
            self.lose(victim);
            self.start_later(victim);
        }
    }

    pub(super) fn mishap(&mut self, mishap: Mishap) {
        self.faults.push(format!("{} ms: {mishap:?}", self.events.now() / MILLI));
        match mishap {
            Mishap::Host(HostFault::Kill(index)) => self.die(index),
            Mishap::Host(HostFault::Start(index)) => self.start(index),
            Mishap::Host(HostFault::Cut(index)) => {
                let others = (0..self.setup.daemons).filter(|&other| other != index);
                self.network.cut_off(index, others);
            }
            Mishap::Host(HostFault::OneWay(from, to)) => {
                if from != to {
                    self.network.cut(from, to);
                }
            }
            Mishap::Host(HostFault::Heal) => self.network.heal(),
            Mishap::Host(HostFault::Pause(index, length)) => {
                self.host(index).paused_until = self.events.now() + length;
                self.trouble(index, length);
            }
            Mishap::KillInLog(index, changes) => self.host(index).files.die_after(changes),
            // Where copies or voters are missing, it would be a loss of more than one.
            Mishap::Lose(index) if self.may_lose(&[index]) => self.lose_all(&[index]),
            Mishap::LoseBoth(one, two) if one != two && self.may_lose(&[one, two]) => {
                self.lose_all(&[one, two]);
            }
            Mishap::Lose(index) | Mishap::LoseBoth(index, _) => self.die(index),
            Mishap::Slow(index, length) => {
                self.host(index).slow_until = self.events.now() + length;
                self.trouble(index, length);
            }
        }
    }

    /// A cut that heals.
    fn cut(&mut self, fault: HostFault, length: i64) {
        if let HostFault::Cut(index) | HostFault::OneWay(index, _) = fault {
            self.trouble(index, length);
        }
        if let HostFault::OneWay(_, other) = fault {
            self.trouble(other, length);
        }
        self.mishap(fault.into());
        self.events.push(length, Happening::Mishap(HostFault::Heal.into()));
    }

    fn disturb(&mut self, index: u16) {
        let length = (50 + self.random.uniform(2000).cast_signed()) * MILLI;
        let other = self.any();
        match self.random.uniform(4) {
            0 => self.cut(HostFault::Cut(index), length),
            1 => self.cut(HostFault::OneWay(index, other), length),
            2 => self.mishap(HostFault::Pause(index, length).into()),
            _ => self.mishap(Mishap::Slow(index, length)),
        }
    }

    fn one_death(&mut self) {
        let index = self.any();
        match self.random.uniform(4) {
            0 => self.mishap(Mishap::Lose(index)),
            1 => {
                let (changes, kills) = (self.random.uniform(12), self.tally.kills);
                self.mishap(Mishap::KillInLog(index, changes));
                self.run_for(500 * MILLI);
                if self.tally.kills == kills {
                    // It has changed nothing.
                    self.die(index);
                }
            }
            _ => self.mishap(HostFault::Kill(index).into()),
        }
    }

    const fn deaths(&self) -> u64 {
        self.tally.kills + self.tally.losses
    }

    fn pass(&mut self, millis_max: u64) {
        let pause = self.random.uniform(millis_max * MILLI.unsigned_abs()).cast_signed();
        self.run_for(pause);
    }

    pub(super) fn die_apart(&mut self) {
        while self.deaths() < DEATHS {
            self.run_until_none(Deaths::missing);
            self.pass(300);
            if self.random.uniform(4) == 0 {
                let index = self.any();
                self.disturb(index);
                self.run_for(2100 * MILLI);
            } else {
                self.one_death();
                self.run_for(500 * MILLI);
            }
        }
    }

    pub(super) fn die_at_once(&mut self) {
        while self.deaths() < DEATHS {
            if self.random.uniform(3) == 0 {
                self.run_until_none(Deaths::missing);
            }
            match self.random.uniform(4) {
                0 => {
                    let index = self.any();
                    self.disturb(index);
                }
                1 if self.setup.daemons > 4 => {
                    let (one, two) = (self.any(), self.any());
                    self.mishap(Mishap::LoseBoth(one, two));
                }
                _ => self.one_death(),
            }
            self.pass(900);
        }
    }
}
