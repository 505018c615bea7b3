//! Descriptor tables of processes, as the interception layer uses them. They are in the host
//! segment, so they survive exec, and the daemon finds what a killed process had open.

use wire::errno::{Errno, Result};

use crate::open::closing;
use crate::transport::Transport;
use crate::{Descriptor, OfdIndex, ProcessIndex};

/// Creates a table for this process.
pub(crate) fn register(transport: &Transport, pid: u32, started: u64) -> Result<ProcessIndex> {
    transport.host()?.process_register(pid, started)
}

/// The table that this process had before exec.
pub(crate) fn find_process(transport: &Transport, pid: u32, started: u64) -> Option<ProcessIndex> {
    transport.host().ok()?.process_find(pid, started)
}

/// The open file of a descriptor, and whether exec closes it.
#[inline]
pub(crate) fn fd_get(
    transport: &Transport,
    process: ProcessIndex,
    fd: u32,
) -> Option<(OfdIndex, bool)> {
    transport.host().ok()?.process_get(process, fd)
}

/// The table entry of a descriptor, for callers that read it more than once.
#[inline]
pub(crate) fn fd_word(
    transport: &Transport,
    process: ProcessIndex,
    fd: u32,
) -> Option<Descriptor<'_>> {
    transport.host().ok()?.process_descriptor(process, fd)
}

/// Takes the open file out of a descriptor's entry. Its reference passes to the caller: of two
/// threads that close a descriptor at the same time only one gets it.
#[inline]
pub(crate) fn fd_take(transport: &Transport, process: ProcessIndex, fd: u32) -> Option<OfdIndex> {
    transport.host().ok()?.process_take(process, fd).map(|(file, _)| file)
}

/// Sets the open file of a descriptor and returns the previous one. It does not count
/// references: `retain` and `close` do.
pub(crate) fn fd_set(
    transport: &Transport,
    process: ProcessIndex,
    fd: u32,
    to: Option<(OfdIndex, bool)>,
) -> Result<Option<(OfdIndex, bool)>> {
    transport.host()?.process_set(process, fd, to)
}

/// Sets whether exec closes a descriptor.
pub(crate) fn fd_mark(
    transport: &Transport,
    process: ProcessIndex,
    fd: u32,
    close_on_exec: bool,
) -> Result<()> {
    let is_marked = transport.host()?.process_mark(process, fd, close_on_exec);
    if is_marked { Ok(()) } else { Err(Errno::EBADF) }
}

/// Gives back what a call of the calling thread that ended without returning holds of an open file.
pub(crate) fn end_abandoned_use(transport: &Transport, file: OfdIndex) {
    if let Ok(words) = transport.host().and_then(|host| host.file(file)) {
        words.end_abandoned();
    }
}

/// Before a fork: copies the table for the child and takes a reference of every open file.
pub(crate) fn fork_copy(transport: &Transport, parent: ProcessIndex) -> Result<ProcessIndex> {
    transport.host()?.process_copy(parent, &mut |ofd| closing::release(transport, ofd))
}

/// In the child: makes the copy this process's table.
pub(crate) fn adopt(
    transport: &Transport,
    process: ProcessIndex,
    pid: u32,
    started: u64,
) -> Result<()> {
    // A fork that bypasses the C library leaves the parent's thread id cached there.
    shm::wait::trust_libc();
    transport.host()?.process_adopt(process, pid, started)
}

/// Closes every descriptor of a table and frees it: at exit, or when a fork failed.
pub(crate) fn release_process(transport: &Transport, process: ProcessIndex) -> Result<()> {
    let mut outcome = Ok(());
    let host = transport.host()?;
    let generation = host.process_generation(process);
    host.process_release(process, generation, &mut |ofd| {
        let closed = closing::close(transport, ofd, process);
        if outcome.is_ok() && closed != Err(Errno::EBADF) {
            outcome = closed;
        }
    })?;
    outcome
}

/// As `release_process`, for a process whose other threads may still use open files: those for
/// which `is_used` is true stay in the table, for the daemon to close.
pub(crate) fn release_process_but(
    transport: &Transport,
    process: ProcessIndex,
    is_used: &dyn Fn(OfdIndex) -> bool,
) -> Result<()> {
    let (mut outcome, mut is_empty) = (Ok(()), true);
    let host = transport.host()?;
    host.process_each(process, &mut |fd, _, _| {
        // Taken before `is_used` is tested, so a thread that reads the entry later finds it
        // empty.
        let Some((ofd, close_on_exec)) = host.process_take(process, fd) else { return };
        let closed = if is_used(ofd) {
            is_empty = false;
            host.process_set(process, fd, Some((ofd, close_on_exec))).map(drop)
        } else {
            closing::close(transport, ofd, process)
        };
        if outcome.is_ok() && closed != Err(Errno::EBADF) {
            outcome = closed;
        }
    });
    if is_empty { release_process(transport, process).and(outcome) } else { outcome }
}

/// Calls `with` for each descriptor: number, open file, close-on-exec.
pub(crate) fn for_each_fd(
    transport: &Transport,
    process: ProcessIndex,
    with: &mut dyn FnMut(u32, OfdIndex, bool),
) {
    if let Ok(host) = transport.host() {
        host.process_each(process, with);
    }
}
