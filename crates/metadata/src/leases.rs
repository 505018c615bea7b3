//! Leases, on the side that grants them: directories of this service that daemons of other hosts
//! (*holders*) believe without asking, so that their clients walk through them in shared memory; and
//! that other services have a copy of (`directory`), so that they can make entries in them.
//!
//! A lease is of a directory whose inode and entry are both this service's. It covers where the entry
//! leads and of the attributes what a walk needs: mode, owner, group, layout, parent; neither times nor
//! counts, which come from tallies. It is granted with the answer to a `Walk`. Time is agreed on for
//! all that one holder has of this service, in a *pact*: it is extended whenever the holder asks for
//! something, and what it asked for last counts for a term from when it asked. A copy counts for a term
//! from when it was asked for, and is not extended.
//!
//! Before a directory changes (`recall`) the job stops, the holders are told to forget it, and the job
//! goes on when all have said so, or when the pacts of those who did not are over.
//!
//! Invariants
//! 1. Nothing that a lease or a copy covers changes while somebody may believe it. After a restart
//!    nobody knows who believes what, so nothing of it changes for a term.
//! 2. A pact is not extended while its holder is asked to forget something, so a change waits for a
//!    holder that is gone no longer than a term.
//! 3. Pacts and recalls are numbered in one sequence that never repeats: a holder tells from the
//!    numbers what was sent before and came late.

use std::collections::BTreeMap;

use wire::lease::{MARGIN_NANOS, TERM_NANOS};
use wire::{Attributes, DaemonIndex, Inode, ShardIndex};

use crate::directory::RESEND_NANOS;
use crate::effect::Effect;
use crate::live::{Ask, Step, Stop, Wait};
use crate::peer::{Message, Word};
use crate::service::Service;

/// What a holder may count on, as its granter counts.
const GRANTED_NANOS: i64 = TERM_NANOS + MARGIN_NANOS;
/// Most directories that are leased. Copies are given beyond it: who needs one can not go on without.
const HELD_COUNT_MAX: usize = 1 << 16;
/// After a recall a directory is not leased for so long: its change may take a few attempts, and who
/// changes it once may do so again.
const QUIET_NANOS: i64 = 20_000_000;

/// What this service agreed on with the daemon of another host.
#[derive(Clone, Copy, Debug)]
struct Pact {
    number: u64,
    until: i64,
}

/// A directory that is leased.
#[derive(Clone, Debug, Default)]
struct Held {
    /// Key of its entry; 0: no lease has been granted by it.
    key: u128,
    /// Holders, each with the number of its pact.
    holders: Vec<(u16, u64)>,
    /// Services with a copy, by the shard that they are reached by, and until when.
    copies: Vec<(ShardIndex, i64)>,
}

/// Who is asked to forget a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Believer {
    /// A holder, which believes it as long as its pact is kept.
    Holder(u16),
    /// A service, which has a copy until then.
    Service(ShardIndex, i64),
}

/// A recall, and what it leaves for a moment.
#[derive(Clone, Debug)]
struct Recall {
    number: u64,
    key: u128,
    /// Those who have not answered.
    left: Vec<Believer>,
    sent: i64,
    /// Of one that is over: nothing is leased before.
    quiet_until: i64,
}

/// All leases of a service.
#[derive(Default)]
pub(crate) struct Leases {
    pacts: BTreeMap<u16, Pact>,
    held: BTreeMap<Inode, Held>,
    /// So many directories make it worth to look for those that nobody believes any more.
    crowded: usize,
    recalls: BTreeMap<Inode, Recall>,
    /// Number of the last recall.
    recalled: u64,
    /// Until then somebody may believe what was granted before this start.
    unknown_until: Option<i64>,
}

impl Leases {
    fn is_recalling_from(&self, holder: u16) -> bool {
        self.recalls.values().any(|recall| recall.left.contains(&Believer::Holder(holder)))
    }

    /// True if what was granted under a pact may be believed.
    fn counts(pacts: &BTreeMap<u16, Pact>, holder: u16, number: u64, now: i64) -> bool {
        pacts.get(&holder).is_some_and(|pact| pact.number == number && pact.until > now)
    }

    fn purge(&mut self, now: i64) {
        let pacts = &self.pacts;
        self.held.retain(|_, held| {
            held.holders.retain(|&(holder, number)| Leases::counts(pacts, holder, number, now));
            held.copies.retain(|&(_, until)| until > now);
            !(held.holders.is_empty() && held.copies.is_empty())
        });
        self.crowded = HELD_COUNT_MAX.max(self.held.len().saturating_mul(2));
    }

    /// What is noted of a directory, or a new note.
    fn held(&mut self, directory: Inode, now: i64) -> &mut Held {
        if self.held.len() >= self.crowded.max(HELD_COUNT_MAX) {
            self.purge(now);
        }
        self.held.entry(directory).or_default()
    }

