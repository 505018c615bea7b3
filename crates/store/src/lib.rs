//! Device I/O: the metadata service's log, the SSD target's file, directories.
//!
//! This crate knows how bytes get to a device and back, and what a kill or a full device leaves. It
//! does not know what the bytes mean: records are `metadata`'s, device locations are `data`'s. The
//! memory of the arena is `shm`'s.
//!
//! Reading order: `error`, `identity` (which instance a file belongs to), `medium` (one file, and a
//! directory of them, as the log needs them), `whole` (a file that is replaced as a whole),
//! `whole::sealed` (one that says whose it is, and how new), `starts` (the record of a daemon's starts),
//! `record` (a record's bytes), `log_file` (one file of records), `journal` (generations of them),
//! `fault` (a medium for tests that forgets and refuses), `ssd`, `directory`.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

pub mod error;

pub mod identity;

pub mod medium;

pub mod whole;

pub mod starts;

pub mod record;

pub mod log_file;

pub mod journal;

pub mod fault;

pub mod ssd;

pub mod directory;

pub use error::{Error, Kind, Result};
pub use identity::{Expected, Identity};
pub use journal::{Damage, For, Journal, Options, Replay, Sync};
pub use ssd::SsdFile;
pub use starts::StartRecord;
pub use whole::sealed::SealedFile;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod ssd_tests;
#[cfg(test)]
mod start_tests;
