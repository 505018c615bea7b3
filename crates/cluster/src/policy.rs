//! The needs of a membership: followers that are missing, services that must leave a daemon, and an
//! even load (O7). A service that moves goes to the daemon of its group where that is a gain (`group`).
//! Equal inputs give equal answers. Asked by the daemon that leads the consensus, which proposes the
//! answer and asks again.
//!
//! A service moves to a follower. Where none of its followers is to take it over it gets one more
//! for the time of the move: the *mover*, the last follower of a service that has more than it
//! should have. After the hand-over the old owner is the mover, which nothing keeps.
//!
//! Where services return to their homes, they move to these and for nothing else: a home that is back,
//! or the next one, follows, takes over when it is in sync, and then the follower that is too many
//! goes. Homes change when their number at two daemons differs by two, and when one leaves: see
//! `homes`. A few services at a time go to a daemon, so that the first of them are there soon, and none
//! that is ready waits for another one. The first service of each daemon stays at its first home, unless
//! that leaves: then it goes once no unit of file data needs the daemon, since it keeps the accounts of
//! the target there. Once nothing else is to do homes are exchanged for an even load: see `exchange`.

use crate::change::{Change, Following, Tenure};
use crate::exchange;
use crate::membership::{FOLLOWING_MAX, Follower, Membership, Moves, Presence, Seat, ServiceIndex};
use std::collections::BTreeSet;
use wire::DaemonIndex;

/// A move must lower the load of the busier daemon by this fraction at least, or services would go
/// to and fro with each change of what is measured.
const GAIN_DIVISOR: u64 = 10;

/// Services that go to a daemon at a time, or are handed over to it. The time of a small one is that of
/// its steps, which several take beside each other; large ones share what copies them.
pub const GOING_PER_DAEMON_MAX: usize = 4;

/// The loads by which services move.
#[derive(Clone, Copy, Debug)]
pub struct Loads<'a> {
    /// The load of each service in any unit; services beyond its end weigh 1.
    pub weights: &'a [u64],
    /// Services that do not move for an even load now, since they moved lately.
    pub resting: &'a BTreeSet<ServiceIndex>,
    /// Whether services move for an even load at all.
    pub may_move: bool,
    /// Whether a daemon that could not store a copy of a service may become its home: now and then.
    pub may_retry: bool,
    /// The load of a daemon below which no homes are exchanged by themselves.
    pub hot_min: u64,
}

/// The next change that brings the membership closer to what its settings ask for. `None`: nothing
/// is to do, or nothing can be done now.
#[must_use]
pub fn next_change(membership: &Membership, loads: &Loads<'_>) -> Option<Change> {
    change_beside(membership, loads, &[])
}

/// The same beside services that are being handed over, of which nothing else is asked meanwhile.
fn change_beside(
    membership: &Membership,
    loads: &Loads<'_>,
    handed_over: &[Following],
) -> Option<Change> {
    let view = View { handed_over, ..View::new(membership, *loads) };
    let is_free = |service: ServiceIndex| handed_over.iter().all(|it| it.of.service != service);
    let services =
        || membership.services().filter(move |(it, seat)| seat.owner.is_some() && is_free(*it));
    let missing = services().find_map(|(service, seat)| view.missing_follower(service, seat));
    if membership.owners_stay() {
        return missing;
    }
    if let Moves::Home { .. } = membership.moves {
        return missing
            .or_else(|| services().find_map(|(service, seat)| view.homeward(service, seat)))
            .or_else(|| services().find_map(|(service, seat)| view.end_of_return(service, seat)))
            .or_else(|| view.new_home())
            .or_else(|| view.left());
    }
    missing
        .or_else(|| services().find_map(|(service, seat)| view.end_of_move(service, seat)))
        .or_else(|| services().find_map(|(service, seat)| view.leaving(service, seat)))
        .or_else(|| view.left())
        .or_else(|| if loads.may_move { view.uneven() } else { None })
}

/// The daemon at which a service belongs, where `count` daemons share them: the low k bits of its number,
/// or the low k - 1 if there are fewer daemons than that. So services with equal low bits are
/// together, and of those of a daemon that is relieved whole groups leave.
#[must_use]
pub fn group(service: ServiceIndex, count: usize) -> DaemonIndex {
    let mask = count.max(1).next_power_of_two() - 1;
    let group = service.0 as usize & mask;
    DaemonIndex(if group < count { group } else { group & (mask >> 1) } as u16)
}

