//! Daemons talk to daemons: frames, the handshake, and the connections that carry both.
//!
//! What lives here: bytes on a TCP connection and who is at its other end. What does not: what a
//! request means (`wire`), who is asked (`gateway`), what to do when a peer is gone (`daemon`).
//!
//! | module | |
//! |---|---|
//! | `frame` | the unit on a connection; a pure decoder |
//! | `secret` | what the daemons of an instance share and never send |
//! | `handshake` | both sides prove the secret; a pure state machine |
//! | `transport` | one thread: accepts, dials, reads, writes; its door for other threads |
//!
//! Invariants:
//!  1. Nothing of a connection reaches the daemon before both sides proved the secret.
//!  2. Each request handed in is answered exactly once: by its reply or by `Lost`.
//!  3. Queues are bounded; what does not fit is refused at once, never kept for later.
#![forbid(unsafe_code)]

pub mod frame;

pub mod secret;

pub mod handshake;

mod connection;

mod peers;

pub mod transport;

pub use secret::Secret;
pub use transport::{Answer, Handler, Lost, Net, Sender, Settings};
