//! Access control lists of POSIX.1e, as extended attributes hold them: version 2 in four bytes,
//! then eight bytes for each entry: its tag and its permissions in two bytes each, and its user or
//! group. All numbers are little-endian.
//!
//! The rules are those of Linux. The mode of a file with a list holds: the owner's permissions, the
//! mask if there are named entries, and those of all others.

use crate::attributes::want;
use crate::credentials::Credentials;
use crate::errno::{Errno, Result};

/// Name of the attribute with a file's list.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute of a directory with the default list for files created in it.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Bytes before the entries.
pub const HEADER_BYTES: usize = 4;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 8;
const VERSION: u32 = 2;
/// The user or group of an entry without a name.
const NOBODY: u32 = u32::MAX;

/// Kinds of entries.
mod tag {
    pub(super) const OWNER: u16 = 0x01;
    pub(super) const USER: u16 = 0x02;
    pub(super) const OWNING_GROUP: u16 = 0x04;
    pub(super) const GROUP: u16 = 0x08;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

/// One entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    permissions: u16,
    id: u32,
}

impl Entry {
    const fn of(bytes: [u8; ENTRY_BYTES]) -> Entry {
        let [t0, t1, p0, p1, id @ ..] = bytes;
        Entry {
            tag: u16::from_le_bytes([t0, t1]),
            permissions: u16::from_le_bytes([p0, p1]),
            id: u32::from_le_bytes(id),
        }
    }

    fn bytes(&self) -> [u8; ENTRY_BYTES] {
        let word =
            u64::from(self.tag) | u64::from(self.permissions) << 16 | u64::from(self.id) << 32;
        word.to_le_bytes()
    }

    const fn is_named(&self) -> bool {
        self.tag == tag::USER || self.tag == tag::GROUP
    }

    fn gives(&self, requested: u32) -> bool {
        u32::from(self.permissions) & requested == requested
    }

    /// Shift of its permissions in a mode, if they are there.
    const fn shift(&self, has_mask: bool) -> Option<u32> {
        match self.tag {
            tag::OWNER => Some(6),
            tag::MASK => Some(3),
            tag::OWNING_GROUP if !has_mask => Some(3),
            tag::OTHER => Some(0),
            _ => None,
        }
    }
}

/// A valid list: the owner, users, the owning group, groups, the mask if any user or group is
/// named, all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Acl<'a> {
    entries: &'a [[u8; ENTRY_BYTES]],
}