fn following(service: ServiceIndex, seat: &Seat, follower: &Follower) -> Following {
    let of = Tenure { service, epoch: seat.epoch };
    Following { of, follower: follower.daemon, since: follower.since }
}

/// The next changes, at most `most`: each fits the membership as those before it leave it, but for
/// hand-overs, which take their owners' time, and which nothing that follows counts on. Where services
/// move for an even load a hand-over is the last, since what comes after it depends on it.
#[must_use]
pub fn next_changes(membership: &Membership, loads: &Loads<'_>, most: usize) -> Vec<Change> {
    let (mut changes, mut handed_over) = (Vec::new(), Vec::new());
    let have_homes = matches!(membership.moves, Moves::Home { .. });
    // Most of the time there is nothing to do, and nothing is copied.
    let mut changed: Option<Membership> = None;
    while changes.len() < most {
        let now = changed.as_ref().unwrap_or(membership);
        let Some(change) = change_beside(now, loads, &handed_over) else { break };
        changes.push(change);
        if let Change::HandOver { of } = change {
            if !have_homes {
                break;
            }
            handed_over.push(of);
        } else if changed.get_or_insert_with(|| membership.clone()).apply(&change).is_err() {
            break;
        }
    }
    if changes.is_empty() {
        changes = exchange::changes(membership, loads);
    }
    changes
}

/// Loads as they will be after the moves that are under way.
struct View<'a> {
    membership: &'a Membership,
    loads: Loads<'a>,
    owned: Vec<u64>,
    copies: Vec<usize>,
    /// Services of which each daemon is the home.
    homes: Vec<usize>,
    /// Services that are being handed over.
    handed_over: &'a [Following],
}

