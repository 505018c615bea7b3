//! Extended attributes, by the rules of `xattr(7)`: `user.` on files and directories under their
//! permissions, `trusted.` for root, `security.` set by root and read by all. `system.` has only
//! the access control lists (`acls`).

use wire::acl::{ACCESS, Acl, DEFAULT};
use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use wire::request::xattr;
use wire::{Attributes, Credentials, Inode, Reply};

use crate::core::context::Context;
use crate::core::job::{Call, Step, Stop};
use crate::core::state::reply_kind;
use crate::core::table::Xattrs;
use crate::files::Files;
use crate::files::stored_xattrs::{check_space, extras_of, is_list, put_xattrs};

/// Access to an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Files {
    /// Sets or removes a list. An access list that is equivalent to a mode is not stored.
    pub(crate) fn set_acl(
        &mut self,
        call: &Call<'_>,
        inode: Inode,
        (name, list): (&[u8], &[u8]),
        flags: u32,
    ) -> Step<()> {
        let (old, caller) = (self.cx.own_attributes(inode)?, &call.header.caller);
        let acl = if list.is_empty() { None } else { Acl::parse(list)? };
        if old.is_symlink() {
            return Err(Stop::Refused(Errno::EOPNOTSUPP));
        }
        if name == DEFAULT && !old.is_directory() && acl.is_some() {
            return Err(Stop::Refused(Errno::EACCES));
        }
        if !caller.owns(old.uid) {
            return Err(Stop::Refused(Errno::EPERM));
        }
        let (mut new, mut xattrs) = (old, self.cx.state.copy_xattrs(inode));
        match acl {
            Some(acl) if name == DEFAULT || !acl.is_mode() => {
                let mut stored = vec![0; acl.byte_count()];
                acl.store(&mut stored);
                xattrs.insert(name.into(), stored.into());
            }
            _ => drop(xattrs.remove(name)),
        }
        if let Some(acl) = acl.filter(|_| name == ACCESS) {
            new.mode = old.mode & !0o777 | acl.mode();
            let is_member = caller.is_privileged() || caller.is_in_group(old.gid);
            if flags & xattr::KILL_SGID != 0 || !is_member {
                new.mode &= !mode::SET_GID;
            }
        }
        check_space(&xattrs)?;
        if old.is_directory() {
            self.leases.revoke(&mut self.cx, inode)?;
        }
        new.changed = self.cx.stamp(old.changed);
        put_xattrs(&mut self.cx, &new, &xattrs);
        self.cx.done(call, reply_kind::DONE, 0, 0);
        Ok(())
    }

    pub(crate) fn get_xattr(&mut self, call: &Call<'_>, inode: Inode, name: &[u8]) -> Step<()> {
        let attributes = self.cx.own_attributes(inode)?;
        if !is_list(name) {
            self.check_xattr(call, &attributes, name, Access::Read)?;
        }
        let node = self.cx.state.inodes.get(inode).ok_or(Errno::ESTALE)?;
        let value = node.xattrs.as_ref().and_then(|xattrs| xattrs.get(name));
        let bytes = value.ok_or(Errno::ENODATA)?;
        self.cx.io.reply(call.ticket, &Reply::Bytes { bytes });
        Ok(())
    }

    pub(crate) fn set_xattr(
        &mut self,
        call: &Call<'_>,
        inode: Inode,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Step<()> {
        if is_list(name) {
            return self.set_acl(call, inode, (name, value), flags);
        }
        let attributes = self.cx.own_attributes(inode)?;
        if flags & !(xattr::CREATE | xattr::REPLACE) != 0 {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Stop::Refused(Errno::E2BIG));
        }
        self.check_xattr(call, &attributes, name, Access::Write)?;
        let mut xattrs = self.cx.state.copy_xattrs(inode);
        let is_there = xattrs.contains_key(name);
        if is_there && flags & xattr::CREATE != 0 {
            return Err(Stop::Refused(Errno::EEXIST));
        }
        if !is_there && flags & xattr::REPLACE != 0 {
            return Err(Stop::Refused(Errno::ENODATA));
        }
        xattrs.insert(name.into(), value.into());
        check_space(&xattrs)?;
        self.change_xattrs(&attributes, &xattrs)?;
        self.cx.done(call, reply_kind::DONE, 0, 0);
        Ok(())
    }

    /// As `put_xattrs`, with the time of change. Leases and copies of a directory are revoked
    /// first.
    fn change_xattrs(&mut self, old: &Attributes, xattrs: &Xattrs) -> Step<()> {
        if old.is_directory() && extras_of(xattrs, old.extras) != old.extras {
            self.leases.revoke(&mut self.cx, old.inode)?;
        }
        let attributes = Attributes { changed: self.cx.stamp(old.changed), ..*old };
        put_xattrs(&mut self.cx, &attributes, xattrs);
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, call: &Call<'_>, inode: Inode, name: &[u8]) -> Step<()> {
        if is_list(name) {
            return self.set_acl(call, inode, (name, &[]), 0);
        }
        let attributes = self.cx.own_attributes(inode)?;
        self.check_xattr(call, &attributes, name, Access::Write)?;
        let mut xattrs = self.cx.state.copy_xattrs(inode);
        if xattrs.remove(name).is_none() {
            return Err(Stop::Refused(Errno::ENODATA));
        }
        self.change_xattrs(&attributes, &xattrs)?;
        self.cx.done(call, reply_kind::DONE, 0, 0);
        Ok(())
    }

    /// Proceeds if the requester has this access to the attribute `name`.
    fn check_xattr(
        &mut self,
        call: &Call<'_>,
        file: &Attributes,
        name: &[u8],
        access: Access,
    ) -> Step<()> {
        match check(file, name, access, &call.header.caller)? {
            0 => Ok(()),
            rights => self.permits(call, file, rights),
        }
    }
}

