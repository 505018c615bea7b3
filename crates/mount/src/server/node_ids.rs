//! Node ids, by which the kernel names files: inode numbers, except that the instance's root has
//! another id if it is a directory in the kernel's root (`device::detached`).

use fuse::abi;
use wire::Inode;
use wire::limits::SHARD_COUNT;

/// Node id of the instance's root in that case.
pub(crate) const NESTED_ROOT: u64 = u64::MAX;

/// Its name in the kernel's root, which contains nothing else. Mount tables show it.
pub(crate) const INSTANCE_NAME: &str = "instance";

const _: () = assert!(Inode::ROOT.0 == abi::ROOT, "nodes are inode numbers");

const _: () = assert!((NESTED_ROOT >> 48) >= SHARD_COUNT as u64, "no shard gives that number");

/// The inode of a node. The kernel's root counts as the instance's root, except for names in it.
pub(crate) fn inode_of(node: u64) -> Inode {
    if node == NESTED_ROOT { Inode::ROOT } else { Inode(node) }
}
