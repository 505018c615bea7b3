//! Which instance, daemon and worker a file belongs to.
//!
//! The number of an instance is made at random when the instance is. Every file that a daemon needs
//! after a restart carries it, so that a file of another instance, or of another daemon, is found.

/// The owner of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Random number of the instance.
    pub instance: u64,
    /// Daemon, and worker if the file is a worker's: see `of_daemon` and `of_worker`.
    pub part: u32,
}

/// In `part`: the file is the daemon's, not that of one of its workers.
const NO_WORKER: u32 = 0xffff;

impl Identity {
    /// Of a file of a daemon.
    #[must_use]
    pub const fn of_daemon(instance: u64, daemon: u16) -> Identity {
        Identity { instance, part: (daemon as u32) << 16 | NO_WORKER }
    }

    /// Of a file of one of its workers.
    #[must_use]
    pub const fn of_worker(self, worker: u16) -> Identity {
        Identity { instance: self.instance, part: self.part & !NO_WORKER | worker as u32 }
    }
}

/// Whether a file must exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// This is the first start: it is created.
    New,
    /// An earlier start created it: it must be there, and be the same.
    Existing,
}
