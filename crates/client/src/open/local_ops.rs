//! Local operations (B1): creating, removing and closing files of shards of this host without
//! waiting for a daemon. The protocol and its proof: `shm::local_ops`.
//!
//! Each is an attempt: if anything conflicts with it, or is not known, the caller sends a message
//! as for any other shard, and the daemon decides.

use shm::host::{Vnode, VnodeIndex};
use shm::index::Hit;
use shm::local_ops::{PendingOp, ServedUntil};
use wire::attributes::{extra, flag, mode, placement, spread};
use wire::codec::{Malformed, Writer};
use wire::errno::Result;
use wire::quota::Owner;
use wire::request::{ANY_TRUNCATE_EPOCH, made};
use wire::{Attributes, Credentials, Errno, Inode, Layout, LocalOp};

use crate::file::layout;
use crate::file::layout::File;
use crate::file::open_file::OpenReference;
use crate::kernel_cache::{watches, writers};
use crate::lookup::leases;
use crate::lookup::result::{Last, Walk, WalkTarget};
use crate::open::Files;
use crate::transport::Transport;
use crate::transport::clock::now_nanos;
use crate::transport::service::{Service, gate_opens_soon, op_key};

fn encode(pending: &mut PendingOp<'_>, op: &LocalOp<'_>) -> Result<()> {
    pending.write(|bytes| {
        let mut writer = Writer::new(bytes);
        op.encode(&mut writer);
        writer.finish().map_err(|Malformed| Errno::E2BIG)
    })
}

/// Creates the last name of a walk as a new regular file of `caller`, with `mode` as in `made`.
/// Its open count is raised.
pub(crate) fn log_create(
    files: &Files,
    walk: &Walk<'_>,
    mode: u32,
    layout: Layout,
    caller: &Credentials,
) -> Option<OpenReference> {
    let parent = walk.parent;
    if walk.last != Last::Name || walk.found != WalkTarget::Absent || parent.links == 0 {
        return None;
    }
    // Only the shard knows what a default ACL passes on, and which target of a pool is next.
    if parent.has(extra::DEFAULT_ACL) || layout.pool != 0 {
        return None;
    }
    let shard = walk.entry.shard;
    let service = files.transport().service_of(shard)?;
    let op_log = &service.by.op_log;
    let owner = Owner { uid: caller.uid, project: parent.project };
    let accepts = || op_log.is_open_to(service.worker, owner) && service.until.holds();
    if !(accepts() || gate_opens_soon(&service) && accepts()) {
        return None;
    }
    // Claimed first: an inode number that is taken and not used is lost.
    let mut pending = op_log.claim(service.by.welcome.session, service.worker)?;
    let inode = Inode::new(shard, op_log.take_number(shard)?).with_copies(layout.copies);
    let layout = Layout { copies: 0, ..layout_here(layout, &service) };
    let mut file = File { inode, layout, good_for: ANY_TRUNCATE_EPOCH };
    if file.is_inline()
        && layout::target_of(files.transport(), &file, 0)
            .is_ok_and(|to| files.transport().attached_number(to) != 0)
    {
        // Its first bytes are stored on this host: see `layout_of_child`.
        file.layout.flags &= !flag::INLINE;
    }
    let mode = mode_of_new(made::masked(mode), caller);
    let now = now_nanos();
    let attributes = Attributes::of_new(inode, mode, (owner, caller.gid), now, file.layout);
    let spread = parent.layout.spread;
    let op = LocalOp::Create { parent: parent.inode, spread, attributes, name: walk.name };
    encode(&mut pending, &op).ok()?;
    let host = files.transport().host().ok()?;
    // Before the file becomes visible: a process that removes it must find it open.
    let vnode = host.vnode_open(inode).ok()?;
    // No other process knows the file yet, so no kernel caches anything of it.
    writers::note_writer_of_new(files.transport(), host.vnode(vnode).ok()?);
    let key = walk.entry.key;
    let may_commit = pending.announce(op_key(key)) == Ok(true)
        && accepts()
        && service.applied_entry(parent.inode, key) == Hit::Absent
        && directory_is(files.transport(), parent)
        && !watches::is_entry_watched(files.transport(), host, parent.inode, key);
    if commit(&service, pending, may_commit) {
        files.recent.note(files.transport().mount(), parent.inode, now);
        return Some(OpenReference { file, mode, vnode, created_at: now });
    }
    let _ = host.vnode_close(inode, vnode);
    None
}

/// The layout of a file that is created in this service's memory: over no more targets than the daemon of
/// the service knows, which takes the layout as it is.
fn layout_here(layout: Layout, service: &Service<'_>) -> Layout {
    if layout.placement == placement::LOCAL {
        return layout;
    }
    let map = &service.by.map;
    let targets = service.by.op_log.targets().unwrap_or(0).max(map.daemon_count());
    Layout { place: map.place_among(targets), ..layout }
}

