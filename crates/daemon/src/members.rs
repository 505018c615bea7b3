//! Which daemons are alive, as the daemons of an instance with failure domains agree. Here is the
//! state that threads share; `members::driver` is the thread that drives this daemon's
//! `cluster::Node`.

pub(crate) mod driver;
mod questions;
mod stored;

use cluster::membership::{Membership, Presence};
use config::control::{MemberStatus, MembershipStatus};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::DaemonIndex;

/// Messages of other daemons that wait at most. The core repeats what is lost.
const WAITING_MAX: usize = 4096;

/// A message for the core, and the daemon that sent it.
type Incoming = (DaemonIndex, Vec<u8>);

/// See the module.
pub(crate) struct Members {
    incoming: Mutex<VecDeque<Incoming>>,
    arrived: Condvar,
    view: Mutex<View>,
}

/// The membership as this daemon knows it.
#[derive(Clone)]
struct View {
    membership: Membership,
    is_voter: bool,
    leads: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Members {
    fn new(membership: Membership) -> Members {
        let view = View { membership, is_voter: false, leads: false };
        Members { incoming: Mutex::default(), arrived: Condvar::new(), view: Mutex::new(view) }
    }

    /// Takes a message of another daemon.
    pub(crate) fn put(&self, from: DaemonIndex, bytes: &[u8]) {
        let mut incoming = lock(&self.incoming);
        if incoming.len() < WAITING_MAX {
            incoming.push_back((from, bytes.to_vec()));
            self.arrived.notify_one();
        }
    }

    /// Waits for messages, not longer than `time`, and takes them.
    fn take(&self, time: Duration) -> VecDeque<Incoming> {
        let incoming = lock(&self.incoming);
        let waited = self.arrived.wait_timeout_while(incoming, time, |it| it.is_empty());
        let (mut incoming, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *incoming)
    }

    /// Epoch of the membership, and daemons that are down in it.
    pub(crate) fn summary(&self) -> (u64, u64) {
        let view = lock(&self.view);
        let is_down = |presence| presence == Presence::Down;
        let down = view.membership.daemons().filter(|(_, member)| is_down(member.presence));
        (view.membership.epoch, down.count() as u64)
    }

    /// The membership for `status`; `None` where this daemon is no voter.
    pub(crate) fn status(&self) -> Option<MembershipStatus> {
        let View { membership, is_voter, leads } = lock(&self.view).clone();
        let members = membership.daemons().map(|(_, member)| {
            let presence = match member.presence {
                Presence::Up => "up",
                Presence::Down => "down",
                Presence::Leaving => "leaving",
            };
            MemberStatus { domain: member.domain, presence: presence.to_owned() }
        });
        is_voter.then(|| MembershipStatus {
            epoch: membership.epoch,
            leads,
            members: members.collect(),
            owners: membership.services().map(|(_, seat)| seat.owner.map(|it| it.0)).collect(),
        })
    }
}
