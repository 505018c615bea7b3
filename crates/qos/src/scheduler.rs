//! Which request a device or a worker serves next: start-time fair queueing with depth, by class,
//! user and job (F7, S6).
//!
//! `table`, `requests` and `flow` are the parts, `account` holds users and jobs, `select` chooses.
//! The caller gives requests by `push`, takes them by `pop` as long as there are some, reports each
//! one's end by `complete`, and calls `pop` again at `deadline`. Times are nanoseconds since any
//! moment and never go back.
//!
//! - A request costs device time, learned for each kind of work (`cost`).
//! - *Classes*: urgent work, metadata and data share the device by start tags, too. Each class keeps
//!   one of the `depth` places at the device for itself, so that slow requests of one class delay no
//!   other.
//! - *Large* requests take at most `large_in_flight_max` places, so that a small one finds a place.
//!   Small requests may get ahead of large ones that are owed more by `AHEAD_NANOS` of device time;
//!   if no large one moved for `STALL_NANOS`, by any amount.
//! - *Idle shares* are used by others; nothing waits while a place is free but for a limit of its own,
//!   a place that is kept, or a large request that is owed more.
//!
//! Invariants:
//!  1. Requests of one job and class start in the order in which they arrived.
//!  2. Over any time in which two siblings have waiting requests, their device time by weight differs
//!     by a bound: the cost of the requests at the device, `AHEAD_NANOS`, and what one that returns is
//!     owed (`flow`).
//!  3. A user has at most `JOBS_MAX` jobs here. Further ones share their queues, so that their number
//!     changes neither the memory nor the user's share.
//!  4. A request is admitted or refused at once; admitted ones are at most `requests_max`.
//!
//! Elsewhere: which limits a request falls under (`rules`), and limits over several daemons
//! (`division`).

mod table;

mod requests;

mod flow;

mod class;

mod account;

mod select;

pub use account::{Limits, LimitsError, Usage};
pub use class::{Class, Work};
pub use flow::{WEIGHT_MAX, WEIGHT_USUAL};

use crate::cost::CostModel;
use account::{Account, Job, User};
use class::PerClass;
use flow::Flow;
use requests::{Place, Requests};
use std::collections::BTreeMap;
use std::fmt;
use table::{NONE, Table};

/// Most users with requests or limits.
pub const USERS_MAX: usize = 1024;
/// Most jobs of a user that are told apart.
pub const JOBS_MAX: usize = 64;
/// Device time by which small requests get ahead of large ones that are owed more: some ten large
/// requests.
pub const AHEAD_NANOS: u64 = 10_000_000;
/// A large request that did not start or end for so long does not hold back others.
pub const STALL_NANOS: u64 = 5_000_000;
/// Least percentage of the device for metadata and for data.
pub const SHARE_PERCENT_MIN: u32 = 10;
/// Weight of urgent work beside 100 of metadata and data together: four fifths.
const URGENT_WEIGHT: u32 = 400;

/// A request. The user is the kernel's word; the job is what the process claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// User.
    pub user: u32,
    /// Hash of the job's name.
    pub job: u64,
    /// Kind of work.
    pub work: Work,
    /// Bytes to move; 0 if none.
    pub bytes: u64,
    /// The caller's name for it.
    pub token: u64,
}

/// An admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    number: u32,
    generation: u32,
}

/// A request that starts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// For `complete`.
    pub ticket: Ticket,
    /// The request.
    pub request: Request,
    /// Its device time, as estimated.
    pub device_nanos: u64,
    /// How long it waited.
    pub wait_nanos: u64,
}

/// Why a request is not admitted: the sender waits and sends it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Its user has too many requests here.
    User,
    /// There are too many requests, or users.
    Instance,
}

/// Sizes of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Requests at the device at a time; at least 4.
    pub depth: u32,
    /// A request of at least so many bytes is large.
    pub large_bytes: u64,
    /// Large requests at the device at a time; less than `depth - 2`.
    pub large_in_flight_max: u32,
    /// Requests that wait or are at the device.
    pub requests_max: u32,
    /// Those of one user.
    pub requests_user_max: u32,
    /// Metadata's part of what metadata and data get; 10 to 90.
    pub metadata_percent: u32,
}

