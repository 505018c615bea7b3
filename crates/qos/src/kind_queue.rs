//! Which request a worker serves next: for metadata or for data. Where both wait they share its time,
//! metadata with a part that is set and neither with less than a tenth; what one does not need goes to
//! the other. So thousands of requests of one kind leave time for the other one. Urgent requests of the
//! instance itself come before both, and leave them a fifth.
//!
//! A worker serves one request at a time and knows how long it took, so nothing is estimated here.
//!
//! Invariants:
//!  1. Requests of one kind are served in the order in which they came.
//!  2. While both wait, metadata's time by its part differs from data's by one request of each at most;
//!     while urgent ones wait beside others, their time from four fifths by one request of each.
//!
//! Elsewhere: devices, and users and jobs (`scheduler`).

use crate::scheduler::{OptionsError, SHARE_PERCENT_MIN};
use std::collections::VecDeque;

/// Longest time that a request is taken to have been served: more is not its own, as where the thread
/// stood still.
const SERVED_NANOS_MAX: u64 = 10_000_000;
/// Part of the time for urgent requests while others wait.
const URGENT_PERCENT: i64 = 80;

/// Kind of a request at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Others wait for it: recovery, and writeback or moves that free memory that is short.
    Urgent,
    /// Names, attributes, and messages of services.
    Metadata,
    /// Extents and their bytes.
    Data,
}

/// Requests that wait for a worker.
#[derive(Clone, Debug)]
pub struct KindQueue<T> {
    urgent: VecDeque<T>,
    metadata: VecDeque<T>,
    data: VecDeque<T>,
    metadata_percent: u32,
    /// Time that metadata had beyond its part, in hundredths of nanoseconds.
    ahead: i64,
    /// Time that urgent requests had beyond their part, in hundredths of nanoseconds.
    urgent_ahead: i64,
}

impl<T> KindQueue<T> {
    /// None waits. Metadata has this part of the time.
    ///
    /// # Errors
    /// One of the two would have less than a tenth.
    pub fn new(metadata_percent: u32) -> Result<KindQueue<T>, OptionsError> {
        let (least, most) = (SHARE_PERCENT_MIN, 100 - SHARE_PERCENT_MIN);
        if !(least..=most).contains(&metadata_percent) {
            return Err(OptionsError { option: "metadata_percent", least, most });
        }
        Ok(KindQueue {
            urgent: VecDeque::new(),
            metadata: VecDeque::new(),
            data: VecDeque::new(),
            metadata_percent,
            ahead: 0,
            urgent_ahead: 0,
        })
    }

    const fn of(&self, kind: RequestKind) -> &VecDeque<T> {
        match kind {
            RequestKind::Urgent => &self.urgent,
            RequestKind::Metadata => &self.metadata,
            RequestKind::Data => &self.data,
        }
    }

    const fn of_mut(&mut self, kind: RequestKind) -> &mut VecDeque<T> {
        match kind {
            RequestKind::Urgent => &mut self.urgent,
            RequestKind::Metadata => &mut self.metadata,
            RequestKind::Data => &mut self.data,
        }
    }

    /// A request has come.
    pub fn push(&mut self, kind: RequestKind, request: T) {
        self.of_mut(kind).push_back(request);
    }

    /// True if no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.metadata.is_empty() && self.data.is_empty()
    }

    /// True if requests of several kinds wait: then the time of the next one counts (`served`).
    #[must_use]
    pub fn several_wait(&self) -> bool {
        let all = [&self.urgent, &self.metadata, &self.data];
        all.iter().filter(|one| !one.is_empty()).count() > 1
    }

    /// The next request.
    pub fn pop(&mut self) -> Option<(RequestKind, T)> {
        let others_wait = !self.metadata.is_empty() || !self.data.is_empty();
        let has_turn = !others_wait || self.urgent_ahead <= 0;
        let is_urgent = has_turn && !self.urgent.is_empty();
        let kind = match (self.metadata.is_empty(), self.data.is_empty()) {
            _ if is_urgent => RequestKind::Urgent,
            (false, false) if self.ahead > 0 => RequestKind::Data,
            (false, _) => RequestKind::Metadata,
            (true, _) => RequestKind::Data,
        };
        Some((kind, self.of_mut(kind).pop_front()?))
    }

    /// A request was served in this time, while one of another kind waited.
    pub fn served(&mut self, kind: RequestKind, nanos: u64) {
        let nanos = i64::try_from(nanos.min(SERVED_NANOS_MAX)).unwrap_or(i64::MAX);
        let percent = i64::from(self.metadata_percent);
        let (sibling, more) = match kind {
            RequestKind::Urgent => {
                let more = nanos.saturating_mul(100 - URGENT_PERCENT);
                self.urgent_ahead = self.urgent_ahead.saturating_add(more);
                return;
            }
            RequestKind::Metadata => (RequestKind::Data, nanos.saturating_mul(100 - percent)),
            RequestKind::Data => (RequestKind::Metadata, -nanos.saturating_mul(percent)),
        };
        let urgent_waited = !self.urgent.is_empty();
        if urgent_waited {
            let less = nanos.saturating_mul(URGENT_PERCENT);
            self.urgent_ahead = self.urgent_ahead.saturating_sub(less);
        }
        if !urgent_waited || !self.of(sibling).is_empty() {
            self.ahead = self.ahead.saturating_add(more);
        }
    }
}
