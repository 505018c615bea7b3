//! The metadata side of a daemon: one `metadata::Service` per worker.
//!
//! The rules of the namespace are in the crate `metadata`; this module performs its effects.
//!
//! ```text
//!  ticks -> requests -> local_ops -> driver    each starts steps; the driver performs the effects
//!  effects: ShardPerformers                    log, index, replies, jobs, removals
//!  replication | log | tickets | jobs | removals | held_truncates | orphans | clock | host_view
//! ```
//!
//! Reading order: `driver` (a step), `requests`, `local_ops` (operations that clients completed in
//! shared memory), `ticks`, `effects`, `leaving`, then one module for each subject.

pub(crate) mod clock;
pub(crate) mod driver;
pub(crate) mod effects;
pub(crate) mod held_truncates;
pub(crate) mod host_view;
pub(crate) mod jobs;
mod leaving;
pub(crate) mod local_ops;
pub(crate) mod log;
pub(crate) mod orphans;
pub(crate) mod removals;
pub(crate) mod replication;
mod requests;
pub(crate) mod tickets;
mod ticks;

pub(crate) use driver::Shard;