    /// True if who is asked to forget something may believe it still.
    fn believes(&self, believer: Believer, now: i64) -> bool {
        match believer {
            Believer::Holder(host) => self.pacts.get(&host).is_some_and(|pact| pact.until > now),
            Believer::Service(_, until) => until > now,
        }
    }
}

/// What is granted with one answer.
#[derive(Default)]
pub(crate) struct Grant {
    /// Places of what was considered so far.
    count: u32,
    /// As in `Reply::Walked`.
    pub(crate) leased: u16,
    pub(crate) pact: u64,
    pub(crate) recalls: u64,
}

impl Service {
    /// At a start: what an earlier one granted is unknown, if it can have granted anything. (Each pact
    /// has a number.)
    pub(crate) fn begin_leases(&mut self) {
        let is_alone = self.config.map.daemon_count() == 1;
        if !is_alone && self.state.sequence_next != 0 {
            self.live.leases.unknown_until = Some(self.live.steady.saturating_add(GRANTED_NANOS));
        }
    }

    /// Leases the next place of an answer to who asked, if it is a directory and he on another host.
    /// `key`: of the entry that led there, if any.
    pub(crate) fn lease(
        &mut self,
        ask: &Ask<'_>,
        grant: &mut Grant,
        directory: &Attributes,
        key: u128,
    ) {
        let bit = 1u16.checked_shl(grant.count).unwrap_or(0);
        grant.count += 1;
        let holder = ask.header.host;
        if !directory.is_directory() || directory.links == 0 || holder == self.config.host {
            return;
        }
        if grant.pact == 0 {
            let Some(number) = self.pact_with(holder) else { return };
            grant.pact = number;
            grant.recalls = self.live.leases.recalled.max(number);
        }
        if self.hold(directory.inode, key, (holder, grant.pact)) {
            grant.leased |= bit;
        }
    }

    /// The number of the pact with a holder that asks for something, which counts from now on.
    fn pact_with(&mut self, holder: u16) -> Option<u64> {
        let now = self.live.steady;
        let leases = &mut self.live.leases;
        let is_none = holder >= self.config.map.daemon_count();
        if is_none || leases.unknown_until.is_some() || leases.is_recalling_from(holder) {
            return None;
        }
        let until = now.saturating_add(GRANTED_NANOS);
        if let Some(pact) = leases.pacts.get_mut(&holder)
            && pact.until > now
        {
            pact.until = until;
            return Some(pact.number);
        }
        let number = self.new_number();
        self.live.leases.pacts.insert(holder, Pact { number, until });
        Some(number)
    }

    /// Of a pact or a recall; 0 is none.
    fn new_number(&mut self) -> u64 {
        self.new_sequence() + 1
    }

    fn hold(&mut self, directory: Inode, key: u128, holder: (u16, u64)) -> bool {
        let now = self.live.steady;
        let leases = &mut self.live.leases;
        if let Some(recall) = leases.recalls.get(&directory)
            && (!recall.left.is_empty() || now < recall.quiet_until)
        {
            return false;
        }
        if leases.held.len() >= HELD_COUNT_MAX && !leases.held.contains_key(&directory) {
            leases.purge(now);
            if leases.held.len() >= HELD_COUNT_MAX {
                return false;
            }
        }
        let held = leases.held(directory, now);
        if key != 0 {
            held.key = key;
        }
        if !held.holders.contains(&holder) {
            held.holders.retain(|known| known.0 != holder.0);
            held.holders.push(holder);
        }
        true
    }

    /// Notes that a service is about to have a copy of a directory. Waits while it is recalled: it is
    /// about to change.
    pub(crate) fn give_copy(&mut self, directory: Inode, to: ShardIndex) -> Step<()> {
        let now = self.live.steady;
        let leases = &mut self.live.leases;
        if leases.recalls.get(&directory).is_some_and(|recall| !recall.left.is_empty()) {
            return Err(Stop::Wait(Wait::Recall(directory)));
        }
        let held = leases.held(directory, now);
        held.copies.retain(|&(known, until)| known != to && until > now);
        held.copies.push((to, now.saturating_add(GRANTED_NANOS)));
        Ok(())
    }

    /// Before the first change of what leases and copies of `directory` cover: goes on when nobody
    /// believes it.
    pub(crate) fn recall(&mut self, directory: Inode) -> Step<()> {
        self.recall_from(directory, true)
    }

    /// Before a directory gets another place or goes. Copies do not cover the one, and for the other
    /// their services have a part in the removal.
    pub(crate) fn recall_leases(&mut self, directory: Inode) -> Step<()> {
        self.recall_from(directory, false)
    }

