//! From a path to a directory entry and its file: the walk, the path buffer, the caches that save
//! messages (`path_cache`, `leases`, `batched`), retries of a lookup that raced with a rename, and
//! permission checks.

pub(crate) mod batched;
pub(crate) mod find;
pub(crate) mod inodes;
pub(crate) mod leases;
pub(crate) mod path;
pub(crate) mod path_cache;
pub(crate) mod permission;
pub(crate) mod result;
pub(crate) mod retry;
pub(crate) mod walk;

use crate::transport::Transport;

/// Second layer: paths, with the directories that earlier walks passed through.
pub(crate) struct PathLookup {
    pub(crate) transport: Transport,
    path_cache: path_cache::PathCache,
}

impl PathLookup {
    pub(crate) const fn new() -> PathLookup {
        PathLookup { transport: Transport::new(), path_cache: path_cache::PathCache::new() }
    }
}
