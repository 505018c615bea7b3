//! Quotas: usage by account, the limits and the ledger of the coordinator (the service of shard 0),
//! and the grants that each service draws from it.

pub(crate) mod coordinator;
pub(crate) mod grants;
pub(crate) mod usage;
