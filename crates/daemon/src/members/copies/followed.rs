//! The state of a service that this daemon follows, as the records of its copy give it. With it the
//! daemon goes on with the service at once: it applies no record anew.
//!
//! It is what a replay of the journal would give: each record is applied after it was appended. Those
//! of a snapshot make a state of their own, which takes the place of the other when the snapshot is
//! complete, as in the journal.

use metadata::LoggedState;

/// See the module.
pub(super) struct FollowedState {
    /// That of the records before a snapshot which comes, and since; `None`: it is not known.
    current: Option<LoggedState>,
    /// That of the snapshot which comes, and of the records since it began.
    coming: Option<LoggedState>,
}

impl FollowedState {
    /// Before the first record.
    pub(super) fn new() -> FollowedState {
        FollowedState { current: Some(LoggedState::default()), coming: None }
    }

    /// That of a log which was not replayed.
    pub(super) const fn unknown() -> FollowedState {
        FollowedState { current: None, coming: None }
    }

    /// A snapshot begins.
    pub(super) fn begin(&mut self) {
        self.coming = Some(LoggedState::default());
    }

    /// A record of the log.
    pub(super) fn record(&mut self, record: &[u8]) {
        replay(&mut self.current, record);
        replay(&mut self.coming, record);
    }

    /// A record of the snapshot.
    pub(super) fn slice(&mut self, record: &[u8]) {
        replay(&mut self.coming, record);
    }

    /// The snapshot is complete.
    pub(super) fn complete(&mut self) {
        self.current = self.coming.take();
    }

    /// The state; `None`: the log is to be replayed.
    pub(super) fn into_state(self) -> Option<LoggedState> {
        self.current
    }
}

/// Of a record that is none of this version the state says nothing: a replay names it.
fn replay(state: &mut Option<LoggedState>, record: &[u8]) {
    if state.as_mut().is_some_and(|it| it.replay(record).is_err()) {
        *state = None;
    }
}
