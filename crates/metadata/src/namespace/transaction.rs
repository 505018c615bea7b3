//! Changes that concern several shards, applied atomically by two-phase commit.
//!
//! A transaction is a list of actions, each of one shard. If all shards are this service's, every
//! action is checked and then every action is done, in one step and one log record. Otherwise two
//! phases, with presumed abort:
//!
//! coordinator (`Transactions::transactions` -> `state.decisions` -> nothing)
//! - `transact`: own actions are checked and their keys held; `Prepare` to each other service
//! - a no vote, or a timeout: `Abort` to all, keys released, the job refused or retried
//! - all vote yes on a transaction that is to be refused (`refuse_if_so`): as a no
//! - all vote yes: the decision, the own changes and the reply are logged; the client is
//!   answered; `Commit` to all, resent until `Committed` (`Transactions::decided`)
//!
//! participant (nothing -> `state.prepared` -> `state.finished` -> nothing)
//! - `Prepare`: checked, keys held, logged, `Vote`
//! - `Commit`: applied, logged together with `finished`, `Committed`
//! - `Abort`: keys released; silence: `Inquire`, and a coordinator that knows nothing answers
//!   `Abort`
//!
//! Invariants
//! 1. Between its vote and the decision a participant lets no request read or change a held key, so
//!    the client may be answered before the participants have applied their part.
//! 2. Transaction numbers are never reused (`new_sequence`), and a committed one is remembered
//!    until its coordinator has promised (`floor`) to send nothing more about it: late and
//!    duplicate messages have no effect.
//! 3. No transaction waits for a key while it holds others: the vote on a held key is a no.

use std::collections::BTreeMap;

use wire::attributes::{mode, spread};
use wire::codec::Field;
use wire::limits::LINKS_MAX;
use wire::{Attributes, Errno, Inode, Reader, ShardIndex};

use crate::backing::locations::has_unimported_names;
use crate::core::coding::Put;
use crate::core::context::Context;
use crate::core::effect::IndexOp;
use crate::core::job::{Call, Job, Kind, RESEND_NANOS, Resend, Step, Stop, UNANSWERED, Wait};
use crate::core::keys::{Hold, Key};
use crate::core::peer_messages::{Action, Message, actions, are_actions, link};
use crate::core::record::Record;
use crate::core::state::{TransactionId, reply_kind};
use crate::files::Files;
use crate::files::open_files::drop_link;
use crate::namespace::widening::{check_step, commit_step, hide_moved};

/// A vote: a key is held by another transaction. The job is retried.
pub(crate) const HELD: Errno = Errno::EBUSY;
/// A vote: a precondition no longer holds. The job is retried.
pub(crate) const CHANGED: Errno = Errno::EAGAIN;
/// Number of a transaction that holds no keys, because it takes one step.
const AT_ONCE: u64 = u64::MAX;

/// Another service that takes part in a transaction of this one.
#[derive(Clone, Debug)]
struct Participant {
    group: u32,
    to: ShardIndex,
    actions: Vec<u8>,
    has_voted: bool,
}

/// A transaction of this service before its decision.
#[derive(Clone, Debug)]
struct Transaction {
    /// 0: not parked yet.
    job: u64,
    own_actions: Vec<u8>,
    participants: Vec<Participant>,
    /// Host and mount of the request.
    by: (u16, u8),
    resend: Resend,
    /// The client's answer if all vote yes: this errno; 0: success.
    refusal: Errno,
}

/// A committed transaction of this service.
#[derive(Clone, Debug)]
struct Decided {
    /// Group and address of the participants that have not acknowledged it.
    left: BTreeMap<u32, ShardIndex>,
    resend: Resend,
}

/// Transactions of this service, and the timers of those that it takes part in.
#[derive(Default)]
pub(crate) struct Transactions {
    /// Before their decision.
    transactions: BTreeMap<u64, Transaction>,
    /// Transactions prepared here, with the timer of the inquiry to their coordinator.
    inquired: BTreeMap<TransactionId, Resend>,
    /// Committed, and not acknowledged by all participants.
    decided: BTreeMap<u64, Decided>,
}

impl Transactions {
    /// A job waits for the votes on a transaction; false if it is over.
    pub(crate) fn note_job(&mut self, sequence: u64, job: u64) -> bool {
        let transaction = self.transactions.get_mut(&sequence);
        transaction.is_some_and(|transaction| {
            transaction.job = job;
            true
        })
    }

