//! Quotas: limits and usage of accounts, asked of the coordinator (`wire::quota`), and the project of a
//! file or directory as an extended attribute that every file has.

use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::quota::{Account, Limits, Row};
use wire::request::set;
use wire::{Attributes, Credentials, Reply, Request, ShardIndex};

use crate::Client;
use crate::attributes::Change;
use crate::handed_down::{Decimal, give};
use crate::request::To;

/// The name of the attribute. It is in no list, so that programs that copy attributes leave it out.
pub(crate) const PROJECT: &[u8] = b"user.forebay.project";

/// Who keeps limits.
const COORDINATOR: To = To::Shard(ShardIndex(0));

/// Copies the project of a file out as decimal digits, or only tells how many if `to` is empty.
pub(crate) fn get_project(file: &Attributes, to: &mut [u8]) -> Result<usize> {
    give(Decimal::of(file.project.into()).text(), to)
}

fn parse_project(value: &[u8]) -> Option<u32> {
    core::str::from_utf8(value).ok()?.parse().ok().filter(|&id| id != u32::MAX)
}

impl Client {
    /// A file counts for the project `value` from now on, and what is made in a directory.
    pub(crate) fn set_project(
        &self,
        file: &Attributes,
        value: &[u8],
        who: &Credentials,
    ) -> Result<()> {
        let project = parse_project(value).ok_or(Errno::EINVAL)?;
        let change = Change { mask: set::PROJECT, size: project.into(), ..Change::default() };
        self.change(file.inode, &change, who).map(drop)
    }

    /// What an account may use from now on. All daemons know it when this returns.
    ///
    /// # Errors
    /// `EPERM` for all but root and the instance's owner; `EINVAL` if a soft limit is above the hard
    /// one, or root is to be limited; `EIO` if a daemon does not answer.
    pub fn set_quota(&self, account: Account, limits: &Limits, who: &Credentials) -> Result<()> {
        let &Limits { space_soft, space_hard, inodes_soft, inodes_hard, grace } = limits;
        let account = account.0;
        let request =
            Request::SetQuota { account, space_soft, space_hard, inodes_soft, inodes_hard, grace };
        self.call_done(COORDINATOR, &request, who)
    }

    /// Calls `each` with usage and limits of all accounts from `from` on that use anything or are
    /// limited, in order, as far as one answer goes. True if there may be more behind the last.
    ///
    /// # Errors
    /// `EIO` if a daemon does not answer.
    pub fn quotas(
        &self,
        from: Account,
        who: &Credentials,
        each: &mut dyn FnMut(Row),
    ) -> Result<bool> {
        let request = Request::Quotas { from: from.0 };
        self.call(COORDINATOR, &request, who)?.with(|reply| {
            let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
            let mut reader = Reader::new(bytes);
            while !reader.rest().is_empty() {
                each(Row::decode(&mut reader).map_err(|_| Errno::EIO)?);
            }
            Ok(!bytes.is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_are_decimal_numbers() {
        for (project, text) in [(0, "0"), (7, "7"), (1200, "1200"), (u32::MAX - 1, "4294967294")] {
            let file = Attributes { project, ..Attributes::default() };
            let mut value = [0; 16];
            let length = get_project(&file, &mut value).expect("it fits");
            assert_eq!(value.get(..length), Some(text.as_bytes()));
            assert_eq!(get_project(&file, &mut []), Ok(length));
            assert_eq!(parse_project(text.as_bytes()), Some(project));
        }
        assert_eq!(
            get_project(&Attributes { project: 12, ..Attributes::default() }, &mut [0]),
            Err(Errno::ERANGE)
        );
        for wrong in [&b""[..], b"x", b"-1", b"4294967295", b"1 "] {
            assert_eq!(parse_project(wrong), None);
        }
    }
}
