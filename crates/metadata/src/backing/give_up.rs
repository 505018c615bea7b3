//! Files whose bytes have copies give them up once the backing store has them as they are: because a
//! user asks for it (`forebay evict`), or a target is out of space. The name of such a file leads to a
//! new inode then, with a number of files that were found in the backing store: it has one copy, at its
//! targets, as far as it is cached. Nothing is asked of the backing store: the new inode has the
//! location, the version and the attributes of the old one.
//!
//!   saved, open nowhere --GiveUpCopies--> kernels behind mounts forget its name
//!   those have --still saved, still open nowhere--> the old inode is removed, and its copies with it
//!
//! Invariants
//! 1. Nobody has the old inode, or gets it any more: no program has it open, on any host, and one that is
//!    about to open it finds that it is gone and looks its name up again. So no write goes to a file
//!    without a name, and programs that have a file open see what others write to it.
//! 2. The old inode goes in the same record of the log as the new one comes. Its copies are removed when
//!    followers have the record: until then they are what a successor shows.

use std::ops::Bound;

use wire::attributes::flag;
use wire::{Attributes, Errno, Inode, Reply};

use crate::backing::locations::put_sync_entry;
use crate::backing::revalidate::settled;
use crate::backing::sync_state::{Location, SyncEntry};
use crate::core::context::Context;
use crate::core::job::{Call, Kind, Step, Stop, UNANSWERED};
use crate::core::keys::Key;
use crate::core::record::Record;
use crate::core::state::encode_xattrs;
use crate::files::Files;
use crate::files::new_inode::put_new;
use crate::kernel_cache::notices::Changing;

/// Files that are looked at for one request for space: some 0.5 ms of the worker.
const LOOKED_MAX: usize = 2048;
/// Files that give up their copies for one request for space: some 64 KiB of the log.
const FILES_MAX: usize = 64;
/// Bytes of these files, without the last one. Others stay, if that is enough.
const BYTES_MAX: u64 = 64 << 20;
/// For how long the space of some files is waited for before the next ones go.
const FREEING_NANOS: i64 = 100_000_000;

/// The files whose copies go when space is short. Forgotten at a restart.
#[derive(Default)]
pub(crate) struct GiveUps {
    /// The last file that was looked at; `Inode::NONE`: a pass over all files begins.
    hand: Inode,
    /// Some were found in this pass.
    has_found: bool,
    /// None was found in the pass before.
    is_idle: bool,
    /// When some were asked for last, by the monotonic clock.
    asked_at: Option<i64>,
    may_free: bool,
}

impl GiveUps {
    /// Whether space comes from files that give up their copies, as known since the last request for
    /// space.
    pub(crate) const fn may_free(&self) -> bool {
        self.may_free
    }

    /// A target is out of space: the files that are to give up their copies now. Of those that are looked
    /// at, the ones that were not used for the longest time.
    pub(crate) fn next(&mut self, files: &Files, call: &Call<'_>) -> Vec<Inode> {
        let cx = &files.cx;
        self.may_free = self.is_freeing(cx);
        if self.may_free || !(cx.config.backing && cx.config.has_copies()) {
            return Vec::new();
        }
        let (mut looked, mut seen) = (0, Vec::new());
        let behind = (Bound::Excluded(self.hand), Bound::Unbounded);
        for (&inode, sync_entry) in cx.state.sync_entries.range(behind).take(LOOKED_MAX) {
            looked += 1;
            self.hand = inode;
            seen.extend(saved_file(cx, inode, sync_entry));
        }
        seen.sort_unstable();
        let (mut chosen, mut bytes) = (Vec::new(), 0);
        for (_, inode, size) in seen {
            if chosen.len() == FILES_MAX || bytes >= BYTES_MAX {
                break;
            }
            if location_of_unused(files, call, inode).is_some() {
                chosen.push(inode);
                bytes += size;
            }
        }
        if !chosen.is_empty() {
            (self.has_found, self.asked_at) = (true, Some(cx.steady));
        }
        let is_pass_over = looked < LOOKED_MAX;
        self.may_free = self.has_found || !is_pass_over && !self.is_idle;
        if is_pass_over {
            self.is_idle = !self.has_found;
            (self.hand, self.has_found) = (Inode::NONE, false);
        }
        chosen
    }

    /// True while the space of files is not free yet that gave up their copies, or are about to.
    fn is_freeing(&self, cx: &Context) -> bool {
        let is_own = |kind: &Kind| matches!(kind, Kind::Request { ticket: UNANSWERED, .. });
        let is_recent =
            self.asked_at.is_some_and(|at| cx.steady < at.saturating_add(FREEING_NANOS));
        cx.jobs.values().any(|job| is_own(&job.kind)) || is_recent && !cx.state.removals.is_empty()
    }
}

