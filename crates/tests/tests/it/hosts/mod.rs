//! Instances over several hosts, which are network namespaces on one bridge.

mod coherence;
mod fabric;
mod leases;
mod limits;
mod mass;
mod metrics;
mod middle;
mod model;
mod mount_limits;
pub(crate) mod remote_data;
mod remote_ends;
mod reply_cache;
mod start;
mod stripes;
