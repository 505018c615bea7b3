//! Leases as clients read them: directories of other hosts, and until when the records of each
//! service are valid (`wire::lease`). The daemon writes what it was granted; clients read.
//!
//! Layout: for each service (`wire::lease::service`) a generation u64 and a time u64, both of them
//! zero before the first lease; behind them an index (`index`) with inodes and entries of
//! directories.
//!
//! A record does not hold its generation. So before invalid records of a service are removed, its
//! time is set to zero, and it gets another generation before another time:
//!
//!   writer: time = 0, records removed, generation + 1, time = until, records put
//!   reader: generation, record, the clock, time, generation again; the record is valid if the
//!           clock is before the time and the generation is the same
//!
//! A reader that saw an old record saw an old generation: it finds time 0, or the old time, or
//! another generation. A time that a generation once had was promised for all its records; a
//! revoked record is removed before the revocation is acknowledged.

use crate::index::{Index, Shape};
use crate::segment::{Access, Segment};
use crate::sync::{AtomicU64, fence};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use rustix::fd::AsFd;
use wire::attributes::mode;
use wire::errno::{Errno, Result};
use wire::lease::SERVICE_COUNT_MAX;
use wire::{Attributes, Inode};

const RECORD_BYTES: usize = 16;
/// Length of the times of all services. Their memory must be present before a client reads them.
pub const LEASE_TIMES_BYTES: usize = RECORD_BYTES * SERVICE_COUNT_MAX;
/// Offset of the index.
const INDEX: usize = LEASE_TIMES_BYTES;
/// 8192 records of each kind. A forgotten one costs a message.
const SHAPE: Shape = Shape { entries_log2: 11, inodes_log2: 11 };
/// Length of the memory.
pub const LEASES_BYTES: usize = INDEX + SHAPE.bytes();

const _: () = assert!(INDEX.is_multiple_of(4096));

/// All leases of a daemon, for either side.
pub struct Leases {
    times: Segment,
    index: Index,
}

impl Leases {
    /// Sees nothing of the shared memory any more (`Segment::detach`).
    pub fn detach(&self) {
        self.times.detach();
        self.index.detach();
    }

    /// The writer's side. The memory is zeros, or has the leases that an earlier writer left for
    /// `services` services and that readers may use; `punch` zeroes everything from an offset on.
    ///
    /// # Errors
    /// `EINVAL` if it is too short; errors of `punch`.
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
            times.word64(service * RECORD_BYTES + 8)?.store(0, SeqCst);
        }
        Index::empty(&index, |first| punch(INDEX + first))?;
        for service in 0..services.min(SERVICE_COUNT_MAX) {
            times.word64(service * RECORD_BYTES)?.fetch_add(1, SeqCst);
        }
        Ok(Leases { times, index: Index::create(index, SHAPE)? })
    }

    /// A reader's side.
    ///
    /// # Errors
    /// `EINVAL` if it is too short or was never initialised.
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
        self.times.words::<2>(service * RECORD_BYTES)
    }

    /// The result of `look_up` on records of one service, if they are still valid at the time that
    /// `now` returns afterwards.
    pub fn read<R>(
        &self,
        service: usize,
        now: impl FnOnce() -> i64,
        look_up: impl FnOnce(&Index) -> Option<R>,
    ) -> Option<R> {
        let [generation, until] = self.words(service).ok()?;
        let before = generation.load(Acquire);
        // Usually where nothing is leased: no record is read.
        if until.load(Relaxed) == 0 {
            return None;
        }
        let found = look_up(&self.index)?;
        fence(Acquire);
        let is_before = now().cast_unsigned() < until.load(Acquire);
        (is_before && generation.load(Acquire) == before).then_some(found)
    }

    /// As `Index::directory_version`, for the records of all services.
    #[must_use]
    pub fn directory_version(&self) -> Option<u64> {
        self.index.directory_version()
    }

    /// The generation of a service's records. Read it before the records.
    #[must_use]
    pub fn generation(&self, service: usize) -> Option<u64> {
        self.words(service).ok().map(|[generation, _]| generation.load(Acquire))
    }

    /// True if records of this generation are valid at the time that `now` returns, provided that
    /// they are still there then, as `directory_version` tells.
    pub fn holds(&self, service: usize, generation: u64, now: impl FnOnce() -> i64) -> bool {
        let Ok([known, until]) = self.words(service) else { return false };
        let is_before = now().cast_unsigned() < until.load(Acquire);
        is_before && known.load(Acquire) == generation
    }

    /// Extends the validity of a service's records to `until`. Only the writer calls this and what
    /// follows.
    pub fn extend(&self, service: usize, until: i64) {
        if let Ok([_, time]) = self.words(service) {
            time.store(until.max(0).cast_unsigned(), Release);
        }
    }

    /// Invalidates all records of a service.
    pub fn close(&self, service: usize) {
        self.extend(service, 0);
        fence(SeqCst);
    }

    /// Makes records valid that are put from now on. The service was closed, and its records were
    /// removed.
    pub fn begin(&self, service: usize, until: i64) {
        if let Ok([generation, _]) = self.words(service) {
            fence(SeqCst);
            generation.fetch_add(1, SeqCst);
            self.extend(service, until);
        }
    }

    /// Adds a directory, with the key of the entry that leads to it; 0: none.
    pub fn put(&self, key: u128, directory: &Attributes) {
        self.index.put_inode(directory);
        if key != 0 {
            self.index.put_entry(key, directory.inode, mode::DIRECTORY);
        }
    }

    /// Removes a directory and its entry. No reader finds them once this returned.
    pub fn remove(&self, key: u128, directory: Inode) {
        if key != 0 {
            self.index.drop_entry(key);
        }
        self.index.forget_inode(directory);
        // Before the revocation is acknowledged.
        fence(SeqCst);
    }
}
