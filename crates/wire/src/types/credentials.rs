//! The caller: user, group and supplementary groups, as permission checks need them.
//!
//! For a session of an ordinary user only the kernel's information is trusted; a session of root
//! may act as any user (a process that called `setfsuid`). The gateway enforces that rule.

use crate::codec::{Malformed, Reader, Writer};

/// Supplementary groups that travel with a request. NFS carries as many; further ones are left out,
/// which can only deny an access that would have been allowed.
pub const GROUPS_MAX: usize = 16;

/// User, group and supplementary groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The user for permission checks (`fsuid`).
    pub uid: u32,
    /// The group for permission checks and of new files (`fsgid`).
    pub gid: u32,
    /// How many of `groups` are valid.
    pub group_count: u8,
    /// Supplementary groups.
    pub groups: [u32; GROUPS_MAX],
    /// A kernel has already checked permissions (a mount): the user and the group only determine
    /// the owner of new files, and nothing is refused but what only the owner of a file may do: the
    /// kernel may have compared another file, or a former owner.
    pub is_checked: bool,
}

/// Bit of the encoded count of groups: `is_checked`.
const CHECKED: u8 = 0x80;

impl Credentials {
    /// Root without supplementary groups.
    pub const ROOT: Credentials =
        Credentials { uid: 0, gid: 0, group_count: 0, groups: [0; GROUPS_MAX], is_checked: false };

    /// A user with no supplementary groups.
    #[must_use]
    pub const fn of(uid: u32, gid: u32) -> Credentials {
        Credentials { uid, gid, ..Credentials::ROOT }
    }

    /// A user whose permissions a kernel has checked.
    #[must_use]
    pub const fn checked(uid: u32, gid: u32) -> Credentials {
        Credentials { uid, gid, is_checked: true, ..Credentials::ROOT }
    }

    /// True if permissions are not checked.
    #[must_use]
    pub const fn is_privileged(&self) -> bool {
        self.uid == 0 || self.is_checked
    }

    /// True if the caller has the rights of the owner of any file.
    #[must_use]
    pub const fn is_owner_of_all(&self) -> bool {
        self.uid == 0
    }

    /// True if the caller has the rights of the owner of a file of user `uid`, also if a kernel has
    /// checked that: it remembers an owner although it was told that the attributes changed, and
    /// compares it in `chmod`, `chown`, `utimensat` and changes of access control lists.
    #[must_use]
    pub const fn owns(&self, uid: u32) -> bool {
        self.is_owner_of_all() || self.uid == uid
    }

    /// True if `gid` is the group or one of the supplementary groups.
    #[must_use]
    pub fn is_in_group(&self, gid: u32) -> bool {
        let count = usize::from(self.group_count).min(GROUPS_MAX);
        self.gid == gid || self.groups.iter().take(count).any(|&group| group == gid)
    }

    /// Writes the encoded form: uid, gid, count, then the groups.
    pub fn encode(&self, to: &mut Writer<'_>) {
        to.u32(self.uid);
        to.u32(self.gid);
        let count = usize::from(self.group_count).min(GROUPS_MAX);
        to.u8(count as u8 | if self.is_checked { CHECKED } else { 0 });
        for &group in self.groups.iter().take(count) {
            to.u32(group);
        }
    }

    /// Reads the encoded form.
    ///
    /// # Errors
    /// `Malformed` if it is too short or names more than `GROUPS_MAX` groups.
    pub fn decode(from: &mut Reader<'_>) -> Result<Credentials, Malformed> {
        let mut caller = Credentials::of(from.u32()?, from.u32()?);
        let count = from.u8()?;
        caller.is_checked = count & CHECKED != 0;
        caller.group_count = count & !CHECKED;
        if usize::from(caller.group_count) > GROUPS_MAX {
            return Err(Malformed);
        }
        for group in caller.groups.iter_mut().take(usize::from(caller.group_count)) {
            *group = from.u32()?;
        }
        Ok(caller)
    }
}
