//! Changing attributes: mode, owner, times. Permission is checked here as well as by the shard.

use wire::attributes::{is_read_late, mode, want};
use wire::errno::{Errno, Result};
use wire::request::set;
use wire::{Attributes, Credentials, Inode, Request};

use crate::errno::by_descriptor;
use crate::path::{At, Follow, Outcome, PathBuffer};
use crate::posts::now_nanos;
use crate::request::To;
use crate::{Client, OfdIndex};

/// One time of `utimensat(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// Stays as it is.
    Omit,
    /// Now, by the clock of the shard.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// Both times of `utimensat(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Last access.
    pub accessed: Time,
    /// Last change of contents.
    pub modified: Time,
}

/// The fields of a `Request::SetAttributes` without the inode.
#[derive(Clone, Copy, Default)]
pub(crate) struct Change {
    pub(crate) mask: u32,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) accessed: u64,
    pub(crate) modified: u64,
}

impl Change {
    fn of_times(times: Times) -> Change {
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
}

fn is_owner(attributes: &Attributes, who: &Credentials) -> bool {
    who.is_privileged() || who.uid == attributes.uid
}

/// The change that `chmod(2)` makes.
fn change_of_mode(attributes: &Attributes, bits: u32, who: &Credentials) -> Result<Change> {
    if attributes.is_symlink() {
        return Err(Errno::EOPNOTSUPP);
    }
    if !is_owner(attributes, who) {
        return Err(Errno::EPERM);
    }
    let mut bits = bits & mode::PERMISSIONS;
    if !who.is_privileged() && !who.is_in_group(attributes.gid) {
        bits &= !mode::SET_GID;
    }
    Ok(Change { mask: set::MODE, mode: bits, ..Change::default() })
}

/// The permission bits of a file without those that a change of owner or contents takes away;
/// `None` if there are none. A set-group-id bit without group execution says something else, and goes
/// only
/// if who makes the change is not in the file's group.
#[must_use]
pub fn without_set_id(
    attributes: &Attributes,
    is_in_group: impl FnOnce(u32) -> bool,
) -> Option<u32> {
    let mut taken = attributes.mode & mode::SET_UID;
    let set_gid = attributes.mode & mode::SET_GID;
    if set_gid != 0 && (attributes.mode & 0o010 != 0 || !is_in_group(attributes.gid)) {
        taken |= set_gid;
    }
    let bits = attributes.mode & mode::PERMISSIONS & !taken;
    (attributes.is_regular() && taken != 0).then_some(bits)
}

/// The change that `chown(2)` makes.
fn change_of_owner(
    attributes: &Attributes,
    uid: Option<u32>,
    gid: Option<u32>,
    who: &Credentials,
) -> Result<Change> {
    let mut change = Change::default();
    if let Some(uid) = uid {
        let is_same = who.uid == attributes.uid && uid == attributes.uid;
        if !who.is_privileged() && !is_same {
            return Err(Errno::EPERM);
        }
        change.mask |= set::UID;
        change.uid = uid;
    }
    if let Some(gid) = gid {
        let may = who.uid == attributes.uid && (who.is_in_group(gid) || gid == attributes.gid);
        if !who.is_privileged() && !may {
            return Err(Errno::EPERM);
        }
        change.mask |= set::GID;
        change.gid = gid;
    }
    let is_in_group = |gid| who.is_privileged() || who.is_in_group(gid);
    if let Some(bits) = without_set_id(attributes, is_in_group).filter(|_| change.mask != 0) {
        change.mask |= set::MODE;
        change.mode = bits;
    }
    Ok(change)
}

/// May `who` set these times? The bits of `want` that the file must permit.
fn check_times(attributes: &Attributes, times: Times, who: &Credentials) -> Result<u32> {
    if is_owner(attributes, who) {
        return Ok(0);
    }
    if times.accessed == Time::Now && times.modified == Time::Now {
        return Ok(want::WRITE);
    }
    Err(Errno::EPERM)
}

impl Client {
    /// Sends a change.
    ///
    /// # Errors
    /// What the shard refuses with; `ESTALE` if the file is gone.
    pub(crate) fn change(
        &self,
        inode: Inode,
        change: &Change,
        who: &Credentials,
    ) -> Result<Attributes> {
        let &Change { mask, mode, uid, gid, size, accessed, modified } = change;
        let request =
            Request::SetAttributes { inode, mask, mode, uid, gid, size, accessed, modified };
        self.call_attributes(To::Shard(inode.shard()), &request, who)
    }

