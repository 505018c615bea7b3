//! Changes that concern several shards: all of it happens, or nothing.
//!
//! A transaction is a list of actions, each of one shard. If all shards are this service's, every
//! action is checked and then every action is done, in one step and one log record. Otherwise two
//! phases, with presumed abort:
//!
//! coordinator (`live.transactions` -> `state.decisions` -> nothing)
//! - `transact`: own actions are checked and their keys held; `Prepare` to each other service
//! - a no, or time over: `Abort` to all, keys released, the job refused or tried again
//! - all said yes to what is to be refused (`refuse_if_so`): as a no
//! - all said yes: the decision, the own changes and the outcome are logged; the client is
//!   answered; `Commit` to all, again until `Committed` (`live.decided`)
//!
//! participant (nothing -> `state.prepared` -> `state.finished` -> nothing)
//! - `Prepare`: checked, keys held, logged, `Vote`
//! - `Commit`: done, logged together with `finished`, `Committed`
//! - `Abort`: released; silence: `Inquire`, and the coordinator that knows nothing says `Abort`
//!
//! Invariants
//! 1. Between its vote and the decision a participant lets nobody read or change what is held, so
//!    the client may be answered before the participants have done their part.
//! 2. Numbers of transactions are never used twice (`new_sequence`), and one that was committed is
//!    remembered until its coordinator promised (`floor`) to send nothing more about it: messages
//!    that come late or twice do nothing.
//! 3. Nobody waits for a key while holding others: a vote on a held key is a no.

use std::collections::BTreeMap;

use wire::attributes::{mode, spread};
use wire::codec::Field;
use wire::limits::LINKS_MAX;
use wire::{Attributes, Errno, Inode, Reader, ShardIndex};

use crate::coding::Put;
use crate::directory::RESEND_NANOS;
use crate::effect::IndexOp;
use crate::keys::{Hold, Key};
use crate::live::{Again, Ask, Decided, Kind, Part, Step, Stop, Transaction, Wait};
use crate::peer::{Action, Message, actions, are_actions, link};
use crate::record::Record;
use crate::service::{Service, outcome};
use crate::state::TransactionId;

/// A vote: a key is held by another transaction. Tried again.
const HELD: Errno = Errno::EBUSY;
/// A vote: something is not as it was seen. Tried again.
const CHANGED: Errno = Errno::EAGAIN;
/// Number of a transaction that holds no keys: all of it happens in one step.
const AT_ONCE: u64 = u64::MAX;

