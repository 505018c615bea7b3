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

/// A worker that is busy for longer does not keep sessions from opening.
const DELAY_MAX: Duration = Duration::from_secs(1);

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
    open: Vec<(Arc<Settlement>, Instant)>,
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
        self.open.push((Arc::clone(&settlement), Instant::now() + DELAY_MAX));
        settlement
    }

    /// True if sessions may open.
    pub(crate) fn are_over(&mut self) -> bool {
        self.forget_ended();
        self.open.is_empty()
    }

    fn forget_ended(&mut self) {
        if !self.open.is_empty() {
            let now = Instant::now();
            self.open.retain(|(settlement, until)| !settlement.is_over() && now < *until);
        }
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
        settlements.open.iter_mut().for_each(|(_, until)| *until = Instant::now());
        assert!(settlements.are_over());
    }
}
