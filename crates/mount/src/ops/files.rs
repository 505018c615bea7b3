//! Open files. A handle stands for an open file in the host's table, as descriptors of preloaded
//! programs do.

use client::{At, OfdIndex, Opened, Outcome, PageCacheGrant, Position};
use fuse::abi::flag;
use fuse::abi::open as answer;
use fuse::reply;
use fuse::reply::Validity;
use std::time::Duration;
use wire::Inode;
use wire::codec::Writer;
use wire::errno::{Errno, Result};

use crate::kernel_cache::page_versions::CachedPages;
use crate::kernel_cache::watches::VALID;
use crate::ops::entries::stale;
use crate::ops::request::{Request, Scratch, within};
use crate::ops::{entries, handover, lookup, page_cache, records};
use crate::server::Server;
use crate::users::callers;

/// Access mode among the flags of an open.
const ACCESS: u32 = libc::O_ACCMODE as u32;

/// Flags with which bytes bypass the page cache: on request, or because only the instance knows the
/// end of the file.
const DIRECT_FLAGS: u32 = (libc::O_DIRECT | libc::O_APPEND) as u32;

/// True if the kernel opens a file for writing.
pub(crate) const fn writes(flags: u32) -> bool {
    flags & ACCESS != libc::O_RDONLY as u32
}

/// True for direct I/O: an open for writing only saves a copy that way. One that also reads uses the
/// page cache, also for what it wrote itself, and in a new file.
const fn is_direct(flags: u32) -> bool {
    flags & ACCESS == libc::O_WRONLY as u32 || flags & DIRECT_FLAGS != 0
}

/// Flags without those that the kernel has carried out: it follows links itself.
const fn own(flags: u32) -> u32 {
    flags & !(libc::O_NOFOLLOW as u32)
}

/// `keep_cache`: `None`, direct I/O; `Some`, the page cache is used, and whether pages cached
/// before stay valid.
fn reply_opened(
    request: &Request<'_>,
    (handle, inode): (u64, Inode),
    flags: u32,
    keep_cache: Option<bool>,
    to: &mut Writer<'_>,
) {
    if keep_cache.is_none() && writes(flags) {
        request.server.direct_io.add(inode, handle);
    }
    let mut said = match keep_cache {
        None => answer::DIRECT_IO | answer::PARALLEL_DIRECT_WRITES,
        Some(false) => 0,
        Some(true) => answer::KEEP_CACHE,
    };
    // A flush matters only if ranges of the file were locked, and costs half as much as an open
    // and a close together.
    if !writes(flags) && !request.server.locks.has_been_locked(inode) {
        said |= answer::NOFLUSH;
    }
    reply::opened(to, handle, said, 0);
}

pub(crate) fn open(
    request: &Request<'_>,
    flags: u32,
    kills_ids: bool,
    to: &mut Writer<'_>,
) -> Result<()> {
    let mut granted = None;
    let is_direct =
        is_direct(flags) || writes(flags) && request.server.direct_io.has(request.node());
    let file = if is_direct {
        open_node(request, flags)?
    } else {
        let granted = granted.insert(PageCacheGrant::default());
        let client = request.server.client;
        let opened =
            client.open_inode_for_pages(request.node(), own(flags), granted, &request.caller());
        within(opened.map_err(stale)?)?
    };
    if kills_ids {
        let _ = kill_ids(request, file.ofd);
    }
    if request.server.write_through.has(request.node()) {
        request.server.client.set_write_through(file.ofd);
    }
    let keep_cache = granted.and_then(|granted| may_cache_pages_of(request, file, flags, &granted));
    let opened = (add_handle(request, file, flags)?, request.node());
    reply_opened(request, opened, flags, keep_cache, to);
    Ok(())
}

/// A handle of a file that was opened. Pages that the kernel writes later are those of this process.
fn add_handle(request: &Request<'_>, file: Opened, flags: u32) -> Result<u64> {
    let Server { handles, callers, client, .. } = request.server;
    let handle = handles.add(file.ofd)?;
    if writes(flags) {
        callers.note_opener(client, handle);
    }
    Ok(handle)
}

