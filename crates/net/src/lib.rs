//! Communication between daemons: frames, the handshake, and the connections that carry both.
//!
//! This crate moves bytes over connections and protects them. Elsewhere: the meaning
//! of a request (`wire`), its destination (`gateway`), the reaction to a lost peer (`daemon`).
//!
//! | module | |
//! |---|---|
//! | `frame` | the unit on a connection; a pure decoder |
//! | `security` | the handshake, by which both sides prove the secret, and records; pure |
//! | `socket` | TCP, or a Unix socket within a host |
//! | `link` | output queue of a connection, flushed by any thread |
//! | `pending` | requests that wait for a reply |
//! | `sender` | interface for other threads: addresses daemons instead of connections |
//! | `reach` | whether the host of a peer acknowledges what was sent |
//! | `strangers` | bounds on connections that have proven nothing |
//! | `log_limit` | bounds on lines of the log that strangers cause |
//! | `transport` | one thread: accepts, dials, reads |
//! | `channel` | a stream for the bytes of files, protected or not |
//! | `bulk` | bytes of files, on streams and threads of their own |
//!
//! Invariants:
//!  1. Nothing of a connection reaches the daemon before both sides have proven the secret, and
//!     nothing of a record of a protected connection before it is verified.
//!  2. Each accepted request ends exactly once: by its reply or by `Lost`.
//!  3. Queues are bounded; if one is full, the caller is refused at once.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

pub mod frame;

pub mod security;

pub mod socket;

mod pending;

mod link;

mod connection;
mod incomplete;

mod peers;

mod sender;

mod reach;

mod settings;

mod strangers;

pub mod log_limit;

pub mod transport;

pub mod channel;

pub mod bulk;

pub use channel::Channel;
pub use link::Urgency;
pub use reach::Reach;
pub use security::handshake;
pub use security::secret::Secret;
pub use sender::{Lost, ReplyHandle, Sender};
pub use settings::{Counters, HostDaemons, Settings};
pub use transport::{Handler, Net};
