//! Changes of the membership, and what each does. Every daemon applies the same changes in the same
//! order, so a change may be refused, but always by what it and the membership say alone.

use crate::exchange::Balancing;
use crate::membership::{
    Departure, FOLLOWING_MAX, Follower, Member, Membership, Presence, Seat, ServiceIndex,
};
use encoding::{Decode, Encode, check};
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};
use wire::limits::DAEMON_COUNT_MAX;

/// The newest state that a start of a daemon may have acted on: leaders allowed it nothing newer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastAllowed {
    /// Epoch of the membership, for services that it took over.
    pub epoch: u64,
    /// Version of the table of units, as in `replicas::change::Change::Down`.
    pub version: u64,
}

impl LastAllowed {
    /// Nobody knows.
    pub const UNKNOWN: LastAllowed = LastAllowed { epoch: u64::MAX, version: u64::MAX };

    /// The newer of each.
    pub(crate) fn and(self, other: LastAllowed) -> LastAllowed {
        let (epoch, version) = (self.epoch.max(other.epoch), self.version.max(other.version));
        LastAllowed { epoch, version }
    }
}

/// One change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A daemon is dead: its services go to followers that are in sync, and it follows none.
    Down {
        /// The daemon.
        daemon: DaemonIndex,
        /// The start that died.
        incarnation: u64,
        /// The newest that it may have acted on.
        known: LastAllowed,
    },
    /// The instance gets one more daemon, which may come: `Up`. Refused where another has this index
    /// already, so of two that grow the instance at once each gets indices of its own, and where there
    /// would be too many daemons, or units of file data.
    Add {
        /// The next unused index.
        daemon: DaemonIndex,
        /// A number below that of its first start, by which the one that adds it knows it again.
        incarnation: u64,
        /// Its failure domain.
        domain: u32,
    },
    /// A daemon takes part, again or for the first time.
    Up {
        /// The daemon.
        daemon: DaemonIndex,
        /// Number of its start, above the last.
        incarnation: u64,
        /// Its failure domain.
        domain: u32,
        /// Whether it has nothing that an earlier start of it had: a spare in the place of a lost node.
        is_empty: bool,
        /// As in `Down`, of the start before, where nobody missed that.
        known: LastAllowed,
    },
    /// A daemon is to hand over all that it has. Refused where `Membership::may_leave` says so.
    Leave {
        /// The daemon.
        daemon: DaemonIndex,
    },
    /// A daemon that was to leave has nothing any more.
    Left {
        /// The daemon.
        daemon: DaemonIndex,
    },
    /// A daemon begins to follow a service.
    AddFollower {
        /// The subject of the change.
        of: Tenure,
        /// The follower.
        follower: DaemonIndex,
    },
    /// A daemon no longer follows a service. Proposed by the owner when it does not answer.
    DropFollower {
        /// The subject of the change.
        of: Following,
    },
    /// A follower has all records. Proposed by the owner, which from then on acknowledges nothing
    /// that the follower does not have.
    InSync {
        /// The subject of the change.
        of: Following,
    },
    /// A follower that is in sync becomes the owner, and the owner a follower that is in sync, too.
    /// Proposed by the owner when all followers that are in sync have all its records: from then on it
    /// does nothing at all until this is made or has become impossible.
    HandOver {
        /// The subject of the change.
        of: Following,
    },
    /// A follower becomes the owner that is in sync, or was with the owner before. Proposed by the owner,
    /// which cannot serve the service and never did in this epoch: its copy cannot be replayed. From then
    /// on it does not try until this has become impossible.
    Resign {
        /// The subject of the change.
        of: Following,
    },
    /// A daemon is to be the home of a service, which is at its home now and goes on there: `homes`.
    /// Refused where services do not return.
    Rehome {
        /// The subject of the change.
        of: Tenure,
        /// The next home.
        next: DaemonIndex,
    },
    /// Two services exchange their homes, at which they are: each is next for the other one. Refused
    /// where services do not return, or one of both goes to another home already.
    Exchange {
        /// The one that is to make its home cooler.
        hot: Tenure,
        /// The other one.
        cool: Tenure,
    },
    /// Whether homes are exchanged for an even load: `exchange`. Refused where services do not return,
    /// and where another word came in between.
    Balance {
        /// As it is to be, with the next number.
        to: Balancing,
    },
    /// Files may have one copy from now on, so no daemon leaves: `Membership::has_single_files`. Refused
    /// where one leaves or has left.
    AllowSingle,
    /// A change of one unit of file data, in an instance that has them: `Membership::units`.
    Unit {
        /// The change.
        change: replicas::change::Change,
    },
}

