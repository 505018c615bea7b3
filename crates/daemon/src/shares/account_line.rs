//! An account (`AccountKey`) as the dispatcher sees it: its limits, and the requests that these hold
//! back. Those that pass go to the way of their daemon (`device`), where accounts have their shares.
//!
//! A limit holds over all ways together: requests that it holds back wait in two lines, one of requests
//! that move bytes, so that others do not wait for bytes that they do not ask for.

use crate::shares::accounts::JobAccount;
use crate::shares::caps::{CapPart, CapPlace};
use crate::shares::device::AccountLimits;
use qos::bucket::Bucket;
use qos::entitlement::ShareRecord;
use qos::rules::Scope;
use qos::scheduler::{Limits, Usage};
use std::collections::VecDeque;
use std::sync::Arc;

/// Bytes of requests that started and that processes have not counted yet, at most.
const AHEAD_MAX: i64 = 256 << 20;

/// A request in a line.
#[derive(Clone, Copy)]
pub(crate) struct LineEntry {
    /// Its number at the dispatcher.
    pub(crate) token: u64,
    pub(crate) bytes: u64,
}

/// See the module.
pub(crate) struct AccountLine {
    pub(crate) facts: Arc<JobAccount>,
    /// As the rule says.
    pub(crate) limits: Limits,
    scope: Scope,
    /// Parts of caps.
    pub(crate) bytes_part: Option<CapPart>,
    pub(crate) operations_part: Option<CapPart>,
    bytes: Bucket,
    operations: Bucket,
    /// Those that move bytes, and the others.
    lines: [VecDeque<LineEntry>; 2],
    /// Requests that passed the limits and have not ended.
    pub(crate) passed: u32,
    /// Requests that have not started, and their bytes.
    pub(crate) waiting: u64,
    pub(crate) bytes_waiting: u64,
    /// Service so far.
    pub(crate) usage: Usage,
    /// Time in which requests waited at the ends of periods.
    pub(crate) throttled_nanos: u64,
    pub(crate) used_at: u64,
    /// Its shares on the ways, and what it got of them.
    pub(crate) share: ShareRecord,
    local: LocalUse,
}

/// Bytes that the account's processes moved without a request (`local`).
#[derive(Clone, Copy, Default)]
struct LocalUse {
    /// Bytes that processes counted, less those of requests that started.
    ahead: i64,
    /// `Usage::bytes` at the last look.
    started: u64,
    /// Since the last report.
    in_period: u64,
    total: u64,
}

impl AccountLine {
    pub(crate) fn new(
        now: u64,
        facts: Arc<JobAccount>,
        (limits, scope): (Limits, Scope),
        place: CapPlace,
    ) -> AccountLine {
        let mut line = AccountLine {
            facts,
            limits: Limits::default(),
            scope,
            bytes_part: None,
            operations_part: None,
            bytes: Bucket::default(),
            operations: Bucket::default(),
            lines: Default::default(),
            passed: 0,
            waiting: 0,
            bytes_waiting: 0,
            usage: Usage::default(),
            throttled_nanos: 0,
            used_at: now,
            share: ShareRecord::default(),
            local: LocalUse::default(),
        };
        line.set_limits(now, (limits, scope), place);
        line
    }

    /// The rules have changed.
    pub(crate) fn set_limits(
        &mut self,
        now: u64,
        (limits, scope): (Limits, Scope),
        place: CapPlace,
    ) {
        (self.limits, self.scope) = (limits, scope);
        for (part, cap) in [
            (&mut self.bytes_part, limits.bytes_per_second_max),
            (&mut self.operations_part, limits.operations_per_second_max),
        ] {
            if part.as_ref().map_or(0, |part| part.cap) != cap {
                *part = CapPart::new(now, cap, place);
            }
        }
        self.apply_parts(now);
    }

    /// Another daemon divides caps: it knows nothing of the grants of now.
    pub(crate) fn renew_parts(&mut self, now: u64, place: CapPlace) {
        for part in [&mut self.bytes_part, &mut self.operations_part] {
            *part = part.as_ref().and_then(|part| CapPart::new(now, part.cap, place));
        }
        self.apply_parts(now);
    }

    /// The instance got daemons.
    pub(crate) fn grow(&mut self, place: CapPlace) {
        let parts = [&mut self.bytes_part, &mut self.operations_part];
        parts.into_iter().flatten().for_each(|part| part.grow(place));
    }

