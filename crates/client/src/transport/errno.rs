//! Errno values of each kind of entry point where they differ from the daemon's answer.

use wire::Inode;
use wire::errno::{Errno, Result};
use wire::limits::XATTR_NAME_BYTES_MAX;

/// For calls by path: an inode that vanished between lookup and request is a name that does not
/// exist.
pub(crate) fn by_path<T>(result: Result<T>) -> Result<T> {
    result.map_err(|errno| if errno == Errno::ESTALE { Errno::ENOENT } else { errno })
}

/// For calls by descriptor: an inode that is gone although it is open was lost by the daemon.
pub(crate) fn by_descriptor<T>(result: Result<T>) -> Result<T> {
    result.map_err(|errno| if errno == Errno::ESTALE { Errno::EIO } else { errno })
}

/// Treats a file that is already gone as success.
pub(crate) fn ignore_gone(result: Result<()>) -> Result<()> {
    match result {
        Err(Errno::ESTALE) => Ok(()),
        other => other,
    }
}

/// Refuses an open file description without an inode.
pub(crate) fn existing(inode: Inode) -> Result<Inode> {
    if inode.is_none() { Err(Errno::EBADF) } else { Ok(inode) }
}

/// Checks the name of an extended attribute as `setxattr(2)` does.
pub(crate) fn xattr_name(name: &[u8]) -> Result<&[u8]> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX { Err(Errno::ERANGE) } else { Ok(name) }
}
