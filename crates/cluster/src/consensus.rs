//! One order of changes for all daemons: Raft among a few daemons, the voters (B7).
//!
//! The algorithm is the crate `raft`, driven as a state machine: ticks and messages in; what is to
//! be stored, messages and applied changes out, in this order. With one voter a change is applied
//! as soon as it is stored. Election time-outs follow from the seed, the daemon and the term, so a
//! run can be repeated.
//!
//! The voters change by the joint configurations of Raft: `change_voters`, and `complete_voters` once
//! the daemon says that it is time. A daemon that becomes a voter begins with `join`; its name has the
//! number of its start, so a daemon that has lost what it stored is not taken for the voter that it was.
//!
//! Invariants
//! 1. `Output::Base` and `Output::Tail` are stored before any output that follows them is performed.
//! 2. Nothing that a peer sends reaches `raft` before it is parsed by `coding` and its sender is known.
//! 3. The voters of `raft` are those of the membership, after each output.

mod coding;
mod log;

use crate::change::{Change, Refused};
use crate::membership::Membership;
use crate::voters::{Voter, Voters, decode_set, encode_set};
use encoding::{Decode, Encode};
use log::Log;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, Entry, EntryType,
    Message, MessageType,
};
use raft::{RawNode, StateRole};
use std::collections::VecDeque;
use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};

/// Nanoseconds between two calls of `Consensus::tick`.
pub const TICK_NANOS: i64 = 25_000_000;
const HEARTBEAT_TICKS: usize = 2;
const ELECTION_TICKS: usize = 8;
/// Entries of the log after which the membership is stored anew and they are dropped.
const ENTRIES_MAX: usize = 64;
/// Changes in one message to the leader.
const PROPOSED_MAX: usize = 256;
/// Changes that are kept for daemons which are no voters: they take less to send than a whole membership.
const RECENT_MAX: usize = 1024;

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
    /// The last changes that were made, one for each epoch up to that of the membership.
    recent: VecDeque<Made>,
    seed: u64,
}

/// A change that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Made {
    /// Of the membership.
    Change(Change),
    /// Of the voters: the next ones, or none where both sets are left.
    Voters(Vec<Voter>),
}

impl Made {
    /// Reads all of a list.
    pub(crate) fn list(bytes: &[u8]) -> Result<Vec<Made>, Malformed> {
        let mut reader = Reader::new(bytes);
        let mut list = Vec::new();
        while !reader.rest().is_empty() {
            list.push(Made::decode(&mut reader)?);
        }
        Ok(list)
    }
}

impl Encode for Made {
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Made::Change(change) => {
                to.push(0);
                change.encode(to);
            }
            Made::Voters(next) => {
                to.push(1);
                encode_set(next, to);
            }
        }
    }
}

impl Decode for Made {
    fn decode(from: &mut Reader<'_>) -> Result<Made, Malformed> {
        match from.u8()? {
            0 => Ok(Made::Change(Change::decode(from)?)),
            1 => Ok(Made::Voters(decode_set(from)?)),
            _ => Err(Malformed),
        }
    }
}

impl Membership {
    /// Applies a change that others made.
    pub(crate) fn make(&mut self, made: Made) -> Result<(), Refused> {
        match made {
            Made::Change(change) => self.apply(&change),
            Made::Voters(next) if next.is_empty() => self.complete_voters(),
            Made::Voters(next) => self.begin_voters(next),
        }
    }
}

/// The name of a voter for `raft`: 48 bits that follow from its start and number, and its daemon above 0.
fn id(voter: Voter) -> u64 {
    let name = if voter.start == 0 { 0 } else { wire::hash::mix(voter.start, voter.number) };
    name << 16 | (u64::from(voter.daemon.0) + 1)
}

fn daemon(id: u64) -> Option<DaemonIndex> {
    (id & 0xffff).checked_sub(1).and_then(|index| u16::try_from(index).ok()).map(DaemonIndex)
}

/// The context of the entry that changes the voters: the next ones, or nothing where both sets agreed
/// and the next one is to decide alone.
fn change_to(next: &[Voter]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_set(next, &mut bytes);
    bytes
}

