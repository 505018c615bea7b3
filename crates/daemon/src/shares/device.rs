//! The way to one daemon, of the files of one pool: which of the requests that wait for it starts next
//! (`qos::scheduler`), and how many may be on their way (`qos::window`). The daemon at its end learns
//! what jobs got, and has windows of hosts be larger (`qos::incoming`).
//!
//! Invariant: while nothing ends for `STALLED_NANOS`, everything starts, and fails in its own time:
//! requests to a daemon that is down wait no longer than without rules.

use qos::entitlement::{Contender, entitled};
use qos::incoming::{JOBS_MAX, JobUse};
use qos::scheduler::{Limits, Options, OptionsError, Request, Scheduler, Started, Ticket};
use qos::window::{WINDOW_MAX, Window};
use std::collections::BTreeMap;

use crate::shares::pool_limits::Way;

/// A job of a user, or under a rule.
pub(crate) type AccountKey = (u32, u64);

/// Places for requests that are not large, beside the window.
const SMALL_PLACES: u32 = 8;
/// Places while nothing ends.
const STALLED_PLACES: u32 = 1 << 15;
/// A shorter period says nothing of the rate of a way: a window may have been filled in it.
const PERIOD_NANOS_MIN: u64 = 50_000_000;
/// Periods after which the rate of a way is taken to be known.
const RATE_PERIODS_MIN: u32 = 10;
/// A way on which nothing ended for so long does not hold back requests.
const STALLED_NANOS: u64 = 1_000_000_000;
/// A way on which the window held nothing back for so long is no longer reported.
const HELD_NANOS: u64 = 1_000_000_000;
/// A job that has requests for so many hundredths of a period would use more: a program that writes block
/// after block has none for a moment.
const WAITS_PERCENT: u64 = 75;

/// Sizes of the scheduler. Slots and buffers of the sessions bound the requests.
const OPTIONS: Options = Options {
    depth: WINDOW_MAX as u32 + SMALL_PLACES,
    large_bytes: 32 << 10,
    large_in_flight_max: WINDOW_MAX as u32,
    requests_max: 1 << 20,
    requests_user_max: 1 << 20,
    metadata_percent: 50,
};

/// Name of a request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WayTicket {
    pub(super) way: Way,
    pub(super) ticket: Ticket,
}

/// Limits of an account in a scheduler.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccountLimits {
    /// Those of the user, where one rule limits all of its jobs together.
    pub(crate) of_user: Limits,
    pub(crate) of_job: Limits,
}

impl AccountLimits {
    pub(crate) fn usual() -> AccountLimits {
        AccountLimits { of_user: Limits::default(), of_job: Limits::default() }
    }
}

/// An account on a way, since the last period ended.
#[derive(Clone, Copy, Default)]
struct WayUse {
    queued: u32,
    on_its_way: u32,
    /// Some waited when the last period ended.
    waited: bool,
    /// Device time of requests that started, and their bytes.
    served: u64,
    bytes: u64,
    /// Time in which it had requests, up to `changed_at`.
    busy_nanos: u64,
    changed_at: u64,
}

impl WayUse {
    /// Counts the time since the last change of its requests.
    const fn advance(&mut self, now: u64) {
        if self.queued + self.on_its_way > 0 {
            self.busy_nanos += now.saturating_sub(self.changed_at);
        }
        self.changed_at = now;
    }
}

/// The part of a way that an account got in a period in which it waited for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeriodShare {
    pub(crate) key: AccountKey,
    pub(crate) got: u64,
    pub(crate) entitled: u64,
}

/// A request on its way.
struct OnItsWay {
    at: u64,
    key: AccountKey,
    is_large: bool,
}

/// See the module.
pub(crate) struct Device {
    scheduler: Scheduler,
    /// As the scheduler has them, where they are not the usual ones.
    limits: BTreeMap<AccountKey, AccountLimits>,
    on_their_way: BTreeMap<Ticket, OnItsWay>,
    uses: BTreeMap<AccountKey, WayUse>,
    window: Window,
    /// Large requests on their way.
    large: u32,
    /// When the window last held requests back.
    held_at: Option<u64>,
    period_begun: u64,
    /// When a request last ended, or started while there was none.
    moved_at: u64,
    rate: WayRate,
}

/// The rate of a way, from periods in which requests waited at the begin and at the end.
#[derive(Clone, Copy, Default)]
struct WayRate {
    /// Bytes of requests that started in this period, which began then.
    bytes: u64,
    begun: u64,
    /// The largest one, and the number of such periods.
    bytes_per_second_max: u64,
    periods: u32,
}

