//! `forebay mount` and `forebay umount`: an instance as a directory that every program sees.

use crate::command_line::{with_json, with_settings};
use crate::commands::print_json;
use crate::directories::{self, Lock};
use crate::failure::{Failure, Result};
use crate::mounts::{self, Rights, Wish};
use crate::progress::Progress;
use crate::records::{self, Host};
use crate::{host, settings};
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::Key;
use serde_json::json;
use std::path::PathBuf;

const MOUNT_EXAMPLES: &str = "\
Examples:
  forebay mount ~/scratch                   the instance as a directory of this host
  forebay mount --name a --for-all /mnt/a   for all users (root, or user_allow_other in fuse.conf)
  forebay start --mount ~/scratch           the same as soon as it is started, on each of its hosts
  forebay run --mount ~/scratch -- ./app    for one command

Every program sees it then, also those that 'forebay run' can not serve: statically linked ones, Go,
set-uid programs, containers. It costs a change into the kernel and back for most calls; where
'forebay run' will do, it is faster. Who is not root needs fusermount3 (package fuse3), unless in a user
namespace of his own (unshare --user --mount).

Set-id programs of the host work with a mount --for-all; those that lie on it, and devices, only with
--trusted: who can write to the instance could become anybody by them.

An instance can be mounted at several places. A mount stays until 'forebay umount' or 'forebay stop';
while a daemon is gone calls end with an I/O error after --timeout of the instance, and go on when it
is back.";

const UMOUNT_EXAMPLES: &str = "\
Examples:
  forebay umount ~/scratch
  forebay umount --lazy /mnt/a    at once, though programs use it

The files stay in the instance. A mount whose program was killed ('Transport endpoint is not connected')
is taken away as well. One that another mount namespace has a copy of, a container that was started
meanwhile for instance, is served there until that ends, or 'forebay stop'.";

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
pub(super) fn for_all() -> Arg {
    flag("for-all", "Let all users see the mount, as modes allow")
}

/// The option `--trusted`.
pub(super) fn trusted() -> Arg {
    flag("trusted", "Let set-id programs and devices that lie there work; for root alone")
}

/// What users of the mount may.
pub(super) fn rights(given: &ArgMatches) -> Rights {
    Rights { is_for_all: given.get_flag("for-all"), is_trusted: given.get_flag("trusted") }
}

/// The option `--mount PATH`.
pub(super) fn at() -> Arg {
    Arg::new("mount").long("mount").value_name("DIR").value_parser(clap::value_parser!(PathBuf))
}

pub(super) fn command() -> Command {
    let command = Command::new("mount").about("Mount an instance for programs of all kinds");
    let keys = [Key::Name, Key::Timeout, Key::Requests];
    let command = with_settings(command.after_help(MOUNT_EXAMPLES), &keys);
    with_json(command).arg(for_all()).arg(trusted()).arg(path())
}

pub(super) fn umount_command() -> Command {
    let command = Command::new("umount").about("Take a mount away");
    let lazy = "Also while programs use it: what they have open is served until they close it";
    with_json(with_settings(command.after_help(UMOUNT_EXAMPLES), &[Key::Timeout]))
        .arg(flag("lazy", lazy))
        .arg(path())
}

fn given_path(given: &ArgMatches) -> Result<PathBuf> {
    mounts::place(given.get_one::<PathBuf>("path").ok_or_else(|| Failure::new("no path"))?)
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let at = given_path(given)?;
    let run = directories::run(name)?;
    let here = || {
        let here: Option<Host> = records::load(&run, host::RECORD)?;
        here.ok_or_else(|| Failure::no_instance(name))
    };
    here()?;
    // So that it is not stopped meanwhile.
    let lock = Lock::take(name, settings.timeout())?;
    let here = match here() {
        Ok(here) => here,
        Err(gone) => {
            lock.remove();
            return Err(gone);
        }
    };
    let requests = settings.word(Key::Requests).to_owned();
    let wish = Wish { at, rights: rights(given), requests, while_held: None };
    let mut progress = Progress::new("mounting");
    let mount = mounts::start(&run, &here, &wish, settings.timeout(), &mut progress)?;
    drop(lock);
    if given.get_flag("json") {
        let (at, pid) = (mount.at.to_string_lossy(), mount.process.pid);
        print_json(&json!({ "name": name, "at": at, "pid": pid }));
    } else {
        outln!("instance {name} is mounted on {}", mount.at.display());
    }
    Ok(0)
}

pub(super) fn run_umount(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let at = given_path(given)?;
    let elsewhere = mounts::end(&at, given.get_flag("lazy"), settings.timeout())?;
    let elsewhere = elsewhere.map(|users| users.to_string());
    if given.get_flag("json") {
        print_json(&json!({ "unmounted": at.to_string_lossy(), "elsewhere": elsewhere }));
        return Ok(0);
    }
    outln!("{} is no longer mounted", at.display());
    if let Some(users) = elsewhere {
        outln!("{users} still has it in another mount namespace, where it is served on");
    }
    Ok(0)
}
