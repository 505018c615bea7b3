//! Sessions of the clients on this host: the Unix socket, the handshake, the identity of each
//! client, and the end of a session. All of it runs on the main thread.
//!
//! Requests that arrive through a session are handled in `threads::worker`; state that outlives a
//! session's processes is in `host`.
//!
//! Reading order: `acceptor`, `greeting`, `writeback`, `settlement`, `client_ids`, `open_sessions`,
//! `push_recount`, `status`, `long_answers`, `lost_files`.

pub(crate) mod acceptor;
pub(crate) mod client_ids;
pub(crate) mod client_session;
pub(crate) mod greeting;
pub(crate) mod hazard_sweep;
pub(crate) mod long_answers;
pub(crate) mod lost_files;
pub(crate) mod open_sessions;
pub(crate) mod push_recount;
pub(crate) mod settlement;
pub(crate) mod status;
pub(crate) mod writeback;

use crate::sessions::client_ids::ClientIds;
use crate::sessions::open_sessions::OpenSessions;

/// Sets of sessions that all threads read.
pub(crate) struct SessionSets {
    /// Client ids issued to sessions, and which of them are gone.
    pub(crate) client_ids: ClientIds,
    /// Sessions whose clients may set hazard pointers.
    pub(crate) open: OpenSessions,
}
