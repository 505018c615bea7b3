//! Checks of a cluster after some time without faults.

use super::{Host, SECOND, Table, What, World};
use cluster::membership::{Indispensable, Membership, Presence, ServiceIndex};
use cluster::node::{Node, Serving};
use cluster::voters::Voter;
use wire::DaemonIndex;

impl World {
    /// The daemon that serves a service. There is one at most, unless peers lie.
    pub(super) fn server(&self, service: u32) -> Option<u16> {
        let mut serving = (0..self.count()).filter(|&index| {
            let now = self.clock(index);
            let node = self.node(index);
            self.is_running(index)
                && node.is_some_and(|it| it.serving(ServiceIndex(service), now) == Serving::Yes)
        });
        let (first, second) = (serving.next(), serving.next());
        assert!(
            second.is_none() || !self.is_honest,
            "{service} is served by {first:?} and {second:?}"
        );
        first
    }

    /// Runs until all is well, which must be within this time.
    pub(super) fn settle(&mut self, within: i64) {
        let end = self.events.now() + within;
        while let Some(wrong) = self.wrong() {
            assert!(self.events.now() < end, "{wrong}\n{}", self.state());
            self.pass(SECOND / 4);
        }
    }

    /// Runs until no write waits that has begun, which must be within this time. `settle` looks at the
    /// membership alone, where a follower counts whose drop is on its way. An owner that lost records
    /// proposes that, and its writes wait until it sees that the drop was made. From then on this copy
    /// counts for nothing: with the owner's node lost, too, nobody could take the service over.
    pub(super) fn end_writes(&mut self, within: i64) {
        let (end, last) = (self.events.now() + within, self.tickets);
        let is_begun = |host: &Host| host.waiting.keys().any(|&ticket| ticket <= last);
        while self.hosts.iter().any(is_begun) {
            assert!(self.events.now() < end, "writes wait\n{}", self.state());
            self.pass(SECOND / 4);
        }
    }

