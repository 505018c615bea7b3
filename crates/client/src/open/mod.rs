//! Open files: opening, closing, descriptor tables, locks, sync and write-through, and the local
//! operations of this process (`local_ops`).

pub(crate) mod access;
pub(crate) mod closing;
pub(crate) mod descriptors;
pub mod handover;
pub(crate) mod local_ops;
pub(crate) mod lock_request;
pub(crate) mod lock_wait;
pub(crate) mod locks;
pub(crate) mod nameless;
pub(crate) mod opening;
pub(crate) mod sync;
pub(crate) mod truncate;
pub(crate) mod write_through;

use crate::io::Io;
use crate::kernel_cache::recent::RecentDirectories;
use crate::lookup::PathLookup;
use crate::transport::Transport;

/// Fourth layer: files and names, with the last local operations of this process.
pub(crate) struct Files {
    pub(crate) io: Io,
    pub(crate) recent: RecentDirectories,
}

impl Files {
    pub(crate) const fn new() -> Files {
        Files { io: Io::new(), recent: RecentDirectories::new() }
    }

    /// The layer of paths.
    #[inline]
    pub(crate) const fn paths(&self) -> &PathLookup {
        &self.io.paths
    }

    /// The lowest layer.
    #[inline]
    pub(crate) const fn transport(&self) -> &Transport {
        &self.io.paths.transport
    }
}