/// The change of `raft` from the voters of now to `next`; none: both sets are left.
fn configuration(voters: &Voters, next: &[Voter]) -> ConfChangeV2 {
    let mut change = ConfChangeV2::default();
    if next.is_empty() {
        return change;
    }
    change.set_transition(ConfChangeTransition::Explicit);
    let of = |kind| {
        move |voter: &Voter| {
            let mut single =
                ConfChangeSingle { node_id: id(*voter), ..ConfChangeSingle::default() };
            single.set_change_type(kind);
            single
        }
    };
    let added = next.iter().filter(|it| !voters.next.contains(it)).map(of(ConfChangeType::AddNode));
    let removed = voters.next.iter().filter(|it| !next.contains(it));
    let changes: Vec<_> = added.chain(removed.map(of(ConfChangeType::RemoveNode))).collect();
    change.set_changes(changes.into());
    change
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
        let membership = membership.clone().with_voters(voters);
        Consensus::with(Log::first(own, &membership), membership, seed)
    }

    /// The first start of a voter of an instance that runs: it knows nothing yet, and learns from the
    /// leader, when the membership has it under this name.
    ///
    /// # Errors
    /// `Malformed` if `raft` refuses.
    pub fn join(own: Voter, seed: u64) -> Result<Consensus, Malformed> {
        Consensus::with(Log::empty(own), Membership::none(), seed)
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
        let log = Log::restore(base, tail)?;
        if log.own().daemon != own {
            return Err(Malformed);
        }
        let is_new = log.base_index() == 0;
        let membership =
            if is_new { Membership::none() } else { Membership::from_bytes(log.base_data())? };
        Consensus::with(log, membership, seed)
    }

    fn with(log: Log, membership: Membership, seed: u64) -> Result<Consensus, Malformed> {
        let own = log.own();
        // A voter that is not one of the last that it knew may be one since.
        let is_first = log.base_index() == 1 && log.entries() == 0;
        if is_first && !membership.voters.contains(own) {
            return Err(Malformed);
        }
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
        let mut consensus = Consensus { node, membership, recent: VecDeque::new(), seed };
        consensus.set_timeout();
        Ok(consensus)
    }

    /// The first outputs, and those of an election if this is the only voter.
    pub fn start(&mut self, out: &mut Vec<Output>) {
        out.push(Output::Base(self.node.store().base()));
        out.push(Output::Tail(self.node.store().tail()));
        // Agreed changes are applied first: one of voters forbids an election before.
        self.drain(out);
        let voters = &self.membership.voters;
        if !voters.is_joint() && voters.next.len() == 1 && self.is_voter() {
            // Fails only for a voter that leads already.
            let _ = self.node.campaign();
        }
        self.drain(out);
    }

    /// The name of this voter.
    #[must_use]
    pub fn own(&self) -> Voter {
        self.node.store().own()
    }

    /// Whether the membership that it knows has this voter.
    #[must_use]
    pub fn is_voter(&self) -> bool {
        self.membership.voters.all().any(|it| id(it) == self.node.raft.id)
    }

    /// Whether the message is for a voter of this name.
    ///
    /// # Errors
    /// `Malformed` if it is none.
    pub fn is_for(own: Voter, message: &[u8]) -> Result<bool, Malformed> {
        Ok(coding::addressee(message)? == id(own))
    }

    /// The membership, with all changes that this daemon knows to be agreed.
    #[must_use]
    pub const fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The encoded changes since an epoch, if all are kept.
    #[must_use]
    pub fn changes_since(&self, epoch: u64) -> Option<Vec<u8>> {
        let count = usize::try_from(self.membership.epoch.checked_sub(epoch)?).ok()?;
        let skipped = self.recent.len().checked_sub(count)?;
        let mut bytes = Vec::new();
        self.recent.iter().skip(skipped).for_each(|made| made.encode(&mut bytes));
        Some(bytes)
    }

    /// The daemons that changes since an epoch concern, other than voters, which learn of them here.
    pub(crate) fn concerned_since(&self, epoch: u64) -> Vec<DaemonIndex> {
        let count = self.membership.epoch.saturating_sub(epoch);
        let skipped = (self.recent.len() as u64).saturating_sub(count);
        let mut concerned = Vec::new();
        for made in self.recent.iter().skip(skipped as usize) {
            if let Made::Change(change) = made {
                concerned.extend(self.membership.concerned(change));
            }
        }
        concerned.sort_unstable();
        concerned.dedup();
        concerned.retain(|&daemon| !self.membership.voters.has(daemon));
        concerned
    }

    fn keep(&mut self, made: Made) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(made);
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

    /// The term in which this daemon leads, if it does.
    #[must_use]
    pub fn leads_in(&self) -> Option<u64> {
        self.leads().then_some(self.node.raft.term)
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
        // A proposal may come through a voter that knew the leader.
        let is_proposal = message.get_msg_type() == MessageType::MsgPropose;
        let (own, is_from) = (self.node.raft.id, daemon(message.from) == Some(from));
        if !is_proposal && (!is_from || message.from == own) || message.to != own {
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
        self.propose_all(std::slice::from_ref(change), out)
    }

    /// Proposes changes, in their order: they are stored and sent together. Any of them may be lost, or
    /// refused.
    ///
    /// # Errors
    /// `Leaderless`.
    pub fn propose_all(
        &mut self,
        changes: &[Change],
        out: &mut Vec<Output>,
    ) -> Result<(), Leaderless> {
        let entry = |change: &Change| Entry { data: change.to_bytes().into(), ..Entry::default() };
        for some in changes.chunks(PROPOSED_MAX) {
            let entries: Vec<Entry> = some.iter().map(entry).collect();
            let mut message = Message { from: self.node.raft.id, ..Message::default() };
            message.set_msg_type(MessageType::MsgPropose);
            message.set_entries(entries.into());
            self.node.raft.step(message).map_err(|_| Leaderless)?;
        }
        self.drain(out);
        Ok(())
    }

    /// Proposes other voters: they and those of now are joint when it is applied. It may be lost.
    ///
    /// # Errors
    /// `Leaderless` if this daemon does not lead, or a change is under way.
    pub fn change_voters(
        &mut self,
        next: &[Voter],
        out: &mut Vec<Output>,
    ) -> Result<(), Leaderless> {
        let is_new = next.iter().any(|it| !self.membership.voters.next.contains(it));
        if !self.leads() || self.membership.voters.is_joint() || next.is_empty() {
            return Err(Leaderless);
        }
        if !is_new && next.len() == self.membership.voters.next.len() {
            return Err(Leaderless);
        }
        self.propose_voters(next, out)
    }

    /// Proposes that the next voters decide alone. It may be lost. A leader that is none of them hands
    /// the lead over instead.
    ///
    /// # Errors
    /// `Leaderless` as for `change_voters`.
    pub fn complete_voters(&mut self, out: &mut Vec<Output>) -> Result<(), Leaderless> {
        if !self.leads() || !self.membership.voters.is_joint() {
            return Err(Leaderless);
        }
        let own = self.node.raft.id;
        let next: Vec<u64> = self.membership.voters.next.iter().copied().map(id).collect();
        if next.contains(&own) {
            return self.propose_voters(&[], out);
        }
        let progress = |id: &u64| {
            let progress = self.node.raft.prs().get(*id);
            progress.filter(|it| it.recent_active).map_or(0, |it| it.matched)
        };
        if let Some(successor) = next.into_iter().max_by_key(progress) {
            self.node.transfer_leader(successor);
        }
        self.drain(out);
        Ok(())
    }

    fn propose_voters(&mut self, next: &[Voter], out: &mut Vec<Output>) -> Result<(), Leaderless> {
        let change = configuration(&self.membership.voters, next);
        self.node.propose_conf_change(change_to(next), change).map_err(|_| Leaderless)?;
        self.drain(out);
        Ok(())
    }

    /// Whether the message agrees with what is known to be agreed: `raft` panics about one that
    /// does not, as a voter would send that has lost what it stored.
    fn is_possible(&self, message: &Message) -> bool {
        let log = &self.node.raft.raft_log;
        if message.term < self.node.raft.term {
            // An earlier leader's: it is ignored.
            return true;
        }
        match message.get_msg_type() {
            MessageType::MsgHeartbeat => message.commit <= log.last_index(),
            // A leader's log never becomes shorter, so nobody has more of it.
            MessageType::MsgAppendResponse if message.term == self.node.raft.term => {
                self.node.raft.state != StateRole::Leader || message.index <= log.last_index()
            }
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
            if !ready.snapshot().is_empty()
                && let Ok(membership) = Membership::from_bytes(&ready.snapshot().data)
            {
                self.node.mut_store().replace(ready.snapshot(), &membership);
                self.membership = membership;
                self.recent.clear();
                is_changed = true;
                out.push(Output::Base(self.node.store().base()));
            }
            let hard = ready.hs().cloned();
            let entries = ready.take_entries();
            if hard.is_some() || !entries.is_empty() || is_changed {
                self.node.mut_store().append(hard, &entries);
                out.push(Output::Tail(self.node.store().tail()));
            }
            self.send(ready.take_persisted_messages(), out);
            let since = self.membership.voters.since;
            is_changed |= self.apply(ready.take_committed_entries());
            let mut light = self.node.advance(ready);
            self.send(light.take_messages(), out);
            if let Some(commit) = light.commit_index() {
                self.node.mut_store().commit(commit);
                // A voter that starts again must not know less than it said.
                out.push(Output::Tail(self.node.store().tail()));
            }
            is_changed |= self.apply(light.take_committed_entries());
            self.node.advance_apply();
            if self.membership.voters.since != since {
                out.push(Output::Base(self.node.store().base()));
                out.push(Output::Tail(self.node.store().tail()));
            }
            self.compact(out);
            if is_changed {
                out.push(Output::Changed);
            }
        }
        self.set_timeout();
    }

    fn send(&mut self, messages: Vec<Message>, out: &mut Vec<Output>) {
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

    fn apply(&mut self, entries: Vec<Entry>) -> bool {
        let before = self.membership.epoch;
        for entry in entries {
            // A change that is late has no effect, here as everywhere.
            match entry.get_entry_type() {
                EntryType::EntryNormal => {
                    if let Ok(change) = Change::from_bytes(&entry.data)
                        && self.membership.apply(&change).is_ok()
                    {
                        self.keep(Made::Change(change));
                    }
                }
                EntryType::EntryConfChangeV2 => {
                    let mut reader = Reader::new(&entry.context);
                    if let Ok(next) = decode_set(&mut reader) {
                        self.apply_voters(next, entry.index);
                    }
                }
                EntryType::EntryConfChange => {}
            }
        }
        self.membership.epoch != before
    }

    fn apply_voters(&mut self, next: Vec<Voter>, index: u64) {
        let change = configuration(&self.membership.voters, &next);
        let made = Made::Voters(next);
        if self.membership.make(made.clone()).is_err() {
            return;
        }
        self.keep(made);
        // The base has the new voters, before it is sent to one of them.
        self.node.mut_store().compact(index, &self.membership);
        let raft = &mut self.node.raft;
        // The membership and `raft` have the same voters, so the one accepts what the other does.
        let _ = raft.apply_conf_change(&change);
        if raft.state == StateRole::Leader
            && !self.membership.voters.all().any(|it| id(it) == raft.id)
        {
            // `raft` leaves this to its user, and counts on a leader that is a voter.
            let term = raft.term;
            raft.become_follower(term, raft::INVALID_ID);
            raft.msgs.clear();
        }
    }

    fn compact(&mut self, out: &mut Vec<Output>) {
        if self.node.store().entries() <= ENTRIES_MAX {
            return;
        }
        let applied = self.node.raft.raft_log.applied;
        self.node.mut_store().compact(applied, &self.membership);
        out.push(Output::Base(self.node.store().base()));
        out.push(Output::Tail(self.node.store().tail()));
    }
}
