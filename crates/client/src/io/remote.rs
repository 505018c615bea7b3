//! Bytes on other hosts, moved while the caller waits. Writes that return earlier: `write_behind`.
//!
//! A few bytes travel in a message. More travel through bounce buffers of the session, which the
//! daemon fills from the target or drains to it: one request per buffer. A call keeps several
//! transfers in flight, so that all targets of a large read or write work in parallel, and
//! completes them in order. A failed transfer is retried alone until the instance's timeout.

use placement::extent::Span;
use wire::DaemonIndex;
use wire::errno::{Errno, Result};
use wire::limits::BOUNCE_BUFFER_BYTES;

use crate::file::layout::File;
use crate::file::open_file::OpenFile;
use crate::io::transfer::{Bytes, InFlight, MESSAGE_BYTES, TransferEnd, TransferRange};
use crate::io::{Io, transfer, uncached_read, write_behind};

/// Most transfers in flight per call: half of the bounce buffers (`transfer::try_start`).
const TRANSFERS_MAX: usize = 16;

/// The transfers of one call.
pub(crate) struct RemoteTransfers<'a> {
    io: &'a Io,
    file: &'a File,
    /// Ring of transfers in flight, the oldest at `first`.
    in_flight: [Option<InFlight<'a>>; TRANSFERS_MAX],
    first: usize,
    count: usize,
    /// The first range that failed: its offset in the caller's bytes, and the error.
    failed: Option<(usize, Errno)>,
    /// The open file, if writes return before they arrive.
    write_behind: Option<&'a OpenFile<'a>>,
}

impl<'a> RemoteTransfers<'a> {
    pub(crate) const fn new(
        io: &'a Io,
        file: &'a File,
        write_behind: Option<&'a OpenFile<'a>>,
    ) -> RemoteTransfers<'a> {
        let in_flight = [const { None }; TRANSFERS_MAX];
        RemoteTransfers { io, file, in_flight, first: 0, count: 0, failed: None, write_behind }
    }

    /// Starts moving `length` bytes at `offset`, which lie in `span`, to or from offset `place` of
    /// the caller's bytes. They may be in flight afterwards.
    ///
    /// # Errors
    /// As `finish_all`, for this range or an earlier one.
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
            // Ranges start at fixed offsets whatever the call, so two writes of the same bytes take
            // the same path and keep their order.
            let step = BOUNCE_BUFFER_BYTES as u64;
            let end = at.checked_div(step).unwrap_or(0).saturating_add(1).saturating_mul(step);
            let left = usize::try_from(end.min(span.end()).saturating_sub(at)).unwrap_or(0);
            let length = left.clamp(1, length.saturating_sub(done).max(1));
            let part =
                TransferRange { target, offset: at, place: place.saturating_add(done), length };
            let started = match self.write_behind {
                Some(open) => write_behind::push(self.io, open, self.file, span, part, bytes),
                None => self.start_part(part, bytes),
            };
            started.or_else(|errno| self.fail(&part, errno))?;
            done = done.saturating_add(length);
        }
        Ok(())
    }

    fn start_part(&mut self, part: TransferRange, bytes: &mut Bytes<'_>) -> Result<()> {
        if part.length <= MESSAGE_BYTES {
            return transfer::move_inline(self.io.transport(), self.file, &part, bytes);
        }
        loop {
            if self.count < TRANSFERS_MAX
                && let Some(transfer) =
                    transfer::try_start(self.io.transport(), self.file, part, bytes, self.count)
            {
                let place = self.first.wrapping_add(self.count) % TRANSFERS_MAX;
                if let Some(entry) = self.in_flight.get_mut(place) {
                    *entry = Some(transfer);
                    self.count = self.count.saturating_add(1);
                }
                return Ok(());
            }
            if self.count == 0 {
                // None of this call's transfers holds the resources: wait for those of others.
                let moved = transfer::move_whole(self.io.transport(), self.file, part, bytes);
                return moved.or_else(|no| {
                    uncached_read::move_uncached(self.io.transport(), self.file, &part, bytes, no)
                });
            }
            self.settle(bytes)?;
        }
    }

    fn fail(&mut self, part: &TransferRange, errno: Errno) -> Result<()> {
        if self.failed.is_none_or(|(place, _)| part.place < place) {
            self.failed = Some((part.place, errno));
        }
        Err(errno)
    }

    /// Waits for the oldest transfer.
    fn settle(&mut self, bytes: &mut Bytes<'_>) -> Result<()> {
        let transfer = self.in_flight.get_mut(self.first).and_then(Option::take);
        self.first = self.first.wrapping_add(1) % TRANSFERS_MAX;
        self.count = self.count.saturating_sub(1);
        let Some(transfer) = transfer else { return Ok(()) };
        if let Some((_, errno)) = self.failed.filter(|(place, _)| *place < transfer.part.place) {
            // The call ends before this range anyway, so its result is not awaited.
            return Err(errno);
        }
        let part = transfer.part;
        let ended = transfer.await_end(self.io.transport(), self.file.inode, self.count);
        if let Ok(TransferEnd::Busy(..) | TransferEnd::Lost(..)) = ended {
            // It will wait for a buffer, and may hold none meanwhile.
            self.settle_all(bytes);
        }
        let outcome = match ended {
            Ok(TransferEnd::Done(buffer, count)) => bytes.take(&part, &buffer, count),
            Ok(TransferEnd::Busy(_, again)) => {
                let waited =
                    transfer::wait_for_extent(self.io.transport(), self.file, &part, bytes);
                waited.and_then(|()| {
                    transfer::move_again(self.io.transport(), self.file, part, bytes, again)
                })
            }
            Ok(TransferEnd::Lost(by, again)) => {
                self.io.transport().drop_attachment(by);
                transfer::move_again(self.io.transport(), self.file, part, bytes, again)
            }
            Err(errno) => Err(errno),
        };
        let outcome = outcome.or_else(|no| {
            uncached_read::move_uncached(self.io.transport(), self.file, &part, bytes, no)
        });
        outcome.or_else(|errno| self.fail(&part, errno))
    }

    fn settle_all(&mut self, bytes: &mut Bytes<'_>) {
        while self.count > 0 {
            let _ = self.settle(bytes);
        }
    }

    /// Waits for all transfers in flight. Unless one failed, everything that was started is then
    /// done.
    ///
    /// # Errors
    /// The first offset in the caller's bytes that may not have been moved, with `ENOSPC` or `EIO`.
    pub(crate) fn finish_all(
        &mut self,
        bytes: &mut Bytes<'_>,
    ) -> core::result::Result<(), (usize, Errno)> {
        self.settle_all(bytes);
        self.failed.map_or(Ok(()), Err)
    }
}
