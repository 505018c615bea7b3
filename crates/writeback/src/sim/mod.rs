//! A simulated instance over a real directory: random operations between the calls of a round,
//! calls that fail, and a daemon that is killed at any of them.
//!
//! Contents of imported files that were never read exist only in the backing store: a read finds
//! them there or fails.

mod backend;
mod instance;
mod listing;
mod tests;

use crate::instance::{BeginRange, DirtyRange, Instance};
use crate::state::{BackingLocation, DirtyName, Place, SyncState};
use std::sync::{Arc, Mutex, PoisonError};
use wire::Inode;
use wire::errno::{Errno, Result};

use backend::Faulty;
use instance::FakeInstance;

/// A deterministic random number generator.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// Faults to inject.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Number of calls until the daemon is killed.
    lives: Option<u32>,
    /// One call in this many fails.
    error_in: Option<usize>,
    /// A user operation runs before one call in this many.
    busy_in: Option<usize>,
    /// One read of what was written in this many finds something else.
    lie_in: Option<usize>,
}

/// The instance and its backing directory.
struct World {
    instance: Mutex<FakeInstance>,
    random: Mutex<Random>,
    faults: Mutex<Faults>,
    place: tempfile::TempDir,
    /// The seed, for messages.
    seed: u64,
}

impl World {
    fn new(seed: u64) -> Arc<World> {
        let place = tempfile::tempdir().expect("a directory");
        let instance = Mutex::new(FakeInstance::new(place.path()));
        let random = Mutex::new(Random::new(seed));
        Arc::new(World { instance, random, faults: Mutex::default(), place, seed })
    }

    fn with<T>(&self, with: impl FnOnce(&mut FakeInstance) -> T) -> T {
        with(&mut self.instance.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, faults: Faults) {
        *self.faults.lock().expect("faults") = faults;
    }

    fn is_dead(&self) -> bool {
        self.faults.lock().expect("faults").lives == Some(0)
    }

    /// Whether the store has lost what it was given.
    fn lies(&self) -> bool {
        let of = self.faults.lock().expect("faults").lie_in;
        of.is_some_and(|of| self.random.lock().expect("numbers").uniform(of) == 0)
    }

    /// Runs before each call: true if the call is made. Counted twice per call, so that the daemon
    /// may be killed before and after it.
    fn step(&self) -> bool {
        let mut random = self.random.lock().expect("numbers");
        let mut faults = self.faults.lock().expect("faults");
        if let Some(lives) = &mut faults.lives {
            *lives = lives.saturating_sub(1);
            if *lives == 0 {
                return false;
            }
        }
        let is_busy = faults.busy_in.is_some_and(|of| random.uniform(of) == 0);
        let fails = faults.error_in.is_some_and(|of| random.uniform(of) == 0);
        drop(faults);
        if is_busy {
            self.with(|instance| instance.operate(&mut random));
        }
        !fails
    }

    fn call<T>(&self, call: impl FnOnce(&mut FakeInstance) -> Result<T>) -> Result<T> {
        if !self.step() {
            return Err(Errno::EIO);
        }
        let answer = self.with(call);
        // The call was executed, and its answer is lost.
        if self.is_dead() { Err(Errno::EIO) } else { answer }
    }
}

impl Instance for World {
    fn dirty_names(&self) -> Result<Vec<DirtyName>> {
        self.call(|instance| Ok(instance.dirty_names()))
    }
    fn dirty_inodes(&self) -> Result<Vec<SyncState>> {
        self.call(|instance| Ok(instance.dirty_inodes()))
    }
    fn sync_state(&self, inode: Inode) -> Result<Option<SyncState>> {
        self.call(|instance| Ok(instance.sync_state(inode)))
    }
    fn writing(&self, inode: Inode, location: &BackingLocation) -> Result<()> {
        self.call(|instance| instance.writing(inode, location))
    }
    fn wrote(&self, inode: Inode, location: &BackingLocation) -> Result<()> {
        self.call(|instance| instance.wrote(inode, location))
    }
    fn not_written(&self, inode: Inode) -> Result<()> {
        self.call(|instance| instance.not_written(inode))
    }
    fn gone(&self, inode: Inode) -> Result<()> {
        self.call(|instance| instance.gone(inode))
    }
    fn name_written(&self, place: &Place, from: Inode, to: Inode) -> Result<()> {
        self.call(|instance| instance.name_written(place, from, to))
    }
    fn note_partial(&self, inode: Inode, is_new: bool, location: &BackingLocation) -> Result<()> {
        self.call(|instance| instance.note_partial(inode, is_new, location))
    }
    fn forget_partial(&self, inode: Inode) -> Result<()> {
        self.call(|instance| instance.forget_partial(inode))
    }
    fn may_evict(&self, _: Inode) -> bool {
        true
    }
    fn begin_writeback(&self, of: &wire::Attributes, part: &BeginRange) -> Result<Vec<DirtyRange>> {
        self.call(|instance| instance.begin_writeback(of.inode, part))
    }
    fn end_writeback(
        &self,
        of: &wire::Attributes,
        part: (u64, u64),
        _: &[DirtyRange],
    ) -> Result<()> {
        self.call(|instance| instance.end_writeback(of.inode, part))
    }
    fn copy_all(
        &self,
        of: &wire::Attributes,
        part: std::ops::Range<u64>,
        to: &mut crate::backends::WriteAt<'_>,
    ) -> std::result::Result<u64, crate::state::WritebackError> {
        let contents = self.call(|instance| instance.contents(of.inode))?;
        let end = part.end.min(contents.len() as u64).max(part.start);
        let bytes = contents.get(part.start as usize..end as usize).unwrap_or_default();
        to(bytes, part.start)?;
        Ok(end)
    }
    fn metadata(&self, of: &wire::Attributes) -> Result<backing::FileMetadata> {
        self.call(|instance| instance.metadata(of.inode))
    }
    fn target(&self, of: &wire::Attributes) -> Result<std::ffi::OsString> {
        self.call(|instance| instance.target(of.inode))
    }
    fn copy(
        &self,
        of: &wire::Attributes,
        part: std::ops::Range<u64>,
        to: &mut crate::backends::WriteAt<'_>,
    ) -> std::result::Result<(), crate::state::WritebackError> {
        let contents = self.call(|instance| instance.read(of.inode))?;
        if contents.len() as u64 != of.size {
            return Err(crate::state::WritebackError::Changed);
        }
        let part = part.start as usize..part.end as usize;
        Ok(to(&contents[part.clone()], part.start as u64)?)
    }
}
