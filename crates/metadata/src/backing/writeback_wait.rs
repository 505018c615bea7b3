//! Waiting for writeback: parked requests that wait until an inode is clean, and the numbers by
//! which the writeback daemon reports on them. Inode `NONE` stands for requests that wait for
//! space, which writeback frees.
//!
//! A request that has to wait gets the next number, which becomes the inode's number. The writeback
//! daemon lists the inodes with their numbers before it examines them, and reports the result with
//! the same number: so no request is answered by an examination from before it. A report with an
//! older number wakes a later request, which checks again: its inode may be clean by then.
//!
//! Nothing of this is logged. A waiting client repeats its request at least every two seconds
//! (`Context::long_poll_nanos`), so a restarted service learns of it; and an inode is forgotten
//! when it was not requested for twice as long.

use std::collections::BTreeMap;

use wire::backing::CleanRequest;
use wire::{Errno, Inode, Reply};

use crate::backing::dirty::{has_dirty, listed};
use crate::core::context::Context;
use crate::core::effect::HostView;
use crate::core::job::{Call, Kind, Step, Stop, Wait};

/// Number of inodes beyond which expired ones are dropped.
const AWAITED_SOFT_MAX: usize = 1024;

/// Inodes that requests wait for. Forgotten at a restart.
#[derive(Debug, Default)]
pub(crate) struct WritebackWaits {
    awaited: BTreeMap<Inode, AwaitedInode>,
    /// The last number given.
    last: u64,
    /// Counter of the progress of the writeback daemon, as far as known.
    moved: u64,
    /// The daemon's last report of its progress.
    reported: u64,
    /// True if the writeback daemon waits for the next number.
    is_awaited: bool,
    /// Number of entries from which on expired ones are dropped.
    prune_at: usize,
    /// True if there was something to write back when a request last found no space.
    may_free_space: bool,
}

#[derive(Clone, Copy, Debug)]
struct AwaitedInode {
    number: u64,
    /// It expires then, unless it is requested again.
    until: i64,
}

impl WritebackWaits {
    /// See `Service::writes_back_for_space`.
    pub(crate) const fn for_space(&self) -> (bool, u64) {
        (self.may_free_space, self.moved)
    }

    /// Waits until the backing store has an inode as it is now.
    pub(crate) fn await_clean(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        inode: Inode,
    ) -> Step<()> {
        if cx.config.backing && !is_clean(cx, inode)? {
            let number = self.await_inode(cx, inode);
            return Err(Stop::Wait(Wait::Clean(inode, number)));
        }
        cx.io.reply(call.ticket, &Reply::Done {});
        Ok(())
    }

    fn await_inode(&mut self, cx: &mut Context, inode: Inode) -> u64 {
        let until = cx.now.saturating_add(2 * cx.long_poll_nanos());
        self.drop_old_wants(cx, self.prune_at.max(AWAITED_SOFT_MAX));
        // Never a number that the writeback daemon has seen before a restart.
        self.last = (self.last + 1).max(cx.now.cast_unsigned());
        self.awaited.insert(inode, AwaitedInode { number: self.last, until });
        let number = self.last;
        if self.is_awaited {
            self.is_awaited = false;
            cx.wake(|wait| *wait == Wait::CleanRequest);
        }
        number
    }

    /// A request found no space: the writeback daemon should write back now what it would write
    /// back later. Nothing is reported when that is done.
    pub(crate) fn hurry_writeback(&mut self, cx: &mut Context, host_view: &dyn HostView) {
        self.may_free_space = cx.config.backing && has_dirty(cx, host_view);
        if self.may_free_space {
            self.await_inode(cx, Inode::NONE);
        }
    }

    /// Drops expired entries if there are more than `count`.
    fn drop_old_wants(&mut self, cx: &mut Context, count: usize) {
        let now = cx.now;
        if self.awaited.len() > count {
            self.awaited.retain(|_, await_inode| await_inode.until > now);
            self.prune_at = 2 * self.awaited.len();
        }
    }

    /// Long poll of the writeback daemon for inodes that requests wait for.
    pub(crate) fn await_clean_requests(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        seen: u64,
        moved: u64,
    ) -> Step<()> {
        if self.reported != moved {
            self.reported = moved;
            self.moved = self.moved.wrapping_add(1);
        }
        if self.last == seen {
            self.is_awaited = true;
            return Err(Stop::Wait(Wait::CleanRequest));
        }
        self.answer_wait(cx, call.ticket, Wait::CleanRequest);
        Ok(())
    }

    /// Answers a long poll that has expired.
    pub(crate) fn answer_wait(&mut self, cx: &mut Context, ticket: u64, wait: Wait) {
        let value = if wait == Wait::CleanRequest { self.last } else { self.moved };
        cx.io.reply(ticket, &Reply::Number { value });
    }

    pub(crate) fn list_clean_requests(&mut self, cx: &mut Context, call: &Call<'_>) {
        self.drop_old_wants(cx, 0);
        let awaited = &self.awaited;
        let all = awaited
            .iter()
            .map(|(&inode, await_inode)| CleanRequest { inode, number: await_inode.number });
        let bytes = listed(CleanRequest::BYTES, all);
        cx.io.reply(call.ticket, &Reply::Bytes { bytes: &bytes });
    }

    /// A report of the writeback daemon on an inode; `errno` 0: it is clean.
    pub(crate) fn report_settled(
        &mut self,
        cx: &mut Context,
        inode: Inode,
        number: u64,
        errno: Errno,
    ) {
        let is_refused = errno != Errno(0);
        let awaited = &mut self.awaited;
        if awaited.get(&inode).is_some_and(|await_inode| await_inode.number <= number || is_refused)
        {
            awaited.remove(&inode);
        }
        let of_it = |wait: &Wait| matches!(*wait, Wait::Clean(of, _) if of == inode);
        let jobs = cx.jobs.iter().filter(|(_, job)| of_it(&job.wait));
        let all: Vec<(u64, Wait)> = jobs.map(|(&id, job)| (id, job.wait)).collect();
        for (id, wait) in all {
            if !is_refused && !matches!(wait, Wait::Clean(_, number_then) if number_then <= number)
            {
                cx.woken.insert(id);
                continue;
            }
            let Some(job) = cx.jobs.remove(&id) else { continue };
            cx.woken.remove(&id);
            let Kind::Request { ticket, .. } = job.kind else { continue };
            match is_refused {
                true => cx.io.reply(ticket, &Reply::Refused { errno: refusal(errno) }),
                false => cx.io.reply(ticket, &Reply::Done {}),
            }
        }
    }
}

/// True if the inode is known to be clean. After a rename to another service only the writeback
/// daemon knows.
fn is_clean(cx: &Context, inode: Inode) -> Result<bool, Errno> {
    let node = cx.state.inodes.get(inode).ok_or(Errno::ESTALE)?;
    if node.attributes.links == 0 {
        return Ok(true);
    }
    let sync_entry = cx.state.sync_entries.get(&inode);
    let (Some(now), false) = (
        sync_entry.and_then(|sync_entry| sync_entry.now.as_ref()),
        cx.state.dirty_inodes.contains(&inode),
    ) else {
        return Ok(false);
    };
    let entry = cx.state.entries.get(now.parent, &now.name);
    let is_its_name = entry.is_some_and(|found| found.0 == inode);
    Ok(is_its_name && cx.state.dirty_names.get(now.parent, &now.name).is_none())
}

/// The errno as programs expect it from `close` or `fsync`.
fn refusal(errno: Errno) -> Errno {
    if matches!(errno, Errno::ENOSPC | Errno::EDQUOT) { errno } else { Errno::EIO }
}
