//! Reading and changing attributes: the rules of `chmod`, `chown`, `utimensat` and `truncate`.

use wire::attributes::{extra, flag, mode, want};
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::quota::Owner;
use wire::request::set;
use wire::{Attributes, Credentials, Inode, Layout, Reply, Request};

use crate::contents::NOBODY;
use crate::live::{Ask, Step, Stop, Wait};
use crate::record::Record;
use crate::service::{Service, outcome};
use crate::state::Pending;
use crate::table::Xattrs;

/// What a program may do that others may not.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

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

    /// Whose the file is afterwards.
    fn owner(&self, old: &Attributes) -> Owner {
        let project = u32::try_from(self.size).unwrap_or(0);
        Owner {
            uid: if self.has(set::UID) { self.uid } else { old.uid },
            project: if self.has(set::PROJECT) { project } else { old.project },
        }
    }
}

impl Service {
    /// The attributes of an inode of this service.
    pub(crate) fn own_attributes(&self, inode: Inode) -> Step<Attributes> {
        let node = self.state.inodes.get(inode).ok_or(Stop::Refused(Errno::ESTALE))?;
        Ok(node.attributes)
    }

    pub(crate) fn get_attributes(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        self.settle_size(ask, inode)?;
        let attributes = self.quiet_attributes(inode)?;
        if ask.header.host == self.config.host && attributes.links != 0 {
            self.put_index(&attributes);
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
        if change.has(AFTER_WRITES) && !change.has(set::SIZE) {
            self.settle_size(ask, inode)?;
        }
        let old = self.own_attributes(inode)?;
        if change.has(set::READ) {
            self.note_read(ask, &old);
            return Ok(());
        }
        if let Some(result) = ask.data {
            result?;
            let is_done = match change.has(set::SIZE) {
                true => !old.is_inline() && old.size == size,
                false => change.has(OWNER | PINS),
            };
            if is_done {
                self.done(ask, outcome::ATTRIBUTES, inode.0, 0);
                return Ok(());
            }
        }
        if change.has(set::WRITE_BACK) && !self.config.backing {
            return Err(Stop::Refused(Errno::EOPNOTSUPP));
        }
        if check(&old, &change, &ask.header.who)? {
            self.permits(ask, &old, want::WRITE)?;
        }
        let tells = self.tells_targets(ask, &old, &change)?;
        if old.is_directory() && change.has(LEASED) {
            self.recall(inode)?;
        }
        // What this host wrote counts, also what it did not tell yet.
        let row = if old.is_posix() { ask.hands.untold(inode) } else { ask.row };
        let end = old.size.max(row.unwrap_or(0));
        let mut new = changed(&old, &change, end, &ask.header.who);
        new.changed = self.stamp(old.changed);
        if change.has(set::ACCESSED_NOW) {
            new.accessed = new.changed;
        }
        if change.has(set::MODIFIED_NOW) || (change.has(set::SIZE) && !change.has(set::MODIFIED)) {
            new.modified = new.changed;
        }
        if change.has(set::SIZE) {
            let is_cut_far = self.is_cut_far(&old, ask.header.host);
            let cuts = change.has(set::CUTS) || end > size || is_cut_far;
            self.resize(ask, &old, &mut new, size, cuts)?;
        } else if let Some(xattrs) = self.xattrs_after(&old, &new, &change)? {
            self.put_xattrs(&new, &xattrs);
        } else {
            self.put(&Record::PutAttributes { attributes: new });
        }
        if tells {
            let pending = Pending { inode, layout: new.layout, kind: Pending::OWN, size: 0 };
            let token = self.put_pending(&pending, NOBODY);
            return Err(Stop::Wait(Wait::OwnData(token)));
        }
        self.done(ask, outcome::ATTRIBUTES, inode.0, 0);
        Ok(())
    }

    /// True if targets are to be told whose the file is from now on, or whether it stays in memory.
    fn tells_targets(&mut self, ask: &Ask<'_>, old: &Attributes, change: &Change) -> Step<bool> {
        let owner = change.owner(old);
        if owner.project != old.project {
            self.draw_inode(ask, Owner { uid: 0, ..owner })?;
        }
        let is_counted = self.counts_space() && owner != old.owner();
        let tells = (is_counted || change.has(PINS)) && old.is_regular() && !old.is_inline();
        if tells && self.live.busy.contains_key(&old.inode) {
            return Err(Stop::Wait(Wait::Data(old.inode)));
        }
        Ok(tells && !change.has(set::SIZE))
    }

    /// Somebody read the file: its access time becomes now if it says less than that it was read since it
    /// was changed, or is of yesterday. Nothing else changes, and nobody waits until all know it.
    fn note_read(&mut self, ask: &Ask<'_>, old: &Attributes) {
        let mut attributes = *old;
        if wire::attributes::is_read_late(old, self.live.now) {
            attributes.accessed = self.stamp(old.changed);
            self.put(&Record::PutAttributes { attributes });
            self.tell_mounts_of(ask, old.inode);
        }
        self.io.reply(ask.ticket, &Reply::Attributes { attributes });
    }

    /// The extended attributes of a file after a change, if that changes them: a list goes with the mode,
    /// and whoever owns a program from now on did not give it its capabilities.
    fn xattrs_after(
        &self,
        old: &Attributes,
        new: &Attributes,
        change: &Change,
    ) -> Result<Option<Xattrs>> {
        let mut after = match change.has(set::MODE) {
            true => self.acl_after(old, new.mode)?,
            false => None,
        };
        let kills = change.has(set::UID | set::GID | set::CAPABILITY) && !old.is_directory();
        if kills && old.has(extra::CAPABILITY) {
            after.get_or_insert_with(|| self.copy_xattrs(old.inode)).remove(CAPABILITY);
        }
        Ok(after)
    }
}

/// Changes of what a lease of a directory covers.
const LEASED: u32 = OWNER | set::MODE | set::GID | HANDED_DOWN | PINS;
/// Changes of what a directory hands down.
const HANDED_DOWN: u32 = set::POSIX | set::RELAXED | set::PLACEMENT | set::CHUNK | set::WRITE_BACK;
/// Changes of what stays in memory: a directory hands it down, and a file has it.
const PINS: u32 = set::PINNED | set::UNPINNED;
/// Changes of whose usage a file is.
const OWNER: u32 = set::UID | set::PROJECT;
/// Changes whose times are to come after those of all writes before.
const AFTER_WRITES: u32 = set::MODE
    | set::UID
    | set::GID
    | set::ACCESSED
    | set::MODIFIED
    | set::ACCESSED_NOW
    | set::MODIFIED_NOW;

/// May `who` change this? True: if he may write to the file.
fn check(old: &Attributes, change: &Change, who: &Credentials) -> Result<bool> {
    let mut must_write = false;
    let is_owner = who.is_privileged() || who.uid == old.uid;
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
        must_write = !change.has(set::BY_DESCRIPTOR);
    }
    if change.has(set::UID) && !who.is_privileged() && (who.uid != old.uid || change.uid != old.uid)
    {
        return Err(Errno::EPERM);
    }
    if change.has(set::GID) && !who.is_privileged() {
        let is_own = change.gid == old.gid || who.is_in_group(change.gid);
        if who.uid != old.uid || !is_own {
            return Err(Errno::EPERM);
        }
    }
    if change.has(set::MODE) && !is_owner {
        return Err(Errno::EPERM);
    }
    // A kernel takes these for attributes of the user's, which all may set who may write.
    let owns = is_owner && !(who.is_checked && who.uid != 0 && who.uid != old.uid);
    if change.has(HANDED_DOWN | PINS | set::PROJECT) && !owns {
        return Err(Errno::EPERM);
    }
    if change.has(PINS | set::PROJECT) && !old.is_directory() && !old.is_regular() {
        return Err(Errno::EINVAL);
    }
    if change.has(HANDED_DOWN) && !old.is_directory() {
        return Err(Errno::ENOTDIR);
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
        must_write = true;
    }
    Ok(must_write)
}

