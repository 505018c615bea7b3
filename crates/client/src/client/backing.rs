//! Requests of the writeback daemon.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use wire::errno::Result;
use wire::{Attributes, DaemonIndex, Inode, Request, ShardIndex};

use crate::names::inherited;
use crate::transport::request::{URGENT, USUAL};
use crate::{Client, backing};

impl Client {
    /// The service of a shard: its daemon, and the worker there.
    ///
    /// # Errors
    /// `EIO` if this process is not attached.
    pub fn service_with(&self, shard: ShardIndex) -> Result<(DaemonIndex, usize)> {
        backing::service_with(self.files.transport(), shard)
    }

    /// The shard that holds the entry of a name in a directory.
    #[must_use]
    pub fn shard_of_name(directory: &Attributes, name: &[u8]) -> ShardIndex {
        backing::shard_of_name(directory, name)
    }

    /// Sends a shard a request that is answered by bytes, and passes them to `with`.
    ///
    /// # Errors
    /// The errno with which the shard refuses, and those of `with`.
    pub fn query_backing<R>(
        &self,
        shard: ShardIndex,
        request: &Request<'_>,
        with: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        backing::query_backing(self.files.transport(), shard, request, with)
    }

    /// Sends a shard a request without a result.
    ///
    /// # Errors
    /// The errno with which the shard refuses.
    pub fn send_backing(&self, shard: ShardIndex, request: &Request<'_>) -> Result<()> {
        backing::send_backing(self.files.transport(), shard, request)
    }

    /// Calls `with` for each target that may hold bytes of a file.
    ///
    /// # Errors
    /// The first that `with` returns.
    pub fn each_backing_target(
        &self,
        file: &Attributes,
        with: &mut dyn FnMut(DaemonIndex) -> Result<()>,
    ) -> Result<()> {
        backing::each_backing_target(self.files.transport(), file, with)
    }

    /// Copies that the bytes of a file have, or of those that are made in a directory.
    #[must_use]
    pub fn copies_of(&self, file: &Attributes) -> u8 {
        inherited::copies_of(file, self.files.transport().copies())
    }

    /// How the bytes of a file are in an instance with copies: a value of `wire::losses::state`. `None`:
    /// in this instance files have one copy.
    ///
    /// # Errors
    /// `ESTALE` if there is no such file; `EIO` if its service is not reached in time.
    pub fn copy_state(&self, inode: Inode) -> Result<Option<u64>> {
        backing::copy_state(self.files.transport(), inode)
    }

    /// True if a file has copies: its targets do not know what the backing store has of it.
    #[must_use]
    pub fn has_copies_of(&self, inode: Inode) -> bool {
        self.files.transport().has_copies_of(inode)
    }

    /// `Request::BeginWriteback`: calls `each` with the ranges in the target's reply.
    ///
    /// # Errors
    /// The errno with which the target refuses.
    pub fn begin_writeback(
        &self,
        target: DaemonIndex,
        request: &Request<'_>,
        each: &mut dyn FnMut(Range<u64>),
    ) -> Result<()> {
        backing::begin_writeback(self.files.transport(), target, request, each)
    }

    /// Used by the writeback daemon: writers wait for its requests from now on, so they come before those
    /// of others.
    pub fn begin_urgent_work(&self) {
        self.files.transport().urgency.store(URGENT, Relaxed);
    }

    /// Ends what `begin_urgent_work` began.
    pub fn end_urgent_work(&self) {
        self.files.transport().urgency.store(USUAL, Relaxed);
    }

    /// `Request::EndWriteback`.
    ///
    /// # Errors
    /// `EAGAIN` if the target knows no such writeback; the errno with which it refuses.
    pub fn end_writeback(&self, target: DaemonIndex, inode: Inode, done: (u64, u64)) -> Result<()> {
        backing::end_writeback(self.files.transport(), target, inode, done)
    }

    /// Copies the target of a symbolic link and returns its length.
    ///
    /// # Errors
    /// `EINVAL` if it is no symbolic link; `ESTALE` if it is gone.
    pub fn link_target_of(&self, link: Inode, target: &mut [u8]) -> Result<usize> {
        backing::link_target_of(self.files.transport(), link, target)
    }
}
