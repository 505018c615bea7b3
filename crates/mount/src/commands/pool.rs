//! `forebay-mount --pool`: pools of targets, for `forebay pool`, which does not use shared memory
//! itself. Mounts nothing.
//!
//! Arguments: run directory, number of the first daemon, and an operation: `list`; `create`, a name,
//! and for each target its number and bytes per second as `TARGET:RATE`, or `TARGET:~RATE` if they were
//! measured; or `delete` and a name.
//! `list` prints a line for each pool: its name, and its targets in that form.

use crate::commands::attach;
use crate::commands::layout::own_credentials;
use client::Client;
use std::ffi::OsString;
use std::fmt::Write as _;
use wire::pool::{self, PoolEntry, PoolTarget};
use wire::{DaemonIndex, Errno, Writer};

/// Runs the command.
///
/// # Errors
/// The reason, for people.
pub(crate) fn run(
    client: &'static Client,
    words: impl Iterator<Item = OsString>,
) -> Result<String, String> {
    let words: Vec<OsString> = words.collect();
    let usage = || "--pool takes RUN HOME list|create|delete ..".to_owned();
    let [run, home, what, rest @ ..] = words.as_slice() else { return Err(usage()) };
    attach(client, run, home)?;
    match (what.to_str(), rest) {
        (Some("list"), []) => list(client),
        (Some("create"), [name, targets @ ..]) => {
            let targets = targets.iter().map(target).collect::<Option<Vec<_>>>();
            let targets = targets.filter(|all| !all.is_empty()).ok_or_else(usage)?;
            set(client, name, &targets)
        }
        (Some("delete"), [name]) => set(client, name, &[]),
        _ => Err(usage()),
    }
}

/// A target of `TARGET:RATE` or `TARGET:~RATE`.
fn target(word: &OsString) -> Option<PoolTarget> {
    let (target, rate) = word.to_str()?.split_once(':')?;
    let target = DaemonIndex(target.parse().ok()?);
    let (rate, is_measured) = rate.strip_prefix('~').map_or((rate, false), |rate| (rate, true));
    Some(PoolTarget { target, max_perf: rate.parse().ok()?, is_measured })
}

fn set(client: &Client, name: &OsString, targets: &[PoolTarget]) -> Result<String, String> {
    let mut bytes = vec![0; targets.len() * PoolTarget::BYTES];
    let mut writer = Writer::new(&mut bytes);
    targets.iter().for_each(|target| target.encode(&mut writer));
    let name = name.to_string_lossy();
    let set = client.set_pool(name.as_bytes(), &bytes, &own_credentials());
    set.map(|()| String::new()).map_err(|errno| match errno {
        Errno::EPERM => "only root and the owner of the instance may".to_owned(),
        Errno::EEXIST => "there is one of this name with other targets".to_owned(),
        Errno::ENOENT => "there is none: see 'forebay pool list'".to_owned(),
        Errno::ENOSPC => format!("there are {} pools already: delete one", pool::POOL_ID_MAX),
        Errno::EINVAL => "a target does not exist, is named twice, or may do nothing".to_owned(),
        Errno::EIO => "a daemon does not answer: see 'forebay status'".to_owned(),
        other => other.text().to_owned(),
    })
}

/// Calls `each` with every pool.
///
/// # Errors
/// As `Client::pools`.
pub(crate) fn each_pool(
    client: &Client,
    each: &mut dyn FnMut(PoolEntry<'_>),
) -> wire::errno::Result<()> {
    let mut after = 0;
    loop {
        match client.pools(after, each)? {
            last if last > after => after = last,
            _ => return Ok(()),
        }
    }
}

fn list(client: &Client) -> Result<String, String> {
    let mut text = String::new();
    let listed = each_pool(client, &mut |entry| {
        text.push_str(&String::from_utf8_lossy(entry.name));
        for PoolTarget { target, max_perf, is_measured } in pool::targets(entry.targets) {
            let mark = if is_measured { "~" } else { "" };
            let _ = write!(text, " {}:{mark}{max_perf}", target.0);
        }
        text.push('\n');
    });
    listed.map_err(|errno| errno.text().to_owned())?;
    Ok(text)
}
