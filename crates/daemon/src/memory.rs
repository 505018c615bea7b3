//! The named shared memory of a daemon. It outlives the daemon; a later one of the same number
//! opens what it finds.

use crate::settings::Settings;
use crate::startup::{Failure, Outcome, failed};
use rustix::fd::OwnedFd;
use shm::Segment;
use shm::doorbell::DOORBELLS_BYTES;
use shm::finder::finder_bytes;
use shm::host::HostSegment;
use shm::index::Shape;
use shm::leases::LEASES_BYTES;
use shm::pieces::{HEADER_BYTES, STATE_BYTES, stretches_bytes};
use shm::pins::PINS_BYTES;
use shm::posts::POSTS_BYTES;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use wire::limits::PIECE_BYTES_MIN;

/// Most rows of a piece table: 2.25 GiB of address space with what belongs to it, of which only what
/// is used is touched.
const PIECE_COUNT_MAX: u64 = 32 << 20;
/// Fewest rows.
const PIECE_COUNT_MIN: u64 = 1024;
/// The smallest arena that can be mapped.
const ARENA_BYTES_MIN: u64 = 4096;

/// A mapped file.
pub(crate) struct Mapped {
    /// The mapping.
    pub(crate) segment: Segment,
    /// The file.
    pub(crate) fd: OwnedFd,
    path: PathBuf,
    /// True if it was not there.
    pub(crate) is_new: bool,
}

fn c_path(path: &Path) -> Outcome<CString> {
    let doing = || format!("map {}", path.display());
    CString::new(path.as_os_str().as_bytes()).map_err(failed(doing()))
}

impl Mapped {
    fn open(path: PathBuf, length: u64) -> Outcome<Mapped> {
        let doing = || format!("map {length} bytes of {}", path.display());
        let length = usize::try_from(length).map_err(failed(doing()))?;
        let name = c_path(&path)?;
        let (segment, fd, is_new) = Segment::create(&name, length).map_err(failed(doing()))?;
        Ok(Mapped { segment, fd, path, is_new })
    }

    /// A descriptor through which a client can only read.
    pub(crate) fn read_only(&self) -> Outcome<OwnedFd> {
        let file = fs::File::open(&self.path);
        file.map(OwnedFd::from).map_err(failed(format!("open {}", self.path.display())))
    }
}

/// What the target needs.
pub(crate) struct TargetMemory {
    /// The arena.
    pub(crate) arena: Mapped,
    /// Headers of pieces.
    pub(crate) table: Mapped,
    /// States of pieces.
    pub(crate) states: Mapped,
    /// Those of the stretches of long pieces.
    pub(crate) stretches: Mapped,
    /// Where pieces are.
    pub(crate) finder: Mapped,
    /// What clients copy.
    pub(crate) pins: Mapped,
    /// Rows of the table.
    pub(crate) piece_count: u32,
}

/// All of it.
pub(crate) struct Memory {
    /// Open files of the host.
    pub(crate) host: HostSegment,
    /// The same as a file.
    pub(crate) host_fd: OwnedFd,
    /// The doorbells.
    pub(crate) bells: Mapped,
    /// Posts.
    pub(crate) posts: Mapped,
    /// Leases.
    pub(crate) leases: Mapped,
    /// What the target needs.
    pub(crate) target: TargetMemory,
    /// An index for each worker.
    pub(crate) indexes: Vec<Mapped>,
}

impl Memory {
    /// Makes or opens everything. Nothing of it is touched yet.
    pub(crate) fn open(settings: &Settings) -> Outcome<Memory> {
        store::directory::create(&settings.shm).map_err(|error| Failure(error.to_string()))?;
        let pieces = settings.memory.saturating_add(settings.ssd) / PIECE_BYTES_MIN;
        let pieces = pieces.clamp(PIECE_COUNT_MIN, PIECE_COUNT_MAX);
        let open = |name: &str, length: u64| {
            Mapped::open(settings.shm.join(format!("d{}.{name}", settings.index.0)), length)
        };
        let host = c_path(&settings.shm.join("host"))?;
        let host = HostSegment::create_or_open(&host).map_err(failed("map the host segment"));
        let (host, host_fd) = host?;
        let target = TargetMemory {
            arena: open("arena", settings.memory.max(ARENA_BYTES_MIN))?,
            states: open("valid", pieces * STATE_BYTES as u64)?,
            stretches: open("stretches", stretches_bytes(settings.memory.max(settings.ssd)))?,
            pins: open("pins", PINS_BYTES as u64)?,
            finder: open("finder", finder_bytes(pieces as usize) as u64)?,
            // Last: if it is there, all of the target's memory is.
            table: open("pieces", pieces * HEADER_BYTES as u64)?,
            piece_count: u32::try_from(pieces).unwrap_or(u32::MAX),
        };
        let indexes = (0..settings.workers)
            .map(|worker| open(&format!("index{worker}"), Shape::DEFAULT.bytes() as u64));
        let indexes = indexes.collect::<Outcome<_>>()?;
        Ok(Memory {
            host,
            host_fd,
            bells: open("doorbell", DOORBELLS_BYTES as u64)?,
            posts: open("posts", POSTS_BYTES as u64)?,
            leases: open("leases", LEASES_BYTES as u64)?,
            target,
            indexes,
        })
    }

    /// True if the target's memory was not there.
    pub(crate) const fn is_new(&self) -> bool {
        self.target.table.is_new
    }
}
