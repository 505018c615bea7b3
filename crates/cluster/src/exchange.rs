//! An even load where services return to homes (O7): a hot service and one of a cooler daemon exchange
//! their homes, so each daemon keeps its number of services. The policy that evens that number
//! (`policy`) and the one that brings services back (`homes`) therefore never undo an exchange, and an
//! exchange undoes neither.
//!
//! Whether homes are exchanged is a setting of the instance, in the membership, and off at first: a
//! service that has moved is in no host's memory any more (`Membership::has_moved`), which costs programs
//! of its first host more than a busy daemon does. Besides, one look can be asked for.
//!
//! Invariants
//! 1. An exchange begins where nothing else moves and all daemons take part, so each of both services is
//!    at its home, and goes to no other one.
//! 2. It lowers the load of the hotter daemon, and leaves the other one below what that was.
//! 3. The first service of a daemon (`Membership::is_settled`) is exchanged for none.

use crate::change::{Change, Refused, Tenure};
use crate::membership::{Membership, Moves, Presence, ServiceIndex};
use crate::policy::{Loads, is_gain};
use encoding::{Decode, Encode};
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};

/// The hottest daemons, and the coolest ones, between which services are exchanged: more would not make
/// the load of the hottest one lower, and with 1,000 daemons each look would take long.
const CANDIDATES_MAX: usize = 8;
/// Exchanges of one look: as many services may move as go to some daemons at a time.
const EXCHANGES_MAX: usize = 16;

/// Whether homes are exchanged for an even load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Balancing {
    /// Counts the words about it: of two at once one is made.
    pub number: u64,
    /// Homes are exchanged whenever that is a gain.
    pub is_on: bool,
    /// One look at the loads is asked for, and has not been done yet.
    pub is_asked: bool,
}

impl Balancing {
    /// As in the first membership.
    pub(crate) const OFF: Balancing = Balancing { number: 0, is_on: false, is_asked: false };

    /// The same on or off.
    #[must_use]
    pub const fn turned(self, is_on: bool) -> Balancing {
        Balancing { number: self.number.saturating_add(1), is_on, ..self }
    }

    /// The same when a look was asked for.
    #[must_use]
    pub const fn with_request(self) -> Balancing {
        Balancing { number: self.number.saturating_add(1), is_asked: true, ..self }
    }

    /// The same when the look was done.
    pub(crate) const fn answered(self) -> Balancing {
        Balancing { number: self.number.saturating_add(1), is_asked: false, ..self }
    }
}

impl Encode for Balancing {
    /// number:u64 is_on:u8 is_asked:u8
    fn encode(&self, to: &mut Vec<u8>) {
        self.number.encode(to);
        self.is_on.encode(to);
        self.is_asked.encode(to);
    }
}

impl Decode for Balancing {
    fn decode(from: &mut Reader<'_>) -> Result<Balancing, Malformed> {
        let (number, is_on) = (from.u64()?, bool::decode(from)?);
        Ok(Balancing { number, is_on, is_asked: bool::decode(from)? })
    }
}

/// Why homes are exchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The setting: a service that moved rests, and a daemon must be hot.
    Setting,
    /// Somebody asked: whatever helps.
    Asked,
}

/// Two services that exchange their homes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// The one with the higher load.
    pub hot: ServiceIndex,
    /// The one with the lower load.
    pub cool: ServiceIndex,
}

impl Membership {
    /// Whether homes are exchanged; `None` where services do not return to homes.
    #[must_use]
    pub fn balancing(&self) -> Option<Balancing> {
        matches!(self.moves, Moves::Home { .. }).then_some(self.balancing)
    }

    pub(crate) fn set_balancing(&mut self, to: Balancing) -> Result<(), Refused> {
        let before = self.balancing().ok_or(Refused)?;
        if before.number.checked_add(1) != Some(to.number) {
            return Err(Refused);
        }
        self.balancing = to;
        Ok(())
    }

    /// Each of two services is to be at the home of the other one.
    pub(crate) fn exchange_homes(&mut self, hot: Tenure, cool: Tenure) -> Result<(), Refused> {
        let home_of = |of: Tenure| {
            let may = self.next_home(of.service).is_none() && !self.is_settled(of.service);
            self.home(of.service).filter(|_| may)
        };
        let (Some(here), Some(there)) = (home_of(hot), home_of(cool)) else { return Err(Refused) };
        let mut after = self.clone();
        after.rehome(hot, there)?;
        after.rehome(cool, here)?;
        *self = after;
        Ok(())
    }

