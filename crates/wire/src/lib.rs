//! The vocabulary of Forebay: ids, attributes, errors, limits, and the messages with their codec.
//!
//! Everything that two crates or two processes must agree on lives here, and nothing else: no
//! policy, no I/O, no allocation (the crate is loaded into applications). What is stored by the
//! metadata log is described beside the log; what lies in shared memory, in the crate `shm`.
//!
//! Reading order: `limits`, `id`, `errno`, `attributes`, `credentials`, `acl`, `name`, `hash`, `codec`,
//! `header`, `origin`, `request`, `reply`, `post`, `lease`, `watch`, `quota`, `welcome`.
#![forbid(unsafe_code)]
#![no_std]

#[cfg(test)]
extern crate std;

pub mod limits;

pub mod id;

pub mod errno;

pub mod attributes;

pub mod credentials;

pub mod acl;

pub mod name;

pub mod hash;

pub mod codec;

pub mod header;

pub mod origin;

pub mod request;

pub mod reply;

pub mod post;

pub mod lease;

pub mod watch;

pub mod quota;

pub mod below;

pub mod welcome;

pub use attributes::{Attributes, Layout};
pub use codec::{Malformed, Reader, Writer};
pub use credentials::Credentials;
pub use errno::Errno;
pub use header::Header;
pub use id::{DaemonIndex, Inode, ShardIndex};
pub use post::Post;
pub use reply::Reply;
pub use request::Request;
pub use welcome::Welcome;
