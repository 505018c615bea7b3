//! Destinations of the replies that a metadata service owes.

use crate::shared::reply::ReplyTo;

/// Destination of each pending reply; the ticket is the index.
#[derive(Default)]
pub(crate) struct Tickets {
    tickets: Vec<Option<ReplyTo>>,
    free: Vec<usize>,
}

impl Tickets {
    /// Registers the destination of a reply; returns its ticket.
    pub(crate) fn register_reply(&mut self, to: ReplyTo) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.tickets.push(None);
            self.tickets.len() - 1
        });
        if let Some(ticket) = self.tickets.get_mut(place) {
            *ticket = Some(to);
        }
        place as u64
    }

    /// The destination, if the ticket is in use.
    pub(crate) fn destination(&self, ticket: u64) -> Option<&ReplyTo> {
        let place = usize::try_from(ticket).ok()?;
        self.tickets.get(place)?.as_ref()
    }

    /// Takes all destinations.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = ReplyTo> + use<> {
        let all = std::mem::take(self);
        all.tickets.into_iter().flatten()
    }

    /// Takes the destination; the ticket is free again.
    pub(crate) fn take_destination(&mut self, ticket: u64) -> Option<ReplyTo> {
        let place = usize::try_from(ticket).ok()?;
        let to = self.tickets.get_mut(place)?.take();
        if to.is_some() {
            self.free.push(place);
        }
        to
    }
}
