//! Destinations of the replies that a metadata service owes.

use crate::shared::reply::ReplyTo;

/// A reply that is owed.
pub(crate) struct Owed {
    /// Its destination.
    pub(crate) to: ReplyTo,
    /// To a request for a lock, which outlives the daemon.
    pub(crate) is_of_lock: bool,
}

/// Each pending reply; the ticket is the index.
#[derive(Default)]
pub(crate) struct Tickets {
    tickets: Vec<Option<Owed>>,
    free: Vec<usize>,
}

impl Tickets {
    /// Registers the destination of a reply; returns its ticket.
    pub(crate) fn register_reply(&mut self, to: ReplyTo) -> u64 {
        self.register(Owed { to, is_of_lock: false })
    }

    /// The same of a reply to a request for a lock.
    pub(crate) fn register_lock(&mut self, to: ReplyTo) -> u64 {
        self.register(Owed { to, is_of_lock: true })
    }

    fn register(&mut self, owed: Owed) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.tickets.push(None);
            self.tickets.len() - 1
        });
        if let Some(ticket) = self.tickets.get_mut(place) {
            *ticket = Some(owed);
        }
        place as u64
    }

    /// The destination, if the ticket is in use.
    pub(crate) fn destination(&self, ticket: u64) -> Option<&ReplyTo> {
        let place = usize::try_from(ticket).ok()?;
        self.tickets.get(place)?.as_ref().map(|owed| &owed.to)
    }

    /// Takes all destinations.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = ReplyTo> + use<> {
        let all = std::mem::take(self);
        all.tickets.into_iter().flatten().map(|owed| owed.to)
    }

    /// Takes what is owed; the ticket is free again.
    pub(crate) fn take_owed(&mut self, ticket: u64) -> Option<Owed> {
        let place = usize::try_from(ticket).ok()?;
        let owed = self.tickets.get_mut(place)?.take();
        if owed.is_some() {
            self.free.push(place);
        }
        owed
    }
}
