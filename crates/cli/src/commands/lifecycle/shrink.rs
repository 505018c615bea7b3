//! `forebay shrink`: daemons leave an instance that runs, with all that they have.

use crate::command_line::{with_json, with_settings};
use crate::commands::print_json;
use crate::failure::Result;
use crate::instance::cluster::{self, ShrinkOutcome};
use crate::state::settings;
use clap::{Arg, ArgMatches, Command};
use config::Key;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  forebay shrink n5                      the daemons of n5 leave
  forebay shrink n4 n5 --timeout 5m      give up when nothing moves for five minutes

The daemons give all that they have to others, while programs go on: metadata services, copies of data,
votes. Then they end, and their files on the host are removed. No program may use the instance on these
hosts. That needs --replicas 2 and --followers 1 or more, from the start of the instance, no --backing,
and enough hosts that stay. A command that was killed can be given again: the daemons leave on
meanwhile. The host on which the instance was started may leave, too: it keeps the record of the instance,
and commands that change it are given there.";

pub(crate) fn command() -> Command {
    let command = Command::new("shrink").about("Have hosts leave a running instance");
    let command = with_settings(command.after_long_help(EXAMPLES), &[Key::Name, Key::Timeout]);
    let nodes = Arg::new("node").value_name("NODE").required(true).num_args(1..);
    with_json(command).arg(nodes.help("Hosts, as the hosts file or 'forebay grow' names them"))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let nodes: Vec<String> = given.get_many("node").into_iter().flatten().cloned().collect();
    let outcome = cluster::shrink(name, &nodes, settings.timeout())?;
    let ShrinkOutcome { daemons, present, unaware } = outcome;
    for failure in &unaware {
        errln!("forebay shrink: not told that daemons left: {}", failure.text());
    }
    if given.get_flag("json") {
        let unaware: Vec<&str> = unaware.iter().map(|failure| failure.text()).collect();
        print_json(&json!({
            "name": name, "left": daemons, "daemons": present, "unaware": unaware,
        }));
        return Ok(0);
    }
    let numbers: Vec<String> = daemons.iter().map(ToString::to_string).collect();
    let what = if numbers.len() == 1 { "daemon" } else { "daemons" };
    outln!("instance {name} has {present} daemons now: {what} {} left", numbers.join(", "));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_at_least_is_named() {
        let parsed = |words: &[&str]| command().try_get_matches_from([&["shrink"], words].concat());
        assert!(parsed(&[]).is_err());
        let given = parsed(&["n4", "n5", "--name", "x"]).expect("right");
        let nodes: Vec<&String> = given.get_many("node").expect("some").collect();
        assert_eq!(nodes, ["n4", "n5"]);
    }
}
