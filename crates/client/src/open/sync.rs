//! Syncing open files to their devices, and reporting sizes to the shards.

use wire::Request;
use wire::attributes::mode;
use wire::errno::{Errno, Result};

use crate::file::open_file::{mark, o};
use crate::file::{layout, open_file, size};
use crate::io::write_behind;
use crate::open::{descriptors, write_through};
use crate::transport::Transport;
use crate::transport::errno::{by_descriptor, ignore_gone};
use crate::transport::request::{Destination, own_credentials};
use crate::{OfdIndex, ProcessIndex};

/// Most targets that one fsync reaches. A file on more of them is on more nodes than an fsync of a
/// temporary instance can promise anything about.
const TARGETS_FLUSHED_MAX: u32 = 64;

/// `fsync(2)`, `fdatasync(2)`.
pub(crate) fn sync(transport: &Transport, ofd: OfdIndex) -> Result<()> {
    sync_in_instance(transport, ofd)?;
    let open = open_file::by_index(transport, ofd)?;
    if open.has(mark::WRITE_THROUGH) {
        write_through::await_clean(transport, open.inode)
    } else {
        Ok(())
    }
}

/// As `sync`, without waiting for writeback to the backing store.
pub(crate) fn sync_in_instance(transport: &Transport, ofd: OfdIndex) -> Result<()> {
    let open = open_file::by_index(transport, ofd)?;
    if open.flags() & o::PATH != 0 {
        return Err(Errno::EBADF);
    }
    if open.mode() & mode::TYPE != mode::REGULAR {
        return Ok(());
    }
    write_behind::settle_all(transport, &open)?;
    by_descriptor(size::flush(transport, open.vnode, open.inode))?;
    let file = open.file();
    let size = size::size_now(transport, &open)?;
    if file.is_inline() || size == 0 {
        return Ok(());
    }
    let caller = own_credentials();
    let mut reached = 0u32;
    layout::each_target(transport, &file, 0, size, &mut |target| {
        reached = reached.saturating_add(1);
        if reached > TARGETS_FLUSHED_MAX {
            return Ok(());
        }
        let request = Request::Flush { inode: file.inode };
        ignore_gone(transport.call_done(Destination::Target(target), &request, &caller))
    })
}

/// The part of a close that others can observe: waits for writes in flight and reports the
/// size.
pub(crate) fn report_size(transport: &Transport, ofd: OfdIndex) -> Result<()> {
    let open = open_file::by_index(transport, ofd)?;
    if !open.is_writable() {
        return Ok(());
    }
    let settled = write_behind::settle_all(transport, &open);
    if transport.has_one_host() && transport.is_local_shard(open.inode.shard()) == Ok(true) {
        // All readers are on this host and see the size in shared memory.
        return settled;
    }
    ignore_gone(size::flush(transport, open.vnode, open.inode)).and(settled)
}

/// `sync(2)`, `syncfs(2)`: syncs all files that `process` has open.
pub(crate) fn sync_all(transport: &Transport, process: ProcessIndex) -> Result<()> {
    let mut outcome = Ok(());
    descriptors::for_each_fd(transport, process, &mut |_, ofd, _| {
        let may = open_file::by_index(transport, ofd).is_ok_and(|open| open.is_writable());
        if may && outcome.is_ok() {
            outcome = sync(transport, ofd);
        }
    });
    outcome
}
