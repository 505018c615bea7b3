//! The namespace: entries, inodes, locks, cross-shard operations, log records.
//!
//! A `Service` is all metadata shards of one worker thread of one daemon. It is a state machine
//! without I/O: `step(now, input)` gives effects, `deadline` says when a `Tick` is wanted, `replay`
//! brings a state back from its log. What the parts of an instance promise each other is in
//! `docs/semantics.md`; where bytes of files lie is the crate `data`, and is not known here.
//!
//! ```text
//!  requests of clients --> take -> run --> put (log + tables + index) --> effects
//!                             \                ^
//!  messages of services -----> parked jobs ---/   (wait for answers, votes, keys, targets)
//! ```
//!
//! Reading order: `effect` and `config` (the door), `record`, `state`, `table` (what is kept),
//! `service` (how a request runs), then one file per subject; `transaction` for what concerns
//! several services.
#![forbid(unsafe_code)]

pub mod config;

pub mod effect;

mod coding;

mod record;

mod locks;

mod table;

mod usage;

mod state;

mod standing;

mod snapshot;

mod peer;

mod keys;

mod live;

mod sizes;

mod host_word;

mod leases;

mod mounts;

mod quota;

mod bank;

mod far_mounts;
mod pages;

mod kept;

mod holder;

mod io;

mod service;

mod startup;

mod messages;

mod directory;

mod create;

mod names;

mod transaction;

mod attributes;

mod contents;

mod removal;

mod open_files;

mod posted;

mod list;

mod below;

mod follow;

mod follow_names;

mod unsaved;

mod saves;

mod xattr;

mod acls;

mod locking;

mod deadlock;

pub use config::Config;
pub use effect::{DataOp, Effect, IndexOp, Input, Now, Opens, Part, Posted, Seen};
pub use holder::{Holder, Table, Walked};
pub use host_word::HostWord;
pub use locking::LockSeen;
pub use service::Service;
pub use snapshot::SnapshotCursor;
