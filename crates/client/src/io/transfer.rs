//! One transfer of bytes to or from a target of another host: a range within one extent, through one
//! bounce buffer or in a message. Many at a time: `remote`.

use shm::bounce::{Buffer, PushIdentity};
use shm::session::{Interruptible, Slot};
use shm::wait::now_nanos;
use wire::errno::{Errno, Result};
use wire::{DaemonIndex, Inode, Reply, Request};

use crate::file::layout::File;
use crate::transport::Transport;
use crate::transport::attachment::Attachment;
use crate::transport::job_buffers::HeldBuffer;
use crate::transport::kept_slots::{KeptSlots, changes_copies};
use crate::transport::request::{Attempt, Destination, Identity, classify, own_credentials};
use crate::transport::retry::RetryBudget;

/// Most bytes in one message to a target: whole pages, so that no page is split.
pub(crate) const MESSAGE_BYTES: usize = 12 * 1024;

/// A wait with this many transfers queued after it sleeps at once: waking late then delays nothing.
const SLEEP_AT_QUEUED: usize = 2;

/// A range of a file on one target, within one extent and one bounce buffer.
#[derive(Clone, Copy)]
pub(crate) struct TransferRange {
    pub(crate) target: DaemonIndex,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Offset in the caller's bytes.
    pub(crate) place: usize,
    pub(crate) length: usize,
}

/// A transfer in flight.
pub(crate) struct InFlight<'a> {
    by: &'a Attachment,
    slot: Slot<'a>,
    buffer: Buffer<'a>,
    pub(crate) part: TransferRange,
    repeat: TransferRepeat<'a>,
    _held: Option<HeldBuffer<'a>>,
}

/// How a transfer ended.
pub(crate) enum TransferEnd<'a> {
    /// The buffer holds this many bytes; 0: a hole.
    Done(Buffer<'a>, u64),
    Busy(u64, TransferRepeat<'a>),
    Lost(&'a Attachment, TransferRepeat<'a>),
}

/// The state that the next attempt of a transfer takes over. A write of a file with copies has one
/// identity, so that it is made once, and keeps the slot that gave it that; any other one is new each
/// time.
pub(crate) struct TransferRepeat<'a> {
    slots: KeptSlots<'a>,
    identity: Option<Identity>,
    /// No slot gave the identity, and none has to be kept for it.
    is_of_push: bool,
}

impl<'a> TransferRepeat<'a> {
    /// For the first attempt.
    const fn new() -> TransferRepeat<'a> {
        TransferRepeat { slots: KeptSlots::new(), identity: None, is_of_push: false }
    }

    /// For a write that was pushed to a daemon that is gone: it goes on with the identity with which that
    /// may have sent it.
    pub(crate) fn of_push(identity: Option<PushIdentity>) -> TransferRepeat<'a> {
        let of = |PushIdentity { client, sequence }| Identity { client_id: client, sequence };
        let (identity, is_of_push) = (identity.map(of), identity.is_some());
        TransferRepeat { identity, is_of_push, ..TransferRepeat::new() }
    }

    /// The slot was answered, and the transfer is to be repeated.
    fn take_answered(&mut self, slot: Slot<'a>, by: &'a Attachment) {
        if self.is_of_push {
            return;
        }
        if self.identity.is_some() && by.session.has_spare() {
            self.slots.keep(slot, by);
        } else {
            self.identity = None;
        }
    }

    /// The daemon of the slot is gone.
    fn take_lost(&mut self, slot: Slot<'a>) {
        if self.identity.is_some() && !self.is_of_push {
            self.slots.keep_lost(slot);
        }
    }

    /// Submits an attempt.
    fn submit(
        &mut self,
        transport: &Transport,
        to: Destination,
        by: (&Attachment, usize, DaemonIndex),
        (slot, request): (&mut Slot<'_>, &Request<'_>),
    ) -> Result<()> {
        transport.submit(to, by, (slot, &mut self.identity), request)?;
        if !changes_copies(request, by.0) {
            self.identity = None;
        }
        Ok(())
    }
}

/// The caller's bytes.
pub(crate) enum Bytes<'a> {
    /// Destination of a read.
    Into(&'a mut [u8]),
    /// Source of a write.
    From(&'a [u8]),
    /// Source of a write that is already in a bounce buffer, of a session whose daemon is gone.
    Buffered(&'a Buffer<'a>, usize),
}

impl Bytes<'_> {
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Bytes::Into(bytes) => bytes.len(),
            Bytes::From(bytes) => bytes.len(),
            Bytes::Buffered(_, length) => *length,
        }
    }

    pub(crate) fn fill(&self, part: &TransferRange, buffer: &mut Buffer<'_>) -> Result<()> {
        match self {
            Bytes::Into(_) => Ok(()),
            Bytes::Buffered(staged, length) => buffer.fill_from(staged, *length),
            Bytes::From(bytes) => buffer.fill(bytes.get(part.range()).ok_or(Errno::EIO)?),
        }
    }

    /// Copies the bytes of a range from a bounce buffer to the caller.
    pub(crate) fn take(
        &mut self,
        part: &TransferRange,
        buffer: &Buffer<'_>,
        count: u64,
    ) -> Result<()> {
        let Bytes::Into(bytes) = self else { return Ok(()) };
        let to = bytes.get_mut(part.range()).ok_or(Errno::EIO)?;
        if count == 0 {
            to.fill(0);
            return Ok(());
        }
        if count == to.len() as u64 { buffer.copy_out(to) } else { Err(Errno::EIO) }
    }
}

