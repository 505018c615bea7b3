//! The protocol between the kernel and a file system in user space, version 7.31 to 7.44.
//!
//! Here: numbers of the interface (`abi`), parsing of requests (`request`), bodies of
//! replies (`reply`), the negotiation at the start (`init`), notifications to the kernel
//! (`notice`), the layout of requests that come by rings (`ring`), and the kernel's table of mounts
//! (`table`). Not here: the transport (`/dev/fuse`, io_uring), and what a request does: both
//! in `mount`.
//!
//! A request is a header, a part of fixed size for each operation, and a rest: names, or data. A
//! device delivers all three in one piece, a ring the three apart, so they are parsed apart.
#![forbid(unsafe_code)]
#![no_std]
#![warn(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(target_endian = "big")]
compile_error!("the kernel's structures are read as little-endian");

pub mod abi;
pub mod init;
pub mod notice;
pub mod reply;
pub mod request;
pub mod ring;
pub mod table;

pub use init::Agreed;
pub use request::{Header, Operation};