/// A service in the time of one owner: a change that names another epoch is late.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tenure {
    /// The service.
    pub service: ServiceIndex,
    /// Its epoch.
    pub epoch: u64,
}

impl Seat {
    /// Followers that have all that was acknowledged, where the owner acted on nothing newer: those that
    /// are in sync, else those that were with the owner before, if this one never acted.
    fn successors(&self, known: LastAllowed) -> impl Iterator<Item = &Follower> {
        let is_any_in_sync = self.followers.iter().any(|it| it.is_in_sync);
        let has_all = move |it: &&Follower| it.has_all(known) && it.is_in_sync == is_any_in_sync;
        self.followers.iter().filter(has_all)
    }

    /// A daemon becomes the owner, in a new epoch. The other followers begin anew: each may have
    /// records that the new owner has not.
    fn succeed(&mut self, successor: DaemonIndex, since: u64, known: LastAllowed) {
        // A restarted successor waits as it did before.
        self.is_successor |= self.last_owner != successor;
        self.followers.iter_mut().for_each(|it| it.is_in_sync = it.has_all(known));
        self.pass_to(successor, since);
        for follower in &mut self.followers {
            (follower.had_all, follower.is_in_sync) = (follower.is_in_sync, false);
        }
    }

    /// The same where all followers that are in sync have the same records: they stay in sync, and the
    /// new owner sends them what comes after these.
    fn pass_to(&mut self, successor: DaemonIndex, since: u64) {
        (self.owner, self.last_owner) = (Some(successor), successor);
        self.epoch += 1;
        self.followers.retain(|it| it.daemon != successor);
        self.followers.iter_mut().for_each(|it| (it.since, it.had_all) = (since, false));
    }
}

impl Follower {
    /// Whether it has all that was acknowledged, where the owner acted on nothing newer. An owner acts
    /// once it was allowed the epoch after `since`, as long as others had all when it became the owner.
    const fn has_all(&self, known: LastAllowed) -> bool {
        self.is_in_sync || self.had_all && known.epoch <= self.since
    }
}

/// A daemon that follows a service in the time of one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Following {
    /// The service.
    pub of: Tenure,
    /// The follower.
    pub follower: DaemonIndex,
    /// As in `Follower`.
    pub since: u64,
}

/// The change does not fit the membership: it is late, or was made already. It has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

impl Membership {
    /// Applies a change.
    ///
    /// # Errors
    /// `Refused`; the membership is as it was.
    pub fn apply(&mut self, change: &Change) -> Result<(), Refused> {
        match *change {
            Change::Down { daemon, incarnation, known } => self.down(daemon, incarnation, known)?,
            Change::Up { daemon, incarnation, domain, is_empty, known } => {
                let presence = Presence::Up;
                let member = Member { domain, presence, incarnation, departure: Departure::None };
                self.up(daemon, member, is_empty, known)?;
            }
            Change::Add { daemon, incarnation, domain } => {
                let index = usize::from(daemon.0);
                let has_place = index == self.members.len() && daemon.0 < DAEMON_COUNT_MAX;
                if !has_place || !self.may_add_units() {
                    return Err(Refused);
                }
                let presence = Presence::Down;
                self.members.push(Member {
                    domain,
                    presence,
                    incarnation,
                    departure: Departure::None,
                });
            }
            Change::Left { daemon } => {
                let may = self.has_handed_over(daemon);
                let member = self.members.get_mut(usize::from(daemon.0)).filter(|_| may);
                let member = member.filter(|it| it.presence == Presence::Leaving);
                let member = member.ok_or(Refused)?;
                (member.presence, member.departure) = (Presence::Down, Departure::Complete);
            }
            Change::Leave { daemon } => {
                self.may_leave(daemon).map_err(|_| Refused)?;
                let member = self.members.get_mut(usize::from(daemon.0)).ok_or(Refused)?;
                member.presence = Presence::Leaving;
                member.departure = Departure::Begun;
            }
            Change::AddFollower { of, follower } => self.add_follower(of, follower)?,
            Change::DropFollower { of } => {
                self.following(of)?;
                self.followers_of(of.of)?.retain(|it| it.daemon != of.follower);
                if let Some(seat) = self.seats.get_mut(of.of.service.0 as usize) {
                    seat.last_dropped = Some(of.follower);
                }
            }
            Change::InSync { of } => {
                let entry = self.following(of)?;
                if core::mem::replace(&mut entry.is_in_sync, true) {
                    return Err(Refused);
                }
            }
            Change::HandOver { of } => self.hand_over(of)?,
            Change::Resign { of } => self.resign(of)?,
            Change::Rehome { of, next } => self.rehome(of, next)?,
            Change::Exchange { hot, cool } => self.exchange_homes(hot, cool)?,
            Change::Balance { to } => self.set_balancing(to)?,
            Change::AllowSingle => self.allow_single()?,
            Change::Unit { change } => self.change_unit(&change)?,
        }
        if !matches!(change, Change::Unit { .. }) {
            self.keep_homes();
        }
        self.follow_in_units(change);
        self.epoch += 1;
        Ok(())
    }

