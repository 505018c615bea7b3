//! Retries of operations on a file that was found by its name while others replace the file: a name
//! that is replaced by `rename` is never missing. An operation that finds the file gone after the
//! lookup repeats the lookup, for as long as a request may take.

use wire::errno::Result;

use crate::transport::Transport;
use crate::transport::retry::RetryBudget;

/// Lookups without a pause. More are only needed while a name is replaced all the time, or while a
/// daemon stalls in the middle of a removal.
const AT_ONCE: u32 = 16;
/// Pause before each further lookup.
const PAUSE_MICROS: u64 = 100;

/// Count and time budget of repeated lookups of one name.
pub(crate) struct LookupRetries {
    count: u32,
    budget: RetryBudget,
}

impl LookupRetries {
    pub(crate) fn new(transport: &Transport) -> LookupRetries {
        LookupRetries { count: 0, budget: RetryBudget::new(transport.timeout_micros()) }
    }

    /// Waits before another lookup, if necessary.
    ///
    /// # Errors
    /// `EIO` if lookups have taken longer than a request may.
    #[cold]
    pub(crate) fn pause(&mut self) -> Result<()> {
        self.count = self.count.saturating_add(1);
        if self.count < AT_ONCE { Ok(()) } else { self.budget.sleep(PAUSE_MICROS) }
    }
}
