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
//! | `line` | frames that wait to go on a connection, sent by any thread |
//! | `waiting` | who waits for which answer |
//! | `door` | for other threads: to a daemon instead of on a connection |
//! | `transport` | one thread: accepts, dials, reads |
//! | `bulk` | bytes of files, on streams and threads of their own |
//!
//! Invariants:
//!  1. Nothing of a connection reaches the daemon before both sides proved the secret.
//!  2. Each request that was taken is answered exactly once: by its reply or by `Lost`.
//!  3. Queues are bounded; what does not fit is refused at once, never kept for later.
#![forbid(unsafe_code)]

pub mod frame;

pub mod secret;

pub mod handshake;

mod waiting;

mod line;

mod connection;

mod peers;

mod door;

pub mod transport;

pub mod bulk;

pub use door::{Answer, Lost, Sender};
pub use line::Haste;
pub use secret::Secret;
pub use transport::{Handler, Net, Settings};
