//! What may be waited for for long, locks here and files that are saved in `saves`: without a slot of the
//! session, by who may do other things meanwhile.
//!
//! A request goes to the home, for a row (`shm::session`): so however many wait, slots are left for who
//! gives the lock back, and who waits for many locks finds all replies behind one word. It is sent again
//! with the identity of the first attempt, as in `request`.
//!
//! waiting -> over
//! waiting --interrupted--> withdrawing -> asking -> over

use core::sync::atomic::Ordering::Relaxed;
use placement::map::worker_of_shard;
use shm::session::{Interruptible, Slot};
use shm::wait;
use wire::errno::{Errno, Result};
use wire::request::lock;
use wire::{DaemonIndex, Request};

use crate::Client;
use crate::attach::Attachment;
use crate::locks::Wanted;
use crate::request::{
    Answer, Attempt, Identity, Patience, To, classify, encode, note_identity, own_credentials,
    sleep_micros,
};

/// How often it is asked whether the daemon is there.
const LOOK_MICROS: u64 = 50_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Waiting,
    Withdrawing(Identity),
    /// It may have been granted before it was withdrawn, unseen by us. Asking again without waiting
    /// makes both sides agree: what is held already is granted again.
    Asking,
}

/// A lock that is waited for. Whoever lets go of it before it is over may be granted the lock still.
pub struct LockWait<'a> {
    client: &'a Client,
    wanted: Wanted,
    stage: Stage,
    sending: Sending<'a>,
}

impl<'a> LockWait<'a> {
    pub(crate) fn new(client: &'a Client, wanted: Wanted) -> LockWait<'a> {
        LockWait { client, wanted, stage: Stage::Waiting, sending: Sending::new(client) }
    }

    /// What came of it, if it is over; hands in what is to be handed in.
    pub fn poll(&mut self) -> Option<Result<()>> {
        loop {
            let wanted = self.wanted;
            let request = match self.stage {
                Stage::Waiting => wanted.request(lock::WAIT),
                Stage::Withdrawing(Identity { origin, sequence }) => {
                    Request::CancelLock { inode: wanted.inode, origin, sequence }
                }
                Stage::Asking => wanted.request(0),
            };
            let is_bounded = self.stage != Stage::Waiting;
            let to = To::Shard(wanted.inode.shard());
            let outcome = self.sending.poll(self.client, (to, &request), is_bounded)?;
            match (self.stage, outcome) {
                (Stage::Waiting, Err(Errno::EINTR)) => self.interrupt(),
                (Stage::Withdrawing(_), Ok(_)) => self.go_on(Stage::Asking),
                (Stage::Asking, Err(Errno::EAGAIN)) => return Some(Err(Errno::EINTR)),
                (_, outcome) => return Some(outcome.map(drop)),
            }
        }
    }

    /// Who waits is to wait no longer: it ends soon, with the lock or with `EINTR`.
    pub fn interrupt(&mut self) {
        if self.stage == Stage::Waiting {
            let sent = self.sending.identity;
            self.go_on(sent.map_or(Stage::Asking, Stage::Withdrawing));
        }
    }

    fn go_on(&mut self, stage: Stage) {
        self.stage = stage;
        self.sending = Sending::new(self.client);
    }

    /// Waits until it is over, or a signal handler ran.
    pub(crate) fn wait(mut self) -> Result<()> {
        loop {
            if let Some(outcome) = self.poll() {
                return outcome;
            }
            let is_interruptible = self.stage == Stage::Waiting;
            if self.sending.sleep(self.client, is_interruptible) {
                self.interrupt();
            }
        }
    }
}

/// A request that is answered in a row.
pub(crate) struct Sending<'a> {
    identity: Option<Identity>,
    /// Nobody else gets the row whose identity the repetitions carry: see `Client::call_as`.
    first: Option<Slot<'a>>,
    sent: Option<(Slot<'a>, &'a Attachment)>,
    sent_at: u64,
    /// Not sent before this.
    again_at: u64,
    busy: Patience,
    lost: Patience,
}

