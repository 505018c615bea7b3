//! Requests for file locks: taking, testing, waiting in order of arrival, releasing.
//!
//! A later request that conflicts with a waiting one does not overtake it, for `ORDER_NANOS`: so a
//! writer is not starved by an endless stream of readers. Not longer, because an earlier waiter may
//! depend on the reader (a program that takes a lock it already has by another file, or runs one
//! that does), and on a local file system nothing would stop it. For the same reason a party that
//! already blocks the waiter overtakes it. A request that does not wait takes what is free.

use std::collections::{BTreeMap, BTreeSet};

use wire::request::lock::{BEHIND, FLOCK, READ, TEST, UNLOCK, WAIT, WRITE};
use wire::{Errno, Header, Inode, Reply, Request};

use crate::core::context::Context;
use crate::core::job::{Call, Step, Stop};
use crate::core::record::Record;
use crate::core::state::{CLIENT_ID_NONE, reply_kind};
use crate::locks::record_locks::{self, Lock};

/// How long later requests queue behind a waiting one: longer than most locks are held, and a delay
/// that a person tolerates.
const ORDER_NANOS: i64 = 1_000_000_000;

/// Most parties that a waiter is noted to wait for. Each of the readers of a file blocks each
/// writer: the number of all pairs would be unbounded. A cycle through a party that is not noted is
/// found when enough of the others have gone.
const BLOCKERS_MAX: usize = 64;
/// With fewer than this, further blockers are searched for: not for each one that goes.
const BLOCKERS_MIN: usize = BLOCKERS_MAX / 2;

/// Interval of the reports of waits.
pub(crate) const REPORT_NANOS: i64 = 100_000_000;

/// An edge of the wait-for graph.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Edge {
    pub(crate) wait: u64,
    /// When the wait began.
    pub(crate) began: u64,
    /// The waiting party.
    pub(crate) party: u64,
    /// The party that it waits for.
    pub(crate) blocker: u64,
    /// Number of this edge: another wait for the same party has another.
    pub(crate) since: u64,
}

/// Range in which locks of an inode changed.
#[derive(Clone, Copy)]
struct Changed {
    start: u64,
    end: u64,
    /// Their party; `None`: of more than one.
    party: Option<u64>,
}

impl Changed {
    fn of(lock: &Lock) -> Changed {
        Changed { start: lock.start, end: lock.end, party: Some(lock.party) }
    }

    /// The union of a range and a lock.
    fn and(before: Option<Changed>, lock: &Lock) -> Changed {
        let own = Changed::of(lock);
        before.map_or(own, |before| Changed {
            start: before.start.min(own.start),
            end: before.end.max(own.end),
            party: before.party.filter(|_| before.party == own.party),
        })
    }
}

/// True if a lock's party takes part in deadlock detection. The owner of other locks is no single
/// thread of control, so a cycle through it need not be a deadlock.
const fn is_of_process(lock: &Lock) -> bool {
    lock.flock == 0 && lock.party != 0
}

/// True if granting `lock` would overtake one of the waiting requests `ahead`, oldest first.
fn is_behind(ahead: &[Lock], held: &[Lock], lock: &Lock) -> bool {
    let has_more = |other: &Lock| {
        held.iter().any(|own| own.owner == lock.owner && own.is_in_the_way_of(other))
    };
    ahead.iter().any(|other| lock.is_in_the_way_of(other) && !has_more(other))
}

/// A `Lock` request that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) ticket: u64,
    pub(crate) header: Header,
    pub(crate) lock: Lock,
    /// Unique number of this wait in the service.
    pub(crate) number: u64,
    pub(crate) began: i64,
    /// No held lock blocks it, only an older waiter.
    pub(crate) is_behind: bool,
    /// Parties that hold conflicting locks, not all if there are many, each with the number of the
    /// edge in the wait-for graph.
    pub(crate) blockers: BTreeMap<u64, u64>,
    /// There may be more blockers than noted.
    pub(crate) has_more: bool,
}

