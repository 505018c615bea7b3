//! Access control lists: kept among the extended attributes, in step with the mode, handed down by
//! directories, and asked when somebody wants something. The rules are Linux's.
//!
//! A list whose file is another service's is asked for each time: such files are few, and a copy would
//! have to be kept right.

use wire::acl::{ACCESS, Acl, DEFAULT};
use wire::attributes::{extra, mode};
use wire::errno::{Errno, Result};
use wire::request::{made, xattr};
use wire::{Attributes, Inode};

use crate::attributes::CAPABILITY;
use crate::live::{Ask, Fact, Step, Stop, Subject};
use crate::service::{Service, outcome};
use crate::state::encode_xattrs;
use crate::table::Xattrs;

/// What a new file gets from its directory, or in its place.
pub(crate) struct Heritage {
    /// Its mode, type included.
    pub(crate) mode: u32,
    /// Bits of `extra`.
    pub(crate) extras: u16,
    /// Its extended attributes, encoded.
    pub(crate) xattrs: Vec<u8>,
}

/// True for the name of a list.
pub(crate) fn is_list(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// The bits of `extra` for these attributes.
pub(crate) fn extras_of(xattrs: &Xattrs, changes: u16) -> u16 {
    let has = |name: &[u8], bit: u16| if xattrs.contains_key(name) { bit } else { 0 };
    let any = if xattrs.is_empty() { 0 } else { extra::XATTRS };
    changes & extra::CHANGES
        | any
        | has(ACCESS, extra::ACCESS_ACL)
        | has(DEFAULT, extra::DEFAULT_ACL)
        | has(CAPABILITY, extra::CAPABILITY)
}

impl Service {
    /// The lists of an inode of this service.
    pub(crate) fn own_acls(&self, inode: Inode) -> Xattrs {
        let xattrs = self.state.inodes.get(inode).and_then(|node| node.xattrs.as_deref());
        let lists = xattrs.into_iter().flatten().filter(|(name, _)| is_list(name));
        lists.map(|(name, list)| (name.clone(), list.clone())).collect()
    }

    /// The lists of any inode.
    fn acls(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<Xattrs> {
        if self.config.owns(inode.shard()) {
            return Ok(self.own_acls(inode));
        }
        for fact in ask.facts {
            if let Fact::Acls(other, lists) = fact
                && *other == inode
            {
                return Ok(lists.clone());
            }
        }
        Err(self.inquire(Subject::Acls(inode), inode.shard()))
    }

    /// May who asks do all of `wanted` with a file?
    pub(crate) fn permits(&mut self, ask: &Ask<'_>, file: &Attributes, wanted: u32) -> Step<()> {
        let who = &ask.header.who;
        if file.is_up_to_acl(who) {
            let lists = self.acls(ask, file.inode)?;
            if let Some(acl) = list_in(&lists, ACCESS)? {
                let may = acl.permits((file.uid, file.gid), who, wanted);
                return if may { Ok(()) } else { Err(Stop::Refused(Errno::EACCES)) };
            }
        }
        Ok(file.permits(who, wanted)?)
    }

    /// What a file that is made in `directory` with `mode`, as a request has it, gets.
    pub(crate) fn inherit(
        &mut self,
        ask: &Ask<'_>,
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
        let lists = self.acls(ask, directory.inode)?;
        let Some(acl) = list_in(&lists, DEFAULT)? else { return Ok(plain) };
        let (mut xattrs, mut own) = (Xattrs::new(), vec![0; acl.byte_count()]);
        let bits = acl.inherit(mode & 0o777, &mut own);
        if !acl.is_mode() {
            xattrs.insert(ACCESS.into(), own.into());
        }
        if kind == mode::DIRECTORY {
            let kept = lists.get(DEFAULT).cloned().unwrap_or_default();
            xattrs.insert(DEFAULT.into(), kept);
        }
        let mut encoded = Vec::new();
        encode_xattrs(Some(&xattrs), &mut encoded);
        let mode = mode & (mode::TYPE | mode::PERMISSIONS) & !0o777 | bits;
        Ok(Heritage { mode, extras: extras_of(&xattrs, 0), xattrs: encoded })
    }

    /// Sets a list, or takes it away. An access list that says no more than a mode can is not kept.
    pub(crate) fn set_acl(
        &mut self,
        ask: &Ask<'_>,
        inode: Inode,
        (name, list): (&[u8], &[u8]),
        flags: u32,
    ) -> Step<()> {
        let (old, who) = (self.own_attributes(inode)?, &ask.header.who);
        let acl = if list.is_empty() { None } else { Acl::parse(list)? };
        if old.is_symlink() {
            return Err(Stop::Refused(Errno::EOPNOTSUPP));
        }
        if name == DEFAULT && !old.is_directory() && acl.is_some() {
            return Err(Stop::Refused(Errno::EACCES));
        }
        if !who.is_privileged() && who.uid != old.uid {
            return Err(Stop::Refused(Errno::EPERM));
        }
        let (mut new, mut xattrs) = (old, self.copy_xattrs(inode));
        match acl {
            Some(acl) if name == DEFAULT || !acl.is_mode() => {
                let mut kept = vec![0; acl.byte_count()];
                acl.keep(&mut kept);
                xattrs.insert(name.into(), kept.into());
            }
            _ => drop(xattrs.remove(name)),
        }
        if let Some(acl) = acl.filter(|_| name == ACCESS) {
            new.mode = old.mode & !0o777 | acl.mode();
            let is_member = who.is_privileged() || who.is_in_group(old.gid);
            if flags & xattr::KILL_SGID != 0 || !is_member {
                new.mode &= !mode::SET_GID;
            }
        }
        self.check_room(&xattrs)?;
        if old.is_directory() {
            self.recall(inode)?;
        }
        new.changed = self.stamp(old.changed);
        self.put_xattrs(&new, &xattrs);
        self.done(ask, outcome::DONE, 0, 0);
        Ok(())
    }

    /// The extended attributes of a file after a `chmod`, if that changes them.
    pub(crate) fn acl_after(&self, old: &Attributes, mode: u32) -> Result<Option<Xattrs>> {
        if !old.has(extra::ACCESS_ACL) {
            return Ok(None);
        }
        let mut xattrs = self.copy_xattrs(old.inode);
        let Some(acl) = list_in(&xattrs, ACCESS)? else { return Ok(None) };
        let mut changed = vec![0; acl.byte_count()];
        acl.with_mode(mode, &mut changed);
        xattrs.insert(ACCESS.into(), changed.into());
        Ok(Some(xattrs))
    }
}

fn list_in<'a>(lists: &'a Xattrs, name: &[u8]) -> Result<Option<Acl<'a>>> {
    lists.get(name).map_or(Ok(None), |list| Acl::parse(list))
}