impl Service {
    /// Does all of `actions` and answers, or refuses.
    pub(crate) fn transact(&mut self, ask: &Ask<'_>, actions: &[Action<'_>]) -> Step<()> {
        self.transact_or_refuse(ask, actions, Errno(0))
    }

    /// Refuses if all that `actions` expect is so at one moment, else tries again: for a refusal that
    /// follows from what several services said one after the other. Does nothing of them.
    pub(crate) fn refuse_if_so(
        &mut self,
        ask: &Ask<'_>,
        actions: &[Action<'_>],
        refusal: Errno,
    ) -> Step<()> {
        self.transact_or_refuse(ask, actions, refusal)
    }

    /// `refusal` 0: none.
    fn transact_or_refuse(
        &mut self,
        ask: &Ask<'_>,
        actions: &[Action<'_>],
        refusal: Errno,
    ) -> Step<()> {
        let own = self.config.own_group();
        let id = (own.0, AT_ONCE);
        let (mut own_actions, mut parts) = (Vec::new(), BTreeMap::new());
        for action in actions {
            let shard = action.shard();
            let group = self.config.group(shard);
            if group == own {
                self.check(ask, action, id).map_err(|stop| self.as_wait(stop))?;
                // The request alone did not say what its names of other services lead to.
                self.unwatched_for_action(ask, action)?;
                action.encode(&mut own_actions);
            } else {
                let new =
                    || Part { group: group.0, to: shard, actions: Vec::new(), has_voted: false };
                action.encode(&mut parts.entry(group).or_insert_with(new).actions);
            }
        }
        if parts.is_empty() {
            if refusal.0 != 0 {
                return Err(Stop::Refused(refusal));
            }
            for action in actions {
                self.commit_action(action);
            }
            self.done(ask, outcome::DONE, 0, 0);
            return Ok(());
        }
        let sequence = self.new_sequence();
        self.hold_all((own.0, sequence), &own_actions);
        let parts = parts.into_values().collect();
        let again = Again::after(self.live.now, RESEND_NANOS);
        let by = (ask.header.host, ask.header.mount);
        let transaction = Transaction { job: 0, own_actions, parts, by, again, refusal };
        self.live.transactions.insert(sequence, transaction.clone());
        self.send_prepares(sequence, &transaction);
        self.live.wake_at(again.at);
        Err(Stop::Wait(Wait::Votes(sequence)))
    }

    /// What a check of an own action means for the job.
    fn as_wait(&self, stop: Stop) -> Stop {
        match stop {
            Stop::Refused(HELD) => Stop::Wait(Wait::Unlock),
            Stop::Refused(CHANGED) => Stop::Wait(Wait::Time(self.live.now)),
            stop => stop,
        }
    }

    fn send_prepares(&mut self, sequence: u64, transaction: &Transaction) {
        let (from, group) = (self.live.address.0, self.config.own_group().0);
        let (floor, (host, mount)) = (self.floor(), transaction.by);
        for part in transaction.parts.iter().filter(|part| !part.has_voted) {
            let actions = &part.actions;
            let prepare = Message::Prepare { from, group, sequence, floor, host, mount, actions };
            self.io.send(part.to, &prepare);
        }
    }

    /// No message about a transaction of this service below this number will be sent any more.
    fn floor(&self) -> u64 {
        let undecided = self.live.transactions.keys().next().copied();
        let decided = self.state.decisions.keys().next().copied();
        let oldest = undecided.into_iter().chain(decided).min();
        oldest.unwrap_or(self.live.sequence_next)
    }

    /// A participant has voted.
    pub(crate) fn voted(&mut self, group: u32, sequence: u64, errno: Errno) {
        let Some(transaction) = self.live.transactions.get_mut(&sequence) else { return };
        let job = transaction.job;
        if errno.0 == 0 {
            let parts = transaction.parts.iter_mut();
            parts.filter(|part| part.group == group).for_each(|part| part.has_voted = true);
            if !transaction.parts.iter().all(|part| part.has_voted) {
                return;
            }
            if transaction.refusal.0 == 0 {
                return self.decide(sequence);
            }
        }
        let errno = if errno.0 == 0 { transaction.refusal } else { errno };
        self.abort(sequence);
        if errno == HELD || errno == CHANGED {
            self.retry_job(job);
        } else if let Some(job) = self.live.jobs.remove(&job)
            && let Kind::Request { ticket, .. } = job.kind
        {
            self.answer_stop(ticket, Stop::Refused(errno));
        }
    }

    /// All said yes.
    fn decide(&mut self, sequence: u64) {
        let Some(transaction) = self.live.transactions.remove(&sequence) else { return };
        self.release_all((self.config.own_group().0, sequence));
        for action in actions(&transaction.own_actions) {
            self.commit_action(&action);
        }
        let mut left = Vec::new();
        for part in &transaction.parts {
            part.group.append_to(&mut left);
            part.to.0.append_to(&mut left);
        }
        self.put(&Record::PutDecision { sequence, left: &left });
        if let Some(job) = self.live.jobs.remove(&transaction.job)
            && let Kind::Request { ticket, header, .. } = job.kind
        {
            self.finish(ticket, &header, outcome::DONE, 0, 0);
        }
        let again = Again::after(self.live.now, RESEND_NANOS);
        let decided = Decided { left: parts_left(&left).collect(), again };
        self.send_commits(sequence, &decided);
        self.live.decided.insert(sequence, decided);
        self.live.wake_at(again.at);
    }

    fn send_commits(&mut self, sequence: u64, decided: &Decided) {
        let (from, group) = (self.live.address.0, self.config.own_group().0);
        for &to in decided.left.values() {
            self.io.send(to, &Message::Commit { from, group, sequence });
        }
    }

    /// Somebody said no, or did not answer in time.
    pub(crate) fn abort(&mut self, sequence: u64) {
        let Some(transaction) = self.live.transactions.remove(&sequence) else { return };
        let group = self.config.own_group().0;
        for part in &transaction.parts {
            self.io.send(part.to, &Message::Abort { group, sequence });
        }
        self.release_all((group, sequence));
    }

    /// A participant has done what was decided. The log learns of the last alone: after a restart all
    /// are told once more, which does no harm.
    pub(crate) fn committed(&mut self, group: u32, sequence: u64) {
        let Some(decided) = self.live.decided.get_mut(&sequence) else { return };
        decided.left.remove(&group);
        if decided.left.is_empty() {
            self.live.decided.remove(&sequence);
            self.put(&Record::DeleteDecision { sequence });
        }
    }

    /// A participant asks what was decided.
    pub(crate) fn inquired(&mut self, from: ShardIndex, group: u32, sequence: u64) {
        if self.live.transactions.contains_key(&sequence) {
            return;
        }
        let decided = self.live.decided.get(&sequence);
        let is_left = decided.is_some_and(|decided| decided.left.contains_key(&group));
        let own = self.config.own_group().0;
        let answer = match is_left {
            true => Message::Commit { from: self.live.address.0, group: own, sequence },
            false => Message::Abort { group: own, sequence },
        };
        self.io.send(from, &answer);
    }

    /// Another service asks for a vote.
    pub(crate) fn prepare(&mut self, ask: &Ask<'_>, message: &Message<'_>) -> Step<()> {
        let Message::Prepare { from, group, sequence, floor, actions: bytes, .. } = *message else {
            return Ok(());
        };
        let id = (group, sequence);
        let known = self.state.floors.get(&group).copied().unwrap_or(0);
        if sequence < known || self.state.finished.contains(&id) {
            return Ok(());
        }
        if floor > known {
            self.put(&Record::PutFloor { group, floor });
        }
        let mut errno = Errno(0);
        if !self.state.prepared.contains_key(&id) {
            match self.prepare_actions(ask, id, bytes) {
                Ok(()) => {
                    self.hold_all(id, bytes);
                    self.put(&Record::PutPrepared { group, sequence, from, actions: bytes });
                    let again = Again::after(self.live.now, 2 * RESEND_NANOS);
                    self.live.inquired.insert(id, again);
                    self.live.wake_at(again.at);
                }
                Err(Stop::Refused(reason)) => errno = reason,
                Err(Stop::Stale) => errno = Errno::ESTALE,
                Err(stop @ Stop::Wait(_)) => return Err(stop),
            }
        }
        let group = self.config.own_group().0;
        self.io.send(ShardIndex(from), &Message::Vote { group, sequence, errno });
        Ok(())
    }

    fn prepare_actions(&mut self, ask: &Ask<'_>, id: TransactionId, bytes: &[u8]) -> Step<()> {
        if !are_actions(bytes) {
            return Err(Stop::Refused(Errno::EPROTO));
        }
        for action in actions(bytes) {
            if !self.config.owns(action.shard()) {
                return Err(Stop::Stale);
            }
            self.check(ask, &action, id)?;
            self.unwatched_for_action(ask, &action)?;
        }
        Ok(())
    }

    /// The coordinator says that it is decided.
    pub(crate) fn commit(&mut self, from: ShardIndex, id: TransactionId) {
        let (group, sequence) = id;
        if let Some(prepared) = self.state.prepared.get(&id) {
            let bytes = prepared.actions.clone();
            self.release_all(id);
            for action in actions(&bytes) {
                self.commit_action(&action);
            }
            self.put(&Record::PutFinished { group, sequence });
            self.put(&Record::DeletePrepared { group, sequence });
            self.live.inquired.remove(&id);
        }
        let group = self.config.own_group().0;
        self.io.send(from, &Message::Committed { group, sequence });
    }

    /// The coordinator says that it will not happen.
    pub(crate) fn aborted(&mut self, id: TransactionId) {
        let (group, sequence) = id;
        if self.state.prepared.contains_key(&id) {
            self.release_all(id);
            self.put(&Record::DeletePrepared { group, sequence });
            self.live.inquired.remove(&id);
        }
    }

    /// Sends again what was not answered.
    pub(crate) fn send_transactions_again(&mut self) {
        let now = self.live.now;
        let (from, group) = (self.live.address.0, self.config.own_group().0);
        let mut transactions = core::mem::take(&mut self.live.transactions);
        let mut due = Vec::new();
        for (&sequence, transaction) in &mut transactions {
            if transaction.again.is_due(now) {
                due.push(sequence);
            }
            self.live.wake_at(transaction.again.at);
        }
        self.live.transactions = transactions;
        for sequence in due {
            if let Some(transaction) = self.live.transactions.get(&sequence).cloned() {
                self.send_prepares(sequence, &transaction);
            }
        }
        let mut decided = core::mem::take(&mut self.live.decided);
        for (&sequence, one) in &mut decided {
            if one.again.is_due(now) {
                self.send_commits(sequence, one);
            }
            self.live.wake_at(one.again.at);
        }
        self.live.decided = decided;
        let mut inquired = core::mem::take(&mut self.live.inquired);
        for (id, again) in &mut inquired {
            let Some(prepared) = self.state.prepared.get(id) else { continue };
            if again.is_due(now) {
                let (to, sequence) = (ShardIndex(prepared.from), id.1);
                self.io.send(to, &Message::Inquire { from, group, sequence });
            }
            self.live.wake_at(again.at);
        }
        self.live.inquired = inquired;
    }

    /// Can this action be done, now and until it is decided? Changes nothing.
    fn check(&mut self, ask: &Ask<'_>, action: &Action<'_>, id: TransactionId) -> Step<()> {
        if let Some((key, hold)) = key_of(action)
            && !self.live.keys.may(id, &key, hold)
        {
            return Err(Stop::Refused(HELD));
        }
        match *action {
            Action::Entry { parent, name, expect, expect_mode, set, .. } => {
                let found = self.state.entries.get(parent, name).map_or(Inode::NONE, |e| e.0);
                if found != expect {
                    return Err(Stop::Refused(CHANGED));
                }
                if !set.is_none() {
                    if !self.live.keys.may(id, &Key::Frozen(parent), Hold::Shared) {
                        return Err(Stop::Refused(HELD));
                    }
                    self.directory(ask, parent)?;
                }
                if expect_mode & mode::TYPE == mode::DIRECTORY && !expect.is_none() {
                    self.recall_leases(expect)?;
                }
                Ok(())
            }
            Action::Links { inode, change } => self.check_links(inode, change == link::ADDED),
            Action::RemoveDirectory { inode, parts } => {
                let attributes = self.expected(inode)?;
                if !attributes.is_directory() || inode == Inode::ROOT {
                    return Err(Stop::Refused(Errno::EPERM));
                }
                // Who came since is not asked to freeze it.
                let is_wide = attributes.layout.spread == spread::WIDE;
                if is_wide && self.parts_count(inode) != parts {
                    return Err(Stop::Refused(CHANGED));
                }
                self.recall_leases(inode)
            }
            Action::Freeze { directory, .. } => {
                if self.live.keys.has_entry_of(directory, id) {
                    return Err(Stop::Refused(HELD));
                }
                if self.state.entries.has_any(directory) {
                    return Err(Stop::Refused(Errno::ENOTEMPTY));
                }
                if self.is_below(directory) {
                    return Err(Stop::Refused(CHANGED));
                }
                Ok(())
            }
            Action::Moved { inode, parent } => {
                let moved = self.expected(inode)?;
                let is_elsewhere = moved.is_directory() && !parent.is_none();
                if is_elsewhere { self.recall_leases(inode) } else { Ok(()) }
            }
            Action::Chain { inode, parent } => match self.expected(inode)?.parent == parent {
                true => Ok(()),
                false => Err(Stop::Refused(CHANGED)),
            },
        }
    }

    fn check_links(&self, inode: Inode, is_up: bool) -> Step<()> {
        let Some(node) = self.state.inodes.get(inode) else {
            return Err(Stop::Refused(if is_up { Errno::ENOENT } else { CHANGED }));
        };
        let attributes = &node.attributes;
        if attributes.is_directory() {
            return Err(Stop::Refused(Errno::EPERM));
        }
        match (is_up, attributes.links) {
            (true, 0) if !node.is_nameless => Err(Stop::Refused(Errno::ENOENT)),
            (true, links) if links >= LINKS_MAX => Err(Stop::Refused(Errno::EMLINK)),
            (false, 0) => Err(Stop::Refused(CHANGED)),
            _ => Ok(()),
        }
    }

    /// The attributes of an inode with a name.
    fn expected(&self, inode: Inode) -> Step<Attributes> {
        match self.state.inodes.get(inode) {
            Some(node) if node.attributes.links != 0 => Ok(node.attributes),
            _ => Err(Stop::Refused(CHANGED)),
        }
    }

    /// Does an action that was checked.
    fn commit_action(&mut self, action: &Action<'_>) {
        match *action {
            Action::Entry { expect, set, .. } if expect == set => {}
            Action::Entry { parent, spread, name, expect, expect_mode, set, set_mode, .. } => {
                match set.is_none() {
                    true => self.put(&Record::DeleteEntry { parent, name }),
                    false => {
                        let (inode, mode) = (set, set_mode & mode::TYPE);
                        self.put(&Record::PutEntry { parent, name, inode, mode });
                    }
                }
                let entries = i64::from(!set.is_none()) - i64::from(!expect.is_none());
                let is_directory = |mode: u32| i64::from(mode & mode::TYPE == mode::DIRECTORY);
                let directories = is_directory(set_mode) - is_directory(expect_mode);
                self.change_tally(parent, spread, entries, directories);
            }
            Action::Links { inode, change: link::ADDED } => {
                self.change_inode(inode, |new| new.links += 1);
            }
            Action::Links { inode, change } => {
                if change == link::REPLACED {
                    self.keep_on(inode);
                }
                self.drop_link(inode);
            }
            Action::RemoveDirectory { inode, .. } => self.live.unlinked.push(inode),
            Action::Freeze { directory, .. } => {
                if self.state.tallies.contains_key(&directory) {
                    self.put(&Record::DeleteTally { directory });
                }
                self.io.index(IndexOp::ForgetWhole { directory });
                self.forget_directory(directory);
            }
            Action::Moved { inode, parent } => self.change_inode(inode, |new| {
                if !parent.is_none() {
                    new.parent = parent;
                }
            }),
            Action::Chain { .. } => {}
        }
    }

    fn change_inode(&mut self, inode: Inode, change: impl FnOnce(&mut Attributes)) {
        let Some(node) = self.state.inodes.get(inode) else { return };
        let mut attributes = node.attributes;
        attributes.changed = self.stamp(attributes.changed);
        change(&mut attributes);
        self.put(&Record::PutAttributes { attributes });
    }

    /// Holds the keys of checked actions; readers of the index must ask from now on.
    pub(crate) fn hold_all(&mut self, id: TransactionId, bytes: &[u8]) {
        for action in actions(bytes) {
            let Some((key, hold)) = key_of(&action) else { continue };
            match (&key, hold) {
                (Key::Entry(parent, name), _) => {
                    let key = wire::hash::entry_key(*parent, name);
                    self.io.index(IndexOp::ForgetEntry { key });
                }
                (Key::Inode(inode), Hold::Exclusive) => {
                    self.io.index(IndexOp::ForgetInode(*inode));
                }
                (Key::Frozen(directory), _) => {
                    let directory = *directory;
                    self.forget_directory(directory);
                }
                _ => {}
            }
            self.live.keys.hold(id, key, hold);
        }
    }

    fn release_all(&mut self, id: TransactionId) {
        self.live.keys.release(id);
        self.live.wake(|wait| *wait == Wait::Unlock);
    }
}

/// The key that an action needs until it is decided.
fn key_of(action: &Action<'_>) -> Option<(Key, Hold)> {
    Some(match *action {
        Action::Entry { parent, name, .. } => (Key::Entry(parent, name.to_vec()), Hold::Exclusive),
        Action::Links { inode, .. }
        | Action::RemoveDirectory { inode, .. }
        | Action::Moved { inode, .. } => (Key::Inode(inode), Hold::Exclusive),
        Action::Chain { inode, .. } => (Key::Inode(inode), Hold::Shared),
        Action::Freeze { directory, .. } => (Key::Frozen(directory), Hold::Exclusive),
    })
}

/// Group and address of those who have not acknowledged a decision.
pub(crate) fn parts_left(left: &[u8]) -> impl Iterator<Item = (u32, ShardIndex)> + '_ {
    let mut reader = Reader::new(left);
    core::iter::from_fn(move || {
        let group = u32::take(&mut reader).ok()?;
        Some((group, ShardIndex(reader.u16().ok()?)))
    })
}
