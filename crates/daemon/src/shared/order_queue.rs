//! Orders for the threads of a device: which comes next. One queue is for those that read the backing
//! store (`backing`), one for the thread that copies extents (`target::tiering::demotion`).
//!
//! Orders that somebody waits for share the device by `qos::scheduler`: urgent ones first, names and
//! attributes beside bytes, users beside each other, and the jobs of each, by the time that their orders
//! take. Orders in the background come when nothing else waits, in the order of their arrival.
//!
//! A backing store may take long for an order, or stand still. So there is a thread more than it
//! needs, and neither a job, urgent work nor the background has that one as well.
//!
//! Invariants:
//!  1. Each order is handed out once.
//!  2. No thread is idle while an order waits, but for the one that is kept for other jobs.

use qos::scheduler::{Limits, Options, OptionsError, Request, Scheduler, Ticket, Work};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes from which an order is a large one: a small one may get ahead of some of these.
const LARGE_BYTES: u64 = 256 << 10;
/// Places beside those of the threads, which the scheduler keeps for its classes.
const PLACES_BESIDE: u32 = 3;
/// Threads beside those that the store needs to be fast.
const SPARE_THREADS: usize = 1;
/// Orders in the scheduler at most. Callers bound what they request to far less.
const ORDERS_MAX: u32 = 1 << 16;

/// An order as the scheduler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrderKind {
    pub(crate) user: u32,
    pub(crate) job: u64,
    pub(crate) work: Work,
    pub(crate) bytes: u64,
}

/// The account of an order that a thread carries out.
pub(crate) enum OrderPlace {
    /// A job: its user and number.
    Job(Ticket, (u32, u64)),
    Background,
    /// One of more users than the scheduler knows.
    Unscheduled,
}

/// An order that a thread has taken. It is complete when its place goes back (`OrderQueue::complete`).
pub(crate) struct TakenOrder<T> {
    pub(crate) order: T,
    pub(crate) place: OrderPlace,
}

struct WaitingOrders<T> {
    scheduler: Scheduler,
    /// Those in the scheduler, by token.
    orders: BTreeMap<u64, T>,
    tokens: u64,
    /// Orders of each job that wait or are carried out.
    counts: BTreeMap<(u32, u64), u32>,
    /// Those of more users than the scheduler knows.
    unscheduled: VecDeque<T>,
    background: VecDeque<T>,
    /// Background orders that are carried out.
    in_background: u32,
    /// Most threads of one job, or of the background.
    width: u32,
}

impl<T> WaitingOrders<T> {
    fn push(&mut self, now: u64, kind: OrderKind, order: T) {
        self.tokens += 1;
        let OrderKind { user, job, work, bytes } = kind;
        let request = Request { user, job, work, bytes, token: self.tokens };
        if self.scheduler.push(now, request).is_err() {
            return self.unscheduled.push_back(order);
        }
        self.orders.insert(request.token, order);
        let count = self.counts.entry((user, job)).or_default();
        *count += 1;
        if *count == 1 {
            let limits = Limits { in_flight_max: self.width, ..Limits::default() };
            // Jobs beyond those that are told apart share a queue without a limit.
            let _ = self.scheduler.set_job(now, user, job, limits);
        }
    }

    fn next(&mut self, now: u64) -> Option<TakenOrder<T>> {
        if let Some(order) = self.unscheduled.pop_front() {
            return Some(TakenOrder { order, place: OrderPlace::Unscheduled });
        }
        if let Some(started) = self.scheduler.pop(now)
            && let Some(order) = self.orders.remove(&started.request.token)
        {
            let job = (started.request.user, started.request.job);
            return Some(TakenOrder { order, place: OrderPlace::Job(started.ticket, job) });
        }
        if !self.orders.is_empty() || self.in_background >= self.width {
            return None;
        }
        let order = self.background.pop_front()?;
        self.in_background += 1;
        Some(TakenOrder { order, place: OrderPlace::Background })
    }

    fn complete(&mut self, now: u64, place: &OrderPlace) {
        match *place {
            OrderPlace::Unscheduled => {}
            OrderPlace::Background => self.in_background = self.in_background.saturating_sub(1),
            OrderPlace::Job(ticket, job) => {
                self.scheduler.complete(now, ticket);
                let Some(count) = self.counts.get_mut(&job) else { return };
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&job);
                    // The scheduler keeps nothing of a job without limits.
                    let _ = self.scheduler.set_job(now, job.0, job.1, Limits::default());
                }
            }
        }
    }
}

/// See the module.
pub(crate) struct OrderQueue<T> {
    waiting: Mutex<WaitingOrders<T>>,
    /// Signalled for each new order, and for each that ends.
    changed: Condvar,
    begun: Instant,
}

/// Number of threads for a store that needs so many to be fast.
pub(crate) const fn threads(width: usize) -> usize {
    width.saturating_add(SPARE_THREADS)
}

impl<T> OrderQueue<T> {
    /// For a store that needs so many threads to be fast.
    ///
    /// # Errors
    /// They are too many.
    pub(crate) fn new(width: usize) -> Result<OrderQueue<T>, OptionsError> {
        let places = u32::try_from(threads(width)).unwrap_or(u32::MAX);
        let options = Options {
            depth: places.saturating_add(PLACES_BESIDE),
            large_bytes: LARGE_BYTES,
            large_in_flight_max: places,
            requests_max: ORDERS_MAX,
            requests_user_max: ORDERS_MAX,
            metadata_percent: 50,
        };
        let waiting = WaitingOrders {
            scheduler: Scheduler::new(options)?,
            orders: BTreeMap::new(),
            tokens: 0,
            counts: BTreeMap::new(),
            unscheduled: VecDeque::new(),
            background: VecDeque::new(),
            in_background: 0,
            width: u32::try_from(width).unwrap_or(u32::MAX).max(1),
        };
        let (waiting, changed) = (Mutex::new(waiting), Condvar::new());
        Ok(OrderQueue { waiting, changed, begun: Instant::now() })
    }