    /// The daemons that a change concerns, which was made: each may have to do something.
    pub(crate) fn concerned(&self, change: &Change) -> Vec<DaemonIndex> {
        let copies = |seat: &Seat| {
            let followers = seat.followers.iter().map(|it| it.daemon);
            seat.owner.into_iter().chain(followers).collect::<Vec<_>>()
        };
        match *change {
            Change::Down { .. } | Change::Up { .. } | Change::Leave { .. } | Change::Add { .. }
                if self.units.is_some() =>
            {
                // Each has units of which a copy may be there.
                self.daemons().map(|(daemon, _)| daemon).collect()
            }
            Change::Unit { change } => self.concerned_by_unit(&change),
            Change::Down { daemon, .. } | Change::Up { daemon, .. } => {
                let successors = self.seats.iter().filter(|it| it.is_successor).flat_map(copies);
                successors.chain([daemon]).collect()
            }
            Change::Add { .. } | Change::AllowSingle | Change::Balance { .. } => Vec::new(),
            Change::Leave { daemon } | Change::Left { daemon } => vec![daemon],
            Change::AddFollower { of, .. } | Change::Rehome { of, .. } => {
                self.seat(of.service).map(copies).unwrap_or_default()
            }
            Change::Exchange { hot, cool } => {
                let seats = [hot, cool].into_iter().filter_map(|of| self.seat(of.service));
                seats.flat_map(copies).collect()
            }
            Change::DropFollower { of } | Change::InSync { of } | Change::HandOver { of } => {
                let mut daemons = self.seat(of.of.service).map(copies).unwrap_or_default();
                daemons.push(of.follower);
                daemons
            }
            Change::Resign { of } => {
                let seat = self.seat(of.of.service);
                let mut daemons = seat.map(copies).unwrap_or_default();
                daemons.extend(seat.and_then(|it| it.last_dropped));
                daemons
            }
        }
    }

    fn followers_of(&mut self, of: Tenure) -> Result<&mut Vec<Follower>, Refused> {
        let seat = self.seats.get_mut(of.service.0 as usize);
        let seat = seat.filter(|seat| seat.epoch == of.epoch && seat.owner.is_some());
        Ok(&mut seat.ok_or(Refused)?.followers)
    }

    fn following(&mut self, of: Following) -> Result<&mut Follower, Refused> {
        let mut followers = self.followers_of(of.of)?.iter_mut();
        followers.find(|it| it.daemon == of.follower && it.since == of.since).ok_or(Refused)
    }

    /// Whether `apply` would make this hand-over.
    #[must_use]
    pub fn may_hand_over(&self, of: Following) -> bool {
        let seat = self.seat(of.of.service).filter(|it| it.epoch == of.of.epoch);
        let entry = seat.and_then(|it| it.follower(of.follower));
        let is_ready = entry.is_some_and(|it| it.since == of.since && it.is_in_sync);
        is_ready && (self.is_up(of.follower) || self.is_on_way(of.of.service, of.follower))
    }

