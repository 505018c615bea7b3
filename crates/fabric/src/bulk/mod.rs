//! Bulk transfers whose bytes go by remote memory access: `net::bulk::Fabric` by libfabric.
//!
//! Both daemons of a transfer have registered slots. A store is copied into a slot of the daemon that
//! starts it, the other reads that slot into one of its own and copies from there to where the
//! bytes belong. A fetch goes the other way: the other daemon copies into its slot and writes that to
//! the starter's. What they say to each other goes over a proven stream, as with TCP.
//!
//! | module | |
//! |---|---|
//! | `record` | what is said on the stream; a pure codec |
//! | `pipe` | the stream |
//! | `slots` | registered memory |
//! | `ours` | transfers that we started at one peer |
//! | `theirs` | visits on a stream that a peer dialled |
//! | `mover` | the thread that owns all of it |
//! | `doors` | the choice between libfabric and TCP |
//!
//! Invariants:
//!  1. As `net::bulk` 1 and 2: each transfer ends once; those of the same MiB of a file keep their order.
//!  2. The window in which a peer reaches our slots is closed before a transfer is lost: what the
//!     peer does late fails. A peer's new stream is taken only when nothing of the one before is
//!     under way.
//!  3. What can not go this way goes by TCP: peers without libfabric, accesses that fail.

mod record;

mod pipe;

mod slots;

mod ours;

mod theirs;

mod mover;

mod doors;

pub use doors::{Choice, Doors, Lanes};
pub use mover::Mover;
