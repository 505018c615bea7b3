//! The named shared memory of a daemon. It outlives the daemon; a later one with the same index
//! opens it again.

use crate::members::copies::ENTRY_BYTES;
use crate::shared::kept_record::PROGRESS_BYTES;
use crate::startup::failure::{Failure, StartResult, failed};
use crate::startup::settings::Settings;
use crate::target::space::prepare::{PAGE_GROUPS_AHEAD, PAGE_SUMS_AHEAD};
use crate::units::UNITS_PROGRESS_BYTES;
use config::host_memory::HOST_TABLES_BYTES;
use rustix::fd::{AsRawFd as _, OwnedFd};
use shm::Segment;
use shm::activity::{ACTIVITY_PRESENT_BYTES, ActivitySegment};
use shm::extents::{
    HAZARDS_BYTES, HEADER_BYTES, STATE_BYTES, extent_hints_bytes, page_groups_bytes,
    page_groups_of, page_sums_bytes, page_sums_of,
};
use shm::host::HostSegment;
use shm::index::{LEASE_TIMES_BYTES, LEASES_BYTES, Shape};
use shm::local_ops::{OP_LOG_BYTES, OpLog};
use shm::segment;
use shm::session::DOORBELLS_BYTES;
use std::ffi::{CStr, CString};
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use store::starts::KnownFile;
use wire::errno::Errno;
use wire::limits::EXTENT_BYTES_MIN;

/// Maximum entries of an extent table: 2.25 GiB of address space with its companions, of which only
/// the used part takes memory.
const EXTENT_COUNT_MAX: u64 = 32 << 20;
/// Minimum entries.
const EXTENT_COUNT_MIN: u64 = 1024;
/// The smallest arena that can be mapped.
const ARENA_BYTES_MIN: u64 = 4096;

const _: () =
    assert!((HostSegment::present_bytes() + ACTIVITY_PRESENT_BYTES) as u64 <= HOST_TABLES_BYTES);

/// A mapped file, or nameless memory.
pub(crate) struct Mapped {
    /// The mapping.
    pub(crate) segment: Segment,
    /// The file.
    pub(crate) fd: OwnedFd,
    path: PathBuf,
    /// True if the file was created now.
    pub(crate) is_new: bool,
}

/// As `failed`, for shared memory: a full file system is not obvious from the text of the system.
fn no_room(doing: String) -> impl FnOnce(Errno) -> Failure {
    move |errno| match errno {
        Errno::ENOSPC => Failure::new(format!(
            "cannot {doing}: /dev/shm or the memory is full: free some, or mount /dev/shm larger"
        )),
        errno => failed(doing)(errno),
    }
}

fn c_path(path: &Path) -> StartResult<CString> {
    let doing = || format!("map {}", path.display());
    CString::new(path.as_os_str().as_bytes()).map_err(failed(doing()))
}

impl Mapped {
    /// Memory that only this daemon and its clients have: no file system limits it, and it ends with
    /// them.
    fn nameless(name: &CStr, length: u64) -> StartResult<Mapped> {
        let doing = || format!("map {length} bytes of memory");
        let length = usize::try_from(length).map_err(failed(doing()))?;
        let (segment, fd) = Segment::nameless(name, length).map_err(failed(doing()))?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        Ok(Mapped { segment, fd, path, is_new: true })
    }

    /// Makes the memory of a part of the file present.
    fn with_memory(self, part: Range<usize>) -> StartResult<Mapped> {
        let doing = format!("reserve {} bytes of {}", part.len(), self.path.display());
        segment::allocate(&self.fd, part).map_err(no_room(doing))?;
        Ok(self)
    }

    fn open(path: PathBuf, length: u64) -> StartResult<Mapped> {
        let doing = || format!("map {length} bytes of {}", path.display());
        let length = usize::try_from(length).map_err(failed(doing()))?;
        let name = c_path(&path)?;
        let (segment, fd, is_new) = Segment::create(&name, length).map_err(failed(doing()))?;
        Ok(Mapped { segment, fd, path, is_new })
    }

    /// A read-only descriptor for clients.
    pub(crate) fn read_only_fd(&self) -> StartResult<OwnedFd> {
        let file = fs::File::open(&self.path);
        file.map(OwnedFd::from).map_err(failed(format!("open {}", self.path.display())))
    }
}

/// Shared memory of the target.
pub(crate) struct TargetMemory {
    /// The arena.
    pub(crate) arena: Mapped,
    /// Extent table: headers of extents.
    pub(crate) table: Mapped,
    /// States of extents.
    pub(crate) states: Mapped,
    /// States of the page groups of large extents.
    pub(crate) page_groups: Mapped,
    /// Checksums of the pages of the SSD file.
    pub(crate) page_sums: Mapped,
    /// Extent hints.
    pub(crate) extent_hints: Mapped,
    /// Hazard pointers of clients.
    pub(crate) hazards: Mapped,
    /// Number of entries of the table.
    pub(crate) extent_count: u32,
}

