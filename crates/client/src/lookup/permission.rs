//! Permission checks: by the mode of a file, and by its access control list if it has one. The list
//! is fetched from the shard each time, since few files have one.

use wire::acl::{ACCESS, Acl};
use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::{Attributes, Credentials, Reply, Request};

use crate::transport::Transport;
use crate::transport::request::Destination;

/// Checks whether `caller` has all of `access` (bits of `want`).
#[inline]
pub(crate) fn permits(
    transport: &Transport,
    file: &Attributes,
    caller: &Credentials,
    access: u32,
) -> Result<()> {
    match file.is_up_to_acl(caller) {
        true => permits_by_acl(transport, file, caller, access),
        false => file.permits(caller, access),
    }
}

#[cold]
fn permits_by_acl(
    transport: &Transport,
    file: &Attributes,
    caller: &Credentials,
    access: u32,
) -> Result<()> {
    let request = Request::GetXattr { inode: file.inode, name: ACCESS };
    let answer = match transport.call(Destination::Shard(file.inode.shard()), &request, caller) {
        // The list was removed meanwhile.
        Err(Errno::ENODATA) => return file.permits(caller, access),
        answer => answer?,
    };
    answer.with(|reply| {
        let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
        let acl = Acl::parse(bytes)?.ok_or(Errno::EIO)?;
        let may = acl.permits((file.uid, file.gid), caller, access);
        if may { Ok(()) } else { Err(Errno::EACCES) }
    })
}

/// Checks whether `caller` may change the entries of `parent`.
pub(crate) fn may_change(
    transport: &Transport,
    parent: &Attributes,
    caller: &Credentials,
) -> Result<()> {
    permits(transport, parent, caller, want::WRITE | want::EXECUTE)
}

/// Checks whether `caller` may remove `file` from `parent`. In a sticky directory only owners
/// may; that is checked even for callers that a kernel has checked, because the kernel may have
/// seen another file.
pub(crate) fn may_remove(
    transport: &Transport,
    parent: &Attributes,
    file: Option<&Attributes>,
    caller: &Credentials,
) -> Result<()> {
    may_change(transport, parent, caller)?;
    if parent.mode & mode::STICKY == 0 || caller.is_owner_of_all() || caller.uid == parent.uid {
        return Ok(());
    }
    match file {
        Some(file) if file.uid != caller.uid => Err(Errno::EPERM),
        _ => Ok(()),
    }
}
