//! An instance that is simulated, over a directory that is real: random operations between the calls of a
//! round, calls that fail, a writer that dies at any of them.
//!
//! Bytes of files from below that nobody read are below alone: who reads them finds them there or fails.

mod instance;
mod listing;
mod lower;
mod tests;

use crate::sides::{Above, Dirty, PartAsked};
use crate::state::{Lies, Place, Row, Standing};
use std::sync::{Arc, Mutex, PoisonError};
use wire::Inode;
use wire::errno::{Errno, Result};

use instance::Instance;
use lower::Faulty;

/// Numbers that follow from a seed.
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

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// So many calls are made before the writer dies.
    lives: Option<u32>,
    /// One of so many calls fails.
    error_in: Option<usize>,
    /// An operation comes between one of so many calls.
    busy_in: Option<usize>,
}

/// Both sides.
struct World {
    instance: Mutex<Instance>,
    random: Mutex<Random>,
    faults: Mutex<Faults>,
    place: tempfile::TempDir,
    /// For messages.
    seed: u64,
}

impl World {
    fn new(seed: u64) -> Arc<World> {
        let place = tempfile::tempdir().expect("a directory");
        let instance = Mutex::new(Instance::new(place.path()));
        let random = Mutex::new(Random::new(seed));
        Arc::new(World { instance, random, faults: Mutex::default(), place, seed })
    }

    fn with<T>(&self, with: impl FnOnce(&mut Instance) -> T) -> T {
        with(&mut self.instance.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, faults: Faults) {
        *self.faults.lock().expect("faults") = faults;
    }

    fn is_dead(&self) -> bool {
        self.faults.lock().expect("faults").lives == Some(0)
    }

    /// A call: true if it is made. Twice for each, so that the writer may die before and after.
    fn step(&self) -> bool {
        let mut random = self.random.lock().expect("numbers");
        let mut faults = self.faults.lock().expect("faults");
        if let Some(lives) = &mut faults.lives {
            *lives = lives.saturating_sub(1);
            if *lives == 0 {
                return false;
            }
        }
        let is_busy = faults.busy_in.is_some_and(|of| random.below(of) == 0);
        let fails = faults.error_in.is_some_and(|of| random.below(of) == 0);
        drop(faults);
        if is_busy {
            self.with(|instance| instance.operate(&mut random));
        }
        !fails
    }

    fn call<T>(&self, call: impl FnOnce(&mut Instance) -> Result<T>) -> Result<T> {
        if !self.step() {
            return Err(Errno::EIO);
        }
        let answer = self.with(call);
        // It was done, and nobody heard.
        if self.is_dead() { Err(Errno::EIO) } else { answer }
    }
}

impl Above for World {
    fn rows(&self) -> Result<Vec<Row>> {
        self.call(|instance| Ok(instance.rows()))
    }
    fn changed(&self) -> Result<Vec<Standing>> {
        self.call(|instance| Ok(instance.changed()))
    }
    fn standing(&self, inode: Inode) -> Result<Option<Standing>> {
        self.call(|instance| Ok(instance.standing(inode)))
    }
    fn saving(&self, inode: Inode, lies: &Lies) -> Result<()> {
        self.call(|instance| instance.saving(inode, lies))
    }
    fn wrote(&self, inode: Inode, lies: &Lies) -> Result<()> {
        self.call(|instance| instance.wrote(inode, lies))
    }
    fn not_written(&self, inode: Inode) -> Result<()> {
        self.call(|instance| instance.not_written(inode))
    }
    fn gone(&self, inode: Inode) -> Result<()> {
        self.call(|instance| instance.gone(inode))
    }
    fn saved(&self, place: &Place, from: Inode, to: Inode) -> Result<()> {
        self.call(|instance| instance.saved(place, from, to))
    }
    fn drafted(&self, inode: Inode, is_new: bool, lies: &Lies) -> Result<()> {
        self.call(|instance| instance.drafted(inode, is_new, lies))
    }
    fn undrafted(&self, inode: Inode) -> Result<()> {
        self.call(|instance| instance.undrafted(inode))
    }
    fn begin_saving(&self, of: &wire::Attributes, part: &PartAsked) -> Result<Vec<Dirty>> {
        self.call(|instance| instance.begin_saving(of.inode, part))
    }
    fn end_saving(&self, of: &wire::Attributes, part: (u64, u64), _: &[Dirty]) -> Result<()> {
        self.call(|instance| instance.end_saving(of.inode, part))
    }
    fn copy_all(
        &self,
        of: &wire::Attributes,
        part: std::ops::Range<u64>,
        to: &mut crate::sides::Sink<'_>,
    ) -> std::result::Result<u64, crate::state::Trouble> {
        let contents = self.call(|instance| instance.contents(of.inode))?;
        let end = part.end.min(contents.len() as u64).max(part.start);
        let bytes = contents.get(part.start as usize..end as usize).unwrap_or_default();
        to(bytes, part.start)?;
        Ok(end)
    }
    fn dress(&self, of: &wire::Attributes) -> Result<below::Dress> {
        self.call(|instance| instance.dress(of.inode))
    }
    fn target(&self, of: &wire::Attributes) -> Result<std::ffi::OsString> {
        self.call(|instance| instance.target(of.inode))
    }
    fn copy(
        &self,
        of: &wire::Attributes,
        part: std::ops::Range<u64>,
        to: &mut crate::sides::Sink<'_>,
    ) -> std::result::Result<(), crate::state::Trouble> {
        let contents = self.call(|instance| instance.read(of.inode))?;
        if contents.len() as u64 != of.size {
            return Err(crate::state::Trouble::Again);
        }
        let part = part.start as usize..part.end as usize;
        Ok(to(&contents[part.clone()], part.start as u64)?)
    }
}