/// Whether the kernel may cache pages of a file that is being opened. `None`: no.
/// `Some(false)`: yes, but pages cached before are stale.
fn may_cache_pages_of(
    request: &Request<'_>,
    file: Opened,
    flags: u32,
    granted: &PageCacheGrant,
) -> Option<bool> {
    let client = request.server.client;
    if !client.may_cache_pages(file.ofd, granted) {
        return None;
    }
    // An empty file has no pages, and the kernel would not send a read of it.
    let now = granted.attributes.or_else(|| client.fstat(file.ofd).ok());
    let now = now.filter(|now| now.size != 0 || writes(flags))?;
    let cached_pages =
        request.server.page_versions.cached_pages(now.inode, now.changed, granted.writers);
    if !records::is_read_late(&now, flags) {
        return Some(cached_pages != CachedPages::Stale);
    }
    // The access time is due. Reads of pages that were written are not sent, so it is noted
    // now.
    if cached_pages == CachedPages::Written {
        records::note_read(request, flags);
        page_cache::forget_attributes(request.server, request.node());
    }
    Some(cached_pages == CachedPages::Written)
}

/// Opens the node in the instance.
pub(crate) fn open_node(request: &Request<'_>, flags: u32) -> Result<Opened> {
    let opened = request.server.client.open_inode(request.node(), own(flags), &request.caller());
    within(opened.map_err(stale)?)
}

pub(crate) fn create(
    request: &Request<'_>,
    name: &[u8],
    flags: u32,
    mode: u32,
    kills_ids: bool,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, caller) = (request.server.client, request.caller());
    let flags = flags | (libc::O_CREAT | libc::O_NOFOLLOW) as u32;
    let entry = if lookup::watch_name(request, name) { VALID } else { Duration::ZERO };
    let new = flags | libc::O_EXCL as u32;
    let made = match client.open(request.child(name), new, mode, &caller, &mut scratch.path) {
        Err(Errno::EEXIST) if flags != new => open_existing(request, name, (flags, mode), scratch)?,
        made => made?,
    };
    let file = match made {
        Outcome::Done(file) => file,
        Outcome::Outside => return Err(Errno::EIO),
        // The kernel opens it itself once it knows its type.
        Outcome::Special(_) => return Err(Errno::ESTALE),
    };
    if kills_ids {
        let _ = client.kill_set_id(file.ofd, |gid| callers::may_keep_set_gid(request, gid));
    }
    reply_created(request, file, flags, (name, entry), to)
}

/// Opens a file that did not exist at the kernel's lookup, so the kernel has not checked
/// permissions. It is opened with the caller's own credentials. If these cannot be known or do
/// not suffice, the kernel looks the name up again.
fn open_existing(
    request: &Request<'_>,
    name: &[u8],
    (flags, mode): (u32, u32),
    scratch: &mut Scratch,
) -> Result<Outcome<Opened>> {
    let caller = callers::unchecked_caller(request).ok_or(Errno::ESTALE)?;
    let met =
        request.server.client.open(request.child(name), flags, mode, &caller, &mut scratch.path);
    met.map_err(|errno| match errno {
        Errno::EACCES | Errno::EPERM | Errno::ELOOP => Errno::ESTALE,
        other => other,
    })
}

