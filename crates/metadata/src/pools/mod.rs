//! Pools of targets (S7): which there are (`registry`: the service of shard 0 makes them and announces
//! them to all; `definition`: the table that every service has), which target of a pool takes a new file
//! (`choice`, over `qos::pool`), and how fast targets are (`rates`, for `qos::slow`; S8).

pub(crate) mod choice;
pub(crate) mod definition;
pub(crate) mod rates;
pub(crate) mod registry;
