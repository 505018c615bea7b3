//! Which daemons of an instance are alive, and which of them owns and follows each metadata service
//! (O5, O6, O7, F6, B7).
//!
//! - `membership`, `homes`, `change`: the replicated state, and what each change does to it; `policy`:
//!   the next change that the settings ask for; `exchange`: homes that change for an even load;
//!   `voters`: the daemons that agree on it; `units`: the table of units of file data (crate
//!   `replicas`) in it.
//! - `consensus`: one order of changes for all daemons.
//! - `shipping`: the log of a service from its owner to its followers.
//! - `node`: one daemon's part in all of it, the interface of the crate.
//!
//! The crate is a core: it reads no clock and does no I/O, and equal inputs give equal actions. It
//! does not know what a record of a log means. How a follower joins, an owner dies and hands over,
//! step by step: docs/internals/cluster.md.
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]

pub mod membership;

mod homes;

pub mod exchange;

pub mod change;

pub mod units;

pub mod voters;

pub mod policy;

pub mod consensus;

pub mod shipping;

pub mod node;

/// A proposal without an effect, and a parcel without a receipt, are sent again after this time.
pub(crate) const REPEAT_NANOS: i64 = 200_000_000;
