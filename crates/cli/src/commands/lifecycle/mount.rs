//! `forebay mount` and `forebay umount`: an instance as a directory that all programs see.

use crate::command_line::{with_json, with_settings};
use crate::commands::print_json;
use crate::failure::{Failure, Result};
use crate::instance::host;
use crate::instance::mounts::{self, MountNamespace, MountRequest, MountRights};
use crate::process::progress::Progress;
use crate::state::directories::{self, InstanceLock};
use crate::state::records::{self, HostRecord};
use crate::state::settings;
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::Key;
use config::id_ranges::IdRanges;
use serde_json::json;
use std::path::PathBuf;

const MOUNT_EXAMPLES: &str = "\
Examples:
  forebay mount ~/scratch                   the instance as a directory of this host
  forebay mount --name a --for-all /mnt/a   for all users (as root, or with user_allow_other in fuse.conf)
  forebay mount --name a --for-all --root-squash --map-uids 1000:2000:10 /mnt/a
  forebay start --mount ~/scratch           mount it at start, on each of its hosts

'forebay run' mounts the instance for its commands by itself; this command mounts it for other programs of
this host, on any directory. Most calls of programs on a mount go through the kernel; programs that
'forebay run' starts are faster where they use the C library. Users other than root need fusermount3
(package fuse3), unless they are root of a user namespace of their own (unshare --user --mount).

With --for-all, set-id programs of the host can use the mount. Set-id programs and devices stored on it
work only with --trusted, because a user with write access to the instance could gain the rights of
other users through them.

With --root-squash, root of the host has no more rights on the mount than other users. With --map-uids and
--map-gids, users of the host stand for users of the instance: with 1000:2000:1, files of user 2000 are
shown as those of user 1000, and user 1000 acts as user 2000.

An instance can be mounted on several directories. A mount stays until 'forebay umount' or 'forebay
stop'. While a daemon is down, calls fail with an I/O error after the instance's --timeout, and succeed
again when it is back.";

const UMOUNT_EXAMPLES: &str = "\
Examples:
  forebay umount ~/scratch
  forebay umount --lazy /mnt/a    at once, even if programs use it

The files stay in the instance. A mount whose program was killed ('Transport endpoint is not connected')
is unmounted as well. If another mount namespace, for instance that of a container started meanwhile, has
a copy of the mount, it is served there until the namespace ends, or until 'forebay stop'.";

/// The path of a mount.
fn path() -> Arg {
    Arg::new("path")
        .required(true)
        .value_name("PATH")
        .value_parser(clap::value_parser!(PathBuf))
        .help("A directory of this host")
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// The option `--for-all`.
pub(crate) fn for_all() -> Arg {
    flag("for-all", "Let all users access the mount, as file modes permit")
}

/// The option `--trusted`.
pub(crate) fn trusted() -> Arg {
    flag("trusted", "Let set-id programs and devices on the mount work; only for root")
}

fn id_map(name: &'static str, help: &'static str) -> Arg {
    let map = Arg::new(name).long(name).value_name("HOST:INSTANCE:COUNT[,..]").help(help);
    map.requires("for-all").value_parser(str::parse::<IdRanges>)
}

/// The options that make callers others in the instance than they are on the host.
pub(crate) fn identities() -> [Arg; 3] {
    let squash = "Let root of the host, and its group, act as nobody (65534); only for root";
    let users =
        "Let users of the host be others in the instance, and the rest nobody; only for root";
    let groups =
        "Let groups of the host be others in the instance, and the rest nobody; only for root";
    [
        flag("root-squash", squash).requires("for-all"),
        id_map("map-uids", users),
        id_map("map-gids", groups),
    ]
}

/// The rights of the users of a mount.
pub(crate) fn rights(given: &ArgMatches) -> MountRights {
    let is_for_all = given.get_flag("for-all");
    let ranges = |name| given.get_one::<IdRanges>(name).cloned().unwrap_or_default();
    MountRights {
        is_for_all,
        counts_users: is_for_all,
        is_trusted: given.get_flag("trusted"),
        squashes_root: given.get_flag("root-squash"),
        users: ranges("map-uids"),
        groups: ranges("map-gids"),
    }
}

/// The option `--mount PATH`.
pub(crate) fn at() -> Arg {
    Arg::new("mount").long("mount").value_name("DIR").value_parser(clap::value_parser!(PathBuf))
}

pub(crate) fn command() -> Command {
    let command = Command::new("mount").about("Mount an instance, for all kinds of programs");
    let keys = [Key::Name, Key::Timeout, Key::Requests];
    let command = with_settings(command.after_long_help(MOUNT_EXAMPLES), &keys);
    with_json(command).arg(for_all()).arg(trusted()).args(identities()).arg(path())
}

pub(crate) fn umount_command() -> Command {
    let command = Command::new("umount").about("Unmount an instance");
    let lazy = "Even if programs use it: files that they have open are served until closed";
    with_json(with_settings(command.after_long_help(UMOUNT_EXAMPLES), &[Key::Timeout]))
        .arg(flag("lazy", lazy))
        .arg(path())
}

fn given_path(given: &ArgMatches) -> Result<PathBuf> {
    mounts::place(given.get_one::<PathBuf>("path").ok_or_else(|| Failure::new("no path given"))?)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let at = given_path(given)?;
    let run = directories::run(name)?;
    let here = || {
        let here: Option<HostRecord> = records::load(&run, host::RECORD)?;
        here.ok_or_else(|| Failure::no_instance(name))
    };
    here()?;
    // So that the instance is not stopped meanwhile.
    let lock = InstanceLock::take(name, settings.timeout())?;
    let here = match here() {
        Ok(here) => here,
        Err(gone) => {
            lock.remove();
            return Err(gone);
        }
    };
    let requests = settings.word(Key::Requests).to_owned();
    let request =
        MountRequest { at, rights: rights(given), requests, namespace: MountNamespace::Current };
    let mut progress = Progress::new("mounting");
    let mount = mounts::start(&run, &here, &request, settings.timeout(), &mut progress)?;
    drop(lock);
    if given.get_flag("json") {
        let (at, pid) = (mount.at.to_string_lossy(), mount.process.pid);
        print_json(&json!({ "name": name, "at": at, "pid": pid }));
    } else {
        outln!("mounted instance {name} on {}", mount.at.display());
    }
    Ok(0)
}

pub(crate) fn run_umount(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let at = given_path(given)?;
    let elsewhere = mounts::end(&at, given.get_flag("lazy"), settings.timeout())?;
    let elsewhere = elsewhere.map(|users| users.to_string());
    if given.get_flag("json") {
        print_json(&json!({ "unmounted": at.to_string_lossy(), "elsewhere": elsewhere }));
        return Ok(0);
    }
    outln!("unmounted {}", at.display());
    if let Some(users) = elsewhere {
        outln!("{users} still has it in another mount namespace, where it stays available");
    }
    Ok(0)
}
