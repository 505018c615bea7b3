//! Messages to a service that this daemon took over from another one. It runs on a thread of its own
//! (`threads::successor`), without sessions and without a doorbell.
//!
//! ```text
//!  closed --want(epoch)--> wanted --begin--> running --ready--> takes messages
//!  running --give_up, or want(another epoch)--> it is to end --end--> closed, or the next one begins
//! ```
//!
//! Invariants
//! 1. One thread at a time runs: it alone has the service's log. The next begins when it has ended.
//! 2. Only a thread of the epoch that is wanted is given messages.

use crate::shared::inbox::{WAITING_MAX, WorkerMessage};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// See the module.
#[derive(Default)]
pub(crate) struct TakenInbox {
    state: Mutex<TakenState>,
    changed: Condvar,
}

#[derive(Default)]
struct TakenState {
    /// Epoch in which this daemon owns the service.
    wanted: Option<u64>,
    /// Epoch of the thread that runs.
    running: Option<u64>,
    is_ready: bool,
    queue: VecDeque<WorkerMessage>,
}

impl TakenInbox {
    fn lock(&self) -> MutexGuard<'_, TakenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This daemon owns the service in this epoch.
    pub(crate) fn want(&self, epoch: u64) {
        self.lock().wanted = Some(epoch);
        self.changed.notify_all();
    }

    /// This daemon owns the service no more, or ends.
    pub(crate) fn give_up(&self) {
        self.lock().wanted = None;
        self.changed.notify_all();
    }

    /// True while a thread has the service's log.
    pub(crate) fn is_running(&self) -> bool {
        self.lock().running.is_some()
    }

    /// Waits until no earlier thread runs. False: this epoch is over.
    pub(crate) fn begin(&self, epoch: u64) -> bool {
        let is_early =
            |state: &mut TakenState| state.running.is_some() && state.wanted == Some(epoch);
        let waited = self.changed.wait_while(self.lock(), is_early);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let may = state.wanted == Some(epoch);
        if may {
            state.running = Some(epoch);
        }
        may
    }

    /// The service of the thread that runs takes messages.
    pub(crate) fn ready(&self) {
        self.lock().is_ready = true;
    }

    /// Queues a message.
    ///
    /// # Errors
    /// The message, if the service does not run here, or too many wait.
    pub(crate) fn put(&self, note: WorkerMessage) -> Result<(), WorkerMessage> {
        let mut state = self.lock();
        let is_taken = state.is_ready && state.running == state.wanted;
        if !is_taken || note.is_bounded() && state.queue.len() >= WAITING_MAX {
            return Err(note);
        }
        state.queue.push_back(note);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits for messages, for at most `time`, and appends them to `to`. False: the thread is to end.
    pub(crate) fn take(&self, time: Duration, to: &mut VecDeque<WorkerMessage>) -> bool {
        let is_idle =
            |state: &mut TakenState| state.queue.is_empty() && state.running == state.wanted;
        let waited = self.changed.wait_timeout_while(self.lock(), time, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        to.append(&mut state.queue);
        state.running == state.wanted
    }

    /// The thread has ended. Returns the messages that it has not taken.
    pub(crate) fn end(&self) -> VecDeque<WorkerMessage> {
        let mut state = self.lock();
        (state.running, state.is_ready) = (None, false);
        let left = std::mem::take(&mut state.queue);
        drop(state);
        self.changed.notify_all();
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn message(first: u64) -> WorkerMessage {
        WorkerMessage::ClientGone { first, count: 1 }
    }

    fn taken(inbox: &TakenInbox) -> (bool, Vec<u64>) {
        let mut notes = VecDeque::new();
        let goes_on = inbox.take(Duration::ZERO, &mut notes);
        let first = |note| match note {
            WorkerMessage::ClientGone { first, .. } => Some(first),
            _ => None,
        };
        (goes_on, notes.into_iter().filter_map(first).collect())
    }

    #[test]
    fn messages_are_taken_while_the_service_runs_in_the_epoch_that_is_wanted() {
        let inbox = TakenInbox::default();
        assert!(!inbox.begin(2), "nobody wants it");
        assert!(inbox.put(message(1)).is_err());
        inbox.want(2);
        assert!(inbox.begin(2) && inbox.is_running());
        assert!(inbox.put(message(2)).is_err(), "its log is being read");
        inbox.ready();
        for first in [3, 4] {
            assert!(inbox.put(message(first)).is_ok());
        }
        assert_eq!(taken(&inbox), (true, vec![3, 4]));
        assert!(inbox.put(message(5)).is_ok());
        inbox.give_up();
        assert!(inbox.put(message(6)).is_err());
        assert_eq!(taken(&inbox), (false, vec![5]));
        assert!(inbox.is_running(), "it still has the log");
        assert!(inbox.end().is_empty() && !inbox.is_running());
        assert!(!inbox.begin(2));
    }

    #[test]
    fn the_next_thread_begins_when_the_one_before_has_ended() {
        let inbox = TakenInbox::default();
        inbox.want(2);
        assert!(inbox.begin(2));
        inbox.ready();
        assert!(inbox.put(message(1)).is_ok());
        inbox.want(3);
        assert_eq!(taken(&inbox), (false, vec![1]));
        std::thread::scope(|scope| {
            let (begun, has_begun) = mpsc::channel();
            let inbox = &inbox;
            let late = scope.spawn(move || begun.send(inbox.begin(3)));
            assert!(has_begun.try_recv().is_err(), "two would have one log");
            assert!(inbox.put(message(2)).is_err());
            assert!(inbox.end().is_empty());
            assert_eq!(has_begun.recv(), Ok(true));
            assert!(late.join().expect("no panic").is_ok());
        });
        // Also where it was replaced before it began.
        std::thread::scope(|scope| {
            inbox.want(4);
            let late = scope.spawn(|| inbox.begin(4));
            inbox.want(5);
            assert!(!late.join().expect("no panic"));
        });
        let left = inbox.end();
        assert!(left.is_empty() && inbox.begin(5));
    }

    #[test]
    fn requests_are_bounded_and_other_messages_are_not() {
        let inbox = TakenInbox::default();
        inbox.want(2);
        assert!(inbox.begin(2));
        inbox.ready();
        let peer = || WorkerMessage::Peer(Vec::new());
        for _ in 0..WAITING_MAX {
            assert!(inbox.put(peer()).is_ok());
        }
        assert!(inbox.put(peer()).is_err());
        assert!(inbox.put(message(1)).is_ok());
        assert_eq!(inbox.end().len(), WAITING_MAX + 1);
    }
}
