//! Cleans up after killed processes: open files, their locks, unreported sizes.
//!
//! The home daemon of the host scans the processes in the host segment when a session ends, and
//! about once a second while there are any.
//!
//! A process that was killed between counting an open file and entering it in its table, or between
//! removing it from the table and uncounting it, leaves a count without an owner. Mappings hold
//! counts that are in no table either, so the two cannot be distinguished while there are
//! processes. Once two successive scans find none, the counts seen by the first scan have no owner
//! and are dropped.
//!
//! Writes that a killed process had on their way arrive all the same, unless the daemon that sends them
//! has ended, too. Then nobody has their bytes any more, if no living process wrote to the file: they
//! are not counted any longer, and the next process that asks gets EIO.
//!
//! This daemon may be killed as well. Locks of a dead process are recorded in the host segment
//! (`releases`) while the descriptor is still in the process's table, where the next scan finds it
//! again.

use crate::host::liveness::{exists, is_thread_gone};
use crate::shared::Shared;
use crate::shared::reply::ReplyTo;
use shm::host::owners::{LOCKED_BY_OPEN_FILE, LOCKED_BY_PROCESS};
use shm::host::releases::Due;
use shm::host::{HostSegment, OfdIndex, Tenant, VnodeIndex};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::{Inode, Request};

/// State between scans.
#[derive(Default)]
pub(crate) struct Reaper {
    /// Tables whose process was missing at the last scan, by process and generation: a fork may be
    /// about to adopt the table.
    suspects: BTreeSet<(u32, u32)>,
    /// Files that a killed process had written. Their entries stay until the bytes have arrived and
    /// the shard knows the size, which until then only the entry holds.
    unreported: Vec<(Inode, VnodeIndex)>,
    /// Counts seen by the last scan, if it found no process.
    leftover: Option<Leftover>,
    /// Some dead processes or lock releases are not completely handled.
    has_more: bool,
    /// The starts of the host's daemons at the last scan.
    starts_seen: u64,
    /// Writes are counted that were on their way through a daemon that has ended.
    has_ended_pushes: bool,
}

/// Counts in the host segment.
#[derive(Default)]
struct Leftover {
    /// Open inodes: vnode, inode, number of opens.
    vnodes: Vec<(VnodeIndex, Inode, u32)>,
    /// Open file descriptions: index, generation.
    files: Vec<(OfdIndex, u32)>,
}

impl Reaper {
    /// Scans all processes and cleans up after dead ones. Returns the number of live ones.
    pub(crate) fn reap(&mut self, shared: &Shared) -> usize {
        let host = &shared.host.segment;
        let (mut dead, mut suspects, mut living) = (Vec::new(), BTreeSet::new(), 0);
        let (liveness, mut seen) = (&shared.host.liveness, Vec::new());
        host.process_list(&mut |tenant| {
            let process = (tenant.pid, tenant.started);
            seen.push(process);
            if liveness.is_alive(process) {
                living += 1;
                return;
            }
            let name = (tenant.process.0, tenant.generation);
            if !tenant.is_adopted && !self.suspects.contains(&name) {
                suspects.insert(name);
                living += 1;
            } else {
                dead.push(tenant);
            }
        });
        self.suspects = suspects;
        // The kernel cache of a dead mount is used by nobody.
        host.mount_list(&mut |mount, pid, started| {
            // Without a start time it is being registered right now, or its process died while
            // registering.
            let lives = if started == 0 {
                exists(pid)
            } else {
                seen.push((pid, started));
                liveness.is_alive((pid, started))
            };
            if !lives {
                host.give_mount(mount);
            }
        });
        if !seen.is_empty() {
            liveness.identify(seen);
        }
        let unreported = std::mem::take(&mut self.unreported);
        unreported.into_iter().for_each(|(inode, vnode)| self.count_out(shared, inode, vnode));
        self.has_more = false;
        for tenant in dead {
            tracing::debug!(tenant.pid, "process is dead");
            self.has_more |= !self.release(shared, tenant);
        }
        let starts_seen = host.starts_seen();
        let has_restarted = std::mem::replace(&mut self.starts_seen, starts_seen) != starts_seen;
        if has_restarted || self.has_ended_pushes || !self.unreported.is_empty() {
            self.has_ended_pushes = !lose_ended_pushes(host);
        }
        let before = self.leftover.take();
        if living == 0 && self.unreported.is_empty() && !self.has_more {
            match before {
                Some(before) => before.release(shared),
                None => self.leftover = Leftover::of(host),
            }
        }
        let (due, is_any) = shared.host.lock_releases.take_due(host, &is_thread_gone);
        for Due { entry, inode, owner } in due {
            let request = Request::Release { inode, owner };
            shared.ask_shard_of(inode, &request, ReplyTo::Release { entry });
        }
        self.has_more |= is_any;
        living
    }

