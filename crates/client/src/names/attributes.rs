//! Changing attributes: mode, owner, times. Permission is checked here as well as by the shard.

use wire::attributes::{is_read_late, mode, want};
use wire::errno::{Errno, Result};
use wire::request::set;
use wire::{Attributes, Credentials, Inode};

use crate::OfdIndex;
use crate::file::change::Change;
use crate::file::set_id::without_set_id;
use crate::file::{change, open_file, size};
use crate::lookup::path::{At, Follow, Outcome, PathBuffer};
use crate::lookup::{PathLookup, find, inodes, permission};
use crate::transport::Transport;
use crate::transport::clock::now_nanos;
use crate::transport::errno::by_descriptor;

/// One time of `utimensat(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// Leaves the time as it is.
    Omit,
    /// The current time of the shard's clock.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// Both times of `utimensat(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Last access.
    pub accessed: Time,
    /// Last modification of the contents.
    pub modified: Time,
}

/// The change made by `utimensat(2)`.
fn change_of_times(times: Times) -> Change {
    let mut change = Change::default();
    match times.accessed {
        Time::Omit => {}
        Time::Now => change.mask |= set::ACCESSED_NOW,
        Time::At(nanos) => {
            change.mask |= set::ACCESSED;
            change.accessed = nanos.cast_unsigned();
        }
    }
    match times.modified {
        Time::Omit => {}
        Time::Now => change.mask |= set::MODIFIED_NOW,
        Time::At(nanos) => {
            change.mask |= set::MODIFIED;
            change.modified = nanos.cast_unsigned();
        }
    }
    change
}

/// The change made by `chmod(2)`.
fn change_of_mode(attributes: &Attributes, bits: u32, caller: &Credentials) -> Result<Change> {
    if attributes.is_symlink() {
        return Err(Errno::EOPNOTSUPP);
    }
    if !caller.owns(attributes.uid) {
        return Err(Errno::EPERM);
    }
    let mut bits = bits & mode::PERMISSIONS;
    if !caller.is_privileged() && !caller.is_in_group(attributes.gid) {
        bits &= !mode::SET_GID;
    }
    Ok(Change { mask: set::MODE, mode: bits, ..Change::default() })
}

/// The change made by `chown(2)`.
fn change_of_owner(
    attributes: &Attributes,
    uid: Option<u32>,
    gid: Option<u32>,
    caller: &Credentials,
) -> Result<Change> {
    let mut change = Change::default();
    if let Some(uid) = uid {
        let is_same = caller.owns(attributes.uid) && uid == attributes.uid;
        if !caller.is_owner_of_all() && !is_same {
            return Err(Errno::EPERM);
        }
        change.mask |= set::UID;
        change.uid = uid;
    }
    if let Some(gid) = gid {
        let is_own = caller.is_checked || caller.is_in_group(gid) || gid == attributes.gid;
        if !(caller.is_owner_of_all() || caller.owns(attributes.uid) && is_own) {
            return Err(Errno::EPERM);
        }
        change.mask |= set::GID;
        change.gid = gid;
    }
    let is_in_group = |gid| caller.is_privileged() || caller.is_in_group(gid);
    if let Some(bits) = without_set_id(attributes, is_in_group).filter(|_| change.mask != 0) {
        change.mask |= set::MODE;
        change.mode = bits;
    }
    Ok(change)
}

/// Checks whether `caller` may set these times. Returns the bits of `want` that the file must
/// permit.
fn check_times(attributes: &Attributes, times: Times, caller: &Credentials) -> Result<u32> {
    if caller.owns(attributes.uid) {
        return Ok(0);
    }
    if times.accessed == Time::Now && times.modified == Time::Now {
        return Ok(want::WRITE);
    }
    Err(Errno::EPERM)
}

/// `chmod(2)`, `fchmodat(2)`.
pub(crate) fn chmod(
    paths: &PathLookup,
    at: At<'_>,
    mode: u32,
    follow: Follow,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    find::with_found(paths, at, follow, caller, buffer, |attributes| {
        let change = change_of_mode(attributes, mode, caller)?;
        change::apply(&paths.transport, attributes.inode, &change, caller).map(drop)
    })
}

/// `fchmod(2)`.
pub(crate) fn fchmod(
    transport: &Transport,
    ofd: OfdIndex,
    mode: u32,
    caller: &Credentials,
) -> Result<()> {
    let attributes = open_file::attributes_open(transport, ofd)?;
    let change = change_of_mode(&attributes, mode, caller)?;
    by_descriptor(change::apply(transport, attributes.inode, &change, caller)).map(drop)
}

/// `chown(2)`, `lchown(2)`; `None` leaves an owner as it is.
pub(crate) fn chown(
    paths: &PathLookup,
    at: At<'_>,
    (uid, gid): (Option<u32>, Option<u32>),
    follow: Follow,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    find::with_found(paths, at, follow, caller, buffer, |attributes| {
        let change = change_of_owner(attributes, uid, gid, caller)?;
        change::apply(&paths.transport, attributes.inode, &change, caller).map(drop)
    })
}

