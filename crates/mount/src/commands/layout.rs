//! `forebay-mount --layout`: shows or changes the layout of a file, for `forebay layout`, which
//! does not use shared memory itself. Mounts nothing.
//!
//! Arguments: run directory, number of the first daemon, path from the instance's root, the word
//! `service` if the number of the file's metadata service is asked for, and settings to change as
//! `NAME=VALUE`. Prints the layout as a line of `name=value`.

use crate::commands::attach;
use crate::commands::pool::each_pool;
use client::{At, Client, Follow, Outcome, PathBuffer};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use wire::attributes::{placement, spread, writeback};
use wire::losses::state;
use wire::{Attributes, Credentials, Errno};

/// Settings that may be changed, without the prefix of their extended attributes.
const NAMES: [&str; 7] =
    ["consistency", STRIPE_COUNT, "stripe_size", WRITEBACK, PINNED, POOL, REPLICAS];
const REPLICAS: &str = "replicas";
const POOL: &str = "pool";
const PINNED: &str = "pinned";
const WRITEBACK: &str = "writeback";
const STRIPE_COUNT: &str = "stripe_count";
const SERVICE: &str = "service";
const PREFIX: &str = "user.forebay.";

/// Runs the command.
///
/// # Errors
/// The reason, for people.
pub(crate) fn run(
    client: &'static Client,
    words: impl Iterator<Item = OsString>,
) -> Result<String, String> {
    let words: Vec<OsString> = words.collect();
    let [run, home, path, requested @ ..] = words.as_slice() else {
        return Err("--layout takes RUN HOME PATH [service] [NAME=VALUE]..".to_owned());
    };
    let (asks_service, requested) = match requested {
        [first, rest @ ..] if first == SERVICE => (true, rest),
        all => (false, all),
    };
    let requested = requested.iter().map(|word| parse(word)).collect::<Result<Vec<_>, _>>()?;
    attach(client, run, home)?;
    let caller = own_credentials();
    let at = At::root(path.as_bytes());
    let mut buffer = Box::new(PathBuffer::new());
    // All values are checked before any is set.
    requested.iter().try_for_each(|requested| check(client, *requested))?;
    for (name, value) in requested {
        let attribute = format!("{PREFIX}{name}");
        let named = (attribute.as_bytes(), value.as_bytes());
        let set = client.set_xattr(at, Follow::Yes, named, 0, &caller, &mut buffer);
        within(set.map_err(|errno| match errno {
            Errno::EOPNOTSUPP if name == REPLICAS && value == "1" => {
                "no files with one copy: daemons leave the instance, or have left it".to_owned()
            }
            Errno::EOPNOTSUPP if name == REPLICAS => {
                format!("no {value} copies: the instance does not keep so many")
            }
            Errno::EOPNOTSUPP => "the instance has no backing store to write to".to_owned(),
            Errno::ENOENT if name == POOL => {
                format!("there is no pool '{value}': see 'forebay pool list'")
            }
            errno => errno.text().to_owned(),
        })?)?;
    }
    let found = client.stat(at, Follow::Yes, &caller, &mut buffer);
    let found = within(found.map_err(|errno| errno.text().to_owned())?)?;
    let text = text(client, &found).and_then(|text| match asks_service {
        true => Ok(format!("{text} {SERVICE}={}", client.metadata_service(found.inode)?)),
        false => Ok(text),
    });
    text.map_err(|errno| errno.text().to_owned())
}

fn parse(word: &OsString) -> Result<(&str, &str), String> {
    let parted = word.to_str().and_then(|word| word.split_once('='));
    let known = parted.filter(|(name, _)| NAMES.contains(name));
    known.ok_or_else(|| format!("{} cannot be set", word.display()))
}

/// Checks a value against the limits of this instance.
fn check(client: &Client, (name, value): (&str, &str)) -> Result<(), String> {
    let count = value.parse::<u64>().ok().filter(|_| name == STRIPE_COUNT);
    let Some(count) = count else { return Ok(()) };
    let all = client.target_count().map_err(|errno| errno.text().to_owned())?;
    if count > u64::from(all) {
        let are = if all == 1 { "is one target" } else { &format!("are {all} targets") };
        return Err(format!("no stripe count of {count}: there {are}"));
    }
    let most = placement::GROUP_MAX;
    if count > u64::from(most) {
        return Err(format!("no stripe count of {count}: at most {most}, or all"));
    }
    Ok(())
}

/// Credentials of this process.
pub(crate) fn own_credentials() -> Credentials {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Credentials::of(uid.as_raw(), gid.as_raw())
}

/// The value of a call on a file of the instance.
///
/// # Errors
/// The path leads out of the instance.
pub(crate) fn within<T>(outcome: Outcome<T>) -> Result<T, String> {
    match outcome {
        Outcome::Done(value) => Ok(value),
        Outcome::Outside | Outcome::Special(_) => {
            Err("it is not a file of the instance".to_owned())
        }
    }
}

/// The layout as text; for a regular file including its targets.
fn text(client: &Client, found: &Attributes) -> wire::errno::Result<String> {
    let layout = &found.layout;
    let consistency = if found.is_posix() { "posix" } else { "relaxed" };
    let count = match placement::group_count(layout.placement) {
        Some(count) => count.to_string(),
        // A pool chooses one target for each file.
        None if found.is_regular() && layout.pool != 0 => "1".to_owned(),
        None if layout.placement == placement::LOCAL => "local".to_owned(),
        None => "all".to_owned(),
    };
    let spread = match spread::steps(layout.spread) {
        0 => "home".to_owned(),
        spread::STEPS => "wide".to_owned(),
        steps => format!("{steps}/{}", spread::STEPS),
    };
    let size = 1u64.checked_shl(u32::from(layout.stripe_log2)).unwrap_or(0);
    let mut text = format!(
        "consistency={consistency} stripe_count={count} stripe_size={size} spread={spread}"
    );
    text.push_str(&format!(" {REPLICAS}={}", client.copies_of(found)));
    let pinned = if found.is_pinned() { "yes" } else { "no" };
    text.push_str(&format!(" {PINNED}={pinned}"));
    if let Some(name) = writeback::name(layout.writeback()) {
        text.push_str(&format!(" {WRITEBACK}={name}"));
    }
    if layout.pool != 0 {
        let mut name = None;
        each_pool(client, &mut |pool| {
            if pool.id == layout.pool {
                name = Some(String::from_utf8_lossy(pool.name).into_owned());
            }
        })?;
        if let Some(name) = name {
            text.push_str(&format!(" {POOL}={name}"));
        }
    }
    if found.is_regular() {
        let mut targets = Vec::new();
        client.each_target_of(found, &mut |target| targets.push(target.0))?;
        targets.sort_unstable();
        let targets: Vec<String> = targets.iter().map(u16::to_string).collect();
        text.push_str(&format!(" targets={}", targets.join(",")));
        let state = client.copy_state(found.inode)?;
        let known = state::NAMES.iter().find(|(_, value)| Some(*value) == state);
        if let Some((name, _)) = known {
            text.push_str(&format!(" state={name}"));
        }
    }
    Ok(text)
}
