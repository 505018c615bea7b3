//! Extended attributes, by the rules of `xattr(7)`, including access control lists. Attributes that
//! a file lacks cost no message: its attributes tell.
//!
//! Names of the kernel's other namespace (the rest of `system.`) are refused as by a file system
//! without them, so programs that copy attributes leave them out.

use wire::acl::{ACCESS, DEFAULT};
use wire::attributes::{extra, want};
use wire::errno::{Errno, Result};
use wire::limits::{XATTR_SIZE_MAX, XATTR_VALUE_BYTES_MAX};
use wire::request::xattr;
use wire::{Attributes, Credentials, Reply, Request};

use crate::OfdIndex;
use crate::file::open_file;
use crate::lookup::path::{At, Follow, Outcome, PathBuffer};
use crate::lookup::{PathLookup, find, permission};
use crate::names::{inherited, pools, prefetch, quota};
use crate::transport::Transport;
use crate::transport::errno::{by_path, xattr_name};
use crate::transport::request::{Answer, Destination};

/// Checks the namespace of a name and whether `caller` may use it. Returns the bits of `want` that
/// the file must permit besides.
fn check(attributes: &Attributes, name: &[u8], access: u32, caller: &Credentials) -> Result<u32> {
    xattr_name(name)?;
    let refused = Err(if access == want::READ { Errno::ENODATA } else { Errno::EPERM });
    if name.starts_with(b"user.") {
        let is_plain = attributes.is_regular() || attributes.is_directory();
        return if is_plain { Ok(access) } else { refused };
    }
    if name.starts_with(b"trusted.") {
        return if caller.is_privileged() { Ok(0) } else { refused };
    }
    if name.starts_with(b"security.") {
        let may = caller.is_privileged() || access == want::READ;
        return if may { Ok(0) } else { Err(Errno::EPERM) };
    }
    if name == ACCESS || name == DEFAULT { Ok(0) } else { Err(Errno::EOPNOTSUPP) }
}

/// False if the file's attributes tell that it has no such extended attribute.
fn may_have(file: &Attributes, name: &[u8]) -> bool {
    file.has(match name {
        ACCESS => extra::ACCESS_ACL,
        DEFAULT => extra::DEFAULT_ACL,
        _ => extra::XATTRS,
    })
}

/// Copies a reply out, or only returns its length if `to` is empty.
fn take(answer: Answer<'_>, to: &mut [u8]) -> Result<usize> {
    answer.with(|reply| {
        let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
        if !to.is_empty() {
            to.get_mut(..bytes.len()).ok_or(Errno::ERANGE)?.copy_from_slice(bytes);
        }
        Ok(bytes.len())
    })
}

fn may_use(
    transport: &Transport,
    file: &Attributes,
    name: &[u8],
    access: u32,
    caller: &Credentials,
) -> Result<()> {
    match check(file, name, access, caller)? {
        0 => Ok(()),
        access => permission::permits(transport, file, caller, access),
    }
}

fn get_xattr_of(
    transport: &Transport,
    file: &Attributes,
    name: &[u8],
    value: &mut [u8],
    caller: &Credentials,
) -> Result<usize> {
    may_use(transport, file, name, want::READ, caller)?;
    if name == prefetch::NAME {
        return prefetch::get_prefetch(transport, file, value, caller);
    }
    if inherited::is_name(name) {
        return inherited::get(file, transport.copies(), name, value);
    }
    if name == quota::PROJECT {
        return quota::get_project(file, value);
    }
    if name == pools::POOL {
        return pools::get_pool(transport, file, value);
    }
    if !may_have(file, name) {
        return Err(Errno::ENODATA);
    }
    let request = Request::GetXattr { inode: file.inode, name };
    take(transport.call(Destination::Shard(file.inode.shard()), &request, caller)?, value)
}

fn set_xattr_of(
    transport: &Transport,
    file: &Attributes,
    (name, value): (&[u8], &[u8]),
    flags: u32,
    caller: &Credentials,
) -> Result<()> {
    let known = xattr::CREATE | xattr::REPLACE;
    if flags & !(known | xattr::KILL_SGID) != 0 {
        return Err(Errno::EINVAL);
    }
    if name == prefetch::NAME {
        // It changes nothing but the location of bytes.
        may_use(transport, file, name, want::READ, caller)?;
        return prefetch::set_prefetch(transport, file, value, caller);
    }
    may_use(transport, file, name, want::WRITE, caller)?;
    if inherited::is_name(name) {
        return inherited::set_inherited(transport, file, (name, value), caller);
    }
    if name == quota::PROJECT {
        return quota::set_project(transport, file, value, caller);
    }
    if name == pools::POOL {
        return pools::set_pool_of(transport, file, value, caller);
    }
    if value.len() > XATTR_VALUE_BYTES_MAX {
        let is_ours = value.len() <= XATTR_SIZE_MAX;
        return Err(if is_ours { Errno::ENOSPC } else { Errno::E2BIG });
    }
    let request = Request::SetXattr { inode: file.inode, name, value, flags };
    transport.call_done(Destination::Shard(file.inode.shard()), &request, caller)
}

