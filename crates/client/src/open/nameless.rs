//! Files without a name (`O_TMPFILE`): their creation.

use shm::host::VnodeIndex;
use wire::errno::{Errno, Result};
use wire::request::open;
use wire::{Attributes, Credentials, Layout, Request, ShardIndex};

use crate::file::layout::inherit_group;
use crate::file::{layout, vnodes};
use crate::lookup::permission;
use crate::lookup::result::shard_of_entry;
use crate::lookup::retry::LookupRetries;
use crate::transport::Transport;
use crate::transport::errno::by_path;
use crate::transport::request::Destination;

/// Creates a file without a name and raises its open count.
pub(crate) fn make_nameless(
    transport: &Transport,
    parent: &Attributes,
    mode: u32,
    caller: &Credentials,
) -> Result<(Attributes, VnodeIndex)> {
    let host = transport.host()?;
    let mut retries = LookupRetries::new(transport);
    loop {
        let created_at = host.next_open_sequence();
        let was_local = is_local(transport, parent)?;
        let attributes = create_nameless(transport, parent, mode, caller)?;
        let inode = attributes.inode;
        let vnode = host.vnode_open(inode)?;
        let is_known = || match was_local {
            true => transport.answers_here(inode.shard()),
            false => !host.was_closed_since(inode, created_at),
        };
        if is_known() {
            return Ok((attributes, vnode));
        }
        // This thread stalled between the two, and the shard may have been told that no process
        // has it open; or it has left this host since.
        let open_sequence = host.next_open_sequence();
        let open = Request::Open { inode, open_sequence, uses: open::WRITES };
        match transport.call(Destination::Shard(inode.shard()), &open, caller) {
            Ok(_) => return Ok((attributes, vnode)),
            Err(Errno::ESTALE) => vnodes::close_vnode(transport, inode, vnode, false),
            Err(errno) => {
                vnodes::close_vnode(transport, inode, vnode, true);
                return Err(errno);
            }
        }
        retries.pause()?;
    }
}

/// Any shard of a wide directory will do; the thread id spreads them.
fn shard_of_new(parent: &Attributes) -> ShardIndex {
    shard_of_entry(parent, &shm::wait::thread_id().to_le_bytes())
}

/// True if this host makes the file.
fn is_local(transport: &Transport, parent: &Attributes) -> Result<bool> {
    transport.is_local_shard(shard_of_new(parent))
}

/// Creates a file without a name in `parent`, for `O_TMPFILE`.
fn create_nameless(
    transport: &Transport,
    parent: &Attributes,
    mode: u32,
    caller: &Credentials,
) -> Result<Attributes> {
    permission::may_change(transport, parent, caller)?;
    let (creator, mode) = inherit_group(parent, caller, mode);
    let layout: Layout = layout::layout_of_child(transport, parent, mode)?;
    let request = Request::CreateNameless { parent: parent.inode, mode, layout };
    let to = Destination::Shard(shard_of_new(parent));
    by_path(transport.call_attributes(to, &request, &creator))
}
