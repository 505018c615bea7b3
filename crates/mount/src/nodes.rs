//! Nodes, by which the kernel names files: inode numbers, all but the root's where the instance's root
//! is not the kernel's but a directory in it (`aside`).

use fuse::abi;
use wire::Inode;
use wire::limits::SHARD_COUNT;

use crate::serve::Server;

/// The node of the instance's root then.
const BELOW: u64 = u64::MAX;
/// Its name in the kernel's root, where nothing else is. Tables of mounts show it.
pub(crate) const BELOW_NAME: &str = "instance";

const _: () = assert!(Inode::ROOT.0 == abi::ROOT, "nodes are inode numbers");
const _: () = assert!((BELOW >> 48) >= SHARD_COUNT as u64, "no shard gives that number");

/// The file that the kernel means. Its root is the instance's for all but names in it.
pub(crate) fn inode_of(node: u64) -> Inode {
    if node == BELOW { Inode::ROOT } else { Inode(node) }
}

impl Server {
    /// How the kernel knows a file.
    pub(crate) fn node_of(&self, inode: Inode) -> u64 {
        let is_below = self.is_aside && inode == Inode::ROOT;
        if is_below { BELOW } else { inode.0 }
    }

    /// True of the directory that the instance's root is in.
    pub(crate) fn is_above(&self, node: u64) -> bool {
        self.is_aside && node == abi::ROOT
    }
}
