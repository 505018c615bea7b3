//! The requests of a scheduler: a fixed number of rows, linked into the queues of jobs.

use super::table::{NONE, Table};
use super::{Request, Ticket};

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nowhere: the row is free.
    Free,
    /// In the queue of its job.
    Queued,
    /// At the device.
    InFlight,
}

/// A request and its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) request: Request,
    pub(super) place: Place,
    pub(super) job: u32,
    /// When it arrived.
    pub(super) at: u64,
    /// The scheduler's shared clock when it started.
    pub(super) shared_nanos: u64,
    generation: u32,
    before: u32,
    after: u32,
}

/// A queue of requests, first in, first out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    pub(super) head: u32,
    tail: u32,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { head: NONE, tail: NONE }
    }
}

/// All requests.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    rows: Table<Row>,
    generation: u32,
}

impl Requests {
    pub(super) fn new() -> Requests {
        Requests { rows: Table::new(), generation: 0 }
    }

    /// Requests that wait or are at the device.
    pub(super) fn used(&self) -> usize {
        self.rows.used()
    }

    /// Appends a request to a queue.
    pub(super) fn append(
        &mut self,
        queue: &mut Queue,
        now: u64,
        job: u32,
        request: Request,
    ) -> Ticket {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let number = self.rows.add(Row {
            request,
            place: Place::Queued,
            job,
            at: now,
            shared_nanos: 0,
            generation,
            before: queue.tail,
            after: NONE,
        });
        if queue.tail == NONE {
            queue.head = number;
        } else {
            self.rows.row_mut(queue.tail).after = number;
        }
        queue.tail = number;
        Ticket { number, generation }
    }

    /// Takes a request out of its queue.
    pub(super) fn unlink(&mut self, queue: &mut Queue, number: u32) {
        let Row { before, after, .. } = *self.rows.row(number);
        if before == NONE {
            queue.head = after;
        } else {
            self.rows.row_mut(before).after = after;
        }
        if after == NONE {
            queue.tail = before;
        } else {
            self.rows.row_mut(after).before = before;
        }
    }

    /// The number of a ticket's row if its request is in this place.
    pub(super) fn find_ticket(&self, ticket: Ticket, place: Place) -> Option<u32> {
        let row = self.rows.claimed(ticket.number)?;
        (row.generation == ticket.generation && row.place == place).then_some(ticket.number)
    }

    pub(super) fn ticket(&self, number: u32) -> Ticket {
        Ticket { number, generation: self.rows.row(number).generation }
    }

    pub(super) fn request_row(&self, number: u32) -> &Row {
        self.rows.row(number)
    }

    pub(super) fn request_row_mut(&mut self, number: u32) -> &mut Row {
        self.rows.row_mut(number)
    }

    /// Forgets a request.
    pub(super) fn forget(&mut self, number: u32) -> Row {
        let row = *self.rows.row(number);
        self.rows.row_mut(number).place = Place::Free;
        self.rows.release(number);
        row
    }
}
