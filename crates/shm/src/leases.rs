//! Leases as clients read them: directories of other hosts, and until when those of each service may be
//! believed (`wire::lease`). The daemon writes what it was granted; clients read.
//!
//! Layout: for each service (`wire::lease::service`) a generation u64 and a time u64, both of them zero
//! before the first lease; behind them an index (`index`) with inodes and entries of directories.
//!
//! A row says nothing of its generation. So before a service's rows are gone that no longer hold, its
//! time is zero, and it gets another generation before another time:
//!
//!   writer: time = 0, rows taken away, generation + 1, time = until, rows put
//!   reader: generation, row, the clock, time, generation again; it counts if the clock is before the
//!           time and the generation is the same
//!
//! A reader that saw a row of the past saw a generation of the past: it finds time 0, or the time of
//! then, or another generation. A time that a generation once had was promised for all its rows; a row
//! that is recalled is taken away before anybody is told so.

use crate::index::{Index, Shape};
use crate::segment::{Access, Segment};
use crate::sync::{AtomicU64, fence};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use rustix::fd::AsFd;
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::lease::SERVICE_COUNT_MAX;
use wire::{Attributes, Inode};

const ROW: usize = 16;
/// Where the index begins.
const INDEX: usize = ROW * SERVICE_COUNT_MAX;
/// 8192 rows of each kind. What is forgotten costs a message.
const SHAPE: Shape = Shape { entries_log2: 11, inodes_log2: 11 };
/// Length of the memory.
pub const LEASES_BYTES: usize = INDEX + SHAPE.bytes();

const _: () = assert!(INDEX.is_multiple_of(4096));

/// All leases of a daemon, from either side.
pub struct Leases {
    times: Segment,
    index: Index,
}

impl Leases {
    /// The writer's side of memory that is zeros, or what an earlier writer left for `services`
    /// services under readers; `punch` makes zeros of all from an offset on.
    ///
    /// # Errors
    /// `EINVAL` if it is too short, and what `punch` says.
    pub fn create(
        memory: impl AsFd,
        services: usize,
        punch: impl FnOnce(usize) -> Result<()>,
    ) -> Result<Leases> {
        let part = |offset: usize, length| {
            Segment::map_part(memory.as_fd(), offset as u64, length, Access::ReadWrite)
        };
        let (times, index) = (part(0, INDEX)?, part(INDEX, SHAPE.bytes())?);
        for service in 0..services.min(SERVICE_COUNT_MAX) {
            times.word64(service * ROW + 8)?.store(0, SeqCst);
        }
        Index::empty(&index, |first| punch(INDEX + first))?;
        for service in 0..services.min(SERVICE_COUNT_MAX) {
            times.word64(service * ROW)?.fetch_add(1, SeqCst);
        }
        Ok(Leases { times, index: Index::create(index, SHAPE)? })
    }

    /// A reader's side.
    ///
    /// # Errors
    /// `EINVAL` if it is too short or not made.
    pub fn open(memory: impl AsFd) -> Result<Leases> {
        let part = |offset: usize, length| {
            Segment::map_part(memory.as_fd(), offset as u64, length, Access::ReadOnly)
        };
        Ok(Leases { times: part(0, INDEX)?, index: Index::open(part(INDEX, SHAPE.bytes())?)? })
    }

    fn words(&self, service: usize) -> Result<&[AtomicU64; 2]> {
        if service >= SERVICE_COUNT_MAX {
            return Err(Errno::EINVAL);
        }
        self.times.words::<2>(service * ROW)
    }

    /// What `look` finds in rows of one service, if that may be believed at the time that `now` says
    /// afterwards.
    pub fn read<R>(
        &self,
        service: usize,
        now: impl FnOnce() -> i64,
        look: impl FnOnce(&Index) -> Option<R>,
    ) -> Option<R> {
        let [generation, until] = self.words(service).ok()?;
        let before = generation.load(Acquire);
        // Mostly where nothing is leased: no row is looked at.
        if until.load(Relaxed) == 0 {
            return None;
        }
        let found = look(&self.index)?;
        fence(Acquire);
        let is_before = now().cast_unsigned() < until.load(Acquire);
        (is_before && generation.load(Acquire) == before).then_some(found)
    }

    /// As `Index::directories`, of the rows of all services.
    #[must_use]
    pub fn directories(&self) -> Option<u64> {
        self.index.directories()
    }

    /// The generation of a service's rows. Read it before the rows.
    #[must_use]
    pub fn generation(&self, service: usize) -> Option<u64> {
        self.words(service).ok().map(|[generation, _]| generation.load(Acquire))
    }

    /// True if rows of this generation may be believed at the time that `now` says: rows that are there
    /// then, as `directories` tells.
    pub fn holds(&self, service: usize, generation: u64, now: impl FnOnce() -> i64) -> bool {
        let Ok([known, until]) = self.words(service) else { return false };
        let is_before = now().cast_unsigned() < until.load(Acquire);
        is_before && known.load(Acquire) == generation
    }

    /// Rows of a service may be believed until then, as before. Only the writer calls this and what
    /// follows.
    pub fn extend(&self, service: usize, until: i64) {
        if let Ok([_, time]) = self.words(service) {
            time.store(until.max(0).cast_unsigned(), Release);
        }
    }

    /// No row of a service may be believed.
    pub fn close(&self, service: usize) {
        self.extend(service, 0);
        fence(SeqCst);
    }

    /// Rows of a service may be believed that are put from now on. It was closed, and its rows were
    /// taken away.
    pub fn begin(&self, service: usize, until: i64) {
        if let Ok([generation, _]) = self.words(service) {
            fence(SeqCst);
            generation.fetch_add(1, SeqCst);
            self.extend(service, until);
        }
    }

    /// A directory, and the key of the entry that leads to it; 0: none.
    pub fn put(&self, key: u128, directory: &Attributes) {
        self.index.put_inode(directory);
        if key != 0 {
            self.index.put_entry(key, directory.inode, mode::DIRECTORY);
        }
    }

    /// Takes them away. Nobody finds them once this returned.
    pub fn remove(&self, key: u128, directory: Inode) {
        if key != 0 {
            self.index.drop_entry(key);
        }
        self.index.forget_inode(directory);
        // Before anybody is told.
        fence(SeqCst);
    }
}