/// The new attributes but for times and size, of a file that is written up to `end`.
fn changed(old: &Attributes, change: &Change, end: u64, who: &Credentials) -> Attributes {
    let mut new = *old;
    let owner = change.owner(old);
    (new.uid, new.project) = (owner.uid, owner.project);
    if change.has(set::GID) {
        new.gid = change.gid;
    }
    let grows = change.has(set::SIZE) && change.size > end;
    if old.is_regular() && (grows || change.has(set::SPARSE)) {
        new.layout.flags |= flag::SPARSE;
    }
    if change.has(set::POSIX) {
        new.layout.flags |= flag::POSIX;
    } else if change.has(set::RELAXED) {
        new.layout.flags &= !flag::POSIX;
    }
    if change.has(set::PINNED) {
        new.layout.flags |= flag::PINNED;
    } else if change.has(set::UNPINNED) {
        new.layout.flags &= !flag::PINNED;
    }
    let wanted = Layout::from_word(change.size);
    if change.has(set::PLACEMENT) {
        new.layout.placement = wanted.placement;
    }
    if change.has(set::CHUNK) {
        new.layout.chunk_log2 = wanted.chunk_log2;
    }
    if change.has(set::WRITE_BACK) {
        new.layout.flags = new.layout.flags_with_write_back(wanted.write_back());
    }
    if change.has(set::LONG) {
        new.layout.flags &= !flag::SHORT;
    }
    if change.has(set::MODE) {
        new.mode = old.mode & mode::TYPE | change.mode & mode::PERMISSIONS;
        if !who.is_privileged() && !who.is_in_group(new.gid) {
            new.mode &= !mode::SET_GID;
        }
    }
    if change.has(set::UID | set::GID) && !old.is_directory() {
        new.mode = without_set_id(new.mode, who.is_privileged() || who.is_in_group(old.gid));
    }
    if change.has(set::SIZE) && !who.is_privileged() {
        new.mode = without_set_id(new.mode, who.is_in_group(old.gid));
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
/// something else (no group execution) and who changes it is in the group.
pub(crate) fn without_set_id(mode: u32, is_in_group: bool) -> u32 {
    let group = if mode & 0o010 != 0 || !is_in_group { mode::SET_GID } else { 0 };
    mode & !(mode::SET_UID | group)
}
