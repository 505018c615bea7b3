//! Space of a target: its two devices, the extents of each file, and what they count for.
//!
//! `pool` is the whole of it, and the ground on which everything else stands: it gives out space
//! and takes it back. Which extent leaves a device is `tiering`; a request that finds no space
//! waits in `admission`.

pub mod buddy;

pub mod tier;

pub mod slots;

pub mod accounts;

pub mod preallocation;

pub(crate) mod member;

pub(crate) mod pool;
