//! Requests for file locks: taking, testing, waiting in order of arrival, giving back.
//!
//! Who waits is passed by nobody who came later and would stand in his way, for `ORDER_NANOS`: so one who
//! wants to write meets no endless stream of readers. Not longer, because a reader may be what an
//! earlier one waits for (a program that takes a lock it has by another file, or runs one that does), and
//! on
//! a local file system nothing would be in its way. For the same reason who has something in the
//! way of the one who waits goes before him. Who does not wait takes what is free.

use std::collections::{BTreeMap, BTreeSet};

use wire::request::lock::{BEHIND, FLOCK, READ, TEST, UNLOCK, WAIT, WRITE};
use wire::{Errno, Header, Inode, Reply, Request};

use crate::live::{Ask, Step, Stop, Waiter};
use crate::locks::{self, Lock};
use crate::record::Record;
use crate::service::{ORIGIN_NONE, Service, outcome};

/// How long those who come later wait behind one who waits: longer than most locks are held, and a delay
/// that
/// a person waits out.
const ORDER_NANOS: i64 = 1_000_000_000;

/// For how many parties one who waits is noted to wait. Of the processes that read a file each is in the
/// way of each that wants to write: all of them together would be a number beyond bounds. A circle by one
/// that is not noted is found when enough of the others have gone.
const BLOCKERS_MAX: usize = 64;
/// When there are fewer than that, others are looked for: not for each that goes.
const BLOCKERS_MIN: usize = BLOCKERS_MAX / 2;

/// Where locks of an inode changed.
#[derive(Clone, Copy)]
struct Changed {
    start: u64,
    end: u64,
    /// Whose they are; `None`: of more than one.
    party: Option<u64>,
}

impl Changed {
    fn of(lock: &Lock) -> Changed {
        Changed { start: lock.start, end: lock.end, party: Some(lock.party) }
    }

    /// This and another.
    fn and(before: Option<Changed>, lock: &Lock) -> Changed {
        let own = Changed::of(lock);
        before.map_or(own, |before| Changed {
            start: before.start.min(own.start),
            end: before.end.max(own.end),
            party: before.party.filter(|_| before.party == own.party),
        })
    }
}

/// Whether a lock's party is looked for in circles. The owner of other locks is no single thread of
/// control, so a circle through it need not be one of those who wait for ever.
const fn is_of_process(lock: &Lock) -> bool {
    lock.flock == 0 && lock.party != 0
}

/// Those who wait, first come first: is one of them passed by if `lock` is granted?
fn is_behind(ahead: &[Lock], held: &[Lock], lock: &Lock) -> bool {
    let has_more = |other: &Lock| {
        held.iter().any(|own| own.owner == lock.owner && own.is_in_the_way_of(other))
    };
    ahead.iter().any(|other| lock.is_in_the_way_of(other) && !has_more(other))
}

/// A lock as others may see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockSeen {
    /// Whose it is.
    pub owner: u64,
    /// A value of `wire::request::lock`.
    pub kind: u8,
    /// Taken by `flock`.
    pub is_flock: bool,
    /// A process's: looked for in circles of those who wait for each other.
    pub is_of_process: bool,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// Origin and number of the request that waits for it; `None`: it is held.
    pub waits: Option<(u64, u64)>,
}

impl LockSeen {
    fn of(lock: &Lock, waits: Option<(u64, u64)>) -> LockSeen {
        let Lock { owner, kind, flock, start, end, .. } = *lock;
        let is_of_process = is_of_process(lock);
        LockSeen { owner, kind, is_flock: flock != 0, is_of_process, start, end, waits }
    }

    /// Can the two not be held at the same time?
    #[must_use]
    pub fn conflicts(&self, other: &LockSeen) -> bool {
        self.owner != other.owner
            && self.is_flock == other.is_flock
            && (self.kind == WRITE || other.kind == WRITE)
            && self.start <= other.end
            && other.start <= self.end
    }
}

