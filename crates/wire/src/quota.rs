//! Quotas: whose usage is counted, what may be used, and rows of a report.

use crate::codec::{Malformed, Reader, Writer};

/// Somebody whose usage is counted: a user by his uid, or a project by its id. Ordered: users first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Account(pub u64);

impl Account {
    const PROJECT: u64 = 1 << 32;
    /// No account: stands for all of them where it is said that targets count.
    pub const ALL: Account = Account(u64::MAX);

    /// A user.
    #[must_use]
    pub const fn user(uid: u32) -> Account {
        Account(uid as u64)
    }

    /// A project; 0 is no project.
    #[must_use]
    pub const fn project(id: u32) -> Option<Account> {
        if id == 0 { None } else { Some(Account(Account::PROJECT | id as u64)) }
    }

    /// True for a project.
    #[must_use]
    pub const fn is_project(self) -> bool {
        self.0 & Account::PROJECT != 0
    }

    /// The uid, or the id of the project.
    #[must_use]
    pub const fn id(self) -> u32 {
        self.0 as u32
    }

    /// False for numbers that stand for nobody.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 < Account::PROJECT || (self.0 >> 32 == 1 && self.id() != 0)
    }
}

/// Whose a file is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Owner {
    /// Its user.
    pub uid: u32,
    /// Its project; 0: none.
    pub project: u32,
}

impl Owner {
    /// In answers: the file does not exist.
    pub const GONE: Owner = Owner { uid: u32::MAX, project: u32::MAX };
    /// Encoded length, with the time of the last change of the file behind it.
    pub const BYTES: usize = 16;

    /// The accounts that it counts for.
    pub fn accounts(self) -> impl Iterator<Item = Account> {
        core::iter::once(Account::user(self.uid)).chain(Account::project(self.project))
    }
}

/// What may be used; 0: as much as there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Bytes that may be exceeded for the time of grace.
    pub space_soft: u64,
    /// Bytes that are never exceeded.
    pub space_hard: u64,
    /// As `space_soft`, of inodes.
    pub inodes_soft: u64,
    /// As `space_hard`, of inodes.
    pub inodes_hard: u64,
    /// How long soft limits may be exceeded, in seconds; 0: `GRACE_SECONDS`.
    pub grace: u64,
}

/// Time of grace where none is set: a week, as other file systems have it.
pub const GRACE_SECONDS: u64 = 7 * 24 * 60 * 60;

/// Most accounts in one answer: they fit a slot.
pub const ROWS_MAX: usize = 128;
/// Most files of one `Request::Owners`: question and answer fit a slot.
pub const OWNERS_MAX: usize = 512;

impl Limits {
    /// True if nothing is limited.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        !self.limits_space() && !self.limits_inodes()
    }

    /// True if space is limited.
    #[must_use]
    pub const fn limits_space(&self) -> bool {
        self.space_soft | self.space_hard != 0
    }

    /// True if inodes are limited.
    #[must_use]
    pub const fn limits_inodes(&self) -> bool {
        self.inodes_soft | self.inodes_hard != 0
    }

    /// The time of grace in nanoseconds.
    #[must_use]
    pub fn grace_nanos(&self) -> i64 {
        let seconds = if self.grace == 0 { GRACE_SECONDS } else { self.grace };
        i64::try_from(seconds.saturating_mul(1_000_000_000)).unwrap_or(i64::MAX)
    }
}

/// What is used of what may be, of one account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Whose.
    pub account: Account,
    /// Bytes in use.
    pub space: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// What may be used.
    pub limits: Limits,
    /// Nanoseconds since 1970 when the soft limit of space was exceeded; 0: it is not.
    pub space_since: u64,
    /// Of inodes.
    pub inodes_since: u64,
}

impl Row {
    /// Encoded length: ten words in the order of the fields.
    pub const BYTES: usize = 80;

    /// Nothing used, nothing limited.
    #[must_use]
    pub const fn of(account: Account) -> Row {
        let limits =
            Limits { space_soft: 0, space_hard: 0, inodes_soft: 0, inodes_hard: 0, grace: 0 };
        Row { account, space: 0, inodes: 0, limits, space_since: 0, inodes_since: 0 }
    }

    /// The encoded form.
    #[must_use]
    pub fn encoded(&self) -> [u8; Row::BYTES] {
        let mut bytes = [0; Row::BYTES];
        let Limits { space_soft, space_hard, inodes_soft, inodes_hard, grace } = self.limits;
        Writer::new(&mut bytes).words(&[
            self.account.0,
            self.space,
            self.inodes,
            space_soft,
            space_hard,
            inodes_soft,
            inodes_hard,
            grace,
            self.space_since,
            self.inodes_since,
        ]);
        bytes
    }

    /// Reads the encoded form.
    ///
    /// # Errors
    /// `Malformed` if the input is too short.
    pub fn decode(from: &mut Reader<'_>) -> Result<Row, Malformed> {
        let [account, space, inodes, limits @ .., space_since, inodes_since] =
            from.words::<10>()?;
        let [space_soft, space_hard, inodes_soft, inodes_hard, grace] = limits;
        let limits = Limits { space_soft, space_hard, inodes_soft, inodes_hard, grace };
        let account = Account(account);
        Ok(Row { account, space, inodes, limits, space_since, inodes_since })
    }
}

const _: () = assert!(ROWS_MAX * Row::BYTES + 1024 <= crate::limits::SLOT_BYTES);
const _: () = assert!(OWNERS_MAX * Owner::BYTES + 1024 <= crate::limits::SLOT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_told_apart() {
        let project = Account::project(7).expect("a project");
        assert!(project.is_project() && project.is_valid() && project.id() == 7);
        assert!(!Account::user(7).is_project() && Account::user(u32::MAX).is_valid());
        assert_eq!(Account::project(0), None);
        assert!(!Account::ALL.is_valid() && !Account(1 << 32).is_valid());
        let both = Owner { uid: 3, project: 7 };
        assert!(both.accounts().eq([Account::user(3), project]));
        assert!(Owner { uid: 3, project: 0 }.accounts().eq([Account::user(3)]));
    }

    #[test]
    fn rows_survive_encoding() {
        let limits =
            Limits { space_soft: 1, space_hard: 2, inodes_soft: 3, inodes_hard: 4, grace: 5 };
        let of = Row::of(Account::user(9));
        let row = Row { space: 10, inodes: 11, limits, space_since: 12, inodes_since: 13, ..of };
        assert_eq!(Row::decode(&mut Reader::new(&row.encoded())), Ok(row));
    }
}
