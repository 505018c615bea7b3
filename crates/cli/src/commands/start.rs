//! `forebay start`: makes an instance run.

use crate::command_line::{with_all_settings, with_json};
use crate::commands::print_json;
use crate::failure::Result;
use crate::{instance, settings};
use clap::{ArgMatches, Command};
use config::Key;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  forebay start                          one daemon on this host
  forebay start --local 4 --ssd 0        four daemons, memory only
  forebay start --hosts nodes --name a   daemons on each host of the file 'nodes':
                                           node1
                                           node2:2             two daemons
                                           node3 10.0.0.3      where it listens
  scontrol show hostnames >nodes         makes such a file in a Slurm job

If the instance runs, nothing changes; daemons of it that died are started again on what they left.";

pub(super) fn command() -> Command {
    let command = Command::new("start").about("Start an instance, or the dead daemons of one");
    with_json(with_all_settings(command.after_help(EXAMPLES)))
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let started = instance::start(&settings, given.get_one::<u16>("local").copied())?;
    let (name, count) = (settings.word(Key::Name), started.instance.count());
    if given.get_flag("json") {
        print_json(&json!({
            "name": name,
            "daemons": count,
            "started": started.fresh,
            "hosts": started.instance.hosts,
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
    Ok(0)
}
