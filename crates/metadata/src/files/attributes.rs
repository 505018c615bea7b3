//! Reading and changing attributes: the rules of `chmod`, `chown`, `utimensat` and `truncate`.

use wire::attributes::{extra, flag, mode, want};
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::quota::Owner;
use wire::request::{removed, set};
use wire::{Attributes, Credentials, Inode, Layout, Reply, Request};

use crate::core::context::Context;
use crate::core::effect::SingleFiles;
use crate::core::job::{Call, Step, Stop, Wait};
use crate::core::record::Record;
use crate::core::state::{Pending, reply_kind};
use crate::core::table::Xattrs;
use crate::files::Files;
use crate::files::acls::acl_after;
use crate::files::contents::{NOBODY, without_set_id};
use crate::files::stored_xattrs::{CAPABILITY, put_xattrs};
use crate::quota::grants::counts_space;

/// Pause until it is asked again whether files may have one copy.
const ASKED_PAUSE_NANOS: i64 = 20_000_000;

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
    fn sets(&self, bits: u32) -> bool {
        self.mask & bits != 0
    }

    /// The owner of the file after the change.
    fn owner_after(&self, old: &Attributes) -> Owner {
        let project = u32::try_from(self.size).unwrap_or(0);
        Owner {
            uid: if self.sets(set::UID) { self.uid } else { old.uid },
            project: if self.sets(set::PROJECT) { project } else { old.project },
        }
    }
}

impl Files {
    pub(crate) fn get_attributes(&mut self, call: &Call<'_>, inode: Inode) -> Step<()> {
        self.settle_size(call, inode)?;
        let attributes = self.cx.quiet_attributes(inode)?;
        self.directories.ask_tallies(&mut self.cx, call, &attributes)?;
        if call.header.host == self.cx.config.host && attributes.links != 0 {
            self.cx.put_index(&attributes);
        }
        self.cx.io.reply(call.ticket, &Reply::Attributes { attributes });
        Ok(())
    }

    pub(crate) fn set_attributes(&mut self, call: &Call<'_>, request: &Request<'_>) -> Step<()> {
        let Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified } =
            *request
        else {
            return Err(Stop::Refused(Errno::EPROTO));
        };
        let (accessed, modified) = (accessed.cast_signed(), modified.cast_signed());
        let change = Change { mask, mode, uid, gid, size, accessed, modified };
        if change.sets(AFTER_WRITES) && !change.sets(set::SIZE) {
            self.settle_size(call, inode)?;
        }
        let old = self.cx.own_attributes(inode)?;
        if change.sets(set::READ) {
            self.note_read(call, &old);
            return Ok(());
        }
        self.directories.ask_tallies(&mut self.cx, call, &old)?;
        if let Some(result) = call.data {
            result?;
            let is_done = match change.sets(set::SIZE) {
                true => !old.is_inline() && old.size == size,
                false => change.sets(OWNER | PINS),
            };
            if is_done {
                self.cx.done(call, reply_kind::ATTRIBUTES, inode.0, 0);
                return Ok(());
            }
        }
        check_layout(&self.cx, &change)?;
        self.check_copies(call, &change)?;
        if check(&old, &change, &call.header.caller)? {
            self.permits(call, &old, want::WRITE)?;
        }
        let tells = self.notifies_targets(call, &old, &change)?;
        if old.is_directory() && change.sets(LEASED) {
            self.leases.revoke(&mut self.cx, inode)?;
        }
        // The unreported size of this host counts.
        let vnode_value =
            if old.is_posix() { call.host_view.unreported(inode) } else { call.vnode_value };
        let end = old.size.max(vnode_value.unwrap_or(0));
        let mut new = changed(&old, &change, end, &call.header.caller);
        if change.sets(set::COPIES) {
            new.layout.copies = copies_after(&self.cx, &change).unwrap_or(old.layout.copies);
        }
        new.changed = self.cx.stamp(old.changed);
        if change.sets(set::ACCESSED_NOW) {
            new.accessed = new.changed;
        }
        if change.sets(set::MODIFIED_NOW) || (change.sets(set::SIZE) && !change.sets(set::MODIFIED))
        {
            new.modified = new.changed;
        }
        if change.sets(set::SIZE) {
            let is_remote_truncate = self.cx.is_remote_truncate(&old, call.header.host);
            let truncates = change.sets(set::TRUNCATES) || end > size || is_remote_truncate;
            self.set_size(call, &old, &mut new, size, truncates)?;
        } else if let Some(xattrs) = xattrs_after(&self.cx, &old, &new, &change)? {
            put_xattrs(&mut self.cx, &new, &xattrs);
        } else {
            self.cx.put(&Record::PutAttributes { attributes: new });
        }
        if tells {
            let pending = Pending { inode, layout: new.layout, kind: Pending::OWN, size: 0 };
            let token = self.put_pending(&pending, NOBODY);
            return Err(Stop::Wait(Wait::OwnData(token)));
        }
        self.cx.done(call, reply_kind::ATTRIBUTES, inode.0, 0);
        Ok(())
    }

    /// Files that are to have one copy keep all daemons from leaving, and that comes first.
    fn check_copies(&self, call: &Call<'_>, change: &Change) -> Step<()> {
        if !change.sets(set::COPIES) || copies_after(&self.cx, change) != Some(1) {
            return Ok(());
        }
        match call.host_view.allow_single_files() {
            SingleFiles::Allowed => Ok(()),
            SingleFiles::Asked => {
                Err(Stop::Wait(Wait::Time(self.cx.now.saturating_add(ASKED_PAUSE_NANOS))))
            }
            SingleFiles::Refused => Err(Stop::Refused(Errno::EOPNOTSUPP)),
        }
    }

    /// True if targets must learn a new owner, or whether the file is pinned.
    fn notifies_targets(
        &mut self,
        call: &Call<'_>,
        old: &Attributes,
        change: &Change,
    ) -> Step<bool> {
        let owner = change.owner_after(old);
        if owner.project != old.project {
            self.grants.draw_inode(&mut self.cx, call, Owner { uid: 0, ..owner })?;
        }
        let is_counted = counts_space(&self.cx) && owner != old.owner();
        let tells = (is_counted || change.sets(PINS)) && old.is_regular() && !old.is_inline();
        if tells && self.cx.busy.contains_key(&old.inode) {
            return Err(Stop::Wait(Wait::Data(old.inode)));
        }
        Ok(tells && !change.sets(set::SIZE))
    }

    /// Updates the access time of a file that was read, by the rule of `relatime`: only if it is
    /// older than the last change, or older than a day. Nothing else changes, and the reader does
    /// not wait until all hosts know it.
    fn note_read(&mut self, call: &Call<'_>, old: &Attributes) {
        let mut attributes = *old;
        if wire::attributes::is_read_late(old, self.cx.now) {
            attributes.accessed = self.cx.stamp(old.changed);
            self.cx.put(&Record::PutAttributes { attributes });
            self.caches.notify_mounts_of(&mut self.cx, call, old.inode);
        }
        self.cx.io.reply(call.ticket, &Reply::Attributes { attributes });
    }
}