pub(crate) fn list_xattr(cx: &mut Context, call: &Call<'_>, inode: Inode) -> Step<()> {
    let node = cx.state.inodes.get(inode).ok_or(Errno::ESTALE)?;
    let mut names = Vec::new();
    for name in node.xattrs.iter().flat_map(|xattrs| xattrs.keys()) {
        // A kernel leaves this check to the file system.
        if call.header.caller.uid == 0 || !name.starts_with(b"trusted.") {
            names.extend_from_slice(name);
            names.push(0);
        }
    }
    cx.io.reply(call.ticket, &Reply::Bytes { bytes: &names });
    Ok(())
}

/// Checks whether `caller` has this access to the attribute `name`, as `xattr_permission` of Linux.
/// Returns the bits of `want` that the file must permit besides.
fn check(file: &Attributes, name: &[u8], access: Access, caller: &Credentials) -> Result<u32> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Errno::ERANGE);
    }
    let is_root = caller.is_privileged();
    let prefix = name.iter().position(|&byte| byte == b'.').map_or(0, |dot| dot + 1);
    let (prefix, rest) = name.split_at(prefix);
    let mut rights = 0;
    let refusal = match access {
        Access::Read => Errno::ENODATA,
        Access::Write => Errno::EPERM,
    };
    match prefix {
        b"trusted." if !is_root => return Err(refusal),
        b"security." if !is_root && access == Access::Write => return Err(Errno::EPERM),
        b"trusted." | b"security." => {}
        b"user." => {
            if !file.is_regular() && !file.is_directory() {
                return Err(refusal);
            }
            let is_sticky = file.is_directory() && file.mode & mode::STICKY != 0;
            if is_sticky && access == Access::Write && !caller.owns(file.uid) {
                return Err(Errno::EPERM);
            }
            rights = if access == Access::Write { want::WRITE } else { want::READ };
        }
        _ => return Err(Errno::EOPNOTSUPP),
    }
    if rest.is_empty() { Err(Errno::EINVAL) } else { Ok(rights) }
}
