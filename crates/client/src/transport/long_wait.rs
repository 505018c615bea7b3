//! Requests that may wait long (locks, and writeback in `open::write_through`) without occupying a
//! slot of the session, so that the caller can do other things meanwhile.
//!
//! Such a request goes to the home with a reply entry (`shm::session`). Slots thus stay free for
//! the request that releases the lock, however many wait, and a process that waits for many locks
//! finds all replies behind one word. Retries carry the identity of the first attempt, as in
//! `request`.

use placement::map::worker_of_shard;
use shm::session::{Interruptible, Slot};
use shm::wait;
use wire::errno::{Errno, Result};
use wire::{DaemonIndex, Request};

use crate::transport::Transport;
use crate::transport::attachment::Attachment;
use crate::transport::clock::sleep_micros;
use crate::transport::kept_slots::KeptSlots;
use crate::transport::request::{
    Answer, Attempt, Destination, Identity, classify, note_identity, own_credentials,
};
use crate::transport::retry::RetryBudget;

/// Interval of the daemon liveness test.
const POLL_MICROS: u64 = 50_000;

/// A request whose reply arrives in a reply entry.
pub(crate) struct LongRequest<'a> {
    /// Identity of the first attempt, once it was sent.
    pub(crate) identity: Option<Identity>,
    /// Entries kept so that no other request takes the identity of the first attempt.
    kept: KeptSlots<'a>,
    sent: Option<(Slot<'a>, &'a Attachment)>,
    sent_at: u64,
    /// Earliest time of the next send, in microseconds.
    send_at: u64,
    busy: RetryBudget,
    lost: RetryBudget,
}

