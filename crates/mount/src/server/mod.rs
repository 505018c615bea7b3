//! State shared by all threads of a mount. Each subject owns its part; functions of requests are in
//! `ops`, those of threads in `serve` and `rings`.
//!
//! `handles` and `node_ids` map the numbers of the kernel, `lock_table` holds lock files and waiters,
//! `waits` describes a wait, `quiesce` orders lock requests after closes.

pub(crate) mod handles;

pub(crate) mod node_ids;

pub(crate) mod lock_table;

pub(crate) mod waits;

pub(crate) mod quiesce;

pub(crate) mod serving_threads;

use client::Client;
use fuse::abi::capability;
use fuse::{Agreed, abi};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use wire::Inode;
use wire::errno::Result;

use crate::kernel_cache::access_times::AccessTimes;
use crate::kernel_cache::direct_io::DirectIoFiles;
use crate::kernel_cache::layouts::LayoutCache;
use crate::kernel_cache::lookup_cache::LookupCache;
use crate::kernel_cache::page_versions::PageVersions;
use crate::kernel_cache::pages::PageFills;
use crate::kernel_cache::watches::Watches;
use crate::kernel_cache::write_through::WriteThroughFiles;
use crate::server::handles::Handles;
use crate::server::lock_table::Locks;
use crate::server::node_ids::NESTED_ROOT;
use crate::server::quiesce::Quiesce;
use crate::server::serving_threads::ServingThreads;
use crate::users::activity::CallerActivity;
use crate::users::id_map::Owners;
use crate::users::own_limits::OwnLimits;

/// State shared by all threads.
pub(crate) struct Server {
    /// The client of the instance.
    pub(crate) client: &'static Client,
    /// Files opened through this mount.
    pub(crate) handles: Handles,
    /// Result of the negotiation with the kernel.
    pub(crate) agreed: Agreed,
    /// Mapping of user and group ids.
    pub(crate) owners: Owners,
    /// Jobs and counters of calling processes.
    pub(crate) callers: CallerActivity,
    /// Rules that users give their own jobs.
    pub(crate) own_limits: OwnLimits,
    /// Locks held through this mount.
    pub(crate) locks: Locks,
    /// Files that were looked up recently.
    pub(crate) lookup_cache: LookupCache,
    /// Files whose access time was queried recently.
    pub(crate) access_times: AccessTimes,
    /// The serving threads: those that are about to release a lock.
    pub(crate) quiesce: Quiesce,
    /// The serving threads: those that are busy.
    pub(crate) serving: ServingThreads,
    /// Names and attributes in the kernel's cache.
    pub(crate) watches: Watches,
    /// Versions of files with pages in the kernel's cache.
    pub(crate) page_versions: PageVersions,
    /// Fills of cached pages.
    pub(crate) page_fills: PageFills,
    /// Files that bypass the page cache.
    pub(crate) direct_io: DirectIoFiles,
    /// Layouts of directories.
    pub(crate) layouts: LayoutCache,
    /// Files whose close waits for writeback.
    pub(crate) write_through: WriteThroughFiles,
    /// The device from which requests are read.
    pub(crate) device: Arc<OwnedFd>,
    /// The instance's root is a directory in the kernel's root (`node_ids`).
    pub(crate) is_nested: bool,
}

impl Server {
    /// Holds a file that was looked up (`lookup_cache`).
    ///
    /// # Errors
    /// `ENOENT`: it is gone already.
    pub(crate) fn hold_lookup(&self, inode: Inode) -> Result<()> {
        self.lookup_cache.hold(self.client, &self.handles, inode)
    }

    /// The format of `SETXATTR` requests, which the parser needs to know.
    pub(crate) fn has_long_xattr(&self) -> bool {
        self.agreed.has(capability::SETXATTR_EXT)
    }

    /// The node id of an inode.
    pub(crate) fn node_of(&self, inode: Inode) -> u64 {
        let is_nested_root = self.is_nested && inode == Inode::ROOT;
        if is_nested_root { NESTED_ROOT } else { inode.0 }
    }

    /// True for the kernel's root if the instance's root is a directory in it.
    pub(crate) fn is_kernel_root(&self, node: u64) -> bool {
        self.is_nested && node == abi::ROOT
    }
}
