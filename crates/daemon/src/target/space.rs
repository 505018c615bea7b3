//! Space of the target: requests that wait for it, accounts, and space made ready in advance.
//!
//! Reading order: `admission` (requests that wait for space), `ledger` and `accounts` (quota),
//! `preallocate` (extents for files to be created), `prepare` (the thread that provisions space on
//! devices), `slots` (memory of the extent table).

pub(crate) mod accounts;
pub(crate) mod admission;
pub(crate) mod ledger;
pub(crate) mod preallocate;
pub(crate) mod prepare;
pub(crate) mod slots;
