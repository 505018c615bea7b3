//! Caches of the kernel behind a mount: what it may cache of names, attributes and pages, and
//! invalidation.

pub(crate) mod maps;
pub(crate) mod page_caches;
pub(crate) mod recent;
pub(crate) mod remote_lookup;
pub(crate) mod watches;
pub(crate) mod writers;
