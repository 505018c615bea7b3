//! Requests for file locks: taking, testing, waiting in order of arrival, giving back.

use std::collections::BTreeSet;

use wire::request::lock::{FLOCK, READ, TEST, UNLOCK, WAIT, WRITE};
use wire::{Errno, Inode, Reply, Request};

use crate::live::{Ask, Step, Stop, Waiter};
use crate::locks::{self, Lock};
use crate::record::Record;
use crate::service::Service;

/// Process of an open-file-description lock, as `F_OFD_GETLK` names it. Its owner is no single
/// thread of control, so a circle through it need not be a deadlock and is not looked for.
const PID_OF_DESCRIPTION: u32 = u32::MAX;

impl Service {
    pub(crate) fn lock(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        let Request::Lock { inode, owner, pid, kind, flags, start, end } = *request else {
            return Err(Stop::Refused(Errno::EPROTO));
        };
        self.own_attributes(inode)?;
        if start > end || !matches!(kind, UNLOCK | READ | WRITE) {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        let (host, flock) = (ask.header.host, u8::from(flags & FLOCK != 0));
        let lock = Lock { owner, pid, host, kind, flock, start, end };
        let mut held = self.state.locks.get(&inode).cloned().unwrap_or_default();
        let in_the_way = if kind == UNLOCK { None } else { locks::conflict(&held, &lock) };
        let Some(&in_the_way) = in_the_way else {
            if flags & TEST == 0 {
                locks::set(&mut held, lock);
                self.put_locks(inode, &held);
                self.grant(inode);
            }
            self.io.reply(ask.ticket, &Reply::Done {});
            return Ok(());
        };
        if flags & TEST != 0 {
            let Lock { kind, pid, start, end, .. } = in_the_way;
            self.io.reply(ask.ticket, &Reply::Held { kind, pid, start, end });
            return Ok(());
        }
        if flags & WAIT == 0 {
            return Err(Stop::Refused(Errno::EAGAIN));
        }
        if flock == 0 && pid != PID_OF_DESCRIPTION && self.is_deadlock(inode, &lock) {
            return Err(Stop::Refused(Errno::EDEADLK));
        }
        if flock != 0 && held.iter().any(|other| other.owner == owner && other.flock != 0) {
            // As `flock` does: a conversion that has to wait gives the old lock back first.
            locks::set(&mut held, Lock { kind: UNLOCK, ..lock });
            self.put_locks(inode, &held);
        }
        let waiter = Waiter { ticket: ask.ticket, header: *ask.header, lock };
        self.live.waiters.entry(inode).or_default().push(waiter);
        self.grant(inode);
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
            self.refuse(inode, Errno::EINTR, |waiter| waiter.lock.owner == owner);
            self.keep_locks(inode, |lock| lock.owner != owner);
        }
        self.io.reply(ask.ticket, &Reply::Done {});
        Ok(())
    }

    pub(crate) fn cancel_lock(&mut self, ask: &Ask<'_>, inode: Inode, owner: u64) -> Step<()> {
        self.refuse(inode, Errno::EINTR, |waiter| waiter.lock.owner == owner);
        self.io.reply(ask.ticket, &Reply::Done {});
        Ok(())
    }

    /// Refuses all who wait for a lock on an inode that is gone.
    pub(crate) fn refuse_waiters(&mut self, inode: Inode) {
        self.refuse(inode, Errno::ESTALE, |_| true);
    }

    pub(crate) fn refuse(&mut self, inode: Inode, errno: Errno, is_it: impl Fn(&Waiter) -> bool) {
        let Some(mut waiters) = self.live.waiters.remove(&inode) else { return };
        waiters.retain(|waiter| {
            let refused = is_it(waiter);
            if refused {
                self.io.reply(waiter.ticket, &Reply::Refused { errno });
            }
            !refused
        });
        if !waiters.is_empty() {
            self.live.waiters.insert(inode, waiters);
        }
    }

    pub(crate) fn put_locks(&mut self, inode: Inode, held: &[Lock]) {
        let mut bytes = self.io.buffer();
        locks::encode(held, &mut bytes);
        self.put(&Record::PutLocks { inode, locks: &bytes });
        self.io.recycle(bytes);
    }

    /// Gives waiters what is free now, in the order in which they came.
    pub(crate) fn grant(&mut self, inode: Inode) {
        let Some(mut waiters) = self.live.waiters.remove(&inode) else { return };
        let mut held = self.state.locks.get(&inode).cloned().unwrap_or_default();
        let count = waiters.len();
        waiters.retain(|waiter| {
            if locks::conflict(&held, &waiter.lock).is_some() {
                return true;
            }
            locks::set(&mut held, waiter.lock);
            self.io.reply(waiter.ticket, &Reply::Done {});
            false
        });
        if waiters.len() != count {
            self.put_locks(inode, &held);
        }
        if !waiters.is_empty() {
            self.live.waiters.insert(inode, waiters);
        }
    }

    /// Would waiting for this lock close a circle of owners that wait for each other?
    fn is_deadlock(&self, inode: Inode, wanted: &Lock) -> bool {
        let mut seen = BTreeSet::new();
        let mut next: Vec<u64> = self.blockers(inode, wanted).collect();
        while let Some(owner) = next.pop() {
            if owner == wanted.owner {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for (&inode, waiters) in &self.live.waiters {
                let own = waiters.iter().filter(|waiter| waiter.lock.owner == owner);
                for waiter in own.filter(|waiter| waiter.lock.flock == 0) {
                    next.extend(self.blockers(inode, &waiter.lock));
                }
            }
        }
        false
    }

    /// Owners of POSIX locks that are in the way of one.
    fn blockers<'a>(&'a self, inode: Inode, wanted: &'a Lock) -> impl Iterator<Item = u64> + 'a {
        let held = self.state.locks.get(&inode).map(Vec::as_slice).unwrap_or_default();
        locks::conflicts(held, wanted)
            .filter(|lock| lock.pid != PID_OF_DESCRIPTION)
            .map(|lock| lock.owner)
    }
}
