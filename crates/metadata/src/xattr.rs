//! Extended attributes, by the rules of `xattr(7)`: `user.` on files and directories under their
//! permissions, `trusted.` for root, `security.` set by root and read by all. Of `system.` there are the
//! access control lists (`acls`).

use wire::acl::{ACCESS, Acl, DEFAULT};
use wire::attributes::{mode, want};
use wire::errno::{Errno, Result};
use wire::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use wire::request::xattr;
use wire::{Attributes, Credentials, Inode, Reply};

use crate::acls::{extras_of, is_list};
use crate::effect::Seen;
use crate::live::{Ask, Step, Stop};
use crate::record::Record;
use crate::service::{Service, outcome};
use crate::state::{encode_tallies, encode_xattrs};
use crate::table::Xattrs;

/// All names of one inode must fit one reply, and all of it one log record: what ext4 gives with
/// one block of 4 KiB, times four.
const XATTRS_BYTES_MAX: usize = 16 * 1024;
const XATTR_NAMES_BYTES_MAX: usize = 8 * 1024;

/// Attributes by which programs ask for something of the instance: nothing of a file.
const OWN: &[u8] = b"user.forebay.";

/// What is done with an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Service {
    pub(crate) fn get_xattr(&mut self, ask: &Ask<'_>, inode: Inode, name: &[u8]) -> Step<()> {
        let attributes = self.own_attributes(inode)?;
        if !is_list(name) {
            self.check_xattr(ask, &attributes, name, Access::Read)?;
        }
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
            // A kernel leaves this to the file system, whatever else it checks.
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
        if is_list(name) {
            return self.set_acl(ask, inode, (name, value), flags);
        }
        let attributes = self.own_attributes(inode)?;
        if flags & !(xattr::CREATE | xattr::REPLACE) != 0 {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Stop::Refused(Errno::E2BIG));
        }
        self.check_xattr(ask, &attributes, name, Access::Write)?;
        let mut xattrs = self.copy_xattrs(inode);
        let is_there = xattrs.contains_key(name);
        if is_there && flags & xattr::CREATE != 0 {
            return Err(Stop::Refused(Errno::EEXIST));
        }
        if !is_there && flags & xattr::REPLACE != 0 {
            return Err(Stop::Refused(Errno::ENODATA));
        }
        xattrs.insert(name.into(), value.into());
        self.check_room(&xattrs)?;
        self.change_xattrs(&attributes, &xattrs)?;
        self.done(ask, outcome::DONE, 0, 0);
        Ok(())
    }

    /// Do all of them fit?
    pub(crate) fn check_room(&self, xattrs: &Xattrs) -> Result<()> {
        let names: usize = xattrs.keys().map(|name| name.len() + 1).sum();
        let values: usize = xattrs.values().map(|value| value.len()).sum();
        let fits = names <= XATTR_NAMES_BYTES_MAX && names + values <= XATTRS_BYTES_MAX;
        if fits { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    /// What of the extended attributes that were seen below an inode can have here: access lists first,
    /// as who may do what must not get wider by leaving some out.
    pub(crate) fn xattrs_seen(&self, seen: &Seen<'_>) -> Xattrs {
        let is_directory = seen.mode & mode::TYPE == mode::DIRECTORY;
        let mut all = Xattrs::new();
        let (lists, others): (Vec<_>, Vec<_>) =
            seen.extended.iter().partition(|(name, _)| is_list(name));
        for (name, value) in lists.into_iter().chain(others) {
            let fits = name.len() <= XATTR_NAME_BYTES_MAX && value.len() <= XATTR_VALUE_BYTES_MAX;
            let kept = match is_list(name) {
                _ if name.starts_with(OWN) => None,
                true => list_seen(name, value, is_directory),
                false => fits.then(|| value.as_slice().into()),
            };
            let Some(kept) = kept else { continue };
            all.insert(name.as_slice().into(), kept);
            if self.check_room(&all).is_err() {
                all.remove(name.as_slice());
            }
        }
        all
    }

    /// As `put_xattrs`, with the time of change. Other hosts forget a directory before they could be
    /// wrong about what it has.
    fn change_xattrs(&mut self, old: &Attributes, xattrs: &Xattrs) -> Step<()> {
        if old.is_directory() && extras_of(xattrs, old.extras) != old.extras {
            self.recall(old.inode)?;
        }
        let attributes = Attributes { changed: self.stamp(old.changed), ..*old };
        self.put_xattrs(&attributes, xattrs);
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, ask: &Ask<'_>, inode: Inode, name: &[u8]) -> Step<()> {
        if is_list(name) {
            return self.set_acl(ask, inode, (name, &[]), 0);
        }
        let attributes = self.own_attributes(inode)?;
        self.check_xattr(ask, &attributes, name, Access::Write)?;
        let mut xattrs = self.copy_xattrs(inode);
        if xattrs.remove(name).is_none() {
            return Err(Stop::Refused(Errno::ENODATA));
        }
        self.change_xattrs(&attributes, &xattrs)?;
        self.done(ask, outcome::DONE, 0, 0);
        Ok(())
    }

    /// May who asks do this to the attribute `name`?
    fn check_xattr(
        &mut self,
        ask: &Ask<'_>,
        file: &Attributes,
        name: &[u8],
        access: Access,
    ) -> Step<()> {
        match check(file, name, access, &ask.header.who)? {
            0 => Ok(()),
            wanted => self.permits(ask, file, wanted),
        }
    }

    pub(crate) fn copy_xattrs(&self, inode: Inode) -> Xattrs {
        let xattrs = self.state.inodes.get(inode).and_then(|node| node.xattrs.as_deref());
        xattrs.cloned().unwrap_or_default()
    }

    /// Sets attributes and extended attributes of an inode, and what the one says of the other.
    pub(crate) fn put_xattrs(&mut self, attributes: &Attributes, xattrs: &Xattrs) {
        let Some(node) = self.state.inodes.get(attributes.inode) else { return };
        let old = node.xattrs.as_deref();
        let list = |of: Option<&Xattrs>, name| of.and_then(|all| all.get(name).cloned());
        let names = [ACCESS, DEFAULT];
        let is_same = names.iter().all(|&name| list(old, name) == list(Some(xattrs), name));
        let changes = attributes.extras.wrapping_add(u16::from(!is_same));
        let attributes = Attributes { extras: extras_of(xattrs, changes), ..*attributes };
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

/// A list that was seen below as it is kept here, if it says more than a mode can.
fn list_seen(name: &[u8], list: &[u8], is_directory: bool) -> Option<Box<[u8]>> {
    let acl = Acl::parse(list).ok().flatten()?;
    let is_kept = if name == DEFAULT { is_directory } else { !acl.is_mode() };
    let mut kept = vec![0; acl.byte_count()];
    acl.keep(&mut kept);
    is_kept.then(|| kept.into())
}

/// May `who` do this to the attribute `name`? As `xattr_permission` of Linux: and which bits of `want`
/// the file must permit besides.
fn check(file: &Attributes, name: &[u8], access: Access, who: &Credentials) -> Result<u32> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        return Err(Errno::ERANGE);
    }
    let is_root = who.is_privileged();
    let prefix = name.iter().position(|&byte| byte == b'.').map_or(0, |dot| dot + 1);
    let (prefix, rest) = name.split_at(prefix);
    let mut wanted = 0;
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
            wanted = if access == Access::Write { want::WRITE } else { want::READ };
        }
        _ => return Err(Errno::EOPNOTSUPP),
    }
    if rest.is_empty() { Err(Errno::EINVAL) } else { Ok(wanted) }
}
