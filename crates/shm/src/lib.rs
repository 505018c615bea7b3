//! Memory shared between the daemons of a host and their clients.
//!
//! Here: the layouts, and the protocols over them that need no message. Not here:
//! what a request means (`wire`), access control (`gateway`), which space is free (`data`).
//!
//! | module | memory | written by |
//! |---|---|---|
//! | `session` | one per client process: message slots | that client, the daemon |
//! | `session` (doorbells) | one per daemon | clients, the workers |
//! | `bounce` | behind the slots of each session | that client, the daemon |
//! | `local_ops` | one per daemon | clients, the workers |
//! | `index` | one per worker | that worker only; clients map it read-only |
//! | `index` (leases) | one per daemon | the daemon; clients map it read-only |
//! | `extents` (arena) | one per daemon | clients and the daemon |
//! | `extents` (table) | three per daemon | headers: the daemon; states: clients too |
//! | `extents` (sums) | one per daemon | clients and the daemon |
//! | `extents` (hazards) | one per daemon | clients and the daemon |
//! | `extents` (hints) | one per daemon | the worker of the target; clients map it read-only |
//! | `host` | one per host | all its daemons and clients |
//! | `activity` | one per host | clients; its first daemon frees what is not in use |
//!
//! `base` holds what all of them stand on: mappings, atomics, waiting.
//!
//! Rules that hold everywhere:
//!  1. All access is by atomics or by raw copies; no other reference to shared memory ever exists.
//!  2. A number read from shared memory is a claim: it is checked against the mapping before use.
//!  3. Nothing allocates, nothing panics, and no dead process holds a lock: the crate runs inside
//!     applications, in signal handlers, and after fork.
#![no_std]
#![expect(unsafe_code, reason = "memory that other processes change")]
#![warn(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]

#[cfg(any(test, feature = "interleavings"))]
extern crate std;

mod base;

pub mod session;

pub mod bounce;

pub mod local_ops;

pub mod index;

pub mod extents;

pub mod host;

pub mod activity;

pub(crate) use base::kept;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub use base::raw;
#[cfg(not(feature = "interleavings"))]
pub(crate) use base::sync;
#[cfg(feature = "interleavings")]
pub use base::sync;
pub(crate) use base::ticket_queue;
pub use base::{faults, once, scratch, segment, signals, wait};
pub use segment::{Access, Segment};
