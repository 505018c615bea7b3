//! Words to the kernel that nobody asked for: what it remembers is old, or that it send a request.
//! A header with the code where a reply has its errno, and 0 for the request.

use wire::codec::Writer;

use crate::abi::{OUT_HEADER_BYTES, notify};

/// What is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice<'a> {
    /// Attributes of a node, and its pages from `offset` on, `length` bytes; 0: to the end. A negative
    /// offset: no page.
    Inode {
        /// The node.
        node: u64,
        /// First byte.
        offset: i64,
        /// Bytes.
        length: i64,
    },
    /// What a name leads to.
    Entry {
        /// The node of the directory.
        directory: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A name that is gone, if it led to that node: who watches the directory is told.
    Deleted {
        /// The node of the directory.
        directory: u64,
        /// The node.
        node: u64,
        /// The name.
        name: &'a [u8],
    },
    /// All names are to be looked up anew. From version 7.44 on.
    AllNames,
    /// No byte of a file is sent for: the kernel sends a `NOTIFY_REPLY` and waits for nothing.
    Poke {
        /// The node, of a regular file.
        node: u64,
        /// Names the request: no other that is under way has it, and it is even and not 0, which a kernel
        /// that sends by rings takes for a mistake of its own.
        unique: u64,
    },
}

impl Notice<'_> {
    /// Writes it whole, with its header; says how long it is. `None` if it does not fit.
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
