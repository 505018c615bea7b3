//! The membership: which daemons an instance has, and which of them owns and follows each metadata
//! service. A replicated state: every change passes through `consensus`, in one order, and every daemon
//! applies it by the same code.
//!
//! A service is all shards of one worker thread of the instance's first map. It is what moves: its
//! owner serves it, its followers hold a copy of its log (O6). Both change, the shards of a service
//! never do.
//!
//! Invariants
//! 1. A service has at most one owner, and its epoch advances when the owner changes.
//! 2. A follower that is in sync holds every record whose operation was acknowledged as replicated.
//!    Only such a follower becomes the owner.
//! 3. The copies of a service are in different failure domains, unless `same_domain` allows it.
//! 4. Applying a change twice is refused the second time: a change names the epoch or the incarnation
//!    that it is about.

use crate::change::Refused;
use crate::exchange::Balancing;
use crate::homes::{self, Homes};
use crate::voters::{Voter, Voters};
use encoding::{Decode, Encode, check};
use replicas::table::Table;
use std::sync::Arc;
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};
use wire::limits::DAEMON_COUNT_MAX;

/// Followers that an instance may ask for.
pub const FOLLOWERS_MAX: usize = 2;
/// Followers that a service has at most: one more while it moves.
pub(crate) const FOLLOWING_MAX: usize = FOLLOWERS_MAX + 1;
/// The greatest epoch that is read: each change adds 1, so none comes near the end of the numbers.
const EPOCH_MAX: u64 = 1 << 62;
/// Services of an instance: at most this many for each daemon of the first map.
pub const SERVICES_PER_DAEMON_MAX: usize = 256;

/// Number of a metadata service; it never changes its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ServiceIndex(pub u32);

/// State of a daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// It takes part.
    Up,
    /// It was declared dead. It may return.
    Down,
    /// It hands over what it owns, and takes nothing new.
    Leaving,
}

/// One daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Failure domain: what fails at once has the same number.
    pub domain: u32,
    /// Whether it takes part.
    pub presence: Presence,
    /// Number of its last start. Messages of an earlier start are refused.
    pub incarnation: u64,
    /// Whether it was told to leave.
    pub(crate) departure: Departure,
}

/// Whether a daemon is to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Departure {
    None,
    /// It is: after a death it leaves on.
    Begun,
    /// It had handed over everything, and does not return.
    Complete,
}

impl Member {
    /// Whether it does its part: it was not declared dead, and has not left.
    #[must_use]
    pub const fn takes_part(&self) -> bool {
        matches!(self.presence, Presence::Up | Presence::Leaving)
    }

    /// Whether it was told to leave and has not left yet. After a death it leaves on.
    #[must_use]
    pub const fn is_to_leave(&self) -> bool {
        matches!(self.departure, Departure::Begun)
    }

    /// Whether it was told to leave, has handed over everything, and does not return.
    #[must_use]
    pub const fn has_left(&self) -> bool {
        matches!(self.departure, Departure::Complete)
    }
}

/// Why a daemon cannot leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Indispensable {
    /// It does not take part, or leaves already.
    Absent,
    /// Files may have one copy, and it may have that.
    SingleFiles,
    /// Without it the copies of a service would not be apart, or there would be too few.
    Copies {
        /// Failure domains without it; daemons, where copies may be in one domain.
        found: usize,
        /// Number of copies.
        needed: usize,
    },
}

/// A copy of a service that is not the owner's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Follower {
    /// The daemon.
    pub daemon: DaemonIndex,
    /// Epoch of the membership in which it began to follow: a change that names another is late.
    pub since: u64,
    /// Whether it may become the owner.
    pub is_in_sync: bool,
    /// Whether it was in sync with the owner before: it has all that was acknowledged before this owner
    /// did anything. `since` is then the epoch before the one in which this one became the owner.
    pub had_all: bool,
}