    /// True if the next scan has work, even if no process lives.
    pub(crate) const fn has_work(&self) -> bool {
        self.leftover.is_some()
            || !self.unreported.is_empty()
            || self.has_more
            || self.has_ended_pushes
    }

    /// Releases the table of a dead process. False if not all lock releases could be recorded.
    fn release(&mut self, shared: &Shared, tenant: Tenant) -> bool {
        let host = &shared.host.segment;
        let (process, generation) = (tenant.process, tenant.generation);
        if host.process_take_over(process, generation).is_err() {
            return true;
        }
        let owner = host.owner_of_tenant(shared.net.host_number, tenant);
        let mut is_complete = true;
        host.process_each(process, &mut |fd, file, _| {
            let inode =
                host.file(file).map_or(Inode::NONE, |words| Inode(words.inode.load(Relaxed)));
            let is_noted = inode.is_none() || note_lock_releases(shared, file, inode, owner);
            is_complete &= is_noted;
            if is_noted && host.process_take(process, fd).is_some() && !inode.is_none() {
                self.release_file(shared, file, inode);
            }
        });
        // This generation of the entry is used by nobody else.
        is_complete && host.process_free(process, generation).is_ok()
    }

    /// A dead process's descriptor no longer refers to the open file.
    fn release_file(&mut self, shared: &Shared, file: OfdIndex, inode: Inode) {
        let host = &shared.host.segment;
        let Ok(words) = host.file(file) else { return };
        let vnode = VnodeIndex(words.vnode.load(Relaxed));
        report_size(shared, inode, vnode);
        // Another process may have closed the file since its locks were recorded. If the release
        // list is full, the entry stays until no process uses the instance.
        if host.file_release(file) == Ok(true) && note_file_lock_releases(shared, file, inode) {
            let _ = host.file_free(file);
            self.count_out(shared, inode, vnode);
        }
    }

    /// The last descriptor of an open file is gone.
    fn count_out(&mut self, shared: &Shared, inode: Inode, vnode: VnodeIndex) {
        let row = shared.host.segment.vnode(vnode);
        let row = row.ok().filter(|row| row.inode.load(SeqCst) == inode.0);
        let is_unreported = row.as_ref().is_some_and(|row| row.dirty_end.load(SeqCst) != 0)
            && shared.net.is_on_host(inode.shard());
        if is_unreported {
            report_size(shared, inode, vnode);
        }
        if is_unreported || row.is_some_and(|row| row.has_pending()) {
            self.unreported.push((inode, vnode));
        } else if shared.host.segment.vnode_close(inode, vnode).is_ok_and(|closed| closed.last) {
            is_closed(shared, inode);
        }
    }
}

/// Ends the count of writes through daemons that have ended whose bytes nobody has any more. False if
/// some have to be looked at later: a living process that wrote to the file may have them.
fn lose_ended_pushes(host: &HostSegment) -> bool {
    let mut ended = Vec::new();
    host.each_ended(&mut |pushes| ended.push(pushes));
    if ended.is_empty() {
        return true;
    }
    let mut written = BTreeSet::new();
    host.file_list(&mut |_, file| {
        if file.has_pushed() {
            written.insert(file.vnode.load(Relaxed));
        }
    });
    ended.retain(|pushes| {
        let is_lost = !written.contains(&pushes.vnode.0);
        if is_lost {
            let inode = host.vnode(pushes.vnode).map_or(0, |row| row.inode.load(SeqCst));
            tracing::warn!(inode, "writes on their way were lost with their process and daemon");
            host.lose_pushes(*pushes);
        }
        !is_lost
    });
    ended.is_empty()
}

