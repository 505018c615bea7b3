//! The log of a metadata service: space for the records of a step, and rewrites when it has grown far
//! beyond the state.
//!
//! Log space is reserved before a step, so that a full disk refuses a request instead of leaving a
//! state that is not in the log.

use crate::shared::log_progress::LogProgress;
use cluster::shipping::put_record;
use metadata::{Service, SnapshotCursor};
use store::{For, Journal};
use wire::errno::{Errno, Result};

/// Log space for one step: a rename touches a handful of inodes, each with at most its inline
/// contents and its extended attributes.
pub(crate) const STEP_BYTES_MAX: u64 = 256 * 1024;
/// Log space that the removal of a file takes: the entry, the inode, the directory's times and the
/// reply, with a name of 100 bytes.
const REMOVAL_BYTES: u64 = 512;
/// How much more than a step needs must be free before a full device counts as one with space: removals
/// give space bit by bit, and each change is a line in the daemon's log.
const AGAIN_BYTES: u64 = 4 * STEP_BYTES_MAX;
/// A log shorter than this is not rewritten.
const REWRITE_BYTES_MIN: u64 = 64 << 20;
/// A log is rewritten when it has grown by this factor since the last rewrite.
const REWRITE_FACTOR: u64 = 4;
/// Bytes of state in one slice of a rewrite: about a millisecond of work.
const SLICE_BYTES: usize = 256 * 1024;
/// Bytes of state in one record of a rewrite, so that damage to a record costs little.
const SNAPSHOT_RECORD_BYTES: usize = 1024;

/// The log of a service.
pub(crate) struct ShardLog {
    worker: usize,
    journal: Journal,
    rewrite: Option<SnapshotCursor>,
    slice: Vec<u8>,
    /// Length of the log after the last rewrite.
    live_bytes: u64,
    /// The log has failed; everything that needs it is refused.
    is_poisoned: bool,
    /// See the function.
    is_full: bool,
    /// How far it has come.
    progress: LogProgress,
}

impl ShardLog {
    /// Takes over a replayed log.
    ///
    /// # Errors
    /// `EIO` if there is no word for the worker.
    pub(crate) fn new(worker: usize, journal: Journal, progress: LogProgress) -> Result<ShardLog> {
        let (rewrite, slice) = (None, Vec::new());
        let (live_bytes, is_poisoned, is_full) = (0, false, false);
        let log = ShardLog {
            worker,
            journal,
            rewrite,
            slice,
            live_bytes,
            is_poisoned,
            is_full,
            progress,
        };
        log.note_progress()?;
        Ok(log)
    }

    /// Tells the next daemon how much of the log it must find.
    fn note_progress(&self) -> Result<()> {
        self.progress.store(self.journal.progress())
    }