/// Owner and followers of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seat {
    /// Counts the owners of the service. The first is 1.
    pub epoch: u64,
    /// The daemon that serves it. `None`: the last owner is down, and no follower was in sync.
    pub owner: Option<DaemonIndex>,
    /// The owner took over from a daemon that may not know it: it waits until that daemon's lease
    /// has ended for sure.
    pub is_successor: bool,
    /// The last owner, whose log is the newest where there is none.
    pub last_owner: DaemonIndex,
    /// The follower that was dropped last: it stands still, or cannot store a copy, so that others are
    /// asked before it.
    pub last_dropped: Option<DaemonIndex>,
    /// The followers, at most `FOLLOWERS_MAX` and one more while the service moves.
    pub followers: Vec<Follower>,
}

impl Seat {
    /// The entry of a follower.
    #[must_use]
    pub fn follower(&self, daemon: DaemonIndex) -> Option<&Follower> {
        self.followers.iter().find(|follower| follower.daemon == daemon)
    }

    /// Whether the daemon has a copy, or is about to have one.
    #[must_use]
    pub fn has(&self, daemon: DaemonIndex) -> bool {
        self.owner == Some(daemon) || self.follower(daemon).is_some()
    }
}

/// Where services go that have an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moves {
    /// Anywhere, for an even load.
    Freely,
    /// Nowhere: a service of a daemon that is down has no owner until that daemon returns.
    Never,
    /// To their homes (`homes`), when those return.
    Home {
        /// Daemons of the first map, which are the first homes.
        daemons: u16,
    },
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// Counts the changes. The first membership has 1.
    pub epoch: u64,
    /// Followers that each service is to have.
    pub followers: u8,
    /// Whether copies of a service may be in one failure domain.
    pub same_domain: bool,
    /// Whether files may have one copy, beside those of `units`: none can leave that may have it.
    pub has_single_files: bool,
    pub(crate) moves: Moves,
    /// Homes that are not the first ones, or change: see `homes`.
    pub(crate) homes: Homes,
    /// See `exchange`.
    pub(crate) balancing: Balancing,
    pub(crate) voters: Voters,
    pub(crate) members: Vec<Member>,
    pub(crate) seats: Vec<Seat>,
    /// See `units`.
    pub(crate) units: Option<Arc<Table>>,
}

/// Why an instance cannot have these settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsuitable {
    /// No daemon, or too many.
    Daemons,
    /// No service, or too many.
    Services,
    /// More followers than `FOLLOWERS_MAX`.
    Followers,
    /// Fewer failure domains than copies.
    Domains {
        /// Number of domains.
        found: usize,
        /// Number of copies.
        needed: usize,
    },
}

impl Membership {
    /// The first membership: services in turn over the daemons, which all take part, without followers;
    /// `policy` finds them. `domains` has the failure domain of each daemon.
    ///
    /// # Errors
    /// `Unsuitable` if the copies of a service would not be apart.
    pub fn initial(
        domains: &[u32],
        services: usize,
        followers: u8,
        same_domain: bool,
    ) -> Result<Membership, Unsuitable> {
        let count = u16::try_from(domains.len()).ok().filter(|&count| count <= DAEMON_COUNT_MAX);
        let count = count.filter(|&count| count > 0).ok_or(Unsuitable::Daemons)?;
        if services == 0 || services > domains.len() * SERVICES_PER_DAEMON_MAX {
            return Err(Unsuitable::Services);
        }
        let needed = 1 + usize::from(followers);
        if needed > 1 + FOLLOWERS_MAX {
            return Err(Unsuitable::Followers);
        }
        let mut distinct = domains.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let found = if same_domain { domains.len() } else { distinct.len() };
        if found < needed {
            return Err(Unsuitable::Domains { found, needed });
        }
        let member = |&domain| Member {
            domain,
            presence: Presence::Up,
            incarnation: 1,
            departure: Departure::None,
        };
        let seat = |service: usize| {
            let owner = DaemonIndex((service % usize::from(count)) as u16);
            Seat {
                epoch: 1,
                owner: Some(owner),
                is_successor: false,
                last_owner: owner,
                last_dropped: None,
                followers: Vec::new(),
            }
        };
        Ok(Membership {
            epoch: 1,
            followers,
            same_domain,
            has_single_files: false,
            moves: Moves::Freely,
            homes: Homes::new(),
            balancing: Balancing::OFF,
            voters: Voters::default(),
            members: domains.iter().map(member).collect(),
            seats: (0..services).map(seat).collect(),
            units: None,
        })
    }

