//! Data of files: reading, writing, appending, mapping, seeking, and reserving space.
//!
//! `locate` finds extents, `extents` moves bytes between the caller and the targets of this host;
//! bytes of other hosts pass through bounce buffers (`transfer`, `remote`, `readahead`,
//! `write_behind`).

pub(crate) mod allocate;
pub(crate) mod append;
pub(crate) mod extent_cache;
pub(crate) mod extents;
pub(crate) mod locate;
pub(crate) mod mmap;
pub(crate) mod read;
pub(crate) mod readahead;
pub(crate) mod remote;
pub(crate) mod seek;
pub(crate) mod transfer;
pub(crate) mod uncached_read;
pub(crate) mod write;
pub(crate) mod write_behind;

use crate::lookup::PathLookup;
use crate::transport::Transport;

/// Third layer: bytes, with the extents that the process knows.
pub(crate) struct Io {
    pub(crate) paths: PathLookup,
    extent_cache: extent_cache::ExtentCache,
}

impl Io {
    pub(crate) const fn new() -> Io {
        Io { paths: PathLookup::new(), extent_cache: extent_cache::ExtentCache::new() }
    }

    /// The lowest layer.
    #[inline]
    pub(crate) const fn transport(&self) -> &Transport {
        &self.paths.transport
    }
}
