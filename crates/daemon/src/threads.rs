//! Threads that handle requests and bytes: the workers, those of services that were taken over, the `net`
//! thread and the bulk lanes.
//!
//! The cores that a worker drives are in `shard` and `target`. Threads that serve a single subject
//! are with that subject: `target::{tiering, space::prepare}` and `backing`.
//!
//! Reading order: `worker`, `own_service`, `successor`, `peers`, `pushes`, `bulk`, `bulk_endpoint`,
//! `elsewhere`.

pub(crate) mod bulk;
pub(crate) mod bulk_endpoint;
pub(crate) mod elsewhere;
pub(crate) mod own_service;
pub(crate) mod peers;
pub(crate) mod pushes;
pub(crate) mod queued;
pub(crate) mod scrub;
pub(crate) mod successor;
pub(crate) mod worker;
