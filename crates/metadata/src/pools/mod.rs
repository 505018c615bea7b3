//! Pools of targets (S7): which there are (`registry`: the service of shard 0 makes them and announces
//! them to all; `definition`: the table that every service has), and which target of a pool takes a new
//! file (`choice`, over `qos::pool`).

pub(crate) mod choice;
pub(crate) mod definition;
pub(crate) mod registry;
