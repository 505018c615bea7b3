//! Which errno leaves through which door, where it is not the one that a daemon answered with.

use wire::Inode;
use wire::errno::{Errno, Result};
use wire::limits::XATTR_NAME_BYTES_MAX;

/// An inode that went away between the look at its name and the request for it: for a path, that
/// is a name that does not exist.
pub(crate) fn by_path<T>(result: Result<T>) -> Result<T> {
    result.map_err(|errno| if errno == Errno::ESTALE { Errno::ENOENT } else { errno })
}

/// An inode that is gone although a descriptor of it is open: the daemon lost it.
pub(crate) fn by_descriptor<T>(result: Result<T>) -> Result<T> {
    result.map_err(|errno| if errno == Errno::ESTALE { Errno::EIO } else { errno })
}

/// What a removal says when the file was gone already.
pub(crate) fn ignore_gone(result: Result<()>) -> Result<()> {
    match result {
        Err(Errno::ESTALE) => Ok(()),
        other => other,
    }
}

/// An open file must have an inode.
pub(crate) fn existing(inode: Inode) -> Result<Inode> {
    if inode.is_none() { Err(Errno::EBADF) } else { Ok(inode) }
}

/// The name of an extended attribute, as `setxattr(2)` checks it.
pub(crate) fn xattr_name(name: &[u8]) -> Result<&[u8]> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX { Err(Errno::ERANGE) } else { Ok(name) }
}
