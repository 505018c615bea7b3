//! Handles: the numbers by which the kernel names open files to us.
//!
//! A handle is a place in this process's table of descriptors in the host segment, where programs that
//! are preloaded have theirs, too: so the daemons of the host know what is open, and close it if this
//! program is killed. A table is of bounded size; a mount with more open files has several.

use client::{Client, OfdIndex, ProcessIndex};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::errno::{Errno, Result};

/// Places of one table.
const PLACES: u32 = 65_536;

/// All open files of this mount.
pub(crate) struct Handles {
    client: &'static Client,
    identity: (u32, u64),
    tables: Mutex<Vec<Table>>,
}

/// One table: the places that were given back, and the first that was never taken.
struct Table {
    process: ProcessIndex,
    free: Vec<u32>,
    next: u32,
}

impl Table {
    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let place = self.next;
            self.next = place.saturating_add(1).min(PLACES);
            (place < PLACES).then_some(place)
        })
    }
}

impl Handles {
    /// With one table, for this process.
    ///
    /// # Errors
    /// `ENFILE` if the host has too many processes.
    pub(crate) fn new(client: &'static Client, identity: (u32, u64)) -> Result<Handles> {
        let handles = Handles { client, identity, tables: Mutex::default() };
        handles.grow(&mut handles.guard())?;
        Ok(handles)
    }

    fn guard(&self) -> MutexGuard<'_, Vec<Table>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grow(&self, tables: &mut Vec<Table>) -> Result<()> {
        let (pid, started) = self.identity;
        let process = self.client.register(pid, started)?;
        tables.push(Table { process, free: Vec::new(), next: 0 });
        Ok(())
    }

    /// A handle of an open file, whose reference is the handle's from now on.
    ///
    /// # Errors
    /// `ENFILE`; the open file is closed then.
    pub(crate) fn add(&self, file: OfdIndex) -> Result<u64> {
        let added = self.place().and_then(|(process, place)| {
            self.client.fd_set(process, place, Some((file, true)))?;
            Ok(u64::from(process.0) << 32 | u64::from(place))
        });
        if added.is_err() {
            self.put(file);
        }
        added
    }

    fn place(&self) -> Result<(ProcessIndex, u32)> {
        let mut tables = self.guard();
        loop {
            for table in tables.iter_mut().rev() {
                if let Some(place) = table.take() {
                    return Ok((table.process, place));
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
        let (process, place) = parts(handle)?;
        self.client.fd_get(process, place).map(|(file, _)| file).ok_or(Errno::EBADF)
    }

    /// Closes the open file of a handle.
    ///
    /// # Errors
    /// `EBADF`; as `Client::close`.
    pub(crate) fn close(&self, handle: u64) -> Result<()> {
        let (process, place) = parts(handle)?;
        let file = self.client.fd_take(process, place).ok_or(Errno::EBADF)?;
        let closed = self.client.close_here(file, process);
        let mut tables = self.guard();
        if let Some(table) = tables.iter_mut().find(|table| table.process == process) {
            table.free.push(place);
        }
        closed
    }

    /// Gives a reference back that no handle has.
    pub(crate) fn put(&self, file: OfdIndex) {
        let process = self.guard().first().map(|table| table.process);
        let _ = process.map(|process| self.client.close_here(file, process));
    }

    /// Closes all.
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
    fn places_are_taken_once_until_they_are_given_back() {
        let mut table = Table { process: ProcessIndex(0), free: Vec::new(), next: 0 };
        let all: Vec<u32> = std::iter::from_fn(|| table.take()).collect();
        assert!(all.iter().copied().eq(0..PLACES));
        table.free.push(7);
        assert_eq!((table.take(), table.take()), (Some(7), None));
    }
}
