//! Bulk data by RDMA: libfabric, loaded at run time.
//!
//! Here: own bindings to libfabric's C interface, and on them a safe interface:
//! registered memory, reads and writes of a peer's memory, their completions. Not here: the
//! choice of peers and of transfers (addresses and grants are exchanged over the daemons'
//! authenticated connections, `net`).
//!
//! | module | |
//! |---|---|
//! | `library` | loading, or one line that states why not |
//! | `offer` | the providers of the host, and the choice |
//! | `endpoint` | the safe interface: regions, peers, transfers |
//! | `bulk` | the bytes of files between daemons by it, or by TCP without it |
//!
//! Invariants:
//!  1. A device or a peer can reach only memory that is mapped.
//!  2. A transfer completes once, and no part of it is in flight then.
//!  3. Nothing blocks but `Endpoint::wait`, and that until its deadline.
#![expect(unsafe_code, reason = "bindings to a C library, and devices that reach our memory")]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

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
