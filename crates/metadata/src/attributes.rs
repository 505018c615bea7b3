//! Reading and changing attributes: the rules of `chmod`, `chown`, `utimensat` and `truncate`.

use wire::attributes::{flag, mode, want};
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::request::set;
use wire::{Attributes, Credentials, Inode, Reply, Request};

use crate::effect::IndexOp;
use crate::live::{Ask, Step, Stop};
use crate::record::Record;
use crate::service::{Service, outcome};

/// The fields of a `Request::SetAttributes`.
struct Change {
    mask: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    accessed: i64,
    modified: i64,
}

impl Change {
    fn has(&self, bits: u32) -> bool {
        self.mask & bits != 0
    }
}

impl Service {
    /// The attributes of an inode of this service.
    pub(crate) fn own_attributes(&self, inode: Inode) -> Step<Attributes> {
        let node = self.state.inodes.get(inode).ok_or(Stop::Refused(Errno::ESTALE))?;
        Ok(node.attributes)
    }

    pub(crate) fn get_attributes(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        let attributes = self.quiet_attributes(inode)?;
        if ask.header.host == self.config.host && attributes.links != 0 {
            self.io.index(IndexOp::PutInode(attributes));
        }
        self.io.reply(ask.ticket, &Reply::Attributes { attributes });
        Ok(())
    }

    pub(crate) fn set_attributes(&mut self, ask: &Ask<'_>, request: &Request<'_>) -> Step<()> {
        let Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified } =
            *request
        else {
            return Err(Stop::Refused(Errno::EPROTO));
        };
        let (accessed, modified) = (accessed.cast_signed(), modified.cast_signed());
        let change = Change { mask, mode, uid, gid, size, accessed, modified };
        let old = self.own_attributes(inode)?;
        if let Some(result) = ask.data {
            result?;
            if change.has(set::SIZE) && !old.is_inline() && old.size == size {
                self.done(ask, outcome::ATTRIBUTES, inode.0, 0);
                return Ok(());
            }
        }
        check(&old, &change, &ask.header.who)?;
        if old.is_directory() && change.has(set::MODE | set::UID | set::GID) {
            self.recall(inode)?;
        }
        // What this host wrote counts, also what it did not tell yet.
        let end = old.size.max(ask.row.unwrap_or(0));
        let mut new = changed(&old, &change, end, &ask.header.who);
        new.changed = self.stamp(old.changed);
        if change.has(set::ACCESSED_NOW) {
            new.accessed = new.changed;
        }
        if change.has(set::MODIFIED_NOW) || (change.has(set::SIZE) && !change.has(set::MODIFIED)) {
            new.modified = new.changed;
        }
        if change.has(set::SIZE) {
            self.resize(ask, &old, &mut new, size, change.has(set::CUTS) || end > size)?;
        } else {
            self.put(&Record::PutAttributes { attributes: new });
        }
        if new.is_directory() {
            self.tell_watchers(&new);
        }
        self.done(ask, outcome::ATTRIBUTES, inode.0, 0);
        Ok(())
    }
}

/// May `who` change this?
fn check(old: &Attributes, change: &Change, who: &Credentials) -> Result<()> {
    let is_owner = who.uid == 0 || who.uid == old.uid;
    if change.has(set::SIZE) {
        if old.is_directory() {
            return Err(Errno::EISDIR);
        }
        if !old.is_regular() {
            return Err(Errno::EINVAL);
        }
        if change.size > FILE_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        if !change.has(set::BY_DESCRIPTOR) {
            old.permits(who, want::WRITE)?;
        }
    }
    if change.has(set::UID) && who.uid != 0 && (who.uid != old.uid || change.uid != old.uid) {
        return Err(Errno::EPERM);
    }
    if change.has(set::GID) && who.uid != 0 {
        let is_own = change.gid == old.gid || who.is_in_group(change.gid);
        if who.uid != old.uid || !is_own {
            return Err(Errno::EPERM);
        }
    }
    if change.has(set::MODE) && !is_owner {
        return Err(Errno::EPERM);
    }
    if change.has(set::ACCESSED | set::MODIFIED) && !is_owner {
        return Err(Errno::EPERM);
    }
    let now = set::ACCESSED_NOW | set::MODIFIED_NOW;
    if change.has(now) && !is_owner && !change.has(set::SIZE) {
        // Only both times together, as `utimensat` with no times: one alone is a given time.
        if change.mask & now != now {
            return Err(Errno::EPERM);
        }
        old.permits(who, want::WRITE)?;
    }
    Ok(())
}

/// The new attributes but for times and size, of a file that is written up to `end`.
fn changed(old: &Attributes, change: &Change, end: u64, who: &Credentials) -> Attributes {
    let mut new = *old;
    if change.has(set::UID) {
        new.uid = change.uid;
    }
    if change.has(set::GID) {
        new.gid = change.gid;
    }
    let grows = change.has(set::SIZE) && change.size > end;
    if old.is_regular() && (grows || change.has(set::SPARSE)) {
        new.layout.flags |= flag::SPARSE;
    }
    if change.has(set::LONG) {
        new.layout.flags &= !flag::SHORT;
    }
    if change.has(set::MODE) {
        new.mode = old.mode & mode::TYPE | change.mode & mode::PERMISSIONS;
        if who.uid != 0 && !who.is_in_group(new.gid) {
            new.mode &= !mode::SET_GID;
        }
    }
    if change.has(set::UID | set::GID) && !old.is_directory() {
        new.mode = without_set_id(new.mode);
    }
    if change.has(set::SIZE) && who.uid != 0 {
        new.mode = without_set_id(new.mode);
    }
    if change.has(set::ACCESSED) {
        new.accessed = change.accessed;
    }
    if change.has(set::MODIFIED) {
        new.modified = change.modified;
    }
    new
}

/// A mode after a change of owner or contents: no set-user-id; no set-group-id unless it stands for
/// something else (no group execution).
pub(crate) fn without_set_id(mode: u32) -> u32 {
    let group = if mode & 0o010 != 0 { mode::SET_GID } else { 0 };
    mode & !(mode::SET_UID | group)
}
