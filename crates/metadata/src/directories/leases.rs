//! Leases, on the side that grants them: directories of this service that daemons of other hosts
//! (*holders*) may use without asking, so that their clients walk through them in shared memory;
//! and copies at other services (`remote_copies`), which create entries in these directories.
//!
//! A lease is of a directory whose inode and entry are both this service's. It covers where the
//! entry leads and the attributes that a walk needs: mode, owner, group, layout, parent; neither
//! times nor counts, which come from tallies. It is granted with the answer to a `Walk`. All leases
//! of one holder share a lease *term*: each request of the holder extends it, to the duration of a
//! term from the time of the request. A copy is valid for the duration of a term from its request,
//! and is not extended.
//!
//! Before a directory changes (`revoke`) the job stops, the leases are revoked, and the job
//! continues when all holders have acknowledged, or when the terms of the others have expired.
//!
//! Invariants
//! 1. Nothing that a lease or a copy covers changes while a grantee may trust it. After a restart
//!    the grantees are unknown, so nothing of it changes for the duration of a term.
//! 2. A term is not extended while a revocation to its holder is pending, so a change waits for a
//!    holder that is gone no longer than a term.
//! 3. Terms and revocations are numbered in one sequence that never repeats: a holder recognises
//!    late messages by their numbers.

use std::collections::BTreeMap;

use wire::lease::{MARGIN_NANOS, TERM_NANOS};
use wire::{Attributes, DaemonIndex, Inode, ShardIndex};

use crate::core::context::Context;
use crate::core::effect::Effect;
use crate::core::job::{Call, RESEND_NANOS, Step, Stop, Wait};
use crate::core::peer_messages::{HolderMessage, Message};

/// Validity of a lease as the granter counts.
const GRANTED_NANOS: i64 = TERM_NANOS + MARGIN_NANOS;
/// Most leased directories. Copies are given beyond it, because a service cannot proceed without
/// one.
const HELD_COUNT_MAX: usize = 1 << 16;
/// After a revocation the directory is not leased for this time: its change may take a few
/// attempts, and a client that changes it once may do so again.
const QUIET_NANOS: i64 = 20_000_000;

/// The lease term of the daemon of another host.
#[derive(Clone, Copy, Debug)]
struct GrantedTerm {
    number: u64,
    until: i64,
}

/// A directory that is leased.
#[derive(Clone, Debug, Default)]
struct LeasedDirectory {
    /// Key of its entry; 0: no lease by that entry.
    key: u128,
    /// Holders, each with the number of its term.
    holders: Vec<(u16, u64)>,
    /// Services with a copy, each by a shard of it, and the expiry of the copy.
    copies: Vec<(ShardIndex, i64)>,
}

/// Receiver of a revocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Grantee {
    /// A holder, which trusts its leases until its term ends.
    Holder(u16),
    /// A service, which has a copy until then.
    Service(ShardIndex, i64),
}

/// A revocation; a finished one stays for a moment.
#[derive(Clone, Debug)]
struct Revocation {
    number: u64,
    key: u128,
    /// Grantees that have not acknowledged.
    left: Vec<Grantee>,
    sent: i64,
    /// Of a finished one: the directory is not leased before.
    quiet_until: i64,
}

/// All leases of a service.
#[derive(Default)]
pub(crate) struct Leases {
    terms: BTreeMap<u16, GrantedTerm>,
    held: BTreeMap<Inode, LeasedDirectory>,
    /// Number of directories from which on expired ones are purged.
    crowded: usize,
    revocations: BTreeMap<Inode, Revocation>,
    /// Number of the last revocation.
    revocation_last: u64,
    /// Until then a grantee may trust a lease from before this start.
    unknown_until: Option<i64>,
}

impl Leases {
    fn is_revoking_from(&self, holder: u16) -> bool {
        self.revocations
            .values()
            .any(|revocation| revocation.left.contains(&Grantee::Holder(holder)))
    }

    /// True if leases granted in this term are valid.
    fn counts(terms: &BTreeMap<u16, GrantedTerm>, holder: u16, number: u64, now: i64) -> bool {
        terms.get(&holder).is_some_and(|term| term.number == number && term.until > now)
    }

    fn purge(&mut self, now: i64) {
        let terms = &self.terms;
        self.held.retain(|_, held| {
            held.holders.retain(|&(holder, number)| Leases::counts(terms, holder, number, now));
            held.copies.retain(|&(_, until)| until > now);
            !(held.holders.is_empty() && held.copies.is_empty())
        });
        self.crowded = HELD_COUNT_MAX.max(self.held.len().saturating_mul(2));
    }

    /// The entry of a directory, created if needed.
    fn held(&mut self, directory: Inode, now: i64) -> &mut LeasedDirectory {
        if self.held.len() >= self.crowded.max(HELD_COUNT_MAX) {
            self.purge(now);
        }
        self.held.entry(directory).or_default()
    }