/// All shared memory of a daemon.
pub(crate) struct Memory {
    /// Host segment: open files of the host.
    pub(crate) host: HostSegment,
    /// Its descriptor.
    pub(crate) host_fd: OwnedFd,
    /// Activity segment: counters of the host's processes.
    pub(crate) activity: ActivitySegment,
    /// Its descriptor.
    pub(crate) activity_fd: OwnedFd,
    /// The doorbells.
    pub(crate) bells: Mapped,
    /// Operation log of clients.
    pub(crate) op_log: Mapped,
    /// Leases.
    pub(crate) leases: Mapped,
    /// Shared memory of the target.
    pub(crate) target: TargetMemory,
    /// One index per worker.
    pub(crate) indexes: Vec<Mapped>,
    /// One word per worker: how far its log has come, see `store::journal::Progress`; then those of
    /// `shared::kept_record`.
    pub(crate) log_progress: Mapped,
    /// How far the copies of followed services have come, see `members::copies`; in an instance with
    /// followers.
    pub(crate) copies: Option<Mapped>,
    /// How far the log of units has come, see `units`; in an instance with copies of files.
    pub(crate) units: Option<Mapped>,
}

/// Number of entries of the extent table.
pub(crate) fn extent_count(settings: &Settings) -> u32 {
    let extents = settings.memory.saturating_add(settings.ssd) / EXTENT_BYTES_MIN;
    u32::try_from(extents.clamp(EXTENT_COUNT_MIN, EXTENT_COUNT_MAX)).unwrap_or(u32::MAX)
}

/// Name of the host segment in the directory of shared memory.
pub(crate) const HOST: &str = "host";
/// Name of the activity segment there.
const ACTIVITY: &str = "activity";

impl Memory {
    /// Creates or opens everything, without touching the contents.
    pub(crate) fn open(settings: &Settings) -> StartResult<Memory> {
        store::directory::create(&settings.shm).map_err(|error| Failure::new(error.to_string()))?;
        let extents = u64::from(extent_count(settings));
        let open = |name: &str, length: u64| {
            Mapped::open(settings.shm.join(format!("d{}.{name}", settings.index)), length)
        };
        let host = c_path(&settings.shm.join(HOST))?;
        let host = HostSegment::create_or_open(&host);
        let (host, host_fd) = host.map_err(no_room("map the host segment".into()))?;
        let activity = c_path(&settings.shm.join(ACTIVITY))?;
        let activity = ActivitySegment::create_or_open(&activity);
        let (activity, activity_fd) =
            activity.map_err(no_room("map the activity segment".into()))?;
        let longest = settings.memory.max(settings.ssd);
        let sums_present = page_sums_of(&(0..settings.ssd.min(PAGE_SUMS_AHEAD)));
        let groups_present = page_groups_of(&(0..longest.min(PAGE_GROUPS_AHEAD)));
        let [op_log_shared, op_log_sessions] = OpLog::first_parts(settings.workers());
        let target = TargetMemory {
            arena: open("arena", settings.memory.max(ARENA_BYTES_MIN))?,
            states: open("states", extents * STATE_BYTES as u64)?,
            page_groups: open("page_groups", page_groups_bytes(longest))?
                .with_memory(0..groups_present.end as usize)?,
            page_sums: open("page_sums", page_sums_bytes(settings.ssd))?
                .with_memory(0..sums_present.end as usize)?,
            hazards: open("hazards", HAZARDS_BYTES as u64)?,
            // A cache over the whole range of slots, so its memory cannot be reserved. It need not
            // outlive the daemon.
            extent_hints: Mapped::nameless(
                c"forebay-extent-hints",
                extent_hints_bytes(extents as usize) as u64,
            )?,
            // Last: if it exists, all of the target's memory does.
            table: open("extents", extents * HEADER_BYTES as u64)?,
            extent_count: u32::try_from(extents).unwrap_or(u32::MAX),
        };
        let indexes = (0..settings.workers())
            .map(|worker| open(&format!("index{worker}"), Shape::DEFAULT.bytes() as u64));
        let indexes = indexes.collect::<StartResult<_>>()?;
        let services = usize::from(settings.began) * settings.workers();
        let copies = (settings.instance.followers > 0).then(|| {
            open("copies", (services * ENTRY_BYTES) as u64)?.with_memory(0..services * ENTRY_BYTES)
        });
        let units = settings.has_copies().then(|| {
            let length = UNITS_PROGRESS_BYTES;
            open("units", length as u64)?.with_memory(0..length)
        });
        Ok(Memory {
            copies: copies.transpose()?,
            units: units.transpose()?,
            host,
            host_fd,
            activity,
            activity_fd,
            bells: open("doorbell", DOORBELLS_BYTES as u64)?.with_memory(0..DOORBELLS_BYTES)?,
            op_log: open("op_log", OP_LOG_BYTES as u64)?
                .with_memory(op_log_shared)?
                .with_memory(op_log_sessions)?,
            leases: open("leases", LEASES_BYTES as u64)?.with_memory(0..LEASE_TIMES_BYTES)?,
            target,
            indexes,
            log_progress: open("log_progress", PROGRESS_BYTES as u64)?,
        })
    }

    /// The files that the next start must find again: all but those without a name.
    pub(crate) fn known_files(&self) -> StartResult<Vec<KnownFile>> {
        let Memory { bells, op_log, leases, target, indexes, log_progress, .. } = self;
        let TargetMemory { arena, table, states, page_groups, page_sums, .. } = target;
        let one = [bells, op_log, leases, log_progress, arena, table, states, page_groups];
        let mapped = one.into_iter().chain([page_sums, &target.hazards]).chain(indexes);
        let mapped = mapped.chain(&self.units);
        let known = mapped.map(|it| {
            let name = it.path.file_name().unwrap_or_default().to_string_lossy();
            KnownFile::of(&name, &it.fd)
        });
        // Not the activity segment: nothing that it counts is a reason to refuse a start.
        let all = known.chain([KnownFile::of(HOST, &self.host_fd)]);
        all.collect::<Result<_, _>>().map_err(failed("describe the shared memory"))
    }
}
