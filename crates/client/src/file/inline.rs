//! Contents in the inode record: moving them out to the targets, and noting that they were moved.

use shm::host::TruncateEpoch;
use wire::Request;
use wire::errno::Result;

use crate::file::layout::File;
use crate::file::open_file::OpenFile;
use crate::transport::Transport;
use crate::transport::errno::by_descriptor;
use crate::transport::request::{Destination, own_credentials};

/// Adopts layout and size of a file that is no longer inline. `truncate_epoch`: the epoch
/// before the request.
pub(crate) fn note_moved_out(
    open: &OpenFile<'_>,
    truncate_epoch: TruncateEpoch,
    attributes: &wire::Attributes,
) {
    open.set_layout(attributes);
    let _ = open.vnode.raise(truncate_epoch, attributes.size);
}

/// Has the shard move inline contents to their targets.
pub(crate) fn move_out(transport: &Transport, open: &OpenFile<'_>) -> Result<File> {
    let truncate_epoch = open.vnode.truncate_epoch();
    let request = Request::MoveOut { inode: open.inode };
    let to = Destination::Shard(open.inode.shard());
    let attributes = transport.call_attributes(to, &request, &own_credentials());
    let attributes = by_descriptor(attributes)?;
    note_moved_out(open, truncate_epoch, &attributes);
    Ok(open.file())
}