/// Checks a change of the layout against what the instance has.
fn check_layout(cx: &Context, change: &Change) -> Result<()> {
    if change.sets(set::WRITEBACK) && !cx.config.backing {
        return Err(Errno::EOPNOTSUPP);
    }
    if change.sets(set::COPIES) && copies_after(cx, change).is_none() {
        return Err(Errno::EOPNOTSUPP);
    }
    let pool = if change.sets(set::POOL) { Layout::from_word(change.size).pool } else { 0 };
    if pool != 0 && cx.state.pool(pool).is_none() { Err(Errno::ENOENT) } else { Ok(()) }
}

/// `Layout::copies` after a change of the number of copies. `None`: there is no such number here.
fn copies_after(cx: &Context, change: &Change) -> Option<u8> {
    cx.config.layout_copies(Layout::from_word(change.size).copies)
}

/// The extended attributes of a file after a change, if that changes them: the access list
/// follows the mode, and a new owner or new contents remove the capabilities of a program.
fn xattrs_after(
    cx: &Context,
    old: &Attributes,
    new: &Attributes,
    change: &Change,
) -> Result<Option<Xattrs>> {
    let mut after = match change.sets(set::MODE) {
        true => acl_after(cx, old, new.mode)?,
        false => None,
    };
    let kills = change.sets(set::UID | set::GID | set::CAPABILITY) && !old.is_directory();
    if kills && old.has(extra::CAPABILITY) {
        after.get_or_insert_with(|| cx.state.copy_xattrs(old.inode)).remove(CAPABILITY);
    }
    Ok(after)
}

/// Answers with the owners of files.
pub(crate) fn answer_owners(cx: &mut Context, call: &Call<'_>, inodes: &[u8]) -> Step<()> {
    let mut bytes = vec![0; inodes.len() / 8 * Owner::BYTES];
    let mut writer = Writer::new(&mut bytes);
    for inode in removed(inodes) {
        let found = cx.state.inodes.get(inode).map(|node| &node.attributes);
        let owner = found.map_or(Owner::GONE, |found| found.owner());
        writer.u32(owner.uid);
        writer.u32(owner.project);
        writer.u64(found.map_or(0, |found| found.changed.cast_unsigned()));
    }
    cx.io.reply(call.ticket, &Reply::Bytes { bytes: &bytes });
    Ok(())
}

/// Changes that a lease of a directory covers.
const LEASED: u32 = OWNER | set::MODE | set::GID | INHERITED_FLAGS | PINS;
/// Changes of attributes that new entries inherit from their directory.
const INHERITED_FLAGS: u32 = set::POSIX
    | set::RELAXED
    | set::PLACEMENT
    | set::STRIPE
    | set::WRITEBACK
    | set::POOL
    | set::COPIES;
