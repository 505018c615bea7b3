//! `forebay start`: makes an instance run.

use crate::command_line::{with_all_settings, with_json};
use crate::commands::{mount, print_json};
use crate::failure::Result;
use crate::mounts::{self, Wish};
use crate::{instance, settings};
use clap::{ArgMatches, Command};
use config::Key;
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forebay start                          one daemon on this host
  forebay start --local 4 --ssd 0        four daemons, memory only
  forebay start --hosts nodes --name a   daemons on each host of the file 'nodes':
                                           node1
                                           node2:2             two daemons
                                           node3 10.0.0.3      where it listens
  scontrol show hostnames >nodes         makes such a file in a Slurm job
  forebay start --mount ~/scratch        and mounts it there, on each of its hosts: 'forebay mount --help'

If the instance runs, nothing changes; daemons of it that died are started again on what they left,
and with --mount a mount that is not there (any more) is made.";

pub(super) fn command() -> Command {
    let command = Command::new("start").about("Start an instance, or the dead daemons of one");
    let at = mount::at().help("Mount it on this directory, too, on each of its hosts");
    with_json(with_all_settings(command.after_help(EXAMPLES)))
        .arg(at)
        .arg(mount::for_all().requires("mount"))
        .arg(mount::trusted().requires("mount"))
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let at = given.get_one::<PathBuf>("mount").map(|path| mounts::place(path)).transpose()?;
    let requests = settings.word(Key::Requests).to_owned();
    let wish = at.map(|at| Wish { at, rights: mount::rights(given), requests, while_held: None });
    let local = given.get_one::<u16>("local").copied();
    let started = instance::start(&settings, local, wish.as_ref())?;
    let (name, count) = (settings.word(Key::Name), started.instance.count());
    if given.get_flag("json") {
        print_json(&json!({
            "name": name,
            "daemons": count,
            "started": started.fresh,
            "hosts": started.instance.hosts,
            "mount": wish.map(|wish| wish.at.to_string_lossy().into_owned()),
            "settings": started.instance.wanted,
        }));
        return Ok(0);
    }
    let at = &started.instance.wanted.at;
    match started.fresh {
        0 => outln!("instance {name} runs already: {count} daemons, seen at {at}"),
        fresh if fresh == usize::from(count) => {
            outln!("instance {name} runs: {count} daemons, seen at {at}");
        }
        fresh => outln!("instance {name} runs: {fresh} of {count} daemons were started again"),
    }
    if let Some(wish) = wish {
        outln!("it is mounted on {}", wish.at.display());
    }
    Ok(0)
}
