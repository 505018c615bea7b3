//! Extended attributes, by the rules of `xattr(7)`, and access control lists, which are some. What a file
//! has none of costs no message: its attributes say so.
//!
//! Names of the kernel's other name space (the rest of `system.`) are refused as a file system without
//! them does: programs that copy attributes then leave them out.

use wire::acl::{ACCESS, DEFAULT};
use wire::attributes::{extra, want};
use wire::errno::{Errno, Result};
use wire::limits::{XATTR_SIZE_MAX, XATTR_VALUE_BYTES_MAX};
use wire::request::xattr;
use wire::{Attributes, Credentials, Reply, Request};

use crate::errno::{by_path, xattr_name};
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::request::{Answer, To};
use crate::{Client, OfdIndex};
use crate::{handed_down, quota, rise};

/// Which name space a name is in, and whether `who` may use it: the bits of `want` that the file must
/// permit besides.
fn check(attributes: &Attributes, name: &[u8], wanted: u32, who: &Credentials) -> Result<u32> {
    xattr_name(name)?;
    let refused = Err(if wanted == want::READ { Errno::ENODATA } else { Errno::EPERM });
    if name.starts_with(b"user.") {
        let is_plain = attributes.is_regular() || attributes.is_directory();
        return if is_plain { Ok(wanted) } else { refused };
    }
    if name.starts_with(b"trusted.") {
        return if who.is_privileged() { Ok(0) } else { refused };
    }
    if name.starts_with(b"security.") {
        let may = who.is_privileged() || wanted == want::READ;
        return if may { Ok(0) } else { Err(Errno::EPERM) };
    }
    if name == ACCESS || name == DEFAULT { Ok(0) } else { Err(Errno::EOPNOTSUPP) }
}

/// False if the file has no such attribute, as its attributes say.
fn may_have(file: &Attributes, name: &[u8]) -> bool {
    file.has(match name {
        ACCESS => extra::ACCESS_ACL,
        DEFAULT => extra::DEFAULT_ACL,
        _ => extra::XATTRS,
    })
}

/// Copies an answer out, or only tells its length if `to` is empty.
fn take(answer: Answer<'_>, to: &mut [u8]) -> Result<usize> {
    answer.with(|reply| {
        let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
        if !to.is_empty() {
            to.get_mut(..bytes.len()).ok_or(Errno::ERANGE)?.copy_from_slice(bytes);
        }
        Ok(bytes.len())
    })
}

impl Client {
    fn may_use(
        &self,
        file: &Attributes,
        name: &[u8],
        wanted: u32,
        who: &Credentials,
    ) -> Result<()> {
        match check(file, name, wanted, who)? {
            0 => Ok(()),
            wanted => self.permits(file, who, wanted),
        }
    }

    fn get_xattr_of(
        &self,
        file: &Attributes,
        name: &[u8],
        value: &mut [u8],
        who: &Credentials,
    ) -> Result<usize> {
        self.may_use(file, name, want::READ, who)?;
        if name == rise::NAME {
            return self.get_rise(file, value, who);
        }
        if handed_down::is_name(name) {
            return handed_down::get(file, name, value);
        }
        if name == quota::PROJECT {
            return quota::get_project(file, value);
        }
        if !may_have(file, name) {
            return Err(Errno::ENODATA);
        }
        let request = Request::GetXattr { inode: file.inode, name };
        take(self.call(To::Shard(file.inode.shard()), &request, who)?, value)
    }

    fn set_xattr_of(
        &self,
        file: &Attributes,
        (name, value): (&[u8], &[u8]),
        flags: u32,
        who: &Credentials,
    ) -> Result<()> {
        let known = xattr::CREATE | xattr::REPLACE;
        if flags & !(known | xattr::KILL_SGID) != 0 {
            return Err(Errno::EINVAL);
        }
        if name == rise::NAME {
            // It changes nothing but where bytes are.
            self.may_use(file, name, want::READ, who)?;
            return self.set_rise(file, value, who);
        }
        self.may_use(file, name, want::WRITE, who)?;
        if handed_down::is_name(name) {
            return self.set_handed_down(file, (name, value), who);
        }
        if name == quota::PROJECT {
            return self.set_project(file, value, who);
        }
        if value.len() > XATTR_VALUE_BYTES_MAX {
            let is_ours = value.len() <= XATTR_SIZE_MAX;
            return Err(if is_ours { Errno::ENOSPC } else { Errno::E2BIG });
        }
        let request = Request::SetXattr { inode: file.inode, name, value, flags };
        self.call_done(To::Shard(file.inode.shard()), &request, who)
    }

