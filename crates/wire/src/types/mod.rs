//! The subjects of messages: attributes of files, callers and their rights, quotas, pools of
//! targets, leases, kernel caches, the state of a file in the backing store, jobs, and lost bytes.

pub mod attributes;

pub mod credentials;

pub mod acl;

pub mod quota;

pub mod pool;

pub mod lease;

pub mod watch;

pub mod backing;

pub mod client_id;

pub mod job;

pub mod names;

pub mod losses;
