//! Every setting of Forebay: one row of one table each, and how text becomes a value.
//!
//! What lives here: the table, the checks, the precedence (option, environment, settings file,
//! default), and `docs/settings.md`, which is made from the table. What does not: reading the
//! environment or a file; the crate `cli` hands their contents in as `Sources`.
//!
//! *Invariant:* a value in `Settings` has passed its row's check; no later code checks it again.
#![forbid(unsafe_code)]

pub mod table;

pub mod parse;

pub mod file;

pub mod settings;

pub mod docs;

pub use settings::{Origin, Settings, Sources, Wrong};
pub use table::{Key, Kind, SETTINGS, Scope, Setting};
