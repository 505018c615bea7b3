//! Memory shared between the daemons of a host and their clients.
//!
//! What lives here: the layouts, and the protocols over them that need no message. What does not:
//! what a request means (`wire`), who may have what (`gateway`), which space is free (`data`).
//!
//! | module | memory | written by |
//! |---|---|---|
//! | `doorbell` | one for each daemon | clients, the workers |
//! | `session` | one for each client process | that client, the daemon |
//! | `stage` | behind each session's slots | that client, the daemon |
//! | `posts` | one for each daemon | clients, the workers |
//! | `index` | one for each worker | that worker only; clients map it read-only |
//! | `leases` | one for each daemon | the daemon; clients map it read-only |
//! | `arena` | one for each daemon | clients and the daemon |
//! | `pieces` | three for each daemon | headers: the daemon; states: clients too |
//! | `pins` | one for each daemon | clients |
//! | `finder` | one for each daemon | the worker of the target; clients map it read-only |
//! | `host` | one for each host | all its daemons and clients |
//!
//! Rules that hold everywhere:
//!  1. All access is by atomics or by raw copies; no reference to anything else there ever exists.
//!  2. A number read from shared memory is a claim: it is checked against the mapping before use.
//!  3. Nothing allocates, nothing panics, no lock is kept by a process that died: the crate runs
//!     inside applications, in signal handlers, and after fork.
#![no_std]

#[cfg(any(test, feature = "interleavings"))]
extern crate std;

#[cfg(not(feature = "interleavings"))]
mod sync;
#[cfg(feature = "interleavings")]
pub mod sync;

pub mod segment;

pub mod room;

pub mod wait;

pub mod once;

pub mod doorbell;

pub mod session;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod raw;

pub mod signals;

pub mod stage;

pub mod posts;

pub mod numbers;

pub mod index;

pub mod leases;

pub mod arena;

pub mod pieces;

pub mod pins;

pub mod finder;

pub mod piece_io;

pub mod host;

pub use segment::{Access, Segment};
