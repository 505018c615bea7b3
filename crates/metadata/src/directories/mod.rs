//! Directories that are cached away from their owner: attribute copies of services
//! (`remote_copies`) and leases of hosts, on the side of the granter (`leases`) and of the holder
//! (`lease_holder`).

pub(crate) mod lease_holder;
pub(crate) mod leases;
pub(crate) mod remote_copies;
