//! The store of history: jobs with their profiles and advice, the load of instances by second and by
//! minute, and events. It outlives the instances.
//!
//! Reading order: `record` (the things that are stored), `error`, `store` (the interface of a store,
//! and its retention), `sqlite` (one file of a
//! user), `postgres` (a server of a site, whose
//! answers `bounded` does not wait for long), `recorder` (the queue and the thread that write).
//! Not here: asking an instance, advice, and the choice of the place (crate `cli`).
//!
//! *Invariant:* a recorder never makes its caller wait: what a store does not take in time is dropped and
//! counted. *Invariant:* a store has a bounded size. *Invariant:* no password is in an error.
#![forbid(unsafe_code)]

pub mod record;

pub mod error;

pub mod store;

pub mod sqlite;

pub mod bounded;

pub mod postgres;

mod pass_file;

pub mod recorder;
