//! Requests: from a message to its answer, whatever happens to the daemon meanwhile.
//!
//! A request goes to the daemon that owns the shard or target if it is on this host, else to the
//! home, which passes it on. `Busy` is waited out, `Stale` takes the newer map, a lost daemon is
//! attached again; a repetition carries the identity (origin, sequence) of the first attempt, by
//! which the daemon recognises what it did already. After the instance's timeout: `EIO`.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use placement::map::{WORKER_OF_TARGET, worker_of_shard};
use rustix::event::Timespec;
use shm::session::{Interruptible, Slot};
use shm::wait;
use wire::codec::{Malformed, Reader, Writer};
use wire::errno::{Errno, Result};
use wire::{Attributes, Credentials, DaemonIndex, Header, Inode, Reply, Request, ShardIndex};

use crate::Client;
use crate::attach::Attachment;

/// First and longest pause before a lost daemon is tried again.
const BACK_OFF_MICROS: u64 = 1_000;
/// See `BACK_OFF_MICROS`.
const BACK_OFF_MICROS_MAX: u64 = 100_000;
/// Bound on waits before a daemon said its own.
const TIMEOUT_MICROS: u64 = 30_000_000;
/// Wait for a daemon that was waited for in vain before.
const GONE_MICROS: u64 = 200_000;

/// Who a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum To {
    /// The owner of a metadata shard.
    Shard(ShardIndex),
    /// A daemon's target.
    Target(DaemonIndex),
}

/// Who sent a request, for its repetitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) origin: u64,
    pub(crate) sequence: u64,
}

/// A slot with a reply that is neither `Busy` nor `Stale` nor `Refused`.
pub(crate) struct Answer<'a> {
    slot: Slot<'a>,
}

