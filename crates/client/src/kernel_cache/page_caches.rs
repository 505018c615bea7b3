//! Page caches of kernels behind mounts: when a kernel may cache pages of a file, and their
//! invalidation.
//!
//! Marks in the vnode of an open file record its writers on this host, the mounts whose kernels may
//! cache pages of it, and the uses by other hosts (`shm::host::watches::pages`). Uses by other
//! hosts of a file that is not open here are recorded beside the vnodes (`shm::host::pages`), on
//! the host of its shard. A process that opens a file of a remote shard learns them from the shard.
//!
//! Two orders make sure that of any two sides at least one sees the other. A new writer marks its
//! vnode, is counted among the writers ever, then looks for page caches; a kernel that starts
//! caching reads that count, marks its vnode, then looks for writers. A writer looks for page
//! caches after its bytes are written; a kernel that fills pages marks its vnode before it reads.
//!
//! Stores by a mapping of the arena look for nothing. So a process that maps a file for writing
//! marks its vnode and has page caches invalidated before it has the mapping; from then on mounts of
//! its host drop pages as soon as they have read them.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use shm::host::watches::pages;
use shm::host::{HostSegment, Vnode};
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::reply::opened;
use wire::request::open;
use wire::{Attributes, Credentials, Inode, Reply, Request};

use crate::OfdIndex;
use crate::file::open_file;
use crate::file::open_file::{OpenFile, o};
use crate::kernel_cache::writers;
use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};

/// Reply to an open on behalf of a kernel that wants to cache pages of the file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageCacheGrant {
    /// The file's attributes, if its shard is remote.
    pub attributes: Option<Attributes>,
    /// Number of writers ever, before this open and including it. If it equals the number of an
    /// earlier open, nobody wrote in between. `u64::MAX`: unknown.
    pub writers: (u64, u64),
    /// The remote shard permits caching; true for local shards.
    may: bool,
}

impl PageCacheGrant {
    /// For a file of a local shard, with the counts of writers before and after the open.
    pub(crate) fn of_local(before: u64, now: u64, writes: bool) -> PageCacheGrant {
        let is_only = now == before.wrapping_add(u64::from(writes));
        let writers = if is_only { (before, now) } else { (u64::MAX, u64::MAX) };
        PageCacheGrant { attributes: None, writers, may: true }
    }
}

/// Registers an open file with its remote shard, after its open count was raised. `extra`:
/// additional bits of `wire::request::open`.
pub(crate) fn register_open(
    transport: &Transport,
    (inode, vnode): (Inode, &Vnode),
    (flags, extra): (u32, u8),
    caller: &Credentials,
) -> Result<(Attributes, PageCacheGrant)> {
    let open_sequence = transport.host()?.next_open_sequence();
    let writes = flags & o::ACCESS != 0 && flags & o::PATH == 0;
    if writes {
        writers::mark_writer(transport, vnode);
    }
    let uses = extra | if writes { open::WRITES } else { 0 };
    let request = Request::Open { inode, open_sequence, uses };
    let answer = transport.call(Destination::Shard(inode.shard()), &request, caller)?;
    let (attributes, writers, others) = answer.with(|reply| match reply {
        Reply::Opened { attributes, writers, others } => Ok((attributes, writers, others)),
        _ => Err(Errno::EIO),
    })?;
    if others & opened::OTHERS_CACHE != 0 {
        vnode.marks.fetch_or(pages::OTHERS_CACHE, SeqCst);
    }
    if extra & open::MAPS != 0 && others & opened::OTHERS_WRITE != 0 {
        vnode.marks.fetch_or(pages::OTHERS_WRITE, SeqCst);
    }
    let may = others & opened::MAY_CACHE != 0;
    let writers = (writers, writers.wrapping_add(u64::from(writes)));
    Ok((attributes, PageCacheGrant { attributes: Some(attributes), writers, may }))
}

/// Counts a new writer of a file of a local shard, whose vnode is marked already. Returns true
/// if some kernel may cache pages of the file.
pub(crate) fn begin_writing(transport: &Transport, inode: Inode, vnode: &Vnode) -> Result<bool> {
    let host = transport.host()?;
    host.begin_writing(inode);
    let own = pages::cachers_except(vnode.marks.load(SeqCst), transport.mount());
    Ok(own != 0 || host.remote_use(inode) & opened::OTHERS_CACHE != 0)
}

