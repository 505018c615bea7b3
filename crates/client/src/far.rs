//! Bytes that lie on other hosts, moved while the caller waits. Those that he does not wait for:
//! `behind`.
//!
//! A few bytes go in a message. More go through buffers of the session's stage, which the daemon
//! fills from the target or empties to it: one request for each buffer. A call keeps several under
//! way, so that all targets of a large read or write work at the same time, and settles them in
//! their order. What fails on the way is tried again by itself until the instance's timeout.

use placement::piece::Span;
use shm::session::{Interruptible, Slot};
use shm::stage::Buffer;
use wire::errno::{Errno, Result};
use wire::limits::STAGE_BUFFER_BYTES;
use wire::{DaemonIndex, Reply, Request};

use crate::Client;
use crate::attach::Attachment;
use crate::layout::File;
use crate::opened::Open;
use crate::request::{Attempt, Patience, To, classify, own_credentials};

/// Most bytes of one message to a target: whole pages, so that no granule is cut.
pub(crate) const MESSAGE_BYTES: usize = 12 * 1024;
/// Transfers that one call keeps under way: half of the stage, so that two calls do not starve each
/// other.
const FLIGHTS_MAX: usize = 16;
/// Who waits for a transfer with so many behind it sleeps at once: being woken late holds nothing up.
const ENOUGH_BEHIND: usize = 2;

/// A part of a file on one target, within one piece and one stage buffer.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) target: DaemonIndex,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Where its bytes are in the caller's.
    pub(crate) place: usize,
    pub(crate) length: usize,
}

/// A transfer under way.
struct Flight<'a> {
    by: &'a Attachment,
    slot: Slot<'a>,
    buffer: Buffer<'a>,
    part: Part,
}

/// How a transfer ended.
enum Landed<'a> {
    /// The buffer holds so many bytes; 0: a hole.
    Done(Buffer<'a>, u64),
    Busy(u64),
    Lost(&'a Attachment),
}

/// The caller's bytes.
pub(crate) enum Bytes<'a> {
    /// To be read into.
    Into(&'a mut [u8]),
    /// To be written.
    From(&'a [u8]),
    /// To be written; they are in a buffer already, of a stage whose daemon is gone.
    Staged(&'a Buffer<'a>, usize),
}

impl Bytes<'_> {
    /// How many they are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Bytes::Into(bytes) => bytes.len(),
            Bytes::From(bytes) => bytes.len(),
            Bytes::Staged(_, length) => *length,
        }
    }

    pub(crate) fn fill(&self, part: &Part, buffer: &mut Buffer<'_>) -> Result<()> {
        match self {
            Bytes::Into(_) => Ok(()),
            Bytes::Staged(staged, length) => buffer.fill_from(staged, *length),
            Bytes::From(bytes) => buffer.fill(bytes.get(part.range()).ok_or(Errno::EIO)?),
        }
    }

    /// Takes what a buffer holds of a part.
    fn take(&mut self, part: &Part, buffer: &Buffer<'_>, count: u64) -> Result<()> {
        let Bytes::Into(bytes) = self else { return Ok(()) };
        let to = bytes.get_mut(part.range()).ok_or(Errno::EIO)?;
        if count == 0 {
            to.fill(0);
            return Ok(());
        }
        if count == to.len() as u64 { buffer.copy_out(to) } else { Err(Errno::EIO) }
    }
}

impl Part {
    pub(crate) const fn range(&self) -> core::ops::Range<usize> {
        self.place..self.place.saturating_add(self.length)
    }

    fn request(&self, file: &File, bytes: &Bytes<'_>, buffer: u8) -> Request<'static> {
        let (inode, chunk_log2) = (file.inode, file.chunk_word());
        let (offset, length) = (self.offset, self.length as u32);
        match bytes {
            Bytes::Into(_) => Request::Fetch { inode, chunk_log2, offset, length, buffer },
            _ => {
                let cuts = file.good_for;
                Request::Store { inode, chunk_log2, offset, length, buffer, cuts }
            }
        }
    }
}

/// The far parts of one call.
pub(crate) struct Far<'a> {
    client: &'a Client,
    file: &'a File,
    /// A ring: those under way, the oldest at `first`.
    flights: [Option<Flight<'a>>; FLIGHTS_MAX],
    first: usize,
    count: usize,
    /// The first part that failed: where its bytes are, and why.
    failed: Option<(usize, Errno)>,
    /// The open file, if its writes are not waited for.
    behind: Option<&'a Open<'a>>,
}

impl<'a> Far<'a> {
    pub(crate) const fn new(
        client: &'a Client,
        file: &'a File,
        behind: Option<&'a Open<'a>>,
    ) -> Far<'a> {
        let flights = [const { None }; FLIGHTS_MAX];
        Far { client, file, flights, first: 0, count: 0, failed: None, behind }
    }

