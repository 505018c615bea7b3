//! Messages to a service that this daemon took over from another one. It runs on a thread of its own
//! (`threads::successor`), without sessions and without a doorbell. Where services move, the service of a
//! worker begins and ends by the same steps; its messages go to the worker.
//!
//! ```text
//!  closed --want(epoch)--> owned --begin--> running --replayed, ready--> takes messages
//!  running --give_up, or want(another epoch)--> it is to end --end--> closed, or the next one begins
//!  running --give_up_log--> it is to end --end--> closed; its log is to be taken, as a copy
//!  running --fail--> closed: its log cannot be replayed
//! ```
//!
//! A worker stands still with a service that leaves this host once it has reported what the host's memory
//! knows, or says that it cannot now (`Stillness`).
//!
//! Invariants
//! 1. One thread at a time runs: it alone has the service's log. The next begins when it has ended.
//! 2. Only a thread of the epoch in which this daemon owns the service is given messages.
//! 3. A service whose lease has ended does nothing once its thread was seen to stand still.
//! 4. A log that was left is closed before the next thread begins.

use crate::shared::inbox::{WAITING_MAX, WorkerMessage};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::Journal;

/// See the module.
#[derive(Default)]
pub(crate) struct TakenInbox {
    state: Mutex<TakenState>,
    changed: Condvar,
    /// As in the state, or 0.
    owned: AtomicU64,
}

#[derive(Default)]
struct TakenState {
    /// Epoch in which this daemon owns the service.
    owned: Option<u64>,
    /// Epoch of the thread that runs.
    running: Option<u64>,
    /// It has replayed the log, and waits for the lease.
    is_replayed: bool,
    is_ready: bool,
    /// The thread waits in `take`.
    is_waiting: bool,
    /// Of a worker's service that is to leave.
    stillness: Stillness,
    /// Number of its last pause.
    pause: u64,
    queue: VecDeque<WorkerMessage>,
    /// The thread leaves its log when it ends.
    leaves_log: bool,
    log: Option<Journal>,
    /// The epoch in which the log could not be replayed, and why.
    failure: Option<(u64, String)>,
}

/// A worker's service that is to leave this host. Pauses are counted: what was said in an earlier one is
/// from before clients used the service again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Stillness {
    /// It may be in a step.
    #[default]
    None,
    /// It has reported everything since this pause began, and does nothing.
    Still(u64),
    /// It cannot leave now: something waits for its next steps.
    Refused(u64),
}

impl TakenState {
    fn serves(&self) -> bool {
        self.is_ready && self.running.is_some() && self.running == self.owned
    }
}

impl TakenInbox {
    fn lock(&self) -> MutexGuard<'_, TakenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This daemon owns the service in this epoch.
    pub(crate) fn want(&self, epoch: u64) {
        self.set_owned(Some(epoch));
    }

    fn set_owned(&self, epoch: Option<u64>) {
        self.change(|state| (state.owned, state.leaves_log) = (epoch, false));
    }

    fn change(&self, change: impl FnOnce(&mut TakenState)) {
        let mut state = self.lock();
        change(&mut state);
        self.owned.store(state.owned.unwrap_or(0), Release);
        drop(state);
        self.changed.notify_all();
    }

    /// Whether this daemon owns the service in this epoch, as far as it knows.
    pub(crate) fn is_owned(&self, epoch: u64) -> bool {
        self.owned.load(Acquire) == epoch
    }

    /// Whether the service of the epoch in which this daemon owns it is ready.
    pub(crate) fn serves(&self) -> bool {
        self.lock().serves()
    }

    /// Whether the thread does nothing: it looks at the lease before it does something again.
    pub(crate) fn stands_still(&self) -> bool {
        let state = self.lock();
        state.is_waiting || state.stillness == Stillness::Still(state.pause)
    }

    /// A worker's service is to stand still: the number of this pause.
    pub(crate) fn pause(&self) -> u64 {
        let mut state = self.lock();
        state.pause += 1;
        state.pause
    }

    /// Notes whether the worker stands still with its service.
    pub(crate) fn note_stillness(&self, stillness: Stillness) {
        self.lock().stillness = stillness;
    }

    /// True if the service of a worker cannot leave in this pause.
    pub(crate) fn refuses(&self) -> bool {
        let state = self.lock();
        state.stillness == Stillness::Refused(state.pause)
    }

    /// This daemon owns the service no more, or ends.
    pub(crate) fn give_up(&self) {
        self.set_owned(None);
    }

    /// The same where the log becomes a copy: `take_log`.
    pub(crate) fn give_up_log(&self) {
        self.change(|state| (state.owned, state.leaves_log) = (None, state.running.is_some()));
    }

    /// The log that the last thread left, once it has ended.
    pub(crate) fn take_log(&self) -> Option<Journal> {
        self.lock().log.take()
    }

    /// The log of this epoch cannot be replayed.
    pub(crate) fn fail(&self, epoch: u64, why: String) {
        self.lock().failure = Some((epoch, why));
    }

