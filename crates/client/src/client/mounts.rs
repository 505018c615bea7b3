//! Calls of a mount: what its kernel may cache, and mappings by a kernel.

use core::sync::atomic::AtomicBool;
use core::time::Duration;
use wire::errno::Result;
use wire::watch::Watch;
use wire::{Attributes, Credentials, Inode, Layout, ShardIndex};

use crate::kernel_cache::page_caches::PageCacheGrant;
use crate::kernel_cache::remote_lookup::RemoteLookup;
use crate::kernel_cache::watches::Watched;
use crate::kernel_cache::{maps, page_caches, remote_lookup, watches};
use crate::{Client, OfdIndex};

impl Client {
    /// The watch of a name in a directory with this layout, and the shard that decides about it.
    #[must_use]
    pub fn watch_of_name(parent: Inode, layout: &Layout, name: &[u8]) -> (Watch, ShardIndex) {
        remote_lookup::watch_of_name(parent, layout, name)
    }

    /// The layout of a directory, if it is known without a message.
    #[must_use]
    pub fn known_layout(&self, directory: Inode) -> Option<Layout> {
        remote_lookup::known_layout(self.files.transport(), directory)
    }

    /// True if the shard is on another host.
    #[must_use]
    pub fn is_remote(&self, shard: ShardIndex) -> bool {
        remote_lookup::is_remote(self.files.transport(), shard)
    }

    /// Looks a name up on a remote shard.
    ///
    /// # Errors As `call`.
    pub fn query_lookup(
        &self,
        parent: Inode,
        name: &[u8],
        shard: ShardIndex,
    ) -> Result<RemoteLookup> {
        remote_lookup::query_lookup(self.files.transport(), parent, name, shard)
    }

    /// The attributes of an inode of a remote shard, including this host's changes, and whether the
    /// kernel of this mount may cache them. `first`: the shard's latest reply. The caller has
    /// already recorded that the kernel watches them.
    ///
    /// # Errors `ESTALE`, and as `call`.
    pub fn remote_attributes(
        &self,
        inode: Inode,
        first: Option<RemoteLookup>,
    ) -> Result<(Attributes, bool)> {
        remote_lookup::remote_attributes(self.files.transport(), inode, first)
    }

    /// Whether the kernel of this mount may cache pages of the file opened by `ofd`: not while
    /// others write to it.
    #[must_use]
    pub fn may_cache_pages(&self, ofd: OfdIndex, granted: &PageCacheGrant) -> bool {
        page_caches::may_cache_pages(self.files.transport(), ofd, granted)
    }

