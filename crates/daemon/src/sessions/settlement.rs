//! Requests of killed processes are over before another session opens: a process that begins later
//! sees the effect of such a request, or it is never carried out.
//!
//! The main thread looks for ends of sessions and for killed threads of the others, and tells all
//! workers. Each takes what is left in the slots, carries it out or drops it; the last one tells the
//! other daemons, and services that were taken over, after all that the workers sent there.

use crate::shared::Shared;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

/// A worker that is busy for longer does not keep sessions from opening. A client waits for 5 s.
const DELAY_MAX: Duration = Duration::from_secs(4);
/// A worker is busy only if the main thread looked so often meanwhile: else the whole process had to wait
/// for a processor, or the machine stood still.
const LOOKS_MIN: u32 = 100;
/// At most one line of the log in this time says that sessions did not wait.
const WARN_PAUSE: Duration = Duration::from_secs(60);

/// Requests whose sender was killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeftRequests {
    /// All of these client ids.
    Of { first: u64, count: u64 },
    /// One.
    One { client_id: u64, sequence: u64 },
}

/// Requests of killed processes that all workers drop, unless they have been carried out.
pub(crate) struct Settlement {
    /// The session, if it is still open: its slots are taken first, because a killed thread may not
    /// have rung for its request.
    pub(crate) session: Option<u16>,
    /// The requests.
    pub(crate) requests: Vec<LeftRequests>,
    /// Workers that have not handled it.
    left: AtomicUsize,
}

impl Settlement {
    /// A worker has handled it. Daemons whose reply cache knows the client query about it later, so the
    /// messages to them may be lost.
    pub(crate) fn handled(&self, shared: &Shared) {
        if self.left.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        for requests in &self.requests {
            match *requests {
                LeftRequests::Of { first, count } => {
                    shared.inboxes.client_gone_elsewhere(first, count);
                    shared.net.send_client_gone(first, count);
                }
                LeftRequests::One { client_id, sequence } => {
                    shared.inboxes.withdrawn_elsewhere(client_id, sequence);
                    shared.net.send_withdrawn(client_id, sequence);
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.left.load(Acquire) == 0
    }
}

/// Settlements that some worker has not handled.
#[derive(Default)]
pub(crate) struct Settlements {
    open: Vec<OpenSettlement>,
    warned_at: Option<Instant>,
}

struct OpenSettlement {
    settlement: Arc<Settlement>,
    until: Instant,
    looks: u32,
}

impl OpenSettlement {
    fn is_late(&self, now: Instant) -> bool {
        self.until <= now && self.looks >= LOOKS_MIN && !self.settlement.is_over()
    }
}

impl Settlements {
    /// Adds one for so many workers, which are to be told.
    pub(crate) fn add(
        &mut self,
        session: Option<u16>,
        requests: Vec<LeftRequests>,
        workers: usize,
    ) -> Arc<Settlement> {
        self.forget_ended();
        let settlement =
            Arc::new(Settlement { session, requests, left: AtomicUsize::new(workers) });
        let until = Instant::now() + DELAY_MAX;
        self.open.push(OpenSettlement { settlement: Arc::clone(&settlement), until, looks: 0 });
        settlement
    }

    /// True if sessions may open.
    pub(crate) fn are_over(&mut self) -> bool {
        self.forget_ended();
        self.open.is_empty()
    }

    fn forget_ended(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let now = Instant::now();
        self.open.iter_mut().for_each(|one| one.looks = one.looks.saturating_add(1));
        let is_any_late = self.open.iter().any(|one| one.is_late(now));
        if is_any_late && self.warned_at.is_none_or(|at| now.duration_since(at) >= WARN_PAUSE) {
            self.warned_at = Some(now);
            tracing::warn!("a worker is busy: requests of killed processes may happen late");
        }
        self.open.retain(|one| !one.settlement.is_over() && !one.is_late(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settlement_is_over_when_all_workers_have_handled_it_or_after_a_while() {
        let mut settlements = Settlements::default();
        assert!(settlements.are_over());
        let one = settlements.add(None, vec![LeftRequests::Of { first: 7, count: 8 }], 2);
        assert!(!settlements.are_over());
        one.left.fetch_sub(1, AcqRel);
        assert!(!settlements.are_over());
        one.left.fetch_sub(1, AcqRel);
        assert!(settlements.are_over());
        let _ = settlements.add(Some(3), Vec::new(), 1);
        assert!(!settlements.are_over());
        settlements.open.iter_mut().for_each(|one| one.until = Instant::now());
        assert!(!settlements.are_over(), "the main thread has hardly run");
        let looks = (1..LOOKS_MIN).take_while(|_| !settlements.are_over()).count();
        assert!(settlements.are_over() && looks > 90, "{looks} looks");
    }
}