/// Invalidates everything that kernels cache of a file, pages included, except the kernel of
/// this mount.
///
/// # Errors
/// As `call`.
pub(crate) fn unwatch_file(
    transport: &Transport,
    inode: Inode,
    vnode: Option<&Vnode>,
) -> Result<()> {
    let (to, request) = (Destination::Shard(inode.shard()), Request::Unwatch { inode });
    let others = transport.call(to, &request, &own_credentials())?.with(|reply| match reply {
        Reply::Number { value } => Ok(value),
        _ => Err(Errno::EIO),
    })?;
    if let Some(vnode) = vnode.filter(|_| others & u64::from(opened::OTHERS_CACHE) != 0) {
        vnode.marks.fetch_or(pages::OTHERS_CACHE, SeqCst);
    }
    Ok(())
}

/// True if, by the marks, nobody but this mount writes to a file.
fn is_sole_writer(transport: &Transport, marks: u64) -> bool {
    writers::is_sole_local_writer(transport, marks) && marks & pages::OTHERS_WRITE == 0
}

fn others_write(transport: &Transport, inode: Inode) -> bool {
    let uses = transport.host().map_or(opened::OTHERS_WRITE, |host| host.remote_use(inode));
    uses & opened::OTHERS_WRITE != 0
}

/// Whether the kernel of this mount may cache pages of the file opened by `ofd`: not while
/// others write to it.
pub(crate) fn may_cache_pages(
    transport: &Transport,
    ofd: OfdIndex,
    granted: &PageCacheGrant,
) -> bool {
    let Ok(open) = open_file::by_index(transport, ofd) else { return false };
    let Ok(is_local_shard) = transport.is_local_shard(open.inode.shard()) else { return false };
    if open.mode() & mode::TYPE != mode::REGULAR
        || !granted.may
        || is_local_shard && others_write(transport, open.inode)
    {
        return false;
    }
    // It may still have pages from before.
    let entered = if is_local_shard { 0 } else { pages::ENTERED };
    let own = pages::EVER | pages::cacher(transport.mount()) | entered;
    let marked = |marks| is_sole_writer(transport, marks).then_some(marks | own);
    if open.vnode.marks.fetch_update(SeqCst, SeqCst, marked).is_err() {
        return false;
    }
    if !is_local_shard {
        return true;
    }
    // A later writer finds the mark, and a shard that leaves this host later.
    let may = !others_write(transport, open.inode) && transport.answers_here(open.inode.shard());
    if may {
        open.vnode.marks.fetch_or(pages::ENTERED, SeqCst);
    }
    may
}

/// Grants the kernel of this mount to cache pages of a file that it just created, and which is open.
/// Nothing is recorded before the first page is filled (`note_page_fill`): most new files have none.
pub(crate) fn grant_of_new(transport: &Transport, ofd: OfdIndex) -> Result<PageCacheGrant> {
    let inode = open_file::by_index(transport, ofd)?.inode;
    let writers = match transport.is_local_shard(inode.shard())? {
        true => transport.host()?.writers_ever(inode),
        false => u64::MAX,
    };
    Ok(PageCacheGrant { attributes: None, writers: (writers, writers), may: true })
}

/// Records, before bytes are read into pages of this mount's kernel or written to pages that it
/// has, that it caches pages.
pub(crate) fn note_page_fill(transport: &Transport, ofd: OfdIndex) -> Result<()> {
    let open = open_file::by_index(transport, ofd)?;
    let own = pages::EVER | pages::cacher(transport.mount()) | pages::ENTERED;
    let marks = open.vnode.marks.load(SeqCst);
    if marks & own == own {
        return Ok(());
    }
    if marks & pages::ENTERED == 0 {
        register_page_fill(transport, &open)?;
    }
    open.vnode.marks.fetch_or(own, SeqCst);
    Ok(())
}

/// Pages are filled of a file that may not be cached: by a mapping, possibly beside other
/// writers.
#[cold]
fn register_page_fill(transport: &Transport, open: &OpenFile<'_>) -> Result<()> {
    if transport.is_local_shard(open.inode.shard())? {
        // A later writer on another host is told of it.
        open.vnode.marks.fetch_or(pages::EVER | pages::cacher(transport.mount()), SeqCst);
        if !others_write(transport, open.inode) && transport.answers_here(open.inode.shard()) {
            return Ok(());
        }
    }
    let to = (open.inode, open.vnode);
    register_open(transport, to, (0, open::MAPS), &own_credentials()).map(drop)
}