    /// For the message of a run that fails.
    fn state(&self) -> String {
        let mut lines = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let disk = &host.disk;
            lines.push(format!(
                "daemon {index}: runs {}, over {}, votes {}, incarnation {}, began {}",
                host.node.is_some(),
                disk.is_over,
                disk.consensus.is_some(),
                disk.incarnation,
                disk.began,
            ));
            if let Some(node) = &host.node {
                let membership = node.membership();
                let (epoch, voters) = (membership.epoch, membership.voters());
                let member = membership.member(DaemonIndex(index as u16));
                lines.push(format!(
                    "  leads {}, incarnation {}, epoch {epoch}, {voters:?}, {member:?}",
                    node.leads(),
                    node.incarnation(),
                ));
            }
        }
        lines.join("\n")
    }

    /// Something that is not as it should be after some time without faults.
    pub(super) fn wrong(&self) -> Option<String> {
        let Some(leader) = self.nodes().find(|node| node.leads()) else {
            return Some("no leader".to_owned());
        };
        let membership = leader.membership();
        let asked = |what: &&What| match what {
            What::Grow { .. } => true,
            // It is asked for until it is made: one that is refused for ever.
            What::Leave(index) => !is_refused(membership, *index),
            _ => false,
        };
        let is_asked = self.events.iter().find(asked).is_some() && self.is_healed;
        let differs = self.nodes().any(|node| node.membership() != membership);
        let unserved = (0..self.setup.services as u32).find(|&it| self.server(it).is_none());
        let wrong = [
            is_asked.then(|| "a change of daemons was asked for".to_owned()),
            self.wrong_followers(membership),
            self.wrong_voters(membership),
            self.wrong_leavers(membership),
            if self.setup.returns { away(membership) } else { self.uneven(membership) },
            self.wrong_units(membership),
            differs.then(|| "memberships differ".to_owned()),
            unserved.map(|service| format!("{service} is not served")),
        ];
        wrong.into_iter().flatten().next()
    }

    /// A service that is not where it should be, or has not its followers.
    pub(super) fn wrong_services(&self, membership: &Membership) -> Option<String> {
        let leaves = |it: DaemonIndex| {
            membership.member(it).is_some_and(|it| it.presence == Presence::Leaving)
        };
        let held = membership.services().find(|(service, seat)| {
            let followers = seat.followers.iter().map(|it| it.daemon);
            followers.chain(seat.owner).chain(membership.home(*service)).any(leaves)
        });
        let held = held.map(|(service, _)| format!("{service:?} is at one that leaves"));
        held.or_else(|| away(membership)).or_else(|| self.wrong_followers(membership))
    }

    fn wrong_followers(&self, membership: &Membership) -> Option<String> {
        let mut services = membership.services();
        let wrong = services.find(|(_, seat)| {
            let in_sync = seat.followers.iter().filter(|it| it.is_in_sync).count();
            let is_full = seat.followers.len() == in_sync;
            seat.owner.is_none() || !is_full || in_sync != usize::from(self.setup.followers)
        });
        wrong.map(|(service, seat)| format!("{service:?}: {seat:?}"))
    }

    /// As many voters as there should be, which all vote, and no other daemon does.
    fn wrong_voters(&self, membership: &Membership) -> Option<String> {
        let voters = membership.voters();
        let up = membership.daemons().filter(|(_, member)| member.presence == Presence::Up).count();
        let count = [1, 1, 1, 3, 3, 5][up.min(5)];
        let mut is_wrong = voters.is_joint() || voters.next().len() != count;
        let mut wrong = Vec::new();
        for index in 0..self.count() {
            let is_voter = voters.next().iter().any(|it| it.daemon.0 == index);
            let host = &self.hosts[usize::from(index)];
            let member = membership.member(DaemonIndex(index));
            let is_up = member.is_some_and(|it| it.presence == Presence::Up);
            if is_voter != host.node.as_deref().is_some_and(Node::votes) || is_voter && !is_up {
                wrong.push(index);
            }
        }
        let domain = |it: &Voter| membership.member(it.daemon).map(|it| it.domain);
        let mut domains: Vec<_> = voters.next().iter().map(domain).collect();
        domains.sort_unstable();
        domains.dedup();
        let ups = membership.daemons().filter(|(_, member)| member.presence == Presence::Up);
        let mut all: Vec<_> = ups.map(|(_, member)| member.domain).collect();
        all.sort_unstable();
        all.dedup();
        is_wrong |= domains.len() < count.min(all.len()) || !wrong.is_empty();
        is_wrong.then(|| format!("{voters:?} of {up}, wrong: {wrong:?}"))
    }

    /// Daemons that were to leave have ended, or the copies of the others would be too few.
    fn wrong_leavers(&self, membership: &Membership) -> Option<String> {
        let wrong = self.leaving.iter().find(|&&index| {
            let is_over = self.hosts[usize::from(index)].disk.is_over;
            !is_over && !is_refused(membership, index) && self.is_healed
        });
        wrong.map(|index| format!("{index} has not left"))
    }

    /// Without loads, each daemon has its part of the services.
    fn uneven(&self, membership: &Membership) -> Option<String> {
        let up = membership.daemons().filter(|it| it.1.presence == Presence::Up).map(|it| it.0);
        let owned = |daemon| membership.services().filter(|it| it.1.owner == Some(daemon)).count();
        let owned: Vec<usize> = up.map(owned).collect();
        let (least, most) = owned.iter().min().zip(owned.iter().max())?;
        let is_wrong = self.loads.is_empty() && most - least > 2;
        is_wrong.then(|| format!("services of daemons: {owned:?}"))
    }

    /// After all faults have ended: everything comes right, and then followers equal their owners.
    pub(super) fn check_all_is_well(&mut self) {
        self.settle(12 * SECOND);
        assert!(self.done > 0, "nothing was written");
        self.events.retain(|what| *what != What::Write);
        let end = self.events.now() + 6 * SECOND;
        self.pass(SECOND / 4);
        while let Some(wrong) = self.wrong().or_else(|| self.unfinished()) {
            assert!(self.events.now() < end, "{wrong}");
            self.pass(SECOND / 4);
        }
    }

    fn unfinished(&self) -> Option<String> {
        let waiting: Vec<_> = self.hosts.iter().map(|host| host.waiting.len()).collect();
        if waiting.iter().any(|&count| count > 0) {
            return Some(format!("writes wait: {waiting:?}"));
        }
        let membership = self.nodes().next()?.membership();
        for (service, seat) in membership.services() {
            let disk = |daemon: DaemonIndex| &self.hosts[usize::from(daemon.0)].disk;
            let empty = Table::new();
            let table = seat.owner.and_then(|it| disk(it).owned.get(&service.0)).unwrap_or(&empty);
            for follower in &seat.followers {
                let copy = disk(follower.daemon).copies.get(&service.0).map(|copy| &copy.whole);
                if copy.unwrap_or(&empty) != table {
                    return Some(format!("{service:?} differs at {follower:?}"));
                }
            }
        }
        None
    }
}

/// Whether the copies of the others would be too few without this daemon.
fn is_refused(membership: &Membership, index: u16) -> bool {
    let may = membership.may_leave(DaemonIndex(index));
    matches!(may, Err(Indispensable::Copies { .. }))
}

/// Where services return, those of a daemon that takes part are there, it has its part of them, and the
/// copies are apart, as far as there are daemons for them.
fn away(membership: &Membership) -> Option<String> {
    let is_up = |it| membership.member(it).is_some_and(|it| it.presence == Presence::Up);
    let domain = |it: DaemonIndex| membership.member(it).map(|member| member.domain);
    let wrong = membership.services().find(|(service, seat)| {
        let home = membership.home(*service).filter(|&home| is_up(home));
        let copies = seat.owner.into_iter().chain(seat.followers.iter().map(|it| it.daemon));
        let domains: Vec<_> = copies.map(domain).collect();
        let is_twice = (1..domains.len()).any(|at| domains[..at].contains(&domains[at]));
        let mut others = membership.daemons();
        let is_twice = is_twice && others.all(|(it, member)| is_up(it) || member.has_left());
        let is_moving = membership.next_home(*service).is_some();
        home.is_some_and(|home| seat.owner != Some(home)) || is_moving || is_twice
    });
    if let Some((service, seat)) = wrong {
        return Some(format!("{service:?} is away, or not apart: {seat:?}"));
    }
    let homes = |it| membership.services().filter(|of| membership.home(of.0) == Some(it)).count();
    let homes: Vec<usize> =
        membership.daemons().map(|it| it.0).filter(|&it| is_up(it)).map(homes).collect();
    let (least, most) = homes.iter().min().zip(homes.iter().max())?;
    (most - least > 1).then(|| format!("homes of services: {homes:?}"))
}
