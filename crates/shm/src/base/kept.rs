//! A file that a process keeps in order to map more of it, or to read it, until it gives up the right
//! to. Its number may then be that of another file.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::errno::{Errno, Result};

/// The file.
pub(crate) struct KeptFile {
    file: OwnedFd,
    is_given_up: AtomicBool,
}

impl KeptFile {
    pub(crate) const fn new(file: OwnedFd) -> KeptFile {
        KeptFile { file, is_given_up: AtomicBool::new(false) }
    }

    /// The file, for use.
    ///
    /// # Errors
    /// `EACCES` if it was given up.
    pub(crate) fn get(&self) -> Result<BorrowedFd<'_>> {
        if self.is_given_up.load(Acquire) { Err(Errno::EACCES) } else { Ok(self.descriptor()) }
    }

    /// Its descriptor, for closing it and for telling it from those of the program.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// No use of it succeeds from now on. The descriptor stays open.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Release);
    }
}