fn list_xattr_of(
    transport: &Transport,
    file: &Attributes,
    names: &mut [u8],
    caller: &Credentials,
) -> Result<usize> {
    if !file.has(extra::XATTRS) {
        return Ok(0);
    }
    let request = Request::ListXattr { inode: file.inode };
    take(transport.call(Destination::Shard(file.inode.shard()), &request, caller)?, names)
}

fn remove_xattr_of(
    transport: &Transport,
    file: &Attributes,
    name: &[u8],
    caller: &Credentials,
) -> Result<()> {
    may_use(transport, file, name, want::WRITE, caller)?;
    let request = Request::RemoveXattr { inode: file.inode, name };
    transport.call_done(Destination::Shard(file.inode.shard()), &request, caller)
}

/// `getxattr(2)`, `lgetxattr(2)`: returns the length of the value; an empty `value` requests
/// only that.
pub(crate) fn get_xattr(
    paths: &PathLookup,
    at: At<'_>,
    follow: Follow,
    (name, value): (&[u8], &mut [u8]),
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<usize>> {
    find::with_found(paths, at, follow, caller, buffer, |file| {
        get_xattr_of(&paths.transport, file, name, value, caller)
    })
}

/// `fgetxattr(2)`.
pub(crate) fn fget_xattr(
    transport: &Transport,
    ofd: OfdIndex,
    (name, value): (&[u8], &mut [u8]),
    caller: &Credentials,
) -> Result<usize> {
    by_path(get_xattr_of(
        transport,
        &open_file::attributes_open(transport, ofd)?,
        name,
        value,
        caller,
    ))
}

/// `setxattr(2)`, `lsetxattr(2)`.
pub(crate) fn set_xattr(
    paths: &PathLookup,
    at: At<'_>,
    follow: Follow,
    named: (&[u8], &[u8]),
    flags: u32,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    find::with_found(paths, at, follow, caller, buffer, |file| {
        set_xattr_of(&paths.transport, file, named, flags, caller)
    })
}

/// `fsetxattr(2)`.
pub(crate) fn fset_xattr(
    transport: &Transport,
    ofd: OfdIndex,
    named: (&[u8], &[u8]),
    flags: u32,
    caller: &Credentials,
) -> Result<()> {
    by_path(set_xattr_of(
        transport,
        &open_file::attributes_open(transport, ofd)?,
        named,
        flags,
        caller,
    ))
}

/// `listxattr(2)`, `llistxattr(2)`.
pub(crate) fn list_xattr(
    paths: &PathLookup,
    at: At<'_>,
    follow: Follow,
    names: &mut [u8],
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<usize>> {
    find::with_found(paths, at, follow, caller, buffer, |file| {
        list_xattr_of(&paths.transport, file, names, caller)
    })
}

/// `flistxattr(2)`.
pub(crate) fn flist_xattr(
    transport: &Transport,
    ofd: OfdIndex,
    names: &mut [u8],
    caller: &Credentials,
) -> Result<usize> {
    by_path(list_xattr_of(transport, &open_file::attributes_open(transport, ofd)?, names, caller))
}

/// `removexattr(2)`, `lremovexattr(2)`.
pub(crate) fn remove_xattr(
    paths: &PathLookup,
    at: At<'_>,
    follow: Follow,
    name: &[u8],
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    find::with_found(paths, at, follow, caller, buffer, |file| {
        remove_xattr_of(&paths.transport, file, name, caller)
    })
}

/// `fremovexattr(2)`.
pub(crate) fn fremove_xattr(
    transport: &Transport,
    ofd: OfdIndex,
    name: &[u8],
    caller: &Credentials,
) -> Result<()> {
    by_path(remove_xattr_of(transport, &open_file::attributes_open(transport, ofd)?, name, caller))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::attributes::mode;

    #[test]
    fn each_xattr_namespace_has_its_own_rules() {
        let file = Attributes { mode: mode::REGULAR | 0o644, uid: 5, ..Attributes::default() };
        let link = Attributes { mode: mode::SYMLINK | 0o777, ..file };
        let owner = Credentials::of(5, 5);
        assert_eq!(check(&file, b"user.a", want::WRITE, &owner), Ok(want::WRITE));
        assert_eq!(check(&link, b"user.a", want::WRITE, &owner), Err(Errno::EPERM));
        assert_eq!(check(&file, b"trusted.a", want::READ, &owner), Err(Errno::ENODATA));
        assert_eq!(check(&file, b"security.x", want::READ, &owner), Ok(0));
        assert_eq!(check(&file, b"security.x", want::WRITE, &owner), Err(Errno::EPERM));
        assert_eq!(check(&file, ACCESS, want::WRITE, &owner), Ok(0));
        assert_eq!(check(&file, b"system.x", want::READ, &owner), Err(Errno::EOPNOTSUPP));
        assert_eq!(check(&file, b"", want::READ, &owner), Err(Errno::ERANGE));
    }

    #[test]
    fn attributes_tell_which_xattrs_a_file_lacks() {
        let plain = Attributes::default();
        let listed = Attributes { extras: extra::XATTRS | extra::ACCESS_ACL, ..plain };
        assert!(!may_have(&plain, ACCESS) && !may_have(&plain, b"user.a"));
        assert!(may_have(&listed, ACCESS) && may_have(&listed, b"user.a"));
        assert!(!may_have(&listed, DEFAULT));
    }
}