/// A size out of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionsError {
    /// Which one.
    pub option: &'static str,
    /// Its least value.
    pub least: u32,
    /// Its largest value.
    pub most: u32,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {} to {}", self.option, self.least, self.most)
    }
}

impl std::error::Error for OptionsError {}

impl Options {
    fn check(&self) -> Result<(), OptionsError> {
        let within = |option, value, least: u32, most: u32| {
            if value >= least && value <= most {
                return Ok(());
            }
            Err(OptionsError { option, least, most })
        };
        within("depth", self.depth, 4, 1 << 16)?;
        within("large_in_flight_max", self.large_in_flight_max, 1, self.depth - 3)?;
        within("requests_max", self.requests_max, self.depth, 1 << 24)?;
        within("requests_user_max", self.requests_user_max, 1, self.requests_max)?;
        let most = 100 - SHARE_PERCENT_MIN;
        within("metadata_percent", self.metadata_percent, SHARE_PERCENT_MIN, most)
    }
}

/// Learned costs of requests, by kind.
#[derive(Clone, Copy, Debug)]
struct Costs {
    urgent: CostModel,
    metadata: CostModel,
    read: CostModel,
    write: CostModel,
}

impl Costs {
    /// First guesses: an SSD of 1 GB/s. Some hundred requests correct them.
    const fn new() -> Costs {
        let data = CostModel::new(50_000.0, 1.0);
        Costs { urgent: data, metadata: CostModel::new(20_000.0, 1.0), read: data, write: data }
    }

    const fn of(&self, work: Work) -> &CostModel {
        match work {
            Work::Urgent => &self.urgent,
            Work::Metadata => &self.metadata,
            Work::Read => &self.read,
            Work::Write => &self.write,
        }
    }

    const fn of_mut(&mut self, work: Work) -> &mut CostModel {
        match work {
            Work::Urgent => &mut self.urgent,
            Work::Metadata => &mut self.metadata,
            Work::Read => &mut self.read,
            Work::Write => &mut self.write,
        }
    }
}

/// The scheduler of one device or worker.
#[derive(Clone, Debug)]
pub struct Scheduler {
    options: Options,
    users: Table<User>,
    user_rows: BTreeMap<u32, u32>,
    jobs: Table<Job>,
    requests: Requests,
    /// The instance, parent of the classes.
    root: Flow,
    classes: PerClass<Flow>,
    /// Users with waiting requests, by class.
    active: PerClass<Vec<u32>>,
    costs: Costs,
    large_in_flight: u32,
    /// When a large request last started or ended.
    large_moved_at: u64,
    /// Time divided by the number of requests at the device, summed: what one of them had of it.
    shared_nanos: u64,
    now: u64,
    deadline: Option<u64>,
}

impl Scheduler {
    /// A scheduler without requests.
    ///
    /// # Errors
    /// A size is out of its bounds.
    pub fn new(options: Options) -> Result<Scheduler, OptionsError> {
        options.check()?;
        Ok(Scheduler {
            options,
            users: Table::new(),
            user_rows: BTreeMap::new(),
            jobs: Table::new(),
            requests: Requests::new(),
            root: Flow::default(),
            classes: PerClass::default(),
            active: PerClass::default(),
            costs: Costs::new(),
            large_in_flight: 0,
            large_moved_at: 0,
            shared_nanos: 0,
            now: 0,
            deadline: None,
        })
    }

