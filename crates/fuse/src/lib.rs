//! The protocol that the kernel speaks with a file system outside it, version 7.31 to 7.44.
//!
//! What lives here: numbers of the interface (`abi`), requests taken apart (`request`), bodies of
//! replies (`reply`), what both sides agree on at the start (`init`), words to the kernel that
//! nobody asked for (`notice`), where requests lie that come by rings (`ring`), and the kernel's table
//! of mounts (`table`). What does not: how bytes come and go (`/dev/fuse`, io_uring), and what a
//! request does: both in `mount`.
//!
//! A request is a header, a part of fixed size for each operation, and a rest: names, or data. A
//! device hands over all three in one piece, a ring the three apart, so they are parsed apart.
#![forbid(unsafe_code)]
#![no_std]

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