/// The reply includes the new name and how long it may be cached.
fn reply_created(
    request: &Request<'_>,
    file: Opened,
    flags: u32,
    (name, entry): (&[u8], Duration),
    to: &mut Writer<'_>,
) -> Result<()> {
    let client = request.server.client;
    let inode = client.inode_of(file.ofd)?;
    let handle = add_handle(request, file, flags)?;
    if client.is_write_through(file.ofd) {
        request.server.write_through.note(inode, true);
    }
    let is_noted = lookup::note_watch(request, inode);
    let (made, is_sole_writer) =
        match client.attributes_of_created(file.ofd, name, &request.caller()) {
            Some((attributes, is_sole_writer)) => (Ok(attributes), is_sole_writer),
            None => (client.fstat(file.ofd), client.has_sole_writer(inode)),
        };
    match made {
        Ok(attributes) => {
            let valid = if is_noted && is_sole_writer { VALID } else { Duration::ZERO };
            let validity = Validity { entry, attributes: valid };
            entries::entry(request, &attributes, validity).write(to);
            let granted = if is_direct(flags) { None } else { client.grant_of_new(file.ofd).ok() };
            let keep_cache = granted.map(|granted| {
                // So that the next open finds them current.
                let (changed, writers) = (attributes.changed, granted.writers);
                request.server.page_versions.cached_pages(inode, changed, writers);
                false
            });
            reply_opened(request, (handle, inode), flags, keep_cache, to);
            Ok(())
        }
        Err(errno) => {
            let _ = request.server.handles.close(handle);
            Err(errno)
        }
    }
}

pub(crate) fn temporary_file(
    request: &Request<'_>,
    flags: u32,
    mode: u32,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, caller) = (request.server.client, request.caller());
    let flags = flags | libc::O_TMPFILE as u32;
    let at = At::itself(request.node());
    let file = within(client.open(at, flags, mode, &caller, &mut scratch.path)?)?;
    reply_created(request, file, flags, (b"", Duration::ZERO), to)
}

pub(crate) fn read(
    request: &Request<'_>,
    handle: u64,
    (offset, size): (u64, u32),
    flags: u32,
    to: &mut Writer<'_>,
) -> Result<()> {
    let ofd = request.opened(handle)?;
    let client = request.server.client;
    let mut count = 0;
    page_cache::read_pages(request, ofd, (offset, size, flags), || {
        to.fill(size as usize, |buffer| {
            count = client.read(ofd, buffer, Position::At(offset))?;
            Ok(count)
        })
    })?;
    handover::note_moved(request, handle, offset, count);
    records::note_read(request, client.flags(ofd)?);
    Ok(())
}

pub(crate) fn write(
    request: &Request<'_>,
    handle: u64,
    offset: u64,
    flags: u32,
    data: &[u8],
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, ofd) = (request.server.client, request.opened(handle)?);
    if flags & flag::WRITE_KILL_SUIDGID != 0 {
        kill_ids(request, ofd)?;
    }
    let write = || client.write(ofd, data, Position::At(offset));
    let count = page_cache::write_pages(request, ofd, (offset, data.len() as u64, flags), write)?;
    handover::note_moved(request, handle, offset, count);
    reply::count(to, count as u32);
    Ok(())
}

/// Clears set-id bits that must not survive an open or write. The kernel requests that but
/// keeps the old mode in its cache, so the attributes are invalidated.
fn kill_ids(request: &Request<'_>, ofd: OfdIndex) -> Result<()> {
    if request.server.client.kill_set_id(ofd, |gid| callers::may_keep_set_gid(request, gid))? {
        page_cache::forget_attributes(request.server, request.node());
    }
    Ok(())
}

/// The last descriptor is closed. An error cannot be reported any more: `flush` came before.
pub(crate) fn release(request: &Request<'_>, handle: u64) -> Result<()> {
    request.server.direct_io.remove(request.node(), handle);
    request.server.callers.forget_opener(handle);
    request.server.handles.close(handle)
}

pub(crate) fn allocate(
    request: &Request<'_>,
    handle: u64,
    offset: u64,
    length: u64,
    mode: u32,
) -> Result<()> {
    let file = request.opened(handle)?;
    // The kernel does not say here whether the bits must be cleared.
    if !request.is_of_root() {
        kill_ids(request, file)?;
    }
    request.server.client.allocate(file, mode, offset, length)
}

pub(crate) fn seek(
    request: &Request<'_>,
    handle: u64,
    offset: u64,
    whence: u32,
    to: &mut Writer<'_>,
) -> Result<()> {
    let found =
        request.server.client.seek(request.opened(handle)?, offset.cast_signed(), whence)?;
    reply::offset(to, found);
    Ok(())
}
