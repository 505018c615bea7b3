//! Notifications to the kernel: its cache is invalid, or it should send a request.
//!
//! They have a header with the code in place of a reply's errno, and 0 for the request.

use wire::codec::Writer;

use crate::abi::{OUT_HEADER_BYTES, notify};

/// A notification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice<'a> {
    /// Invalidates attributes of a node, and its pages from `offset` on, `length` bytes; 0: to the
    /// end. A negative offset: no page.
    Inode {
        /// The node.
        node: u64,
        /// First byte.
        offset: i64,
        /// Bytes.
        length: i64,
    },
    /// Invalidates a name.
    Entry {
        /// The node of the directory.
        directory: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A name was removed, if it led to that node: watchers of the directory are notified.
    Deleted {
        /// The node of the directory.
        directory: u64,
        /// The node.
        node: u64,
        /// The name.
        name: &'a [u8],
    },
    /// Invalidates all names. From version 7.44 on.
    AllNames,
    /// Requests no bytes of a file: the kernel sends a `NOTIFY_REPLY` and waits for nothing.
    Poke {
        /// The node, of a regular file.
        node: u64,
        /// Identifies the request: no other request in flight has it, and it is even and not 0,
        /// which a kernel that sends by rings takes for a mistake of its own.
        unique: u64,
    },
}

impl Notice<'_> {
    /// Writes it whole, with its header; returns its length. `None` if it does not fit.
    pub fn write(&self, to: &mut [u8]) -> Option<usize> {
        let (code, body) = match self {
            Notice::Inode { .. } => (notify::INVAL_INODE, 24),
            Notice::Entry { name, .. } => (notify::INVAL_ENTRY, 16 + name.len() + 1),
            Notice::Deleted { name, .. } => (notify::DELETE, 24 + name.len() + 1),
            Notice::AllNames => (notify::INC_EPOCH, 0),
            Notice::Poke { .. } => (notify::RETRIEVE, 32),
        };
        let mut to = Writer::new(to);
        to.u32((OUT_HEADER_BYTES + body) as u32);
        to.u32(code);
        to.u64(0);
        match *self {
            Notice::AllNames => {}
            Notice::Inode { node, offset, length } => {
                to.u64(node);
                to.u64(offset.cast_unsigned());
                to.u64(length.cast_unsigned());
            }
            Notice::Entry { directory, name } => {
                to.u64(directory);
                to.u32(name.len() as u32);
                to.u32(0);
                to.raw(name);
                to.u8(0);
            }
            Notice::Deleted { directory, node, name } => {
                to.u64(directory);
                to.u64(node);
                to.u32(name.len() as u32);
                to.u32(0);
                to.raw(name);
                to.u8(0);
            }
            Notice::Poke { node, unique } => {
                to.u64(unique);
                to.u64(node);
                to.u64(0);
                to.u64(0);
            }
        }
        to.finish().ok()
    }
}
