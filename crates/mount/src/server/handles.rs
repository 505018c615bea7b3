//! Handles: the numbers by which the kernel names open files.
//!
//! A handle is a slot in a descriptor table of this process in the host segment, where preloaded
//! programs also have theirs. So the daemons of the host know what is open, and close it if this
//! process is killed. A table has a fixed size; a mount with more open files has several.

use client::{Client, OfdIndex, ProcessIndex};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::errno::{Errno, Result};

/// Number of slots of a table.
const FD_SLOTS: u32 = 65_536;

/// All open files of this mount.
pub(crate) struct Handles {
    client: &'static Client,
    identity: (u32, u64),
    tables: Mutex<Vec<FdTable>>,
    /// Handles that share an open file with a program, and how many, because most mounts have none.
    shared: Mutex<BTreeSet<u64>>,
    shared_count: AtomicUsize,
}

/// A table: slots that were freed, and the first slot that was never used.
struct FdTable {
    process: ProcessIndex,
    free: Vec<u32>,
    next: u32,
}

impl FdTable {
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = self.next;
            self.next = slot.saturating_add(1).min(FD_SLOTS);
            (slot < FD_SLOTS).then_some(slot)
        })
    }
}

impl Handles {
    /// Registers this process with one table.
    ///
    /// # Errors
    /// `ENFILE` if the host has too many processes.
    pub(crate) fn new(client: &'static Client, identity: (u32, u64)) -> Result<Handles> {
        let handles = Handles {
            client,
            identity,
            tables: Mutex::default(),
            shared: Mutex::default(),
            shared_count: AtomicUsize::new(0),
        };
        handles.grow(&mut handles.guard())?;
        Ok(handles)
    }

    fn guard(&self) -> MutexGuard<'_, Vec<FdTable>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grow(&self, tables: &mut Vec<FdTable>) -> Result<()> {
        let (pid, started) = self.identity;
        let process = self.client.register(pid, started)?;
        tables.push(FdTable { process, free: Vec::new(), next: 0 });
        Ok(())
    }

    /// Adds a handle, which owns the reference to the open file from now on.
    ///
    /// # Errors
    /// `ENFILE`; the open file is closed then.
    pub(crate) fn add(&self, file: OfdIndex) -> Result<u64> {
        let added = self.slot().and_then(|(process, slot)| {
            self.client.fd_set(process, slot, Some((file, true)))?;
            Ok(u64::from(process.0) << 32 | u64::from(slot))
        });
        if added.is_err() {
            self.put(file);
        }
        added
    }

    fn slot(&self) -> Result<(ProcessIndex, u32)> {
        let mut tables = self.guard();
        loop {
            for table in tables.iter_mut().rev() {
                if let Some(slot) = table.take() {
                    return Ok((table.process, slot));
                }
            }
            self.grow(&mut tables)?;
        }
    }

    /// The open file of a handle.
    ///
    /// # Errors
    /// `EBADF`.
    pub(crate) fn get(&self, handle: u64) -> Result<OfdIndex> {
        let (process, slot) = parts(handle)?;
        self.client.fd_get(process, slot).map(|(file, _)| file).ok_or(Errno::EBADF)
    }

    /// Replaces the open file of a handle by one that a program has; the reference passes to the
    /// handle.
    ///
    /// # Errors
    /// `EBADF`.
    pub(crate) fn share(&self, handle: u64, file: OfdIndex) -> Result<()> {
        let (process, slot) = parts(handle)?;
        match self.client.fd_set(process, slot, Some((file, true))) {
            Ok(before) => {
                if let Some((own, _)) = before {
                    self.put(own);
                }
                if self.shared_guard().insert(handle) {
                    self.shared_count.fetch_add(1, SeqCst);
                }
                Ok(())
            }
            Err(errno) => {
                self.client.release(file);
                Err(errno)
            }
        }
    }

    /// True if a handle shares a program's open file.
    pub(crate) fn is_shared(&self, handle: u64) -> bool {
        self.shared_count.load(SeqCst) != 0 && self.shared_guard().contains(&handle)
    }

    fn shared_guard(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the open file of a handle.
    ///
    /// # Errors
    /// `EBADF`; as `Client::close`.
    pub(crate) fn close(&self, handle: u64) -> Result<()> {
        let (process, slot) = parts(handle)?;
        let file = self.client.fd_take(process, slot).ok_or(Errno::EBADF)?;
        if self.shared_count.load(SeqCst) != 0 && self.shared_guard().remove(&handle) {
            self.shared_count.fetch_sub(1, SeqCst);
        }
        let closed = self.client.close_without_writeback(file, process);
        let mut tables = self.guard();
        if let Some(table) = tables.iter_mut().find(|table| table.process == process) {
            table.free.push(slot);
        }
        closed
    }

    /// Drops a reference that no handle owns.
    pub(crate) fn put(&self, file: OfdIndex) {
        let process = self.guard().first().map(|table| table.process);
        let _ = process.map(|process| self.client.close_without_writeback(file, process));
    }

    /// Closes all handles.
    pub(crate) fn release(&self) {
        for table in self.guard().drain(..) {
            let _ = self.client.release_process(table.process);
        }
    }
}

fn parts(handle: u64) -> Result<(ProcessIndex, u32)> {
    let process = u32::try_from(handle >> 32).map_err(|_| Errno::EBADF)?;
    Ok((ProcessIndex(process), handle as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_slots_are_used_once_until_they_are_freed() {
        let mut table = FdTable { process: ProcessIndex(0), free: Vec::new(), next: 0 };
        let all: Vec<u32> = std::iter::from_fn(|| table.take()).collect();
        assert!(all.iter().copied().eq(0..FD_SLOTS));
        table.free.push(7);
        assert_eq!((table.take(), table.take()), (Some(7), None));
    }
}
