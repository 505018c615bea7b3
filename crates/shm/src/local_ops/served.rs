//! Until when each service of a daemon is served there, for clients that read its index or complete
//! operations without asking. Where services may go on at another daemon that is the end of its lease:
//! a daemon that was killed, or is cut off, cannot close its gate.
//!
//! A client takes the word first, then reads or announces, and then asks whether it still holds. If so,
//! the service was served there all the time between: the word promised that when it was written.
//!
//! The words are WORKER_COUNT_MAX x u64: 0, always; 2, never again: the service has left this host for
//! good; else nanoseconds of the steady clock (`wait::steady_nanos`). So a new segment is one of a
//! service that stays.
//!
//! Before a service leaves its word is `NEVER`, and then the daemon reads which files are open. A client
//! opens a file first, and takes the word then: if it holds the daemon finds the file open.

use super::op_log::{PendingOp, TENTATIVE};
use crate::sync::{AtomicU64, fence};
use crate::wait::steady_nanos;
use core::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use wire::errno::Result;
use wire::limits::WORKER_COUNT_MAX;

/// Where the words begin in the segment.
pub(super) const SERVED: usize = 1024;
/// Bytes of the words.
pub(super) const SERVED_BYTES: usize = WORKER_COUNT_MAX * 8;

/// The time until which a service is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServedUntil(u64);

impl ServedUntil {
    /// The service stays at its daemon.
    pub const ALWAYS: ServedUntil = ServedUntil(0);
    /// It is not served.
    pub const NEVER: ServedUntil = ServedUntil(1);
    /// It is not served here any more, and never will be: programs of this host are those of another one.
    pub const ELSEWHERE: ServedUntil = ServedUntil(2);

    /// Until this time, by the steady clock in nanoseconds.
    #[must_use]
    pub const fn at(nanos: i64) -> ServedUntil {
        if nanos > 2 { ServedUntil(nanos.cast_unsigned()) } else { ServedUntil::NEVER }
    }

    /// Whether what was read since this was taken was the service's word at that time.
    #[must_use]
    #[inline]
    pub fn holds(self) -> bool {
        self == ServedUntil::ALWAYS || self.is_ahead()
    }

    #[cold]
    fn is_ahead(self) -> bool {
        // The clock is read last.
        fence(Acquire);
        steady_nanos() < self.0.cast_signed()
    }
}

impl PendingOp<'_> {
    /// Shows an operation with which nothing can conflict but the end of the service here: the caller
    /// asks then whether it is served, and commits or withdraws.
    ///
    /// # Errors
    /// Never for a slot that was claimed.
    pub fn propose(&self) -> Result<()> {
        self.show(TENTATIVE)?;
        fence(SeqCst);
        Ok(())
    }
}

/// The word of one service.
#[derive(Clone, Copy)]
pub struct ServedWord<'a>(pub(super) Option<&'a AtomicU64>);

impl ServedWord<'_> {
    /// The time as it is now.
    #[must_use]
    #[inline]
    pub fn until(self) -> ServedUntil {
        self.0.map_or(ServedUntil::NEVER, |word| ServedUntil(word.load(Acquire)))
    }

    /// Sets the time, for the daemon. Everything that clients find from then on is ready before.
    pub fn set(self, until: ServedUntil) {
        if let Some(word) = self.0 {
            word.store(until.0, Release);
        }
    }
}
