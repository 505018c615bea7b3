//! The membership as the copies see it, in place of `cluster`: an order of changes that never
//! fails, beats, leases, and the policy. Messages to and from it are late and lost as all others.

use replicas::change::Change;
use replicas::policy::{Advice, Policy};
use replicas::space::Spaces;
use replicas::table::{Presence, Table};
use std::rc::Rc;
use testkit::world::MILLI;
use wire::DaemonIndex;

pub(crate) const BEAT: i64 = 100 * MILLI;
pub(crate) const LEASE: i64 = 400 * MILLI;
/// Clocks run apart by less than one in this.
pub(crate) const DRIFT: i64 = 16;
/// Shorter than a lease by more than `cluster` allows, so that a dead daemon's lease is to be
/// waited for.
const DEAD: i64 = 220 * MILLI;

pub(crate) struct Registry {
    pub(crate) table: Rc<Table>,
    policy: Policy,
    /// As the daemons report it.
    pub(crate) spaces: Spaces,
    heard: Vec<i64>,
    granted: Vec<i64>,
    /// Newest version of the table that was granted to each daemon.
    pub(crate) known: Vec<u64>,
    /// Changes that are to be sent, with the versions of the table that they made.
    pub(crate) news: Vec<(u64, Change)>,
}

/// The answer to a beat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) incarnation: u64,
    pub(crate) sent: i64,
    pub(crate) version: u64,
    /// For how long nothing was granted to daemons that are down.
    pub(crate) quiet: i64,
}

impl Registry {
    pub(crate) fn new(table: Table) -> Registry {
        let count = table.daemons().count();
        let (heard, granted) = (vec![0; count], vec![0; count]);
        let known = vec![0; count];
        let (table, policy, news) = (Rc::new(table), Policy::default(), Vec::new());
        Registry { table, policy, spaces: Spaces::default(), heard, granted, known, news }
    }

    /// Whether the change was made.
    pub(crate) fn apply(&mut self, change: &Change) -> bool {
        let is_made = Rc::make_mut(&mut self.table).apply(change).is_ok();
        if is_made {
            self.news.push((self.table.version, *change));
        }
        is_made
    }

    pub(crate) fn beat(
        &mut self,
        from: u16,
        (incarnation, is_empty): (u64, bool),
        sent: i64,
        now: i64,
    ) -> Option<Grant> {
        let daemon = DaemonIndex(from);
        let holder = *self.table.holder(daemon).expect("a daemon");
        self.heard[usize::from(from)] = now;
        if incarnation > holder.incarnation {
            let (domain, known) = (holder.domain, self.known[usize::from(from)]);
            self.apply(&Change::Up { daemon, incarnation, domain, is_empty, known });
        } else if incarnation < holder.incarnation || holder.presence == Presence::Down {
            return None;
        }
        self.granted[usize::from(from)] = now;
        self.known[usize::from(from)] = self.table.version;
        let down = self.table.daemons().filter(|(_, it)| it.presence == Presence::Down);
        let quiet = down.map(|(it, _)| now - self.granted[usize::from(it.0)]).min();
        let quiet = quiet.unwrap_or(LEASE * 2);
        Some(Grant { incarnation, sent, version: self.table.version, quiet })
    }

    /// Declares daemons dead that were not heard, and does what the policy asks for. Advice is for
    /// primaries.
    pub(crate) fn tick(&mut self, now: i64) -> Vec<Advice> {
        for index in 0..self.heard.len() {
            let daemon = DaemonIndex(index as u16);
            let holder = *self.table.holder(daemon).expect("a daemon");
            if holder.presence != Presence::Down && now - self.heard[index] > DEAD {
                let known = self.known[index];
                self.apply(&Change::Down { daemon, incarnation: holder.incarnation, known });
            }
        }
        self.spaces.follow(&self.table);
        let mut advice = self.policy.next(&self.table, &self.spaces);
        advice.retain(|advice| match advice {
            Advice::Propose(change) => {
                assert!(self.apply(change), "the policy asks for what can be done: {change:?}");
                false
            }
            Advice::HandOver(_) => true,
        });
        advice
    }
}
