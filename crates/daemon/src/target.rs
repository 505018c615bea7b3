//! The data side of a daemon: its single `data::Target`, which worker 0 owns.
//!
//! Policies are in the crate `data`; this module performs their effects and supplies their inputs.
//! Bytes of the backing store come through `backing`.
//!
//! ```text
//!  ticks -> inputs -> requests -> driver   each starts steps; the driver performs the effects
//!  effects: Performers                     bytes, entries of the extent table, orders, replies
//!  pending | space | tiering | backing::locations | profile | leaving
//!  devices                                 memory and SSD, and the tables beside them
//! ```
//!
//! Reading order: `driver` (a step), `requests`, `inputs` (messages of other threads), `ticks`
//! (deadlines), `effects`, `devices`, then one module for each subject.

pub(crate) mod devices;
pub(crate) mod driver;
pub(crate) mod effects;
mod inputs;
pub(crate) mod leaving;
pub(crate) mod pending;
pub(crate) mod profile;
mod requests;
pub(crate) mod space;
mod ticks;
pub(crate) mod tiering;

pub(crate) use devices::{Devices, Protection, TransferHazards};
pub(crate) use driver::TargetLoop;

use std::time::{Duration, Instant};

/// Microseconds until `at`, and at least 100.
pub(crate) fn micros_until(at: Instant) -> u64 {
    let left = at.saturating_duration_since(Instant::now()).max(Duration::from_micros(100));
    u64::try_from(left.as_micros()).unwrap_or(u64::MAX)
}