    fn down(
        &mut self,
        daemon: DaemonIndex,
        incarnation: u64,
        known: LastAllowed,
    ) -> Result<(), Refused> {
        let member = self.members.get_mut(usize::from(daemon.0)).ok_or(Refused)?;
        if !member.takes_part() || member.incarnation != incarnation {
            return Err(Refused);
        }
        member.presence = Presence::Down;
        let domain = member.domain;
        let (since, owners_stay) = (self.epoch, self.owners_stay());
        for index in 0..self.seats.len() {
            let loads = self.owned();
            let Some(seat) = self.seats.get_mut(index) else { continue };
            if seat.owner != Some(daemon) {
                // It stays the only copy of a service without an owner: nothing replaces that.
                seat.followers.retain(|it| it.daemon != daemon);
                continue;
            }
            let successors = seat.successors(known).filter(|_| !owners_stay).map(|it| it.daemon);
            let owned = |it: &DaemonIndex| loads.get(usize::from(it.0)).copied().unwrap_or(0);
            // Daemons of one domain die together: one of them may be dead, and that not known yet. As an
            // owner it would take the service with it.
            let member = |it: &DaemonIndex| self.members.get(usize::from(it.0));
            let is_near = |it: &DaemonIndex| member(it).is_some_and(|it| it.domain == domain);
            let successor = successors.min_by_key(|it| (is_near(it), owned(it), it.0));
            match successor {
                Some(successor) => seat.succeed(successor, since, known),
                None => (seat.owner, seat.followers) = (None, Vec::new()),
            }
        }
        Ok(())
    }

    fn up(
        &mut self,
        daemon: DaemonIndex,
        as_it_is: Member,
        is_empty: bool,
        known: LastAllowed,
    ) -> Result<(), Refused> {
        let member = self.members.get_mut(usize::from(daemon.0)).ok_or(Refused)?;
        if member.incarnation >= as_it_is.incarnation || member.has_left() {
            return Err(Refused);
        }
        let departure = member.departure;
        *member = as_it_is;
        if departure == Departure::Begun {
            (member.departure, member.presence) = (departure, Presence::Leaving);
        }
        let (since, owners_stay) = (self.epoch, self.owners_stay());
        for seat in &mut self.seats {
            if seat.owner == Some(daemon) {
                // It restarted before anyone missed it, and does not know what it had shipped.
                seat.owner = None;
                let first = seat.successors(known).next().map(|it| it.daemon);
                if let Some(successor) = first.filter(|_| is_empty && !owners_stay) {
                    seat.succeed(successor, since, known);
                    continue;
                }
                seat.followers.retain(|it| !is_empty || it.is_in_sync);
            }
            let has_newest = !is_empty || owners_stay;
            if seat.owner.is_none() && seat.last_owner == daemon && has_newest {
                // Its own log is the newest that there is.
                seat.succeed(daemon, since, known);
            } else if is_empty {
                seat.followers.retain(|it| it.daemon != daemon);
            }
        }
        Ok(())
    }

    fn add_follower(&mut self, of: Tenure, follower: DaemonIndex) -> Result<(), Refused> {
        let seat = self.seat(of.service).ok_or(Refused)?;
        let may =
            seat.followers.len() < FOLLOWING_MAX && self.may_follow(of.service, seat, follower);
        if !may {
            return Err(Refused);
        }
        let entry =
            Follower { daemon: follower, since: self.epoch, is_in_sync: false, had_all: false };
        self.followers_of(of)?.push(entry);
        Ok(())
    }

    fn hand_over(&mut self, of: Following) -> Result<(), Refused> {
        let (may, since) = (self.may_hand_over(of) && !self.owners_stay(), self.epoch);
        let seat = self.seats.get_mut(of.of.service.0 as usize).filter(|_| may).ok_or(Refused)?;
        let before = seat.owner.ok_or(Refused)?;
        seat.pass_to(of.follower, since);
        // The owner before proposed it, and serves nothing since.
        seat.is_successor = false;
        let follower = Follower { daemon: before, since, is_in_sync: true, had_all: false };
        seat.followers.push(follower);
        self.arrive_home(of.of.service, of.follower);
        Ok(())
    }

