//! What a process leaves that was killed: its open files, their locks, sizes that nobody told.
//!
//! The home daemon of the host looks through the processes in the host segment when a session ends
//! and once a second while there are any; a process counts by number and start time.

use crate::reply::ReplyTo;
use crate::shared::Shared;
use shm::host::{HostSegment, OfdIndex, Tenant, VnodeIndex};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use wire::{Inode, Request};

/// Which processes are there, and which are not any more.
#[derive(Default)]
pub(crate) struct Reaper {
    /// Tables without a child at the last look, by row and generation: a fork may be on its way.
    suspects: BTreeSet<(u32, u32)>,
    /// Open files without a descriptor, whose bytes are still on their way: their rows stay.
    held: Vec<OfdIndex>,
}

impl Reaper {
    /// Looks through all processes, takes apart what is left of dead ones. Returns how many live.
    pub(crate) fn reap(&mut self, shared: &Shared) -> usize {
        let host = &shared.host;
        for file in std::mem::take(&mut self.held) {
            self.close_or_hold(shared, file);
        }
        let (mut dead, mut suspects, mut living) = (Vec::new(), BTreeSet::new(), 0);
        host.process_list(&mut |tenant| {
            if is_alive(tenant.pid, tenant.started) {
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
        for tenant in dead {
            tracing::debug!(tenant.pid, "process is gone");
            for file in release(shared, tenant) {
                self.close_or_hold(shared, file);
            }
        }
        living + self.held.len()
    }

    /// The last descriptor of an open file is gone.
    fn close_or_hold(&mut self, shared: &Shared, file: OfdIndex) {
        let Ok(words) = shared.host.file(file) else { return };
        let vnode = shared.host.vnode(VnodeIndex(words.vnode.load(Relaxed)));
        if vnode.is_ok_and(|vnode| vnode.has_pending()) {
            self.held.push(file);
        } else {
            close(shared, &shared.host, file, Inode(words.inode.load(Relaxed)));
        }
    }
}

/// True if process `pid` runs and began at `started` (clock ticks, as `/proc` says).
fn is_alive(pid: u32, started: u64) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name may hold anything; what follows its last parenthesis is numbers.
    let Some((_, fields)) = text.rsplit_once(')') else { return false };
    let mut fields = fields.split_whitespace();
    let state = fields.next().unwrap_or("Z");
    let threads = fields.nth(16).and_then(|word| word.parse::<u32>().ok()).unwrap_or(0);
    let began = fields.nth(1).and_then(|word| word.parse::<u64>().ok());
    // A leader that ended before its threads is a zombie with more than one thread.
    let is_gone = matches!(state, "Z" | "X") && threads <= 1;
    began == Some(started) && !is_gone
}

/// Takes the table of a dead process apart; the open files that no descriptor stands for any more.
fn release(shared: &Shared, tenant: Tenant) -> Vec<OfdIndex> {
    let host = &shared.host;
    let owner = host.owner_of_tenant(shared.host_number, tenant);
    let mut files = Vec::new();
    let (process, generation) = (tenant.process, tenant.generation);
    if host.process_release(process, generation, &mut |file| files.push(file)).is_err() {
        return Vec::new();
    }
    let mut last = Vec::new();
    let mut unlocked = BTreeSet::new();
    for file in files {
        let Ok(words) = host.file(file) else { continue };
        let inode = Inode(words.inode.load(Relaxed));
        if inode.is_none() {
            continue;
        }
        if unlocked.insert(inode) {
            tell(shared, inode, &Request::Release { inode, owner });
        }
        tell_size(shared, inode, VnodeIndex(words.vnode.load(Relaxed)));
        if host.file_release(file) == Ok(true) {
            last.push(file);
        }
    }
    last
}

/// Tells the shard what the process had written and not told.
fn tell_size(shared: &Shared, inode: Inode, vnode: VnodeIndex) {
    let Ok(words) = shared.host.vnode(vnode) else { return };
    let size = words.dirty_end.load(SeqCst);
    if size != 0 && words.inode.load(SeqCst) == inode.0 {
        tell(shared, inode, &Request::Extend { inode, size });
    }
}

/// The last descriptor of an open file is gone.
fn close(shared: &Shared, host: &HostSegment, file: OfdIndex, inode: Inode) {
    let owner = host.owner_of_file(shared.host_number, file);
    tell(shared, inode, &Request::Release { inode, owner });
    let vnode = host.file(file).map(|words| VnodeIndex(words.vnode.load(Relaxed)));
    let closed = vnode.and_then(|vnode| host.vnode_close(inode, vnode));
    if closed.is_ok_and(|closed| closed.last) {
        // The shard knows whether the host was registered and whether the file has a name.
        tell(shared, inode, &Request::Close { inode });
        tell(shared, inode, &Request::Reap { inode });
    }
    let _ = host.file_free(file);
}

fn tell(shared: &Shared, inode: Inode, request: &Request<'_>) {
    shared.hand_in(&shared.own_header(inode.shard()), request, ReplyTo::Nobody);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_started_when_it_did() {
        let pid = std::process::id();
        let text = std::fs::read_to_string("/proc/self/stat").expect("proc");
        let (_, fields) = text.rsplit_once(')').expect("a name");
        let started = fields.split_whitespace().nth(19).and_then(|word| word.parse().ok());
        let started: u64 = started.expect("a number");
        assert!(is_alive(pid, started));
        assert!(!is_alive(pid, started + 1));
        assert!(!is_alive(u32::MAX, started));
    }
}
