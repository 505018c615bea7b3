//! The thread `units`: gives the shell its events and ticks until the daemon stops, or until what it
//! keeps cannot be stored.

use super::UnitInbox;
use super::shell::{Performer, Shell};
use crate::startup::{StartResult, failed};
use replicas::node::TICK_NANOS;
use std::time::Duration;
use store::medium::Files;

/// Runs until the inbox has ended.
///
/// # Errors
/// The log failed: this daemon takes part in no unit any more, and must not go on to count as alive.
pub(super) fn run<P: Performer, F: Files>(
    shell: &mut Shell<P, F>,
    inbox: &UnitInbox,
    clock: impl Fn() -> i64,
) -> StartResult<()> {
    run_until_end(shell, inbox, clock).map_err(failed("store what is kept of units"))
}

fn run_until_end<P: Performer, F: Files>(
    shell: &mut Shell<P, F>,
    inbox: &UnitInbox,
    clock: impl Fn() -> i64,
) -> store::Result<()> {
    let mut tick_at = clock();
    loop {
        let now = clock();
        if now >= tick_at {
            tick_at = now + TICK_NANOS;
            shell.tick(now)?;
        }
        shell.end_round();
        let rest = Duration::from_nanos((tick_at - now).max(0).unsigned_abs());
        let Some(events) = inbox.take(rest) else { return Ok(()) };
        for event in events {
            shell.input(event, clock())?;
        }
    }
}