    /// Whether `apply` would make this follower the owner instead of one that cannot serve.
    pub(crate) fn may_resign_to(&self, of: Following) -> bool {
        let seat = self.seat(of.of.service).filter(|it| it.epoch == of.of.epoch);
        let entry = seat.filter(|it| it.owner.is_some()).and_then(|it| it.follower(of.follower));
        let has_all = entry.is_some_and(|it| it.since == of.since && (it.is_in_sync || it.had_all));
        has_all && self.is_up(of.follower) && !self.owners_stay()
    }

    /// The follower that is to become the owner of a service that its owner cannot serve.
    pub(crate) fn instead_of(&self, of: Tenure) -> Option<Following> {
        let loads = self.owned();
        let owned = |it: DaemonIndex| loads.get(usize::from(it.0)).copied().unwrap_or(0);
        let followers = self.seat(of.service).into_iter().flat_map(|it| &it.followers);
        let following = |it: &Follower| Following { of, follower: it.daemon, since: it.since };
        let able = followers.filter(|&it| self.may_resign_to(following(it)));
        let first = able.min_by_key(|it| (!it.is_in_sync, owned(it.daemon), it.daemon.0));
        first.map(following)
    }

    fn resign(&mut self, of: Following) -> Result<(), Refused> {
        let (may, since) = (self.may_resign_to(of), self.epoch);
        let seat = self.seats.get_mut(of.of.service.0 as usize).filter(|_| may).ok_or(Refused)?;
        seat.last_dropped = seat.owner;
        let is_in_sync = seat.follower(of.follower).is_some_and(|it| it.is_in_sync);
        let had_all = |it: &Follower| (it.is_in_sync || it.had_all).then_some(it.daemon);
        let before: Vec<DaemonIndex> = seat.followers.iter().filter_map(had_all).collect();
        // The leases that this owner had to wait for count for the next one, too.
        seat.pass_to(of.follower, since);
        for follower in &mut seat.followers {
            // Nothing was appended: those that were in sync with it have what it had.
            follower.is_in_sync &= is_in_sync;
            follower.had_all = before.contains(&follower.daemon);
        }
        Ok(())
    }
}

const OF_UNIT: u8 = 9;
const ALLOW_SINGLE: u8 = 14;
const EXCHANGE: u8 = 15;
const BALANCE: u8 = 16;

impl Encode for Change {
    /// kind:u8, then daemon:u16 and the fields in their order; of a unit (9) the change of its table,
    /// nothing where one daemon is as any other (14), and only the fields where there is none (15, 16)
    fn encode(&self, to: &mut Vec<u8>) {
        let (kind, daemon) = match self {
            Change::Unit { change } => {
                to.push(OF_UNIT);
                return change.encode(to);
            }
            Change::AllowSingle => return to.push(ALLOW_SINGLE),
            Change::Exchange { hot, cool } => {
                to.push(EXCHANGE);
                hot.encode(to);
                return cool.encode(to);
            }
            Change::Balance { to: balancing } => {
                to.push(BALANCE);
                return balancing.encode(to);
            }
            Change::Down { daemon, known: LastAllowed::UNKNOWN, .. } => (0_u8, daemon),
            Change::Down { daemon, .. } => (10, daemon),
            Change::Up { daemon, known: LastAllowed::UNKNOWN, .. } => (1, daemon),
            Change::Up { daemon, .. } => (12, daemon),
            Change::Leave { daemon } => (2, daemon),
            Change::AddFollower { follower, .. } => (3, follower),
            Change::DropFollower { of } => (4, &of.follower),
            Change::InSync { of } => (5, &of.follower),
            Change::HandOver { of } => (6, &of.follower),
            Change::Add { daemon, .. } => (7, daemon),
            Change::Left { daemon } => (8, daemon),
            Change::Resign { of } => (11, &of.follower),
            Change::Rehome { next, .. } => (13, next),
        };
        kind.encode(to);
        daemon.encode(to);
        match self {
            Change::Down { incarnation, known, .. } => {
                incarnation.encode(to);
                if *known != LastAllowed::UNKNOWN {
                    known.encode(to);
                }
            }
            Change::Up { incarnation, domain, is_empty, known, .. } => {
                incarnation.encode(to);
                domain.encode(to);
                is_empty.encode(to);
                if *known != LastAllowed::UNKNOWN {
                    known.encode(to);
                }
            }
            Change::Add { incarnation, domain, .. } => {
                incarnation.encode(to);
                domain.encode(to);
            }
            Change::Leave { .. }
            | Change::Left { .. }
            | Change::AllowSingle
            | Change::Exchange { .. }
            | Change::Balance { .. }
            | Change::Unit { .. } => {}
            Change::AddFollower { of, .. } | Change::Rehome { of, .. } => of.encode(to),
            Change::DropFollower { of }
            | Change::InSync { of }
            | Change::HandOver { of }
            | Change::Resign { of } => {
                of.of.encode(to);
                of.since.encode(to);
            }
        }
    }
}