    /// Starts moving `length` bytes at `offset`, which lie in `span`, to or from `place` of the
    /// caller's. They may be under way afterwards.
    ///
    /// # Errors
    /// As `finish`, for this part or an earlier one.
    pub(crate) fn start(
        &mut self,
        target: DaemonIndex,
        span: &Span,
        offset: u64,
        (place, length): (usize, usize),
        bytes: &mut Bytes<'_>,
    ) -> Result<()> {
        let mut done = 0usize;
        while done < length {
            let at = offset.saturating_add(done as u64);
            // Parts begin at the same places whoever cuts them: what is written twice takes the
            // same way, so its order is kept.
            let step = STAGE_BUFFER_BYTES as u64;
            let end = at.checked_div(step).unwrap_or(0).saturating_add(1).saturating_mul(step);
            let left = usize::try_from(end.min(span.end()).saturating_sub(at)).unwrap_or(0);
            let length = left.clamp(1, length.saturating_sub(done).max(1));
            let part = Part { target, offset: at, place: place.saturating_add(done), length };
            let started = match self.behind {
                Some(open) => self.client.push(open, self.file, span, part, bytes),
                None => self.start_part(part, bytes),
            };
            started.or_else(|errno| self.fail(&part, errno))?;
            done = done.saturating_add(length);
        }
        Ok(())
    }

    fn start_part(&mut self, part: Part, bytes: &mut Bytes<'_>) -> Result<()> {
        if part.length <= MESSAGE_BYTES {
            return self.client.move_by_message(self.file, &part, bytes);
        }
        loop {
            if self.count < FLIGHTS_MAX
                && let Some(flight) = self.client.launch(self.file, part, bytes)
            {
                let place = self.first.wrapping_add(self.count) % FLIGHTS_MAX;
                if let Some(row) = self.flights.get_mut(place) {
                    *row = Some(flight);
                    self.count = self.count.saturating_add(1);
                }
                return Ok(());
            }
            if self.count == 0 {
                // Nothing of ours is in the way: wait for whatever is.
                let moved = self.client.move_whole(self.file, part, bytes);
                return moved.or_else(|no| self.client.move_unkept(self.file, &part, bytes, no));
            }
            self.settle(bytes)?;
        }
    }

    fn fail(&mut self, part: &Part, errno: Errno) -> Result<()> {
        if self.failed.is_none_or(|(place, _)| part.place < place) {
            self.failed = Some((part.place, errno));
        }
        Err(errno)
    }

    /// Waits for the oldest transfer.
    fn settle(&mut self, bytes: &mut Bytes<'_>) -> Result<()> {
        let flight = self.flights.get_mut(self.first).and_then(Option::take);
        self.first = self.first.wrapping_add(1) % FLIGHTS_MAX;
        self.count = self.count.saturating_sub(1);
        let Some(flight) = flight else { return Ok(()) };
        if let Some((_, errno)) = self.failed.filter(|(place, _)| *place < flight.part.place) {
            // The call ends before this part whatever became of it: nobody waits any more.
            return Err(errno);
        }
        let part = flight.part;
        let outcome = match flight.land(self.count) {
            Ok(Landed::Done(buffer, count)) => bytes.take(&part, &buffer, count),
            Ok(Landed::Busy(_)) => {
                let room = self.client.wait_for_piece(self.file, &part, bytes);
                room.and_then(|()| self.client.move_whole(self.file, part, bytes))
            }
            Ok(Landed::Lost(by)) => {
                self.client.lose(by);
                self.client.move_whole(self.file, part, bytes)
            }
            Err(errno) => Err(errno),
        };
        let outcome = outcome.or_else(|no| self.client.move_unkept(self.file, &part, bytes, no));
        outcome.or_else(|errno| self.fail(&part, errno))
    }

    /// Waits for all that is under way, unless something failed. Then everything that was started is
    /// done.
    ///
    /// # Errors
    /// The place in the caller's bytes from which on they may not be moved, and why: `ENOSPC`,
    /// `EIO`.
    pub(crate) fn finish(
        &mut self,
        bytes: &mut Bytes<'_>,
    ) -> core::result::Result<(), (usize, Errno)> {
        while self.count > 0 {
            let _ = self.settle(bytes);
        }
        self.failed.map_or(Ok(()), Err)
    }
}

