//! Memory lent to this daemon (`data::tiering::allowance`): one thread measures idle memory and
//! reports the allowance to the target, another releases blocks of the arena to the system.
//!
//! Terms set by `forebay lend` and `reclaim` are stored in a file beside the logs, so that they
//! also apply after a restart.
//!
//! Where files have copies, a node that needs memory may have no space for what is in it: then copies
//! leave (`replicas::space`). Writers have a sixteenth of the memory meanwhile, beyond what is asked for
//! (`Grace`): until other daemons are the primaries of the units, they would find no space.

use crate::shared::inbox::{Inboxes, WorkerMessage};
use crate::shared::metrics::Metrics;
use crate::startup::settings::Settings;
use crate::target::tiering::node_memory::MemoryProbe;
use config::control::REASON_UNKNOWN;
use data::Target;
use data::tiering::allowance::GIVE_BACKS_MAX;
use data::tiering::lending_policy::{AllowanceReason, LendingPolicy, Terms};
use replicas::space::DaemonSpace;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FallocateFlags;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Instant;
use wire::welcome::{LEND_IDLE, LEND_STEP_BYTES};

/// Interval, in measurements, at which the control groups of this process are looked up again.
const GROUPS_LOOKS: u32 = 64;

/// Part of the memory that writers have while copies leave: one in this many.
const GRACE_PARTS: u64 = 16;
/// For how long they have it when no copy leaves. The leader hears of it within 0.4 s.
const GRACE_MILLIS: u64 = 2000;
/// How often it is looked at meanwhile.
const GRACE_LOOK_MILLIS: u64 = 100;

/// State shared by all threads.
pub(crate) struct Lending {
    /// From the settings: size of the arena, and the minimum for `lend auto`.
    memory: u64,
    least: Option<u64>,
    terms: Mutex<Terms>,
    /// Number of times that terms were set.
    agreements: AtomicU64,
    file: PathBuf,
    /// Wakes the measuring thread.
    wakeup: OwnedFd,
    /// Bytes that the target is to hold at most, once copies have left.
    requested: AtomicU64,
    /// Files have copies, which may move to other daemons, and nothing else has their bytes.
    moves_copies: bool,
    pub(crate) allowed: AtomicU64,
    pub(crate) held: AtomicU64,
    pub(crate) used: AtomicU64,
    reason: AtomicU8,
    /// Idle memory allows less than the terms.
    is_short: AtomicBool,
    /// Number of block releases started.
    pub(crate) give_backs: AtomicU64,
}

/// Terms encoded as a number of steps.
fn terms_of(steps: u32, memory: u64, least: Option<u64>) -> Terms {
    match steps {
        LEND_IDLE => Terms::Idle { least: least.unwrap_or(0), most: memory },
        steps => Terms::Fixed(u64::from(steps).saturating_mul(LEND_STEP_BYTES).min(memory)),
    }
}

