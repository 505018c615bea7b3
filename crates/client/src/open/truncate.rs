//! Setting the size of a file, by name and by descriptor.

use shm::host::Vnode;
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::request::set;
use wire::{Attributes, Credentials, Request};

use crate::OfdIndex;
use crate::file::change::Change;
use crate::file::layout::File;
use crate::file::open_file::OpenFile;
use crate::file::{change, changing, layout, open_file, set_id, size, vnodes};
use crate::io::write_behind;
use crate::kernel_cache::{maps, page_caches};
use crate::lookup::path::{At, Follow, Outcome, PathBuffer};
use crate::lookup::{PathLookup, find, permission};
use crate::transport::Transport;
use crate::transport::errno::by_descriptor;
use crate::transport::request::{Destination, own_credentials};

/// Truncates or extends an open file.
///
/// # Errors
/// `EFBIG`, `ENOSPC`, `EIO`.
pub(crate) fn set_size(transport: &Transport, open: &OpenFile<'_>, size: u64) -> Result<()> {
    maps::check_kernel_maps(transport, open.vnode)?;
    let file = open.file();
    let caller = own_credentials();
    let attributes = set_size_of(transport, open.vnode, &file, size, set::BY_DESCRIPTOR, &caller);
    open.set_layout(&by_descriptor(attributes)?);
    page_caches::invalidate(transport, open)
}

fn set_size_of(
    transport: &Transport,
    vnode: &Vnode,
    file: &File,
    size: u64,
    mask: u32,
    caller: &Credentials,
) -> Result<Attributes> {
    let shard = file.inode.shard();
    let was_local = transport.is_local_shard(shard)?;
    let changed = set_size_once(transport, vnode, file, (size, mask), caller)?;
    if was_local && !transport.is_local_shard(shard)? {
        // It has left this host meanwhile, and nobody counted the truncation here.
        return set_size_once(transport, vnode, file, (size, mask), caller);
    }
    Ok(changed)
}

fn set_size_once(
    transport: &Transport,
    vnode: &Vnode,
    file: &File,
    (size, mask): (u64, u32),
    caller: &Credentials,
) -> Result<Attributes> {
    if size > transport.size_limit() && (size > FILE_BYTES_MAX || size > vnode.size()) {
        return Err(Errno::EFBIG);
    }
    write_behind::settle(transport, vnode)?;
    let _changing = changing::changing(transport, vnode);
    if file.is_inline() && size > layout::inline_bytes(transport) {
        let request = Request::MoveOut { inode: file.inode };
        transport.call_done(Destination::Shard(file.inode.shard()), &request, caller)?;
    }
    let truncate_epoch = vnode.truncate_epoch();
    let is_local_shard = transport.is_local_shard(file.inode.shard())?;
    let is_counted = is_local_shard || file.is_posix();
    // Else the shard's worker reads and changes the words itself (`shm::host`), or a daemon of this
    // host does when it forwards request and reply.
    if !is_counted {
        vnode.begin_own_remote_truncate();
        // Reported before the request: if this process is killed in between, acknowledged writes must
        // not be lost. Writes from here on are reported by others if they reach further.
        size::flush(transport, vnode, file.inode)?;
    }
    // The targets must discard the cut-off bytes, too.
    let truncates_off = match (is_local_shard, is_counted) {
        // Writes may extend the file until the truncation is counted.
        (false, true) => set::TRUNCATES | set::COUNTED,
        _ if vnode.size() > size => set::TRUNCATES,
        _ => 0,
    };
    let change = Change { mask: set::SIZE | truncates_off | mask, size, ..Change::default() };
    let attributes = change::apply(transport, file.inode, &change, caller)?;
    if is_counted {
        // Not truncated, but perhaps extended.
        let _ = vnode.raise(truncate_epoch, size);
    } else {
        vnode.end_own_remote_truncate(size);
    }
    Ok(attributes)
}

/// `truncate(2)`.
pub(crate) fn truncate(
    paths: &PathLookup,
    at: At<'_>,
    size: u64,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    if size > FILE_BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    find::with_found(paths, at, Follow::Yes, caller, buffer, |attributes| {
        if attributes.is_directory() {
            return Err(Errno::EISDIR);
        }
        if !attributes.is_regular() {
            return Err(Errno::EINVAL);
        }
        permission::permits(&paths.transport, attributes, caller, want::WRITE)?;
        set_id::take_capability(&paths.transport, attributes)?;
        let host = paths.transport.host()?;
        let index = host.vnode_open(attributes.inode)?;
        let file = File::of(attributes);
        let changed = host.vnode(index).and_then(|vnode| {
            maps::check_kernel_maps(&paths.transport, vnode)?;
            set_size_of(&paths.transport, vnode, &file, size, 0, caller)
        });
        vnodes::close_vnode(&paths.transport, attributes.inode, index, false);
        changed?;
        page_caches::invalidate_of(&paths.transport, attributes.inode)
    })
}

/// `ftruncate(2)`.
pub(crate) fn ftruncate(transport: &Transport, ofd: OfdIndex, size: u64) -> Result<()> {
    if size > FILE_BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    let open = match open_file::open_for(transport, ofd, want::WRITE) {
        // A descriptor of a file that cannot be written at all.
        Err(Errno::EISDIR) => return Err(Errno::EINVAL),
        Err(Errno::EBADF) if open_file::by_index(transport, ofd).is_ok() => {
            return Err(Errno::EINVAL);
        }
        open => open?,
    };
    set_id::take_capability_open(transport, &open)?;
    set_size(transport, &open, size)
}
