//! Posts: operations that a client completes by itself (B1). What it wrote into shared memory is
//! done as far as anybody can see; the shard takes it over before it answers whoever might look.
//!
//! A post is not answered and can not fail: its sender made sure of that (`shm::posts`). Applied
//! twice, after a crash, it does nothing the second time.

use crate::attributes::Attributes;
use crate::codec::messages;
use crate::id::Inode;

/// Sequence numbers of inodes that posts make: a space of their own, so that clients count through it
/// without asking. The numbers below are given by the shard itself.
pub const SEQUENCE_FIRST: u64 = 1 << 47;

/// Most bytes of an encoded post.
pub const POST_BYTES_MAX: usize = 448;
/// Longest name in a post; a longer one costs a message.
pub const POST_NAME_BYTES_MAX: usize = 255;

messages! {
    /// A post.
    pub enum Post<'a> {
        /// A new regular file with these attributes under a name that did not exist. `spread` is
        /// that of the directory.
        0x01 Create { parent: Inode, spread: u8, attributes: Attributes, name: &'a [u8] }
        /// The only name of a file of the same service, which was open nowhere on its host, is gone,
        /// since `at` (nanoseconds since 1970). Number 2 was the same without it.
        0x04 Unlink { parent: Inode, spread: u8, inode: Inode, at: u64, name: &'a [u8] }
        /// A file of this host was closed. Its row in the host segment still counts the opening, and
        /// says what was written and not told.
        0x03 Close { inode: Inode, row: u32 }
    }
}

const _: () = assert!(
    1 + 8 + 1 + crate::attributes::ATTRIBUTES_BYTES + 4 + POST_NAME_BYTES_MAX <= POST_BYTES_MAX
);

impl Post<'_> {
    /// The inode that it is about.
    #[must_use]
    pub const fn inode(&self) -> Inode {
        match *self {
            Post::Create { attributes: Attributes { inode, .. }, .. }
            | Post::Unlink { inode, .. }
            | Post::Close { inode, .. } => inode,
        }
    }
}