fn read(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

impl Lending {
    /// Starts with the stored terms, or else with those of the settings.
    pub(crate) fn new(settings: &Settings) -> rustix::io::Result<Lending> {
        let (memory, least) = (settings.memory, settings.memory_min);
        let file = settings.data.join("lent");
        let by_settings = match least {
            Some(least) => Terms::Idle { least, most: memory },
            None => Terms::Fixed(memory),
        };
        let terms = read(&file).map_or(by_settings, |steps| terms_of(steps, memory, least));
        Ok(Lending {
            memory,
            least,
            terms: Mutex::new(terms),
            agreements: AtomicU64::new(0),
            file,
            wakeup: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            requested: AtomicU64::new(memory),
            // Bytes that the backing store has are evicted instead.
            moves_copies: settings.has_copies() && settings.instance.backing.is_none(),
            allowed: AtomicU64::new(memory),
            held: AtomicU64::new(0),
            used: AtomicU64::new(0),
            reason: AtomicU8::new(AllowanceReason::Set as u8),
            is_short: AtomicBool::new(false),
            give_backs: AtomicU64::new(0),
        })
    }

    /// Sets new terms.
    pub(crate) fn agree(&self, steps: u32) {
        let terms = terms_of(steps, self.memory, self.least);
        let mut agreed = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        *agreed = terms;
        if matches!(terms, Terms::Idle { .. }) {
            // Until the first measurement; `forebay lend` waits for that.
            self.reason.store(AllowanceReason::Unknown as u8, Relaxed);
        }
        self.agreements.fetch_add(1, Release);
        drop(agreed);
        let new = self.file.with_extension("new");
        let stored =
            fs::write(&new, format!("{steps}\n")).and_then(|()| fs::rename(&new, &self.file));
        if let Err(error) = stored {
            tracing::warn!(%error, "cannot store the lending terms; a restart will lose them");
        }
        tracing::info!(?terms, "lending terms changed");
        // An error means that the counter is full, so the thread is already being woken.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
    }

    pub(crate) fn lending_terms(&self) -> Terms {
        *self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The space of this daemon for copies of files.
    pub(crate) fn space(&self, metrics: &Metrics) -> DaemonSpace {
        DaemonSpace {
            memory: self.memory,
            allowed: self.requested.load(Relaxed),
            used: self.used.load(Relaxed),
            ssd: metrics.daemon.ssd_total.load(Relaxed),
            ssd_free: metrics.daemon.ssd_free.load(Relaxed),
        }
    }

    /// The allowance until the first measurement, in bytes: reclaimed memory stays with the node while
    /// a daemon starts again.
    pub(crate) fn first_allowance(&self) -> u64 {
        match self.lending_terms() {
            Terms::Fixed(bytes) => bytes,
            Terms::Idle { least, most } => least.min(most),
        }
    }

    /// True while extents are demoted to free memory for programs.
    pub(crate) fn is_giving_back(&self) -> bool {
        self.is_short.load(Relaxed) || self.used.load(Relaxed) > self.allowed.load(Relaxed)
    }

    /// Records why the target may hold what it may, unless the terms have changed since.
    pub(crate) fn note_reason(&self, reason: AllowanceReason) {
        let agreed = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fixed = matches!(*agreed, Terms::Fixed(_));
        if is_fixed == (reason == AllowanceReason::Set) {
            self.reason.store(reason as u8, Relaxed);
        }
    }

    /// Reason of the current allowance, for status output.
    pub(crate) fn reason_word(&self) -> &'static str {
        AllowanceReason::of(self.reason.load(Relaxed)).map_or(REASON_UNKNOWN, AllowanceReason::word)
    }
}

/// Memory that writers have while copies leave: see the module.
#[derive(Default)]
struct Grace {
    /// When a copy was last seen to leave, or the memory was needed.
    since: Option<u64>,
}

impl Grace {
    /// The allowance for now, in bytes. `before`: the last one. `copies`: those here, and those that
    /// leave.
    fn allowance(&mut self, space: &DaemonSpace, before: u64, copies: (u64, u64), now: u64) -> u64 {
        let requested = space.allowed;
        if requested >= before || space.to_leave() == 0 || copies.0 == 0 {
            self.since = None;
            return requested;
        }
        let since = self.since.filter(|_| copies.1 == 0).unwrap_or(now);
        self.since = Some(since);
        let is_over = now.saturating_sub(since) >= GRACE_MILLIS;
        let most = before.min(space.used.saturating_add(space.memory / GRACE_PARTS));
        if is_over { requested } else { most.max(requested) }
    }
}

/// The measuring thread.
///
/// `host_count`: daemons of this host. `begun`: when this daemon started.
pub(crate) fn measure_memory(
    lending: &Lending,
    (inboxes, metrics): (&Inboxes, &Metrics),
    host_count: u16,
    begun: Instant,
) {
    let mut grace = Grace::default();
    let mut policy = LendingPolicy::new(lending.lending_terms(), host_count);
    let mut probe = MemoryProbe::new(Path::new("/"));
    let mut last = (lending.first_allowance(), AllowanceReason::Set);
    let (mut is_armed, mut agreed) = (false, 0);
    for look in 1u32.. {
        let agreements = lending.agreements.load(Acquire);
        let is_new = std::mem::replace(&mut agreed, agreements) != agreements;
        if is_new {
            policy.agree(lending.lending_terms());
        }
        if look.is_multiple_of(GROUPS_LOOKS) {
            probe.find_groups();
        }
        let readings = match policy.terms() {
            Terms::Fixed(_) => data::tiering::lending_policy::Readings::default(),
            Terms::Idle { .. } => {
                if !std::mem::replace(&mut is_armed, true) {
                    probe.arm();
                }
                probe.read(lending.held.load(Relaxed))
            }
        };
        let now = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let verdict = policy.look(now, &readings);
        let is_short = !matches!(verdict.reason, AllowanceReason::Set | AllowanceReason::Most);
        lending.is_short.store(is_short, Relaxed);
        let (mut bytes, reason) = (verdict.allowance, verdict.reason);
        lending.requested.store(bytes, Relaxed);
        let mut look_in_millis = verdict.look_in_millis;
        if lending.moves_copies {
            let daemon = &metrics.daemon;
            let copies =
                (daemon.unit_copies.load(Relaxed), daemon.unit_copies_leaving.load(Relaxed));
            bytes = grace.allowance(&lending.space(metrics), last.0, copies, now);
            if bytes > verdict.allowance {
                let most = look_in_millis.unwrap_or(GRACE_LOOK_MILLIS);
                look_in_millis = Some(most.min(GRACE_LOOK_MILLIS));
            }
        }
        if is_new || (bytes, reason) != last {
            if bytes != last.0 && reason != last.1 {
                tracing::info!(bytes, reason = reason.word(), "memory allowance changed");
            }
            last = (bytes, reason);
            inboxes.send_to_target(WorkerMessage::Lend { bytes, reason });
        }
        wait_for_change(lending, &probe, look_in_millis);
    }
}

/// Waits until the next measurement, a memory stall, or new terms.
fn wait_for_change(lending: &Lending, probe: &MemoryProbe, millis: Option<u64>) {
    let mut polled = vec![PollFd::new(&lending.wakeup, PollFlags::IN)];
    if millis.is_some() {
        polled.extend(probe.triggers());
    }
    let limit = millis.map(|millis| Timespec {
        tv_sec: (millis / 1000).cast_signed(),
        tv_nsec: (millis % 1000 * 1_000_000).cast_signed(),
    });
    // An interrupt only causes an additional measurement.
    let _ = poll(&mut polled, limit.as_ref());
    let _ = rustix::io::read(&lending.wakeup, &mut [0; 8]);
}

/// Queue of blocks to release.
pub(crate) struct BlockReleaseQueue {
    blocks: mpsc::SyncSender<(u64, u8)>,
}

/// State of the releasing thread.
pub(crate) struct BlockReleaser {
    blocks: mpsc::Receiver<(u64, u8)>,
    arena: OwnedFd,
}

/// Creates both ends.
pub(crate) fn block_release_channel(
    arena: &impl AsFd,
) -> std::io::Result<(BlockReleaseQueue, BlockReleaser)> {
    let (to, blocks) = mpsc::sync_channel(GIVE_BACKS_MAX);
    let arena = arena.as_fd().try_clone_to_owned()?;
    Ok((BlockReleaseQueue { blocks: to }, BlockReleaser { blocks, arena }))
}

impl BlockReleaseQueue {
    /// Submits a block; worker 0 gets the result.
    pub(crate) fn release_block(
        &self,
        lending: &Lending,
        inboxes: &Inboxes,
        (place, length_log2): (u64, u8),
    ) {
        lending.give_backs.fetch_add(1, Relaxed);
        if self.blocks.try_send((place, length_log2)).is_err() {
            let outcome = Err(wire::Errno::EIO);
            inboxes.send_to_target(WorkerMessage::GivenBack { place, length_log2, outcome });
        }
    }
}

/// Releases a range of the arena to the system.
pub(crate) fn punch(arena: impl AsFd, place: u64, length: u64) -> rustix::io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(&arena, how, place, length))
}

