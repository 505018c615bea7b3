//! The border between a daemon and whoever asks it: sessions, admission, routing.
//!
//! What lives here: whose word is believed, what a request may look like, who answers it. What does
//! not: bytes in shared memory (`shm`), connections (`net`), what a request does (`metadata`,
//! `data`). No I/O, no clock.
//!
//! Invariants:
//!  1. What passed admission is well-formed: names are names, numbers are in their bounds. Nobody
//!     behind it checks that again.
//!  2. A request is passed on at most once: one that came from a peer is answered here or not at
//!     all.
//!  3. A wrong request is answered to whoever sent it and changes nothing for anybody else.
#![forbid(unsafe_code)]

pub mod session;

pub mod admit;

mod check;

pub mod route;

pub use admit::{Admitted, admit_from_peer, admit_from_session};
pub use route::{Route, Router};
pub use session::{Believed, Session, Sessions};