impl Waiter {
    /// Its edges in the wait-for graph, for `locks::deadlock`.
    pub(crate) fn edges(&self) -> impl Iterator<Item = Edge> + '_ {
        let (wait, began, party) = (self.number, self.began.cast_unsigned(), self.lock.party);
        self.blockers.iter().map(move |(&blocker, &since)| Edge {
            wait,
            began,
            party,
            blocker,
            since,
        })
    }
}

/// Requests for locks that wait.
#[derive(Default)]
pub(crate) struct FileLocks {
    waiters: BTreeMap<Inode, Vec<Waiter>>,
    /// The last number given in `Waiter::blockers`.
    blocker_last: u64,
    /// When the waits were last reported (`deadlock`).
    pub(crate) reported: i64,
}

/// A lock, as shown to observers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockSeen {
    /// Its owner.
    pub owner: u64,
    /// A value of `wire::request::lock`.
    pub kind: u8,
    /// Taken by `flock`.
    pub is_flock: bool,
    /// True if its owner is a process, which takes part in deadlock detection.
    pub is_of_process: bool,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// Client id and sequence number of the request that waits for it; `None`: it is held.
    pub waits: Option<(u64, u64)>,
}

impl LockSeen {
    fn of(lock: &Lock, waits: Option<(u64, u64)>) -> LockSeen {
        let Lock { owner, kind, flock, start, end, .. } = *lock;
        let is_of_process = is_of_process(lock);
        LockSeen { owner, kind, is_flock: flock != 0, is_of_process, start, end, waits }
    }

    /// True if the two cannot be held at the same time.
    #[must_use]
    pub fn conflicts(&self, other: &LockSeen) -> bool {
        self.owner != other.owner
            && self.is_flock == other.is_flock
            && (self.kind == WRITE || other.kind == WRITE)
            && self.start <= other.end
            && other.start <= self.end
    }
}

impl FileLocks {
    /// Locks of an inode: first the held ones, then the requested ones.
    pub(crate) fn locks_of(&self, cx: &Context, inode: Inode) -> Vec<LockSeen> {
        let held = cx.state.locks.get(&inode).into_iter().flatten();
        let held = held.map(|lock| LockSeen::of(lock, None));
        let waiting = self.waiters.get(&inode).into_iter().flatten();
        let waiting = waiting.map(|waiter| {
            let Header { client_id, sequence, .. } = waiter.header;
            LockSeen::of(&waiter.lock, Some((client_id, sequence)))
        });
        held.chain(waiting).collect()
    }

    /// Updates the ticket of a waiting request that is repeated; false: it does not wait here.
    pub(crate) fn update_ticket(&mut self, ticket: u64, is_it: impl Fn(&Header) -> bool) -> bool {
        for waiter in self.waiters.values_mut().flatten() {
            if is_it(&waiter.header) {
                waiter.ticket = ticket;
                return true;
            }
        }
        false
    }

    /// Refuses the waits with this number, to break a cycle.
    pub(crate) fn refuse_number(&mut self, cx: &mut Context, number: u64) {
        let is_it = |waiter: &Waiter| waiter.number == number;
        let all = &self.waiters;
        let found = all.iter().find(|(_, waiters)| waiters.iter().any(is_it)).map(|(&i, _)| i);
        if let Some(inode) = found {
            self.refuse(cx, inode, Errno::EDEADLK, is_it);
        }
    }

    /// A wait began: the next report includes it.
    pub(crate) fn note_waiting(&mut self, cx: &mut Context) {
        cx.wake_at(self.reported.max(cx.now).saturating_add(REPORT_NANOS));
    }

