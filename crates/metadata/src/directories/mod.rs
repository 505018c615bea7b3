//! Directories that are cached away from their owner: attribute copies of services
//! (`remote_copies`) and leases of hosts, on the side of the granter (`leases`) and of the holder
//! (`lease_holder`); and chains of parents that are read from several owners (`parent_chain`).

pub(crate) mod lease_holder;
pub(crate) mod leases;
pub(crate) mod parent_chain;
pub(crate) mod remote_copies;
pub(crate) mod widening;
