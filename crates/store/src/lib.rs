//! What touches a device: the metadata service's log, the SSD target's file, directories.
//!
//! Here is how bytes get to a device and back, and what a kill or a full device leaves. What the
//! bytes mean is elsewhere: records are `metadata`'s, places are `data`'s. The memory of the arena
//! is `shm`'s.
//!
//! Reading order: `error`, `medium` (one file, and a directory of them, as the log needs them),
//! `record` (a record's bytes), `log_file` (one file of records), `journal` (generations of them),
//! `fault` (a medium for tests that forgets and refuses), `ssd`, `directory`.
#![forbid(unsafe_code)]

pub mod error;

pub mod medium;

pub mod record;

pub mod log_file;

pub mod journal;

pub mod fault;

pub mod ssd;

pub mod directory;

pub use error::{Error, Kind, Result};
pub use journal::{For, Journal, Options, Replay, Sync};
pub use ssd::SsdFile;

#[cfg(test)]
mod crash_tests;
