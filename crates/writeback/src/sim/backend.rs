//! The backing directory of the simulation, whose calls may fail.

use super::World;
use crate::backends::posix::PosixBackend;
use crate::backends::{
    Backend, CopySource, Dir, NewNode, Node, PartialFiles, Precondition, Uncommitted, WriteAt,
};
use crate::state::WritebackResult;
use backing::{AttributesLost, CopyError, FileMetadata};
use rustix::fs::{Mode, OFlags, ftruncate, openat};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;

/// A `PosixBackend` of which each call may fail before it does anything, or be the daemon's last.
pub(in crate::sim) struct Faulty<'a> {
    pub(in crate::sim) world: &'a World,
    pub(in crate::sim) posix: PosixBackend,
}

impl Faulty<'_> {
    fn call<T>(&self, call: impl FnOnce(&PosixBackend) -> io::Result<T>) -> io::Result<T> {
        // ENOSPC.
        let failed = || io::Error::from_raw_os_error(28);
        if !self.world.step() {
            return Err(failed());
        }
        let done = call(&self.posix)?;
        if self.world.is_dead() { Err(failed()) } else { Ok(done) }
    }

    fn call_to_commit<T>(
        &self,
        call: impl FnOnce(&PosixBackend) -> Result<T, CopyError>,
    ) -> Result<T, CopyError> {
        let failed = || CopyError::Write(io::Error::from_raw_os_error(28));
        if !self.world.step() {
            return Err(failed());
        }
        let done = call(&self.posix)?;
        if self.world.is_dead() { Err(failed()) } else { Ok(done) }
    }
}

impl Backend for Faulty<'_> {
    fn is_object_store(&self) -> bool {
        self.posix.is_object_store()
    }
    fn part_bytes(&self, size: u64) -> u64 {
        self.posix.part_bytes(size)
    }
    fn partials(&self) -> Option<&dyn PartialFiles> {
        Some(self)
    }
    fn root(&self) -> io::Result<Dir> {
        self.call(PosixBackend::root)
    }
    fn dir(&self, within: &Dir, name: &OsStr) -> io::Result<Dir> {
        self.call(|posix| posix.dir(within, name))
    }
    fn node(&self, within: &Dir, name: &OsStr) -> io::Result<Option<Node>> {
        self.call(|posix| posix.node(within, name))
    }
    fn names(&self, within: &Dir) -> io::Result<Vec<OsString>> {
        self.call(|posix| posix.names(within))
    }
    fn create(
        &self,
        at: (&Dir, &OsStr),
        new: &NewNode,
        metadata: &FileMetadata,
    ) -> io::Result<Uncommitted> {
        self.call(|posix| posix.create(at, new, metadata))
    }
    fn write(
        &self,
        partial: &Uncommitted,
        part: &Range<u64>,
        fill: &mut dyn FnMut(&mut WriteAt<'_>) -> WritebackResult<()>,
    ) -> WritebackResult<()> {
        // The calls of the instance within it may fail.
        self.posix.write(partial, part, fill)
    }
    fn read_back(&self, partial: &Uncommitted, to: &mut [u8], at: u64) -> io::Result<usize> {
        let mut count = self.call(|posix| posix.read_back(partial, to, at))?;
        if self.world.lies() {
            // The end is missing, or a byte is another one.
            match to.get_mut(count / 2) {
                Some(byte) if at.is_multiple_of(2) => *byte ^= 1,
                _ => count -= count.min(1),
            }
        }
        Ok(count)
    }
    fn set_metadata(
        &self,
        partial: &Uncommitted,
        metadata: &FileMetadata,
    ) -> io::Result<AttributesLost> {
        self.call(|posix| posix.set_metadata(partial, metadata))
    }
    fn sync(&self, within: &Dir) -> io::Result<()> {
        // The simulation does not depend on it, and a real sync would wait for the whole machine.
        let _ = within;
        self.call(|_| Ok(()))
    }
    fn commit(
        &self,
        partial: Uncommitted,
        at: (&Dir, &OsStr),
        over: Precondition,
    ) -> Result<(), CopyError> {
        self.call_to_commit(|posix| posix.commit(partial, at, over))
    }
    fn rename(&self, from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> io::Result<()> {
        self.call(|posix| posix.rename(from, to))
    }
    fn link(&self, from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> io::Result<()> {
        self.call(|posix| posix.link(from, to))
    }
    fn remove(&self, within: &Dir, name: &OsStr, is_dir: bool) -> io::Result<()> {
        self.call(|posix| posix.remove(within, name, is_dir))
    }
    fn update_metadata(
        &self,
        within: &Dir,
        name: &OsStr,
        metadata: &FileMetadata,
    ) -> io::Result<AttributesLost> {
        self.call(|posix| posix.update_metadata(within, name, metadata))
    }
    fn rewrite(
        &self,
        within: &Dir,
        name: &OsStr,
        partial: &Uncommitted,
        metadata: &FileMetadata,
    ) -> Result<(), CopyError> {
        let done = self.call_to_commit(|posix| posix.rewrite(within, name, partial, metadata));
        if done.is_err()
            && let Dir::Posix(within) = within
        {
            // The rewrite was interrupted.
            let torn = openat(within, name, OFlags::WRONLY, Mode::empty());
            torn.and_then(|file| ftruncate(file, 1))
                .map_err(|errno| CopyError::Write(errno.into()))?;
        }
        done
    }
}

impl PartialFiles for Faulty<'_> {
    fn begin(
        &self,
        within: &Dir,
        of: &wire::Attributes,
        source: CopySource<'_>,
    ) -> Result<(backing::PartialFile, OsString, u64), CopyError> {
        self.call_to_commit(|posix| posix.begin(within, of, source))
    }
    fn persist(&self, partial: &mut backing::PartialFile, of: wire::Inode) -> io::Result<OsString> {
        self.call(|posix| posix.persist(partial, of))
    }
    fn is_left_over(&self, name: &OsStr, modified: i64) -> bool {
        self.posix.is_left_over(name, modified)
    }
    fn open(
        &self,
        within: &Dir,
        name: &OsStr,
        number: u64,
    ) -> io::Result<Option<backing::PartialFile>> {
        self.call(|posix| posix.open(within, name, number))
    }
    fn resize(&self, partial: &backing::PartialFile, size: u64) -> io::Result<()> {
        self.call(|posix| posix.resize(partial, size))
    }
    fn put(
        &self,
        partial: &backing::PartialFile,
        bytes: &[u8],
        at: u64,
        counts: u64,
    ) -> io::Result<()> {
        self.call(|posix| posix.put(partial, bytes, at, counts))
    }
    fn sync(&self, _: &backing::PartialFile, _: Option<&Dir>) -> io::Result<()> {
        // The machine does not crash in this simulation.
        self.call(|_| Ok(()))
    }
}
