//! The operations of the crate, as `preload`, `mount` and `writeback` call them. Each only routes to
//! its subject.

mod backing;
mod data;
mod mounts;
mod names;
mod open_files;
mod processes;

use crate::open::Files;

/// This process's client of one instance. It belongs in a static: it is large, touched lazily, and
/// its mappings are never removed.
pub struct Client {
    files: Files,
}

impl Client {
    /// A client that is not attached.
    #[must_use]
    pub const fn new() -> Client {
        Client { files: Files::new() }
    }
}

impl Default for Client {
    fn default() -> Client {
        Client::new()
    }
}
