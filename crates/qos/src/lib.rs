//! Quality of service: each user and job gets its share, and files go where bandwidth is.
//!
//! - `scheduler`: which request is served next, by class, user and job; `cost`: device time of
//!   requests, learned; `bucket`: caps and minima; `entitlement`: whether a job got its share (F7, S6).
//! - `kind_queue`: whether a worker serves metadata or data next (S6).
//! - `window`: how many requests are on the way to a daemon; `incoming`: the windows of several hosts
//!   there.
//! - `rules`: which limits a request falls under; `division`: limits that hold over several daemons,
//!   `exchange`: messages between daemons.
//! - `pool`: pools of targets, and the target of a new file or stripe (S7); `slow`: which targets of a
//!   pool are slow (S8). `sets`: whose turn it is to write to a backing store. `dirty`: how much of a
//!   target's memory a job may fill.
//!
//! The crate is a core: it reads no clock, and equal inputs give equal decisions. It does not know
//! what a request does or how a device works. How it is used: docs/internals/fairness.md.
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]

pub mod bucket;

pub mod cost;

pub mod scheduler;

pub mod entitlement;

pub mod kind_queue;

pub mod window;

pub mod incoming;

pub mod rules;

pub mod division;

pub mod exchange;

pub mod pool;

pub mod slow;

pub mod sets;

pub mod dirty;