    /// A request arrives.
    ///
    /// # Errors
    /// There are too many already, of its user or of all.
    pub fn push(&mut self, now: u64, request: Request) -> Result<Ticket, Full> {
        self.advance(now);
        if self.requests.used() >= self.options.requests_max as usize {
            return Err(Full::Instance);
        }
        let user_row = self.user_row(request.user).ok_or(Full::Instance)?;
        if self.users.row(user_row).account.requests() >= self.options.requests_user_max {
            return Err(Full::User);
        }
        let job_row = self.job_row(user_row, request.job);
        let class = request.work.class();
        let (user, job) = (self.users.row_mut(user_row), self.jobs.row_mut(job_row));
        let user_flow = user.account.flows.of_mut(class);
        let job_flow = job.account.flows.of_mut(class);
        let class_flow = self.classes.of_mut(class);
        if job_flow.queued == 0 {
            user.active.of_mut(class).push(job_row);
        }
        if user_flow.queued == 0 {
            self.active.of_mut(class).push(user_row);
        }
        job_flow.arrive(user_flow);
        user_flow.arrive(class_flow);
        class_flow.arrive(&self.root);
        self.root.queued += 1;
        Ok(self.requests.append(job.queues.of_mut(class), now, job_row, request))
    }

    /// A request that `pop` returned is complete. A ticket that is not at the device changes nothing,
    /// and the result is false.
    pub fn complete(&mut self, now: u64, ticket: Ticket) -> bool {
        self.advance(now);
        let Some(number) = self.requests.find_ticket(ticket, Place::InFlight) else { return false };
        let row = self.requests.forget(number);
        let Request { work, bytes, .. } = row.request;
        let class = work.class();
        self.costs.of_mut(work).observe(bytes, self.shared_nanos - row.shared_nanos);
        if bytes >= self.options.large_bytes {
            self.large_in_flight -= 1;
            self.large_moved_at = now;
        }
        let job = self.jobs.row_mut(row.job);
        job.account.flows.of_mut(class).end();
        self.users.row_mut(job.user).account.flows.of_mut(class).end();
        self.classes.of_mut(class).end();
        self.root.end();
        true
    }

    /// Changes `depth` and `large_in_flight_max`. Requests at the device stay there.
    ///
    /// # Errors
    /// A size is out of its bounds.
    pub fn set_depth(&mut self, depth: u32, large_in_flight_max: u32) -> Result<(), OptionsError> {
        let options = Options { depth, large_in_flight_max, ..self.options };
        options.check()?;
        self.options = options;
        Ok(())
    }

    /// Takes back a request that waits, for instance of a process that died; its token. `None` if it
    /// has started or ended.
    pub fn withdraw(&mut self, now: u64, ticket: Ticket) -> Option<u64> {
        self.advance(now);
        let number = self.requests.find_ticket(ticket, Place::Queued)?;
        let row = *self.requests.request_row(number);
        let class = row.request.work.class();
        let job = self.jobs.row_mut(row.job);
        self.requests.unlink(job.queues.of_mut(class), number);
        self.requests.forget(number);
        let user_row = job.user;
        job.account.flows.of_mut(class).queued -= 1;
        self.users.row_mut(user_row).account.flows.of_mut(class).queued -= 1;
        self.classes.of_mut(class).queued -= 1;
        self.root.queued -= 1;
        self.leave_queue(class, user_row, row.job);
        for flow in [
            self.users.row_mut(user_row).account.flows.of_mut(class),
            self.classes.of_mut(class),
            &mut self.root,
        ] {
            flow.settle();
        }
        Some(row.request.token)
    }

    /// The time at which `pop` must be called again although nothing arrives or completes: a limit
    /// opens then. Valid after `pop` returned `None`.
    #[must_use]
    pub const fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Sets the limits of a user; the usual ones delete them.
    ///
    /// # Errors
    /// The limits are impossible, or too many users have some.
    pub fn set_user(&mut self, now: u64, user: u32, limits: Limits) -> Result<(), LimitsError> {
        let limits = limits.checked()?;
        let row = self.user_row(user).ok_or(LimitsError::TooMany)?;
        self.users.row_mut(row).account.set_limits(now, limits);
        Ok(())
    }

