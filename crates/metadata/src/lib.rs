#![forbid(unsafe_code)]

pub mod config;

pub mod effect;

mod service;

pub use config::Config;
pub use effect::{DataOp, Effect, IndexOp, Input, Opens};
pub use service::{Service, SnapshotCursor};
