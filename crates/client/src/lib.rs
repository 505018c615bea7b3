//! What runs inside the application below the system-call layer.
//!
//! What lives here: attaching to the daemons of the host, path walk, open files, reads and writes,
//! and every other operation on a file of the instance, each with the errno that Linux would give.
//! What does not: which system call was made and what its arguments mean (`preload`), descriptors
//! of the kernel, the layout of shared memory (`shm`), and what the daemon decides.
//!
//! Everything is a method of `Client`, takes `&self`, and may be called from any thread, in a
//! signal handler, and on both sides of a `fork`.
//!
//! Invariants:
//!  1. Nothing allocates, nothing panics, no buffer on the stack exceeds 8 KiB.
//!  2. No wait without bound, except for a lock that another program holds, and that wait ends by
//!     a signal.
//!  3. State that two processes share is in shared memory; what is here is a cache of it, so that
//!     a forked child and an exec'd program see the same files.
//!
//! Reading order: `attach`, `request`, `walk`, `open_files`, then one module for each subject.
#![forbid(unsafe_code)]
#![no_std]

#[cfg(test)]
extern crate std;

mod attach;

mod request;

mod errno;

mod path;

mod again;
mod ahead;

mod leases;

mod memo;

mod walk;

mod opened;

mod open_files;

mod permission;

mod posts;

mod descriptors;

mod layout;

mod pieces;

mod far;
mod fetch;
mod unkept;

mod behind;

mod read;

mod write;

mod append;

mod size;

mod space;

mod seek;

mod share;

mod stat;

mod attributes;

mod handed_down;

mod below;

mod rise;

mod quota;

mod namespace;

mod rename;

mod directory;

mod xattr;

mod locks;

mod waits;

mod saves;

mod pages;
mod watches;

mod looks;

mod recent;

pub use attributes::{Time, Times, without_set_id};
pub use directory::Listed;
pub use locks::{Owner, Range, Wait};
pub use looks::Looked;
pub use open_files::Opened;
pub use pages::Granted;
pub use path::{At, Follow, Outcome, PathBuffer};
pub use read::Position;
pub use rise::{Place, Tier};
pub use saves::{SaveWait, WantedWait};
pub use share::Part;
pub use shm::host::{Descriptor, OfdIndex, ProcessIndex};
pub use space::Space;
pub use waits::LockWait;
pub use watches::Watched;

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use shm::host::HostSegment;
use shm::once::Once;
use wire::errno::{Errno, Result};

/// This process's side of one instance. It belongs in a static: it is large, touched lazily, and
/// what it maps is never given back.
pub struct Client {
    settings: Once<attach::Settings>,
    host: Once<HostSegment>,
    attachments: attach::Attachments,
    cache: pieces::Cache,
    memo: memo::Memo,
    /// Bound on a wait, as the last daemon said; 0 before the first.
    timeout_micros: AtomicU64,
    /// How the instance is set, as the last daemon said: looked at by each write and read.
    writes_behind: AtomicBool,
    /// See `writes_behind`.
    reads_ahead: AtomicBool,
    /// A daemon did not come back in time: the next calls wait only a moment.
    is_gone: AtomicBool,
    /// The mount that this process serves, by its number on this host; 0: none.
    mount: AtomicU8,
    recent: recent::Recent,
}

impl Client {
    /// A client that is attached to nothing.
    #[must_use]
    pub const fn new() -> Client {
        Client {
            settings: Once::new(),
            host: Once::new(),
            attachments: attach::Attachments::new(),
            cache: pieces::Cache::new(),
            memo: memo::Memo::new(),
            timeout_micros: AtomicU64::new(0),
            writes_behind: AtomicBool::new(false),
            reads_ahead: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            mount: AtomicU8::new(0),
            recent: recent::Recent::new(),
        }
    }

    /// The host segment.
    #[inline]
    fn host(&self) -> Result<&HostSegment> {
        self.host.get().ok_or(Errno::EIO)
    }
}

impl Default for Client {
    fn default() -> Client {
        Client::new()
    }
}