    fn recall_from(&mut self, directory: Inode, has_copies: bool) -> Step<()> {
        let now = self.live.steady;
        let wait = Err(Stop::Wait(Wait::Recall(directory)));
        if let Some(until) = self.live.leases.unknown_until {
            self.live.wake_at(self.live.now.saturating_add(until.saturating_sub(now).max(0)));
            return wait;
        }
        let leases = &mut self.live.leases;
        if leases.recalls.get(&directory).is_some_and(|recall| !recall.left.is_empty()) {
            return wait;
        }
        let Some(held) = leases.held.remove(&directory) else { return Ok(()) };
        let pacts = &leases.pacts;
        let holders = held.holders.iter();
        let holders = holders
            .filter(|&&(holder, number)| Leases::counts(pacts, holder, number, now))
            .map(|&(holder, _)| Believer::Holder(holder));
        let copies = held.copies.iter().filter(|&&(_, until)| has_copies && until > now);
        let copies = copies.map(|&(service, until)| Believer::Service(service, until));
        let left: Vec<Believer> = holders.chain(copies).collect();
        if !has_copies && !held.copies.is_empty() {
            let kept = Held { copies: held.copies, ..Held::default() };
            leases.held.insert(directory, kept);
        }
        if left.is_empty() {
            return Ok(());
        }
        leases.recalls.retain(|_, recall| !recall.left.is_empty() || now < recall.quiet_until);
        let number = self.new_number();
        let recall = Recall { number, key: held.key, left, sent: now, quiet_until: i64::MIN };
        self.send_recall(directory, &recall);
        self.live.leases.recalled = number;
        self.live.leases.recalls.insert(directory, recall);
        self.live.wake_at(self.live.now.saturating_add(RESEND_NANOS));
        wait
    }

    fn send_recall(&mut self, directory: Inode, recall: &Recall) {
        let (from, number, key) = (self.live.address.0, recall.number, recall.key.to_le_bytes());
        for &believer in &recall.left {
            match believer {
                Believer::Holder(holder) => {
                    let mut bytes = Vec::new();
                    Word::Recall { from, number, directory, key: &key }.encode(&mut bytes);
                    self.io.push(Effect::Holder { to: DaemonIndex(holder), bytes });
                }
                Believer::Service(service, _) => {
                    self.io.send(service, &Message::Forget { from, number, directory });
                }
            }
        }
    }

    /// Somebody has forgotten what he was asked to.
    pub(crate) fn recalled(&mut self, who: impl Fn(Believer) -> bool, number: u64) {
        let found = self.live.leases.recalls.iter_mut().find(|(_, one)| one.number == number);
        if let Some((&directory, recall)) = found {
            recall.left.retain(|&other| !who(other));
            self.end_recall(directory);
        }
    }

    /// If nobody is left of a recall, whoever waited for it goes on.
    fn end_recall(&mut self, directory: Inode) {
        let quiet_until = self.live.steady.saturating_add(QUIET_NANOS);
        if let Some(recall) = self.live.leases.recalls.get_mut(&directory)
            && recall.left.is_empty()
        {
            recall.quiet_until = recall.quiet_until.max(quiet_until);
            self.live.wake(|wait| *wait == Wait::Recall(directory));
        }
    }

    /// A holder wants to go on believing.
    pub(crate) fn renew(&mut self, holder: u16, number: u64, sent: u64) {
        let now = self.live.steady;
        let leases = &mut self.live.leases;
        if leases.is_recalling_from(holder) || !Leases::counts(&leases.pacts, holder, number, now) {
            return;
        }
        let until = now.saturating_add(GRANTED_NANOS);
        leases.pacts.insert(holder, Pact { number, until });
        let mut bytes = Vec::new();
        let from = self.live.address.0;
        Word::Renewed { from, pact: number, sent }.encode(&mut bytes);
        self.io.push(Effect::Holder { to: DaemonIndex(holder), bytes });
    }

    /// What time brings: who does not answer is asked again, and waited for no longer than it believes
    /// what it has.
    pub(crate) fn keep_leases(&mut self) {
        let now = self.live.steady;
        if let Some(until) = self.live.leases.unknown_until {
            if now < until {
                let left = until.saturating_sub(now);
                return self.live.wake_at(self.live.now.saturating_add(left));
            }
            self.live.leases.unknown_until = None;
            self.live.wake(|wait| matches!(wait, Wait::Recall(_)));
        }
        let mut recalls = core::mem::take(&mut self.live.leases.recalls);
        let mut ended = Vec::new();
        for (&directory, recall) in recalls.iter_mut().filter(|(_, recall)| !recall.left.is_empty())
        {
            recall.left.retain(|&believer| self.live.leases.believes(believer, now));
            if recall.left.is_empty() {
                ended.push(directory);
                continue;
            }
            if recall.sent.saturating_add(RESEND_NANOS) <= now {
                recall.sent = now;
                self.send_recall(directory, recall);
            }
            self.live.wake_at(self.live.now.saturating_add(RESEND_NANOS));
        }
        self.live.leases.recalls = recalls;
        ended.into_iter().for_each(|directory| self.end_recall(directory));
    }
}
