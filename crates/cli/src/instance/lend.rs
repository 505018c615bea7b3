//! Memory of this host's daemons: how much they hold, and requests to change how much they may
//! hold.
//!
//! A daemon accepts a request at once and replies with its state; it releases memory in the
//! background, and this module waits for that by polling. Copies of files leave a daemon only where its
//! SSD has no space.

use crate::failure::{Failure, Result};
use crate::instance::host;
use crate::process::progress::Progress;
use crate::process::query::{daemon_lend, daemon_query};
use crate::state::directories;
use crate::state::records::{self, HostRecord};
use config::control::{DaemonStatus, REASON_UNKNOWN};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::welcome::{LEND_IDLE, LEND_STEP_BYTES};

/// Pause between polls.
const PAUSE: Duration = Duration::from_millis(10);
/// If no memory has been released for this long, none will be soon.
const STALL_TIME: Duration = Duration::from_secs(3);

/// A request to a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AllowanceRequest {
    /// The daemon.
    pub(crate) index: u16,
    /// Bytes that it may hold; `None`: the idle memory of its node.
    pub(crate) bytes: Option<u64>,
}

/// The memory of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DaemonMemory {
    /// The daemon.
    pub(crate) index: u16,
    /// Bytes of its arena: it never holds more.
    pub(crate) max: u64,
    /// Bytes that it may hold.
    pub(crate) allowance: u64,
    /// Bytes that it holds.
    pub(crate) held: u64,
    /// Bytes of that in files.
    pub(crate) used: u64,
    /// Reason for the allowance.
    pub(crate) reason: String,
    /// Bytes released while waiting.
    pub(crate) released: u64,
    /// Why it holds more than its allowance; `None`: it does not.
    pub(crate) why: Option<String>,
}

impl DaemonMemory {
    fn of(index: u16, max: u64, state: &DaemonStatus) -> DaemonMemory {
        DaemonMemory {
            index,
            max,
            allowance: state.metrics.memory_allowance,
            held: state.metrics.memory_held,
            used: state.metrics.memory_used,
            reason: state.memory_reason.clone(),
            released: 0,
            why: None,
        }
    }

    /// Bytes held in excess of the allowance.
    pub(crate) const fn excess(&self) -> u64 {
        self.held.saturating_sub(self.allowance)
    }
}

/// Why a daemon does not release memory.
fn why(state: &DaemonStatus) -> String {
    let metrics = &state.metrics;
    match (metrics.ssd_total, metrics.ssd_free) {
        _ if metrics.bytes_pinned > metrics.memory_allowance => "its files are pinned".to_owned(),
        _ if metrics.unit_copies_leaving > 0 => "its copies are moving to other nodes".to_owned(),
        // The largest stripe, and what an SSD keeps free.
        (all, free) if metrics.unit_copies > 0 && free < all / 16 + (64 << 20) => {
            "neither its SSD nor a node of another failure domain has space for its copies"
                .to_owned()
        }
        (0, _) => "neither an SSD nor another node has space for its files".to_owned(),
        (_, free) if free < 64 << 20 => "its SSD is full".to_owned(),
        _ => "programs use or map its files".to_owned(),
    }
}

fn host(name: &str) -> Result<(PathBuf, HostRecord)> {
    let run = directories::run(name)?;
    let host = records::load(&run, host::RECORD)?;
    host.map(|host| (run, host)).ok_or_else(|| Failure::no_instance(name))
}

fn socket(run: &Path, index: u16) -> PathBuf {
    run.join(format!("d{index}.sock"))
}

fn silent(index: u16) -> Failure {
    Failure::at("no answer", format!("daemon {index}"), "see 'forebay status'")
}

/// The memory of the daemons of this host.
///
/// # Errors
/// There is no such instance here, or a daemon does not answer.
pub(crate) fn poll(name: &str, timeout: Duration) -> Result<Vec<DaemonMemory>> {
    let (run, host) = host(name)?;
    let all = host.daemons.iter().map(|daemon| {
        let state = daemon_query(&socket(&run, daemon.index), timeout);
        let memory = state.map(|state| DaemonMemory::of(daemon.index, daemon.memory, &state));
        memory.ok_or_else(|| silent(daemon.index))
    });
    all.collect()
}

/// A daemon that has not finished its request.
struct PendingChange {
    request: AllowanceRequest,
    max: u64,
    held_before: u64,
    state: DaemonStatus,
    memory: DaemonMemory,
    changed_at: Instant,
}

impl PendingChange {
    fn is_done(&self) -> bool {
        match self.request.bytes {
            None => self.memory.reason != REASON_UNKNOWN,
            Some(_) => self.memory.allowance == self.target() && self.memory.excess() == 0,
        }
    }

    fn target(&self) -> u64 {
        let bytes = self.request.bytes.unwrap_or(0).div_ceil(LEND_STEP_BYTES);
        bytes.saturating_mul(LEND_STEP_BYTES).min(self.max / 4096 * 4096)
    }

    fn poll(&mut self, run: &Path, timeout: Duration) -> Result<()> {
        let state = daemon_query(&socket(run, self.request.index), timeout);
        let state = state.ok_or_else(|| silent(self.request.index))?;
        let memory = DaemonMemory::of(self.request.index, self.max, &state);
        // Copies that move are given up when they are whole elsewhere.
        let moves = state.metrics.unit_copies_leaving > 0;
        if moves || (memory.held, memory.used) != (self.memory.held, self.memory.used) {
            self.changed_at = Instant::now();
        }
        (self.state, self.memory) = (state, memory);
        Ok(())
    }
}

/// Sends the requests and waits until they are carried out: as long as memory is being released, at
/// most `timeout`.
///
/// # Errors
/// A daemon is not on this host, or does not answer.
pub(crate) fn apply(
    name: &str,
    requests: &[AllowanceRequest],
    timeout: Duration,
    progress: &mut Progress,
) -> Result<Vec<DaemonMemory>> {
    let (run, host) = host(name)?;
    let deadline = Instant::now() + timeout;
    let mut waiting = Vec::new();
    for &request in requests {
        let daemon = host.daemons.iter().find(|daemon| daemon.index == request.index);
        let max = daemon.ok_or_else(|| silent(request.index))?.memory;
        let steps = request.bytes.map_or(LEND_IDLE, |bytes| {
            u32::try_from(bytes.div_ceil(LEND_STEP_BYTES)).unwrap_or(LEND_IDLE - 1)
        });
        let before = daemon_query(&socket(&run, request.index), timeout);
        let held_before = before.map(|state| state.metrics.memory_held);
        let held_before = held_before.ok_or_else(|| silent(request.index))?;
        let state = daemon_lend(&socket(&run, request.index), steps, timeout);
        let state = state.ok_or_else(|| silent(request.index))?;
        let memory = DaemonMemory::of(request.index, max, &state);
        let changed_at = Instant::now();
        waiting.push(PendingChange { request, max, held_before, state, memory, changed_at });
    }
    loop {
        for one in waiting.iter_mut().filter(|one| !one.is_done()) {
            one.poll(&run, timeout)?;
        }
        let now = Instant::now();
        let is_progressing =
            |one: &PendingChange| !one.is_done() && now - one.changed_at < STALL_TIME;
        if now >= deadline || !waiting.iter().any(is_progressing) {
            break;
        }
        progress.tick();
        std::thread::sleep(PAUSE);
    }
    let ended = waiting.into_iter().map(|one| DaemonMemory {
        released: one.held_before.saturating_sub(one.memory.held),
        why: (!one.is_done() && one.request.bytes.is_some()).then(|| why(&one.state)),
        ..one.memory
    });
    Ok(ended.collect())
}
