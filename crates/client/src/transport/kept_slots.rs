//! Slots that a request keeps between its attempts.
//!
//! The slot of the first attempt gives a request its identity, and a shard remembers only the last
//! change of each identity's client id. If the slot were free between two attempts, another thread
//! could make a change on it, and the shard would carry out the repetition of a change that it has
//! carried out already: `Busy` also answers requests whose reply was lost with the connection to
//! another host.

use shm::session::Slot;
use wire::Request;

use crate::transport::attachment::Attachment;
use crate::transport::request::Destination;

/// Slots that a request keeps between its attempts.
///
/// Invariant: a thread that keeps a slot claims no other one in the same session, so threads that keep
/// slots do not wait for each other.
pub(crate) struct KeptSlots<'a> {
    /// Slot of the first attempt, in a session that no new request uses.
    first: Option<Slot<'a>>,
    /// Slot of the last attempt, for the next one.
    last: Option<(Slot<'a>, &'a Attachment)>,
}

impl<'a> KeptSlots<'a> {
    pub(crate) const fn new() -> KeptSlots<'a> {
        KeptSlots { first: None, last: None }
    }

    /// Keeps the answered slot of an attempt for the next one.
    pub(crate) fn keep(&mut self, slot: Slot<'a>, by: &'a Attachment) {
        self.last = Some((slot, by));
    }

    /// Keeps the slot of an attempt whose attachment is given up.
    pub(crate) fn keep_lost(&mut self, slot: Slot<'a>) {
        self.first.get_or_insert(slot);
    }

    /// The slot for the next attempt, if one of this attachment is kept.
    pub(crate) fn take(&mut self, by: &Attachment) -> Option<Slot<'a>> {
        let (slot, of) = self.last.take()?;
        if core::ptr::eq(of, by) {
            return Some(slot);
        }
        self.keep_lost(slot);
        None
    }
}

/// True for a change of bytes that have copies: these remember what each client id did last.
pub(crate) const fn changes_copies(request: &Request<'_>, by: &Attachment) -> bool {
    match *request {
        Request::Write { inode, .. } | Request::Store { inode, .. } => {
            by.welcome.copies > 1 && !inode.is_single()
        }
        _ => false,
    }
}

/// True if a request keeps its slot while it waits after `Busy`: it changes something in a shard, or
/// bytes of a file with copies. Other targets remember no replies, and a write that waits for space
/// there may wait long. Only while slots are not short: else as many threads as there are slots would
/// keep them all, also from the request that ends their wait.
pub(crate) fn keeps_slot(to: Destination, request: &Request<'_>, by: &Attachment) -> bool {
    let is_query = matches!(
        request,
        Request::Lookup { .. }
            | Request::GetAttributes { .. }
            | Request::ReadDirectory { .. }
            | Request::ReadLink { .. }
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::ReadInline { .. }
            | Request::Walk { .. }
            | Request::LookupForMount { .. }
    );
    let changes = match to {
        Destination::Shard(_) => !is_query,
        Destination::Target(_) => changes_copies(request, by),
    };
    changes && by.session.has_spare()
}
