//! Pushed writes whose thread was killed between counting one and handing it over: the count of the
//! file is corrected, so that its readers do not wait for a write that never comes.

use crate::sessions::client_session::ClientSession;
use crate::shared::Shared;
use shm::bounce::{SessionPushes, recount_lost_pushes};
use std::sync::Arc;
use wire::client_id::START_SHIFT;

/// Sessions that ended while writes of theirs were on their way.
#[derive(Default)]
pub(crate) struct PushRecount {
    closed: Vec<Arc<ClientSession>>,
}

impl PushRecount {
    /// A session ended: no process writes its memory any more.
    pub(crate) fn add_closed(&mut self, client: Arc<ClientSession>) {
        if client.slots.bounce_buffers().has_pushes() {
            self.closed.push(client);
        }
    }

    /// Recounts the files of killed threads, of closed sessions and of the open ones. False if
    /// something has to be done later.
    pub(crate) fn run(&mut self, shared: &Shared, open: &[&Arc<ClientSession>]) -> bool {
        let Some(any) = self.closed.first().or_else(|| open.first().copied()) else { return true };
        // Of all sessions of this start of the daemon.
        let through = any.session.client_id >> START_SHIFT;
        let of = |client, is_closed| {
            let client: &Arc<ClientSession> = client;
            SessionPushes { buffers: client.slots.bounce_buffers(), is_closed }
        };
        let closed = self.closed.iter().map(|client| of(client, true));
        let sessions: Vec<_> = closed.chain(open.iter().map(|client| of(client, false))).collect();
        let is_complete = recount_lost_pushes(&shared.host.segment, through, &sessions);
        self.closed.retain(|client| client.slots.bounce_buffers().has_pushes());
        is_complete && self.closed.is_empty()
    }
}
