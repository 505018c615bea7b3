//! Quotas: limits and usage of accounts, from the coordinator (`wire::quota`), and the project of a
//! file or directory as an extended attribute that every file has.

use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::quota::{Account, AccountUsage, Limits};
use wire::request::set;
use wire::{Attributes, Credentials, Reply, Request, ShardIndex};

use crate::file::change;
use crate::file::change::Change;
use crate::names::inherited::{Decimal, copy_value};
use crate::transport::Transport;
use crate::transport::request::Destination;

/// Name of the attribute. It is not listed, so programs that copy attributes leave it out.
pub(crate) const PROJECT: &[u8] = b"user.forebay.project";

/// The shard that coordinates quotas.
const COORDINATOR: Destination = Destination::Shard(ShardIndex(0));

/// Copies the project of a file as decimal digits, or only returns their number if `to` is empty.
pub(crate) fn get_project(file: &Attributes, to: &mut [u8]) -> Result<usize> {
    copy_value(Decimal::of(file.project.into()).text(), to)
}

fn parse_project(value: &[u8]) -> Option<u32> {
    core::str::from_utf8(value).ok()?.parse().ok().filter(|&id| id != u32::MAX)
}

/// Assigns a file, or what is created in a directory, to the project `value`.
pub(crate) fn set_project(
    transport: &Transport,
    file: &Attributes,
    value: &[u8],
    caller: &Credentials,
) -> Result<()> {
    let project = parse_project(value).ok_or(Errno::EINVAL)?;
    let change = Change { mask: set::PROJECT, size: project.into(), ..Change::default() };
    change::apply(transport, file.inode, &change, caller).map(drop)
}

/// Sets the limits of an account. All daemons know them when this returns.
pub(crate) fn set_quota(
    transport: &Transport,
    account: Account,
    limits: &Limits,
    caller: &Credentials,
) -> Result<()> {
    let &Limits { space_soft, space_hard, inodes_soft, inodes_hard, grace } = limits;
    let account = account.0;
    let request =
        Request::SetQuota { account, space_soft, space_hard, inodes_soft, inodes_hard, grace };
    transport.call_done(COORDINATOR, &request, caller)
}

/// Calls `each` with usage and limits of the accounts from `from` on that use anything or are
/// limited, in order, as far as one reply goes. Returns true if there may be more.
pub(crate) fn quotas(
    transport: &Transport,
    from: Account,
    caller: &Credentials,
    each: &mut dyn FnMut(AccountUsage),
) -> Result<bool> {
    let request = Request::Quotas { from: from.0 };
    transport.call(COORDINATOR, &request, caller)?.with(|reply| {
        let Reply::Bytes { bytes } = reply else { return Err(Errno::EIO) };
        let mut reader = Reader::new(bytes);
        while !reader.rest().is_empty() {
            each(AccountUsage::decode(&mut reader).map_err(|_| Errno::EIO)?);
        }
        Ok(!bytes.is_empty())
    })
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