    pub(crate) fn edges(&self) -> impl Iterator<Item = Edge> + '_ {
        self.waiters.values().flatten().flat_map(Waiter::edges)
    }

    pub(crate) fn lock(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        request: &Request<'_>,
    ) -> Step<()> {
        let Request::Lock { inode, owner, party, pid, kind, flags, start, end } = *request else {
            return Err(Stop::Refused(Errno::EPROTO));
        };
        cx.own_attributes(inode)?;
        if start > end || !matches!(kind, UNLOCK | READ | WRITE) {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        let (host, flock) = (call.header.host, u8::from(flags & FLOCK != 0));
        let lock = Lock { owner, party, pid, host, kind, flock, start, end };
        let mut held = cx.state.locks.get(&inode).cloned().unwrap_or_default();
        let in_the_way = if kind == UNLOCK { None } else { record_locks::conflict(&held, &lock) };
        if let Some(&in_the_way) = in_the_way {
            if flags & TEST != 0 {
                let Lock { kind, pid, start, end, .. } = in_the_way;
                cx.io.reply(call.ticket, &Reply::Held { kind, pid, start, end });
                return Ok(());
            }
            if flock != 0 && held.iter().any(|other| other.owner == owner && other.flock != 0) {
                // As `flock` does: a conversion that has to wait, or fails, releases the old lock
                // first.
                record_locks::set(&mut held, Lock { kind: UNLOCK, ..lock });
                put_locks(cx, inode, &held);
                self.grant(cx, inode, Some(Changed::of(&lock)));
            }
            if flags & WAIT == 0 {
                return Err(Stop::Refused(Errno::EAGAIN));
            }
            if is_of_process(&lock) && self.is_deadlock(cx, inode, &lock) {
                return Err(Stop::Refused(Errno::EDEADLK));
            }
        } else if flags & TEST != 0 {
            cx.io.reply(call.ticket, &Reply::Done {});
            return Ok(());
        } else if flags & BEHIND != 0 && kind != UNLOCK && self.waiters.contains_key(&inode) {
            return Err(Stop::Refused(Errno::EAGAIN));
        } else if flags & WAIT == 0 || kind == UNLOCK || !self.waiters.contains_key(&inode) {
            record_locks::set(&mut held, lock);
            put_locks(cx, inode, &held);
            self.grant(cx, inode, Some(Changed::of(&lock)));
            cx.done(call, reply_kind::DONE, 0, 0);
            return Ok(());
        }
        let waiter = Waiter {
            ticket: call.ticket,
            header: *call.header,
            lock,
            number: cx.new_sequence(),
            began: cx.now,
            is_behind: false,
            has_more: true,
            blockers: BTreeMap::new(),
        };
        self.waiters.entry(inode).or_default().push(waiter);
        self.grant(cx, inode, None);
        Ok(())
    }

    pub(crate) fn release(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        inode: Inode,
        owner: u64,
    ) -> Step<()> {
        let shard = call.header.shard;
        let inodes: Vec<Inode> = match inode {
            Inode::NONE => {
                let all = cx.state.locks.keys().chain(self.waiters.keys());
                all.copied().filter(|inode| inode.shard().0 == shard).collect()
            }
            inode => vec![inode],
        };
        for inode in inodes {
            // A process that closes a file may wait for a lock of it in another thread, by another
            // descriptor. The death of a process is reported by its daemon.
            if call.header.client_id == CLIENT_ID_NONE {
                self.refuse(cx, inode, Errno::EINTR, |waiter| waiter.lock.owner == owner);
            }
            self.retain_locks(cx, inode, |lock| lock.owner != owner);
        }
        cx.done(call, reply_kind::DONE, 0, 0);
        Ok(())
    }

    pub(crate) fn cancel_lock(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        inode: Inode,
        identity: (u64, u64),
    ) -> Step<()> {
        let (client_id, sequence) = identity;
        self.refuse(cx, inode, Errno::EINTR, |waiter| {
            (waiter.header.client_id, waiter.header.sequence) == identity
        });
        let known = cx.state.reply_cache.get(&client_id);
        if known.is_none_or(|known| known.sequence < sequence) && client_id != CLIENT_ID_NONE {
            // The request may arrive after its cancellation: then it is refused.
            let (kind, first, second) = (reply_kind::DONE, 0, 0);
            cx.put(&Record::PutReply { client_id, sequence, kind, first, second });
        }
        cx.io.reply(call.ticket, &Reply::Done {});
        Ok(())
    }

    /// Refuses the waiters that `is_it` accepts, on any inode.
    pub(crate) fn refuse_all(&mut self, cx: &mut Context, is_it: impl Fn(&Waiter) -> bool) {
        let inodes: Vec<Inode> = self.waiters.keys().copied().collect();
        for inode in inodes {
            self.refuse(cx, inode, Errno::EINTR, &is_it);
        }
    }

    /// Refuses all waiters for locks on an inode that is gone.
    pub(crate) fn refuse_waiters(&mut self, cx: &mut Context, inode: Inode) {
        self.refuse(cx, inode, Errno::ESTALE, |_| true);
    }

    pub(crate) fn refuse(
        &mut self,
        cx: &mut Context,
        inode: Inode,
        errno: Errno,
        is_it: impl Fn(&Waiter) -> bool,
    ) {
        let Some(mut waiters) = self.waiters.remove(&inode) else { return };
        let count = waiters.len();
        waiters.retain(|waiter| {
            let refused = is_it(waiter);
            if refused {
                cx.io.reply(waiter.ticket, &Reply::Refused { errno });
            }
            !refused
        });
        let was_any = waiters.len() != count;
        if !waiters.is_empty() {
            self.waiters.insert(inode, waiters);
        }
        if was_any {
            // Waiters that were only queued behind them may proceed.
            self.grant(cx, inode, None);
        }
    }

    /// Retains the locks of an inode that `keep` accepts, and grants waiters what becomes free.
    pub(crate) fn retain_locks(
        &mut self,
        cx: &mut Context,
        inode: Inode,
        keep: impl Fn(&Lock) -> bool,
    ) {
        let Some(held) = cx.state.locks.get(&inode) else { return };
        let (left, ended): (Vec<Lock>, Vec<Lock>) = held.iter().partition(|lock| keep(lock));
        let changed = ended.iter().fold(None, |before, lock| Some(Changed::and(before, lock)));
        if changed.is_some() {
            put_locks(cx, inode, &left);
            self.grant(cx, inode, changed);
        }
    }

    /// Grants waiters what is free, in order of arrival, after the held locks or the waiters
    /// changed.
    fn grant(&mut self, cx: &mut Context, inode: Inode, mut changed: Option<Changed>) {
        let Some(mut waiters) = self.waiters.remove(&inode) else { return };
        let mut held = cx.state.locks.get(&inode).cloned().unwrap_or_default();
        // A granted lock may unblock an earlier waiter, if it is weaker than its owner's previous
        // one.
        while grant_some(cx, inode, &mut waiters, &mut held, &mut changed) {}
        let party = changed.and_then(|changed| changed.party);
        let of_party: Vec<Lock> =
            held.iter().copied().filter(|lock| Some(lock.party) == party).collect();
        for waiter in &mut waiters {
            self.note_blockers(cx, waiter, &held, changed, &of_party);
        }
        if !waiters.is_empty() {
            self.waiters.insert(inode, waiters);
        }
    }

    /// Notes the blockers of a waiter, and when to check them again. `of_party`: the locks of the
    /// party whose locks changed, if it is one.
    fn note_blockers(
        &mut self,
        cx: &mut Context,
        waiter: &mut Waiter,
        held: &[Lock],
        changed: Option<Changed>,
        of_party: &[Lock],
    ) {
        if waiter.is_behind {
            cx.wake_at(waiter.began.saturating_add(ORDER_NANOS));
        }
        if !is_of_process(&waiter.lock) {
            return;
        }
        let requested = waiter.lock;
        let overlaps = |one: &Changed| one.start <= requested.end && requested.start <= one.end;
        let mut is_known = true;
        match changed.filter(overlaps).map(|changed| changed.party) {
            Some(Some(party)) if blockers(of_party, &requested).next().is_some() => {
                self.note_blocker(waiter, party);
            }
            Some(Some(party)) => {
                waiter.blockers.remove(&party);
            }
            Some(None) => {
                let left: BTreeSet<u64> = blockers(held, &requested).collect();
                waiter.blockers.retain(|party, _| left.contains(party));
                (is_known, waiter.has_more) = (false, true);
            }
            None => {}
        }
        if waiter.has_more && (!is_known || waiter.blockers.len() < BLOCKERS_MIN) {
            waiter.has_more = false;
            blockers(held, &requested).for_each(|party| self.note_blocker(waiter, party));
        }
        if !waiter.blockers.is_empty() {
            self.note_waiting(cx);
        }
    }

    fn note_blocker(&mut self, waiter: &mut Waiter, party: u64) {
        if waiter.blockers.contains_key(&party) {
            return;
        }
        if waiter.blockers.len() >= BLOCKERS_MAX {
            waiter.has_more = true;
            return;
        }
        self.blocker_last += 1;
        waiter.blockers.insert(party, self.blocker_last);
    }

    /// Timer: a request that has queued behind a waiter for `ORDER_NANOS` may overtake it.
    pub(crate) fn tick_lock_order(&mut self, cx: &mut Context) {
        let now = cx.now;
        let mut due = Vec::new();
        for (&inode, waiters) in &self.waiters {
            for waiter in waiters.iter().filter(|waiter| waiter.is_behind) {
                let passes_at = waiter.began.saturating_add(ORDER_NANOS);
                cx.timer = cx.timer.min(passes_at);
                if passes_at <= now {
                    due.push(inode);
                }
            }
        }
        due.into_iter().for_each(|inode| self.grant(cx, inode, None));
    }

    /// True if waiting for this lock would close a cycle in the wait-for graph of this service.
    fn is_deadlock(&self, cx: &Context, inode: Inode, requested: &Lock) -> bool {
        let held_in = |inode| cx.state.locks.get(&inode).map(Vec::as_slice).unwrap_or_default();
        let mut waits: BTreeMap<u64, Vec<(Inode, &Lock)>> = BTreeMap::new();
        for (&inode, waiters) in &self.waiters {
            for waiter in waiters.iter().filter(|waiter| is_of_process(&waiter.lock)) {
                waits.entry(waiter.lock.party).or_default().push((inode, &waiter.lock));
            }
        }
        let mut seen = BTreeSet::new();
        let mut next: Vec<u64> = blockers(held_in(inode), requested).collect();
        while let Some(party) = next.pop() {
            if party == requested.party {
                return true;
            }
            if !seen.insert(party) {
                continue;
            }
            for &(inode, lock) in waits.get(&party).into_iter().flatten() {
                next.extend(blockers(held_in(inode), lock).filter(|one| !seen.contains(one)));
            }
        }
        false
    }
}

