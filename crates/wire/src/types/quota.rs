//! Quotas: accounts whose usage is counted, limits, and entries of a report.

use crate::codec::{Malformed, Reader, Writer};

/// An account whose usage is counted: a user by uid, or a project by id. Ordered: users first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Account(pub u64);

impl Account {
    const PROJECT: u64 = 1 << 32;
    /// No account: stands for all accounts in a report that targets count usage.
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

    /// False for numbers that stand for no account.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 < Account::PROJECT || (self.0 >> 32 == 1 && self.id() != 0)
    }
}

/// The owner of a file.
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

/// Limits of usage; 0: unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Bytes that may be exceeded for the grace period.
    pub space_soft: u64,
    /// Bytes that are never exceeded.
    pub space_hard: u64,
    /// As `space_soft`, for inodes.
    pub inodes_soft: u64,
    /// As `space_hard`, for inodes.
    pub inodes_hard: u64,
    /// Grace period of soft limits, in seconds; 0: `GRACE_SECONDS`.
    pub grace: u64,
}

/// Default grace period: a week, as in other file systems.
pub const GRACE_SECONDS: u64 = 7 * 24 * 60 * 60;

/// Maximum number of accounts in one answer: they fit a slot.
pub const USAGES_MAX: usize = 128;
/// Maximum number of files of one `Request::Owners`: request and answer fit a slot.
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

    /// The grace period in nanoseconds.
    #[must_use]
    pub fn grace_nanos(&self) -> i64 {
        let seconds = if self.grace == 0 { GRACE_SECONDS } else { self.grace };
        i64::try_from(seconds.saturating_mul(1_000_000_000)).unwrap_or(i64::MAX)
    }
}

/// Usage and limits of one account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccountUsage {
    /// The account.
    pub account: Account,
    /// Bytes in use.
    pub space: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Its limits.
    pub limits: Limits,
    /// Nanoseconds since 1970 when the soft limit of space was exceeded; 0: it is not.
    pub space_since: u64,
    /// The same for inodes.
    pub inodes_since: u64,
}

impl AccountUsage {
    /// Encoded length: ten words in the order of the fields.
    pub const BYTES: usize = 80;

    /// Nothing used, nothing limited.
    #[must_use]
    pub const fn of(account: Account) -> AccountUsage {
        let limits =
            Limits { space_soft: 0, space_hard: 0, inodes_soft: 0, inodes_hard: 0, grace: 0 };
        AccountUsage { account, space: 0, inodes: 0, limits, space_since: 0, inodes_since: 0 }
    }

    /// The encoded form.
    #[must_use]
    pub fn encoded(&self) -> [u8; AccountUsage::BYTES] {
        let mut bytes = [0; AccountUsage::BYTES];
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
    pub fn decode(from: &mut Reader<'_>) -> Result<AccountUsage, Malformed> {
        let [account, space, inodes, limits @ .., space_since, inodes_since] =
            from.words::<10>()?;
        let [space_soft, space_hard, inodes_soft, inodes_hard, grace] = limits;
        let limits = Limits { space_soft, space_hard, inodes_soft, inodes_hard, grace };
        let account = Account(account);
        Ok(AccountUsage { account, space, inodes, limits, space_since, inodes_since })
    }
}

const _: () = assert!(USAGES_MAX * AccountUsage::BYTES + 1024 <= crate::limits::SLOT_BYTES);
const _: () = assert!(OWNERS_MAX * Owner::BYTES + 1024 <= crate::limits::SLOT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_distinct() {
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
    fn quota_entries_survive_encoding() {
        let limits =
            Limits { space_soft: 1, space_hard: 2, inodes_soft: 3, inodes_hard: 4, grace: 5 };
        let of = AccountUsage::of(Account::user(9));
        let usage =
            AccountUsage { space: 10, inodes: 11, limits, space_since: 12, inodes_since: 13, ..of };
        assert_eq!(AccountUsage::decode(&mut Reader::new(&usage.encoded())), Ok(usage));
    }
}