impl WayRate {
    fn end_period(&mut self, now: u64, was_busy: bool) {
        let nanos = now.saturating_sub(self.begun);
        if was_busy && nanos >= PERIOD_NANOS_MIN {
            let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(nanos);
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            self.bytes_per_second_max = self.bytes_per_second_max.max(rate);
            self.periods = self.periods.saturating_add(1);
        }
        (self.bytes, self.begun) = (0, now);
    }
}

impl Device {
    /// Without requests.
    ///
    /// # Errors
    /// Never, with these sizes.
    pub(crate) fn new() -> Result<Device, OptionsError> {
        Ok(Device {
            scheduler: Scheduler::new(OPTIONS)?,
            limits: BTreeMap::new(),
            on_their_way: BTreeMap::new(),
            uses: BTreeMap::new(),
            window: Window::default(),
            large: 0,
            held_at: None,
            period_begun: 0,
            moved_at: 0,
            rate: WayRate::default(),
        })
    }

    /// A request of an account with these limits waits. False: there are too many.
    pub(crate) fn push(&mut self, now: u64, limits: AccountLimits, request: Request) -> bool {
        let key = (request.user, request.job);
        self.set_limits(now, key, limits);
        let is_taken = self.scheduler.push(now, request).is_ok();
        if is_taken {
            let used = self.uses.entry(key).or_default();
            used.advance(now);
            used.queued += 1;
        }
        is_taken
    }

    /// Sets the limits of an account.
    pub(crate) fn set_limits(&mut self, now: u64, key: AccountKey, limits: AccountLimits) {
        let usual = AccountLimits::usual();
        let before = self.limits.get(&key).copied().unwrap_or(usual);
        if before == limits {
            return;
        }
        let (user, job) = key;
        let mut set = Ok(());
        if before.of_user != limits.of_user {
            set = self.scheduler.set_user(now, user, limits.of_user);
        }
        if let Err(error) = set.and_then(|()| self.scheduler.set_job(now, user, job, limits.of_job))
        {
            tracing::warn!(uid = user, %error, "limits not applied");
        }
        if limits == usual {
            self.limits.remove(&key);
        } else {
            self.limits.insert(key, limits);
        }
    }

    /// True if an account has limits here.
    pub(crate) fn knows(&self, key: AccountKey) -> bool {
        self.limits.contains_key(&key)
    }

    /// The next request to start.
    pub(crate) fn pop(&mut self, now: u64) -> Option<Started> {
        if self.scheduler.queued() == 0 {
            return None;
        }
        let places = self.window.places(now, self.large);
        let places = if self.is_stalled(now) { STALLED_PLACES } else { places };
        // Never refused: the places are within their bounds.
        let _ = self.scheduler.set_depth(places + SMALL_PLACES, places);
        let Some(started) = self.scheduler.pop(now) else {
            self.held_at = Some(now);
            return None;
        };
        if self.on_their_way.is_empty() {
            self.moved_at = now;
        }
        let Request { user, job, bytes, .. } = started.request;
        let is_large = bytes >= OPTIONS.large_bytes;
        self.rate.bytes = self.rate.bytes.saturating_add(bytes);
        if let Some(used) = self.uses.get_mut(&(user, job)) {
            used.advance(now);
            used.queued = used.queued.saturating_sub(1);
            used.on_its_way += 1;
            used.served = used.served.saturating_add(started.device_nanos);
            used.bytes = used.bytes.saturating_add(bytes);
        }
        self.large += u32::from(is_large);
        self.on_their_way.insert(started.ticket, OnItsWay { at: now, key: (user, job), is_large });
        Some(started)
    }

    /// A request has ended; its account.
    pub(crate) fn complete(&mut self, now: u64, ticket: Ticket) -> Option<AccountKey> {
        let one = self.on_their_way.remove(&ticket)?;
        self.scheduler.complete(now, ticket);
        self.moved_at = now;
        if let Some(used) = self.uses.get_mut(&one.key) {
            used.advance(now);
            used.on_its_way = used.on_its_way.saturating_sub(1);
        }
        if one.is_large {
            self.window.places(now, self.large);
            self.large = self.large.saturating_sub(1);
            self.window.note_end(now.saturating_sub(one.at));
        }
        Some(one.key)
    }