    /// Whether all daemons take part and stay, and each service is at its home and goes nowhere.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let mut members = self.daemons().map(|it| it.1);
        members.all(|it| it.presence == Presence::Up || it.has_left())
            && self
                .services()
                .all(|(service, seat)| seat.owner.is_some() && self.way_of(service).is_none())
    }

    /// Services that are on their way to another home, or get one until no daemon has two more than
    /// another one. None where services do not return to homes.
    #[must_use]
    pub fn services_to_move(&self) -> usize {
        let going = self.services().filter(|it| self.next_home(it.0).is_some()).count();
        let mut daemons = vec![(0_usize, 0_usize); self.members.len()];
        for (service, _) in self.services() {
            let home = self.next_home(service).or_else(|| self.home(service));
            if let Some((all, free)) = home.and_then(|it| daemons.get_mut(usize::from(it.0))) {
                *all += 1;
                *free += usize::from(!self.is_settled(service));
            }
        }
        let is_up = |index: usize| self.is_up(DaemonIndex(index as u16));
        let mut up: Vec<(usize, usize)> =
            daemons.into_iter().enumerate().filter(|it| is_up(it.0)).map(|it| it.1).collect();
        let mut more = 0;
        if self.balancing().is_some() {
            while give(&mut up) {
                more += 1;
            }
        }
        going + more
    }
}

/// The daemon with most homes gives one to that with least, of those that may be given: whether it does.
fn give(daemons: &mut [(usize, usize)]) -> bool {
    let Some(least) = daemons.iter().map(|it| it.0).min() else { return false };
    let gives = |it: &&mut (usize, usize)| it.1 > 0 && it.0 >= least + 2;
    let Some(first) = daemons.iter_mut().filter(gives).max_by_key(|it| it.0) else { return false };
    *first = (first.0 - 1, first.1 - 1);
    if let Some(taker) = daemons.iter_mut().find(|it| it.0 == least) {
        *taker = (taker.0 + 1, taker.1 + 1);
    }
    true
}

/// The changes that the setting, and a look that was asked for, need now.
pub(crate) fn changes(membership: &Membership, loads: &Loads<'_>) -> Vec<Change> {
    let Some(balancing) = membership.balancing().filter(|_| loads.may_move) else {
        return Vec::new();
    };
    let reason = match balancing {
        Balancing { is_asked: true, .. } => Reason::Asked,
        Balancing { is_on: true, .. } => Reason::Setting,
        _ => return Vec::new(),
    };
    let found =
        if membership.is_at_rest() { exchanges(membership, loads, reason) } else { Vec::new() };
    let tenure = |service| {
        let seat = membership.seat(service);
        Tenure { service, epoch: seat.map_or(0, |seat| seat.epoch) }
    };
    let exchange = |it: Exchange| Change::Exchange { hot: tenure(it.hot), cool: tenure(it.cool) };
    let mut changes: Vec<Change> = found.into_iter().map(exchange).collect();
    if balancing.is_asked {
        changes.push(Change::Balance { to: balancing.answered() });
    }
    changes
}

/// All exchanges that help, each beside those before it.
pub(crate) fn exchanges(
    membership: &Membership,
    loads: &Loads<'_>,
    reason: Reason,
) -> Vec<Exchange> {
    let mut exchanges = Vec::new();
    if loads.weights.is_empty() {
        return exchanges;
    }
    let mut plan = Plan::new(membership, loads, reason);
    while exchanges.len() < EXCHANGES_MAX {
        let Some(exchange) = plan.best() else { break };
        plan.make(exchange);
        exchanges.push(exchange);
    }
    exchanges
}

/// Loads as they are after some exchanges.
struct Plan<'a> {
    membership: &'a Membership,
    loads: &'a Loads<'a>,
    reason: Reason,
    /// The home of each service, and whether it may have another one.
    homes: Vec<(DaemonIndex, bool)>,
    /// The load of each daemon.
    daemons: Vec<u64>,
}

