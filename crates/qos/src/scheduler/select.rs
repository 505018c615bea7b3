//! The choice: class, then user, then job, each time the lowest start tag that may start.
//!
//! A user or job below its minimum comes before the others of its class. One that its own limits
//! hold back is left out, and starts anew at the virtual time when they open. One whose next request is
//! large while all places for large ones are taken stays owed: others may pass it within `AHEAD_NANOS`.

use super::account::Account;
use super::class::Class;
use super::flow::{Flow, tags_of};
use super::requests::Place;
use super::table::NONE;
use super::{AHEAD_NANOS, STALL_NANOS, Scheduler, Started, URGENT_WEIGHT};

/// Order of candidates: those below their minimum first, then by start tag, then by row.
type Key = (bool, u128, u32);

/// Result of looking for a job.
enum Choice {
    /// This one.
    Found(u32),
    /// None: the next request is large, and its place is taken.
    Large,
    /// None may start.
    Nothing,
}

/// A pass over candidates: those that stood before the next one.
struct Passing {
    after: Option<Key>,
    /// Lowest start tag of all candidates.
    least: u128,
    /// Start tag of the last one.
    chosen: u128,
    /// Start tag of the first one that waits for a place for large requests.
    owed: Option<u128>,
}

impl Passing {
    const fn new() -> Passing {
        Passing { after: None, least: u128::MAX, chosen: 0, owed: None }
    }

    /// The next candidate, if it is not too far ahead of one that is owed more.
    fn next(&mut self, keys: impl Iterator<Item = Key>, is_moving: bool) -> Result<u32, IsAhead> {
        let mut found: Option<Key> = None;
        for key in keys {
            self.least = self.least.min(key.1);
            let is_next = self.after.is_none_or(|after| key > after);
            if is_next && found.is_none_or(|found| key < found) {
                found = Some(key);
            }
        }
        let Some(key) = found else { return Err(IsAhead::No) };
        self.after = Some(key);
        // One that comes first by its minimum says nothing about the time of the others.
        self.chosen = if key.0 { key.1 } else { 0 };
        let is_ahead = self.owed.is_some_and(|owed| key.1 > owed + tags_of(AHEAD_NANOS));
        if is_ahead && is_moving { Err(IsAhead::Yes) } else { Ok(key.2) }
    }
}

/// Why there is no candidate.
enum IsAhead {
    /// It must not pass one that is owed more.
    Yes,
    /// There are no more.
    No,
}

/// Whether the account's own limits let a request start; the time at which they will is noted.
fn resume(
    account: &mut Account,
    parent: &Flow,
    class: Class,
    now: u64,
    deadline: &mut Option<u64>,
) {
    let opens_at = account.opens_at(now, class);
    let flow = account.flows.of_mut(class);
    if opens_at <= now {
        flow.resume(parent);
        return;
    }
    flow.is_throttled = true;
    if opens_at < u64::MAX {
        *deadline = Some(deadline.map_or(opens_at, |old| old.min(opens_at)));
    }
}

fn key(account: &Account, class: Class, now: u64, row: u32) -> Option<Key> {
    let flow = account.flows.of(class);
    (!flow.is_throttled).then(|| (!account.is_below_minimum(now), flow.start, row))
}

impl Scheduler {
    /// The next request to start; `None` if none may now.
    pub fn pop(&mut self, now: u64) -> Option<Started> {
        self.advance(now);
        self.deadline = None;
        for class in Class::ALL {
            self.classes.of_mut(class).resume(&self.root);
        }
        let mut classes = Class::ALL.map(|class| (self.classes.of(class).start, class));
        classes.sort_unstable();
        let mut owed: Option<u128> = None;
        for (start, class) in classes {
            if self.classes.of(class).queued == 0 || !self.has_place(class) {
                continue;
            }
            let is_ahead = owed.is_some_and(|owed| start > owed + tags_of(AHEAD_NANOS));
            if is_ahead && self.is_large_moving(now) {
                self.wake_for_stall();
                return None;
            }
            match self.choose_user(now, class) {
                Choice::Found(job) => return Some(self.start(now, class, job)),
                Choice::Large => owed = owed.or(Some(start)),
                Choice::Nothing => {}
            }
        }
        None
    }

    /// Whether a request of this class may be at the device, too: each other class keeps a place.
    fn has_place(&self, class: Class) -> bool {
        let kept = Class::ALL
            .iter()
            .filter(|&&other| other != class && self.classes.of(other).in_flight == 0)
            .count() as u32;
        self.root.in_flight + kept < self.options.depth
    }

    /// Whether a large request started or ended a short while ago.
    fn is_large_moving(&self, now: u64) -> bool {
        now < self.large_moved_at.saturating_add(STALL_NANOS)
    }