    /// At a start: resumes the transactions that the log shows as unfinished.
    pub(crate) fn resume(&mut self, files: &mut Files) {
        let now = files.cx.now;
        for (id, prepared) in files.cx.state.prepared.clone() {
            hold_all(files, id, &prepared.actions);
            self.inquired.insert(id, Resend::after(now, RESEND_NANOS));
        }
        for (&sequence, left) in &files.cx.state.decisions {
            let resend = Resend::after(now, 0);
            let left = participants_left(left).collect();
            self.decided.insert(sequence, Decided { left, resend });
        }
    }

    /// Applies all of `actions` and answers, or refuses.
    pub(crate) fn transact(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        actions: &[Action<'_>],
    ) -> Step<()> {
        self.transact_or_refuse(files, call, actions, Errno(0))
    }

    /// Refuses if the preconditions of all `actions` hold at one moment, else retries: for a
    /// refusal that follows from separate answers of several services. Applies none of them.
    pub(crate) fn refuse_if_so(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        actions: &[Action<'_>],
        refusal: Errno,
    ) -> Step<()> {
        self.transact_or_refuse(files, call, actions, refusal)
    }

    /// `refusal` 0: the actions are applied.
    fn transact_or_refuse(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        actions: &[Action<'_>],
        refusal: Errno,
    ) -> Step<()> {
        let own = files.cx.config.own_group();
        let id = (own.0, AT_ONCE);
        let (mut own_actions, mut participants) = (Vec::new(), BTreeMap::new());
        for action in actions {
            let shard = action.shard();
            let group = files.cx.config.group(shard);
            if group == own {
                check(files, call, action, id).map_err(|stop| as_wait(&files.cx, stop))?;
                // The request alone did not show which inodes its names at other services lead to.
                files.caches.await_action_invalidated(&mut files.cx, call, action)?;
                action.encode(&mut own_actions);
            } else {
                let new = || Participant {
                    group: group.0,
                    to: shard,
                    actions: Vec::new(),
                    has_voted: false,
                };
                action.encode(&mut participants.entry(group).or_insert_with(new).actions);
            }
        }
        if participants.is_empty() {
            if refusal.0 != 0 {
                return Err(Stop::Refused(refusal));
            }
            for action in actions {
                commit_action(files, action);
            }
            if call.ticket != UNANSWERED {
                files.cx.done(call, reply_kind::DONE, 0, 0);
            }
            return Ok(());
        }
        let sequence = files.cx.new_sequence();
        hold_all(files, (own.0, sequence), &own_actions);
        let participants = participants.into_values().collect();
        let resend = Resend::after(files.cx.now, RESEND_NANOS);
        let by = (call.header.host, call.header.mount);
        let transaction = Transaction { job: 0, own_actions, participants, by, resend, refusal };
        self.transactions.insert(sequence, transaction.clone());
        self.send_prepares(&mut files.cx, sequence, &transaction);
        files.cx.wake_at(resend.at);
        Err(Stop::Wait(Wait::Votes(sequence)))
    }

    fn send_prepares(&mut self, cx: &mut Context, sequence: u64, transaction: &Transaction) {
        let (from, group) = (cx.address.0, cx.config.own_group().0);
        let (floor, (host, mount)) = (self.floor(cx), transaction.by);
        for part in transaction.participants.iter().filter(|part| !part.has_voted) {
            let actions = &part.actions;
            let prepare = Message::Prepare { from, group, sequence, floor, host, mount, actions };
            cx.io.send(part.to, &prepare);
        }
    }

    /// Below this number, no message about a transaction of this service will be sent any more.
    fn floor(&self, cx: &Context) -> u64 {
        let undecided = self.transactions.keys().next().copied();
        let decided = cx.state.decisions.keys().next().copied();
        let oldest = undecided.into_iter().chain(decided).min();
        oldest.unwrap_or(cx.sequence_next)
    }

    /// A participant has voted.
    pub(crate) fn voted(&mut self, files: &mut Files, group: u32, sequence: u64, errno: Errno) {
        let Some(transaction) = self.transactions.get_mut(&sequence) else { return };
        let job = transaction.job;
        if errno.0 == 0 {
            let participants = transaction.participants.iter_mut();
            participants.filter(|part| part.group == group).for_each(|part| part.has_voted = true);
            if !transaction.participants.iter().all(|part| part.has_voted) {
                return;
            }
            if transaction.refusal.0 == 0 {
                return self.decide(files, sequence);
            }
        }
        let errno = if errno.0 == 0 { transaction.refusal } else { errno };
        self.abort(&mut files.cx, sequence);
        let is_request =
            files.cx.jobs.get(&job).is_some_and(|job| matches!(job.kind, Kind::Request { .. }));
        if is_request && (errno == HELD || errno == CHANGED) {
            files.cx.retry_job(job);
        } else if let Some(job) = files.cx.jobs.remove(&job)
            && let Kind::Request { ticket, .. } = job.kind
        {
            files.cx.answer_stop(ticket, Stop::Refused(errno));
        }
    }

    /// All participants voted yes.
    fn decide(&mut self, files: &mut Files, sequence: u64) {
        let Some(transaction) = self.transactions.remove(&sequence) else { return };
        let own = files.cx.config.own_group().0;
        release_all(&mut files.cx, (own, sequence));
        for action in actions(&transaction.own_actions) {
            commit_action(files, &action);
        }
        let mut left = Vec::new();
        for part in &transaction.participants {
            part.group.append_to(&mut left);
            part.to.0.append_to(&mut left);
        }
        files.cx.put(&Record::PutDecision { sequence, left: &left });
        if let Some(job) = files.cx.jobs.remove(&transaction.job)
            && let Kind::Request { ticket, header, .. } = job.kind
        {
            files.cx.complete(ticket, &header, reply_kind::DONE, 0, 0);
        }
        let resend = Resend::after(files.cx.now, RESEND_NANOS);
        let decided = Decided { left: participants_left(&left).collect(), resend };
        send_commits(&mut files.cx, sequence, &decided);
        self.decided.insert(sequence, decided);
        files.cx.wake_at(resend.at);
    }

    /// A participant voted no, or did not answer in time.
    pub(crate) fn abort(&mut self, cx: &mut Context, sequence: u64) {
        let Some(transaction) = self.transactions.remove(&sequence) else { return };
        let group = cx.config.own_group().0;
        for part in &transaction.participants {
            cx.io.send(part.to, &Message::Abort { group, sequence });
        }
        release_all(cx, (group, sequence));
    }

    /// A participant has applied the commit. Only the last acknowledgement is logged: after a
    /// restart the commit is resent to all, which does no harm.
    pub(crate) fn committed(&mut self, cx: &mut Context, group: u32, sequence: u64) {
        let Some(decided) = self.decided.get_mut(&sequence) else { return };
        decided.left.remove(&group);
        if decided.left.is_empty() {
            self.decided.remove(&sequence);
            cx.put(&Record::DeleteDecision { sequence });
        }
    }

    /// A participant asks for the decision.
    pub(crate) fn inquired(
        &mut self,
        cx: &mut Context,
        from: ShardIndex,
        group: u32,
        sequence: u64,
    ) {
        if self.transactions.contains_key(&sequence) {
            return;
        }
        let decided = self.decided.get(&sequence);
        let is_left = decided.is_some_and(|decided| decided.left.contains_key(&group));
        let own = cx.config.own_group().0;
        let answer = match is_left {
            true => Message::Commit { from: cx.address.0, group: own, sequence },
            false => Message::Abort { group: own, sequence },
        };
        cx.io.send(from, &answer);
    }

    /// Another service asks for a vote.
    pub(crate) fn prepare(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        message: &Message<'_>,
    ) -> Step<()> {
        let Message::Prepare { from, group, sequence, floor, actions: bytes, .. } = *message else {
            return Ok(());
        };
        let id = (group, sequence);
        let known = files.cx.state.floors.get(&group).copied().unwrap_or(0);
        if sequence < known || files.cx.state.finished.contains(&id) {
            return Ok(());
        }
        if floor > known {
            files.cx.put(&Record::PutFloor { group, floor });
        }
        let mut errno = Errno(0);
        if !files.cx.state.prepared.contains_key(&id) {
            match prepare_actions(files, call, id, bytes) {
                Ok(()) => {
                    hold_all(files, id, bytes);
                    files.cx.put(&Record::PutPrepared { group, sequence, from, actions: bytes });
                    let resend = Resend::after(files.cx.now, 2 * RESEND_NANOS);
                    self.inquired.insert(id, resend);
                    files.cx.wake_at(resend.at);
                }
                Err(Stop::Refused(reason)) => errno = reason,
                Err(Stop::Stale) => errno = Errno::ESTALE,
                Err(stop @ Stop::Wait(_)) => return Err(stop),
            }
        }
        let group = files.cx.config.own_group().0;
        files.cx.io.send(ShardIndex(from), &Message::Vote { group, sequence, errno });
        Ok(())
    }

    /// The coordinator has committed.
    pub(crate) fn commit(&mut self, files: &mut Files, from: ShardIndex, id: TransactionId) {
        let (group, sequence) = id;
        if let Some(prepared) = files.cx.state.prepared.get(&id) {
            let bytes = prepared.actions.clone();
            release_all(&mut files.cx, id);
            for action in actions(&bytes) {
                commit_action(files, &action);
            }
            files.cx.put(&Record::PutFinished { group, sequence });
            files.cx.put(&Record::DeletePrepared { group, sequence });
            self.inquired.remove(&id);
        }
        let group = files.cx.config.own_group().0;
        files.cx.io.send(from, &Message::Committed { group, sequence });
    }

    /// The coordinator has aborted.
    pub(crate) fn aborted(&mut self, cx: &mut Context, id: TransactionId) {
        let (group, sequence) = id;
        if cx.state.prepared.contains_key(&id) {
            release_all(cx, id);
            cx.put(&Record::DeletePrepared { group, sequence });
            self.inquired.remove(&id);
        }
        // One that still waits here, for a lease or a mount, would hold its keys for nothing.
        cx.jobs.retain(|_, job| prepared_by(job) != Some(id));
    }

    /// Resends unanswered messages.
    pub(crate) fn send_transactions_again(&mut self, cx: &mut Context) {
        let now = cx.now;
        let (from, group) = (cx.address.0, cx.config.own_group().0);
        let mut transactions = core::mem::take(&mut self.transactions);
        let mut due = Vec::new();
        for (&sequence, transaction) in &mut transactions {
            if transaction.resend.is_due(now) {
                due.push(sequence);
            }
            cx.wake_at(transaction.resend.at);
        }
        self.transactions = transactions;
        for sequence in due {
            if let Some(transaction) = self.transactions.get(&sequence).cloned() {
                self.send_prepares(cx, sequence, &transaction);
            }
        }
        let mut decided = core::mem::take(&mut self.decided);
        for (&sequence, one) in &mut decided {
            if one.resend.is_due(now) {
                send_commits(cx, sequence, one);
            }
            cx.wake_at(one.resend.at);
        }
        self.decided = decided;
        let mut inquired = core::mem::take(&mut self.inquired);
        for (id, resend) in &mut inquired {
            let Some(prepared) = cx.state.prepared.get(id) else { continue };
            if resend.is_due(now) {
                let (to, sequence) = (ShardIndex(prepared.from), id.1);
                cx.io.send(to, &Message::Inquire { from, group, sequence });
            }
            cx.wake_at(resend.at);
        }
        self.inquired = inquired;
    }
}

/// The transaction for which a job is to vote.
fn prepared_by(job: &Job) -> Option<TransactionId> {
    let Kind::Message { bytes } = &job.kind else { return None };
    match Message::decode(&mut Reader::new(bytes)) {
        Ok(Message::Prepare { group, sequence, .. }) => Some((group, sequence)),
        _ => None,
    }
}

fn release_all(cx: &mut Context, id: TransactionId) {
    cx.keys.release(id);
    cx.wake(|wait| *wait == Wait::Unlock);
}

/// Holds the keys of checked actions; from now on the index does not answer for them.
fn hold_all(files: &mut Files, id: TransactionId, bytes: &[u8]) {
    for action in actions(bytes) {
        let Some((key, hold)) = key_of(&action) else { continue };
        match (&key, hold) {
            (Key::Entry(parent, name), _) => {
                let key = wire::hash::entry_key(*parent, name);
                files.cx.io.index(IndexOp::ForgetEntry { key });
            }
            (Key::Inode(inode), Hold::Exclusive) => {
                files.cx.io.index(IndexOp::ForgetInode(*inode));
            }
            (Key::Frozen(directory), _) => {
                let directory = *directory;
                files.directories.forget_directory(&mut files.cx, directory);
            }
            _ => {}
        }
        hide_moved(files, &action);
        files.cx.keys.hold(id, key, hold);
    }
}

/// Applies a checked action.
fn commit_action(files: &mut Files, action: &Action<'_>) {
    match *action {
        Action::Entry { expect, set, .. } if expect == set => {}
        Action::Entry { parent, spread, name, expect, expect_mode, set, set_mode, .. } => {
            match set.is_none() {
                true => files.cx.put(&Record::DeleteEntry { parent, name }),
                false => {
                    let (inode, mode) = (set, set_mode & mode::TYPE);
                    files.cx.put(&Record::PutEntry { parent, name, inode, mode });
                }
            }
            let entries = i64::from(!set.is_none()) - i64::from(!expect.is_none());
            let is_directory = |mode: u32| i64::from(mode & mode::TYPE == mode::DIRECTORY);
            let directories = is_directory(set_mode) - is_directory(expect_mode);
            files.directories.change_tally(&mut files.cx, parent, spread, entries, directories);
        }
        Action::Links { inode, change: link::ADDED } => {
            change_inode(&mut files.cx, inode, |new| new.links += 1);
        }
        Action::Links { inode, change } => {
            if change == link::REPLACED {
                files.caches.renew_grace(&mut files.cx, inode);
            }
            drop_link(&mut files.cx, inode);
        }
        Action::RemoveDirectory { inode, .. } => files.cx.unlinked.push(inode),
        Action::Freeze { directory, .. } => {
            if files.cx.state.tallies.contains_key(&directory) {
                files.cx.put(&Record::DeleteTally { directory });
            }
            files.cx.io.index(IndexOp::UnmarkComplete { directory });
            files.directories.forget_directory(&mut files.cx, directory);
        }
        Action::Moved { inode, parent } => change_inode(&mut files.cx, inode, |new| {
            if !parent.is_none() {
                new.parent = parent;
            }
        }),
        Action::Give { .. } | Action::Take { .. } | Action::Widen { .. } => {
            commit_step(files, action);
        }
        Action::Chain { .. } | Action::Carry { .. } => {}
    }
}

fn prepare_actions(
    files: &mut Files,
    call: &Call<'_>,
    id: TransactionId,
    bytes: &[u8],
) -> Step<()> {
    if !are_actions(bytes) {
        return Err(Stop::Refused(Errno::EPROTO));
    }
    for action in actions(bytes) {
        if !files.cx.config.owns(action.shard()) {
            return Err(Stop::Stale);
        }
        check(files, call, &action, id)?;
        files.caches.await_action_invalidated(&mut files.cx, call, &action)?;
    }
    Ok(())
}

/// Checks that this action can be applied, now and until the decision. Changes nothing.
fn check(files: &mut Files, call: &Call<'_>, action: &Action<'_>, id: TransactionId) -> Step<()> {
    if let Some((key, hold)) = key_of(action)
        && !files.cx.keys.may(id, &key, hold)
    {
        return Err(Stop::Refused(HELD));
    }
    match *action {
        Action::Entry { parent, name, expect, expect_mode, set, .. } => {
            if !files.cx.keys.may(id, &Key::Entries(parent), Hold::Shared) {
                return Err(Stop::Refused(HELD));
            }
            if files.cx.is_elsewhere(parent, name) {
                return Err(Stop::Refused(CHANGED));
            }
            let found = files.cx.state.entries.get(parent, name).map_or(Inode::NONE, |e| e.0);
            if found != expect {
                return Err(Stop::Refused(CHANGED));
            }
            if !set.is_none() {
                if !files.cx.keys.may(id, &Key::Frozen(parent), Hold::Shared) {
                    return Err(Stop::Refused(HELD));
                }
                files.directories.directory(&mut files.cx, call, parent)?;
            }
            if expect_mode & mode::TYPE == mode::DIRECTORY && !expect.is_none() {
                files.leases.revoke_leases(&mut files.cx, expect)?;
            }
            Ok(())
        }
        Action::Links { inode, change } => check_links(&files.cx, inode, change == link::ADDED),
        Action::RemoveDirectory { inode, services } => {
            let attributes = expected(&files.cx, inode)?;
            if !attributes.is_directory() || inode == Inode::ROOT {
                return Err(Stop::Refused(Errno::EPERM));
            }
            // A service that was added since is not asked to freeze it.
            let is_wide = spread::wide_below(attributes.layout.spread) != 0;
            if is_wide && files.cx.state.entry_service_count(inode) != services {
                return Err(Stop::Refused(CHANGED));
            }
            files.leases.revoke_leases(&mut files.cx, inode)
        }
        Action::Freeze { directory, .. } => {
            let is_held = files.cx.keys.has_entry_of(directory, id)
                || !files.cx.keys.may(id, &Key::Entries(directory), Hold::Shared);
            if is_held {
                return Err(Stop::Refused(HELD));
            }
            if files.cx.state.entries.has_any(directory) {
                return Err(Stop::Refused(Errno::ENOTEMPTY));
            }
            if has_unimported_names(&files.cx, directory) {
                return Err(Stop::Refused(CHANGED));
            }
            Ok(())
        }
        Action::Moved { inode, parent } => {
            let moved = expected(&files.cx, inode)?;
            let is_elsewhere = moved.is_directory() && !parent.is_none();
            if is_elsewhere { files.leases.revoke_leases(&mut files.cx, inode) } else { Ok(()) }
        }
        Action::Chain { inode, parent } => match expected(&files.cx, inode)?.parent == parent {
            true => Ok(()),
            false => Err(Stop::Refused(CHANGED)),
        },
        Action::Give { .. } | Action::Take { .. } | Action::Widen { .. } | Action::Carry { .. } => {
            check_step(files, action, id)
        }
    }
}

fn send_commits(cx: &mut Context, sequence: u64, decided: &Decided) {
    let (from, group) = (cx.address.0, cx.config.own_group().0);
    for &to in decided.left.values() {
        cx.io.send(to, &Message::Commit { from, group, sequence });
    }
}

/// Converts the result of checking an own action into a stop of the job.
fn as_wait(cx: &Context, stop: Stop) -> Stop {
    match stop {
        Stop::Refused(HELD) => Stop::Wait(Wait::Unlock),
        Stop::Refused(CHANGED) => Stop::Wait(Wait::Time(cx.now)),
        stop => stop,
    }
}

fn check_links(cx: &Context, inode: Inode, is_up: bool) -> Step<()> {
    let Some(node) = cx.state.inodes.get(inode) else {
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
fn expected(cx: &Context, inode: Inode) -> Step<Attributes> {
    match cx.state.inodes.get(inode) {
        Some(node) if node.attributes.links != 0 => Ok(node.attributes),
        _ => Err(Stop::Refused(CHANGED)),
    }
}

fn change_inode(cx: &mut Context, inode: Inode, change: impl FnOnce(&mut Attributes)) {
    let Some(node) = cx.state.inodes.get(inode) else { return };
    let mut attributes = node.attributes;
    attributes.changed = cx.stamp(attributes.changed);
    change(&mut attributes);
    cx.put(&Record::PutAttributes { attributes });
}

/// The key that an action holds until the decision.
fn key_of(action: &Action<'_>) -> Option<(Key, Hold)> {
    Some(match *action {
        Action::Carry { .. } => return None,
        Action::Entry { parent, name, .. } => (Key::Entry(parent, name.to_vec()), Hold::Exclusive),
        Action::Links { inode, .. }
        | Action::RemoveDirectory { inode, .. }
        | Action::Widen { inode, .. }
        | Action::Moved { inode, .. } => (Key::Inode(inode), Hold::Exclusive),
        Action::Chain { inode, .. } => (Key::Inode(inode), Hold::Shared),
        Action::Freeze { directory, .. } => (Key::Frozen(directory), Hold::Exclusive),
        Action::Give { directory, .. } | Action::Take { directory, .. } => {
            (Key::Entries(directory), Hold::Exclusive)
        }
    })
}

/// Group and address of the participants that have not acknowledged a decision.
fn participants_left(left: &[u8]) -> impl Iterator<Item = (u32, ShardIndex)> + '_ {
    let mut reader = Reader::new(left);
    core::iter::from_fn(move || {
        let group = u32::take(&mut reader).ok()?;
        Some((group, ShardIndex(reader.u16().ok()?)))
    })
}
