//! Demotion (`data::tiering::demote`): when to look for cold extents, and the thread that copies
//! extents. Copies that free memory for which writers wait come first and leave a fifth of the time
//! to others; promotions of extents in use are shared by user and job, and copies for which nobody waits
//! come last (`shared::order_queue`). The target bounds their number (`moves::MOVES_MAX`).
//!
//! A mapped extent stays while its file is open on this host: a process with a mapping accesses the
//! bytes without reading the extent table, and keeps the file open.

use crate::shared::inbox::{Inboxes, WorkerMessage};
use crate::shared::metrics::Metrics;
use crate::shared::order_queue::{OrderKind, OrderQueue, TakenOrder};
use crate::target::tiering::lending::Lending;
use crate::target::{Devices, micros_until};
use config::metrics::DaemonMetrics;
use data::{CopyClass, FillJob};
use net::log_limit::LineLimit;
use qos::scheduler::{OptionsError, Work};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use shm::host::HostSegment;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::Inode;
use wire::reply::Extent;

/// Interval between scans for cold extents while some are found; it grows up to `PAUSE_MAX` while
/// none are.
const PAUSE: Duration = Duration::from_millis(5);
/// See `PAUSE`.
const PAUSE_MAX: Duration = Duration::from_millis(320);
/// Copy buffer size; it fits a CPU cache.
const BUFFER_BYTES: usize = 256 << 10;
/// Alignment for direct I/O of buffers and offsets. Extents and their valid ranges consist of whole
/// pages.
const DIRECT_BYTES: usize = 4096;

/// A copy of an extent to another place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyJob {
    pub(crate) ticket: u64,
    pub(crate) from: Extent,
    pub(crate) to: Extent,
    pub(crate) class: CopyClass,
}

/// Why an extent is hidden.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HideReason {
    /// It is moved.
    Moving,
    /// It is evicted, if it is clean.
    Evicting,
}

/// Orders for the copying thread.
pub(crate) struct CopyQueue {
    copies: Arc<OrderQueue<(CopyJob, Instant)>>,
}

/// Extents hidden since the last check of hazard pointers.
#[derive(Default)]
pub(crate) struct HiddenExtents {
    hidden: Vec<(Inode, u32, HideReason)>,
}

/// Time of the next scan for cold extents.
pub(crate) struct DemotionTimer {
    pause: Duration,
    look_at: Option<Instant>,
}

/// State of the copying thread.
pub(crate) struct Copier {
    copies: Arc<OrderQueue<(CopyJob, Instant)>>,
    /// The SSD file for direct I/O, if supported. Through the page cache, copies that free memory
    /// for programs would take as much memory as they free until they are written; direct I/O is
    /// also faster.
    direct: Option<OwnedFd>,
    /// A device that fails refuses each extent.
    failed_lines: LineLimit,
}

/// Creates both ends.
///
/// # Errors
/// Never, with one thread.
pub(crate) fn copy_channel(ssd: &Path) -> Result<(CopyQueue, Copier), OptionsError> {
    let copies = Arc::new(OrderQueue::new(1)?);
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let direct = rustix::fs::open(ssd, flags, Mode::empty()).ok();
    let failed_lines = LineLimit::default();
    Ok((CopyQueue { copies: Arc::clone(&copies) }, Copier { copies, direct, failed_lines }))
}

/// The kind of a copy for the queue; `None`: nobody waits for it.
fn kind_of(copy: &CopyJob, job: FillJob) -> Option<OrderKind> {
    let work = match copy.class {
        CopyClass::Frees => Work::Urgent,
        CopyClass::Serves => Work::Read,
        CopyClass::Ahead => return None,
    };
    let FillJob { user, number } = job;
    Some(OrderKind { user, job: number.into(), work, bytes: copy.to.length() })
}

fn micros_between(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX)
}

/// Metrics of copies that wait: their number, and their time in microseconds.
fn waiting_of(metrics: &DaemonMetrics, class: CopyClass) -> Vec<(&AtomicU64, &AtomicU64)> {
    let all = (&metrics.copies_waiting, &metrics.copy_wait_us);
    let urgent = (&metrics.copies_waiting_urgent, &metrics.copy_wait_urgent_us);
    if class == CopyClass::Frees { vec![all, urgent] } else { vec![all] }
}

impl CopyQueue {
    /// Submits a copy for a job; worker 0 gets the result.
    pub(crate) fn submit_copy(&self, metrics: &DaemonMetrics, copy: CopyJob, job: FillJob) {
        for (waiting, _) in waiting_of(metrics, copy.class) {
            waiting.fetch_add(1, Relaxed);
        }
        let order = (copy, Instant::now());
        match kind_of(&copy, job) {
            Some(kind) => self.copies.push(kind, order),
            None => self.copies.push_background(order),
        }
    }
}