impl<'a> Answer<'a> {
    pub(crate) const fn of(slot: Slot<'a>) -> Answer<'a> {
        Answer { slot }
    }

    /// The number that the reply is, if it is one.
    pub(crate) fn number(self) -> Result<Option<u64>> {
        self.with(|reply| match reply {
            Reply::Number { value } => Ok(Some(value)),
            _ => Ok(None),
        })
    }

    /// Lets `with` see the reply.
    pub(crate) fn with<R>(mut self, with: impl FnOnce(Reply<'_>) -> Result<R>) -> Result<R> {
        self.slot.read(|bytes| match Reply::decode(&mut Reader::new(bytes)) {
            Ok(reply) => with(reply),
            Err(Malformed) => Err(Errno::EIO),
        })?
    }

    /// The attributes that the reply carries.
    pub(crate) fn attributes(self) -> Result<Attributes> {
        self.with(|reply| match reply {
            Reply::Attributes { attributes }
            | Reply::Created { attributes }
            | Reply::Moved { attributes } => Ok(attributes),
            _ => Err(Errno::EIO),
        })
    }
}

/// What became of one attempt.
pub(crate) enum Attempt<'a> {
    Answered(Slot<'a>),
    Busy(u64),
    Stale,
    Refused(Errno),
    /// The daemon is gone; the slot gave the request its identity.
    Lost(Slot<'a>),
}

/// Time that is left for a request, counted from its first trouble.
pub(crate) struct Patience {
    timeout_micros: u64,
    deadline: Option<u64>,
    pause: u64,
}

impl Patience {
    pub(crate) const fn new(timeout_micros: u64) -> Patience {
        Patience { timeout_micros, deadline: None, pause: BACK_OFF_MICROS }
    }

    /// How long to wait before the next attempt, at most `micros`.
    ///
    /// # Errors
    /// `EIO` if the time is over.
    pub(crate) fn next(&mut self, micros: u64) -> Result<u64> {
        let now = wait::now_micros();
        let deadline = *self.deadline.get_or_insert(now.saturating_add(self.timeout_micros));
        if now >= deadline {
            return Err(Errno::EIO);
        }
        Ok(micros.min(deadline.saturating_sub(now)))
    }

    /// As `next`, longer each time.
    ///
    /// # Errors
    /// As `next`.
    pub(crate) fn next_longer(&mut self) -> Result<u64> {
        let pause = self.pause;
        self.pause = pause.saturating_mul(2).min(BACK_OFF_MICROS_MAX);
        self.next(pause)
    }

    /// Sleeps before the next attempt.
    ///
    /// # Errors
    /// As `next`.
    pub(crate) fn sleep(&mut self, micros: u64) -> Result<()> {
        self.next(micros).map(sleep_micros)
    }

    /// Sleeps longer each time.
    ///
    /// # Errors
    /// As `next`.
    pub(crate) fn back_off(&mut self) -> Result<()> {
        self.next_longer().map(sleep_micros)
    }
}

/// Sleeps; a signal may end it early.
pub(crate) fn sleep_micros(micros: u64) {
    let time = Duration::from_micros(micros);
    let time = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    let _ = rustix::thread::nanosleep(&time);
}

/// Who this process is, for requests that no caller's credentials come with.
pub(crate) fn own_credentials() -> Credentials {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Credentials::of(uid.as_raw(), gid.as_raw())
}

impl Client {
    /// Bound on a wait, in microseconds.
    pub(crate) fn timeout_micros(&self) -> u64 {
        match self.timeout_micros.load(Relaxed) {
            0 => TIMEOUT_MICROS,
            known => known,
        }
    }

    /// For waiting for a daemon that is gone.
    pub(crate) fn patience_for_lost(&self) -> Patience {
        let whole = self.timeout_micros();
        let is_gone = self.is_gone.load(Relaxed);
        Patience::new(if is_gone { whole.min(GONE_MICROS) } else { whole })
    }

    /// Sleeps longer each time; once the time is over, later calls wait only a moment.
    ///
    /// # Errors
    /// `EIO` if the time is over.
    pub(crate) fn back_off(&self, patience: &mut Patience) -> Result<()> {
        patience.back_off().inspect_err(|_| self.is_gone.store(true, Relaxed))
    }

    /// Where to hand in a request, and to which worker there.
    pub(crate) fn route(&self, to: To) -> Result<(&Attachment, usize, DaemonIndex)> {
        let home = self.reach_home()?;
        let owner = match to {
            To::Shard(shard) => home.map.owner(shard),
            To::Target(daemon) => daemon,
        };
        let local = self.local(owner)?;
        let attachment = local.unwrap_or(home);
        let workers = attachment.workers();
        let worker = match to {
            To::Shard(shard) => worker_of_shard(shard, workers),
            To::Target(_) if local.is_some() => WORKER_OF_TARGET,
            To::Target(daemon) => usize::from(daemon.0).checked_rem(workers).unwrap_or(0),
        };
        Ok((attachment, worker, owner))
    }

    pub(crate) fn header(
        &self,
        to: To,
        owner: DaemonIndex,
        by: &Attachment,
        who: &Credentials,
    ) -> Header {
        Header {
            shard: match to {
                To::Shard(shard) => shard.0,
                To::Target(_) => Header::TARGET,
            },
            daemon: owner.0,
            epoch: by.map.epoch,
            origin: 0,
            sequence: 0,
            host: by.welcome.host,
            mount: self.mount(),
            who: *who,
        }
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// What the shard or target refuses with; `EIO` if it can not be reached in time.
    pub(crate) fn call(
        &self,
        to: To,
        request: &Request<'_>,
        who: &Credentials,
    ) -> Result<Answer<'_>> {
        let mut identity = None;
        self.call_as(to, request, who, &mut identity, Interruptible::No)
    }

    /// As `call`, with the identity given or noted, and perhaps interruptible by a signal.
    ///
    /// # Errors
    /// As `call`; `EINTR`.
    pub(crate) fn call_as(
        &self,
        to: To,
        request: &Request<'_>,
        who: &Credentials,
        identity: &mut Option<Identity>,
        interruptible: Interruptible<'_>,
    ) -> Result<Answer<'_>> {
        let mut patience = Patience::new(self.timeout_micros());
        let mut for_lost = self.patience_for_lost();
        // Nobody else gets the slot whose identity the repetitions carry: the daemon knows the last
        // change of each alone, and would do this one again.
        let mut first = None;
        loop {
            let (attachment, worker, owner) = match self.route(to) {
                Ok(route) => route,
                Err(_) => {
                    self.back_off(&mut for_lost)?;
                    continue;
                }
            };
            let mut header = self.header(to, owner, attachment, who);
            let slot = attachment.session.claim(self.timeout_micros())?;
            note_identity(&mut header, identity, attachment, &slot)?;
            match attempt(attachment, slot, worker, &header, request, interruptible)? {
                Attempt::Answered(slot) => return Ok(Answer { slot }),
                Attempt::Refused(errno) => return Err(errno),
                Attempt::Busy(micros) => {
                    if micros == 0 {
                        // What it waits for takes long, and goes on.
                        patience = Patience::new(self.timeout_micros());
                    }
                    patience.sleep(micros.max(1))?;
                    self.wait_for_room(to, request)?;
                }
                Attempt::Stale => {
                    self.lose(attachment);
                    self.back_off(&mut for_lost)?;
                }
                Attempt::Lost(slot) => {
                    first.get_or_insert(slot);
                    self.lose(attachment);
                    self.back_off(&mut for_lost)?;
                }
            }
        }
    }

    /// What brings bytes does not wait where there is no room for them: a question for their pieces does.
    ///
    /// # Errors
    /// As `call`.
    fn wait_for_room(&self, to: To, request: &Request<'_>) -> Result<()> {
        let Request::Write { inode, chunk_log2, offset, bytes, .. } = *request else {
            return Ok(());
        };
        self.ask_for_room(to, (inode, chunk_log2), offset, bytes.len() as u64)
    }

    /// Has the pieces of a range made.
    ///
    /// # Errors
    /// As `call`.
    pub(crate) fn ask_for_room(
        &self,
        to: To,
        (inode, chunk_log2): (Inode, u8),
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let (allocate, ahead) = (1, 0);
        let question = Request::MapPieces { inode, chunk_log2, allocate, offset, length, ahead };
        self.call(to, &question, &own_credentials()).map(drop)
    }

    /// Hands a request in on a slot, to be waited for. It carries an identity of its own.
    pub(crate) fn hand_in(
        &self,
        to: To,
        (by, worker, owner): (&Attachment, usize, DaemonIndex),
        slot: &mut Slot<'_>,
        request: &Request<'_>,
    ) -> Result<()> {
        let mut header = self.header(to, owner, by, &own_credentials());
        note_identity(&mut header, &mut None, by, slot)?;
        slot.write(|bytes| encode(bytes, &header, request))?;
        slot.submit(worker, &by.bells, by.welcome.session)
    }

    /// Hands a request in on a slot that the daemon frees.
    pub(crate) fn hand_in_detached(
        &self,
        to: To,
        (by, worker, owner): (&Attachment, usize, DaemonIndex),
        mut slot: Slot<'_>,
        request: &Request<'_>,
    ) -> Result<()> {
        let mut header = self.header(to, owner, by, &own_credentials());
        note_identity(&mut header, &mut None, by, &slot)?;
        slot.write(|bytes| encode(bytes, &header, request))?;
        slot.submit_detached(worker, &by.bells, by.welcome.session)
    }

    /// Sends a request whose answer nobody needs. Lost with its daemon, which then knows by itself:
    /// it looks through the open files of the host when it comes back.
    pub(crate) fn tell(&self, to: To, request: &Request<'_>, who: &Credentials) {
        let _ = self.try_tell(to, request, who);
    }

    fn try_tell(&self, to: To, request: &Request<'_>, who: &Credentials) -> Result<()> {
        let (attachment, worker, owner) = self.route(to)?;
        let mut header = self.header(to, owner, attachment, who);
        let mut slot = attachment.session.claim(self.timeout_micros())?;
        note_identity(&mut header, &mut None, attachment, &slot)?;
        slot.write(|bytes| encode(bytes, &header, request))?;
        slot.submit_detached(worker, &attachment.bells, attachment.welcome.session)
    }

    /// Sends a request that is answered by `Done` (or anything that is no refusal).
    ///
    /// # Errors
    /// As `call`.
    pub(crate) fn call_done(&self, to: To, request: &Request<'_>, who: &Credentials) -> Result<()> {
        self.call(to, request, who).map(drop)
    }

    /// Sends a request that is answered by `Attributes`.
    ///
    /// # Errors
    /// As `call`.
    pub(crate) fn call_attributes(
        &self,
        to: To,
        request: &Request<'_>,
        who: &Credentials,
    ) -> Result<Attributes> {
        self.call(to, request, who)?.attributes()
    }
}

/// Puts the identity of the first attempt into the header, or makes this one the first.
pub(crate) fn note_identity(
    header: &mut Header,
    identity: &mut Option<Identity>,
    attachment: &Attachment,
    slot: &Slot<'_>,
) -> Result<()> {
    let known = match *identity {
        Some(known) => known,
        None => Identity {
            origin: attachment.welcome.origin.wrapping_add(slot.index() as u64),
            sequence: slot.next_sequence()?,
        },
    };
    header.origin = known.origin;
    header.sequence = known.sequence;
    *identity = Some(known);
    Ok(())
}

pub(crate) fn encode(bytes: &mut [u8], header: &Header, request: &Request<'_>) -> Result<usize> {
    let mut writer = Writer::new(bytes);
    header.encode(&mut writer);
    request.encode(&mut writer);
    writer.finish().map_err(|_| Errno::E2BIG)
}

/// One attempt: submits, waits, looks at what kind of answer came.
fn attempt<'a>(
    attachment: &'a Attachment,
    mut slot: Slot<'a>,
    worker: usize,
    header: &Header,
    request: &Request<'_>,
    interruptible: Interruptible<'_>,
) -> Result<Attempt<'a>> {
    slot.write(|bytes| encode(bytes, header, request))?;
    slot.submit(worker, &attachment.bells, attachment.welcome.session)?;
    let timeout = attachment.welcome.timeout_micros.max(1);
    match slot.wait(timeout, interruptible, || attachment.is_there()) {
        Ok(()) => {}
        Err(Errno::EINTR) => return Err(Errno::EINTR),
        // A lock is waited for as long as it takes; the daemon is there and will answer.
        Err(Errno::ETIMEDOUT) if !matches!(interruptible, Interruptible::No) => {
            return wait_on(attachment, slot, interruptible);
        }
        Err(Errno::ETIMEDOUT) => return Err(Errno::EIO),
        Err(_) => return Ok(Attempt::Lost(slot)),
    }
    classify(slot)
}

