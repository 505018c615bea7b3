//! Record locks of files: the table of one inode, requests that wait, and deadlocks over several
//! services.

pub(crate) mod deadlock;
pub(crate) mod record_locks;
pub(crate) mod requests;
