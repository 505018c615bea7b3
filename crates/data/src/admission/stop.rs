//! Reasons for which a request does not get its extents, and the answers that say so.

use crate::effect::{Answer, Effect};
use wire::Errno;
use wire::quota::Account;

/// Retry delay for space that is just being freed: the loop that receives the answer checks the
/// hazard pointers, so this is one round trip.
const RETRY_MICROS: u32 = 100;
/// Retry delay for space of preallocated extents: the caller first verifies that nobody uses them.
const RECLAIM_RETRY_MICROS: u32 = 10_000;
/// Retry delay for space of clean extents, most of which are evicted at once.
const EVICT_RETRY_MICROS: u32 = 1_000;

/// A limit that forbids an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OverLimit {
    pub(crate) account: Account,
    pub(crate) requested: u64,
}

/// Why an extent cannot be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// Refused permanently.
    Refused(Errno),
    /// There is no space, and nothing here is leaving.
    Full(Errno),
    /// Earlier requests wait for space.
    Queued,
    /// Space is being freed.
    Busy,
    /// Preallocated extents will be reclaimed.
    Reclaiming,
    /// Clean extents will be evicted.
    Evicting,
    /// A device provisions space.
    Parked,
    /// Freeing space takes longer than the request's timeout, and makes progress.
    InProgress,
    /// The file's owner has reached a limit.
    OverLimit(OverLimit),
    /// The job has reached its bound on dirty bytes; the length of the extent that it needs.
    OverBound(u64),
}

impl Stop {
    /// Answers a request whose extents cannot be allocated; not one that is parked.
    pub(crate) fn answer_to(self, ticket: u64, out: &mut Vec<Effect>) {
        let answer = match self {
            Stop::Refused(errno) | Stop::Full(errno) => Answer::Refused(errno),
            Stop::Busy | Stop::Queued | Stop::Parked | Stop::OverBound(_) => {
                Answer::Busy { retry_micros: RETRY_MICROS }
            }
            Stop::InProgress => Answer::Busy { retry_micros: 0 },
            Stop::Reclaiming => Answer::Busy { retry_micros: RECLAIM_RETRY_MICROS },
            Stop::Evicting => Answer::Busy { retry_micros: EVICT_RETRY_MICROS },
            Stop::OverLimit(OverLimit { account, requested }) => {
                Answer::OverLimit { account, requested }
            }
        };
        out.push(Effect::Reply { ticket, answer });
    }
}