/// `fchown(2)`.
pub(crate) fn fchown(
    transport: &Transport,
    ofd: OfdIndex,
    (uid, gid): (Option<u32>, Option<u32>),
    caller: &Credentials,
) -> Result<()> {
    let attributes = open_file::attributes_open(transport, ofd)?;
    let change = change_of_owner(&attributes, uid, gid, caller)?;
    by_descriptor(change::apply(transport, attributes.inode, &change, caller)).map(drop)
}

/// `utimensat(2)`.
pub(crate) fn set_times(
    paths: &PathLookup,
    at: At<'_>,
    times: Times,
    follow: Follow,
    caller: &Credentials,
    buffer: &mut PathBuffer,
) -> Result<Outcome<()>> {
    find::with_found(paths, at, follow, caller, buffer, |attributes| {
        set_times_of(&paths.transport, attributes, times, caller)
    })
}

/// `futimens(3)`.
pub(crate) fn fset_times(
    transport: &Transport,
    ofd: OfdIndex,
    times: Times,
    caller: &Credentials,
) -> Result<()> {
    let attributes = open_file::attributes_open(transport, ofd)?;
    by_descriptor(set_times_of(transport, &attributes, times, caller))
}

/// Updates the access time after a read, as `relatime` of Linux does. An update costs a
/// message; so does finding out if this host does not know the file's times, in which case
/// `may_ask` decides whether the read is worth it.
pub(crate) fn note_read(
    transport: &Transport,
    inode: Inode,
    may_ask: impl FnOnce() -> bool,
) -> Result<()> {
    let now = now_nanos();
    let is_due = match inodes::attributes_in_index(transport, inode) {
        Some(known) if known.modified > now => is_read_late(&known, now) && may_ask(),
        Some(known) => is_read_late(&known, now),
        None => may_ask(),
    };
    if !is_due {
        return Ok(());
    }
    let change = Change { mask: set::READ, ..Change::default() };
    change::apply(transport, inode, &change, &Credentials::checked(0, 0)).map(drop)
}

fn set_times_of(
    transport: &Transport,
    attributes: &Attributes,
    times: Times,
    caller: &Credentials,
) -> Result<()> {
    if times.accessed == Time::Omit && times.modified == Time::Omit {
        return Ok(());
    }
    permission::permits(transport, attributes, caller, check_times(attributes, times, caller)?)?;
    // A size that is reported later would bring a later modification time with it.
    size::flush_if_open(transport, attributes.inode)?;
    change::apply(transport, attributes.inode, &change_of_times(times), caller).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32, uid: u32, gid: u32) -> Attributes {
        Attributes { mode: mode | mode::REGULAR, uid, gid, ..Attributes::default() }
    }

    #[test]
    fn only_the_owner_changes_the_mode() {
        let attributes = file(0o644, 10, 20);
        let owner = Credentials::of(10, 20);
        let change = change_of_mode(&attributes, 0o102_755, &owner).expect("the owner");
        assert_eq!((change.mask, change.mode), (set::MODE, 0o2755));
        let other_group = Credentials::of(10, 21);
        let change = change_of_mode(&attributes, 0o2755, &other_group).expect("the owner");
        assert_eq!(change.mode, 0o755);
        let other = change_of_mode(&attributes, 0o755, &Credentials::of(11, 20));
        assert_eq!(other.err(), Some(Errno::EPERM));
    }

    #[test]
    fn a_change_of_owner_clears_the_set_id_bits() {
        let attributes = file(0o6755, 10, 20);
        let change = change_of_owner(&attributes, Some(1), None, &Credentials::ROOT);
        let change = change.expect("root may");
        assert_eq!((change.mask, change.mode), (set::UID | set::MODE, 0o755));
        let given = change_of_owner(&attributes, Some(1), None, &Credentials::of(10, 20));
        assert_eq!(given.err(), Some(Errno::EPERM));
        let group = change_of_owner(&attributes, None, Some(20), &Credentials::of(10, 20));
        assert!(group.is_ok());
        let group = change_of_owner(&attributes, None, Some(30), &Credentials::of(10, 20));
        assert_eq!(group.err(), Some(Errno::EPERM));
    }

    #[test]
    fn setting_times_to_now_needs_write_permission_only() {
        let attributes = file(0o666, 10, 20);
        let now = Times { accessed: Time::Now, modified: Time::Now };
        let given = Times { accessed: Time::Omit, modified: Time::At(5) };
        let other = Credentials::of(11, 21);
        assert_eq!(check_times(&attributes, now, &other), Ok(want::WRITE));
        assert_eq!(check_times(&attributes, given, &other), Err(Errno::EPERM));
    }
}
