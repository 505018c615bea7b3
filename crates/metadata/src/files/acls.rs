//! Access control lists: stored among the extended attributes, kept in step with the mode,
//! inherited from directories, and evaluated for access checks. The rules are Linux's.
//!
//! The lists of a file of another service are queried each time: such files are few, and a copy
//! would have to be kept coherent.

use wire::acl::{ACCESS, Acl, DEFAULT};
use wire::attributes::{extra, mode, want};
use wire::errno::{Errno, Result};
use wire::request::made;
use wire::{Attributes, Inode};

use crate::core::context::Context;
use crate::core::job::{Call, Fact, Step, Stop};
use crate::core::state::{State, encode_xattrs};
use crate::core::table::Xattrs;
use crate::directories::remote_copies::Subject;
use crate::files::Files;
use crate::files::stored_xattrs::{extras_of, is_list};

/// Attributes that a new file inherits from its directory, or gets in place of inherited ones.
pub(crate) struct Heritage {
    /// Its mode, type included.
    pub(crate) mode: u32,
    /// Its bits of `extra`.
    pub(crate) extras: u16,
    /// Its extended attributes, encoded.
    pub(crate) xattrs: Vec<u8>,
}

impl State {
    /// The lists of an inode of this service.
    pub(crate) fn own_acls(&self, inode: Inode) -> Xattrs {
        let xattrs = self.inodes.get(inode).and_then(|node| node.xattrs.as_deref());
        let lists = xattrs.into_iter().flatten().filter(|(name, _)| is_list(name));
        lists.map(|(name, list)| (name.clone(), list.clone())).collect()
    }
}

impl Files {
    /// The lists of any inode.
    fn acls(&mut self, call: &Call<'_>, inode: Inode) -> Step<Xattrs> {
        if self.cx.config.owns(inode.shard()) {
            return Ok(self.cx.state.own_acls(inode));
        }
        for fact in call.facts {
            if let Fact::Acls(other, lists) = fact
                && *other == inode
            {
                return Ok(lists.clone());
            }
        }
        Err(self.directories.inquire(&mut self.cx, Subject::Acls(inode), inode.shard()))
    }

    /// Proceeds if the requester has all of `rights` on a file.
    pub(crate) fn permits(&mut self, call: &Call<'_>, file: &Attributes, rights: u32) -> Step<()> {
        let caller = &call.header.caller;
        if file.is_up_to_acl(caller) {
            let lists = self.acls(call, file.inode)?;
            if let Some(acl) = list_in(&lists, ACCESS)? {
                let may = acl.permits((file.uid, file.gid), caller, rights);
                return if may { Ok(()) } else { Err(Stop::Refused(Errno::EACCES)) };
            }
        }
        Ok(file.permits(caller, rights)?)
    }

    /// Attributes of a new file in `directory`; `mode` as in the request.
    pub(crate) fn inherit(
        &mut self,
        call: &Call<'_>,
        directory: &Attributes,
        mode: u32,
    ) -> Step<Heritage> {
        let plain = Heritage { mode: made::masked(mode), extras: 0, xattrs: Vec::new() };
        let kind = mode & mode::TYPE;
        if kind == mode::SYMLINK {
            return Ok(Heritage { mode: mode & 0xffff, ..plain });
        }
        if !directory.has(extra::DEFAULT_ACL) {
            return Ok(plain);
        }
        let lists = self.acls(call, directory.inode)?;
        let Some(acl) = list_in(&lists, DEFAULT)? else { return Ok(plain) };
        let (mut xattrs, mut own) = (Xattrs::new(), vec![0; acl.byte_count()]);
        let bits = acl.inherit(mode & 0o777, &mut own);
        if !acl.is_mode() {
            xattrs.insert(ACCESS.into(), own.into());
        }
        if kind == mode::DIRECTORY {
            let stored = lists.get(DEFAULT).cloned().unwrap_or_default();
            xattrs.insert(DEFAULT.into(), stored);
        }
        let mut encoded = Vec::new();
        encode_xattrs(Some(&xattrs), &mut encoded);
        let mode = mode & (mode::TYPE | mode::PERMISSIONS) & !0o777 | bits;
        Ok(Heritage { mode, extras: extras_of(&xattrs, 0), xattrs: encoded })
    }

    /// May the sender change the entries of this directory?
    pub(crate) fn may_change(&mut self, call: &Call<'_>, directory: &Attributes) -> Step<()> {
        self.permits(call, directory, want::WRITE | want::EXECUTE)
    }
}

/// The extended attributes of a file after a `chmod`, if that changes them.
pub(crate) fn acl_after(cx: &Context, old: &Attributes, mode: u32) -> Result<Option<Xattrs>> {
    if !old.has(extra::ACCESS_ACL) {
        return Ok(None);
    }
    let mut xattrs = cx.state.copy_xattrs(old.inode);
    let Some(acl) = list_in(&xattrs, ACCESS)? else { return Ok(None) };
    let mut changed = vec![0; acl.byte_count()];
    acl.with_mode(mode, &mut changed);
    xattrs.insert(ACCESS.into(), changed.into());
    Ok(Some(xattrs))
}

fn list_in<'a>(lists: &'a Xattrs, name: &[u8]) -> Result<Option<Acl<'a>>> {
    lists.get(name).map_or(Ok(None), |list| Acl::parse(list))
}