    /// Length of the log.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.journal.bytes()
    }

    /// True if the device has no space for records of anything but removals.
    pub(crate) const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Reserves log space for the records of one step, and `more` extra bytes. `file_count`: files
    /// that may have to be removed one day.
    pub(crate) fn reserve_records(
        &mut self,
        more: u64,
        purpose: For,
        file_count: u64,
    ) -> Result<()> {
        if self.is_poisoned {
            return Err(Errno::EIO);
        }
        self.journal.keep_for_removals(file_count.saturating_mul(REMOVAL_BYTES));
        let needed = STEP_BYTES_MAX + more;
        let reserved = self.journal.reserve(needed, purpose);
        match &reserved {
            _ if purpose != For::Any => {}
            Err(error) if !self.is_full => {
                self.is_full = true;
                tracing::warn!(%error, "no space for the log: only reads and removals");
            }
            Ok(())
                if self.is_full && self.journal.reserve(needed + AGAIN_BYTES, purpose).is_ok() =>
            {
                self.is_full = false;
                tracing::info!("the log has space again");
            }
            _ => {}
        }
        reserved.map_err(|error| error.errno())
    }

    /// Appends the records of a step.
    pub(crate) fn append_records(&mut self, bytes: &[u8]) {
        let appended = self.journal.append(bytes);
        // The word exists: `new` has stored it once.
        let _ = self.note_progress();
        if let Err(error) = appended {
            // Space was reserved, so the device is at fault. The state in memory is ahead of the
            // log and must not become visible.
            tracing::error!(worker = self.worker, %error, "cannot write the log");
            self.is_poisoned = true;
            std::process::abort();
        }
    }

    /// Rewrites the log in slices when it has grown far beyond the state. True if there are more
    /// slices.
    pub(crate) fn rewrite_if_long(&mut self, service: &Service) -> bool {
        if !self.is_long() {
            return false;
        }
        match self.rewrite_slice(service) {
            Ok(more) => more,
            Err(error) => {
                // The old log is intact: continue with it, and retry when it has doubled.
                tracing::error!(worker = self.worker, %error, "cannot rewrite the log");
                self.journal.abandon_rewrite();
                self.rewrite = None;
                self.live_bytes = self.journal.bytes() / 2;
                false
            }
        }
    }

    /// True if the log must be rewritten.
    pub(crate) fn is_long(&self) -> bool {
        let limit = REWRITE_BYTES_MIN.max(self.live_bytes.saturating_mul(REWRITE_FACTOR));
        self.rewrite.is_some() || (self.journal.bytes() > limit && !self.is_poisoned)
    }

    /// Rewrites the whole log now.
    ///
    /// # Errors
    /// The device's error; the log stays as it is.
    pub(crate) fn rewrite_now(&mut self, service: &Service) -> store::Result<()> {
        while self.rewrite_slice(service)? {}
        Ok(())
    }

    fn rewrite_slice(&mut self, service: &Service) -> store::Result<bool> {
        let mut cursor = match self.rewrite.take() {
            Some(cursor) => cursor,
            None => {
                self.journal.begin_rewrite()?;
                SnapshotCursor::default()
            }
        };
        let (mut more, mut written) = (true, 0);
        while more && written < SLICE_BYTES {
            self.slice.clear();
            more = service.snapshot_slice(&mut cursor, SNAPSHOT_RECORD_BYTES, &mut self.slice);
            if !self.slice.is_empty() {
                self.journal.append_snapshot(&self.slice)?;
            }
            written += self.slice.len().max(1);
        }
        if more {
            self.rewrite = Some(cursor);
            return Ok(true);
        }
        let before = self.journal.bytes();
        self.journal.finish_rewrite()?;
        let _ = self.note_progress();
        self.live_bytes = self.journal.bytes();
        let (worker, after) = (self.worker, self.live_bytes);
        tracing::info!(worker, before, after, "log rewritten");
        Ok(false)
    }

    /// The journal, after `close_log`.
    pub(crate) fn into_journal(self) -> Journal {
        self.journal
    }

    /// Flushes the log to the device before the daemon ends.
    pub(crate) fn close_log(&mut self) {
        self.journal.abandon_rewrite();
        if let Err(error) = self.journal.commit() {
            tracing::error!(worker = self.worker, %error, "cannot flush the log");
        }
    }
}

/// The next slice of a snapshot as records with their lengths, and where the one after it begins; `None`:
/// it is the last.
pub(crate) fn slice_of(
    service: &Service,
    mut cursor: SnapshotCursor,
) -> (Vec<u8>, Option<SnapshotCursor>) {
    let (mut batch, mut record, mut looked) = (Vec::new(), Vec::new(), 0);
    let mut more = true;
    while more && looked < SLICE_BYTES {
        record.clear();
        more = service.snapshot_slice(&mut cursor, SNAPSHOT_RECORD_BYTES, &mut record);
        if !record.is_empty() {
            put_record(&mut batch, &record);
        }
        looked += record.len().max(1);
    }
    (batch, more.then_some(cursor))
}
