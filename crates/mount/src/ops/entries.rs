//! Entries and attributes in the form of the kernel.

use fuse::reply;
use fuse::reply::{Entry, Validity};
use wire::errno::Errno;
use wire::{Attributes, Inode};

use crate::ops::request::Request;

/// Transfer size that is reported to programs as preferred, in bytes.
const PREFERRED_BYTES: u32 = 1 << 20;

/// The kernel's 32-bit encoding of a device number, from that of `stat`.
fn device_of(attributes: &Attributes) -> u32 {
    let device = u64::from(attributes.device);
    let (major, minor) = (libc::major(device), libc::minor(device));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Generation number of an inode. An instance does not reuse inode numbers, but a file handle may
/// outlive it, and the next instance at the mount point may have a file with the same number and
/// another birth time. The kernel knows the root without a lookup, with generation 0.
fn generation_of(file: &Attributes) -> u64 {
    match file.inode {
        Inode::ROOT => 0,
        _ => u64::from(wire::hash::mix(file.born.cast_unsigned(), 7) as u32),
    }
}

/// The error for a node that is gone.
pub(crate) fn stale(errno: Errno) -> Errno {
    if errno == Errno::ENOENT { Errno::ESTALE } else { errno }
}

/// Attributes in the kernel's form.
pub(crate) fn shown(request: &Request<'_>, of: &Attributes) -> reply::Attributes {
    reply::Attributes {
        inode: of.inode.0,
        size: of.shown_size(),
        blocks: request.server.client.usage(of).div_ceil(512),
        times: [of.accessed, of.modified, of.changed],
        mode: of.mode,
        links: of.links,
        uid: request.server.owners.users.inside(of.uid),
        gid: request.server.owners.groups.inside(of.gid),
        device: device_of(of),
        block_size: PREFERRED_BYTES,
    }
}

/// The reply to a lookup.
pub(crate) fn entry(request: &Request<'_>, of: &Attributes, validity: Validity) -> Entry {
    let (node, generation) = (request.server.node_of(of.inode), generation_of(of));
    Entry { node, generation, validity, attributes: shown(request, of) }
}