/// True if a directory is known to exist, without a message, and its entries to be where the walk saw
/// them. A directory of another host is removed, or spread, only after its lease was revoked. Both
/// hold its entries here, which closes the gate.
fn directory_is(transport: &Transport, seen: &Attributes) -> bool {
    let directory = seen.inode;
    let Some(service) = transport.service_of(directory.shard()) else {
        let mut now = Attributes::default();
        return leases::leased(transport, directory, &mut now)
            && now.layout.spread == seen.layout.spread;
    };
    // Only the few directories that may still be spread have more than a number read.
    if spread::is_final(seen.layout.spread) {
        return service.links(directory).is_some_and(|links| links != 0);
    }
    let now = service.inode(directory);
    now.is_some_and(|now| now.links != 0 && now.layout.spread == seen.layout.spread)
}

/// Removes the last name of a walk, the only name of `file`, which is not open on this host.
pub(crate) fn log_unlink(files: &Files, walk: &Walk<'_>, file: &Attributes) -> bool {
    try_log_unlink(files, walk, file).unwrap_or(false)
}

fn try_log_unlink(files: &Files, walk: &Walk<'_>, file: &Attributes) -> Option<bool> {
    let parent = walk.parent;
    if walk.last != Last::Name || !file.is_regular() || file.links != 1 {
        return None;
    }
    let service = files.transport().service_of(walk.entry.shard)?;
    let of_inode = files.transport().service_of(file.inode.shard())?;
    let is_one = core::ptr::eq(service.by, of_inode.by) && service.worker == of_inode.worker;
    let host = files.transport().host().ok()?;
    if !is_one || host.vnode_find(file.inode).is_some() || !gate_opens_soon(&service) {
        return None;
    }
    let mut pending = service.by.op_log.claim(service.by.welcome.session, service.worker)?;
    let (inode, spread) = (file.inode, parent.layout.spread);
    let now = now_nanos();
    let (at, name) = (now.cast_unsigned(), walk.name);
    let op = LocalOp::Unlink { parent: parent.inode, spread, inode, at, name };
    encode(&mut pending, &op).ok()?;
    let key = walk.entry.key;
    let is_there = |hit: Hit| matches!(hit, Hit::Found(found, _) if found == inode);
    let may_commit = pending.announce(op_key(key)) == Ok(true)
        && service.by.op_log.is_open(service.worker)
        && is_there(service.applied_entry(parent.inode, key))
        && service.links(inode) == Some(1)
        && host.vnode_find(inode).is_none()
        && !watches::is_removal_watched(files.transport(), host, (parent.inode, inode), key);
    let done = commit(&service, pending, may_commit);
    if done {
        files.recent.note(files.transport().mount(), parent.inode, now);
    }
    Some(done)
}

/// Passes the unreported size and the open count of a file on to its shard.
pub(crate) fn log_close(transport: &Transport, inode: Inode, vnode: u32) -> bool {
    let Some(service) = transport.service_of(inode.shard()) else { return false };
    // Otherwise there may be no space for the change that it reports.
    if !gate_opens_soon(&service) {
        return false;
    }
    let session = service.by.welcome.session;
    let Some(mut pending) = service.by.op_log.claim(session, service.worker) else {
        return false;
    };
    if encode(&mut pending, &LocalOp::Close { inode, vnode }).is_err() {
        return false;
    }
    let is_committed = if service.until == ServedUntil::ALWAYS {
        // The slot is claimed, so committing cannot fail.
        pending.commit_at_once().is_ok()
    } else {
        // A service that leaves this host takes what was committed before it closed the gate.
        let is_open = || service.by.op_log.is_open(service.worker) && service.until.holds();
        // One that is back has said before it opened the gate which files it has lost.
        let row = || transport.host().and_then(|host| host.vnode(VnodeIndex(vnode)));
        let is_lost = || row().is_ok_and(Vnode::is_lost);
        pending.propose().is_ok() && is_open() && !is_lost() && pending.commit()
    };
    wake_if(&service);
    is_committed
}

/// Commits if nothing conflicts. Returns false if the operation was withdrawn.
fn commit(service: &Service<'_>, pending: PendingOp<'_>, may_commit: bool) -> bool {
    let done = may_commit && pending.commit();
    if done {
        wake_if(service);
    }
    done
}

/// Wakes the worker for a new operation if it sleeps.
fn wake_if(service: &Service<'_>) {
    let Service { by, worker, .. } = *service;
    let _ = by.bells.wake_if(worker, || by.op_log.waiting(by.welcome.session, worker));
}

/// The set-group-id bit is only granted to members of the group.
fn mode_of_new(mode: u32, caller: &Credentials) -> u32 {
    let may_set_gid = caller.is_privileged() || mode & 0o010 == 0 || caller.is_in_group(caller.gid);
    if may_set_gid { mode } else { mode & !mode::SET_GID }
}
