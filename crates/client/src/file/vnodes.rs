//! Open counts of files on this host: dropping one, and what the shard learns when the last is
//! dropped.

use shm::host::VnodeIndex;
use wire::{Inode, Request};

use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};

/// Whether the shard of a file may have recorded that this host has it open.
fn may_be_registered(transport: &Transport, inode: Inode) -> bool {
    let shard = inode.shard();
    !transport.answers_here(shard) && transport.is_local_shard(shard).is_ok()
}

/// Drops an open count of the vnode; the last one sends the shard the requests that wait for
/// it.
pub(crate) fn close_vnode(transport: &Transport, inode: Inode, index: VnodeIndex, nameless: bool) {
    let Ok(host) = transport.host() else { return };
    let Ok(closed) = host.vnode_close(inode, index) else { return };
    if !closed.last {
        return;
    }
    let to = Destination::Shard(inode.shard());
    if may_be_registered(transport, inode)
        && let Some(open_sequence) = host.next_close_sequence(inode)
    {
        transport.notify(to, &Request::Close { inode, open_sequence }, &own_credentials());
    }
    if closed.deleted || nameless {
        transport.notify(to, &Request::Reap { inode }, &own_credentials());
    }
}
