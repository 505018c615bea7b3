//! Where things are, computed alike by everyone (G3): no table is asked on the I/O path.
//!
//! `map` says which daemon owns which shard in which epoch; `locate` sends entries to shards and
//! chunks to targets; `piece` cuts a file into the pieces that a target allocates. Nothing here
//! knows a connection, a device or a clock. An instance keeps the map that it was made with.
#![forbid(unsafe_code)]
#![no_std]

#[cfg(test)]
extern crate std;

pub mod map;

pub mod locate;

pub mod piece;

pub use map::Map;
