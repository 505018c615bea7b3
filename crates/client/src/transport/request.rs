//! Requests: from a message to its reply, whatever happens to the daemon meanwhile.
//!
//! A request goes to the daemon that owns the shard or target if that is on this host, else to the
//! home, which forwards it. `Busy` is waited out, `Stale` fetches the newer map, a lost daemon is
//! attached again. A retry carries the identity (client id, sequence) of the first attempt, by
//! which the daemon recognises what it has already done. After the instance's timeout the result is
//! `EIO`.

use core::sync::atomic::Ordering::Relaxed;
use placement::map::{WORKER_OF_TARGET, worker_of_shard};
use shm::activity::{SlowSource, WaitCause};
use shm::session::{Interruptible, Slot};
use shm::wait::now_nanos;
use wire::codec::{Malformed, Reader, Writer};
use wire::errno::{Errno, Result};
use wire::{
    Attributes, Credentials, DaemonIndex, Header, Inode, JobWord, Reply, Request, ShardIndex,
};

use crate::lookup::result::shard_of_entry;
use crate::transport::Transport;
use crate::transport::attach::final_errno;
use crate::transport::attachment::Attachment;
use crate::transport::kept_slots::{KeptSlots, keeps_slot};
use crate::transport::retry::RetryBudget;

/// A value of `Transport::urgency`: nobody waits for a request more than for those of others.
pub(crate) const USUAL: u8 = 1;
/// A value of `Transport::urgency`: writers of the instance wait for the request.
pub(crate) const URGENT: u8 = 2;

/// Receiver of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    /// The owner of a metadata shard.
    Shard(ShardIndex),
    /// A daemon's target.
    Target(DaemonIndex),
}

/// Identity of a request, the same in all its retries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) client_id: u64,
    pub(crate) sequence: u64,
}

/// A slot with a reply other than `Busy`, `Stale` and `Refused`.
pub(crate) struct Answer<'a> {
    slot: Slot<'a>,
}

