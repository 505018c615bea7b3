//! One order of changes for all daemons: Raft among a few daemons, the voters (B7).
//!
//! The algorithm is the crate `raft`, driven as a state machine: ticks and messages in; what is to
//! be stored, messages and applied changes out, in this order. With one voter a change is applied
//! as soon as it is stored. Election time-outs follow from the seed, the daemon and the term, so a
//! run can be repeated.
//!
//! Invariants
//! 1. `Output::Base` and `Output::Tail` are stored before any output that follows them is performed.
//! 2. Nothing that a peer sends reaches `raft` before it is parsed by `coding` and its sender is known.

mod coding;
mod log;

use crate::change::Change;
use crate::encoding::{Decode, Encode};
use crate::membership::Membership;
use log::Log;
use raft::eraftpb::{EntryType, MessageType};
use raft::{RawNode, StateRole};
use wire::DaemonIndex;
use wire::codec::Malformed;

/// Nanoseconds between two calls of `Consensus::tick`.
pub const TICK_NANOS: i64 = 25_000_000;
const HEARTBEAT_TICKS: usize = 2;
const ELECTION_TICKS: usize = 8;
/// Entries of the log after which the membership is stored anew and they are dropped.
const ENTRIES_MAX: usize = 64;

/// An action of the daemon; they are done in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Replaces the stored base: the membership at some time, and what belongs to it.
    Base(Vec<u8>),
    /// Replaces the stored tail: votes, and the changes since the base.
    Tail(Vec<u8>),
    /// Sends a message to another voter. It may be lost.
    Send {
        /// The voter.
        to: DaemonIndex,
        /// For `Consensus::receive`.
        message: Vec<u8>,
    },
    /// The membership changed: read it.
    Changed,
}

/// A change is not taken now: no leader is known. Try again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaderless;

/// See the module.
pub struct Consensus {
    node: RawNode<Log>,
    membership: Membership,
    seed: u64,
}

const fn id(daemon: DaemonIndex) -> u64 {
    daemon.0 as u64 + 1
}

fn daemon(id: u64) -> Option<DaemonIndex> {
    id.checked_sub(1).and_then(|index| u16::try_from(index).ok()).map(DaemonIndex)
}

impl Consensus {
    /// The first start of a voter. All voters are given the same membership and voters.
    ///
    /// # Errors
    /// `Malformed` if `own` is no voter.
    pub fn begin(
        own: DaemonIndex,
        voters: &[DaemonIndex],
        membership: &Membership,
        seed: u64,
    ) -> Result<Consensus, Malformed> {
        let log = Log::first(voters.iter().copied().map(id).collect(), membership.to_bytes());
        Consensus::with(own, log, seed)
    }

    /// A later start, from what was stored last.
    ///
    /// # Errors
    /// `Malformed` if the bytes are not what a voter stored.
    pub fn restore(
        own: DaemonIndex,
        base: &[u8],
        tail: &[u8],
        seed: u64,
    ) -> Result<Consensus, Malformed> {
        Consensus::with(own, Log::restore(base, tail)?, seed)
    }

    fn with(own: DaemonIndex, log: Log, seed: u64) -> Result<Consensus, Malformed> {
        if !log.voters().contains(&id(own)) {
            return Err(Malformed);
        }
        let membership = Membership::from_bytes(log.base_data())?;
        let config = raft::Config {
            id: id(own),
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied: log.base_index(),
            check_quorum: true,
            pre_vote: true,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 64,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, log, &logger).map_err(|_| Malformed)?;
        let mut consensus = Consensus { node, membership, seed };
        consensus.set_timeout();
        Ok(consensus)
    }

    /// The first outputs, and those of an election if this is the only voter.
    pub fn start(&mut self, out: &mut Vec<Output>) {
        out.push(Output::Base(self.node.store().base()));
        out.push(Output::Tail(self.node.store().tail()));
        if self.node.store().voters().len() == 1 {
            // Fails only for a voter that leads already.
            let _ = self.node.campaign();
        }
        self.drain(out);
    }

    /// The membership, with all changes that this daemon knows to be agreed.
    #[must_use]
    pub const fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The voters.
    pub fn voters(&self) -> impl Iterator<Item = DaemonIndex> {
        self.node.store().voters().iter().copied().filter_map(daemon)
    }

    /// The leader, if one is known.
    #[must_use]
    pub fn leader(&self) -> Option<DaemonIndex> {
        daemon(self.node.raft.leader_id)
    }

    /// Whether this daemon leads, and has applied all that was agreed before it did.
    #[must_use]
    pub fn leads(&self) -> bool {
        let raft = &self.node.raft;
        raft.state == StateRole::Leader && raft.commit_to_current_term()
    }

    /// `TICK_NANOS` passed.
    pub fn tick(&mut self, out: &mut Vec<Output>) {
        self.node.tick();
        self.drain(out);
    }