/// True if a waiter was granted its lock.
fn grant_some(
    cx: &mut Context,
    inode: Inode,
    waiters: &mut Vec<Waiter>,
    held: &mut Vec<Lock>,
    changed: &mut Option<Changed>,
) -> bool {
    let (count, now) = (waiters.len(), cx.now);
    let mut ahead = Vec::new();
    waiters.retain_mut(|waiter| {
        let is_free = record_locks::conflict(held, &waiter.lock).is_none();
        let passes_at = waiter.began.saturating_add(ORDER_NANOS);
        waiter.is_behind = is_free && now < passes_at && is_behind(&ahead, held, &waiter.lock);
        if !is_free || waiter.is_behind {
            ahead.push(waiter.lock);
            return true;
        }
        record_locks::set(held, waiter.lock);
        *changed = Some(Changed::and(*changed, &waiter.lock));
        cx.complete(waiter.ticket, &waiter.header, reply_kind::DONE, 0, 0);
        false
    });
    let was_any = waiters.len() != count;
    if was_any {
        put_locks(cx, inode, held);
    }
    was_any
}

pub(crate) fn put_locks(cx: &mut Context, inode: Inode, held: &[Lock]) {
    let mut bytes = cx.io.buffer();
    record_locks::encode(held, &mut bytes);
    cx.put(&Record::PutLocks { inode, locks: &bytes });
    cx.io.recycle(bytes);
}

/// Parties whose locks conflict with a lock, except its own: then it waits for no process.
fn blockers<'a>(held: &'a [Lock], requested: &'a Lock) -> impl Iterator<Item = u64> + 'a {
    let others = record_locks::conflicts(held, requested).filter(|lock| is_of_process(lock));
    others.map(|lock| lock.party).filter(|party| *party != requested.party)
}
