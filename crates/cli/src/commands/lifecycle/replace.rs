//! `forebay replace`: starts daemons in the place of those of a lost node.

use crate::command_line::{with_json, with_settings};
use crate::commands::print_json;
use crate::failure::Result;
use crate::instance::cluster::{self, ReplaceOutcome};
use crate::state::settings;
use clap::{Arg, ArgMatches, Command};
use config::Key;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  forebay replace n3                     start the daemons of n3 again, which lost all that they had
  forebay replace n3 --with n9           start them on the spare host n9
  forebay replace n3 --with 'n9 10.0.0.9'
                                         also says on which address they listen there

The node must be gone: its daemons are dead for the others, and what they had in memory and on the SSD is
lost. The daemons in their place begin with nothing, and get their part of data and metadata from the
copies at other nodes, while programs go on. That needs --replicas 2 and --followers 1 or more, from the
start of the instance. Daemons that still have what they had are started by 'forebay start'. Where that
names a damaged file of a host this command takes the host as lost, and removes what is there.";

pub(crate) fn command() -> Command {
    let command = Command::new("replace").about("Put a node in the place of one that is lost");
    let command = with_settings(command.after_long_help(EXAMPLES), &[Key::Name, Key::Timeout]);
    let node = Arg::new("node").value_name("NODE").required(true);
    let with = Arg::new("with").long("with").value_name("SPARE");
    with_json(command)
        .arg(node.help("The lost host, as the hosts file names it"))
        .arg(with.help("Start its daemons on this host instead, given as in the hosts file"))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let name = settings.word(Key::Name);
    let node = given.get_one::<String>("node").map_or("", String::as_str);
    let spare = given.get_one::<String>("with").map(String::as_str);
    let outcome = cluster::replace(name, node, spare, settings.timeout())?;
    let ReplaceOutcome { host, daemons, unaware } = outcome;
    for failure in &unaware {
        errln!("forebay replace: not told of the new addresses: {}", failure.text());
    }
    if given.get_flag("json") {
        let unaware: Vec<&str> = unaware.iter().map(|failure| failure.text()).collect();
        print_json(&json!({
            "name": name, "node": node, "host": host, "daemons": daemons, "unaware": unaware,
        }));
        return Ok(0);
    }
    let numbers: Vec<String> = daemons.iter().map(ToString::to_string).collect();
    let what = if numbers.len() == 1 { "daemon" } else { "daemons" };
    let numbers = numbers.join(", ");
    outln!("replaced {node} in instance {name}: {what} {numbers} on {host}");
    outln!("its copies are made anew: 'forebay status' shows how far");
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> std::result::Result<ArgMatches, clap::Error> {
        command().try_get_matches_from([&["replace"], words].concat())
    }

    #[test]
    fn a_node_is_named_and_perhaps_a_spare() {
        assert!(parsed(&[]).is_err());
        assert!(parsed(&["a", "b"]).is_err());
        let given = parsed(&["n3", "--with", "n9 10.0.0.9", "--name", "x"]).expect("right");
        let word = |key| given.get_one::<String>(key).map(String::as_str);
        assert_eq!((word("node"), word("with")), (Some("n3"), Some("n9 10.0.0.9")));
        assert_eq!(parsed(&["n3"]).expect("right").get_one::<String>("with"), None);
    }
}
