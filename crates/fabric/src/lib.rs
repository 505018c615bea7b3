//! Bulk data by RDMA: libfabric, loaded at run time.
//!
//! What lives here: own bindings to libfabric's C interface, and on them a safe door: registered
//! memory, reads and writes of a peer's memory, their ends. What does not: who the peers are and what
//! is moved when (addresses and grants are exchanged over the daemons' proven connections, `net`).
//!
//! | module | |
//! |---|---|
//! | `library` | loading, or one line that says why not |
//! | `offer` | what the host offers, and the choice |
//! | `endpoint` | the door: regions, peers, transfers |
//! | `bulk` | the bytes of files between daemons by it, or by TCP without it |
//!
//! Invariants:
//!  1. No memory is reachable by a device or a peer that is not mapped.
//!  2. A transfer's end is told once, and nothing of it is under way then.
//!  3. Nothing blocks but `Endpoint::wait`, and that until its deadline.

mod abi;

mod error;

mod library;

mod offer;

mod objects;

mod transfers;

mod endpoint;

pub mod bulk;

#[cfg(test)]
mod layout;

pub use endpoint::{
    Endpoint, GRANT_BYTES, Grant, Peer, Place, Reach, Region, RemotePlace, Settings,
};
pub use error::{Error, Result};
pub use library::Library;
pub use offer::{Offer, choose};
pub use transfers::Completion;