    fn lock(&self) -> MutexGuard<'_, WaitingOrders<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// An order that somebody waits for.
    pub(crate) fn push(&self, kind: OrderKind, order: T) {
        self.lock().push(self.now(), kind, order);
        self.changed.notify_one();
    }

    /// An order that nobody waits for.
    pub(crate) fn push_background(&self, order: T) {
        self.lock().background.push_back(order);
        self.changed.notify_one();
    }

    /// The next order; waits for one.
    pub(crate) fn pop(&self) -> TakenOrder<T> {
        let mut waiting = self.lock();
        loop {
            let now = self.now();
            if let Some(taken) = waiting.next(now) {
                return taken;
            }
            waiting = match waiting.scheduler.deadline() {
                Some(at) => {
                    let time = Duration::from_nanos(at.saturating_sub(now).max(1));
                    let waited = self.changed.wait_timeout(waiting, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// An order that `pop` gave has ended.
    pub(crate) fn complete(&self, place: &OrderPlace) {
        self.lock().complete(self.now(), place);
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn kind(user: u32, job: u64, work: Work) -> OrderKind {
        let bytes = if matches!(work, Work::Metadata) { 0 } else { 4 << 20 };
        OrderKind { user, job, work, bytes }
    }

    /// Takes so many orders, one after the other, by one thread.
    fn take(queue: &OrderQueue<&'static str>, count: usize) -> Vec<&'static str> {
        let next = || {
            let TakenOrder { order, place } = queue.pop();
            queue.complete(&place);
            order
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn a_job_with_one_order_does_not_wait_for_all_of_another() {
        let queue = OrderQueue::new(4).expect("the sizes");
        for _ in 0..100 {
            queue.push(kind(1, 1, Work::Read), "many");
        }
        queue.push(kind(2, 1, Work::Read), "user");
        queue.push(kind(1, 2, Work::Read), "job");
        queue.push(kind(0, 0, Work::Metadata), "name");
        let first = take(&queue, 8);
        for one in ["user", "job", "name"] {
            assert!(first.contains(&one), "{one} is not in {first:?}");
        }
        assert_eq!(take(&queue, 95), ["many"; 95]);
    }

    #[test]
    fn an_urgent_order_comes_first_and_others_come_between() {
        let queue = OrderQueue::new(1).expect("the sizes");
        for _ in 0..100 {
            queue.push(kind(1, 1, Work::Read), "many");
        }
        queue.push(kind(u32::MAX, 0, Work::Urgent), "urgent");
        assert!(take(&queue, 2).contains(&"urgent"));
        for _ in 0..100 {
            queue.push(kind(u32::MAX, 0, Work::Urgent), "urgent");
        }
        let first = take(&queue, 50);
        let urgent = first.iter().filter(|one| **one == "urgent").count();
        assert!((25..50).contains(&urgent), "{urgent} of 50");
    }

    #[test]
    fn background_orders_come_last() {
        let queue = OrderQueue::new(4).expect("the sizes");
        queue.push_background("later");
        queue.push(kind(1, 1, Work::Read), "now");
        queue.push(kind(1, 1, Work::Metadata), "now");
        assert_eq!(take(&queue, 3), ["now", "now", "later"]);
    }

    /// A store that stands still for a job, for urgent work or for prefetching: orders of others find a
    /// thread.
    #[test]
    fn orders_that_do_not_end_leave_a_thread_for_others() {
        for stands in [kind(1, 1, Work::Read), kind(u32::MAX, 0, Work::Urgent)] {
            let queue = OrderQueue::new(4).expect("the sizes");
            (0..10).for_each(|_| queue.push(stands, "stuck"));
            let stuck: Vec<_> = (0..4).map(|_| queue.pop()).collect();
            assert!(stuck.iter().all(|one| one.order == "stuck"));
            assert!(queue.lock().next(queue.now()).is_none(), "the last thread is for others");
            queue.push(kind(1, 2, Work::Read), "other");
            assert_eq!(take(&queue, 1), ["other"]);
            stuck.iter().for_each(|one| queue.complete(&one.place));
        }

        let queue = OrderQueue::new(4).expect("the sizes");
        (0..10).for_each(|_| queue.push_background("later"));
        let stuck: Vec<_> = (0..4).map(|_| queue.pop()).collect();
        assert!(queue.lock().next(queue.now()).is_none());
        queue.push(kind(1, 1, Work::Read), "now");
        assert_eq!(take(&queue, 1), ["now"]);
        stuck.iter().for_each(|one| queue.complete(&one.place));
        assert_eq!(take(&queue, 6), ["later"; 6]);
    }

    #[test]
    fn orders_of_more_users_than_are_known_are_carried_out_too() {
        let queue = OrderQueue::new(16).expect("the sizes");
        let users = qos::scheduler::USERS_MAX as u32 + 10;
        for _ in 0..2 {
            (0..users).for_each(|user| queue.push(kind(user, 1, Work::Read), "one"));
            assert_eq!(take(&queue, users as usize).len(), users as usize);
            assert!(queue.lock().counts.is_empty(), "nothing is kept of them");
        }
    }

    #[test]
    fn a_thread_that_waits_gets_the_next_order() {
        let queue = OrderQueue::new(2).expect("the sizes");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| queue.pop().order);
            queue.push(kind(1, 1, Work::Metadata), "one");
            assert_eq!(waits.join().expect("it ends"), "one");
        });
    }
}
