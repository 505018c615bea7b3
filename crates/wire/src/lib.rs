//! The vocabulary of Forebay: ids, attributes, errors, limits, and the messages with their codec.
//!
//! Here: everything that two crates or two processes must agree on: what messages are made of
//! (`base`), what they speak of (`types`), and the messages themselves (`messages`). Not here:
//! policy, I/O, allocation (the crate is loaded into applications); the records of the metadata
//! log, which are described beside the log; layouts of shared memory, which are in the crate `shm`.
#![forbid(unsafe_code)]
#![no_std]
#![warn(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]

#[cfg(test)]
extern crate std;

mod base;

mod types;

mod messages;

pub use base::{codec, errno, hash, id, limits, name};
pub use messages::{header, local_op, reply, request, welcome};
pub use types::{
    acl, attributes, backing, client_id, credentials, job, lease, losses, names, pool, quota, watch,
};

pub use attributes::{Attributes, Layout};
pub use codec::{Malformed, Reader, Writer};
pub use credentials::Credentials;
pub use errno::Errno;
pub use header::Header;
pub use id::{DaemonIndex, Inode, ShardIndex};
pub use job::JobWord;
pub use local_op::LocalOp;
pub use reply::Reply;
pub use request::Request;
pub use welcome::Welcome;
