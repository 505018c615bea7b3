//! Names and attributes, by path and by descriptor.

use wire::errno::Result;
use wire::pool::PoolEntry;
use wire::quota::{Account, AccountUsage, Limits};
use wire::{Attributes, Credentials, DaemonIndex, Inode};

use crate::lookup::path::{At, Follow, Outcome, PathBuffer};
use crate::lookup::permission;
use crate::names::attributes::Times;
use crate::names::prefetch::{ListPosition, Tier};
use crate::names::readdir::Listed;
use crate::names::space::Space;
use crate::names::{
    attributes, inherited, namespace, pools, prefetch, quota, readdir, rename, space, stat, xattr,
};
use crate::{Client, OfdIndex};

impl Client {
    /// Checks whether `caller` has all of `access` (bits of `want`).
    ///
    /// # Errors
    /// `EACCES` if not; `EIO` if the shard does not answer in time.
    #[inline]
    pub fn permits(&self, file: &Attributes, caller: &Credentials, access: u32) -> Result<()> {
        permission::permits(self.files.transport(), file, caller, access)
    }

    /// `chmod(2)`, `fchmodat(2)`.
    ///
    /// # Errors
    /// As `fchmodat(2)`.
    pub fn chmod(
        &self,
        at: At<'_>,
        mode: u32,
        follow: Follow,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        attributes::chmod(self.files.paths(), at, mode, follow, caller, buffer)
    }

    /// `fchmod(2)`.
    ///
    /// # Errors
    /// As `fchmod(2)`.
    pub fn fchmod(&self, ofd: OfdIndex, mode: u32, caller: &Credentials) -> Result<()> {
        attributes::fchmod(self.files.transport(), ofd, mode, caller)
    }

    /// `chown(2)`, `lchown(2)`; `None` leaves an owner as it is.
    ///
    /// # Errors
    /// As `fchownat(2)`.
    pub fn chown(
        &self,
        at: At<'_>,
        owner: (Option<u32>, Option<u32>),
        follow: Follow,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        attributes::chown(self.files.paths(), at, owner, follow, caller, buffer)
    }

    /// `fchown(2)`.
    ///
    /// # Errors
    /// As `fchown(2)`.
    pub fn fchown(
        &self,
        ofd: OfdIndex,
        owner: (Option<u32>, Option<u32>),
        caller: &Credentials,
    ) -> Result<()> {
        attributes::fchown(self.files.transport(), ofd, owner, caller)
    }

    /// `utimensat(2)`.
    ///
    /// # Errors
    /// As `utimensat(2)`.
    pub fn set_times(
        &self,
        at: At<'_>,
        times: Times,
        follow: Follow,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        attributes::set_times(self.files.paths(), at, times, follow, caller, buffer)
    }

    /// `futimens(3)`.
    ///
    /// # Errors
    /// As `utimensat(2)`.
    pub fn fset_times(&self, ofd: OfdIndex, times: Times, caller: &Credentials) -> Result<()> {
        attributes::fset_times(self.files.transport(), ofd, times, caller)
    }

    /// Updates the access time after a read, as `relatime` of Linux does. An update costs a
    /// message; so does finding out if this host does not know the file's times, in which case
    /// `may_ask` decides whether the read is worth it.
    ///
    /// # Errors
    /// Those of the shard; a reader may ignore them.
    pub fn note_read(&self, inode: Inode, may_ask: impl FnOnce() -> bool) -> Result<()> {
        attributes::note_read(self.files.transport(), inode, may_ask)
    }

    /// Number of targets of the instance.
    ///
    /// # Errors
    /// `EIO` if this process is not attached.
    pub fn target_count(&self) -> Result<u16> {
        inherited::target_count(self.files.transport())
    }

    /// Number of the metadata service that has an inode: that of its worker, times the number of daemons,
    /// plus that of the daemon which owned it first.
    ///
    /// # Errors
    /// `EIO` if this process is not attached.
    pub fn metadata_service(&self, inode: Inode) -> Result<u32> {
        inherited::metadata_service(self.files.transport(), inode)
    }

    /// Calls `with` for each target that may hold bytes of a file of its current size.
    ///
    /// # Errors
    /// `EIO` if this process is not attached.
    pub fn each_target_of(
        &self,
        file: &Attributes,
        with: &mut dyn FnMut(DaemonIndex),
    ) -> Result<()> {
        inherited::each_target_of(self.files.transport(), file, with)
    }

    /// `mkdirat(2)`; `mode` as in `made`.
    ///
    /// # Errors
    /// As `mkdir(2)`.
    pub fn make_directory(
        &self,
        at: At<'_>,
        mode: u32,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        namespace::make_directory(self.files.paths(), at, mode, caller, buffer)
    }