    /// True if the receiver of a revocation may still trust its lease or copy.
    fn may_trust(&self, grantee: Grantee, now: i64) -> bool {
        match grantee {
            Grantee::Holder(host) => self.terms.get(&host).is_some_and(|term| term.until > now),
            Grantee::Service(_, until) => until > now,
        }
    }

    /// At a start: earlier grants are unknown, if there can have been any (each term takes a
    /// number).
    pub(crate) fn begin_leases(&mut self, cx: &mut Context) {
        let is_single_daemon = cx.config.map.daemon_count() == 1;
        if !is_single_daemon && cx.state.sequence_next != 0 {
            self.unknown_until = Some(cx.steady.saturating_add(GRANTED_NANOS));
        }
    }

    /// Leases the next directory of an answer to the requester, if it is a directory and the
    /// requester is on another host. `key`: of the entry that led there, if any.
    pub(crate) fn lease(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        grant: &mut LeaseGrant,
        directory: &Attributes,
        key: u128,
    ) {
        let bit = 1u16.checked_shl(grant.count).unwrap_or(0);
        grant.count += 1;
        let holder = call.header.host;
        if !directory.is_directory() || directory.links == 0 || holder == cx.config.host {
            return;
        }
        if grant.term == 0 {
            let Some(number) = self.term_with(cx, holder) else { return };
            grant.term = number;
            grant.revocation = self.revocation_last.max(number);
        }
        if self.hold(cx, directory.inode, key, (holder, grant.term)) {
            grant.leased |= bit;
        }
    }

    /// The number of the holder's term, extended from now on.
    fn term_with(&mut self, cx: &mut Context, holder: u16) -> Option<u64> {
        let now = cx.steady;
        let is_none = holder >= cx.config.map.daemon_count();
        if is_none || self.unknown_until.is_some() || self.is_revoking_from(holder) {
            return None;
        }
        let until = now.saturating_add(GRANTED_NANOS);
        if let Some(term) = self.terms.get_mut(&holder)
            && term.until > now
        {
            term.until = until;
            return Some(term.number);
        }
        let number = new_number(cx);
        self.terms.insert(holder, GrantedTerm { number, until });
        Some(number)
    }

    fn hold(&mut self, cx: &mut Context, directory: Inode, key: u128, holder: (u16, u64)) -> bool {
        let now = cx.steady;
        if let Some(revocation) = self.revocations.get(&directory)
            && (!revocation.left.is_empty() || now < revocation.quiet_until)
        {
            return false;
        }
        if self.held.len() >= HELD_COUNT_MAX && !self.held.contains_key(&directory) {
            self.purge(now);
            if self.held.len() >= HELD_COUNT_MAX {
                return false;
            }
        }
        let held = self.held(directory, now);
        if key != 0 {
            held.key = key;
        }
        if !held.holders.contains(&holder) {
            held.holders.retain(|known| known.0 != holder.0);
            held.holders.push(holder);
        }
        true
    }

    /// Records that a service gets a copy of a directory. Waits during a revocation, because the
    /// directory is about to change.
    pub(crate) fn grant_copy(
        &mut self,
        cx: &mut Context,
        directory: Inode,
        to: ShardIndex,
    ) -> Step<()> {
        let now = cx.steady;
        if self.revocations.get(&directory).is_some_and(|revocation| !revocation.left.is_empty()) {
            return Err(Stop::Wait(Wait::Revoke(directory)));
        }
        let held = self.held(directory, now);
        held.copies.retain(|&(known, until)| known != to && until > now);
        held.copies.push((to, now.saturating_add(GRANTED_NANOS)));
        Ok(())
    }

    /// Before the first change of the attributes that leases and copies of `directory` cover:
    /// proceeds when no grantee trusts it any more.
    pub(crate) fn revoke(&mut self, cx: &mut Context, directory: Inode) -> Step<()> {
        self.revoke_from(cx, directory, true)
    }

    /// Before a directory is moved or removed. Copies do not cover its location, and for a removal
    /// their services take part in the transaction.
    pub(crate) fn revoke_leases(&mut self, cx: &mut Context, directory: Inode) -> Step<()> {
        self.revoke_from(cx, directory, false)
    }