    /// Why the log of the epoch in which this daemon owns the service could not be replayed.
    pub(crate) fn take_failure(&self) -> Option<(u64, String)> {
        let mut state = self.lock();
        let owned = state.owned;
        state.failure.take().filter(|(epoch, _)| owned == Some(*epoch))
    }

    /// True while a thread has the service's log.
    pub(crate) fn is_running(&self) -> bool {
        self.lock().running.is_some()
    }

    /// Waits until no earlier thread runs. False: this epoch is over.
    pub(crate) fn begin(&self, epoch: u64) -> bool {
        let is_early =
            |state: &mut TakenState| state.running.is_some() && state.owned == Some(epoch);
        let waited = self.changed.wait_while(self.lock(), is_early);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let may = state.owned == Some(epoch);
        if may {
            (state.running, state.log) = (Some(epoch), None);
            (state.is_replayed, state.is_ready) = (false, false);
            state.stillness = Stillness::None;
        }
        may
    }

    /// The log of this epoch is replayed.
    pub(crate) fn replayed(&self, epoch: u64) {
        let mut state = self.lock();
        state.is_replayed |= state.running == Some(epoch);
    }

    /// The epoch in which this daemon owns the service, if its log is replayed.
    pub(crate) fn replayed_epoch(&self) -> Option<u64> {
        let state = self.lock();
        state.running.filter(|_| state.is_replayed && state.running == state.owned)
    }

    /// The service of this epoch takes messages, unless it has ended.
    pub(crate) fn ready(&self, epoch: u64) {
        let mut state = self.lock();
        state.is_ready |= state.running == Some(epoch);
    }