    /// Puts the parts of caps in force as they are now.
    pub(crate) fn apply_parts(&mut self, now: u64) {
        let rate = |part: &Option<CapPart>| part.as_ref().map_or(0, |part| part.per_second(now));
        let (bytes, operations) = (rate(&self.bytes_part), rate(&self.operations_part));
        for (bucket, rate) in [(&mut self.bytes, bytes), (&mut self.operations, operations)] {
            if bucket.per_second() != rate {
                bucket.set_rate(now, rate);
            }
        }
    }

    /// Bytes and operations per second that it may use here; 0: any number.
    pub(crate) const fn rates(&self) -> (u64, u64) {
        (self.bytes.per_second(), self.operations.per_second())
    }

    /// Its limits on each way: caps and the number of its requests hold over all ways, here.
    pub(crate) fn on_a_way(&self) -> AccountLimits {
        let bytes = self.bytes.per_second();
        let minimum = self.limits.bytes_per_second_min;
        let limits = Limits {
            bytes_per_second_max: 0,
            operations_per_second_max: 0,
            in_flight_max: 0,
            dirty_bytes_max: 0,
            // The part of this daemon may be less than the minimum of all.
            bytes_per_second_min: if bytes > 0 { minimum.min(bytes) } else { minimum },
            ..self.limits
        };
        if self.scope == Scope::User {
            let of_user = Limits { weight: limits.weight, ..Limits::default() };
            let of_job = Limits { weight: Limits::default().weight, ..limits };
            return AccountLimits { of_user, of_job };
        }
        AccountLimits { of_user: Limits::default(), of_job: limits }
    }

    /// Its processes counted so many bytes of transfers since the last call. Those that requests moved
    /// are paid for; the others are paid here. Returns for how long its processes may move none.
    pub(crate) fn note_counted(&mut self, now: u64, counted: u64) -> u64 {
        let local = &mut self.local;
        let started = self.usage.bytes.wrapping_sub(local.started);
        local.started = self.usage.bytes;
        // A request starts before its bytes are counted, or, if nobody waits for it, after.
        let ahead = local.ahead.saturating_add_unsigned(counted).saturating_sub_unsigned(started);
        local.ahead = ahead.clamp(-AHEAD_MAX, 0);
        let unpaid = u64::try_from(ahead).unwrap_or(0);
        if unpaid > 0 {
            self.used_at = now;
            local.in_period = local.in_period.saturating_add(unpaid);
            local.total = local.total.saturating_add(unpaid);
            self.bytes_part.iter_mut().for_each(|part| part.note(unpaid));
            self.bytes.take(now, unpaid);
        }
        self.bytes.opens_at(now).saturating_sub(now)
    }

    /// Bytes that its processes moved without a request.
    pub(crate) const fn bytes_local(&self) -> u64 {
        self.local.total
    }