/// Changes of pinning: inherited from a directory, effective on a file.
const PINS: u32 = set::PINNED | set::UNPINNED;
/// Changes of the account that a file counts for.
const OWNER: u32 = set::UID | set::PROJECT;
/// Changes whose times must be later than those of all earlier writes.
const AFTER_WRITES: u32 = set::MODE
    | set::UID
    | set::GID
    | set::ACCESSED
    | set::MODIFIED
    | set::ACCESSED_NOW
    | set::MODIFIED_NOW;

/// Checks whether `caller` may make this change. Returns true if permission to write to the file is
/// needed besides.
fn check(old: &Attributes, change: &Change, caller: &Credentials) -> Result<bool> {
    let mut must_write = false;
    let is_owner = caller.owns(old.uid);
    if change.sets(set::SIZE) {
        if old.is_directory() {
            return Err(Errno::EISDIR);
        }
        if !old.is_regular() {
            return Err(Errno::EINVAL);
        }
        if change.size > FILE_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        must_write = !change.sets(set::BY_DESCRIPTOR);
    }
    if change.sets(set::UID) && !caller.is_owner_of_all() && (!is_owner || change.uid != old.uid) {
        return Err(Errno::EPERM);
    }
    if change.sets(set::GID) && !caller.is_owner_of_all() {
        // The groups of a caller that a kernel has checked are not in the request.
        let is_own = change.gid == old.gid || caller.is_checked || caller.is_in_group(change.gid);
        if !is_owner || !is_own {
            return Err(Errno::EPERM);
        }
    }
    if change.sets(set::MODE) && !is_owner {
        return Err(Errno::EPERM);
    }
    // A kernel passes these as `user.` attributes, which anyone with write permission may set.
    if change.sets(INHERITED_FLAGS | PINS | set::PROJECT) && !is_owner {
        return Err(Errno::EPERM);
    }
    if change.sets(PINS | set::PROJECT) && !old.is_directory() && !old.is_regular() {
        return Err(Errno::EINVAL);
    }
    if change.sets(INHERITED_FLAGS) && !old.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    if change.sets(set::ACCESSED | set::MODIFIED) && !is_owner {
        return Err(Errno::EPERM);
    }
    let now = set::ACCESSED_NOW | set::MODIFIED_NOW;
    if change.sets(now) && !is_owner && !change.sets(set::SIZE) {
        // Only both times together, as `utimensat` without times does; a single one is an explicit
        // time.
        if change.mask & now != now {
            return Err(Errno::EPERM);
        }
        must_write = true;
    }
    Ok(must_write)
}

/// The new attributes except times and size, for a file that is written up to `end`.
fn changed(old: &Attributes, change: &Change, end: u64, caller: &Credentials) -> Attributes {
    let mut new = *old;
    let owner = change.owner_after(old);
    (new.uid, new.project) = (owner.uid, owner.project);
    if change.sets(set::GID) {
        new.gid = change.gid;
    }
    let grows = change.sets(set::SIZE) && change.size > end;
    if old.is_regular() && (grows || change.sets(set::SPARSE)) {
        new.layout.flags |= flag::SPARSE;
    }
    if change.sets(set::POSIX) {
        new.layout.flags |= flag::POSIX;
    } else if change.sets(set::RELAXED) {
        new.layout.flags &= !flag::POSIX;
    }
    if change.sets(set::PINNED) {
        new.layout.flags |= flag::PINNED;
    } else if change.sets(set::UNPINNED) {
        new.layout.flags &= !flag::PINNED;
    }
    let requested = Layout::from_word(change.size);
    if change.sets(set::PLACEMENT) {
        new.layout.placement = requested.placement;
    }
    if change.sets(set::STRIPE) {
        new.layout.stripe_log2 = requested.stripe_log2;
    }
    if change.sets(set::POOL) {
        new.layout.pool = requested.pool;
    }
    if change.sets(set::WRITEBACK) {
        new.layout.flags = new.layout.flags_with_writeback(requested.writeback());
    }
    if change.sets(set::LONG) {
        new.layout.flags &= !flag::SHORT;
    }
    if change.sets(set::MODE) {
        new.mode = old.mode & mode::TYPE | change.mode & mode::PERMISSIONS;
        if !caller.is_privileged() && !caller.is_in_group(new.gid) {
            new.mode &= !mode::SET_GID;
        }
    }
    if change.sets(set::UID | set::GID) && !old.is_directory() {
        new.mode = without_set_id(new.mode, caller.is_privileged() || caller.is_in_group(old.gid));
    }
    if change.sets(set::SIZE) && !caller.is_privileged() {
        new.mode = without_set_id(new.mode, caller.is_in_group(old.gid));
    }
    if change.sets(set::ACCESSED) {
        new.accessed = change.accessed;
    }
    if change.sets(set::MODIFIED) {
        new.modified = change.modified;
    }
    new
}
