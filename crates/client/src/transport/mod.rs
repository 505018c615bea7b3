//! The connection to the daemons: attachments of this process, requests and their replies.
//!
//! In this module: the handshake and the mappings (`attachment`), which daemons are attached
//! (`attach`), which service owns a shard (`service`), requests with retries (`request`, `retry`,
//! `kept_slots`), those that were given up (`given_up`), requests that wait long without a slot
//! (`long_wait`), counters (`activity`), buffers of the jobs of a mount (`job_buffers`), resident memory
//! (`footprint`), and errno values by entry point (`errno`).
//! Elsewhere: the contents of requests, which belong to the operations.

pub(crate) mod activity;
pub(crate) mod attach;
pub(crate) mod attachment;
pub(crate) mod clock;
pub(crate) mod errno;
mod footprint;
pub(crate) mod given_up;
pub(crate) mod job_buffers;
pub(crate) mod kept_slots;
pub(crate) mod long_wait;
pub(crate) mod request;
pub(crate) mod retry;
pub(crate) mod service;

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use shm::host::HostSegment;
use shm::once::Once;
use shm::session::Slot;
use shm::wait;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;

use crate::transport::attachment::Attachment;

/// Lowest layer: the daemons of the host and the host segment, as this process reaches them.
pub(crate) struct Transport {
    settings: Once<attach::Settings>,
    host: Once<HostSegment>,
    pub(crate) attachments: attach::Attachments,
    pub(crate) timeouts: retry::Timeouts,
    /// Requests about locks that were given up.
    pub(crate) given_up: given_up::GivenUp,
    /// Counters of what this process does.
    pub(crate) activity: activity::Activity,
    /// Bounce buffers of the jobs of a mount.
    pub(crate) job_buffers: job_buffers::JobBuffers,
    footprint: footprint::Footprint,
    /// Write-behind setting of the instance, from the last handshake; read by each write.
    pub(crate) is_write_behind: AtomicBool,
    /// The thread that pushes writes of dead daemons again; 0: none does.
    pub(crate) resubmitter: AtomicU32,
    /// Readahead setting of the instance, from the last handshake; read by each read.
    pub(crate) readahead_enabled: AtomicBool,
    /// `fsync` asks for followers.
    pub(crate) has_followers: AtomicBool,
    /// Copies of the bytes of files. With more than one they go through daemons, and no extent is used.
    copies: AtomicU8,
    /// Calls on files that a kernel maps are made through the mount.
    pub(crate) obeys_kernel_maps: AtomicBool,
    /// Number of the mount on this host that this process serves; 0: none.
    pub(crate) mount: AtomicU8,
    /// The process is the writeback daemon, and others wait for its requests or do not
    /// (`request::URGENT`, `request::USUAL`); 0: it never said so.
    pub(crate) urgency: AtomicU8,
    /// The process is an application: little memory of the instance stays mapped.
    pub(crate) is_guest: AtomicBool,
    /// Largest size that this process may give a file: its `RLIMIT_FSIZE`, at most
    /// `FILE_BYTES_MAX`.
    size_limit: AtomicU64,
}

impl Transport {
    /// A process that is not attached.
    pub(crate) const fn new() -> Transport {
        Transport {
            settings: Once::new(),
            host: Once::new(),
            attachments: attach::Attachments::new(),
            timeouts: retry::Timeouts::new(),
            given_up: given_up::GivenUp::new(),
            activity: activity::Activity::new(),
            job_buffers: job_buffers::JobBuffers::new(),
            footprint: footprint::Footprint::new(),
            is_write_behind: AtomicBool::new(false),
            resubmitter: AtomicU32::new(0),
            readahead_enabled: AtomicBool::new(false),
            has_followers: AtomicBool::new(false),
            copies: AtomicU8::new(1),
            obeys_kernel_maps: AtomicBool::new(false),
            mount: AtomicU8::new(0),
            urgency: AtomicU8::new(0),
            is_guest: AtomicBool::new(false),
            size_limit: AtomicU64::new(FILE_BYTES_MAX),
        }
    }

    /// Largest size that this process may give a file.
    #[inline]
    pub(crate) fn size_limit(&self) -> u64 {
        self.size_limit.load(Relaxed)
    }

    /// Obeys an `RLIMIT_FSIZE` from now on.
    pub(crate) fn set_size_limit(&self, bytes: u64) {
        self.size_limit.store(bytes.min(FILE_BYTES_MAX), Relaxed);
    }

    /// True if a daemon of this host holds back requests because of a limit (`forebay qos`): what is late
    /// then is waited for on.
    #[cold]
    pub(crate) fn is_throttled(&self) -> bool {
        self.host().is_ok_and(|host| host.is_throttled(wait::now_micros()))
    }

    /// Claims a slot; waits on while a daemon holds back requests.
    ///
    /// # Errors
    /// `EIO` if no slot became free in time.
    pub(crate) fn claim_slot<'a>(&self, by: &'a Attachment) -> Result<Slot<'a>> {
        loop {
            match by.session.claim(self.timeout_micros()) {
                Err(Errno::ETIMEDOUT) if self.is_throttled() => {}
                Err(Errno::ETIMEDOUT) => return Err(Errno::EIO),
                claimed => return claimed,
            }
        }
    }

    /// The host segment.
    #[inline]
    pub(crate) fn host(&self) -> Result<&HostSegment> {
        self.host.get().ok_or(Errno::EIO)
    }
}
