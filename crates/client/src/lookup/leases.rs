//! Leased directories: directories of other hosts that a walk passes through without a message,
//! because their host revokes the lease before it changes them. The agreement is in `metadata`'s
//! leases; the shared-memory side is in `shm::index`.
//!
//! A lease covers only mode, owner, group, layout and parent of a directory. Leased attributes
//! serve where a walk begins or passes through, and as the parent of a creation or removal, never
//! as the result of a call.

use shm::index::{Hit, Index};
use shm::wait::steady_nanos;
use wire::{Attributes, Inode, ShardIndex};

use crate::lookup::path_cache::ValidationSet;
use crate::lookup::result::Entry;
use crate::transport::Transport;
use crate::transport::attachment::Attachment;

/// Copies the leased attributes of a directory of another host to `to`; false if it is not
/// leased.
pub(crate) fn leased(transport: &Transport, directory: Inode, to: &mut Attributes) -> bool {
    let lookup = |index: &Index| index.read_inode(directory, to).then_some(());
    read_leases(transport, directory.shard(), lookup).is_some() && is_linked_directory(to)
}

/// As `leased`, for the directory that an entry refers to.
pub(crate) fn leased_entry(transport: &Transport, entry: &Entry, to: &mut Attributes) -> bool {
    let lookup = |index: &Index| {
        let Hit::Found(inode, _) = index.entry(entry.key) else { return None };
        index.read_inode(inode, to).then_some(inode)
    };
    let Some(inode) = read_leases(transport, entry.shard, lookup) else { return false };
    // Entry and inode must be of one service; a lease promises nothing across two.
    transport.service_number(inode.shard()) == transport.service_number(entry.shard)
        && is_linked_directory(to)
}

/// Records in `validation` that a walk is about to read leases of a shard's service.
pub(crate) fn note_leases(
    transport: &Transport,
    shard: ShardIndex,
    validation: &mut ValidationSet,
) {
    let leases = transport.attached_home().and_then(Attachment::leases);
    match (leases, transport.service_number(shard)) {
        (Some(leases), Some(service)) => validation.note_leases(leases, service),
        _ => validation.set_uncacheable(),
    }
}

fn read_leases<R>(
    transport: &Transport,
    shard: ShardIndex,
    lookup: impl FnOnce(&Index) -> Option<R>,
) -> Option<R> {
    let home = transport.attached_home()?;
    let service = transport.service_number(shard)?;
    let found = home.leases()?.read(service, steady_nanos, lookup)?;
    home.bells.use_lease(service);
    Some(found)
}

fn is_linked_directory(directory: &Attributes) -> bool {
    directory.is_directory() && directory.links != 0
}