    fn revoke_from(&mut self, cx: &mut Context, directory: Inode, has_copies: bool) -> Step<()> {
        let now = cx.steady;
        let wait = Err(Stop::Wait(Wait::Revoke(directory)));
        if let Some(until) = self.unknown_until {
            cx.wake_at(cx.now.saturating_add(until.saturating_sub(now).max(0)));
            return wait;
        }
        if self.revocations.get(&directory).is_some_and(|revocation| !revocation.left.is_empty()) {
            return wait;
        }
        let Some(held) = self.held.remove(&directory) else { return Ok(()) };
        let terms = &self.terms;
        let holders = held.holders.iter();
        let holders = holders
            .filter(|&&(holder, number)| Leases::counts(terms, holder, number, now))
            .map(|&(holder, _)| Grantee::Holder(holder));
        let copies = held.copies.iter().filter(|&&(_, until)| has_copies && until > now);
        let copies = copies.map(|&(service, until)| Grantee::Service(service, until));
        let left: Vec<Grantee> = holders.chain(copies).collect();
        if !has_copies && !held.copies.is_empty() {
            let copied = LeasedDirectory { copies: held.copies, ..LeasedDirectory::default() };
            self.held.insert(directory, copied);
        }
        if left.is_empty() {
            return Ok(());
        }
        self.revocations
            .retain(|_, revocation| !revocation.left.is_empty() || now < revocation.quiet_until);
        let number = new_number(cx);
        let revocation =
            Revocation { number, key: held.key, left, sent: now, quiet_until: i64::MIN };
        send_revocation(cx, directory, &revocation);
        self.revocation_last = number;
        self.revocations.insert(directory, revocation);
        cx.wake_at(cx.now.saturating_add(RESEND_NANOS));
        wait
    }

    /// A grantee has acknowledged a revocation.
    pub(crate) fn acknowledged_revocation(
        &mut self,
        cx: &mut Context,
        is_it: impl Fn(Grantee) -> bool,
        number: u64,
    ) {
        let found = self.revocations.iter_mut().find(|(_, one)| one.number == number);
        if let Some((&directory, revocation)) = found {
            revocation.left.retain(|&other| !is_it(other));
            self.end_revocation(cx, directory);
        }
    }

    /// If all grantees have acknowledged, the waiting jobs proceed.
    fn end_revocation(&mut self, cx: &mut Context, directory: Inode) {
        let quiet_until = cx.steady.saturating_add(QUIET_NANOS);
        if let Some(revocation) = self.revocations.get_mut(&directory)
            && revocation.left.is_empty()
        {
            revocation.quiet_until = revocation.quiet_until.max(quiet_until);
            cx.wake(|wait| *wait == Wait::Revoke(directory));
        }
    }

    /// A holder renews its term.
    pub(crate) fn renew(&mut self, cx: &mut Context, holder: u16, number: u64, sent: u64) {
        let now = cx.steady;
        if self.is_revoking_from(holder) || !Leases::counts(&self.terms, holder, number, now) {
            return;
        }
        let until = now.saturating_add(GRANTED_NANOS);
        self.terms.insert(holder, GrantedTerm { number, until });
        let mut bytes = Vec::new();
        let from = cx.address.0;
        HolderMessage::Renewed { from, term: number, sent }.encode(&mut bytes);
        cx.io.push(Effect::Holder { to: DaemonIndex(holder), bytes });
    }

    /// Timer: resends revocations to grantees that do not answer, and waits for them no longer than
    /// their term.
    pub(crate) fn tick_leases(&mut self, cx: &mut Context) {
        let now = cx.steady;
        if let Some(until) = self.unknown_until {
            if now < until {
                let left = until.saturating_sub(now);
                return cx.wake_at(cx.now.saturating_add(left));
            }
            self.unknown_until = None;
            cx.wake(|wait| matches!(wait, Wait::Revoke(_)));
        }
        let mut revocation = core::mem::take(&mut self.revocations);
        let mut ended = Vec::new();
        for (&directory, revocation) in
            revocation.iter_mut().filter(|(_, revocation)| !revocation.left.is_empty())
        {
            revocation.left.retain(|&grantee| self.may_trust(grantee, now));
            if revocation.left.is_empty() {
                ended.push(directory);
                continue;
            }
            if revocation.sent.saturating_add(RESEND_NANOS) <= now {
                revocation.sent = now;
                send_revocation(cx, directory, revocation);
            }
            cx.wake_at(cx.now.saturating_add(RESEND_NANOS));
        }
        self.revocations = revocation;
        ended.into_iter().for_each(|directory| self.end_revocation(cx, directory));
    }
}

/// Leases granted with one answer.
#[derive(Default)]
pub(crate) struct LeaseGrant {
    /// Number of directories considered so far.
    count: u32,
    /// As in `Reply::Walked`.
    pub(crate) leased: u16,
    pub(crate) term: u64,
    pub(crate) revocation: u64,
}

fn send_revocation(cx: &mut Context, directory: Inode, revocation: &Revocation) {
    let (from, number, key) = (cx.address.0, revocation.number, revocation.key.to_le_bytes());
    for &grantee in &revocation.left {
        match grantee {
            Grantee::Holder(holder) => {
                let mut bytes = Vec::new();
                HolderMessage::Revoke { from, number, directory, key: &key }.encode(&mut bytes);
                cx.io.push(Effect::Holder { to: DaemonIndex(holder), bytes });
            }
            Grantee::Service(service, _) => {
                cx.io.send(service, &Message::Forget { from, number, directory });
            }
        }
    }
}

/// A number for a term or a revocation; 0 is none.
fn new_number(cx: &mut Context) -> u64 {
    cx.new_sequence() + 1
}
