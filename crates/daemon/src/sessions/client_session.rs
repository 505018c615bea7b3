//! A session of a client, as all threads share it.

use crate::shares::accounts::SessionAccounts;
use std::sync::Mutex;

/// A session with its memory.
pub(crate) struct ClientSession {
    /// Identity of the session.
    pub(crate) session: gateway::Session,
    /// Its slots.
    pub(crate) slots: shm::session::Session,
    /// Accounts of its requests, while rules are in force.
    pub(crate) accounts: Mutex<SessionAccounts>,
    /// The client is the writeback daemon (`sessions::writeback`): its requests are of no job.
    pub(crate) is_writeback: bool,
}
