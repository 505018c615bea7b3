//! Watches: what the kernel behind a mount caches (`wire::watch`, `shm::host::watches`), from both
//! sides. A mount watches what it tells its kernel; programs that change something without a
//! message check whether it is watched.
//!
//! Remote shards keep their own records of what they decide (`remote_lookup`). Pages: `page_caches`.
//!
//! Bytes are written without a message, too. A process that opens a file for writing therefore
//! marks the vnode for as long as the file is open on this host, and then has the mounts notified;
//! a mount whose kernel caches sizes and times watches first and then checks the vnode. A file to
//! which only one mount writes stays cacheable for that mount.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use shm::host::{HostSegment, Vnode, watches};
use shm::session::Interruptible;
use wire::errno::{Errno, Result};
use wire::limits::SHARD_COUNT;
use wire::watch::Watch;
use wire::{Attributes, Credentials, Inode, Reply, Request, ShardIndex};

use crate::OfdIndex;
use crate::file::layout::inherit_group;
use crate::file::open_file;
use crate::kernel_cache::{page_caches, writers};
use crate::lookup::inodes;
use crate::lookup::result::Entry;
use crate::transport::Transport;
use crate::transport::request::{Destination, own_credentials};
use crate::transport::service::gate_opens_soon;

/// A watch that was set: its place and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watched {
    /// Its bucket, which other watches may share.
    pub bucket: usize,
    /// The value, different each time.
    pub word: u64,
}

impl Watched {
    /// True if nothing may be cached under it any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        watches::is_over(self.word)
    }
}

/// Declares that this process, with id `pid` and start time `started`, serves a mount.
pub(crate) fn begin_mount(transport: &Transport, pid: u32, started: u64) -> Result<()> {
    let number = transport.host()?.take_mount(pid, started)?;
    transport.mount.store(number, Relaxed);
    Ok(())
}

/// The mount ended; its kernel caches nothing.
pub(crate) fn end_mount(transport: &Transport) {
    if let Ok(host) = transport.host() {
        host.give_mount(transport.mount.swap(0, Relaxed));
    }
}

/// Attributes of a file that `open` just created for `caller`, if its creation is still
/// pending: nobody has changed them since. Needs no message, and answers once. The flag is true
/// if only this mount writes to the file, as in `has_sole_writer`; other hosts do not know a
/// pending name.
pub(crate) fn attributes_of_created(
    transport: &Transport,
    ofd: OfdIndex,
    name: &[u8],
    caller: &Credentials,
) -> Option<(Attributes, bool)> {
    let open = open_file::by_index(transport, ofd).ok()?;
    let parent = inodes::attributes_in_index(transport, open.parent())?;
    let (creator, _) = inherit_group(&parent, caller, open.mode());
    let made = open.take_created((creator.uid, creator.gid))?;
    let is_sole_writer = writers::is_sole_local_writer(transport, open.vnode.marks.load(SeqCst));
    Entry::of(&parent, name).has_local_op(transport).then_some((made, is_sole_writer))
}

/// Records that the kernel of this mount is about to cache something that `shard` decides,
/// until `until` (microseconds of `shm::wait::now_micros`). `None`: it must not, because a
/// change is imminent or the shard is remote. The caller reads what is to be cached after this.
pub(crate) fn watch(
    transport: &Transport,
    watch: Watch,
    shard: ShardIndex,
    until: u64,
) -> Option<Watched> {
    let service = transport.service_of(shard)?;
    let watched = watch_remote(transport, watch, until);
    watched.filter(|_| gate_opens_soon(&service))
}

/// As `watch`, for what a remote shard decides, because of programs of this host that write
/// without a message. Whether it may be cached is up to that shard.
pub(crate) fn watch_remote(transport: &Transport, watch: Watch, until: u64) -> Option<Watched> {
    let bucket = watches::bucket_of(watch);
    let word = transport.host().ok()?.watch(transport.mount(), bucket, until).ok()?;
    Some(Watched { bucket, word })
}

/// The kernel no longer caches what was recorded, nor anything else in that bucket.
pub(crate) fn unwatch(transport: &Transport, watched: Watched) {
    if let Ok(host) = transport.host() {
        host.unwatch(transport.mount(), watched.bucket, watched.word);
    }
}

