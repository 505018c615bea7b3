//! Every setting and every metric of Forebay: one row of a table each, and what follows from them.
//!
//! Settings: the table, the checks, the precedence (option, environment, settings file, default),
//! the configuration of an instance and of its processes, and `docs/settings.md`. Metrics: the
//! table, the atomics, their JSON and Prometheus text, and `docs/metrics.md`. Also the messages by
//! which `forebay` asks the programs for both, and for what jobs did, and what control groups leave. Not
//! here: reading the environment, a file, or a socket; the programs pass their contents.
//!
//! *Invariant:* a value in `Settings` or in a configuration has passed the check of its row; no later
//! code checks it again.
#![forbid(unsafe_code)]

pub mod table;

pub mod choice;

pub mod parse;

pub mod id_ranges;

pub mod file;

pub mod settings;

pub mod instance;

pub mod process;

pub mod metrics;

pub mod control;

pub mod activity;

pub mod host_memory;

pub mod docs;

pub mod printable;

pub mod audit;

pub use instance::{InstanceConfig, MemoryRequest};
pub use process::{DaemonConfig, MountConfig, ProcessConfig, WritebackConfig};
pub use settings::{InvalidValue, Origin, Settings, Sources};
pub use table::{Key, Kind, SETTINGS, Scope, Setting};