impl<'a> Acl<'a> {
    /// Reads a list; `None` if it has no entries, which stands for no list.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for another version, `EINVAL` for bytes that are not a list.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<Acl<'a>>> {
        let (version, rest) = bytes.split_first_chunk().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        let (entries, []) = rest.as_chunks() else { return Err(Errno::EINVAL) };
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl { entries };
        acl.check()?;
        Ok(Some(acl))
    }

    fn check(&self) -> Result<()> {
        // The next tag; nothing after the others.
        let (mut next, mut needs_mask) = (tag::OWNER, false);
        for entry in self.entries() {
            next = match (entry.tag, next) {
                (tag::OWNER, tag::OWNER) => tag::USER,
                (tag::USER, tag::USER) => next,
                (tag::OWNING_GROUP, tag::USER) => tag::GROUP,
                (tag::GROUP, tag::GROUP) => next,
                (tag::MASK, tag::GROUP) => tag::OTHER,
                (tag::OTHER, tag::OTHER) => 0,
                (tag::OTHER, tag::GROUP) if !needs_mask => 0,
                _ => return Err(Errno::EINVAL),
            };
            needs_mask |= entry.is_named();
            let is_nobody = entry.is_named() && entry.id == NOBODY;
            if is_nobody || u32::from(entry.permissions) & !ALL != 0 {
                return Err(Errno::EINVAL);
            }
        }
        if next == 0 { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.entries.iter().map(|bytes| Entry::of(*bytes))
    }

    fn mask(&self) -> Option<Entry> {
        self.entries().find(|entry| entry.tag == tag::MASK)
    }

    /// Number of bytes of the list.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        HEADER_BYTES + self.entries.len() * ENTRY_BYTES
    }

    /// The nine mode bits of the list.
    #[must_use]
    pub fn mode(&self) -> u32 {
        let has_mask = self.mask().is_some();
        self.entries().fold(0, |mode, entry| {
            let shift = entry.shift(has_mask);
            mode | shift.map_or(0, |shift| u32::from(entry.permissions) << shift)
        })
    }

    /// True if a mode can express the list.
    #[must_use]
    pub fn is_mode(&self) -> bool {
        self.entries().all(|entry| !entry.is_named() && entry.tag != tag::MASK)
    }

    /// True if `caller` may do all of `requested` with a file of this owner and this group. Not
    /// evaluated for privileged callers.
    #[must_use]
    pub fn permits(&self, (uid, gid): (u32, u32), caller: &Credentials, requested: u32) -> bool {
        let mask = self.mask().map_or(ALL, |mask| u32::from(mask.permissions));
        let mut is_in_a_group = false;
        for entry in self.entries() {
            let is_group = match entry.tag {
                tag::OWNER if caller.uid == uid => return entry.gives(requested),
                tag::USER if caller.uid == entry.id => {
                    return entry.gives(requested) && mask & requested == requested;
                }
                tag::OWNING_GROUP => caller.is_in_group(gid),
                tag::GROUP => caller.is_in_group(entry.id),
                tag::OTHER if !is_in_a_group => return entry.gives(requested),
                _ => false,
            };
            if is_group && entry.gives(requested) {
                return mask & requested == requested;
            }
            is_in_a_group |= is_group;
        }
        false
    }

    /// Writes the list into `to`, which has `byte_count` bytes, with `change` applied to the
    /// permissions that are in a mode.
    fn write(&self, to: &mut [u8], mut change: impl FnMut(u32, u32) -> u32) {
        let Some((version, rest)) = to.split_first_chunk_mut() else { return };
        *version = VERSION.to_le_bytes();
        let has_mask = self.mask().is_some();
        for (to, mut entry) in rest.as_chunks_mut().0.iter_mut().zip(self.entries()) {
            if let Some(shift) = entry.shift(has_mask) {
                let permissions = change(shift, u32::from(entry.permissions));
                entry.permissions = (permissions & ALL) as u16;
            }
            if !entry.is_named() {
                entry.id = NOBODY;
            }
            *to = entry.bytes();
        }
    }

    /// Writes the list as it is stored.
    pub fn store(&self, to: &mut [u8]) {
        self.write(to, |_, permissions| permissions);
    }

    /// Writes the list after a `chmod`.
    pub fn with_mode(&self, mode: u32, to: &mut [u8]) {
        self.write(to, |shift, _| mode >> shift);
    }

    /// Writes the list that a new file inherits from this one, a default, if a program asked for
    /// `mode`; returns the nine bits of the file's mode.
    pub fn inherit(&self, mode: u32, to: &mut [u8]) -> u32 {
        let mut bits = 0;
        self.write(to, |shift, permissions| {
            let both = permissions & (mode >> shift);
            bits |= both << shift;
            both
        });
        bits
    }
}

/// Maps the users and groups that a list names to other numbers; bytes that are not a list stay as
/// they are.
pub fn renumber(list: &mut [u8], user: impl Fn(u32) -> u32, group: impl Fn(u32) -> u32) {
    let Some((_, rest)) = list.split_first_chunk_mut::<HEADER_BYTES>() else { return };
    for bytes in rest.as_chunks_mut().0 {
        let mut entry = Entry::of(*bytes);
        entry.id = match entry.tag {
            tag::USER => user(entry.id),
            tag::GROUP => group(entry.id),
            _ => continue,
        };
        *bytes = entry.bytes();
    }
}

