//! One target of a daemon: which part of the arena or of the SSD file belongs to which file.
//!
//! A core: no I/O, no clock, no thread. Requests come in by `Target::step`, effects go out as
//! values in the order in which they must be performed. It never learns a name or a byte of a
//! file, only inode numbers, offsets and places.
//!
//! Reading order: `buddy` (power-of-two blocks), `tier` (one device: how far it is in use, what must be
//! preallocated), `slots` (rows of the piece table), `effect` (what comes in and goes out), `target`
//! (requests), `admission` (those that wait for space), `early` (pieces that nobody asked for yet),
//! `accounts` (whose the bytes are), `coolness` (which piece goes next), `shares` (and whose), `sink`
//! (from memory to the SSD), `rise` (and back), `thresholds` (when), `resident` (what stays), `lend`
//! (memory that is given back), `lending` (how much is lent), `fill` (bytes of the backing directory),
//! `clean` (of those what is dropped again), `saving` and `parts` (what is saved there), `uses` (which
//! of its files are read), `recover` (after a kill: from the piece table back to all of this).
#![forbid(unsafe_code)]

pub mod buddy;

pub mod tier;

pub mod slots;

pub mod effect;

mod work;

pub mod target;

pub mod admission;

pub mod early;

pub mod accounts;

pub mod coolness;

pub mod shares;

pub mod sink;

pub mod rise;

pub mod abroad;

pub mod thresholds;

pub mod resident;

pub mod lend;

pub mod lending;

pub mod fill;

pub mod clean;

pub mod saving;

pub mod parts;

pub mod ahead;

pub mod wish;

pub mod uses;

#[cfg(test)]
mod fill_tests;

#[cfg(test)]
mod abroad_tests;

#[cfg(test)]
mod rate_tests;

#[cfg(test)]
mod resident_tests;

#[cfg(test)]
mod shares_tests;

pub mod recover;

pub use effect::{Answer, Defined, Effect, Haste, Input, Source};
pub use recover::{Dropped, Reason};
pub use target::{MAP_PIECES_MAX, Settings, Target};
pub use tier::{Backing, Space};

#[cfg(test)]
mod model_tests;

#[cfg(test)]
mod script_tests;
