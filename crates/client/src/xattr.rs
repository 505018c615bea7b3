//! Extended attributes.
//!
//! Names of the kernel's other name spaces (`system.`, `security.`) are refused as a file system
//! without them does: programs that copy attributes then leave them out.

use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::limits::XATTR_VALUE_BYTES_MAX;
use wire::request::xattr;
use wire::{Attributes, Credentials, Reply, Request};

use crate::errno::{by_path, xattr_name};
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::request::{Answer, To};
use crate::{Client, OfdIndex};

/// Which name space a name is in, and whether `who` may use it.
fn check(attributes: &Attributes, name: &[u8], wanted: u32, who: &Credentials) -> Result<()> {
    xattr_name(name)?;
    if name.starts_with(b"user.") {
        let is_plain = attributes.is_regular() || attributes.is_directory();
        return match is_plain {
            true => attributes.permits(who, wanted),
            false if wanted == want::READ => Err(Errno::ENODATA),
            false => Err(Errno::EPERM),
        };
    }
    if name.starts_with(b"trusted.") {
        return match who.uid {
            0 => Ok(()),
            _ if wanted == want::READ => Err(Errno::ENODATA),
            _ => Err(Errno::EPERM),
        };
    }
    Err(Errno::EOPNOTSUPP)
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
    fn get_xattr_of(
        &self,
        file: &Attributes,
        name: &[u8],
        value: &mut [u8],
        who: &Credentials,
    ) -> Result<usize> {
        check(file, name, want::READ, who)?;
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
        if flags & !known != 0 || flags & known == known {
            return Err(Errno::EINVAL);
        }
        check(file, name, want::WRITE, who)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Errno::E2BIG);
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
        let request = Request::ListXattr { inode: file.inode };
        take(self.call(To::Shard(file.inode.shard()), &request, who)?, names)
    }

    fn remove_xattr_of(&self, file: &Attributes, name: &[u8], who: &Credentials) -> Result<()> {
        check(file, name, want::WRITE, who)?;
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
        let (owner, other) = (Credentials::of(5, 5), Credentials::of(6, 6));
        assert_eq!(check(&file, b"user.a", want::WRITE, &owner), Ok(()));
        assert_eq!(check(&file, b"user.a", want::WRITE, &other), Err(Errno::EACCES));
        assert_eq!(check(&link, b"user.a", want::WRITE, &owner), Err(Errno::EPERM));
        assert_eq!(check(&file, b"trusted.a", want::READ, &owner), Err(Errno::ENODATA));
        assert_eq!(check(&file, b"security.x", want::READ, &owner), Err(Errno::EOPNOTSUPP));
        assert_eq!(check(&file, b"", want::READ, &owner), Err(Errno::ERANGE));
    }
}