    /// `mknodat(2)`: any kind but a directory. No type bits: a regular file. `mode` as in `made`.
    ///
    /// # Errors
    /// As `mknod(2)`.
    pub fn make_node(
        &self,
        at: At<'_>,
        mode: u32,
        device: u64,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        namespace::make_node(self.files.paths(), at, mode, device, caller, buffer)
    }

    /// `symlinkat(2)`.
    ///
    /// # Errors
    /// As `symlink(2)`.
    pub fn symlink(
        &self,
        target: &[u8],
        at: At<'_>,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        namespace::symlink(self.files.paths(), target, at, caller, buffer)
    }

    /// `unlinkat(2)` of what is no directory.
    ///
    /// # Errors
    /// As `unlink(2)`.
    pub fn unlink(
        &self,
        at: At<'_>,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        namespace::unlink(&self.files, at, caller, buffer)
    }

    /// `rmdir(2)`.
    ///
    /// # Errors
    /// As `rmdir(2)`.
    pub fn remove_directory(
        &self,
        at: At<'_>,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        namespace::remove_directory(self.files.paths(), at, caller, buffer)
    }

    /// `linkat(2)`.
    ///
    /// # Errors
    /// As `linkat(2)`.
    pub fn link(
        &self,
        from: At<'_>,
        follow: Follow,
        to: At<'_>,
        caller: &Credentials,
        buffers: (&mut PathBuffer, &mut PathBuffer),
    ) -> Result<Outcome<()>> {
        namespace::link(self.files.paths(), from, follow, to, caller, buffers)
    }

    /// `linkat(2)` of an open file: names a file opened by `O_TMPFILE`.
    ///
    /// # Errors
    /// As `linkat(2)` with `AT_EMPTY_PATH`.
    pub fn link_open(
        &self,
        ofd: OfdIndex,
        to: At<'_>,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        namespace::link_open(self.files.paths(), ofd, to, caller, buffer)
    }