impl BlockReleaser {
    /// Releases blocks until the worker is gone.
    pub(crate) fn run(self, inboxes: &Inboxes, metrics: &Metrics) {
        while let Ok((place, length_log2)) = self.blocks.recv() {
            let begun = Instant::now();
            let outcome = punch(&self.arena, place, 1 << length_log2);
            let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(0);
            match outcome {
                Ok(()) => {
                    metrics.daemon.memory_released.fetch_add(1 << length_log2, Relaxed);
                }
                Err(error) => tracing::warn!(place, %error, "cannot release memory to the system"),
            }
            metrics.daemon.memory_release_us.fetch_add(micros, Relaxed);
            let outcome = outcome.map_err(shm::segment::errno);
            inboxes.send_to_target(WorkerMessage::GivenBack { place, length_log2, outcome });
        }
    }
}

/// Publishes memory use of the target for the measuring thread and for `status`.
pub(crate) fn note_lent(lending: &Lending, metrics: &Metrics, target: &Target) {
    let data::tiering::allowance::Memory { allowed, held, used } = target.memory_lent();
    lending.allowed.store(allowed, Relaxed);
    lending.held.store(held, Relaxed);
    lending.used.store(used, Relaxed);
    metrics.daemon.memory_users.store(target.users_in_memory() as u64, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_have_memory_while_copies_leave() {
        let mut grace = Grace::default();
        let space =
            |allowed, used, ssd| DaemonSpace { memory: 1600, allowed, used, ssd, ssd_free: ssd };
        let mut at = |space, before, copies, now| grace.allowance(&space, before, copies, now);
        assert_eq!(at(space(1000, 900, 0), 1600, (9, 0), 0), 1000, "it fits");
        assert_eq!(at(space(0, 900, 3200), 1600, (9, 0), 0), 0, "it fits on the SSD");
        assert_eq!(at(space(0, 900, 0), 1600, (0, 0), 0), 0, "no copies leave");
        assert_eq!(at(space(0, 900, 0), 1600, (9, 0), 0), 1000);
        // Writers have used it, and have no more.
        assert_eq!(at(space(0, 1000, 0), 1000, (9, 0), 1900), 1000);
        assert_eq!(at(space(0, 700, 0), 1000, (9, 4), 1950), 800);
        assert_eq!(at(space(0, 700, 0), 800, (9, 0), 3900), 800);
        assert_eq!(at(space(0, 700, 0), 800, (9, 0), 3950), 0, "nothing has left for 2 s");
        assert_eq!(at(space(0, 700, 0), 0, (9, 2), 4000), 0);
        // It is all gone.
        assert_eq!(at(space(0, 700, 0), 1600, (9, 2), 5000), 800);
        assert_eq!(at(space(0, 0, 0), 800, (0, 0), 5100), 0);
    }

    #[test]
    fn commands_know_the_word_for_what_was_not_measured() {
        assert_eq!(AllowanceReason::Unknown.word(), REASON_UNKNOWN);
    }
}