/// Goes on waiting for a slot whose time was over, until a signal or the daemon's end.
fn wait_on<'a>(
    attachment: &'a Attachment,
    mut slot: Slot<'a>,
    interruptible: Interruptible<'_>,
) -> Result<Attempt<'a>> {
    loop {
        match slot.wait(u64::MAX, interruptible, || attachment.is_there()) {
            Ok(()) => return classify(slot),
            Err(Errno::EINTR) => return Err(Errno::EINTR),
            Err(Errno::ETIMEDOUT) => {}
            Err(_) => return Ok(Attempt::Lost(slot)),
        }
    }
}

/// What kind of answer a slot holds.
pub(crate) fn classify(mut slot: Slot<'_>) -> Result<Attempt<'_>> {
    let verdict = slot.read(|bytes| match Reply::decode(&mut Reader::new(bytes)) {
        Ok(Reply::Refused { errno }) => Some(Attempt::Refused(errno)),
        Ok(Reply::Stale { .. }) => Some(Attempt::Stale),
        Ok(Reply::Busy { retry_micros }) => Some(Attempt::Busy(u64::from(retry_micros))),
        Ok(_) => None,
        Err(Malformed) => Some(Attempt::Refused(Errno::EIO)),
    })?;
    Ok(verdict.unwrap_or(Attempt::Answered(slot)))
}