/// True if the kernel of this mount may have pages of a file.
pub(crate) fn has_cached_pages(transport: &Transport, ofd: OfdIndex) -> Result<bool> {
    Ok(open_file::by_index(transport, ofd)?.vnode.marks.load(SeqCst)
        & pages::cacher(transport.mount())
        != 0)
}

/// Records, before it exists, that a process of this host maps a file for writing without the
/// kernel.
///
/// # Errors
/// As `call`.
pub(crate) fn note_silent_stores(transport: &Transport, open: &OpenFile<'_>) -> Result<()> {
    open.vnode.marks.fetch_or(pages::STORED, SeqCst);
    invalidate(transport, open)
}

/// True if programs of this host may store into a file of which this mount's kernel may have pages,
/// without telling anybody.
pub(crate) fn has_silent_stores(transport: &Transport, ofd: OfdIndex) -> Result<bool> {
    let marks = open_file::by_index(transport, ofd)?.vnode.marks.load(SeqCst);
    Ok(marks & pages::STORED != 0 && marks & pages::cacher(transport.mount()) != 0)
}

/// True if others write to a file of which this mount's kernel may have pages.
pub(crate) fn shares_cached_pages(transport: &Transport, ofd: OfdIndex) -> Result<bool> {
    let marks = open_file::by_index(transport, ofd)?.vnode.marks.load(SeqCst);
    Ok(marks & pages::cacher(transport.mount()) != 0 && !is_sole_writer(transport, marks))
}

/// Records that the kernel of this mount has dropped all pages of a file.
pub(crate) fn forget_cached_pages(transport: &Transport, inode: Inode) {
    let Ok(host) = transport.host() else { return };
    if let Some(entry) = host.vnode_find(inode).and_then(|entry| host.vnode(entry).ok()) {
        entry.marks.fetch_and(!pages::cacher(transport.mount()), SeqCst);
    }
}

/// Invalidates the pages that kernels of other mounts cache of an open file whose bytes
/// changed.
///
/// # Errors
/// As `call`.
#[inline(always)]
pub(crate) fn invalidate(transport: &Transport, open: &OpenFile<'_>) -> Result<()> {
    // A kernel marks the vnode before it fills pages, beside other writers, too. Without the fence
    // the processor may load the marks before it stores the bytes: then we see no mark, and the
    // kernel old bytes. A host's first mount fills pages long after it is counted.
    if transport.host().is_ok_and(HostSegment::has_mounts) {
        fence(SeqCst);
    }
    if open.vnode.marks.load(Relaxed) & (pages::EVER | pages::OTHERS_CACHE) == 0 {
        return Ok(());
    }
    invalidate_if_cached(transport, open.inode, open.vnode)
}

#[cold]
fn invalidate_if_cached(transport: &Transport, inode: Inode, vnode: &Vnode) -> Result<()> {
    fence(SeqCst);
    let marks = vnode.marks.load(SeqCst);
    if pages::cachers_except(marks, transport.mount()) == 0 && marks & pages::OTHERS_CACHE == 0 {
        return Ok(());
    }
    unwatch_file(transport, inode, Some(vnode))
}

/// Invalidates pages that other hosts read while write-behind was in flight, after its arrival.
///
/// # Errors
/// As `call`.
pub(crate) fn invalidate_after_arrival(transport: &Transport, open: &OpenFile<'_>) -> Result<()> {
    if open.vnode.marks.load(SeqCst) & pages::OTHERS_CACHE == 0 {
        return Ok(());
    }
    invalidate_if_cached(transport, open.inode, open.vnode)
}

/// As `invalidate_page_caches`, for a file that was truncated by its name.
pub(crate) fn invalidate_of(transport: &Transport, inode: Inode) -> Result<()> {
    let host = transport.host()?;
    if !transport.is_local_shard(inode.shard())? {
        return unwatch_file(transport, inode, None);
    }
    host.begin_writing(inode);
    if host.remote_use(inode) & opened::OTHERS_CACHE != 0 {
        return unwatch_file(transport, inode, None);
    }
    match host.vnode_find(inode).and_then(|entry| host.vnode(entry).ok()) {
        Some(vnode) if vnode.marks.load(SeqCst) & pages::EVER != 0 => {
            invalidate_if_cached(transport, inode, vnode)
        }
        _ => Ok(()),
    }
}
