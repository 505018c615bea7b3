//! Names: creating and removing entries, renames, listings, and the transactions that change
//! entries of several services at once. Inodes are in `files`, copies of other services'
//! directories in `directories`.

pub(crate) mod create;
pub(crate) mod local_ops;
pub(crate) mod names;
pub(crate) mod readdir;
pub(crate) mod rename;
pub(crate) mod transaction;
pub(crate) mod widening;
