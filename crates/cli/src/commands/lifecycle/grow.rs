//! `forebay grow`: daemons on more hosts for an instance that runs.

use crate::command_line::{with_json, with_settings};
use crate::commands::print_json;
use crate::failure::Result;
use crate::instance::cluster::{self, GrowOutcome, NewHosts};
use crate::state::settings;
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::Key;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  forebay grow n4 n5                     start a daemon on each of two more hosts
  forebay grow n4:2 'n5 10.0.0.5'        two on n4, and one on n5 that listens at this address
  forebay grow --hosts nodes             on those of the file 'nodes' that the instance does not have
  forebay grow n4 --no-wait              do not wait until metadata services are there

Programs go on meanwhile. New files have their bytes on the new daemons, too, once these take part; files
from before stay where they are. With --followers metadata services move to the new daemons, and with
--replicas copies of data do. The command waits until the services are there, as long as one moves within
--timeout: they move on without it. The instance must have been started on two or more hosts, with --hosts
and --domains. A command that was interrupted is given again with the same words, and goes on.";

const NODE: &str = "node";
const HOSTS: &str = "hosts";
const NO_WAIT: &str = "no-wait";

pub(crate) fn command() -> Command {
    let command = Command::new("grow").about("Start daemons of a running instance on more hosts");
    let command = with_settings(command.after_long_help(EXAMPLES), &[Key::Name, Key::Timeout]);
    let nodes = Arg::new(NODE).value_name("NODE").num_args(1..);
    let nodes = nodes.required_unless_present(HOSTS).conflicts_with(HOSTS);
    let file = Arg::new(HOSTS).long(HOSTS).value_name("FILE");
    let no_wait = Arg::new(NO_WAIT).long(NO_WAIT).action(ArgAction::SetTrue);
    with_json(command)
        .arg(nodes.help("Hosts, each as a line of the hosts file names it"))
        .arg(file.help("Add the hosts of this hosts file that the instance does not have"))
        .arg(no_wait.help("Do not wait until metadata services have moved to the new daemons"))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let new = match given.get_one::<String>(HOSTS) {
        Some(path) => NewHosts::OfFile(path.clone()),
        None => NewHosts::Named(given.get_many(NODE).into_iter().flatten().cloned().collect()),
    };
    let outcome = cluster::grow(name, &new, settings.timeout())?;
    let GrowOutcome { daemons, present, unaware } = outcome;
    for failure in &unaware {
        errln!("forebay grow: not told of the new addresses: {}", failure.text());
    }
    if !given.get_flag(NO_WAIT) {
        cluster::await_services(name, settings.timeout())?;
    }
    if given.get_flag("json") {
        let unaware: Vec<&str> = unaware.iter().map(|failure| failure.text()).collect();
        print_json(&json!({ "name": name, "daemons": daemons, "unaware": unaware }));
        return Ok(0);
    }
    let what = if daemons.len() == 1 { "daemon" } else { "daemons" };
    let daemons: Vec<String> = daemons.iter().map(u16::to_string).collect();
    outln!("instance {name} has {present} daemons now: new {what} {}", daemons.join(", "));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_as_in_the_hosts_file() {
        let parsed = |words: &[&str]| command().try_get_matches_from([&["grow"], words].concat());
        assert!(parsed(&[]).is_err());
        let given = parsed(&["n4:2", "n5 10.0.0.5", "--name", "x"]).expect("right");
        let nodes: Vec<&String> = given.get_many(NODE).expect("some").collect();
        assert_eq!(nodes, ["n4:2", "n5 10.0.0.5"]);
        let given = parsed(&["--hosts", "nodes"]).expect("right");
        assert_eq!(given.get_one::<String>(HOSTS).map(String::as_str), Some("nodes"));
        assert!(parsed(&["n4", "--hosts", "nodes"]).is_err(), "one of both");
        assert!(!given.get_flag(NO_WAIT));
        assert!(parsed(&["n4", "--no-wait"]).expect("right").get_flag(NO_WAIT));
    }
}