impl DemotionTimer {
    /// Scans at once if there is anything to demote.
    pub(crate) const fn new() -> DemotionTimer {
        DemotionTimer { pause: PAUSE, look_at: None }
    }

    /// A copy has ended, so another may start.
    pub(crate) fn end_pause(&mut self) {
        self.look_at = None;
    }

    /// A writer waits: the next scan is soon.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.look_at = self.look_at.map(|at| at.min(now + PAUSE));
    }

    /// True if a scan is due.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        *self.look_at.get_or_insert(now) <= now
    }

    /// Restarts the timer after a scan, which has started demotions or not. `tokens`: until then
    /// the maximum rate allows none.
    pub(crate) fn scanned(&mut self, now: Instant, began: bool, tokens: Duration) {
        self.pause = match began {
            true => PAUSE,
            false if tokens.is_zero() => (self.pause * 2).min(PAUSE_MAX),
            false => tokens.clamp(PAUSE, PAUSE_MAX),
        };
        self.look_at = Some(now + self.pause);
    }

    /// Microseconds until the next scan.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.look_at.map(micros_until)
    }
}

impl HiddenExtents {
    /// Hides an extent until hazard pointers have been checked.
    pub(crate) fn hide_extent(&mut self, devices: &Devices, slot: u32, why: HideReason) {
        if let Some((inode, _)) = devices.table.get(slot) {
            self.hidden.push((inode, slot, why));
        }
        assert_eq!(devices.table.hide(slot), Ok(()), "slot is outside the extent table");
    }

    /// Adds hidden extents that must stay to the protected ones: mapped extents, and extents to be
    /// evicted that became dirty under an earlier hazard pointer.
    pub(crate) fn add_unmovable(
        &mut self,
        host: &HostSegment,
        devices: &Devices,
        to: &mut Vec<u32>,
    ) {
        for (inode, slot, why) in self.hidden.drain(..) {
            let is_changed = why == HideReason::Evicting && !devices.states.is_clean(slot);
            let is_open = || host.vnode_find(inode).is_some();
            let is_mapped = devices.states.is_mapped(slot)
                && (is_open() || devices.states.forget_mapping(slot).is_err());
            if is_changed || is_mapped {
                to.push(slot);
            }
        }
    }
}

impl Copier {
    /// Performs copies until the process ends.
    pub(crate) fn run(
        mut self,
        (inboxes, metrics): (&Inboxes, &Metrics),
        lending: &Lending,
        devices: &Devices,
    ) -> ! {
        let mut buffer = vec![0; BUFFER_BYTES + DIRECT_BYTES];
        let first = buffer.as_ptr().align_offset(DIRECT_BYTES);
        let buffer = buffer.get_mut(first..).unwrap_or_default();
        let buffer = buffer.get_mut(..BUFFER_BYTES).unwrap_or_default();
        loop {
            let TakenOrder { order: (copy, came), place } = self.copies.pop();
            let CopyJob { ticket, from, to, class } = copy;
            let target = devices.target();
            let begun = Instant::now();
            for (waiting, waited_us) in waiting_of(&metrics.daemon, class) {
                waiting.fetch_sub(1, Relaxed);
                waited_us.fetch_add(micros_between(came, begun), Relaxed);
            }
            let direct =
                self.direct.as_ref().filter(|_| to.tier == Extent::SSD && lending.is_giving_back());
            let direct = direct.map(|ssd| shm::extents::Target { ssd: ssd.as_fd(), ..target });
            let direct = direct.map(|direct| direct.copy(&from, &to, buffer));
            let outcome = match direct {
                Some(Ok(())) => Ok(()),
                // The device may require a larger alignment.
                Some(Err(_)) | None => target.copy(&from, &to, buffer),
            };
            if to.tier == Extent::SSD {
                metrics
                    .daemon
                    .demotion_us
                    .fetch_add(micros_between(begun, Instant::now()), Relaxed);
            }
            if let Err(errno) = outcome
                && let Some(suppressed) = self.failed_lines.admit(Instant::now())
            {
                let (tier, place) = (to.tier, to.location);
                tracing::warn!(tier, place, %errno, suppressed, "cannot move extent");
            }
            inboxes.send_to_target(WorkerMessage::Copied { ticket, outcome });
            self.copies.complete(&place);
        }
    }
}
