//! One target of a daemon: which part of the arena or of the SSD file belongs to which file.
//!
//! A core: no I/O, no clock, no thread. Requests enter through `Target::step`; effects leave as
//! values, in the order in which the caller must perform them. This crate never sees a file name or
//! a byte of a file, only inode numbers, offsets and device locations.
//!
//! Reading order, from the ground up; each module calls only those before it:
//!
//!   effect      inputs and effects
//!   admission   parsed requests, and the queue of those that wait for space
//!   space       the pool: devices, the extent table, usage by account, preallocated extents
//!   tiering     demotion, promotion, spilling, watermarks, lent memory
//!   migration   what moves to other targets while this one is slow
//!   backing     bytes of the backing store: filling, writeback, eviction
//!   prefetch    readahead, prefetch lists, access profiles
//!   target      the hub: the route of a request through all of these
//!   recover     rebuilding all of this from the extent table
#![forbid(unsafe_code)]

pub mod effect;

pub mod target;

pub mod admission;

pub mod space;

pub mod tiering;

pub mod migration;

pub mod backing;

pub mod prefetch;

pub mod recover;

pub use admission::work::{LOCATE, MAP_EXTENTS_MAX};
pub use effect::{Answer, CopyClass, Effect, FillJob, Haste, Input, Source, Validity};
pub use recover::{DiscardReason, DiscardedExtent};
pub use space::tier::{Backing, Space};
pub use target::{Settings, Target};

#[cfg(test)]
mod tests;
