//! The settings of a node, and what it asks its daemon to do.

use crate::change::Tenure;
use crate::membership::ServiceIndex;
use crate::shipping::Lane;
use wire::DaemonIndex;

/// An action of the daemon; they are done in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Stores the base of the consensus, before what follows. Empty: this daemon is no voter any more,
    /// and forgets both.
    Base(Vec<u8>),
    /// Stores the tail of the consensus, before what follows.
    Tail(Vec<u8>),
    /// Sends a message to a daemon. It may be lost.
    Send {
        /// The daemon.
        to: DaemonIndex,
        /// For its `Node::receive`.
        message: Vec<u8>,
    },
    /// Finds out whether the host of a daemon can be reached: `Node::probed`.
    Probe(DaemonIndex),
    /// Changes the copy of a service that this daemon follows. `Records` survive a kill before what
    /// follows is done.
    Store {
        /// The service.
        service: ServiceIndex,
        /// The change.
        step: StandbyStep,
    },
    /// This daemon owns the service now, with the copy that it has. `Node::serving` says when it
    /// serves.
    Activate(Tenure),
    /// This daemon no longer owns the service. Waiting operations go to the new owner.
    Release(Tenure),
    /// This daemon no longer owns the service, which it handed over, and follows it: its log becomes the
    /// copy. It takes no parcel until `Node::accept_copy`; where its log is of no use, after
    /// `Node::lost_copy`. Waiting operations go to the new owner.
    Keep(Tenure),
    /// Begins no operation of the service until `Resume`, `Release` or `Keep`, and says when none is
    /// under way: `Node::stands_still`.
    Pause(ServiceIndex),
    /// Ends `Pause`.
    Resume(ServiceIndex),
    /// Calls `Node::slice` until the snapshot of the service is complete.
    Slice(Lane),
    /// The operation is replicated.
    Replicated {
        /// The service.
        service: ServiceIndex,
        /// As in `Node::wait`.
        ticket: u64,
    },
    /// The leader advises to hand over a unit of which this daemon is the primary:
    /// `replicas::node::Node::advise`.
    HandOverUnit(replicas::change::CopyId),
    /// The membership changed. A daemon that stores `Node::membership` now and then, and starts with
    /// it, finds the voters sooner. It does so after all actions of one input: before, the membership may
    /// be ahead of what a voter stored.
    Changed,
}

/// A change of a follower's copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StandbyStep {
    /// Begins another copy beside the one there is.
    Begin,
    /// Appends records to all copies.
    Records(Vec<u8>),
    /// Appends records to the copy that was begun last.
    Slice(Vec<u8>),
    /// The copy that was begun last replaces the other.
    Complete,
}

/// Settings of a daemon.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The daemon.
    pub own: DaemonIndex,
    /// Number of this start, above that of each earlier start.
    pub incarnation: u64,
    /// Its failure domain.
    pub domain: u32,
    /// The first start since which it has kept what it has; 1: nothing was lost. Where the membership
    /// knows an earlier one last, that one's things are gone. It stays until more is lost, so it says the
    /// same after any number of starts.
    pub began: u64,
    /// The first voters of the instance. Where the membership has others, those count.
    pub voters: Vec<DaemonIndex>,
    /// Makes time-outs different.
    pub seed: u64,
}
