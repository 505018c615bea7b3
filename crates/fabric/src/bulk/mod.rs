//! Bulk transfers whose bytes go by remote memory access: `net::bulk::Fabric` by libfabric.
//!
//! Both daemons of a transfer have registered slots. A store is copied into a slot of the daemon
//! that starts it; the other reads that slot into one of its own and copies from there to the
//! destination. A fetch goes the other way: the other daemon copies into its slot and writes that
//! to the starter's. Their messages go over an authenticated stream, as with TCP.
//!
//! | module | |
//! |---|---|
//! | `record` | the messages on the stream; a pure codec |
//! | `pipe` | the stream |
//! | `slots` | registered memory |
//! | `outgoing` | transfers that this daemon started at one peer |
//! | `incoming` | visits on a stream that a peer dialled |
//! | `mover` | the thread that owns all of it |
//! | `transport` | the choice between libfabric and TCP |
//!
//! Invariants:
//!  1. As `net::bulk` 1 and 2: each transfer ends once; those of the same MiB of a file keep their
//!     order.
//!  2. The window through which a peer reaches our slots is closed before a transfer is lost: a
//!     late access of the peer fails. A peer's new stream is accepted only when nothing of the
//!     previous one is in flight.
//!  3. Transfers that cannot go this way go by TCP: peers without libfabric, accesses that fail.

mod record;

mod pipe;

mod slots;

mod outgoing;

mod incoming;

mod mover;

mod transport;

pub use mover::Mover;
pub use transport::{BulkTransport, Choice, Lanes};