/// All permissions.
const ALL: u32 = want::READ | want::WRITE | want::EXECUTE;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for &(tag, permissions, id) in entries {
            bytes.extend(Entry { tag, permissions, id }.bytes());
        }
        bytes
    }

    /// owner rwx, user 5 rw, owning group r, group 8 rwx, mask, others x.
    fn named(mask: u16) -> Vec<u8> {
        list(&[(1, 7, 0), (2, 6, 5), (4, 4, 0), (8, 7, 8), (0x10, mask, 0), (0x20, 1, 0)])
    }

    #[test]
    fn lists_are_accepted_as_linux_accepts_them() {
        let is = |entries: &[(u16, u16, u32)]| Acl::parse(&list(entries)).map(|acl| acl.is_some());
        let (owner, group, other) = ((1, 7, 0), (4, 5, 0), (0x20, 4, 0));
        assert_eq!(is(&[]), Ok(false));
        assert_eq!(is(&[owner, group, other]), Ok(true));
        assert_eq!(is(&[owner, group, (0x10, 7, 0), other]), Ok(true));
        assert_eq!(is(&[owner, (2, 7, 9), group, other]), Err(Errno::EINVAL), "no mask");
        assert_eq!(is(&[owner, (2, 7, NOBODY), group, (0x10, 7, 0), other]), Err(Errno::EINVAL));
        assert_eq!(is(&[group, owner, other]), Err(Errno::EINVAL), "the order");
        assert_eq!(is(&[owner, group]), Err(Errno::EINVAL), "no others");
        assert_eq!(is(&[owner, group, other, other]), Err(Errno::EINVAL), "twice");
        assert_eq!(is(&[(1, 8, 0), group, other]), Err(Errno::EINVAL), "no such permission");
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
        assert_eq!(Acl::parse(&[2, 0, 0, 0, 1]), Err(Errno::EINVAL));
        assert_eq!(Acl::parse(&[2, 0]), Err(Errno::EINVAL));
    }

    #[test]
    fn the_first_matching_entry_decides_and_groups_add_up() {
        let bytes = named(6);
        let acl = Acl::parse(&bytes).expect("a list").expect("entries");
        let may = |uid, gid, requested| acl.permits((1, 2), &Credentials::of(uid, gid), requested);
        assert!(may(1, 9, 7), "the owner is not masked");
        assert!(may(5, 2, 6) && !may(5, 2, 1), "a named user");
        assert!(may(6, 2, 4) && !may(6, 2, 2), "the owning group");
        assert!(may(6, 8, 6) && !may(6, 8, 1), "a named group, masked");
        assert!(may(6, 9, 1) && !may(6, 9, 4), "others");
        let mut both = Credentials::of(6, 2);
        (both.groups[0], both.group_count) = (8, 1);
        assert!(acl.permits((1, 2), &both, 2), "one of the groups may");
        assert_eq!((acl.mode(), acl.is_mode()), (0o761, false));
    }

    #[test]
    fn named_users_and_groups_are_renumbered() {
        let mut bytes = named(6);
        renumber(&mut bytes, |user| user + 1000, |group| group + 2000);
        let acl = Acl::parse(&bytes).expect("a list").expect("entries");
        let ids: Vec<u32> = acl.entries().filter(Entry::is_named).map(|entry| entry.id).collect();
        assert_eq!(ids, [1005, 2008]);
        renumber(&mut bytes[..3], |_| 0, |_| 0);
        renumber(&mut [], |_| 0, |_| 0);
    }

    #[test]
    fn a_mode_changes_the_mask_and_limits_a_default_list() {
        let bytes = named(6);
        let acl = Acl::parse(&bytes).expect("a list").expect("entries");
        let mut changed = vec![0; acl.byte_count()];
        acl.with_mode(0o640, &mut changed);
        let changed = Acl::parse(&changed).expect("a list").expect("entries");
        assert_eq!(changed.mode(), 0o640);
        assert!(!changed.permits((1, 2), &Credentials::of(5, 5), 2), "masked now");
        let mut inherited = vec![0; acl.byte_count()];
        assert_eq!(acl.inherit(0o666, &mut inherited), 0o660);
        assert_eq!(Acl::parse(&inherited).expect("a list").expect("entries").mode(), 0o660);
    }

    proptest! {
        /// Any bytes are read without a panic; a valid list is written back unchanged, and its mode
        /// changes.
        #[test]
        fn any_bytes_are_read(
            bytes: Vec<u8>,
            entries in prop::collection::vec((0usize..7, 0u16..9, 0u32..4), 0..8),
            mode in 0u32..0o1000,
        ) {
            let tags = [1u16, 2, 4, 8, 0x10, 0x20, 0x40];
            let mut chosen: Vec<_> = entries.iter().map(|&(t, p, id)| (tags[t], p, id)).collect();
            chosen.sort_unstable();
            chosen.dedup_by_key(|entry| (entry.0, entry.2));
            for bytes in [bytes, list(&chosen)] {
                let Ok(Some(acl)) = Acl::parse(&bytes) else { continue };
                let mut stored = vec![0; acl.byte_count()];
                acl.store(&mut stored);
                let again = Acl::parse(&stored).expect("a list").expect("entries");
                prop_assert_eq!((again.mode(), again.is_mode()), (acl.mode(), acl.is_mode()));
                acl.with_mode(mode, &mut stored);
                prop_assert_eq!(Acl::parse(&stored).expect("a list").expect("entries").mode(), mode);
                let bits = acl.inherit(mode, &mut stored);
                prop_assert_eq!(bits, acl.mode() & mode);
                let caller = Credentials::of(mode, mode);
                if acl.is_mode() && acl.permits((mode, 0), &caller, want::READ) {
                    prop_assert!(acl.mode() & 0o400 != 0);
                }
            }
        }
    }
}
