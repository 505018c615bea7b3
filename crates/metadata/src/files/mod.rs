//! Inodes of this service: attributes, access control lists, extended attributes, inline contents,
//! which hosts have a file open, and the size that all hosts agree on.

pub(crate) mod acls;
pub(crate) mod attributes;
pub(crate) mod births;
pub(crate) mod contents;
pub(crate) mod host_messages;
pub(crate) mod mount_lookup;
pub(crate) mod new_inode;
pub(crate) mod open_files;
pub(crate) mod openings;
pub(crate) mod removal;
pub(crate) mod size_coherence;
pub(crate) mod stored_xattrs;
pub(crate) mod target_ops;
pub(crate) mod xattr;

use crate::core::context::Context;
use crate::directories::leases::Leases;
use crate::directories::remote_copies::RemoteDirectories;
use crate::files::removal::Removals;
use crate::files::size_coherence::Sizes;
use crate::kernel_cache::KernelCaches;
use crate::locks::requests::FileLocks;
use crate::pools::choice::Pools;
use crate::quota::grants::Grants;

/// The layer of inodes: the context, and the subjects that requests about inodes need. It depends on
/// neither `namespace` nor the imports and probes of `backing`, which are above it.
pub(crate) struct Files {
    pub(crate) cx: Context,
    pub(crate) grants: Grants,
    pub(crate) leases: Leases,
    pub(crate) directories: RemoteDirectories,
    pub(crate) caches: KernelCaches,
    pub(crate) sizes: Sizes,
    pub(crate) locks: FileLocks,
    pub(crate) removals: Removals,
    pub(crate) pools: Pools,
}

impl Files {
    /// The layer over a context, without volatile state.
    pub(crate) fn new(cx: Context) -> Files {
        Files {
            cx,
            grants: Grants::default(),
            leases: Leases::default(),
            directories: RemoteDirectories::default(),
            caches: KernelCaches::default(),
            sizes: Sizes::default(),
            locks: FileLocks::default(),
            removals: Removals::default(),
            pools: Pools::default(),
        }
    }
}