    /// `readlinkat(2)`: copies the bytes of the target that fit, and returns their number.
    ///
    /// # Errors
    /// `EINVAL` if it is no symbolic link or `target` is empty, and those of a walk.
    pub fn read_link(
        &self,
        at: At<'_>,
        target: &mut [u8],
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<usize>> {
        namespace::read_link(self.files.paths(), at, target, caller, buffer)
    }

    /// `readlinkat(2)` with an empty path: of an open symbolic link (`O_PATH | O_NOFOLLOW`).
    ///
    /// # Errors
    /// As `read_link`.
    pub fn fread_link(
        &self,
        ofd: OfdIndex,
        target: &mut [u8],
        caller: &Credentials,
    ) -> Result<usize> {
        namespace::fread_link(self.files.transport(), ofd, target, caller)
    }

    /// Starts a prefetch of a regular file in the background, before it is read. Returns the number
    /// of bytes to come.
    ///
    /// # Errors
    /// `EINVAL` if it is no regular file; `EAGAIN` if too much is queued, try again later; and
    /// once, the error that ended an earlier request.
    pub fn prefetch(
        &self,
        file: &Attributes,
        tier: Tier,
        listed: Option<ListPosition>,
        caller: &Credentials,
    ) -> Result<u64> {
        prefetch::prefetch(self.files.transport(), file, tier, listed, caller)
    }

    /// Evicts the clean data of a file. Data that was created or changed here, is pinned or in use,
    /// stays. Returns the number of bytes that a read will fetch from the backing store.
    ///
    /// # Errors
    /// `EINVAL` if it is no regular file; `EAGAIN` if some of it is still being evicted, ask again.
    pub fn evict(&self, file: &Attributes, caller: &Credentials) -> Result<u64> {
        prefetch::evict(self.files.transport(), file, caller)
    }

    /// Number of bytes of a file that are still to be prefetched.
    ///
    /// # Errors
    /// As `prefetch`.
    pub fn prefetch_bytes_left(&self, file: &Attributes, caller: &Credentials) -> Result<u64> {
        prefetch::prefetch_bytes_left(self.files.transport(), file, caller)
    }

    /// Sets the limits of an account. All daemons know them when this returns.
    ///
    /// # Errors
    /// `EPERM` for all but root and the instance's owner; `EINVAL` if a soft limit exceeds the hard
    /// one, or for a limit on root; `EIO` if a daemon does not answer.
    pub fn set_quota(&self, account: Account, limits: &Limits, caller: &Credentials) -> Result<()> {
        quota::set_quota(self.files.transport(), account, limits, caller)
    }

    /// Calls `each` with usage and limits of the accounts from `from` on that use anything or are
    /// limited, in order, as far as one reply goes. Returns true if there may be more.
    ///
    /// # Errors
    /// `EIO` if a daemon does not answer.
    pub fn quotas(
        &self,
        from: Account,
        caller: &Credentials,
        each: &mut dyn FnMut(AccountUsage),
    ) -> Result<bool> {
        quota::quotas(self.files.transport(), from, caller, each)
    }

    /// Makes a pool of these targets (`wire::pool`), or without targets removes it. All daemons know it
    /// when this returns.
    ///
    /// # Errors
    /// `EPERM` for all but root and the instance's owner; `EEXIST` if there is another of the name,
    /// `ENOENT` if there is none to remove, `ENOSPC` if there are as many as there may be; `EINVAL` for
    /// targets that do not exist or are repeated; `EIO` if a daemon does not answer.
    pub fn set_pool(&self, name: &[u8], targets: &[u8], caller: &Credentials) -> Result<()> {
        pools::set_pool(self.files.transport(), name, targets, caller)
    }

    /// Calls `each` with the pools above `after`, in the order of their numbers, as far as one reply
    /// goes. Returns the number of the last one; 0: there are no more.
    ///
    /// # Errors
    /// `EIO` if a daemon does not answer.
    pub fn pools(&self, after: u8, each: &mut dyn FnMut(PoolEntry<'_>)) -> Result<u8> {
        pools::pools(self.files.transport(), after, each)
    }

    /// Continues the listing of an open directory: calls `show` for each entry until it returns
    /// false, which means that the entry did not fit and is repeated next time, or until about
    /// `bytes` were shown. The end is reached if nothing is shown.
    ///
    /// # Errors
    /// `ENOTDIR`, `EBADF`, `EIO`; `ENOENT` if the directory was removed.
    pub fn read_directory(
        &self,
        ofd: OfdIndex,
        bytes: u32,
        show: &mut dyn FnMut(&Listed<'_>) -> bool,
    ) -> Result<()> {
        readdir::read_directory(self.files.transport(), ofd, bytes, show)
    }

    /// `renameat2(2)`. After `Outcome::Outside` the buffers tell which path left the instance.
    ///
    /// # Errors
    /// As `rename(2)`.
    pub fn rename(
        &self,
        from: At<'_>,
        to: At<'_>,
        flags: u32,
        caller: &Credentials,
        buffers: (&mut PathBuffer, &mut PathBuffer),
    ) -> Result<Outcome<()>> {
        rename::rename(self.files.paths(), from, to, flags, caller, buffers)
    }

    /// The path of a directory, found from its parents' listings. Slow: `getcwd` normally uses the
    /// path by which it was entered and calls this only without one. `PathBuffer::outside` holds
    /// the result.
    ///
    /// # Errors
    /// `ENOENT` if it was removed, `ENAMETOOLONG`, `EIO`.
    pub fn path_of(&self, directory: Inode, buffer: &mut PathBuffer) -> Result<()> {
        rename::path_of(self.files.transport(), directory, buffer)
    }

    /// The path by which an open file was found, if the directory still has it under that name.
    ///
    /// # Errors
    /// `ENOENT` if not, `EBADF`, `EIO`.
    pub fn path_of_open(&self, ofd: OfdIndex, buffer: &mut PathBuffer) -> Result<()> {
        rename::path_of_open(self.files.transport(), ofd, buffer)
    }

    /// `stat(2)`, `lstat(2)`, `statx(2)`.
    ///
    /// # Errors
    /// As `stat(2)`.
    pub fn stat(
        &self,
        at: At<'_>,
        follow: Follow,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Attributes>> {
        stat::stat(&self.files, at, follow, caller, buffer)
    }

    /// As `stat`, with attributes that are not copied.
    ///
    /// # Errors
    /// As `stat`, and those of `with`.
    pub fn stat_with<R>(
        &self,
        at: At<'_>,
        follow: Follow,
        caller: &Credentials,
        buffer: &mut PathBuffer,
        with: impl FnOnce(&Attributes) -> Result<R>,
    ) -> Result<Outcome<R>> {
        stat::stat_with(&self.files, at, follow, caller, buffer, with)
    }

    /// `fstat(2)`.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn fstat(&self, ofd: OfdIndex) -> Result<Attributes> {
        stat::fstat(&self.files, ofd)
    }

    /// `access(2)`, `faccessat2(2)`: bits `R_OK`, `W_OK`, `X_OK`, or none for existence. `caller`
    /// has the real ids unless `AT_EACCESS` is given.
    ///
    /// # Errors
    /// As `access(2)`.
    pub fn access(
        &self,
        at: At<'_>,
        access: u32,
        follow: Follow,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        stat::access(self.files.paths(), at, access, follow, caller, buffer)
    }

    /// `faccessat2(2)` with an empty path.
    ///
    /// # Errors
    /// As `access(2)`.
    pub fn faccess(&self, ofd: OfdIndex, access: u32, caller: &Credentials) -> Result<()> {
        stat::faccess(self.files.transport(), ofd, access, caller)
    }

    /// Finds a directory that the caller may change into.
    ///
    /// # Errors
    /// As `chdir(2)`.
    pub fn find_directory(
        &self,
        at: At<'_>,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<Attributes>> {
        stat::find_directory(self.files.paths(), at, caller, buffer)
    }

    /// `st_dev` of every file of the instance.
    #[must_use]
    pub fn device(&self) -> u64 {
        stat::device()
    }

    /// Bytes that a file occupies, for `st_blocks`: its size, or the sum over its targets if it may
    /// have holes. One message per target; the size if one does not answer.
    #[must_use]
    pub fn usage(&self, attributes: &Attributes) -> u64 {
        stat::usage(self.files.transport(), attributes)
    }

    /// `getxattr(2)`, `lgetxattr(2)`: returns the length of the value; an empty `value` requests
    /// only that.
    ///
    /// # Errors
    /// As `getxattr(2)`.
    pub fn get_xattr(
        &self,
        at: At<'_>,
        follow: Follow,
        named: (&[u8], &mut [u8]),
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<usize>> {
        xattr::get_xattr(self.files.paths(), at, follow, named, caller, buffer)
    }

    /// `fgetxattr(2)`.
    ///
    /// # Errors
    /// As `getxattr(2)`.
    pub fn fget_xattr(
        &self,
        ofd: OfdIndex,
        named: (&[u8], &mut [u8]),
        caller: &Credentials,
    ) -> Result<usize> {
        xattr::fget_xattr(self.files.transport(), ofd, named, caller)
    }

    /// `setxattr(2)`, `lsetxattr(2)`.
    ///
    /// # Errors
    /// As `setxattr(2)`.
    pub fn set_xattr(
        &self,
        at: At<'_>,
        follow: Follow,
        named: (&[u8], &[u8]),
        flags: u32,
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        xattr::set_xattr(self.files.paths(), at, follow, named, flags, caller, buffer)
    }

    /// `fsetxattr(2)`.
    ///
    /// # Errors
    /// As `setxattr(2)`.
    pub fn fset_xattr(
        &self,
        ofd: OfdIndex,
        named: (&[u8], &[u8]),
        flags: u32,
        caller: &Credentials,
    ) -> Result<()> {
        xattr::fset_xattr(self.files.transport(), ofd, named, flags, caller)
    }

    /// `listxattr(2)`, `llistxattr(2)`.
    ///
    /// # Errors
    /// As `listxattr(2)`.
    pub fn list_xattr(
        &self,
        at: At<'_>,
        follow: Follow,
        names: &mut [u8],
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<usize>> {
        xattr::list_xattr(self.files.paths(), at, follow, names, caller, buffer)
    }

    /// `flistxattr(2)`.
    ///
    /// # Errors
    /// As `listxattr(2)`.
    pub fn flist_xattr(
        &self,
        ofd: OfdIndex,
        names: &mut [u8],
        caller: &Credentials,
    ) -> Result<usize> {
        xattr::flist_xattr(self.files.transport(), ofd, names, caller)
    }

    /// `removexattr(2)`, `lremovexattr(2)`.
    ///
    /// # Errors
    /// As `removexattr(2)`.
    pub fn remove_xattr(
        &self,
        at: At<'_>,
        follow: Follow,
        name: &[u8],
        caller: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        xattr::remove_xattr(self.files.paths(), at, follow, name, caller, buffer)
    }

    /// `fremovexattr(2)`.
    ///
    /// # Errors
    /// As `removexattr(2)`.
    pub fn fremove_xattr(&self, ofd: OfdIndex, name: &[u8], caller: &Credentials) -> Result<()> {
        xattr::fremove_xattr(self.files.transport(), ofd, name, caller)
    }

    /// The space of the instance, for `statfs(2)`.
    ///
    /// # Errors
    /// `EIO` if a daemon cannot be reached.
    pub fn space(&self) -> Result<Space> {
        space::space(self.files.transport())
    }

    /// As `space`, for the location of a file: if its project has a limit, the share that the
    /// project may use, as in XFS and ext4.
    ///
    /// # Errors
    /// As `space`.
    pub fn space_of(&self, file: &Attributes) -> Result<Space> {
        space::space_of(self.files.transport(), file)
    }
}
