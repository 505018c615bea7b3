//! Descriptor tables of processes, as the interception layer uses them. They lie in the host
//! segment, so they survive exec, and the daemon finds what a killed process had open.

use wire::errno::{Errno, Result};

use crate::{Client, Descriptor, OfdIndex, ProcessIndex};

impl Client {
    /// A table for this process.
    ///
    /// # Errors
    /// `ENFILE` if the host has too many processes.
    pub fn register(&self, pid: u32, started: u64) -> Result<ProcessIndex> {
        self.host()?.process_register(pid, started)
    }

    /// The table that this process had before exec.
    #[must_use]
    pub fn find_process(&self, pid: u32, started: u64) -> Option<ProcessIndex> {
        self.host().ok()?.process_find(pid, started)
    }

    /// What a descriptor stands for, and whether exec closes it.
    #[must_use]
    #[inline]
    pub fn fd_get(&self, process: ProcessIndex, fd: u32) -> Option<(OfdIndex, bool)> {
        self.host().ok()?.process_get(process, fd)
    }

    /// The word of a descriptor, for who looks at it more than once.
    #[must_use]
    #[inline]
    pub fn fd_word(&self, process: ProcessIndex, fd: u32) -> Option<Descriptor<'_>> {
        self.host().ok()?.process_descriptor(process, fd)
    }

    /// What a descriptor stands for, which from now on stands for nothing. Its reference is the
    /// caller's: of two threads that close a descriptor at a time one gets it.
    #[must_use]
    #[inline]
    pub fn fd_take(&self, process: ProcessIndex, fd: u32) -> Option<OfdIndex> {
        self.host().ok()?.process_take(process, fd).map(|(file, _)| file)
    }

    /// Sets what a descriptor stands for, and returns what it stood for until then. References are
    /// not counted here: `retain` and `close`.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn fd_set(
        &self,
        process: ProcessIndex,
        fd: u32,
        to: Option<(OfdIndex, bool)>,
    ) -> Result<Option<(OfdIndex, bool)>> {
        self.host()?.process_set(process, fd, to)
    }

    /// Says whether exec closes what a descriptor stands for.
    ///
    /// # Errors
    /// `EBADF` if it stands for nothing.
    pub fn fd_mark(&self, process: ProcessIndex, fd: u32, close_on_exec: bool) -> Result<()> {
        let is_marked = self.host()?.process_mark(process, fd, close_on_exec);
        if is_marked { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Before fork: a copy of the table for the child, with a reference more on every open file.
    ///
    /// # Errors
    /// `ENFILE`.
    pub fn fork_copy(&self, parent: ProcessIndex) -> Result<ProcessIndex> {
        self.host()?.process_copy(parent, &mut |ofd| self.let_go(ofd))
    }

    /// In the child: the copy is this process's table.
    ///
    /// # Errors
    /// `EIO` for a number that is none.
    pub fn adopt(&self, process: ProcessIndex, pid: u32, started: u64) -> Result<()> {
        // A fork that the C library knows nothing of leaves the parent's number there.
        shm::wait::trust_libc();
        self.host()?.process_adopt(process, pid, started)
    }

    /// Closes every descriptor of a table and gives it up: at exit, or when a fork failed.
    ///
    /// # Errors
    /// The first that a close gave; the table is given up all the same.
    pub fn release_process(&self, process: ProcessIndex) -> Result<()> {
        let mut outcome = Ok(());
        let host = self.host()?;
        let generation = host.process_generation(process);
        host.process_release(process, generation, &mut |ofd| {
            let closed = self.close(ofd, process);
            if outcome.is_ok() && closed != Err(Errno::EBADF) {
                outcome = closed;
            }
        })?;
        outcome
    }

    /// As `release_process`, for a process whose other threads may still work with open files: what
    /// `is_used` stays in the table, for the daemon.
    ///
    /// # Errors
    /// As `release_process`.
    pub fn release_process_but(
        &self,
        process: ProcessIndex,
        is_used: &dyn Fn(OfdIndex) -> bool,
    ) -> Result<()> {
        let (mut outcome, mut is_empty) = (Ok(()), true);
        let host = self.host()?;
        host.process_each(process, &mut |fd, _, _| {
            // Taken before it is looked: who finds it there from now on is too late.
            let Some((ofd, close_on_exec)) = host.process_take(process, fd) else { return };
            let closed = if is_used(ofd) {
                is_empty = false;
                host.process_set(process, fd, Some((ofd, close_on_exec))).map(drop)
            } else {
                self.close(ofd, process)
            };
            if outcome.is_ok() && closed != Err(Errno::EBADF) {
                outcome = closed;
            }
        });
        if is_empty { self.release_process(process).and(outcome) } else { outcome }
    }

    /// Calls `with` for each descriptor: number, open file, closed on exec.
    pub fn for_each_fd(&self, process: ProcessIndex, with: &mut dyn FnMut(u32, OfdIndex, bool)) {
        if let Ok(host) = self.host() {
            host.process_each(process, with);
        }
    }
}