    /// A period has ended: the shares of those that waited for more at its begin and at its end.
    pub(crate) fn end_period(&mut self, now: u64) -> Vec<PeriodShare> {
        let usual = AccountLimits::usual();
        let contender = |(key, used): (&AccountKey, &WayUse)| {
            let limits = self.limits.get(key).unwrap_or(&usual);
            let waits = used.waited && used.queued > 0;
            let user = (key.0, limits.of_user.weight);
            Contender { user, weight: limits.of_job.weight, waits, served: used.served }
        };
        let contenders: Vec<Contender> = self.uses.iter().map(contender).collect();
        self.rate.end_period(now, contenders.iter().any(|one| one.waits));
        let parts = self.uses.keys().zip(&contenders).zip(entitled(&contenders));
        let waiting = parts.filter(|((_, one), _)| one.waits);
        let share = |((&key, one), entitled): ((&AccountKey, &Contender), u64)| PeriodShare {
            key,
            got: one.served,
            entitled,
        };
        let shares = waiting.map(share).collect();
        self.uses.retain(|_, used| {
            *used = WayUse {
                queued: used.queued,
                on_its_way: used.on_its_way,
                waited: used.queued > 0,
                changed_at: now,
                ..WayUse::default()
            };
            used.waited || used.on_its_way > 0
        });
        self.period_begun = now;
        shares
    }

    /// The bytes that jobs got in the period that ends now, if others may share this way: the window
    /// holds requests back, or has become larger so that it does not. Before `end_period`.
    pub(crate) fn uses_of_period(&mut self, now: u64) -> Option<Vec<JobUse>> {
        let is_held = self.held_at.is_some_and(|at| now < at.saturating_add(HELD_NANOS));
        let nanos = now.saturating_sub(self.period_begun);
        if !(is_held || self.window.is_raised(now))
            || nanos < PERIOD_NANOS_MIN
            || self.uses.is_empty()
        {
            return None;
        }
        let usual = AccountLimits::usual();
        let job_use = |(key, used): (&AccountKey, &mut WayUse)| {
            used.advance(now);
            let limits = self.limits.get(key).unwrap_or(&usual);
            JobUse {
                user: (key.0, limits.of_user.weight),
                job: (key.1, limits.of_job.weight),
                waits: used.busy_nanos >= nanos / 100 * WAITS_PERCENT,
                bytes_per_second: used.bytes.saturating_mul(1_000_000_000) / nanos,
            }
        };
        Some(self.uses.iter_mut().map(job_use).take(JOBS_MAX).collect())
    }

    /// The daemon of the way says by what factor the window is to be larger.
    pub(crate) const fn set_factor(&mut self, now: u64, factor: f64) {
        self.window.set_factor(now, factor);
    }

    /// The bytes per second that this way moved at most while requests waited for it all the time;
    /// `None`: it was not used so for a second.
    pub(crate) fn bytes_per_second(&self) -> Option<u64> {
        (self.rate.periods >= RATE_PERIODS_MIN).then_some(self.rate.bytes_per_second_max)
    }

    fn is_stalled(&self, now: u64) -> bool {
        !self.on_their_way.is_empty() && now >= self.moved_at.saturating_add(STALLED_NANOS)
    }

    /// When `pop` must be called although nothing came or ended; `None`: nothing waits.
    pub(crate) fn deadline(&self) -> Option<u64> {
        if self.scheduler.queued() == 0 {
            return None;
        }
        let stalled_at = self.moved_at.saturating_add(STALLED_NANOS);
        Some(self.scheduler.deadline().map_or(stalled_at, |at| at.min(stalled_at)))
    }