impl<'a> View<'a> {
    fn new(membership: &'a Membership, loads: Loads<'a>) -> View<'a> {
        let count = membership.members.len();
        let (owned, copies, homes) = (vec![0; count], vec![0; count], vec![0; count]);
        let mut view = View { membership, loads, owned, copies, homes, handed_over: &[] };
        for (service, seat) in membership.services() {
            let home = membership.next_home(service).or_else(|| membership.home(service));
            if let Some(homes) = home.and_then(|it| view.homes.get_mut(usize::from(it.0))) {
                *homes += 1;
            }
            let weight = view.weight(service);
            let moving = view.mover(seat).map(|it| it.daemon);
            let owner = moving.or(seat.owner);
            if let Some(owned) = owner.and_then(|it| view.owned.get_mut(usize::from(it.0))) {
                *owned = owned.saturating_add(weight);
            }
            for copy in seat.owner.into_iter().chain(seat.followers.iter().map(|it| it.daemon)) {
                if let Some(copies) = view.copies.get_mut(usize::from(copy.0)) {
                    *copies += 1;
                }
            }
        }
        view
    }

    fn weight(&self, service: ServiceIndex) -> u64 {
        self.loads.weights.get(service.0 as usize).copied().unwrap_or(1)
    }

    fn owned(&self, daemon: DaemonIndex) -> u64 {
        self.owned.get(usize::from(daemon.0)).copied().unwrap_or(0)
    }

    fn is_leaving(&self, daemon: DaemonIndex) -> bool {
        self.membership.member(daemon).is_some_and(|it| it.presence == Presence::Leaving)
    }

    /// Followers that may stay.
    fn staying(&self, seat: &'a Seat) -> impl Iterator<Item = &'a Follower> {
        seat.followers.iter().filter(|it| self.membership.is_up(it.daemon))
    }

    /// See the module. A follower beside one that leaves replaces that, and is no mover.
    fn mover(&self, seat: &'a Seat) -> Option<&'a Follower> {
        let is_moving = self.staying(seat).count() > usize::from(self.membership.followers);
        seat.followers.last().filter(|it| is_moving && self.membership.is_up(it.daemon))
    }

    /// The least loaded daemon that may get a copy and for which `serves` is true; the one that was
    /// dropped last comes after all others. Of those with equal load the one that follows the owner
    /// least, so that the load of a dead daemon does not fall on one other.
    fn place(
        &self,
        seat: &Seat,
        serves: impl Fn(DaemonIndex) -> bool,
        load: impl Fn(DaemonIndex) -> u64,
    ) -> Option<DaemonIndex> {
        let mut following = vec![0; self.owned.len()];
        for other in self.membership.seats.iter().filter(|it| it.owner == seat.owner) {
            for follower in &other.followers {
                if let Some(count) = following.get_mut(usize::from(follower.daemon.0)) {
                    *count += 1;
                }
            }
        }
        let able = self.membership.daemons().map(|(daemon, _)| daemon).filter(|&daemon| {
            self.membership.is_up(daemon)
                && self.membership.is_apart(seat, daemon)
                && serves(daemon)
        });
        able.min_by_key(|&it| {
            let follows = following.get(usize::from(it.0)).copied().unwrap_or(0);
            let was_dropped = seat.last_dropped == Some(it);
            (was_dropped, load(it), follows, it.0.wrapping_sub(seat.last_owner.0))
        })
    }

    fn missing_follower(&self, service: ServiceIndex, seat: &Seat) -> Option<Change> {
        if self.staying(seat).count() >= usize::from(self.membership.followers) {
            return None;
        }
        let copies = |it: DaemonIndex| self.copies.get(usize::from(it.0)).map_or(0, |&n| n as u64);
        // The daemon to which it goes, unless that cannot store a copy.
        let home = self.membership.way_of(service).filter(|&home| {
            let was_dropped = seat.last_dropped == Some(home);
            !was_dropped && self.membership.may_follow(service, seat, home)
        });
        let follower = home.or_else(|| self.place(seat, |_| true, copies))?;
        if seat.followers.len() >= FOLLOWING_MAX {
            // One of those that leave makes room; the others stay until it is in sync.
            let leaves = || seat.followers.iter().filter(|it| !self.membership.is_up(it.daemon));
            let gone = leaves().find(|it| !it.is_in_sync).or_else(|| leaves().next_back())?;
            return Some(Change::DropFollower { of: following(service, seat, gone) });
        }
        Some(Change::AddFollower { of: Tenure { service, epoch: seat.epoch }, follower })
    }

    /// A service goes to its home, or to the next one.
    fn homeward(&self, service: ServiceIndex, seat: &Seat) -> Option<Change> {
        let home = self.membership.way_of(service)?;
        if let Some(follower) = seat.follower(home) {
            let of = following(service, seat, follower);
            let others = self.handed_over.iter().filter(|it| it.follower == home).count();
            let is_ready = self.membership.may_hand_over(of) && others < GOING_PER_DAEMON_MAX;
            return is_ready.then_some(Change::HandOver { of });
        }
        if self.membership.next_home(service).is_some()
            && let Some(other) = self.rehome(service, seat, seat.owner?)
        {
            return Some(other);
        }
        let may =
            seat.followers.len() < FOLLOWING_MAX && self.membership.may_follow(service, seat, home);
        let of = Tenure { service, epoch: seat.epoch };
        may.then_some(Change::AddFollower { of, follower: home })
    }

    /// Beside what the instance asks for a service has a follower while it goes to its home or to the
    /// next one, in any domain. Afterwards one goes: one that is not apart from the owner, or does not
    /// have everything. Where only one that is not apart is left it is replaced. Followers that leave
    /// go once there are others.
    fn end_of_return(&self, service: ServiceIndex, seat: &Seat) -> Option<Change> {
        let (owner, home) = (seat.owner?, self.membership.home(service)?);
        let (needed, way) =
            (usize::from(self.membership.followers), self.membership.way_of(service));
        let staying = || self.staying(seat).filter(move |it| Some(it.daemon) != way);
        let dropped = |it| Some(Change::DropFollower { of: following(service, seat, it) });
        let leaves = |it: &&Follower| !self.membership.is_up(it.daemon) && Some(it.daemon) != way;
        let leaver = seat.followers.iter().find(leaves);
        if leaver.is_some() && staying().filter(|it| it.is_in_sync).count() >= needed {
            return leaver.and_then(dropped);
        }
        let has_place = seat.followers.len() < FOLLOWING_MAX || seat.follower(home).is_some();
        if owner != home && self.membership.is_on_way(service, home) && has_place {
            return None;
        }
        let domain = |it| self.membership.member(it).map(|member| member.domain);
        let is_near = |it: &&Follower| {
            let before =
                staying().map(|other| other.daemon).take_while(|&other| other != it.daemon);
            before.chain([owner]).any(|other| domain(other) == domain(it.daemon))
        };
        let near = staying().find(|it| !self.membership.same_domain && is_near(it));
        if staying().count() > needed {
            let behind = || staying().filter(|it| !it.is_in_sync).last();
            return near.or_else(behind).or_else(|| staying().last()).and_then(dropped);
        }
        near.filter(|_| seat.followers.len() < FOLLOWING_MAX)?;
        let copies = |it: DaemonIndex| self.copies.get(usize::from(it.0)).map_or(0, |&n| n as u64);
        let follower = self.place(seat, |_| true, copies)?;
        Some(Change::AddFollower { of: Tenure { service, epoch: seat.epoch }, follower })
    }

    fn homes(&self, daemon: DaemonIndex) -> usize {
        self.homes.get(usize::from(daemon.0)).copied().unwrap_or(0)
    }

    /// A service gets another home: those of a daemon that leaves first, then of the one with most.
    fn new_home(&self) -> Option<Change> {
        let daemons = || self.membership.daemons().map(|it| it.0);
        let up = daemons().filter(|&it| self.membership.is_up(it));
        let least = up.map(|it| self.homes(it)).min()?;
        let gives = |&it: &DaemonIndex| {
            let has_more = self.membership.is_up(it) && self.homes(it) >= least + 2;
            has_more || self.is_leaving(it) && self.homes(it) > 0
        };
        let mut from: Vec<DaemonIndex> = daemons().filter(gives).collect();
        from.sort_by_key(|&it| (!self.is_leaving(it), core::cmp::Reverse(self.homes(it)), it));
        from.into_iter().find_map(|daemon| {
            let leaves = self.is_leaving(daemon);
            let units = self.membership.units();
            let is_empty = leaves && units.is_none_or(|units| units.is_free_of(daemon));
            let at_home = self.membership.services().filter(|&(service, seat)| {
                let is_there = self.membership.home(service) == Some(daemon);
                let may = is_empty || !self.membership.is_settled(service);
                is_there && may && seat.owner == Some(daemon)
            });
            let mut at_home: Vec<_> = at_home.collect();
            at_home.sort_by_key(|&(service, _)| self.group(service) == daemon);
            at_home.into_iter().find_map(|(service, seat)| self.rehome(service, seat, daemon))
        })
    }

    /// The service goes to the daemon with the fewest, of these to that of its group, when few others
    /// are on their way there. One that has a next home keeps it, unless that cannot store a copy: then
    /// it gets another one that is better, or stays where it is.
    fn rehome(&self, service: ServiceIndex, seat: &Seat, from: DaemonIndex) -> Option<Change> {
        let next = self.membership.next_home(service);
        if next.is_some_and(|next| seat.last_dropped != Some(next)) {
            return None;
        }
        // The view counts a service where it is to be.
        let own = self.homes(from).saturating_add(usize::from(next.is_some()));
        let most = if self.is_leaving(from) { usize::MAX } else { own };
        let is_taken = |it| {
            let services = self.membership.services();
            let going = services.filter(|other| self.membership.next_home(other.0) == Some(it));
            going.count() >= GOING_PER_DAEMON_MAX
        };
        let able = self.membership.daemons().map(|it| it.0).filter(|&it| {
            let was_dropped = seat.last_dropped == Some(it);
            let is_better = self.homes(it).saturating_add(2) <= most;
            let may = !was_dropped || self.loads.may_retry;
            it != from && Some(it) != next && is_better && may && self.membership.is_up(it)
        });
        let key = |it: &DaemonIndex| {
            let was_dropped = seat.last_dropped == Some(*it);
            (was_dropped, self.homes(*it), self.group(service) != *it, it.0)
        };
        let of = Tenure { service, epoch: seat.epoch };
        match able.min_by_key(key) {
            Some(next) => (!is_taken(next)).then_some(Change::Rehome { of, next }),
            None if self.is_leaving(from) => None,
            None => next.map(|_| Change::Rehome { of, next: from }),
        }
    }

    /// A mover that is in sync takes over, one that is not needed goes; so do followers that leave,
    /// once there are others.
    fn end_of_move(&self, service: ServiceIndex, seat: &Seat) -> Option<Change> {
        let of = |it: &Follower| following(service, seat, it);
        let owner = seat.owner?;
        let in_sync = self.staying(seat).filter(|it| it.is_in_sync).count();
        let target = usize::from(self.membership.followers);
        let gone = seat.followers.iter().find(|it| !self.membership.is_up(it.daemon));
        if let Some(gone) = gone.filter(|_| in_sync >= target && !self.is_leaving(owner)) {
            return Some(Change::DropFollower { of: of(gone) });
        }
        let mover = self.mover(seat)?;
        // The view counts the move as done: it was right if the daemon is not the busier one now.
        let weight = self.weight(service);
        let (here, there) = (self.owned(owner).saturating_add(weight), self.owned(mover.daemon));
        let is_right = self.is_leaving(owner) || there < here;
        match (is_right, mover.is_in_sync) {
            (false, _) => Some(Change::DropFollower { of: of(mover) }),
            (true, true) => Some(Change::HandOver { of: of(mover) }),
            (true, false) => None,
        }
    }

    /// A service whose owner leaves goes to a follower that is in sync; one without followers gets one.
    fn leaving(&self, service: ServiceIndex, seat: &Seat) -> Option<Change> {
        if !self.is_leaving(seat.owner?) {
            return None;
        }
        let of = Tenure { service, epoch: seat.epoch };
        if let Some(successor) = self.staying(seat).find(|it| it.is_in_sync) {
            return Some(Change::HandOver { of: following(service, seat, successor) });
        }
        if self.staying(seat).next().is_some() || seat.followers.len() >= FOLLOWING_MAX {
            return None;
        }
        let follower = self.place(seat, |_| true, |it| self.owned(it))?;
        Some(Change::AddFollower { of, follower })
    }

    /// A daemon that leaves and has handed over everything.
    fn left(&self) -> Option<Change> {
        let mut daemons = self.membership.daemons().map(|it| it.0);
        let left = daemons.find(|&it| self.is_leaving(it) && self.membership.has_handed_over(it));
        left.map(|daemon| Change::Left { daemon })
    }

    /// A service goes from a daemon to one that is less busy, if that is a gain: of the busiest first.
    fn uneven(&self) -> Option<Change> {
        let up = self.membership.daemons().map(|it| it.0).filter(|&it| self.membership.is_up(it));
        let mut busy: Vec<DaemonIndex> = up.collect();
        busy.sort_by_key(|&it| (core::cmp::Reverse(self.owned(it)), it));
        let least = busy.last().map_or(0, |&it| self.owned(it));
        // The rest is not busy enough for any gain.
        let gains = |&it: &DaemonIndex| is_gain(self.owned(it), least);
        busy.into_iter().take_while(gains).find_map(|owner| {
            let owned = self.membership.services().filter(|(_, it)| it.owner == Some(owner));
            let mut owned: Vec<_> = owned.collect();
            owned.sort_by_key(|&(service, _)| self.group(service) == owner);
            let load = self.owned(owner);
            owned.into_iter().find_map(|(service, seat)| {
                let may = !self.loads.resting.contains(&service);
                if may { self.relieve(service, seat, load, least) } else { None }
            })
        })
    }

    fn group(&self, service: ServiceIndex) -> DaemonIndex {
        group(service, self.owned.len())
    }

    fn relieve(&self, service: ServiceIndex, seat: &Seat, load: u64, least: u64) -> Option<Change> {
        let weight = self.weight(service);
        let is_gain = |to: u64| is_gain(load, to.saturating_add(weight));
        if weight == 0 || !is_gain(least) || self.mover(seat).is_some() {
            return None;
        }
        let mut in_sync = self.staying(seat).filter(|it| it.is_in_sync);
        if let Some(successor) = in_sync.find(|it| is_gain(self.owned(it.daemon))) {
            return Some(Change::HandOver { of: following(service, seat, successor) });
        }
        if seat.followers.len() >= FOLLOWING_MAX {
            return None;
        }
        let of_group = Some(self.group(service)).filter(|&it| {
            self.membership.is_up(it)
                && self.membership.is_apart(seat, it)
                && is_gain(self.owned(it))
        });
        let is_gain_there = |it| is_gain(self.owned(it));
        let follower = of_group.or_else(|| self.place(seat, is_gain_there, |it| self.owned(it)))?;
        Some(Change::AddFollower { of: Tenure { service, epoch: seat.epoch }, follower })
    }
}

/// Whether a daemon gains where another one has its load afterwards.
pub(crate) const fn is_gain(load: u64, after: u64) -> bool {
    after < load && load - after > load / GAIN_DIVISOR
}
