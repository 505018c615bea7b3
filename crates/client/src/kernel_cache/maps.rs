//! Files of which a kernel of this host has a mapping that may be written. Bytes that a program
//! stores by it are in the kernel's pages only, until they are written back. While there is such a
//! mapping, preloaded programs read, write and truncate the file through the mount, whose kernel
//! orders that with its pages (`BY_KERNEL`).
//!
//! The mark stays with the open inode, which the mapping holds open. It is set before the mapping
//! exists, so what a call that began before misses was not stored yet.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use shm::host::Vnode;
use shm::host::watches::pages;
use wire::errno::{Errno, Result};

use crate::OfdIndex;
use crate::file::open_file;
use crate::transport::Transport;

/// The call is to be made through the mount. No program sees this number: `obey_kernel_maps` is
/// called by those that make such calls.
pub const BY_KERNEL: Errno = Errno(4001);

/// Has calls on such files answered with `BY_KERNEL` from now on.
pub(crate) fn obey_kernel_maps(transport: &Transport) {
    transport.obeys_kernel_maps.store(true, Relaxed);
}

/// Records, before it exists, that a kernel of this host maps a file for writing.
pub(crate) fn note_kernel_map(transport: &Transport, ofd: OfdIndex) -> Result<()> {
    open_file::by_index(transport, ofd)?.vnode.marks.fetch_or(pages::MAPPED, SeqCst);
    Ok(())
}

/// True if calls on an open file are to be made through the mount.
pub(crate) fn is_kernel_mapped(transport: &Transport, ofd: OfdIndex) -> bool {
    open_file::by_index(transport, ofd)
        .is_ok_and(|open| check_kernel_maps(transport, open.vnode).is_err())
}

/// # Errors
/// `BY_KERNEL`.
#[inline]
pub(crate) fn check_kernel_maps(transport: &Transport, vnode: &Vnode) -> Result<()> {
    let is_mapped = vnode.marks.load(Relaxed) & pages::MAPPED != 0;
    if is_mapped { refuse_if_obeying(transport) } else { Ok(()) }
}

#[cold]
fn refuse_if_obeying(transport: &Transport) -> Result<()> {
    if transport.obeys_kernel_maps.load(Relaxed) { Err(BY_KERNEL) } else { Ok(()) }
}
