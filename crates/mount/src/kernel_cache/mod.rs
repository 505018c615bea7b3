//! State of the caches of the kernel behind a mount.
//!
//! `watches`: validity and invalidation of cached names and attributes. `lookup_cache`: files held
//! open between a lookup and the request that follows. `pages` and `page_versions`: dropping cached
//! pages, and whether they are still current at the next open. `direct_io`: files that bypass the
//! page cache. `write_through`: files whose close waits for writeback. `layouts`: directory
//! layouts. `access_times`: when a read must be reported.

pub(crate) mod watches;

pub(crate) mod lookup_cache;

pub(crate) mod pages;

pub(crate) mod page_versions;

pub(crate) mod direct_io;

pub(crate) mod write_through;

pub(crate) mod layouts;

pub(crate) mod access_times;