    /// Requests on their way.
    pub(crate) fn in_flight(&self) -> usize {
        self.on_their_way.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qos::scheduler::{USERS_MAX, Work};

    const MILLI: u64 = 1_000_000;

    fn request(job: u64, token: u64) -> Request {
        Request { user: 1, job, work: Work::Write, bytes: 256 << 10, token }
    }

    /// A way that passes a request in `nanos`, in the order in which they start; the numbers of requests
    /// of two jobs that ended. Each keeps so many requests.
    fn served(nanos: u64, kept: [usize; 2], total: usize) -> [usize; 2] {
        let mut device = Device::new().expect("the sizes");
        let (mut now, mut token) = (0, 0);
        let mut ended = [0; 2];
        let mut way = std::collections::VecDeque::new();
        for (job, &kept) in kept.iter().enumerate() {
            for _ in 0..kept {
                token += 1;
                assert!(device.push(now, AccountLimits::usual(), request(job as u64, token)));
            }
        }
        for _ in 0..total {
            while let Some(started) = device.pop(now) {
                way.push_back(started.ticket);
            }
            now += nanos;
            let (_, job) = device.complete(now, way.pop_front().expect("one")).expect("known");
            ended[job as usize] += 1;
            token += 1;
            assert!(device.push(now, AccountLimits::usual(), request(job, token)));
        }
        ended
    }

    #[test]
    fn a_job_with_few_requests_gets_half_of_a_slow_way() {
        // 20 MB/s; one job writes a MiB at a time, the other has twenty such writers.
        let [few, many] = served(13 * MILLI, [4, 80], 1000);
        assert!(few * 10 >= many * 9, "{few} of {}", few + many);
        // 2 MB/s.
        let [few, many] = served(131 * MILLI, [4, 80], 1000);
        assert!(few * 10 >= many * 9, "{few} of {}", few + many);
    }

    /// The way is full and many requests of a job wait: the next place is for the urgent one.
    #[test]
    fn an_urgent_request_gets_the_next_place() {
        let mut device = Device::new().expect("the sizes");
        for token in 0..500 {
            assert!(device.push(0, AccountLimits::usual(), request(1, token)));
        }
        let mut way = Vec::new();
        while let Some(started) = device.pop(0) {
            way.push(started.ticket);
        }
        let urgent = Request { job: 2, work: Work::Urgent, ..request(2, 1000) };
        assert!(device.push(MILLI, AccountLimits::usual(), urgent));
        assert!(device.pop(MILLI).is_none(), "large requests have no place");
        device.complete(2 * MILLI, way.remove(0));
        assert_eq!(device.pop(2 * MILLI).map(|one| one.request.token), Some(1000));
    }

    #[test]
    fn a_job_that_waits_on_a_way_knows_what_it_was_entitled_to() {
        let mut device = Device::new().expect("the sizes");
        let weighed = Limits { weight: 300, ..Limits::default() };
        let limits = AccountLimits { of_job: weighed, ..AccountLimits::usual() };
        for token in 0..500 {
            assert!(device.push(0, limits, request(1, token)));
            assert!(device.push(0, AccountLimits::usual(), request(2, token)));
        }
        assert!(device.push(0, AccountLimits::usual(), request(3, 1)));
        assert_eq!(device.end_period(0), [], "none waited when it began");
        let mut way = std::collections::VecDeque::new();
        for now in (1..200).map(|number| number * MILLI) {
            way.extend(std::iter::from_fn(|| device.pop(now)).map(|started| started.ticket));
            assert!(device.complete(now, way.pop_front().expect("one")).is_some());
        }
        // The third has what it asked for.
        let shares = device.end_period(200 * MILLI);
        let [first, second] = shares[..] else { panic!("{shares:?}") };
        assert_eq!((first.key, second.key), ((1, 1), (1, 2)));
        for share in [first, second] {
            assert!(share.got * 100 > share.entitled * 95, "{share:?}");
            assert!(share.got * 100 < share.entitled * 105, "{share:?}");
        }
        assert!(first.got > 2 * second.got, "{first:?} {second:?}");
    }

    #[test]
    fn the_rate_of_a_way_is_known_once_requests_waited_for_it() {
        let mut device = Device::new().expect("the sizes");
        let mut way = std::collections::VecDeque::new();
        let mut end_periods = |device: &mut Device, periods: u64, begun: u64| {
            for now in (begun..begun + periods * 100).map(|number| number * MILLI) {
                way.extend(std::iter::from_fn(|| device.pop(now)).map(|started| started.ticket));
                if let Some(ticket) = way.pop_front() {
                    assert!(device.complete(now, ticket).is_some());
                }
                if now % (100 * MILLI) == 99 * MILLI {
                    device.end_period(now + MILLI);
                }
            }
        };
        for token in 0..1500 {
            assert!(device.push(0, AccountLimits::usual(), request(1, token)));
        }
        end_periods(&mut device, 5, 0);
        assert_eq!(device.bytes_per_second(), None);
        end_periods(&mut device, 8, 500);
        // A request of 256 KiB ends each millisecond.
        let rate = device.bytes_per_second().expect("it was busy for a second") >> 20;
        assert!((240..=320).contains(&rate), "{rate} MiB/s");
    }

    #[test]
    fn the_window_of_a_fast_way_stays_open() {
        let mut device = Device::new().expect("the sizes");
        for token in 0..1000 {
            assert!(device.push(token * MILLI, AccountLimits::usual(), request(1, token)));
            let started = device.pop(token * MILLI).expect("it starts");
            assert!(device.complete(token * MILLI + MILLI / 2, started.ticket).is_some());
        }
        assert_eq!(device.window.places(1000 * MILLI, 0), WINDOW_MAX as u32);
    }

    #[test]
    fn jobs_of_a_way_are_reported_while_its_window_holds_requests_back() {
        let mut device = Device::new().expect("the sizes");
        let weighed = Limits { weight: 300, ..Limits::default() };
        let limits = AccountLimits { of_job: weighed, ..AccountLimits::usual() };
        assert!(device.push(0, AccountLimits::usual(), request(1, 1)));
        let alone = device.pop(0).expect("it starts");
        assert!(device.complete(MILLI, alone.ticket).is_some());
        assert!(device.uses_of_period(100 * MILLI).is_none(), "nothing waits");
        device.end_period(100 * MILLI);
        for token in 0..26 {
            assert!(device.push(100 * MILLI, limits, request(2, token)));
        }
        let started = std::iter::from_fn(|| device.pop(100 * MILLI)).count() as u64;
        assert_eq!(started, WINDOW_MAX as u64);
        assert!(device.uses_of_period(110 * MILLI).is_none(), "too short");
        let uses = device.uses_of_period(200 * MILLI).expect("the window is full");
        let bytes_per_second = started * (256 << 10) * 10;
        let usual = Limits::default().weight;
        let expected = JobUse { user: (1, usual), job: (2, 300), waits: true, bytes_per_second };
        assert_eq!(uses, [expected]);
        device.end_period(200 * MILLI);
        // It has requests on the way for 60 ms of this period.
        for ticket in device.on_their_way.keys().copied().collect::<Vec<_>>() {
            assert!(device.complete(250 * MILLI, ticket).is_some());
        }
        let last: Vec<_> = std::iter::from_fn(|| device.pop(250 * MILLI)).collect();
        assert_eq!(last.len(), 26 - WINDOW_MAX as usize);
        for one in last {
            assert!(device.complete(260 * MILLI, one.ticket).is_some());
        }
        let uses = device.uses_of_period(300 * MILLI).expect("the window was full lately");
        assert_eq!(uses.iter().map(|one| one.waits).collect::<Vec<_>>(), [false]);
        device.end_period(300 * MILLI);
        assert!(device.uses_of_period(400 * MILLI).is_none(), "nothing moved");
    }

    #[test]
    fn a_way_has_more_requests_while_its_daemon_says_so() {
        let mut device = Device::new().expect("the sizes");
        (0..100).for_each(|_| device.window.note_end(1000 * MILLI));
        for token in 0..30 {
            assert!(device.push(0, AccountLimits::usual(), request(1, token)));
        }
        assert_eq!(std::iter::from_fn(|| device.pop(0)).count(), 2);
        device.set_factor(0, 3.0);
        assert_eq!(std::iter::from_fn(|| device.pop(0)).count(), 4);
        for ticket in device.on_their_way.keys().copied().collect::<Vec<_>>() {
            assert!(device.complete(700 * MILLI, ticket).is_some());
        }
        assert_eq!(std::iter::from_fn(|| device.pop(700 * MILLI)).count(), 2, "it has ended");
    }

    #[test]
    fn a_request_of_one_user_too_many_is_not_taken() {
        let mut device = Device::new().expect("the sizes");
        for user in 0..USERS_MAX as u32 {
            assert!(device.push(0, AccountLimits::usual(), Request { user, ..request(1, 1) }));
        }
        let user = USERS_MAX as u32;
        assert!(!device.push(0, AccountLimits::usual(), Request { user, ..request(1, 1) }));
    }

    #[test]
    fn a_way_on_which_nothing_ends_holds_nothing_back() {
        let mut device = Device::new().expect("the sizes");
        for token in 0..500 {
            assert!(device.push(0, AccountLimits::usual(), request(token % 7, token)));
        }
        let started = std::iter::from_fn(|| device.pop(0)).count();
        assert_eq!(started, WINDOW_MAX as usize);
        let at = device.deadline().expect("others wait");
        assert_eq!(at, STALLED_NANOS);
        let started = started + std::iter::from_fn(|| device.pop(at)).count();
        assert_eq!((started, device.in_flight(), device.deadline()), (500, 500, None));
    }
}