impl<'a> Flight<'a> {
    /// Waits for the answer. `behind` are still under way behind this one.
    fn land(self, behind: usize) -> Result<Landed<'a>> {
        let Flight { by, mut slot, mut buffer, part: _ } = self;
        let timeout = by.welcome.timeout_micros.max(1);
        if behind >= ENOUGH_BEHIND {
            slot.expect_long();
        }
        match slot.wait(timeout, Interruptible::No, || by.is_there()) {
            Ok(()) => {}
            Err(Errno::ETIMEDOUT) => return Err(Errno::EIO),
            Err(_) => return Ok(Landed::Lost(by)),
        }
        buffer.take_back()?;
        match classify(slot)? {
            Attempt::Answered(mut slot) => slot.read(|bytes| {
                let mut reader = wire::codec::Reader::new(bytes);
                match Reply::decode(&mut reader) {
                    Ok(Reply::Number { value }) => Ok(Landed::Done(buffer, value)),
                    _ => Err(Errno::EIO),
                }
            })?,
            Attempt::Refused(errno) => Err(errno),
            Attempt::Busy(micros) => Ok(Landed::Busy(micros)),
            Attempt::Stale | Attempt::Lost(_) => Ok(Landed::Lost(by)),
        }
    }
}

impl Client {
    /// Hands a part in, if that can be done at once.
    fn launch(&self, file: &File, part: Part, bytes: &Bytes<'_>) -> Option<Flight<'_>> {
        let to = To::Target(part.target);
        let (by, worker, owner) = self.route(to).ok()?;
        let mut buffer = by.session.stage().try_take().ok()?;
        let mut slot = by.session.claim(0).ok()?;
        bytes.fill(&part, &mut buffer).ok()?;
        let request = part.request(file, bytes, buffer.index());
        buffer.lend().ok()?;
        self.hand_in(to, (by, worker, owner), &mut slot, &request).ok()?;
        Some(Flight { by, slot, buffer, part })
    }

    /// Moves a part, however often it must be tried.
    pub(crate) fn move_whole(&self, file: &File, part: Part, bytes: &mut Bytes<'_>) -> Result<()> {
        let mut patience = Patience::new(self.timeout_micros());
        let mut for_lost = self.patience_for_lost();
        let to = To::Target(part.target);
        loop {
            let Ok((by, worker, owner)) = self.route(to) else {
                self.back_off(&mut for_lost)?;
                continue;
            };
            let timeout = self.timeout_micros();
            let mut buffer = by.session.stage().take(timeout).map_err(|_| Errno::EIO)?;
            let mut slot = by.session.claim(timeout).map_err(|_| Errno::EIO)?;
            bytes.fill(&part, &mut buffer)?;
            let request = part.request(file, bytes, buffer.index());
            buffer.lend()?;
            self.hand_in(to, (by, worker, owner), &mut slot, &request)?;
            match (Flight { by, slot, buffer, part }).land(0)? {
                Landed::Done(buffer, count) => return bytes.take(&part, &buffer, count),
                Landed::Busy(micros) => {
                    patience.sleep(micros.max(1))?;
                    self.wait_for_piece(file, &part, bytes)?;
                }
                Landed::Lost(by) => {
                    self.lose(by);
                    self.back_off(&mut for_lost)?;
                }
            }
        }
    }

    /// What brings bytes does not wait where there is no room for them (`daemon::room`): a question for
    /// their piece does.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO`.
    fn wait_for_piece(&self, file: &File, part: &Part, bytes: &Bytes<'_>) -> Result<()> {
        if let Bytes::Into(_) = bytes {
            return Ok(());
        }
        let (offset, length) = (part.offset, part.length as u64);
        self.ask_for_room(To::Target(part.target), (file.inode, file.chunk_log2()), offset, length)
    }

    /// Moves a few bytes.
    fn move_by_message(&self, file: &File, part: &Part, bytes: &mut Bytes<'_>) -> Result<()> {
        let (to, who) = (To::Target(part.target), own_credentials());
        let (inode, chunk_log2, offset) = (file.inode, file.chunk_word(), part.offset);
        match bytes {
            Bytes::From(bytes) => {
                let bytes = bytes.get(part.range()).ok_or(Errno::EIO)?;
                let cuts = file.good_for;
                let write = Request::Write { inode, chunk_log2, offset, cuts, bytes };
                self.call_done(to, &write, &who)
            }
            Bytes::Staged(..) => Err(Errno::EIO),
            Bytes::Into(bytes) => {
                let length = part.length as u32;
                let request = Request::Read { inode, chunk_log2, offset, length };
                let to_bytes = bytes.get_mut(part.range()).ok_or(Errno::EIO)?;
                self.call(to, &request, &who)?.with(|reply| {
                    let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
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
}
