//! Writes that clients pushed with bounce buffers and do not wait for: each goes to the daemon of its
//! target (`bulk`), or to all copies of its bytes (`units::ways::pushed`).
//!
//! Invariant: of pushes of the same bytes by one session the older ones go first. A worker finds requests
//! by their slots, so it may come to a newer one first; but a buffer is handed over before its request.

use crate::sessions::client_session::ClientSession;
use crate::shared::Shared;
use crate::shares::inbox::StartTicket;
use shm::bounce::{BounceBuffers, Pushed};
use std::sync::Arc;
use wire::JobWord;
use wire::limits::BOUNCE_BUFFER_COUNT;

/// Buffers that no daemon has taken yet, of pushes that `is_of` holds for, the oldest first.
fn pushed_buffers(buffers: BounceBuffers<'_>, is_of: impl Fn(&Pushed) -> bool) -> Vec<u8> {
    let pushed = (0..BOUNCE_BUFFER_COUNT as u8)
        .filter_map(|buffer| Some((buffers.pushed_write(buffer)?, buffer)))
        .filter(|(pushed, _)| is_of(pushed));
    let mut pushed: Vec<_> = pushed.map(|(pushed, buffer)| (pushed.stamp, buffer)).collect();
    pushed.sort_unstable();
    pushed.into_iter().map(|(_, buffer)| buffer).collect()
}

/// Whether a push is of the same bytes as another one, and older.
fn is_before(one: &Pushed, other: &Pushed) -> bool {
    let end = |it: &Pushed| it.offset.saturating_add(it.length.into());
    let overlaps = one.offset < end(other) && other.offset < end(one);
    one.inode == other.inode && overlaps && one.stamp < other.stamp
}

impl Shared {
    /// Starts a write that a client pushed, unless it was started before, behind those of the same bytes
    /// that it pushed earlier.
    pub(crate) fn start_push(
        &self,
        client: &Arc<ClientSession>,
        (buffer, job): (u8, JobWord),
        ticket: Option<StartTicket>,
    ) {
        let buffers = client.slots.bounce_buffers();
        let Some(pushed) = buffers.pushed_write(buffer) else { return };
        let mut ordered = pushed_buffers(buffers, |it| is_before(it, &pushed));
        ordered.push(buffer);
        self.start_ordered(client, (&ordered, &pushed), (job, ticket));
    }

    /// Starts buffers with writes of one file. The share is of the last one.
    fn start_ordered(
        &self,
        client: &Arc<ClientSession>,
        (buffers, of): (&[u8], &Pushed),
        (job, ticket): (JobWord, Option<StartTicket>),
    ) {
        match &self.units {
            Some(units) if !of.inode.is_single() => {
                units.take_pushes(self, client, buffers, (job, ticket));
            }
            _ => {
                let Some((&last, earlier)) = buffers.split_last() else { return };
                let host = &self.host.segment;
                for &buffer in earlier {
                    self.bulk.start_push(host, client, (buffer, job), None);
                }
                self.bulk.start_push(host, client, (last, job), ticket);
            }
        }
    }

    /// Starts pushed writes of a client that is gone: it may have died before it sent the request,
    /// and its slots are not read any more.
    pub(crate) fn start_pushes_left(&self, client: &Arc<ClientSession>) {
        let buffers = client.slots.bounce_buffers();
        for buffer in pushed_buffers(buffers, |_| true) {
            if let Some(pushed) = buffers.pushed_write(buffer) {
                self.start_ordered(client, (&[buffer], &pushed), (JobWord::NONE, None));
            }
        }
        self.net.sender.flush();
    }
}