    /// Grants the kernel of this mount to cache pages of a file that it just created.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn grant_of_new(&self, ofd: OfdIndex) -> Result<PageCacheGrant> {
        page_caches::grant_of_new(self.files.transport(), ofd)
    }

    /// Records, before bytes are read into pages of this mount's kernel or written to pages that it
    /// has, that it caches pages.
    ///
    /// # Errors
    /// `EBADF`, and as `call` if others write to the file and must be told.
    pub fn note_page_fill(&self, ofd: OfdIndex) -> Result<()> {
        page_caches::note_page_fill(self.files.transport(), ofd)
    }

    /// True if the kernel of this mount may have pages of a file.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn has_cached_pages(&self, ofd: OfdIndex) -> Result<bool> {
        page_caches::has_cached_pages(self.files.transport(), ofd)
    }

    /// True if programs of this host may store into a file of which this mount's kernel may have
    /// pages, by a mapping and without telling anybody.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn has_silent_stores(&self, ofd: OfdIndex) -> Result<bool> {
        page_caches::has_silent_stores(self.files.transport(), ofd)
    }

    /// True if others write to a file of which this mount's kernel may have pages.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn shares_cached_pages(&self, ofd: OfdIndex) -> Result<bool> {
        page_caches::shares_cached_pages(self.files.transport(), ofd)
    }

    /// Records that the kernel of this mount has dropped all pages of a file.
    pub fn forget_cached_pages(&self, inode: Inode) {
        page_caches::forget_cached_pages(self.files.transport(), inode)
    }

    /// Declares that this process, with id `pid` and start time `started`, serves a mount.
    ///
    /// # Errors
    /// `ENFILE` if the host has too many mounts.
    pub fn begin_mount(&self, pid: u32, started: u64) -> Result<()> {
        watches::begin_mount(self.files.transport(), pid, started)
    }

    /// The mount ended; its kernel caches nothing.
    pub fn end_mount(&self) {
        watches::end_mount(self.files.transport())
    }

    /// Attributes of a file that `open` just created for `caller`, if its creation is still
    /// pending: nobody has changed them since. Needs no message, and answers once. The flag is true
    /// if only this mount writes to the file, as in `has_sole_writer`; other hosts do not know a
    /// pending name.
    #[must_use]
    pub fn attributes_of_created(
        &self,
        ofd: OfdIndex,
        name: &[u8],
        caller: &Credentials,
    ) -> Option<(Attributes, bool)> {
        watches::attributes_of_created(self.files.transport(), ofd, name, caller)
    }

    /// Records that the kernel of this mount is about to cache something that `shard` decides,
    /// until `until` (microseconds of `shm::wait::now_micros`). `None`: it must not, because a
    /// change is imminent or the shard is remote. The caller reads what is to be cached after this.
    #[must_use]
    pub fn watch(&self, watch: Watch, shard: ShardIndex, until: u64) -> Option<Watched> {
        watches::watch(self.files.transport(), watch, shard, until)
    }

    /// As `watch`, for what a remote shard decides, because of programs of this host that write
    /// without a message. Whether it may be cached is up to that shard.
    #[must_use]
    pub fn watch_remote(&self, watch: Watch, until: u64) -> Option<Watched> {
        watches::watch_remote(self.files.transport(), watch, until)
    }

    /// The kernel no longer caches what was recorded, nor anything else in that bucket.
    pub fn unwatch(&self, watched: Watched) {
        watches::unwatch(self.files.transport(), watched)
    }

    /// The current watch of a bucket.
    #[must_use]
    pub fn watch_now(&self, bucket: usize) -> Option<Watched> {
        watches::watch_now(self.files.transport(), bucket)
    }

    /// True if nobody but this mount writes to a file without a message. To be read after `watch`.
    /// Files to which other hosts write are not in the index.
    #[must_use]
    pub fn has_sole_writer(&self, inode: Inode) -> bool {
        watches::has_sole_writer(self.files.transport(), inode)
    }

    /// Calls `each` with all shards of this host; the flag is true for the first one of each
    /// service.
    pub fn each_local_shard(&self, each: &mut dyn FnMut(ShardIndex, bool)) {
        watches::each_local_shard(self.files.transport(), each)
    }

    /// True if services no longer wait for this mount to drop pages, which it has yet to do: it stood
    /// still, and its kernel may have bytes from before a write that others know of.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        watches::is_behind(self.files.transport())
    }

    /// Ends `is_behind`: the mount could not drop the pages in time.
    pub fn forget_behind(&self) {
        watches::forget_behind(self.files.transport())
    }

    /// Longest wait for a daemon.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_micros(self.files.transport().timeout_micros())
    }

    /// Waits for notices of a service and passes them to `with`; tells the service that all up to
    /// `done` are carried out. Ends when `is_over` is set.
    ///
    /// # Errors
    /// `EINTR` when it is over, and as `call`.
    pub fn await_notices<R>(
        &self,
        shard: ShardIndex,
        done: u64,
        is_over: &AtomicBool,
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        watches::await_notices(self.files.transport(), shard, done, is_over, with)
    }

    /// Has calls on files that a kernel maps answered with `BY_KERNEL` from now on.
    pub fn obey_kernel_maps(&self) {
        maps::obey_kernel_maps(self.files.transport());
    }

    /// Records, before it exists, that a kernel of this host maps a file for writing.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn note_kernel_map(&self, ofd: OfdIndex) -> Result<()> {
        maps::note_kernel_map(self.files.transport(), ofd)
    }

    /// True if calls on an open file are to be made through the mount.
    #[must_use]
    pub fn is_kernel_mapped(&self, ofd: OfdIndex) -> bool {
        maps::is_kernel_mapped(self.files.transport(), ofd)
    }
}