    /// No membership: a voter that is new has none yet.
    pub(crate) const fn none() -> Membership {
        Membership {
            epoch: 0,
            followers: 0,
            same_domain: false,
            has_single_files: false,
            moves: Moves::Freely,
            homes: Homes::new(),
            balancing: Balancing::OFF,
            voters: Voters { since: 0, next: Vec::new(), before: Vec::new() },
            members: Vec::new(),
            seats: Vec::new(),
            units: None,
        }
    }

    /// The same in which services stay at their first owners: for daemons that follow services and do
    /// not take them over.
    #[must_use]
    pub const fn with_owners_that_stay(mut self) -> Membership {
        self.moves = Moves::Never;
        self
    }

    /// The first membership in which services go to followers of dead owners, return to their homes, and
    /// move for nothing else but growth and shrinking. Each service is at home.
    #[must_use]
    pub fn with_owners_that_return(mut self) -> Membership {
        self.moves = Moves::Home { daemons: self.members.len() as u16 };
        self
    }

    pub(crate) fn owners_stay(&self) -> bool {
        self.moves == Moves::Never
    }

    /// The membership that an instance begins with has no voters: these are the first.
    pub(crate) fn with_voters(mut self, first: &[DaemonIndex]) -> Membership {
        if self.voters.next.is_empty() {
            self.voters = Voters::first(first);
        }
        self
    }

    /// The voters. None before `Node::begin`.
    #[must_use]
    pub const fn voters(&self) -> &Voters {
        &self.voters
    }

    /// The next voters and the ones of now are joint.
    ///
    /// # Errors
    /// `Refused` if they cannot be.
    pub(crate) fn begin_voters(&mut self, next: Vec<Voter>) -> Result<(), Refused> {
        let is_old = |it: &Voter| self.voters.next.contains(it);
        let is_known = next.iter().all(|it| is_old(it) || self.is_up(it.daemon));
        let is_same = next.iter().all(|it| self.voters.next.contains(it))
            && next.len() == self.voters.next.len();
        if next.is_empty() || !is_known || is_same || self.voters.is_joint() {
            return Err(Refused);
        }
        self.epoch += 1;
        let before = core::mem::replace(&mut self.voters.next, next);
        (self.voters.before, self.voters.since) = (before, self.epoch);
        Ok(())
    }

    /// The next voters decide alone.
    ///
    /// # Errors
    /// `Refused` if no change has begun.
    pub(crate) fn complete_voters(&mut self) -> Result<(), Refused> {
        if !self.voters.is_joint() {
            return Err(Refused);
        }
        self.epoch += 1;
        (self.voters.before, self.voters.since) = (Vec::new(), self.epoch);
        Ok(())
    }

    /// The daemons.
    pub fn daemons(&self) -> impl Iterator<Item = (DaemonIndex, &Member)> {
        self.members.iter().enumerate().map(|(index, member)| (DaemonIndex(index as u16), member))
    }

    /// The services.
    pub fn services(&self) -> impl Iterator<Item = (ServiceIndex, &Seat)> {
        self.seats.iter().enumerate().map(|(index, seat)| (ServiceIndex(index as u32), seat))
    }

    /// One daemon.
    #[must_use]
    pub fn member(&self, daemon: DaemonIndex) -> Option<&Member> {
        self.members.get(usize::from(daemon.0))
    }

    /// Owner and followers of one service.
    #[must_use]
    pub fn seat(&self, service: ServiceIndex) -> Option<&Seat> {
        self.seats.get(service.0 as usize)
    }

    pub(crate) fn is_up(&self, daemon: DaemonIndex) -> bool {
        self.member(daemon).is_some_and(|member| member.presence == Presence::Up)
    }