impl Service {
    pub(crate) fn lock(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        let Request::Lock { inode, owner, party, pid, kind, flags, start, end } = *request else {
            return Err(Stop::Refused(Errno::EPROTO));
        };
        self.own_attributes(inode)?;
        if start > end || !matches!(kind, UNLOCK | READ | WRITE) {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        let (host, flock) = (ask.header.host, u8::from(flags & FLOCK != 0));
        let lock = Lock { owner, party, pid, host, kind, flock, start, end };
        let mut held = self.state.locks.get(&inode).cloned().unwrap_or_default();
        let in_the_way = if kind == UNLOCK { None } else { locks::conflict(&held, &lock) };
        if let Some(&in_the_way) = in_the_way {
            if flags & TEST != 0 {
                let Lock { kind, pid, start, end, .. } = in_the_way;
                self.io.reply(ask.ticket, &Reply::Held { kind, pid, start, end });
                return Ok(());
            }
            if flock != 0 && held.iter().any(|other| other.owner == owner && other.flock != 0) {
                // As `flock` does: a conversion that has to wait, or fails, gives the old lock back
                // first.
                locks::set(&mut held, Lock { kind: UNLOCK, ..lock });
                self.put_locks(inode, &held);
                self.grant(inode, Some(Changed::of(&lock)));
            }
            if flags & WAIT == 0 {
                return Err(Stop::Refused(Errno::EAGAIN));
            }
            if is_of_process(&lock) && self.is_deadlock(inode, &lock) {
                return Err(Stop::Refused(Errno::EDEADLK));
            }
        } else if flags & TEST != 0 {
            self.io.reply(ask.ticket, &Reply::Done {});
            return Ok(());
        } else if flags & BEHIND != 0 && kind != UNLOCK && self.live.waiters.contains_key(&inode) {
            return Err(Stop::Refused(Errno::EAGAIN));
        } else if flags & WAIT == 0 || kind == UNLOCK || !self.live.waiters.contains_key(&inode) {
            locks::set(&mut held, lock);
            self.put_locks(inode, &held);
            self.grant(inode, Some(Changed::of(&lock)));
            self.done(ask, outcome::DONE, 0, 0);
            return Ok(());
        }
        let waiter = Waiter {
            ticket: ask.ticket,
            header: *ask.header,
            lock,
            number: self.new_sequence(),
            began: self.live.now,
            is_behind: false,
            has_more: true,
            blockers: BTreeMap::new(),
        };
        self.live.waiters.entry(inode).or_default().push(waiter);
        self.grant(inode, None);
        Ok(())
    }

    pub(crate) fn release(&mut self, ask: &Ask<'_>, inode: Inode, owner: u64) -> Step<()> {
        let shard = ask.header.shard;
        let inodes: Vec<Inode> = match inode {
            Inode::NONE => {
                let all = self.state.locks.keys().chain(self.live.waiters.keys());
                all.copied().filter(|inode| inode.shard().0 == shard).collect()
            }
            inode => vec![inode],
        };
        for inode in inodes {
            // A process that closes a file may wait for a lock of it in another thread, by another
            // descriptor. Of one that is dead its daemon says so.
            if ask.header.origin == ORIGIN_NONE {
                self.refuse(inode, Errno::EINTR, |waiter| waiter.lock.owner == owner);
            }
            self.keep_locks(inode, |lock| lock.owner != owner);
        }
        self.done(ask, outcome::DONE, 0, 0);
        Ok(())
    }

    pub(crate) fn cancel_lock(
        &mut self,
        ask: &Ask<'_>,
        inode: Inode,
        identity: (u64, u64),
    ) -> Step<()> {
        let (origin, sequence) = identity;
        self.refuse(inode, Errno::EINTR, |waiter| {
            (waiter.header.origin, waiter.header.sequence) == identity
        });
        let known = self.state.outcomes.get(&origin);
        if known.is_none_or(|known| known.sequence < sequence) && origin != ORIGIN_NONE {
            // It may come later than this: then nobody wants it any more.
            let (kind, first, second) = (outcome::DONE, 0, 0);
            self.put(&Record::PutOutcome { origin, sequence, kind, first, second });
        }
        self.io.reply(ask.ticket, &Reply::Done {});
        Ok(())
    }

    /// Locks of an inode: those that are held, then those that are waited for.
    #[must_use]
    pub fn locks_of(&self, inode: Inode) -> Vec<LockSeen> {
        let held = self.state.locks.get(&inode).into_iter().flatten();
        let held = held.map(|lock| LockSeen::of(lock, None));
        let waiting = self.live.waiters.get(&inode).into_iter().flatten();
        let waiting = waiting.map(|waiter| {
            let Header { origin, sequence, .. } = waiter.header;
            LockSeen::of(&waiter.lock, Some((origin, sequence)))
        });
        held.chain(waiting).collect()
    }

    /// Refuses those who wait, wherever they do, and are meant.
    pub(crate) fn refuse_all(&mut self, is_it: impl Fn(&Waiter) -> bool) {
        let inodes: Vec<Inode> = self.live.waiters.keys().copied().collect();
        for inode in inodes {
            self.refuse(inode, Errno::EINTR, &is_it);
        }
    }

    /// Refuses all who wait for a lock on an inode that is gone.
    pub(crate) fn refuse_waiters(&mut self, inode: Inode) {
        self.refuse(inode, Errno::ESTALE, |_| true);
    }

    pub(crate) fn refuse(&mut self, inode: Inode, errno: Errno, is_it: impl Fn(&Waiter) -> bool) {
        let Some(mut waiters) = self.live.waiters.remove(&inode) else { return };
        let count = waiters.len();
        waiters.retain(|waiter| {
            let refused = is_it(waiter);
            if refused {
                self.io.reply(waiter.ticket, &Reply::Refused { errno });
            }
            !refused
        });
        let was_any = waiters.len() != count;
        if !waiters.is_empty() {
            self.live.waiters.insert(inode, waiters);
        }
        if was_any {
            // Who waited behind them alone.
            self.grant(inode, None);
        }
    }

    pub(crate) fn put_locks(&mut self, inode: Inode, held: &[Lock]) {
        let mut bytes = self.io.buffer();
        locks::encode(held, &mut bytes);
        self.put(&Record::PutLocks { inode, locks: &bytes });
        self.io.recycle(bytes);
    }

    /// Keeps those locks of an inode that `keep` accepts, and lets others have their turn.
    pub(crate) fn keep_locks(&mut self, inode: Inode, keep: impl Fn(&Lock) -> bool) {
        let Some(held) = self.state.locks.get(&inode) else { return };
        let (left, ended): (Vec<Lock>, Vec<Lock>) = held.iter().partition(|lock| keep(lock));
        let changed = ended.iter().fold(None, |before, lock| Some(Changed::and(before, lock)));
        if changed.is_some() {
            self.put_locks(inode, &left);
            self.grant(inode, changed);
        }
    }

    /// Gives waiters what is free now, in the order in which they came, after the locks that are held
    /// changed, or who waits.
    fn grant(&mut self, inode: Inode, mut changed: Option<Changed>) {
        let Some(mut waiters) = self.live.waiters.remove(&inode) else { return };
        let mut held = self.state.locks.get(&inode).cloned().unwrap_or_default();
        // One that is granted may let an earlier one in, if it is less than what its owner had.
        while self.grant_some(inode, &mut waiters, &mut held, &mut changed) {}
        let party = changed.and_then(|changed| changed.party);
        let of_party: Vec<Lock> =
            held.iter().copied().filter(|lock| Some(lock.party) == party).collect();
        for waiter in &mut waiters {
            self.note_blockers(waiter, &held, changed, &of_party);
        }
        if !waiters.is_empty() {
            self.live.waiters.insert(inode, waiters);
        }
    }

    /// True if somebody was granted what he waited for.
    fn grant_some(
        &mut self,
        inode: Inode,
        waiters: &mut Vec<Waiter>,
        held: &mut Vec<Lock>,
        changed: &mut Option<Changed>,
    ) -> bool {
        let (count, now) = (waiters.len(), self.live.now);
        let mut ahead = Vec::new();
        waiters.retain_mut(|waiter| {
            let is_free = locks::conflict(held, &waiter.lock).is_none();
            let passes_at = waiter.began.saturating_add(ORDER_NANOS);
            waiter.is_behind = is_free && now < passes_at && is_behind(&ahead, held, &waiter.lock);
            if !is_free || waiter.is_behind {
                ahead.push(waiter.lock);
                return true;
            }
            locks::set(held, waiter.lock);
            *changed = Some(Changed::and(*changed, &waiter.lock));
            self.finish(waiter.ticket, &waiter.header, outcome::DONE, 0, 0);
            false
        });
        let was_any = waiters.len() != count;
        if was_any {
            self.put_locks(inode, held);
        }
        was_any
    }

    /// Notes for whom somebody waits, and when that is to be looked at. `of_party`: what is held by the
    /// one whose locks changed, if it is one.
    fn note_blockers(
        &mut self,
        waiter: &mut Waiter,
        held: &[Lock],
        changed: Option<Changed>,
        of_party: &[Lock],
    ) {
        if waiter.is_behind {
            self.live.wake_at(waiter.began.saturating_add(ORDER_NANOS));
        }
        if !is_of_process(&waiter.lock) {
            return;
        }
        let wanted = waiter.lock;
        let overlaps = |one: &Changed| one.start <= wanted.end && wanted.start <= one.end;
        let mut is_known = true;
        match changed.filter(overlaps).map(|changed| changed.party) {
            Some(Some(party)) if blockers(of_party, &wanted).next().is_some() => {
                self.note_blocker(waiter, party);
            }
            Some(Some(party)) => {
                waiter.blockers.remove(&party);
            }
            Some(None) => {
                let left: BTreeSet<u64> = blockers(held, &wanted).collect();
                waiter.blockers.retain(|party, _| left.contains(party));
                (is_known, waiter.has_more) = (false, true);
            }
            None => {}
        }
        if waiter.has_more && (!is_known || waiter.blockers.len() < BLOCKERS_MIN) {
            waiter.has_more = false;
            blockers(held, &wanted).for_each(|party| self.note_blocker(waiter, party));
        }
        if !waiter.blockers.is_empty() {
            self.note_waiting();
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
        self.live.blocker_last += 1;
        waiter.blockers.insert(party, self.live.blocker_last);
    }

    /// What time brings: who waited long behind others waits for them no more.
    pub(crate) fn keep_order(&mut self) {
        let now = self.live.now;
        let mut due = Vec::new();
        for (&inode, waiters) in &self.live.waiters {
            for waiter in waiters.iter().filter(|waiter| waiter.is_behind) {
                let passes_at = waiter.began.saturating_add(ORDER_NANOS);
                self.live.timer = self.live.timer.min(passes_at);
                if passes_at <= now {
                    due.push(inode);
                }
            }
        }
        due.into_iter().for_each(|inode| self.grant(inode, None));
    }

    /// Would waiting for this lock close a circle of parties that wait for each other?
    fn is_deadlock(&self, inode: Inode, wanted: &Lock) -> bool {
        let held_in = |inode| self.state.locks.get(&inode).map(Vec::as_slice).unwrap_or_default();
        let mut waits: BTreeMap<u64, Vec<(Inode, &Lock)>> = BTreeMap::new();
        for (&inode, waiters) in &self.live.waiters {
            for waiter in waiters.iter().filter(|waiter| is_of_process(&waiter.lock)) {
                waits.entry(waiter.lock.party).or_default().push((inode, &waiter.lock));
            }
        }
        let mut seen = BTreeSet::new();
        let mut next: Vec<u64> = blockers(held_in(inode), wanted).collect();
        while let Some(party) = next.pop() {
            if party == wanted.party {
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

/// Parties whose locks are in the way of one. Not its own: it waits for no process then.
fn blockers<'a>(held: &'a [Lock], wanted: &'a Lock) -> impl Iterator<Item = u64> + 'a {
    let others = locks::conflicts(held, wanted).filter(|lock| is_of_process(lock));
    others.map(|lock| lock.party).filter(|party| *party != wanted.party)
}