impl<'a> LongRequest<'a> {
    pub(crate) fn new(transport: &Transport) -> LongRequest<'a> {
        LongRequest {
            identity: None,
            kept: KeptSlots::new(),
            sent: None,
            sent_at: 0,
            send_at: 0,
            busy: RetryBudget::new(transport.timeout_micros()),
            lost: transport.reconnect_budget(),
        }
    }

    /// A request that is first sent `micros` from now.
    pub(crate) fn after(transport: &Transport, micros: u64) -> LongRequest<'a> {
        let send_at = wait::now_micros().saturating_add(micros);
        LongRequest { send_at, ..LongRequest::new(transport) }
    }

    /// Sleeps until there may be something to do. Returns true if a signal handler ran and the wait
    /// is interruptible.
    pub(crate) fn sleep(&mut self, transport: &'a Transport, is_interruptible: bool) -> bool {
        let Some((entry, by)) = &mut self.sent else {
            sleep_micros(self.send_at.saturating_sub(wait::now_micros()));
            return false;
        };
        let (micros, how) = match is_interruptible {
            true => (u64::MAX, Interruptible::Yes),
            false => (POLL_MICROS, Interruptible::No),
        };
        match entry.wait(micros, how, || by.is_alive()) {
            Err(Errno::EINTR) => return true,
            Err(Errno::EIO) => transport.drop_attachment(by),
            Ok(()) | Err(_) => {}
        }
        false
    }

    /// The result if the request is over: the number in the reply, if it carries one. With
    /// `is_bounded` the instance's timeout applies even while the daemon is alive.
    pub(crate) fn poll(
        &mut self,
        transport: &'a Transport,
        query: (Destination, &Request<'_>),
        is_bounded: bool,
    ) -> Option<Result<Option<u64>>> {
        loop {
            let now = wait::now_micros();
            let Some((entry, by)) = self.sent.take() else {
                if now < self.send_at {
                    return None;
                }
                if let Err(errno) = self.send_now(transport, query, now) {
                    return Some(Err(errno));
                }
                continue;
            };
            let waited = now.saturating_sub(self.sent_at);
            let is_late = waited >= transport.timeout_micros();
            let troubled = if entry.is_answered() {
                match classify(entry) {
                    Ok(Attempt::Answered(slot)) => return Some(Answer::of(slot).number()),
                    Ok(Attempt::Refused(errno)) | Err(errno) => return Some(Err(errno)),
                    Ok(Attempt::Busy(micros, entry)) => {
                        self.kept.keep(entry, by);
                        self.pause(is_late, transport, Some(micros.max(1)))
                    }
                    Ok(Attempt::Stale(entry) | Attempt::Lost(entry)) => {
                        self.kept.keep_lost(entry);
                        transport.drop_attachment(by);
                        self.pause(is_late, transport, None)
                    }
                }
            } else if !transport.is_home(by) {
                self.kept.keep_lost(entry);
                self.pause(is_late, transport, None)
            } else if is_bounded && is_late {
                return Some(Err(Errno::EIO));
            } else {
                self.sent = Some((entry, by));
                return None;
            };
            if let Err(errno) = troubled {
                return Some(Err(errno));
            }
        }
    }

    /// Schedules a retry: after `busy` microseconds if the daemon is busy, with growing pauses if
    /// it is lost. `is_first`: trouble after a long wait starts a new retry budget.
    fn pause(&mut self, is_first: bool, transport: &Transport, busy: Option<u64>) -> Result<()> {
        if is_first {
            (self.busy, self.lost) =
                (RetryBudget::new(transport.timeout_micros()), transport.reconnect_budget());
        }
        let micros = match busy {
            Some(micros) => self.busy.next(micros)?,
            None => self.lost.next_longer().inspect_err(|_| transport.timeouts.note_gone())?,
        };
        self.send_at = wait::now_micros().saturating_add(micros);
        Ok(())
    }

    fn send_now(
        &mut self,
        transport: &'a Transport,
        (to, request): (Destination, &Request<'_>),
        now: u64,
    ) -> Result<()> {
        let Ok((home, worker, owner)) = transport.route_by_home(to) else {
            return self.pause(false, transport, None);
        };
        let mut header = transport.header(to, owner, home, &own_credentials());
        let mut entry = match self.kept.take(home) {
            Some(entry) => entry,
            None => home.session.claim_reply_slot()?,
        };
        note_identity(&mut header, &mut self.identity, home, &entry)?;
        let mut slot = transport.claim_slot(home)?;
        transport.fill(&mut slot, &header, request)?;
        slot.submit_for(&mut entry, worker, &home.bells, home.welcome.session)?;
        (self.sent, self.sent_at) = (Some((entry, home)), now);
        Ok(())
    }
}

impl Transport {
    fn route_by_home(&self, to: Destination) -> Result<(&Attachment, usize, DaemonIndex)> {
        let home = self.attach_to_home()?;
        Ok(match to {
            Destination::Shard(shard) => {
                (home, worker_of_shard(shard, home.workers()), home.map.owner(shard))
            }
            Destination::Target(daemon) => (home, 0, daemon),
        })
    }

    fn is_home(&self, attachment: &Attachment) -> bool {
        self.attached_home().is_some_and(|home| core::ptr::eq(home, attachment))
    }

    /// Count of replies that arrived, for `sleep_for_waits`. With `asks` it also tests whether the
    /// daemon is alive.
    pub(crate) fn answered_waits(&self, asks: bool) -> u32 {
        let Some(home) = self.attached_home() else { return 0 };
        if asks && !home.is_alive() {
            self.drop_attachment(home);
        }
        home.session.answered().unwrap_or(0)
    }

    /// Sleeps briefly, at most until a reply beyond the counted ones arrives or `wake_for_waits` is
    /// called.
    pub(crate) fn sleep_for_waits(&self, answered: u32) {
        self.sleep_long_for_waits(answered, POLL_MICROS);
    }

    /// As `sleep_for_waits`, for at most `micros`.
    pub(crate) fn sleep_long_for_waits(&self, answered: u32, micros: u64) {
        let slept =
            self.attached_home().map(|home| home.session.sleep_for_replies(answered, micros));
        if slept.is_none() {
            sleep_micros(POLL_MICROS);
        }
    }

    /// Ends a `sleep_for_waits`.
    pub(crate) fn wake_for_waits(&self) {
        if let Some(home) = self.attached_home() {
            home.session.wake_for_replies();
        }
    }
}