    /// Sets the limits of a user's job; the usual ones delete them.
    ///
    /// # Errors
    /// The limits are impossible, or too many jobs of the user have some.
    pub fn set_job(
        &mut self,
        now: u64,
        user: u32,
        job: u64,
        limits: Limits,
    ) -> Result<(), LimitsError> {
        let limits = limits.checked()?;
        let user_row = self.user_row(user).ok_or(LimitsError::TooMany)?;
        let job_row = self.job_row(user_row, job);
        let account = &mut self.jobs.row_mut(job_row).account;
        if account.id != job {
            return Err(LimitsError::TooMany);
        }
        account.set_limits(now, limits);
        Ok(())
    }

    /// Service of a user so far; `None` if it is not known here, or no longer.
    #[must_use]
    pub fn user_usage(&self, user: u32) -> Option<Usage> {
        let row = *self.user_rows.get(&user)?;
        Some(self.users.row(row).account.usage)
    }

    /// Service of a user's job so far; `None` if it is not known here, or no longer.
    #[must_use]
    pub fn job_usage(&self, user: u32, job: u64) -> Option<Usage> {
        let user = self.users.row(*self.user_rows.get(&user)?);
        let mut accounts = user.jobs.iter().map(|&row| &self.jobs.row(row).account);
        Some(accounts.find(|account| account.id == job)?.usage)
    }

    /// Requests that wait.
    #[must_use]
    pub const fn queued(&self) -> u32 {
        self.root.queued
    }

    /// Requests at the device.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.root.in_flight
    }

    /// Learned cost of a kind of work.
    #[must_use]
    pub const fn cost(&self, work: Work) -> &CostModel {
        self.costs.of(work)
    }

    /// Time passes.
    fn advance(&mut self, now: u64) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        if self.root.in_flight > 0 {
            self.shared_nanos += passed / u64::from(self.root.in_flight);
        }
    }

    /// After a request left its queue: a user or job without another one is no candidate.
    fn leave_queue(&mut self, class: Class, user_row: u32, job_row: u32) {
        let user = self.users.row_mut(user_row);
        if self.jobs.row(job_row).account.flows.of(class).queued == 0 {
            user.active.of_mut(class).retain(|&row| row != job_row);
        }
        if user.account.flows.of(class).queued == 0 {
            self.active.of_mut(class).retain(|&row| row != user_row);
        }
    }

    /// Row of a user, a new one if there is none; `None` if all are in use.
    fn user_row(&mut self, user: u32) -> Option<u32> {
        if let Some(&row) = self.user_rows.get(&user) {
            return Some(row);
        }
        if self.users.used() >= USERS_MAX {
            let is_idle = |row: u32| {
                let user = self.users.row(row);
                let has_pinned = user.jobs.iter().any(|&job| self.jobs.row(job).account.is_pinned);
                user.account.is_idle() && !user.account.is_pinned && !has_pinned
            };
            let (&old, &row) = self.user_rows.iter().find(|&(_, &row)| is_idle(row))?;
            self.user_rows.remove(&old);
            for job in std::mem::take(&mut self.users.row_mut(row).jobs) {
                self.jobs.release(job);
            }
            self.users.release(row);
        }
        let account = Account::new(u64::from(user));
        let row = self.users.add(User { account, jobs: Vec::new(), active: PerClass::default() });
        self.user_rows.insert(user, row);
        Some(row)
    }

    /// Row of a user's job: a new one, else that of an idle job, else one that it shares with others.
    fn job_row(&mut self, user_row: u32, job: u64) -> u32 {
        let user = self.users.row_mut(user_row);
        if let Some(&row) = user.jobs.iter().find(|&&row| self.jobs.row(row).account.id == job) {
            return row;
        }
        if user.jobs.len() < JOBS_MAX {
            let account = Account::new(job);
            let row = self.jobs.add(Job { account, user: user_row, queues: PerClass::default() });
            user.jobs.push(row);
            return row;
        }
        let is_free = |row: u32| {
            let account = &self.jobs.row(row).account;
            account.is_idle() && !account.is_pinned
        };
        if let Some(row) = user.jobs.iter().copied().find(|&row| is_free(row)) {
            self.jobs.row_mut(row).account = Account::new(job);
            return row;
        }
        let index = (job % user.jobs.len() as u64) as usize;
        user.jobs.get(index).copied().unwrap_or(NONE)
    }
}