impl<'a> Sending<'a> {
    pub(crate) fn new(client: &Client) -> Sending<'a> {
        Sending {
            identity: None,
            first: None,
            sent: None,
            sent_at: 0,
            again_at: 0,
            busy: Patience::new(client.timeout_micros()),
            lost: client.patience_for_lost(),
        }
    }

    /// Sent this much later.
    pub(crate) fn after(client: &Client, micros: u64) -> Sending<'a> {
        let again_at = wait::now_micros().saturating_add(micros);
        Sending { again_at, ..Sending::new(client) }
    }

    /// Sleeps until there may be something to do. True: a signal handler ran, where that is to end it.
    pub(crate) fn sleep(&mut self, client: &'a Client, is_interruptible: bool) -> bool {
        let Some((row, by)) = &mut self.sent else {
            sleep_micros(self.again_at.saturating_sub(wait::now_micros()));
            return false;
        };
        let (micros, how) = match is_interruptible {
            true => (u64::MAX, Interruptible::Yes),
            false => (LOOK_MICROS, Interruptible::No),
        };
        match row.wait(micros, how, || by.is_there()) {
            Err(Errno::EINTR) => return true,
            Err(Errno::EIO) => client.lose(by),
            Ok(()) | Err(_) => {}
        }
        false
    }

    /// What came of it, if it is over: the number of the answer, if it is one. Bounded: by the
    /// instance's timeout also while the daemon is there.
    pub(crate) fn poll(
        &mut self,
        client: &'a Client,
        asked: (To, &Request<'_>),
        is_bounded: bool,
    ) -> Option<Result<Option<u64>>> {
        loop {
            let now = wait::now_micros();
            let Some((row, by)) = self.sent.take() else {
                if now < self.again_at {
                    return None;
                }
                if let Err(errno) = self.send(client, asked, now) {
                    return Some(Err(errno));
                }
                continue;
            };
            let waited = now.saturating_sub(self.sent_at);
            let is_late = waited >= client.timeout_micros();
            let troubled = if row.is_answered() {
                match classify(row) {
                    Ok(Attempt::Answered(slot)) => return Some(Answer::of(slot).number()),
                    Ok(Attempt::Refused(errno)) | Err(errno) => return Some(Err(errno)),
                    Ok(Attempt::Busy(micros)) => self.pause(is_late, client, Some(micros.max(1))),
                    Ok(Attempt::Stale | Attempt::Lost(_)) => {
                        client.lose(by);
                        self.pause(is_late, client, None)
                    }
                }
            } else if !client.is_home(by) {
                self.first.get_or_insert(row);
                self.pause(is_late, client, None)
            } else if is_bounded && is_late {
                return Some(Err(Errno::EIO));
            } else {
                self.sent = Some((row, by));
                return None;
            };
            if let Err(errno) = troubled {
                return Some(Err(errno));
            }
        }
    }

    /// It is sent again a while later: of a daemon that is busy so many microseconds, of one that is lost
    /// ever more. A trouble after a long wait is the first of its kind.
    fn pause(&mut self, is_first: bool, client: &Client, busy: Option<u64>) -> Result<()> {
        if is_first {
            (self.busy, self.lost) =
                (Patience::new(client.timeout_micros()), client.patience_for_lost());
        }
        let micros = match busy {
            Some(micros) => self.busy.next(micros)?,
            None => self.lost.next_longer().inspect_err(|_| client.is_gone.store(true, Relaxed))?,
        };
        self.again_at = wait::now_micros().saturating_add(micros);
        Ok(())
    }

    fn send(
        &mut self,
        client: &'a Client,
        (to, request): (To, &Request<'_>),
        now: u64,
    ) -> Result<()> {
        let Ok((home, worker, owner)) = client.route_by_home(to) else {
            return self.pause(false, client, None);
        };
        let mut header = client.header(to, owner, home, &own_credentials());
        let mut row = home.session.claim_row()?;
        note_identity(&mut header, &mut self.identity, home, &row)?;
        let mut slot = home.session.claim(client.timeout_micros())?;
        slot.write(|bytes| encode(bytes, &header, request))?;
        slot.submit_for(&mut row, worker, &home.bells, home.welcome.session)?;
        (self.sent, self.sent_at) = (Some((row, home)), now);
        Ok(())
    }
}

impl Client {
    fn route_by_home(&self, to: To) -> Result<(&Attachment, usize, DaemonIndex)> {
        let home = self.reach_home()?;
        Ok(match to {
            To::Shard(shard) => {
                (home, worker_of_shard(shard, home.workers()), home.map.owner(shard))
            }
            To::Target(daemon) => (home, 0, daemon),
        })
    }

    fn is_home(&self, attachment: &Attachment) -> bool {
        self.home_now().is_some_and(|home| core::ptr::eq(home, attachment))
    }

    /// How many answers to waits came by now, for `sleep_for_waits`; looks for the daemon as well if
    /// `asks`.
    #[must_use]
    pub fn answered_waits(&self, asks: bool) -> u32 {
        let Some(home) = self.home_now() else { return 0 };
        if asks && !home.is_there() {
            self.lose(home);
        }
        home.session.answered().unwrap_or(0)
    }

    /// Sleeps for a moment, at most until another answer comes than were counted, or `wake_for_waits`.
    pub fn sleep_for_waits(&self, answered: u32) {
        self.sleep_long_for_waits(answered, LOOK_MICROS);
    }

    /// The same, for so long.
    pub fn sleep_long_for_waits(&self, answered: u32, micros: u64) {
        let slept = self.home_now().map(|home| home.session.sleep_for_rows(answered, micros));
        if slept.is_none() {
            sleep_micros(LOOK_MICROS);
        }
    }

    /// Ends a `sleep_for_waits`.
    pub fn wake_for_waits(&self) {
        if let Some(home) = self.home_now() {
            home.session.wake_for_rows();
        }
    }
}
