//! Homes of services, where services return: the daemon at which a service is while nothing is wrong. The
//! memory of its home's host alone knows what programs there do with it, so a service that is elsewhere
//! is away no longer than it must.
//!
//!   home --Rehome--> home, another one is next --HandOver--> home, at the other one
//!                      '---- the next one is down or leaves, has no place for a copy (Rehome to the
//!                            home), or the owner changes: it stays the home
//!   home, home of another service --Exchange--> each is next for the other service
//!
//! The first home is the first owner, in turn over the daemons with which the instance began. When the
//! instance grows or shrinks, or its load is made even (`exchange`), services get other homes; the names
//! by which logs and messages know them stay.
//!
//! Invariants
//! 1. The home of a service changes with a hand-over from the home to the next one, and never else: a
//!    home that is down, or from which the service is away, first gets it back. So the memory of its host
//!    has told everything when another host's begins to count.
//! 2. A daemon that is next takes part and stays, and the service is at its home.
//! 3. A service that never had another home than the first one, and has none next, has no entry. One that
//!    had is no service of its first owner's host any more, also where it has its home there again.

use crate::change::{Refused, Tenure};
use crate::exchange::Balancing;
use crate::membership::{Membership, Moves, ServiceIndex};
use encoding::{Decode, Encode, check};
use std::collections::BTreeMap;
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};
use wire::limits::DAEMON_COUNT_MAX;

/// The home of a service that has, had or gets another one than the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    daemon: DaemonIndex,
    /// The daemon that is to be the home.
    next: Option<DaemonIndex>,
    /// It had another home than the first one.
    has_moved: bool,
}

/// See `Membership::homes`.
pub(crate) type Homes = BTreeMap<ServiceIndex, Home>;

fn first_home(service: ServiceIndex, daemons: u16) -> DaemonIndex {
    DaemonIndex((service.0 % u32::from(daemons.max(1))) as u16)
}

impl Membership {
    /// The home of a service, where services return to theirs.
    #[must_use]
    pub fn home(&self, service: ServiceIndex) -> Option<DaemonIndex> {
        let Moves::Home { daemons } = self.moves else { return None };
        let entry = self.homes.get(&service);
        Some(entry.map_or_else(|| first_home(service, daemons), |it| it.daemon))
    }

    /// The daemon that is to be the home of a service next, and gets it as soon as it can.
    #[must_use]
    pub fn next_home(&self, service: ServiceIndex) -> Option<DaemonIndex> {
        self.homes.get(&service)?.next
    }

    /// Whether a service had another home than the first one: from then on programs of no host have
    /// access to it but by messages.
    #[must_use]
    pub fn has_moved(&self, service: ServiceIndex) -> bool {
        self.homes.get(&service).is_some_and(|it| it.has_moved)
    }

    /// Whether a service stays at its first home, until nothing is on the target of one that leaves: the
    /// first one of each daemon keeps the accounts of the target there, and passes notices to mounts.
    pub(crate) fn is_settled(&self, service: ServiceIndex) -> bool {
        let Moves::Home { daemons } = self.moves else { return false };
        service.0 < u32::from(daemons) && !self.has_moved(service)
    }

    /// The daemon to which a service goes as soon as it can: from its home to the next one, from anywhere
    /// else to its home. `None`: it is where it should be.
    pub(crate) fn way_of(&self, service: ServiceIndex) -> Option<DaemonIndex> {
        let home = self.home(service)?;
        let is_away = self.seat(service).is_some_and(|seat| seat.owner != Some(home));
        if is_away { Some(home) } else { self.next_home(service) }
    }

    /// Whether a daemon that takes part is where a service goes, also one that leaves: the service is
    /// back at its home before that has another one.
    pub(crate) fn is_on_way(&self, service: ServiceIndex, daemon: DaemonIndex) -> bool {
        let takes_part = self.member(daemon).is_some_and(|member| member.takes_part());
        takes_part && self.way_of(service) == Some(daemon)
    }

    /// Whether a daemon is the home of a service, or is to be.
    pub(crate) fn has_homes(&self, daemon: DaemonIndex) -> bool {
        self.services().any(|(service, _)| {
            self.home(service) == Some(daemon) || self.next_home(service) == Some(daemon)
        })
    }

