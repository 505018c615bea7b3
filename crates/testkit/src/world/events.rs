//! Events in the order of their times. Of two at the same time, the one that was announced first happens
//! first, so a run repeats.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

struct Event<W> {
    at: i64,
    number: u64,
    what: W,
}

impl<W> PartialEq for Event<W> {
    fn eq(&self, other: &Event<W>) -> bool {
        self.number == other.number
    }
}

impl<W> Eq for Event<W> {}

impl<W> Ord for Event<W> {
    fn cmp(&self, other: &Event<W>) -> Ordering {
        // The heap gives the largest first.
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<W> PartialOrd for Event<W> {
    fn partial_cmp(&self, other: &Event<W>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The time of a world, in nanoseconds, and what is to happen.
pub struct Events<W> {
    now: i64,
    queue: BinaryHeap<Event<W>>,
    announced: u64,
    happened: u64,
}

impl<W> Default for Events<W> {
    fn default() -> Events<W> {
        Events { now: 0, queue: BinaryHeap::new(), announced: 0, happened: 0 }
    }
}

impl<W> Events<W> {
    /// The time.
    #[must_use]
    pub const fn now(&self) -> i64 {
        self.now
    }

    /// Events that have happened.
    #[must_use]
    pub const fn happened(&self) -> u64 {
        self.happened
    }

    /// An event is to happen after this time.
    pub fn push(&mut self, after: i64, what: W) {
        self.announced += 1;
        self.queue.push(Event { at: self.now + after, number: self.announced, what });
    }

    /// The next event, if it is not later than `end`. It is the time of that event then.
    pub fn next(&mut self, end: i64) -> Option<W> {
        self.queue.peek().filter(|event| event.at <= end)?;
        let event = self.queue.pop()?;
        self.now = event.at;
        self.happened += 1;
        Some(event.what)
    }

    /// Nothing more happens until `end`.
    pub const fn pass_to(&mut self, end: i64) {
        self.now = end;
    }

    /// All that is to happen, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &W> {
        self.queue.iter().map(|event| &event.what)
    }

    /// Takes events back for which the condition does not hold.
    pub fn retain(&mut self, mut keep: impl FnMut(&W) -> bool) {
        self.queue.retain(|event| keep(&event.what));
    }
}

#[test]
fn events_happen_in_the_order_of_their_times_and_then_of_their_announcement() {
    let mut events = Events::default();
    for (after, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (9, 'f'), (1, 'b'), (7, 'e')] {
        events.push(after, what);
    }
    events.retain(|&what| what != 'e');
    assert_eq!(events.iter().count(), 5);
    let mut seen = Vec::new();
    while let Some(what) = events.next(8) {
        seen.push((what, events.now()));
    }
    assert_eq!(seen, [('a', 1), ('b', 1), ('c', 5), ('d', 5)]);
    events.pass_to(8);
    events.push(0, 'g');
    assert_eq!((events.next(8), events.next(8), events.now()), (Some('g'), None, 8));
    assert_eq!((events.next(9), events.happened()), (Some('f'), 6));
}
