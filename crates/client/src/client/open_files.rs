//! Open files.

use wire::errno::Result;
use wire::{Credentials, Inode, ShardIndex};

use crate::file::{open_file, set_id, size};
use crate::kernel_cache::page_caches::PageCacheGrant;
use crate::lookup::path::{At, Outcome, PathBuffer};
use crate::open::lock_request::LockRange;
use crate::open::lock_wait::LockWait;
use crate::open::locks::{LockOwner, Wait};
use crate::open::opening::Opened;
use crate::open::write_through::{WaiterWatch, WritebackWait};
use crate::open::{closing, locks, opening, sync, truncate, write_through};
use crate::{Client, OfdIndex, ProcessIndex};

impl Client {
    /// The size as this host knows it, without a message.
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    pub fn size_known(&self, ofd: OfdIndex) -> Result<u64> {
        size::size_known(self.files.transport(), ofd)
    }

    /// `truncate(2)`.
    ///
    /// # Errors
    /// As `truncate(2)`.
    pub fn truncate(
        &self,
        at: At<'_>,
        size: u64,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        truncate::truncate(self.files.paths(), at, size, caller, buffer)
    }

    /// `ftruncate(2)`.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    pub fn ftruncate(&self, ofd: OfdIndex, size: u64) -> Result<()> {
        truncate::ftruncate(self.files.transport(), ofd, size)
    }

    /// Takes a reference: for `dup`, or a descriptor that is passed on.
    pub fn retain(&self, ofd: OfdIndex) {
        closing::retain(self.files.transport(), ofd)
    }

    /// Takes a reference of an open file that was found in a table which other threads change. The
    /// caller then looks into the table again, and releases the reference if it finds another file
    /// there. Returns false if the file is no longer open.
    #[must_use]
    pub fn retain_open(&self, ofd: OfdIndex) -> bool {
        closing::retain_open(self.files.transport(), ofd)
    }

    /// Closes a descriptor of `process`: waits for writes in flight, reports the size, releases the
    /// process's locks of the file, and with the last reference closes the open file.
    ///
    /// # Errors
    /// `EBADF`; `EIO` if the size could not be reported; the error of a write that did not arrive,
    /// or of writeback where the close waits for it. The descriptor is closed all the same.
    pub fn close(&self, ofd: OfdIndex, process: ProcessIndex) -> Result<()> {
        closing::close(self.files.transport(), ofd, process)
    }

    /// As `close`, but never waits for writeback, so its errors are not reported.
    ///
    /// # Errors
    /// As `close`.
    pub fn close_without_writeback(&self, ofd: OfdIndex, process: ProcessIndex) -> Result<()> {
        closing::close_without_writeback(self.files.transport(), ofd, process)
    }

    /// As `close`, but if `is_left` returns true the reference passes to a call of another thread,
    /// which drops it when it ends. The caller may not touch it any more.
    ///
    /// # Errors
    /// As `close`.
    pub fn close_unless(
        &self,
        ofd: OfdIndex,
        process: ProcessIndex,
        is_left: impl FnOnce() -> bool,
    ) -> Result<()> {
        closing::close_unless(self.files.transport(), ofd, process, is_left)
    }

    /// Drops a reference that no descriptor stands for, at the end of a call: reports what the call
    /// wrote, and keeps the process's locks.
    pub fn release(&self, ofd: OfdIndex) {
        closing::release(self.files.transport(), ofd)
    }

    /// False if no process has requested a lock of its own on the file since it is open on this host.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn may_be_locked_by_a_process(&self, ofd: OfdIndex) -> Result<bool> {
        locks::may_be_locked_by_a_process(self.files.transport(), ofd)
    }

    /// `F_SETLK`, `F_SETLKW`, `F_OFD_SETLK`, `F_OFD_SETLKW`.
    ///
    /// # Errors
    /// As `fcntl(2)`: `EAGAIN`, `EINTR`, `EDEADLK`, `ENOLCK`, `EBADF`.
    pub fn lock(
        &self,
        ofd: OfdIndex,
        owner: LockOwner,
        range: LockRange,
        wait: Wait,
    ) -> Result<()> {
        locks::lock(self.files.transport(), ofd, owner, range, wait)
    }

    /// As `lock` for a caller that can wait asynchronously: `Some` if it has to.
    ///
    /// # Errors
    /// As `lock`.
    pub fn begin_lock(
        &self,
        ofd: OfdIndex,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<Option<LockWait<'_>>> {
        locks::begin_lock(self.files.transport(), ofd, owner, range)
    }

    /// `flock(2)` with a kind of `wire::request::lock`.
    ///
    /// # Errors
    /// As `flock(2)`: `EAGAIN` (which is `EWOULDBLOCK`), `EINTR`, `ENOLCK`, `EBADF`.
    pub fn flock(&self, ofd: OfdIndex, kind: u8, wait: Wait) -> Result<()> {
        locks::flock(self.files.transport(), ofd, kind, wait)
    }

    /// As `flock` for a caller that can wait asynchronously: `Some` if it has to.
    ///
    /// # Errors
    /// As `flock`.
    pub fn begin_flock(&self, ofd: OfdIndex, kind: u8) -> Result<Option<LockWait<'_>>> {
        locks::begin_flock(self.files.transport(), ofd, kind)
    }

    /// `F_GETLK`, `F_OFD_GETLK`: a lock that conflicts with `range`; `None` if there is none.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    pub fn test_lock(
        &self,
        ofd: OfdIndex,
        owner: LockOwner,
        range: LockRange,
    ) -> Result<Option<LockRange>> {
        locks::test_lock(self.files.transport(), ofd, owner, range)
    }

    /// Base of `l_start`: zero, the file offset, or the size.
    ///
    /// # Errors
    /// `EINVAL`, `EBADF`, `EIO`.
    pub fn lock_offset_base(&self, ofd: OfdIndex, from: u32) -> Result<u64> {
        locks::lock_offset_base(self.files.transport(), ofd, from)
    }

    /// `openat(2)` with the kernel's flags; `mode` as in `made`.
    ///
    /// # Errors
    /// As `open(2)`.
    #[inline(always)]
    pub fn open(
        &self,
        at: At<'_>,
        flags: u32,
        mode: u32,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Opened>> {
        opening::open(&self.files, at, flags, mode, caller, buffer)
    }

    /// Opens again a file that is open already, as `/proc/self/fd` does.
    ///
    /// # Errors
    /// As `open(2)` of an existing file.
    pub fn open_inode(
        &self,
        inode: Inode,
        flags: u32,
        caller: &Credentials,
    ) -> Result<Outcome<Opened>> {
        opening::open_inode(self.files.transport(), inode, flags, caller)
    }

    /// As `open_inode`, for a kernel that may cache pages of the file.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open_inode_for_pages(
        &self,
        inode: Inode,
        flags: u32,
        granted: &mut PageCacheGrant,
        caller: &Credentials,
    ) -> Result<Outcome<Opened>> {
        opening::open_inode_for_pages(self.files.transport(), inode, flags, granted, caller)
    }

    /// `F_GETFL`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn flags(&self, ofd: OfdIndex) -> Result<u32> {
        open_file::flags(self.files.transport(), ofd)
    }

    /// `F_SETFL`: changes `O_APPEND`, `O_NONBLOCK`, `O_DIRECT`, `O_NOATIME`, `O_ASYNC`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_flags(&self, ofd: OfdIndex, flags: u32) -> Result<()> {
        open_file::set_flags(self.files.transport(), ofd, flags)
    }

    /// The inode of an open file.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn inode_of(&self, ofd: OfdIndex) -> Result<Inode> {
        open_file::inode_of(self.files.transport(), ofd)
    }

    /// The type bits of an open file's mode.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn kind_of(&self, ofd: OfdIndex) -> Result<u32> {
        open_file::kind_of(self.files.transport(), ofd)
    }

    /// `fsync(2)`, `fdatasync(2)`.
    ///
    /// # Errors
    /// As `fsync(2)`.
    pub fn sync(&self, ofd: OfdIndex) -> Result<()> {
        sync::sync(self.files.transport(), ofd)
    }

    /// As `sync`, without waiting for writeback to the backing store.
    ///
    /// # Errors
    /// As `sync`.
    pub fn sync_in_instance(&self, ofd: OfdIndex) -> Result<()> {
        sync::sync_in_instance(self.files.transport(), ofd)
    }

    /// The part of a close that others can observe: waits for writes in flight and reports the
    /// size.
    ///
    /// # Errors
    /// `EBADF`; `EIO` if the size could not be reported; the error of a write that did not arrive.
    pub fn report_size(&self, ofd: OfdIndex) -> Result<()> {
        sync::report_size(self.files.transport(), ofd)
    }

    /// `sync(2)`, `syncfs(2)`: syncs all files that `process` has open.
    ///
    /// # Errors
    /// The first error of a file.
    pub fn sync_all(&self, process: ProcessIndex) -> Result<()> {
        sync::sync_all(self.files.transport(), process)
    }

    /// Marks an open file of such a directory.
    pub fn set_write_through(&self, ofd: OfdIndex) {
        write_through::set_write_through(self.files.transport(), ofd)
    }

    /// True if a sync of the file waits for writeback.
    #[must_use]
    pub fn is_write_through(&self, ofd: OfdIndex) -> bool {
        write_through::syncs_write_through(self.files.transport(), ofd)
    }

    /// True if a close of the file waits for writeback.
    #[must_use]
    pub fn waits_at_close(&self, ofd: OfdIndex) -> bool {
        write_through::waits_at_close(self.files.transport(), ofd)
    }

    /// Watches for waiters at the service that owns this shard, for the writeback daemon.
    #[must_use]
    pub fn watch_waiters(&self, shard: ShardIndex) -> WaiterWatch<'_> {
        WaiterWatch::new(self.files.transport(), shard)
    }

    /// Reports what was written to an open file and starts a wait for its writeback.
    ///
    /// # Errors
    /// As `close`.
    pub fn begin_writeback_wait(&self, ofd: OfdIndex) -> Result<WritebackWait<'_>> {
        write_through::begin_writeback_wait(self.files.transport(), ofd)
    }

    /// Clears the set-id bits of an open program, whatever this process's credentials: a mount
    /// writes for another caller, which may be in a group. Returns true if there were any.
    ///
    /// # Errors
    /// `EBADF`, `EIO`.
    pub fn kill_set_id(
        &self,
        ofd: OfdIndex,
        is_in_group: impl FnOnce(u32) -> bool,
    ) -> Result<bool> {
        set_id::kill_set_id(self.files.transport(), ofd, is_in_group)
    }
}
