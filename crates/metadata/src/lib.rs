//! The namespace: entries, inodes, locks, cross-shard operations, log records.
//!
//! A `Service` is all metadata shards of one worker thread of one daemon. It is a state machine
//! without I/O: `step(now, input)` gives effects, `deadline` says when a `Tick` is due, `replay`
//! restores a state from its log. The guarantees between the parts of an instance are in
//! `docs/semantics`. The location of file data is the subject of the crate `data` and not known
//! here.
//!
//! ```text
//!  requests of clients --> take -> run --> put (log + tables + index) --> effects
//!                             \                ^
//!  messages of services -----> parked jobs ---/   (wait for answers, votes, keys, targets)
//! ```
//!
//! Layers. A subject is a struct that owns its volatile state, with its functions; it gets the
//! context, and the subjects below it, as arguments. No layer calls one above it. The tables of a
//! subject lie in its module but belong to the ground, as `core::state` holds them:
//! `files::{openings, births}`, `locks::record_locks`, `quota::usage`, `pools::definition`,
//! `backing::{sync_state, locations}`.
//!
//! ```text
//!  service, messages, startup, view     the hub: routes, order of timers, jobs
//!  namespace: create, rename, ..        names, and transactions over several services
//!  backing: import, revalidate, ..      directories and names of the backing store
//!  files: Files                         inodes: attributes, contents, open files, sizes
//!  locks | quota | pools | directories | kernel_cache
//!  core: Context                        settings, tables, log, output, clock, jobs
//! ```
//!
//! Reading order: `core` (`effect` and `config` are the interface, `record`, `state`, `table` the
//! stored state, `context` the shared ground), `service` (how a request runs), then one module per
//! subject; `namespace::transaction` for changes that concern several services. `rescue` is apart: it
//! compares the states of all services of an instance that is damaged, while none runs.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

mod core;

mod service;

mod messages;
mod startup;
mod view;

mod namespace;

mod files;

mod directories;

mod locks;

mod quota;

mod pools;

mod kernel_cache;

mod backing;

pub mod rescue;

pub use crate::backing::lost_files::LackingUnits;
pub use crate::core::config::{self, Config};
pub use crate::core::effect::{
    self, BackingDirPart, BackingEntry, DataOp, Effect, HostMarks, HostView, IndexOp, Input,
    LoggedOp, Now, SingleFiles, TargetPresence,
};
pub use crate::core::snapshot::SnapshotCursor;
pub use directories::lease_holder::{AnsweredWalk, Holder, LeaseTable};
pub use files::host_messages::HostMessage;
pub use locks::requests::LockSeen;
pub use service::{EPOCH_MAX, LoggedState, Service};
