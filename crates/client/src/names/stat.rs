//! Attributes by path and of open files, and access checks.

use core::sync::atomic::Ordering::SeqCst;
use wire::attributes::{spread, want};
use wire::errno::{Errno, Result};
use wire::{Attributes, Credentials, Inode, Reply, Request, ShardIndex};

use crate::OfdIndex;
use crate::file::layout::File;
use crate::file::{layout, open_file, size};
use crate::lookup::path::{At, Follow, Outcome, PathBuffer};
use crate::lookup::result::LookupMode;
use crate::lookup::{PathLookup, find, inodes, permission};
use crate::open::Files;
use crate::transport::Transport;
use crate::transport::errno::by_descriptor;
use crate::transport::request::{Destination, own_credentials};

/// Device number of the files of every instance: "FB" as major number, which no driver has.
const DEVICE_MAJOR: u64 = 0xfb;

/// `stat(2)`, `lstat(2)`, `statx(2)`.
pub(crate) fn stat(
    files: &Files,
    at: At<'_>,
    follow: Follow,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<Attributes>> {
    stat_with(files, at, follow, caller, buffer, |attributes| Ok(*attributes))
}

/// As `stat`, with attributes that are not copied.
pub(crate) fn stat_with<R>(
    files: &Files,
    at: At<'_>,
    follow: Follow,
    caller: &Credentials,
    buffer: &mut PathBuffer,
    with: impl FnOnce(&Attributes) -> Result<R>,
) -> Result<Outcome<R>> {
    let mut with = Some(with);
    find::with_walked(
        files.paths(),
        at,
        (follow, LookupMode::ResolveSettled),
        caller,
        buffer,
        |walk| {
            let found = walk.existing()?;
            let is_current = walk.is_settled
                && !(found.is_directory() && has_entries_elsewhere(files.transport(), found)?);
            let refreshed = if is_current { None } else { refreshed(files, found)? };
            let with = with.take().ok_or(Errno::EIO)?;
            with(refreshed.as_ref().unwrap_or(found))
        },
    )
}

/// `fstat(2)`.
pub(crate) fn fstat(files: &Files, ofd: OfdIndex) -> Result<Attributes> {
    let attributes = open_file::attributes_open(files.transport(), ofd)?;
    Ok(by_descriptor(refreshed(files, &attributes))?.unwrap_or(attributes))
}

/// The attributes after this host's changes were reported to the shard, so that size and
/// modification time include the last write, or the last name. `None` if they are unchanged.
fn refreshed(files: &Files, attributes: &Attributes) -> Result<Option<Attributes>> {
    if attributes.is_directory() {
        if has_entries_elsewhere(files.transport(), attributes)? {
            return asked_directory(files, attributes.inode).map(Some);
        }
        if files.transport().mount() != 0 {
            return refreshed_directory(files, attributes).map(Some);
        }
        if !files.transport().may_have_local_ops(attributes.inode.shard()) {
            return reread(files.transport(), attributes);
        }
        // Pending creations and removals change its time and size.
        return asked_directory(files, attributes.inode).map(Some);
    }
    if !attributes.is_regular() {
        return Ok(None);
    }
    let host = files.transport().host()?;
    let Some(found) = host.vnode_find(attributes.inode) else {
        return reread(files.transport(), attributes);
    };
    if host.vnode(found)?.dirty_end.load(SeqCst) != 0 {
        size::flush_if_open(files.transport(), attributes.inode)?;
    }
    // Reported by this call, or by another after the attributes were read.
    inodes::attributes_of(files.transport(), attributes.inode).map(Some)
}

/// As `refreshed`, in a mount: the mount's own pending operations are no reason to wait.
fn refreshed_directory(files: &Files, read: &Attributes) -> Result<Attributes> {
    let (inode, last) = (read.inode, files.recent.last(read.inode));
    let at_hand = files.transport().service_of(inode.shard()).and_then(|service| {
        let own = service.by.welcome.session;
        let others = service.by.op_log.has_any_of_others(own, service.worker);
        let is_known = last.is_some() || !service.by.op_log.has_any(service.worker);
        (!others && is_known).then(|| service.inode(inode)).flatten()
    });
    let Some(now) = at_hand else { return asked_directory(files, inode) };
    Ok(with_recent(files, now))
}

/// The attributes as the shard has them after it applied all pending local operations, and asked the
/// services with entries of the directory.
fn asked_directory(files: &Files, inode: Inode) -> Result<Attributes> {
    let now = inodes::queried_attributes(files.transport(), inode)?;
    Ok(with_recent(files, now))
}

/// With the time of the last operation of this mount on the directory, which may be pending.
fn with_recent(files: &Files, mut now: Attributes) -> Attributes {
    if files.transport().mount() != 0
        && let Some(last) = files.recent.last(now.inode).filter(|last| now.changed < *last)
    {
        (now.modified, now.changed) = (now.modified.max(last), last);
    }
    now
}

/// True if another service than that of the directory's inode may have entries of it: the inode's
/// service then learns of their changes later, or when it is asked.
fn has_entries_elsewhere(transport: &Transport, directory: &Attributes) -> Result<bool> {
    if spread::wide_below(directory.layout.spread) != 0 {
        return Ok(true);
    }
    let home = transport.attached_home().ok_or(Errno::EIO)?;
    let service = |shard| home.map.service(shard, home.workers());
    let place = ShardIndex(directory.layout.place);
    Ok(service(place) != service(directory.inode.shard()))
}

/// No change of this file is in flight now, but one that was when its attributes were read, and
/// finished since, is missing in them. Attributes of a remote shard are left as they are.
fn reread(transport: &Transport, read: &Attributes) -> Result<Option<Attributes>> {
    let Some(service) = transport.service_of(read.inode.shard()) else { return Ok(None) };
    match service.inode(read.inode) {
        // A directory's attributes came by a message, and would again.
        None if read.is_directory() => Ok(None),
        None => inodes::attributes_of(transport, read.inode).map(Some),
        now => Ok(now),
    }
}

/// `access(2)`, `faccessat2(2)`: bits `R_OK`, `W_OK`, `X_OK`, or none for existence. `caller`
/// has the real ids unless `AT_EACCESS` is given.
pub(crate) fn access(
    paths: &PathLookup,
    at: At<'_>,
    access: u32,
    follow: Follow,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    check_access(access)?;
    find::look_up(paths, at, follow, caller, buffer)?
        .and(|attributes| permission::permits(&paths.transport, attributes, caller, access))
}

/// `faccessat2(2)` with an empty path.
pub(crate) fn faccess(
    transport: &Transport,
    ofd: OfdIndex,
    access: u32,
    caller: &Credentials,
) -> Result<()> {
    check_access(access)?;
    permission::permits(transport, &open_file::attributes_open(transport, ofd)?, caller, access)
}

/// Finds a directory that the caller may change into.
pub(crate) fn find_directory(
    paths: &PathLookup,
    at: At<'_>,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<Attributes>> {
    find::look_up(paths, at, Follow::Yes, caller, buffer)?.and(|attributes| {
        if !attributes.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        permission::permits(&paths.transport, attributes, caller, want::EXECUTE)?;
        Ok(*attributes)
    })
}

/// `st_dev` of every file of the instance.
pub(crate) fn device() -> u64 {
    // As the kernel's `makedev`: major in bits 8 to 19, minor in bits 0 to 7.
    DEVICE_MAJOR << 8 | 1
}

/// Bytes that a file occupies, for `st_blocks`: its size, or the sum over its targets if it may
/// have holes, in pages. One message per target; the size if one does not answer.
pub(crate) fn usage(transport: &Transport, attributes: &Attributes) -> u64 {
    let size = attributes.shown_size();
    if !attributes.is_regular() || attributes.is_inline() || !attributes.is_sparse() {
        return size;
    }
    usage_of(transport, &File::of(attributes), size).unwrap_or(size)
}

fn usage_of(transport: &Transport, file: &File, size: u64) -> Result<u64> {
    if size == 0 {
        return Ok(0);
    }
    let caller = own_credentials();
    let mut sum = 0u64;
    layout::each_target(transport, file, 0, size, &mut |target| {
        let request = Request::Usage { inode: file.inode, end: size };
        transport.call(Destination::Target(target), &request, &caller)?.with(|reply| match reply {
            Reply::Number { value } => {
                sum = sum.saturating_add(value);
                Ok(())
            }
            _ => Err(Errno::EIO),
        })
    })?;
    Ok(sum)
}

fn check_access(access: u32) -> Result<()> {
    if access & !(want::READ | want::WRITE | want::EXECUTE) == 0 {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}
