//! The file system client that runs inside the application, below the system-call layer.
//!
//! In this crate: attaching to the daemons of the host, path walk, open files, reads and writes,
//! and every other operation on a file of the instance, each with the errno that Linux would
//! return. Not in this crate: which system call was made and the meaning of its arguments
//! (`preload`), descriptors of the kernel, the layout of shared memory (`shm`), and decisions of
//! the daemon.
//!
//! Every operation is a method of `Client`, takes `&self`, and may be called from any thread, in a
//! signal handler, and on both sides of a `fork`. `Client` only routes. The subjects lie in layers,
//! and each calls only those before it: `transport`, `lookup`, `file`, `kernel_cache`, `io`, `open`,
//! `names`. Each layer that keeps state is a struct that holds the layer below (`Transport`,
//! `PathLookup`, `Io`, `Files`), so one pointer reaches everything; a function takes the lowest that
//! it needs.
//!
//! Invariants:
//!  1. Nothing allocates, nothing panics, no buffer on the stack exceeds 8 KiB.
//!  2. Every wait is bounded, except for a lock that another program holds, and that wait ends by
//!     a signal.
//!  3. State shared by processes is in shared memory; the state here is a cache of it, so a forked
//!     child and an exec'd program see the same files.
//!
//! Reading order: that of the layers, then `client`.
#![forbid(unsafe_code)]
#![no_std]
#![warn(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]

#[cfg(test)]
extern crate std;

mod transport;

mod lookup;

mod file;

mod kernel_cache;

mod io;

mod open;

mod names;

mod backing;

mod client;

pub use client::Client;
pub use file::set_id::without_set_id;
pub use io::mmap::MappedRange;
pub use io::read::Position;
pub use kernel_cache::maps::BY_KERNEL;
pub use kernel_cache::page_caches::PageCacheGrant;
pub use kernel_cache::remote_lookup::RemoteLookup;
pub use kernel_cache::watches::Watched;
pub use lookup::path::{At, Follow, Outcome, PathBuffer};
pub use names::attributes::{Time, Times};
pub use names::prefetch::{ListPosition, Tier};
pub use names::readdir::Listed;
pub use names::space::Space;
pub use open::handover;
pub use open::lock_request::LockRange;
pub use open::lock_wait::LockWait;
pub use open::locks::{LockOwner, Wait};
pub use open::opening::Opened;
pub use open::write_through::{WaiterWatch, WritebackWait};
pub use shm::activity::{OpClass, Tags};
pub use shm::host::{Descriptor, OfdIndex, ProcessIndex};
pub use transport::activity::{COUNTS, CallTimer};
