//! Extended attributes, by the rules of `xattr(7)`: `user.` on files and directories under their
//! permissions, `trusted.` for root, `security.` set by root and read by all.

use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use wire::request::xattr;
use wire::{Attributes, Credentials, Inode, Reply};

use crate::live::{Ask, Step, Stop};
use crate::record::Record;
use crate::service::{Service, outcome};
use crate::state::{encode_tallies, encode_xattrs};
use crate::table::Xattrs;

/// All names of one inode must fit one reply, and all of it one log record: what ext4 gives with
/// one block of 4 KiB, times four.
const XATTRS_BYTES_MAX: usize = 16 * 1024;
const XATTR_NAMES_BYTES_MAX: usize = 8 * 1024;

/// What is done with an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Service {
    pub(crate) fn get_xattr(&mut self, ask: &Ask<'_>, inode: Inode, name: &[u8]) -> Step<()> {
        let attributes = self.own_attributes(inode)?;
        check(&attributes, name, Access::Read, &ask.header.who)?;
        let node = self.state.inodes.get(inode).ok_or(Errno::ESTALE)?;
        let value = node.xattrs.as_ref().and_then(|xattrs| xattrs.get(name));
        let bytes = value.ok_or(Errno::ENODATA)?;
        self.io.reply(ask.ticket, &Reply::Bytes { bytes });
        Ok(())
    }

    pub(crate) fn list_xattr(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        let node = self.state.inodes.get(inode).ok_or(Errno::ESTALE)?;
        let mut names = Vec::new();
        for name in node.xattrs.iter().flat_map(|xattrs| xattrs.keys()) {
            if ask.header.who.uid == 0 || !name.starts_with(b"trusted.") {
                names.extend_from_slice(name);
                names.push(0);
            }
        }
        self.io.reply(ask.ticket, &Reply::Bytes { bytes: &names });
        Ok(())
    }

    pub(crate) fn set_xattr(
        &mut self,
        ask: &Ask<'_>,
        inode: Inode,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Step<()> {
        let attributes = self.own_attributes(inode)?;
        if flags & !(xattr::CREATE | xattr::REPLACE) != 0 {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Stop::Refused(Errno::E2BIG));
        }
        check(&attributes, name, Access::Write, &ask.header.who)?;
        let mut xattrs = self.copy_xattrs(inode);
        let is_there = xattrs.contains_key(name);
        if is_there && flags & xattr::CREATE != 0 {
            return Err(Stop::Refused(Errno::EEXIST));
        }
        if !is_there && flags & xattr::REPLACE != 0 {
            return Err(Stop::Refused(Errno::ENODATA));
        }
        xattrs.insert(name.into(), value.into());
        let names: usize = xattrs.keys().map(|name| name.len() + 1).sum();
        let values: usize = xattrs.values().map(|value| value.len()).sum();
        if names > XATTR_NAMES_BYTES_MAX || names + values > XATTRS_BYTES_MAX {
            return Err(Stop::Refused(Errno::ENOSPC));
        }
        self.put_xattrs(&attributes, &xattrs);
        self.done(ask, outcome::DONE, 0, 0);
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, ask: &Ask<'_>, inode: Inode, name: &[u8]) -> Step<()> {
        let attributes = self.own_attributes(inode)?;
        check(&attributes, name, Access::Write, &ask.header.who)?;
        let mut xattrs = self.copy_xattrs(inode);
        if xattrs.remove(name).is_none() {
            return Err(Stop::Refused(Errno::ENODATA));
        }
        self.put_xattrs(&attributes, &xattrs);
        self.done(ask, outcome::DONE, 0, 0);
        Ok(())
    }

    fn copy_xattrs(&self, inode: Inode) -> Xattrs {
        let xattrs = self.state.inodes.get(inode).and_then(|node| node.xattrs.as_deref());
        xattrs.cloned().unwrap_or_default()
    }

    fn put_xattrs(&mut self, old: &Attributes, xattrs: &Xattrs) {
        let Some(node) = self.state.inodes.get(old.inode) else { return };
        let attributes = Attributes { changed: self.stamp(old.changed), ..*old };
        let nameless = u8::from(node.is_nameless);
        let (target, contents) = (node.target.clone(), node.contents.clone());
        let (mut encoded, mut tallies) = (Vec::new(), Vec::new());
        encode_xattrs(Some(xattrs), &mut encoded);
        encode_tallies(&node.tallies, &mut tallies);
        self.put(&Record::PutInode {
            attributes,
            nameless,
            target: &target,
            contents: &contents,
            xattrs: &encoded,
            tallies: &tallies,
        });
    }
}

/// May `who` do this to the attribute `name`? As `xattr_permission` of Linux.
fn check(file: &Attributes, name: &[u8], access: Access, who: &Credentials) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Errno::ERANGE);
    }
    let is_root = who.uid == 0;
    let prefix = name.iter().position(|&byte| byte == b'.').map_or(0, |dot| dot + 1);
    let (prefix, rest) = name.split_at(prefix);
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
            if is_sticky && access == Access::Write && !is_root && who.uid != file.uid {
                return Err(Errno::EPERM);
            }
            let wanted = if access == Access::Write { want::WRITE } else { want::READ };
            file.permits(who, wanted)?;
        }
        _ => return Err(Errno::EOPNOTSUPP),
    }
    if rest.is_empty() { Err(Errno::EINVAL) } else { Ok(()) }
}