/// The current watch of a bucket.
pub(crate) fn watch_now(transport: &Transport, bucket: usize) -> Option<Watched> {
    let word = transport.host().ok()?.watch_now(transport.mount(), bucket).ok()?;
    Some(Watched { bucket, word })
}

/// True if nobody but this mount writes to a file without a message. To be read after `watch`.
/// Files to which other hosts write are not in the index.
pub(crate) fn has_sole_writer(transport: &Transport, inode: Inode) -> bool {
    inodes::attributes_in_index(transport, inode).is_some()
        && writers::has_sole_local_writer(transport, inode)
}

/// True if another mount caches something of a directory and a name in it, so that creating the name is
/// left to the shard.
#[inline(always)]
pub(crate) fn is_entry_watched(
    transport: &Transport,
    host: &HostSegment,
    parent: Inode,
    key: u128,
) -> bool {
    host.has_mounts()
        && host.is_watched([Watch::of_key(key), Watch::Attributes(parent)], transport.mount())
}

/// As `is_entry_watched`, or of the file of that name, so that removing the name is left to the shard.
#[inline(always)]
pub(crate) fn is_removal_watched(
    transport: &Transport,
    host: &HostSegment,
    (parent, file): (Inode, Inode),
    key: u128,
) -> bool {
    let watches = [Watch::of_key(key), Watch::Attributes(parent), Watch::Attributes(file)];
    host.has_mounts() && host.is_watched(watches, transport.mount())
}

/// True if another mount caches something of a file.
pub(crate) fn is_file_watched(transport: &Transport, inode: Inode) -> bool {
    let is_watched = |host: &HostSegment| {
        host.has_mounts() && host.is_watched([Watch::Attributes(inode)], transport.mount())
    };
    transport.host().is_ok_and(is_watched)
}

/// Announces that a file is open for writing: invalidates what kernels cache of it. `is_registered`: a
/// remote shard was told of the writer.
///
/// # Errors
/// As `call`.
pub(crate) fn note_writer(
    transport: &Transport,
    inode: Inode,
    vnode: &Vnode,
    is_registered: bool,
) -> Result<()> {
    writers::mark_writer(transport, vnode);
    let is_cached = match transport.is_local_shard(inode.shard())? {
        true => page_caches::begin_writing(transport, inode, vnode)?,
        // It has just left, and does not know of this writer that others are to be told.
        false => !is_registered,
    };
    if is_cached || is_file_watched(transport, inode) {
        page_caches::unwatch_file(transport, inode, Some(vnode))
    } else {
        Ok(())
    }
}

/// True if services no longer wait for this mount to drop pages, which it has yet to do.
pub(crate) fn is_behind(transport: &Transport) -> bool {
    transport.host().is_ok_and(|host| host.is_behind(transport.mount()))
}

/// Ends `is_behind`: the mount could not drop the pages in time.
pub(crate) fn forget_behind(transport: &Transport) {
    if let Ok(host) = transport.host() {
        host.forget_behind(transport.mount());
    }
}

/// Calls `each` with all shards of this host; the flag is true for the first one of each
/// service.
pub(crate) fn each_local_shard(transport: &Transport, each: &mut dyn FnMut(ShardIndex, bool)) {
    let mut seen = [(0, 0); wire::lease::SERVICES_OF_HOST_MAX];
    let mut count = 0;
    for shard in (0..SHARD_COUNT).map(ShardIndex) {
        let Some(service) = transport.service_of(shard) else { continue };
        let one = (core::ptr::from_ref(service.by) as usize, service.worker);
        let known = seen.get(..count).unwrap_or_default();
        let is_first = !known.contains(&one);
        if is_first {
            let Some(place) = seen.get_mut(count) else { continue };
            *place = one;
            count += 1;
        }
        each(shard, is_first);
    }
}

/// Waits for notices of a service and passes them to `with`; tells the service that all up to
/// `done` are carried out. Ends when `is_over` is set.
pub(crate) fn await_notices<R>(
    transport: &Transport,
    shard: ShardIndex,
    done: u64,
    is_over: &AtomicBool,
    with: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    let request = Request::Notices { done };
    let (to, caller) = (Destination::Shard(shard), own_credentials());
    let by = Interruptible::By(is_over);
    transport.call_as(to, &request, &caller, &mut None, by)?.with(|reply| match reply {
        Reply::Bytes { bytes } => Ok(with(bytes)),
        _ => Err(Errno::EIO),
    })
}
