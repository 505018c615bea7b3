//! Open files that preloaded programs hand over to the kernel (`client::handover`): a name by which
//! a file is found without its path, and descriptors that share a program's open file.
//!
//! The offset of a shared open file is the program's. The kernel keeps its own for the descriptor,
//! and sends it with each request. Reads and writes that begin where the shared offset is move it,
//! so that a program that goes on after its child finds what the child left. Others (`pread`, or
//! after a seek of the child) do not.

use client::{At, Follow};
use fuse::reply::{Entry, Validity};
use wire::Inode;
use wire::codec::Reader;
use wire::errno::{Errno, Result};

use crate::ops::entries;
use crate::ops::entries::stale;
use crate::ops::request::{Request, Scratch, within};

/// Looks up a file that a program has open. For the owner of the mount only, because it ignores
/// the permissions of directories; those of the file are checked by the kernel. Not where the owner is
/// another user in the instance.
///
/// # Errors
/// `ENOENT`.
pub(crate) fn look_up_open(
    request: &Request<'_>,
    inode: Inode,
    scratch: &mut Scratch,
) -> Result<Entry> {
    let uid = request.header.uid;
    if request.server.owners.are_checked_here() {
        return Err(Errno::ENOENT);
    }
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::ENOENT);
    }
    let (client, at) = (request.server.client, At::itself(inode));
    let found = within(client.stat(at, Follow::Never, &request.caller(), &mut scratch.path)?)?;
    // The kernel knows a directory by one name only.
    if !found.is_regular() {
        return Err(Errno::ENOENT);
    }
    request.server.hold_lookup(inode).map_err(stale)?;
    Ok(entries::entry(request, &found, Validity::default()))
}

/// Makes a handle share an open file of the same inode that was opened with the same rights.
///
/// # Errors
/// `EINVAL` for another file or other rights, `EBADF`.
pub(crate) fn share_open(request: &Request<'_>, handle: u64, data: &[u8]) -> Result<()> {
    let client = request.server.client;
    let number = Reader::new(data).u32().map_err(|_| Errno::EINVAL)?;
    let (own, shared) = (request.opened(handle)?, client::OfdIndex(number));
    if !client.retain_open(shared) {
        return Err(Errno::EBADF);
    }
    let access = |of| client.flags(of).map(|flags| flags & libc::O_ACCMODE as u32);
    let is_same = client.inode_of(shared) == Ok(request.node()) && access(shared) == access(own);
    if !is_same {
        client.release(shared);
        return Err(Errno::EINVAL);
    }
    request.server.handles.share(handle, shared)
}

/// After a read or write of `count` bytes: moves the shared offset.
pub(crate) fn note_moved(request: &Request<'_>, handle: u64, offset: u64, count: usize) {
    if request.server.handles.is_shared(handle)
        && let Ok(file) = request.opened(handle)
    {
        let _ = request.server.client.advance_from(file, offset, count as u64);
    }
}