    /// Whether a daemon may leave: `Change::Leave`.
    ///
    /// # Errors
    /// The reason why it may not.
    pub fn may_leave(&self, daemon: DaemonIndex) -> Result<(), Indispensable> {
        if !self.is_up(daemon) {
            return Err(Indispensable::Absent);
        }
        if self.has_single_files {
            return Err(Indispensable::SingleFiles);
        }
        let others = self.daemons().filter(|&(other, _)| other != daemon && self.is_up(other));
        let mut domains: Vec<u32> = others.map(|(_, member)| member.domain).collect();
        let daemons = domains.len();
        domains.sort_unstable();
        domains.dedup();
        let of_services = (self.same_domain, 1 + usize::from(self.followers));
        let of_units = self.units.as_ref().map(|it| (it.same_domain, it.goal_max().into()));
        for (same_domain, needed) in [of_services].into_iter().chain(of_units) {
            let found = if same_domain { daemons } else { domains.len() };
            if found < needed {
                return Err(Indispensable::Copies { found, needed });
            }
        }
        Ok(())
    }

    /// Whether files may have one copy, now or after `Change::AllowSingle`: no daemon leaves, and none
    /// has left.
    #[must_use]
    pub fn may_have_single_files(&self) -> bool {
        self.has_single_files || !self.members.iter().any(|it| it.departure != Departure::None)
    }

    pub(crate) fn allow_single(&mut self) -> Result<(), Refused> {
        if self.has_single_files || !self.may_have_single_files() {
            return Err(Refused);
        }
        self.has_single_files = true;
        Ok(())
    }

    /// Services and copies of units of which a daemon has to give something away before it has left.
    #[must_use]
    pub fn held_by(&self, daemon: DaemonIndex) -> usize {
        let is_held = |&(service, seat): &(ServiceIndex, &Seat)| {
            let is_home = self.home(service) == Some(daemon);
            is_home || self.next_home(service) == Some(daemon) || seat.has(daemon)
        };
        let units = self.units.as_ref().map_or(0, |units| units.needing(daemon));
        self.services().filter(is_held).count() + units
    }

    /// Whether a daemon that leaves has handed over everything.
    pub(crate) fn has_handed_over(&self, daemon: DaemonIndex) -> bool {
        let is_last = |seat: &Seat| seat.owner.is_none() && seat.last_owner == daemon;
        let has_units = self.units.as_ref().is_some_and(|units| !units.is_free_of(daemon));
        !self.voters.has(daemon)
            && !has_units
            && !self.has_homes(daemon)
            && !self.seats.iter().any(|it| it.has(daemon) || is_last(it))
    }

    /// Whether a copy of the service may be at this daemon, beside those that it has.
    pub(crate) fn is_apart(&self, seat: &Seat, daemon: DaemonIndex) -> bool {
        let domain = |daemon| self.member(daemon).map(|member| member.domain);
        let copies = seat.owner.into_iter().chain(seat.followers.iter().map(|it| it.daemon));
        // A copy at a daemon that leaves is to be replaced, perhaps in the same domain.
        let copies = copies.filter(|&copy| self.is_up(copy));
        !seat.has(daemon)
            && (self.same_domain || copies.into_iter().all(|copy| domain(copy) != domain(daemon)))
    }

    /// Whether a daemon may begin to follow a service. One to which the service goes always may: the copy
    /// that is too many, or not apart, goes when the service is there.
    pub(crate) fn may_follow(
        &self,
        service: ServiceIndex,
        seat: &Seat,
        daemon: DaemonIndex,
    ) -> bool {
        let is_next = self.is_on_way(service, daemon) && !seat.has(daemon);
        is_next || self.is_up(daemon) && self.is_apart(seat, daemon)
    }

    /// Whether another daemon may have a copy of the service instead of this follower.
    pub(crate) fn has_other_place(&self, seat: &Seat, follower: DaemonIndex) -> bool {
        let mut others = seat.clone();
        others.followers.retain(|it| it.daemon != follower);
        self.daemons().any(|(daemon, _)| {
            daemon != follower && self.is_up(daemon) && self.is_apart(&others, daemon)
        })
    }

    /// Services that each daemon owns.
    pub(crate) fn owned(&self) -> Vec<usize> {
        let mut owned = vec![0; self.members.len()];
        for owner in self.seats.iter().filter_map(|seat| seat.owner) {
            if let Some(count) = owned.get_mut(usize::from(owner.0)) {
                *count += 1;
            }
        }
        owned
    }
}