impl<'a> Answer<'a> {
    pub(crate) const fn of(slot: Slot<'a>) -> Answer<'a> {
        Answer { slot }
    }

    /// The number in the reply, if it carries one.
    pub(crate) fn number(self) -> Result<Option<u64>> {
        self.with(|reply| match reply {
            Reply::Number { value } => Ok(Some(value)),
            _ => Ok(None),
        })
    }

    /// Decodes the reply and passes it to `with`.
    pub(crate) fn with<R>(mut self, with: impl FnOnce(Reply<'_>) -> Result<R>) -> Result<R> {
        self.slot.read(|bytes| match Reply::decode(&mut Reader::new(bytes)) {
            Ok(reply) => with(reply),
            Err(Malformed) => Err(Errno::EIO),
        })?
    }

    /// The attributes in the reply.
    pub(crate) fn attributes(self) -> Result<Attributes> {
        self.with(|reply| match reply {
            Reply::Attributes { attributes }
            | Reply::Created { attributes }
            | Reply::Moved { attributes } => Ok(attributes),
            _ => Err(Errno::EIO),
        })
    }
}

/// Result of one attempt. If there will be another one, with the slot, which may have given the
/// request its identity (`kept_slots`).
pub(crate) enum Attempt<'a> {
    Answered(Slot<'a>),
    /// To be repeated after this many microseconds.
    Busy(u64, Slot<'a>),
    Stale(Slot<'a>),
    Refused(Errno),
    /// The daemon is gone.
    Lost(Slot<'a>),
}

/// Kind of a reply.
enum ReplyKind {
    Final,
    Busy(u64),
    Stale,
    Refused(Errno),
}

/// Credentials of this process, for requests that are made on behalf of no particular caller.
pub(crate) fn own_credentials() -> Credentials {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Credentials::of(uid.as_raw(), gid.as_raw())
}

impl Transport {
    /// The attachment and worker to submit a request to, and the daemon that owns its destination.
    pub(crate) fn route(&self, to: Destination) -> Result<(&Attachment, usize, DaemonIndex)> {
        let home = self.attach_to_home()?;
        let owner = match to {
            Destination::Shard(shard) => home.map.owner(shard),
            Destination::Target(daemon) => daemon,
        };
        let local = match to {
            // Any daemon knows which one has the bytes now; that of the target may be gone.
            Destination::Target(_) if self.has_copies() => None,
            _ => self.attach_local(owner)?,
        };
        let attachment = local.unwrap_or(home);
        let workers = attachment.workers();
        let worker = match to {
            Destination::Shard(shard) => worker_of_shard(shard, workers),
            Destination::Target(_) if local.is_some() => WORKER_OF_TARGET,
            Destination::Target(daemon) => usize::from(daemon.0).checked_rem(workers).unwrap_or(0),
        };
        Ok((attachment, worker, owner))
    }

    /// As `route`. `None`: it waited for a daemon that is gone.
    ///
    /// # Errors
    /// `EIO` if the time is over; at once, those of `final_errno`.
    pub(crate) fn route_or_wait(
        &self,
        to: Destination,
        reconnect: &mut RetryBudget,
    ) -> Result<Option<(&Attachment, usize, DaemonIndex)>> {
        match self.route(to) {
            Ok(route) => Ok(Some(route)),
            Err(errno) => match final_errno(errno) {
                Some(errno) => Err(errno),
                None => self.back_off(reconnect).map(|()| None),
            },
        }
    }

    pub(crate) fn header(
        &self,
        to: Destination,
        owner: DaemonIndex,
        by: &Attachment,
        caller: &Credentials,
    ) -> Header {
        Header {
            shard: match to {
                Destination::Shard(shard) => shard.0,
                Destination::Target(_) => Header::TARGET,
            },
            daemon: owner.0,
            epoch: by.map.epoch(),
            client_id: 0,
            sequence: 0,
            host: by.welcome.host,
            mount: self.mount(),
            job: JobWord::NONE,
            caller: *caller,
        }
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// The errno with which the shard or target refuses; `EIO` if it cannot be reached in time.
    pub(crate) fn call(
        &self,
        to: Destination,
        request: &Request<'_>,
        caller: &Credentials,
    ) -> Result<Answer<'_>> {
        let mut identity = None;
        self.call_as(to, request, caller, &mut identity, Interruptible::No)
    }

    /// As `call`, with the identity given or recorded in `identity`, and optionally interruptible
    /// by a signal.
    ///
    /// # Errors
    /// As `call`; `EINTR`.
    pub(crate) fn call_as(
        &self,
        to: Destination,
        request: &Request<'_>,
        caller: &Credentials,
        identity: &mut Option<Identity>,
        interruptible: Interruptible<'_>,
    ) -> Result<Answer<'_>> {
        let (mut to, mut budget) = (to, RetryBudget::new(self.timeout_micros()));
        let mut reconnect = self.reconnect_budget();
        let mut kept = KeptSlots::new();
        loop {
            let Some((attachment, worker, owner)) = self.route_or_wait(to, &mut reconnect)? else {
                continue;
            };
            let mut header = self.header(to, owner, attachment, caller);
            let slot = match kept.take(attachment) {
                Some(slot) => slot,
                None => self.claim_slot(attachment)?,
            };
            note_identity(&mut header, identity, attachment, &slot)?;
            match self.attempt(attachment, slot, worker, &header, request, interruptible)? {
                Attempt::Answered(slot) => return Ok(Answer { slot }),
                Attempt::Refused(Errno::EREMCHG) => {
                    to = self.other_destination(request)?;
                    budget.sleep(1)?;
                }
                Attempt::Refused(errno) => return Err(errno),
                Attempt::Busy(micros, slot) => {
                    // Else freed before the pause.
                    match keeps_slot(to, request, attachment) {
                        true => kept.keep(slot, attachment),
                        false => {
                            drop(slot);
                            if self.has_copies() && matches!(to, Destination::Target(_)) {
                                // The next request in that slot says that this one is over.
                                *identity = None;
                            }
                        }
                    }
                    if micros == 0 {
                        // The daemon makes progress on something slow: the budget starts anew.
                        budget = RetryBudget::new(self.timeout_micros());
                    }
                    budget.sleep(micros.max(1))?;
                    self.wait_for_space(to, request)?;
                }
                Attempt::Stale(slot) | Attempt::Lost(slot) => {
                    kept.keep_lost(slot);
                    self.drop_attachment(attachment);
                    self.back_off(&mut reconnect)?;
                }
            }
        }
    }

    /// Where the entry of a request is that was not where its directory's layout said: the directory has
    /// been spread further since.
    ///
    /// # Errors
    /// As `call`; ESTALE: the directory is gone.
    #[cold]
    fn other_destination(&self, request: &Request<'_>) -> Result<Destination> {
        let (directory, name) = request.sent_to_entry().ok_or(Errno::EREMCHG)?;
        let query = Request::GetAttributes { inode: directory };
        let owner = Destination::Shard(directory.shard());
        let now = self.call_attributes(owner, &query, &own_credentials())?;
        Ok(Destination::Shard(shard_of_entry(&now, name)))
    }

    /// Writes a request into a slot.
    pub(crate) fn fill(
        &self,
        slot: &mut Slot<'_>,
        header: &Header,
        request: &Request<'_>,
    ) -> Result<()> {
        // The slots of other processes have the value that they were made with.
        if self.mount() != 0 {
            slot.set_origin(self.activity.block());
        }
        match self.urgency.load(Relaxed) {
            0 => {}
            urgency => slot.set_urgent(urgency == URGENT),
        }
        slot.write(|bytes| encode(bytes, header, request))
    }

    /// One attempt: submits, waits, and classifies the reply.
    fn attempt<'a>(
        &self,
        attachment: &'a Attachment,
        mut slot: Slot<'a>,
        worker: usize,
        header: &Header,
        request: &Request<'_>,
        interruptible: Interruptible<'_>,
    ) -> Result<Attempt<'a>> {
        self.fill(&mut slot, header, request)?;
        slot.submit(worker, &attachment.bells, attachment.welcome.session)?;
        let timeout = attachment.welcome.timeout_micros.max(1);
        loop {
            match slot.wait(timeout, interruptible, || attachment.is_alive()) {
                Ok(()) => {
                    self.note_held(&slot, || u64::MAX);
                    return classify(slot);
                }
                Err(Errno::EINTR) => return Err(Errno::EINTR),
                // A lock may take arbitrarily long; the daemon is alive and will answer.
                Err(Errno::ETIMEDOUT) if !matches!(interruptible, Interruptible::No) => {
                    return wait_on(attachment, slot, interruptible);
                }
                Err(Errno::ETIMEDOUT) if self.is_throttled() => {}
                Err(Errno::ETIMEDOUT) => return Err(Errno::EIO),
                Err(_) => return Ok(Attempt::Lost(slot)),
            }
        }
    }

    /// Waits for space for a write. A write that carries bytes never waits at the target; a request
    /// to map its extents does.
    ///
    /// # Errors
    /// As `call`.
    fn wait_for_space(&self, to: Destination, request: &Request<'_>) -> Result<()> {
        let Request::Write { inode, stripe_log2, offset, bytes, .. } = *request else {
            return Ok(());
        };
        if self.has_copies_of(inode) {
            return Ok(());
        }
        self.request_space(to, (inode, stripe_log2), offset, bytes.len() as u64)
    }

    /// Has the extents of a range allocated.
    ///
    /// # Errors
    /// As `call`.
    pub(crate) fn request_space(
        &self,
        to: Destination,
        (inode, stripe_log2): (Inode, u8),
        offset: u64,
        length: u64,
    ) -> Result<()> {
        let (allocate, preallocate) = (1, 0);
        let question =
            Request::MapExtents { inode, stripe_log2, allocate, offset, length, preallocate };
        self.call(to, &question, &own_credentials())?.with(|reply| {
            if let Reply::ExtentsAfterWait { waited_micros, .. } = reply {
                self.note_space_wait(waited_micros);
            }
            Ok(())
        })
    }

    /// Bytes that were read, by a request since this time, came from an extent that was fetched from the
    /// backing store for that.
    #[cold]
    pub(crate) fn note_fetched(&self, inode: Inode, length_log2: u8, since_nanos: u64) {
        let waited = now_nanos().saturating_sub(since_nanos);
        self.activity.count_wait(WaitCause::Backing, waited);
        let bytes = 1u64.checked_shl(length_log2.into()).unwrap_or(0);
        self.activity.count_source(inode, SlowSource::Backing, bytes);
    }

    /// The bytes of a file in a reply to a request since this time.
    pub(crate) fn bytes_of<'a>(
        &self,
        inode: Inode,
        reply: &Reply<'a>,
        since_nanos: u64,
    ) -> Result<&'a [u8]> {
        match *reply {
            Reply::Bytes { bytes } => Ok(bytes),
            Reply::FetchedBytes { fetched_log2, bytes } => {
                self.note_fetched(inode, fetched_log2, since_nanos);
                Ok(bytes)
            }
            _ => Err(Errno::EIO),
        }
    }