    /// A message of another voter.
    ///
    /// # Errors
    /// `Malformed` if it is none, or not from `from`, or cannot be true. It has no effect.
    pub fn receive(
        &mut self,
        from: DaemonIndex,
        message: &[u8],
        out: &mut Vec<Output>,
    ) -> Result<(), Malformed> {
        let message = coding::decode(message)?;
        let is_voter = self.node.store().voters().contains(&message.from);
        // A proposal may come through a voter that knew the leader.
        let is_from = message.from == id(from) || message.get_msg_type() == MessageType::MsgPropose;
        if !is_from || message.to != self.node.raft.id || !is_voter {
            return Err(Malformed);
        }
        if !self.is_possible(&message) {
            return Err(Malformed);
        }
        // A message that does not fit the state is dropped by the algorithm.
        let _ = self.node.step(message);
        self.drain(out);
        Ok(())
    }

    /// Proposes a change; it may be lost, or be refused when it is applied.
    ///
    /// # Errors
    /// `Leaderless`.
    pub fn propose(&mut self, change: &Change, out: &mut Vec<Output>) -> Result<(), Leaderless> {
        self.node.propose(Vec::new(), change.to_bytes()).map_err(|_| Leaderless)?;
        self.drain(out);
        Ok(())
    }

    /// Whether the message agrees with what is known to be agreed: `raft` panics about one that
    /// does not, as a voter would send that has lost what it stored.
    fn is_possible(&self, message: &raft::eraftpb::Message) -> bool {
        let log = &self.node.raft.raft_log;
        if message.term < self.node.raft.term {
            // An earlier leader's: it is ignored.
            return true;
        }
        match message.get_msg_type() {
            MessageType::MsgHeartbeat => message.commit <= log.last_index(),
            MessageType::MsgAppend => message.entries.iter().all(|entry| {
                entry.index > log.committed
                    || log.term(entry.index).is_ok_and(|it| it == entry.term)
                    || entry.index <= self.node.store().base_index()
            }),
            _ => true,
        }
    }

    fn set_timeout(&mut self) {
        let raft = &self.node.raft;
        let mixed = wire::hash::mix(wire::hash::mix(self.seed, raft.id), raft.term);
        self.node.raft.set_randomized_election_timeout(
            ELECTION_TICKS + (mixed % ELECTION_TICKS as u64) as usize,
        );
    }

    /// Stores, sends and applies what the last input led to.
    fn drain(&mut self, out: &mut Vec<Output>) {
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            self.send(ready.take_messages(), out);
            let mut is_changed = false;
            if !ready.snapshot().is_empty() {
                self.node.mut_store().replace(ready.snapshot());
                if let Ok(membership) = Membership::from_bytes(self.node.store().base_data()) {
                    self.membership = membership;
                    is_changed = true;
                }
                out.push(Output::Base(self.node.store().base()));
            }
            let hard = ready.hs().cloned();
            let entries = ready.take_entries();
            if hard.is_some() || !entries.is_empty() || is_changed {
                self.node.mut_store().append(hard, &entries);
                out.push(Output::Tail(self.node.store().tail()));
            }
            self.send(ready.take_persisted_messages(), out);
            is_changed |= self.apply(ready.take_committed_entries());
            let mut light = self.node.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.node.mut_store().commit(commit);
            }
            self.send(light.take_messages(), out);
            is_changed |= self.apply(light.take_committed_entries());
            self.node.advance_apply();
            if is_changed {
                out.push(Output::Changed);
            }
            self.compact(out);
        }
        self.set_timeout();
    }

    fn send(&mut self, messages: Vec<raft::eraftpb::Message>, out: &mut Vec<Output>) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                // It may be lost: the leader asks what the voter has, and sends it again.
                self.node.report_snapshot(message.to, raft::SnapshotStatus::Finish);
            }
            if let Some(to) = daemon(message.to) {
                out.push(Output::Send { to, message: coding::encode(&message) });
            }
        }
    }

    fn apply(&mut self, entries: Vec<raft::eraftpb::Entry>) -> bool {
        let before = self.membership.epoch;
        for entry in entries {
            if entry.get_entry_type() == EntryType::EntryNormal
                && let Ok(change) = Change::from_bytes(&entry.data)
            {
                // One that is late has no effect, here as everywhere.
                let _ = self.membership.apply(&change);
            }
        }
        self.membership.epoch != before
    }

    fn compact(&mut self, out: &mut Vec<Output>) {
        if self.node.store().entries() > ENTRIES_MAX {
            let applied = self.node.raft.raft_log.applied;
            let bytes = self.membership.to_bytes();
            self.node.mut_store().compact(applied, bytes);
            out.push(Output::Base(self.node.store().base()));
            out.push(Output::Tail(self.node.store().tail()));
        }
    }
}