impl<'a> Plan<'a> {
    fn new(membership: &'a Membership, loads: &'a Loads<'a>, reason: Reason) -> Plan<'a> {
        let home = |service| membership.home(service).unwrap_or_default();
        let may_move = |service| {
            let rests = reason == Reason::Setting && loads.resting.contains(&service);
            !rests && !membership.is_settled(service)
        };
        let homes = membership.services().map(|it| (home(it.0), may_move(it.0))).collect();
        let daemons = vec![0; membership.members.len()];
        let mut plan = Plan { membership, loads, reason, homes, daemons };
        for (service, _) in membership.services() {
            let weight = plan.weight(service);
            if let Some(load) = plan.load_mut(home(service)) {
                *load = load.saturating_add(weight);
            }
        }
        plan
    }

    fn weight(&self, service: ServiceIndex) -> u64 {
        self.loads.weights.get(service.0 as usize).copied().unwrap_or(1)
    }

    fn load(&self, daemon: DaemonIndex) -> u64 {
        self.daemons.get(usize::from(daemon.0)).copied().unwrap_or(0)
    }

    fn load_mut(&mut self, daemon: DaemonIndex) -> Option<&mut u64> {
        self.daemons.get_mut(usize::from(daemon.0))
    }

    /// Services of a daemon that may move.
    fn free(&self, daemon: DaemonIndex) -> impl Iterator<Item = ServiceIndex> {
        let homes = self.homes.iter().enumerate();
        let free = homes.filter(move |(_, home)| **home == (daemon, true));
        free.map(|(index, _)| ServiceIndex(index as u32))
    }

    /// Whether a daemon could store a copy of the service, as far as is known.
    fn may_get(&self, service: ServiceIndex, daemon: DaemonIndex) -> bool {
        let dropped = self.membership.seat(service).and_then(|seat| seat.last_dropped);
        self.reason == Reason::Asked || dropped != Some(daemon)
    }

    /// The exchange that lowers the load of the hottest daemon most; where there is none, of the next.
    fn best(&self) -> Option<Exchange> {
        let daemons = self.membership.daemons().map(|it| it.0);
        let mut up: Vec<DaemonIndex> = daemons.filter(|&it| self.membership.is_up(it)).collect();
        up.sort_by_key(|&it| (self.load(it), it));
        let is_hot =
            |&it: &DaemonIndex| self.reason == Reason::Asked || self.load(it) >= self.loads.hot_min;
        let hot = up.iter().rev().take(CANDIDATES_MAX).take_while(|it| is_hot(it));
        hot.copied().find_map(|hot| {
            let cool = up.iter().copied().filter(|&it| it != hot).take(CANDIDATES_MAX);
            let pairs = cool.flat_map(|cool| self.between(hot, cool));
            pairs
                .min_by_key(|(after, exchange)| (*after, exchange.hot, exchange.cool))
                .map(|it| it.1)
        })
    }

    /// Exchanges between two daemons that are a gain, each with the higher load of both after it.
    fn between(&self, hot: DaemonIndex, cool: DaemonIndex) -> Vec<(u64, Exchange)> {
        let (high, low) = (self.load(hot), self.load(cool));
        let mut found = Vec::new();
        if !is_gain(high, low) {
            return found;
        }
        let taken: Vec<ServiceIndex> =
            self.free(cool).filter(|&it| self.may_get(it, hot)).collect();
        for given in self.free(hot).filter(|&it| self.may_get(it, cool)) {
            for &taken in &taken {
                let less = self.weight(given).saturating_sub(self.weight(taken));
                let after = high.saturating_sub(less).max(low.saturating_add(less));
                if is_gain(high, after) {
                    found.push((after, Exchange { hot: given, cool: taken }));
                }
            }
        }
        found
    }

    fn make(&mut self, exchange: Exchange) {
        let home = |service: ServiceIndex| self.homes.get(service.0 as usize).map(|it| it.0);
        let (Some(here), Some(there)) = (home(exchange.hot), home(exchange.cool)) else { return };
        let less = self.weight(exchange.hot).saturating_sub(self.weight(exchange.cool));
        for (service, daemon) in [(exchange.hot, there), (exchange.cool, here)] {
            if let Some(home) = self.homes.get_mut(service.0 as usize) {
                // It goes to one other home only.
                *home = (daemon, false);
            }
        }
        if let Some(load) = self.load_mut(here) {
            *load = load.saturating_sub(less);
        }
        if let Some(load) = self.load_mut(there) {
            *load = load.saturating_add(less);
        }
    }
}
