//! Users and jobs: their limits, their flows by class, and what they used.

use super::class::{Class, PerClass};
use super::flow::{Flow, WEIGHT_MAX, WEIGHT_USUAL};
use super::requests::Queue;
use crate::bucket::Bucket;
use std::fmt;

/// Limits of a user or job. The usual ones: weight 100, nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Share relative to siblings, 1 to 10,000.
    pub weight: u32,
    /// Cap in bytes per second; 0: none.
    pub bytes_per_second_max: u64,
    /// Cap in operations per second; 0: none.
    pub operations_per_second_max: u64,
    /// Bytes per second that are served before the shares of others; 0: none.
    pub bytes_per_second_min: u64,
    /// Most requests at the device at a time; 0: no limit of its own.
    pub in_flight_max: u32,
    /// Most dirty bytes in the memory of a target (`dirty`); 0: the usual bound. Not of the device.
    pub dirty_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            weight: WEIGHT_USUAL,
            bytes_per_second_max: 0,
            operations_per_second_max: 0,
            bytes_per_second_min: 0,
            in_flight_max: 0,
            dirty_bytes_max: 0,
        }
    }
}

/// Why limits cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitsError {
    /// The weight is not 1 to 10,000.
    Weight(u32),
    /// The minimum is above the cap.
    MinimumAboveCap {
        /// The minimum.
        bytes_per_second_min: u64,
        /// The cap.
        bytes_per_second_max: u64,
    },
    /// Too many users, or too many jobs of this user, have limits of their own.
    TooMany,
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitsError::Weight(weight) => {
                write!(f, "weight={weight} is not 1 to {WEIGHT_MAX}; to stop a job, cap its rate")
            }
            LimitsError::MinimumAboveCap { bytes_per_second_min, bytes_per_second_max } => write!(
                f,
                "the minimum is above the cap: min={bytes_per_second_min} \
                 max={bytes_per_second_max}; lower the minimum or raise the cap"
            ),
            LimitsError::TooMany => {
                write!(
                    f,
                    "too many users or jobs have limits of their own: delete some, or use a rule"
                )
            }
        }
    }
}

impl std::error::Error for LimitsError {}

impl Limits {
    /// The limits, if they are possible.
    ///
    /// # Errors
    /// The weight is out of bounds, or the minimum above the cap.
    pub const fn checked(self) -> Result<Limits, LimitsError> {
        let Limits { weight, bytes_per_second_min, bytes_per_second_max, .. } = self;
        if weight == 0 || weight > WEIGHT_MAX {
            return Err(LimitsError::Weight(weight));
        }
        if bytes_per_second_max > 0 && bytes_per_second_min > bytes_per_second_max {
            return Err(LimitsError::MinimumAboveCap {
                bytes_per_second_min,
                bytes_per_second_max,
            });
        }
        Ok(self)
    }
}

/// Service that a user or job got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests that started.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their device time, as estimated when they started.
    pub device_nanos: u64,
    /// Sum of the times that they waited here.
    pub wait_nanos: u64,
    /// Longest wait.
    pub wait_nanos_max: u64,
}

/// A user or job.
#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) id: u64,
    pub(super) limits: Limits,
    /// It has limits of its own, and is kept.
    pub(super) is_pinned: bool,
    bytes: Bucket,
    operations: Bucket,
    minimum: Bucket,
    pub(super) flows: PerClass<Flow>,
    pub(super) usage: Usage,
}

impl Account {
    pub(super) fn new(id: u64) -> Account {
        Account {
            id,
            limits: Limits::default(),
            is_pinned: false,
            bytes: Bucket::default(),
            operations: Bucket::default(),
            minimum: Bucket::default(),
            flows: PerClass::default(),
            usage: Usage::default(),
        }
    }

    pub(super) fn set_limits(&mut self, now: u64, limits: Limits) {
        self.limits = limits;
        self.is_pinned = limits != Limits::default();
        self.bytes.set_rate(now, limits.bytes_per_second_max);
        self.operations.set_rate(now, limits.operations_per_second_max);
        self.minimum.set_rate(now, limits.bytes_per_second_min);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.flows.all().iter().all(|flow| flow.is_idle())
    }

    fn in_flight(&self) -> u32 {
        self.flows.all().iter().map(|flow| flow.in_flight).sum()
    }

    /// Requests that wait or are at the device.
    pub(super) fn requests(&self) -> u32 {
        self.flows.all().iter().map(|flow| flow.queued + flow.in_flight).sum()
    }

    /// The time from which its own limits let a request start: `now` if they do, `u64::MAX` if
    /// another of its requests must complete first.
    pub(super) fn opens_at(&self, now: u64, class: Class) -> u64 {
        if self.limits.in_flight_max > 0 && self.in_flight() >= self.limits.in_flight_max {
            return u64::MAX;
        }
        // Urgent work frees what the others wait for, so no rate holds it back.
        if class == Class::Urgent {
            return now;
        }
        let operations_open_at = self.operations.opens_at(now);
        // Metadata moves no bytes: it would wait for a debt that it did not make, and that is paid slowly
        // where nobody asks for bytes.
        match class {
            Class::Data => self.bytes.opens_at(now).max(operations_open_at),
            _ => operations_open_at,
        }
    }

    /// Whether it has got less than its minimum.
    pub(super) fn is_below_minimum(&self, now: u64) -> bool {
        self.limits.bytes_per_second_min > 0 && self.minimum.is_open(now)
    }

    /// Counts a request that starts.
    pub(super) fn count(&mut self, now: u64, bytes: u64, device_nanos: u64, wait_nanos: u64) {
        self.bytes.take(now, bytes);
        self.operations.take(now, 1);
        self.minimum.take(now, bytes);
        let usage = &mut self.usage;
        usage.requests = usage.requests.saturating_add(1);
        usage.bytes = usage.bytes.saturating_add(bytes);
        usage.device_nanos = usage.device_nanos.saturating_add(device_nanos);
        usage.wait_nanos = usage.wait_nanos.saturating_add(wait_nanos);
        usage.wait_nanos_max = usage.wait_nanos_max.max(wait_nanos);
    }
}

/// A user.
#[derive(Clone, Debug)]
pub(super) struct User {
    pub(super) account: Account,
    /// Its jobs, by number of their row.
    pub(super) jobs: Vec<u32>,
    /// Those of them with waiting requests, by class.
    pub(super) active: PerClass<Vec<u32>>,
}

/// A job of a user.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) account: Account,
    /// Number of its user's row.
    pub(super) user: u32,
    pub(super) queues: PerClass<Queue>,
}