    fn wake_for_stall(&mut self) {
        let at = self.large_moved_at.saturating_add(STALL_NANOS);
        self.deadline = Some(self.deadline.map_or(at, |old| old.min(at)));
    }

    /// No further row may start a request now.
    fn none_chosen(&mut self, passing: &Passing, is_ahead: IsAhead) -> Choice {
        match is_ahead {
            IsAhead::Yes => {
                self.wake_for_stall();
                Choice::Large
            }
            IsAhead::No if passing.owed.is_some() => Choice::Large,
            IsAhead::No => Choice::Nothing,
        }
    }

    /// The job whose request starts.
    fn choose_user(&mut self, now: u64, class: Class) -> Choice {
        let parent = self.classes.of(class);
        for &row in self.active.of(class) {
            resume(&mut self.users.row_mut(row).account, parent, class, now, &mut self.deadline);
        }
        let mut passing = Passing::new();
        loop {
            let rows = self.active.of(class).iter();
            let keys = rows.filter_map(|&row| key(&self.users.row(row).account, class, now, row));
            let row = match passing.next(keys, self.is_large_moving(now)) {
                Ok(row) => row,
                Err(is_ahead) => return self.none_chosen(&passing, is_ahead),
            };
            match self.choose_job(now, class, row) {
                Choice::Found(job) => {
                    self.classes.of_mut(class).pass(passing.least, passing.chosen);
                    return Choice::Found(job);
                }
                Choice::Large => {
                    let start = self.users.row(row).account.flows.of(class).start;
                    passing.owed.get_or_insert(start);
                }
                Choice::Nothing => {
                    self.users.row_mut(row).account.flows.of_mut(class).is_throttled = true
                }
            }
        }
    }

    fn choose_job(&mut self, now: u64, class: Class, user_row: u32) -> Choice {
        let user = self.users.row(user_row);
        let parent = user.account.flows.of(class);
        for &row in user.active.of(class) {
            resume(&mut self.jobs.row_mut(row).account, parent, class, now, &mut self.deadline);
        }
        let mut passing = Passing::new();
        loop {
            let rows = user.active.of(class).iter();
            let keys = rows.filter_map(|&row| key(&self.jobs.row(row).account, class, now, row));
            let row = match passing.next(keys, self.is_large_moving(now)) {
                Ok(row) => row,
                Err(is_ahead) => return self.none_chosen(&passing, is_ahead),
            };
            let job = self.jobs.row(row);
            let head = self.requests.request_row(job.queues.of(class).head);
            let is_large = head.request.bytes >= self.options.large_bytes;
            if !is_large || self.large_in_flight < self.options.large_in_flight_max {
                let user = self.users.row_mut(user_row);
                user.account.flows.of_mut(class).pass(passing.least, passing.chosen);
                return Choice::Found(row);
            }
            passing.owed.get_or_insert(job.account.flows.of(class).start);
        }
    }

    /// The first request of a job starts.
    fn start(&mut self, now: u64, class: Class, job_row: u32) -> Started {
        let job = self.jobs.row_mut(job_row);
        let user_row = job.user;
        let queue = job.queues.of_mut(class);
        let number = queue.head;
        debug_assert!(number != NONE, "a job without requests was chosen");
        self.requests.unlink(queue, number);
        let ticket = self.requests.ticket(number);
        let row = self.requests.request_row_mut(number);
        row.place = Place::InFlight;
        row.shared_nanos = self.shared_nanos;
        let (request, wait_nanos) = (row.request, now.saturating_sub(row.at));
        let device_nanos = self.costs.of(request.work).estimate(request.bytes);
        let user = self.users.row_mut(user_row);
        for account in [&mut job.account, &mut user.account] {
            account.count(now, request.bytes, device_nanos, wait_nanos);
        }
        let user_flow = user.account.flows.of_mut(class);
        let class_flow = self.classes.of_mut(class);
        let (job_weight, user_weight) = (job.account.limits.weight, user.account.limits.weight);
        job.account.flows.of_mut(class).serve(user_flow, device_nanos, job_weight);
        user_flow.serve(class_flow, device_nanos, user_weight);
        let class_weight = match class {
            Class::Urgent => URGENT_WEIGHT,
            Class::Metadata => self.options.metadata_percent,
            Class::Data => 100 - self.options.metadata_percent,
        };
        // A class that its users' limits hold back is owed little when they open.
        self.root.pass(0, class_flow.start);
        class_flow.serve(&mut self.root, device_nanos, class_weight);
        self.root.queued -= 1;
        self.root.in_flight += 1;
        if request.bytes >= self.options.large_bytes {
            self.large_in_flight += 1;
            self.large_moved_at = now;
        }
        self.leave_queue(class, user_row, job_row);
        Started { ticket, request, device_nanos, wait_nanos }
    }
}
