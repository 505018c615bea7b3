//! Copies of file data on several daemons (O12, O13, O9, F5, F11).
//!
//! - `placement`: units, and which daemons should have the copies of one, by arithmetic alone.
//! - `table`, `change`: the replicated state: which daemon has which copy in which state, and what
//!   each change does to it; `policy`: the next changes that it needs; `space`: what daemons report of
//!   their space.
//! - `operation`, `kept`: an operation on bytes, and the part of a copy's state that survives a
//!   process.
//! - `dirty`: the objects that would be lost with all copies of their unit.
//! - `node`: one daemon's part in all of it, the interface of the crate: `node::primary` orders the
//!   operations of a unit, `node::secondary` follows.
//! - `packet`: what daemons send each other.
//!
//! The crate is a core: it reads no clock, does no I/O and holds no byte of a file; equal inputs
//! give equal actions. The order of changes and leases come from `cluster`. How a write passes, a
//! primary dies and a copy is made anew, step by step: docs/internals/replicas.md.
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]

pub mod placement;

pub mod table;

pub mod change;

pub mod space;

pub mod policy;

pub mod operation;

pub mod kept;

pub mod dirty;

pub mod node;

pub mod packet;
