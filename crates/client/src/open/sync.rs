//! Syncing open files to their devices, and reporting sizes to the shards.

use core::sync::atomic::Ordering::Relaxed;
use placement::locate::entry_shard;
use wire::attributes::{mode, spread};
use wire::errno::{Errno, Result};
use wire::hash::NameHash;
use wire::limits::{DAEMON_COUNT_MAX, SHARD_COUNT, WORKER_COUNT_MAX};
use wire::{Inode, Request, ShardIndex};

use crate::file::layout::File;
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
// Of each daemon a bit for each worker is noted.
const _: () = assert!(WORKER_COUNT_MAX <= u16::BITS as usize);

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
    match open.mode() & mode::TYPE {
        mode::REGULAR => {}
        mode::DIRECTORY => return replicate_directory(transport, open.inode),
        _ => return Ok(()),
    }
    write_behind::settle_all(transport, &open)?;
    by_descriptor(size::flush(transport, open.vnode, open.inode))?;
    let file = open.file();
    let size = size::size_now(transport, &open)?;
    if !file.is_inline() && size > 0 {
        flush_targets(transport, &file, size)?;
    }
    // At last, so that the size that was reported is among the changes.
    replicate(transport, open.inode.shard())
}

/// Flushes the bytes of a file to the devices of its targets.
fn flush_targets(transport: &Transport, file: &File, size: u64) -> Result<()> {
    let caller = own_credentials();
    let mut reached = 0u32;
    layout::each_target(transport, file, 0, size, &mut |target| {
        reached = reached.saturating_add(1);
        if reached > TARGETS_FLUSHED_MAX {
            return Ok(());
        }
        let request = Request::Flush { inode: file.inode };
        ignore_gone(transport.call_done(Destination::Target(target), &request, &caller))
    })
}

/// Waits until the followers of the service of a shard have all of its changes so far.
fn replicate(transport: &Transport, shard: ShardIndex) -> Result<()> {
    if !transport.has_followers.load(Relaxed) {
        return Ok(());
    }
    let to = Destination::Shard(shard);
    transport.call_done(to, &Request::Replicate {}, &own_credentials())
}

/// As `replicate`, of the directory's inode and of all of its entries.
fn replicate_directory(transport: &Transport, inode: Inode) -> Result<()> {
    if !transport.has_followers.load(Relaxed) {
        return Ok(());
    }
    let to = Destination::Shard(inode.shard());
    let request = Request::GetAttributes { inode };
    let found = match transport.call_attributes(to, &request, &own_credentials()) {
        // It was removed, and has no entries.
        Err(Errno::ESTALE) => return replicate(transport, inode.shard()),
        found => found?,
    };
    if spread::wide_below(found.layout.spread) != 0 {
        return replicate_all(transport);
    }
    replicate(transport, inode.shard())?;
    let entries = entry_shard(&found, NameHash(0));
    let home = transport.home()?;
    let service = |shard| home.map.service(shard, home.workers());
    if service(entries) == service(inode.shard()) { Ok(()) } else { replicate(transport, entries) }
}

/// As `replicate`, of all services.
fn replicate_all(transport: &Transport) -> Result<()> {
    if !transport.has_followers.load(Relaxed) {
        return Ok(());
    }
    let home = transport.home()?;
    let (map, workers) = (&home.map, home.workers());
    let (mut asked, mut outcome) = ([0_u16; DAEMON_COUNT_MAX as usize], Ok(()));
    for shard in (0..SHARD_COUNT).map(ShardIndex) {
        let service = map.service(shard, workers);
        let bit = 1_u16.checked_shl(service.worker.into()).unwrap_or(0);
        let of_daemon = asked.get_mut(usize::from(service.first.0)).ok_or(Errno::EIO)?;
        if *of_daemon & bit == 0 {
            *of_daemon |= bit;
            if let Err(errno) = replicate(transport, shard) {
                // Its other services would take as long to say the same, those of other daemons not.
                *of_daemon = u16::MAX;
                outcome = Err(errno);
            }
        }
    }
    outcome
}

/// After a write by an open file description with `O_SYNC` or `O_DSYNC`.
///
/// # Errors
/// As `sync`.
#[inline]
pub(crate) fn settle_write(transport: &Transport, ofd: OfdIndex) -> Result<()> {
    if transport.has_followers.load(Relaxed) { settle_followed(transport, ofd) } else { Ok(()) }
}

#[cold]
fn settle_followed(transport: &Transport, ofd: OfdIndex) -> Result<()> {
    let is_sync = open_file::by_index(transport, ofd)?.flags() & o::ANY_SYNC != 0;
    if is_sync { sync_in_instance(transport, ofd) } else { Ok(()) }
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
    by_descriptor(size::flush(transport, open.vnode, open.inode)).and(settled)
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
    outcome.and_then(|()| replicate_all(transport))
}