    /// `chmod(2)`, `fchmodat(2)`.
    ///
    /// # Errors
    /// As `fchmodat(2)`.
    pub fn chmod(
        &self,
        at: At<'_>,
        mode: u32,
        follow: Follow,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        self.with_found(at, follow, who, buffer, |attributes| {
            let change = change_of_mode(attributes, mode, who)?;
            self.change(attributes.inode, &change, who).map(drop)
        })
    }

    /// `fchmod(2)`.
    ///
    /// # Errors
    /// As `fchmod(2)`.
    pub fn fchmod(&self, ofd: OfdIndex, mode: u32, who: &Credentials) -> Result<()> {
        let attributes = self.attributes_open(ofd)?;
        let change = change_of_mode(&attributes, mode, who)?;
        by_descriptor(self.change(attributes.inode, &change, who)).map(drop)
    }

    /// `chown(2)`, `lchown(2)`; `None` leaves an owner as it is.
    ///
    /// # Errors
    /// As `fchownat(2)`.
    pub fn chown(
        &self,
        at: At<'_>,
        (uid, gid): (Option<u32>, Option<u32>),
        follow: Follow,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        self.with_found(at, follow, who, buffer, |attributes| {
            let change = change_of_owner(attributes, uid, gid, who)?;
            self.change(attributes.inode, &change, who).map(drop)
        })
    }

    /// `fchown(2)`.
    ///
    /// # Errors
    /// As `fchown(2)`.
    pub fn fchown(
        &self,
        ofd: OfdIndex,
        (uid, gid): (Option<u32>, Option<u32>),
        who: &Credentials,
    ) -> Result<()> {
        let attributes = self.attributes_open(ofd)?;
        let change = change_of_owner(&attributes, uid, gid, who)?;
        by_descriptor(self.change(attributes.inode, &change, who)).map(drop)
    }

    /// `utimensat(2)`.
    ///
    /// # Errors
    /// As `utimensat(2)`.
    pub fn set_times(
        &self,
        at: At<'_>,
        times: Times,
        follow: Follow,
        who: &Credentials,
        buffer: &mut PathBuffer,
    ) -> Result<Outcome<()>> {
        self.with_found(at, follow, who, buffer, |attributes| {
            self.set_times_of(attributes, times, who)
        })
    }

    /// `futimens(3)`.
    ///
    /// # Errors
    /// As `utimensat(2)`.
    pub fn fset_times(&self, ofd: OfdIndex, times: Times, who: &Credentials) -> Result<()> {
        let attributes = self.attributes_open(ofd)?;
        by_descriptor(self.set_times_of(&attributes, times, who))
    }

    /// A file was read: its access time follows, as `relatime` of Linux has it. That costs a message if
    /// it does, and where nobody on this host knows the file's times; `may_ask` says whether it is worth
    /// one then.
    ///
    /// # Errors
    /// What the shard says; nobody who reads needs to know.
    pub fn note_read(&self, inode: Inode, may_ask: impl FnOnce() -> bool) -> Result<()> {
        let now = now_nanos();
        let is_due = match self.attributes_in_index(inode) {
            Some(known) if known.modified > now => is_read_late(&known, now) && may_ask(),
            Some(known) => is_read_late(&known, now),
            None => may_ask(),
        };
        if !is_due {
            return Ok(());
        }
        let change = Change { mask: set::READ, ..Change::default() };
        self.change(inode, &change, &Credentials::checked(0, 0)).map(drop)
    }

    fn set_times_of(&self, attributes: &Attributes, times: Times, who: &Credentials) -> Result<()> {
        if times.accessed == Time::Omit && times.modified == Time::Omit {
            return Ok(());
        }
        self.permits(attributes, who, check_times(attributes, times, who)?)?;
        // A size that is told later would bring a later time of modification with it.
        self.flush_if_open(attributes.inode)?;
        self.change(attributes.inode, &Change::of_times(times), who).map(drop)
    }
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
    fn a_change_of_owner_takes_set_id_bits_away() {
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
    fn now_needs_write_permission_only() {
        let attributes = file(0o666, 10, 20);
        let now = Times { accessed: Time::Now, modified: Time::Now };
        let given = Times { accessed: Time::Omit, modified: Time::At(5) };
        let other = Credentials::of(11, 21);
        assert_eq!(check_times(&attributes, now, &other), Ok(want::WRITE));
        assert_eq!(check_times(&attributes, given, &other), Err(Errno::EPERM));
    }
}
