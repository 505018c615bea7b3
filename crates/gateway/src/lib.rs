//! The border between a daemon and its clients and peers: sessions, admission, routing.
//!
//! This crate decides which fields of a request are trusted, which values are valid, and which
//! worker or daemon answers. Elsewhere: bytes in shared memory (`shm`), connections (`net`), the
//! effects of a request (`metadata`, `data`). No I/O, no clock.
//!
//! Invariants:
//!  1. An admitted request is well-formed: names are valid names, numbers are within their bounds.
//!     No later code checks that again.
//!  2. A request is forwarded at most once: a request from a peer is answered here or not at all.
//!  3. An invalid request gets an error reply and has no effect on anyone else.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

pub mod session;

pub mod admit;

mod check;

pub mod route;

pub use admit::{Admitted, admit_from_peer, admit_from_session};
pub use route::{Route, Router};
pub use session::{PeerCredentials, Session, Sessions};
