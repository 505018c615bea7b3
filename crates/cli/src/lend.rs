//! Memory of this host's daemons: what they hold, and orders to hold less or more.
//!
//! A daemon takes an order at once and answers with its state; giving back goes on behind it, and is
//! waited for here by asking again.

use crate::directories;
use crate::failure::{Failure, Result};
use crate::host;
use crate::progress::Progress;
use crate::query::{State, daemon_lend, daemon_query};
use crate::records::{self, Host};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::welcome::{LEND_IDLE, LEND_STEP_BYTES};

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(10);
/// If nothing more was given back for so long, nothing will be soon.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a daemon is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The daemon.
    pub(crate) index: u16,
    /// Bytes that it may hold; `None`: as much as is idle.
    pub(crate) bytes: Option<u64>,
}

/// What a daemon holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lent {
    /// The daemon.
    pub(crate) index: u16,
    /// Bytes of its arena: it never holds more.
    pub(crate) most: u64,
    /// Bytes that it may hold.
    pub(crate) allowance: u64,
    /// Bytes that it holds.
    pub(crate) held: u64,
    /// Bytes of these in files.
    pub(crate) used: u64,
    /// Why it may.
    pub(crate) reason: String,
    /// Bytes that were given back while this was waited for.
    pub(crate) given_back: u64,
    /// Why it holds more than it may.
    pub(crate) why: Option<String>,
}

impl Lent {
    fn of(index: u16, most: u64, state: &State) -> Option<Lent> {
        Some(Lent {
            index,
            most,
            allowance: state.memory_allowance?,
            held: state.memory_held?,
            used: state.memory_used?,
            reason: state.memory_reason.clone()?,
            given_back: 0,
            why: None,
        })
    }

    /// Bytes held beyond what is allowed.
    pub(crate) const fn beyond(&self) -> u64 {
        self.held.saturating_sub(self.allowance)
    }
}

/// Why memory stays with a daemon.
fn why(state: &State) -> String {
    let allowed = state.memory_allowance.unwrap_or(0);
    match (state.ssd_total, state.ssd_free) {
        _ if state.bytes_pinned.unwrap_or(0) > allowed => "files in it are pinned".to_owned(),
        (Some(0), _) => "no SSD, and no other node, has room for the files in it".to_owned(),
        // The largest part of a file.
        (_, Some(free)) if free < 64 << 20 => "its SSD is full".to_owned(),
        _ => "programs have the files in it mapped, or use them".to_owned(),
    }
}

fn host(name: &str) -> Result<(PathBuf, Host)> {
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

/// What the daemons of this host hold.
///
/// # Errors
/// There is none, or one does not answer.
pub(crate) fn look(name: &str, timeout: Duration) -> Result<Vec<Lent>> {
    let (run, host) = host(name)?;
    let all = host.daemons.iter().map(|daemon| {
        let state = daemon_query(&socket(&run, daemon.index), timeout);
        let lent = state.and_then(|state| Lent::of(daemon.index, daemon.memory, &state));
        lent.ok_or_else(|| silent(daemon.index))
    });
    all.collect()
}

/// One daemon on its way.
struct Waiting {
    order: Order,
    most: u64,
    held_before: u64,
    state: State,
    lent: Lent,
    moved_at: Instant,
}

impl Waiting {
    fn is_done(&self) -> bool {
        self.order.bytes.is_none()
            || self.lent.allowance == self.allowed() && self.lent.beyond() == 0
    }

    fn allowed(&self) -> u64 {
        let bytes = self.order.bytes.unwrap_or(0).div_ceil(LEND_STEP_BYTES);
        bytes.saturating_mul(LEND_STEP_BYTES).min(self.most / 4096 * 4096)
    }

    fn look(&mut self, run: &Path, timeout: Duration) -> Result<()> {
        let state = daemon_query(&socket(run, self.order.index), timeout);
        let state = state.ok_or_else(|| silent(self.order.index))?;
        let lent = Lent::of(self.order.index, self.most, &state);
        let lent = lent.ok_or_else(|| silent(self.order.index))?;
        if (lent.held, lent.used) != (self.lent.held, self.lent.used) {
            self.moved_at = Instant::now();
        }
        (self.state, self.lent) = (state, lent);
        Ok(())
    }
}

/// Gives the orders, and waits until what is to be given back is, or as long as more comes within
/// `patience`.
///
/// # Errors
/// A daemon is not here, or does not answer.
pub(crate) fn carry_out(
    name: &str,
    orders: &[Order],
    patience: Duration,
    progress: &mut Progress,
) -> Result<Vec<Lent>> {
    let (run, host) = host(name)?;
    let until = Instant::now() + patience;
    let mut waiting = Vec::new();
    for &order in orders {
        let daemon = host.daemons.iter().find(|daemon| daemon.index == order.index);
        let most = daemon.ok_or_else(|| silent(order.index))?.memory;
        let steps = order.bytes.map_or(LEND_IDLE, |bytes| {
            u32::try_from(bytes.div_ceil(LEND_STEP_BYTES)).unwrap_or(LEND_IDLE - 1)
        });
        let before = daemon_query(&socket(&run, order.index), patience);
        let held_before = before.and_then(|state| state.memory_held);
        let held_before = held_before.ok_or_else(|| silent(order.index))?;
        let state = daemon_lend(&socket(&run, order.index), steps, patience);
        let state = state.ok_or_else(|| silent(order.index))?;
        let lent = Lent::of(order.index, most, &state).ok_or_else(|| silent(order.index))?;
        let moved_at = Instant::now();
        waiting.push(Waiting { order, most, held_before, state, lent, moved_at });
    }
    loop {
        for one in waiting.iter_mut().filter(|one| !one.is_done()) {
            one.look(&run, patience)?;
        }
        let now = Instant::now();
        let goes_on = |one: &Waiting| !one.is_done() && now - one.moved_at < PATIENCE;
        if now >= until || !waiting.iter().any(goes_on) {
            break;
        }
        progress.tick();
        std::thread::sleep(PAUSE);
    }
    let ended = waiting.into_iter().map(|one| Lent {
        given_back: one.held_before.saturating_sub(one.lent.held),
        why: (one.lent.beyond() > 0 && one.order.bytes.is_some()).then(|| why(&one.state)),
        ..one.lent
    });
    Ok(ended.collect())
}