/// When a file with copies was used last, its number and its size, if the backing store has it as it is.
fn saved_file(cx: &Context, inode: Inode, sync_entry: &SyncEntry) -> Option<(i64, Inode, u64)> {
    let is_saved = sync_entry.now.is_some() && !cx.state.dirty_inodes.contains(&inode);
    let of = &cx.state.inodes.get(inode).filter(|_| is_saved && !inode.is_single())?.attributes;
    (of.is_regular() && of.size > 0).then_some((of.accessed.max(of.changed), inode, of.size))
}

/// The location in the backing store of a file that may give up its copies: it is there as it is, by
/// its only name, nothing of it is pinned, and nobody uses it.
fn location_of_unused(files: &Files, call: &Call<'_>, inode: Inode) -> Option<Location> {
    let cx = &files.cx;
    let has_copies = cx.config.backing && cx.config.has_copies() && !inode.is_single();
    let of = &cx.state.inodes.get(inode).filter(|_| has_copies)?.attributes;
    let is_pinned = of.layout.flags & flag::PINNED != 0;
    let has_bytes = of.is_regular() && !of.is_inline() && of.size > 0;
    let location = cx.state.sync_entries.get(&inode)?.now.as_ref()?;
    let found = settled(cx, call, location.parent, &location.name);
    let is_settled = matches!(found, Some(Some((it, _))) if it == inode);
    let is_used = call.host_view.is_open(inode)
        || cx.state.hosts.contains_key(&inode)
        || cx.unknown_opener(inode).is_some()
        || cx.state.locks.contains_key(&inode)
        || files.caches.grace.is_in_grace(cx, inode);
    (has_bytes && is_settled && !is_pinned && !is_used).then(|| location.clone())
}

/// Answered by the number of bytes that are in the backing store alone then; 0: the file stays as it is.
pub(crate) fn give_up_copies(files: &mut Files, call: &Call<'_>, inode: Inode) -> Step<()> {
    let old = files.cx.own_attributes(inode)?;
    let caller = &call.header.caller;
    if !caller.is_privileged() && caller.uid != old.uid {
        return Err(Stop::Refused(Errno::EPERM));
    }
    let value = match location_of_unused(files, call, inode) {
        Some(location) if is_forgotten(files, call, &old, &location)? => {
            replace(files, &old, location);
            old.size
        }
        _ => 0,
    };
    files.cx.io.reply(call.ticket, &Reply::Number { value });
    Ok(())
}

/// Proceeds when no kernel remembers the file. False: a program has opened it.
fn is_forgotten(
    files: &mut Files,
    call: &Call<'_>,
    old: &Attributes,
    location: &Location,
) -> Step<bool> {
    let (parent, name) = (location.parent, &*location.name);
    files.cx.check_key(&Key::Frozen(parent))?;
    files.cx.check_entry_key(parent, name)?;
    use Changing::{Attributes, Name};
    let all = [Name(parent, name), Attributes(old.inode)];
    files.caches.await_invalidated(&mut files.cx, call, &all)?;
    // The last look: a program that opens the file from now on finds that it is gone.
    let is_open = call.host_view.hide(old.inode);
    if is_open {
        files.cx.put_index(old);
    }
    Ok(!is_open)
}

/// Puts a new inode in the place of the old one.
fn replace(files: &mut Files, old: &Attributes, location: Location) {
    let cx = &mut files.cx;
    let shard = old.inode.shard();
    let next = cx.state.backed_inode_next.get(&shard.0).copied();
    let next = next.unwrap_or(wire::id::BACKED_FIRST);
    let inode = Inode::new(shard, next);
    let mut attributes = Attributes { inode, layout: cx.config.placed(old.layout), ..*old };
    // Any part of it may be cached at its target.
    attributes.layout.flags &= !flag::SHORT;
    let mut xattrs = Vec::new();
    let node = cx.state.inodes.get(old.inode);
    encode_xattrs(node.and_then(|node| node.xattrs.as_deref()), &mut xattrs);
    let (parent, name) = (location.parent, location.name.clone());
    let mode = old.mode & wire::attributes::mode::TYPE;
    cx.put(&Record::DeleteSyncEntry { inode: old.inode });
    put_sync_entry(cx, inode, &SyncEntry { now: Some(location), ..SyncEntry::default() });
    put_new(cx, &attributes, &[], 0, &xattrs);
    cx.put_clean(&Record::PutEntry { parent, name: &name, inode, mode });
    cx.put(&Record::PutBackedNext { shard: shard.0, next: next + 1 });
    files.remove(old);
}
