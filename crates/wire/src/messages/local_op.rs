//! Local operations: a client completes them by itself in shared memory (B1). They are visible to
//! everybody at once; the shard applies them before it answers any request that might depend on
//! them.
//!
//! A local operation has no reply and cannot fail: the client made sure of that (`shm::local_ops`).
//! Applied twice, after a crash, it does nothing the second time.

use crate::attributes::Attributes;
use crate::codec::messages;
use crate::id::Inode;

/// Maximum length of an encoded local operation.
pub const LOCAL_OP_BYTES_MAX: usize = 448;
/// Longest name in a local operation; a longer one costs a message.
pub const LOCAL_OP_NAME_BYTES_MAX: usize = 255;

messages! {
    /// A local operation.
    pub enum LocalOp<'a> {
        /// A new regular file with these attributes under a name that did not exist. `spread` is
        /// that of the directory.
        0x01 Create { parent: Inode, spread: u8, attributes: Attributes, name: &'a [u8] }
        /// The only name of a file of the same service, which was not open on its host, is removed,
        /// since `at` (nanoseconds since 1970). Number 2 was the same without it.
        0x04 Unlink { parent: Inode, spread: u8, inode: Inode, at: u64, name: &'a [u8] }
        /// A file of this host was closed. `vnode`: its open inode in the host segment, which still
        /// counts the open, and holds the unreported size.
        0x03 Close { inode: Inode, vnode: u32 }
    }
}

const _: () = assert!(
    1 + 8 + 1 + crate::attributes::ATTRIBUTES_BYTES + 4 + LOCAL_OP_NAME_BYTES_MAX
        <= LOCAL_OP_BYTES_MAX
);

impl LocalOp<'_> {
    /// The inode of the operation.
    #[must_use]
    pub const fn inode(&self) -> Inode {
        match *self {
            LocalOp::Create { attributes: Attributes { inode, .. }, .. }
            | LocalOp::Unlink { inode, .. }
            | LocalOp::Close { inode, .. } => inode,
        }
    }
}