impl Encode for Membership {
    fn encode(&self, to: &mut Vec<u8>) {
        self.epoch.encode(to);
        self.followers.encode(to);
        self.same_domain.encode(to);
        self.has_single_files.encode(to);
        homes::encode_moves(self.moves, &self.homes, self.balancing, to);
        self.voters.encode(to);
        (self.members.len() as u16).encode(to);
        for member in &self.members {
            member.domain.encode(to);
            (member.presence as u8).encode(to);
            member.incarnation.encode(to);
            (member.departure as u8).encode(to);
        }
        (self.seats.len() as u32).encode(to);
        for seat in &self.seats {
            seat.epoch.encode(to);
            seat.owner.map_or(u16::MAX, |owner| owner.0).encode(to);
            seat.is_successor.encode(to);
            seat.last_owner.encode(to);
            seat.last_dropped.map_or(u16::MAX, |dropped| dropped.0).encode(to);
            (seat.followers.len() as u8).encode(to);
            for follower in &seat.followers {
                follower.daemon.encode(to);
                follower.since.encode(to);
                follower.is_in_sync.encode(to);
                follower.had_all.encode(to);
            }
        }
        // Last: without units nothing is written.
        if let Some(units) = &self.units {
            units.encode(to);
        }
    }
}

impl Decode for Membership {
    fn decode(from: &mut Reader<'_>) -> Result<Membership, Malformed> {
        let (epoch, followers, same_domain) = (from.u64()?, from.u8()?, bool::decode(from)?);
        check(epoch <= EPOCH_MAX)?;
        let has_single_files = bool::decode(from)?;
        let (moves, homes, balancing) = homes::decode_moves(from)?;
        let voters = Voters::decode(from)?;
        let count = from.u16()?;
        if count == 0 || count > DAEMON_COUNT_MAX || usize::from(followers) > FOLLOWERS_MAX {
            return Err(Malformed);
        }
        let mut members = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (domain, presence, incarnation) = (from.u32()?, from.u8()?, from.u64()?);
            let presence = match presence {
                0 => Presence::Up,
                1 => Presence::Down,
                2 => Presence::Leaving,
                _ => return Err(Malformed),
            };
            let departure = match from.u8()? {
                0 => Departure::None,
                1 => Departure::Begun,
                2 => Departure::Complete,
                _ => return Err(Malformed),
            };
            members.push(Member { domain, presence, incarnation, departure });
        }
        let exists = |index| (index < count).then_some(DaemonIndex(index)).ok_or(Malformed);
        for voter in voters.all() {
            exists(voter.daemon.0)?;
        }
        let services = from.u32()?;
        if services as usize > usize::from(DAEMON_COUNT_MAX) * SERVICES_PER_DAEMON_MAX {
            return Err(Malformed);
        }
        check(homes::are_possible(&homes, count, services as usize))?;
        let mut seats = Vec::new();
        for _ in 0..services {
            let or_none =
                |index| if index == u16::MAX { Ok(None) } else { exists(index).map(Some) };
            let (epoch, owner) = (from.u64()?, or_none(from.u16()?)?);
            check(epoch <= EPOCH_MAX)?;
            let is_successor = bool::decode(from)?;
            let (last_owner, last_dropped) = (exists(from.u16()?)?, or_none(from.u16()?)?);
            let followed = from.u8()?;
            if usize::from(followed) > FOLLOWING_MAX {
                return Err(Malformed);
            }
            let mut followers = Vec::with_capacity(usize::from(followed));
            for _ in 0..followed {
                let (daemon, since) = (exists(from.u16()?)?, from.u64()?);
                let (is_in_sync, had_all) = (bool::decode(from)?, bool::decode(from)?);
                followers.push(Follower { daemon, since, is_in_sync, had_all });
            }
            seats.push(Seat { epoch, owner, is_successor, last_owner, last_dropped, followers });
        }
        let units = if from.rest().is_empty() { None } else { Some(Table::decode(from)?) };
        check(units.as_ref().is_none_or(|units| units.daemons().count() == members.len()))?;
        let units = units.map(Arc::new);
        let settings =
            Membership { epoch, followers, same_domain, has_single_files, ..Membership::none() };
        Ok(Membership { moves, homes, balancing, voters, members, seats, units, ..settings })
    }
}