impl TransferRange {
    pub(crate) const fn range(&self) -> core::ops::Range<usize> {
        self.place..self.place.saturating_add(self.length)
    }

    pub(crate) fn request(&self, file: &File, bytes: &Bytes<'_>, buffer: u8) -> Request<'static> {
        let (inode, stripe_log2) = (file.inode, file.stripe_word());
        let (offset, length) = (self.offset, self.length as u32);
        match bytes {
            Bytes::Into(_) => Request::Fetch { inode, stripe_log2, offset, length, buffer },
            _ => {
                let truncate_epoch = file.good_for;
                Request::Store { inode, stripe_log2, offset, length, buffer, truncate_epoch }
            }
        }
    }
}

impl<'a> InFlight<'a> {
    /// Waits for the reply. `queued`: number of transfers queued after this one.
    pub(crate) fn await_end(
        self,
        transport: &Transport,
        inode: Inode,
        queued: usize,
    ) -> Result<TransferEnd<'a>> {
        let InFlight { by, mut slot, mut buffer, part: _, mut repeat, _held } = self;
        let timeout = by.welcome.timeout_micros.max(1);
        let since = now_nanos();
        if queued >= SLEEP_AT_QUEUED {
            slot.expect_long();
        }
        loop {
            match slot.wait(timeout, Interruptible::No, || by.is_alive()) {
                Ok(()) => {
                    transport.note_held(&slot, || now_nanos().saturating_sub(since));
                    break;
                }
                Err(Errno::ETIMEDOUT) if transport.is_throttled() => {}
                Err(Errno::ETIMEDOUT) => return Err(Errno::EIO),
                Err(_) => {
                    repeat.take_lost(slot);
                    return Ok(TransferEnd::Lost(by, repeat));
                }
            }
        }
        buffer.take_back()?;
        match classify(slot)? {
            Attempt::Answered(mut slot) => slot.read(|bytes| {
                let mut reader = wire::codec::Reader::new(bytes);
                match Reply::decode(&mut reader) {
                    Ok(Reply::Number { value }) => Ok(TransferEnd::Done(buffer, value)),
                    Ok(Reply::FetchedNumber { fetched_log2, value }) => {
                        transport.note_fetched(inode, fetched_log2, since);
                        Ok(TransferEnd::Done(buffer, value))
                    }
                    _ => Err(Errno::EIO),
                }
            })?,
            Attempt::Refused(errno) => Err(errno),
            Attempt::Busy(micros, slot) => {
                repeat.take_answered(slot, by);
                Ok(TransferEnd::Busy(micros, repeat))
            }
            Attempt::Stale(slot) | Attempt::Lost(slot) => {
                repeat.take_lost(slot);
                Ok(TransferEnd::Lost(by, repeat))
            }
        }
    }
}

/// Submits a transfer if a buffer and a slot are free at once, and more buffers are free than the `own`
/// that the call has in flight, and, in a mount, than its job has: so the calls of a session, and the
/// jobs of a mount, have about as many each, and a new call finds one.
pub(crate) fn try_start<'a>(
    transport: &'a Transport,
    file: &File,
    part: TransferRange,
    bytes: &Bytes<'_>,
    own: usize,
) -> Option<InFlight<'a>> {
    let to = Destination::Target(part.target);
    let (by, worker, owner) = transport.route(to).ok()?;
    let held = transport.job_buffers.hold(&transport.activity);
    let of_job = held.as_ref().map_or(0, HeldBuffer::others);
    if own > 0 && by.session.bounce_buffers().free_count() <= own.max(of_job) {
        return None;
    }
    let mut buffer = by.session.bounce_buffers().try_take().ok()?;
    let mut slot = by.session.try_claim().ok()?;
    bytes.fill(&part, &mut buffer).ok()?;
    let request = part.request(file, bytes, buffer.index());
    buffer.lend().ok()?;
    slot.set_pool(file.layout.pool);
    let mut repeat = TransferRepeat::new();
    repeat.submit(transport, to, (by, worker, owner), (&mut slot, &request)).ok()?;
    Some(InFlight { by, slot, buffer, part, repeat, _held: held })
}