    fn list_xattr_of(
        &self,
        file: &Attributes,
        names: &mut [u8],
        who: &Credentials,
    ) -> Result<usize> {
        if !file.has(extra::XATTRS) {
            return Ok(0);
        }
        let request = Request::ListXattr { inode: file.inode };
        take(self.call(To::Shard(file.inode.shard()), &request, who)?, names)
    }

    fn remove_xattr_of(&self, file: &Attributes, name: &[u8], who: &Credentials) -> Result<()> {
        self.may_use(file, name, want::WRITE, who)?;
        let request = Request::RemoveXattr { inode: file.inode, name };
        self.call_done(To::Shard(file.inode.shard()), &request, who)
    }

    /// `getxattr(2)`, `lgetxattr(2)`: the length of the value; an empty `value` asks only for it.
    ///
    /// # Errors
    /// As `getxattr(2)`.
    pub fn get_xattr(
        &self,
        at: At<'_>,
        follow: Follow,
        (name, value): (&[u8], &mut [u8]),
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<usize>> {
        self.with_found(at, follow, who, buffer, |file| self.get_xattr_of(file, name, value, who))
    }

    /// `fgetxattr(2)`.
    ///
    /// # Errors
    /// As `getxattr(2)`.
    pub fn fget_xattr(
        &self,
        ofd: OfdIndex,
        (name, value): (&[u8], &mut [u8]),
        who: &Credentials,
    ) -> Result<usize> {
        by_path(self.get_xattr_of(&self.attributes_open(ofd)?, name, value, who))
    }

    /// `setxattr(2)`, `lsetxattr(2)`.
    ///
    /// # Errors
    /// As `setxattr(2)`.
    pub fn set_xattr(
        &self,
        at: At<'_>,
        follow: Follow,
        named: (&[u8], &[u8]),
        flags: u32,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        self.with_found(at, follow, who, buffer, |file| self.set_xattr_of(file, named, flags, who))
    }

    /// `fsetxattr(2)`.
    ///
    /// # Errors
    /// As `setxattr(2)`.
    pub fn fset_xattr(
        &self,
        ofd: OfdIndex,
        named: (&[u8], &[u8]),
        flags: u32,
        who: &Credentials,
    ) -> Result<()> {
        by_path(self.set_xattr_of(&self.attributes_open(ofd)?, named, flags, who))
    }

    /// `listxattr(2)`, `llistxattr(2)`.
    ///
    /// # Errors
    /// As `listxattr(2)`.
    pub fn list_xattr(
        &self,
        at: At<'_>,
        follow: Follow,
        names: &mut [u8],
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<usize>> {
        self.with_found(at, follow, who, buffer, |file| self.list_xattr_of(file, names, who))
    }

    /// `flistxattr(2)`.
    ///
    /// # Errors
    /// As `listxattr(2)`.
    pub fn flist_xattr(&self, ofd: OfdIndex, names: &mut [u8], who: &Credentials) -> Result<usize> {
        by_path(self.list_xattr_of(&self.attributes_open(ofd)?, names, who))
    }

    /// `removexattr(2)`, `lremovexattr(2)`.
    ///
    /// # Errors
    /// As `removexattr(2)`.
    pub fn remove_xattr(
        &self,
        at: At<'_>,
        follow: Follow,
        name: &[u8],
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        self.with_found(at, follow, who, buffer, |file| self.remove_xattr_of(file, name, who))
    }

    /// `fremovexattr(2)`.
    ///
    /// # Errors
    /// As `removexattr(2)`.
    pub fn fremove_xattr(&self, ofd: OfdIndex, name: &[u8], who: &Credentials) -> Result<()> {
        by_path(self.remove_xattr_of(&self.attributes_open(ofd)?, name, who))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::attributes::mode;

    #[test]
    fn name_spaces_are_kept_apart() {
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
    fn attributes_say_what_a_file_has_none_of() {
        let plain = Attributes::default();
        let listed = Attributes { extras: extra::XATTRS | extra::ACCESS_ACL, ..plain };
        assert!(!may_have(&plain, ACCESS) && !may_have(&plain, b"user.a"));
        assert!(may_have(&listed, ACCESS) && may_have(&listed, b"user.a"));
        assert!(!may_have(&listed, DEFAULT));
    }
}