    /// A request of the calling thread waited for space.
    #[cold]
    pub(crate) fn note_space_wait(&self, micros: u32) {
        self.activity.count_wait(WaitCause::Space, u64::from(micros).saturating_mul(1000));
    }

    /// Counts the time for which a request was held back, if it was; no more than its sender waited for
    /// it: that may have waited for others before.
    #[inline]
    pub(crate) fn note_held(&self, slot: &Slot<'_>, waited_nanos: impl FnOnce() -> u64) {
        let micros = slot.take_held_micros();
        if micros > 0 {
            let held = u64::from(micros).saturating_mul(1000);
            self.activity.count_wait(WaitCause::Share, held.min(waited_nanos()));
        }
    }

    /// Submits a request on a slot whose reply the caller waits for, with the identity of its first
    /// attempt or with a new one, which is noted.
    pub(crate) fn submit(
        &self,
        to: Destination,
        (by, worker, owner): (&Attachment, usize, DaemonIndex),
        (slot, identity): (&mut Slot<'_>, &mut Option<Identity>),
        request: &Request<'_>,
    ) -> Result<()> {
        let mut header = self.header(to, owner, by, &own_credentials());
        note_identity(&mut header, identity, by, slot)?;
        self.fill(slot, &header, request)?;
        slot.submit(worker, &by.bells, by.welcome.session)
    }

    /// Submits a request on a slot that the daemon frees.
    pub(crate) fn submit_detached(
        &self,
        to: Destination,
        (by, worker, owner): (&Attachment, usize, DaemonIndex),
        mut slot: Slot<'_>,
        request: &Request<'_>,
    ) -> Result<()> {
        let mut header = self.header(to, owner, by, &own_credentials());
        note_identity(&mut header, &mut None, by, &slot)?;
        self.fill(&mut slot, &header, request)?;
        slot.submit_detached(worker, &by.bells, by.welcome.session)
    }

    /// Sends a request whose reply nobody needs. If the daemon dies the request is lost, which is
    /// harmless: a restarted daemon inspects the open files of the host.
    pub(crate) fn notify(&self, to: Destination, request: &Request<'_>, caller: &Credentials) {
        let _ = self.try_notify(to, request, caller);
    }

    fn try_notify(
        &self,
        to: Destination,
        request: &Request<'_>,
        caller: &Credentials,
    ) -> Result<()> {
        let (attachment, worker, owner) = self.route(to)?;
        let mut header = self.header(to, owner, attachment, caller);
        let mut slot = self.claim_slot(attachment)?;
        note_identity(&mut header, &mut None, attachment, &slot)?;
        self.fill(&mut slot, &header, request)?;
        slot.submit_detached(worker, &attachment.bells, attachment.welcome.session)
    }

    /// Sends a request that is answered by `Done` (or by anything that is no refusal).
    ///
    /// # Errors
    /// As `call`.
    pub(crate) fn call_done(
        &self,
        to: Destination,
        request: &Request<'_>,
        caller: &Credentials,
    ) -> Result<()> {
        self.call(to, request, caller).map(drop)
    }

    /// Sends a request that is answered by `Attributes`.
    ///
    /// # Errors
    /// As `call`.
    pub(crate) fn call_attributes(
        &self,
        to: Destination,
        request: &Request<'_>,
        caller: &Credentials,
    ) -> Result<Attributes> {
        self.call(to, request, caller)?.attributes()
    }
}

/// Puts the identity of the first attempt into the header, or records this attempt as the first.
pub(crate) fn note_identity(
    header: &mut Header,
    identity: &mut Option<Identity>,
    attachment: &Attachment,
    slot: &Slot<'_>,
) -> Result<()> {
    let known = match *identity {
        Some(known) => known,
        None => Identity {
            client_id: attachment.welcome.client_id.wrapping_add(slot.index() as u64),
            sequence: slot.next_sequence()?,
        },
    };
    header.client_id = known.client_id;
    header.sequence = known.sequence;
    *identity = Some(known);
    Ok(())
}

fn encode(bytes: &mut [u8], header: &Header, request: &Request<'_>) -> Result<usize> {
    let mut writer = Writer::new(bytes);
    header.encode(&mut writer);
    request.encode(&mut writer);
    writer.finish().map_err(|_| Errno::E2BIG)
}

/// Keeps waiting on a slot whose time is over, until a reply, a signal or the daemon's end.
fn wait_on<'a>(
    attachment: &'a Attachment,
    mut slot: Slot<'a>,
    interruptible: Interruptible<'_>,
) -> Result<Attempt<'a>> {
    loop {
        match slot.wait(u64::MAX, interruptible, || attachment.is_alive()) {
            Ok(()) => return classify(slot),
            Err(Errno::EINTR) => return Err(Errno::EINTR),
            Err(Errno::ETIMEDOUT) => {}
            Err(_) => return Ok(Attempt::Lost(slot)),
        }
    }
}

/// Kind of the reply in a slot.
pub(crate) fn classify(mut slot: Slot<'_>) -> Result<Attempt<'_>> {
    let kind = slot.read(|bytes| match Reply::decode(&mut Reader::new(bytes)) {
        Ok(Reply::Refused { errno }) => ReplyKind::Refused(errno),
        Ok(Reply::Stale { .. }) => ReplyKind::Stale,
        Ok(Reply::Busy { retry_micros }) => ReplyKind::Busy(u64::from(retry_micros)),
        Ok(_) => ReplyKind::Final,
        Err(Malformed) => ReplyKind::Refused(Errno::EIO),
    })?;
    Ok(match kind {
        ReplyKind::Final => Attempt::Answered(slot),
        ReplyKind::Busy(micros) => Attempt::Busy(micros, slot),
        ReplyKind::Stale => Attempt::Stale(slot),
        ReplyKind::Refused(errno) => Attempt::Refused(errno),
    })
}
