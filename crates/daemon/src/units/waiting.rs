//! Clients' requests that wait for this daemon's node: each has a ticket, and one answer.
//!
//! A write that comes again, as after its connection was lost, takes the place of the one before: the
//! node answers the last ticket alone.
//!
//! Invariants
//! 1. A caller that takes a request from here answers it. The rest is answered when the thread ends, and
//!    nothing is added later.

use super::ways::CopyRequest;
use crate::shared::reply::ReplyTo;
use replicas::operation::RequestId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::DaemonIndex;

/// A request that waits.
pub(super) struct WaitingAsk {
    pub(super) to: ReplyTo,
    /// A client's request for bytes; `None`: the service of a file clears it.
    pub(super) request: Option<CopyRequest>,
}

#[derive(Default)]
struct AskTickets {
    waiting: BTreeMap<u64, WaitingAsk>,
    /// Tickets of writes.
    writes: BTreeMap<RequestId, u64>,
    /// Requests that the node has answered, while the service of their file is asked (`losses`).
    asked: BTreeMap<u64, (CopyRequest, ReplyTo)>,
    given: u64,
    is_over: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct WaitingAsks {
    tickets: Mutex<AskTickets>,
}

impl WaitingAsks {
    fn tickets(&self) -> MutexGuard<'_, AskTickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins to wait. Returns its ticket, which is less than 2^63, and the destination of the
    /// answer to an earlier one in whose place it is.
    ///
    /// # Errors
    /// The destination of the answer: the node takes no more requests.
    pub(super) fn admit(
        &self,
        request: Option<CopyRequest>,
        to: ReplyTo,
    ) -> Result<(u64, Option<ReplyTo>), ReplyTo> {
        let mut tickets = self.tickets();
        if tickets.is_over {
            return Err(to);
        }
        tickets.given += 1;
        let ticket = tickets.given;
        let write = request.as_ref().and_then(CopyRequest::write_id);
        let earlier = write.and_then(|id| tickets.writes.insert(id, ticket));
        let earlier = earlier.and_then(|earlier| tickets.waiting.remove(&earlier));
        tickets.waiting.insert(ticket, WaitingAsk { to, request });
        Ok((ticket, earlier.map(|it| it.to)))
    }

    /// The daemon that sent the last attempt of a write. `None`: none waits, or it is of this daemon.
    pub(super) fn sender_of(&self, write: RequestId) -> Option<DaemonIndex> {
        let tickets = self.tickets();
        let ticket = tickets.writes.get(&write)?;
        match &tickets.waiting.get(ticket)?.to {
            ReplyTo::Peer(handle, _) => Some(handle.peer()),
            _ => None,
        }
    }

    /// The node answers a request.
    pub(super) fn take_answered(&self, ticket: u64) -> Option<WaitingAsk> {
        let mut tickets = self.tickets();
        let taken = tickets.waiting.remove(&ticket)?;
        if let Some(id) = taken.request.as_ref().and_then(CopyRequest::write_id) {
            tickets.writes.remove(&id);
        }
        Some(taken)
    }

    /// The service of a request's file is asked, with the ticket that the request had.
    ///
    /// # Errors
    /// The destination of the answer: the node is gone.
    pub(super) fn admit_asked(
        &self,
        ticket: u64,
        request: CopyRequest,
        to: ReplyTo,
    ) -> Result<(), ReplyTo> {
        let mut tickets = self.tickets();
        if tickets.is_over {
            return Err(to);
        }
        tickets.asked.insert(ticket, (request, to));
        Ok(())
    }

    /// The service has answered.
    pub(super) fn take_asked(&self, ticket: u64) -> Option<(CopyRequest, ReplyTo)> {
        self.tickets().asked.remove(&ticket)
    }

    /// The node is gone. Returns the destinations of the answers to those that wait.
    pub(super) fn give_up(&self) -> Vec<ReplyTo> {
        let mut tickets = self.tickets();
        tickets.is_over = true;
        let asked = std::mem::take(&mut tickets.asked).into_values().map(|(_, to)| to);
        let waiting = std::mem::take(&mut tickets.waiting).into_values().map(|it| it.to);
        waiting.chain(asked).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_taken_once_and_none_is_left() {
        let waiting = WaitingAsks::default();
        let request = || Some(CopyRequest::for_tests());
        let admit = |it: &WaitingAsks| {
            let admitted = it.admit(request(), ReplyTo::Nobody).ok()?;
            assert!(admitted.1.is_none(), "a read");
            Some(admitted.0)
        };
        let (first, second) = (admit(&waiting), admit(&waiting));
        assert!(first.is_some() && second.is_some() && first != second);
        let taken = waiting.take_answered(first.expect("a ticket"));
        assert_eq!(taken.map(|it| it.request), Some(request()));
        assert!(waiting.take_answered(first.expect("a ticket")).is_none(), "a second answer");
        assert_eq!(waiting.give_up().len(), 1);
        assert!(waiting.take_answered(second.expect("a ticket")).is_none());
        assert_eq!(admit(&waiting), None, "nobody would answer it");
        assert_eq!(waiting.give_up().len(), 0);
    }

    #[test]
    fn a_request_whose_file_is_asked_about_is_not_forgotten() {
        let waiting = WaitingAsks::default();
        let request = CopyRequest::for_tests();
        let admitted = waiting.admit(Some(request), ReplyTo::Nobody).ok().expect("it goes on");
        assert!(waiting.take_answered(admitted.0).is_some());
        assert!(waiting.admit_asked(admitted.0, request, ReplyTo::Nobody).is_ok());
        assert_eq!(waiting.take_asked(admitted.0).map(|it| it.0), Some(request));
        assert!(waiting.take_asked(admitted.0).is_none(), "a second answer");
        assert!(waiting.admit_asked(7, request, ReplyTo::Nobody).is_ok());
        assert_eq!(waiting.give_up().len(), 1);
        assert!(waiting.take_asked(7).is_none());
        assert!(
            waiting.admit_asked(8, request, ReplyTo::Nobody).is_err(),
            "nobody would answer it"
        );
    }

    #[test]
    fn a_write_that_comes_again_takes_the_place_of_the_one_before() {
        let waiting = WaitingAsks::default();
        let write = || Some(CopyRequest::write_for_tests(12));
        let admit = |request| waiting.admit(request, ReplyTo::Nobody).ok().expect("it goes on");
        let (first, earlier) = admit(write());
        assert!(earlier.is_none());
        assert!(admit(Some(CopyRequest::write_for_tests(13))).1.is_none(), "another one");
        let (second, earlier) = admit(write());
        assert!(earlier.is_some(), "it is to be answered");
        assert!(waiting.take_answered(first).is_none());
        assert_eq!(waiting.take_answered(second).map(|it| it.request), Some(write()));
        assert!(admit(write()).1.is_none(), "it was answered");
    }
}