    /// Queues a message.
    ///
    /// # Errors
    /// The message, if the service does not run here, or too many wait.
    pub(crate) fn put(&self, note: WorkerMessage) -> Result<(), WorkerMessage> {
        let mut state = self.lock();
        if !state.serves() || note.is_bounded() && state.queue.len() >= WAITING_MAX {
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
            |state: &mut TakenState| state.queue.is_empty() && state.running == state.owned;
        let mut state = self.lock();
        state.is_waiting = true;
        let waited = self.changed.wait_timeout_while(state, time, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_waiting = false;
        to.append(&mut state.queue);
        state.running == state.owned
    }

    /// The thread has ended, and gives up its log. Returns the messages that it has not taken.
    pub(crate) fn end(&self, log: Option<Journal>) -> VecDeque<WorkerMessage> {
        let mut state = self.lock();
        (state.running, state.is_replayed, state.is_ready) = (None, false, false);
        let leaves_log = std::mem::take(&mut state.leaves_log);
        state.log = log.filter(|_| leaves_log);
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
    fn messages_are_taken_while_the_service_runs_in_the_epoch_in_which_it_is_owned() {
        let inbox = TakenInbox::default();
        assert!(!inbox.begin(2), "nobody wants it");
        assert!(inbox.put(message(1)).is_err());
        inbox.want(2);
        assert!(inbox.begin(2) && inbox.is_running());
        assert!(inbox.put(message(2)).is_err(), "its log is being read");
        inbox.ready(2);
        for first in [3, 4] {
            assert!(inbox.put(message(first)).is_ok());
        }
        assert_eq!(taken(&inbox), (true, vec![3, 4]));
        assert!(inbox.put(message(5)).is_ok());
        inbox.give_up();
        assert!(inbox.put(message(6)).is_err());
        assert_eq!(taken(&inbox), (false, vec![5]));
        assert!(inbox.is_running(), "it still has the log");
        assert!(inbox.end(None).is_empty() && !inbox.is_running());
        assert!(!inbox.begin(2));
    }

    #[test]
    fn the_next_thread_begins_when_the_one_before_has_ended() {
        let inbox = TakenInbox::default();
        inbox.want(2);
        assert!(inbox.begin(2));
        inbox.ready(2);
        assert!(inbox.put(message(1)).is_ok());
        inbox.want(3);
        assert_eq!(taken(&inbox), (false, vec![1]));
        std::thread::scope(|scope| {
            let (begun, has_begun) = mpsc::channel();
            let inbox = &inbox;
            let late = scope.spawn(move || begun.send(inbox.begin(3)));
            assert!(has_begun.try_recv().is_err(), "two would have one log");
            assert!(inbox.put(message(2)).is_err());
            assert!(inbox.end(None).is_empty());
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
        let left = inbox.end(None);
        assert!(left.is_empty() && inbox.begin(5));
    }

    #[test]
    fn a_thread_is_seen_to_stand_still_and_an_epoch_to_be_over() {
        let inbox = TakenInbox::default();
        inbox.want(2);
        assert!(inbox.is_owned(2) && !inbox.is_owned(3) && !inbox.serves());
        assert!(inbox.begin(2));
        inbox.ready(2);
        assert!(inbox.serves() && !inbox.stands_still(), "it may be in a step");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| inbox.take(Duration::from_secs(3600), &mut VecDeque::new()));
            while !inbox.stands_still() {
                std::thread::yield_now();
            }
            inbox.want(3);
            assert!(!waits.join().expect("no panic"));
        });
        assert!(!inbox.stands_still() && !inbox.serves() && inbox.is_owned(3));
        inbox.give_up();
        assert!(!inbox.is_owned(3) && inbox.is_running());
        inbox.end(None);
        assert!(!inbox.is_running());
    }

    #[test]
    fn a_worker_stands_still_in_the_pause_of_which_it_said_so() {
        let inbox = TakenInbox::default();
        inbox.want(2);
        assert!(inbox.begin(2));
        let first = inbox.pause();
        assert!(!inbox.stands_still() && !inbox.refuses());
        inbox.note_stillness(Stillness::Still(first));
        assert!(inbox.stands_still());
        // Clients used the service since.
        let second = inbox.pause();
        assert!(!inbox.stands_still());
        inbox.note_stillness(Stillness::Refused(second));
        assert!(inbox.refuses() && !inbox.stands_still());
        assert!(inbox.pause() > second && !inbox.refuses());
        inbox.note_stillness(Stillness::Still(second + 1));
        inbox.give_up();
        inbox.end(None);
        inbox.want(3);
        assert!(inbox.begin(3) && !inbox.stands_still(), "it is another one");
    }

    #[test]
    fn a_service_that_is_late_to_be_ready_is_not_taken_for_the_next_one() {
        let inbox = TakenInbox::default();
        inbox.want(2);
        assert!(inbox.begin(2));
        // It is given up and ends before its thread says that it is ready.
        inbox.give_up();
        inbox.end(None);
        inbox.ready(2);
        assert!(!inbox.serves(), "nothing runs");
        inbox.want(3);
        assert!(inbox.begin(3));
        inbox.ready(2);
        assert!(!inbox.serves(), "its log is being read");
        inbox.ready(3);
        assert!(inbox.serves());
    }

    #[test]
    fn a_log_is_left_where_it_becomes_a_copy_and_no_later_thread_meets_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let journal = || {
            let options = store::Options {
                identity: store::Identity::of_daemon(7, 0),
                expected: store::Expected::New,
                progress: store::journal::Progress::default(),
                damage: store::Damage::Refuse,
                sync: store::Sync::Never,
                step_bytes: 4096,
            };
            let replay = Journal::open(directory.path(), options).expect("opened");
            Some(replay.into_journal().expect("a journal"))
        };
        let inbox = TakenInbox::default();
        let ended = |epoch, how: fn(&TakenInbox)| {
            inbox.want(epoch);
            assert!(inbox.begin(epoch));
            inbox.ready(epoch);
            how(&inbox);
            assert!(inbox.take_log().is_none(), "a thread has it");
            inbox.end(journal());
        };
        ended(2, TakenInbox::give_up);
        assert!(inbox.take_log().is_none(), "nobody wants it");
        ended(3, TakenInbox::give_up_log);
        assert!(inbox.take_log().is_some() && inbox.take_log().is_none());
        ended(4, TakenInbox::give_up_log);
        inbox.want(5);
        assert!(inbox.begin(5));
        assert!(inbox.take_log().is_none(), "this thread opens it");
        inbox.end(None);
        inbox.give_up_log();
        inbox.end(journal());
        assert!(inbox.take_log().is_none(), "nothing ran");
    }

    #[test]
    fn a_log_is_replayed_in_the_epoch_in_which_the_service_is_owned() {
        let inbox = TakenInbox::default();
        inbox.want(2);
        inbox.replayed(2);
        assert_eq!(inbox.replayed_epoch(), None, "nothing runs");
        assert!(inbox.begin(2));
        assert_eq!(inbox.replayed_epoch(), None);
        inbox.replayed(2);
        assert_eq!((inbox.replayed_epoch(), inbox.serves()), (Some(2), false));
        inbox.want(3);
        assert_eq!(inbox.replayed_epoch(), None, "it is to end");
        inbox.end(None);
        assert!(inbox.begin(3));
        assert_eq!(inbox.replayed_epoch(), None, "its log is being read");
    }

    #[test]
    fn a_failure_is_that_of_the_epoch_in_which_the_service_is_owned() {
        let inbox = TakenInbox::default();
        inbox.want(2);
        inbox.fail(2, "damaged".to_owned());
        assert_eq!(inbox.take_failure(), Some((2, "damaged".to_owned())));
        assert_eq!(inbox.take_failure(), None);
        inbox.fail(2, "damaged".to_owned());
        inbox.want(3);
        assert_eq!(inbox.take_failure(), None);
    }

    #[test]
    fn requests_are_bounded_and_other_messages_are_not() {
        let inbox = TakenInbox::default();
        inbox.want(2);
        assert!(inbox.begin(2));
        inbox.ready(2);
        let peer = || WorkerMessage::Peer(Vec::new());
        for _ in 0..WAITING_MAX {
            assert!(inbox.put(peer()).is_ok());
        }
        assert!(inbox.put(peer()).is_err());
        assert!(inbox.put(message(1)).is_ok());
        assert_eq!(inbox.end(None).len(), WAITING_MAX + 1);
    }
}
