//! Where things are, computed alike by everyone (G3): no table is consulted on the I/O path.
//!
//! `map` says which daemon owns which shard in which epoch; `locate` maps entries to shards and
//! stripes to targets; `extent` divides a file into the extents that a target allocates. This crate
//! knows no connection, device or clock. An instance keeps the map that it was created with.
#![forbid(unsafe_code)]
#![no_std]
#![warn(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]

#[cfg(test)]
extern crate std;

pub mod map;

pub mod locate;

pub mod extent;

pub use map::{Map, ServiceName};