    /// A period ends: bytes that wait here. Processes that used most of its rate are taken to want the
    /// whole cap: what they would have moved is not known.
    pub(crate) fn end_period(&mut self, period_nanos: u64) -> u64 {
        let of_period = |rate: u64| {
            let bytes = u128::from(rate) * u128::from(period_nanos) / 1_000_000_000;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let moved = std::mem::take(&mut self.local.in_period);
        let uses_most = moved > 0 && moved >= of_period(self.bytes.per_second()) / 4 * 3;
        let missed = if uses_most { of_period(self.limits.bytes_per_second_max) } else { 0 };
        self.bytes_waiting.saturating_add(missed)
    }

    /// A request comes.
    pub(crate) fn arrive(&mut self, now: u64, entry: LineEntry, moves_bytes: bool) {
        self.used_at = now;
        self.bytes_part.iter_mut().for_each(|part| part.note(entry.bytes));
        self.operations_part.iter_mut().for_each(|part| part.note(1));
        self.waiting += 1;
        self.bytes_waiting += entry.bytes;
        let [data, other] = &mut self.lines;
        if moves_bytes { data.push_back(entry) } else { other.push_back(entry) }
    }

    /// The next request that its limits let pass, of those that move no bytes first.
    pub(crate) fn pass(&mut self, now: u64) -> Option<LineEntry> {
        let is_open = self.limits.in_flight_max == 0 || self.passed < self.limits.in_flight_max;
        if !is_open || !self.operations.is_open(now) {
            return None;
        }
        let [_, other] = &self.lines;
        if other.is_empty() && !self.bytes.is_open(now) {
            return None;
        }
        self.pass_anyway(now)
    }

    /// The next request, whatever its limits: it pays, and others wait for longer.
    pub(crate) fn pass_anyway(&mut self, now: u64) -> Option<LineEntry> {
        let [data, other] = &mut self.lines;
        let entry = other.pop_front().or_else(|| data.pop_front())?;
        self.operations.take(now, 1);
        self.bytes.take(now, entry.bytes);
        self.passed += 1;
        Some(entry)
    }

    /// When a limit opens for the requests in the lines; `None`: none is there, or one must end first.
    pub(crate) fn opens_at(&self, now: u64) -> Option<u64> {
        let [data, other] = &self.lines;
        let is_open = self.limits.in_flight_max == 0 || self.passed < self.limits.in_flight_max;
        if !is_open || data.is_empty() && other.is_empty() {
            return None;
        }
        let operations = self.operations.opens_at(now);
        let is_only_data = other.is_empty();
        Some(if is_only_data { operations.max(self.bytes.opens_at(now)) } else { operations })
    }

    /// True if requests wait for a limit.
    pub(crate) fn has_line(&self) -> bool {
        self.lines.iter().any(|line| !line.is_empty())
    }

    /// A request started that had come at `came_at`.
    pub(crate) fn start(&mut self, now: u64, came_at: u64, bytes: u64, device_nanos: u64) {
        self.waiting = self.waiting.saturating_sub(1);
        self.bytes_waiting = self.bytes_waiting.saturating_sub(bytes);
        let waited = now.saturating_sub(came_at);
        let usage = &mut self.usage;
        usage.requests = usage.requests.saturating_add(1);
        usage.bytes = usage.bytes.saturating_add(bytes);
        usage.device_nanos = usage.device_nanos.saturating_add(device_nanos);
        usage.wait_nanos = usage.wait_nanos.saturating_add(waited);
        usage.wait_nanos_max = usage.wait_nanos_max.max(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn line(bytes_per_second_max: u64) -> AccountLine {
        let facts = JobAccount { number: 1, ..JobAccount::under(1, b"a", None) };
        let limits = Limits { bytes_per_second_max, ..Limits::default() };
        let place = CapPlace { daemon: 0, daemons: 1 };
        AccountLine::new(0, Arc::new(facts), (limits, Scope::Job), place)
    }

    #[test]
    fn bytes_are_paid_once_with_a_request_or_without() {
        let mut line = line(1000);
        let request = LineEntry { token: 1, bytes: 1000 };
        line.arrive(SECOND, request, true);
        assert!(line.pass(SECOND).is_some());
        line.start(SECOND, SECOND, 1000, 1);
        // 100 ms are saved up.
        assert_eq!(line.note_counted(SECOND, 0), SECOND * 9 / 10 + 1);
        assert_eq!(line.note_counted(2 * SECOND, 1000), 0, "the request paid");
        assert_eq!(line.bytes_local(), 0);
        assert_eq!(line.note_counted(4 * SECOND, 2100), 2 * SECOND + 1);
        assert_eq!((line.bytes_local(), line.end_period(SECOND)), (2100, 1000));
        assert_eq!(line.end_period(SECOND), 0);
    }

    #[test]
    fn requests_that_pass_a_closed_limit_are_paid_by_later_ones() {
        let mut line = line(1000);
        let entry = |token| LineEntry { token, bytes: 1000 };
        (0..3).for_each(|token| line.arrive(SECOND, entry(token), true));
        assert_eq!(line.pass(SECOND).map(|one| one.token), Some(0));
        assert!(line.pass(SECOND).is_none(), "the limit is closed");
        let passed = [line.pass_anyway(SECOND), line.pass_anyway(SECOND)];
        assert_eq!(passed.map(|one| one.map(|one| one.token)), [Some(1), Some(2)]);
        assert!(!line.has_line() && line.pass_anyway(SECOND).is_none());
        line.arrive(SECOND, entry(3), true);
        // 100 ms are saved up.
        assert!(line.pass(SECOND / 10 * 38).is_none());
        assert_eq!(line.pass(4 * SECOND).map(|one| one.token), Some(3));
    }
}