impl Encode for LastAllowed {
    fn encode(&self, to: &mut Vec<u8>) {
        self.epoch.encode(to);
        self.version.encode(to);
    }
}

impl Decode for LastAllowed {
    fn decode(from: &mut Reader<'_>) -> Result<LastAllowed, Malformed> {
        Ok(LastAllowed { epoch: from.u64()?, version: from.u64()? })
    }
}

impl Encode for Tenure {
    fn encode(&self, to: &mut Vec<u8>) {
        self.service.0.encode(to);
        self.epoch.encode(to);
    }
}

impl Decode for Tenure {
    fn decode(from: &mut Reader<'_>) -> Result<Tenure, Malformed> {
        Ok(Tenure { service: ServiceIndex(from.u32()?), epoch: from.u64()? })
    }
}

impl Decode for Change {
    fn decode(from: &mut Reader<'_>) -> Result<Change, Malformed> {
        let kind = from.u8()?;
        if kind == OF_UNIT {
            return Ok(Change::Unit { change: replicas::change::Change::decode(from)? });
        }
        match kind {
            ALLOW_SINGLE => return Ok(Change::AllowSingle),
            EXCHANGE => {
                let (hot, cool) = (Tenure::decode(from)?, Tenure::decode(from)?);
                return Ok(Change::Exchange { hot, cool });
            }
            BALANCE => return Ok(Change::Balance { to: Balancing::decode(from)? }),
            _ => {}
        }
        let daemon = DaemonIndex(from.u16()?);
        let following = |from: &mut Reader<'_>| {
            let of = Tenure::decode(from)?;
            Ok(Following { of, follower: daemon, since: from.u64()? })
        };
        Ok(match kind {
            0 => Change::Down { daemon, incarnation: from.u64()?, known: LastAllowed::UNKNOWN },
            10 => {
                let (incarnation, known) = (from.u64()?, LastAllowed::decode(from)?);
                // It would have the other form.
                check(known != LastAllowed::UNKNOWN)?;
                Change::Down { daemon, incarnation, known }
            }
            1 => {
                let (incarnation, domain) = (from.u64()?, from.u32()?);
                let (is_empty, known) = (bool::decode(from)?, LastAllowed::UNKNOWN);
                Change::Up { daemon, incarnation, domain, is_empty, known }
            }
            12 => {
                let (incarnation, domain) = (from.u64()?, from.u32()?);
                let (is_empty, known) = (bool::decode(from)?, LastAllowed::decode(from)?);
                // It would have the other form.
                check(known != LastAllowed::UNKNOWN)?;
                Change::Up { daemon, incarnation, domain, is_empty, known }
            }
            2 => Change::Leave { daemon },
            3 => Change::AddFollower { of: Tenure::decode(from)?, follower: daemon },
            4 => Change::DropFollower { of: following(from)? },
            5 => Change::InSync { of: following(from)? },
            6 => Change::HandOver { of: following(from)? },
            7 => Change::Add { daemon, incarnation: from.u64()?, domain: from.u32()? },
            8 => Change::Left { daemon },
            11 => Change::Resign { of: following(from)? },
            13 => Change::Rehome { of: Tenure::decode(from)?, next: daemon },
            _ => return Err(Malformed),
        })
    }
}