/// A bounce buffer; waits on while a daemon holds back requests. `None`: the daemon is gone. The caller
/// holds no other buffer of the session: threads that wait for a second one would wait for each other.
///
/// # Errors
/// `EIO` if no buffer became free in time.
pub(crate) fn take_buffer<'a>(
    transport: &Transport,
    by: &'a Attachment,
) -> Result<Option<Buffer<'a>>> {
    loop {
        match by.session.bounce_buffers().take(transport.timeout_micros(), || by.is_alive()) {
            Ok(buffer) => return Ok(Some(buffer)),
            Err(Errno::ETIMEDOUT) if transport.is_throttled() => {}
            Err(_) if !by.is_alive() => return Ok(None),
            Err(_) => return Err(Errno::EIO),
        }
    }
}

/// Moves one range, with as many retries as it takes.
pub(crate) fn move_whole(
    transport: &Transport,
    file: &File,
    part: TransferRange,
    bytes: &mut Bytes<'_>,
) -> Result<()> {
    move_again(transport, file, part, bytes, TransferRepeat::new())
}

/// As `move_whole`, for a range that was tried before.
pub(crate) fn move_again<'a>(
    transport: &'a Transport,
    file: &File,
    part: TransferRange,
    bytes: &mut Bytes<'_>,
    mut repeat: TransferRepeat<'a>,
) -> Result<()> {
    let mut budget = RetryBudget::new(transport.timeout_micros());
    let mut reconnect = transport.reconnect_budget();
    let to = Destination::Target(part.target);
    loop {
        let Some((by, worker, owner)) = transport.route_or_wait(to, &mut reconnect)? else {
            continue;
        };
        let Some(mut buffer) = take_buffer(transport, by)? else {
            transport.drop_attachment(by);
            transport.back_off(&mut reconnect)?;
            continue;
        };
        let mut slot = match repeat.slots.take(by) {
            Some(slot) => slot,
            None => transport.claim_slot(by).map_err(|_| Errno::EIO)?,
        };
        bytes.fill(&part, &mut buffer)?;
        let request = part.request(file, bytes, buffer.index());
        buffer.lend()?;
        slot.set_pool(file.layout.pool);
        repeat.submit(transport, to, (by, worker, owner), (&mut slot, &request))?;
        let _held = transport.job_buffers.hold(&transport.activity);
        let in_flight = InFlight { by, slot, buffer, part, repeat, _held };
        match in_flight.await_end(transport, file.inode, 0)? {
            TransferEnd::Done(buffer, count) => return bytes.take(&part, &buffer, count),
            TransferEnd::Busy(micros, again) => {
                repeat = again;
                budget.sleep(micros.max(1))?;
                wait_for_extent(transport, file, &part, bytes)?;
            }
            TransferEnd::Lost(by, again) => {
                repeat = again;
                transport.drop_attachment(by);
                transport.back_off(&mut reconnect)?;
            }
        }
    }
}

/// Waits for space for a write. A write that carries bytes never waits at the target, because
/// it would block what is queued after it on the same stream; a request to map the extent does.
///
/// # Errors
/// `ENOSPC`, `EIO`.
pub(crate) fn wait_for_extent(
    transport: &Transport,
    file: &File,
    part: &TransferRange,
    bytes: &Bytes<'_>,
) -> Result<()> {
    if matches!(bytes, Bytes::Into(_)) || transport.has_copies_of(file.inode) {
        return Ok(());
    }
    let (offset, length) = (part.offset, part.length as u64);
    transport.request_space(
        Destination::Target(part.target),
        (file.inode, file.stripe_log2()),
        offset,
        length,
    )
}

/// Moves a few bytes in a message.
pub(crate) fn move_inline(
    transport: &Transport,
    file: &File,
    part: &TransferRange,
    bytes: &mut Bytes<'_>,
) -> Result<()> {
    let (to, caller) = (Destination::Target(part.target), own_credentials());
    let (inode, stripe_log2, offset) = (file.inode, file.stripe_word(), part.offset);
    match bytes {
        Bytes::From(bytes) => {
            let bytes = bytes.get(part.range()).ok_or(Errno::EIO)?;
            let truncate_epoch = file.good_for;
            let write = Request::Write { inode, stripe_log2, offset, truncate_epoch, bytes };
            transport.call_done(to, &write, &caller)
        }
        Bytes::Buffered(..) => Err(Errno::EIO),
        Bytes::Into(bytes) => {
            let length = part.length as u32;
            let request = Request::Read { inode, stripe_log2, offset, length };
            let to_bytes = bytes.get_mut(part.range()).ok_or(Errno::EIO)?;
            let since = now_nanos();
            transport.call(to, &request, &caller)?.with(|reply| {
                let bytes = transport.bytes_of(inode, &reply, since)?;
                let bytes = bytes.get(..to_bytes.len().min(bytes.len())).unwrap_or(&[]);
                let (filled, zeros) =
                    to_bytes.split_at_mut_checked(bytes.len()).ok_or(Errno::EIO)?;
                filled.copy_from_slice(bytes);
                zeros.fill(0);
                Ok(())
            })
        }
    }
}