/// Records lock releases for a descriptor that is still in the table of a dead process, which is
/// `owner`: the process's locks and, if this is the last descriptor of the open file, those of the
/// open file. False if the list is full.
fn note_lock_releases(shared: &Shared, file: OfdIndex, inode: Inode, owner: u64) -> bool {
    let host = &shared.host.segment;
    let Ok(words) = host.file(file) else { return true };
    let row = host.vnode(VnodeIndex(words.vnode.load(Relaxed)));
    let may_be_locked = row.is_ok_and(|row| row.may_be_locked(LOCKED_BY_PROCESS));
    let is_last = words.refs.load(SeqCst) <= 1;
    (!may_be_locked || host.release_leave(inode, owner))
        && (!is_last || note_file_lock_releases(shared, file, inode))
}

/// Records the release of an open file's own locks. False if the list is full.
fn note_file_lock_releases(shared: &Shared, file: OfdIndex, inode: Inode) -> bool {
    let host = &shared.host.segment;
    let row = host.file(file).and_then(|file| host.vnode(VnodeIndex(file.vnode.load(Relaxed))));
    let may_be_locked = row.is_ok_and(|row| row.may_be_locked(LOCKED_BY_OPEN_FILE));
    !may_be_locked || host.release_leave(inode, host.owner_of_file(shared.net.host_number, file))
}

impl Leftover {
    /// `None` if nothing is counted.
    fn of(host: &HostSegment) -> Option<Leftover> {
        let mut leftover = Leftover::default();
        host.vnode_list(&mut |index, vnode| {
            let inode = Inode(vnode.inode.load(SeqCst));
            leftover.vnodes.push((index, inode, vnode.opens()));
        });
        host.file_list(&mut |index, file| {
            leftover.files.push((index, file.generation.load(SeqCst)));
        });
        let any = !leftover.vnodes.is_empty() || !leftover.files.is_empty();
        any.then_some(leftover)
    }

    /// Drops those counts that are unchanged.
    fn release(self, shared: &Shared) {
        let host = &shared.host.segment;
        for (index, generation) in self.files {
            let Ok(file) = host.file(index) else { continue };
            if file.generation.load(SeqCst) != generation {
                continue;
            }
            let inode = Inode(file.inode.load(SeqCst));
            // If the release list is full, it stays until the next time.
            if inode.is_none() || note_file_lock_releases(shared, index, inode) {
                let _ = host.file_free(index);
            }
        }
        for (index, inode, opens) in self.vnodes {
            if inode.is_none() {
                host.vnode_free_lost(inode, index);
                continue;
            }
            report_size(shared, inode, index);
            let Ok(vnode) = host.vnode(index) else { continue };
            // A close in the operation log will report its size and drop the count itself.
            let is_unreported = vnode.dirty_end.load(SeqCst) != 0 && !host.vnode_is_deleted(index);
            if is_unreported || vnode.has_pending() {
                continue;
            }
            match host.vnode_uncount(inode, index, opens) {
                Ok(closed) if closed.last => is_closed(shared, inode),
                Ok(_) => {}
                Err(_) => host.vnode_free_lost(inode, index),
            }
        }
    }
}

/// Reports the unreported size of a file to its shard.
fn report_size(shared: &Shared, inode: Inode, vnode: VnodeIndex) {
    let Ok(words) = shared.host.segment.vnode(vnode) else { return };
    let size = words.dirty_end.load(SeqCst);
    if size != 0 && words.inode.load(SeqCst) == inode.0 {
        send(shared, inode, &Request::Extend { inode, size });
    }
}

/// A file was uncounted: this host does not have it open, unless a process has opened it since. The
/// shard knows whether the host was registered and whether the file has a name.
fn is_closed(shared: &Shared, inode: Inode) {
    shared.report_if_closed(inode);
    send(shared, inode, &Request::Reap { inode });
}

fn send(shared: &Shared, inode: Inode, request: &Request<'_>) {
    shared.ask_shard_of(inode, request, ReplyTo::Nobody);
}