    /// Another daemon is to be the home of a service that is at home; the home itself: none other.
    /// That it could not store a copy once is forgotten.
    ///
    /// # Errors
    /// `Refused` if it cannot be.
    pub(crate) fn rehome(&mut self, of: Tenure, next: DaemonIndex) -> Result<(), Refused> {
        let daemon = self.home(of.service).ok_or(Refused)?;
        let seat = self.seat(of.service).filter(|it| it.epoch == of.epoch).ok_or(Refused)?;
        let before = self.next_home(of.service);
        let next = Some(next).filter(|&next| next != daemon);
        if seat.owner != Some(daemon) || before == next || !next.is_none_or(|it| self.is_up(it)) {
            return Err(Refused);
        }
        let has_moved = self.has_moved(of.service);
        self.homes.insert(of.service, Home { daemon, next, has_moved });
        if let Some(seat) = self.seats.get_mut(of.service.0 as usize) {
            seat.last_dropped = seat.last_dropped.filter(|&it| Some(it) != next);
        }
        Ok(())
    }

    /// A service was handed over from its home to this daemon.
    pub(crate) fn arrive_home(&mut self, service: ServiceIndex, daemon: DaemonIndex) {
        if self.next_home(service) == Some(daemon) {
            self.homes.insert(service, Home { daemon, next: None, has_moved: true });
        }
    }

    /// After a change of owners or daemons: invariants 2 and 3.
    pub(crate) fn keep_homes(&mut self) {
        let mut homes = std::mem::take(&mut self.homes);
        homes.retain(|&service, home| {
            let is_there = self.seat(service).is_some_and(|seat| seat.owner == Some(home.daemon));
            home.next = home.next.filter(|&next| is_there && self.is_up(next));
            home.next.is_some() || home.has_moved
        });
        self.homes = homes;
    }
}

/// Behind this bit of the number of `Moves::Home` there is a list of homes.
const LISTED: u16 = 1 << 15;
/// With this bit there is what was said about balancing, before the list.
const BALANCED: u16 = 1 << 14;
const _: () = assert!(DAEMON_COUNT_MAX < BALANCED);

/// moves:u16: 0 freely, all bits never, else the number of daemons that services return to at first;
/// with `BALANCED` then number:u64 is_on:u8 is_asked:u8; with `LISTED` then count:u32, and for each home
/// service:u32 daemon:u16 next:u16 (all bits: none) has_moved:u8, by services
pub(crate) fn encode_moves(moves: Moves, homes: &Homes, balancing: Balancing, to: &mut Vec<u8>) {
    let daemons = match moves {
        Moves::Freely => return 0_u16.encode(to),
        Moves::Never => return u16::MAX.encode(to),
        Moves::Home { daemons } => daemons,
    };
    let is_balanced = balancing != Balancing::OFF;
    let balanced = if is_balanced { BALANCED } else { 0 };
    let listed = if homes.is_empty() { 0 } else { LISTED };
    (daemons | balanced | listed).encode(to);
    if is_balanced {
        balancing.encode(to);
    }
    if homes.is_empty() {
        return;
    }
    (homes.len() as u32).encode(to);
    for (service, home) in homes {
        service.0.encode(to);
        home.daemon.encode(to);
        home.next.map_or(u16::MAX, |next| next.0).encode(to);
        home.has_moved.encode(to);
    }
}

/// The inverse. Whether the homes fit the membership: `are_possible`.
pub(crate) fn decode_moves(from: &mut Reader<'_>) -> Result<(Moves, Homes, Balancing), Malformed> {
    let mut homes = Homes::new();
    let number = from.u16()?;
    let daemons = match number {
        0 => return Ok((Moves::Freely, homes, Balancing::OFF)),
        u16::MAX => return Ok((Moves::Never, homes, Balancing::OFF)),
        _ => number & !(LISTED | BALANCED),
    };
    check((1..=DAEMON_COUNT_MAX).contains(&daemons))?;
    let mut balancing = Balancing::OFF;
    if number & BALANCED != 0 {
        balancing = Balancing::decode(from)?;
        // It would have the other form.
        check(balancing != Balancing::OFF)?;
    }
    if number & LISTED != 0 {
        let count = from.u32()?;
        check(count > 0)?;
        for _ in 0..count {
            let service = ServiceIndex(from.u32()?);
            let (daemon, next) = (DaemonIndex::decode(from)?, from.u16()?);
            let next = (next != u16::MAX).then_some(DaemonIndex(next));
            let has_moved = bool::decode(from)?;
            let is_behind = homes.last_key_value().is_none_or(|(&last, _)| last < service);
            let is_first = daemon == first_home(service, daemons);
            check(is_behind && (has_moved || is_first && next.is_some()))?;
            homes.insert(service, Home { daemon, next, has_moved });
        }
    }
    Ok((Moves::Home { daemons }, homes, balancing))
}

/// Whether all homes are of services and daemons that there are.
pub(crate) fn are_possible(homes: &Homes, daemons: u16, services: usize) -> bool {
    homes.iter().all(|(service, home)| {
        let mut all = home.next.iter().chain([&home.daemon]);
        (service.0 as usize) < services
            && all.all(|it| it.0 < daemons)
            && home.next != Some(home.daemon)
    })
}
