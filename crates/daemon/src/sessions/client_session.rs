//! A session of a client, as all threads share it.

/// A session with its memory.
pub(crate) struct ClientSession {
    /// Identity of the session.
    pub(crate) session: gateway::Session,
    /// Its slots.
    pub(crate) slots: shm::session::Session,
}
