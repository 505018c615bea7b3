//! `forebay-mount --quota`: limits and usage of accounts, for `forebay quota`, which does not use
//! shared memory itself. Mounts nothing.
//!
//! Arguments: run directory, number of the first daemon, and an operation: `report`; `set`, the
//! number of an account, and `name=value` for each limit to change; or `project`, a path from the
//! instance's root, and the project id to set, if any. Prints lines of `name=value`.

use crate::commands::attach;
use crate::commands::layout::{own_credentials, within};
use client::{At, Client, Follow, PathBuffer};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use wire::Errno;
use wire::quota::{Account, AccountUsage, Limits};

/// Extended attribute that holds the project id.
pub(crate) const PROJECT: &[u8] = b"user.forebay.project";

/// Runs the command.
///
/// # Errors
/// The reason, for people.
pub(crate) fn run(
    client: &'static Client,
    words: impl Iterator<Item = OsString>,
) -> Result<String, String> {
    let words: Vec<OsString> = words.collect();
    let usage = || "--quota takes RUN HOME report|set|project ..".to_owned();
    let [run, home, what, rest @ ..] = words.as_slice() else { return Err(usage()) };
    attach(client, run, home)?;
    match (what.to_str(), rest) {
        (Some("report"), []) => report(client),
        (Some("set"), [account, changes @ ..]) => set(client, account, changes),
        (Some("project"), [path]) => project(client, path, None),
        (Some("project"), [path, id]) => project(client, path, Some(id)),
        _ => Err(usage()),
    }
}

/// Makes all daemons count usage per account from now on, so that each user gets a fair share of
/// the memory (`data::tiering::fairness`): a query of all usage starts the accounting.
pub(crate) fn count(client: &Client) {
    if let Err(errno) = client.quotas(Account::ALL, &own_credentials(), &mut |_| {}) {
        tracing::warn!(
            why = errno.text(),
            "daemons do not count memory per user, so one user may take all of it; \
             'forebay quota report' starts the accounting"
        );
    }
}

fn said(errno: Errno) -> String {
    match errno {
        Errno::EPERM => "only root and the owner of the instance may".to_owned(),
        Errno::EINVAL => "a soft limit is above the hard one".to_owned(),
        Errno::EIO => "a daemon does not answer: see 'forebay status'".to_owned(),
        other => other.text().to_owned(),
    }
}

fn usages(client: &Client) -> Result<Vec<AccountUsage>, String> {
    let (caller, mut usages) = (own_credentials(), Vec::new());
    loop {
        let from =
            usages.last().map_or(0, |usage: &AccountUsage| usage.account.0.saturating_add(1));
        let more =
            client.quotas(Account(from), &caller, &mut |usage| usages.push(usage)).map_err(said)?;
        if !more {
            return Ok(usages);
        }
    }
}

fn report(client: &Client) -> Result<String, String> {
    let mut text = String::new();
    for usage in usages(client)? {
        let AccountUsage { account, space, inodes, limits, space_since, inodes_since } = usage;
        let Limits { space_soft, space_hard, inodes_soft, inodes_hard, .. } = limits;
        let kind = if account.is_project() { "project" } else { "user" };
        let grace = limits.grace_nanos();
        let _ = writeln!(
            text,
            "{kind}={} space={space} space_soft={space_soft} space_hard={space_hard} \
             space_since={space_since} inodes={inodes} inodes_soft={inodes_soft} \
             inodes_hard={inodes_hard} inodes_since={inodes_since} grace={grace}",
            account.id()
        );
    }
    Ok(text)
}

fn set(client: &Client, account: &OsStr, changes: &[OsString]) -> Result<String, String> {
    let account = account.to_str().and_then(|text| text.parse().ok()).map(Account);
    let account = account.filter(|account| account.is_valid()).ok_or("no such account")?;
    if account == Account::user(0) {
        return Err("root is not limited".to_owned());
    }
    let known = usages(client)?.into_iter().find(|usage| usage.account == account);
    let mut limits = known.map_or(Limits::default(), |usage| usage.limits);
    for change in changes.iter().map(|word| word.to_string_lossy()) {
        let (name, value) = change.split_once('=').ok_or("a limit is NAME=VALUE")?;
        let place = match name {
            "space_soft" => &mut limits.space_soft,
            "space_hard" => &mut limits.space_hard,
            "inodes_soft" => &mut limits.inodes_soft,
            "inodes_hard" => &mut limits.inodes_hard,
            "grace" => &mut limits.grace,
            _ => return Err(format!("there is no limit '{name}'")),
        };
        *place = value.parse().map_err(|_| format!("'{value}' is not a number"))?;
    }
    client.set_quota(account, &limits, &own_credentials()).map_err(said)?;
    Ok(String::new())
}

fn project(client: &Client, path: &OsStr, id: Option<&OsString>) -> Result<String, String> {
    let (caller, at) = (own_credentials(), At::root(path.as_bytes()));
    let mut buffer = Box::new(PathBuffer::new());
    let text = |errno: Errno| errno.text().to_owned();
    if let Some(id) = id {
        let named = (PROJECT, id.as_bytes());
        within(client.set_xattr(at, Follow::Yes, named, 0, &caller, &mut buffer).map_err(text)?)?;
    }
    let found = client.stat(at, Follow::Yes, &caller, &mut buffer).map_err(text)?;
    Ok(format!("project={}", within(found)?.project))
}
